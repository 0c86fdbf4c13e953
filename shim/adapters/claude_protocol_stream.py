"""Translates Claude's stream-json from the two vendors that print it: a real claude in the flat
dialect, and qwen.
"""

from typing import Any

from shim.adapters.claude_input import encode_unsupported_request_error
from shim.core.adapter.tools import Arguments
from shim.core.adapter.translator import Event, Translator
from shim.core.reading.values import as_dict, as_str
from shim.core.turn.open_calls import normalize_call_id
from shim.core.turn.subagents import Subagent
from shim.core.turn.turn import Turn

MAX_STREAMED_BLOCKS = 1000  # per reply
MAX_PENDING_REQUESTS = 1000  # a child with more unanswered requests is not waiting for answers


class ClaudeProtocolTranslator(Translator):
    """Translates block fragments, complete content blocks, messages from subagents, and permission
    requests.

    A streamed block is not written again when the complete block arrives. `_streamed_blocks` lists
    the streamed blocks of the open reply as (kind, number).
    """

    def __init__(self, turn: Turn, *, partial: bool = False) -> None:
        super().__init__(turn, partial=partial)
        self._block_number = 0
        self._streamed_blocks: list[tuple[str, int]] = []

    def start_turn(self, turn: Turn) -> None:
        super().start_turn(turn)
        self._streamed_blocks.clear()

    @staticmethod
    def translate_tool_use(block: Event) -> tuple[str, Arguments]:
        """Return Claude's tool name and arguments for a tool call."""
        return block["name"], block["input"]

    # -- blocks ------------------------------------------------------------------------------------

    def on_stream_event(self, event: Event) -> None:
        if event.get("parent_tool_use_id"):
            return
        inner = event["event"]
        kind = inner["type"]
        if kind == "content_block_delta":
            for block_kind in ("text", "thinking"):
                if fragment := as_str(inner["delta"].get(block_kind)):
                    self._write_fragment(block_kind, fragment)
        elif kind == "content_block_start":
            self._block_number += 1
        elif kind == "message_start":
            self._start_reply(as_dict(inner.get("message")))
        else:
            self._translate_other_stream_event(inner)

    def _start_reply(self, message: Event) -> None:
        self.turn.start_message(model=message.get("model"))

    def _translate_other_stream_event(self, inner: Event) -> None:
        """Ignore a stream event that frontends do not need."""

    def _write_fragment(self, kind: str, fragment: str) -> None:
        """Write a fragment of the open content block. `kind` is text or thinking."""
        if not self._streamed_blocks or self._streamed_blocks[-1] != (kind, self._block_number):
            self._streamed_blocks.append((kind, self._block_number))
            del self._streamed_blocks[:-MAX_STREAMED_BLOCKS]
        write = self.turn.add_text if kind == "text" else self.turn.add_thinking
        write(fragment, self._block_number)

    def _write_block(self, kind: str, full_text: str) -> None:
        """Write a complete content block. If a block of its kind was streamed, the first such block
        is completed instead.
        """
        for position, (streamed_kind, key) in enumerate(self._streamed_blocks):
            if streamed_kind == kind:
                del self._streamed_blocks[position]
                if kind == "text":
                    update = self.turn.update_text
                else:
                    update = self.turn.update_thinking
                update(full_text, key)
                self.turn.end_block()
                return
        self.turn.add_block(full_text, kind)

    def _retract_reply(self) -> None:
        """Retract the open reply, because it was cut off and will be sent again."""
        self.turn.retract_message()
        self._streamed_blocks.clear()

    def _write_nested(self, subagent: Subagent, content: list[dict[str, Any]]) -> None:
        """Write the content blocks of a subagent's message."""
        for block in content:
            if block["type"] == "text":
                subagent.write_text_message(block["text"])
            elif block["type"] == "thinking":
                subagent.write_thinking_message(block["thinking"])
            elif block["type"] == "tool_use":
                subagent.add_tool_call(block.get("id"), *self.translate_tool_use(block))

    # -- control requests --------------------------------------------------------------------------

    def on_control_request(self, event: Event) -> None:
        """Record a permission request in the Turn, and refuse any other control request."""
        request = event["request"]
        request_id = str(event["request_id"])
        call_id = request.get("tool_use_id")
        tool = request.get("tool_name")
        if (
            request.get("subtype") == "can_use_tool"
            and isinstance(call_id, str | int)
            and isinstance(tool, str)
        ):
            vendor_input = as_dict(request.get("input"))
            name, arguments = self.translate_tool_use({"name": tool, "input": vendor_input})
            self.turn.request_permission(
                request_id, normalize_call_id(call_id), name, arguments, (tool, vendor_input)
            )
        elif len(self.outbox) < MAX_PENDING_REQUESTS:
            self.outbox.append(encode_unsupported_request_error(request_id, request.get("subtype")))

    on_control_response = on_control_cancel_request = Translator.ignore_event
