"""Formats transcript lines, and the folder name for a project's transcripts.

The real claude writes a message's final usage on each of the message's lines. ccusage,
claude-monitor and claude-code-log use the first line with a usage for each message and request.
sniffly adds up all lines. Therefore the shim writes the usage on a message's first line, and zeros
on its other lines. A vendor may report the usage later, or for the complete turn. Therefore the
numbers on the first line are padded, so that they can be overwritten.
"""

import os
from collections.abc import Iterator
from fcntl import F_GETFL, F_SETFL, fcntl

from shim.core.claude.grammar import find_first_text
from shim.core.claude.line_pieces import MESSAGE_HEAD, NO_USAGE_JSON
from shim.core.claude.usage import MAX_COUNT, NO_USAGE, USAGE_KEYS, MessageUsageCounter, Usage
from shim.core.reading.json_text import dump_json
from shim.core.reading.typed import NamedTuple
from shim.core.reading.values import canonicalize_uuid

MAX_FOLDER_NAME_CHARS = 200  # a longer folder name is cut, and a hash is appended
MAX_TITLE_CHARS = 200
COMMAND_PREFIX = "<command-message>"  # the start of a prompt that invokes a command
UUID_CHARS = 36
MAX_MESSAGES = 64  # the number of messages whose usage can still be updated

_ASSISTANT_PREFIX = b'{"type":"assistant",'
_USER_PREFIX = b'{"type":"user",'
_KIND_OFFSET = len(b'{"type":"')  # the offset of the first byte in which both prefixes differ
_MAIN_CONVERSATION = b',"parent_tool_use_id":null,'  # marks messages of the main agent
# Marks an echoed prompt, which was already written to the transcript when the turn started.
_REPLAY_MEMBER = b',"isReplay":true'
_UUID_KEY = b',"uuid":"'  # the last member of every line that the shim writes
_END_BYTES = len(_UUID_KEY) + UUID_CHARS + len(b'"}\n')
# The prefix of message ids from the model. Other messages did not come from an API request.
_MODEL_ID_PREFIX = b"msg_"
_USAGE_KEY = b'"usage":'  # matches no string content, because quotes are escaped in JSON strings
_NUMBER_DIGITS = len(str(MAX_COUNT))


class TranscriptLineSpan(NamedTuple):
    """A stream line to copy into the transcript: its start and end offsets, and the model's message
    id.
    """

    start: int
    end: int
    message_id: bytes = b""

    def split_line_around_usage_json(
        self, output_bytes: bytes, *, is_first_of_message: bool
    ) -> tuple[bytes, bytes, bytes]:
        """Return the line as three pieces: the part before the usage, the usage, and the part after
        it.

        `is_first_of_message` is true for the first line of a message.
        """
        start = self.start
        end = self.end
        if not self.message_id:
            renamed = output_bytes[start + 1 : end].replace(
                b',"tool_use_result":', b',"toolUseResult":'
            )
            # History views hide the text of a hook, because the user has not written it.
            renamed = renamed.replace(b',"isSynthetic":true', b',"isMeta":true')
            return (
                renamed.replace(b',"is_api_error_message":true', b',"isApiErrorMessage":true'),
                b"",
                b"",
            )
        usage_start = output_bytes.rindex(_USAGE_KEY, start, end) + len(_USAGE_KEY)
        request = b'"requestId":"req_%b",' % self.message_id[len(_MODEL_ID_PREFIX) :]
        usage = NO_USAGE_JSON
        if is_first_of_message:
            usage = _format_usage(NO_USAGE)
        return (
            request + output_bytes[start + 1 : usage_start],
            usage,
            output_bytes[output_bytes.index(b"}", usage_start) + 1 : end],
        )


class TranscriptUsageUpdater:
    """Tracks the token usage of the last written messages, and its position in the file."""

    def __init__(self, usage_counter: MessageUsageCounter | None) -> None:
        self.offsets: dict[bytes, int] = {}
        self._usage_counter = usage_counter
        self._totals: dict[bytes, Usage] = {}
        self._changed_ids: dict[bytes, None] = {}

    def write_changed_usage(self, descriptor: int) -> None:
        """Overwrite changed token usage in the file. Raise OSError on failure."""
        for message_id, usage in (
            {}
            if self._usage_counter is None
            else self._usage_counter.take_new_usage_by_message().items()
        ):
            total = self._totals.setdefault(message_id, Usage(NO_USAGE))
            for name in USAGE_KEYS:
                total[name] += usage[name]
            self._changed_ids[message_id] = None
        for table in (self.offsets, self._totals, self._changed_ids):
            while len(table) > MAX_MESSAGES:
                del table[next(iter(table))]
        ready_ids = [
            message_id
            for message_id in self._changed_ids
            if message_id in self.offsets and message_id in self._totals
        ]
        if not ready_ids:
            return
        flags = fcntl(descriptor, F_GETFL)
        fcntl(descriptor, F_SETFL, flags & ~os.O_APPEND)  # with O_APPEND, Linux ignores the offset
        try:
            for message_id in ready_ids:
                del self._changed_ids[message_id]
                os.pwrite(
                    descriptor, _format_usage(self._totals[message_id]), self.offsets[message_id]
                )
        finally:
            fcntl(descriptor, F_SETFL, flags)


