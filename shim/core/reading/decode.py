"""One line of a child's stdout into objects: orjson first, then repair, and an account of every
repair.

orjson refuses things that agents print: lone surrogate escapes (pi splits a pair over two deltas),
bad UTF-8, NaN, raw control characters, a BOM, a banner before the first event, two objects on a
line. The slow path here tries one repair after the other; text that was never JSON is kept as
noise, for the text of an error.
"""

import re
from collections.abc import Iterable
from typing import Any

import orjson

from shim.core.reading.account import Diagnostics
from shim.core.reading.json_scan import Shape, shallow
from shim.core.reading.surrogates import escape_halves

# A raw newline inside a JSON string splits one event over physical lines (cursor's call ids do it,
# a tool's output may have hundreds). An event that stands by itself ends the wait before that.
JOINED_LINES = 1000
JOINED_BYTES = 4 * 1024 * 1024
# In a line whose shape is scanned bracket by bracket, in a second or two. A line with more is no
# event.
BRACKETS = 500_000
NOISE_LINES = 20  # the last lines that were not JSON, for an error's text
NOISE_CHARACTERS = 2000

BOM = b"\xef\xbb\xbf"
PADDING = b" \t\r\x00"
LARGEST, LEAST = 2**64 - 1, -(2**63)  # integers of 64 bits: the range of orjson and most readers
DIGITS = 20  # no 64-bit integer has more

# first bytes of a JSON value, or of what the slow path can repair to one
_BEGINNINGS = b'{["-0123456789tfnNI'
_OBJECT = re.compile(rb'\{\s*"')


class _Nothing:
    """Stands for "no JSON", because None is a value."""


_NOTHING = _Nothing()


