r"""Checks that a profile's regular expression cannot be slow on any text.

A vendor's text is untrusted, and Python's `re` backtracks. Two kinds of patterns are refused:

- A repeated group that can match the same text in different ways: `(a+)+`, `(a|ab)*`, `(aa?){9}`.
  The matching time doubles with each character or repetition.
- Repetitions that can match the same characters: `.*x.*y`, `^\s*(.*?)\s*$`. The matching time grows
  with the cube of the text's length.

Two such repetitions are allowed after `^`, and one repetition in a pattern without an anchor. Their
matching time grows with the square of the number of searched characters, and few characters are
searched.

The syntax tree comes from Python's own parser, so the check sees the pattern exactly as it runs.
"""

import re
from collections.abc import Iterable
from re import _compiler, _parser  # type: ignore[attr-defined]  # the parser has no public API
from typing import Any, NamedTuple

MIN_UNBOUNDED_REPEATS = 50  # `{n,m}` with a larger `m` counts as unbounded
# The sample characters. Two parts that match the same sample can match the same text.
SAMPLE_CHARACTERS = "".join(map(chr, range(128))) + "é—"
AMBIGUOUS_GROUP = (
    "a regular expression without a repetition, a choice or a ? inside a repeated group"
)
OVERLAPPING_REPEATS = (
    "a regular expression whose repetitions cannot overlap: "
    "begin it with ^, or put characters between the repetitions"
)

CharacterSet = frozenset[str]
_REPEAT_OPERATORS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")


class _AmbiguousGroupError(Exception):
    """Raised for a repeated group that can match the same text in different ways."""


class _MatchCost(NamedTuple):
    """The worst-case matching cost of a regular expression, computed part by part.

    exponent             the matching time grows with this power of the text's length
    extendable           the characters that the last repetition so far can still match
    characters           the characters that the analyzed part itself can match
    has_variable_length  whether the analyzed parts match texts of different lengths; alternatives
                         that begin with different characters do not count
    """

    exponent: int
    extendable: CharacterSet
    characters: CharacterSet = frozenset()
    has_variable_length: bool = False


def explain_slow_regex(pattern: str) -> str:
    """Return a description of the allowed patterns if `pattern` may be slow. Return "" if the
    pattern is allowed or does not compile.
    """
    try:
        tree = _parser.parse(pattern)
        start_exponent = 1
        if (
            tree
            and str(tree[0][1]) in ("AT_BEGINNING", "AT_BEGINNING_STRING")
            and not tree.state.flags & re.MULTILINE
        ):
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
    """Return the matching cost after a sequence of parts. `previous` is the cost before the
    sequence.
    """
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
    """Return the matching cost after parts that repeat `min_count` to `max_count` times."""
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
    """Return the matching cost up to the end of one part of a regular expression. For a group, this
    is the cost up to the end of the group.
    """
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
    if is_overlapping:
        extendable = previous.extendable
    else:
        extendable = frozenset()
    return _MatchCost(previous.exponent, extendable, characters)


def _analyze_alternatives(
    alternatives: Iterable[Any], previous: _MatchCost, flags: int
) -> _MatchCost:
    """Return the matching cost after a choice between alternatives. A text matches in exactly one
    way only if the alternatives begin with different literals.
    """
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
    """Return the sample characters that a part matches. The result includes a literal even if it is
    not one of the samples.
    """
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
