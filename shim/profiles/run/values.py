"""The functions that the compiled expressions of a profile call. Each function is an operator that
does not fit in one line of Python.

A missing value is None, and every operator accepts None.
"""

from collections.abc import Callable, Sequence
from typing import Any

from shim.core.adapter.tools import list_claude_names, translate_tool_call
from shim.core.claude.usage import Usage, create_usage, parse_dollars
from shim.core.reading.json_repair import parse_json_text
from shim.profiles.check.config_node import MAX_SEARCHED_CHARS

# The maximum number of items of a list that a rule processes. Vendors print shorter lists.
MAX_LIST_ITEMS = 10_000
_SHELL_NAMES = ("sh", "bash", "zsh", "dash", "ash", "ksh", "fish")
_COMMAND_FLAGS = ("-c", "-lc", "-ic", "-lic")


class _EveryItem:
    """Represents `[*]` in a path. An _EveryItem is not equal to any key of an object."""


EVERY = _EveryItem()


def get_value_at_path(value: Any, path_steps: Sequence[Any]) -> Any:
    """Return the value at the end of a path. Each step of the path is a key, a list index, or
    EVERY.
    """
    for position, step in enumerate(path_steps):
        if step is EVERY:
            if value.__class__ is not list:
                return None
            values = [
                get_value_at_path(item, path_steps[position + 1 :])
                for item in value[:MAX_LIST_ITEMS]
            ]
            # If no list item has the value, the value is missing.
            return [item for item in values if item is not None] or None
        if step.__class__ is str:
            if value.__class__ is dict:
                value = value.get(step)
            else:
                value = None
        elif value.__class__ is list and -len(value) <= step < len(value):
            value = value[step]
        else:
            return None
    return value


def convert_integer_id_to_text(value: Any) -> Any:
    """Return an id as text. Some vendors use integer ids."""
    if value.__class__ is int:
        return str(value)
    return value


def is_equal_literal(value: Any, literal: Any) -> bool:
    """Return whether a value equals a literal. `true` does not equal 1."""
    if value != literal:
        return False
    return (value.__class__ is bool) is (literal.__class__ is bool)


def is_one_of(value: Any, literals: Sequence[Any]) -> bool:
    """Return whether a value equals one of the literals."""
    return any(is_equal_literal(value, literal) for literal in literals)


def find_boolean_or_integer_entry(value: Any, table: dict[str, Any]) -> Any:
    """Return the table entry for a boolean or integer value, or None."""
    if value.__class__ is bool:
        return table.get("true" if value else "false")
    if value.__class__ is int:
        return table.get(str(value))
    return None


# -- numbers ---------------------------------------------------------------------------------------


def to_number(value: Any) -> int | float:
    """Return a number unchanged, and a list of numbers as their sum. Return 0 for any other value."""
    if value.__class__ is list:
        return sum(to_number(item) for item in value if item.__class__ is not list)
    if value.__class__ is int or value.__class__ is float:
        return value
    return 0


def add_numbers(*values: Any) -> int | float:
    return sum(map(to_number, values))


def subtract_numbers(first: Any, other: Any = 0, *others: Any) -> int | float:
    """Return the first number minus all others. The result is never below 0."""
    if first.__class__ is other.__class__ is int and not others:
        if first > other:
            return first - other
        return 0
    return max(to_number(first) - to_number(other) - add_numbers(*others), 0)


def multiply_if_number(value: Any, factor: float) -> Any:
    """Return a number multiplied by a factor, as an integer if possible. Return any other value
    unchanged.
    """
    if value.__class__ is not int and value.__class__ is not float:
        return value
    product = value * factor
    if product == product // 1:
        return int(product)
    return product


def build_usage(
    input_tokens: Any, cached_tokens: Any, written_tokens: Any, output_tokens: Any
) -> Usage | None:
    """Return a usage table from four token counts, or None if all counts are missing."""
    if (
        input_tokens is None
        and cached_tokens is None
        and written_tokens is None
        and output_tokens is None
    ):
        return None
    cache_read_tokens = cached_tokens
    if cached_tokens is None:
        cache_read_tokens = 0
    cache_creation_tokens = written_tokens
    if written_tokens is None:
        cache_creation_tokens = 0
    return create_usage(
        0 if input_tokens is None else input_tokens,
        cache_read_tokens,
        cache_creation_tokens,
        0 if output_tokens is None else output_tokens,
    )


# -- text ------------------------------------------------------------------------------------------


def format_value(value: Any) -> str:
    """Return a value as text that can be inserted in a longer text."""
    if value.__class__ is str:
        return str(value)
    if isinstance(value, dict | list):
        from shim.core.reading.json_text import dump_json

        return dump_json(value).decode()
    if value.__class__ is bool:
        if value:
            return "true"
        return "false"
    if value is None:
        return ""
    return str(value)