def _format_usage(usage: Usage) -> bytes:
    """Return token usage as JSON in which all numbers have the same length."""
    members = (
        b'"%b":%-*d' % (name.encode(), _NUMBER_DIGITS, max(0, usage[name])) for name in NO_USAGE
    )
    return b"{%b}" % b",".join(members)


def list_message_line_spans(data: bytes) -> Iterator[TranscriptLineSpan]:
    """Yield the messages of the main conversation in `data`, which consists of complete lines.

    Most lines are streaming fragments. Comparing a single byte of each line first is faster than
    searching for the other lines.
    """
    position = 0
    size = len(data)
    while position < size - _KIND_OFFSET:
        end = data.find(b"\n", position) + 1
        if not end:
            end = size
        kind = data[position + _KIND_OFFSET]
        if kind == _ASSISTANT_PREFIX[_KIND_OFFSET]:
            is_message = data.startswith(_ASSISTANT_PREFIX, position)
        elif kind == _USER_PREFIX[_KIND_OFFSET]:
            is_message = False
            if data.startswith(_USER_PREFIX, position):
                is_message = data.find(_REPLAY_MEMBER, position, end) < 0
        else:
            is_message = False
        if (
            is_message
            and data.startswith(_UUID_KEY, end - _END_BYTES)
            and data.rfind(_MAIN_CONVERSATION, position, end) >= 0
        ):
            message_id = b""
            if data.startswith(MESSAGE_HEAD + _MODEL_ID_PREFIX, position):
                message_id = data[
                    position + len(MESSAGE_HEAD) : data.index(b'"', position + len(MESSAGE_HEAD))
                ]
            yield TranscriptLineSpan(position, end, message_id)
        position = end


def encode_project_folder_name(cwd: str) -> str:
    """Return the folder name for the transcripts of a working directory, in the real claude's
    encoding.

    Each UTF-16 code unit that is not an ASCII letter or digit becomes a dash.
    """
    units = cwd.encode("utf-16-le", "surrogatepass")
    code_units = [units[index] | units[index + 1] << 8 for index in range(0, len(units), 2)]
    name = "".join(
        chr(code_unit) if code_unit < 128 and chr(code_unit).isalnum() else "-"
        for code_unit in code_units
    )
    if len(name) <= MAX_FOLDER_NAME_CHARS:
        return name
    return f"{name[:MAX_FOLDER_NAME_CHARS]}-{_format_hash(code_units)}"


def _format_hash(code_units: list[int]) -> str:
    """Return the string hash with multiplier 31 as a signed 32-bit number, with its absolute value
    in base 36.
    """
    value = 0
    for code_unit in code_units:
        value = (value * 31 + code_unit) & 0xFFFFFFFF
    value = min(value, 0x100000000 - value)
    digits = ""
    while value:
        value, digit = divmod(value, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    if digits:
        return digits
    return "0"


def select_transcript_lines(data: bytes, uuids: frozenset[str]) -> bytes:
    """Return the lines of a transcript that have one of these ids."""
    from shim.core.claude.resume_point import parse_transcript_entry

    selected = []
    for line in data.splitlines(keepends=True):
        entry = parse_transcript_entry(line)
        if entry is not None and entry.uuid in uuids:
            selected.append(line)
    return b"".join(selected)


def list_user_message_uuids(data: bytes) -> list[str]:
    """Return the ids of the user messages in a part of a transcript."""
    lines = (
        line for line in data.split(b"\n") if line.endswith(b'"}') and b'"type":"user"' in line
    )
    return [line[line.rfind(b'"uuid":"') + 8 : -2].decode("utf-8", "replace") for line in lines]


def find_last_message_uuid_as_json(transcript_tail: bytes) -> bytes:
    """Return the id of the last message at the end of a transcript, encoded as JSON."""
    uuid_start = max(
        transcript_tail.rfind(b'"uuid":"') + 8, transcript_tail.rfind(b'"leafUuid":"') + 12
    )
    uuid = transcript_tail[uuid_start : uuid_start + UUID_CHARS].decode("ascii", "replace")
    if canonicalize_uuid(uuid):
        return dump_json(uuid)
    return b"null"


def extract_prompt_title(content: object) -> str:
    """Return a prompt's first text, shortened to one line. The invocation of a command is shown as
    it was typed.
    """
    text = find_first_text(content)
    if text.startswith(COMMAND_PREFIX):
        from shim.core.claude.command_files import format_typed_command

        text = format_typed_command(text)
    return " ".join(text[: 4 * MAX_TITLE_CHARS].split())[:MAX_TITLE_CHARS]
