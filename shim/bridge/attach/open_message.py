"""Closes an assistant message that was cut off, for a frontend that has received its partial
messages.
"""

from collections.abc import Mapping
from typing import Any

from shim.core.claude.grammar import get_delta, get_fragment, get_parent_call_id, get_stream_event
from shim.core.reading.values import as_dict

# The maximum length of the text that is stored of an open block.
# For a longer text, no complete line is written.
MAX_TEXT_CHARS = 1024 * 1024


class OpenAssistantMessage:
    """Tracks the assistant message that is still open, from the partial message lines that the
    frontend receives. Lines from subagents are ignored.
    """

    def __init__(self) -> None:
        self._message: Mapping[str, Any] = {}
        self._block_index: object = None  # the index of the open block
        self._texts: dict[str, list[str]] = {}  # kind of block → fragments of its text
        self._text_chars = 0

    def add_partial_line(self, line: Mapping[str, Any]) -> None:
        event = get_stream_event(line)
        if get_parent_call_id(line):
            return
        match event.get("type"):
            case "message_start":
                self._message = event.get("message") or {"role": "assistant"}
                self._reset_block()
            case "message_stop":
                self._message = {}
                self._reset_block()
            case "content_block_start":
                self._reset_block()
                self._block_index = event.get("index")
            case "content_block_stop":
                self._reset_block()
            case "content_block_delta":
                self._add_fragment(*get_fragment(get_delta(line)))

    def clear_completed_block_text(self) -> None:
        """Discard the text of the open content block, because the block's complete line was
        written.
        """
        self._texts.clear()

    def build_message_closing_lines(self) -> list[Mapping[str, Any]]:
        """Return the lines that close the open message (contract S11), without the fields that all
        lines have.
        """
        lines: list[Mapping[str, Any]] = []
        for kind, parts in self._texts.items() if self._text_chars <= MAX_TEXT_CHARS else ():
            block = {"type": kind, kind: "".join(parts)} | (
                {"signature": ""} if kind == "thinking" else {}
            )
            lines.append({"type": "assistant", "message": {**self._message, "content": [block]}})
        events: list[Mapping[str, Any]] = []
        if self._block_index is not None:
            events.append({"type": "content_block_stop", "index": self._block_index})
        if self._message:
            delta = {"stop_reason": None, "stop_sequence": None}
            usage = as_dict(self._message.get("usage"))
            events += [
                {"type": "message_delta", "delta": delta, "usage": usage},
                {"type": "message_stop"},
            ]
        self._message = {}
        self._reset_block()
        return lines + [{"type": "stream_event", "event": event} for event in events]

    def _add_fragment(self, kind: str, text: str) -> None:
        if kind in ("text", "thinking"):
            self._text_chars += len(text)
            if self._text_chars <= MAX_TEXT_CHARS:
                self._texts.setdefault(kind, []).append(text)

    def _reset_block(self) -> None:
        self._block_index = None
        self._text_chars = 0
        self._texts.clear()
