"""Generates the reference of the keys of a profile in the topic `add-a-vendor` from the schema."""

import re
from collections.abc import Iterable, Mapping

from fixture_cases import ROOT

from shim.profiles.check.config_node import ConfigKey
from shim.profiles.load.launch import RESUME_PATTERN
from shim.profiles.schema.tables import PROFILE_TABLES, map_unused_keys_to_successors

PAGE = ROOT / "shim" / "manual" / "add-a-vendor.md"
UNUSED_HEAD = "| key | instead |\n"
FIRST_TABLE = "### The profile itself\n"  # the generated tables begin here
TYPE_NAMES = {
    "read_text": "a string",
    "read_optional_text": "a string",
    "read_text_list": "a list of strings",
    "read_text_table": "a table of strings",
    "read_variables": "a table of strings",
    "read_text_list_table": "a table of lists of strings",
    "read_bool": "true or false",
    "read_regex": "a regular expression",
    "read_optional_regex": "a regular expression",
    "read_optional_capturing_regex": "a regular expression with a group",
    "read_keys": "a table",
    "read_optional_keys": "a table",
}


def update_reference(page: str) -> str:
    """Return the text of the topic with updated generated parts."""
    before, rule, after = page.partition(UNUSED_HEAD)
    assert rule, "the topic has no table of unused keys"
    page = before + render_unused_keys() + after[after.index("\n\n") + 1 :]
    before, heading, _ = page.partition(FIRST_TABLE)
    assert heading, "the topic has no reference of keys"
    return before + render_keys(PROFILE_TABLES)


def render_unused_keys() -> str:
    """Return the table of the keys that no bundled profile uses."""
    rows = [UNUSED_HEAD.strip(), "|---|---|"]
    for name, successor in map_unused_keys_to_successors().items():
        rows.append(f"| {_format_unused_key(name)} | {successor or '–'} |")
    return "\n".join(rows) + "\n"


def _format_unused_key(name: str) -> str:
    kind, _, key = name.partition(".")
    if kind == "emit":
        return f'`emit = "{key}"`'
    if kind == "condition":
        return f"`{{ {key} = […] }}` in a condition"
    return f"`{name}`"


def render_keys(tables: Mapping[str, Mapping[str, ConfigKey]]) -> str:
    """Return one Markdown table for each TOML table: key, value, meaning."""
    sections = []
    for table, keys in tables.items():
        title = f"Table `{table}`" if table else "The profile itself"
        rows = [f"### {title}", "", "| key | value | meaning |", "|---|---|---|"]
        for name, key in keys.items():
            meaning = _escape_cell(key.description)
            if key.successor is not None:
                meaning += " (no bundled profile uses it)"
            rows.append(f"| `{name}` | {_escape_cell(describe_type(key))} | {meaning} |")
        sections.append("\n".join(rows) + "\n")
    return "\n".join(sections)


def describe_type(key: ConfigKey) -> str:
    """Return a description of the allowed values of a key, with their bounds."""
    if key.read is None:
        return key.type_name
    match key.read.__name__, key.arguments:
        case "read_number", (minimum, maximum, *_):
            return f"a number from {minimum:g} to {maximum:g}"
        case "read_choice", (choices, default):
            return _list_choices(choices, default)
        case "read_choice_defaulting_to_first", (choices,):
            return _list_choices(choices, choices[0])
        case "read_text_list", (max_items,):
            return f"a list of at most {max_items} strings"
        case "read_regex", (default,) if default != RESUME_PATTERN:
            return f"a regular expression; default `{default}`"
    return TYPE_NAMES[key.read.__name__]


def _escape_cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", text)


def _list_choices(choices: Iterable[str], default: str) -> str:
    names = ", ".join(f"`{choice}`" for choice in choices)
    return names + (f"; default `{default}`" if default else "")
