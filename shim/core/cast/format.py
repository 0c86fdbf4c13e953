"""The recording format and its reader. A recording contains the input and output of one run of the
shim, as lines of JSON.

The first line describes the run. Every other line is a record: `[seconds since the previous record,
code, data]`. The code is the letter of a stream or an event. For a stream, the letter may be
followed by `-` if no newline ends the data, and by `b` if the data is base64. A checkpoint contains
the hash of all bytes before it. The hash detects damage, but does not prove who wrote the file.
"""

import binascii
import codecs
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from shim.core.errors import FrontendError
from shim.core.reading.lines import LineSplitter
from shim.core.reading.values import (
    as_dict,
    as_list,
    escape_control_chars,
    format_single_line,
    get_text,
)

FORMAT_VERSION = 1
CAST_SUFFIX = ".cast"  # the suffix of a recording's file name
STREAMS = "iIoOe"  # shim stdin, child stdin, child stdout, shim stdout, child stderr
EVENTS = "sxn"  # the start of a child process, the end of a child process, a recorder note
CHECKPOINT = "h"
# the limit for a line in the file; JSON encodes one control character as six characters
MAX_LINE_BYTES = 8 * 1024 * 1024
# the limit for the delay between two records; no run pauses for a year
MAX_DELAY_S = 366 * 24 * 60 * 60.0
UNUSUAL_DELAY_S = 7 * 24 * 3600  # longer delays are reported, because the clock may be wrong
MAX_EXCERPT_CHARS = 60  # the maximum length of a value that an error text quotes from the file
RECORD_HINT = "`shim claude --shim-record FILE` creates a recording"
DAMAGE = "damage"
NOTE = "note"

# For each stream code: the stream's letter, whether a newline follows the data, and whether the
# data is base64.
STREAM_CODES = {
    f"{letter}{piece}{base64}": (letter, not piece, bool(base64))
    for letter in STREAMS
    for piece in ("", "-")
    for base64 in ("", "b")
}


class RecordingError(FrontendError):
    """A file is not a recording, or is a recording that cannot be read."""


class RecordingHeader(NamedTuple):
    """The first line of a recording. `fields` has all its keys, including unknown keys."""

    version: int = FORMAT_VERSION
    started: str = ""
    shim: str = ""
    vendor: str = ""
    vendor_version: str | None = None
    argv: tuple[str, ...] = ()
    cwd: str = ""
    environment: Mapping[str, Any] = {}
    redact: str = ""
    platform: str = ""
    dialect: str = "claude"
    swept: bool = False
    fields: Mapping[str, Any] = {}


class RecordingRecord(NamedTuple):
    """One record of a recording. `time_s` is in seconds since the start of the recording.
    `line_number` is the record's line in the file, counted from 1.

    For a stream record, `data` has the stream's original bytes, including the newline. For an event
    record, `fields` has the event's JSON object.
    """

    time_s: float
    code: str
    data: bytes = b""
    fields: Mapping[str, Any] = {}
    line_number: int = 0


class RecordingProblem(NamedTuple):
    """A problem in a line of a recording. The severity DAMAGE means lost or wrong data. The
    severity NOTE means that the line is only unusual.

    `kind` is a keyword for programs. `text` is a sentence for people, and is safe to print to a
    terminal.
    """

    severity: str
    kind: str
    text: str


class RecordingLine(NamedTuple):
    """The content of any line after a recording's first line, with the problems found in it.

    `code` is the letter of a stream or an event, or CHECKPOINT. It is "" if the line is not a
    record. `delay_s` is in seconds. `data` has a stream's bytes without the newline, and
    `has_newline` is true if a newline follows. `fields` is an event's JSON object, or `{"end": …}`
    for a checkpoint.
    """

    code: str = ""
    delay_s: float = 0.0
    data: bytes = b""
    has_newline: bool = False
    fields: Mapping[str, Any] = {}
    problems: Sequence[RecordingProblem] = ()

    @property
    def is_stream_record(self) -> bool:
        if self.code == "":
            return False
        return self.code in STREAMS

    @property
    def is_damaged(self) -> bool:
        """Return whether the line cannot be read because of damage."""
        if self.code:
            return False
        return any(problem.severity == DAMAGE for problem in self.problems)


