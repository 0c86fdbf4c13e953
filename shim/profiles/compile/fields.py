"""Fields of a profile: paths and operators, each compiled once into a function of an event.

                                   HOW A VALUE IS SAID

    "a.b[0].c"                       a path in the event; `[*]` is every item of a list; `a || b` the first there is
    "$.id", "$index"                 in a rule with `foreach`: the item, and its place from 0
    "a.'x.y'"                        a key that has a dot
    { const = V }                    V itself
    { path = P, map = { a = "b" } }  the value's entry, else `default`, else nothing
    { path = P, in = [ … ] }         true or false; so are `not_in` (false for what is not there), `regex` and `exists`
    { path = P, ending = 'R' }       whether the pattern is found in the last 200 characters
    { path = P, parse = "json" }     the value of a text that is JSON
    { path = P, capture = 'R' }      what the pattern's first group (or the whole pattern) found
    { path = P, strip = 'R' }        the text without what the pattern finds in its first and last 4000 characters
    { path = P, unquote_shell = true }   `/bin/sh -lc '…'` without the shell
    { path = P, times = N }          the number times N
    { join = [ … ], sep = " " }      texts behind each other; one path that gives a list is its items
    { plus = [ … ] } { minus = [ … ] }   sums and differences of numbers (of a list: of its items); never below 0
    { any = [ … ] } { all = [ … ] } { not = X }   of things that are true or false
    { foreach = P, item = { k = X } }    a list, one object for each item (`$` in X)
    { object = { k = X } }           an object

A pattern R is one that cannot take long on any text (`regular`).
A value that is not there is nothing at all (None), which every operator takes.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from shim.core.reading.decode import parsed
from shim.profiles.compile.paths import ITEMS, Getter, Scope, path_getter
from shim.profiles.compile.toml_errors import ENDING_CHARACTERS, SEARCHED_CHARACTERS, Spot

if TYPE_CHECKING:
    import re

OPERATORS_DEEP = 16  # inside each other
FIELDS = 100  # of one object, and parts of one operator
_SIGNS = frozenset(r".^$*+?{}[]\|()")  # of a regular expression; a text without them is itself

# -- operators ----------------------------------------------------------------------------------------------------


def field_getter(spot: Spot, depth: int = 0) -> Getter:
    """A field as a profile says it, compiled."""
    if isinstance(spot.value, str):
        return path_getter(spot)
    if not isinstance(spot.value, dict) or depth > OPERATORS_DEEP:
        raise spot.refused(f"a path, or a table with an operator: {', '.join(sorted(_ALONE) + sorted(_OF_A_PATH))}")
    alone = [key for key in spot.value if key in _ALONE]
    if len(alone) == 1:
        operator = alone[0]
        spot.table((operator, *_BESIDE.get(operator, ())))
        return _ALONE[operator](spot, depth + 1)
    if alone or "path" not in spot.value:
        raise spot.refused(f"a table with `path` and an operator, or with one of {', '.join(sorted(_ALONE))}")
    given = spot.table(("path", "default", *_OF_A_PATH))
    get = field_getter(spot.at("path"), depth + 1)
    for operator, build in _OF_A_PATH.items():
        if operator in given:
            get = build(spot.at(operator), get)
    if "default" in given:
        get = _or(get, given["default"])
    return get


def _or(get: Getter, default: Any) -> Getter:
    def value(event: Any, item: Any, scope: Scope) -> Any:
        found = get(event, item, scope)
        return default if found is None else found

    return value


def _const(spot: Spot, depth: int) -> Getter:
    value = spot.value["const"]
    return lambda event, item, scope: value


def parts(spot: Spot, depth: int) -> list[Getter]:
    """The getters of a list of fields."""
    getters = [field_getter(one, depth) for one in spot.items(FIELDS)]
    if not getters:
        raise spot.refused("a list of fields")
    return getters


def _join(spot: Spot, depth: int) -> Getter:
    within = spot.at("join")
    separator = spot.at("sep").value if spot.at("sep") else ""
    if not isinstance(separator, str):
        raise spot.at("sep").refused("a string")
    if not isinstance(within.value, list):
        get = field_getter(within, depth)

        def joined(event: Any, item: Any, scope: Scope) -> Any:
            values = get(event, item, scope)
            return separator.join(map(_said, values)) if values.__class__ is list else values

        return joined
    getters = parts(within, depth)

    def texts(event: Any, item: Any, scope: Scope) -> Any:
        values = [get(event, item, scope) for get in getters]
        return separator.join([_said(value) for value in values if value is not None])

    return texts


def _said(value: Any) -> str:
    if value.__class__ is str:
        return str(value)
    if isinstance(value, dict | list):
        from shim.core.reading.json_text import dump

        return dump(value).decode()
    if value.__class__ is bool:
        return "true" if value else "false"
    return "" if value is None else str(value)


def _number(value: Any) -> int | float:
    if value.__class__ is list:
        return sum(_number(one) for one in value if one.__class__ is not list)
    return value if isinstance(value, int | float) and value.__class__ is not bool else 0


def _plus(spot: Spot, depth: int) -> Getter:
    getters = parts(spot.at("plus"), depth)
    return lambda event, item, scope: sum(_number(get(event, item, scope)) for get in getters)


def _minus(spot: Spot, depth: int) -> Getter:
    first, *others = parts(spot.at("minus"), depth)

    def difference(event: Any, item: Any, scope: Scope) -> Any:
        taken = sum(_number(get(event, item, scope)) for get in others)
        return max(_number(first(event, item, scope)) - taken, 0)

    return difference


def _any(spot: Spot, depth: int) -> Getter:
    getters = parts(spot.at("any"), depth)
    if len(getters) == 2:  # as most have: without a loop
        one, other = getters
        return lambda event, item, scope: bool(one(event, item, scope) or other(event, item, scope))
    return lambda event, item, scope: any(get(event, item, scope) for get in getters)


def _all(spot: Spot, depth: int) -> Getter:
    getters = parts(spot.at("all"), depth)
    return lambda event, item, scope: all(get(event, item, scope) for get in getters)


def _not(spot: Spot, depth: int) -> Getter:
    get = field_getter(spot.at("not"), depth)
    return lambda event, item, scope: not get(event, item, scope)


def fields(spot: Spot, depth: int = 0) -> dict[str, Getter]:
    """A table of fields."""
    if len(spot.table()) > FIELDS:
        raise spot.refused(f"a table of at most {FIELDS} fields", f"a table of {len(spot.value)}")
    return {key: field_getter(spot.at(key), depth) for key in spot.table()}


def made(getters: Mapping[str, Getter]) -> Getter:
    """An object of fields; those that are not there are left out."""
    pairs = tuple(getters.items())

    def value(event: Any, item: Any, scope: Scope) -> Any:
        found = {}
        for key, get in pairs:
            if (one := get(event, item, scope)) is not None:
                found[key] = one
        return found

    return value


def _object(spot: Spot, depth: int) -> Getter:
    return made(fields(spot.at("object"), depth))


def _foreach(spot: Spot, depth: int) -> Getter:
    items = field_getter(spot.at("foreach"), depth)
    within = spot.at("item")
    one = made(fields(within, depth)) if isinstance(within.value, dict) else field_getter(within, depth)

    def values(event: Any, item: Any, scope: Scope) -> Any:
        found = items(event, item, scope)
        if found.__class__ is not list:
            return found
        return [one(event, inner, scope) for inner in found[:ITEMS]]

    return values


# -- operators on what a path gives -------------------------------------------------------------------------------


def _mapped(spot: Spot, get: Getter) -> Getter:
    table = dict(spot.table())

    def value(event: Any, item: Any, scope: Scope) -> Any:
        found = get(event, item, scope)
        if found.__class__ is str:
            return table.get(found)
        if found.__class__ is bool:
            return table.get("true" if found else "false")
        return table.get(str(found)) if found.__class__ is int else None

    return value


def literals(spot: Spot) -> list[Any]:
    """A list of values to compare with."""
    if not isinstance(spot.value, list) or any(isinstance(one, dict | list) for one in spot.value):
        raise spot.refused("a list of strings, numbers or booleans")
    return spot.value


def same(found: Any, wanted: Any) -> bool:
    """Whether a value is a literal: true is not 1."""
    return bool(found == wanted) and (found.__class__ is bool) is (wanted.__class__ is bool)


def _in(spot: Spot, get: Getter) -> Getter:
    wanted = literals(spot)
    return lambda event, item, scope: any(same(get(event, item, scope), one) for one in wanted)


def _not_in(spot: Spot, get: Getter) -> Getter:
    wanted = literals(spot)

    def value(event: Any, item: Any, scope: Scope) -> bool:
        found = get(event, item, scope)
        return found is not None and not any(same(found, one) for one in wanted)

    return value


def _regex(spot: Spot, get: Getter) -> Getter:
    search = spot.pattern().search
    text = spot.text()
    if text[0] == "^" and not _SIGNS.intersection(text[1:]):
        beginning = text[1:]
        return lambda event, item, scope: (
            (found := get(event, item, scope)).__class__ is str and found.startswith(beginning)
        )

    def value(event: Any, item: Any, scope: Scope) -> bool:
        found = get(event, item, scope)
        return found.__class__ is str and search(found, 0, SEARCHED_CHARACTERS) is not None

    return value


def _ending(spot: Spot, get: Getter) -> Getter:
    search = spot.pattern().search

    def value(event: Any, item: Any, scope: Scope) -> bool:
        found = get(event, item, scope)
        return found.__class__ is str and search(found[-ENDING_CHARACTERS:]) is not None

    return value


def _exists(spot: Spot, get: Getter) -> Getter:
    wanted = spot.switch()
    return lambda event, item, scope: (get(event, item, scope) is not None) is wanted


def _parse(spot: Spot, get: Getter) -> Getter:
    spot.choice(("json",))

    def value(event: Any, item: Any, scope: Scope) -> Any:
        found = get(event, item, scope)
        return parsed(found, scope.account) if found.__class__ is str else found

    return value


def _capture(spot: Spot, get: Getter) -> Getter:
    pattern = spot.pattern()
    group = 1 if pattern.groups else 0

    def value(event: Any, item: Any, scope: Scope) -> Any:
        found = get(event, item, scope)
        hit = pattern.search(found, 0, SEARCHED_CHARACTERS) if found.__class__ is str else None
        return hit[group] if hit else None

    return value


def _strip(spot: Spot, get: Getter) -> Getter:
    pattern = spot.pattern()

    def value(event: Any, item: Any, scope: Scope) -> Any:
        found = get(event, item, scope)
        if found.__class__ is not str:
            return found
        return pattern.sub("", found) if len(found) <= SEARCHED_CHARACTERS else _stripped(found, pattern)

    return value


def _stripped(text: str, pattern: "re.Pattern[str]") -> str:
    """A long text without what is found at its two ends; where the first look ends is not the end of the text."""
    spans = {one.span() for one in pattern.finditer(text, 0, SEARCHED_CHARACTERS) if one.end() < SEARCHED_CHARACTERS}
    spans.update(one.span() for one in pattern.finditer(text, len(text) - SEARCHED_CHARACTERS))
    kept, last = [], 0
    for start, end in sorted(spans):
        if start >= last:
            kept.append(text[last:start])
            last = end
    return "".join(kept) + text[last:]


_SHELLS = ("sh", "bash", "zsh", "dash", "ash", "ksh", "fish")


def _unquote(spot: Spot, get: Getter) -> Getter:
    if not spot.switch():
        raise spot.refused("true")

    def value(event: Any, item: Any, scope: Scope) -> Any:
        found = get(event, item, scope)
        return unquoted(found) if found.__class__ is str else found

    return value


def unquoted(command: str) -> str:
    """The command inside `/bin/bash -lc '…'`; another one as it is."""
    if " -" not in command[:40] or command.split(" ", 1)[0].rpartition("/")[2] not in _SHELLS:
        return command
    import shlex

    try:
        words = shlex.split(command)
    except ValueError:
        return command
    return words[2] if len(words) == 3 and words[1] in ("-c", "-lc", "-ic", "-lic") else command


def _times(spot: Spot, get: Getter) -> Getter:
    factor = spot.number(0, 1e9)

    def value(event: Any, item: Any, scope: Scope) -> Any:
        return multiplied(get(event, item, scope), factor)

    return value


def multiplied(found: Any, factor: float) -> Any:
    """A number times a factor, an integer where it is one; another value as it is."""
    if not isinstance(found, int | float) or found.__class__ is bool:
        return found
    product = found * factor
    return int(product) if product == product // 1 else product


_ALONE: dict[str, Callable[[Spot, int], Getter]] = {
    "const": _const,
    "join": _join,
    "plus": _plus,
    "minus": _minus,
    "any": _any,
    "all": _all,
    "not": _not,
    "foreach": _foreach,
    "object": _object,
}
_BESIDE = {"join": ("sep",), "foreach": ("item",)}
# In this order where there are several: what makes a value before what asks about it.
_OF_A_PATH: dict[str, Callable[[Spot, Getter], Getter]] = {
    "unquote_shell": _unquote,
    "strip": _strip,
    "capture": _capture,
    "parse": _parse,
    "times": _times,
    "map": _mapped,
    "in": _in,
    "not_in": _not_in,
    "regex": _regex,
    "ending": _ending,
    "exists": _exists,
}
