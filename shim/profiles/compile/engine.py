"""What the rules of a profile share in one child: whatever must be remembered, so that no profile has to."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from shim.core.claude.usage import NO_USAGE, ORDER, Usage, usage
from shim.core.reading.account import Account
from shim.core.turn.terms import NO_THREAD, Thread
from shim.core.turn.turn import Turn
from shim.core.vendor.tools import Tools, translate
from shim.core.vendor.translator import Event, Translator

if TYPE_CHECKING:
    from shim.profiles.compile.parts import Parts

USAGES = ("request", "run_total", "thread_total", "none")

Act = Callable[..., None]  # (engine, event, item=None)


class DoubtfulError(Exception):
    """An event out of a broken line that is not of this session."""


class Engine(Translator):
    """The state of a profile's rules in one child: whatever must be remembered, so that no profile has to."""

    usage_means = "none"
    marks_ids = False
    counts_replies = False  # whether a rule says how a reply ended
    hides = False  # whether calls of tools that the profile does not name are left out
    tools: ClassVar[Tools] = {}

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
        self.parts: Parts | None = None
        self.keys = {"text": 0, "thinking": 0}  # of blocks that are streamed and then said whole, without a name
        self._resumed = turn.conversation.vendor_session is not None
        self.doubts = False  # an event out of a broken line is being read
        self._before = self._known_thread()

    @property
    def account(self) -> Account:
        """Where repairs are counted."""
        return self.turn.account

    def forget(self) -> None:
        """Another turn begins: nothing of the last one is remembered."""
        self.once.clear()
        self.held.clear()
        self.parts = None
        self.session, self.notice, self.total, self.cost = None, "", None, 0.0
        self._before = self._known_thread()

    # -- who speaks -----------------------------------------------------------------------------------------------

    def repaired(self, event: Event) -> None:
        """An event out of a broken line: it counts only if it is of this session (threats: forged lines)."""
        self.doubts = True
        try:
            self.feed(event)
        except DoubtfulError:
            self.account.repaired("doubtful_event")
        finally:
            self.doubts = False

    def doubt(self, session: Any) -> None:
        """An event that may be nobody's names its session. DoubtfulError when that is another."""
        if session and self.turn.conversation.vendor_session not in (None, session):
            raise DoubtfulError

    # -- calls ----------------------------------------------------------------------------------------------------

    def hidden(self, name: Any) -> bool:
        """Whether calls of a tool are left out of the stream."""
        return self.hides and name.__class__ is str and self.tools.get(name) is None

    def shown(self, names: Any) -> Any:
        """The names of a list of tools whose calls are said."""
        return [name for name in names if not self.hidden(name)] if names.__class__ is list else names

    def call(self, own: Any, name: Any, arguments: Any) -> None:
        """A whole call, in the vendor's words."""
        if self.parts is not None:
            self.parts.whole(own)
        if self.held:
            self.calls()
        claude, arguments = translate(self.tools, name, arguments)
        if self.hides and self.hidden(name):
            self.turn.tool_use(own, claude, arguments, hidden=True)
        else:
            self.turn.tool_use(own, claude, arguments)

    def piece(self, key: Any, own: Any, name: Any, fragment: Any) -> None:
        """A piece of a call."""
        if self.parts is None:
            from shim.profiles.compile.parts import Parts

            self.parts = Parts(self.account)
        self.parts.add(key, own, name, fragment)

    def gathered(self, key: Any = None, *, whole: bool = True) -> None:
        """The calls that came in pieces are whole (the one under `key`, if it is named), or never will be."""
        if self.parts is None:
            return
        if whole:
            self.parts.say(self.call, key)
        else:
            self.parts.drop()

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
        self.gathered()
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
        total, cost = counted or self.total, cost or self.cost
        self.total, self.cost = None, 0.0
        if self.usage_means == "thread_total":
            cost = max(cost - self.turn.conversation.cost, 0.0) if self._resumed else cost
            total = total and self._of_this_turn(total)
        return {"usage": total} | ({"cost": cost} if cost else {})

    def _known_thread(self) -> Thread:
        """What the thread that goes on had used before, also in another process; one of its own begins at nothing."""
        conversation = self.turn.conversation
        anew = conversation.session_id is not None and conversation.vendor_session is None
        return NO_THREAD if anew else conversation.thread

    def _of_this_turn(self, total: Usage) -> Usage:
        """A thread's total without what it had when this turn began; it is remembered for the next one."""
        conversation = self.turn.conversation
        session, before = self._before
        if session != conversation.vendor_session:
            before = NO_USAGE
        conversation.thread = (conversation.vendor_session, total)
        return usage(*(max(total[name] - before[name], 0) for name in ORDER))

    def add(self, facts: dict[str, Any]) -> None:
        """More is known of an end that was said before."""
        outcome = self.turn.outcome
        if outcome is not None:
            self.turn.outcome = outcome._replace(facts={**outcome.facts, **facts})

    def spend(self) -> None:
        """A total that no end has named is this turn's all the same, however it ended."""
        if self.total is not None or self.cost:
            facts = self.facts(None, 0.0)
            self.turn.spent(facts["usage"] or NO_USAGE, facts.get("cost", 0.0))

    @property
    def failed(self) -> bool:
        """Whether the vendor said that the turn failed."""
        return self.turn.outcome is not None and self.turn.outcome.kind == "failed"


class Told(NamedTuple):
    """What a profile says once for all its rules: its tools, and what its texts are."""

    tools: Tools
    text: str = "final"
    late: bool = False  # what a call returned may come behind the next message, or never
    hides: bool = False  # calls of tools without a name in the profile are left out
    reconciled: frozenset[str] = frozenset()  # text or thinking that is streamed and then said whole, without a name


def identity(value: Any, mark: str = "") -> Any:
    """An id as text; some vendors count, and some begin anew with each process, which `mark` tells apart."""
    if mark and value:
        return f"{mark}{value}"
    return str(value) if value.__class__ is int else value
