"""Compiles the paths of a profile (`a.b[0].c`, `[*]`, `a || b`, `$`, `$index`) to Python
expressions.
"""

import re
from collections.abc import Iterable
from typing import Any

from shim.profiles.check.config_node import ConfigNode
from shim.profiles.compile.function_builder import (
    EVENT_ROOT,
    EventPathRootVariable,
    FunctionBuilder,
    format_literal,
)
from shim.profiles.run.values import EVERY, MAX_LIST_ITEMS

MAX_PATH_CHARS = 300
MAX_INLINE_STEPS = 8  # nested steps in one expression; a longer path is evaluated by a function
MAX_PLAIN_INDEX_DIGITS = 4  # as in the pattern
_STEP_PATTERN = r"\.?(?:([A-Za-z0-9_@:/-]+)|'([^']+)'|\"([^\"]+)\")|\[(\*|-?\d{1,4})\]"


def compile_event_path_expression(node: ConfigNode, builder: FunctionBuilder) -> str:
    """Return the Python expression for a path. The expression's value is None if the event has no
    value at this path. Raise FrontendError for an invalid path.
    """
    text = node.read_text()
    if len(text) > MAX_PATH_CHARS:
        raise node.build_error(f"a path of at most {MAX_PATH_CHARS} characters")
    preloaded = builder.current_block.value_names
    *alternatives, result = [
        preloaded.get(part) or _compile_alternative(node, part, builder)
        for part in map(str.strip, text.split("||"))
    ]
    if not alternatives:
        return result
    for alternative in reversed(alternatives):
        binding, bound_name = builder.bind_expression_to_variable(alternative)
        result = f"{bound_name} if {binding} is not None else {result}"
    return f"({result})"


def assign_shared_paths_at_block_start(
    path_nodes: Iterable[ConfigNode], builder: FunctionBuilder
) -> None:
    """Assign each path that occurs several times to a variable at the start of the block."""
    plain_nodes = [node for node in path_nodes if node.value.replace(".", "").isidentifier()]
    texts = [node.value for node in plain_nodes]
    for node in plain_nodes:
        if texts.count(node.value) > 1 and node.value not in builder.current_block.value_names:
            builder.assign_path_value_at_block_start(
                node.value, compile_event_path_expression(node, builder)
            )


def _compile_alternative(node: ConfigNode, text: str, builder: FunctionBuilder) -> str:
    if text == "$index":
        return builder.index
    if not text.startswith("$"):
        return _compile_walk(builder, EVENT_ROOT, parse_path_steps(node, text))
    item_steps = parse_path_steps(node, text[1:], may_be_empty=True)
    if builder.item is None:
        return "None"
    if item_steps:
        return _compile_walk(builder, builder.item, item_steps)
    return builder.item.name


def _compile_walk(builder: FunctionBuilder, root: EventPathRootVariable, steps: list[Any]) -> str:
    """Return the Python expression that follows path steps from a root variable. Objects that
    several paths share are read once.
    """
    key_count = 0
    while key_count < len(steps) and steps[key_count].__class__ is str:
        key_count += 1
    if root.can_preload and key_count:
        value = (
            f"{builder.assign_object_at_block_start(root, tuple(steps[: key_count - 1]))}"
            f".get({format_literal(steps[key_count - 1])})"
        )
        return _compile_steps(builder, value, steps[key_count:])
    return _compile_steps(builder, root.name, steps)


def _compile_steps(builder: FunctionBuilder, value: str, steps: list[Any]) -> str:
    """Return the Python expression that follows path steps from a value. The expression for each
    step is nested in the expression for the next step.
    """
    if len(steps) > MAX_INLINE_STEPS:
        return f"get_value_at_path({value}, {builder.add_constant(tuple(steps))})"
    for index, step in enumerate(steps):
        binding, bound_name = builder.bind_expression_to_variable(value)
        if step is EVERY:
            item_name = builder.create_variable()
            item_binding, item_value = builder.bind_expression_to_variable(
                _compile_steps(builder, item_name, steps[index + 1 :])
            )
            items = f"[{item_value} for {item_name} in {bound_name}[:{MAX_LIST_ITEMS}] if {item_binding} is not None]"
            return f"({items} or None if {binding}.__class__ is list and {bound_name} else None)"
        if step.__class__ is str:
            value = f"({bound_name}.get({format_literal(step)}) if {binding}.__class__ is dict else None)"
        else:
            if step >= 0:
                min_length = step + 1
            else:
                min_length = -step
            value = (
                f"({bound_name}[{step:d}] if {binding}.__class__ is list "
                f"and len({bound_name}) >= {min_length:d} else None)"
            )
    return value


def parse_path_steps(node: ConfigNode, text: str, *, may_be_empty: bool = False) -> list[Any]:
    """Return the steps of a path: keys, list indexes, and EVERY. `may_be_empty` is true for the
    part after a `$`.
    """
    if may_be_empty and text[:1] not in ("", ".", "["):
        raise node.build_error(
            "$, $index, or a path that starts with them, such as $.id", f"${text}"
        )
    plain_text = text
    if may_be_empty:
        plain_text = text.removeprefix(".")
    steps = _parse_plain_steps(plain_text)
    if steps is None:
        steps = _match_path_steps(text, may_begin_with_dot=may_be_empty)
    if steps is None or not (steps or may_be_empty):
        raise node.build_error(
            "a path of keys, [0] and [*], with dots between keys and `||` between alternatives",
            text,
        )
    return steps


def _parse_plain_steps(text: str) -> list[Any] | None:
    """Return the steps of a path whose keys are identifiers with at most one index each. Return
    None for any other path.

    Nearly all paths have this form. This function is faster than a regular expression.
    """
    steps: list[Any] = []
    for part in text.split("."):
        key, bracket, index_text = part.partition("[")
        if not key.isidentifier():
            return None
        steps.append(key)
        if bracket:
            index = _parse_index(index_text)
            if index is None:
                return None
            steps.append(index)
    return steps


def _parse_index(text: str) -> Any:
    """Return the list index or EVERY in a text such as `0]`. Return None for any other text."""
    if text == "*]":
        return EVERY
    digits = text[:-1]
    if text.endswith("]") and digits.isdecimal() and len(digits) <= MAX_PLAIN_INDEX_DIGITS:
        return int(digits)
    return None


def _match_path_steps(text: str, *, may_begin_with_dot: bool) -> list[Any] | None:
    """Return the steps of any path, with quoted keys and several indexes in a row. Return None if
    the path is not valid.
    """
    if text.startswith(".") and not may_begin_with_dot:
        return None
    steps: list[Any] = []
    pattern = re.compile(_STEP_PATTERN)
    position = 0
    while position < len(text):
        match = pattern.match(text, position)
        if match is None:
            return None
        if match[4] is not None:
            steps.append(EVERY if match[4] == "*" else int(match[4]))
        elif position and text[position] != ".":
            return None
        else:
            steps.append(match[1] or match[2] or match[3])
        position = match.end()
    return steps