class Decoder:
    """The slow path. It remembers an unfinished object, and noise, from line to line."""

    __slots__ = ("_account", "_held", "_shape", "_size", "noise")

    def __init__(self, account: Diagnostics) -> None:
        self._account = account
        self._held: list[bytes] = []
        self._size = 0
        self._shape = Shape()
        self.noise: list[str] = []

    @property
    def holding(self) -> bool:
        """True while an unfinished object waits for the rest of its line."""
        return bool(self._held)

    def repair(self, line: bytes) -> list[tuple[Any, bool]]:
        """The values in a line that orjson refused, each with whether it is torn.

        A torn value did not have a line for itself: it was glued, joined, or found behind a banner.
        It is trusted less (threats: forged lines). Blank lines and noise give nothing.
        """
        if self._held and len(line) > JOINED_BYTES:
            self._give_up()
        if self._held:
            return self._join(line)
        rest = line.lstrip(PADDING)
        if rest.startswith(BOM):
            self._account.record("bom", line)
            rest = rest[len(BOM) :].lstrip(PADDING)
        if not rest:
            return []
        if rest[0] not in _BEGINNINGS and b"{" not in rest:  # noise, and perhaps much of it
            self._note_noise(line)
            return []
        value = self._value(rest.rstrip(PADDING))
        if value is not _NOTHING:
            return [(value, False)]
        if _brackets(rest) <= BRACKETS:
            return self._torn(rest)
        self._account.record("too_deep", line)
        self._note_noise(line)
        return []

    def close(self) -> None:
        """The stream ended: an unfinished object is a cut line."""
        if self._held:
            self._give_up()

    # -- several things on a line ------------------------------------------------------------------

    def _torn(self, line: bytes) -> list[tuple[Any, bool]]:
        """Objects between other text: behind a banner, two on a line, before an unfinished one.

        The search ends at the first object that does not parse: objects inside a broken one are
        parts of it.
        """
        values: list[tuple[Any, bool]] = []
        position = 0
        while found := _OBJECT.search(line, position):
            shape = Shape()
            end = shape.feed(line, found.start())
            if end is None:
                self._hold(line[found.start() :] if values else line, shape)
                break
            value = self._value(line[found.start() : end])
            if value is _NOTHING:
                break
            values.append((value, True))
            position = end
        if values:
            self._account.record("glued_line", line)
        elif not self._held:
            self._note_noise(line)
        return values

    # -- one thing on several lines ----------------------------------------------------------------

    def _hold(self, piece: bytes, shape: Shape) -> None:
        if len(piece) <= JOINED_BYTES:
            self._held, self._size, self._shape = [piece], len(piece), shape
        else:
            self._account.record("cut_line", piece)

    def _join(self, line: bytes) -> list[tuple[Any, bool]]:
        """The next line of an unfinished object; a line that is an event by itself ends the wait."""
        bare = line.strip(PADDING).removeprefix(BOM)
        if bare.startswith(b"{"):
            end = Shape().feed(bare)
            value = self._value(bare[:end], counted=False)
            if value and isinstance(value, dict):
                # Its quotes are not escaped, so it is not a piece of a string with raw newlines.
                self._give_up()
                return [(self._value(bare), True)] if end in (None, len(bare)) else self._torn(bare)
        piece = b"\n" + line
        end = self._shape.feed(piece)
        self._held.append(piece if end is None else piece[:end])
        self._size += len(piece)
        if end is None:
            if len(self._held) > JOINED_LINES or self._size > JOINED_BYTES:
                self._give_up()
            return []
        return self._joined(piece[end:])

    def _joined(self, rest: bytes) -> list[tuple[Any, bool]]:
        whole = b"".join(self._held)
        start = _OBJECT.search(whole)
        value = self._value(whole[start.start() if start else 0 :])
        if value is _NOTHING:
            self._held.append(rest)
            self._give_up()
            return []
        self._held.clear()
        self._account.record("joined_line", whole)
        return [(value, True), *(self._torn(rest) if rest.strip(PADDING) else ())]

    def _give_up(self) -> None:
        whole = b"".join(self._held)
        self._held.clear()
        self._account.record("cut_line", whole)
        for line in whole.split(b"\n"):
            if line.strip(PADDING):
                self._note_noise(line)

    # -- one value ---------------------------------------------------------------------------------

    def _value(self, data: bytes, *, counted: bool = True) -> Any:
        """The value of a text after repairs, which are counted; _NOTHING if it is no JSON."""
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            pass
        kinds: list[str] = []
        value = _repaired(data, kinds)
        if value is not _NOTHING and counted:
            self._count(kinds, data)
        return value

    def _count(self, kinds: Iterable[str], data: bytes) -> None:
        for kind in kinds:
            self._account.record(kind, data)

    def _note_noise(self, line: bytes) -> None:
        line = line.strip(PADDING)
        self._account.record("not_json", line)
        self.noise.append(line[:NOISE_CHARACTERS].decode("utf-8", "replace"))
        del self.noise[:-NOISE_LINES]


def _repaired(data: bytes, kinds: list[str]) -> Any:
    """The value of a text that is not strict JSON; the kinds of repairs are added to `kinds`."""
    import json

    many = _brackets(data) > BRACKETS
    flat = data if many else shallow(data)
    text = escape_halves(flat, kinds)
    try:
        value = json.loads(text, strict=False, parse_int=_integer)
    except RecursionError:
        if many:
            return _NOTHING
        flat = shallow(data, always=True)
        try:
            value = json.loads(escape_halves(flat, []), strict=False, parse_int=_integer)
        except (ValueError, RecursionError):
            return _NOTHING
    except ValueError:
        return _NOTHING
    kinds.append("json" if flat is data else "too_deep")
    return value


def _brackets(data: bytes) -> int:
    return data.count(b"{") + data.count(b"[")


def _integer(digits: str) -> int | str:
    """An integer as itself; as its digits when it has more than 64 bits."""
    if len(digits) <= DIGITS and LEAST <= (number := int(digits)) <= LARGEST:
        return number
    return digits


def parsed(text: str, account: Diagnostics) -> Any:
    """The value of a text that should be JSON, such as a call's arguments; the text itself if it is
    none.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        kinds: list[str] = []
        value = _repaired(text.encode("utf-8", "surrogatepass"), kinds)
    if value is _NOTHING:
        return text
    for kind in kinds:
        account.record(kind, text)
    return value
