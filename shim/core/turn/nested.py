"""Nested agents inside a turn: whole lines only, with the id of the call that runs them."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from shim.core.claude.mcp_content import is_failed_result
from shim.core.claude.tool_content import format_content
from shim.core.claude.usage import NO_USAGE, Usage
from shim.core.policy.rules import normalize_tool_name
from shim.core.reading.account import Diagnostics
from shim.core.reading.json_text import JsonSanitizer, as_text
from shim.core.turn.machine import CLOSED, DONE, NEW, READY, TurnMachine
from shim.core.turn.open_calls import (
    STREAM,
    Announcement,
    OpenCalls,
    compute_fingerprint,
    normalize_id,
)
from shim.core.turn.reply import AssistantMessage
from shim.core.turn.terms import MAX_NAME_CHARS, ConversationState, OutputWriter

MAX_SUBAGENT_CALLS = 1000  # of nested agents, open at one time

MessageFields = Mapping[str, Any]


class SubagentCall(NamedTuple):
    """A call of a nested agent that waits for its result."""

    parent_call_id: str | None  # id of the call that runs the agent, in the frontend's stream
    call_id: str  # id of this call in the frontend's stream
    name: str


class SubagentTracker:
    """What the nested agents of one turn share: the calls that wait for their results."""

    def __init__(
        self,
        machine: TurnMachine,
        pen: OutputWriter,
        conversation: ConversationState,
        account: Diagnostics,
        exact: JsonSanitizer,
        reply: AssistantMessage,
    ) -> None:
        self.machine = machine
        self.writer = pen
        self.conversation = conversation
        self.diagnostics = account
        self.sanitizer = exact
        self.assistant_message = reply
        # Called with the vendor's id, the written id, the name and the arguments of each call that
        # is announced.
        self.record_id: Callable[[str, str, str, Mapping[str, Any]], None] = lambda *_: None
        # see ToolCalls.judge_nested
        self.check_call: Callable[[str, str, str, Mapping[str, Any]], bool] = lambda *_: False
        # of a forbidden call
        self.report_forbidden_run: Callable[[str, str, Mapping[str, Any]], None] = lambda *_: None
        # arguments of open calls that the vendor should refuse
        self.forbidden_inputs: dict[str, Mapping[str, Any]] = {}
        # what a message is said as, where not as it is
        self.redact_message: Callable[[MessageFields], MessageFields] | None = None
        # False: only calls and results are emitted, which is the real claude's default
        self.forwards_text = True
        self.table: OpenCalls[SubagentCall] = OpenCalls()
        self.open_calls: dict[str, SubagentCall] = self.table.calls  # by the vendor's id

    def get_subagent(self, parent: str, said_as: str | None, usage: Usage | None) -> "Subagent":
        """The nested agent that the call `parent` runs, `said_as` while it is open; `usage` is that
        of its reply.
        """
        if usage is not None:
            self.assistant_message.add_usage(usage)
        if said_as is None and not self.conversation.has_used_id(parent):
            self.diagnostics.record("unknown_parent", parent)
            return Subagent(self, None, usage)
        return Subagent(self, said_as or parent, usage)

    def answer_open_calls(self, text: str) -> None:
        """Answer the calls that are open at the end."""
        while self.open_calls:
            identity, call = next(iter(self.open_calls.items()))
            Subagent(self, call.parent_call_id).add_tool_result(identity, text, True)


class Subagent:
    """The verbs of a nested agent; `parent` is the call's id as the frontend knows it (None:
    unknown).
    """

    __slots__ = ("_tracker", "_parent_call_id", "_usage")

    def __init__(
        self, agents: SubagentTracker, parent: str | None, usage: Usage | None = None
    ) -> None:
        self._tracker = agents
        self._parent_call_id = parent
        self._usage = usage or NO_USAGE

    def add_text(self, whole: str) -> None:
        if whole and self._tracker.forwards_text:
            self._write_assistant_message({"type": "text", "text": as_text(whole)})

    def add_thinking(self, whole: str) -> None:
        if whole and self._tracker.forwards_text:
            self._write_assistant_message(
                {"type": "thinking", "thinking": as_text(whole), "signature": ""}
            )

    def add_tool_call(self, identity: str | None, name: str, arguments: Mapping[str, Any]) -> None:
        """A call that it makes; its id is unique in the whole conversation, minted where it has to
        be.
        """
        agents = self._tracker
        identity = normalize_id(identity)
        name = normalize_tool_name(name[:MAX_NAME_CHARS]) if isinstance(name, str) else "unknown"
        given = agents.sanitizer.clean(
            arguments if isinstance(arguments, dict) else {"raw": arguments}
        )
        if agents.machine.is_over or len(agents.open_calls) >= MAX_SUBAGENT_CALLS:
            return
        key = agents.table.find_repeated_call(identity, name, given, accepts=self._is_agent_call)
        if key is not None:
            self._check_call(identity, agents.open_calls[key].call_id, name, given)
            return
        said_as = (
            agents.conversation.reserve_id(identity, agents.diagnostics)
            if identity
            else agents.writer.create_uuid()
        )
        agents.record_id(identity, said_as, name, given)
        announced = Announcement(identity, name, compute_fingerprint(given), STREAM)
        agents.table.add(announced, said_as, SubagentCall(self._parent_call_id, said_as, name))
        self._write_assistant_message(
            {"type": "tool_use", "id": said_as, "name": name, "input": given}
        )
        self._check_call(identity, said_as, name, given)

    def _check_call(
        self, identity: str, said_as: str, name: str, arguments: Mapping[str, Any]
    ) -> None:
        """Judge an announced call by the rules."""
        if self._tracker.check_call(identity, said_as, name, arguments):
            self._tracker.forbidden_inputs[said_as] = arguments

    def add_tool_result(
        self, identity: str | None, content: object, is_error: bool = False
    ) -> None:
        agents = self._tracker
        if agents.machine.state is DONE:
            agents.machine.record_late_event()
            return
        identity = normalize_id(identity)
        key = agents.table.find_call_of_result(
            identity, accepts=self._is_agent_call
        ) or agents.table.find_call_of_result(identity)
        if key is None:
            agents.diagnostics.record("orphan_tool_result", identity)
            return
        call = agents.open_calls[key]
        agents.table.remove(key)
        content = agents.sanitizer.clean(content)
        is_error = bool(is_error) or is_failed_result(content)
        block = {
            "type": "tool_result",
            "tool_use_id": call.call_id,
            "content": format_content(content, call.name, failed=is_error),
            "is_error": is_error,
        }
        # The parent of the call, not of this agent: any agent may return the result.
        self._write_message(call.parent_call_id, "user", {"role": "user", "content": [block]})
        arguments = agents.forbidden_inputs.pop(call.call_id, None)
        if arguments is not None and not is_error:
            agents.report_forbidden_run(call.call_id, call.name, arguments)

    def has_call(self, identity: object) -> bool:
        """Return whether a call of this agent waits for a result with this id."""
        return (
            self._tracker.table.find_call_of_result(
                normalize_id(identity), accepts=self._is_agent_call
            )
            is not None
        )

    def _is_agent_call(self, key: str) -> bool:
        """Return whether an open call belongs to this agent. Two agents may use the same ids."""
        return self._tracker.open_calls[key].parent_call_id == self._parent_call_id

    def add_user_text(self, text: str) -> None:
        """What it was told."""
        self._write_message(
            self._parent_call_id,
            "user",
            {"role": "user", "content": [{"type": "text", "text": as_text(text)}]},
        )

    def _write_assistant_message(self, block: Mapping[str, Any]) -> None:
        agents = self._tracker
        message = {
            "id": agents.writer.create_message_id(),
            "type": "message",
            "role": "assistant",
            "model": agents.assistant_message.model or "unknown",
            "content": [block],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage,
        }
        self._write_message(self._parent_call_id, "assistant", message)

    def _write_message(self, parent: str | None, role: str, message: MessageFields) -> None:
        agents = self._tracker
        if agents.machine.state in (NEW, DONE, CLOSED) and not agents.machine.move_to(READY):
            return
        agents.writer.write_subagent_message(
            parent,
            role,
            message if agents.redact_message is None else agents.redact_message(message),
        )
