"""The table of what was tried: clients and scenarios down, every claude across, as Markdown."""

from __future__ import annotations

import pytest

NOT_TRIED = "–"


class Table:
    """Fills itself from the reports of the tests."""

    def __init__(self) -> None:
        self._cells: dict[tuple[str, str], dict[str, str]] = {}
        self._columns: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._cells)

    def note(self, client: str, scenario: str, column: str, report: pytest.TestReport) -> None:
        """Takes a report in; of a test's several, a failure beats everything, wherever it happened."""
        row = self._cells.setdefault((client, scenario), {})
        if column not in self._columns:
            self._columns.append(column)
        if report.failed:
            row[column] = "failed"
        elif report.skipped:
            row[column] = _reason(report)
        elif report.when == "call":
            row.setdefault(column, "passed")

    def markdown(self) -> str:
        """The rows, each client's together."""
        header = ["client", "scenario", *self._columns]
        lines = [_line(header), _line(["---"] * len(header))]
        clients = list(dict.fromkeys(client for client, _ in self._cells))
        for (client, scenario), row in sorted(self._cells.items(), key=lambda cell: clients.index(cell[0][0])):
            lines.append(_line([client, scenario, *(row.get(column, NOT_TRIED) for column in self._columns)]))
        return "\n".join([*lines, "", f"{NOT_TRIED}: not tried, another version or client stands for it"])


def _reason(report: pytest.TestReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
