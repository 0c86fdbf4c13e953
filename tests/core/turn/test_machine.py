"""The transition table of the state machine, cell by cell, as a frontend sees it with partial
messages.
"""

import ast
import inspect
import itertools
from collections.abc import Callable

import pytest
from fixture_cases import ROOT
from sweeps import loop_over_rows
from turn_stage import Stage

from shim.core.turn.machine import (
    CLOSED,
    DONE,
    ECHO,
    MESSAGE,
    NEW,
    READY,
    SILENT_TRANSITIONS,
    TEXT,
    THINKING,
    TRANSITIONS,
    TurnState,
    TurnTransitionError,
)  # fmt: skip
from shim.core.turn.outcome import ChildExit
from shim.core.turn.turn import Turn

STATES = (NEW, READY, MESSAGE, TEXT, THINKING, ECHO)
GOALS = (READY, MESSAGE, TEXT, THINKING, CLOSED)


def new(turn: Turn) -> None:
    """Leave the turn without output."""


def ready(turn: Turn) -> None:
    turn.record_vendor_session_info(session_id="s")


def message(turn: Turn) -> None:
    turn.add_block("m")


def text(turn: Turn) -> None:
    turn.add_text("t")


def thinking(turn: Turn) -> None:
    turn.add_thinking("h")


def echo(turn: Turn) -> None:
    turn.add_text("abc")
    turn.retract_message()


def done(turn: Turn) -> None:
    turn.add_text("t")
    turn.record_turn_end()
    turn.record_vendor_completion()


def close_turn(turn: Turn) -> None:
    turn.record_turn_end()
    turn.close(ChildExit(code=0), "")


REACH: dict[str, Callable[[Turn], None]] = {
    NEW: new,
    READY: ready,
    MESSAGE: message,
    TEXT: text,
    THINKING: thinking,
    ECHO: echo,
    DONE: done,
    CLOSED: close_turn,
}

INIT, END = ["init"], ["end:success", "."]
START = [*INIT, "system:status"]
TEXT_LINES = ["text:t", "stop"]
THINKING_LINES = ["think:h", "stop"]
STOP = ["done:end_turn"]

CELLS: dict[tuple[str, str], list[str]] = {
    (NEW, READY): START,
    (NEW, MESSAGE): [*START, "start"],
    (NEW, TEXT): [*START, "start", "open:text"],
    (NEW, THINKING): [*START, "start", "open:thinking"],
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
    (TEXT, READY): [*TEXT_LINES, *STOP],
    (TEXT, MESSAGE): TEXT_LINES,
    (TEXT, TEXT): [*TEXT_LINES, "open:text"],
    (TEXT, THINKING): [*TEXT_LINES, "open:thinking"],
    (TEXT, CLOSED): [*TEXT_LINES, *STOP, "end:success t", "."],
    (THINKING, READY): [*THINKING_LINES, *STOP],
    (THINKING, MESSAGE): THINKING_LINES,
    (THINKING, TEXT): [*THINKING_LINES, "open:text"],
    (THINKING, THINKING): [*THINKING_LINES, "open:thinking"],
    (THINKING, CLOSED): [*THINKING_LINES, *STOP, *END],
    (ECHO, READY): [],
    (ECHO, MESSAGE): ["start"],
    (ECHO, TEXT): ["start", "open:text"],
    (ECHO, THINKING): ["start", "open:thinking"],
    (ECHO, CLOSED): END,
}


def test_every_transition_is_defined_and_tested():
    pairs = set(itertools.product(STATES, GOALS))
    assert {(state, goal) for state, row in TRANSITIONS.items() for goal in row} == pairs
    assert set(CELLS) == pairs


@loop_over_rows(("state", "goal"), CELLS)
def test_transition_emits_the_expected_lines(state, goal):
    stage = Stage(partial=True)
    REACH[state](stage.turn)
    stage.take_lines()
    assert stage.turn.machine.state is state, "the verbs above reach the state"
    if goal is CLOSED:
        stage.turn.record_turn_end()
        stage.turn.close(ChildExit(code=0), "")
    else:
        assert stage.turn.machine.move_to(goal)
    assert stage.take_summary() == CELLS[state, goal]
    assert stage.turn.machine.state is goal


@loop_over_rows("state", [DONE, CLOSED])
@loop_over_rows("goal", [READY, MESSAGE, TEXT, THINKING])
def test_transition_after_the_end_is_counted_as_a_late_event(state, goal):
    stage = Stage()
    REACH[state](stage.turn)
    stage.take_lines()
    assert not stage.turn.machine.move_to(goal)
    assert stage.turn.machine.state is state
    assert stage.take_summary() == []
    assert stage.diagnostics.repairs == {"late_event": 1}


