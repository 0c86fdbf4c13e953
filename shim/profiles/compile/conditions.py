"""Compiles the conditions of a rule or a tool, which are in `match` and `item_match`. The module
`rules` describes their syntax.
"""

from collections.abc import Callable, Mapping

from shim.profiles.check.config_node import ConfigNode
from shim.profiles.compile.fields import (
    compile_membership_test,
    compile_pattern_test,
    read_literals,
)
from shim.profiles.compile.function_builder import FunctionBuilder
from shim.profiles.compile.paths import compile_event_path_expression

MAX_CONDITIONS = 20  # conditions in one rule
_OPERATORS = ("exists", "kind", "in", "not_in", "regex")
_KIND_TESTS: Mapping[str, str] = {
    "string": ".__class__ is str",
    "number": ".__class__ in (int, float)",
    "boolean": ".__class__ is bool",
    "array": ".__class__ is list",
    "object": ".__class__ is dict",
    "null": " is None",
}


class EventMatchCondition:
    """A condition on the value at `path`. `build_test` receives the value's Python expression and
    returns the expression that tests it.

    `texts` is not empty if the condition only tests whether the value is one of these strings.
    """

    def __init__(
        self,
        path: ConfigNode,
        build_test: Callable[[str, FunctionBuilder], str],
        texts: frozenset[str] = frozenset(),
    ) -> None:
        self.path = path
        self.build_test = build_test
        self.texts = texts

    def is_text_equality_test_of(self, path_node: ConfigNode) -> bool:
        """Return whether the condition only compares the value at this path with strings."""
        return bool(self.texts) and self.path.value == path_node.value

    def compile_expression(self, builder: FunctionBuilder) -> str:
        """Return the Python expression that tests the condition."""
        return self.build_test(compile_event_path_expression(self.path, builder), builder)


def parse_match_conditions(
    node: ConfigNode, *, skipped_key: str = "", is_inside_foreach: bool = False
) -> list[EventMatchCondition]:
    """Return the conditions in a `match` table. The key `skipped_key` is ignored. Raise
    FrontendError for an invalid condition.
    """
    table = node.read_table()
    if len(table) > MAX_CONDITIONS:
        raise node.build_error(
            f"a table with at most {MAX_CONDITIONS} conditions",
            f"a table with {len(table)} conditions",
        )
    conditions: list[EventMatchCondition] = []
    for key in table:
        if key != skipped_key:
            path_text = key
            if is_inside_foreach and not key.startswith("$"):
                path_text = f"$.{key}"
            path_node = ConfigNode(node.source, path_text, (*node.keys, key))
            conditions += _parse_condition(node.get_child(key), path_node)
    return conditions


def compile_conditions_expression(
    conditions: list[EventMatchCondition], builder: FunctionBuilder
) -> str:
    """Return a Python expression that is true if all conditions are true."""
    if not conditions:
        return "True"
    return " and ".join([condition.compile_expression(builder) for condition in conditions])


def _parse_condition(node: ConfigNode, path_node: ConfigNode) -> list[EventMatchCondition]:
    """Return the conditions that one key of a `match` table defines. `path_node` has the path that
    the key contains.
    """
    if isinstance(node.value, dict):
        node.read_table(_OPERATORS)
        if not node.value:
            raise node.build_error(f"a table with one of {', '.join(_OPERATORS)}")
        return [
            EventMatchCondition(path_node, _compile_operator(node.get_child(name), name))
            for name in node.value
        ]
    literals = read_literals(
        node if isinstance(node.value, list) else ConfigNode(node.source, [node.value], node.keys)
    )
    if all(literal.__class__ is str for literal in literals):
        texts = frozenset(literals)
    else:
        texts = frozenset()
    return [
        EventMatchCondition(
            path_node,
            lambda value, builder: compile_membership_test(value, literals, builder),
            texts,
        )
    ]


def _compile_operator(node: ConfigNode, name: str) -> Callable[[str, FunctionBuilder], str]:
    if name == "exists":
        comparison = "is"
        if node.read_bool():
            comparison = "is not"
        return lambda value, builder: f"{value} {comparison} None"
    if name == "regex":
        node.compile_pattern()
        return lambda value, builder: compile_pattern_test(node, value, builder)
    if name == "kind":
        kind_test = _KIND_TESTS[node.read_choice(_KIND_TESTS)]
        return lambda value, builder: f"{value}{kind_test}"
    literals, negation = read_literals(node), "" if name == "in" else "not "
    return lambda value, builder: f"{negation}{compile_membership_test(value, literals, builder)}"
