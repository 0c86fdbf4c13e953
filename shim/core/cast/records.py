"""The recording format, and its reader: what happened in one run of the drop-in, as lines of JSON.

The first line says who ran what. Then every line is a record: `[seconds since the one before, code,
data]`. A code is the letter of a stream or of a fact, then `-` if no newline follows the bytes,
then `b` if they are base64. A checkpoint has the hash of all bytes before it: it proves damage, not
who wrote the file (surface page, Recording).
"""

import binascii
import codecs
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from shim.core.errors import FrontendError
from shim.core.reading.account import escape_control_chars
from shim.core.reading.lines import LineSplitter

FORMAT_VERSION = 1
CAST_SUFFIX = ".cast"  # of a file in a folder of recordings
STREAMS = "iIoOe"  # our stdin, the child's, its stdout, ours, its stderr
EVENTS = "sxn"  # a child starts, it has ended, a note of ours
CHECKPOINT = "h"
# of a line of a cast: a piece of control characters is six times as long in JSON
MAX_LINE_BYTES = 8 * 1024 * 1024
MAX_DELAY_S = 366 * 24 * 60 * 60.0  # between two records; no run pauses for a year
UNUSUAL_DELAY_S = 7 * 24 * 3600  # longer pauses are noted: a clock was wrong
MAX_EXCERPT_CHARS = 60  # of a quotation from a cast, in a finding
RECORD_HINT = "`shim claude --shim-record FILE` makes one"
DAMAGE, NOTE = "damage", "note"

# The codes of streams: the letter, whether a newline follows the data, whether they are base64.
STREAM_CODES = {
    f"{letter}{piece}{base64}": (letter, not piece, bool(base64))
    for letter in STREAMS
    for piece in ("", "-")
    for base64 in ("", "b")
}


class CastError(FrontendError):
    """A file that is no cast, or one that cannot be read."""


class CastHeader(NamedTuple):
    """The first line of a cast; `facts` is all of it, unknown keys too."""

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


class CastRecord(NamedTuple):
    """One record. `at` is in seconds since the recording began; `line` is its line in the file,
    from 1.

    `data` are the original bytes of a stream with their newline; `fact` is the object of a fact.
    """

    time_s: float
    code: str
    data: bytes = b""
    fields: Mapping[str, Any] = {}
    line_number: int = 0


class CastProblem(NamedTuple):
    """What is wrong with a line. DAMAGE means lost or wrong data; a NOTE is only unusual.

    `kind` is a word for programs, `text` a sentence for persons, printable in a terminal.
    """

    severity: str
    kind: str
    text: str


class CastLine(NamedTuple):
    """What a line after the first says, and its faults.

    `letter` is that of a stream, of a fact or CHECKPOINT; "" if the line is no record. `delay` is
    in seconds. `data` are the bytes of a stream without a newline; `whole` says that one follows.
    `fact` is the object of a fact, and of a checkpoint `{"end": …}`.
    """

    code: str = ""
    delay_s: float = 0.0
    data: bytes = b""
    has_newline: bool = False
    fields: Mapping[str, Any] = {}
    problems: Sequence[CastProblem] = ()

    @property
    def is_stream(self) -> bool:
        return self.code != "" and self.code in STREAMS

    @property
    def is_damaged(self) -> bool:
        """Whether a reader loses the line."""
        return not self.code and any(fault.severity == DAMAGE for fault in self.problems)


def parse_cast_line(raw: bytes) -> CastLine:
    """Parse a line of a cast after the first, without its newline."""
    if raw.startswith(b'["h"'):
        return CastLine(CHECKPOINT, fields={"end": raw.endswith(b',"end"]')})
    if not raw or raw.startswith(b"#"):
        what = "a comment" if raw else "an empty line"
        return CastLine(problems=[CastProblem(NOTE, "comment", f"{what}, which readers pass over")])
    try:
        moment = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return CastLine(
            problems=[CastProblem(DAMAGE, "not_json", f"no JSON: {format_excerpt(raw)}")]
        )
    if not isinstance(moment, list) or len(moment) < 3 or not isinstance(moment[1], str):
        return CastLine(
            problems=[
                CastProblem(DAMAGE, "no_record", f"no record of a cast: {format_excerpt(raw)}")
            ]
        )
    delay, code, data = moment[:3]
    faults = list[CastProblem]()
    if len(moment) > 3:
        faults.append(
            CastProblem(
                NOTE, "more", "a record of more than three entries, of which readers take three"
            )
        )
    if delay.__class__ is not float and delay.__class__ is not int:
        faults.append(CastProblem(DAMAGE, "time", f"{format_excerpt(delay)} is no time"))
        delay = 0
    elif delay < 0:
        faults.append(
            CastProblem(
                DAMAGE, "time", f"a time of {format_excerpt(delay)} seconds: no time goes back"
            )
        )
        delay = 0
    elif delay > UNUSUAL_DELAY_S:
        faults.append(CastProblem(NOTE, "time", f"a pause of {format_excerpt(delay)} seconds"))
    if found := STREAM_CODES.get(code):
        letter, whole, base64 = found
        if isinstance(data, str):
            try:
                content = binascii.a2b_base64(data, strict_mode=True) if base64 else data.encode()
                return CastLine(letter, delay, content, whole, problems=faults)
            except ValueError:
                faults.append(CastProblem(DAMAGE, "base64", f"no base64: {format_excerpt(data)}"))
        else:
            told = f"a record of {letter} whose data are no text: {format_excerpt(data)}"
            faults.append(CastProblem(DAMAGE, "no_record", told))
    elif len(code) != 1 or code not in EVENTS:
        faults.append(
            CastProblem(NOTE, "unknown_code", f"the code {format_excerpt(code)} is not known here")
        )
    elif isinstance(data, dict):
        return CastLine(code, delay, fields=data, problems=faults)
    else:
        faults.append(
            CastProblem(
                DAMAGE, "no_record", f"a record of {code} that is no object: {format_excerpt(data)}"
            )
        )
    return CastLine(problems=faults)