def test_result_is_emitted_after_the_turn_is_finalized():
    stage = Stage()
    done(stage.turn)
    stage.take_lines()
    assert stage.finish_turn() == ["end:success t", "."]
    assert stage.turn.machine.state is CLOSED


@loop_over_rows("state", TurnState)
def test_undefined_transition_raises_turn_transition_error(state):
    silent = SILENT_TRANSITIONS.get(state, frozenset(GOALS))
    allowed_goals = () if state in (DONE, CLOSED) else GOALS
    for skip_actions, goals in ((True, silent), (False, allowed_goals)):
        for goal in set(TurnState) - set(goals):
            stage = Stage(partial=True)
            REACH[state](stage.turn)
            if skip_actions or state not in (DONE, CLOSED):
                with pytest.raises(
                    TurnTransitionError, match=f"that is {state} cannot become {goal}"
                ):
                    stage.turn.machine.move_to(goal, skip_actions)
            assert stage.turn.machine.state is state


def test_state_is_assigned_only_in_the_machine_module():
    """Only the machine module writes `State`. Other code needs a transition in the table."""
    folders = [ROOT / "shim" / name for name in ("core", "adapters", "profiles", "conversation")]
    sources = {
        path: path.read_text(encoding="utf-8")
        for folder in folders
        for path in folder.rglob("*.py")
    }
    assigned = [
        f"{path.name}:{node.lineno}"
        for path, source in sources.items()
        if ".state" in source  # parsing is slow
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Attribute) and target.attr == "state"
    ]
    assert [location.partition(":")[0] for location in assigned] == ["machine.py", "machine.py"], (
        "its first, and `go`"
    )


def test_turn_objects_have_at_most_20_attributes():
    turn = Stage().turn
    objects = [
        turn,
        *(
            part
            for part in vars(turn).values()
            if type(part).__module__.startswith("shim.core.turn")
        ),
    ]
    assert len(objects) > 9
    for part in objects:
        attributes = (
            vars(part)
            if hasattr(part, "__dict__")
            else [n for c in type(part).__mro__ for n in getattr(c, "__slots__", ())]
        )
        # The methods of its parts that the Turn offers are not state.
        state = [name for name in attributes if not inspect.ismethod(getattr(part, name))]
        assert len(state) <= 20, f"{type(part).__name__} has {len(state)} attributes"


LATE_VERBS: dict[str, Callable[[Turn], None]] = {
    "text": lambda turn: turn.add_text("x"),
    "thinking": lambda turn: turn.add_thinking("x"),
    "say": lambda turn: turn.add_block("x"),
    "think": lambda turn: turn.add_thinking_block("x"),
    "text_snapshot": lambda turn: turn.update_text("x", 0),
    "tool_use": lambda turn: turn.add_tool_call("t", "Bash", {}),
    "tool_result": lambda turn: turn.add_tool_result("t", "", name="Bash"),
    "system": lambda turn: turn.write_system_event("note"),
    "retry": lambda turn: turn.write_retry(1, 2, 3, "x"),
    "compacted": lambda turn: turn.write_compaction("auto", 1),
    "retract": lambda turn: turn.retract_message(),
    "child": lambda turn: turn.get_subagent("t").write_text_message("x"),
}


@loop_over_rows("verb", LATE_VERBS)
def test_turn_method_emits_nothing_after_the_result(verb):
    """Contract S16b: clients discard the error if a line follows the result."""
    stage = Stage(partial=True)
    close_turn(stage.turn)
    stage.take_lines()
    LATE_VERBS[verb](stage.turn)
    assert stage.take_summary() == []
    assert stage.diagnostics.repairs.get("late_event") == 1


@loop_over_rows(
    "end",
    [
        "record_turn_end",
        "record_interrupt",
        "finish",
        "record_vendor_completion",
        "end_block",
        "end_message",
        "start_message",
    ],
)
def test_ending_method_has_no_effect_after_the_result(end):
    stage = Stage()
    close_turn(stage.turn)
    stage.take_lines()
    getattr(stage.turn, end)()
    stage.turn.record_failure("too late")
    stage.turn.close(ChildExit(code=1), "too late")
    assert stage.take_summary() == []
    assert not stage.turn.is_error


def test_finalize_emits_nothing_and_sets_is_finalized():
    stage = Stage()
    assert not stage.turn.outcome_tracker.is_finalized
    stage.turn.record_vendor_completion()
    assert stage.turn.outcome_tracker.is_finalized
    assert stage.take_summary() == []


def test_finish_emits_the_result_before_the_child_exits():
    stage = Stage()
    stage.turn.add_block("hi")
    stage.turn.record_turn_end()
    stage.turn.finish()
    assert stage.take_summary() == ["init", "text:hi", "end:success hi", "."]
