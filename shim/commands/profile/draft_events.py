"""Collects captured output for a profile draft: events by kind, and the objects and values in them."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import orjson

from shim.commands.profile.draft_vocabulary import (
    INPUT_KEYS,
    KIND_KEYS,
    MAX_KIND_CHARS,
    OUTPUT_KEYS,
    normalize_name_for_comparison,
)
from shim.commands.profile.rule_tracer import ANY_ITEM, FieldPath
from shim.core.reading.lines import LineSplitter

MAX_EVENTS = 10_000  # in all runs together; further events rarely add new fields
MAX_LINE_BYTES = 1024 * 1024  # longer lines mostly contain data
MAX_TABLE_DEPTH = 4  # levels of nested objects
MAX_LIST_ITEMS = 20  # per list; later items repeat the same fields
MAX_LABELS_PER_KEY = 60  # a key with more different values does not contain kinds

EventData = Mapping[str, Any]
# The labels that distinguish an event kind from others, with their paths.
EventKind = frozenset[tuple[FieldPath, str]]


class CapturedEvent(NamedTuple):
    """A captured output line: the number of its run (from 1), its event kind, and its JSON object."""

    run: int
    kind: EventKind
    table: EventData


class NestedEventObject(NamedTuple):
    """An event, or an object nested in it.

    path        the path from the event to the object
    item_path   the part of the path that ends in a list item, () if there is no list
    item_label  the key and the value that distinguish this list item from others
    """

    path: FieldPath
    table: EventData
    item_path: FieldPath = ()
    item_label: tuple[str, str] | None = None


class CapturedEventCollector:
    """Collects the events of several runs. `read_captured_files` calls its methods for each run."""

    def __init__(self) -> None:
        self.run_count = 0
        self.unparsed_count = 0  # lines that are not JSON objects
        self._tables: list[tuple[int, EventData]] = []
        self._splitter = LineSplitter(MAX_LINE_BYTES)

    def start_child_output(self, label: str) -> None:
        self.run_count += 1
        self._splitter = LineSplitter(MAX_LINE_BYTES)

    def feed(self, chunk: bytes) -> None:
        for raw in self._splitter.feed(chunk):
            self._add_line(raw)

    def end_child_output(self, child_exit: object, stderr: str | None) -> None:
        for raw in self._splitter.close():
            self._add_line(raw)

    def _add_line(self, raw: bytes) -> None:
        if not raw.strip() or len(self._tables) >= MAX_EVENTS:
            return
        try:
            value = orjson.loads(raw)
        except orjson.JSONDecodeError:
            value = None
        if isinstance(value, dict):
            self._tables.append((self.run_count, value))
        else:
            self.unparsed_count += 1

    def list_captured_events(self) -> list[CapturedEvent]:
        labels_by_event = [dict(_list_labels(table)) for _, table in self._tables]
        labels_by_path: dict[FieldPath, set[str]] = {}
        for labels in labels_by_event:
            for path, label in labels.items():
                labels_by_path.setdefault(path, set()).add(label)
        return [
            CapturedEvent(
                run,
                frozenset(
                    (path, label)
                    for path, label in labels.items()
                    if len(labels_by_path[path]) <= MAX_LABELS_PER_KEY
                ),
                table,
            )
            for (run, table), labels in zip(self._tables, labels_by_event, strict=True)
        ]


def _list_labels(table: EventData, path: FieldPath = ()) -> Iterator[tuple[FieldPath, str]]:
    """Yield the labels that name an event's kind, with their paths. Nested objects are searched
    too.
    """
    for key, value in table.items():
        name = normalize_name_for_comparison(key)
        if isinstance(value, str):
            if (
                name in KIND_KEYS
                and 0 < len(value) <= MAX_KIND_CHARS
                and not any(map(str.isspace, value))
            ):
                yield (*path, key), value
        elif (
            isinstance(value, dict)
            and len(path) < 2
            and name not in INPUT_KEYS
            and name not in OUTPUT_KEYS
        ):
            yield from _list_labels(value, (*path, key))


def list_event_kind_labels(kind: EventKind) -> list[str]:
    """Return the labels of an event kind, for example `item.completed` and `agent_message`."""
    return [label for _, label in sorted(kind)]


def list_event_and_nested_objects(
    event_object: EventData,
    object_path: FieldPath = (),
    list_item_path: FieldPath = (),
    item_label: tuple[str, str] | None = None,
) -> Iterator[NestedEventObject]:
    """Yield the event and the objects nested in it. Lists inside of other lists are not searched."""
    yield NestedEventObject(object_path, event_object, list_item_path, item_label)
    if len(object_path) >= MAX_TABLE_DEPTH:
        return
    for key, value in event_object.items():
        if isinstance(value, dict):
            yield from list_event_and_nested_objects(
                value, (*object_path, key), list_item_path, item_label
            )
        elif isinstance(value, list) and not list_item_path:
            inner_path = (*object_path, key, ANY_ITEM)
            for item in islice(value, MAX_LIST_ITEMS):
                if isinstance(item, dict):
                    yield from list_event_and_nested_objects(
                        item, inner_path, inner_path, _find_top_label(item)
                    )


def _find_top_label(table: EventData) -> tuple[str, str] | None:
    return next(
        ((key, label) for (key, *inner_keys), label in _list_labels(table) if not inner_keys), None
    )


def build_event_match_conditions(
    kinds: frozenset[EventKind], other_event_kinds: list[EventKind]
) -> dict[FieldPath, list[str]]:
    """Build the `match` conditions for these event kinds. A condition is omitted if it does not
    exclude any other kind. Conditions on the event's top-level keys are always kept.
    """
    label_tables = [dict(kind) for kind in kinds]
    conditions = {
        path: sorted({label_by_path[path] for label_by_path in label_tables})
        for path in label_tables[0]
        if all(path in label_by_path for label_by_path in label_tables)
    }
    other_kinds = [dict(kind) for kind in other_event_kinds if kind not in kinds]

    def count_false_matches(candidate: Mapping[FieldPath, list[str]]) -> int:
        return sum(
            all(label_by_path.get(path) in values for path, values in candidate.items())
            for label_by_path in other_kinds
        )

    for path in sorted(conditions, key=len, reverse=True):
        fewer = {
            other_path: values for other_path, values in conditions.items() if other_path != path
        }
        if (
            len(path) > 1
            and normalize_name_for_comparison(path[-1]) != "role"
            and fewer
            and count_false_matches(fewer) == count_false_matches(conditions)
        ):
            conditions = fewer
    return dict(
        sorted(
            conditions.items(), key=lambda label_by_path: (len(label_by_path[0]), label_by_path[0])
        )
    )
