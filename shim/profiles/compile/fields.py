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
from shim.profiles.compile.paths import compile_path
from shim.profiles.compile.source import ITEM_ROOT, FunctionBuilder, PathRoot, format_literal
from shim.profiles.run.values import MAX_LIST_ITEMS, RULE_GLOBALS, LazyPattern

MAX_OPERATOR_DEPTH = 16  # inside each other
MAX_INLINE_DEPTH = 4  # inside each other in one expression
MAX_FIELDS = 100  # of one object, and parts of one operator
_REGEX_SIGNS = frozenset(
    r".^$*+?{}[]\|()"
)  # of a regular expression; a text without them is itself
_BOOLEAN_OPERATORS = frozenset(("in", "not_in", "regex", "ending", "exists", "any", "all", "not"))

StandaloneCompiler = Callable[
    [ConfigNode, FunctionBuilder, int], str
]  # how deep the operator stands comes last
PathOperatorCompiler = Callable[
    [ConfigNode, FunctionBuilder, str], str
]  # the expression of the value comes last


def compile_field(spot: ConfigNode, here: FunctionBuilder, depth: int = 0) -> str:
    """A field as a profile says it, as an expression."""
    if isinstance(spot.value, str):
        return compile_path(spot, here)
    if not isinstance(spot.value, dict) or depth > MAX_OPERATOR_DEPTH:
        raise spot.build_error(
            f"a path, or a table with an operator: {', '.join(sorted(_STANDALONE_OPERATORS) + sorted(_PATH_OPERATORS))}"
        )
    if depth % MAX_INLINE_DEPTH == 0 and depth:
        return _compile_separately(spot, here, depth)
    return _compile_operator(spot, here, depth)


def _compile_separately(spot: ConfigNode, here: FunctionBuilder, depth: int) -> str:
    """A field in a function of its own, because Python has a limit for parentheses inside each
    other.
    """
    inner = FunctionBuilder("engine, event, item, index")
    inner.item, inner.index = here.item and ITEM_ROOT, "index"
    inner.add_line(f"return {_compile_operator(spot, inner, depth)}")
    item = here.item.name if here.item else "None"
    return f"{here.add_constant(inner.compile_function('field', RULE_GLOBALS))}(engine, event, {item}, {here.index})"


def _compile_operator(spot: ConfigNode, here: FunctionBuilder, depth: int) -> str:
    """A table with an operator, as an expression."""
    alone = [key for key in spot.value if key in _STANDALONE_OPERATORS]
    if len(alone) == 1:
        operator = alone[0]
        spot.read_table((operator, *_EXTRA_KEYS.get(operator, ())))
        return _STANDALONE_OPERATORS[operator](spot, here, depth + 1)
    if alone or "path" not in spot.value:
        raise spot.build_error(
            f"a table with `path` and an operator, or with one of {', '.join(sorted(_STANDALONE_OPERATORS))}"
        )
    given = spot.read_table(("path", "default", *_PATH_OPERATORS))
    value = compile_field(spot.child("path"), here, depth + 1)
    for operator, build in _PATH_OPERATORS.items():
        if operator in given:
            value = build(spot.child(operator), here, value)
    if "default" in given:
        found, again = here.bind_value(value)
        value = f"({again} if {found} is not None else {_compile_constant(given['default'], here)})"
    return value


def list_field_paths(spot: ConfigNode) -> Iterator[ConfigNode]:
    """Every path that stands somewhere in a rule's fields, as far as it begins at the event."""
    if isinstance(spot.value, str):
        yield spot
    elif isinstance(spot.value, list):
        for place in range(len(spot.value)):
            yield from list_field_paths(spot.child(place))
    elif isinstance(spot.value, dict):
        for key in spot.value:
            if key not in _KEYS_WITHOUT_PATHS:
                yield from list_field_paths(spot.child(key))


def compile_optional_field(spot: ConfigNode, here: FunctionBuilder) -> str:
    """A field that a rule need not have."""
    return compile_field(spot, here) if spot else "None"


def compile_boolean_field(spot: ConfigNode, here: FunctionBuilder) -> str:
    """A field that a rule need not have, as True or False."""
    if not spot:
        return "False"
    value = compile_field(spot, here)
    known = isinstance(spot.value, dict) and not _BOOLEAN_OPERATORS.isdisjoint(spot.value)
    return value if known or value in ("True", "False") else f"bool({value})"


