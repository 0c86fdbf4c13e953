"""Which regular expressions a profile may have: those that cannot take long on any text.

A vendor's text is anybody's words, and Python's `re` tries every way to match. Two forms are
refused: a repeated group whose turns can be cut differently (`(a+)+`, `(a|ab)*`, `(aa?){9}`: the
time doubles with each character or turn), and repetitions that share a text between them (`.*x.*y`,
`^\\s*(.*?)\\s*$`: the time grows with the cube of its length). One such pair is allowed behind `^`,
and one repetition anywhere: the time is then the square of the few characters that are looked at.

The tree is that of Python's own parser, so what is judged here is what will run.
"""

import re
from collections.abc import Iterable
from re import _compiler, _parser  # type: ignore[attr-defined]  # no public module has the tree
from typing import Any, NamedTuple

MIN_UNBOUNDED_REPEATS = 50  # repetitions of `{n,m}` are as good as without an end
# the characters that two parts may have in common
SAMPLE_CHARACTERS = "".join(map(chr, range(128))) + "é—"
AMBIGUOUS_GROUP = (
    "a regular expression without a repetition, a choice or a ? inside a repeated group"
)
OVERLAPPING_REPEATS = (
    "a regular expression whose repetitions cannot match the same text: "
    "put ^ in front, or characters between them"
)

CharacterSet = frozenset[str]
_REPEAT_OPERATORS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")


class _AmbiguousGroupError(Exception):
    """The turns of a repeated group can be cut differently."""


class _MatchCost(NamedTuple):
    """What is known behind a part of a pattern.

    exponent             the power of the time that it takes
    extendable           the characters that the last repetition may still take
    characters           those that the part itself takes
    has_variable_length  it can match texts of different lengths, other than by alternatives that
                         begin differently
    """

    exponent: int
    extendable: CharacterSet
    characters: CharacterSet = frozenset()
    has_variable_length: bool = False


def explain_slow_regex(pattern: str) -> str:
    """What a pattern must be and is not; "" for a good one, and for one that does not compile."""
    try:
        tree = _parser.parse(pattern)
        is_anchored = bool(tree) and str(tree[0][1]) in ("AT_BEGINNING", "AT_BEGINNING_STRING")
        start_exponent = 1
        if is_anchored and not tree.state.flags & re.MULTILINE:
            start_exponent = 0
        if (
            _analyze_sequence(
                tree, _MatchCost(start_exponent, frozenset()), tree.state.flags
            ).exponent
            > 1
        ):
            return OVERLAPPING_REPEATS
        return ""
    except _AmbiguousGroupError:
        return AMBIGUOUS_GROUP
    except (re.error, RecursionError, OverflowError):
        return ""


def _analyze_sequence(parts: Any, previous: _MatchCost, flags: int) -> _MatchCost:
    """Parts behind each other; `previous` is what is known in front of them."""
    cost = previous._replace(characters=frozenset(), has_variable_length=False)
    for operator, value in parts:
        name = str(operator)
        min_count = 1
        max_count = 1
        repeated_parts = [(operator, value)]
        if name in _REPEAT_OPERATORS:
            min_count, max_count, repeated_parts = value
        if name != "AT":
            cost = _analyze_repeat(cost, repeated_parts, int(min_count), int(max_count), flags)
    return cost


def _analyze_repeat(
    previous: _MatchCost, parts: Any, min_count: int, max_count: int, flags: int
) -> _MatchCost:
    """Parts that come at least and at most so many times."""
    inner_cost = _analyze_part(parts, previous, flags)
    if inner_cost.has_variable_length and max_count > 1:
        raise _AmbiguousGroupError
    extendable = inner_cost.extendable | (frozenset() if min_count else previous.extendable)
    exponent = inner_cost.exponent
    if max_count > MIN_UNBOUNDED_REPEATS and max_count > min_count:
        exponent += bool(inner_cost.characters & previous.extendable)
        extendable |= inner_cost.characters
    has_variable_length = (
        previous.has_variable_length or inner_cost.has_variable_length or max_count > min_count
    )
    return _MatchCost(
        exponent, extendable, previous.characters | inner_cost.characters, has_variable_length
    )


def _analyze_part(parts: Any, previous: _MatchCost, flags: int) -> _MatchCost:
    """One part, or those of a group."""
    if len(parts) != 1:
        return _analyze_sequence(parts, previous, flags)
    ((operator, value),) = parts
    match str(operator):
        case "SUBPATTERN":
            _, added_flags, removed_flags, inner_parts = value
            return _analyze_sequence(inner_parts, previous, (flags | added_flags) & ~removed_flags)
        case "ASSERT" | "ASSERT_NOT":
            return _analyze_sequence(value[1], previous, flags)
        case "ATOMIC_GROUP":
            return _analyze_sequence(value, previous, flags)
        case "BRANCH":
            return _analyze_alternatives(value[1], previous, flags)
        case "GROUPREF_EXISTS":
            return _analyze_alternatives(
                [alternative or [] for alternative in value[1:]], previous, flags
            )
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return _analyze_sequence(parts, previous, flags)
    characters = _list_matching_characters(operator, value, flags)
    is_overlapping = bool(characters & previous.extendable)
    return _MatchCost(
        previous.exponent, previous.extendable if is_overlapping else frozenset(), characters
    )


def _analyze_alternatives(
    alternatives: Iterable[Any], previous: _MatchCost, flags: int
) -> _MatchCost:
    """One of several: a text is cut in one way only where each begins with a character of its own."""
    costs = [_analyze_sequence(alternative, previous, flags) for alternative in alternatives]
    first_letters = [
        chr(alternative[0][1]).casefold()
        if alternative and str(alternative[0][0]) == "LITERAL"
        else ""
        for alternative in alternatives
    ]
    return _MatchCost(
        max(cost.exponent for cost in costs),
        frozenset().union(*(cost.extendable for cost in costs)),
        frozenset().union(*(cost.characters for cost in costs)),
        any(cost.has_variable_length for cost in costs)
        or "" in first_letters
        or len(set(first_letters)) < len(first_letters),
    )


def _list_matching_characters(operator: Any, value: Any, flags: int) -> CharacterSet:
    """Which of the samples one part matches; of a literal the literal itself."""
    if str(operator) == "GROUPREF":
        return frozenset(SAMPLE_CHARACTERS)
    if str(operator) == "LITERAL":
        characters = {chr(value)}
    else:
        characters = set[str]()
    pattern = _parser.SubPattern(_parser.State(), [(operator, value)])
    characters.update(
        _compiler.compile(pattern, flags & re.IGNORECASE | re.DOTALL).findall(SAMPLE_CHARACTERS)
    )
    return frozenset(characters)