def parse_recording_line(raw: bytes) -> RecordingLine:
    """Parse any line after a recording's first line. The line is given without its newline."""
    if raw.startswith(b'["h"'):
        return RecordingLine(CHECKPOINT, fields={"end": raw.endswith(b',"end"]')})
    if not raw or raw.startswith(b"#"):
        description = "a comment" if raw else "an empty line"
        note = RecordingProblem(NOTE, "comment", f"{description}, which readers skip")
        return RecordingLine(problems=[note])
    try:
        record = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return RecordingLine(problems=[_describe_damage("not_json", "not JSON", raw)])
    if not isinstance(record, list) or len(record) < 3 or not isinstance(record[1], str):
        return RecordingLine(problems=[_describe_damage("no_record", "not a record", raw)])

    delay_s, code, data = record[:3]
    problems = list(_check_record(record))
    if problems and any(problem.severity == DAMAGE for problem in problems):
        delay_s = 0  # the only damage that was checked until now
    if code in STREAM_CODES:
        return _parse_stream_record(code, delay_s, data, problems)
    if len(code) != 1 or code not in EVENTS:
        text = f"unknown code {format_value_excerpt(code)}"
        problems.append(RecordingProblem(NOTE, "unknown_code", text))
        return RecordingLine(problems=problems)
    if not isinstance(data, dict):
        text = f"a record of {code} that is not an object"
        problems.append(_describe_damage("no_record", text, data))
        return RecordingLine(problems=problems)
    return RecordingLine(code, delay_s, fields=data, problems=problems)


def _describe_damage(kind: str, text: str, value: object) -> RecordingProblem:
    return RecordingProblem(DAMAGE, kind, f"{text}: {format_value_excerpt(value)}")


def _check_record(record: Sequence[Any]) -> Iterator[RecordingProblem]:
    """Yield the problems with the number of a record's entries and with its time."""
    if len(record) > 3:
        text = "a record of more than three entries; readers use the first three"
        yield RecordingProblem(NOTE, "more", text)
    delay_s = record[0]
    if delay_s.__class__ is not float and delay_s.__class__ is not int:
        yield RecordingProblem(DAMAGE, "time", f"{format_value_excerpt(delay_s)} is not a time")
    elif delay_s < 0:
        text = f"a time of {format_value_excerpt(delay_s)} seconds: times must not decrease"
        yield RecordingProblem(DAMAGE, "time", text)
    elif delay_s > UNUSUAL_DELAY_S:
        text = f"a pause of {format_value_excerpt(delay_s)} seconds"
        yield RecordingProblem(NOTE, "time", text)


def _parse_stream_record(
    code: str, delay_s: float, data: object, problems: list[RecordingProblem]
) -> RecordingLine:
    """Parse a record with bytes of a stream. `problems` were found in the record before."""
    stream_code, has_newline, is_base64 = STREAM_CODES[code]
    if not isinstance(data, str):
        text = f"a record of {stream_code} whose data is not text"
        problems.append(_describe_damage("no_record", text, data))
        return RecordingLine(problems=problems)
    try:
        content = binascii.a2b_base64(data, strict_mode=True) if is_base64 else data.encode()
    except ValueError:
        problems.append(_describe_damage("base64", "not base64", data))
        return RecordingLine(problems=problems)
    return RecordingLine(stream_code, delay_s, content, has_newline, problems=problems)


