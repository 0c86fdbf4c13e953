"""Casts for tests, made of what happened: with the recorder's own format, without a recorder."""

from collections.abc import Iterable, Mapping
from typing import Any

from support import Case, translate_case

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
    """A cast: `(at, letter, bytes or fact)` for each moment, `at` in seconds since the beginning."""
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
    """What a one-message run of a fixture's child would have been: its lines, `step` seconds apart,
    and ours behind.
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
    """A fixture as a cast."""
    return build_recording(list_record_events(case), **{"vendor": case.vendor, **header})


def read_cast(data: bytes) -> tuple[RecordingReader, list[RecordingRecord]]:
    """The tolerant reader over a whole cast."""
    reader = RecordingReader()
    records = reader.feed(data)
    reader.close()
    return reader, records


def stream_of(records: Iterable[RecordingRecord], letter: str) -> bytes:
    """The bytes of one stream."""
    return b"".join(record.data for record in records if record.code == letter)


def split_lines(data: bytes) -> list[bytes]:
    """Lines with their LF, which is all that ends one."""
    *lines, last_line = data.split(b"\n")
    return [line + b"\n" for line in lines] + ([last_line] if last_line else [])
