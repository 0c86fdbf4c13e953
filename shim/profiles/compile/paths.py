"""Paths of a profile (`a.b[0].c`, `[*]`, `a || b`, `$`, `$index`), each compiled once into a function of an event."""

import re
from collections.abc import Callable
from typing import Any, Protocol

from shim.core.reading.account import Account
from shim.profiles.compile.toml_errors import Spot

PATH_CHARACTERS = 300
ITEMS = 10_000  # of a list that a rule walks over: more than any vendor prints in one line


class Scope(Protocol):
    """What a value may depend on besides the event: the account of repairs, and the place of the item."""

    index: int

    @property
    def account(self) -> Account:
        """Where repairs are counted."""


Getter = Callable[[Any, Any, Scope], Any]

_STEP = r"\.?(?:([A-Za-z0-9_@:/-]+)|'([^']+)'|\"([^\"]+)\")|\[(\*|-?\d{1,4})\]"

EVERY = "*"


class _Every:
    """Stands for `[*]`, which no key can be."""


_EVERY = _Every()


def path_getter(spot: Spot) -> Getter:
    """A path, compiled."""
    text = spot.text()
    if len(text) > PATH_CHARACTERS:
        raise spot.refused(f"a path of at most {PATH_CHARACTERS} characters")
    getters = [_one_path(spot, part.strip()) for part in text.split("||")]
    if len(getters) == 1:
        return getters[0]
    if len(getters) == 2:
        one, other = getters

        def either(event: Any, item: Any, scope: Scope) -> Any:
            value = one(event, item, scope)
            return other(event, item, scope) if value is None else value

        return either

    def first(event: Any, item: Any, scope: Scope) -> Any:
        for get in getters:
            if (value := get(event, item, scope)) is not None:
                return value
        return None

    return first


def _one_path(spot: Spot, text: str) -> Getter:
    if text == "$index":
        return lambda event, item, scope: scope.index
    of_item = text.startswith("$")
    steps = _steps(spot, text[1:] if of_item else text, may_be_empty=of_item)
    if of_item:
        if not steps:
            return lambda event, item, scope: item
        walk = _walker(steps)
        return lambda event, item, scope: walk(item)
    if len(steps) == 1 and isinstance(steps[0], str):
        key = steps[0]
        return lambda event, item, scope: event.get(key)
    if len(steps) == 2 and isinstance(steps[0], str) and isinstance(steps[1], str):
        return _two_keys(steps[0], steps[1])
    walk = _walker(steps)
    return lambda event, item, scope: walk(event)


def _two_keys(outer: str, inner: str) -> Getter:
    def two(event: Any, item: Any, scope: Scope) -> Any:
        value = event.get(outer)
        return value.get(inner) if value.__class__ is dict else None

    return two


def _steps(spot: Spot, text: str, *, may_be_empty: bool) -> list[Any]:
    if may_be_empty and text[:1] not in ("", ".", "["):
        raise spot.refused("$, $index, or a path behind it such as $.id", f"${text}")
    plain = text.removeprefix(".") if may_be_empty else text
    steps: list[Any] = []
    for part in plain.split("."):  # of nearly all paths; a pattern costs more to compile than a profile to read
        key, bracket, place = part.partition("[")
        if not key.isidentifier() or (bracket and not (place == "*]" or (place[:-1].isdecimal() and len(place) < 6))):
            break
        steps += [key] if not bracket else [key, _EVERY if place == "*]" else int(place[:-1])]
        if bracket and place[-1] != "]":
            break
    else:
        return steps
    steps.clear()
    pattern, position = re.compile(_STEP), 0
    while position < len(text):
        found = pattern.match(text, position)
        if found is None or (position == 0 and text[0] == "." and not may_be_empty):
            break
        if found[4] is not None:
            steps.append(_EVERY if found[4] == EVERY else int(found[4]))
        elif position and text[position] != ".":
            break
        else:
            steps.append(found[1] or found[2] or found[3])
        position = found.end()
    if position < len(text) or not (steps or may_be_empty):
        raise spot.refused("a path: keys with dots between them, [0], [*], `||` between two of them", text)
    return steps


def _walker(steps: list[Any]) -> Callable[[Any], Any]:
    """A walk from a value along steps."""
    for position, step in enumerate(steps):
        if step is _EVERY:
            return _each(_walker(steps[:position]), _walker(steps[position + 1 :]))
    if all(isinstance(step, str) for step in steps):

        def keys(value: Any) -> Any:
            for step in steps:
                if value.__class__ is not dict:
                    return None
                value = value.get(step)
            return value

        return keys

    def walk(value: Any) -> Any:
        for step in steps:
            if step.__class__ is str:
                value = value.get(step) if value.__class__ is dict else None
            elif value.__class__ is list and -len(value) <= step < len(value):
                value = value[step]
            else:
                return None
        return value

    return walk


def _each(before: Callable[[Any], Any], behind: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def walk(value: Any) -> Any:
        items = before(value)
        if items.__class__ is not list:
            return None
        found = [behind(item) for item in items[:ITEMS]]
        return [one for one in found if one is not None] or None  # none of them has it: as if it were not there

    return walk
