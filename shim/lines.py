"""Bytes into lines: split on LF only, keep the unfinished rest, refuse to grow without end."""

from collections.abc import Sequence

# A longer line is skipped while it streams by: no agent prints one on purpose, and 64 MB is
# three times the largest seen (a base64 image inside a cumulative message).
INBOUND_BYTES = 64 * 1024 * 1024


class LineSplitter:
    """Feed chunks, get whole lines without their LF.

    `skipped` counts lines that were longer than `limit` bytes and were dropped as they came.
    """

    __slots__ = ("_held", "_limit", "_parts", "_skipping", "skipped")

    def __init__(self, limit: int = INBOUND_BYTES) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._held = 0
        self._skipping = False
        self.skipped = 0

    def feed(self, chunk: bytes) -> Sequence[bytes]:
        """The lines that `chunk` completes; no copy is made of lines that lie inside it."""
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines and (self._parts or self._skipping):
            lines = self._join_first(lines)
        if rest:
            self._hold(rest)
        return lines

    def close(self) -> Sequence[bytes]:
        """The last line, when it had no LF."""
        last, skipping = b"".join(self._parts), self._skipping
        self._parts, self._held, self._skipping = [], 0, False
        if skipping:
            self.skipped += 1
            return ()
        return (last,) if last else ()

    def _join_first(self, lines: list[bytes]) -> list[bytes]:
        self._hold(lines[0])
        if self._skipping:
            self.skipped += 1
            del lines[0]
        else:
            lines[0] = b"".join(self._parts)
        self._parts, self._held, self._skipping = [], 0, False
        return lines

    def _hold(self, part: bytes) -> None:
        if self._skipping:
            return
        self._held += len(part)
        if self._held > self._limit:
            self._parts, self._skipping = [], True
        else:
            self._parts.append(part)
