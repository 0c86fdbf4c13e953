"""The block that is being said: its partial lines, for clients who come in the middle of it."""

from collections.abc import Mapping
from typing import Any

# of a block that is open; of a longer one newcomers get the whole line alone
MAX_BLOCK_BYTES = 1024 * 1024


class PartialContentBlock:
    """Fed every partial line of the conversation itself; those of nested agents are not kept."""

    def __init__(self) -> None:
        self._message_start = b""  # of the message
        self._frames: list[bytes] = []  # of the block, from its start
        self._size_bytes = 0
        self._is_open = False

    @property
    def frames(self) -> bytes:
        """What a newcomer is told in front of the next partial line."""
        return self._message_start + b"".join(self._frames)

    @property
    def has_lost_start(self) -> bool:
        """Whether the rest of the block means nothing to a newcomer."""
        return self._is_open and not self._frames

    def add_partial_line(self, line: Mapping[str, Any], frame: bytes) -> bool:
        """A partial line and its frame; whether it ends a block."""
        event = line.get("event")
        kind = event.get("type") if isinstance(event, dict) else None
        if line.get("parent_tool_use_id") is not None:
            return False
        if kind == "message_start":
            self.clear()
            self._message_start = frame if len(frame) < MAX_BLOCK_BYTES else b""
        elif kind == "message_stop":
            self.clear()
        elif kind == "content_block_start":
            self._frames, self._size_bytes, self._is_open = [frame], len(frame), True
        elif kind == "content_block_stop":
            self._clear_block()
            return True
        elif self._frames:
            self._frames.append(frame)
            self._size_bytes += len(frame)
            if self._size_bytes > MAX_BLOCK_BYTES:
                self._frames = []
        return False

    def feed_complete_line(self, line: Mapping[str, Any]) -> None:
        """A whole line: it has all of the block that is open, or ends the turn."""
        if line.get("type") == "result":
            self.clear()
        elif line.get("type") == "assistant" and line.get("parent_tool_use_id") is None:
            self._frames, self._size_bytes = [], 0

    def clear(self) -> None:
        self._message_start = b""
        self._clear_block()

    def _clear_block(self) -> None:
        self._frames, self._size_bytes, self._is_open = [], 0, False
