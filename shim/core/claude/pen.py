"""Claude's pen: the only place that knows what a line of Claude's stream-json looks like.

Shapes are those of contract section 5. The constant parts of a line are dumped once (per turn, per model, per
block); what remains per line is one dump of the content and one number, so that a line costs about a microsecond.
"""

from collections.abc import Mapping
from typing import Any

from shim.core.claude.tool_results import OUTCOMES, failure
from shim.core.claude.usage import NO_USAGE, Usage
from shim.core.reading.json_text import dump, escape
from shim.core.reading.limits import ENVELOPE_BYTES, NOTE_BYTES, SHORTEST, fit, fit_line

CLAUDE_VERSION = "2.1.327"  # raised by hand when the contract was measured again

UNLIMITED = 1 << 62
FOLD_LINES = 64

TERMINATORS = {"message_stop": b'{"type":"message_stop"}\n', "dollar": b"$\n", "none": b""}

# Every line is made whole at once: pieces that live until the next write cost five times as much, they leave the
# processor's cache. It ends with the counter of its uuid.
_NO_USAGE = dump(NO_USAGE)
_OWN = ("type", "subtype", "session_id", "uuid")  # never a vendor's to say
_TEXT = b'%b{"type":"text","text":%b%b%012x"}\n'
_THINKING = b'%b{"type":"thinking","thinking":%b,"signature":""%b%012x"}\n'
_RESULT = (
    b'{"type":"user","message":{"role":"user","content":[{"tool_use_id":%b,"type":"tool_result","content":%b,'
    b'"is_error":%b}]},"parent_tool_use_id":null%b%b%012x"}\n'
)


