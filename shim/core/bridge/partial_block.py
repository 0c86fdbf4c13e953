"""Stores the partial lines of the open content block, for clients that connect while the block is
streamed.
"""

from collections.abc import Mapping
from typing import Any

from shim.core.claude.grammar import get_parent_call_id, get_stream_event

# A client that connects while a larger block is streamed only receives the block's complete line.
MAX_BLOCK_BYTES = 1024 * 1024


class PartialContentBlock:
    """The conversation's open content block. Partial lines from subagents are not stored."""

    def __init__(self) -> None:
        self._message_start = b""  # the frame with the `message_start` event
        self._frames: list[bytes] = []  # the open block's frames, from its start
        self._size_bytes = 0
        self._is_open = False

    @property
    def frames_for_new_client(self) -> bytes:
        """The frames that a new client must receive before the next partial line."""
        return self._message_start + b"".join(self._frames)

    @property
    def has_open_block_without_start(self) -> bool:
        """Whether a block is open whose start is not stored."""
        if not self._is_open:
            return False
        return not self._frames

    def add_partial_line(self, line: Mapping[str, Any], frame: bytes) -> bool:
        """Store the frame with a partial line. Return whether the partial line ends a content
        block.
        """
        if get_parent_call_id(line):
            return False
        kind = get_stream_event(line).get("type")
        if kind == "message_start":
            self.clear()
            if len(frame) < MAX_BLOCK_BYTES:
                self._message_start = frame
            else:
                self._message_start = b""
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

    def clear_completed_block(self, complete_line: Mapping[str, Any]) -> None:
        """Clear the stored block when its complete line arrives. At the end of a turn, clear
        everything.
        """
        if complete_line.get("type") == "result":
            self.clear()
        elif complete_line.get("type") == "assistant" and not get_parent_call_id(complete_line):
            self._frames = []
            self._size_bytes = 0

    def clear(self) -> None:
        self._message_start = b""
        self._clear_block()

    def _clear_block(self) -> None:
        self._frames = []
        self._size_bytes = 0
        self._is_open = False
