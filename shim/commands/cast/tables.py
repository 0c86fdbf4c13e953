"""`shim cast list`: a table of recordings, by the time at which they began."""

import os

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shim.commands.cast.summaries import load_summaries
from shim.commands.cast.summary import RunSummary
from shim.recording.folders import get_default_folder
from shim.story.figures import format_cost, format_duration
from shim.story.terminal.console import (
    JsonOption,
    RecordingsArgument,
    format_single_line,
    open_table_console,
    print_json,
)

COLUMN_NAMES = ("when", "vendor", "prompt", "turns", "tools", "lasted", "cost", "outcome", "file")
VENDOR_INDEX, PROMPT_INDEX, OUTCOME_INDEX = (
    COLUMN_NAMES.index(name) for name in ("vendor", "prompt", "outcome")
)
MAX_VENDOR_WIDTH = 12  # of a vendor's name in a narrow terminal
# a narrow terminal leaves these out, one after the other
OPTIONAL_COLUMNS = ("file", "cost", "turns", "tools")
YEAR_PREFIX = "2026-"
WIDE_PROMPT_WIDTH = 24  # of a prompt beside the name of the file
MIN_PROMPT_WIDTH = 10  # of a prompt, however narrow the terminal is
MAX_OUTCOME_WIDTH = 14  # our causes are shorter; those of other programs may be longer
STATE_COLORS = {"ok": "green", "cut off": "yellow", "damaged": "red", "unreadable": "red"}


def list_recordings(casts: RecordingsArgument = None, as_json: JsonOption = False) -> None:
    """List recordings: when, which vendor, what was asked, how it went.

    Without CAST, the recordings of the folder that `record` names. A file that cannot be read has a
    row that says why.

    Example: shim cast list ~/casts
    """
    runs = sorted(
        load_summaries(casts or [get_default_folder(os.environ)]),
        key=lambda run: (not run.started, run.started),
    )
    if as_json:
        print_json([run.build_json() for run in runs])
        return
    _print_table(open_table_console(), [_format_cells(run) for run in runs])


def _print_table(console: Console, rows: list[list[Text]]) -> None:
    """Draw the table: in a terminal with as many columns as it has room for, whole in a pipe."""
    widths = [
        max(map(len, [name, *(row[at].plain for row in rows)]))
        for at, name in enumerate(COLUMN_NAMES)
    ]
    shown, gap = list(range(len(COLUMN_NAMES))), 2
    if console.is_terminal:
        widths[OUTCOME_INDEX] = min(widths[OUTCOME_INDEX], MAX_OUTCOME_WIDTH)
        shown, gap, widths[PROMPT_INDEX] = _fit_columns(console.width, widths)
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), collapse_padding=True)
    for at in shown:
        right = COLUMN_NAMES[at] in ("turns", "tools", "lasted", "cost")
        table.add_column(
            COLUMN_NAMES[at],
            no_wrap=True,
            justify="right" if right else "left",
            overflow="ellipsis",
        )
    for row in rows:
        if gap == 1:
            row[0] = row[0][len(YEAR_PREFIX) :]
            row[VENDOR_INDEX].truncate(MAX_VENDOR_WIDTH, overflow="ellipsis")
        row[PROMPT_INDEX].truncate(widths[PROMPT_INDEX], overflow="ellipsis")
        row[OUTCOME_INDEX].truncate(widths[OUTCOME_INDEX], overflow="ellipsis")
        table.add_row(*(row[at] for at in shown))
    console.print(table)


def _fit_columns(width: int, widths: list[int]) -> tuple[list[int], int, int]:
    """The columns that a terminal has room for, the gap between them, and the columns of a prompt."""
    shown = list(range(len(COLUMN_NAMES)))
    prompt = width - sum(widths) + widths[PROMPT_INDEX] - 2 * (len(COLUMN_NAMES) - 1)
    if prompt >= WIDE_PROMPT_WIDTH:
        return shown, 2, prompt
    # Narrow: without the year, with the beginning of a vendor's long name, and closer together.
    widths = [
        max(widths[0] - len(YEAR_PREFIX), 0),
        min(widths[VENDOR_INDEX], MAX_VENDOR_WIDTH),
        *widths[VENDOR_INDEX + 1 :],
    ]
    for name in OPTIONAL_COLUMNS:
        shown.remove(COLUMN_NAMES.index(name))
        prompt = width - sum(widths[at] for at in shown) + widths[PROMPT_INDEX] - (len(shown) - 1)
        if prompt >= MIN_PROMPT_WIDTH:
            break
    return shown, 1, max(prompt, MIN_PROMPT_WIDTH)


def _format_cells(run: RunSummary) -> list[Text]:
    totals = run.totals
    failed = sum(calls.failed + calls.denied for calls in run.tools.values())
    cells = [
        run.started[:16].replace("T", " "),
        run.vendor,
        run.prompt or run.problem,
        str(totals.turns),
        f"{totals.calls} ({failed} ✗)" if failed else str(totals.calls),
        format_duration(totals.duration_s, with_ms=True),
        format_cost(totals.cost_usd),
    ]
    if run.state == "unreadable":
        cells[3:] = [""] * 4
    color = STATE_COLORS.get(
        run.display_state, "" if run.display_state == "no turn ended" else "red"
    )
    file = format_single_line(os.path.basename(run.file))
    return [
        *(Text(cell) for cell in cells),
        Text(run.display_state, style=color),
        Text(file, style="dim"),
    ]
