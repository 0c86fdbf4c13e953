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

from shim.core.reading.diagnostics import Diagnostics


class TurnState(StrEnum):
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
NEW, READY, MESSAGE, TEXT = TurnState.NEW, TurnState.READY, TurnState.MESSAGE, TurnState.TEXT
THINKING, ECHO, DONE, CLOSED = TurnState.THINKING, TurnState.ECHO, TurnState.DONE, TurnState.CLOSED

# fmt: off
TRANSITIONS: dict[TurnState, dict[TurnState, str]] = {
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
STEP_NAMES = {
    state: {goal: cell.split() for goal, cell in row.items()} for state, row in TRANSITIONS.items()
}
# Ways of ours, on which nothing is said: a reply was cut; the vendor said its last word, and then
# we go on, to the result or to a second attempt; the end itself has failed.
ALL_GOALS = frozenset(TRANSITIONS[NEW])
SILENT_TRANSITIONS: dict[TurnState, frozenset[TurnState]] = {
    READY: ALL_GOALS | {ECHO, DONE},
    DONE: frozenset((READY, NEW, CLOSED)),
    CLOSED: frozenset((CLOSED,)),
}

TransitionAction = Callable[[], None]


class TurnTransitionError(Exception):
    """A way that is not in the table: our own mistake."""

    def __init__(self, state: TurnState, goal: TurnState) -> None:
        super().__init__(f"a turn that is {state} cannot become {goal}")


class TurnStateMachine:
    """The state of one turn. `set_transition_actions` sets what the words of the table do."""

    __slots__ = ("_before_move", "_diagnostics", "_steps_by_path", "state")

    def __init__(
        self, diagnostics: Diagnostics, before_move: TransitionAction | None = None
    ) -> None:
        """`before_move` is called before a transition is looked up: it writes what is buffered of
        the open block.
        """
        self.state = NEW
        self._before_move = before_move
        self._diagnostics = diagnostics
        self._steps_by_path: dict[TurnState, dict[TurnState, tuple[TransitionAction, ...]]] = {}

    def set_transition_actions(self, **steps: TransitionAction) -> None:
        """What is done for each word of the table."""
        self._steps_by_path = {
            state: {goal: tuple([steps[name] for name in cell]) for goal, cell in row.items()}
            for state, row in STEP_NAMES.items()
        }
        self._steps_by_path[DONE] = self._steps_by_path[CLOSED] = {}

    def move_to(self, goal: TurnState, skip_actions: bool = False) -> bool:
        """Take the steps on the way to `goal`. With `skip_actions`, no step is taken, and the ways
        of `SILENT_TRANSITIONS` are open too.

        False, and the event is counted, where an event of the vendor's comes too late.
        TurnTransitionError: no way leads there, which is our own mistake.
        """
        if skip_actions:
            if goal not in SILENT_TRANSITIONS.get(self.state, ALL_GOALS):
                raise TurnTransitionError(self.state, goal)
        else:
            if self._before_move is not None:
                self._before_move()
            try:
                steps = self._steps_by_path[self.state][goal]
            except KeyError:
                return self._reject_move(goal)
            for step in steps:
                step()
        self.state = goal
        return True

    def _reject_move(self, goal: TurnState) -> bool:
        if not self.is_over:
            raise TurnTransitionError(self.state, goal)
        self.record_late_event()
        return False

    @property
    def is_over(self) -> bool:
        """Whether the vendor said how the turn ended: no event of its counts any more."""
        return self.state is DONE or self.state is CLOSED

    def record_late_event(self) -> None:
        """Count an event that came too late."""
        self._diagnostics.record("late_event")
