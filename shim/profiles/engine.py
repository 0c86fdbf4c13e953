"""What the rules of a profile share in one child: whatever must be remembered, so that no profile has to."""

from collections.abc import Callable
from typing import Any, NamedTuple

from shim.account import Account
from shim.tools import Tools
from shim.translator import Translator
from shim.turn import Turn
from shim.usage import ORDER, Usage, usage

USAGES = ("request", "run_total", "thread_total", "none")

Act = Callable[..., None]  # (engine, event, item=None)


class Engine(Translator):
    """The state of a profile's rules in one child: whatever must be remembered, so that no profile has to."""

    usage_means = "none"
    marks_ids = False
    counts_replies = False  # whether a rule says how a reply ended

    def __init__(self, turn: Turn, *, partial: bool = False) -> None:
        super().__init__(turn, partial=partial)
        self.index = 0
        self.mark = f"{turn.pen.new_uuid()[-6:]}_" if self.marks_ids else ""
        self.once: set[int] = set()
        self.session: object = None
        self.notice = ""
        self.total: Usage | None = None
        self.cost = 0.0
        self.held: list[tuple[str, str]] = []
        self.answers = False  # whether it has ever said what a call returned

    @property
    def account(self) -> Account:
        """Where repairs are counted."""
        return self.turn.account

    def forget(self) -> None:
        """Another turn begins: nothing of the last one is remembered."""
        self.once.clear()
        self.held.clear()
        self.session, self.notice, self.total, self.cost = None, "", None, 0.0

    # -- results that come late -----------------------------------------------------------------------------------

    def say(self, whole: Any, kind: str) -> None:
        """A whole block, which waits for the next event while calls are open: what they returned may come behind it."""
        if self.held:
            self.say_held()
        if not self.turn.open:
            self.turn.say(whole, kind)
        elif whole.__class__ is str:
            self.held.append((kind, whole))
        else:
            raise TypeError(f"a block of {kind} is no text")

    def say_held(self, *, fill: bool = True) -> None:
        """Say what waited; `fill`: what the open calls returned is not said any more."""
        if fill and self.turn.open:
            self.turn.fill_results()
        for kind, whole in self.held:
            self.turn.say(whole, kind)
        self.held.clear()

    def calls(self) -> None:
        """A call follows: thinking between two of them leaves the first ones open, a text does not."""
        self.say_held(fill=any(kind == "text" for kind, _ in self.held))

    def ends(self, *, well: bool) -> None:
        """The vendor says that it is done: calls are open at a good end only where it never answers any."""
        self.say_held(fill=well and not self.answers)

    # -- usage ----------------------------------------------------------------------------------------------------

    def replied(self, counted: Usage | None, stop_reason: Any, cost: float) -> None:
        """A reply is over; usage and cost as the vendor counts them."""
        means, reason = self.usage_means, stop_reason if isinstance(stop_reason, str) else None
        if means == "request":
            self.turn.message_end(counted, reason, cost)
            return
        if counted is not None:
            self.total = counted
        self.cost = cost or self.cost
        if reason:
            self.turn.message_end(None, reason)

    def facts(self, counted: Usage | None, cost: float) -> dict[str, Any]:
        """What is known of a run's usage at its end, in Claude's meaning."""
        if self.usage_means == "request":
            return {"usage": counted} | ({"cost": cost} if cost else {})
        total = counted or self.total
        if total is not None and self.usage_means == "thread_total":
            total = self._of_this_turn(total)
        cost = cost or self.cost
        return {"usage": total} | ({"cost": cost} if cost else {})

    def _of_this_turn(self, total: Usage) -> Usage:
        """A thread's total without the turns of this conversation before this one."""
        before = self.turn.conversation.usage.values()
        return usage(*(max(total[name] - sum(one[name] for one in before), 0) for name in ORDER))


class Told(NamedTuple):
    """What a profile says once for all its rules: its tools, and what its texts are."""

    tools: Tools
    text: str = "final"
    late: bool = False  # what a call returned may come behind the next message, or never


def identity(value: Any, mark: str = "") -> Any:
    """An id as text; some vendors count, and some begin anew with each process, which `mark` tells apart."""
    if mark and value:
        return f"{mark}{value}"
    return str(value) if value.__class__ is int else value
