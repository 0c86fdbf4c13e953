"""Fields of a profile: paths and operators, each written as a Python expression.

                                   HOW A VALUE IS SAID

    "a.b[0].c"                       a path in the event; `[*]` is every item of a list; `a || b`
                                     the first there is
    "$.id", "$index"                 in a rule with `foreach`: the item, and its place from 0
    "a.'x.y'"                        a key that has a dot
    { const = V }                    V itself
    { path = P, map = { a = "b" } }  the value's entry, else `default`, else nothing
    { path = P, in = [ … ] }         true or false; so are `not_in` (false for what is not there),
                                     `regex` and `exists`
    { path = P, ending = 'R' }       whether the pattern is found in the last 200 characters
    { path = P, parse = "json" }     the value of a text that is JSON
    { path = P, capture = 'R' }      what the pattern's first group (or the whole pattern) found
    { path = P, strip = 'R' }        the text without what the pattern finds in its first and last
                                     4000 characters
    { path = P, unquote_shell = true }   `/bin/sh -lc '…'` without the shell
    { path = P, times = N }          the number times N
    { join = [ … ], sep = " " }      texts behind each other; one path that gives a list is its
                                     items
    { plus = [ … ] } { minus = [ … ] }   sums and differences of numbers (of a list: of its items);
                                         never below 0
    { any = [ … ] } { all = [ … ] } { not = X }   of things that are true or false
    { foreach = P, item = { k = X } }    a list, one object for each item (`$` in X)
    { object = { k = X } }           an object

A pattern R is one that cannot take long on any text (`check/regular.py`).
A value that is not there is nothing at all (None), which every operator takes.
"""

from collections.abc import Callable, Iterator
from typing import Any

from shim.profiles.check.toml_errors import MAX_ENDING_CHARS, MAX_SEARCHED_CHARS, ConfigNode
from shim.profiles.compile.paths import path
from shim.profiles.compile.source import ITEM, Function, Subject, literal
from shim.profiles.run.values import ITEMS, NAMES, Pattern

OPERATORS_DEEP = 16  # inside each other
OPERATORS_TOGETHER = 4  # inside each other in one expression
FIELDS = 100  # of one object, and parts of one operator
_SIGNS = frozenset(r".^$*+?{}[]\|()")  # of a regular expression; a text without them is itself
_TRUTHS = frozenset(("in", "not_in", "regex", "ending", "exists", "any", "all", "not"))

Alone = Callable[[ConfigNode, Function, int], str]  # how deep the operator stands comes last
OfAPath = Callable[[ConfigNode, Function, str], str]  # the expression of the value comes last


def field(spot: ConfigNode, here: Function, depth: int = 0) -> str:
    """A field as a profile says it, as an expression."""
    if isinstance(spot.value, str):
        return path(spot, here)
    if not isinstance(spot.value, dict) or depth > OPERATORS_DEEP:
        raise spot.build_error(
            f"a path, or a table with an operator: {', '.join(sorted(_ALONE) + sorted(_OF_A_PATH))}"
        )
    if depth % OPERATORS_TOGETHER == 0 and depth:
        return _apart(spot, here, depth)
    return _operated(spot, here, depth)


def _apart(spot: ConfigNode, here: Function, depth: int) -> str:
    """A field in a function of its own, because Python has a limit for parentheses inside each
    other.
    """
    inner = Function("engine, event, item, index")
    inner.item, inner.index = here.item and ITEM, "index"
    inner.line(f"return {_operated(spot, inner, depth)}")
    item = here.item.name if here.item else "None"
    return f"{here.constant(inner.made('field', NAMES))}(engine, event, {item}, {here.index})"


def _operated(spot: ConfigNode, here: Function, depth: int) -> str:
    """A table with an operator, as an expression."""
    alone = [key for key in spot.value if key in _ALONE]
    if len(alone) == 1:
        operator = alone[0]
        spot.read_table((operator, *_BESIDE.get(operator, ())))
        return _ALONE[operator](spot, here, depth + 1)
    if alone or "path" not in spot.value:
        raise spot.build_error(
            f"a table with `path` and an operator, or with one of {', '.join(sorted(_ALONE))}"
        )
    given = spot.read_table(("path", "default", *_OF_A_PATH))
    value = field(spot.child("path"), here, depth + 1)
    for operator, build in _OF_A_PATH.items():
        if operator in given:
            value = build(spot.child(operator), here, value)
    if "default" in given:
        found, again = here.held(value)
        value = f"({again} if {found} is not None else {_value(given['default'], here)})"
    return value