def read_literals(spot: ConfigNode) -> list[Any]:
    """A list of values to compare with."""
    if not isinstance(spot.value, list) or any(isinstance(one, dict | list) for one in spot.value):
        raise spot.build_error("a list of strings, numbers or booleans")
    return spot.value


def compile_membership(value: str, wanted: list[Any], here: FunctionBuilder) -> str:
    """Whether a value is one of some literals."""
    if len(wanted) == 1:
        (only,) = wanted
        if only.__class__ is str:
            return f"({value} == {format_literal(only)})"
        if only.__class__ is bool:
            return f"({value} is {format_literal(only)})"
        if only.__class__ is int:
            found, again = here.bind_value(value)
            return f"({found} == {format_literal(only)} and {again}.__class__ is not bool)"
    elif all(one.__class__ is str for one in wanted):
        found, again = here.bind_value(value)
        return f"({found}.__class__ is str and {again} in {here.add_constant(frozenset(wanted))})"
    return f"among({value}, {here.add_constant(tuple(wanted))})"


def compile_pattern_test(spot: ConfigNode, value: str, here: FunctionBuilder) -> str:
    """Whether a pattern is found in a text; a pattern that is only a text needs no search."""
    text = spot.read_regex()
    found, again = here.bind_value(value)
    if _REGEX_SIGNS.isdisjoint(text.removeprefix("^")):
        asked = f"{format_literal(text)} in {again}[:{MAX_SEARCHED_CHARS}]"
        if text[0] == "^":
            asked = f"{again}.startswith({format_literal(text[1:])})"
    else:
        asked = f"{here.add_constant(LazyPattern(text))}.search({again}, 0, {MAX_SEARCHED_CHARS}) is not None"
    return f"({found}.__class__ is str and {asked})"


def find_literal_prefix(regex: str) -> str:
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
        elif letter in _REGEX_SIGNS:
            return found[:-1] if letter in "*?{" else found
        found += letter
    return found


def _compile_constant(value: Any, here: FunctionBuilder) -> str:
    plain = value is None or value.__class__ in (str, int, bool)
    return format_literal(value) if plain else here.add_constant(value)


