"""JSON pieces of Claude's stream-json lines. The writer joins constant pieces with the content of
each line.

The functions at the end of the module encode `tool_use_result`, the structured form of a tool
result (contract 5.4).
"""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import count
from typing import Any

import orjson

from shim.core.claude.usage import NO_USAGE
from shim.core.reading.json_text import dump_json

MAX_UNJOINED_LINES = 64

ToolInput = Mapping[str, Any]
# The three parts of a line's `tool_use_result` member: the key, the value, and the value's end.
ToolUseResult = tuple[bytes, bytes, bytes]

# The pieces of a line are joined immediately. If they were kept until the next write, the CPU cache
# would have evicted them, and joining would take five times as long. Each line ends with the
# counter in its UUID.
_HEX_BYTES = [b"%02x" % number for number in range(256)]
_LINE_ENDS = [digits + b'"}\n' for digits in _HEX_BYTES]
NO_USAGE_JSON = dump_json(NO_USAGE)

MAIN_AGENT_MEMBER = b',"parent_tool_use_id":null'  # for lines of the main agent
EVENT_START = b'{"type":"stream_event","event":{"type":'
EVENT_END = b"}}" + MAIN_AGENT_MEMBER
MESSAGE_HEAD = b'{"type":"assistant","message":{"id":"'
MESSAGE_START_EVENT = EVENT_START + b'"message_start","message":{"id":"'
MESSAGE_DELTA_EVENT = EVENT_START + b'"message_delta","delta":{"stop_reason":'
DELTA_USAGE_MEMBER = b',"stop_sequence":null},"usage":'
MESSAGE_STOP_EVENT = EVENT_START + b'"message_stop"}' + MAIN_AGENT_MEMBER
NO_STOP_REASON_MEMBERS = b'],"stop_reason":null,"stop_sequence":null,"usage":'
TOOL_USE_START = b'{"type":"tool_use","id":'
NAME_MEMBER = b',"name":'
INPUT_MEMBER = b',"input":'
TOOL_USE_BYTES = len(TOOL_USE_START + NAME_MEMBER + INPUT_MEMBER)
TOOL_RESULT_START = b'{"type":"user","message":{"role":"user","content":[{"tool_use_id":'
CONTENT_MEMBER = b',"type":"tool_result","content":'
FAILED_RESULT_END = b',"is_error":true}]}' + MAIN_AGENT_MEMBER
RESULT_END = b',"is_error":false}]}' + MAIN_AGENT_MEMBER

NO_TOOL_USE_RESULT = (b"", b"", b"")
TOOL_USE_RESULT_MEMBER = b',"tool_use_result":'
_BASH_RESULT_START = TOOL_USE_RESULT_MEMBER + b'{"stdout":'
_BASH_RESULT_END = b',"stderr":"","interrupted":false,"isImage":false}'

# The JSON pieces for each kind of content block: the block's start and end in an assistant line,
# the block in the start event, and the beginning of each delta.
BLOCK_PIECES = {
    "text": (
        b'{"type":"text","text":',
        b"}",
        b'{"type":"text","text":""}}',
        b'"text_delta","text":',
    ),
    "thinking": (
        b'{"type":"thinking","thinking":',
        b',"signature":""}',
        b'{"type":"thinking","thinking":"","signature":""}}',
        b'"thinking_delta","thinking":',
    ),
}


class LineBuffer(list[bytes]):
    """A buffer of complete lines that are waiting to be written."""

    def __init__(self) -> None:
        super().__init__()
        self._joined_count = 0

    def take_joined_lines(self) -> bytes:
        """Remove all lines from the buffer and return them as one byte string."""
        data = b"".join(self)
        self.clear()
        self._joined_count = 0
        return data

    def compact_buffered_lines(self) -> None:
        """Join recently added lines into one byte string, which needs less memory than many short
        ones.
        """
        if len(self) - self._joined_count >= MAX_UNJOINED_LINES:
            self[self._joined_count :] = [b"".join(self[self._joined_count :])]
            self._joined_count += 1


def generate_line_uuid_suffixes() -> Iterator[bytes]:
    """Yield the end of each line: the last 12 digits of the line's UUID and the closing characters.
    The digits count up from 1.
    """
    for high_number in count():
        digits = b"%010x" % high_number
        for line_end in _LINE_ENDS if high_number else _LINE_ENDS[1:]:
            yield digits + line_end


def generate_message_ids(prefix: bytes) -> Iterator[bytes]:
    """Yield message ids: `prefix` and at least six hexadecimal digits, which count up from 1."""
    for high_number in count():
        digits = prefix + b"%04x" % high_number
        for low_digits in _HEX_BYTES if high_number else _HEX_BYTES[1:]:
            yield digits + low_digits


