"""One line of a child's stdout into objects: orjson first, then repair, and an account of every repair.

orjson refuses what agents really print: lone surrogate escapes (pi splits a pair over two deltas), bad UTF-8,
NaN, raw control characters, a BOM, a banner glued to the first event, two objects on a line. The slow path here
takes them one after the other; text that was never JSON is kept as noise for the error text.
"""

from typing import Any

import orjson

from shim.account import Account

# A raw newline inside a JSON string splits one event over physical lines (cursor's call ids do it);
# three more lines are tried, and never more bytes than a large event has.
JOINED_LINES = 3
JOINED_BYTES = 4 * 1024 * 1024
NOISE_LINES = 20  # the last lines that were not JSON, for an error's text
NOISE_CHARACTERS = 2000

BOM = b"\xef\xbb\xbf"


class Decoder:
    """The slow path, with what it remembers between lines: an unfinished object, and the noise."""

    __slots__ = ("_account", "_held", "_held_lines", "noise")

    def __init__(self, account: Account) -> None:
        self._account = account
        self._held = b""
        self._held_lines = 0
        self.noise: list[str] = []

    @property
    def holding(self) -> bool:
        """True while an unfinished object waits for the rest of its line."""
        return bool(self._held)

    def repair(self, line: bytes) -> list[tuple[Any, bool]]:
        """The values in a line that orjson refused, each with whether it was torn out of something else.

        A value that is torn out (glued, joined, found behind a banner) is not to be trusted as far as one that
        had a line for itself (threats: forged lines). Blank lines and noise give nothing.
        """
        line = line.strip(b" \t\r\x00")
        if line.startswith(BOM):
            self._account.repaired("bom")
            line = line[len(BOM) :]
        if not line:
            return []
        if self._held:
            return self._join(line)
        try:
            return self._values(line) or self._torn(line)
        except RecursionError:
            self._account.repaired("too_deep", line)
            return []

    def close(self) -> None:
        """The stream ended: an object that is still unfinished is a cut line."""
        if self._held:
            self._account.repaired("cut_line", self._held)
            self._note_noise(self._held)
            self._held = b""

    def _join(self, line: bytes) -> list[tuple[Any, bool]]:
        """The rest of an object that a raw newline broke; a line that stands by itself ends the wait."""
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError:
            value = None
        if isinstance(value, dict):
            # It may be an event, or a line of the text that the broken object holds.
            self.close()
            return [(value, True)]
        whole, self._held = self._held + b"\n" + line, b""
        try:
            values = self._values(whole)
        except RecursionError:
            values = []
        if values:
            self._account.repaired("joined_line", whole)
            return [(value, True) for value, _ in values]
        if self._held_lines < JOINED_LINES and len(whole) <= JOINED_BYTES:
            self._held, self._held_lines = whole, self._held_lines + 1
            return []
        self._account.repaired("cut_line", whole)
        self._note_noise(whole)
        return []

    def _values(self, line: bytes) -> list[tuple[Any, bool]]:
        import json

        try:
            return [(orjson.loads(line), False)]
        except orjson.JSONDecodeError:
            pass
        text = self._text(line)
        try:
            value = json.loads(text, strict=False)
        except ValueError:
            return []
        self._account.repaired("json", line)
        return [(value, False)]

    def _torn(self, line: bytes) -> list[tuple[Any, bool]]:
        """Objects between other things: behind a banner, two on a line, before a cut end.

        The search stops at the first object that does not parse: what lies inside a broken object is its own.
        """
        from json import JSONDecoder

        text, values, position = line.decode("utf-8", "replace"), [], 0
        decoder = JSONDecoder(strict=False)
        while (position := text.find('{"', position)) >= 0:
            try:
                value, position = decoder.raw_decode(text, position)
            except ValueError:
                break
            values.append((value, True))
        if values:
            self._account.repaired("glued_line", line)
        elif line.startswith(b'{"') and len(line) <= JOINED_BYTES:
            self._held, self._held_lines = line, 1
        else:
            self._note_noise(line)
        return values

    def _text(self, line: bytes) -> str:
        try:
            return line.decode("utf-8")
        except UnicodeDecodeError:
            self._account.repaired("invalid_utf8", line)
        return line.decode("utf-8", "replace")

    def _note_noise(self, line: bytes) -> None:
        self._account.repaired("not_json", line)
        self.noise.append(line[:NOISE_CHARACTERS].decode("utf-8", "replace"))
        del self.noise[:-NOISE_LINES]


def join_surrogates(text: str) -> str:
    """`text` as it can be written: halves of a pair joined, a half alone becomes U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
