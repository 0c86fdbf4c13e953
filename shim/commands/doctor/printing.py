"""Prints diagnosis findings for a person, each with a mark, its text and a suggested fix."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shim.commands.doctor.findings import (
    NOTE,
    OK,
    PROBLEM,
    WARNING,
    DiagnosisFinding,
    VendorDiagnosis,
)
from shim.core.reading.values import escape_control_chars

LEVEL_SYMBOLS = {
    OK: ("✓", "green"),
    NOTE: ("·", "cyan"),
    WARNING: ("!", "yellow"),
    PROBLEM: ("✗", "red"),
}


def print_finding(console: Console, finding: DiagnosisFinding, indent: str = "") -> None:
    """Print a finding. Text wraps on a terminal; in a pipe, each text is one line."""
    symbol, style = LEVEL_SYMBOLS[finding.level]
    text = Text(escape_control_chars(finding.text), style="red" if finding.level == PROBLEM else "")
    _print_line(console, indent, Text(symbol, style=style), text)
    if finding.fix:
        _print_line(
            console,
            indent + "  ",
            Text("→", style="dim"),
            Text(escape_control_chars(finding.fix), style="dim"),
        )


def print_vendor_report(console: Console, report: VendorDiagnosis) -> None:
    """Print a vendor's name, its program path, and its findings."""
    heading = Text(escape_control_chars(report.name), style="bold")
    heading.append(f"  {escape_control_chars(report.program or 'not found')}", style="not bold")
    console.print(heading, soft_wrap=True)
    for finding in report.findings:
        print_finding(console, finding, "  ")


def _print_line(console: Console, indent: str, symbol: Text, text: Text) -> None:
    if not console.is_terminal:
        console.print(Text.assemble(indent, symbol, " ", text), soft_wrap=True)
        return
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text.assemble(indent, symbol), text)
    console.print(grid)
