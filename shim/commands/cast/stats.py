"""Implements `shim cast stats`, which prints totals of recordings for each vendor and tool."""

import os
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shim.commands.cast.run_summary import (
    TOKEN_COLUMNS,
    DurationSamples,
    RecordedRunStatistics,
    choose_counter_key_or_overflow_key,
    sort_tools_by_total_time,
)
from shim.commands.cast.summary_loader import load_run_summaries
from shim.commands.completion.values import create_completer
from shim.core.reading.diagnostics import pluralize
from shim.recording.folders import get_recording_folder
from shim.story.formatting import format_cost, format_duration
from shim.story.terminal.console import (
    JsonOption,
    RecordingsArgument,
    check_option_value,
    open_table_console,
    print_json,
)

# The width of the longest bar in columns.
MAX_BAR_COLUMNS = 24
MIN_BAR_COLUMNS = 4
MIN_NAME_COLUMNS = 8  # the width of a name in the narrowest terminal
TIME_HEADINGS = ("time", "median", "p95")
MAX_LISTED_TOOLS = 20  # per vendor in a terminal; --json and --to html list all


def print_stats(
    casts: RecordingsArgument = None,
    as_json: JsonOption = False,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            help="html: write an HTML page to stdout.",
            autocompletion=create_completer(("html",)),
        ),
    ] = None,
) -> None:
    """Summarize recordings: turns, calls, failures, time, tokens, cost.

    There is a summary for each vendor and each tool. Without CAST, reads the folder of the setting
    `record`.

    Example: shim cast stats ~/casts --to html > stats.html
    """
    check_option_value(("html",), to, "--to")
    if to and as_json:
        raise typer.BadParameter("cannot be combined", param_hint="--json and --to")
    if to and sys.stdout.isatty():
        raise typer.BadParameter(
            "a terminal cannot show an HTML page: redirect it to a file with `> stats.html`",
            param_hint="--to",
        )
    paths = casts or [get_recording_folder(os.environ)]
    total, by_vendor = collect_run_statistics(paths)
    if as_json:
        vendor_reports = {name: statistic.build_json() for name, statistic in by_vendor.items()}
        print_json({"all": total.build_json(), "vendors": vendor_reports})
    elif to:
        from shim.commands.cast.stats_page import render_stats_page

        sys.stdout.write(render_stats_page(total, by_vendor))
    else:
        _print_statistics(open_table_console(), total, by_vendor)


def collect_run_statistics(
    paths: list[str],
) -> tuple[RecordedRunStatistics, dict[str, RecordedRunStatistics]]:
    """Return the statistics of all recordings together, and of each vendor by name. Only one
    recording is in memory at a time.
    """
    total = RecordedRunStatistics()
    by_vendor = dict[str, RecordedRunStatistics]()
    for summary in load_run_summaries(paths):
        total.add_run(summary)
        if summary.state != "unreadable":
            by_vendor.setdefault(
                choose_counter_key_or_overflow_key(by_vendor, summary.vendor or "no vendor"),
                RecordedRunStatistics(),
            ).add_run(summary)
    return total, dict(sorted(by_vendor.items()))