def format_value_excerpt(value: object) -> str:
    """Return the beginning of a value as one printable line."""
    try:
        if isinstance(value, str | bytes):
            text = value
        else:
            text = orjson.dumps(value)
    except TypeError:
        text = str(type(value))
    return format_single_line(text[: 2 * MAX_EXCERPT_CHARS])[:MAX_EXCERPT_CHARS]


class RecordingReader:
    """Reads a recording and tolerates damage. It takes chunks of a file and returns records. Lines
    that cannot be read are skipped and counted.

    RecordingError is raised if the first line does not belong to a recording, or if the recording
    has a newer version.
    """

    def __init__(self) -> None:
        self._lines = LineSplitter(MAX_LINE_BYTES)
        self._time_s = 0.0
        self.header: RecordingHeader | None = None
        self.line_count = 0  # the number of lines so far
        self.skipped_lines = 0  # the number of lines that cannot be read
        self.truncated_lines = 0  # 1 if the last line was cut off, otherwise 0
        self.has_end = False  # whether the last checkpoint has been read

    def feed(self, chunk: bytes) -> list[RecordingRecord]:
        """Return the records that are complete after this chunk."""
        records = []
        for raw in self._lines.feed(chunk):
            self._skip_long_lines()
            if (record := self._read_line(raw)) is not None:
                records.append(record)
        self._skip_long_lines()
        return records

    def close(self) -> None:
        """Handle the end of the file. A last line without a newline was cut off, so it is skipped.
        Raise RecordingError if the file is empty.
        """
        if self.header is None:
            raise RecordingError("not a recording: it has no first line", hint=RECORD_HINT)
        self.truncated_lines = len(self._lines.close())
        self.skipped_lines += self.truncated_lines

    def _skip_long_lines(self) -> None:
        self.line_count += self._lines.skipped_lines
        self.skipped_lines += self._lines.skipped_lines
        self._lines.skipped_lines = 0

    def _read_line(self, raw: bytes) -> RecordingRecord | None:
        self.line_count += 1
        if self.header is None:
            self.header = parse_recording_header(raw)
            return None
        code, delay_s, data, has_newline, fields, _ = line = parse_recording_line(raw)
        if not code or code == CHECKPOINT:
            self.skipped_lines += line.is_damaged
            if fields.get("end"):
                self.has_end = True
            return None
        self._time_s += min(delay_s, MAX_DELAY_S)
        return RecordingRecord(
            self._time_s, code, data + b"\n" if has_newline else data, fields, self.line_count
        )


def strip_bom(raw: bytes) -> bytes:
    """Remove a byte order mark, which some editors add, from the first line of a file."""
    return raw.removeprefix(codecs.BOM_UTF8)


def parse_recording_header(raw: bytes) -> RecordingHeader:
    """Parse the first line of a recording. Raise RecordingError if the line is not a recording's
    first line, or if the recording has a newer version.
    """
    try:
        fields = orjson.loads(strip_bom(raw))
        version = fields["shimcast"]
    except (ValueError, TypeError, LookupError):
        excerpt = escape_control_chars(raw[:60])
        raise RecordingError(
            f"not a recording: it begins with {excerpt!r}", hint=RECORD_HINT
        ) from None
    if type(version) is not int or not 1 <= version <= FORMAT_VERSION:
        raise RecordingError(
            f"the recording has version {escape_control_chars(version)[:20]}; this version "
            f"of claude-shim reads versions up to {FORMAT_VERSION}",
            hint="update claude-shim",
        )
    argv = fields.get("argv")
    environment = fields.get("env")
    return RecordingHeader(
        version=version,
        argv=tuple(arg for arg in as_list(argv) if isinstance(arg, str)),
        environment=as_dict(environment),
        vendor_version=get_text(fields, "vendor_version") or None,
        dialect=get_text(fields, "dialect", "claude"),
        swept=fields.get("swept") is True,
        fields=fields,
        **{
            key: get_text(fields, key)
            for key in ("started", "shim", "vendor", "cwd", "redact", "platform")
        },
    )
