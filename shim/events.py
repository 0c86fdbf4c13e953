"""Claude's pen: the only place that knows what a line of Claude's stream-json looks like.

Shapes are those of contract section 5. The constant parts of a line are dumped once (per turn, per model, per
block); what remains per line is one dump of the content and one number, so that a line costs about a microsecond.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from shim.decode import join_surrogates
from shim.outcomes import tool_use_result

CLAUDE_VERSION = "2.1.327"  # raised by hand when the contract was measured again

Usage = Mapping[str, int]
NO_USAGE: Usage = {
    "input_tokens": 0,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "output_tokens": 0,
}

# Valid in JSON, but Node's readline and Python's splitlines break a line at them (hostile-input, section 2).
_SEPARATORS = (
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
    (b"\xc2\x85", b"\\u0085"),
)

TERMINATORS = {"message_stop": b'{"type":"message_stop"}\n', "dollar": b"$\n", "none": b""}

DEPTH_WRITTEN = 200  # orjson stops at 254; a deeper value becomes its JSON text


def dump(value: object) -> bytes:
    """`value` as JSON bytes that are valid UTF-8, whatever strings, keys and numbers it holds."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return orjson.dumps(_clean(value, 0))


def _clean(value: object, depth: int) -> object:
    if isinstance(value, str):
        return join_surrogates(value)
    if isinstance(value, dict | list | tuple) and depth >= DEPTH_WRITTEN:
        return _as_text(value)
    if isinstance(value, dict):
        return {join_surrogates(str(key)): _clean(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item, depth + 1) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**64:
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)


def _as_text(value: object) -> str:
    import json

    try:
        return join_surrogates(json.dumps(value, ensure_ascii=False))
    except RecursionError:
        return "[nested too deeply]"


