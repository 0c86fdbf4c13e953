"""`shim cast stats`: recordings added up, for each vendor and each of its tools."""

import os
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shim.commands.cast.summaries import load_summaries
from shim.commands.cast.summary import (
    TOKEN_COLUMNS,
    DurationSamples,
    Statistic,
    choose_key,
    sort_by_time,
)
from shim.core.reading.account import pluralize
from shim.recording.folders import get_default_folder
from shim.story.figures import format_cost, format_duration
from shim.story.terminal.console import (
    JsonOption,
    RecordingsArgument,
    check_choice,
    open_table_console,
    print_json,
)

MAX_BAR_COLUMNS, MIN_BAR_COLUMNS = 24, 4  # columns of the longest bar
MIN_NAME_COLUMNS = 8  # columns of a name, however narrow the terminal is
TIME_HEADINGS = ("time", "median", "95 %")
MAX_LISTED_TOOLS = 20  # of a vendor, in a terminal; --json and --to html have them all


def print_stats(
    casts: RecordingsArgument = None,
    as_json: JsonOption = False,
    to: Annotated[str | None, typer.Option("--to", help="html writes a page to stdout.")] = None,
) -> None:
    """Add recordings up: turns, calls, failures, time, tokens, cost.

    The sums are for each vendor and each tool. Without CAST, the recordings of the folder that
    `record` names.

    Example: shim cast stats ~/casts --to html > stats.html
    """
    check_choice(("html",), to, "--to")
    if to and as_json:
        raise typer.BadParameter("give only one of them", param_hint="--json, --to")
    if to and sys.stdout.isatty():
        raise typer.BadParameter(
            "a terminal cannot show a page: send it to a file with `> stats.html`",
            param_hint="--to",
        )
    together, vendors = collect_statistics(casts or [get_default_folder(os.environ)])
    if as_json:
        vendor_reports = {name: statistic.build_json() for name, statistic in vendors.items()}
        print_json({"all": together.build_json(), "vendors": vendor_reports})
    elif to:
        from shim.commands.cast.stats_page import render_page

        sys.stdout.write(render_page(together, vendors))
    else:
        _print_statistics(open_table_console(), together, vendors)


def collect_statistics(paths: list[str]) -> tuple[Statistic, dict[str, Statistic]]:
    """The statistic of all recordings, and one for each vendor by name. Recordings are read one at
    a time.
    """
    together, vendors = Statistic(), dict[str, Statistic]()
    for run in load_summaries(paths):
        together.add_run(run)
        if run.state != "unreadable":
            vendors.setdefault(choose_key(vendors, run.vendor or "no vendor"), Statistic()).add_run(
                run
            )
    return together, dict(sorted(vendors.items()))


def _print_statistics(console: Console, together: Statistic, vendors: dict[str, Statistic]) -> None:
    entries = [*vendors.items(), *([("all", together)] if len(vendors) > 1 else [])]
    rows, spent = [], []
    for name, statistic in entries:
        calls, tokens = statistic.calls, statistic.tokens
        counts = (statistic.runs, statistic.turns.count, calls.calls, calls.failed, calls.denied)
        failed = sum(statistic.causes.values())
        share = statistic.turns.total if name in vendors else 0.0
        rows.append(
            (
                [Text(name), *_format_numbers(*counts, failed), *_format_times(statistic.turns)],
                share,
            )
        )
        given = [tokens.get(kind, 0) for kind in TOKEN_COLUMNS]
        spent.append(
            ([Text(name), *_format_numbers(*given), Text(format_cost(statistic.cost))], 0.0)
        )
    if rows:
        _print_table(
            console,
            ("vendor", "runs", "turns", "calls", "failed", "denied", "errors", *TIME_HEADINGS),
            rows,
        )
    if together.tokens or together.cost:
        console.print()
        _print_table(console, ("tokens of", *TOKEN_COLUMNS.values(), "cost"), spent)
    for name, statistic in vendors.items():
        _print_tools(console, name, statistic)
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
        said = f"of {pluralize(together.runs, 'recording')}, {', '.join(odd)}: `shim cast list` names them"
        console.print(Text(said), soft_wrap=True)


def _print_tools(console: Console, vendor: str, statistic: Statistic) -> None:
    tools = sort_by_time(statistic.tools)
    if not tools:
        return
    console.print()
    rows = []
    for name, calls in tools[:MAX_LISTED_TOOLS]:
        counts = _format_numbers(calls.calls, calls.failed, calls.denied, calls.unanswered)
        rows.append(([Text(name), *counts, *_format_times(calls.times)], calls.times.total))
    _print_table(
        console,
        (f"tools of {vendor}", "calls", "failed", "denied", "no answer", *TIME_HEADINGS),
        rows,
    )
    if len(tools) > MAX_LISTED_TOOLS:
        console.print(
            Text(
                f"and {len(tools) - MAX_LISTED_TOOLS} more tools: --json has them all", style="dim"
            )
        )


def _print_table(
    console: Console, heads: tuple[str, ...], rows: list[tuple[list[Text], float]]
) -> None:
    """Print a table. Numbers are never cut, names may be, and bars get the room that is left."""
    longest = max(share for _, share in rows)
    widths = [
        max(len(head), *(len(cells[at].plain) for cells, _ in rows))
        for at, head in enumerate(heads)
    ]
    while (
        console.is_terminal
        and MIN_NAME_COLUMNS + sum(widths[1:]) + 2 * len(widths) > console.width
        and len(widths) > 2
    ):
        widths.pop()  # a number is whole or not there; --json has them all
    whole = len(widths) == len(heads)
    heads, rows = heads[: len(widths)], [(cells[: len(widths)], share) for cells, share in rows]
    room = console.width - sum(widths) - 2 * len(widths)
    bar = (
        min(MAX_BAR_COLUMNS, room)
        if console.is_terminal and whole and longest > 0 and room >= MIN_BAR_COLUMNS
        else 0
    )
    table = Table(box=None, pad_edge=False)
    first = (
        max(widths[0] + min(room + 2, 0), MIN_NAME_COLUMNS) if console.is_terminal else widths[0]
    )
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


def _format_times(times: DurationSamples) -> list[Text]:
    return [
        Text(format_duration(number, with_ms=True))
        for number in (times.total, times.compute_percentile(0.5), times.compute_percentile(0.95))
    ]


def _format_numbers(*numbers: int) -> list[Text]:
    return [
        Text(f"{number:,}" if number else "·", style="" if number else "dim") for number in numbers
    ]
