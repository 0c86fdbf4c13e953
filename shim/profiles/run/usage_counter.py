"""Converts the usage and cost that a vendor reports to a turn's usage and cost, as Claude defines
them.
"""

from typing import Any

from shim.core.claude.usage import NO_USAGE, USAGE_KEYS, Usage, create_usage
from shim.core.turn.context import NO_VENDOR_SESSION_USAGE, ConversationState, VendorSessionUsage

USAGE_MEANINGS = ("request", "run_total", "thread_total", "none")


class VendorUsageCounter:
    """The usage and the cost that the vendor has reported for one turn so far.

    `usage_meaning` is the profile's `stream.usage` (USAGE_MEANINGS). If it is `request`, the Turn
    adds up the figures. Otherwise the figures are totals, and the last total counts. A
    `thread_total` includes the previous turns.
    """

    def __init__(self, usage_meaning: str, conversation: ConversationState) -> None:
        self.usage_meaning = usage_meaning
        self._conversation = conversation
        self._is_resumed = conversation.vendor_session_id is not None
        self.start_turn()

    def start_turn(self) -> None:
        self._last_usage: Usage | None = None
        self._last_cost = 0.0
        self._previous_thread = self._find_previous_thread()

    def record(self, reported: Usage | None, cost: float) -> None:
        if reported is not None:
            self._last_usage = reported
        if cost:
            self._last_cost = cost

    @property
    def has_unreported_usage(self) -> bool:
        """Return whether the vendor has reported a total that is not part of any turn's result yet."""
        if self._last_usage is not None:
            return True
        return bool(self._last_cost)

    def build_turn_usage_fields(self, reported_usage: Usage | None, cost: float) -> dict[str, Any]:
        """Return the turn's usage and cost. The parameters are the figures that the vendor reported
        at the end of the turn.
        """
        if self.usage_meaning == "request":
            return {"usage": reported_usage} | ({"cost": cost} if cost else {})
        total = reported_usage
        if not total:
            total = self._last_usage
        if not cost:
            cost = self._last_cost
        self._last_usage = None
        self._last_cost = 0.0
        if self.usage_meaning == "thread_total":
            if self._is_resumed:
                cost = max(cost - self._conversation.cost_usd, 0.0)
            if total:
                total = self._subtract_previous(total)
        return {"usage": total} | ({"cost": cost} if cost else {})

    def _find_previous_thread(self) -> VendorSessionUsage:
        """Return the usage of a resumed thread before this turn, including the usage in earlier
        processes. A new thread has no previous usage.
        """
        conversation = self._conversation
        is_new_session = False
        if conversation.session_id is not None:
            is_new_session = conversation.vendor_session_id is None
        if is_new_session:
            return NO_VENDOR_SESSION_USAGE
        return conversation.vendor_session_usage

    def _subtract_previous(self, total: Usage) -> Usage:
        """Return a thread's total usage minus its usage before this turn. Store the total for the
        next turn.
        """
        conversation = self._conversation
        session, previous = self._previous_thread
        if session != conversation.vendor_session_id:
            previous = NO_USAGE
        conversation.vendor_session_usage = (conversation.vendor_session_id, total)
        return create_usage(*(max(total[name] - previous[name], 0) for name in USAGE_KEYS))
