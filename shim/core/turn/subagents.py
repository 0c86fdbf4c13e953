"""A turn's subagents. A subagent's output is not streamed. It consists of complete lines, each with
the id of the tool call that runs the subagent.
"""

from collections.abc import Mapping

from shim.core.claude.tool_content import format_tool_result_content, is_failed_mcp_result
from shim.core.claude.usage import NO_USAGE, Usage
from shim.core.policy.policy import normalize_tool_name
from shim.core.reading.json_text import convert_json_to_text
from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import as_dict, as_str
from shim.core.turn.assistant_message import AssistantMessage
from shim.core.turn.context import MAX_NAME_CHARS
from shim.core.turn.machine import CLOSED, DONE, NEW, READY
from shim.core.turn.open_calls import (
    STREAM,
    OpenToolCalls,
    ToolCallAnnouncement,
    compute_input_fingerprint,
    normalize_call_id,
)
from shim.core.turn.tool_calls import UNANSWERED_TEXT, ToolCalls
from shim.core.turn.turn_context import TurnContext

MAX_SUBAGENT_CALLS = 1000  # the maximum number of open calls by all subagents

MessageFields = Mapping[str, Any]


class SubagentCall(NamedTuple):
    """A subagent's tool call that waits for its result."""

    parent_call_id: str | None  # the stream's id for the call that runs the subagent
    call_id: str  # the stream's id for this call
    name: str


class SubagentTracker:
    """Tracks the tool calls of a turn's subagents until their results arrive."""

    def __init__(
        self, context: TurnContext, assistant_message: AssistantMessage, tool_calls: ToolCalls
    ) -> None:
        self.context = context
        self.machine = context.machine
        self.assistant_message = assistant_message
        self.tool_calls = tool_calls
        # written id → arguments, for open calls that the vendor should refuse
        self.forbidden_inputs: dict[str, Mapping[str, Any]] = {}
        # Whether text and thinking are written in addition to calls and results. The real claude's
        # default is False.
        self.forwards_text = context.config.forwards_subagent_text
        self.table: OpenToolCalls[SubagentCall] = OpenToolCalls()
        self.open_calls: dict[str, SubagentCall] = self.table.calls  # by the vendor's id

    def get_subagent(
        self, parent_call_id: str, written_parent_id: str | None, usage: Usage | None
    ) -> "Subagent":
        """Return the subagent that the tool call `parent_call_id` runs. `usage` is the usage of the
        subagent's reply.

        `written_parent_id` is the id under which that tool call was written, or None if the call is
        not open.
        """
        if usage is None:
            usage = NO_USAGE
        else:
            self.assistant_message.add_usage(usage)
        if written_parent_id is not None:
            return Subagent(self, written_parent_id, usage)
        if self.context.conversation.has_used_call_id(parent_call_id):
            return Subagent(self, parent_call_id, usage)
        self.context.diagnostics.record("unknown_parent", parent_call_id)
        return Subagent(self, None, usage)

    def find_agent_with_open_call(self, call_id: str) -> "Subagent | None":
        """Return a subagent whose tool call `call_id` waits for its result, or None."""
        call = self.open_calls.get(call_id)
        if call is None:
            return None
        return Subagent(self, call.parent_call_id)

    def end_oldest_open_call(self) -> None:
        """Write a result for the oldest open tool call, because too many calls are open."""
        oldest_call = next(iter(self.open_calls.values()))
        self.context.diagnostics.record("call_given_up", oldest_call.call_id)
        self._fail_oldest_open_call(UNANSWERED_TEXT)

    def write_missing_tool_results(self, result_text: str) -> None:
        """Write results for the subagents' tool calls that are still open at the end of
        the turn.
        """
        while self.open_calls:
            self._fail_oldest_open_call(result_text)

    def _fail_oldest_open_call(self, result_text: str) -> None:
        call_id, call = next(iter(self.open_calls.items()))
        Subagent(self, call.parent_call_id).add_tool_result(call_id, result_text, True)


