"""Rules that say when they take an event, for `shim vendor check`: compiled so for it only, the
turn's way has none.

Which fields a rule reads stands in its table, so it is read off there; an adapter's Python is not
looked into.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from shim.profiles.check.toml_errors import Spot, line_of

# of one event are looked at: more than any vendor's line has, but for lists of numbers
LEAVES = 2000
DEEP = 12  # a field further inside counts as part of the object there

# Keys of a field that hold no field: words, patterns and numbers.
_NO_FIELDS = frozenset(
    (
        "const",
        "map",
        "default",
        "in",
        "not_in",
        "regex",
        "exists",
        "parse",
        "capture",
        "ending",
        "strip",
        "sep",
    )
)
_PLAIN = frozenset(("emit", "continue", "once", "mode", "cause", "first_wins", "oldest", "note"))
_STEP = re.compile(r"'([^']+)'|\"([^\"]+)\"|\[(\*|-?\d+)\]|([^.\[\]'\"]+)")

Path = tuple[str, ...]  # keys, with ITEM for any place in a list
ITEM = "[*]"


class Traced(NamedTuple):
    """One rule of a profile: where it stands (file:line), what it emits, and the paths that it
    reads.

    `asked` are those of its conditions, of which an event need not be taken to be read.
    """

    number: int
    place: str
    emit: str
    types: frozenset[str] | None
    asked: frozenset[Path]
    read: frozenset[Path]


class Tracer:
    """Is told what the rules of a profile do (`rules.Trace`); `took` are the numbers of those that
    took the event.
    """

    def __init__(self) -> None:
        self.rules: list[Traced] = []
        self.took: list[int] = []
        self.current: int | None = None

    def rule(self, spot: Spot, types: frozenset[str] | None) -> int:
        """The number of the rule that stands at `spot`."""
        asked, read = paths_of(spot.table())
        number, emit = len(self.rules), str(spot.at("emit").value)
        self.rules.append(
            Traced(number, _place(spot), emit, types, frozenset(asked), frozenset(read))
        )
        return number

    def enter(self, number: int) -> None:
        self.current = number

    def leave(self, number: int) -> None:
        self.current = None
        self.took.append(number)

    def begin(self) -> None:
        self.took.clear()
        self.current = None


def _place(spot: Spot) -> str:
    """file:line of a rule; of one that is inherited its number only, because it stands in another
    file.
    """
    text = spot.source.text()
    line = line_of(text, spot.keys)
    lines = text.splitlines()
    if line <= len(lines) and lines[line - 1].lstrip().startswith("[[event"):
        return f"{spot.source.path}:{line}"
    return f"{spot.source.path}: event[{spot.keys[-1]}]"


def paths_of(table: Mapping[str, Any]) -> tuple[set[Path], set[Path]]:
    """The paths that a rule asks about (`match`, `item_match`), and all that it reads."""
    over = steps(table["foreach"])[:1] if isinstance(table.get("foreach"), str) else []
    item: Path = (*over[0], ITEM) if over else ()
    asked = {path for key in table.get("match") or () for path in steps(key)}
    for key in table.get("item_match") or ():
        asked.update(steps(key if key.startswith("$") else f"$.{key}", item))
    read = set(asked)
    for key, value in table.items():
        if key in ("match", "item_match", "foreach") or key in _PLAIN:
            continue
        read.update(_fields(value, item))
    for one in table.get("once") or ():
        read.update(steps(one, item))
    return asked, read


def _fields(value: Any, item: Path) -> Iterator[Path]:
    """The paths inside a field as a profile says it."""
    if isinstance(value, str):
        yield from steps(value, item)
    elif isinstance(value, list):
        for one in value:
            yield from _fields(one, item)
    elif isinstance(value, dict):
        inner = item
        if isinstance(value.get("foreach"), str):
            found = steps(value["foreach"], item)
            yield from found[1:]
            inner = (*found[0], ITEM) if found else item
        for key, one in value.items():
            if key not in _NO_FIELDS and key != "foreach":
                yield from _fields(one, inner if key == "item" else item)


def steps(text: str, item: Path = ()) -> list[Path]:
    """The steps of each alternative of a path; `item` stands for `$`. Nothing for `$index`."""
    found = []
    for part in text.split("||"):
        part = part.strip()
        if part == "$index":
            continue
        of_item = part.startswith("$")
        own = [
            ITEM if one[3] is not None else str(one[1] or one[2] or one[4])
            for one in _STEP.finditer(part.lstrip("$"))
        ]
        found.append((*item, *own) if of_item else tuple(own))
    return found


def leaves(event: Any) -> Iterator[Path]:
    """The paths to every value inside an event that holds no other; at most LEAVES of them."""
    waiting: list[tuple[Path, Any]] = [((), event)]
    said = 0
    while waiting and said < LEAVES:
        path, value = waiting.pop()
        inner: Iterable[tuple[str, Any]] = ()
        if isinstance(value, dict) and value and len(path) < DEEP:
            inner = [(str(key), one) for key, one in value.items()]
        elif isinstance(value, list) and value and len(path) < DEEP:
            inner = [(ITEM, one) for one in value[:LEAVES]]
        else:
            said += 1
            yield path
        waiting += [((*path, key), one) for key, one in inner]


def unread(event: Any, read: Iterable[Path]) -> set[Path]:
    """The leaves of an event that lie under none of these paths."""
    covered = set(read)
    return {
        path
        for path in leaves(event)
        if not any(path[:length] in covered for length in range(len(path) + 1))
    }


def spelled(path: Path) -> str:
    said = ""
    for step in path:
        if step == ITEM:
            said += step
        else:
            plain = re.fullmatch(r"[A-Za-z0-9_@:/-]+", step)
            said += ("." if said else "") + (step if plain else f"'{step}'")
    return said or "the whole line"
