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
PROMPT, OUTCOME = NAMES.index("prompt"), NAMES.index("outcome")
YEAR = "2026-"
PROMPT_COLUMNS = 24  # of a prompt beside the name of the file
LEAST_COLUMNS = 10  # of a prompt, however narrow the terminal is
OUTCOME_COLUMNS = 14  # our causes are shorter; those of other programs may be longer
COLORS = {"ok": "green", "cut off": "yellow", "damaged": "red", "unreadable": "red"}


def list_casts(casts: AnyCasts = None, as_json: AsJson = False) -> None:
    """List recordings: when, which vendor, what was asked, how it went.

    Without CAST, the recordings of the folder that `record` names. A file that cannot be read has a row that says why.

    Example: shim cast list ~/casts
    """
    runs = sorted(runs_of(casts or [usual_folder(os.environ)]), key=lambda run: (not run.started, run.started))
    if as_json:
        print_json([run.report() for run in runs])
        return
    _draw(table_console(), [_cells(run) for run in runs])


def _draw(console: Console, rows: list[list[Text]]) -> None:
    """Draw the table: cut to the width of a terminal, whole in a pipe."""
    widths = [max(map(len, [name, *(row[at].plain for row in rows)])) for at, name in enumerate(NAMES)]
    names: tuple[str, ...] = NAMES
    gap, prompt = 2, widths[PROMPT]
    if console.is_terminal:
        widths[OUTCOME] = min(widths[OUTCOME], OUTCOME_COLUMNS)
        prompt = console.width - sum(widths) + prompt - gap * (len(names) - 1)
        if prompt < PROMPT_COLUMNS:  # narrow: without the year and the names of the files, and closer together
            names, gap = NAMES[:-1], 1
            widths[0] = max(widths[0] - len(YEAR), 0)
            prompt = max(console.width - sum(widths[:-1]) + widths[PROMPT] - (len(names) - 1), LEAST_COLUMNS)
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), collapse_padding=True)
    for name in names:
        right = name in ("turns", "tools", "lasted", "cost")
        table.add_column(name, no_wrap=True, justify="right" if right else "left", overflow="ellipsis")
    for row in rows:
        if gap == 1:
            row[0] = row[0][len(YEAR) :]
        row[PROMPT].truncate(prompt, overflow="ellipsis")
        row[OUTCOME].truncate(widths[OUTCOME], overflow="ellipsis")
        table.add_row(*row[: len(names)])
    console.print(table)


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
    return [*(Text(cell) for cell in cells), Text(run.verdict, style=color), Text(file, style="dim")]