def join_list(values: Any, separator: str) -> Any:
    """Return a list's items joined to one text. Return any other value unchanged."""
    if values.__class__ is not list:
        return values
    try:
        return separator.join(values)
    except TypeError:  # an item is not a string
        return separator.join(map(format_value, values))


def join_values(separator: str, *values: Any) -> str:
    """Return the values joined to one text. Missing values are omitted."""
    try:
        return separator.join(values)
    except TypeError:  # a value is not a string
        return separator.join([format_value(value) for value in values if value is not None])


def remove_none_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Return an object without fields whose value is None."""
    return {key: value for key, value in fields.items() if value is not None}


class LazyPattern:
    """A regular expression in a profile, compiled when it is first used. Many patterns are for rare
    events and are never compiled.
    """

    search: Any
    match: Any
    fullmatch: Any
    sub: Any
    finditer: Any

    def __init__(self, text: str) -> None:
        self.text = text
        # Whether the pattern only matches at the start of a text.
        self.is_anchored = text.startswith("^") and "|" not in text

    def __getattr__(self, name: str) -> Any:
        import re

        compiled = re.compile(self.text)
        self.search = compiled.search
        self.match = compiled.match
        self.fullmatch = compiled.fullmatch
        self.sub = compiled.sub
        self.finditer = compiled.finditer
        return getattr(compiled, name)


# A command in one pair of quotes, without escapes. Nearly all commands have this form, so a full
# shell parser is not needed for them.
_QUOTED_COMMAND = LazyPattern(
    rf"""(?:[^ '"\\]*/)?(?:{"|".join(_SHELL_NAMES)}) (?:{"|".join(_COMMAND_FLAGS)}) (?:'([^']*)'|"([^"\\]*)")"""
)


def capture_text(value: Any, pattern: LazyPattern) -> str | None:
    """Return the text that a pattern's first group matches, or that the complete pattern matches if
    it has no group. Return None if the pattern does not match.
    """
    match = pattern.search(value, 0, MAX_SEARCHED_CHARS) if value.__class__ is str else None
    return match[1 if match.re.groups else 0] if match else None


def strip_ends(text: Any, pattern: LazyPattern) -> Any:
    """Return a text without the pattern's matches at both ends of the text. Return any other value
    unchanged.
    """
    if text.__class__ is not str:
        return text
    if len(text) <= MAX_SEARCHED_CHARS:
        if pattern.is_anchored:  # `sub` would search up to the end of the text
            match = pattern.match(text)
            if match:
                return text[match.end() :]
            return text
        return pattern.sub("", text)
    # The first search sees only the beginning of the text. A match at the end of this part does not
    # count, because the text continues there.
    spans = {
        span_match.span()
        for span_match in pattern.finditer(text, 0, MAX_SEARCHED_CHARS)
        if span_match.end() < MAX_SEARCHED_CHARS
    }
    spans.update(
        span_match.span() for span_match in pattern.finditer(text, len(text) - MAX_SEARCHED_CHARS)
    )
    remaining = []
    end_of_last = 0
    for start, end in sorted(spans):
        if start >= end_of_last:
            remaining.append(text[end_of_last:start])
            end_of_last = end
    return "".join(remaining) + text[end_of_last:]


def unwrap_shell_command(command: Any) -> Any:
    """Return the command inside `/bin/bash -lc '…'`. Return any other value unchanged."""
    if command.__class__ is not str or " -" not in command[:40]:
        return command
    if match := _QUOTED_COMMAND.fullmatch(command):
        return match[match.lastindex]
    if command.partition(" ")[0].rpartition("/")[2] not in _SHELL_NAMES:
        return command
    import shlex

    try:
        args = shlex.split(command)
    except ValueError:
        return command
    if len(args) == 3 and args[1] in _COMMAND_FLAGS:
        return args[2]
    return command


# -- the only names that compiled rules and tools may use ------------------------------------------

_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    *(
        get_value_at_path,
        is_one_of,
        capture_text,
        list_claude_names,
        build_usage,
        parse_dollars,
        convert_integer_id_to_text,
        join_list,
        find_boolean_or_integer_entry,
        multiply_if_number,
        parse_json_text,
        subtract_numbers,
    ),
    *(
        strip_ends,
        remove_none_fields,
        join_values,
        add_numbers,
        translate_tool_call,
        unwrap_shell_command,
    ),
)
# NOTHING is the empty object that represents a missing object.
RULE_GLOBALS: dict[str, Any] = {"NOTHING": {}} | {
    function.__name__: function for function in _FUNCTIONS
}