# Keys of rules and fields under which no path of the event stands.
_KEYS_WITHOUT_PATHS = frozenset(
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


def _compile_parts(spot: ConfigNode, here: FunctionBuilder, depth: int) -> list[str]:
    found = [compile_field(one, here, depth) for one in spot.read_items(MAX_FIELDS)]
    if not found:
        raise spot.build_error("a list of fields")
    return found


def _create_call_compiler(key: str, call: str, between: str = ", ") -> StandaloneCompiler:
    """The operator `key`: a call with all its parts."""
    return lambda spot, here, depth: call.format(
        between.join(_compile_parts(spot.child(key), here, depth))
    )


def _compile_join(spot: ConfigNode, here: FunctionBuilder, depth: int) -> str:
    within = spot.child("join")
    separator = spot.child("sep").value if spot.child("sep") else ""
    if not isinstance(separator, str):
        raise spot.child("sep").build_error("a string")
    if not isinstance(within.value, list):
        return f"joined({compile_field(within, here, depth)}, {format_literal(separator)})"
    parts = [
        f"str({part})" if part == here.index else part
        for part in _compile_parts(within, here, depth)
    ]
    return f"together({format_literal(separator)}, {', '.join(parts)})"


def compile_fields(spot: ConfigNode, here: FunctionBuilder, depth: int = 0) -> dict[str, str]:
    if len(spot.read_table()) > MAX_FIELDS:
        raise spot.build_error(
            f"a table of at most {MAX_FIELDS} fields", f"a table of {len(spot.value)}"
        )
    return {key: compile_field(spot.child(key), here, depth) for key in spot.read_table()}


def _compile_object(spot: ConfigNode, here: FunctionBuilder, depth: int) -> str:
    """An object of fields; those that are not there are left out."""
    found = compile_fields(spot, here, depth)
    if len(found) == 1:
        ((key, value),) = found.items()
        held, again = here.bind_value(value)
        return f"({{{format_literal(key)}: {again}}} if {held} is not None else {{}})"
    return (
        f"there({{{', '.join(f'{format_literal(key)}: {value}' for key, value in found.items())}}})"
    )


def _compile_foreach(spot: ConfigNode, here: FunctionBuilder, depth: int) -> str:
    items, again = here.bind_value(compile_field(spot.child("foreach"), here, depth))
    outer, here.item = here.item, PathRoot(here.create_variable(), can_preload=False)
    within, name = spot.child("item"), here.item.name
    one = (
        _compile_object(within, here, depth)
        if isinstance(within.value, dict)
        else compile_field(within, here, depth)
    )
    here.item = outer
    return f"([{one} for {name} in {again}[:{MAX_LIST_ITEMS}]] if {items}.__class__ is list else {again})"


# -- operators on what a path gives ----------------------------------------------------------------


def _compile_map(spot: ConfigNode, here: FunctionBuilder, value: str) -> str:
    (found, again), table = here.bind_value(value), here.add_constant(dict(spot.read_table()))
    return f"({table}.get({again}) if {found}.__class__ is str else mapped({again}, {table}))"


def _compile_not_in(spot: ConfigNode, here: FunctionBuilder, value: str) -> str:
    found, again = here.bind_value(value)
    return f"({found} is not None and not {compile_membership(again, read_literals(spot), here)})"


def _compile_ending(spot: ConfigNode, here: FunctionBuilder, value: str) -> str:
    text, (found, again) = spot.read_regex(), here.bind_value(value)
    end, tail = here.bind_value(f"{again}[-{MAX_ENDING_CHARS}:]")
    # A look for its beginning is cheaper than a search, and nearly always the answer.
    first = f"{format_literal(find_literal_prefix(text))} in {end}"
    search = f"{here.add_constant(LazyPattern(text))}.search({tail}) is not None"
    return f"({found}.__class__ is str and {first} and {search})"


def _compile_exists(spot: ConfigNode, here: FunctionBuilder, value: str) -> str:
    return f"({value} {'is not' if spot.read_bool() else 'is'} None)"


def _compile_parse(spot: ConfigNode, here: FunctionBuilder, value: str) -> str:
    spot.read_choice(("json",))
    found, again = here.bind_value(value)
    return f"(parsed({again}, engine.turn.account) if {found}.__class__ is str else {again})"


def _create_pattern_compiler(call: str) -> PathOperatorCompiler:
    """The operator that calls `call` with the value and a pattern."""
    return lambda spot, here, value: (
        f"{call}({value}, {here.add_constant(LazyPattern(spot.read_regex()))})"
    )


def _compile_unquote(spot: ConfigNode, here: FunctionBuilder, value: str) -> str:
    if not spot.read_bool():
        raise spot.build_error("true")
    return f"unquoted({value})"


def _compile_times(spot: ConfigNode, here: FunctionBuilder, value: str) -> str:
    return f"multiplied({value}, {here.add_constant(spot.read_number(0, 1e9))})"


_STANDALONE_OPERATORS: dict[str, StandaloneCompiler] = {
    "const": lambda spot, here, depth: _compile_constant(spot.value["const"], here),
    "join": _compile_join,
    "plus": _create_call_compiler("plus", "total({})"),
    "minus": _create_call_compiler("minus", "rest({})"),
    "any": _create_call_compiler("any", "bool({})", " or "),
    "all": _create_call_compiler("all", "bool({})", " and "),
    "not": lambda spot, here, depth: f"(not {compile_field(spot.child('not'), here, depth)})",
    "foreach": _compile_foreach,
    "object": lambda spot, here, depth: _compile_object(spot.child("object"), here, depth),
}
_EXTRA_KEYS = {"join": ("sep",), "foreach": ("item",)}
# In this order where there are several: what makes a value before what asks about it.
_PATH_OPERATORS: dict[str, PathOperatorCompiler] = {
    "unquote_shell": _compile_unquote,
    "strip": _create_pattern_compiler("stripped"),
    "capture": _create_pattern_compiler("captured"),
    "parse": _compile_parse,
    "times": _compile_times,
    "map": _compile_map,
    "in": lambda spot, here, value: compile_membership(value, read_literals(spot), here),
    "not_in": _compile_not_in,
    "regex": lambda spot, here, value: compile_pattern_test(spot, value, here),
    "ending": _compile_ending,
    "exists": _compile_exists,
}
