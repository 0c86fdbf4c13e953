"""Rules of a profile: which events they take, and in which order; compiled to one function for a
`type` of event.

                                   HOW A RULE IS SAID

    [[event]]
    match = { type = "text", "part.kind" = ["a", "b"], id = { exists = true } }    all of these hold
    foreach = "part.items"            once for each item of a list …
    item_match = { "$.type" = "x" }   … of which this holds (`$.` may be left out)
    once = ["id", "text"]             not again for an event that says the same here
    emit = "text"                     what happened, with its fields: `emit`
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

from shim.profiles.check.config_node import ConfigNode
from shim.profiles.compile.conditions import (
    EventMatchCondition,
    compile_conditions_expression,
    parse_match_conditions,
)
from shim.profiles.compile.emits import ProfileTranslationOptions, write_event_rule_code
from shim.profiles.compile.fields import list_field_path_nodes
from shim.profiles.compile.function_builder import FunctionBuilder
from shim.profiles.compile.paths import (
    assign_shared_paths_at_block_start,
    compile_event_path_expression,
)
from shim.profiles.run.values import MAX_LIST_ITEMS, RULE_GLOBALS

if TYPE_CHECKING:
    from typing import Protocol

    class ProfileRuleMatchObserver(Protocol):
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


class ProfileEventRule:
    """One `[[event]]`: where it stands, the types that it names (None: any), and its number where
    it is traced.
    """

    def __init__(self, node: ConfigNode, trace: "ProfileRuleMatchObserver | None") -> None:
        self.node = node
        self.types = _parse_types(node.get_child("match"))
        if trace is None:
            self.number = None
        else:
            self.number = trace.add_rule(node, self.types)

    @property
    def emit(self) -> Any:
        """What it says happened."""
        return self.node.read_table().get("emit")

    @property
    def allows_further_rules(self) -> bool:
        """Whether the rules below are asked as well."""
        return self.node.get_child("continue").read_bool()

    def parse_conditions(self) -> list[EventMatchCondition]:
        """What it asks of an event beside its type."""
        return parse_match_conditions(
            self.node.get_child("match"), skipped_key="" if self.types is None else "type"
        )


RuleConditions = tuple[
    ProfileEventRule, list[EventMatchCondition]
]  # a rule, and what it still has to ask


class ProfileEventRules:
    """The rules of a profile. `types` are those that they name."""

    def __init__(
        self,
        nodes: list[ConfigNode],
        options: ProfileTranslationOptions,
        trace: "ProfileRuleMatchObserver | None" = None,
    ) -> None:
        self._options = options
        self._trace = trace
        self._rules = [ProfileEventRule(node, trace) for node in nodes]
        self._handlers: dict[tuple[Any, ...], EventHandler] = {}
        self.types = frozenset(kind for rule in self._rules for kind in rule.types or ())

    def __iter__(self) -> Any:
        return iter(self._rules)

    def check_all_rules(self) -> None:
        """Write every rule once. FrontendError, with file, line and key, for one that is wrong."""
        for rule in self._rules:
            builder = FunctionBuilder("engine, event")
            compile_conditions_expression(rule.parse_conditions(), builder)
            self._write_rule(builder, rule)

    def find_event_handler(self, event_type: str | None) -> EventHandler:
        """What reads the events of a type that rules name; None: of any other. Types with the same
        rules share one.
        """
        rules = tuple(
            rule for rule in self._rules if rule.types is None or event_type in rule.types
        )
        handler_key = tuple(rule.node.keys for rule in rules)
        handler = self._handlers.get(handler_key)
        if handler is None:
            handler = self._handlers[handler_key] = self._compile_handler(
                [(rule, rule.parse_conditions()) for rule in rules]
            )
        return handler

    def _compile_handler(self, rules: list[RuleConditions]) -> EventHandler:
        """The function of some rules: they are asked one after the other, or first sorted by a
        second key.
        """
        builder = FunctionBuilder("engine, event")
        sort_node = _find_sort_node(rules)
        if sort_node is not None:
            self._write_dispatch(builder, rules, sort_node)
        else:
            self._write_rules(builder, rules)
        return builder.compile_function("handle", RULE_GLOBALS)

    def _write_dispatch(
        self, builder: FunctionBuilder, rules: list[RuleConditions], sort_node: ConfigNode
    ) -> None:
        """Leave an event to the rules for what it has at `sort_node`; None is for all that no rule
        names.
        """
        handlers: dict[str | None, EventHandler] = {}

        def create_lazy_handler(value: str | None) -> EventHandler:
            def compile_and_call(engine: Any, event: Any) -> None:
                handlers[value] = self._compile_handler(_select_rules(rules, sort_node, value))
                handlers[value](engine, event)

            return compile_and_call

        texts = {
            text
            for _, conditions in rules
            for condition in conditions
            if condition.is_text_equality_test_of(sort_node)
            for text in condition.texts
        }
        handlers |= {value: create_lazy_handler(value) for value in (*texts, None)}
        binding, bound_name = builder.bind_expression_to_variable(
            compile_event_path_expression(sort_node, builder)
        )
        table = builder.add_constant(handlers)
        builder.add_line(
            f"({table}.get({bound_name} if {binding}.__class__ is str else None) or {table}[None])(engine, event)"
        )

    def _write_rules(self, builder: FunctionBuilder, rules: list[RuleConditions]) -> None:
        assign_shared_paths_at_block_start(
            [condition.path for _, conditions in rules for condition in conditions], builder
        )
        groups = _group_rules(
            [
                (rule, compile_conditions_expression(conditions, builder))
                for rule, conditions in rules
            ]
        )
        # An event of which nothing but its session was read is an event that nobody understood.
        understood_flags = [
            any(rule.emit != "session" for rule in group)
            and all(rule.allows_further_rules for rule in group)
            for _, group in groups
        ]
        if any(understood_flags):
            builder.add_line("is_understood = False")
        for (test, group), is_understood in zip(groups, understood_flags, strict=True):
            with builder.open_block(f"if {test}:"):
                assign_shared_paths_at_block_start(
                    [
                        field_node
                        for rule in group
                        for field_node in list_field_path_nodes(rule.node)
                    ],
                    builder,
                )
                for rule in group:
                    self._write_rule(builder, rule)
                if is_understood:
                    builder.add_line("is_understood = True")
            if test == "True" and not all(rule.allows_further_rules for rule in group):
                break  # no event comes further
        else:
            with builder.open_block(
                "if not is_understood:" if any(understood_flags) else "if True:"
            ):
                builder.add_line(
                    'engine.turn.record_unknown_event(event.get("type", "untyped"), event)'
                )

    def _write_rule(self, builder: FunctionBuilder, rule: ProfileEventRule) -> None:
        """The lines of one rule, once its conditions hold."""
        rule.node.read_table()
        if self._trace is not None:
            builder.add_line(f"{builder.add_constant(self._trace.enter_rule)}({rule.number})")
        self._write_items(builder, rule.node)
        if self._trace is not None:
            builder.add_line(f"{builder.add_constant(self._trace.leave_rule)}({rule.number})")
        if not rule.allows_further_rules:
            builder.add_line("return")

    def _write_items(self, builder: FunctionBuilder, node: ConfigNode) -> None:
        """What a rule says of an event, or of each item in it."""
        conditions = parse_match_conditions(node.get_child("item_match"), is_inside_foreach=True)
        if not node.get_child("foreach"):
            if node.get_child("item_match"):
                raise node.get_child("item_match").build_error("in a rule with `foreach`")
            self._write_once(builder, node)
            return
        items_binding, items_name = builder.bind_expression_to_variable(
            compile_event_path_expression(node.get_child("foreach"), builder)
        )
        with (
            builder.open_block(f"if {items_binding}.__class__ is list:"),
            builder.open_loop(f"{items_name}[:{MAX_LIST_ITEMS}]"),
        ):
            test = compile_conditions_expression(conditions, builder)
            with builder.open_block(f"if {test}:"):
                self._write_once(builder, node)

    def _write_once(self, builder: FunctionBuilder, node: ConfigNode) -> None:
        if not node.get_child("once"):
            write_event_rule_code(node, self._options, builder)
            return
        values = [
            compile_event_path_expression(path_node, builder)
            for path_node in node.get_child("once").read_items(10)
        ]
        with builder.open_block(
            f"if engine.is_first_occurrence_in_turn(({''.join(f'{path_node}, ' for path_node in values)})):"
        ):
            write_event_rule_code(node, self._options, builder)


def _find_sort_node(rules: list[RuleConditions]) -> ConfigNode | None:
    """The path whose text tells most of these rules apart, where there are many."""
    path_nodes = [
        condition.path for _, conditions in rules for condition in conditions if condition.texts
    ]
    texts = [node.value for node in path_nodes]
    sort_node = max(path_nodes, key=lambda node: texts.count(node.value), default=None)
    if sort_node is not None and texts.count(sort_node.value) >= MIN_RULES_TO_SORT:
        return sort_node
    return None


def _select_rules(
    rules: list[RuleConditions], sort_node: ConfigNode, value: str | None
) -> list[RuleConditions]:
    """The rules that may take an event which has this value at `sort_node`, without that condition."""
    selected = []
    for rule, conditions in rules:
        if all(
            value in condition.texts
            for condition in conditions
            if condition.is_text_equality_test_of(sort_node)
        ):
            selected.append(
                (
                    rule,
                    [
                        condition
                        for condition in conditions
                        if not condition.is_text_equality_test_of(sort_node)
                    ],
                )
            )
    return selected


def _group_rules(
    rules: list[tuple[ProfileEventRule, str]],
) -> list[tuple[str, list[ProfileEventRule]]]:
    """Rules behind each other that have the same test, which is asked once; none behind one that is
    the last.
    """
    groups: list[tuple[str, list[ProfileEventRule]]] = []
    for rule, test in rules:
        if not groups or groups[-1][0] != test:
            groups.append((test, [rule]))
        elif groups[-1][1][-1].allows_further_rules:
            groups[-1][1].append(rule)
    return groups


def _parse_types(match: ConfigNode) -> frozenset[str] | None:
    """The types that a rule names; None when it may take any."""
    if not match.value or "type" not in match.read_table():
        return None
    value = match.value["type"]
    values = value
    if not isinstance(value, list):
        values = [value]
    if not values or len(values) > MAX_TYPES or not all(isinstance(item, str) for item in values):
        if isinstance(value, dict):
            return None
        raise match.get_child("type").build_error("a string, a list of strings, or a condition")
    return frozenset(values)
