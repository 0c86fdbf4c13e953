"""The reply that a frontend with partial messages has half of: what closes it where its end does
not come any more.
"""

from collections.abc import Mapping
from typing import Any

TEXT_BYTES = 1024 * 1024  # of a block that is open; of a longer one no whole line is said
# a delta → its block, its key
PARTS = {"text_delta": ("text", "text"), "thinking_delta": ("thinking", "thinking")}


class OpenReply:
    """Fed the partial lines that the frontend is said, but for those of nested agents."""

    def __init__(self) -> None:
        self._message: Mapping[str, Any] = {}
        self._block: object = None  # the index of the block that is open
        self._said: dict[tuple[str, str], list[str]] = {}  # block and key → its text so far
        self._size = 0

    def partial(self, line: Mapping[str, Any]) -> None:
        event = line.get("event")
        if not isinstance(event, dict) or line.get("parent_tool_use_id") is not None:
            return
        match event.get("type"):
            case "message_start":
                self._message = event.get("message") or {"role": "assistant"}
                self._end()
            case "message_stop":
                self._message = {}
                self._end()
            case "content_block_start":
                self._end()
                self._block = event.get("index")
            case "content_block_stop":
                self._end()
            case "content_block_delta" if isinstance(delta := event.get("delta"), dict):
                self._add(delta)

    def whole(self) -> None:
        """The whole line of the block that is open."""
        self._said.clear()

    def close(self) -> list[Mapping[str, Any]]:
        """The lines that are missing (contract S11), without what all lines have."""
        lines: list[Mapping[str, Any]] = []
        for (kind, key), parts in self._said.items() if self._size <= TEXT_BYTES else ():
            block = {"type": kind, key: "".join(parts)} | (
                {"signature": ""} if kind == "thinking" else {}
            )
            lines.append({"type": "assistant", "message": {**self._message, "content": [block]}})
        events: list[Mapping[str, Any]] = []
        if self._block is not None:
            events.append({"type": "content_block_stop", "index": self._block})
        if self._message:
            delta, usage = (
                {"stop_reason": None, "stop_sequence": None},
                self._message.get("usage") or {},
            )
            events += [
                {"type": "message_delta", "delta": delta, "usage": usage},
                {"type": "message_stop"},
            ]
        self._message = {}
        self._end()
        return lines + [{"type": "stream_event", "event": event} for event in events]

    def _add(self, delta: Mapping[str, Any]) -> None:
        place = PARTS.get(str(delta.get("type")))
        text = delta.get(place[1]) if place is not None else None
        if place is not None and isinstance(text, str):
            self._size += len(text)
            if self._size <= TEXT_BYTES:
                self._said.setdefault(place, []).append(text)

    def _end(self) -> None:
        self._block, self._size = None, 0
        self._said.clear()
