"""Compiles the rules of a profile to one function for each event type.

                                   HOW A RULE IS WRITTEN

    [[event]]
    match = { type = "text", "part.kind" = ["a", "b"], id = { exists = true } }    all must be true
    foreach = "part.items"            the rule applies to each item of a list …
    item_match = { "$.type" = "x" }   … that matches (`$.` may be omitted)
    once = ["id", "text"]             only for the first event of the turn with these values
    emit = "text"                     the output, with its fields (`emits`)
    continue = true                   the following rules are also tested. Without it, no further
                                      rules are tested after a match

A condition is a literal, a list of literals, or a table of `exists`, `kind` (string, number,
boolean, array, object, null), `in`, `not_in`, `regex`. A rule that names event types costs nothing
for events of other types.

The function for an event type is compiled at the first event of that type. Most children print only
a few types.
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
        """Records which rule matches each event (`shim vendor check`)."""

        def add_rule(self, node: ConfigNode, types: frozenset[str] | None) -> int:
            """Register a rule of the profile, and return its number."""

        def enter_rule(self, number: int) -> None:
            """Record that a rule matches the event, before its code runs."""

        def leave_rule(self, number: int) -> None:
            """Record that a rule's code has run."""


MAX_TYPES = 100  # event types in one rule
# If this many rules for one event type compare the value at the same path, the compiled function
# uses this value to select the rules to test.
MIN_RULES_TO_SORT = 5

EventHandler = Callable[[Any, Any], None]  # called with the engine and the event


class ProfileEventRule:
    """One `[[event]]` rule of a profile.

    node    the rule's table in the profile
    types   the event types that the rule applies to; None for any type
    number  the number under which matches are recorded; None if they are not recorded
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
        """The value of the rule's `emit`, which names the output."""
        return self.node.read_table().get("emit")

    @property
    def allows_further_rules(self) -> bool:
        """Whether the rules after this rule are also tested."""
        return self.node.get_child("continue").read_bool()

    def parse_conditions(self) -> list[EventMatchCondition]:
        """Return the rule's conditions, except for the condition on the event type."""
        skipped_key = "type"
        if self.types is None:
            skipped_key = ""
        return parse_match_conditions(self.node.get_child("match"), skipped_key=skipped_key)


# A rule and its remaining conditions, which are still to be tested.
RuleConditions = tuple[ProfileEventRule, list[EventMatchCondition]]


class ProfileEventRules:
    """All event rules of a profile. `types` has every event type that a rule names."""

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
        """Compile every rule once, to report mistakes. Raise FrontendError with file, line and key
        for an invalid rule.
        """
        for rule in self._rules:
            builder = FunctionBuilder("engine, event")
            compile_conditions_expression(rule.parse_conditions(), builder)
            self._write_rule(builder, rule)

    def find_event_handler(self, event_type: str | None) -> EventHandler:
        """Return the compiled function for events of a type. With None, return the function for all
        types that no rule names.

        Event types with the same rules share one function.
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
        """Compile rules to one function. For few rules, the function tests one rule after another.
        For many rules, it uses the value at a second key to select the rules to test.
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
        """Write the code that selects a function by the event's value at `sort_node`, and calls the
        function. The function under the key None is for values that no rule names.
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
        """Write the code that tests the rules in their order. An event that no rule understands is
        recorded as unknown.
        """
        assign_shared_paths_at_block_start(
            [condition.path for _, conditions in rules for condition in conditions], builder
        )
        groups = _group_rules(
            [
                (rule, compile_conditions_expression(conditions, builder))
                for rule, conditions in rules
            ]
        )
        needs_flag = any(_must_mark_event(group) for _, group in groups)
        if needs_flag:
            builder.add_line("is_understood = False")
        for test, group in groups:
            with builder.open_block(f"if {test}:"):
                self._write_group(builder, group)
            if test == "True" and not _has_continue(group):
                return  # the following rules are unreachable
        with builder.open_block("if not is_understood:" if needs_flag else "if True:"):
            builder.add_line(
                'engine.turn.record_unknown_event(event.get("type", "untyped"), event)'
            )

    def _write_group(self, builder: FunctionBuilder, group: list[ProfileEventRule]) -> None:
        """Write the code for adjacent rules with the same test."""
        assign_shared_paths_at_block_start(
            [field_node for rule in group for field_node in list_field_path_nodes(rule.node)],
            builder,
        )
        for rule in group:
            self._write_rule(builder, rule)
        if _must_mark_event(group):
            builder.add_line("is_understood = True")

    def _write_rule(self, builder: FunctionBuilder, rule: ProfileEventRule) -> None:
        """Write the code for one rule. The surrounding code has already tested the rule's
        conditions.
        """
        rule.node.read_table()
        if self._trace is not None:
            builder.add_line(f"{builder.add_constant(self._trace.enter_rule)}({rule.number})")
        self._write_items(builder, rule.node)
        if self._trace is not None:
            builder.add_line(f"{builder.add_constant(self._trace.leave_rule)}({rule.number})")
        if not rule.allows_further_rules:
            builder.add_line("return")

    def _write_items(self, builder: FunctionBuilder, node: ConfigNode) -> None:
        """Write the code for a rule's output: once for the event, or for each item in it."""
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
    """Return the path whose value most rules compare with strings. Return None if too few rules
    compare the value at the same path.
    """
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
    """Return the rules that can match an event with this value at `sort_node`. Conditions on
    `sort_node` are removed from the rules.
    """
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
    """Group adjacent rules with the same test, so that the test runs once. In a group, rules after
    a rule without `continue` are unreachable and left out.
    """
    groups: list[tuple[str, list[ProfileEventRule]]] = []
    for rule, test in rules:
        if not groups or groups[-1][0] != test:
            groups.append((test, [rule]))
        elif groups[-1][1][-1].allows_further_rules:
            groups[-1][1].append(rule)
    return groups


def _has_continue(group: list[ProfileEventRule]) -> bool:
    """Return whether further rules are applied after all rules of a group."""
    return all(rule.allows_further_rules for rule in group)


def _must_mark_event(group: list[ProfileEventRule]) -> bool:
    """Return whether a group makes an event understood, but lets further rules run. If only
    `session` rules match an event, the event still counts as unknown.
    """
    return _has_continue(group) and any(rule.emit != "session" for rule in group)


def _parse_types(match: ConfigNode) -> frozenset[str] | None:
    """Return the event types that a rule names, or None if the rule applies to any type."""
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
