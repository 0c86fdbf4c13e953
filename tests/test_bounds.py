"""What is remembered is bounded: a flood of any verb, of any vendor's event, of anything a frontend may send, does not
grow it, and no line is longer than its limit, the result's among them.

Memory is measured as what can be reached from the object in question, whatever tables it may have.
"""

import gc
import itertools
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
from support import Stage, check_turns

from shim import blocks, calls, control, frame, nested, spoken, turn, usage
from shim.ending import Exit
from shim.permissions import Permission
from shim.policy import Policy

LINE_BYTES = 10_000  # the smallest limit that can be set
FEW = 40  # of everything that is counted, so that a flood is over soon
FLOOD = 400
SAMPLES = 10
SLACK_BYTES = 60_000  # tables grow in steps
NOT_MEMORY = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType)


def reachable(*roots: object) -> int:
    """The bytes of everything that can be reached from some objects."""
    seen: set[int] = set()
    waiting: list[object] = list(roots)
    total = 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, NOT_MEMORY):
            continue
        seen.add(id(one))
        total += sys.getsizeof(one)
        waiting.extend(gc.get_referents(one))
    return total


def check_flat(measure: Callable[[], int], step: Callable[[int], object], flood: int = FLOOD) -> None:
    """After a flood and after another of the same size, as much is remembered."""
    numbers = itertools.count()
    peaks = []
    for _ in range(2):
        peak = 0
        for _ in range(SAMPLES):
            for _ in range(flood // SAMPLES):
                step(next(numbers))
            peak = max(peak, measure())
        peaks.append(peak)
    first, second = peaks
    assert second <= first * 1.05 + SLACK_BYTES, f"{first} bytes after {flood}, {second} after {2 * flood}"


LIMITS = [
    (frame, "SEEN_IDS"),
    (calls, "SEEN_IDS"),
    (calls, "EARLY_RESULTS"),
    (calls, "QUESTIONS"),
    (calls, "OPEN_CALLS"),
    (calls, "DENIALS"),
    (usage, "MODELS"),
    (spoken, "SPOKEN_BLOCKS"),
    (nested, "NESTED_CALLS"),
    (turn, "REFUSALS"),
    (blocks, "SAID_BLOCKS"),
    (control, "HOOKS_OPEN"),
]
BYTES = [(blocks, "SAID_CHARACTERS"), (spoken, "SPOKEN_CHARACTERS"), (calls, "OPEN_BYTES")]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every limit, much smaller."""
    for module, name in LIMITS:
        assert 10 <= getattr(module, name) <= 100_000
        monkeypatch.setattr(module, name, FEW)
    for module, name in BYTES:
        assert getattr(module, name) <= 16 * 1024 * 1024
        monkeypatch.setattr(module, name, 20_000)


# -- the Turn --------------------------------------------------------------------------------------------------------

LONG = "x" * 3000


def once(stage: Stage, name: str, /, *given: Any, **named: Any) -> None:
    getattr(stage.turn, name)(*given, **named)


def asked(stage: Stage, number: int) -> None:
    identity = f"t{number}"
    stage.turn.permission(f"r{number}", identity, "Bash", {"command": LONG}, ("shell", {}))


def refused(stage: Stage, number: int) -> None:
    stage.turn.refused(Permission(f"r{number}", f"t{number}", "Bash", {"a": LONG}, "shell", {}), LONG, announced=True)


def overlapping(stage: Stage, number: int) -> None:
    stage.turn.text("a", 0)
    stage.turn.thinking("b", 1)


def answered(stage: Stage, number: int) -> None:
    stage.turn.tool_use(f"t{number}", "Write", {"content": LONG})
    stage.turn.tool_result(f"t{number}", LONG)


def nested_answered(stage: Stage, number: int) -> None:
    child = stage.turn.child("t")
    child.tool_use(f"n{number}" + LONG, "Read", {"path": LONG})
    child.tool_result(f"n{number}" + LONG, LONG)


def spent(stage: Stage, number: int) -> None:
    stage.turn.message(model=f"m{number}" * 30)
    stage.turn.say("a")
    stage.turn.message_end({"input_tokens": 1, "output_tokens": 1})


FLOODS: dict[str, Callable[[Stage, int], None]] = {
    "calls that stay open": lambda stage, n: once(stage, "tool_use", f"t{n}", "Bash", {"command": "ls"}),
    "large calls that stay open": lambda stage, n: once(stage, "tool_use", f"t{n}", "Write", {"content": LONG}),
    "calls with odd arguments": lambda stage, n: once(stage, "tool_use", f"t{n}", "Write", {f"k{n}": [n] * 900}),
    "calls with long ids": lambda stage, n: once(stage, "tool_use", f"{n}" + LONG, "Bash" + LONG, {}),
    "calls answered": answered,
    "the same id again and again": lambda stage, n: (
        once(stage, "tool_use", "t", "Bash", {}),
        once(stage, "tool_result", "t", "ok"),
    )[0],
    "hidden calls": lambda stage, n: once(stage, "tool_use", f"t{n}" + LONG, "Hidden", {}),
    "results before calls": lambda stage, n: once(stage, "tool_result", f"t{n}" + LONG, LONG),
    "large results before calls": lambda stage, n: once(stage, "tool_result", f"t{n}", LONG * 20),
    "results without calls": lambda stage, n: once(stage, "tool_result", f"t{n}", LONG, name="Read", arguments={}),
    "denials": lambda stage, n: once(stage, "denied", f"t{n}" + LONG, "Bash" + LONG, {"command": LONG}),
    "questions": asked,
    "refusals": refused,
    "nested calls": lambda stage, n: stage.turn.child("t").tool_use(f"n{n}" + LONG, "Read", {"path": LONG}),
    "nested calls answered": nested_answered,
    "nested parents": lambda stage, n: stage.turn.child(f"p{n}").text("a"),
    "nested results": lambda stage, n: stage.turn.child("t").tool_result(f"n{n}", LONG),
    "models": spent,
    "text of one block": lambda stage, n: once(stage, "text", LONG, 0),
    "text of no block": lambda stage, n: once(stage, "text", LONG),
    "blocks of one reply": lambda stage, n: once(stage, "text", "a" * 20, n),
    "overlapping blocks": overlapping,
    "whole blocks": lambda stage, n: once(stage, "say", LONG),
    "snapshots": lambda stage, n: once(stage, "text_snapshot", LONG, n),
    "a snapshot that grows": lambda stage, n: once(stage, "text_snapshot", "a" * n, 0),
    "thinking": lambda stage, n: once(stage, "thinking", LONG, 0),
    "replies taken back": lambda stage, n: (once(stage, "text", f"{n}" + LONG, n), once(stage, "retract"))[0],
    "sessions": lambda stage, n: once(stage, "started", session_id=f"s{n}", model=f"m{n}", cwd=LONG),
    "notes": lambda stage, n: once(stage, "system", f"note{n}", **{f"k{n}": LONG}),
    "unknown events": lambda stage, n: once(stage, "unknown", f"kind{n}" + LONG, LONG),
    "verdicts": lambda stage, n: once(stage, "failed", f"{n}" + LONG, detail=LONG),
    "retries": lambda stage, n: once(stage, "retry", n, n, n, LONG),
}


@pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])
@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_of_a_verb_grows_nothing(small, name, partial):
    stage = Stage(partial=partial, limit=LINE_BYTES, policy=Policy(hidden=["Hidden"]))
    stage.turn.started(session_id="s")
    said = []

    def step(number: int) -> None:
        FLOODS[name](stage, number)
        said.append(stage.pen.take())

    check_flat(lambda: reachable(stage.turn), step)
    stage.turn.closed(Exit(code=0), "")
    whole = b"".join(said) + stage.pen.take()
    assert max(map(len, whole.split(b"\n"))) <= LINE_BYTES
    check_turns(whole, partial)


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_in_every_turn_of_a_conversation_grows_nothing(small, name):
    stage = Stage(limit=LINE_BYTES)

    def step(number: int) -> None:
        FLOODS[name](stage, number)
        if number % 5 == 4:
            stage.turn.closed(Exit(code=0), "")
            stage.turn = stage.turn.next()
            stage.account.forget()
        stage.pen.take()

    check_flat(lambda: reachable(stage.turn), step)
