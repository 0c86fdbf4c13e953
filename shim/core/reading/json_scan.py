"""Scans JSON text without recursion: where an object ends, and what is nested too deep."""

import re

DEPTH_READ = 1000  # orjson reads 1,024, the standard library less
DEPTH_WRITTEN = 200  # of a line; orjson writes 254
# of a value: the line around it needs the rest, and nothing is turned into text twice
DEPTH_KEPT = DEPTH_WRITTEN - 10

# A string (group 1: its closing quote, if it came) or a bracket. Possessive: a string of any length
# costs no memory.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(")?|[{}\[\]]', re.DOTALL)
_REST = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_QUOTE, _OPENING, _CLOSING = ord('"'), b"{[", b"}]"


class Shape:
    """Finds the end of an object that comes in pieces."""

    __slots__ = ("_depth", "_inside")

    def __init__(self) -> None:
        self._depth = 0
        self._inside = False  # a string

    def feed(self, piece: bytes, start: int = 0) -> int | None:
        """The position after the object's end; None if it goes on after this piece."""
        if self._inside:
            rest = _REST.match(piece, start)
            start = rest.end() if rest else start
            if piece[start : start + 1] != b'"':
                return None
            start, self._inside = start + 1, False
        for token in _TOKEN.finditer(piece, start):
            character = piece[token.start()]
            if character in _OPENING:
                self._depth += 1
            elif character in _CLOSING:
                self._depth -= 1
                if self._depth <= 0:
                    return token.end()
            elif token.start(1) < 0:
                self._inside = True
                return None
        return None


def shallow(data: bytes, *, always: bool = False) -> bytes:
    """JSON text in which values deeper than DEPTH_KEPT are strings with their text.

    Text that is no deeper than DEPTH_READ is left as it is, unless `always`.
    """
    if not always and (data.count(b"{") + data.count(b"[") <= DEPTH_READ or not _deep(data)):
        return data
    parts: list[bytes] = []
    depth = kept = start = 0
    for token in _TOKEN.finditer(data):
        character = data[token.start()]
        if character in _OPENING:
            depth += 1
            if depth == DEPTH_KEPT + 1:
                start = token.start()
        elif character in _CLOSING:
            if depth == DEPTH_KEPT + 1:
                parts += [data[kept:start], quoted(data[start : token.end()])]
                kept = token.end()
            depth -= 1
    return b"".join((*parts, data[kept:]))


def quoted(text: bytes) -> bytes:
    """Text as a JSON string; it may have bytes that are no UTF-8."""
    import json

    return json.dumps(text.decode("utf-8", "surrogateescape")).encode()


def _deep(data: bytes) -> bool:
    """Whether it is deeper than DEPTH_READ."""
    depth = 0
    for token in _TOKEN.finditer(data):
        character = data[token.start()]
        if character in _OPENING:
            depth += 1
            if depth > DEPTH_READ:
                return True
        elif character in _CLOSING:
            depth -= 1
    return False
