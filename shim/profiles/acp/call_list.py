"""The open tool calls of an ACP agent. Calls are kept separate even if the agent reuses an id or
sends calls without ids.
"""

from collections.abc import Callable, Mapping
from typing import Any

from shim.core.turn.open_calls import normalize_call_id
from shim.profiles.acp.calls import (
    PATH_KEY,
    TOOL_BY_KIND,
    AcpToolCall,
    AcpToolCallFormat,
    join_content_text,
    parse_json_if_complete,
)

MAX_CALLS = 1000  # open calls in a turn; above the limit, the oldest call is removed
MAX_ENDED_CALLS = 1000  # ended calls in a turn whose ids are remembered
# The states in which a tool call has started.
STARTED_STATES = ("in_progress", "completed", "failed", "cancelled")


class OpenAcpToolCalls:
    """The open tool calls of one turn. The `create_id` that its methods take returns a new id for a
    call that has no id, or whose id is already used.
    """

    def __init__(self, call_format: AcpToolCallFormat) -> None:
        self._format = call_format
        self._calls: list[AcpToolCall] = []
        self._ended_ids: dict[str, None] = {}

    def list_calls(self, agent_call_id: str) -> list[AcpToolCall]:
        """Return the open calls with this agent id, oldest first."""
        return [call for call in self._calls if call.agent_id == agent_call_id]

    def start_call(self, update: Mapping[str, Any], create_id: Callable[[str], str]) -> AcpToolCall:
        """Return the open call that a `tool_call` update belongs to. Create a new call if no open
        call with this id matches.
        """
        agent_id = normalize_call_id(update.get("toolCallId"))
        self._ended_ids.pop(agent_id, None)  # a new call may reuse an ended call's id
        for call in self.list_calls(agent_id):
            if not is_update_for_another_call(call, update, self._format):
                return call
        return self._add_call(agent_id, create_id)

    def find_call_for_update(
        self, update: Mapping[str, Any], create_id: Callable[[str], str]
    ) -> AcpToolCall:
        """Return the open call that a `tool_call_update` belongs to: the call with the same input,
        or otherwise the next call in order.
        """
        agent_id = normalize_call_id(update.get("toolCallId"))
        calls = self.list_calls(agent_id)
        if not calls:
            return self._add_call(agent_id, create_id)
        status = update.get("status")
        matches = [
            call for call in calls if call.has_input and call.input == update.get("rawInput")
        ]
        if not matches and status == "in_progress" and self._format.input_in_content:
            # The agent is still sending the input of this call.
            matches = [call for call in calls if not call.has_input][-1:]
        elif not matches and status == "in_progress":
            matches = [call for call in calls if not call.is_running]
        elif not matches and status in STARTED_STATES:
            matches = [call for call in calls if call.is_running]
        if matches:
            call = matches[0]
        else:
            call = calls[0]
        call.is_running |= status in STARTED_STATES
        return call

    def find_call_for_permission(
        self,
        request_call: Mapping[str, Any],
        create_id: Callable[[str], str],
        is_awaiting_permission: Callable[[str], bool],
    ) -> AcpToolCall | None:
        """Return the open call that a permission request belongs to. Return None if the request
        matches several calls.

        While a call's permission request is undecided, a request with different input belongs to a
        different call. After the decision, a request with different input belongs to the same call
        and describes the call in a new way.
        """
        agent_id = normalize_call_id(request_call.get("toolCallId"))
        raw_input = request_call.get("rawInput")
        self._ended_ids.pop(agent_id, None)
        calls = self.list_calls(agent_id)
        if not calls:
            return self._add_call(agent_id, create_id)
        candidates = [call for call in calls if call.requested_input is None]
        undecided = [call for call in calls if is_awaiting_permission(call.call_id)]
        if (
            not candidates
            and undecided
            and all(_is_other_input(call.requested_input, raw_input) for call in calls)
        ):
            return self._add_call(agent_id, create_id)
        if not candidates:
            candidates = calls
        matches = [call for call in candidates if call.has_input and call.input == raw_input]
        if not matches and len(calls) > 1 and not _has_input(raw_input):
            matches = [
                call
                for call in candidates
                if call.title and call.title == request_call.get("title")
            ]
            if len(matches) == 1:
                return matches[0]
            return None
        if matches:
            return matches[0]
        return candidates[0]

    def end_call(self, call: AcpToolCall) -> None:
        """Remove a call that has ended, and remember its id."""
        self._calls = [open_call for open_call in self._calls if open_call is not call]
        if self.list_calls(call.agent_id):
            return
        if len(self._ended_ids) >= MAX_ENDED_CALLS:
            self._ended_ids.pop(next(iter(self._ended_ids)))
        self._ended_ids[call.agent_id] = None

    def end_call_by_id(self, call_id: str) -> None:
        """End the call with this unique id: remove the call, and remember its id."""
        for call in self._calls:
            if call.call_id == call_id:
                self.end_call(call)
                return

    def is_for_ended_call(self, update: Mapping[str, Any]) -> bool:
        """Return whether an update belongs to a call that has already ended."""
        return normalize_call_id(update.get("toolCallId")) in self._ended_ids

    def _add_call(self, agent_id: str, create_id: Callable[[str], str]) -> AcpToolCall:
        call_id = agent_id
        if not agent_id or self.list_calls(agent_id):
            call_id = create_id(agent_id)
        call = AcpToolCall(call_id, self._format)
        call.agent_id = agent_id
        if len(self._calls) >= MAX_CALLS:
            self._calls.pop(0)
        self._calls.append(call)
        return call


def is_update_for_another_call(
    call: AcpToolCall, update: Mapping[str, Any], call_format: AcpToolCallFormat
) -> bool:
    """Return whether a `tool_call` update belongs to a different call that has the same id as
    `call`.

    An agent may report a call several times, each time with more details. Once a call has been
    written with its input, an update with different input belongs to a different call.
    """
    kind = update.get("kind")
    raw_input = update.get("rawInput")
    title = update.get("title")
    if kind in TOOL_BY_KIND and call.kind in TOOL_BY_KIND and kind != call.kind:
        return True
    if not call.agent_id and call.start_count:
        return True
    if update.get("status") == "pending" and call.is_running:
        return True
    if call_format.input_in_content and call.has_input:
        return parse_json_if_complete(join_content_text(update.get("content"))) != call.input
    if _has_input(raw_input) and call.has_input:
        if not call.is_written:
            return False
        return raw_input != call.input
    if not isinstance(title, str) or not call.title or title == call.title:
        return False
    if not (call.is_written or call.has_input):
        return False
    return not _has_input(raw_input)


def _is_other_input(previous_input: Mapping[str, Any] | None, raw_input: object) -> bool:
    """Return whether a permission request has different input from the call. The path may differ,
    because agents ask about each path separately.
    """
    if previous_input is None or not isinstance(raw_input, dict):
        return False
    return any(
        key in previous_input and previous_input[key] != value
        for key, value in raw_input.items()
        if key != PATH_KEY
    )


def _has_input(raw_input: object) -> bool:
    if not isinstance(raw_input, dict):
        return False
    return bool(raw_input)
