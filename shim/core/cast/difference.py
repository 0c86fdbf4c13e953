"""Compares recorded output with today's, line by line, without what differs in every run.

An id is compared as the n-th id of its side: what belonged together must belong together again.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from shim.core.reading.account import escape_control_chars
from shim.core.reading.json_text import map_leaves

# Key → why its value is not compared as it is. Every key that ends in `_ms` is a duration.
ID_KEYS: Mapping[str, str] = {
    "uuid": "each line has a fresh one",
    "session_id": "made up where neither frontend nor vendor chose it",
    "request_id": "made up by the side that asks",
    "id": "of a message made up by us, of a call where the vendor gave it none",
    "tool_use_id": "as the call's own",
    "parent_tool_use_id": "as the call's own",
}
IGNORED_KEYS: Mapping[str, str] = {
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
FOREIGN_VALUE_KEYS = frozenset(("input", "tool_input", "updatedInput", "structured_output"))
SPILL_PATH = re.compile(r"/\S*/spill/[0-9a-f-]{36}/\d+-[0-9a-f]{8}\.txt")  # a file of this run
MAX_EXCERPT_CHARS = 300
CONTEXT_CHARS = 40  # characters that are shown before the difference


class Difference(NamedTuple):
    """The first line that differs; `where` names the value; `then` and `now` are cut and printable."""

    line: int
    where: str
    then: str
    now: str


class OutputNormalizer:
    """The lines of one side, made comparable. `places` are the working directories of then and now.

    Both count as one place: the vendor names that of then, the drop-in that of now.
    """

    def __init__(self, *places: str) -> None:
        self._working_dirs = sorted(filter(None, places), key=len, reverse=True)
        self._shared_names: dict[str, str] = {}

    def normalize_line(self, raw: bytes) -> Any:
        """A line as it is compared; a line that is no JSON is compared as text."""
        try:
            return self._normalize_value("", orjson.loads(raw))
        except orjson.JSONDecodeError:
            return self._normalize_text(raw.decode("utf-8", "replace").rstrip("\r\n"))

    def find_shared_name(self, identity: str) -> str:
        """The name of an id that both sides share, "" for an unknown id."""
        return self._shared_names.get(identity, "")

    def find_id(self, number: str) -> str:
        """The id that has this shared name, "" if there is none."""
        return (
            next((identity for identity, name in self._shared_names.items() if name == number), "")
            if number
            else ""
        )

    def _normalize_value(self, key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {
                name: self._normalize_member(name, inner)
                for name, inner in value.items()
                if name not in IGNORED_KEYS
            }
        if isinstance(value, list):
            return [self._normalize_value(key, inner) for inner in value]
        if isinstance(value, str):
            return (
                self._shared_names.setdefault(value, f"<id {len(self._shared_names) + 1}>")
                if key in ID_KEYS
                else self._normalize_text(value)
            )
        return 0 if key.endswith("_ms") and value is not None else value

    def _normalize_member(self, name: str, value: Any) -> Any:
        """The value of a key; of another program's value only the places are replaced."""
        if name in FOREIGN_VALUE_KEYS and not _is_hook_input(value):
            return map_leaves(value, str, self._normalize_text)
        return self._normalize_value(name, value)

    def _normalize_text(self, text: str) -> str:
        for place in self._working_dirs:
            if place in text:
                text = text.replace(place, "<cwd>")
        return SPILL_PATH.sub("<spilled>", text) if "/spill/" in text else text


def _is_hook_input(value: Any) -> bool:
    """Whether it is the input of a hook, whose keys are ours."""
    return isinstance(value, dict) and "hook_event_name" in value


def split_output(said: bytes) -> list[bytes]:
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


def compare_lines(
    number: int,
    then: OutputNormalizer,
    was: bytes | None,
    now: OutputNormalizer,
    said: bytes | None,
) -> Difference | None:
    """The difference between two lines; None on one side is a line that is not there."""
    if was is None or said is None:
        missing = "no such line"
        return Difference(number, "line", _format_line(was, missing), _format_line(said, missing))
    one, other = then.normalize_line(was), now.normalize_line(said)
    if _is_equal_json(one, other):
        return None
    where, was_value, is_value = _find_first_difference(one, other, "")
    return Difference(
        number,
        where or "line",
        _format_value(was_value, is_value),
        _format_value(is_value, was_value),
    )


def _is_equal_json(one: Any, other: Any) -> bool:
    """Whether two values are equal as JSON, in any order of keys; 1 is not true."""
    dumped = (orjson.dumps(value, option=orjson.OPT_SORT_KEYS) for value in (one, other))
    return next(dumped) == next(dumped)


def _find_first_difference(one: Any, other: Any, where: str) -> tuple[str, Any, Any]:
    """Where two values differ first."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *(key for key in other if key not in one)]:
            if key not in one or key not in other or not _is_equal_json(one[key], other[key]):
                return _find_first_difference(
                    one.get(key, _Absent),
                    other.get(key, _Absent),
                    f"{where}.{key}" if where else key,
                )
    if isinstance(one, list) and isinstance(other, list):
        for position in range(max(len(one), len(other))):
            pair = [side[position] if position < len(side) else _Absent for side in (one, other)]
            if _Absent in pair or not _is_equal_json(*pair):
                return _find_first_difference(pair[0], pair[1], f"{where}[{position}]")
    return where, one, other


class _Absent:
    """Stands for a value that is not there."""


def _format_value(value: Any, against: Any) -> str:
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
    begin = max(0, at - CONTEXT_CHARS)
    return ("…" if begin else "") + escape_control_chars(
        text[begin : begin + MAX_EXCERPT_CHARS].replace("\n", "\\n")
    )


def _format_line(line: bytes | None, missing: str) -> str:
    return (
        missing
        if line is None
        else escape_control_chars(line[:MAX_EXCERPT_CHARS].decode("utf-8", "replace"))
    )
