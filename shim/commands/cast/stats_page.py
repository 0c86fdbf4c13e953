"""The page of `shim cast stats --to html`: one file without scripts, which loads nothing.

Names of vendors and tools are shown as text, never as markup (threats: script or HTML in exports).
"""

import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from shim.commands.cast.summary import CallCounts, Statistic, Times, by_time
from shim.story.export.html import render
from shim.story.figures import dollars, duration, tokens_in, tokens_out

TEMPLATE = os.path.join(os.path.dirname(__file__), "stats.html")
TIMES = ("time", "median", "95 %")


class Cell(NamedTuple):
    """A word or a number; `look` is a class of the page's style, "" for none."""

    text: str
    look: str = ""


class Row(NamedTuple):
    """Cells and a bar: its length as a share of the longest one's, and the part of it that failed, both from 0 to 1."""

    cells: list[Cell]
    share: float
    failed: float = 0.0

    @property
    def took(self) -> str:
        return f"{self._width:.2f}%"

    @property
    def bad(self) -> str:
        """The length of the part that failed, "" for none."""
        width = self._width * min(max(self.failed, 0.0), 1.0)
        return f"{width:.2f}%" if width else ""

    @property
    def _width(self) -> float:
        return 100 * min(max(self.share, 0.0), 1.0)


class Table(NamedTuple):
    title: str
    heads: tuple[str, ...]
    rows: list[Row]


def page(together: Statistic, vendors: Mapping[str, Statistic]) -> str:
    odd = [f"{number} {state}" for state, number in together.states.items() if state != "whole"]
    recordings = f"{together.runs} recordings" + (f"; {', '.join(odd)}" if odd else "")
    return render(TEMPLATE, recordings=recordings, tables=list(_tables(together, vendors)))


def _tables(together: Statistic, vendors: Mapping[str, Statistic]) -> Iterator[Table]:
    heads = ("vendor", "runs", "turns", "calls", "failed", "denied", "tokens in", "tokens out", "cost", "errors")
    longest = max((statistic.turns.total for statistic in vendors.values()), default=0.0)
    rows = [Row(_vendor(name, vendor), _share(vendor.turns.total, longest)) for name, vendor in vendors.items()]
    if len(vendors) > 1:
        rows.append(Row(_vendor("all", together), 0.0))
    yield Table("Vendors", (*heads, *TIMES), rows)
    for name, vendor in vendors.items():
        if tools := by_time(vendor.tools):
            longest = max(calls.times.total for _, calls in tools)
            named = ("tool", "calls", "failed", "denied", "no answer", *TIMES)
            yield Table(f"Tools of {name}", named, [_tool(tool, calls, longest) for tool, calls in tools])
    for title, counts in (("Errors by cause", together.causes), ("Repairs", together.repairs)):
        if ordered := sorted(counts.items(), key=lambda each: (-each[1], each[0])):
            rows = [Row([Cell(name), Cell(str(number))], _share(number, ordered[0][1])) for name, number in ordered]
            yield Table(title, ("", "times"), rows)


def _vendor(name: str, statistic: Statistic) -> list[Cell]:
    calls = statistic.calls
    return [
        Cell(name),
        *map(_number, (statistic.runs, statistic.turns.count, calls.calls)),
        *map(_bad, (calls.failed, calls.denied)),
        *map(_number, (tokens_in(statistic.tokens), tokens_out(statistic.tokens))),
        Cell(dollars(statistic.cost)) if dollars(statistic.cost) else _number(0),
        _bad(sum(statistic.causes.values())),
        *_times(statistic.turns),
    ]


def _tool(name: str, calls: CallCounts, longest: float) -> Row:
    counts = [_number(calls.calls), *map(_bad, (calls.failed, calls.denied, calls.unanswered))]
    failed = _share(calls.failed + calls.denied, calls.calls)
    return Row([Cell(name), *counts, *_times(calls.times)], _share(calls.times.total, longest), failed)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _times(times: Times) -> list[Cell]:
    numbers = (times.total, times.at(0.5), times.at(0.95))
    return [Cell(duration(number, fine=True)) if number else _number(0) for number in numbers]


def _number(number: int) -> Cell:
    return Cell(f"{number:,}") if number else Cell("·", "none")


def _bad(number: int) -> Cell:
    return Cell(str(number), "bad-text") if number else Cell("·", "none")
