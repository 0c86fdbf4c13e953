"""Encodes values as JSON that any parser accepts: valid UTF-8, limited depth, and no raw line
separators.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import orjson

from shim.core.reading.diagnostics import Diagnostics
from shim.core.reading.json_scan import MAX_VALUE_DEPTH, MAX_WRITTEN_DEPTH
from shim.core.reading.surrogates import replace_lone_surrogates
from shim.core.reading.values import as_dict, as_list

# These characters are valid in JSON, but Node's readline and Python's splitlines treat them as line
# breaks (hostile-input, section 2). A search costs one nanosecond per byte. To save time, only
# content that is not ASCII is searched, and never a complete line.
_LINE_SEPARATORS = (
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
    (b"\xc2\x85", b"\\u0085"),
)

Leaf = TypeVar("Leaf")

MAX_EXACT_INTEGER = 2.0**63  # larger integers are parsed as floats, which keep 17 digits

# The types of values that may need a repair before they are written.
REPAIRABLE_TYPES = frozenset((float, dict, list))
CONTAINER_TYPES = (dict, list)
_LONG_INTEGER = rb"(?<![0-9.])-?[0-9]{19,}(?![0-9.eE])"


def dump_json(value: object) -> bytes:
    """Encode `value` as JSON bytes in valid UTF-8. All strings, keys and numbers are accepted."""
    try:
        json_bytes = orjson.dumps(value)
    except TypeError:
        json_bytes = orjson.dumps(_sanitize(value, MAX_WRITTEN_DEPTH))
    if json_bytes.isascii():
        return json_bytes
    return escape_line_separators(json_bytes)


def measure_depth_and_precision_loss(value: object) -> tuple[int, bool]:
    """Return a value's depth, and whether any integer in it may have lost digits during parsing."""
    max_depth = 0
    may_have_lost_digits = False
    stack = [(value, 1)]
    while stack:
        item, depth = stack.pop()
        if item.__class__ is float:
            if not -MAX_EXACT_INTEGER < item < MAX_EXACT_INTEGER:
                may_have_lost_digits = True
        elif isinstance(item, CONTAINER_TYPES):
            if depth > max_depth:
                max_depth = depth
            children = item.values() if isinstance(item, dict) else item
            stack += [
                (child, depth + 1) for child in children if child.__class__ in REPAIRABLE_TYPES
            ]
    return max_depth, may_have_lost_digits


def find_long_integer_digits_by_float(line: bytes) -> dict[float, str]:
    """Return the integers in a line that may have more than 64 bits, as a dictionary. A key is the
    float that the parser returned for an integer, and the value is the integer's digits.
    """
    return {float(digits): digits.decode() for digits in re.findall(_LONG_INTEGER, line)}


def restore_long_integers(value: Any, digits_by_float: Mapping[float, str]) -> Any:
    """Return `value` with each long integer from its line replaced with a string of its digits."""
    if digits_by_float:
        return map_json_leaves(value, float, lambda number: digits_by_float.get(number, number))
    return value


def map_json_leaves(value: Any, leaf_type: type[Leaf], convert: Callable[[Leaf], Any]) -> Any:
    """Return a copy of a JSON value in which `convert` was applied to all leaves of one type. Keys
    are not changed.
    """
    if isinstance(value, dict):
        return {key: map_json_leaves(item, leaf_type, convert) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [map_json_leaves(item, leaf_type, convert) for item in value]
    if isinstance(value, leaf_type):
        return convert(value)
    return value


def parse_json_object(data: bytes | str) -> dict[str, Any]:
    """Return the JSON object in `data`, or {} if `data` is not a JSON object."""
    try:
        return as_dict(orjson.loads(data))
    except orjson.JSONDecodeError:
        return {}


class JsonSanitizer:
    """Makes values from parsed lines safe to write: their depth is limited, and long integers keep
    all digits.
    """

    __slots__ = ("_diagnostics", "_digits_by_float", "_line")

    def __init__(self, diagnostics: Diagnostics) -> None:
        self._diagnostics = diagnostics
        self._line = b""
        self._digits_by_float: dict[float, str] = {}  # the long integers in the current line

    def clean(self, value: Any) -> Any:
        """Return a value from the current line in a form that can be written. If no change is
        needed, return the same object.
        """
        depth, may_have_lost_digits = measure_depth_and_precision_loss(value)
        if depth > MAX_VALUE_DEPTH:
            self._diagnostics.record("too_deep")
            value = flatten_deeply_nested_values(value)
        if (
            may_have_lost_digits
            and (restored := restore_long_integers(value, self._find_long_integers())) != value
        ):
            self._diagnostics.record("long_integer")
            return restored
        return value

    def _find_long_integers(self) -> dict[float, str]:
        """Return the long integers in the current line. Each line is searched only once."""
        line = self._diagnostics.line
        if self._line is not line:
            self._line, self._digits_by_float = line, find_long_integer_digits_by_float(line)
        return self._digits_by_float


def flatten_deeply_nested_values(value: Any) -> Any:
    """Return `value` with each value deeper than MAX_VALUE_DEPTH replaced with its JSON text."""
    return _sanitize(value, MAX_VALUE_DEPTH)


def escape_line_separators(json_bytes: bytes) -> bytes:
    """Return JSON bytes in which all line separators are escaped."""
    for raw, escaped in _LINE_SEPARATORS:
        if raw in json_bytes:
            json_bytes = json_bytes.replace(raw, escaped)
    return json_bytes


def convert_json_to_text(value: object) -> str:
    """Convert a JSON value to text. Text stays unchanged, None becomes "", and other values become
    JSON.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return dump_json(value).decode()


def convert_to_tool_result_content(value: object) -> object:
    """Return a tool result's content in Claude's form: a text or a list of content blocks (contract
    S7).
    """
    blocks = as_list(value)
    if blocks and all(
        isinstance(block, dict) and isinstance(block.get("type"), str) for block in blocks
    ):
        return value
    return convert_json_to_text(value)


def _sanitize(value: object, max_depth: int) -> object:
    """Return `value` without parts that orjson refuses. Each value deeper than `max_depth` is
    replaced with its JSON text.
    """
    if isinstance(value, str):
        return replace_lone_surrogates(value)
    if max_depth <= 0 and isinstance(value, dict | list | tuple) and value:
        return _encode_deep_value(value)
    if isinstance(value, dict):
        return {
            replace_lone_surrogates(str(key)): _sanitize(item, max_depth - 1)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_sanitize(item, max_depth - 1) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**64:
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)


def _encode_deep_value(value: object) -> str:
    """Encode a value of any depth as JSON. Recursion is not used."""
    parts: list[str] = []
    stack: list[object] = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, _RawJson):
            parts.append(item)
        elif isinstance(item, dict) and item:
            entries: list[object] = []
            for key, inner in item.items():
                entries += [_RawJson("," if entries else "{"), str(key), _RawJson(":"), inner]
            stack += [_RawJson("}"), *reversed(entries)]
        elif isinstance(item, list | tuple) and item:
            entries = []
            for inner in item:
                entries += [_RawJson("," if entries else "["), inner]
            stack += [_RawJson("]"), *reversed(entries)]
        else:
            parts.append(orjson.dumps(_sanitize(item, MAX_VALUE_DEPTH)).decode())
    return "".join(parts)


class _RawJson(str):
    """JSON text that is written unchanged."""

    __slots__ = ()
