"""The states of a turn, and the table of all transitions between them.

                                   HOW TO READ THE TABLE

A column is a target state (the goal). The cell for a state and a goal lists the actions on the path
to the goal, in order. A reply is one assistant message.

  init    write the first line                   text, thinking   open a block
  request report a request to the model
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
    """The state of a turn. TEXT and THINKING also serve as the kinds of a content block."""

    NEW = "new"  # no line was written yet
    READY = "ready"  # the first line was written, and no reply is open
    MESSAGE = "message"  # a reply is open, without an open block
    TEXT = "text"  # a text block is open
    THINKING = "thinking"  # a thinking block is open
    ECHO = "echo"  # an interrupted reply is being repeated, without new text so far
    DONE = "done"  # the vendor has reported the end of the turn, and its process may continue
    CLOSED = "closed"  # the result was written


# These names exist for speed, because reading a member of an enumeration class is slow.
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
    NEW:      {READY: "init request",                        MESSAGE: "init request start",
               TEXT: "init request start text",
               THINKING: "init request start thinking",      CLOSED: "init fill end"},
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
# Transitions without output. They are used after an interrupted reply, after the vendor has
# reported the end of the turn (the result or a retry follows), and after an error in `Turn.close`.
ALL_GOALS = frozenset(TRANSITIONS[NEW])
SILENT_TRANSITIONS: dict[TurnState, frozenset[TurnState]] = {
    READY: ALL_GOALS | {ECHO, DONE},
    DONE: frozenset((READY, NEW, CLOSED)),
    CLOSED: frozenset((CLOSED,)),
}

TransitionAction = Callable[[], None]


class TurnTransitionError(Exception):
    """Raised for a transition that is not in the table, which is a bug in the shim."""

    def __init__(self, state: TurnState, goal: TurnState) -> None:
        super().__init__(f"a turn that is {state} cannot become {goal}")


class TurnStateMachine:
    """The state machine of one turn. `set_transition_actions` sets a function for each action in
    the table.
    """

    __slots__ = ("_before_move", "_diagnostics", "_steps_by_path", "state")

    def __init__(
        self, diagnostics: Diagnostics, before_move: TransitionAction | None = None
    ) -> None:
        """`before_move` is called before each transition, to write the open block's
        buffered text.
        """
        self.state = NEW
        self._before_move = before_move
        self._diagnostics = diagnostics
        self._steps_by_path: dict[TurnState, dict[TurnState, tuple[TransitionAction, ...]]] = {}

    def set_transition_actions(self, **steps: TransitionAction) -> None:
        """Set the function to call for each action in the transition table."""
        self._steps_by_path = {
            state: {goal: tuple([steps[name] for name in cell]) for goal, cell in row.items()}
            for state, row in STEP_NAMES.items()
        }
        self._steps_by_path[DONE] = self._steps_by_path[CLOSED] = {}

    def move_to(self, goal: TurnState, skip_actions: bool = False) -> bool:
        """Move to the state `goal` and run the actions on the path. If the turn is already over,
        count a late event and return False.

        If `skip_actions` is set, no actions run, and the transitions in `SILENT_TRANSITIONS` are
        also allowed. Raise TurnTransitionError if no path leads to `goal`.
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
        """Count an event that arrived after the end of the turn."""
        self._diagnostics.record("late_event")
