"""The conditions of a rule or of a tool: `match` and `item_match` (`rules` has how they are said)."""

from collections.abc import Callable, Mapping

from shim.profiles.check.toml_errors import ConfigNode
from shim.profiles.compile.fields import compile_membership, compile_pattern_test, read_literals
from shim.profiles.compile.paths import compile_path
from shim.profiles.compile.source import FunctionBuilder

MAX_CONDITIONS = 20  # of one rule
_OPERATORS = ("exists", "kind", "in", "not_in", "regex")
_KIND_TESTS: Mapping[str, str] = {
    "string": ".__class__ is str",
    "number": ".__class__ in (int, float)",
    "boolean": ".__class__ is bool",
    "array": ".__class__ is list",
    "object": ".__class__ is dict",
    "null": " is None",
}


class Condition:
    """What is asked of the value at `path`; `holds` makes an expression of the one that reads it.

    `texts` are the strings that the value may be, where nothing else is asked of it.
    """

    def __init__(
        self,
        path: ConfigNode,
        holds: Callable[[str, FunctionBuilder], str],
        texts: frozenset[str] = frozenset(),
    ) -> None:
        self.path = path
        self.build_test = holds
        self.texts = texts

    def has_only_texts_at(self, path: ConfigNode) -> bool:
        """Whether it only asks which text stands at this path."""
        return bool(self.texts) and self.path.value == path.value

    def compile_test(self, here: FunctionBuilder) -> str:
        """The condition as an expression."""
        return self.build_test(compile_path(self.path, here), here)


def parse_conditions(
    spot: ConfigNode, *, skipped_key: str = "", is_for_item: bool = False
) -> list[Condition]:
    """The conditions of a `match` table, without the key `leave`."""
    table = spot.read_table()
    if len(table) > MAX_CONDITIONS:
        raise spot.build_error(
            f"a table of at most {MAX_CONDITIONS} conditions", f"a table of {len(table)}"
        )
    found: list[Condition] = []
    for key in table:
        if key != skipped_key:
            text = key if not is_for_item or key.startswith("$") else f"$.{key}"
            asked = ConfigNode(spot.source, text, (*spot.keys, key))
            found += _parse_condition(spot.child(key), asked)
    return found


def compile_all(asked: list[Condition], here: FunctionBuilder) -> str:
    """All of some conditions as one expression."""
    return " and ".join([one.compile_test(here) for one in asked]) or "True"


def _parse_condition(spot: ConfigNode, asked: ConfigNode) -> list[Condition]:
    """The conditions under one key; `asked` is the path that it says."""
    if isinstance(spot.value, dict):
        spot.read_table(_OPERATORS)
        if not spot.value:
            raise spot.build_error(f"a table with one of {', '.join(_OPERATORS)}")
        return [Condition(asked, _compile_operator(spot.child(name), name)) for name in spot.value]
    wanted = read_literals(
        spot if isinstance(spot.value, list) else ConfigNode(spot.source, [spot.value], spot.keys)
    )
    texts = frozenset(wanted) if all(one.__class__ is str for one in wanted) else frozenset()
    return [Condition(asked, lambda value, here: compile_membership(value, wanted, here), texts)]


def _compile_operator(spot: ConfigNode, name: str) -> Callable[[str, FunctionBuilder], str]:
    if name == "exists":
        there = "is not" if spot.read_bool() else "is"
        return lambda value, here: f"{value} {there} None"
    if name == "regex":
        spot.compile_pattern()
        return lambda value, here: compile_pattern_test(spot, value, here)
    if name == "kind":
        kind = _KIND_TESTS[spot.read_choice(_KIND_TESTS)]
        return lambda value, here: f"{value}{kind}"
    wanted, denied = read_literals(spot), "" if name == "in" else "not "
    return lambda value, here: f"{denied}{compile_membership(value, wanted, here)}"
