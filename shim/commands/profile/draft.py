"""A first profile out of captured output: what `shim vendor draft` writes.

For each kind of event it has the fields with samples, and a rule: one that was recognised
(`draft_rules`), or one that ignores the kind, for a person to finish. The draft is valid as it is:
`shim vendor check` runs on it at once.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jinja2 import Environment, StrictUndefined

from shim.commands.profile.draft_kinds import (
    CapturedEvent,
    EventCollector,
    EventKind,
    build_conditions,
    list_kind_labels,
    list_tables,
)
from shim.commands.profile.draft_rules import DraftField, DraftRule, DraftScope, recognize_rules
from shim.commands.profile.tracing import ANY_ITEM, FieldPath, format_path
from shim.core.reading.account import escape_control_chars, pluralize
from shim.core.secrets.redactor import Redactor

TEMPLATE_PATH = os.path.join(os.path.dirname(__file__), "draft.toml.jinja")
MAX_RULES = 150  # a profile may have 200
MAX_LISTED_FIELDS = 12  # of a kind that are shown
MAX_SAMPLE_CHARS = 50
MAX_COMMENT_CHARS = 160
MAX_TOOLS = 100  # entries that are drafted
# A rule to begin with, where there was nothing: a profile has at least one.
EXAMPLE_RULE = DraftRule(
    DraftScope(frozenset({(("type",), "text")})), "text", {"text": DraftField(("text",))}
)


def draft_profile(seen: EventCollector, name: str) -> str:
    """The text of a profile called `name`, from all that was seen."""
    events = seen.list_events()
    rules = recognize_rules(events)
    kinds: dict[EventKind, list[CapturedEvent]] = {}
    for event in events:
        kinds.setdefault(event.kind, []).append(event)
    all_kinds = tuple(kinds)
    ruled = {found.scope.kind for found in rules.rules}
    rest = [DraftRule(DraftScope(kind), "ignore", {}) for kind in kinds if kind not in ruled]
    parts = []
    every = [*rules.rules, *rest][:MAX_RULES] or [EXAMPLE_RULE]
    for place, found in enumerate(every):
        kind, later = found.scope.kind, [one.scope.kind for one in every[place + 1 :]]
        parts.append(
            [
                *_format_fields(kinds.pop(kind, [])),
                *_format_rule(found, list(all_kinds), kind in later),
            ]
        )
    templates = Environment(trim_blocks=True, undefined=StrictUndefined, keep_trailing_newline=True)
    with open(TEMPLATE_PATH, encoding="utf-8") as file:
        template = templates.from_string(file.read())
    return template.render(
        name=name,
        runs=pluralize(seen.run_count, "run"),
        events=pluralize(len(events), "event"),
        odd=pluralize(seen.unparsed_count, "line") if seen.unparsed_count else "",
        emits={found.emit for found in rules.rules},
        delta=rules.has_pieces,
        ends=rules.has_end,
        rules=parts,
        tools=_format_tools(rules.args_by_tool),
    )


def _format_fields(events: Sequence[CapturedEvent]) -> list[str]:
    """A kind and its fields, as comments."""
    if not events:
        return []
    redactor, found = Redactor(), dict[str, Any]()
    for place in list_tables(events[0].table):
        for key, value in place.table.items():
            if not isinstance(value, dict) and not (
                isinstance(value, list) and any(isinstance(one, dict) for one in value)
            ):
                found.setdefault(format_path((*place.path, key)), value)
    lines = [
        f"{' · '.join(list_kind_labels(events[0].kind)) or 'without a type'} ({pluralize(len(events), 'event')})"
    ]
    for name, value in list(found.items())[:MAX_LISTED_FIELDS]:
        sample = json.dumps(redactor.redact_value(value), ensure_ascii=False)
        lines.append(
            f"  {name} = {sample[:MAX_SAMPLE_CHARS]}{'…' * (len(sample) > MAX_SAMPLE_CHARS)}"
        )
    return [
        *map(_format_comment, lines),
        *(
            [f"#   and {len(found) - MAX_LISTED_FIELDS} more"]
            if len(found) > MAX_LISTED_FIELDS
            else []
        ),
    ]


def _format_rule(found: DraftRule, kinds: list[EventKind], goes_on: bool) -> list[str]:
    site = found.scope
    conditions = build_conditions(frozenset((site.kind,)), kinds)
    match = ", ".join(
        f"{_format_key(format_path(path))} = {_format_values(values)}"
        for path, values in conditions.items()
    )
    lines = ["# TODO: nothing is made of it."] if found.emit == "ignore" else []
    if found.emit == "tool_result" and "is_error" not in found.fields:
        lines.append("# TODO: is_error, once it is known how a call that failed looks.")
    lines += ["[[event]]", *([f"match = {{ {match} }}"] if match else [])]
    if site.item_path:
        lines.append(f"foreach = {_format_string(format_path(site.item_path[:-1]))}")
        if site.item_label is not None:
            lines.append(
                f"item_match = {{ {_format_key(site.item_label[0])} = {_format_string(site.item_label[1])} }}"
            )
    lines.append(f"emit = {_format_string(found.emit)}")
    lines += [
        f"{name} = {_format_field(value, site.item_path)}" for name, value in found.fields.items()
    ]
    if goes_on:
        lines.append("continue = true")
    return lines


def _format_field(read: DraftField, item: FieldPath) -> str:
    place = _format_field_path(read.path, item)
    if read.is_json:
        return f'{{ path = {place}, parse = "json" }}'
    how, values = "not_in" if read.is_negated else "in", ", ".join(map(json.dumps, read.values))
    return f"{{ path = {place}, {how} = [{values}] }}" if values else place


def _format_field_path(path: FieldPath, item: FieldPath) -> str:
    """A path as a field says it: of an item of a list with `$`, of other lists the first item."""
    if item and path[: len(item)] == item:
        return _format_string(".".join(("$", format_path(path[len(item) :]))).rstrip("."))
    return _format_string(format_path(path).replace(ANY_ITEM, "[0]"))


def _format_tools(tools: Mapping[str, set[str]]) -> list[str]:
    lines = []
    for name, keys in sorted(tools.items())[:MAX_TOOLS]:
        arguments = ", ".join(sorted(keys)) or "none"
        lines.append(
            _format_comment(
                f'TODO {_format_string(name)} = {{ name = "…" }}   its arguments: {arguments}'
            )
        )
    return lines


def _format_string(text: str) -> str:
    """A string of TOML, with nothing in it that a terminal obeys."""
    return json.dumps(escape_control_chars(text), ensure_ascii=False).replace("\x7f", "\\u007f")


def _format_values(values: Iterable[str]) -> str:
    found = [_format_string(value) for value in values]
    return found[0] if len(found) == 1 else f"[{', '.join(found)}]"


def _format_key(text: str) -> str:
    return (
        text
        if text and all(one.isalnum() or one in "_-" for one in text) and text.isascii()
        else _format_string(text)
    )


def _format_comment(text: str) -> str:
    return f"# {escape_control_chars(text)[:MAX_COMMENT_CHARS]}".replace("\n", " ")