def fields_of(spot: ConfigNode) -> Iterator[ConfigNode]:
    """Every path that stands somewhere in a rule's fields, as far as it begins at the event."""
    if isinstance(spot.value, str):
        yield spot
    elif isinstance(spot.value, list):
        for place in range(len(spot.value)):
            yield from fields_of(spot.child(place))
    elif isinstance(spot.value, dict):
        for key in spot.value:
            if key not in _NO_FIELDS:
                yield from fields_of(spot.child(key))


def optional(spot: ConfigNode, here: Function) -> str:
    """A field that a rule need not have."""
    return field(spot, here) if spot else "None"


def truth(spot: ConfigNode, here: Function) -> str:
    """A field that a rule need not have, as True or False."""
    if not spot:
        return "False"
    value = field(spot, here)
    known = isinstance(spot.value, dict) and not _TRUTHS.isdisjoint(spot.value)
    return value if known or value in ("True", "False") else f"bool({value})"


def literals(spot: ConfigNode) -> list[Any]:
    """A list of values to compare with."""
    if not isinstance(spot.value, list) or any(isinstance(one, dict | list) for one in spot.value):
        raise spot.build_error("a list of strings, numbers or booleans")
    return spot.value


def is_among(value: str, wanted: list[Any], here: Function) -> str:
    """Whether a value is one of some literals."""
    if len(wanted) == 1:
        (only,) = wanted
        if only.__class__ is str:
            return f"({value} == {literal(only)})"
        if only.__class__ is bool:
            return f"({value} is {literal(only)})"
        if only.__class__ is int:
            found, again = here.held(value)
            return f"({found} == {literal(only)} and {again}.__class__ is not bool)"
    elif all(one.__class__ is str for one in wanted):
        found, again = here.held(value)
        return f"({found}.__class__ is str and {again} in {here.constant(frozenset(wanted))})"
    return f"among({value}, {here.constant(tuple(wanted))})"


def matches(spot: ConfigNode, value: str, here: Function) -> str:
    """Whether a pattern is found in a text; a pattern that is only a text needs no search."""
    text = spot.read_regex()
    found, again = here.held(value)
    if _SIGNS.isdisjoint(text.removeprefix("^")):
        asked = f"{literal(text)} in {again}[:{MAX_SEARCHED_CHARS}]"
        if text[0] == "^":
            asked = f"{again}.startswith({literal(text[1:])})"
    else:
        asked = (
            f"{here.constant(Pattern(text))}.search({again}, 0, {MAX_SEARCHED_CHARS}) is not None"
        )
    return f"({found}.__class__ is str and {asked})"


def beginning(regex: str) -> str:
    """A text with which everything begins that a regular expression finds; "" where that cannot be
    seen at once.
    """
    chooses = "|" in regex.replace("\\\\", "").replace("\\|", "")
    found, letters = "", iter("" if chooses else regex)
    for letter in letters:
        if letter == "\\":
            letter = next(letters, "a")
            if letter.isalnum():
                break
        elif letter in _SIGNS:
            return found[:-1] if letter in "*?{" else found
        found += letter
    return found


def _value(value: Any, here: Function) -> str:
    plain = value is None or value.__class__ in (str, int, bool)
    return literal(value) if plain else here.constant(value)


# Keys of rules and fields under which no path of the event stands.
_NO_FIELDS = frozenset(
    (
        *(
            "match",
            "item_match",
            "foreach",
            "item",
            "once",
            "emit",
            "mode",
            "cause",
            "note",
            "const",
            "sep",
            "map",
        ),
        *("default", "in", "not_in", "regex", "ending", "parse", "capture", "strip"),
    )
)

# -- operators that stand alone --------------------------------------------------------------------


def _parts(spot: ConfigNode, here: Function, depth: int) -> list[str]:
    found = [field(one, here, depth) for one in spot.read_items(FIELDS)]
    if not found:
        raise spot.build_error("a list of fields")
    return found


def _of_parts(key: str, call: str, between: str = ", ") -> Alone:
    """The operator `key`: a call with all its parts."""
    return lambda spot, here, depth: call.format(between.join(_parts(spot.child(key), here, depth)))


def _join(spot: ConfigNode, here: Function, depth: int) -> str:
    within = spot.child("join")
    separator = spot.child("sep").value if spot.child("sep") else ""
    if not isinstance(separator, str):
        raise spot.child("sep").build_error("a string")
    if not isinstance(within.value, list):
        return f"joined({field(within, here, depth)}, {literal(separator)})"
    parts = [f"str({part})" if part == here.index else part for part in _parts(within, here, depth)]
    return f"together({literal(separator)}, {', '.join(parts)})"


