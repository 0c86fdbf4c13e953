"""Implements `shim export --to asciicast`, which writes a session as drawn by `shim show`.
`asciinema play` can play the file.

The format is asciicast version 2: a header line, followed by a JSON array for each output with its
time, "o" and its text. The times come from the recording. Players shorten long waits.
"""

import os
import tempfile
from collections.abc import Callable
from datetime import datetime
from io import StringIO
from typing import Any

import orjson
from rich.console import Console

from shim.core.cast.format import RecordingHeader
from shim.recording.folders import redact_cast
from shim.recording.recording_file import Recording
from shim.story.reader import RecordedSessionStepReader
from shim.story.terminal.console import SESSION_CONSOLE_OPTIONS
from shim.story.terminal.renderer import TerminalSessionRenderer
from shim.story.terminal.show import format_recording_title

COLUMNS = 100
ROWS = 30
MAX_WAIT_S = 2.0  # players shorten longer waits to this time


def write_recording_export(path: str, write: Callable[[bytes], None], *, redact: bool) -> None:
    """Write a recording as asciicast. Raise RecordingError if it cannot be read."""
    if not redact:
        _write_asciicast(path, write)
        return
    # Line breaks and colors can split a secret in drawn output, so secrets are redacted before drawing.
    with tempfile.TemporaryDirectory(prefix="shim-export-") as folder:
        redacted_path = os.path.join(folder, os.path.basename(path))
        redact_cast(path, redacted_path, [], [], force=True)
        _write_asciicast(redacted_path, write)


def _write_asciicast(path: str, write: Callable[[bytes], None]) -> None:
    recording = Recording(path)
    reader = RecordedSessionStepReader(recording.header)
    output = StringIO()
    console = Console(
        file=output,
        width=COLUMNS,
        height=ROWS,
        force_terminal=True,
        color_system="standard",
        legacy_windows=False,
        **SESSION_CONSOLE_OPTIONS,
        _environ={},
    )
    renderer = TerminalSessionRenderer(console, reader.story)
    write(_dump_line(_build_header(recording.header)))
    last_time_s = 0.0

    def write_output(time_s: float) -> None:
        text = output.getvalue()
        output.seek(0)
        output.truncate()
        if text:
            write(_dump_line([round(time_s, 6), "o", text.replace("\n", "\r\n")]))

    renderer.print_notice(format_recording_title(recording.header))
    write_output(0.0)
    for time_s, change in reader.read_step_changes(recording):
        # Times may decrease in a damaged recording, but players need increasing times.
        last_time_s = max(last_time_s, time_s)
        renderer.draw_step_change(change)
        write_output(last_time_s)
    renderer.close()
    write_output(last_time_s)


def _build_header(header: RecordingHeader) -> dict[str, Any]:
    """Return the header of the asciicast file. A start time that cannot be parsed is omitted."""
    fields = {
        "version": 2,
        "width": COLUMNS,
        "height": ROWS,
        "idle_time_limit": MAX_WAIT_S,
        "title": format_recording_title(header),
        "env": {"TERM": "xterm-256color"},
    }
    try:
        fields["timestamp"] = int(datetime.fromisoformat(header.started).timestamp())
    except (ValueError, OverflowError):
        pass
    return fields


def _dump_line(value: object) -> bytes:
    return orjson.dumps(value) + b"\n"
