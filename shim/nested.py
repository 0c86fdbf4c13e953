"""A nested agent inside a turn: whole lines only, with the id of the call that runs it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shim.frame import CLOSED, NEW, READY
from shim.usage import NO_USAGE

if TYPE_CHECKING:
    from shim.frame import Frame


class Nested:
    """The verbs of a nested agent; `parent` is the call's id as the frontend knows it (None: unknown)."""

    def __init__(self, turn: "Frame", parent: str | None) -> None:
        self._turn = turn
        self._parent = parent

    def text(self, whole: str) -> None:
        """A block of text that the nested agent said."""
        if whole:
            self._assistant({"type": "text", "text": whole})

    def thinking(self, whole: str) -> None:
        """A block of its thinking."""
        if whole:
            self._assistant({"type": "thinking", "thinking": whole, "signature": ""})

    def tool_use(self, identity: str, name: str, arguments: Mapping[str, Any]) -> None:
        """A call that it makes."""
        calls = self._turn.nested_calls
        if identity in calls:
            return
        calls[identity] = self._parent
        self._assistant({"type": "tool_use", "id": identity, "name": name, "input": arguments})

    def tool_result(self, identity: str, content: object, is_error: bool = False) -> None:
        """What its call returned."""
        if identity not in self._turn.nested_calls:
            self._turn.account.repaired("orphan_tool_result", identity)
            return
        del self._turn.nested_calls[identity]
        block = {"type": "tool_result", "tool_use_id": identity, "content": content, "is_error": is_error}
        self._line("user", {"role": "user", "content": [block]})

    def user_text(self, text: str) -> None:
        """What it was told."""
        self._line("user", {"role": "user", "content": [{"type": "text", "text": text}]})

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
            "usage": NO_USAGE,
        }
        self._line("assistant", message)

    def _line(self, role: str, message: Mapping[str, Any]) -> None:
        turn = self._turn
        if turn.state in (NEW, CLOSED) and not turn.go(READY):
            return
        turn.pen.nested(self._parent, role, message)
