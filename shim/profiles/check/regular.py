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

MANY = 50  # repetitions of `{n,m}` are as good as without an end
SAMPLES = "".join(map(chr, range(128))) + "é—"  # the characters that two parts may have in common
CUT = "a regular expression without a repetition, a choice or a ? inside a repeated group"
SHARED = "a regular expression whose repetitions cannot match the same text: put ^ in front, or characters between them"

Characters = frozenset[str]
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")


class _CutError(Exception):
    """The turns of a repeated group can be cut differently."""


class _Way(NamedTuple):
    """What is known behind a part of a pattern.

    degree      the power of the time that it takes
    shared      the characters that the last repetition may still take
    characters  those that the part itself takes
    varies      it can match texts of different lengths, other than by alternatives that begin
                differently
    """

    degree: int
    shared: Characters
    characters: Characters = frozenset()
    varies: bool = False


def fault(pattern: str) -> str:
    """What a pattern must be and is not; "" for a good one, and for one that does not compile."""
    try:
        tree = _parser.parse(pattern)
        anchored = bool(tree) and str(tree[0][1]) in ("AT_BEGINNING", "AT_BEGINNING_STRING")
        start = 0 if anchored and not tree.state.flags & re.MULTILINE else 1
        return (
            SHARED if _sequence(tree, _Way(start, frozenset()), tree.state.flags).degree > 1 else ""
        )
    except _CutError:
        return CUT
    except (re.error, RecursionError, OverflowError):
        return ""


def _sequence(parts: Any, before: _Way, flags: int) -> _Way:
    """Parts behind each other; `before` is what is known in front of them."""
    way = before._replace(characters=frozenset(), varies=False)
    for operator, value in parts:
        name, least, most, inner = str(operator), 1, 1, [(operator, value)]
        if name in _REPEATS:
            least, most, inner = value
        if name != "AT":
            way = _repeated(way, inner, int(least), int(most), flags)
    return way


def _repeated(before: _Way, parts: Any, least: int, most: int, flags: int) -> _Way:
    """Parts that come at least and at most so many times."""
    inner = _group(parts, before, flags)
    if inner.varies and most > 1:
        raise _CutError
    shared = inner.shared | (frozenset() if least else before.shared)
    degree = inner.degree
    if most > MANY and most > least:
        degree += bool(inner.characters & before.shared)
        shared |= inner.characters
    varies = before.varies or inner.varies or most > least
    return _Way(degree, shared, before.characters | inner.characters, varies)


def _group(parts: Any, before: _Way, flags: int) -> _Way:
    """One part, or those of a group."""
    if len(parts) != 1:
        return _sequence(parts, before, flags)
    ((operator, value),) = parts
    match str(operator):
        case "SUBPATTERN":
            _, added, removed, inner = value
            return _sequence(inner, before, (flags | added) & ~removed)
        case "ASSERT" | "ASSERT_NOT":
            return _sequence(value[1], before, flags)
        case "ATOMIC_GROUP":
            return _sequence(value, before, flags)
        case "BRANCH":
            return _alternatives(value[1], before, flags)
        case "GROUPREF_EXISTS":
            return _alternatives([one or [] for one in value[1:]], before, flags)
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return _sequence(parts, before, flags)
    taken = _characters(operator, value, flags)
    meets = bool(taken & before.shared)
    return _Way(before.degree, before.shared if meets else frozenset(), taken)


def _alternatives(alternatives: Iterable[Any], before: _Way, flags: int) -> _Way:
    """One of several: a text is cut in one way only where each begins with a character of its own."""
    ways = [_sequence(one, before, flags) for one in alternatives]
    firsts = [
        chr(one[0][1]).casefold() if one and str(one[0][0]) == "LITERAL" else ""
        for one in alternatives
    ]
    return _Way(
        max(way.degree for way in ways),
        frozenset().union(*(way.shared for way in ways)),
        frozenset().union(*(way.characters for way in ways)),
        any(way.varies for way in ways) or "" in firsts or len(set(firsts)) < len(firsts),
    )


def _characters(operator: Any, value: Any, flags: int) -> Characters:
    """Which of the samples one part matches; of a literal the literal itself."""
    if str(operator) == "GROUPREF":
        return frozenset(SAMPLES)
    found = {chr(value)} if str(operator) == "LITERAL" else set[str]()
    one = _parser.SubPattern(_parser.State(), [(operator, value)])
    found.update(_compiler.compile(one, flags & re.IGNORECASE | re.DOTALL).findall(SAMPLES))
    return frozenset(found)
