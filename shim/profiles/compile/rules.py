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
from shim.profiles.compile.conditions import Condition, compile_all, parse_conditions
from shim.profiles.compile.emits import StreamOptions, write_emit
from shim.profiles.compile.fields import list_field_paths
from shim.profiles.compile.paths import compile_path, preload_shared_paths
from shim.profiles.compile.source import FunctionBuilder
from shim.profiles.run.values import MAX_LIST_ITEMS, RULE_GLOBALS

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


MAX_TYPES = 100  # that one rule names
MIN_RULES_TO_SORT = (
    5  # rules for one type; so many are sorted by a second key before they are asked
)

EventHandler = Callable[[Any, Any], None]  # (engine, event)


class EventRule:
    """One `[[event]]`: where it stands, the types that it names (None: any), and its number where
    it is traced.
    """

    def __init__(self, spot: ConfigNode, trace: "RuleTrace | None") -> None:
        self.node = spot
        self.types = _parse_types(spot.child("match"))
        self.number = None if trace is None else trace.add_rule(spot, self.types)

    @property
    def emit(self) -> Any:
        """What it says happened."""
        return self.node.read_table().get("emit")

    @property
    def continues(self) -> bool:
        """Whether the rules below are asked as well."""
        return self.node.child("continue").read_bool()

    def parse_conditions(self) -> list[Condition]:
        """What it asks of an event beside its type."""
        return parse_conditions(
            self.node.child("match"), skipped_key="" if self.types is None else "type"
        )


RuleConditions = tuple[EventRule, list[Condition]]  # a rule, and what it still has to ask


class EventRules:
    """The rules of a profile. `types` are those that they name."""

    def __init__(
        self, spots: list[ConfigNode], told: StreamOptions, trace: "RuleTrace | None" = None
    ) -> None:
        self._options = told
        self._trace = trace
        self._rules = [EventRule(spot, trace) for spot in spots]
        self._handlers: dict[tuple[Any, ...], EventHandler] = {}
        self.types = frozenset(kind for one in self._rules for kind in one.types or ())

    def __iter__(self) -> Any:
        return iter(self._rules)

    def check(self) -> None:
        """Write every rule once. FrontendError, with file, line and key, for one that is wrong."""
        for one in self._rules:
            here = FunctionBuilder("engine, event")
            compile_all(one.parse_conditions(), here)
            self._write_rule(here, one)

    def find_handler(self, kind: str | None) -> EventHandler:
        """What reads the events of a type that rules name; None: of any other. Types with the same
        rules share one.
        """
        rules = tuple(one for one in self._rules if one.types is None or kind in one.types)
        places = tuple(one.node.keys for one in rules)
        known = self._handlers.get(places)
        if known is None:
            known = self._handlers[places] = self._compile_handler(
                [(one, one.parse_conditions()) for one in rules]
            )
        return known

    def _compile_handler(self, rules: list[RuleConditions]) -> EventHandler:
        """The function of some rules: they are asked one after the other, or first sorted by a
        second key.
        """
        here, second = FunctionBuilder("engine, event"), _find_sort_node(rules)
        if second is not None:
            self._write_dispatch(here, rules, second)
        else:
            self._write_rules(here, rules)
        return here.compile_function("handle", RULE_GLOBALS)

    def _write_dispatch(
        self, here: FunctionBuilder, rules: list[RuleConditions], second: ConfigNode
    ) -> None:
        """Leave an event to the rules for what it has at `second`; None is for all that no rule
        names.
        """
        handlers: dict[str | None, EventHandler] = {}

        def compiled_first(value: str | None) -> EventHandler:
            def first(engine: Any, event: Any) -> None:
                handlers[value] = self._compile_handler(_select_rules(rules, second, value))
                handlers[value](engine, event)

            return first

        named = {
            text
            for _, conditions in rules
            for one in conditions
            if one.has_only_texts_at(second)
            for text in one.texts
        }
        handlers |= {value: compiled_first(value) for value in (*named, None)}
        found, again = here.bind_value(compile_path(second, here))
        table = here.add_constant(handlers)
        here.add_line(
            f"({table}.get({again} if {found}.__class__ is str else None) or {table}[None])(engine, event)"
        )

    def _write_rules(self, here: FunctionBuilder, rules: list[RuleConditions]) -> None:
        preload_shared_paths(
            [condition.path for _, conditions in rules for condition in conditions], here
        )
        groups = _group_rules([(one, compile_all(conditions, here)) for one, conditions in rules])
        # An event of which nothing but its session was read is an event that nobody understood.
        counts = [
            any(one.emit != "session" for one in group) and all(one.continues for one in group)
            for _, group in groups
        ]
        if any(counts):
            here.add_line("known = False")
        for (test, group), noted in zip(groups, counts, strict=True):
            with here.open_block(f"if {test}:"):
                preload_shared_paths(
                    [asked for one in group for asked in list_field_paths(one.node)], here
                )
                for one in group:
                    self._write_rule(here, one)
                if noted:
                    here.add_line("known = True")
            if test == "True" and not all(one.continues for one in group):
                break  # no event comes further
        else:
            with here.open_block("if not known:" if any(counts) else "if True:"):
                here.add_line('engine.turn.unknown(event.get("type", "untyped"), event)')

    def _write_rule(self, here: FunctionBuilder, rule: EventRule) -> None:
        """The lines of one rule, once its conditions hold."""
        rule.node.read_table()
        if self._trace is not None:
            here.add_line(f"{here.add_constant(self._trace.enter_rule)}({rule.number})")
        self._write_items(here, rule.node)
        if self._trace is not None:
            here.add_line(f"{here.add_constant(self._trace.leave_rule)}({rule.number})")
        if not rule.continues:
            here.add_line("return")

    def _write_items(self, here: FunctionBuilder, spot: ConfigNode) -> None:
        """What a rule says of an event, or of each item in it."""
        asked = parse_conditions(spot.child("item_match"), is_for_item=True)
        if not spot.child("foreach"):
            if spot.child("item_match"):
                raise spot.child("item_match").build_error("in a rule with `foreach`")
            self._write_once(here, spot)
            return
        items, again = here.bind_value(compile_path(spot.child("foreach"), here))
        with (
            here.open_block(f"if {items}.__class__ is list:"),
            here.open_loop(f"{again}[:{MAX_LIST_ITEMS}]"),
        ):
            test = compile_all(asked, here)
            with here.open_block(f"if {test}:"):
                self._write_once(here, spot)

    def _write_once(self, here: FunctionBuilder, spot: ConfigNode) -> None:
        if not spot.child("once"):
            write_emit(spot, self._options, here)
            return
        values = [compile_path(one, here) for one in spot.child("once").read_items(10)]
        with here.open_block(f"if engine.first(({''.join(f'{one}, ' for one in values)})):"):
            write_emit(spot, self._options, here)


