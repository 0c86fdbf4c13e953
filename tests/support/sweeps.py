"""Tests over many fixtures or rows of a table, each as one pytest item: a loop that reports which
of them fail.

A pytest item takes more time than a fixture: all fixtures are translated in half a second. A test
that is slow for one fixture runs over `choose_small_cases()` or `choose_few_cases()` in `make
test`, and over all of them in `make full` (`pytest --full`). `pytest --fixture NAME` runs every
loop over the fixtures whose name contains NAME.
"""

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from random import Random
from typing import Any

import pytest
from fixture_cases import Case, list_fixture_cases
from hypothesis import HealthCheck, Phase, settings
from stream_lines import parse_lines

MORE = int(os.environ.get("HYPOTHESIS_EXAMPLES", "1"))
NAMED = 20  # rows in the message of one failure
# `make test` leaves out a fixture that adds fewer features than this to those chosen before it. More
# than half of the fixtures would only add one or two, and the tests of the goldens read every fixture.
MIN_NEW_FEATURES = 4

full = False  # whether this is `make full`; set by conftest
only = ""  # part of the names of the selected fixtures; set by conftest

Test = Callable[..., None]


def loop_over_cases(
    cases: Iterable[Case], *, quick: Callable[[], Iterable[Case]] | None = None
) -> Callable[[Test], Test]:
    """Run a test for each case, passed as `case`. `quick` returns the cases that suffice for `make
    test`.

    A generator of cases is consumed when the test runs, so that choosing the cases takes no time in
    other workers.
    """
    every = cache(lambda: tuple(cases))
    return _build_loop(
        ("case",),
        lambda: ((f"fixture {case.name}", (case,)) for case in choose_cases(every(), quick)),
    )


def loop_over_rows(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Run a test for each row, like `pytest.mark.parametrize` but as one item."""
    every = cache(lambda: tuple(rows))
    if isinstance(names, str):
        return _build_loop((names,), lambda: ((f"{names} {row!r:.200}", (row,)) for row in every()))
    return _build_loop(names, lambda: ((f"{row!r:.200}", row) for row in every()))


def _build_loop(
    names: tuple[str, ...], rows: Callable[[], Iterable[tuple[str, tuple[Any, ...]]]]
) -> Callable[[Test], Test]:
    """Run a test for each row, even if other rows fail. The first failure lists all failed rows."""

    def decorate_test(test: Test) -> Test:
        @functools.wraps(test)
        def run_rows(**fixtures: Any) -> None:
            failed: list[tuple[str, BaseException]] = []
            label = ""
            for label, row in rows():
                Rounds.now = ""
                try:
                    test(**dict(zip(names, row, strict=True)), **fixtures)
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"{label}{Rounds.now}")
                    failed.append((label, error))
            if failed:
                error = failed[0][1]
                if failed[1:]:
                    others = "\n".join(label for label, _ in failed[1 : NAMED + 1])
                    error.add_note(f"and {len(failed) - 1} more:\n{others}")
                raise error
            assert label or only, "there is nothing to run the test for"

        signature = inspect.signature(test)
        others = [
            parameter for name, parameter in signature.parameters.items() if name not in names
        ]
        run_rows.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return run_rows

    return decorate_test


def choose_cases(
    every: Sequence[Case], quick: Callable[[], Iterable[Case]] | None
) -> Sequence[Case]:
    """Return the cases of this run."""
    if only:
        return [case for case in every if only in case.name]
    if full or quick is None:
        return every
    enough = set(quick())
    cases = [case for case in every if case in enough]
    assert cases, "none of these fixtures is enough for `make test`"
    return cases


class Rounds:
    """The current round of a test, for the message of a failure."""

    now = ""


def iterate_rounds(count: int, case: Case) -> Iterator[Random]:
    """Yield this number of random generators, which are the same in every run."""
    for number in range(count * MORE):
        Rounds.now = f", round {number}"
        yield Random(f"{case.name} {number}")
    Rounds.now = ""


def limit_examples(count: int, *, full_count: int = 0, shrink: bool = False) -> settings:
    """Return settings of hypothesis for this number of examples, which are always the same, without
    a deadline.

    `full_count` is the number in `make full`. A failing example is only shrunk with `shrink`.
    """
    return settings(
        max_examples=(full_count if full and full_count else count) * MORE,
        phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if shrink else [])],
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def split_into_chunks(chance: Random, data: bytes, at_most: int) -> list[bytes]:
    """Split data into at most this number of chunks of any size."""
    cuts = sorted(chance.randint(0, len(data)) for _ in range(chance.randrange(at_most)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, None], strict=True)]


@cache
def choose_small_cases() -> tuple[Case, ...]:
    """Return a few small fixtures that together have most features of each vendor: its events, the
    shim's lines, and how a run ends.

    The next fixture is always the one with the most missing features for its size. A fixture that
    adds fewer than `MIN_NEW_FEATURES` is left out.
    """
    return _choose_covering_cases(
        {case: collect_features(case) for case in list_fixture_cases()}, MIN_NEW_FEATURES
    )


@cache
def choose_few_cases() -> tuple[Case, ...]:
    """Return the few fixtures that together have every kind of line and end of the shim, from any
    vendor.

    They are for tests of code that only reads the shim's lines: a story, an export, a redaction.
    """
    ours = ("claude ", "end ", "repair ", "partial ")
    return _choose_covering_cases(
        {
            case: {feature for _, feature in collect_features(case) if feature.startswith(ours)}
            for case in list_fixture_cases()
        }
    )


def _choose_covering_cases(cases: Mapping[Case, set[Any]], min_new: int = 1) -> tuple[Case, ...]:
    """Return cases that together have most features: no other case would add `min_new` features to
    these.
    """
    missing = set().union(*cases.values())
    chosen, remaining = [], list(cases)
    while remaining := [case for case in remaining if len(cases[case] & missing) >= min_new]:
        best = max(
            remaining,
            key=lambda case: (len(cases[case] & missing) / (1500 + len(case.data)), case.name),
        )
        chosen.append(best)
        missing -= cases[best]
    return tuple(sorted(chosen, key=lambda case: case.name))


@cache
def collect_features(case: Case) -> set[tuple[str, str]]:
    """Return the features of a fixture, each paired with the folder that contains the fixture."""
    feature_names = {
        f"exit {case.metadata.get('exit')}",
        f"partial {case.partial}",
        f"stderr {bool(case.stderr)}",
    }
    for event in case.parse_events():
        feature_names |= {f"child {kind}" for kind in _collect_kinds(event)}
    for line in parse_lines(case.golden.read_bytes()) if case.golden.exists() else ():
        feature_names |= {f"claude {kind}" for kind in _collect_kinds(line)}
        if line["type"] == "result":
            shim = line.get("shim", {})
            feature_names.add(f"end {line['subtype']} {line['is_error']} {shim.get('cause')}")
            feature_names |= {f"repair {name}" for name in shim.get("repairs", ())}
    return {(case.folder.parent.name, feature) for feature in feature_names}


def _collect_kinds(value: object, path: str = "", depth: int = 3) -> Iterator[str]:
    """Return the kinds of an event and of the objects in it."""
    if isinstance(value, Mapping) and depth:
        for name in ("type", "subtype", "role", "status", "stopReason", "is_error"):
            kind = value.get(name)
            if isinstance(kind, str | bool) and len(str(kind)) < 40:
                yield f"{path}.{name}={kind}"
        for name, item in value.items():
            yield from _collect_kinds(item, f"{path}.{name}", depth - 1)
    elif isinstance(value, list) and depth:
        for item in value[:50]:
            yield from _collect_kinds(item, path, depth)
