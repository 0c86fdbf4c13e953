"""Captured output for a draft: events by kind, and the tables and values inside of them."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import orjson

from shim.commands.profile.draft_words import (
    INPUT_KEYS,
    KIND_CHARACTERS,
    KIND_KEYS,
    OUTPUT_KEYS,
    plain,
)
from shim.commands.profile.tracing import ITEM, Path
from shim.core.reading.lines import LineSplitter

EVENTS = 10_000  # of all runs: more adds no shape
LINE_BYTES = 1024 * 1024  # a longer line is data, not shape
DEEP = 4  # tables inside each other that are looked at
LIST_ITEMS = 20  # of a list: what comes behind looks the same
VALUES = 60  # words under a key; a key with more of them holds names, not kinds

Table = Mapping[str, Any]
Kind = frozenset[tuple[Path, str]]  # the words that tell it from others, and where they stand


class Event(NamedTuple):
    """A line: the run that it is of (from 1), its kind, its object."""

    run: int
    kind: Kind
    table: Table


class Place(NamedTuple):
    """A table inside an event.

    `path` leads to it; `item` is the part of the path that ends in a list (() where there is none);
    `word` is the key and the word that tell this item of the list from others.
    """

    path: Path
    table: Table
    item: Path = ()
    word: tuple[str, str] | None = None


class Seen:
    """Collects the events of runs: `begin`, `feed` … `end` for each run, as
    `captured.read_captured` calls them.
    """

    def __init__(self) -> None:
        self.runs = 0
        self.odd = 0  # lines that are no JSON object
        self._tables: list[tuple[int, Table]] = []
        self._lines = LineSplitter(LINE_BYTES)

    def begin(self, label: str) -> None:
        self.runs += 1
        self._lines = LineSplitter(LINE_BYTES)

    def feed(self, chunk: bytes) -> None:
        for raw in self._lines.feed(chunk):
            self._line(raw)

    def end(self, child_exit: object, stderr: str | None) -> None:
        for raw in self._lines.close():
            self._line(raw)

    def _line(self, raw: bytes) -> None:
        if not raw.strip() or len(self._tables) >= EVENTS:
            return
        try:
            value = orjson.loads(raw)
        except orjson.JSONDecodeError:
            value = None
        if isinstance(value, dict):
            self._tables.append((self.runs, value))
        else:
            self.odd += 1

    def events(self) -> list[Event]:
        words = [dict(_words(table)) for _, table in self._tables]
        values: dict[Path, set[str]] = {}
        for found in words:
            for path, word in found.items():
                values.setdefault(path, set()).add(word)
        return [
            Event(
                run,
                frozenset(
                    (path, word) for path, word in found.items() if len(values[path]) <= VALUES
                ),
                table,
            )
            for (run, table), found in zip(self._tables, words, strict=True)
        ]


def _words(table: Table, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """The words that say of which kind an event is: in the event, and in the tables that it holds."""
    for key, value in table.items():
        name = plain(key)
        if isinstance(value, str):
            if (
                name in KIND_KEYS
                and 0 < len(value) <= KIND_CHARACTERS
                and not any(map(str.isspace, value))
            ):
                yield (*path, key), value
        elif (
            isinstance(value, dict)
            and len(path) < 2
            and name not in INPUT_KEYS
            and name not in OUTPUT_KEYS
        ):
            yield from _words(value, (*path, key))


def words(kind: Kind) -> list[str]:
    """The words of a kind: `item.completed`, `agent_message`."""
    return [word for _, word in sorted(kind)]


def places(
    table: Table, path: Path = (), item: Path = (), word: tuple[str, str] | None = None
) -> Iterator[Place]:
    """The event and the tables inside of it; of lists in lists only the outer one."""
    yield Place(path, table, item, word)
    if len(path) >= DEEP:
        return
    for key, value in table.items():
        if isinstance(value, dict):
            yield from places(value, (*path, key), item, word)
        elif isinstance(value, list) and not item:
            inner = (*path, key, ITEM)
            for one in islice(value, LIST_ITEMS):
                if isinstance(one, dict):
                    yield from places(one, inner, inner, _word_of(one))


def _word_of(table: Table) -> tuple[str, str] | None:
    return next(((key, word) for (key, *deeper), word in _words(table) if not deeper), None)


def matching(kinds: frozenset[Kind], others: list[Kind]) -> dict[Path, list[str]]:
    """The conditions that hold for these kinds; of those that no other kind tells apart the line's
    own stay.
    """
    tables = [dict(kind) for kind in kinds]
    conditions = {
        path: sorted({one[path] for one in tables})
        for path in tables[0]
        if all(path in one for one in tables)
    }
    strangers = [dict(kind) for kind in others if kind not in kinds]

    def wrong(using: Mapping[Path, list[str]]) -> int:
        return sum(
            all(one.get(path) in values for path, values in using.items()) for one in strangers
        )

    for path in sorted(conditions, key=len, reverse=True):
        fewer = {other: values for other, values in conditions.items() if other != path}
        if (
            len(path) > 1
            and plain(path[-1]) != "role"
            and fewer
            and wrong(fewer) == wrong(conditions)
        ):
            conditions = fewer
    return dict(sorted(conditions.items(), key=lambda one: (len(one[0]), one[0])))
