"""The states of a turn, and the one table of all ways between them.

                                   HOW TO READ THE TABLE

A verb names a goal; the cell (state, goal) lists the steps on the way there, in order.
  init    the first line                         text, thinking   a block opens
  start   a reply begins                         close            the open block: last delta, its
          line, its stop
  stop    a reply ends                           unecho           a repeated reply turns out to be
          nothing new
  fill    results that never came, and the       end              the result and the terminator
          user line of an interrupt
"""

from collections.abc import Callable
from enum import StrEnum

from shim.core.reading.account import Diagnostics


class State(StrEnum):
    """Where a turn is. TEXT and THINKING are also the kinds of a block."""

    NEW = "new"  # nothing was said
    READY = "ready"  # between two replies
    MESSAGE = "message"  # in a reply, and no block is open
    TEXT = "text"  # a block of text is open
    THINKING = "thinking"  # a block of thinking is open
    ECHO = "echo"  # a reply that was cut comes again, and has said nothing new yet
    DONE = "done"  # the vendor said how the turn ended; its process may go on
    CLOSED = "closed"  # the result was said


# A look-up in the class of an enumeration is slow.
NEW, READY, MESSAGE, TEXT = State.NEW, State.READY, State.MESSAGE, State.TEXT
THINKING, ECHO, DONE, CLOSED = State.THINKING, State.ECHO, State.DONE, State.CLOSED

# fmt: off
TRANSITIONS: dict[State, dict[State, str]] = {
    NEW:      {READY: "init",       MESSAGE: "init start",   TEXT: "init start text",
               THINKING: "init start thinking",              CLOSED: "init fill end"},
    READY:    {READY: "",           MESSAGE: "start",        TEXT: "start text",
               THINKING: "start thinking",                   CLOSED: "fill end"},
    MESSAGE:  {READY: "stop",       MESSAGE: "",             TEXT: "text",
               THINKING: "thinking",                         CLOSED: "stop fill end"},
    TEXT:     {READY: "close stop", MESSAGE: "close",        TEXT: "close text",
               THINKING: "close thinking",                   CLOSED: "close stop fill end"},
    THINKING: {READY: "close stop", MESSAGE: "close",        TEXT: "close text",
               THINKING: "close thinking",                   CLOSED: "close stop fill end"},
    ECHO:     {READY: "unecho",     MESSAGE: "unecho start", TEXT: "unecho start text",
               THINKING: "unecho start thinking",            CLOSED: "unecho fill end"},
}
# fmt: on
CELLS = {
    state: {goal: cell.split() for goal, cell in row.items()} for state, row in TRANSITIONS.items()
}
# Ways of ours, on which nothing is said: a reply was cut; the vendor said its last word, and then
# we go on, to the result or to a second attempt; the end itself has failed.
GOALS = frozenset(TRANSITIONS[NEW])
SILENT: dict[State, frozenset[State]] = {
    READY: GOALS | {ECHO, DONE},
    DONE: frozenset((READY, NEW, CLOSED)),
    CLOSED: frozenset((CLOSED,)),
}

Step = Callable[[], None]


class TransitionError(Exception):
    """A way that is not in the table: our own mistake."""

    def __init__(self, state: State, goal: State) -> None:
        super().__init__(f"a turn that is {state} cannot become {goal}")


class Machine:
    """The state of one turn. `steps` gives it the table's words as calls.

    `before_going` is called before the way is looked up; what was held back of the open block is
    said then.
    """

    __slots__ = ("_account", "_ways", "before_going", "state")

    def __init__(self, account: Diagnostics) -> None:
        self.state = NEW
        self.before_going: Step | None = None
        self._account = account
        self._ways: dict[State, dict[State, tuple[Step, ...]]] = {}

    def steps(self, **steps: Step) -> None:
        """What is done for each word of the table."""
        self._ways = {
            state: {goal: tuple([steps[name] for name in cell]) for goal, cell in row.items()}
            for state, row in CELLS.items()
        }
        self._ways[DONE] = self._ways[CLOSED] = {}

    def go(self, goal: State, said: bool = False) -> bool:
        """Take the steps on the way to `goal`; none of them, and a way of ours too, where all was
        `said`.

        False, and the event is counted, where an event of the vendor's comes too late.
        TransitionError: no way leads there, which is our own mistake.
        """
        if said:
            if goal not in SILENT.get(self.state, GOALS):
                raise TransitionError(self.state, goal)
        else:
            if self.before_going is not None:
                self.before_going()
            try:
                steps = self._ways[self.state][goal]
            except KeyError:
                return self._refuse(goal)
            for step in steps:
                step()
        self.state = goal
        return True

    def _refuse(self, goal: State) -> bool:
        if not self.over:
            raise TransitionError(self.state, goal)
        self.late()
        return False

    @property
    def over(self) -> bool:
        """Whether the vendor said how the turn ended: no event of its counts any more."""
        return self.state is DONE or self.state is CLOSED

    def late(self) -> None:
        """Count an event that came too late."""
        self._account.record("late_event")
