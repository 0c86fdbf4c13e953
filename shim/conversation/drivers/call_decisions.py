"""Calls that were allowed before they are made, and calls in the frontend's process that wait for a
decision.
"""

from collections.abc import Mapping
from typing import Any

import anyio

from shim.core.claude.permissions import TURN_OVER_TEXT, PermissionDecision

MAX_ALLOWED_CALLS = 1000  # of a turn; the oldest is forgotten, and its call is asked about


class PendingPermissionDecision:
    """A decision that is waited for."""

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
    """The calls of one turn."""

    def __init__(self) -> None:
        self._allowed_calls: list[tuple[str, Mapping[str, Any], PermissionDecision]] = []
        self._pending: dict[str, PendingPermissionDecision] = {}
        self._request_count = 0

    def allow_call_once(
        self, tool: str, tool_input: Mapping[str, Any], decision: PermissionDecision
    ) -> None:
        """This call is allowed, once: it was asked about already, or is to be made again in this
        form.
        """
        self._allowed_calls = [
            *self._allowed_calls[1 - MAX_ALLOWED_CALLS :],
            (tool, tool_input, decision),
        ]

    def take_decision(self, tool: str, tool_input: Mapping[str, Any]) -> PermissionDecision | None:
        """The decision about exactly this call, once; None where there was none."""
        for index, (allowed_tool, allowed_input, decision) in enumerate(self._allowed_calls):
            if (allowed_tool, allowed_input) == (tool, tool_input):
                del self._allowed_calls[index]
                return decision
        return None

    def add_pending_request(self) -> tuple[str, PendingPermissionDecision]:
        """A call that waits: the name of its question, and what brings the decision."""
        self._request_count += 1
        request_id = f"inside-{self._request_count}"
        pending_decision = PendingPermissionDecision()
        self._pending[request_id] = pending_decision
        return request_id, pending_decision

    def is_pending(self, request_id: str) -> bool:
        return request_id in self._pending

    def resolve_pending_request(self, request_id: str, decision: PermissionDecision) -> bool:
        """Whether a question is one of these, which has its answer now."""
        pending_decision = self._pending.pop(request_id, None)
        if pending_decision is not None:
            pending_decision.set_decision(decision)
        return pending_decision is not None

    def discard_pending_request(self, request_id: str) -> None:
        """Nobody waits for the decision any more."""
        self._pending.pop(request_id, None)

    def finish_turn(self) -> None:
        """The turn is over: what was allowed in it is not allowed in the next, and what waits is
        denied.
        """
        self._allowed_calls = []
        pending = self._pending
        self._pending = {}
        for pending_decision in pending.values():
            pending_decision.set_decision(PermissionDecision(False, message=TURN_OVER_TEXT))
