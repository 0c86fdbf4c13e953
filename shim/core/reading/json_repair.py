"""Parses lines of a child's stdout that orjson refuses, and counts every repair.

orjson refuses some text that vendors print:

- lone surrogate escapes (pi splits a pair over two deltas)
- invalid UTF-8, NaN, raw control characters, and a BOM
- a banner before the first event
- two objects on a line

The repairs are tried in order. Text that is not JSON is kept for error messages.
"""

import re
from collections.abc import Iterable
from typing import Any

import orjson

from shim.core.reading.diagnostics import Diagnostics
from shim.core.reading.json_scan import JsonObjectScanner, flatten_deeply_nested_json
from shim.core.reading.surrogates import decode_json_bytes

# The limits for an event that is split over several lines by raw newlines in a JSON string.
# Cursor's tool call ids have such newlines, and a tool's output may have hundreds. If a line is a
# complete event, the split event is discarded before these limits are reached.
MAX_JOINED_LINES = 1000
MAX_JOINED_BYTES = 4 * 1024 * 1024
# The maximum number of brackets in a line that is scanned for objects. A scan at this limit takes
# one or two seconds. A line with more brackets is not an event.
MAX_BRACKETS = 500_000
MAX_NOISE_LINES = 20  # how many non-JSON lines are kept for error texts
MAX_NOISE_CHARS = 2000

BOM = b"\xef\xbb\xbf"
PADDING = b" \t\r\x00"
# the range of 64-bit integers, which orjson and most JSON parsers accept
MAX_INTEGER = 2**64 - 1
MIN_INTEGER = -(2**63)
MAX_INTEGER_DIGITS = 20  # no 64-bit integer has more digits

# the possible first bytes of a JSON value, including values that need a repair
_JSON_FIRST_BYTES = b'{["-0123456789tfnNI'
_OBJECT_START = re.compile(rb'\{\s*"')


class _NoValue:
    """A marker for text that is not JSON. None cannot be the marker, because the JSON value null is
    parsed as None.
    """


_NO_VALUE = _NoValue()


