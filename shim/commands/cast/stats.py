"""`shim cast stats`: recordings added up, for each vendor and each of its tools."""

import os
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shim.commands.cast.summaries import runs_of
from shim.commands.cast.summary import TOKENS, Statistic, Times, by_time, named
from shim.core.reading.account import counted
from shim.recording.folders import usual_folder
from shim.story.figures import dollars, duration
from shim.story.terminal.console import AnyCasts, AsJson, must_be_one_of, print_json, table_console

BAR, LEAST_BAR = 24, 4  # columns of the longest bar
LEAST_NAME = 8  # columns of a name, however narrow the terminal is
TIMES = ("time", "median", "95 %")
TOOLS_SHOWN = 20  # of a vendor, in a terminal; --json and --to html have them all


def stats_of(
    casts: AnyCasts = None,
    as_json: AsJson = False,
    to: Annotated[str | None, typer.Option("--to", help="html writes a page to stdout.")] = None,
) -> None:
    """Add recordings up: turns, calls, failures, time, tokens, cost.

    The sums are for each vendor and each tool. Without CAST, the recordings of the folder that
    `record` names.

    Example: shim cast stats ~/casts --to html > stats.html
    """
    must_be_one_of(("html",), to, "--to")
    if to and as_json:
        raise typer.BadParameter("give only one of them", param_hint="--json, --to")
    if to and sys.stdout.isatty():
        raise typer.BadParameter(
            "a terminal cannot show a page: send it to a file with `> stats.html`",
            param_hint="--to",
        )
    together, vendors = added_up(casts or [usual_folder(os.environ)])
    if as_json:
        vendor_reports = {name: statistic.report() for name, statistic in vendors.items()}
        print_json({"all": together.report(), "vendors": vendor_reports})
    elif to:
        from shim.commands.cast.stats_page import page

        sys.stdout.write(page(together, vendors))
    else:
        _draw(table_console(), together, vendors)


def added_up(paths: list[str]) -> tuple[Statistic, dict[str, Statistic]]:
    """The statistic of all recordings, and one for each vendor by name. Recordings are read one at
    a time.
    """
    together, vendors = Statistic(), dict[str, Statistic]()
    for run in runs_of(paths):
        together.add(run)
        if run.state != "unreadable":
            vendors.setdefault(named(vendors, run.vendor or "no vendor"), Statistic()).add(run)
    return together, dict(sorted(vendors.items()))


def _draw(console: Console, together: Statistic, vendors: dict[str, Statistic]) -> None:
    entries = [*vendors.items(), *([("all", together)] if len(vendors) > 1 else [])]
    rows, spent = [], []
    for name, statistic in entries:
        calls, tokens = statistic.calls, statistic.tokens
        counts = (statistic.runs, statistic.turns.count, calls.calls, calls.failed, calls.denied)
        failed = sum(statistic.causes.values())
        share = statistic.turns.total if name in vendors else 0.0
        rows.append(([Text(name), *_numbers(*counts, failed), *_times(statistic.turns)], share))
        given = [tokens.get(kind, 0) for kind in TOKENS]
        spent.append(([Text(name), *_numbers(*given), Text(dollars(statistic.cost))], 0.0))
    if rows:
        _print(
            console,
            ("vendor", "runs", "turns", "calls", "failed", "denied", "errors", *TIMES),
            rows,
        )
    if together.tokens or together.cost:
        console.print()
        _print(console, ("tokens of", *TOKENS.values(), "cost"), spent)
    for name, statistic in vendors.items():
        _draw_tools(console, name, statistic)
    for what, numbers in (("errors", together.causes), ("repairs", together.repairs)):
        if numbers:
            console.print()
            told = ", ".join(
                f"{name} {number}"
                for name, number in sorted(numbers.items(), key=lambda each: -each[1])
            )
            console.print(Text(f"{what}: {told}"), soft_wrap=True)
    if odd := [
        f"{number} {state}" for state, number in together.states.items() if state != "whole"
    ]:
        if rows:
            console.print()
        said = f"of {counted(together.runs, 'recording')}, {', '.join(odd)}: `shim cast list` names them"
        console.print(Text(said), soft_wrap=True)


def _draw_tools(console: Console, vendor: str, statistic: Statistic) -> None:
    tools = by_time(statistic.tools)
    if not tools:
        return
    console.print()
    rows = []
    for name, calls in tools[:TOOLS_SHOWN]:
        counts = _numbers(calls.calls, calls.failed, calls.denied, calls.unanswered)
        rows.append(([Text(name), *counts, *_times(calls.times)], calls.times.total))
    _print(console, (f"tools of {vendor}", "calls", "failed", "denied", "no answer", *TIMES), rows)
    if len(tools) > TOOLS_SHOWN:
        console.print(
            Text(f"and {len(tools) - TOOLS_SHOWN} more tools: --json has them all", style="dim")
        )


def _print(console: Console, heads: tuple[str, ...], rows: list[tuple[list[Text], float]]) -> None:
    """Print a table. Numbers are never cut, names may be, and bars get the room that is left."""
    longest = max(share for _, share in rows)
    widths = [
        max(len(head), *(len(cells[at].plain) for cells, _ in rows))
        for at, head in enumerate(heads)
    ]
    while (
        console.is_terminal
        and LEAST_NAME + sum(widths[1:]) + 2 * len(widths) > console.width
        and len(widths) > 2
    ):
        widths.pop()  # a number is whole or not there; --json has them all
    whole = len(widths) == len(heads)
    heads, rows = heads[: len(widths)], [(cells[: len(widths)], share) for cells, share in rows]
    room = console.width - sum(widths) - 2 * len(widths)
    bar = (
        min(BAR, room) if console.is_terminal and whole and longest > 0 and room >= LEAST_BAR else 0
    )
    table = Table(box=None, pad_edge=False)
    first = max(widths[0] + min(room + 2, 0), LEAST_NAME) if console.is_terminal else widths[0]
    table.add_column(Text(heads[0]), no_wrap=True, overflow="ellipsis", width=first)
    for head, width in zip(heads[1:], widths[1:], strict=True):
        table.add_column(head, justify="right", no_wrap=True, min_width=width)
    if bar:
        table.add_column("", no_wrap=True, width=bar)
    for cells, share in rows:
        eighths = round(8 * bar * share / longest) if bar else 0
        drawn = Text("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip(), style="cyan")
        table.add_row(*cells, *([drawn] if bar else []))
    console.print(table)


def _times(times: Times) -> list[Text]:
    return [
        Text(duration(number, fine=True)) for number in (times.total, times.at(0.5), times.at(0.95))
    ]


def _numbers(*numbers: int) -> list[Text]:
    return [
        Text(f"{number:,}" if number else "·", style="" if number else "dim") for number in numbers
    ]
