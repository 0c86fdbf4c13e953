"""Strictly verifies a recording. Finds damage and its location, and unusual lines.

A checkpoint contains the hash of all bytes before its line. If a checkpoint does not match, the
damage is between this checkpoint and the previous one, and nothing after it can be verified. The
hash chain detects damage, but does not prove who wrote the file.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from shim.core.cast.format import (
    CHECKPOINT,
    DAMAGE,
    MAX_LINE_BYTES,
    NOTE,
    RecordingError,
    RecordingLine,
    format_value_excerpt,
    parse_recording_header,
    parse_recording_line,
    strip_bom,
)

# The limit for findings of each severity. Further findings are only counted, because one damaged
# line may affect all later lines.
MAX_FINDINGS = 100

# The keys of a recording's header. `vendor_version` may be null. Without `dialect`, the dialect is
# Claude's.
REQUIRED_HEADER_TYPES: dict[str, type | tuple[type, ...]] = {
    "started": str,
    "shim": str,
    "vendor": str,
    "vendor_version": (str, type(None)),
    "argv": list,
    "cwd": str,
    "env": dict,
    "redact": str,
    "platform": str,
}
OPTIONAL_HEADER_TYPES: dict[str, type | tuple[type, ...]] = {"dialect": str, "swept": bool}
TYPE_NAMES = {str: "a text", list: "a list of strings", dict: "an object", bool: "true or false"}


class RecordingFinding(NamedTuple):
    """A problem in the lines from `first` to `last`, counted from 1. The other fields have the same
    meaning as in `RecordingProblem`.
    """

    first: int
    last: int
    severity: str
    kind: str
    text: str


class RecordingVerifier:
    """Verifies a recording. Call `feed` with chunks of any size, and `close` at the end. `findings`
    are in the order of the lines.

    `last_proved_line` is the last line that is covered by a matching checkpoint. `line_count` is
    the number of lines. `omitted_findings` is the number of findings above the limit.
    `is_truncated` is true if the last checkpoint is missing.
    """

    def __init__(self) -> None:
        self.findings: list[RecordingFinding] = []
        self.omitted_findings = 0
        self.line_count = 0
        self.last_proved_line = 0
        self.is_truncated = False
        self._finding_counts = {DAMAGE: 0, NOTE: 0}
        self._hash = hashlib.sha256()
        self._parts: list[bytes] = []
        self._size_bytes = 0
        self._is_too_long = False
        self._is_readable = True  # whether the first line is a recording's header
        self._is_chain_broken = False  # a checkpoint differs, or lines follow the last checkpoint
        self._end_line = 0  # the line number of the last checkpoint
        self._child_numbers: set[int] = set()
        # the running child process, and the line number of its start record
        self._running_child: tuple[object, int] | None = None
        # by stream code: the number of the line in which an unfinished output line begins
        self._unfinished_lines: dict[str, int] = {}

    @property
    def is_intact(self) -> bool:
        return not self._finding_counts[DAMAGE]

    @property
    def has_valid_hash_chain(self) -> bool:
        """Return whether every checkpoint matches. If so, any damage in the file was there when the
        file was written.
        """
        if not self._is_readable:
            return False
        return not self._is_chain_broken

    @property
    def integrity_status(self) -> str:
        """The status `intact`, `damaged`, `cut off` (incomplete, with no other damage), or
        `unreadable` (not a recording, or from a newer version).
        """
        if self.is_intact or not self._is_readable:
            if self.is_intact:
                return "intact"
            return "unreadable"
        if self.is_truncated and self._finding_counts[DAMAGE] == 1:
            return "cut off"
        return "damaged"

    def feed(self, chunk: bytes) -> None:
        *lines, remainder = chunk.split(b"\n")
        for line in lines:
            if self._parts or self._is_too_long:
                self._buffer_part(line)
                line = b"".join(self._parts)
            self._check_line(line)
        if remainder:
            self._buffer_part(remainder)

    def close(self) -> None:
        last_line = self.line_count
        if self._is_too_long or self._parts:
            last_line += 1
        if not self._is_readable:
            return
        if not self._end_line:
            self.is_truncated = True
            self._add_finding(
                min(self.last_proved_line + 1, max(last_line, 1)),
                max(last_line, 1),
                DAMAGE,
                "cut",
                self._describe_truncation(last_line),
            )
        else:
            if last_line > self._end_line:
                self._is_chain_broken = True
                message = "lines after the last checkpoint, which cannot be verified"
                self._add_finding(self._end_line + 1, last_line, DAMAGE, "behind", message)
            self._check_unfinished()
        self.findings.sort(key=lambda finding: (finding.first, finding.last))

    def _describe_truncation(self, last_line: int) -> str:
        if not self.line_count:
            if last_line:
                return "cut off in the first line"
            return "empty: not even its first line was written"
        message = f"cut off after line {self.line_count}: the last checkpoint is missing"
        if self._is_chain_broken:
            return message
        if self.last_proved_line == self.line_count:
            return f"{message}; all earlier lines are verified"
        return (
            f"{message}, and {_format_line_range(self.last_proved_line + 1, self.line_count)} "
            "not verified"
        )

    def _buffer_part(self, part: bytes) -> None:
        """Buffer a part of an unfinished line. If the line is too long, its bytes are only hashed."""
        self._parts.append(part)
        self._size_bytes += len(part)
        if self._size_bytes > MAX_LINE_BYTES:
            self._is_too_long = True
        if self._is_too_long:
            self._hash.update(b"".join(self._parts))
            self._parts = []

    def _check_line(self, raw: bytes) -> None:
        """Check a complete line, and add its bytes to the hash."""
        self.line_count += 1
        if self._is_too_long or len(raw) > MAX_LINE_BYTES:
            self._add_finding_here(
                DAMAGE,
                "too_long",
                f"longer than {MAX_LINE_BYTES} bytes: no reader accepts this line",
            )
            if self.line_count == 1:
                self._is_readable = False
        elif self.line_count == 1:
            if raw != (raw := strip_bom(raw)):
                self._add_finding_here(
                    NOTE,
                    "bom",
                    "the file begins with a byte order mark, which the shim does not write",
                )
            self._check_header(raw)
        elif self._is_readable and not self._end_line:
            line = parse_recording_line(raw)
            for problem in line.problems:
                self._add_finding_here(*problem)
            if line.code == CHECKPOINT:
                self._check_checkpoint(raw, is_end=line.fields["end"])
            elif line.is_stream_record:
                self._check_stream_record(line)
            elif line.code:
                self._check_event(line.code, line.fields)
        self._hash.update(b"\n" if self._is_too_long else raw + b"\n")
        self._parts = []
        self._size_bytes = 0
        self._is_too_long = False

    # -- the chain ---------------------------------------------------------------------------------

    def _check_checkpoint(self, raw: bytes, *, is_end: bool) -> None:
        digest = self._hash.hexdigest().encode()
        if raw not in (b'["h","%s"]' % digest, b'["h","%s","end"]' % digest):
            if not self._is_chain_broken:
                message = (
                    f"the checkpoint of line {self.line_count} does not match; nothing after "
                    "it can be verified"
                )
                self._add_finding(
                    self.last_proved_line + 1, self.line_count, DAMAGE, "changed", message
                )
            self._is_chain_broken = True
        elif not self._is_chain_broken:
            self.last_proved_line = self.line_count
        if is_end:
            self._end_line = self.line_count

    # -- the content of the lines ------------------------------------------------------------------

    def _check_header(self, raw: bytes) -> None:
        try:
            header = parse_recording_header(raw)
        except RecordingError as error:
            self._is_readable = False
            self._add_finding_here(DAMAGE, "no_cast", str(error))
            return
        fields = header.fields
        for key, expected_type in (*REQUIRED_HEADER_TYPES.items(), *OPTIONAL_HEADER_TYPES.items()):
            if key not in fields:
                if key in REQUIRED_HEADER_TYPES:
                    self._add_finding_here(NOTE, "header", f"the header has no {key}")
            elif not isinstance(fields[key], expected_type) or (
                expected_type is list and not _is_text_list(fields[key])
            ):
                type_name = TYPE_NAMES[
                    expected_type if isinstance(expected_type, type) else expected_type[0]
                ]
                self._add_finding_here(
                    DAMAGE,
                    "header",
                    f"{key} of the header is not {type_name}: {format_value_excerpt(fields[key])}",
                )

    def _check_stream_record(self, line: RecordingLine) -> None:
        stream_code = line.code
        if line.has_newline:
            self._unfinished_lines.pop(stream_code, None)
        else:
            self._unfinished_lines.setdefault(stream_code, self.line_count)
        if stream_code in "oeI" and self._running_child is None:
            position = "before any child"
            if self._child_numbers:
                position = "after the end of its child"
            self._add_finding_here(DAMAGE, "order", f"a record of {stream_code} {position}")

    def _check_event(self, event_code: str, fields: Mapping[str, Any]) -> None:
        if event_code == "s":
            if self._running_child is not None:
                child_number, start_line = self._running_child
                message = (
                    f"a child starts while child {format_value_excerpt(child_number)} of line "
                    f"{start_line} is running"
                )
                self._add_finding(start_line, self.line_count, DAMAGE, "order", message)
            self._running_child = (fields.get("child"), self.line_count)
            self._check_child_number(fields.get("child"))
        elif event_code == "x":
            self._check_child_exit(fields)

    def _check_child_number(self, child_number: object) -> None:
        if isinstance(child_number, bool) or not isinstance(child_number, int):
            self._add_finding_here(
                DAMAGE,
                "no_record",
                f"a child has the invalid number {format_value_excerpt(child_number)}",
            )
        elif child_number <= max(self._child_numbers, default=0):
            self._add_finding_here(
                NOTE, "order", f"child {child_number} does not follow the previous child"
            )
        else:
            # Child numbers increase, so only the last number is stored.
            self._child_numbers = {child_number}

    def _check_child_exit(self, fields: Mapping[str, Any]) -> None:
        child_number = fields.get("child")
        if self._running_child is None or self._running_child[0] != child_number:
            self._add_finding_here(
                DAMAGE,
                "order",
                f"the end of child {format_value_excerpt(child_number)}, which was not running",
            )
            return
        self._running_child = None
        for stream_code in "oe":  # a child's output may end without a newline
            self._unfinished_lines.pop(stream_code, None)

    def _check_unfinished(self) -> None:
        """Add notes about an unfinished child process and an unfinished line at the end of a
        complete file.
        """
        if self._running_child is not None:
            child_number, start_line = self._running_child
            self._add_finding(
                start_line,
                self.line_count,
                NOTE,
                "order",
                f"the exit of child {format_value_excerpt(child_number)} is missing",
            )
        if start_line := self._unfinished_lines.get("O", 0):
            self._add_finding(
                start_line,
                self.line_count,
                NOTE,
                "unfinished",
                "a line of the shim was written in parts, and the last part is missing",
            )

    # -- findings ----------------------------------------------------------------------------------

    def _add_finding_here(self, severity: str, kind: str, text: str) -> None:
        self._add_finding(self.line_count, self.line_count, severity, kind, text)

    def _add_finding(
        self, first_line: int, last_line: int, severity: str, kind: str, text: str
    ) -> None:
        count = self._finding_counts[severity] = self._finding_counts[severity] + 1
        if count > MAX_FINDINGS and kind not in ("changed", "cut", "behind"):
            self.omitted_findings += 1
        else:
            self.findings.append(RecordingFinding(first_line, last_line, severity, kind, text))


def verify_recording(read_chunk: Callable[[], bytes]) -> RecordingVerifier:
    """Verify a complete recording. `read_chunk` returns the file's next bytes, or b"" at the end.
    Exceptions from `read_chunk` are not caught.
    """
    verifier = RecordingVerifier()
    while chunk := read_chunk():
        verifier.feed(chunk)
    verifier.close()
    return verifier


def _is_text_list(value: object) -> bool:
    if not isinstance(value, list):
        return False
    return all(isinstance(item, str) for item in value)


def _format_line_range(first_line: int, last_line: int) -> str:
    if first_line == last_line:
        return f"line {first_line} is"
    return f"lines {first_line} to {last_line} are"
