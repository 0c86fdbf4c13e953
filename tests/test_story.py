"""A session as a person reads it: every fixture has its steps, each begun once and ended once."""

import pytest
from casting import cast_of_case, read_cast
from support import Case, as_parameters, fixture_cases

from shim.casts import Teller
from shim.story import Change, Story


def told(data: bytes) -> tuple[Story, list[Change]]:
    reader, records = read_cast(data)
    assert reader.header is not None
    teller = Teller(reader.header)
    changes = [change for record in records for change in teller.feed(record)]
    return teller.story, changes + teller.close()


@pytest.mark.parametrize(**as_parameters(fixture_cases()))
def test_every_step_begins_once_and_ends_once(case: Case) -> None:
    _, changes = told(cast_of_case(case))
    for what in ("begin", "end"):
        numbers = [change.step.number for change in changes if change.what == what]
        assert sorted(numbers) == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize(**as_parameters(fixture_cases("pi", "qwen", "cursor", "acai", "cake")))
def test_what_the_frontend_saw_and_what_the_child_said_are_the_same_story(case: Case) -> None:
    seen, _ = told(cast_of_case(case))
    said, _ = told(cast_of_case(case, dialect="yume"))
    assert (seen.totals.calls, seen.totals.tokens) == (said.totals.calls, said.totals.tokens)
