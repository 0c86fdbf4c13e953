"""What captured output is made of, for a draft: events by kind, and the values inside them with the way to each."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from shim.commands.vendor.draft_words import KIND_CHARACTERS, KIND_KEYS, OPAQUE, plain
from shim.commands.vendor.tracing import ITEM, Path
from shim.core.reading.lines import LineSplitter

EVENTS = 10_000  # of all runs are looked at: more adds no shape
RUN_EVENTS = 2000  # of one run
RUNS = 200
LINE_BYTES = 1024 * 1024  # a longer line is data, not shape
NODES = 400  # values inside one event
DEEP = 7
LIST_ITEMS = 20  # of a list; what comes behind looks the same
VALUES = 60  # of a kind's key; one with more holds names, not kinds

Condition = tuple[Path, str]
Kind = frozenset[Condition]


class Event(NamedTuple):
    """One event: its run, its place in all that was read, its kind."""

    run: int
    place: int
    table: dict[str, Any]
    kind: Kind


class Node(NamedTuple):
    """A value inside an event: the path to it, and the tables on the way, each with its own path.

    `item` is the table in the innermost list that it lies in, with its path; of one that lies in no list the event.
    """

    path: Path
    value: Any
    above: tuple[tuple[Path, dict[str, Any]], ...]
    item: tuple[Path, dict[str, Any]]

    @property
    def key(self) -> str:
        """The name of the value, as names are compared."""
        return plain(self.path[-1]) if self.path else ""

    @property
    def within(self) -> tuple[tuple[Path, dict[str, Any]], ...]:
        """The tables above it from the innermost on, as far as they lie in the same item of a list."""
        start = self.item[0]
        return tuple(one for one in reversed(self.above) if one[0][: len(start)] == start)


class Seen:
    """Collects the events of runs: `begin`, `feed` … `end`, as `captured.read_captured` gives them."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.runs = 0
        self.odd = 0  # lines that are no JSON object
        self.left_out = 0
        self._tables: list[tuple[int, dict[str, Any]]] = []
        self._lines = LineSplitter(LINE_BYTES)
        self._of_run = 0

    def begin(self, label: str) -> None:
        """Another run."""
        self.runs += 1
        self._of_run = 0
        self._lines = LineSplitter(LINE_BYTES)

    def feed(self, chunk: bytes) -> None:
        """What the program printed next."""
        for raw in self._lines.feed(chunk):
            self._line(raw)

    def end(self, child_exit: object, stderr: str | None) -> None:
        """The run is over."""
        for raw in self._lines.close():
            self._line(raw)

    def _line(self, raw: bytes) -> None:
        if not raw.strip():
            return
        if self._of_run >= RUN_EVENTS or len(self._tables) >= EVENTS or self.runs > RUNS:
            self.left_out += 1
            return
        try:
            value = orjson.loads(raw)
        except orjson.JSONDecodeError:
            self.odd += 1
            return
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict):
                self._of_run += 1
                self._tables.append((self.runs, one))
            else:
                self.odd += 1

    def close(self) -> None:
        """No run follows: find out the kinds."""
        kinds = [_conditions(table) for _, table in self._tables]
        values: dict[Path, set[str]] = {}
        for conditions in kinds:
            for path, value in conditions:
                values.setdefault(path, set()).add(value)
        telling = {path for path, found in values.items() if len(found) <= VALUES}
        self.events = [
            Event(run, place, table, frozenset(one for one in conditions if one[0] in telling))
            for place, ((run, table), conditions) in enumerate(zip(self._tables, kinds, strict=True))
        ]
        self._tables = []

    def kinds(self) -> dict[Kind, list[Event]]:
        """The events of each kind, kinds in the order in which they first came."""
        found: dict[Kind, list[Event]] = {}
        for event in self.events:
            found.setdefault(event.kind, []).append(event)
        return found


def _conditions(table: Mapping[str, Any]) -> list[Condition]:
    """What tells of which kind an event is: short words under telling keys, not further inside than two tables."""
    found: list[Condition] = []
    waiting: list[tuple[Path, Mapping[str, Any]]] = [((), table)]
    while waiting:
        path, within = waiting.pop(0)
        for key, value in within.items():
            if isinstance(value, str):
                if plain(key) in KIND_KEYS and 0 < len(value) <= KIND_CHARACTERS and not any(map(str.isspace, value)):
                    found.append(((*path, key), value))
            elif isinstance(value, dict) and len(path) < 2 and plain(key) not in OPAQUE:
                waiting.append(((*path, key), value))
    return found


def words(kind: Kind) -> list[str]:
    """The words of a kind: `item.completed`, `agent_message`."""
    return [value for _, value in sorted(kind)]


def nodes(event: Event) -> Iterator[Node]:
    """The values inside an event, in the order in which they stand; not those inside of a string."""
    root: tuple[Path, dict[str, Any]] = ((), event.table)
    waiting: list[Node] = [Node((), event.table, (), root)]
    said = 0
    while waiting and said < NODES:
        node = waiting.pop()
        said += 1
        if node.path:
            yield node
        if len(node.path) >= DEEP:
            continue
        if isinstance(node.value, dict):
            above = (*node.above, (node.path, node.value))
            inner = [Node((*node.path, key), value, above, node.item) for key, value in node.value.items()]
        elif isinstance(node.value, list):
            path = (*node.path, ITEM)
            inner = [
                Node(path, value, node.above, (path, value) if isinstance(value, dict) else node.item)
                for value in node.value[:LIST_ITEMS]
            ]
        else:
            continue
        waiting += reversed(inner)


def item_condition(node_item: tuple[Path, dict[str, Any]]) -> tuple[str, str] | None:
    """What tells one item of a list from others: its `type`, or what else says its kind."""
    path, table = node_item
    if not path:
        return None
    for key, value in table.items():
        if plain(key) in KIND_KEYS and isinstance(value, str) and len(value) <= KIND_CHARACTERS:
            return key, value
    return None


def as_table(value: Any) -> dict[str, Any] | None:
    """Arguments: a table, or the text of one."""
    if isinstance(value, dict):
        return value
    if isinstance(value, str) and value[:1] == "{":
        try:
            found = orjson.loads(value)
        except orjson.JSONDecodeError:
            return None
        return found if isinstance(found, dict) else None
    return None


def value_at(table: Any, path: Path) -> Any:
    """The value at a path without lists; None where none is."""
    for key in path:
        if not isinstance(table, dict):
            return None
        table = table.get(key)
    return table


def matching(group: Iterable[Kind], kinds: Iterable[Kind]) -> tuple[dict[Path, list[str]], bool]:
    """The conditions that hold for these kinds, and for no other of `kinds` if that can be said (else False).

    What a nested `type` adds is left out where it decides nothing; the line's own and who speaks (`role`) never are.
    """
    own = set(group)
    tables = [dict(kind) for kind in own]
    shared = [path for path in sorted(tables[0], key=lambda one: (len(one), one)) if all(path in one for one in tables)]
    conditions = {path: sorted({one[path] for one in tables}) for path in shared}
    others = [dict(kind) for kind in kinds if kind not in own]

    def wrong(using: Mapping[Path, list[str]]) -> int:
        return sum(all(one.get(path) in values for path, values in using.items()) for one in others)

    least = wrong(conditions)
    for path in sorted(conditions, key=lambda one: (-len(one), one)):
        if plain(path[-1]) != "role" and path != ("type",) and len(conditions) > 1:
            fewer = {other: values for other, values in conditions.items() if other != path}
            if wrong(fewer) == least:
                conditions = fewer
    return conditions, least == 0
