"""Infers profile rules from captured output: for the session id, tool calls and results, texts, and
the end of a run.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from shim.commands.profile import draft_vocabulary as vocabulary
from shim.commands.profile.draft_events import (
    CapturedEvent,
    EventKind,
    NestedEventObject,
    list_event_and_nested_objects,
    list_event_kind_labels,
)
from shim.commands.profile.draft_vocabulary import (
    find_key_by_names,
    has_name_containing_marker_word,
    normalize_name_for_comparison,
)
from shim.commands.profile.rule_tracer import FieldPath


class InferredRuleEventSelector(NamedTuple):
    """Selects the events that a rule reads.

    kind        the event kind
    item_path   the path of the list whose items are read, () for none
    item_label  the key and the value that distinguish the items to read, or None
    """

    kind: EventKind
    item_path: FieldPath = ()
    item_label: tuple[str, str] | None = None


class InferredRuleField(NamedTuple):
    """A rule field that reads the value at a path.

    is_json     the value is a text that contains JSON
    values      if set, the field is true if the value is one of these
    is_negated  the field is true if the value is not one of `values`
    """

    path: FieldPath
    is_json: bool = False
    values: Sequence[Any] = ()
    is_negated: bool = False


class InferredEventRule(NamedTuple):
    """An inferred rule: the events that it reads, what it emits for them, and its fields."""

    scope: InferredRuleEventSelector
    emit: str
    fields: Mapping[str, InferredRuleField]


class InferredProfileRules(NamedTuple):
    """All inferred rules of a profile. `args_by_tool` contains the argument names of each tool.
    `has_pieces` is set if texts arrive in fragments.
    """

    rules: list[InferredEventRule]
    args_by_tool: Mapping[str, set[str]]
    has_pieces: bool
    has_end: bool


def infer_profile_rules(events: Sequence[CapturedEvent]) -> InferredProfileRules:
    """Infer rules from captured events and return them in the order of a profile."""
    sessions = (
        _find_single_field_rule(event, vocabulary.SESSION_KEYS, "session", "session_id")
        for event in events
    )
    args_by_tool: dict[str, set[str]] = {}
    scopes_by_id: dict[str, InferredRuleEventSelector] = {}
    calls = _find_call_rules(events, args_by_tool, scopes_by_id)
    results = _find_result_rules(events, scopes_by_id, calls)
    end = _find_end_rule(events)
    used_scopes = {*calls, *results}
    texts, has_pieces = _find_text_rules(events, used_scopes, end and end.scope.kind)
    errors = [
        _find_single_field_rule(event, vocabulary.ERROR_KEYS, "error", "error")
        for event in _list_first_of_kind(events)
        if _is_error_kind(event.kind, used_scopes, texts)
    ]
    rules = (
        next(filter(None, sessions), None),
        *calls.values(),
        *results.values(),
        *texts.values(),
        *errors,
        end,
    )
    return InferredProfileRules(
        list(filter(None, rules)), args_by_tool, has_pieces, end is not None
    )


def _list_first_of_kind(events: Iterable[CapturedEvent]) -> Iterable[CapturedEvent]:
    first_events: dict[EventKind, CapturedEvent] = {}
    for event in events:
        first_events.setdefault(event.kind, event)
    return first_events.values()


def _find_single_field_rule(
    event: CapturedEvent, names: tuple[str, ...], emit: str, field: str
) -> InferredEventRule | None:
    """Return a rule with one field: the first text with one of these names that is not in a list."""
    for event_table in list_event_and_nested_objects(event.table):
        key = find_key_by_names(event_table.table, names, str)
        if key is not None and not event_table.item_path:
            return InferredEventRule(
                InferredRuleEventSelector(event.kind),
                emit,
                {field: InferredRuleField((*event_table.path, key))},
            )
    return None


def _find_call_rules(
    events: Sequence[CapturedEvent],
    args_by_tool: dict[str, set[str]],
    scopes_by_id: dict[str, InferredRuleEventSelector],
) -> dict[InferredRuleEventSelector, InferredEventRule]:
    """Find objects with a call id, a tool name and arguments. The name and the arguments may be in
    a nested object.
    """
    rules: dict[InferredRuleEventSelector, InferredEventRule] = {}
    for event in events:
        for event_table in list_event_and_nested_objects(event.table):
            name = _find_value(event_table, vocabulary.NAME_KEYS, str)
            tool_input = _find_value(event_table, vocabulary.INPUT_KEYS, (dict, str))
            if name is None or tool_input is None:
                continue
            arguments = _parse_object(tool_input.value)
            id_key = next(
                (key for key in _list_id_keys(event_table) if event_table.table[key] != name.value),
                None,
            )
            if id_key is None or arguments is None:
                continue
            scope = InferredRuleEventSelector(
                event.kind, event_table.item_path, event_table.item_label
            )
            if scopes_by_id.setdefault(event_table.table[id_key], scope) != scope:
                continue  # a later event repeats the same call
            fields = {
                "id": InferredRuleField((*event_table.path, id_key)),
                "name": InferredRuleField(name.path),
            }
            fields["input"] = InferredRuleField(
                tool_input.path, is_json=arguments is not tool_input.value
            )
            rules.setdefault(scope, InferredEventRule(scope, "tool_use", fields))
            args_by_tool.setdefault(name.value, set()).update(arguments)
    return rules


def _list_id_keys(event_table: NestedEventObject) -> list[str]:
    """Return the keys that may contain a call id, the most specific key first."""
    keys_by_name = {
        normalize_name_for_comparison(key): key
        for key, value in event_table.table.items()
        if isinstance(value, str)
    }
    return [keys_by_name[name] for name in vocabulary.CALL_ID_KEYS if name in keys_by_name]


class EventFieldValue(NamedTuple):
    """A value in an event, with its path."""

    path: FieldPath
    value: Any


def _find_value(
    event_table: NestedEventObject, names: tuple[str, ...], value_type: type | tuple[type, ...]
) -> EventFieldValue | None:
    """Return the first value with one of these key names, in an object or in an object nested in
    it, or None.
    """
    for path, table in (
        ((), event_table.table),
        *(
            ((key,), inner_table)
            for key, inner_table in event_table.table.items()
            if isinstance(inner_table, dict)
        ),
    ):
        if (key := find_key_by_names(table, names, value_type)) is not None:
            return EventFieldValue((*event_table.path, *path, key), table[key])
    return None


def _parse_object(value: Any) -> Mapping[str, Any] | None:
    """Return tool arguments that are an object or an object as JSON text. Return None for any other
    value.
    """
    try:
        parsed = value
        if isinstance(value, str):
            parsed = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    if isinstance(parsed, dict):
        return parsed
    return None


def _find_result_rules(
    events: Sequence[CapturedEvent],
    scopes_by_id: Mapping[str, InferredRuleEventSelector],
    calls: Mapping[InferredRuleEventSelector, InferredEventRule],
) -> dict[InferredRuleEventSelector, InferredEventRule]:
    """Find objects with a call id and a result. If a vendor reports a call only at its end, the
    same object has the call and the result.
    """
    rules: dict[InferredRuleEventSelector, InferredEventRule] = {}
    for event in events:
        for event_table in list_event_and_nested_objects(event.table):
            id_key = next(
                (
                    key
                    for key in _list_id_keys(event_table)
                    if event_table.table[key] in scopes_by_id
                ),
                None,
            )
            output = _find_value(event_table, vocabulary.OUTPUT_KEYS, object)
            scope = InferredRuleEventSelector(
                event.kind, event_table.item_path, event_table.item_label
            )
            if (
                id_key is None
                or output is None
                or has_name_containing_marker_word(
                    vocabulary.FRAGMENT_MARKERS, *list_event_kind_labels(event.kind)
                )
            ):
                continue
            if scope in calls and calls[scope].fields["input"].path[:-1] != output.path[:-1]:
                continue
            fields = {
                "id": InferredRuleField((*event_table.path, id_key)),
                "content": InferredRuleField(output.path),
            }
            rules.setdefault(
                scope,
                InferredEventRule(scope, "tool_result", fields | _find_failure_field(event_table)),
            )
    return rules


def _find_failure_field(event_table: NestedEventObject) -> dict[str, InferredRuleField]:
    if flag := find_key_by_names(event_table.table, ("iserror", "failed"), bool):
        return {"is_error": InferredRuleField((*event_table.path, flag))}
    if code := find_key_by_names(event_table.table, ("exitcode", "code"), int):
        return {
            "is_error": InferredRuleField((*event_table.path, code), values=(0,), is_negated=True)
        }
    if state := find_key_by_names(event_table.table, vocabulary.STATE_KEYS, str):
        return {
            "is_error": InferredRuleField(
                (*event_table.path, state), values=vocabulary.FAILURE_STATES
            )
        }
    return {}


def _find_end_rule(events: Sequence[CapturedEvent]) -> InferredEventRule | None:
    """Find the event kind that ends every run and never occurs earlier in a run."""
    last_kinds = {event.run: event.kind for event in events}
    kinds = set(last_kinds.values())
    matching_events = [event for event in events if event.kind in kinds]
    if len(kinds) != 1 or len(matching_events) != len(last_kinds) or len(events) == len(last_kinds):
        return None
    event_table = NestedEventObject((), matching_events[-1].table)
    fields = _find_failure_field(event_table)
    if text := find_key_by_names(event_table.table, vocabulary.FINAL_KEYS, str):
        fields["text"] = InferredRuleField((text,))
    if error := find_key_by_names(event_table.table, vocabulary.ERROR_KEYS, str):
        fields["error"] = InferredRuleField((error,))
    return InferredEventRule(InferredRuleEventSelector(matching_events[0].kind), "result", fields)


def _find_text_rules(
    events: Sequence[CapturedEvent],
    used_scopes: Iterable[InferredRuleEventSelector],
    end_kind: EventKind | None,
) -> tuple[dict[InferredRuleEventSelector, InferredEventRule], bool]:
    """Find the model's texts and thinking, and whether they arrive in fragments. If texts also
    arrive complete, the complete texts are used.
    """
    full_texts: dict[InferredRuleEventSelector, InferredEventRule] = {}
    pieces: dict[InferredRuleEventSelector, InferredEventRule] = {}
    by_text: dict[
        tuple[int, str], InferredRuleEventSelector
    ] = {}  # (run, text) → where the text occurs first
    for event in events:
        if (
            event.kind == end_kind
            or InferredRuleEventSelector(event.kind) in used_scopes
            or _is_not_from_model(event.kind)
        ):
            continue
        for event_table in list_event_and_nested_objects(event.table):
            key = find_key_by_names(event_table.table, vocabulary.TEXT_KEYS, str)
            scope = InferredRuleEventSelector(
                event.kind, event_table.item_path, event_table.item_label
            )
            item_label = event_table.item_label or ()
            if (
                key is None
                or scope in used_scopes
                or not event_table.table[key]
                or has_name_containing_marker_word(vocabulary.NON_MODEL_MARKERS, *item_label[1:])
            ):
                continue
            names = (
                *list_event_kind_labels(event.kind),
                *event_table.path,
                key,
                *item_label,
            )
            emit = "text"
            if has_name_containing_marker_word(vocabulary.THINKING_MARKERS, *names):
                emit = "thinking"
            rule = InferredEventRule(
                scope,
                emit,
                {"text": InferredRuleField((*event_table.path, key))},
            )
            if has_name_containing_marker_word(vocabulary.FRAGMENT_MARKERS, *names):
                pieces.setdefault(scope, rule)
            elif by_text.setdefault((event.run, event_table.table[key]), scope) == scope:
                full_texts.setdefault(scope, rule)
    has_pieces = bool(pieces) and not any(rule.emit == "text" for rule in full_texts.values())
    return (pieces if has_pieces else full_texts), has_pieces


def _is_not_from_model(kind: EventKind) -> bool:
    """Return whether events of this kind do not come from the model, for example user messages."""
    roles = [label for path, label in kind if normalize_name_for_comparison(path[-1]) == "role"]
    return has_name_containing_marker_word(
        vocabulary.NON_MODEL_MARKERS, *(roles or list_event_kind_labels(kind))
    )


def _is_error_kind(
    kind: EventKind,
    used_scopes: Iterable[InferredRuleEventSelector],
    text_scopes: Iterable[InferredRuleEventSelector],
) -> bool:
    if not (
        has_name_containing_marker_word(vocabulary.ERROR_MARKERS, *list_event_kind_labels(kind))
    ):
        return False
    return not any(scope.kind == kind for scope in (*used_scopes, *text_scopes))
