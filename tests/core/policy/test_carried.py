"""A policy that is carried to another process is the same policy there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.core.policy.carried import read, written
from shim.core.policy.place import Place
from shim.core.policy.policy import MODES, Policy
from shim.core.policy.rules import Rule

TEXTS = st.text(max_size=20) | st.just("\udcff") | st.just("a'b\"c\\\n\x7f\0")  # names may hold bytes that are no text
RULES = st.lists(st.builds(Rule, TEXTS, st.none() | TEXTS, TEXTS, TEXTS), max_size=4)


@given(RULES, RULES, RULES, st.none() | st.lists(TEXTS, max_size=3), TEXTS, st.sampled_from(MODES))
def test_a_policy_comes_back_as_it_was(deny, ask, allow, only, folder, mode):
    place = Place(f"/{folder}", "/home", ("../other", folder))
    text = written(Policy(place=place, only=only, deny=deny, ask=ask, allow=allow), mode)
    assert text.isascii() and text.isprintable()
    policy, told = read(text, place.real)
    assert (policy.deny, policy.ask, policy.allowed, told) == (tuple(deny), tuple(ask), tuple(allow), mode)
    assert (policy.only, policy.place) == (
        None if only is None else frozenset(Policy(place=place, only=only).only),
        place,
    )


@pytest.mark.parametrize("text", ["", "{}", "1", "('default',)", "__import__('os')", "(" * 5000, "\0"])
def test_another_text_is_no_policy(text):
    with pytest.raises(ValueError, match=r"."):
        read(text, str)
