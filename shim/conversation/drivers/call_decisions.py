"""Decisions about calls: calls that were allowed before they are made, and calls in the frontend's
process that wait for a decision.
"""

from collections.abc import Mapping
from typing import Any

import anyio

from shim.core.claude.permissions import TURN_OVER_TEXT, PermissionDecision

MAX_ALLOWED_CALLS = 1000  # per turn; beyond this limit the oldest is removed and asked about again


class PendingPermissionDecision:
    """A decision that a call waits for."""

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
    """The decisions about the calls of one turn."""

    def __init__(self) -> None:
        self._allowed_calls: list[tuple[str, Mapping[str, Any], PermissionDecision]] = []
        self._pending: dict[str, PendingPermissionDecision] = {}
        self._request_count = 0

    def allow_call_once(
        self, tool: str, tool_input: Mapping[str, Any], decision: PermissionDecision
    ) -> None:
        """Allow this call once, because it was asked about already, or will be repeated in this
        form.
        """
        self._allowed_calls = [
            *self._allowed_calls[1 - MAX_ALLOWED_CALLS :],
            (tool, tool_input, decision),
        ]

    def take_decision(self, tool: str, tool_input: Mapping[str, Any]) -> PermissionDecision | None:
        """Remove and return the decision about exactly this call, or None."""
        for index, (allowed_tool, allowed_input, decision) in enumerate(self._allowed_calls):
            if (allowed_tool, allowed_input) == (tool, tool_input):
                del self._allowed_calls[index]
                return decision
        return None

    def add_pending_request(self) -> tuple[str, PendingPermissionDecision]:
        """Add a call that waits: the id of its permission request, and the object that receives the
        decision.
        """
        self._request_count += 1
        request_id = f"inside-{self._request_count}"
        pending_decision = PendingPermissionDecision()
        self._pending[request_id] = pending_decision
        return request_id, pending_decision

    def is_pending(self, request_id: str) -> bool:
        return request_id in self._pending

    def resolve_pending_request(self, request_id: str, decision: PermissionDecision) -> bool:
        """Set the decision about a waiting call. Return False if no call waits for this request."""
        pending_decision = self._pending.pop(request_id, None)
        if pending_decision is not None:
            pending_decision.set_decision(decision)
        return pending_decision is not None

    def discard_pending_request(self, request_id: str) -> None:
        """Remove a request whose decision is no longer needed."""
        self._pending.pop(request_id, None)

    def finish_turn(self) -> None:
        """End the turn: forget the calls that were allowed in it, and deny the waiting calls."""
        self._allowed_calls = []
        pending = self._pending
        self._pending = {}
        for pending_decision in pending.values():
            pending_decision.set_decision(PermissionDecision(False, message=TURN_OVER_TEXT))
