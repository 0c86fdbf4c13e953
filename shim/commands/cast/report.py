"""The output of `shim replay --check`: one line a cast, and its first difference."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console
from rich.text import Text

from shim.commands.cast.check import Checked, check
from shim.core.reading.account import counted, printable
from shim.recording.folders import cast_paths
from shim.story.terminal.console import print_json
from shim.story.terminal.progress import progress

COLOURS = {"ok": "green", "differs": "red", "skipped": "yellow", "failed": "red"}
MOST_AT_ONCE = 8  # each check starts two programs


def report(paths: Sequence[str], *, as_json: bool) -> int:
    """Check every cast. Returns the exit status: 1 if one differs or cannot be checked. CastError
    without any cast.
    """
    casts = list(cast_paths(paths))
    console = Console(highlight=False)
    counts = dict.fromkeys(COLOURS, 0)
    rows = []
    pool = ThreadPoolExecutor(max(1, min(MOST_AT_ONCE, os.cpu_count() or 1)))
    with pool, progress("checking recordings", len(casts), prints=not as_json) as one_more:
        for checked in pool.map(check, casts):
            counts[checked.outcome] += 1
            one_more()
            if as_json:
                rows.append(_row(checked))
            else:
                _print(console, checked)
    if as_json:
        print_json({"casts": rows, **counts})
    elif len(casts) > 1:
        console.print(
            Text(", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count))
        )
    return int(bool(counts["differs"] or counts["failed"]))


def _row(checked: Checked) -> dict[str, object]:
    row: dict[str, object] = {
        "cast": checked.path,
        "outcome": checked.outcome,
        "lines": checked.lines,
    }
    if checked.difference is not None:
        row["difference"] = checked.difference._asdict()
    return row | ({"reason": checked.reason} if checked.reason else {})


def _print(console: Console, checked: Checked) -> None:
    lines = counted(checked.lines, "line") if checked.outcome == "ok" else ""
    about = ", ".join(part for part in (lines, checked.reason) if part)
    line = Text(f"{checked.outcome:8}", style=COLOURS[checked.outcome])
    console.print(line + Text(printable(f"{checked.path}  {about}").rstrip()), soft_wrap=True)
    if checked.difference is not None:
        line_number, where, then, now = checked.difference
        console.print(Text(printable(f"         line {line_number}, {where}")), soft_wrap=True)
        console.print(Text(f"         then: {then}"), soft_wrap=True)
        console.print(Text(f"         now:  {now}"), soft_wrap=True)
