"""The output of `shim replay --check`: one line a cast, and its first difference."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console
from rich.text import Text

from shim.commands.cast.check import CheckResult, check_recording
from shim.core.reading.account import escape_control_chars, pluralize
from shim.recording.folders import list_cast_paths
from shim.story.terminal.console import print_json
from shim.story.terminal.progress import show_progress

OUTCOME_COLOURS = {"ok": "green", "differs": "red", "skipped": "yellow", "failed": "red"}
MAX_CONCURRENT_CHECKS = 8  # each check starts two programs


def print_check_report(paths: Sequence[str], *, as_json: bool) -> int:
    """Check every cast. Returns the exit status: 1 if one differs or cannot be checked. CastError
    without any cast.
    """
    casts = list(list_cast_paths(paths))
    console = Console(highlight=False)
    counts = dict.fromkeys(OUTCOME_COLOURS, 0)
    rows = []
    pool = ThreadPoolExecutor(max(1, min(MAX_CONCURRENT_CHECKS, os.cpu_count() or 1)))
    with (
        pool,
        show_progress("checking recordings", len(casts), prints_output=not as_json) as one_more,
    ):
        for checked in pool.map(check_recording, casts):
            counts[checked.outcome] += 1
            one_more()
            if as_json:
                rows.append(_build_row(checked))
            else:
                _print_result(console, checked)
    if as_json:
        print_json({"casts": rows, **counts})
    elif len(casts) > 1:
        console.print(
            Text(", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count))
        )
    return int(bool(counts["differs"] or counts["failed"]))


def _build_row(checked: CheckResult) -> dict[str, object]:
    row: dict[str, object] = {
        "cast": checked.path,
        "outcome": checked.outcome,
        "lines": checked.line_count,
    }
    if checked.difference is not None:
        row["difference"] = checked.difference._asdict()
    return row | ({"reason": checked.reason} if checked.reason else {})


def _print_result(console: Console, checked: CheckResult) -> None:
    lines = pluralize(checked.line_count, "line") if checked.outcome == "ok" else ""
    about = ", ".join(part for part in (lines, checked.reason) if part)
    line = Text(f"{checked.outcome:8}", style=OUTCOME_COLOURS[checked.outcome])
    console.print(
        line + Text(escape_control_chars(f"{checked.path}  {about}").rstrip()), soft_wrap=True
    )
    if checked.difference is not None:
        line_number, where, then, now = checked.difference
        console.print(
            Text(escape_control_chars(f"         line {line_number}, {where}")), soft_wrap=True
        )
        console.print(Text(f"         then: {then}"), soft_wrap=True)
        console.print(Text(f"         now:  {now}"), soft_wrap=True)
