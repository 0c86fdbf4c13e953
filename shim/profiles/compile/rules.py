"""Rules of a profile: which events they take, and in which order; compiled into one function per `type` of event.

                                   HOW A RULE IS SAID

    [[event]]
    match = { type = "text", "part.kind" = ["a", "b"], id = { exists = true } }    all of these hold
    foreach = "part.items"            once for each item of a list …
    item_match = { "$.type" = "x" }   … of which this holds (`$.` may be left out)
    once = ["id", "text"]             not again for an event that says the same here
    emit = "text"                     what happened, with its fields: `emits`
    continue = true                   the rules below are asked as well; else the first that matches is the last

A condition is a literal, a list of literals, or a table of `exists`, `kind` (string, number, boolean, array, object,
null), `in`, `not_in`, `regex`. Rules that name the `type` of their events cost nothing for all other types.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from shim.profiles.compile.emits import act
from shim.profiles.compile.engine import Act, Engine, Told
from shim.profiles.compile.fields import literals, same
from shim.profiles.compile.paths import ITEMS, Getter, path_getter
from shim.profiles.compile.toml_errors import SEARCHED_CHARACTERS, Spot

RULES = 200
CONDITIONS = 20  # of one rule
TYPES = 100  # that one rule names
ONCE = 1000  # of what was said once is remembered
ONCE_CHARACTERS = 20_000  # of one such value: of a longer one its beginning, and its length

Test = Callable[[Any, Any, Engine], bool]
Handler = Callable[[Engine, Any], None]
_CONDITIONS = ("exists", "kind", "in", "not_in", "regex")
_KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
NO, ON, LAST = 0, 1, 2  # it did not match; it did and the next is asked; it did and that is all


class Rule(NamedTuple):
    """One rule: the types that it names (None: any), what it does with an event, what it emits."""

    types: frozenset[str] | None
    run: Callable[[Engine, Any], int]
    act: Act | None  # alone, where it needs no test but the type
    emit: str


def rule(spot: Spot, told: Told) -> Rule:
    """One `[[event]]`, compiled."""
    spot.table()
    match = spot.at("match")
    kinds = _types(match)
    tests = conditions(match, leave="type" if kinds is not None else "")
    does, emit = act(spot, told)
    plain = not tests
    if spot.at("once"):
        does, plain = _once(does, [path_getter(one) for one in spot.at("once").items(10)]), False
    if spot.at("foreach"):
        does = _foreach(does, path_getter(spot.at("foreach")), conditions(spot.at("item_match"), of_item=True))
    elif spot.at("item_match"):
        raise spot.at("item_match").refused("in a rule with `foreach`")
    after = ON if spot.at("continue").switch() else LAST
    return Rule(kinds, _run(tests, does, after), does if plain and after is LAST else None, emit)


def _types(match: Spot) -> frozenset[str] | None:
    """The types that a rule names; None when it may take any."""
    if not match.value or "type" not in match.table():
        return None
    value = match.value["type"]
    values = value if isinstance(value, list) else [value]
    if not values or len(values) > TYPES or not all(isinstance(one, str) for one in values):
        if isinstance(value, dict):
            return None
        raise match.at("type").refused("a string, a list of strings, or a condition")
    return frozenset(values)


def conditions(spot: Spot, *, leave: str = "", of_item: bool = False) -> list[Test]:
    """The tests of a `match` table, without the key `leave`."""
    table = spot.table()
    if len(table) > CONDITIONS:
        raise spot.refused(f"a table of at most {CONDITIONS} conditions", f"a table of {len(table)}")
    tests: list[Test] = []
    for key in table:
        if key != leave:
            path = key if not of_item or key.startswith("$") else f"$.{key}"
            get = path_getter(Spot(spot.source, path, (*spot.keys, key)))
            tests += _tests(spot.at(key), get)
    return tests


def _tests(spot: Spot, get: Getter) -> list[Test]:
    if isinstance(spot.value, dict):
        spot.table(_CONDITIONS)
        if not spot.value:
            raise spot.refused(f"a table with one of {', '.join(_CONDITIONS)}")
        return [_condition(spot.at(name), name, get) for name in spot.value]
    if isinstance(spot.value, list):
        return [_among(literals(spot), get, True)]
    (wanted,) = literals(Spot(spot.source, [spot.value], spot.keys))
    if wanted.__class__ is str:
        return [lambda event, item, engine: bool(get(event, item, engine) == wanted)]
    return [lambda event, item, engine: same(get(event, item, engine), wanted)]


def _among(wanted: list[Any], get: Getter, yes: bool) -> Test:
    texts = frozenset(one for one in wanted if one.__class__ is str)
    others = [one for one in wanted if one.__class__ is not str]

    def test(event: Any, item: Any, engine: Engine) -> bool:
        found = get(event, item, engine)
        if found.__class__ is str:
            return (found in texts) is yes
        return any(same(found, one) for one in others) is yes

    return test


def _condition(spot: Spot, name: str, get: Getter) -> Test:
    if name == "exists":
        wanted = spot.switch()
        return lambda event, item, engine: (get(event, item, engine) is not None) is wanted
    if name == "regex":
        search = spot.pattern().search

        def matches(event: Any, item: Any, engine: Engine) -> bool:
            found = get(event, item, engine)
            return found.__class__ is str and search(found, 0, SEARCHED_CHARACTERS) is not None

        return matches
    if name == "kind":
        classes = _KINDS[spot.choice(_KINDS)]
        return lambda event, item, engine: get(event, item, engine).__class__ in classes
    return _among(literals(spot), get, name == "in")


def _run(tests: list[Test], does: Act, after: int) -> Callable[[Engine, Any], int]:
    if not tests:

        def always(engine: Engine, event: Any) -> int:
            does(engine, event)
            return after

        return always
    if len(tests) == 1:
        (test,) = tests

        def one(engine: Engine, event: Any) -> int:
            if not test(event, None, engine):
                return NO
            does(engine, event)
            return after

        return one

    def several(engine: Engine, event: Any) -> int:
        for test in tests:
            if not test(event, None, engine):
                return NO
        does(engine, event)
        return after

    return several


def _foreach(does: Act, items: Getter, tests: list[Test]) -> Act:
    def each(engine: Engine, event: Any, item: Any = None) -> None:
        found = items(event, None, engine)
        if found.__class__ is not list:
            return
        for index, one in enumerate(found[:ITEMS]):
            engine.index = index
            if all(test(event, one, engine) for test in tests):
                does(engine, event, one)

    return each


def _once(does: Act, paths: list[Getter]) -> Act:
    def first(engine: Engine, event: Any, item: Any = None) -> None:
        said = hash(tuple([_short(get(event, item, engine)) for get in paths]))
        if said not in engine.once:
            if len(engine.once) >= ONCE:
                engine.once.clear()
            engine.once.add(said)
            does(engine, event, item)

    return first


def _short(value: Any) -> Any:
    if value.__class__ is str:
        return value[:ONCE_CHARACTERS], len(value)
    return value if isinstance(value, int | float | None) else str(value)[:ONCE_CHARACTERS]


# -- all of them --------------------------------------------------------------------------------------------------


def handlers(rules: list[Rule]) -> tuple[dict[str, Handler], Handler]:
    """One function per type that a rule names, and the one for all other events."""
    named = {kind for one in rules if one.types is not None for kind in one.types}
    table = {kind: _handler([one for one in rules if one.types is None or kind in one.types]) for kind in named}
    return table, _handler([one for one in rules if one.types is None])


def _handler(rules: list[Rule]) -> Handler:
    if rules and rules[0].act is not None:
        return rules[0].act
    last = next((place for place, one in enumerate(rules) if one.act is not None), len(rules))
    rules = rules[: last + 1]
    # An event of which nothing but its session was read is an event that nobody understood.
    steps = [(one.run, one.emit != "session") for one in rules]

    def handle(engine: Engine, event: Any) -> None:
        known = False
        for run, counts in steps:
            answer = run(engine, event)
            if answer is LAST:
                return
            if answer and counts:
                known = True
        if not known:
            engine.turn.unknown(event.get("type", "untyped"), event)

    return handle
