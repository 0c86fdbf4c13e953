"""The unguided fuzzer: hypothesis, without feedback, over the same runs and edits, and over any
order of Turn methods.

Its long profile has no fixed seed and no deadline. It runs rounds until the time is over.
"""

import time
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from stream_invariants import check_turns
from turn_stage import Stage

from fuzzing.edits import apply_edit
from fuzzing.findings import Findings
from fuzzing.inputs import KNOB_LARGEST, KNOBS, FuzzRun
from fuzzing.seeds import build_pool, group_seeds_by_target, list_seeds
from tests.sweeps.test_properties import VERBS, perform

VERB_ROUNDS = 8  # one round of this many tests method orders, which have no lines
ROUND = 200  # examples between two checks of the clock
SAVE_ROUNDS = 5

KNOB_FACTORS = (1, 3, 7)  # numbers of setups per run: drawing costs more than running

_NUMBERS = st.integers(0, (1 << 16) - 1)
_EDITS = st.lists(st.integers(0, (1 << 48) - 1), max_size=16)
_SEEDS = st.lists(st.integers(0, len(list_seeds()) - 1), min_size=1, max_size=12)
RUNS = st.lists(
    st.tuples(_SEEDS, st.tuples(*(_NUMBERS for _ in KNOBS)), _EDITS), min_size=1, max_size=4
)

Plan = list[tuple[list[int], tuple[int, ...], list[int]]]


def build_runs(plan: Plan) -> list[FuzzRun]:
    """Build the runs of a plan: seeds in sequence, edited, each with several setups."""
    runs = []
    for numbers, knobs, edits in plan:
        of_target = group_seeds_by_target()[list_seeds()[numbers[0]].target]
        lines = [line for number in numbers for line in of_target[number % len(of_target)].lines]
        run = FuzzRun(of_target[0].target, knobs, lines)
        for edit in edits:
            run = apply_edit(run, edit, edit, build_pool())
        runs += [
            run._replace(knobs=tuple(value * times % KNOB_LARGEST for value in run.knobs))
            for times in KNOB_FACTORS
        ]
    return runs


def create_profile(examples: int) -> settings:
    """Return settings for `examples` examples without repetition."""
    return settings(
        max_examples=examples,
        phases=[Phase.generate],
        derandomize=False,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def run_fuzzer(book: Findings, seconds: float, first: int) -> None:
    """Fuzz for `seconds`. The failures are collected in `book`, one of each kind."""
    until = time.monotonic() + seconds
    number = first
    while time.monotonic() < until:
        number += 1
        seed(number)(
            _build_lines_round(book, until)
            if number % VERB_ROUNDS
            else _build_verbs_round(book, until)
        )()
        if number % SAVE_ROUNDS == 0:
            book.save()
    book.save()


def _build_lines_round(book: Findings, until: float) -> Callable[[], None]:
    @create_profile(ROUND)
    @given(plan=RUNS)
    def run_round(plan: Plan) -> None:
        if time.monotonic() < until:
            book.check_runs(build_runs(plan))

    return run_round


def _build_verbs_round(book: Findings, until: float) -> Callable[[], None]:
    @create_profile(ROUND)
    @given(
        verbs=st.lists(VERBS, max_size=60),
        partial=st.booleans(),
        limit=st.sampled_from([None, 2]),
    )
    def run_round(
        verbs: list[tuple[str, dict[str, Any]]], partial: bool, limit: int | None
    ) -> None:
        if time.monotonic() < until:
            book.run_check("verbs", repr(verbs), lambda: _perform_all(verbs, partial, limit))

    return run_round


def _perform_all(verbs: list[tuple[str, dict[str, Any]]], partial: bool, limit: int | None) -> None:
    stage = Stage(partial=partial, max_turns=limit)
    for verb, params in verbs:
        perform(stage, verb, params)
    stage.finish_turn()
    check_turns(stage.bytes, partial)