class ClaudePen:
    """Writes Claude's lines into a buffer; `take` hands the bytes over.

    `identity` is the first 24 characters of every line's uuid and makes message ids unique; the rest is a
    counter, so an id costs no randomness. Every method appends whole lines.
    """

    def __init__(self, identity: str, *, partial: bool = False, terminator: bytes = b"") -> None:
        self.partial = partial
        self._terminator = terminator
        self._lines: list[bytes] = []
        self._number = 0
        self._message_number = 0
        self._identity = identity.encode()
        self._message_identity = b"msg_" + identity.replace("-", "").encode()
        self._index = 0
        self.last_result = b""

    def take(self) -> bytes:
        """All bytes written since the last call: whole lines, valid UTF-8, no separator that splits lines."""
        data = b"".join(self._lines)
        self._lines.clear()
        for raw, escaped in _SEPARATORS:
            if raw in data:
                data = data.replace(raw, escaped)
        return data

    def new_uuid(self) -> str:
        """The next line's uuid, for something that is not a line (a synthetic id)."""
        self._number += 1
        return f"{self._identity.decode()}{self._number:012x}"

    def adopt_session(self, session_id: str) -> None:
        """The session that further lines belong to. Tails end where the uuid's counter begins."""
        self._tail = b',"session_id":' + dump(session_id) + b',"uuid":"' + self._identity
        self._main_tail = b',"parent_tool_use_id":null' + self._tail

    def adopt_message(self, identity: str, model: str, usage: Usage) -> None:
        """The reply that a passed line opened."""
        self._message_id = dump(identity)[1:-1]
        self._model = dump(model)
        self._index = 0
        self.message_usage(usage)

    def adopt_block(self, index: int) -> None:
        """The block that a passed line opened."""
        self._index = index

    def verbatim(self, line: bytes) -> None:
        """A line that is Claude's already (pass-through), without its LF."""
        self._lines.append(line + b"\n")

    # -- the frame ----------------------------------------------------------------------------------------

    def init(self, session_id: str, facts: Mapping[str, Any]) -> None:
        """`system/init` (contract 5.1); `facts` has cwd, tools, model, mode, shim and what else is known."""
        self.adopt_session(session_id)
        line = {
            "type": "system",
            "subtype": "init",
            "cwd": facts.get("cwd") or "",
            "session_id": session_id,
            "tools": facts.get("tools") or [],
            "mcp_servers": facts.get("mcp_servers") or [],
            "model": facts.get("model") or "unknown",
            "permissionMode": facts.get("mode") or "default",
            "slash_commands": facts.get("slash_commands") or [],
            "apiKeySource": facts.get("key_source") or "none",
            "claude_code_version": CLAUDE_VERSION,
            "output_style": "default",
            "agents": facts.get("agents") or [],
            "skills": [],
            "plugins": [],
            "analytics_disabled": True,
            "product_feedback_disabled": True,
            "uuid": self.new_uuid(),
            "fast_mode_state": "off",
            "shim": facts.get("shim") or {},
        }
        self._lines.append(dump(line) + b"\n")

    def system(self, subtype: str, fields: Mapping[str, Any]) -> None:
        """A `system` line beside the conversation (contract S19)."""
        body = dump({"type": "system", "subtype": subtype, **fields})
        self._end_line(body[:-1] + self._tail)

    def result(self, facts: Mapping[str, Any]) -> None:
        """`result` (contract 5.3), then the terminator if this stream has one."""
        body = dump({"type": "result", **facts})
        self._end_line(body[:-1] + self._tail)
        self.last_result = self._lines[-1]
        self.end_of_stream()

    def verbatim_result(self, line: bytes) -> None:
        """A result that is Claude's already; its terminator comes later."""
        self.verbatim(line)
        self.last_result = self._lines[-1]

    def end_of_stream(self) -> None:
        """The terminator, if this stream has one; `result` says it by itself."""
        if self._terminator:
            self._lines.append(self._terminator)

    # -- a reply ------------------------------------------------------------------------------------------

    def message_start(self, model: str, usage: Usage) -> None:
        """A new reply: a fresh message id; with partial messages its `message_start` line."""
        self._message_number += 1
        self._index = 0
        self._message_id = self._message_identity + b"%06x" % self._message_number
        self._model = dump(model)
        self.message_usage(usage)
        if self.partial:
            self._stream(
                b'{"type":"message_start","message":{"id":"'
                + self._message_id
                + b'","type":"message","role":"assistant","model":'
                + self._model
                + b',"content":[],"stop_reason":null,"stop_sequence":null,"usage":'
                + self._usage
                + b"}}"
            )

    def message_usage(self, usage: Usage) -> None:
        """The usage that the reply's further assistant lines carry (contract S4)."""
        self._usage = dump(usage)
        self._head = (
            b'{"type":"assistant","message":{"id":"'
            + self._message_id
            + b'","type":"message","role":"assistant","model":'
            + self._model
            + b',"content":['
        )
        self._block_tail = b'}],"stop_reason":null,"stop_sequence":null,"usage":' + self._usage + b"}" + self._main_tail

    def block_start(self, kind: str) -> None:
        """A streamed block of `text` or `thinking` opens."""
        number = b"%d" % self._index
        empty = b'"text","text":""' if kind == "text" else b'"thinking","thinking":"","signature":""'
        self._stream(b'{"type":"content_block_start","index":' + number + b',"content_block":{"type":' + empty + b"}}")
        name = b'"text_delta","text":' if kind == "text" else b'"thinking_delta","thinking":'
        self._delta_head = (
            b'{"type":"stream_event","event":{"type":"content_block_delta","index":'
            + number
            + b',"delta":{"type":'
            + name
        )
        self._delta_tail = b"}}" + self._main_tail

    def delta(self, dumped: bytes) -> None:
        """A fragment of the open block, already dumped."""
        self._number = number = self._number + 1
        self._lines.append(b'%b%b%b%012x"}\n' % (self._delta_head, dumped, self._delta_tail, number))

    def block(self, kind: str, dumped: bytes) -> None:
        """The assistant line of a whole block of `text` or `thinking`, its content already dumped."""
        self._number = number = self._number + 1
        if kind == "text":
            self._lines.append(
                b'%b{"type":"text","text":%b%b%012x"}\n' % (self._head, dumped, self._block_tail, number)
            )
        else:
            self._lines.append(
                b'%b{"type":"thinking","thinking":%b,"signature":""%b%012x"}\n'
                % (self._head, dumped, self._block_tail, number)
            )

    def block_stop(self) -> None:
        """The open block is over (only said with partial messages); the next one has the next index."""
        if self.partial:
            self._stream(b'{"type":"content_block_stop","index":%d}' % self._index)
        self._index += 1

    def tool_use(self, identity: str, name: str, arguments: Mapping[str, Any]) -> None:
        """A whole call: its assistant line, with partial messages between the block's events."""
        head = b'{"type":"tool_use","id":' + dump(identity) + b',"name":' + dump(name) + b',"input":'
        dumped = dump(arguments)
        if self.partial:
            number = b"%d" % self._index
            self._stream(b'{"type":"content_block_start","index":' + number + b',"content_block":' + head + b"{}}}")
            self._stream(
                b'{"type":"content_block_delta","index":'
                + number
                + b',"delta":{"type":"input_json_delta","partial_json":'
                + dump(dumped.decode())
                + b"}}"
            )
        self._number = line = self._number + 1
        self._lines.append(b'%b%b%b%b%012x"}\n' % (self._head, head, dumped, self._block_tail, line))
        self.block_stop()

    def message_stop(self, stop_reason: str | None, usage: Usage) -> None:
        """The reply is over (only said with partial messages)."""
        if self.partial:
            self._stream(
                b'{"type":"message_delta","delta":{"stop_reason":'
                + dump(stop_reason)
                + b',"stop_sequence":null},"usage":'
                + dump(usage)
                + b"}"
            )
            self._stream(b'{"type":"message_stop"}')

    # -- what comes back ----------------------------------------------------------------------------------

    def tool_result(
        self, identity: str, name: str, arguments: Mapping[str, Any], content: object, *, failed: bool
    ) -> None:
        """A call's result as a user line (contract S7); name and arguments are those of the call."""
        dumped = dump(content)
        outcome = tool_use_result(name, arguments, content, dumped, failed)
        extra = b',"tool_use_result":' + outcome if outcome else b""
        self._number = number = self._number + 1
        self._lines.append(
            b'{"type":"user","message":{"role":"user","content":[{"tool_use_id":%b,"type":"tool_result",'
            b'"content":%b,"is_error":%b}]}%b%b%b%012x"}\n'
            % (
                dump(identity),
                dumped,
                b"true" if failed else b"false",
                b',"parent_tool_use_id":null',
                extra,
                self._tail,
                number,
            )
        )

    def user_text(self, text: str) -> None:
        """A user line that is not a tool's result (the interrupt's)."""
        body = b'{"type":"user","message":{"role":"user","content":[{"type":"text","text":'
        self._end_line(body + dump(text) + b"}]}" + self._main_tail)

    def api_error(self, text: str, error: str, status: int | None) -> None:
        """The assistant line of a failed API request (contract S10, 5.8)."""
        message = {
            "id": self.new_uuid(),
            "type": "message",
            "role": "assistant",
            "model": "<synthetic>",
            "content": [{"type": "text", "text": text}],
            "stop_reason": "stop_sequence",
            "stop_sequence": "",
            "usage": NO_USAGE,
        }
        line: dict[str, object] = {
            "type": "assistant",
            "message": message,
            "parent_tool_use_id": None,
            "error": error,
            "is_api_error_message": True,
        }
        if status is not None:
            line["api_error_status"] = status
        self._end_line(dump(line)[:-1] + self._tail)

    def nested(self, parent: str | None, role: str, message: Mapping[str, Any]) -> None:
        """A whole line of a nested agent; `parent` is the id of the call that runs it."""
        line = {"type": role, "message": message, "parent_tool_use_id": parent}
        self._end_line(dump(line)[:-1] + self._tail)

    def new_message_id(self) -> str:
        """A minted message id, for a nested agent's reply."""
        self._message_number += 1
        return f"{self._message_identity.decode()}{self._message_number:06x}"

    def _stream(self, event: bytes) -> None:
        self._number = number = self._number + 1
        self._lines.append(b'{"type":"stream_event","event":%b%b%012x"}\n' % (event, self._main_tail, number))

    def _end_line(self, body: bytes) -> None:
        self._number = number = self._number + 1
        self._lines.append(b'%b%012x"}\n' % (body, number))