def _print_statistics(
    console: Console, total: RecordedRunStatistics, by_vendor: dict[str, RecordedRunStatistics]
) -> None:
    entries = [*by_vendor.items(), *([("all", total)] if len(by_vendor) > 1 else [])]
    rows = []
    token_rows = []
    for name, statistic in entries:
        calls = statistic.calls
        tokens = statistic.tokens
        counts = (statistic.runs, statistic.turns.count, calls.calls, calls.failed, calls.denied)
        failed_turns = sum(statistic.causes.values())
        share = 0.0
        if name in by_vendor:
            share = statistic.turns.total
        rows.append(
            (
                [
                    Text(name),
                    *_format_numbers(*counts, failed_turns),
                    *_format_times(statistic.turns),
                ],
                share,
            )
        )
        token_counts = [tokens.get(kind, 0) for kind in TOKEN_COLUMNS]
        token_rows.append(
            ([Text(name), *_format_numbers(*token_counts), Text(format_cost(statistic.cost))], 0.0)
        )
    if rows:
        _print_table(
            console,
            ("vendor", "runs", "turns", "calls", "failed", "denied", "errors", *TIME_HEADINGS),
            rows,
        )
    if total.tokens or total.cost:
        console.print()
        _print_table(console, ("tokens of", *TOKEN_COLUMNS.values(), "cost"), token_rows)
    for name, statistic in by_vendor.items():
        _print_tools(console, name, statistic)
    for label, numbers in (("errors", total.causes), ("repairs", total.repairs)):
        if numbers:
            console.print()
            counts_text = ", ".join(
                f"{name} {number}"
                for name, number in sorted(numbers.items(), key=lambda item: -item[1])
            )
            console.print(Text(f"{label}: {counts_text}"), soft_wrap=True)
    if state_texts := [
        f"{number} {state}" for state, number in total.states.items() if state != "whole"
    ]:
        if rows:
            console.print()
        states_text = (
            f"{', '.join(state_texts)}, of {pluralize(total.runs, 'recording')}: `shim cast list` "
            "shows the state of each"
        )
        console.print(Text(states_text), soft_wrap=True)


def _print_tools(console: Console, vendor: str, statistic: RecordedRunStatistics) -> None:
    sorted_tools = sort_tools_by_total_time(statistic.tools)
    if not sorted_tools:
        return
    console.print()
    rows = []
    for name, calls in sorted_tools[:MAX_LISTED_TOOLS]:
        counts = _format_numbers(calls.calls, calls.failed, calls.denied, calls.unanswered)
        rows.append(([Text(name), *counts, *_format_times(calls.times)], calls.times.total))
    _print_table(
        console,
        (f"tools of {vendor}", "calls", "failed", "denied", "no answer", *TIME_HEADINGS),
        rows,
    )
    if len(sorted_tools) > MAX_LISTED_TOOLS:
        console.print(
            Text(
                f"and {len(sorted_tools) - MAX_LISTED_TOOLS} more tools; --json prints all of them",
                style="dim",
            )
        )


def _print_table(
    console: Console, headings: tuple[str, ...], rows: list[tuple[list[Text], float]]
) -> None:
    """Print a table. Numbers are never shortened. Names may be shortened, and bars use the
    remaining width.
    """
    max_share = max(share for _, share in rows)
    widths = [
        max(len(heading), *(len(cells[index].plain) for cells, _ in rows))
        for index, heading in enumerate(headings)
    ]
    while (
        console.is_terminal
        and MIN_NAME_COLUMNS + sum(widths[1:]) + 2 * len(widths) > console.width
        and len(widths) > 2
    ):
        widths.pop()  # columns that do not fit are omitted; --json has all
    has_all_columns = len(widths) == len(headings)
    headings = headings[: len(widths)]
    rows = [(cells[: len(widths)], share) for cells, share in rows]
    free_columns = console.width - sum(widths) - 2 * len(widths)
    bar_columns = 0
    if (
        console.is_terminal
        and has_all_columns
        and max_share > 0
        and free_columns >= MIN_BAR_COLUMNS
    ):
        bar_columns = min(MAX_BAR_COLUMNS, free_columns)
    table = Table(box=None, pad_edge=False)
    if console.is_terminal:
        name_columns = max(widths[0] + min(free_columns + 2, 0), MIN_NAME_COLUMNS)
    else:
        name_columns = widths[0]
    table.add_column(Text(headings[0]), no_wrap=True, overflow="ellipsis", width=name_columns)
    for heading, width in zip(headings[1:], widths[1:], strict=True):
        table.add_column(heading, justify="right", no_wrap=True, min_width=width)
    if bar_columns:
        table.add_column("", no_wrap=True, width=bar_columns)
    for cells, share in rows:
        eighths = 0
        if bar_columns:
            eighths = round(8 * bar_columns * share / max_share)
        bar_text = Text("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip(), style="cyan")
        table.add_row(*cells, *([bar_text] if bar_columns else []))
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
