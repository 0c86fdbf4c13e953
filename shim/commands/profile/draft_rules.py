"""What of captured output is plain enough for a rule: the session, calls and results, texts, the
end.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from shim.commands.profile import draft_words as vocabulary
from shim.commands.profile.draft_kinds import (
    CapturedEvent,
    EventKind,
    EventTable,
    list_kind_labels,
    list_tables,
)
from shim.commands.profile.draft_words import find_key, has_marker, normalize_name
from shim.commands.profile.tracing import FieldPath


class DraftScope(NamedTuple):
    """Where a rule reads: the kind of event, the list that it walks over (() for none), the word of
    its items.
    """

    kind: EventKind
    item_path: FieldPath = ()
    item_label: tuple[str, str] | None = None


class DraftField(NamedTuple):
    """What a field reads: the value at a path.

    `parse`: the text there is JSON. `values`: it is true where one of them stands there; with
    `good`, where none does.
    """

    path: FieldPath
    is_json: bool = False
    values: Sequence[Any] = ()
    is_negated: bool = False


class DraftRule(NamedTuple):
    """A rule: what it emits at a site, and its fields."""

    scope: DraftScope
    emit: str
    fields: Mapping[str, DraftField]


class DraftRules(NamedTuple):
    """All that was recognised. `tools` has the names of arguments of each tool, `delta` says that
    texts are pieces.
    """

    rules: list[DraftRule]
    args_by_tool: Mapping[str, set[str]]
    has_pieces: bool
    has_end: bool


def recognize_rules(events: Sequence[CapturedEvent]) -> DraftRules:
    """The rules for these events, in the order in which a profile asks them."""
    session = _find_session_rule(events)
    tools: dict[str, set[str]] = {}
    ids: dict[str, DraftScope] = {}
    calls = _find_call_rules(events, tools, ids)
    results = _find_result_rules(events, ids, calls)
    end = _find_end_rule(events)
    taken = {*calls, *results}
    texts, delta = _find_text_rules(events, taken, end.scope.kind if end is not None else None)
    errors = [
        one
        for event in _list_first_of_kind(events)
        if _is_error_kind(event.kind, taken, texts)
        for one in _find_error_rules(event)
    ]
    found = [
        *session,
        *calls.values(),
        *results.values(),
        *texts.values(),
        *errors,
        *([end] if end is not None else []),
    ]
    return DraftRules(found, tools, delta, end is not None)


def _list_first_of_kind(events: Iterable[CapturedEvent]) -> Iterable[CapturedEvent]:
    found: dict[EventKind, CapturedEvent] = {}
    for event in events:
        found.setdefault(event.kind, event)
    return found.values()


def _find_session_rule(events: Sequence[CapturedEvent]) -> list[DraftRule]:
    for event in events:
        for place in list_tables(event.table):
            key = find_key(place.table, vocabulary.SESSION_KEYS, str)
            if key is not None and not place.item_path:
                return [
                    DraftRule(
                        DraftScope(event.kind),
                        "session",
                        {"session_id": DraftField((*place.path, key))},
                    )
                ]
    return []


def _find_call_rules(
    events: Sequence[CapturedEvent], tools: dict[str, set[str]], ids: dict[str, DraftScope]
) -> dict[DraftScope, DraftRule]:
    """A table with an id, a name and arguments; the last two may stand in a table of their own."""
    found: dict[DraftScope, DraftRule] = {}
    for event in events:
        for place in list_tables(event.table):
            name, given = (
                _find_value(place, vocabulary.NAME_KEYS, str),
                _find_value(place, vocabulary.INPUT_KEYS, (dict, str)),
            )
            if name is None or given is None:
                continue
            arguments = _parse_object(given.value)
            identity = next(
                (key for key in _list_id_keys(place) if place.table[key] != name.value), None
            )
            if identity is None or arguments is None:
                continue
            site = DraftScope(event.kind, place.item_path, place.item_label)
            if ids.setdefault(place.table[identity], site) != site:
                continue  # the same call, said again
            fields = {"id": DraftField((*place.path, identity)), "name": DraftField(name.path)}
            fields["input"] = DraftField(given.path, is_json=arguments is not given.value)
            found.setdefault(site, DraftRule(site, "tool_use", fields))
            tools.setdefault(name.value, set()).update(arguments)
    return found


def _list_id_keys(place: EventTable) -> list[str]:
    """The keys that may have the id of a call, the most telling first."""
    words = {
        normalize_name(key): key for key, value in place.table.items() if isinstance(value, str)
    }
    return [words[name] for name in vocabulary.CALL_ID_KEYS if name in words]


class LocatedValue(NamedTuple):
    """A value with the path to it."""

    path: FieldPath
    value: Any


def _find_value(
    place: EventTable, names: tuple[str, ...], kind: type | tuple[type, ...]
) -> LocatedValue | None:
    """The value under the first of some names: in a table, or in one that it holds."""
    for path, table in (
        ((), place.table),
        *(((key,), one) for key, one in place.table.items() if isinstance(one, dict)),
    ):
        if (key := find_key(table, names, kind)) is not None:
            return LocatedValue((*place.path, *path, key), table[key])
    return None


def _parse_object(value: Any) -> Mapping[str, Any] | None:
    """Arguments: an object, or the text of one."""
    try:
        found = orjson.loads(value) if isinstance(value, str) else value
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _find_result_rules(
    events: Sequence[CapturedEvent],
    ids: Mapping[str, DraftScope],
    calls: Mapping[DraftScope, DraftRule],
) -> dict[DraftScope, DraftRule]:
    """A table with the id of a call and what it returned; a call that is said once it is over has
    both.
    """
    found: dict[DraftScope, DraftRule] = {}
    for event in events:
        for place in list_tables(event.table):
            identity = next((key for key in _list_id_keys(place) if place.table[key] in ids), None)
            output = _find_value(place, vocabulary.OUTPUT_KEYS, object)
            site = DraftScope(event.kind, place.item_path, place.item_label)
            if (
                identity is None
                or output is None
                or has_marker(vocabulary.FRAGMENT_MARKERS, *list_kind_labels(event.kind))
            ):
                continue
            if site in calls and calls[site].fields["input"].path[:-1] != output.path[:-1]:
                continue
            fields = {"id": DraftField((*place.path, identity)), "content": DraftField(output.path)}
            found.setdefault(
                site, DraftRule(site, "tool_result", fields | _find_failure_field(place))
            )
    return found


def _find_failure_field(place: EventTable) -> dict[str, DraftField]:
    if flag := find_key(place.table, ("iserror", "failed"), bool):
        return {"is_error": DraftField((*place.path, flag))}
    if code := find_key(place.table, ("exitcode", "code"), int):
        return {"is_error": DraftField((*place.path, code), values=(0,), is_negated=True)}
    if state := find_key(place.table, vocabulary.STATE_KEYS, str):
        return {"is_error": DraftField((*place.path, state), values=vocabulary.FAILURE_STATES)}
    return {}


def _find_end_rule(events: Sequence[CapturedEvent]) -> DraftRule | None:
    """The kind that is the last of each run and never comes before."""
    last = {event.run: event.kind for event in events}
    kinds = set(last.values())
    alone = [event for event in events if event.kind in kinds]
    if len(kinds) != 1 or len(alone) != len(last) or len(events) == len(last):
        return None
    place = EventTable((), alone[-1].table)
    fields = _find_failure_field(place)
    if text := find_key(place.table, vocabulary.FINAL_KEYS, str):
        fields["text"] = DraftField((text,))
    if error := find_key(place.table, vocabulary.ERROR_KEYS, str):
        fields["error"] = DraftField((error,))
    return DraftRule(DraftScope(alone[0].kind), "result", fields)


def _find_text_rules(
    events: Sequence[CapturedEvent], taken: Iterable[DraftScope], end: EventKind | None
) -> tuple[dict[DraftScope, DraftRule], bool]:
    """Texts and thoughts of the model, and whether they come in pieces. Whole texts are preferred."""
    whole: dict[DraftScope, DraftRule] = {}
    pieces: dict[DraftScope, DraftRule] = {}
    by_text: dict[tuple[int, str], DraftScope] = {}  # what says a text of a run first
    for event in events:
        if event.kind == end or DraftScope(event.kind) in taken or _is_not_from_model(event.kind):
            continue
        for place in list_tables(event.table):
            key = find_key(place.table, vocabulary.TEXT_KEYS, str)
            site = DraftScope(event.kind, place.item_path, place.item_label)
            if (
                key is None
                or site in taken
                or not place.table[key]
                or has_marker(vocabulary.NON_MODEL_MARKERS, *(place.item_label or ())[1:])
            ):
                continue
            said = (*list_kind_labels(event.kind), *place.path, key, *(place.item_label or ()))
            found = DraftRule(
                site,
                "thinking" if has_marker(vocabulary.THINKING_MARKERS, *said) else "text",
                {"text": DraftField((*place.path, key))},
            )
            if has_marker(vocabulary.FRAGMENT_MARKERS, *said):
                pieces.setdefault(site, found)
            elif by_text.setdefault((event.run, place.table[key]), site) == site:
                whole.setdefault(site, found)
    delta = bool(pieces) and not any(found.emit == "text" for found in whole.values())
    return (pieces if delta else whole), delta


def _is_not_from_model(kind: EventKind) -> bool:
    """Whether the kind is not the model's, such as the user's."""
    roles = [word for path, word in kind if normalize_name(path[-1]) == "role"]
    return has_marker(vocabulary.NON_MODEL_MARKERS, *(roles or list_kind_labels(kind)))


def _is_error_kind(
    kind: EventKind, taken: Iterable[DraftScope], texts: Iterable[DraftScope]
) -> bool:
    return has_marker(vocabulary.ERROR_MARKERS, *list_kind_labels(kind)) and not any(
        site.kind == kind for site in (*taken, *texts)
    )


def _find_error_rules(event: CapturedEvent) -> list[DraftRule]:
    for place in list_tables(event.table):
        key = find_key(place.table, vocabulary.ERROR_KEYS, str)
        if key is not None and not place.item_path:
            return [
                DraftRule(
                    DraftScope(event.kind), "error", {"error": DraftField((*place.path, key))}
                )
            ]
    return []
