"""Traces which profile rules match an event, for `shim vendor check`. Rules are only compiled with
tracing for this command.

The fields that a rule reads are found in the rule's table. Python code in an adapter is not
searched.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from shim.profiles.check.config_node import ConfigNode, find_key_line

# The maximum number of leaf values checked per event. Only events with lists of numbers have more.
MAX_LEAVES = 2000
MAX_DEPTH = 12  # deeper fields count as part of their ancestor at this depth

# Keys in a rule field whose values are not event paths, but words, patterns or numbers.
_OPERATOR_KEYS = frozenset(
    (
        "const",
        "map",
        "default",
        "in",
        "not_in",
        "regex",
        "exists",
        "parse",
        "capture",
        "ending",
        "strip",
        "sep",
    )
)
_RULE_SETTING_KEYS = frozenset(
    ("emit", "continue", "once", "mode", "cause", "first_wins", "oldest", "note")
)
_STEP_PATTERN = re.compile(r"'([^']+)'|\"([^\"]+)\"|\[(\*|-?\d+)\]|([^.\[\]'\"]+)")

FieldPath = tuple[str, ...]  # keys; ANY_ITEM stands for any list index
ANY_ITEM = "[*]"


class TracedRule(NamedTuple):
    """A profile rule with its position (file:line), the event that it emits, and the paths that it
    reads.

    `condition_paths` are the paths in the rule's conditions. They are read even if the rule does
    not match.
    """

    number: int
    location: str
    emit: str
    types: frozenset[str] | None
    condition_paths: frozenset[FieldPath]
    read_paths: frozenset[FieldPath]


class RuleTracer:
    """Receives the trace of a profile's rules. `matched_numbers` contains the numbers of the rules
    that matched the current event.
    """

    def __init__(self) -> None:
        self.rules: list[TracedRule] = []
        self.matched_numbers: list[int] = []
        self.current_number: int | None = None

    def add_rule(self, node: ConfigNode, types: frozenset[str] | None) -> int:
        """Add the rule at a config node and return its number."""
        condition_paths, read_paths = collect_rule_field_paths(node.read_table())
        number = len(self.rules)
        emit = str(node.get_child("emit").value)
        self.rules.append(
            TracedRule(
                number,
                _format_location(node),
                emit,
                types,
                frozenset(condition_paths),
                frozenset(read_paths),
            )
        )
        return number

    def enter_rule(self, number: int) -> None:
        self.current_number = number

    def leave_rule(self, number: int) -> None:
        self.current_number = None
        self.matched_numbers.append(number)

    def clear_matched_rules(self) -> None:
        self.matched_numbers.clear()
        self.current_number = None


def _format_location(node: ConfigNode) -> str:
    """Return the position of a rule as file:line. For an inherited rule, which is in another file,
    return its number instead.
    """
    text = node.source.read_text()
    line = find_key_line(text, node.keys)
    lines = text.splitlines()
    if line <= len(lines) and lines[line - 1].lstrip().startswith("[[event"):
        return f"{node.source.path}:{line}"
    return f"{node.source.path}: event[{node.keys[-1]}]"


def collect_rule_field_paths(
    rule_table: Mapping[str, Any],
) -> tuple[set[FieldPath], set[FieldPath]]:
    """Return the paths in a rule's conditions (`match`, `item_match`), and all paths that the rule
    reads.
    """
    list_paths = []
    if isinstance(rule_table.get("foreach"), str):
        list_paths = parse_event_path_alternatives(rule_table["foreach"])[:1]
    item_path: FieldPath = ()
    if list_paths:
        item_path = (*list_paths[0], ANY_ITEM)
    condition_paths = {
        path for key in rule_table.get("match", ()) for path in parse_event_path_alternatives(key)
    }
    for key in rule_table.get("item_match", ()):
        path_expression = key
        if not key.startswith("$"):
            path_expression = f"$.{key}"
        condition_paths.update(parse_event_path_alternatives(path_expression, item_path))
    read_paths = set(condition_paths)
    for key, value in rule_table.items():
        if key in ("match", "item_match", "foreach") or key in _RULE_SETTING_KEYS:
            continue
        read_paths.update(_list_field_paths(value, item_path))
    for path_text in rule_table.get("once", ()):
        read_paths.update(parse_event_path_alternatives(path_text, item_path))
    return condition_paths, read_paths


def _list_field_paths(value: Any, item_path: FieldPath) -> Iterator[FieldPath]:
    """Return the event paths in a rule field."""
    if isinstance(value, str):
        yield from parse_event_path_alternatives(value, item_path)
    elif isinstance(value, list):
        for element in value:
            yield from _list_field_paths(element, item_path)
    elif isinstance(value, dict):
        inner_path = item_path
        if isinstance(value.get("foreach"), str):
            list_paths = parse_event_path_alternatives(value["foreach"], item_path)
            yield from list_paths[1:]
            inner_path = item_path
            if list_paths:
                inner_path = (*list_paths[0], ANY_ITEM)
        for key, inner_value in value.items():
            if key not in _OPERATOR_KEYS and key != "foreach":
                yield from _list_field_paths(
                    inner_value, inner_path if key == "item" else item_path
                )


def parse_event_path_alternatives(
    path_expression: str, item_path: FieldPath = ()
) -> list[FieldPath]:
    """Return the path segments of each alternative in a path. `$` stands for `item_path`. `$index`
    has no segments.
    """
    paths = []
    for part in path_expression.split("||"):
        part = part.strip()
        if part == "$index":
            continue
        of_item = part.startswith("$")
        path = [
            ANY_ITEM if match[3] is not None else str(match[1] or match[2] or match[4])
            for match in _STEP_PATTERN.finditer(part.lstrip("$"))
        ]
        paths.append((*item_path, *path) if of_item else tuple(path))
    return paths


def list_leaf_paths(event: Any) -> Iterator[FieldPath]:
    """Return the paths to an event's leaf values, which contain no other values. At most MAX_LEAVES
    paths are returned.
    """
    stack: list[tuple[FieldPath, Any]] = [((), event)]
    leaf_count = 0
    while stack and leaf_count < MAX_LEAVES:
        path, value = stack.pop()
        children: Iterable[tuple[str, Any]] = ()
        if isinstance(value, dict) and value and len(path) < MAX_DEPTH:
            children = [(str(key), item) for key, item in value.items()]
        elif isinstance(value, list) and value and len(path) < MAX_DEPTH:
            children = [(ANY_ITEM, item) for item in value[:MAX_LEAVES]]
        else:
            leaf_count += 1
            yield path
        stack += [((*path, key), item) for key, item in children]


def find_unread_paths(event: Any, read_paths: Iterable[FieldPath]) -> set[FieldPath]:
    """Return the paths of an event's leaf values that are not covered by the read paths."""
    covered_paths = set(read_paths)
    return {
        path
        for path in list_leaf_paths(event)
        if not any(path[:length] in covered_paths for length in range(len(path) + 1))
    }


def format_field_path(path: FieldPath) -> str:
    text = ""
    for step in path:
        if step == ANY_ITEM:
            text += step
        else:
            is_plain = re.fullmatch(r"[A-Za-z0-9_@:/-]+", step)
            text += ("." if text else "") + (step if is_plain else f"'{step}'")
    if text:
        return text
    return "the complete line"
