"""The one table of all transitions, cell by cell, as a frontend sees it with partial messages."""

import itertools
from collections.abc import Callable

import pytest
from support import Stage

from shim.core.turn.machine import CLOSED, DONE, ECHO, MESSAGE, NEW, READY, TEXT, THINKING, TRANSITIONS
from shim.core.turn.result import Exit
from shim.core.turn.turn import Turn

STATES = (NEW, READY, MESSAGE, TEXT, THINKING, ECHO, DONE, CLOSED)
GOALS = (READY, MESSAGE, TEXT, THINKING, CLOSED)


def new(turn: Turn) -> None:
    """Nothing said yet."""


def ready(turn: Turn) -> None:
    turn.started(session_id="s")


def message(turn: Turn) -> None:
    turn.say("m")


def text(turn: Turn) -> None:
    turn.text("t")


def thinking(turn: Turn) -> None:
    turn.thinking("h")


def echo(turn: Turn) -> None:
    turn.text("abc")
    turn.retract()


def done(turn: Turn) -> None:
    turn.text("t")
    turn.ended()
    turn.settle()


def closed(turn: Turn) -> None:
    turn.ended()
    turn.closed(Exit(code=0), "")


REACH: dict[str, Callable[[Turn], None]] = {
    NEW: new,
    READY: ready,
    MESSAGE: message,
    TEXT: text,
    THINKING: thinking,
    ECHO: echo,
    DONE: done,
    CLOSED: closed,
}

INIT, END = ["init"], ["end:success", "."]
TEXT_SAID = ["text:t", "stop"]
THOUGHT_SAID = ["think:h", "stop"]
STOP = ["done:end_turn"]

CELLS: dict[tuple[str, str], list[str]] = {
    (NEW, READY): INIT,
    (NEW, MESSAGE): [*INIT, "start"],
    (NEW, TEXT): [*INIT, "start", "open:text"],
    (NEW, THINKING): [*INIT, "start", "open:thinking"],
    (NEW, CLOSED): [*INIT, *END],
    (READY, READY): [],
    (READY, MESSAGE): ["start"],
    (READY, TEXT): ["start", "open:text"],
    (READY, THINKING): ["start", "open:thinking"],
    (READY, CLOSED): END,
    (MESSAGE, READY): STOP,
    (MESSAGE, MESSAGE): [],
    (MESSAGE, TEXT): ["open:text"],
    (MESSAGE, THINKING): ["open:thinking"],
    (MESSAGE, CLOSED): [*STOP, "end:success m", "."],
    (TEXT, READY): [*TEXT_SAID, *STOP],
    (TEXT, MESSAGE): TEXT_SAID,
    (TEXT, TEXT): [*TEXT_SAID, "open:text"],
    (TEXT, THINKING): [*TEXT_SAID, "open:thinking"],
    (TEXT, CLOSED): [*TEXT_SAID, *STOP, "end:success t", "."],
    (THINKING, READY): [*THOUGHT_SAID, *STOP],
    (THINKING, MESSAGE): THOUGHT_SAID,
    (THINKING, TEXT): [*THOUGHT_SAID, "open:text"],
    (THINKING, THINKING): [*THOUGHT_SAID, "open:thinking"],
    (THINKING, CLOSED): [*THOUGHT_SAID, *STOP, *END],
    (ECHO, READY): [],
    (ECHO, MESSAGE): ["start"],
    (ECHO, TEXT): ["start", "open:text"],
    (ECHO, THINKING): ["start", "open:thinking"],
    (ECHO, CLOSED): END,
    (DONE, READY): [],
    (DONE, MESSAGE): [],
    (DONE, TEXT): [],
    (DONE, THINKING): [],
    (DONE, CLOSED): ["end:success t", "."],
    (CLOSED, READY): [],
    (CLOSED, MESSAGE): [],
    (CLOSED, TEXT): [],
    (CLOSED, THINKING): [],
    (CLOSED, CLOSED): [],
}


def test_the_table_has_every_pair_of_state_and_goal_and_every_pair_is_tested():
    pairs = set(itertools.product(STATES, GOALS))
    assert {(state, goal) for state, row in TRANSITIONS.items() for goal in row} == pairs
    assert set(CELLS) == pairs


@pytest.mark.parametrize(("state", "goal"), CELLS)
def test_on_the_way_from_a_state_to_a_goal_the_cell_is_said(state, goal):
    stage = Stage(partial=True)
    REACH[state](stage.turn)
    stage.lines()
    assert stage.turn.state == state, "the verbs above reach the state"
    if goal == CLOSED:
        stage.turn.ended()
        stage.turn.closed(Exit(code=0), "")
    else:
        assert stage.turn.go(goal) == (state not in (DONE, CLOSED))
    assert stage.brief() == CELLS[state, goal]
    assert stage.turn.state == (state if state in (DONE, CLOSED) and goal != CLOSED else goal)


@pytest.mark.parametrize("goal", GOALS)
def test_what_comes_after_the_result_is_counted_and_not_said(goal):
    stage = Stage()
    closed(stage.turn)
    stage.lines()
    assert not stage.turn.go(goal)
    assert stage.brief() == []
    assert stage.account.repairs == {"late_event": 1}


LATE_VERBS: dict[str, Callable[[Turn], None]] = {
    "text": lambda turn: turn.text("x"),
    "thinking": lambda turn: turn.thinking("x"),
    "say": lambda turn: turn.say("x"),
    "think": lambda turn: turn.think("x"),
    "text_snapshot": lambda turn: turn.text_snapshot("x", 0),
    "tool_use": lambda turn: turn.tool_use("t", "Bash", {}),
    "tool_result": lambda turn: turn.tool_result("t", "", name="Bash"),
    "system": lambda turn: turn.system("note"),
    "retry": lambda turn: turn.retry(1, 2, 3, "x"),
    "compacted": lambda turn: turn.compacted("auto", 1),
    "retract": lambda turn: turn.retract(),
    "child": lambda turn: turn.child("t").text("x"),
}


@pytest.mark.parametrize("verb", LATE_VERBS)
def test_no_verb_says_anything_after_the_result(verb):
    """Contract S16b: clients forget the error when a line follows the result."""
    stage = Stage(partial=True)
    closed(stage.turn)
    stage.lines()
    LATE_VERBS[verb](stage.turn)
    assert stage.brief() == []
    assert stage.account.repairs.get("late_event") == 1


@pytest.mark.parametrize("end", ["ended", "interrupted", "finish", "settle", "block_end", "message_end", "message"])
def test_a_verb_about_the_end_changes_nothing_after_the_result(end):
    stage = Stage()
    closed(stage.turn)
    stage.lines()
    getattr(stage.turn, end)()
    stage.turn.failed("too late")
    stage.turn.closed(Exit(code=1), "too late")
    assert stage.brief() == []
    assert not stage.turn.is_error


def test_settling_says_nothing_and_is_remembered():
    stage = Stage()
    assert not stage.turn.settled
    stage.turn.settle()
    assert stage.turn.settled
    assert stage.brief() == []


def test_finishing_says_the_result_without_waiting_for_the_child():
    stage = Stage()
    stage.turn.say("hi")
    stage.turn.ended()
    stage.turn.finish()
    assert stage.brief() == ["init", "text:hi", "end:success hi", "."]
