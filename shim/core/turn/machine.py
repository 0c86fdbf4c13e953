"""The states of a turn, and the table of all transitions between them.

                                   HOW TO READ THE TABLE

A column is a goal. The cell (state, goal) lists the actions on the path to the goal, in order. A
reply is one assistant message.
  init    write the first line                   text, thinking   open a block
  start   start a reply                          close            end the open block: last delta, its
                                                                  line, its stop
  stop    end a reply                            unecho           finish a repeated reply that had
                                                                  no new text
  fill    write missing results, and the         end              write the result and the terminator
          user line of an interrupt
"""

from collections.abc import Callable
from enum import StrEnum

from shim.core.reading.diagnostics import Diagnostics


class TurnState(StrEnum):
    """The state of a turn. TEXT and THINKING are also the kinds of a block."""

    NEW = "new"  # no line was written
    READY = "ready"  # between two replies
    MESSAGE = "message"  # in a reply, and no block is open
    TEXT = "text"  # a block of text is open
    THINKING = "thinking"  # a block of thinking is open
    ECHO = "echo"  # an incomplete reply is repeated, and no new text has come yet
    DONE = "done"  # the vendor has reported the end of the turn; its process may continue
    CLOSED = "closed"  # the result was written


# Reading a member of an enumeration class is slow.
NEW = TurnState.NEW
READY = TurnState.READY
MESSAGE = TurnState.MESSAGE
TEXT = TurnState.TEXT
THINKING = TurnState.THINKING
ECHO = TurnState.ECHO
DONE = TurnState.DONE
CLOSED = TurnState.CLOSED

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
# Transitions without output. They are used after an incomplete reply, after the vendor has reported
# the end of the turn (the result or a retry follows), and after `Turn.close` has failed.
ALL_GOALS = frozenset(TRANSITIONS[NEW])
SILENT_TRANSITIONS: dict[TurnState, frozenset[TurnState]] = {
    READY: ALL_GOALS | {ECHO, DONE},
    DONE: frozenset((READY, NEW, CLOSED)),
    CLOSED: frozenset((CLOSED,)),
}

TransitionAction = Callable[[], None]


class TurnTransitionError(Exception):
    """A transition that is not in the table. This is a bug in the shim."""

    def __init__(self, state: TurnState, goal: TurnState) -> None:
        super().__init__(f"a turn that is {state} cannot become {goal}")


class TurnStateMachine:
    """The state of one turn. `set_transition_actions` sets the function of each action in the
    table.
    """

    __slots__ = ("_before_move", "_diagnostics", "_steps_by_path", "state")

    def __init__(
        self, diagnostics: Diagnostics, before_move: TransitionAction | None = None
    ) -> None:
        """`before_move` is called before a transition is looked up. It writes the buffered part of
        the open block.
        """
        self.state = NEW
        self._before_move = before_move
        self._diagnostics = diagnostics
        self._steps_by_path: dict[TurnState, dict[TurnState, tuple[TransitionAction, ...]]] = {}

    def set_transition_actions(self, **steps: TransitionAction) -> None:
        """Set the function of each action in the table."""
        self._steps_by_path = {
            state: {goal: tuple([steps[name] for name in cell]) for goal, cell in row.items()}
            for state, row in STEP_NAMES.items()
        }
        self._steps_by_path[DONE] = self._steps_by_path[CLOSED] = {}

    def move_to(self, goal: TurnState, skip_actions: bool = False) -> bool:
        """Move to `goal`, and run the actions on the path. If the turn is over, count the event and
        return False.

        If `skip_actions`, no action runs, and the transitions of `SILENT_TRANSITIONS` are also
        allowed. Raise TurnTransitionError if no path leads to `goal`.
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
        """Whether the vendor has reported the end of the turn. Later events are ignored."""
        if self.state is DONE:
            return True
        return self.state is CLOSED

    def record_late_event(self) -> None:
        """Count an event that came after the end of the turn."""
        self._diagnostics.record("late_event")
