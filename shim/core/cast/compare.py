"""Compares recorded output with current output line by line, and ignores values that differ in
every run.

An id is compared as the n-th id of its output. So two equal ids in the recording must also be equal
in the current output.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from shim.core.reading.diagnostics import escape_control_chars
from shim.core.reading.json_text import map_json_leaves

# By key: why its value is not compared directly. A key that ends in `_ms` is a duration.
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
# Keys whose values come from other programs, so the keys inside have other meanings. A tool may have
# an argument `id` or `pid`.
FOREIGN_VALUE_KEYS = frozenset(("input", "tool_input", "updatedInput", "structured_output"))
SPILL_PATH = re.compile(r"/\S*/spill/[0-9a-f-]{36}/\d+-[0-9a-f]{8}\.txt")  # a file of one run
MAX_EXCERPT_CHARS = 300
CONTEXT_CHARS = 40  # printed before the difference


class OutputDifference(NamedTuple):
    """The first line that differs. `where` is the path of the value. `then` and `now` are printable
    excerpts of the recorded and the current value.
    """

    line: int
    where: str
    then: str
    now: str


class OutputNormalizer:
    """Normalizes the lines of one output. `working_dirs` are the recorded and the current working
    directory.

    Both are replaced by the same text, because the vendor's text names the recorded one and the
    drop-in's lines name the current one.
    """

    def __init__(self, *working_dirs: str) -> None:
        self._working_dirs = sorted(filter(None, working_dirs), key=len, reverse=True)
        self._shared_names: dict[str, str] = {}

    def normalize_line(self, line: bytes) -> Any:
        """Return a line in the form in which it is compared. A line that is not JSON is compared as
        text.
        """
        try:
            return self._normalize_value("", orjson.loads(line))
        except orjson.JSONDecodeError:
            return self._normalize_text(line.decode("utf-8", "replace").rstrip("\r\n"))

    def find_normalized_id(self, raw_id: str) -> str:
        """Return the name for an id that both outputs share, "" for an unknown id."""
        return self._shared_names.get(raw_id, "")

    def find_raw_id(self, normalized_id: str) -> str:
        """Return the id with this shared name, "" if there is none."""
        if normalized_id:
            return next(
                (raw_id for raw_id, name in self._shared_names.items() if name == normalized_id), ""
            )
        return ""

    def _normalize_value(self, key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {
                name: self._normalize_member(name, item)
                for name, item in value.items()
                if name not in IGNORED_KEYS
            }
        if isinstance(value, list):
            return [self._normalize_value(key, item) for item in value]
        if isinstance(value, str):
            return (
                self._shared_names.setdefault(value, f"<id {len(self._shared_names) + 1}>")
                if key in ID_KEYS
                else self._normalize_text(value)
            )
        return 0 if key.endswith("_ms") and value is not None else value

    def _normalize_member(self, name: str, value: Any) -> Any:
        """Return the value of a key. In the value of another program, only paths are replaced."""
        if name in FOREIGN_VALUE_KEYS and not _is_hook_input(value):
            return map_json_leaves(value, str, self._normalize_text)
        return self._normalize_value(name, value)

    def _normalize_text(self, text: str) -> str:
        for working_dir in self._working_dirs:
            if working_dir in text:
                text = text.replace(working_dir, "<cwd>")
        if "/spill/" in text:
            return SPILL_PATH.sub("<spilled>", text)
        return text


def _is_hook_input(value: Any) -> bool:
    """Return whether a value is the input of a hook, whose keys the shim defines."""
    if not isinstance(value, dict):
        return False
    return "hook_event_name" in value


def split_output_lines(output: bytes) -> list[bytes]:
    """Return the lines of an output, or the items if the output is a JSON array."""
    if output.startswith(b"["):
        try:
            items = orjson.loads(output)
        except orjson.JSONDecodeError:
            items = None
        if isinstance(items, list):
            return [orjson.dumps(item) for item in items]
    lines = output.split(b"\n")
    if not lines[-1]:
        return lines[:-1]
    return lines


def compare_output_lines(
    line_number: int,
    recorded_normalizer: OutputNormalizer,
    recorded_line: bytes | None,
    current_normalizer: OutputNormalizer,
    current_line: bytes | None,
) -> OutputDifference | None:
    """Return the difference between two lines, or None if they are equal. A missing line is None."""
    if recorded_line is None or current_line is None:
        missing = "no such line"
        return OutputDifference(
            line_number,
            "line",
            _format_line(recorded_line, missing),
            _format_line(current_line, missing),
        )
    recorded = recorded_normalizer.normalize_line(recorded_line)
    current = current_normalizer.normalize_line(current_line)
    if _is_equal_json(recorded, current):
        return None
    path, recorded_value, current_value = _find_first_difference(recorded, current, "")
    return OutputDifference(
        line_number,
        path or "line",
        _format_value(recorded_value, current_value),
        _format_value(current_value, recorded_value),
    )


def _is_equal_json(left: Any, right: Any) -> bool:
    """Return whether two values are equal as JSON. The order of keys does not matter, and 1 is not
    equal to true.
    """
    dumped = (orjson.dumps(value, option=orjson.OPT_SORT_KEYS) for value in (left, right))
    return next(dumped) == next(dumped)


def _find_first_difference(left: Any, right: Any, path: str) -> tuple[str, Any, Any]:
    """Return the path of the first difference, and the two values there."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in [*left, *(key for key in right if key not in left)]:
            if key not in left or key not in right or not _is_equal_json(left[key], right[key]):
                return _find_first_difference(
                    left.get(key, _Absent),
                    right.get(key, _Absent),
                    f"{path}.{key}" if path else key,
                )
    if isinstance(left, list) and isinstance(right, list):
        for index in range(max(len(left), len(right))):
            pair = [values[index] if index < len(values) else _Absent for values in (left, right)]
            if _Absent in pair or not _is_equal_json(*pair):
                return _find_first_difference(pair[0], pair[1], f"{path}[{index}]")
    return path, left, right


class _Absent:
    """Represents a missing value."""


def _format_value(value: Any, other_value: Any) -> str:
    if value is _Absent:
        return "not there"
    text = value
    if not isinstance(value, str):
        text = orjson.dumps(value).decode()
    if isinstance(other_value, str):
        other_text = other_value
    elif other_value is _Absent:
        other_text = text
    else:
        other_text = orjson.dumps(other_value).decode()
    difference_index = next(
        (index for index, (a, b) in enumerate(zip(text, other_text, strict=False)) if a != b), 0
    )
    start = max(0, difference_index - CONTEXT_CHARS)
    return ("…" if start else "") + escape_control_chars(
        text[start : start + MAX_EXCERPT_CHARS].replace("\n", "\\n")
    )


def _format_line(line: bytes | None, placeholder: str) -> str:
    if line is None:
        return placeholder
    return escape_control_chars(line[:MAX_EXCERPT_CHARS].decode("utf-8", "replace"))
