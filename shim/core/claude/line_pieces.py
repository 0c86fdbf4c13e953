"""Pieces of Claude's lines, as JSON: the pen joins the constant ones with what is new in each line.

At the end: `tool_use_result`, the machine-readable sibling of a tool's result (contract 5.4).
"""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import count
from typing import Any

import orjson

from shim.core.claude.usage import NO_USAGE
from shim.core.reading.json_text import dump

FOLD_LINES = 64

Arguments = Mapping[str, Any]
# of a line's `tool_use_result`: its key, its value, and what the value ends with
Outcome = tuple[bytes, bytes, bytes]

# Every line is joined of its pieces at once: pieces that live until the next write cost five times
# as much, they leave the processor's cache. It ends with the counter of its uuid.
_DIGITS = [b"%02x" % number for number in range(256)]
_ENDS = [digits + b'"}\n' for digits in _DIGITS]
UNUSED = dump(NO_USAGE)

MAIN = b',"parent_tool_use_id":null'  # of a line that is no nested agent's
EVENT = b'{"type":"stream_event","event":{"type":'
EVENT_END = b"}}" + MAIN
MESSAGE = b'{"type":"assistant","message":{"id":"'
MESSAGE_START = EVENT + b'"message_start","message":{"id":"'
MESSAGE_DELTA = EVENT + b'"message_delta","delta":{"stop_reason":'
STOP_USAGE = b',"stop_sequence":null},"usage":'
MESSAGE_STOP = EVENT + b'"message_stop"}' + MAIN
STOP_FACTS = b'],"stop_reason":null,"stop_sequence":null,"usage":'
CALL = b'{"type":"tool_use","id":'
NAME = b',"name":'
INPUT = b',"input":'
CALL_BYTES = len(CALL + NAME + INPUT)
RESULT = b'{"type":"user","message":{"role":"user","content":[{"tool_use_id":'
CONTENT = b',"type":"tool_result","content":'
FAILED = b',"is_error":true}]}' + MAIN
WORKED = b',"is_error":false}]}' + MAIN

NO_OUTCOME = (b"", b"", b"")
OUTCOME = b',"tool_use_result":'
_STDOUT = OUTCOME + b'{"stdout":'
_STDERR = b',"stderr":"","interrupted":false,"isImage":false}'

# How a block of a kind begins and ends in its own line, how it begins in its first event, and what
# its deltas are.
BLOCKS = {
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


class Lines(list[bytes]):
    """Whole lines that wait to be taken."""

    def __init__(self) -> None:
        super().__init__()
        self._folded = 0

    def take(self) -> bytes:
        """All of them as one piece; none is left."""
        data = b"".join(self)
        self.clear()
        self._folded = 0
        return data

    def fold(self) -> None:
        """Join what came since the last fold: many long lines are gentler to the memory as one
        piece.
        """
        if len(self) - self._folded >= FOLD_LINES:
            self[self._folded :] = [b"".join(self[self._folded :])]
            self._folded += 1


def line_ends() -> Iterator[bytes]:
    """The end of each line: its uuid's last 12 digits, which count from 1."""
    for high in count():
        digits = b"%010x" % high
        for low in _ENDS if high else _ENDS[1:]:
            yield digits + low


def message_ids(prefix: bytes) -> Iterator[bytes]:
    """The ids of messages, which count from 1 too: `prefix` and six digits, more where those are
    used up.
    """
    for high in count():
        digits = prefix + b"%04x" % high
        for low in _DIGITS if high else _DIGITS[1:]:
            yield digits + low


@lru_cache(maxsize=256)
def name_json(name: str | None) -> bytes:
    """A name that comes again and again, as JSON."""
    return dump(name)


@lru_cache(maxsize=256)
def block_events(kind: str, index: int) -> tuple[bytes, bytes, bytes]:
    """Of a block's events: the first one, what stands before a delta's content, and the last one."""
    block, delta = (
        BLOCKS[kind][2:] if kind in BLOCKS else (b"", b'"input_json_delta","partial_json":')
    )
    start = b'%b"content_block_start","index":%d,"content_block":%b' % (EVENT, index, block)
    return (
        start + MAIN if block else start,
        b'%b"content_block_delta","index":%d,"delta":{"type":%b' % (EVENT, index, delta),
        b'%b"content_block_stop","index":%d}%b' % (EVENT, index, MAIN),
    )


def failure(dumped: bytes) -> Outcome:
    """The member for a failed call, from its content as JSON; empty if the content is not a text."""
    if dumped[:1] != b'"':
        return NO_OUTCOME
    return OUTCOME, b'"' if dumped.startswith(b'"Error: ') else b'"Error: ', dumped[1:]


def _bash(arguments: Arguments, content: str, dumped: bytes) -> Outcome:
    return _STDOUT, dumped, _STDERR


def _structured(arguments: Arguments, content: str, dumped: bytes) -> Outcome:
    return OUTCOME, dumped, b""


def _write(arguments: Arguments, content: str, dumped: bytes) -> Outcome:
    said = {
        "type": "create",
        "filePath": arguments.get("file_path", ""),
        "content": arguments.get("content", ""),
        "structuredPatch": [],
        "originalFile": None,
        "userModified": False,
    }
    return OUTCOME, dump(said), b""


def _edit(arguments: Arguments, content: str, dumped: bytes) -> Outcome:
    said = {
        "filePath": arguments.get("file_path", ""),
        "oldString": arguments.get("old_string", ""),
        "newString": arguments.get("new_string", ""),
        "originalFile": None,
        "structuredPatch": [],
        "userModified": False,
        "replaceAll": bool(arguments.get("replace_all", False)),
    }
    return OUTCOME, dump(said), b""


# Read has none: its member holds the file's own text and length, and vendors print the file with
# their own headings. Tool → its member for a success, made of the call's arguments, the content,
# and the content as JSON: a large output is not dumped twice.
OUTCOMES: dict[str, Callable[[Arguments, str, bytes], Outcome]] = {
    "Bash": _bash,
    "Write": _write,
    "Edit": _edit,
    "StructuredOutput": _structured,
}


def build_tool_response(name: str, arguments: Arguments, content: object) -> object:
    """Return `tool_response` for a hook: the structured outcome if the tool has one, else the
    result's content.
    """
    make = OUTCOMES.get(name)
    if make is None or not isinstance(content, str):
        return content
    key, value, end = make(arguments, content, dump(content))
    return orjson.loads((key + value + end)[len(OUTCOME) :])
