"""Rules of a profile: which events they take, and in which order; compiled to one function for a
`type` of event.

                                   HOW A RULE IS SAID

    [[event]]
    match = { type = "text", "part.kind" = ["a", "b"], id = { exists = true } }    all of these hold
    foreach = "part.items"            once for each item of a list …
    item_match = { "$.type" = "x" }   … of which this holds (`$.` may be left out)
    once = ["id", "text"]             not again for an event that says the same here
    emit = "text"                     what happened, with its fields: `emits`
    continue = true                   the rules below are asked as well; else the first that matches
                                      is the last

A condition is a literal, a list of literals, or a table of `exists`, `kind` (string, number,
boolean, array, object, null), `in`, `not_in`, `regex`. Rules that name the `type` of their events
cost nothing for all other types.

A function is made when the first event of its type comes, because a child says only some of what
its rules could take.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shim.profiles.check.toml_errors import ConfigNode
from shim.profiles.compile.conditions import Condition, all_of, conditions
from shim.profiles.compile.emits import Told, emit
from shim.profiles.compile.fields import fields_of
from shim.profiles.compile.paths import path, read_often
from shim.profiles.compile.source import Function
from shim.profiles.run.values import ITEMS, NAMES

if TYPE_CHECKING:
    from typing import Protocol

    class RuleTrace(Protocol):
        """Who is told which rule takes an event (`shim vendor check`)."""

        def add_rule(self, node: ConfigNode, types: frozenset[str] | None) -> int:
            """A number for a rule of the profile."""

        def enter_rule(self, number: int) -> None:
            """A rule takes the event."""

        def leave_rule(self, number: int) -> None:
            """A rule has said all that it says of the event."""


TYPES = 100  # that one rule names
MANY = 5  # rules for one type; so many are sorted by a second key before they are asked

Handler = Callable[[Any, Any], None]  # (engine, event)


class Rule:
    """One `[[event]]`: where it stands, the types that it names (None: any), and its number where
    it is traced.
    """

    def __init__(self, spot: ConfigNode, trace: "RuleTrace | None") -> None:
        self.spot = spot
        self.types = _types(spot.child("match"))
        self.number = None if trace is None else trace.add_rule(spot, self.types)

    @property
    def emits(self) -> Any:
        """What it says happened."""
        return self.spot.read_table().get("emit")

    @property
    def continues(self) -> bool:
        """Whether the rules below are asked as well."""
        return self.spot.child("continue").read_bool()

    def conditions(self) -> list[Condition]:
        """What it asks of an event beside its type."""
        return conditions(self.spot.child("match"), leave="" if self.types is None else "type")


Asking = tuple[Rule, list[Condition]]  # a rule, and what it still has to ask


class Rules:
    """The rules of a profile. `types` are those that they name."""

    def __init__(
        self, spots: list[ConfigNode], told: Told, trace: "RuleTrace | None" = None
    ) -> None:
        self._told = told
        self._trace = trace
        self._rules = [Rule(spot, trace) for spot in spots]
        self._made: dict[tuple[Any, ...], Handler] = {}
        self.types = frozenset(kind for one in self._rules for kind in one.types or ())

    def __iter__(self) -> Any:
        return iter(self._rules)

    def check(self) -> None:
        """Write every rule once. FrontendError, with file, line and key, for one that is wrong."""
        for one in self._rules:
            here = Function("engine, event")
            all_of(one.conditions(), here)
            self._rule(here, one)

    def handler(self, kind: str | None) -> Handler:
        """What reads the events of a type that rules name; None: of any other. Types with the same
        rules share one.
        """
        rules = tuple(one for one in self._rules if one.types is None or kind in one.types)
        places = tuple(one.spot.keys for one in rules)
        known = self._made.get(places)
        if known is None:
            known = self._made[places] = self._handler([(one, one.conditions()) for one in rules])
        return known

    def _handler(self, rules: list[Asking]) -> Handler:
        """The function of some rules: they are asked one after the other, or first sorted by a
        second key.
        """
        here, second = Function("engine, event"), _second(rules)
        if second is not None:
            self._sort(here, rules, second)
        else:
            self._ask(here, rules)
        return here.made("handle", NAMES)

    def _sort(self, here: Function, rules: list[Asking], second: ConfigNode) -> None:
        """Leave an event to the rules for what it has at `second`; None is for all that no rule
        names.
        """
        handlers: dict[str | None, Handler] = {}

        def compiled_first(value: str | None) -> Handler:
            def first(engine: Any, event: Any) -> None:
                handlers[value] = self._handler(_for(rules, second, value))
                handlers[value](engine, event)

            return first

        named = {
            text
            for _, conditions in rules
            for one in conditions
            if one.of(second)
            for text in one.texts
        }
        handlers |= {value: compiled_first(value) for value in (*named, None)}
        found, again = here.held(path(second, here))
        table = here.constant(handlers)
        here.line(
            f"({table}.get({again} if {found}.__class__ is str else None) or {table}[None])(engine, event)"
        )

    def _ask(self, here: Function, rules: list[Asking]) -> None:
        read_often([condition.path for _, conditions in rules for condition in conditions], here)
        groups = _groups([(one, all_of(conditions, here)) for one, conditions in rules])
        # An event of which nothing but its session was read is an event that nobody understood.
        counts = [
            any(one.emits != "session" for one in group) and all(one.continues for one in group)
            for _, group in groups
        ]
        if any(counts):
            here.line("known = False")
        for (test, group), noted in zip(groups, counts, strict=True):
            with here.block(f"if {test}:"):
                read_often([asked for one in group for asked in fields_of(one.spot)], here)
                for one in group:
                    self._rule(here, one)
                if noted:
                    here.line("known = True")
            if test == "True" and not all(one.continues for one in group):
                break  # no event comes further
        else:
            with here.block("if not known:" if any(counts) else "if True:"):
                here.line('engine.turn.unknown(event.get("type", "untyped"), event)')

    def _rule(self, here: Function, rule: Rule) -> None:
        """The lines of one rule, once its conditions hold."""
        rule.spot.read_table()
        if self._trace is not None:
            here.line(f"{here.constant(self._trace.enter_rule)}({rule.number})")
        self._items(here, rule.spot)
        if self._trace is not None:
            here.line(f"{here.constant(self._trace.leave_rule)}({rule.number})")
        if not rule.continues:
            here.line("return")

    def _items(self, here: Function, spot: ConfigNode) -> None:
        """What a rule says of an event, or of each item in it."""
        asked = conditions(spot.child("item_match"), of_item=True)
        if not spot.child("foreach"):
            if spot.child("item_match"):
                raise spot.child("item_match").build_error("in a rule with `foreach`")
            self._once(here, spot)
            return
        items, again = here.held(path(spot.child("foreach"), here))
        with here.block(f"if {items}.__class__ is list:"), here.loop(f"{again}[:{ITEMS}]"):
            test = all_of(asked, here)
            with here.block(f"if {test}:"):
                self._once(here, spot)

    def _once(self, here: Function, spot: ConfigNode) -> None:
        if not spot.child("once"):
            emit(spot, self._told, here)
            return
        values = [path(one, here) for one in spot.child("once").read_items(10)]
        with here.block(f"if engine.first(({''.join(f'{one}, ' for one in values)})):"):
            emit(spot, self._told, here)


def _second(rules: list[Asking]) -> ConfigNode | None:
    """The path whose text tells most of these rules apart, where there are many."""
    asked = [one.path for _, conditions in rules for one in conditions if one.texts]
    texts = [one.value for one in asked]
    found = max(asked, key=lambda one: texts.count(one.value), default=None)
    return found if found is not None and texts.count(found.value) >= MANY else None


def _for(rules: list[Asking], second: ConfigNode, value: str | None) -> list[Asking]:
    """The rules that may take an event which has this value at `second`, without that condition."""
    kept = []
    for rule, asked in rules:
        if all(value in one.texts for one in asked if one.of(second)):
            kept.append((rule, [one for one in asked if not one.of(second)]))
    return kept


def _groups(rules: list[tuple[Rule, str]]) -> list[tuple[str, list[Rule]]]:
    """Rules behind each other that have the same test, which is asked once; none behind one that is
    the last.
    """
    groups: list[tuple[str, list[Rule]]] = []
    for one, test in rules:
        if not groups or groups[-1][0] != test:
            groups.append((test, [one]))
        elif groups[-1][1][-1].continues:
            groups[-1][1].append(one)
    return groups


def _types(match: ConfigNode) -> frozenset[str] | None:
    """The types that a rule names; None when it may take any."""
    if not match.value or "type" not in match.read_table():
        return None
    value = match.value["type"]
    values = value if isinstance(value, list) else [value]
    if not values or len(values) > TYPES or not all(isinstance(one, str) for one in values):
        if isinstance(value, dict):
            return None
        raise match.child("type").build_error("a string, a list of strings, or a condition")
    return frozenset(values)
