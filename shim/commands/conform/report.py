"""Formats the report of `shim conform` as a table or as JSON, and computes the exit status.

Output of the checked command is escaped and never parsed as markup.
"""

import json
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shim.commands.conform.observations import MUST, ConformanceRuleResult
from shim.commands.conform.process import JsonObject
from shim.core.reading.values import escape_control_chars

VERDICT_STYLES = {"pass": "green", "fail": "red", "skipped": "dim"}


def compute_exit_code(findings: Sequence[ConformanceRuleResult]) -> int:
    """Return 1 if a MUST rule is broken, and 0 otherwise."""
    return int(any(finding.verdict == "fail" for finding in findings if finding.rule.level == MUST))


def format_findings_json(command: Sequence[str], findings: Sequence[ConformanceRuleResult]) -> str:
    """Return the complete report as JSON, with a newline at the end."""
    report: JsonObject = {
        "command": list(command),
        "passed": not compute_exit_code(findings),
        "counts": {level: dict(_count_verdicts(findings, level)) for level in ("MUST", "SHOULD")},
        "rules": [finding.to_json() for finding in findings],
    }
    return json.dumps(report, indent=2) + "\n"


def print_conformance_report(
    console: Console, command: Sequence[str], findings: Sequence[ConformanceRuleResult]
) -> None:
    """Print the table of rules. For each broken rule, print the sent and received bytes."""
    table = Table(
        "rule", "level", "for", "verdict", "requirement and finding", box=None, pad_edge=False
    )
    for finding in findings:
        rule = finding.rule
        description = Text(rule.text)
        if finding.detail:
            description.append(f"\n{finding.detail}", style=VERDICT_STYLES[finding.verdict])
        if finding.verdict == "fail":
            for name, value in (
                ("run ", finding.run),
                ("sent", finding.input_text),
                ("came", finding.output_text),
            ):
                if value:
                    description.append(f"\n  {name}: {value}", style="dim")
        verdict = Text(finding.verdict, style=VERDICT_STYLES[finding.verdict])
        table.add_row(Text(rule.id), Text(rule.level), Text(rule.scope), verdict, description)
    console.print(table)
    console.print(
        Text(escape_control_chars(" ".join(command)) + ": " + _format_summary(findings)),
        soft_wrap=True,
    )


def _format_summary(findings: Sequence[ConformanceRuleResult]) -> str:
    parts = []
    for level in ("MUST", "SHOULD"):
        counts = _count_verdicts(findings, level)
        counts_text = [
            f"{counts[verdict]} {label}"
            for verdict, label in _VERDICT_LABELS.items()
            if counts[verdict]
        ]
        parts.append(f"{level} {', '.join(counts_text) or 'none'}")
    return "; ".join(parts)


_VERDICT_LABELS = {"pass": "kept", "fail": "broken", "skipped": "not seen"}


def _count_verdicts(findings: Sequence[ConformanceRuleResult], level: str) -> Counter[str]:
    return Counter(finding.verdict for finding in findings if finding.rule.level == level)
