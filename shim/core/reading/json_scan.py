"""Scans JSON text without recursion, to find the end of an object and values that are nested too
deeply.
"""

import re

MAX_READ_DEPTH = 1000  # orjson parses 1,024 levels; the standard library parses fewer
MAX_WRITTEN_DEPTH = 200  # the limit for a line; orjson writes at most 254 levels
# the limit for a value; the rest of its line needs the remaining levels
MAX_VALUE_DEPTH = MAX_WRITTEN_DEPTH - 10

# Matches a string (group 1: its closing quote, if there is one) or a bracket. With possessive
# quantifiers, even a very long string needs no memory for backtracking.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(")?|[{}\[\]]', re.DOTALL)
_STRING_TAIL = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_OPENING = b"{["
_CLOSING = b"}]"


class JsonObjectScanner:
    """Finds the end of a JSON object that arrives in pieces."""

    __slots__ = ("_depth", "_is_inside_string")

    def __init__(self) -> None:
        self._depth = 0
        self._is_inside_string = False  # whether the last piece ended inside a string

    def feed(self, piece: bytes, start: int = 0) -> int | None:
        """Return the position after the object's end. Return None if the object continues after
        this piece.
        """
        if self._is_inside_string:
            match = _STRING_TAIL.match(piece, start)
            if match:
                start = match.end()
            if piece[start : start + 1] != b'"':
                return None
            start += 1
            self._is_inside_string = False
        for token in _TOKEN.finditer(piece, start):
            character = piece[token.start()]
            if character in _OPENING:
                self._depth += 1
            elif character in _CLOSING:
                self._depth -= 1
                if self._depth <= 0:
                    return token.end()
            elif token.start(1) < 0:
                self._is_inside_string = True
                return None
        return None


def flatten_deeply_nested_json(data: bytes, *, force: bool = False) -> bytes:
    """Return JSON text in which each value deeper than MAX_VALUE_DEPTH is replaced with a string
    that contains its JSON.

    Text that is not deeper than MAX_READ_DEPTH stays unchanged, unless `force` is set.
    """
    if not force and (
        data.count(b"{") + data.count(b"[") <= MAX_READ_DEPTH or not _is_too_deep(data)
    ):
        return data
    parts: list[bytes] = []
    depth = copied_until = start = 0
    for token in _TOKEN.finditer(data):
        character = data[token.start()]
        if character in _OPENING:
            depth += 1
            if depth == MAX_VALUE_DEPTH + 1:
                start = token.start()
        elif character in _CLOSING:
            if depth == MAX_VALUE_DEPTH + 1:
                parts += [data[copied_until:start], encode_json_string(data[start : token.end()])]
                copied_until = token.end()
            depth -= 1
    return b"".join((*parts, data[copied_until:]))


def encode_json_string(text: bytes) -> bytes:
    """Encode text as a JSON string. The text may contain invalid UTF-8."""
    import json

    return json.dumps(text.decode("utf-8", "surrogateescape")).encode()


def _is_too_deep(data: bytes) -> bool:
    """Return whether JSON text is nested deeper than MAX_READ_DEPTH."""
    depth = 0
    for token in _TOKEN.finditer(data):
        character = data[token.start()]
        if character in _OPENING:
            depth += 1
            if depth > MAX_READ_DEPTH:
                return True
        elif character in _CLOSING:
            depth -= 1
    return False
