"""Implements `shim export --to ndjson`, which writes only Claude's stream-json output.

If the frontend received stream-json, the export contains exactly those bytes. If the frontend
received text, a single JSON object or another dialect, the child's output is translated to
stream-json again.
"""

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import orjson

from shim.adapters import get_adapter
from shim.core.cast.format import RecordingError
from shim.core.errors import ShimError
from shim.core.reading.lines import LineSplitter
from shim.core.secrets.claude_lines import ClaudeLineRedactor
from shim.core.secrets.redactor import Redactor
from shim.recording.recorded_run import parse_recorded_invocation
from shim.recording.recording_file import Recording
from shim.story.model import SessionStepChange, SessionStepTracker
from shim.story.reader import RecordedSessionStepReader

WriteFunction = Callable[[bytes], None]

# Control messages. The frontend returns their input unchanged. A live conversation therefore cannot
# redact this input, but an export can.
_CONTROL_TYPES = ("control_request", "control_response", "control_cancel_request")
_UNLIMITED_BYTES = 1 << 62  # lines of any length are exported completely
# The format of the UUIDs of lines that the export adds.
# These lines contain text that was withheld until the end of a block.
_UUID_FORMAT = "00000000-0000-4000-9000-{:012d}"


class _LineStory(SessionStepTracker):
    def __init__(self, write: WriteFunction) -> None:
        super().__init__()
        self._write = write

    def add_claude_event(self, time_s: float, event: Mapping[str, Any]) -> list[SessionStepChange]:
        self._write(orjson.dumps(event) + b"\n")
        return []


def write_recording_export(path: str, write: WriteFunction, *, redact: bool) -> None:
    """Write the stream-json output of the recording at `path`. Raise RecordingError if the file is
    not a recording, or if no vendor on this machine can translate it.
    """
    recording = Recording(path)
    redacting_writer = None
    if redact:
        redacting_writer = _RedactingWriter(write)
    write_line = write
    if redacting_writer is not None:
        write_line = redacting_writer.feed
    invocation = parse_recorded_invocation(recording.header)
    if invocation.output_format == "stream-json" and recording.header.dialect == "claude":
        for record in recording.read_records():
            if record.code == "O":
                write_line(record.data)
    else:
        try:
            get_adapter(recording.header.vendor)
        except ShimError as error:
            raise RecordingError(
                f"the frontend did not receive Claude's stream; {error}", error.hint
            ) from None
        reader = RecordedSessionStepReader(recording.header)
        reader.story = _LineStory(write_line)
        for record in recording.read_records():
            reader.feed(record)
        reader.close()
    if redacting_writer is not None:
        redacting_writer.close()


class _RedactingWriter:
    """Writes lines without secrets. Secrets that are split over several fragments of a block are
    redacted too.
    """

    def __init__(self, write: WriteFunction) -> None:
        self._write = write
        self._splitter = LineSplitter(_UNLIMITED_BYTES)
        self._redactor = Redactor()
        uuids = map(_UUID_FORMAT.format, count(1))
        self._redacted_lines = ClaudeLineRedactor(
            self._redactor, uuids.__next__, _UNLIMITED_BYTES, lambda event: iter((event,))
        )

    def feed(self, chunk: bytes) -> None:
        """Add bytes of the stream: a complete line, or part of a line."""
        for line in self._splitter.feed(chunk):
            self._write_line(line)

    def close(self) -> None:
        for remainder in self._splitter.close():
            self._write_line(remainder, end=b"")
        for line, _ in self._redacted_lines.flush():
            self._write(line + b"\n")

    def _write_line(self, raw: bytes, end: bytes = b"\n") -> None:
        try:
            event = orjson.loads(raw)
        except orjson.JSONDecodeError:
            event = None
        if isinstance(event, dict) and event.get("type") not in _CONTROL_TYPES:
            for line, _ in self._redacted_lines.redact_line(raw, event):
                self._write(line.removesuffix(b"\n") + end)
            return
        if event is None:
            text = raw.decode("utf-8", "surrogateescape")
            redacted = self._redactor.redact_text(text)
            self._write(
                (raw if redacted is text else redacted.encode("utf-8", "surrogateescape")) + end
            )
            return
        redacted = self._redactor.redact_value(event)
        self._write((raw if redacted is event else orjson.dumps(redacted)) + end)