def _find_sort_node(rules: list[RuleConditions]) -> ConfigNode | None:
    """The path whose text tells most of these rules apart, where there are many."""
    asked = [one.path for _, conditions in rules for one in conditions if one.texts]
    texts = [one.value for one in asked]
    found = max(asked, key=lambda one: texts.count(one.value), default=None)
    return found if found is not None and texts.count(found.value) >= MIN_RULES_TO_SORT else None


def _select_rules(
    rules: list[RuleConditions], second: ConfigNode, value: str | None
) -> list[RuleConditions]:
    """The rules that may take an event which has this value at `second`, without that condition."""
    kept = []
    for rule, asked in rules:
        if all(value in one.texts for one in asked if one.has_only_texts_at(second)):
            kept.append((rule, [one for one in asked if not one.has_only_texts_at(second)]))
    return kept


def _group_rules(rules: list[tuple[EventRule, str]]) -> list[tuple[str, list[EventRule]]]:
    """Rules behind each other that have the same test, which is asked once; none behind one that is
    the last.
    """
    groups: list[tuple[str, list[EventRule]]] = []
    for one, test in rules:
        if not groups or groups[-1][0] != test:
            groups.append((test, [one]))
        elif groups[-1][1][-1].continues:
            groups[-1][1].append(one)
    return groups


def _parse_types(match: ConfigNode) -> frozenset[str] | None:
    """The types that a rule names; None when it may take any."""
    if not match.value or "type" not in match.read_table():
        return None
    value = match.value["type"]
    values = value if isinstance(value, list) else [value]
    if not values or len(values) > MAX_TYPES or not all(isinstance(one, str) for one in values):
        if isinstance(value, dict):
            return None
        raise match.child("type").build_error("a string, a list of strings, or a condition")
    return frozenset(values)
