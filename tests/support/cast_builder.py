"""Builds recordings for tests from events, in the recorder's own format but without a recorder."""

from collections.abc import Iterable, Mapping
from typing import Any

from fixture_cases import Case, translate_case

from shim.core.cast.encoder import RecordingEncoder
from shim.core.cast.format import STREAMS, RecordingReader, RecordingRecord
from shim.core.turn.outcome import ChildExit

HEADER: Mapping[str, Any] = {
    "started": "2026-11-20T10:00:00.000Z",
    "shim": "0.1.0",
    "vendor": "pi",
    "vendor_version": None,
    "argv": ["-p", "--output-format", "stream-json", "--verbose", "say hello"],
    "cwd": "/home/user/project",
    "env": {},
    "redact": "none",
    "platform": "linux",
    "dialect": "claude",
}

Moment = tuple[float, str, Any]


def build_recording(moments: Iterable[Moment], *, end: bool = True, **header: Any) -> bytes:
    """Build a recording from `(at, letter, bytes or fields)` for each record. `at` is seconds since
    the start.
    """
    encoder = RecordingEncoder()
    lines, at = [encoder.encode_header({**HEADER, **header})], 0.0
    for at, letter, data in moments:
        lines.append(
            encoder.encode_stream_chunk(letter, at, data)
            if letter in STREAMS
            else encoder.encode_event_record(letter, at, data)
        )
    return b"".join(lines) + (encoder.encode_recording_end(at) if end else b"")


def list_record_events(case: Case, step: float = 0.1) -> list[Moment]:
    """Return the records of a run with one message and the child of a fixture: the child's lines,
    `step` seconds apart, each followed by the shim's lines.
    """
    output, _ = translate_case(case)
    moments: list[Moment] = [
        (0.0, "s", {"child": 1, "turn": 1, "argv": [case.vendor], "cwd": "/home/user/project"})
    ]
    at = 0.0
    for line in split_lines(case.data):
        at += step
        moments.append((at, "o", line))
    if case.stderr:
        moments.append((at, "e", case.stderr.encode()))
    ended = case.exit
    code = (
        {"code": ended.code, "signal": ended.signal}
        if isinstance(ended, ChildExit)
        else {"code": None, "signal": None}
    )
    for line in split_lines(output):
        moments.append((at, "O", line))
    return [*moments, (at, "x", {"child": 1, **code})]


def build_case_recording(case: Case, **header: Any) -> bytes:
    """Build a recording of a fixture."""
    return build_recording(list_record_events(case), **{"vendor": case.vendor, **header})


def read_cast(data: bytes) -> tuple[RecordingReader, list[RecordingRecord]]:
    """Read a complete recording with the tolerant reader."""
    reader = RecordingReader()
    records = reader.feed(data)
    reader.close()
    return reader, records


def stream_of(records: Iterable[RecordingRecord], letter: str) -> bytes:
    """Return the bytes of one stream."""
    return b"".join(record.data for record in records if record.code == letter)


def split_lines(data: bytes) -> list[bytes]:
    """Split bytes into lines with their LF. No other character ends a line."""
    *lines, last_line = data.split(b"\n")
    return [line + b"\n" for line in lines] + ([last_line] if last_line else [])
