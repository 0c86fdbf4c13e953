"""Drafts a profile from captured output, for `shim vendor draft`.

The draft lists the fields of each event kind with samples. It also has a rule for each kind: a rule
that `draft_rules` inferred, or an `ignore` rule for a person to complete. The draft is a valid
profile, so `shim vendor check` can run on it.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jinja2 import Environment, StrictUndefined

from shim.commands.profile.draft_events import (
    CapturedEvent,
    CapturedEventCollector,
    EventKind,
    build_event_match_conditions,
    list_event_and_nested_objects,
    list_event_kind_labels,
)
from shim.commands.profile.draft_rules import (
    InferredEventRule,
    InferredRuleEventSelector,
    InferredRuleField,
    infer_profile_rules,
)
from shim.commands.profile.rule_tracer import ANY_ITEM, FieldPath, format_field_path
from shim.core.reading.diagnostics import pluralize
from shim.core.reading.values import escape_control_chars
from shim.core.secrets.redactor import Redactor

TEMPLATE_PATH = os.path.join(os.path.dirname(__file__), "draft.toml.jinja")
MAX_RULES = 150  # profiles are limited to 200
MAX_LISTED_FIELDS = 12  # fields per event kind
MAX_SAMPLE_CHARS = 50
MAX_COMMENT_CHARS = 160
MAX_TOOLS = 100  # drafted entries in [tools]
# The rule in an empty draft, because a profile needs at least one rule.
EXAMPLE_RULE = InferredEventRule(
    InferredRuleEventSelector(frozenset({(("type",), "text")})),
    "text",
    {"text": InferredRuleField(("text",))},
)


def generate_profile_toml(collector: CapturedEventCollector, name: str) -> str:
    """Return the TOML text of a profile called `name`, drafted from all captured events."""
    events = collector.list_captured_events()
    rules = infer_profile_rules(events)
    events_by_kind: dict[EventKind, list[CapturedEvent]] = {}
    for event in events:
        events_by_kind.setdefault(event.kind, []).append(event)
    all_kinds = tuple(events_by_kind)
    kinds_with_rule = {rule.scope.kind for rule in rules.rules}
    ignore_rules = [
        InferredEventRule(InferredRuleEventSelector(kind), "ignore", {})
        for kind in events_by_kind
        if kind not in kinds_with_rule
    ]
    parts = []
    all_rules = [*rules.rules, *ignore_rules][:MAX_RULES] or [EXAMPLE_RULE]
    for index, rule in enumerate(all_rules):
        kind = rule.scope.kind
        later_kinds = [later_rule.scope.kind for later_rule in all_rules[index + 1 :]]
        parts.append(
            [
                *_format_fields(events_by_kind.pop(kind, [])),
                *_format_rule(rule, list(all_kinds), kind in later_kinds),
            ]
        )
    environment = Environment(
        trim_blocks=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    with open(TEMPLATE_PATH, encoding="utf-8") as file:
        template = environment.from_string(file.read())
    return template.render(
        name=name,
        runs=pluralize(collector.run_count, "run"),
        events=pluralize(len(events), "event"),
        odd=pluralize(collector.unparsed_count, "line") if collector.unparsed_count else "",
        emits={rule.emit for rule in rules.rules},
        delta=rules.has_pieces,
        ends=rules.has_end,
        rules=parts,
        tools=_format_tools(rules.args_by_tool),
    )


def _format_fields(events: Sequence[CapturedEvent]) -> list[str]:
    """Format an event kind and its fields as TOML comments."""
    if not events:
        return []
    redactor = Redactor()
    values = dict[str, Any]()
    for event_table in list_event_and_nested_objects(events[0].table):
        for key, value in event_table.table.items():
            if not isinstance(value, dict) and not (
                isinstance(value, list) and any(isinstance(item, dict) for item in value)
            ):
                values.setdefault(format_field_path((*event_table.path, key)), value)
    lines = [
        f"{' · '.join(list_event_kind_labels(events[0].kind)) or 'without a type'} ({pluralize(len(events), 'event')})"
    ]
    for name, value in list(values.items())[:MAX_LISTED_FIELDS]:
        sample = json.dumps(redactor.redact_value(value), ensure_ascii=False)
        lines.append(
            f"  {name} = {sample[:MAX_SAMPLE_CHARS]}{'…' * (len(sample) > MAX_SAMPLE_CHARS)}"
        )
    return [
        *map(_format_comment, lines),
        *(
            [f"#   and {len(values) - MAX_LISTED_FIELDS} more"]
            if len(values) > MAX_LISTED_FIELDS
            else []
        ),
    ]


def _format_rule(rule: InferredEventRule, kinds: list[EventKind], continues: bool) -> list[str]:
    scope = rule.scope
    conditions = build_event_match_conditions(frozenset((scope.kind,)), kinds)
    match = ", ".join(
        f"{_format_key(format_field_path(path))} = {_format_values(values)}"
        for path, values in conditions.items()
    )
    lines = []
    if rule.emit == "ignore":
        lines = ["# TODO: this event is ignored."]
    if rule.emit == "tool_result" and "is_error" not in rule.fields:
        lines.append("# TODO: add is_error, once you have output of a failed call.")
    lines += ["[[event]]", *([f"match = {{ {match} }}"] if match else [])]
    if scope.item_path:
        lines.append(f"foreach = {_format_string(format_field_path(scope.item_path[:-1]))}")
        if scope.item_label is not None:
            lines.append(
                f"item_match = {{ {_format_key(scope.item_label[0])} = {_format_string(scope.item_label[1])} }}"
            )
    lines.append(f"emit = {_format_string(rule.emit)}")
    lines += [
        f"{name} = {_format_field(value, scope.item_path)}" for name, value in rule.fields.items()
    ]
    if continues:
        lines.append("continue = true")
    return lines


def _format_field(field: InferredRuleField, item_path: FieldPath) -> str:
    path_text = _format_field_path(field.path, item_path)
    if field.is_json:
        return f'{{ path = {path_text}, parse = "json" }}'
    operator = "in"
    if field.is_negated:
        operator = "not_in"
    values = ", ".join(map(json.dumps, field.values))
    if values:
        return f"{{ path = {path_text}, {operator} = [{values}] }}"
    return path_text


def _format_field_path(path: FieldPath, item_path: FieldPath) -> str:
    """Format a path as in a profile. `$` stands for the list item that a rule reads; in other
    lists, the path uses the first item.
    """
    if item_path and path[: len(item_path)] == item_path:
        return _format_string(
            ".".join(("$", format_field_path(path[len(item_path) :]))).rstrip(".")
        )
    return _format_string(format_field_path(path).replace(ANY_ITEM, "[0]"))


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
    """Return a TOML string without terminal control characters."""
    return json.dumps(escape_control_chars(text), ensure_ascii=False).replace("\x7f", "\\u007f")


def _format_values(values: Iterable[str]) -> str:
    strings = [_format_string(value) for value in values]
    if len(strings) == 1:
        return strings[0]
    return f"[{', '.join(strings)}]"


def _format_key(text: str) -> str:
    if (
        text
        and all(character.isalnum() for character in text if character not in "_-")
        and text.isascii()
    ):
        return text
    return _format_string(text)


def _format_comment(text: str) -> str:
    return f"# {escape_control_chars(text)[:MAX_COMMENT_CHARS]}".replace("\n", " ")