def fields(spot: ConfigNode, here: Function, depth: int = 0) -> dict[str, str]:
    if len(spot.read_table()) > FIELDS:
        raise spot.build_error(
            f"a table of at most {FIELDS} fields", f"a table of {len(spot.value)}"
        )
    return {key: field(spot.child(key), here, depth) for key in spot.read_table()}


def _fields_there(spot: ConfigNode, here: Function, depth: int) -> str:
    """An object of fields; those that are not there are left out."""
    found = fields(spot, here, depth)
    if len(found) == 1:
        ((key, value),) = found.items()
        held, again = here.held(value)
        return f"({{{literal(key)}: {again}}} if {held} is not None else {{}})"
    return f"there({{{', '.join(f'{literal(key)}: {value}' for key, value in found.items())}}})"


def _foreach(spot: ConfigNode, here: Function, depth: int) -> str:
    items, again = here.held(field(spot.child("foreach"), here, depth))
    outer, here.item = here.item, Subject(here.variable(), shared=False)
    within, name = spot.child("item"), here.item.name
    one = (
        _fields_there(within, here, depth)
        if isinstance(within.value, dict)
        else field(within, here, depth)
    )
    here.item = outer
    return f"([{one} for {name} in {again}[:{ITEMS}]] if {items}.__class__ is list else {again})"


# -- operators on what a path gives ----------------------------------------------------------------


def _mapped(spot: ConfigNode, here: Function, value: str) -> str:
    (found, again), table = here.held(value), here.constant(dict(spot.read_table()))
    return f"({table}.get({again}) if {found}.__class__ is str else mapped({again}, {table}))"


def _not_in(spot: ConfigNode, here: Function, value: str) -> str:
    found, again = here.held(value)
    return f"({found} is not None and not {is_among(again, literals(spot), here)})"


def _ending(spot: ConfigNode, here: Function, value: str) -> str:
    text, (found, again) = spot.read_regex(), here.held(value)
    end, tail = here.held(f"{again}[-{MAX_ENDING_CHARS}:]")
    # A look for its beginning is cheaper than a search, and nearly always the answer.
    first = f"{literal(beginning(text))} in {end}"
    search = f"{here.constant(Pattern(text))}.search({tail}) is not None"
    return f"({found}.__class__ is str and {first} and {search})"


def _exists(spot: ConfigNode, here: Function, value: str) -> str:
    return f"({value} {'is not' if spot.read_bool() else 'is'} None)"


def _parse(spot: ConfigNode, here: Function, value: str) -> str:
    spot.read_choice(("json",))
    found, again = here.held(value)
    return f"(parsed({again}, engine.turn.account) if {found}.__class__ is str else {again})"


def _with_pattern(call: str) -> OfAPath:
    """The operator that calls `call` with the value and a pattern."""
    return lambda spot, here, value: f"{call}({value}, {here.constant(Pattern(spot.read_regex()))})"


def _unquote(spot: ConfigNode, here: Function, value: str) -> str:
    if not spot.read_bool():
        raise spot.build_error("true")
    return f"unquoted({value})"


def _times(spot: ConfigNode, here: Function, value: str) -> str:
    return f"multiplied({value}, {here.constant(spot.read_number(0, 1e9))})"


_ALONE: dict[str, Alone] = {
    "const": lambda spot, here, depth: _value(spot.value["const"], here),
    "join": _join,
    "plus": _of_parts("plus", "total({})"),
    "minus": _of_parts("minus", "rest({})"),
    "any": _of_parts("any", "bool({})", " or "),
    "all": _of_parts("all", "bool({})", " and "),
    "not": lambda spot, here, depth: f"(not {field(spot.child('not'), here, depth)})",
    "foreach": _foreach,
    "object": lambda spot, here, depth: _fields_there(spot.child("object"), here, depth),
}
_BESIDE = {"join": ("sep",), "foreach": ("item",)}
# In this order where there are several: what makes a value before what asks about it.
_OF_A_PATH: dict[str, OfAPath] = {
    "unquote_shell": _unquote,
    "strip": _with_pattern("stripped"),
    "capture": _with_pattern("captured"),
    "parse": _parse,
    "times": _times,
    "map": _mapped,
    "in": lambda spot, here, value: is_among(value, literals(spot), here),
    "not_in": _not_in,
    "regex": lambda spot, here, value: matches(spot, value, here),
    "ending": _ending,
    "exists": _exists,
}