class Subagent:
    """A subagent. `parent_call_id` is the id, in the frontend's stream, of the tool call that runs
    the subagent. None means that the id is unknown.
    """

    __slots__ = ("_parent_call_id", "_tracker", "_usage")

    def __init__(
        self, tracker: SubagentTracker, parent_call_id: str | None, usage: Usage = NO_USAGE
    ) -> None:
        self._tracker = tracker
        self._parent_call_id = parent_call_id
        self._usage = usage

    def write_text_message(self, full_text: str) -> None:
        if full_text:
            self._write_text_block({"type": "text", "text": convert_json_to_text(full_text)})

    def write_thinking_message(self, full_text: str) -> None:
        if full_text:
            self._write_text_block(
                {"type": "thinking", "thinking": convert_json_to_text(full_text), "signature": ""}
            )

    def write_block(self, block: Mapping[str, Any]) -> None:
        """Write a content block in Claude's format: a text, thinking, a tool call or a result."""
        match block.get("type"):
            case "text":
                self.write_text_message(as_str(block.get("text")))
            case "thinking":
                self.write_thinking_message(as_str(block.get("thinking")))
            case "tool_use":
                name = as_str(block.get("name"))
                self.add_tool_call(as_str(block.get("id")), name, as_dict(block.get("input")))
            case "tool_result":
                call_id = as_str(block.get("tool_use_id"))
                self.add_tool_result(call_id, block.get("content"), bool(block.get("is_error")))

    def _write_text_block(self, block: Mapping[str, Any]) -> None:
        """Write a text or a thinking block. Without `forwards_text`, only the subagent's transcript
        contains it.
        """
        context = self._tracker.context
        if self._tracker.forwards_text:
            self._write_assistant_message(block)
            return
        if context.redact is not None:
            block = context.redact(block)
        context.writer.record_hidden_subagent_message(
            self._parent_call_id, "assistant", self._build_message(block)
        )

    def add_tool_call(self, call_id: str | None, name: str, tool_input: Mapping[str, Any]) -> None:
        """Write a tool call by the subagent. Ids must be unique in the conversation, so an id that
        was already used is replaced.
        """
        tracker = self._tracker
        call_id = normalize_call_id(call_id)
        name = normalize_tool_name(name[:MAX_NAME_CHARS]) if isinstance(name, str) else "unknown"
        clean_input = tracker.context.sanitizer.clean(
            tool_input if isinstance(tool_input, dict) else {"raw": tool_input}
        )
        if tracker.machine.is_over:
            return
        key = tracker.table.find_repeated_call_key(
            call_id, name, clean_input, accepts_key=self._is_agent_call
        )
        if key is not None:
            self._check_call(call_id, tracker.open_calls[key].call_id, name, clean_input)
            return
        if len(tracker.open_calls) >= MAX_SUBAGENT_CALLS:
            tracker.end_oldest_open_call()
        if call_id:
            written_id = tracker.context.conversation.reserve_call_id(
                call_id, tracker.context.diagnostics
            )
        else:
            written_id = tracker.context.writer.create_uuid()
        tracker.tool_calls.denials.record_call_id_in_output(call_id, written_id, name, clean_input)
        announcement = ToolCallAnnouncement(
            call_id, name, compute_input_fingerprint(clean_input), STREAM
        )
        tracker.table.add(
            announcement, written_id, SubagentCall(self._parent_call_id, written_id, name)
        )
        self._write_assistant_message(
            {"type": "tool_use", "id": written_id, "name": name, "input": clean_input}
        )
        self._check_call(call_id, written_id, name, clean_input)

    def _check_call(
        self, call_id: str, written_id: str, name: str, tool_input: Mapping[str, Any]
    ) -> None:
        """Check an announced tool call against the permission rules."""
        if self._tracker.tool_calls.enforce_rules_on_subagent_call(
            call_id, written_id, name, tool_input
        ):
            self._tracker.forbidden_inputs[written_id] = tool_input

    def add_tool_result(self, call_id: str | None, content: object, is_error: bool = False) -> None:
        tracker = self._tracker
        if tracker.machine.state is DONE:
            tracker.machine.record_late_event()
            return
        call_id = normalize_call_id(call_id)
        key = tracker.table.find_call_key_for_result(call_id, accepts_key=self._is_agent_call)
        if not key:
            key = tracker.table.find_call_key_for_result(call_id)
        if key is None:
            tracker.context.diagnostics.record("orphan_tool_result", call_id)
            return
        call = tracker.open_calls[key]
        tracker.table.remove(key)
        content = tracker.context.sanitizer.clean(content)
        is_error = bool(is_error)
        if is_failed_mcp_result(content):
            is_error = True
        block = {
            "type": "tool_result",
            "tool_use_id": call.call_id,
            "content": format_tool_result_content(content, call.name, is_failed=is_error),
            "is_error": is_error,
        }
        # The line gets the parent id of the call, because another subagent may return the result.
        self._write_message(call.parent_call_id, "user", {"role": "user", "content": [block]})
        tool_input = tracker.forbidden_inputs.pop(call.call_id, None)
        if tool_input is not None and not is_error:
            tracker.tool_calls.stop_turn_after_forbidden_call_ran(
                call.call_id, call.name, tool_input
            )

    def has_open_call(self, call_id: object) -> bool:
        """Return whether a tool call by this subagent waits for a result with this id."""
        return (
            self._tracker.table.find_call_key_for_result(
                normalize_call_id(call_id), accepts_key=self._is_agent_call
            )
            is not None
        )

    def _is_agent_call(self, key: str) -> bool:
        """Return whether an open tool call belongs to this subagent. Two subagents may use the same
        ids.
        """
        return self._tracker.open_calls[key].parent_call_id == self._parent_call_id

    def add_user_text(self, text: str) -> None:
        """Write the prompt that the subagent received, as a user line."""
        self._write_message(
            self._parent_call_id,
            "user",
            {"role": "user", "content": [{"type": "text", "text": convert_json_to_text(text)}]},
        )

    def _write_assistant_message(self, block: Mapping[str, Any]) -> None:
        message_id = self._tracker.context.writer.create_message_id()
        message = {"id": message_id, **self._build_message(block)}
        self._write_message(self._parent_call_id, "assistant", message)

    def _build_message(self, block: Mapping[str, Any]) -> MessageFields:
        return {
            "type": "message",
            "role": "assistant",
            "model": self._tracker.assistant_message.model or "unknown",
            "content": [block],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage,
        }

    def _write_message(self, parent_call_id: str | None, role: str, message: MessageFields) -> None:
        tracker = self._tracker
        if tracker.machine.state in (NEW, DONE, CLOSED) and not tracker.machine.move_to(READY):
            return
        redact = tracker.context.redact
        is_prompt = False
        if tracker.context.uses_call_line_as_permission_prompt:
            is_prompt = message["content"][0]["type"] == "tool_use"
        if redact is not None and not is_prompt:
            message = redact(message)
        tracker.context.writer.write_subagent_message(parent_call_id, role, message)
