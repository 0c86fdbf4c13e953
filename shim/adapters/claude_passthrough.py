"""Forwards the lines of a real claude unchanged, and updates the turn from them.

The turn tracks open content blocks, open tool calls, the session and the result. If the real claude
dies, the turn can complete Claude's stream.
"""

from typing import Any

from shim.core.claude.grammar import get_fragment, get_result_text, is_init_line, list_tool_results
from shim.core.claude.usage import NO_USAGE
from shim.core.reading.json_text import dump_json
from shim.core.reading.values import get_text
from shim.core.turn.init_line import build_version_warning_fields
from shim.core.turn.machine import CLOSED, MESSAGE, NEW, READY, TEXT, THINKING
from shim.core.turn.open_calls import (
    STREAM,
    OpenToolCalls,
    ToolCallAnnouncement,
    compute_input_fingerprint,
    normalize_call_id,
)
from shim.core.turn.outcome import TurnOutcome
from shim.core.turn.result import INTERRUPTED, INTERRUPTED_IN_TOOL
from shim.core.turn.subagents import SubagentCall
from shim.core.turn.turn import Turn

# Maximum number of calls without a result. Beyond this limit, the oldest call is removed and its
# result is dropped.
MAX_FOLLOWED_CALLS = 1000
BLOCK_STATES = {"text": TEXT, "thinking": THINKING}

ClaudeLine = dict[str, Any]