def format_excerpt(value: object) -> str:
    """The beginning of a value, for one line of a terminal."""
    try:
        text = value if isinstance(value, str | bytes) else orjson.dumps(value)
    except TypeError:
        text = str(type(value))
    return escape_control_chars(text[: 2 * MAX_EXCERPT_CHARS]).replace("\n", "\\n")[
        :MAX_EXCERPT_CHARS
    ]


class CastReader:
    """The tolerant reader: chunks of a file in, records out. Lines that it cannot read are skipped
    and counted.

    CastError if the first line is not that of a cast, or of a newer version.
    """

    def __init__(self) -> None:
        self._lines = LineSplitter(MAX_LINE_BYTES)
        self._time_s = 0.0
        self.header: CastHeader | None = None
        self.line_count = 0  # lines so far
        self.skipped_lines = 0  # lines that could not be read
        self.truncated_lines = 0  # 1 if the last line was cut off
        self.has_end = False  # the last checkpoint was read

    def feed(self, chunk: bytes) -> list[CastRecord]:
        """The records that a chunk completes."""
        records = []
        for raw in self._lines.feed(chunk):
            self._skip_long_lines()
            if (record := self._read_line(raw)) is not None:
                records.append(record)
        self._skip_long_lines()
        return records

    def close(self) -> None:
        """The file is at its end; a last line without a newline was cut off, and is skipped."""
        if self.header is None:
            raise CastError("this is no cast: it has no first line", hint=RECORD_HINT)
        self.truncated_lines = len(self._lines.close())
        self.skipped_lines += self.truncated_lines

    def _skip_long_lines(self) -> None:
        self.line_count += self._lines.skipped_lines
        self.skipped_lines += self._lines.skipped_lines
        self._lines.skipped_lines = 0

    def _read_line(self, raw: bytes) -> CastRecord | None:
        self.line_count += 1
        if self.header is None:
            self.header = parse_header(raw)
            return None
        letter, delay, data, whole, fact, _ = line = parse_cast_line(raw)
        if not letter or letter == CHECKPOINT:
            self.skipped_lines += line.is_damaged
            self.has_end = self.has_end or bool(fact.get("end"))
            return None
        self._time_s += min(delay, MAX_DELAY_S)
        return CastRecord(
            self._time_s, letter, data + b"\n" if whole else data, fact, self.line_count
        )


def strip_bom(raw: bytes) -> bytes:
    """Return the first line of a file without a byte order mark, which some editors add."""
    return raw.removeprefix(codecs.BOM_UTF8)


def parse_header(raw: bytes) -> CastHeader:
    """Parse the first line of a cast. CastError if it is none, or of a newer version."""
    try:
        facts = orjson.loads(strip_bom(raw))
        version = facts["shimcast"]
    except (ValueError, TypeError, LookupError):
        shown = escape_control_chars(raw[:60])
        raise CastError(f"this is no cast: it begins with {shown!r}", hint=RECORD_HINT) from None
    if type(version) is not int or not 1 <= version <= FORMAT_VERSION:
        raise CastError(
            f"this cast is of version {escape_control_chars(version)[:20]}, and this shim reads versions up to {FORMAT_VERSION}",
            hint="update claude-shim",
        )
    argv, environment = facts.get("argv"), facts.get("env")
    return CastHeader(
        version=version,
        argv=tuple(word for word in argv if isinstance(word, str))
        if isinstance(argv, list)
        else (),
        environment=environment if isinstance(environment, dict) else {},
        vendor_version=_get_text(facts, "vendor_version") or None,
        dialect=_get_text(facts, "dialect") or "claude",
        swept=facts.get("swept") is True,
        fields=facts,
        **{
            key: _get_text(facts, key)
            for key in ("started", "shim", "vendor", "cwd", "redact", "platform")
        },
    )


def _get_text(facts: Mapping[str, Any], key: str) -> str:
    value = facts.get(key)
    return value if isinstance(value, str) else ""
