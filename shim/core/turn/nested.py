"""A nested agent inside a turn: whole lines only, with the id of the call that runs it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shim.core.claude.usage import NO_USAGE, Usage
from shim.core.reading.json_text import as_content, as_text
from shim.core.turn.machine import CLOSED, DONE, NAME_CHARACTERS, NEW, READY

if TYPE_CHECKING:
    from shim.core.turn.machine import Frame


NESTED_CALLS = 1000  # of nested agents, open at one time


class Nested:
    """The verbs of a nested agent; `parent` is the call's id as the frontend knows it (None: unknown)."""

    def __init__(self, turn: "Frame", parent: str | None, usage: Usage | None = None) -> None:
        self._usage = usage or NO_USAGE
        self._turn = turn
        self._parent = parent

    def text(self, whole: str) -> None:
        """A block of text that the nested agent said."""
        if whole:
            self._assistant({"type": "text", "text": as_text(whole)})

    def thinking(self, whole: str) -> None:
        """A block of its thinking."""
        if whole:
            self._assistant({"type": "thinking", "thinking": as_text(whole), "signature": ""})

    def tool_use(self, identity: str, name: str, arguments: Mapping[str, Any]) -> None:
        """A call that it makes; its id is unique in the whole conversation, minted where it has to be."""
        turn = self._turn
        if not isinstance(identity, str) or not identity:
            identity = turn.pen.new_uuid()
        identity = identity[:NAME_CHARACTERS]
        if identity in turn.nested_calls or turn.state in (DONE, CLOSED) or len(turn.nested_calls) >= NESTED_CALLS:
            return
        said_as = turn.claim(identity)
        turn.nested_calls[identity] = (self._parent, said_as)
        given = turn.sure(arguments if isinstance(arguments, dict) else {"raw": arguments})
        said = name[:NAME_CHARACTERS] if isinstance(name, str) else "unknown"
        self._assistant({"type": "tool_use", "id": said_as, "name": said, "input": given})

    def tool_result(self, identity: str, content: object, is_error: bool = False) -> None:
        """What its call returned."""
        turn = self._turn
        if turn.state is DONE:
            turn.go(READY)
            return
        identity = identity[:NAME_CHARACTERS] if isinstance(identity, str) else ""
        parent, said_as = turn.nested_calls.pop(identity, (None, None))
        if said_as is None:
            turn.account.repaired("orphan_tool_result", identity)
            return
        block = {
            "type": "tool_result",
            "tool_use_id": said_as,
            "content": as_content(turn.sure(content)),
            "is_error": bool(is_error),
        }
        type(self)(turn, parent)._line("user", {"role": "user", "content": [block]})  # the call's, whoever says it

    def user_text(self, text: str) -> None:
        """What it was told."""
        self._line("user", {"role": "user", "content": [{"type": "text", "text": as_text(text)}]})

    def _assistant(self, block: Mapping[str, Any]) -> None:
        turn = self._turn
        message = {
            "id": turn.pen.new_message_id(),
            "type": "message",
            "role": "assistant",
            "model": turn.model or "unknown",
            "content": [block],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage,
        }
        self._line("assistant", message)

    def _line(self, role: str, message: Mapping[str, Any]) -> None:
        turn = self._turn
        if turn.state in (NEW, DONE, CLOSED) and not turn.go(READY):
            return
        turn.pen.nested(self._parent, role, message)