class JsonRepairer:
    """Repairs malformed JSON lines. Between lines, it keeps an unfinished object and the text that
    is not JSON.
    """

    __slots__ = (
        "_diagnostics",
        "_scanner",
        "_unfinished_bytes",
        "_unfinished_parts",
        "noise_lines",
    )

    def __init__(self, diagnostics: Diagnostics) -> None:
        self._diagnostics = diagnostics
        self._unfinished_parts: list[bytes] = []
        self._unfinished_bytes = 0
        self._scanner = JsonObjectScanner()
        self.noise_lines: list[str] = []

    @property
    def has_unfinished_object(self) -> bool:
        """Whether an object is still unfinished and continues on the next line."""
        return bool(self._unfinished_parts)

    def parse_malformed_line_with_torn_flags(self, line: bytes) -> list[tuple[Any, bool]]:
        """Return the values in a line that orjson refused. Each value has a flag that is true if
        the value is torn.

        A torn value was joined from several lines, or shared its line with other text. Torn values
        are trusted less, because they may be forged. For a blank line, and for text that is not
        JSON, return [].
        """
        if self._unfinished_parts and len(line) > MAX_JOINED_BYTES:
            self._discard_object()
        if self._unfinished_parts:
            return self._continue_object(line)
        content = line.lstrip(PADDING)
        if content.startswith(BOM):
            self._diagnostics.record("bom", line)
            content = content[len(BOM) :].lstrip(PADDING)
        if not content:
            return []
        if content[0] not in _JSON_FIRST_BYTES and b"{" not in content:
            # The line is not JSON. This is checked first, because there may be many such lines.
            self._record_noise(line)
            return []
        value = self._parse_value(content.rstrip(PADDING))
        if value is not _NO_VALUE:
            return [(value, False)]
        if _count_brackets(content) <= MAX_BRACKETS:
            return self._parse_torn_line(content)
        self._diagnostics.record("too_deep", line)
        self._record_noise(line)
        return []

    def close(self) -> None:
        """Handle the end of the stream. An unfinished object is discarded and counted as a
        truncated line.
        """
        if self._unfinished_parts:
            self._discard_object()

    # -- several objects on one line ---------------------------------------------------------------

    def _parse_torn_line(self, line: bytes) -> list[tuple[Any, bool]]:
        """Return the objects in a line that also contains other text: a banner, a second object, or
        the start of an unfinished object.

        The search ends at the first object that cannot be parsed, because any later object may be
        nested in that object.
        """
        values: list[tuple[Any, bool]] = []
        position = 0
        while match := _OBJECT_START.search(line, position):
            scanner = JsonObjectScanner()
            end = scanner.feed(line, match.start())
            if end is None:
                piece = line
                if values:
                    piece = line[match.start() :]
                self._start_object(piece, scanner)
                break
            value = self._parse_value(line[match.start() : end])
            if value is _NO_VALUE:
                break
            values.append((value, True))
            position = end
        if values:
            self._diagnostics.record("glued_line", line)
        elif not self._unfinished_parts:
            self._record_noise(line)
        return values

    # -- one object on several lines ---------------------------------------------------------------

    def _start_object(self, piece: bytes, scanner: JsonObjectScanner) -> None:
        if len(piece) <= MAX_JOINED_BYTES:
            self._unfinished_parts, self._unfinished_bytes, self._scanner = (
                [piece],
                len(piece),
                scanner,
            )
        else:
            self._diagnostics.record("cut_line", piece)

    def _continue_object(self, line: bytes) -> list[tuple[Any, bool]]:
        """Add the next line to an unfinished object. If the line is a complete event, discard the
        unfinished object.
        """
        stripped_line = line.strip(PADDING).removeprefix(BOM)
        if stripped_line.startswith(b"{"):
            end = JsonObjectScanner().feed(stripped_line)
            value = self._parse_value(stripped_line[:end], records_repairs=False)
            if value and isinstance(value, dict):
                # The quotes in this line are not escaped, so the line is not part of a string with
                # raw newlines.
                self._discard_object()
                if end in (None, len(stripped_line)):
                    return [(self._parse_value(stripped_line), True)]
                return self._parse_torn_line(stripped_line)
        piece = b"\n" + line
        end = self._scanner.feed(piece)
        self._unfinished_parts.append(piece if end is None else piece[:end])
        self._unfinished_bytes += len(piece)
        if end is None:
            if (
                len(self._unfinished_parts) > MAX_JOINED_LINES
                or self._unfinished_bytes > MAX_JOINED_BYTES
            ):
                self._discard_object()
            return []
        return self._finish_object(piece[end:])

    def _finish_object(self, remainder: bytes) -> list[tuple[Any, bool]]:
        full_text = b"".join(self._unfinished_parts)
        start = _OBJECT_START.search(full_text)
        value = self._parse_value(full_text[start.start() if start else 0 :])
        if value is _NO_VALUE:
            self._unfinished_parts.append(remainder)
            self._discard_object()
            return []
        self._unfinished_parts.clear()
        self._diagnostics.record("joined_line", full_text)
        return [
            (value, True),
            *(self._parse_torn_line(remainder) if remainder.strip(PADDING) else ()),
        ]

    def _discard_object(self) -> None:
        full_text = b"".join(self._unfinished_parts)
        self._unfinished_parts.clear()
        self._diagnostics.record("cut_line", full_text)
        for line in full_text.split(b"\n"):
            if line.strip(PADDING):
                self._record_noise(line)

    # -- single values -----------------------------------------------------------------------------

    def _parse_value(self, data: bytes, *, records_repairs: bool = True) -> Any:
        """Return the value of a text, which is repaired if necessary. Return _NO_VALUE if the text
        is not JSON. If `records_repairs` is set, the repairs are counted.
        """
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            pass
        kinds: list[str] = []
        value = _parse_leniently(data, kinds)
        if value is not _NO_VALUE and records_repairs:
            self._record_repairs(kinds, data)
        return value

    def _record_repairs(self, kinds: Iterable[str], data: bytes) -> None:
        for kind in kinds:
            self._diagnostics.record(kind, data)

    def _record_noise(self, line: bytes) -> None:
        line = line.strip(PADDING)
        self._diagnostics.record("not_json", line)
        self.noise_lines.append(line[:MAX_NOISE_CHARS].decode("utf-8", "replace"))
        del self.noise_lines[:-MAX_NOISE_LINES]


def _parse_leniently(data: bytes, kinds: list[str]) -> Any:
    """Return the value of a text that is not strictly valid JSON. The kinds of repairs are appended
    to `kinds`.
    """
    import json

    has_many_brackets = _count_brackets(data) > MAX_BRACKETS
    flattened = data
    if not has_many_brackets:
        flattened = flatten_deeply_nested_json(data)
    text = decode_json_bytes(flattened, kinds)
    try:
        value = json.loads(text, strict=False, parse_int=_parse_integer)
    except RecursionError:
        if has_many_brackets:
            return _NO_VALUE
        flattened = flatten_deeply_nested_json(data, force=True)
        try:
            value = json.loads(
                decode_json_bytes(flattened, []), strict=False, parse_int=_parse_integer
            )
        except (ValueError, RecursionError):
            return _NO_VALUE
    except ValueError:
        return _NO_VALUE
    kinds.append("json" if flattened is data else "too_deep")
    return value


def _count_brackets(data: bytes) -> int:
    return data.count(b"{") + data.count(b"[")


def _parse_integer(digits: str) -> int | str:
    """Return an integer, or its digits as text if it does not fit into 64 bits."""
    if len(digits) <= MAX_INTEGER_DIGITS and MIN_INTEGER <= (number := int(digits)) <= MAX_INTEGER:
        return number
    return digits


def parse_json_text(text: str, diagnostics: Diagnostics) -> Any:
    """Return the value of a text that should be JSON, such as a tool call's arguments. If the text
    is not JSON, return it unchanged.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        kinds: list[str] = []
        value = _parse_leniently(text.encode("utf-8", "surrogatepass"), kinds)
    if value is _NO_VALUE:
        return text
    for kind in kinds:
        diagnostics.record(kind, text)
    return value
