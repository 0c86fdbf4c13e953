"""The block that is being said: its partial lines, for clients who come in the middle of it."""

from collections.abc import Mapping
from typing import Any

# of a block that is open; of a longer one newcomers get the whole line alone
OPEN_BYTES = 1024 * 1024


class OpenBlock:
    """Fed every partial line of the conversation itself; those of nested agents are not kept."""

    def __init__(self) -> None:
        self._start = b""  # of the message
        self._parts: list[bytes] = []  # of the block, from its start
        self._size = 0
        self._open = False

    @property
    def frames(self) -> bytes:
        """What a newcomer is told in front of the next partial line."""
        return self._start + b"".join(self._parts)

    @property
    def untold(self) -> bool:
        """Whether the rest of the block means nothing to a newcomer."""
        return self._open and not self._parts

    def partial(self, line: Mapping[str, Any], data: bytes) -> bool:
        """A partial line and its frame; whether it ends a block."""
        event = line.get("event")
        kind = event.get("type") if isinstance(event, dict) else None
        if line.get("parent_tool_use_id") is not None:
            return False
        if kind == "message_start":
            self.clear()
            self._start = data if len(data) < OPEN_BYTES else b""
        elif kind == "message_stop":
            self.clear()
        elif kind == "content_block_start":
            self._parts, self._size, self._open = [data], len(data), True
        elif kind == "content_block_stop":
            self._end()
            return True
        elif self._parts:
            self._parts.append(data)
            self._size += len(data)
            if self._size > OPEN_BYTES:
                self._parts = []
        return False

    def whole(self, line: Mapping[str, Any]) -> None:
        """A whole line: it has all of the block that is open, or ends the turn."""
        if line.get("type") == "result":
            self.clear()
        elif line.get("type") == "assistant" and line.get("parent_tool_use_id") is None:
            self._parts, self._size = [], 0

    def clear(self) -> None:
        self._start = b""
        self._end()

    def _end(self) -> None:
        self._parts, self._size, self._open = [], 0, False
