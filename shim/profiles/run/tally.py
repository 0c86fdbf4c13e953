"""What a vendor's numbers mean: usage and cost of a turn, in Claude's meaning."""

from typing import Any

from shim.core.claude.usage import NO_USAGE, USAGE_KEYS, Usage, create_usage
from shim.core.turn.terms import NO_THREAD_USAGE, ConversationState, ThreadUsage

MEANINGS = ("request", "run_total", "thread_total", "none")


class Tally:
    """The usage and the cost of one turn, as far as the vendor has said them.

    `means` is `stream.usage` (MEANINGS). With `request` the Turn adds the numbers up itself. The
    others are totals, of which the last one counts; a `thread_total` includes the turns before.
    """

    def __init__(self, means: str, conversation: ConversationState) -> None:
        self.means = means
        self._conversation = conversation
        self._resumed = conversation.vendor_session_id is not None
        self.begin()

    def begin(self) -> None:
        self._total: Usage | None = None
        self._cost = 0.0
        self._before = self._known_thread()

    def note(self, counted: Usage | None, cost: float) -> None:
        if counted is not None:
            self._total = counted
        self._cost = cost or self._cost

    @property
    def unsaid(self) -> bool:
        """Whether there is a total that no end has named."""
        return self._total is not None or bool(self._cost)

    def facts(self, counted: Usage | None, cost: float) -> dict[str, Any]:
        """Usage and cost of the turn, now that it ends with these numbers."""
        if self.means == "request":
            return {"usage": counted} | ({"cost": cost} if cost else {})
        total, cost = counted or self._total, cost or self._cost
        self._total, self._cost = None, 0.0
        if self.means == "thread_total":
            cost = max(cost - self._conversation.cost_usd, 0.0) if self._resumed else cost
            total = total and self._of_this_turn(total)
        return {"usage": total} | ({"cost": cost} if cost else {})

    def _known_thread(self) -> ThreadUsage:
        """What the thread that goes on had used before, also in another process; one of its own
        begins at nothing.
        """
        conversation = self._conversation
        anew = conversation.session_id is not None and conversation.vendor_session_id is None
        return NO_THREAD_USAGE if anew else conversation.thread_usage

    def _of_this_turn(self, total: Usage) -> Usage:
        """A thread's total without what it had when this turn began; the total is remembered for
        the next turn.
        """
        conversation = self._conversation
        session, before = self._before
        if session != conversation.vendor_session_id:
            before = NO_USAGE
        conversation.thread_usage = (conversation.vendor_session_id, total)
        return create_usage(*(max(total[name] - before[name], 0) for name in USAGE_KEYS))
