"""A Markdown table of test results, with a column for each claude or vendor."""

from __future__ import annotations

import pytest

NOT_TESTED = "–"


class Table:
    """A table that is filled from test reports. `heads` are the titles of the columns that name a
    row.
    """

    def __init__(self, heads: tuple[str, ...]) -> None:
        self._heads = heads
        self._cells: dict[tuple[str, ...], dict[str, str]] = {}
        self._columns: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._cells)

    def record_report(self, row: tuple[str, ...], column: str, report: pytest.TestReport) -> None:
        """Add a report. If a test has several, a failure in any phase takes precedence.

        If a test has recorded an `outcome`, the cell has this outcome.
        """
        cells = self._cells.setdefault(row, {})
        if column not in self._columns:
            self._columns.append(column)
        outcome = dict(report.user_properties).get("outcome")
        if outcome is not None:
            cells[column] = str(outcome)
        elif report.failed:
            cells[column] = "failed"
        elif report.skipped:
            cells[column] = _format_skip_reason(report)
        elif report.when == "call":
            cells.setdefault(column, "passed")

    def format_markdown(self) -> str:
        """Return the table. Rows with the same start are grouped."""
        header = [*self._heads, *self._columns]
        lines = [_format_row(header), _format_row(["---"] * len(header))]
        firsts = list(dict.fromkeys(row[0] for row in self._cells))
        for row, cells in sorted(self._cells.items(), key=lambda cell: firsts.index(cell[0][0])):
            lines.append(
                _format_row([*row, *(cells.get(column, NOT_TESTED) for column in self._columns)])
            )
        return "\n".join(
            [*lines, "", f"{NOT_TESTED}: not tried, another version or client stands for it"]
        )


def _format_skip_reason(report: pytest.TestReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def _format_row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
