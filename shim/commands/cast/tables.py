"""`shim cast list`: a table of recordings, by the time at which they began."""

import os

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shim.commands.cast.summaries import runs_of
from shim.commands.cast.summary import RecordedRun
from shim.recording.folders import usual_folder
from shim.story.figures import dollars, duration
from shim.story.terminal.console import AnyCasts, AsJson, one_line, print_json, table_console

NAMES = ("when", "vendor", "prompt", "turns", "tools", "lasted", "cost", "outcome", "file")
VENDOR, PROMPT, OUTCOME = (NAMES.index(name) for name in ("vendor", "prompt", "outcome"))
VENDOR_COLUMNS = 12  # of a vendor's name in a narrow terminal
# a narrow terminal leaves these out, one after the other
LEAST_NEEDED = ("file", "cost", "turns", "tools")
YEAR = "2026-"
PROMPT_COLUMNS = 24  # of a prompt beside the name of the file
LEAST_COLUMNS = 10  # of a prompt, however narrow the terminal is
OUTCOME_COLUMNS = 14  # our causes are shorter; those of other programs may be longer
COLORS = {"ok": "green", "cut off": "yellow", "damaged": "red", "unreadable": "red"}


def list_casts(casts: AnyCasts = None, as_json: AsJson = False) -> None:
    """List recordings: when, which vendor, what was asked, how it went.

    Without CAST, the recordings of the folder that `record` names. A file that cannot be read has a
    row that says why.

    Example: shim cast list ~/casts
    """
    runs = sorted(
        runs_of(casts or [usual_folder(os.environ)]), key=lambda run: (not run.started, run.started)
    )
    if as_json:
        print_json([run.report() for run in runs])
        return
    _draw(table_console(), [_cells(run) for run in runs])


def _draw(console: Console, rows: list[list[Text]]) -> None:
    """Draw the table: in a terminal with as many columns as it has room for, whole in a pipe."""
    widths = [
        max(map(len, [name, *(row[at].plain for row in rows)])) for at, name in enumerate(NAMES)
    ]
    shown, gap = list(range(len(NAMES))), 2
    if console.is_terminal:
        widths[OUTCOME] = min(widths[OUTCOME], OUTCOME_COLUMNS)
        shown, gap, widths[PROMPT] = _room(console.width, widths)
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), collapse_padding=True)
    for at in shown:
        right = NAMES[at] in ("turns", "tools", "lasted", "cost")
        table.add_column(
            NAMES[at], no_wrap=True, justify="right" if right else "left", overflow="ellipsis"
        )
    for row in rows:
        if gap == 1:
            row[0] = row[0][len(YEAR) :]
            row[VENDOR].truncate(VENDOR_COLUMNS, overflow="ellipsis")
        row[PROMPT].truncate(widths[PROMPT], overflow="ellipsis")
        row[OUTCOME].truncate(widths[OUTCOME], overflow="ellipsis")
        table.add_row(*(row[at] for at in shown))
    console.print(table)


def _room(width: int, widths: list[int]) -> tuple[list[int], int, int]:
    """The columns that a terminal has room for, the gap between them, and the columns of a prompt."""
    shown = list(range(len(NAMES)))
    prompt = width - sum(widths) + widths[PROMPT] - 2 * (len(NAMES) - 1)
    if prompt >= PROMPT_COLUMNS:
        return shown, 2, prompt
    # Narrow: without the year, with the beginning of a vendor's long name, and closer together.
    widths = [
        max(widths[0] - len(YEAR), 0),
        min(widths[VENDOR], VENDOR_COLUMNS),
        *widths[VENDOR + 1 :],
    ]
    for name in LEAST_NEEDED:
        shown.remove(NAMES.index(name))
        prompt = width - sum(widths[at] for at in shown) + widths[PROMPT] - (len(shown) - 1)
        if prompt >= LEAST_COLUMNS:
            break
    return shown, 1, max(prompt, LEAST_COLUMNS)


def _cells(run: RecordedRun) -> list[Text]:
    totals = run.totals
    failed = sum(calls.failed + calls.denied for calls in run.tools.values())
    cells = [
        run.started[:16].replace("T", " "),
        run.vendor,
        run.prompt or run.problem,
        str(totals.turns),
        f"{totals.calls} ({failed} ✗)" if failed else str(totals.calls),
        duration(totals.duration, fine=True),
        dollars(totals.cost),
    ]
    if run.state == "unreadable":
        cells[3:] = [""] * 4
    color = COLORS.get(run.verdict, "" if run.verdict == "no turn ended" else "red")
    file = one_line(os.path.basename(run.file))
    return [
        *(Text(cell) for cell in cells),
        Text(run.verdict, style=color),
        Text(file, style="dim"),
    ]