class PassthroughTurn:
    """A turn that forwards a real claude's lines through `forward_claude_line`.

    The turn itself writes all other output.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._conversation = turn.conversation
        self._diagnostics = turn.diagnostics
        self._writer = turn.writer
        self._machine = turn.machine
        self._assistant_message = turn.assistant_message
        self._text_blocks = turn.text_blocks
        self._tool_calls = turn.tool_calls
        self._nested_agents = turn.subagents
        self._turn_end = turn.outcome_tracker
        if turn.config.evaluator is None:
            self._hidden_tools = frozenset[str]()
        else:
            self._hidden_tools = turn.config.evaluator.policy.hidden_tools
        # the index of the open block of a hidden call
        self._hidden_block_index: int | None = None
        # results from background work that may follow the first result; each has its own `init`
        self._pending_result_count = 0

    def forward_claude_line(self, raw: bytes, event: ClaudeLine) -> None:
        """Forward one line from the real claude to the frontend. `raw` is the line without its LF,
        and `event` is the parsed line.

        A result line is held until the next line or the end of the stream, because either may show
        that the result is wrong. If the frontend reads up to a terminator, three kinds of lines are
        dropped:

        - a second `init` before a result
        - the second result, which belongs to this `init` (contract S20)
        - a tool result without its call

        Lines that are not part of the conversation may come at any time. The terminator is
        therefore written at the end of the stream or when the next turn starts.
        """
        kind = event.get("type")
        if kind == "result":
            self._store_result(raw, event)
        elif is_init_line(event):
            self._apply_init(raw, event)
        elif kind == "message_stop":  # Only the shim writes the terminator; a real claude has none.
            self._diagnostics.record("terminator")
        elif kind == "assistant":
            if self._is_in_turn(raw) and self._track_assistant(event):
                self._writer.write_passthrough_line(raw)
        elif kind == "user":
            if self._is_in_turn(raw, is_user_line=True) and self._track_user(event):
                self._writer.write_passthrough_line(raw)
        elif kind == "stream_event":
            if (
                self._is_in_turn(raw)
                and self._track_stream_event(event)
                and self._writer.writes_partial_messages
            ):
                self._writer.write_passthrough_line(raw)
        else:
            self._forward_other_line(raw)

    def _forward_other_line(self, raw: bytes) -> None:
        """Forward a line that is not part of the conversation. It ends a turn that has a result."""
        if self._turn_end.vendor_result[0]:
            self._turn.finish()
        if (
            self._machine.state is CLOSED
            and self._turn.is_terminated
            and self._writer.has_result_terminator_line
        ):
            # A frontend that reads up to a terminator has stopped reading by now.
            self._machine.record_late_event()
        else:
            self._writer.write_passthrough_line(raw)

    @property
    def _accepts_every_line(self) -> bool:
        """Whether the frontend accepts every line of a real claude, because it does not read up to
        a terminator and no tools are hidden.
        """
        return not (self._writer.has_result_terminator_line or self._hidden_tools)

    def _is_in_turn(self, raw: bytes, *, is_user_line: bool = False) -> bool:
        """Return whether a line may change the turn. If the turn has no `init` line yet, write one
        first.

        No line may change the turn after its result. A line from background work, and a line that
        repeats a message from the user, are still written here.
        """
        if self._turn_end.vendor_result[0] and self._machine.state is not CLOSED:
            self._turn.finish()
        if self._machine.state is CLOSED:
            if self._pending_result_count or (is_user_line and self._accepts_every_line):
                self._writer.write_passthrough_line(raw)
            else:
                self._machine.record_late_event()
            return False
        if self._machine.state is not NEW:
            return True
        return self._machine.move_to(READY)

    def _apply_init(self, raw: bytes, event: ClaudeLine) -> None:
        if self._machine.state is not NEW:
            self._diagnostics.record("second_init")
            if self._accepts_every_line:
                self._pending_result_count += 1
                self._writer.write_passthrough_line(raw)
            return
        session_id = str(event.get("session_id"))
        self._conversation.session_id = self._conversation.vendor_session_id = session_id
        self._turn.vendor_info["vendor_version"] = event.get("claude_code_version")
        self._assistant_message.model = str(event.get("model"))
        self._writer.set_session_id(session_id)
        tools = event.get("tools")
        if self._hidden_tools and isinstance(tools, list):
            event = event | {"tools": [name for name in tools if name not in self._hidden_tools]}
            raw = dump_json(event)
        vendor = self._turn.config.vendor
        if version_fields := build_version_warning_fields(vendor):
            raw = dump_json(event | {"shim": {"vendor": vendor.name, **version_fields}})
        self._writer.write_passthrough_line(raw)
        self._machine.move_to(READY, True)

    def _store_result(self, raw: bytes, event: ClaudeLine) -> None:
        """Store the result of a real claude. It is written later."""
        if self._machine.state is CLOSED or self._turn_end.vendor_result[0]:
            self._diagnostics.record("second_result", raw)
            if self._pending_result_count:
                self._pending_result_count -= 1
                self._turn.finish()
                self._writer.write_passthrough_line(raw)
            return
        session_id = event.get("session_id")
        if self._machine.state is NEW and isinstance(session_id, str):
            self._conversation.vendor_session_id = session_id
        # A turn that never started has no `init` (contract 5.10). A tool call may still be open.
        if self._accepts_every_line:
            self._tool_calls.table.remove_visible_calls()
            if self._machine.state is NEW:
                self._machine.move_to(READY, True)
        if event.get("is_error"):
            error_text = get_result_text(event)
            outcome = TurnOutcome("failed", message=error_text, cause="vendor_error")
        else:
            outcome = TurnOutcome("ended", fields={"result": event.get("result")})
            self._assistant_message.last_text = get_text(event, "result")
        self._turn_end.set_vendor_result(raw, outcome)

    # -- tracking the lines ------------------------------------------------------------------------

    def _is_hidden_call(self, block: ClaudeLine) -> bool:
        """Return whether a content block is a call to a hidden tool. The call's id is stored,
        because the call's result must also be hidden.
        """
        if block.get("type") != "tool_use" or block.get("name") not in self._hidden_tools:
            return False
        call_id = str(block.get("id"))
        if call_id not in self._tool_calls.table.hidden_keys:
            self._tool_calls.hide_call(call_id, str(block["name"]), block.get("input"))
        return True

    def _track_assistant(self, event: ClaudeLine) -> bool:
        """Update the turn from an assistant line. Return whether the line may be written."""
        parent = event.get("parent_tool_use_id")
        content = event["message"]["content"]
        hidden_blocks = [block for block in content if self._is_hidden_call(block)]
        if hidden_blocks or parent in self._tool_calls.table.hidden_keys:
            return False
        for block in content:
            if parent:
                if block.get("type") == "tool_use" and isinstance(block["id"], str):
                    nested_call = SubagentCall(parent, block["id"], str(block.get("name")))
                    _track_call(self._nested_agents.table, block, nested_call)
            elif block.get("type") == "tool_use":  # its arguments have been written
                _track_call(self._tool_calls.table, block, (block["id"], block["name"], {}))
            elif block.get("type") == "text":
                self._assistant_message.last_text = block["text"]
        if parent:
            return True
        self._text_blocks.fragments = []
        if self._machine.state in (TEXT, THINKING):
            self._machine.move_to(MESSAGE, True)
            self._assistant_message.has_open_block = self._writer.writes_partial_messages
        return True

    def _track_user(self, event: ClaudeLine) -> bool:
        content = event["message"]["content"]
        hidden_ids = self._tool_calls.table.hidden_keys
        if isinstance(content, str):
            return True
        if event.get("parent_tool_use_id") in hidden_ids or any(
            block.get("tool_use_id") in hidden_ids for block in content
        ):
            return False
        if event.get("parent_tool_use_id"):
            for result in list_tool_results(event):
                _end_call(self._nested_agents.table, result)
            return True
        if not event.get("isReplay"):
            self._track_interrupt(content)
        for result in list_tool_results(event):
            if not _end_call(self._tool_calls.table, result):
                self._diagnostics.record("orphan_tool_result", result)
                return self._accepts_every_line
            self._tool_calls.result_count += 1
        return True

    def _track_interrupt(self, content: list[ClaudeLine]) -> None:
        """Record that claude has reported an interrupt. If claude is interrupted while it starts,
        it ends without a result.
        """
        texts = {block.get("text") for block in content}
        if texts & {INTERRUPTED, INTERRUPTED_IN_TOOL}:
            self._turn_end.record_interrupt_line(names_tool=INTERRUPTED_IN_TOOL in texts)

    def _track_stream_event(self, event: ClaudeLine) -> bool:
        """Update the turn from a stream event. Return whether the event may be written to a
        frontend that reads partial messages.
        """
        inner = event["event"]
        kind = inner["type"]
        if kind == "content_block_start" and self._is_hidden_call(inner["content_block"]):
            self._hidden_block_index = inner["index"]
        if self._hidden_block_index is not None and inner.get("index") == self._hidden_block_index:
            if kind == "content_block_stop":
                self._hidden_block_index = None
            return False
        if kind == "message_start":
            self._track_message_start(inner["message"])
        elif kind == "content_block_start":
            self._track_block_start(inner["index"], inner["content_block"]["type"])
        elif kind == "content_block_delta":
            _, fragment = get_fragment(inner["delta"])
            if fragment and self._machine.state in (TEXT, THINKING):
                self._text_blocks.record_passthrough_text_fragment(fragment)
        elif kind == "content_block_stop":
            self._assistant_message.has_open_block = False
            if self._machine.state is not READY:
                self._machine.move_to(MESSAGE, True)
        elif kind == "message_stop":
            self._machine.move_to(READY, True)
        return True

    def _track_message_start(self, message: ClaudeLine) -> None:
        """Update the turn from the start of a message."""
        usage = message.get("usage")
        if not usage:
            usage = NO_USAGE
        self._assistant_message.model = str(message.get("model"))
        self._assistant_message.number += 1
        self._writer.set_current_message(
            str(message.get("id")), self._assistant_message.model, usage
        )
        self._machine.move_to(MESSAGE, True)

    def _track_block_start(self, index: object, kind: str) -> None:
        if index.__class__ is not int:
            raise TypeError("the index of a block is not a number")
        if self._machine.state is READY:
            self._writer.set_current_message(
                self._writer.create_message_id(), self._assistant_message.model, NO_USAGE
            )
        self._writer.set_block_index(index)
        self._machine.move_to(BLOCK_STATES.get(kind, MESSAGE), True)
        self._text_blocks.clear_passthrough_fragments()
        self._assistant_message.has_open_block = (
            self._writer.writes_partial_messages and self._machine.state is MESSAGE
        )


def _track_call(table: OpenToolCalls[Any], block: ClaudeLine, entry: Any) -> None:
    """Record an open tool call. If two calls have the same id, both are written with that id."""
    call_id = normalize_call_id(block["id"])
    name = block["name"]
    tool_input = block.get("input")
    if table.find_repeated_call_key(call_id, name, tool_input) is None:
        table.add(
            ToolCallAnnouncement(call_id, name, compute_input_fingerprint(tool_input), STREAM),
            f"{call_id}~",
            entry,
        )
        if len(table.calls) > MAX_FOLLOWED_CALLS:
            table.remove(next(iter(table.calls)))


def _end_call(table: OpenToolCalls[Any], block: ClaudeLine) -> bool:
    """Remove the tool call that a result belongs to. Return whether the call was open."""
    key = table.find_call_key_for_result(normalize_call_id(block.get("tool_use_id")))
    if key is not None:
        table.remove(key)
    return key is not None
