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
SAMPLE_CHARACTERS = (
    "".join(map(chr, range(128))) + "é—"
)  # the characters that two parts may have in common
AMBIGUOUS_GROUP = (
    "a regular expression without a repetition, a choice or a ? inside a repeated group"
)
OVERLAPPING_REPEATS = "a regular expression whose repetitions cannot match the same text: put ^ in front, or characters between them"

CharacterSet = frozenset[str]
_REPEAT_OPERATORS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")


class _AmbiguousGroupError(Exception):
    """The turns of a repeated group can be cut differently."""


class _MatchCost(NamedTuple):
    """What is known behind a part of a pattern.

    degree      the power of the time that it takes
    shared      the characters that the last repetition may still take
    characters  those that the part itself takes
    varies      it can match texts of different lengths, other than by alternatives that begin
                differently
    """

    exponent: int
    extendable: CharacterSet
    characters: CharacterSet = frozenset()
    has_variable_length: bool = False


def explain_slow_regex(pattern: str) -> str:
    """What a pattern must be and is not; "" for a good one, and for one that does not compile."""
    try:
        tree = _parser.parse(pattern)
        anchored = bool(tree) and str(tree[0][1]) in ("AT_BEGINNING", "AT_BEGINNING_STRING")
        start = 0 if anchored and not tree.state.flags & re.MULTILINE else 1
        return (
            OVERLAPPING_REPEATS
            if _analyze_sequence(tree, _MatchCost(start, frozenset()), tree.state.flags).exponent
            > 1
            else ""
        )
    except _AmbiguousGroupError:
        return AMBIGUOUS_GROUP
    except (re.error, RecursionError, OverflowError):
        return ""


def _analyze_sequence(parts: Any, before: _MatchCost, flags: int) -> _MatchCost:
    """Parts behind each other; `before` is what is known in front of them."""
    way = before._replace(characters=frozenset(), has_variable_length=False)
    for operator, value in parts:
        name, least, most, inner = str(operator), 1, 1, [(operator, value)]
        if name in _REPEAT_OPERATORS:
            least, most, inner = value
        if name != "AT":
            way = _analyze_repeat(way, inner, int(least), int(most), flags)
    return way


def _analyze_repeat(
    before: _MatchCost, parts: Any, least: int, most: int, flags: int
) -> _MatchCost:
    """Parts that come at least and at most so many times."""
    inner = _analyze_part(parts, before, flags)
    if inner.has_variable_length and most > 1:
        raise _AmbiguousGroupError
    shared = inner.extendable | (frozenset() if least else before.extendable)
    degree = inner.exponent
    if most > MIN_UNBOUNDED_REPEATS and most > least:
        degree += bool(inner.characters & before.extendable)
        shared |= inner.characters
    varies = before.has_variable_length or inner.has_variable_length or most > least
    return _MatchCost(degree, shared, before.characters | inner.characters, varies)


def _analyze_part(parts: Any, before: _MatchCost, flags: int) -> _MatchCost:
    """One part, or those of a group."""
    if len(parts) != 1:
        return _analyze_sequence(parts, before, flags)
    ((operator, value),) = parts
    match str(operator):
        case "SUBPATTERN":
            _, added, removed, inner = value
            return _analyze_sequence(inner, before, (flags | added) & ~removed)
        case "ASSERT" | "ASSERT_NOT":
            return _analyze_sequence(value[1], before, flags)
        case "ATOMIC_GROUP":
            return _analyze_sequence(value, before, flags)
        case "BRANCH":
            return _analyze_alternatives(value[1], before, flags)
        case "GROUPREF_EXISTS":
            return _analyze_alternatives([one or [] for one in value[1:]], before, flags)
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return _analyze_sequence(parts, before, flags)
    taken = _list_matching_characters(operator, value, flags)
    meets = bool(taken & before.extendable)
    return _MatchCost(before.exponent, before.extendable if meets else frozenset(), taken)


def _analyze_alternatives(
    alternatives: Iterable[Any], before: _MatchCost, flags: int
) -> _MatchCost:
    """One of several: a text is cut in one way only where each begins with a character of its own."""
    ways = [_analyze_sequence(one, before, flags) for one in alternatives]
    firsts = [
        chr(one[0][1]).casefold() if one and str(one[0][0]) == "LITERAL" else ""
        for one in alternatives
    ]
    return _MatchCost(
        max(way.exponent for way in ways),
        frozenset().union(*(way.extendable for way in ways)),
        frozenset().union(*(way.characters for way in ways)),
        any(way.has_variable_length for way in ways)
        or "" in firsts
        or len(set(firsts)) < len(firsts),
    )


def _list_matching_characters(operator: Any, value: Any, flags: int) -> CharacterSet:
    """Which of the samples one part matches; of a literal the literal itself."""
    if str(operator) == "GROUPREF":
        return frozenset(SAMPLE_CHARACTERS)
    found = {chr(value)} if str(operator) == "LITERAL" else set[str]()
    one = _parser.SubPattern(_parser.State(), [(operator, value)])
    found.update(
        _compiler.compile(one, flags & re.IGNORECASE | re.DOTALL).findall(SAMPLE_CHARACTERS)
    )
    return frozenset(found)