@lru_cache(maxsize=256)
def encode_name_as_json(name: str | None) -> bytes:
    """Encode a name as JSON. The result is cached, because the same names are encoded often."""
    return dump_json(name)


@lru_cache(maxsize=256)
def encode_block_start_delta_and_stop(
    block_kind: str, block_index: int
) -> tuple[bytes, bytes, bytes]:
    """Return the constant JSON of a content block's events: the start event, the beginning of a
    delta event, and the stop event.
    """
    if block_kind in BLOCK_PIECES:
        start_block, delta_head = BLOCK_PIECES[block_kind][2:]
    else:
        start_block = b""
        delta_head = b'"input_json_delta","partial_json":'
    start_event = b'%b"content_block_start","index":%d,"content_block":%b' % (
        EVENT_START,
        block_index,
        start_block,
    )
    return (
        start_event + MAIN_AGENT_MEMBER if start_block else start_event,
        b'%b"content_block_delta","index":%d,"delta":{"type":%b'
        % (EVENT_START, block_index, delta_head),
        b'%b"content_block_stop","index":%d}%b' % (EVENT_START, block_index, MAIN_AGENT_MEMBER),
    )


def encode_failed_tool_result(content_json: bytes) -> ToolUseResult:
    """Encode `tool_use_result` for a failed tool call, in three parts. `content_json` is the result's
    content as JSON. If the content is not a string, the parts are empty.
    """
    if content_json[:1] != b'"':
        return NO_TOOL_USE_RESULT
    return (
        TOOL_USE_RESULT_MEMBER,
        b'"' if content_json.startswith(b'"Error: ') else b'"Error: ',
        content_json[1:],
    )


def _encode_bash_result(tool_input: ToolInput, content: str, content_json: bytes) -> ToolUseResult:
    return _BASH_RESULT_START, content_json, _BASH_RESULT_END


def _encode_structured_output(
    tool_input: ToolInput, content: str, content_json: bytes
) -> ToolUseResult:
    return TOOL_USE_RESULT_MEMBER, content_json, b""


def _encode_write_result(tool_input: ToolInput, content: str, content_json: bytes) -> ToolUseResult:
    fields = {
        "type": "create",
        "filePath": tool_input.get("file_path", ""),
        "content": tool_input.get("content", ""),
        "structuredPatch": [],
        "originalFile": None,
        "userModified": False,
    }
    return TOOL_USE_RESULT_MEMBER, dump_json(fields), b""


def _encode_edit_result(tool_input: ToolInput, content: str, content_json: bytes) -> ToolUseResult:
    fields = {
        "filePath": tool_input.get("file_path", ""),
        "oldString": tool_input.get("old_string", ""),
        "newString": tool_input.get("new_string", ""),
        "originalFile": None,
        "structuredPatch": [],
        "userModified": False,
        "replaceAll": bool(tool_input.get("replace_all", False)),
    }
    return TOOL_USE_RESULT_MEMBER, dump_json(fields), b""


def encode_repeated_result(result_json: bytes, max_bytes: int) -> tuple[bytes, bytes]:
    """Encode `tool_use_result` for a call of an MCP tool or of a tool that runs a subagent. `max_bytes`
    is the maximum length of the line, which has the content twice. Large images and texts are written
    only once.
    """
    if len(result_json) > max_bytes // 4:
        return b"", b""
    return TOOL_USE_RESULT_MEMBER, result_json


# Functions that encode `tool_use_result` for a successful call, by tool. A function receives the
# call's arguments, the result's content, and the content as JSON, so that a large output is encoded
# only once. Read has no function, because its member contains the file's exact text and length, and
# vendors add headings to the text.
RESULT_ENCODERS: dict[str, Callable[[ToolInput, str, bytes], ToolUseResult]] = {
    "Bash": _encode_bash_result,
    "Write": _encode_write_result,
    "Edit": _encode_edit_result,
    "StructuredOutput": _encode_structured_output,
}


def build_hook_tool_response(name: str, tool_input: ToolInput, content: object) -> object:
    """Return the `tool_response` that hooks receive: the structured result if the tool has one,
    otherwise the result's content.
    """
    encode_result = RESULT_ENCODERS.get(name)
    if encode_result is None or not isinstance(content, str):
        return content
    key, value, end = encode_result(tool_input, content, dump_json(content))
    return orjson.loads((key + value + end)[len(TOOL_USE_RESULT_MEMBER) :])
