"""Compares recorded output with today's, line by line, without what differs in every run.

An id is compared as the n-th id of its side: what belonged together must belong together again.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from shim.core.reading.account import printable
from shim.core.reading.json_text import mapped

# Key → why its value is not compared as it is. Every key that ends in `_ms` is a duration.
IDS: Mapping[str, str] = {
    "uuid": "each line has a fresh one",
    "session_id": "made up where neither frontend nor vendor chose it",
    "request_id": "made up by the side that asks",
    "id": "of a message made up by us, of a call where the vendor gave it none",
    "tool_use_id": "as the call's own",
    "parent_tool_use_id": "as the call's own",
}
LEFT_OUT: Mapping[str, str] = {
    "timestamp": "the time of the run",
    "pid": "of the run's process",
    "transcript_path": "in the home folder of the user",
    "memory_paths": "in the home folder of the user",
    "projectsDirectory": "in the home folder of the user",
    "claude_code_version": "raised by hand, and no translation",
    "unattended": "a replay runs no tools",
    "unattended_reason": "a replay asks no program for its version",
    "version_note": "a replay asks no program for its version",
    "replay": "said of a replay alone",
}
# Keys of other programs' values, in which a key means something else: a tool may have an argument
# `id`, or `pid`.
OTHERS = frozenset(("input", "tool_input", "updatedInput", "structured_output"))
SPILLED = re.compile(r"/\S*/spill/[0-9a-f-]{36}/\d+-[0-9a-f]{8}\.txt")  # a file of this run
SHOWN_CHARACTERS = 300
BEFORE = 40  # characters that are shown before the difference


class Difference(NamedTuple):
    """The first line that differs; `where` names the value; `then` and `now` are cut and printable."""

    line: int
    where: str
    then: str
    now: str


class Side:
    """The lines of one side, made comparable. `places` are the working directories of then and now.

    Both count as one place: the vendor names that of then, the drop-in that of now.
    """

    def __init__(self, *places: str) -> None:
        self._places = sorted(filter(None, places), key=len, reverse=True)
        self._ids: dict[str, str] = {}

    def read(self, raw: bytes) -> Any:
        """A line as it is compared; a line that is no JSON is compared as text."""
        try:
            return self._value("", orjson.loads(raw))
        except orjson.JSONDecodeError:
            return self._text(raw.decode("utf-8", "replace").rstrip("\r\n"))

    def number(self, identity: str) -> str:
        """The name of an id that both sides share, "" for an unknown id."""
        return self._ids.get(identity, "")

    def called(self, number: str) -> str:
        """The id that has this shared name, "" if there is none."""
        return (
            next((identity for identity, name in self._ids.items() if name == number), "")
            if number
            else ""
        )

    def _value(self, key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {
                name: self._member(name, inner)
                for name, inner in value.items()
                if name not in LEFT_OUT
            }
        if isinstance(value, list):
            return [self._value(key, inner) for inner in value]
        if isinstance(value, str):
            return (
                self._ids.setdefault(value, f"<id {len(self._ids) + 1}>")
                if key in IDS
                else self._text(value)
            )
        return 0 if key.endswith("_ms") and value is not None else value

    def _member(self, name: str, value: Any) -> Any:
        """The value of a key; of another program's value only the places are replaced."""
        if name in OTHERS and not _of_a_hook(value):
            return mapped(value, str, self._text)
        return self._value(name, value)

    def _text(self, text: str) -> str:
        for place in self._places:
            if place in text:
                text = text.replace(place, "<cwd>")
        return SPILLED.sub("<spilled>", text) if "/spill/" in text else text


def _of_a_hook(value: Any) -> bool:
    """Whether it is the input of a hook, whose keys are ours."""
    return isinstance(value, dict) and "hook_event_name" in value


def split(said: bytes) -> list[bytes]:
    """The lines of an output; of a JSON array its items."""
    if said.startswith(b"["):
        try:
            items = orjson.loads(said)
        except orjson.JSONDecodeError:
            items = None
        if isinstance(items, list):
            return [orjson.dumps(item) for item in items]
    lines = said.split(b"\n")
    return lines[:-1] if not lines[-1] else lines


def compare(
    number: int, then: Side, was: bytes | None, now: Side, said: bytes | None
) -> Difference | None:
    """The difference between two lines; None on one side is a line that is not there."""
    if was is None or said is None:
        missing = "no such line"
        return Difference(number, "line", _shown(was, missing), _shown(said, missing))
    one, other = then.read(was), now.read(said)
    if _same(one, other):
        return None
    where, was_value, is_value = _first(one, other, "")
    return Difference(
        number,
        where or "line",
        _value_shown(was_value, is_value),
        _value_shown(is_value, was_value),
    )


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal as JSON, in any order of keys; 1 is not true."""
    dumped = (orjson.dumps(value, option=orjson.OPT_SORT_KEYS) for value in (one, other))
    return next(dumped) == next(dumped)


def _first(one: Any, other: Any, where: str) -> tuple[str, Any, Any]:
    """Where two values differ first."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *(key for key in other if key not in one)]:
            if key not in one or key not in other or not _same(one[key], other[key]):
                return _first(
                    one.get(key, _Absent),
                    other.get(key, _Absent),
                    f"{where}.{key}" if where else key,
                )
    if isinstance(one, list) and isinstance(other, list):
        for position in range(max(len(one), len(other))):
            pair = [side[position] if position < len(side) else _Absent for side in (one, other)]
            if _Absent in pair or not _same(*pair):
                return _first(pair[0], pair[1], f"{where}[{position}]")
    return where, one, other


class _Absent:
    """Stands for a value that is not there."""


def _value_shown(value: Any, against: Any) -> str:
    if value is _Absent:
        return "not there"
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    other = (
        against
        if isinstance(against, str)
        else text
        if against is _Absent
        else orjson.dumps(against).decode()
    )
    at = next((place for place, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), 0)
    begin = max(0, at - BEFORE)
    return ("…" if begin else "") + printable(
        text[begin : begin + SHOWN_CHARACTERS].replace("\n", "\\n")
    )


def _shown(line: bytes | None, missing: str) -> str:
    return (
        missing if line is None else printable(line[:SHOWN_CHARACTERS].decode("utf-8", "replace"))
    )
