"""The partial lines of the open content block, for clients that connect while it is streamed."""

from collections.abc import Mapping
from typing import Any

from shim.core.claude.grammar import get_parent_call_id, get_stream_event

# A client that connects during a larger block only receives the complete line.
MAX_BLOCK_BYTES = 1024 * 1024


class PartialContentBlock:
    """The open content block of the conversation. Partial lines of subagents are not stored."""

    def __init__(self) -> None:
        self._message_start = b""  # the frame of the message's start
        self._frames: list[bytes] = []  # the frames of the block, from its start
        self._size_bytes = 0
        self._is_open = False

    @property
    def frames_for_new_client(self) -> bytes:
        """The frames that a new client needs before the next partial line."""
        return self._message_start + b"".join(self._frames)

    @property
    def has_open_block_without_start(self) -> bool:
        """Return whether a block is open and its start is not stored."""
        if not self._is_open:
            return False
        return not self._frames

    def add_partial_line(self, line: Mapping[str, Any], frame: bytes) -> bool:
        """Store the frame of a partial line. Return whether the line ends a block."""
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
        """Clear the block that a complete line contains. Clear everything at the end of a turn."""
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
