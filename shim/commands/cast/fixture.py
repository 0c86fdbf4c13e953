"""Extracts a test fixture from a recording: the output of one child, how the child was started and
how it exited, and the current translation.

The folder has the layout of `fixtures/README.md`, so tests for the fixture run as soon as the
folder is added. The purpose of the test case is not in the recording, so a person must describe it.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

from shim.conversation.drivers.open_translation import CHUNK_BYTES, create_standalone_child_stream
from shim.core.cast.format import RecordingError, RecordingHeader, RecordingRecord
from shim.core.cast.protocol_lines import select_child_records, split_records_by_child
from shim.core.errors import FrontendError
from shim.core.reading.head_and_tail import HeadTailBuffer
from shim.core.reading.values import (
    as_list,
    escape_control_chars,
    get_text,
    is_valid_vendor_name,
    validate_vendor_session_id,
)
from shim.core.secrets.redactor import describe_redactions
from shim.core.turn.outcome import ChildExit
from shim.recording.folders import verify_cast_file
from shim.recording.recorded_run import parse_recorded_invocation
from shim.recording.recording_file import Recording, load_cast_header
from shim.recording.rewrite import rewrite_cast_without_secrets
from shim.state.files import open_new_file, open_regular_file, remove_file
from shim.story.reader import parse_child_exit

MAX_STDIN_BYTES = 256 * 1024  # a longer example is too long to be read
MAX_LISTED_CHILDREN = 20  # children listed in an error message
PLACEHOLDER_PREFIX = "TO FILL IN: "
STDOUT_FILE = "vendor.ndjson"
CASE_FILE = "case.toml"
GOLDEN_FILE = "claude.ndjson"
REDACTED_FILE = "redacted.cast"

_CONTROL_CHARACTERS = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class RecordedChildRun(NamedTuple):
    """A child process in a recording: its number (from 1), its start record, and its stdout bytes."""

    number: int
    start_fields: Mapping[str, Any]
    stdout_bytes: int

    def __str__(self) -> str:
        child, turn = (
            escape_control_chars(self.start_fields.get(key))[:20] for key in ("child", "turn")
        )
        return f"{child} (turn {turn}, {self.stdout_bytes} bytes)"


class ExtractedFixture(NamedTuple):
    """An extracted fixture: its folder, whether it has a golden file (only for known vendors), and
    the number of redacted secrets by kind.
    """

    folder: str
    has_golden: bool
    redacted_counts: Mapping[str, int]


class RecordedChildDetails:
    """Details about a child process, collected while its stdout is written."""

    def __init__(self) -> None:
        self.stderr = HeadTailBuffer()
        self.exit_status: ChildExit | None = None
        self.gaps: list[str] = []
        self._stdin_chunks: list[bytes] = []
        self._stdin_bytes = 0

    def add_record(self, record: RecordingRecord) -> None:
        """Add a record of the child other than stdout."""
        if record.code == "e":
            self.stderr.add(record.data)
        elif record.code == "I":
            self._stdin_bytes += len(record.data)
            if self._stdin_bytes <= MAX_STDIN_BYTES:
                self._stdin_chunks.append(record.data)
        elif record.code == "x":
            self.exit_status = parse_child_exit(record.fields)

    def format_fixture_case_toml(
        self, header: RecordingHeader, vendor: str, child_run: RecordedChildRun, partial: bool
    ) -> str:
        gaps = [*self.gaps]
        exit_result: str | int | None = None
        if self.exit_status is None:
            gaps.append("how the program exited is unknown")
        elif self.exit_status.signal:
            exit_result = self.exit_status.signal
        else:
            exit_result = self.exit_status.code
        if self._stdin_bytes > MAX_STDIN_BYTES:
            gaps.append(f"the program's stdin ({self._stdin_bytes} bytes) is omitted")
        argv = [arg for arg in as_list(child_run.start_fields.get("argv")) if isinstance(arg, str)]
        fields: dict[str, Any] = {
            "source": "recorded",
            "cli": f"{vendor} {header.vendor_version or '(unknown version)'}",
            "scenario": f"{PLACEHOLDER_PREFIX}what happens in the run",
            "pins": f"{PLACEHOLDER_PREFIX}the behaviour that this case tests, in one sentence",
            "gap": "; ".join(gaps),
            "partial": partial,
            "argv": [os.path.basename(argv[0]), *argv[1:]] if argv else None,
            "stdin": _format_stdin(b"".join(self._stdin_chunks))
            if self._stdin_bytes <= MAX_STDIN_BYTES
            else None,
            "exit": exit_result,
        }
        lines = [
            f"{key} = {format_toml_value(value)}\n"
            for key, value in fields.items()
            if value or value.__class__ is int
        ]
        return "".join(lines) + f"stderr = {format_toml_value(self.stderr.to_text())}\n"


def extract_fixture(
    path: str,
    target_folder: str,
    *,
    redact: str | None = None,
    child_number: int | None = None,
    turn_number: int | None = None,
    name: str = "",
) -> ExtractedFixture:
    """Write the folder `to/VENDOR/NAME` for a child in the recording at `path`. Secrets are
    redacted unless `redact` is "none".

    `child_number` and `turn_number` select one of several children. `name` defaults to the name of
    the recording. Raise RecordingError if the recording is damaged, if several children match, or
    if the folder exists or cannot be created. Also raise it if the recording contains secrets and
    `redact` is None.
    """
    report = verify_cast_file(path)
    if not report.chained:
        raise RecordingError(
            f"{path} is {report.state}",
            hint=f"`shim cast verify {path}` shows where the recording is damaged",
        )
    header = load_cast_header(path)
    child_run = _choose_child(path, list(_list_children(path)), child_number, turn_number)
    vendor = get_text(child_run.start_fields, "vendor", header.vendor)
    if not is_valid_vendor_name(vendor):
        raise RecordingError(
            f"{path} names the vendor {escape_control_chars(vendor)[:40]!r}, which is not "
            "a valid vendor name"
        )
    if redact is None and header.redact not in ("casts", "all"):
        raise RecordingError(
            f"{path} was recorded without redaction",
            hint="use `--redact casts` to redact secrets, or `--redact none` to keep every byte",
        )
    if not name:
        name = os.path.basename(path).removesuffix(".cast")
    if validate_vendor_session_id(name) is None or ":" in name:
        raise RecordingError(
            f"{escape_control_chars(name)[:40]!r} is not a valid case name",
            hint="--name may have letters, digits, dots, dashes and underscores",
        )
    folder = os.path.join(target_folder, vendor, name)
    try:
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        os.mkdir(folder)
    except FileExistsError:
        raise RecordingError(f"{folder} already exists", hint="choose another --name") from None
    except OSError as error:
        raise RecordingError(f"{folder} cannot be created: {error.strerror}") from None
    details = RecordedChildDetails()
    if report.cut:
        details.gaps.append("the recording was cut off")
    try:
        return _write_fixture(folder, path, redact != "none", child_run, vendor, details)
    except BaseException as error:
        _remove_fixture(folder)
        if isinstance(error, OSError):
            raise RecordingError(f"{folder} cannot be written: {error.strerror}") from None
        raise


def _write_fixture(
    folder: str,
    path: str,
    redact: bool,
    child_run: RecordedChildRun,
    vendor: str,
    details: RecordedChildDetails,
) -> ExtractedFixture:
    redacted_counts: Mapping[str, int] = {}
    if redact:
        path, source = os.path.join(folder, REDACTED_FILE), path
        redacted_counts = rewrite_cast_without_secrets(source, path).counts
        child_run = next(
            redacted_run
            for redacted_run in _list_children(path)
            if redacted_run.number == child_run.number
        )
        if redacted_counts:
            details.gaps.append(describe_redactions(dict(redacted_counts)))
    with _create_file(folder, STDOUT_FILE) as file:
        for record in select_child_records(Recording(path).read_records(), child_run.number):
            if record.code == "o":
                file.write(record.data)
            else:
                details.add_record(record)
    header = load_cast_header(path)
    partial = parse_recorded_invocation(header).partial
    with _create_file(folder, CASE_FILE) as file:
        file.write(details.format_fixture_case_toml(header, vendor, child_run, partial).encode())
    if redact:
        os.unlink(path)
    return ExtractedFixture(
        folder, _write_golden(folder, vendor, partial, details), redacted_counts
    )


def _write_golden(folder: str, vendor: str, partial: bool, details: RecordedChildDetails) -> bool:
    """Write the golden file as `make accept` would: the translated output with numbered ids and
    without times. Return False for an unknown vendor, which has no golden file.
    """
    try:
        child_stream = create_standalone_child_stream(
            vendor, include_partial_messages=partial, stable_ids=True
        )
    except FrontendError:
        return False
    source = open_regular_file(os.path.join(folder, STDOUT_FILE), follow_links=False)
    try:
        with _create_file(folder, GOLDEN_FILE) as file:
            while chunk := os.read(source, CHUNK_BYTES):
                lines, _ = child_stream.feed(chunk)
                file.write(lines)
            lines, _ = child_stream.close(details.exit_status, details.stderr.to_text())
            file.write(lines)
    finally:
        os.close(source)
    return True


def _create_file(folder: str, name: str) -> BinaryIO:
    return os.fdopen(open_new_file(os.path.join(folder, name), 0o644), "wb")


def _remove_fixture(folder: str) -> None:
    for name in (STDOUT_FILE, CASE_FILE, GOLDEN_FILE, REDACTED_FILE):
        remove_file(os.path.join(folder, name))
    try:
        os.rmdir(folder)
    except OSError:
        pass


def _list_children(path: str) -> Iterator[RecordedChildRun]:
    for number, child in enumerate(split_records_by_child(Recording(path).read_records()), 1):
        start_record = next(child)
        yield RecordedChildRun(
            number,
            start_record.fields,
            sum(len(record.data) for record in child if record.code == "o"),
        )


def _choose_child(
    path: str, runs: list[RecordedChildRun], child_number: int | None, turn_number: int | None
) -> RecordedChildRun:
    matches = [
        run
        for run in runs
        if child_number in (None, run.start_fields.get("child"))
        and turn_number in (None, run.start_fields.get("turn"))
    ]
    if len(matches) == 1:
        return matches[0]
    if not runs:
        raise RecordingError(
            f"{path} has no output of a child process: the recorded run started no child"
        )
    children_text = ", ".join(map(str, runs[:MAX_LISTED_CHILDREN])) + (
        ", …" if len(runs) > MAX_LISTED_CHILDREN else ""
    )
    problem = "no child process matches"
    if matches:
        problem = f"{len(matches)} child processes match"
    raise RecordingError(
        f"{path}: {problem}; the recording has {children_text}",
        hint="choose one with --child N or --turn N",
    )


def _format_stdin(data: bytes) -> str | list[str]:
    """Return stdin as a list of lines, or as a single text if the last line has no line break."""
    text = data.decode("utf-8", "replace")
    if text.endswith("\n"):
        return text.removesuffix("\n").split("\n")
    return text


def format_toml_value(value: object) -> str:
    """Format a text, number, boolean or list of texts as TOML, without terminal control characters."""
    if isinstance(value, list):
        return "[" + ", ".join(map(format_toml_value, value)) + "]"
    if isinstance(value, str):  # JSON strings are valid TOML, except for DEL and surrogates
        text = json.dumps(value.encode("utf-8", "replace").decode(), ensure_ascii=False)
        return _CONTROL_CHARACTERS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    return json.dumps(value)
