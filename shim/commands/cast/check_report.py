"""Prints the results of `shim replay --check`: one line per recording, with its first difference."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console
from rich.text import Text

from shim.commands.cast.check import RecordingCheckResult, check_recording
from shim.core.reading.diagnostics import pluralize
from shim.core.reading.values import escape_control_chars
from shim.recording.folders import list_cast_paths
from shim.story.terminal.console import print_json
from shim.story.terminal.progress import show_progress

OUTCOME_COLOURS = {"ok": "green", "differs": "red", "skipped": "yellow", "failed": "red"}
MAX_CONCURRENT_CHECKS = 8  # each check starts two processes


def check_recordings_and_print_report(recording_paths: Sequence[str], *, as_json: bool) -> int:
    """Check all recordings and print the results. Return the exit status, which is 1 if a recording
    differs or cannot be checked. Raise RecordingError if no recording is found.
    """
    files = list(list_cast_paths(recording_paths))
    console = Console(highlight=False)
    counts = dict.fromkeys(OUTCOME_COLOURS, 0)
    rows = []
    pool = ThreadPoolExecutor(max(1, min(MAX_CONCURRENT_CHECKS, os.cpu_count() or 1)))
    with (
        pool,
        show_progress("checking recordings", len(files), prints_output=not as_json) as advance,
    ):
        for result in pool.map(check_recording, files):
            counts[result.outcome] += 1
            advance()
            if as_json:
                rows.append(_build_row(result))
            else:
                _print_result(console, result)
    if as_json:
        print_json({"casts": rows, **counts})
    elif len(files) > 1:
        console.print(
            Text(", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count))
        )
    if counts["differs"] or counts["failed"]:
        return 1
    return 0


def _build_row(result: RecordingCheckResult) -> dict[str, object]:
    row: dict[str, object] = {
        "cast": result.path,
        "outcome": result.outcome,
        "lines": result.line_count,
    }
    if result.difference is not None:
        row["difference"] = result.difference._asdict()
    return row | ({"reason": result.reason} if result.reason else {})


def _print_result(console: Console, result: RecordingCheckResult) -> None:
    line_count = ""
    if result.outcome == "ok":
        line_count = pluralize(result.line_count, "line")
    details = ", ".join(part for part in (line_count, result.reason) if part)
    line = Text(f"{result.outcome:8}", style=OUTCOME_COLOURS[result.outcome])
    console.print(
        line + Text(escape_control_chars(f"{result.path}  {details}").rstrip()), soft_wrap=True
    )
    if result.difference is not None:
        line_number, path, recorded_text, current_text = result.difference
        console.print(
            Text(escape_control_chars(f"         line {line_number}, {path}")), soft_wrap=True
        )
        console.print(Text(f"         then: {recorded_text}"), soft_wrap=True)
        console.print(Text(f"         now:  {current_text}"), soft_wrap=True)
