"""The report of `shim conform`: a table for a person, an object for a program, an exit code.

Output of the command is shown with control characters made visible, and never read as markup
(threats: terminal).
"""

import json
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shim.commands.conform.process import Object
from shim.commands.conform.seen import MUST, Finding
from shim.core.reading.account import printable

STYLES = {"pass": "green", "fail": "red", "skipped": "dim"}


def exit_code(findings: Sequence[Finding]) -> int:
    """1 if a MUST is broken, else 0."""
    return int(
        any(finding.verdict == "fail" and finding.rule.level == MUST for finding in findings)
    )


def as_json(command: Sequence[str], findings: Sequence[Finding]) -> str:
    """The whole report for a program, a newline at its end."""
    report: Object = {
        "command": list(command),
        "passed": not exit_code(findings),
        "counts": {level: dict(_counts(findings, level)) for level in ("MUST", "SHOULD")},
        "rules": [finding.as_json() for finding in findings],
    }
    return json.dumps(report, indent=2) + "\n"


def draw(console: Console, command: Sequence[str], findings: Sequence[Finding]) -> None:
    """Draw the table, and for each broken rule the bytes sent and received."""
    table = Table(
        "rule", "level", "for", "verdict", "what it says, what was found", box=None, pad_edge=False
    )
    for finding in findings:
        rule = finding.rule
        said = Text(rule.says)
        if finding.found:
            said.append(f"\n{finding.found}", style=STYLES[finding.verdict])
        if finding.verdict == "fail":
            for name, value in (
                ("run ", finding.run),
                ("sent", finding.sent),
                ("came", finding.came),
            ):
                if value:
                    said.append(f"\n  {name}: {value}", style="dim")
        verdict = Text(finding.verdict, style=STYLES[finding.verdict])
        table.add_row(Text(rule.id), Text(rule.level), Text(rule.applies), verdict, said)
    console.print(table)
    console.print(Text(printable(" ".join(command)) + ": " + _sum(findings)), soft_wrap=True)


def _sum(findings: Sequence[Finding]) -> str:
    parts = []
    for level in ("MUST", "SHOULD"):
        counts = _counts(findings, level)
        words = [f"{counts[verdict]} {word}" for verdict, word in _WORDS.items() if counts[verdict]]
        parts.append(f"{level} {', '.join(words) or 'none'}")
    return "; ".join(parts)


_WORDS = {"pass": "kept", "fail": "broken", "skipped": "not seen"}


def _counts(findings: Sequence[Finding], level: str) -> Counter[str]:
    return Counter(finding.verdict for finding in findings if finding.rule.level == level)