class ClaudePen:
    """Writes Claude's lines into a buffer; `take` hands the bytes over.

    `identity` is the first 24 characters of every line's uuid and makes message ids unique; the rest is a
    counter, so an id costs no randomness. Every method appends whole lines. `limit` is the length in bytes that no
    line of ours passes (0: none); texts and tools are kept below `room` by the Turn, all else is cut here.
    """

    def __init__(self, identity: str, *, partial: bool = False, terminator: bytes = b"", limit: int = 0) -> None:
        self.partial = partial
        self._limit = limit or UNLIMITED
        self.room = max(self._limit - ENVELOPE_BYTES, SHORTEST + NOTE_BYTES)
        self._terminator = terminator
        self._lines: list[bytes] = []
        self._folded = 0
        self._number = 0
        self._message_number = 0
        self._identity = identity.encode()
        self._message_identity = b"msg_" + identity.replace("-", "").encode()
        self._assistant = b'{"type":"assistant","message":{"id":"' + self._message_identity
        self._index = 0
        self._model_name = ""
        self._usage_seen: Usage | None = None
        self.last_result = b""
        self.call_bytes = 0  # of the last call, as it was said

    history = None  # its own lines are Claude's

    def take(self) -> bytes:
        """All bytes written since the last call: whole lines."""
        data = b"".join(self._lines)
        self._lines.clear()
        self._folded = 0
        return data

    def asked(self, prompt: str) -> None:
        """The message that the turn answers: nothing of it is said (but see `replay`)."""

    def session_changed(self, session_id: str) -> None:
        """A session of ours never changes its id (contract S3)."""

    def forget(self) -> None:
        """Forget the turn that has begun: none of its lines was given to the frontend."""
        self._lines.clear()
        self._folded = 0

    def fold(self) -> None:
        """Join what was written since the last fold: many long lines are gentler to the memory as one piece."""
        lines, folded = self._lines, self._folded
        if len(lines) - folded >= FOLD_LINES:
            lines[folded:] = [b"".join(lines[folded:])]
            self._folded = folded + 1

    def new_uuid(self) -> str:
        """A fresh uuid, for something that is not a line (a synthetic id)."""
        self._number += 1
        return f"{self._identity.decode()}{self._number:012x}"

    def adopt_session(self, session_id: str) -> None:
        """The session that further lines belong to. Tails end where the uuid's counter begins."""
        self._tail = b',"session_id":' + dump(session_id) + b',"uuid":"' + self._identity
        self._main_tail = b',"parent_tool_use_id":null' + self._tail
        self._no_usage_tail = b'],"stop_reason":null,"stop_sequence":null,"usage":%b}%b' % (_NO_USAGE, self._main_tail)

    def adopt_message(self, identity: str, model: str, usage: Usage) -> None:
        """The reply that a passed line opened."""
        middle = b'","type":"message","role":"assistant","model":' + dump(model) + b',"content":['
        self._head = b'{"type":"assistant","message":{"id":"' + dump(identity)[1:-1] + middle
        self._index = 0
        self.message_usage(usage)

    def adopt_block(self, index: int) -> None:
        """The block that a passed line opened."""
        self._index = index

    def verbatim(self, line: bytes) -> None:
        """A line that is Claude's already (pass-through), without its LF."""
        if not line.isascii():
            line = escape(line)
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
        self._lines.append(self._dumped(line) + b"\n")

    def system(self, subtype: str, fields: Mapping[str, Any]) -> None:
        """A `system` line beside the conversation (contract S19)."""
        said = {name: value for name, value in fields.items() if name not in _OWN}
        body = self._dumped({"type": "system", "subtype": subtype, **said})
        self._append(body[:-1] + self._tail)

    def result(self, facts: Mapping[str, Any]) -> None:
        """`result` (contract 5.3), then the terminator if this stream has one."""
        body = self._dumped({"type": "result", **facts})
        self._append(body[:-1] + self._tail)
        self.last_result = self._lines[-1]
        self.end_of_stream()

    def verbatim_result(self, line: bytes) -> None:
        """A result that is Claude's already; its terminator comes later."""
        self.verbatim(line)
        self.last_result = self._lines[-1]

    @property
    def terminates(self) -> bool:
        """Whether a terminator stands behind each result."""
        return bool(self._terminator)

    def end_of_stream(self) -> None:
        """The terminator, if this stream has one; `result` says it by itself."""
        if self._terminator:
            self._lines.append(self._terminator)

    # -- a reply ------------------------------------------------------------------------------------------

    def message_start(self, model: str, usage: Usage) -> None:
        """A new reply: a fresh message id; with partial messages its `message_start` line."""
        self._message_number = number = self._message_number + 1
        self._index = 0
        if model is not self._model_name:
            self._model_name = model
            self._model = dump(model)
            self._middle = b'","type":"message","role":"assistant","model":' + self._model + b',"content":['
        if usage is not self._usage_seen:
            self.message_usage(usage)
        self._head = b"%b%06x%b" % (self._assistant, number, self._middle)
        if self.partial:
            self._stream(
                b'{"type":"message_start","message":{"id":"'
                + b"%b%06x" % (self._message_identity, number)
                + self._middle
                + b'],"stop_reason":null,"stop_sequence":null,"usage":'
                + self._usage
                + b"}}"
            )

    def message_usage(self, usage: Usage) -> None:
        """The usage that the reply's further assistant lines carry (contract S4)."""
        self._usage_seen = usage
        if usage is NO_USAGE:
            self._usage, tail = _NO_USAGE, self._no_usage_tail
        else:
            self._usage = dump(usage)
            tail = b'],"stop_reason":null,"stop_sequence":null,"usage":%b}%b' % (self._usage, self._main_tail)
        self._call_tail = tail
        self._block_tail = b"}" + tail

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
        if not dumped.isascii():
            dumped = escape(dumped)
        self._number = number = self._number + 1
        self._lines.append(b'%b%b%b%012x"}\n' % (self._delta_head, dumped, self._delta_tail, number))

    def block(self, kind: str, dumped: bytes, aborted: bool = False) -> None:
        """The assistant line of a block of `text` or `thinking`, its content already dumped.

        `aborted`: the frontend stopped the turn before the block was complete (contract 6.4).
        """
        if not dumped.isascii():
            dumped = escape(dumped)
        self._number = number = self._number + 1
        line, tail = _TEXT if kind == "text" else _THINKING, self._block_tail
        if aborted:
            tail = tail.removesuffix(self._main_tail) + b',"aborted":true' + self._main_tail
        self._lines.append(line % (self._head, dumped, tail, number))

    def block_stop(self) -> None:
        """The open block is over (only said with partial messages); the next one has the next index."""
        if self.partial:
            self._stream(b'{"type":"content_block_stop","index":%d}' % self._index)
        self._index += 1

    def tool_use(self, identity: str, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """A whole call: its assistant line, with partial messages between the block's events.

        Gives back other arguments where these had to be cut.
        """
        head = dump({"type": "tool_use", "id": identity, "name": name, "input": {}})[:-3]
        dumped = dump(arguments)  # once: what is too deep is cut at the same depth, wherever it stands
        cut: Mapping[str, Any] | None = None
        if len(head) + len(dumped) > self.room // 2:  # as a fragment it is dumped twice
            fitted = fit(arguments, self.room // 2)
            cut = fitted if isinstance(fitted, dict) else {"raw": fitted}
            dumped = dump(cut)
        self.call_bytes = len(head) + len(dumped)
        if self.partial:
            self._stream_call(head, dumped)
        self._number = number = self._number + 1
        self._lines.append(b'%b%b%b}%b%012x"}\n' % (self._head, head, dumped, self._call_tail, number))
        if self.partial:
            self._stream(b'{"type":"content_block_stop","index":%d}' % self._index)
        self._index += 1
        return cut

    def _stream_call(self, head: bytes, dumped: bytes) -> None:
        """The events before a call's line: its whole input is one delta."""
        number = b"%d" % self._index
        self._stream(b'{"type":"content_block_start","index":%b,"content_block":%b{}}}' % (number, head))
        delta = b'{"type":"input_json_delta","partial_json":%b}' % dump(dumped.decode())
        self._stream(b'{"type":"content_block_delta","index":%b,"delta":%b}' % (number, delta))

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
        self, identity: str, name: str, arguments: Mapping[str, Any], content: object, failed: bool
    ) -> None:
        """A call's result as a user line (contract S7); identity, name and arguments are the call's."""
        dumped = dump(content)
        outcome = b""
        if failed:
            outcome = failure(dumped)
        elif name in OUTCOMES and content.__class__ is str:
            outcome = b',"tool_use_result":' + OUTCOMES[name](arguments, content, dumped)
        self._number = number = self._number + 1
        said = (dump(identity), dumped, b"true" if failed else b"false", outcome, self._tail, number)
        self._lines.append(_RESULT % said)

    def user_text(self, text: str) -> None:
        """A user line that is not a tool's result (the interrupt's)."""
        body = b'{"type":"user","message":{"role":"user","content":[{"type":"text","text":'
        self._append(body + dump(text) + b"}]}" + self._main_tail)

    def replay(self, message: Mapping[str, Any], identity: str | None, timestamp: str) -> None:
        """The user's own message, said again (contract C15)."""
        line = {"type": "user", "message": message, "parent_tool_use_id": None, "isReplay": True}
        if timestamp:
            line["timestamp"] = timestamp
        if identity is None:
            self._append(self._dumped(line)[:-1] + self._tail)
        else:
            tail = self._tail[: -len(self._identity)]
            self._lines.append(self._dumped(line)[:-1] + tail + dump(identity)[1:] + b"}\n")

    def notice(self, text: str) -> None:
        """A line of ours to the user, not of the model's."""
        line = {"type": "assistant", "message": self._synthetic(text), "parent_tool_use_id": None}
        self._append(self._dumped(line)[:-1] + self._tail)

    def _synthetic(self, text: str) -> dict[str, object]:
        return {
            "id": self.new_uuid(),
            "type": "message",
            "role": "assistant",
            "model": "<synthetic>",
            "content": [{"type": "text", "text": text}],
            "stop_reason": "stop_sequence",
            "stop_sequence": "",
            "usage": NO_USAGE,
        }

    def api_error(self, text: str, error: str, status: int | None, error_type: str | None = None) -> None:
        """The assistant line of a failed API request (contract S10, 5.8)."""
        line: dict[str, object] = {
            "type": "assistant",
            "message": self._synthetic(text),
            "parent_tool_use_id": None,
            "error": error,
            "is_api_error_message": True,
        }
        if status is not None:
            line |= {"api_error_status": status, "api_error_type": error_type}
        self._append(self._dumped(line)[:-1] + self._tail)

    def nested(self, parent: str | None, role: str, message: Mapping[str, Any]) -> None:
        """A whole line of a nested agent; `parent` is the id of the call that runs it."""
        line = {"type": role, "message": message, "parent_tool_use_id": parent}
        self._append(self._dumped(line)[:-1] + self._tail)

    def new_message_id(self) -> str:
        """A minted message id, for a nested agent's reply."""
        self._message_number += 1
        return f"{self._message_identity.decode()}{self._message_number:06x}"

    def _dumped(self, line: Mapping[str, Any]) -> bytes:
        """A line that is made whole, with its longest strings cut where it would be too long."""
        dumped = dump(line)
        return dumped if len(dumped) <= self.room else dump(fit_line(line, self.room))

    def _stream(self, event: bytes) -> None:
        self._append(b'{"type":"stream_event","event":' + event + self._main_tail)

    def _append(self, body: bytes) -> None:
        self._number = number = self._number + 1
        self._lines.append(b'%b%012x"}\n' % (body, number))
