"""Splits bytes into lines at LF only, and bounds what an unfinished line may hold."""

from collections.abc import Callable

from shim.core.reading.typed import Protocol

# A longer line is skipped while it streams by: no agent prints one on purpose, and 64 MB is
# three times the largest seen (a base64 image inside a cumulative message).
INBOUND_BYTES = 64 * 1024 * 1024
# Of an unfinished line in memory; the rest waits in a file, since most lines of that size never
# end.
HELD_BYTES = 8 * 1024 * 1024
HEAD_BYTES = 800  # of a line that was skipped, for the account


class AsideFile(Protocol):
    """A temporary file that is written and read again."""

    def write(self, data: bytes, /) -> int | None:
        """Append."""

    def seek(self, position: int, /) -> int:
        """Set the place of the next byte."""

    def read(self, count: int = -1, /) -> bytes | None:
        """Read the next bytes."""

    def close(self) -> None:
        """Close and remove it."""


Aside = Callable[[], AsideFile]


class LineSplitter:
    """Feed chunks, get whole lines without their LF.

    `skipped` counts lines that were longer than `limit` bytes and were dropped as they came; `head`
    is how the last of them began. `aside` opens a file for a long line; without one it is held in
    memory.
    """

    __slots__ = (
        "_aside",
        "_begun",
        "_file",
        "_held",
        "_limit",
        "_parts",
        "_skipping",
        "_written",
        "head",
        "skipped",
    )

    def __init__(self, limit: int = INBOUND_BYTES, aside: Aside | None = None) -> None:
        self._limit = limit
        self._aside = aside
        self._file: AsideFile | None = None
        self._written = 0
        self._begun = b""
        self._parts: list[bytes] = []
        self._held = 0
        self._skipping = False
        self.skipped = 0
        self.head = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes; no copy is made of lines that lie inside it."""
        lines = chunk.split(b"\n")
        rest = lines.pop()
        begun: list[bytes] = []
        if lines and (self._held or self._skipping):
            self._hold(lines.pop(0))
            begun = self.close()
        if len(chunk) > self._limit:
            lines = [line for line in lines if not self._too_long(line)]
        if rest:
            self._hold(rest)
        return begun + lines if begun else lines

    def close(self) -> list[bytes]:
        """The last line, if it has no LF."""
        line = b"" if self._skipping else self._taken()
        self.skipped += self._skipping
        self._forget()
        self._held, self._skipping = 0, False
        return [line] if line else []

    def _too_long(self, line: bytes) -> bool:
        if len(line) <= self._limit:
            return False
        self.skipped += 1
        self.head = line[:HEAD_BYTES]
        return True

    def _hold(self, part: bytes) -> None:
        if self._skipping:
            return
        self._held += len(part)
        self._parts.append(part)
        if self._held > self._limit:
            self.head = self._beginning()
            self._skipping = True
            self._forget()
        elif self._held > HELD_BYTES and self._aside is not None:
            self._put_aside(self._aside)

    def _beginning(self) -> bytes:
        size = len(self._begun)
        for count, part in enumerate(self._parts, 1):
            size += len(part)
            if size >= HEAD_BYTES:
                return (self._begun + b"".join(self._parts[:count]))[:HEAD_BYTES]
        return self._begun + b"".join(self._parts)

    def _put_aside(self, aside: Aside) -> None:
        """Move a long line to a file; if that cannot be written, keep it in memory."""
        try:
            if self._file is None:
                self._begun = self._beginning()
                self._file = aside()
            self._parts = [b"".join(self._parts)]  # a child may write byte by byte
            while self._parts:
                count = self._file.write(self._parts[0]) or 0
                self._written += count
                self._parts[:1] = [rest] if (rest := self._parts[0][count:]) else []
        except OSError:
            self._aside = None

    def _taken(self) -> bytes:
        if self._file is None:
            return b"".join(self._parts)
        try:
            self._file.seek(0)
            written = self._file.read(self._written) or b""
        except OSError:
            written = b""
        if len(written) == self._written:
            return b"".join([written, *self._parts])
        self.skipped += 1
        self.head = self._begun
        return b""

    def _forget(self) -> None:
        self._parts = []
        if self._file is not None:
            self._file.close()
            self._file = None
        self._written, self._begun = 0, b""
