"""Implements `shim cast list`, which prints a table of recordings in the order of their start."""

import os

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shim.commands.cast.run_summary import RecordedRunSummary
from shim.commands.cast.summary_loader import load_run_summaries
from shim.core.claude.argv.flags import Invocation
from shim.core.reading.values import escape_control_chars, format_single_line
from shim.recording.folders import NoRecordingsError, get_recording_folder
from shim.state.config import get_shim_settings_path
from shim.story.formatting import format_cost, format_duration
from shim.story.terminal.console import (
    JsonOption,
    RecordingsArgument,
    open_table_console,
    print_json,
    print_line,
)

COLUMN_NAMES = ("when", "vendor", "prompt", "turns", "tools", "lasted", "cost", "outcome", "file")
VENDOR_INDEX, PROMPT_INDEX, OUTCOME_INDEX = (
    COLUMN_NAMES.index(name) for name in ("vendor", "prompt", "outcome")
)
MAX_VENDOR_WIDTH = 12  # for vendor names in a narrow terminal
# Columns that are omitted in a narrow terminal, in this order.
OPTIONAL_COLUMNS = ("file", "cost", "turns", "tools")
YEAR_PREFIX = "2026-"
WIDE_PROMPT_WIDTH = 24  # the prompt's width if the file name is shown too
MIN_PROMPT_WIDTH = 10  # for prompts in the narrowest terminal
MAX_OUTCOME_WIDTH = 14  # other programs may report longer causes than the shim
STATE_COLORS = {"ok": "green", "cut off": "yellow", "damaged": "red", "unreadable": "red"}


def list_recordings(casts: RecordingsArgument = None, as_json: JsonOption = False) -> None:
    """List recordings: time, vendor, prompt and outcome.

    Without CAST, lists the folder of the setting `record`. An unreadable file gets a row with the
    reason.

    Example: shim cast list ~/casts
    """
    try:
        paths = casts or [get_recording_folder(os.environ)]
        summaries = sorted(
            load_run_summaries(paths),
            key=lambda summary: (not summary.started, summary.started),
        )
    except NoRecordingsError:
        if casts:
            raise
        summaries = []
    if as_json:
        print_json([summary.build_json() for summary in summaries])
    elif not summaries:
        _print_first_steps()
    else:
        console = open_table_console()
        _print_table(console, [_format_cells(summary) for summary in summaries])
        if console.is_terminal and not casts:
            print_line("")
            print_line("shim show FILE                  view a recording")
            print_line("shim export FILE --to html      write it as a web page")
            print_line("shim help recording             all commands")


def _print_first_steps() -> None:
    """Print how to make a first recording."""
    settings_path = escape_control_chars(get_shim_settings_path(Invocation(), os.environ))
    print_line("No recordings yet.")
    print_line("")
    print_line(f'Record every session:   add `record = "~/casts/"` to {settings_path}')
    print_line('Record one session:     shim run --record ~/casts/ "PROMPT"')
    print_line("List another folder:    shim cast list FOLDER")


def _print_table(console: Console, rows: list[list[Text]]) -> None:
    """Print the table of recordings. A terminal gets the columns that fit; a pipe gets all columns."""
    widths = [
        max(map(len, [name, *(row[column].plain for row in rows)]))
        for column, name in enumerate(COLUMN_NAMES)
    ]
    columns = list(range(len(COLUMN_NAMES)))
    gap = 2
    if console.is_terminal:
        widths[OUTCOME_INDEX] = min(widths[OUTCOME_INDEX], MAX_OUTCOME_WIDTH)
        columns, gap, widths[PROMPT_INDEX] = _fit_columns(console.width, widths)
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), collapse_padding=True)
    for column in columns:
        is_number = COLUMN_NAMES[column] in ("turns", "tools", "lasted", "cost")
        table.add_column(
            COLUMN_NAMES[column],
            no_wrap=True,
            justify="right" if is_number else "left",
            overflow="ellipsis",
        )
    for row in rows:
        if gap == 1:
            row[0] = row[0][len(YEAR_PREFIX) :]
            row[VENDOR_INDEX].truncate(MAX_VENDOR_WIDTH, overflow="ellipsis")
        row[PROMPT_INDEX].truncate(widths[PROMPT_INDEX], overflow="ellipsis")
        row[OUTCOME_INDEX].truncate(widths[OUTCOME_INDEX], overflow="ellipsis")
        table.add_row(*(row[column] for column in columns))
    console.print(table)


def _fit_columns(width: int, widths: list[int]) -> tuple[list[int], int, int]:
    """Return the columns that fit a terminal, the gap between columns, and the width of a prompt."""
    columns = list(range(len(COLUMN_NAMES)))
    prompt_width = width - sum(widths) + widths[PROMPT_INDEX] - 2 * (len(COLUMN_NAMES) - 1)
    if prompt_width >= WIDE_PROMPT_WIDTH:
        return columns, 2, prompt_width
    # A narrow table omits the year, shortens long vendor names, and has smaller gaps between columns.
    widths = [
        max(widths[0] - len(YEAR_PREFIX), 0),
        min(widths[VENDOR_INDEX], MAX_VENDOR_WIDTH),
        *widths[VENDOR_INDEX + 1 :],
    ]
    for name in OPTIONAL_COLUMNS:
        columns.remove(COLUMN_NAMES.index(name))
        prompt_width = (
            width
            - sum(widths[column] for column in columns)
            + widths[PROMPT_INDEX]
            - (len(columns) - 1)
        )
        if prompt_width >= MIN_PROMPT_WIDTH:
            break
    return columns, 1, max(prompt_width, MIN_PROMPT_WIDTH)


def _format_cells(summary: RecordedRunSummary) -> list[Text]:
    totals = summary.totals
    failed_count = sum(calls.failed + calls.denied for calls in summary.tools.values())
    cells = [
        summary.started[:16].replace("T", " "),
        summary.vendor,
        summary.prompt or summary.problem,
        str(totals.turns),
        f"{totals.calls} ({failed_count} ✗)" if failed_count else str(totals.calls),
        format_duration(totals.duration_s, with_ms=True),
        format_cost(totals.cost_usd),
    ]
    if summary.state == "unreadable":
        cells[3:] = [""] * 4
    color = STATE_COLORS.get(
        summary.outcome_text, "" if summary.outcome_text == "no turn ended" else "red"
    )
    file = format_single_line(os.path.basename(summary.file))
    return [
        *(Text(cell) for cell in cells),
        Text(summary.outcome_text, style=color),
        Text(file, style="dim"),
    ]
