"""Loads a recording for a replay: its command line, and the prompt of each recorded child.

Only the records with prompts are parsed. A recording is untrusted input, like the output of a
vendor.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from shim.core.cast.format import (
    CAST_SUFFIX,
    RecordingError,
    RecordingHeader,
    RecordingReader,
    RecordingRecord,
)
from shim.core.cast.protocol_lines import NOTE_RESULT, NOTE_SIGNAL, parse_protocol_line
from shim.core.claude.argv.flags import Invocation, parse_argv
from shim.core.claude.messages import parse_user_message
from shim.core.dialects import resolve_dialect
from shim.core.errors import (
    NOTE_PASSED_OVER,
    FailedVendorAttempt,
    FrontendError,
    parse_failed_attempt,
)
from shim.core.reading.json_text import parse_json_object
from shim.core.reading.lines import LineSplitter
from shim.core.reading.values import as_str, canonicalize_uuid, validate_vendor_session_id
from shim.core.yume.cli import parse_yume_argv as parse_yume
from shim.recording.recording_file import CHUNK_BYTES, open_recording_file

MAX_PROMPT_CHARS = 1_000_000  # only the first characters of a prompt are compared


class RecordedChild(NamedTuple):
    """A child process in a recording, with its prompt.

    number           its position among the children of the recording, from 1
    id               its session id in a replay
    reads_lines      whether it read protocol lines from its stdin
    was_stopped      whether a signal ended its turn; its replay waits for that signal
    failed_attempts  the vendors of a fallback list that failed before this child was started; their
                     output is not replayed
    """

    path: str
    number: int
    id: str
    prompt: str | None = None
    reads_lines: bool = False
    was_stopped: bool = False
    vendor: str = ""
    failed_attempts: tuple[FailedVendorAttempt, ...] = ()

    @property
    def recording_id(self) -> str:
        """The part of the child id that all children of the recording share."""
        return self.id.rpartition(":")[0]


class RecordedRun(NamedTuple):
    """A recorded run: its header, its command line and its children."""

    header: RecordingHeader
    invocation: Invocation
    children: tuple[RecordedChild, ...]

    @property
    def vendor(self) -> str:
        """The first vendor that answered. If none answered, the requested vendor."""
        if self.children:
            return self.children[0].vendor
        return self.header.vendor


def load_recorded_run(path: str) -> RecordedRun:
    """Load the header of a recording and the prompt of each child. Raise RecordingError if the
    recording cannot be read.
    """
    reader = RecordingReader()
    stdin_chunks = list[bytes]()
    children, failed_attempts, count = list[RecordedChild](), list[FailedVendorAttempt](), 0
    turns = list[object]()
    for record in _read_prompt_records(path, reader):
        fields = record.fields
        if record.code == "i":
            stdin_chunks.append(record.data)
        elif record.code == "s":
            count += 1
            vendor = fields.get("vendor")
            if not isinstance(vendor, str):
                vendor = reader.header.vendor if reader.header else ""
            children.append(
                RecordedChild(
                    path,
                    count,
                    _create_child_id(path, count),
                    vendor=vendor,
                    failed_attempts=tuple(failed_attempts),
                )
            )
            turns.append(fields.get("turn"))
            failed_attempts = []
        elif record.code == "n":
            if fields.get("kind") == NOTE_PASSED_OVER:
                if fields.get("started") and children:
                    failed_attempts = [*children.pop().failed_attempts, *failed_attempts]
                    turns.pop()
                failed_attempts.append(parse_failed_attempt(fields))
            elif (
                fields.get("kind") == NOTE_SIGNAL
                and children
                and children[-1].number == fields.get("child")
            ):
                children[-1] = children[-1]._replace(was_stopped=True)
            elif fields.get("kind") == NOTE_RESULT and children and _is_success(fields):
                # The turn was complete, but the child did not exit by itself.
                children[-1] = children[-1]._replace(was_stopped=False)
        elif children and not children[-1].reads_lines:
            children[-1] = children[-1]._replace(
                reads_lines=bool(parse_protocol_line(record.data).kind)
            )
    header = reader.header
    assert header is not None
    invocation = parse_recorded_invocation(header)
    prompts = _collect_prompts(invocation, header, b"".join(stdin_chunks))
    for index, (child, turn) in enumerate(zip(children, turns, strict=True)):
        if isinstance(turn, int):
            prompt_number = turn
        else:
            prompt_number = child.number
        if len(prompts) == 1:
            prompt_number = 1
        if 1 <= prompt_number <= len(prompts) and prompts[prompt_number - 1]:
            prompt = prompts[prompt_number - 1][:MAX_PROMPT_CHARS]
        else:
            prompt = None
        children[index] = child._replace(prompt=prompt)
    return RecordedRun(header, invocation, tuple(children))


def _is_success(fields: Mapping[str, Any]) -> bool:
    """Return whether a recorded result note reports a successful turn."""
    result = fields.get("result")
    if not isinstance(result, Mapping):
        return False
    return result.get("is_error") is False


def _collect_prompts(
    invocation: Invocation, header: RecordingHeader, stdin_bytes: bytes
) -> list[str]:
    """Return the prompts in order. They are the messages from stdin, or the command line's prompt
    together with the piped text.
    """
    if invocation.input_format == "stream-json" or (
        resolve_dialect(header.dialect).accepts_frames and not invocation.prompt
    ):
        messages = [
            text
            for line in stdin_bytes.split(b"\n")
            if (text := parse_user_message_text(line)) is not None
        ]
        if messages or invocation.input_format == "stream-json":
            return messages
    prompt = as_str(invocation.prompt)
    piped_text = ""
    # With a prompt and this tool, stdin contains answers and no text.
    if not prompt or invocation.permission_prompt_tool != "stdio":
        piped_text = stdin_bytes.decode("utf-8", "replace")
    return ["\n".join(part for part in (prompt, piped_text) if part.strip())]


_PROMPT_RECORD_CODES = (b"i", b"I", b"s", b"n")  # record codes


def _read_prompt_records(path: str, reader: RecordingReader) -> Iterator[RecordingRecord]:
    """Yield the records that can contain prompts. All other records are skipped without parsing,
    because there are many of them.
    """
    descriptor = open_recording_file(path)
    try:
        lines = LineSplitter()
        while chunk := os.read(descriptor, CHUNK_BYTES):
            for raw in lines.feed(chunk):
                if (
                    reader.header is None
                    or raw[raw.find(b'"') + 1 : raw.find(b'"') + 2] in _PROMPT_RECORD_CODES
                ):
                    yield from reader.feed(raw + b"\n")
        reader.close()
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)


def get_recorded_program_name(header: RecordingHeader) -> str:
    """Return the name of the recorded program: claude or yume-cli."""
    return resolve_dialect(header.dialect).resolve_program_name(header.argv)


def parse_recorded_invocation(header: RecordingHeader) -> Invocation:
    """Return the recorded command line of the drop-in or of yume-cli. Return an empty Invocation if
    the command line was invalid.
    """
    if get_recorded_program_name(header) != "claude":
        call = parse_yume(header.argv)
        session_ids = canonicalize_uuid(call.session), canonicalize_uuid(call.resume)
        return call.to_claude_invocation()._replace(
            session_id=session_ids[0], resume=session_ids[1]
        )
    try:
        return parse_argv(header.argv)
    except FrontendError:
        return Invocation()


def parse_user_message_text(line: bytes) -> str | None:
    """Return the text of a user message, or None for any other line."""
    if b'"user"' not in line:
        return None
    try:
        frame = parse_json_object(line)
        if frame.get("type") != "user":
            return None
        message = frame.get("message")
        if not isinstance(message, dict):
            message = {"role": "user", "content": frame.get("content")}
        return parse_user_message({**frame, "message": message}, "").text
    except ValueError:
        return None


def _create_child_id(path: str, child_number: int) -> str:
    """Build a child's session id from the name of the recording file and the child's number."""
    name = os.path.basename(path).removesuffix(CAST_SUFFIX)
    if len(name) > 100 or validate_vendor_session_id(name) is None:
        name = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return f"{name}:{child_number}"
