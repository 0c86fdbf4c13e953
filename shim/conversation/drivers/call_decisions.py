"""Tracks permission decisions for tool calls: decisions made before the call, and calls to the
frontend's own tools that are waiting for a decision.
"""

from collections.abc import Mapping
from typing import Any

import anyio

from shim.core.claude.permissions import TURN_OVER_TEXT, PermissionDecision

MAX_ALLOWED_CALLS = 1000  # per turn; beyond this limit, the oldest decision is dropped


class PendingPermissionDecision:
    """A future for the decision that a tool call is waiting for."""

    def __init__(self) -> None:
        self._decided = anyio.Event()
        self._decision = PermissionDecision(False, message=TURN_OVER_TEXT)

    async def wait_for_decision(self) -> PermissionDecision:
        await self._decided.wait()
        return self._decision

    def set_decision(self, decision: PermissionDecision) -> None:
        self._decision = decision
        self._decided.set()


class ToolCallDecisions:
    """The permission decisions for the tool calls of one turn."""

    def __init__(self) -> None:
        self._allowed_calls: list[tuple[str, Mapping[str, Any], PermissionDecision]] = []
        self._pending: dict[str, PendingPermissionDecision] = {}
        self._request_count = 0

    def allow_call_once(
        self, tool: str, tool_input: Mapping[str, Any], decision: PermissionDecision
    ) -> None:
        """Store a decision for the next tool call with this input. The call was already decided, or
        the vendor will repeat the call with this input.
        """
        self._allowed_calls = [
            *self._allowed_calls[1 - MAX_ALLOWED_CALLS :],
            (tool, tool_input, decision),
        ]

    def take_decision(self, tool: str, tool_input: Mapping[str, Any]) -> PermissionDecision | None:
        """Remove and return the stored decision for a tool call with this exact input, or None."""
        for index, (allowed_tool, allowed_input, decision) in enumerate(self._allowed_calls):
            if (allowed_tool, allowed_input) == (tool, tool_input):
                del self._allowed_calls[index]
                return decision
        return None

    def add_pending_request(self) -> tuple[str, PendingPermissionDecision]:
        """Add a permission request for a waiting tool call. Return the request's id, and the object
        that will receive the decision.
        """
        self._request_count += 1
        request_id = f"inside-{self._request_count}"
        pending_decision = PendingPermissionDecision()
        self._pending[request_id] = pending_decision
        return request_id, pending_decision

    def is_pending(self, request_id: str) -> bool:
        return request_id in self._pending

    def resolve_pending_request(self, request_id: str, decision: PermissionDecision) -> bool:
        """Pass a decision to the tool call that is waiting for it. Return False if no call is
        waiting for this request.
        """
        pending_decision = self._pending.pop(request_id, None)
        if pending_decision is not None:
            pending_decision.set_decision(decision)
        return pending_decision is not None

    def discard_pending_request(self, request_id: str) -> None:
        """Remove a permission request whose decision is no longer needed."""
        self._pending.pop(request_id, None)

    def finish_turn(self) -> None:
        """Discard the turn's stored decisions, and deny all waiting tool calls."""
        self._allowed_calls = []
        pending = self._pending
        self._pending = {}
        for pending_decision in pending.values():
            pending_decision.set_decision(PermissionDecision(False, message=TURN_OVER_TEXT))
