"""Splits bytes into lines, at LF only. Limits the memory for an unfinished line."""

from collections.abc import Callable

from shim.core.reading import MAX_LINE_BYTES
from shim.core.reading.typed import Protocol

# The maximum size of an unfinished line in memory. A longer line is stored in a file, because most
# lines of that size never end.
MAX_MEMORY_BYTES = 8 * 1024 * 1024
MAX_HEAD_BYTES = 800  # the length of a skipped line's beginning in the diagnostics


class SpillFile(Protocol):
    """A temporary file for the bytes of a long line, which are written once and read once."""

    def write(self, data: bytes, /) -> int | None:
        """Append bytes to the file."""

    def seek(self, position: int, /) -> int:
        """Set the position of the next read or write."""

    def read(self, count: int = -1, /) -> bytes | None:
        """Read the next bytes of the file."""

    def close(self) -> None:
        """Close and remove the file."""


OpenSpillFile = Callable[[], SpillFile]


class LineSplitter:
    """Splits chunks of bytes into complete lines. The lines are returned without their LF.

    `skipped_lines` counts the lines that were dropped because they exceeded `max_line_bytes`.
    `skipped_line_head` is the beginning of the last dropped line. `open_spill_file` opens a file
    for a long line. If it is None, long lines are kept in memory.
    """

    __slots__ = (
        "_is_skipping",
        "_max_line_bytes",
        "_open_spill_file",
        "_parts",
        "_spill_file",
        "_spilled_bytes",
        "_spilled_head",
        "_unfinished_bytes",
        "skipped_line_head",
        "skipped_lines",
    )

    def __init__(
        self, max_line_bytes: int = MAX_LINE_BYTES, open_spill_file: OpenSpillFile | None = None
    ) -> None:
        self._max_line_bytes = max_line_bytes
        self._open_spill_file = open_spill_file
        self._spill_file: SpillFile | None = None
        self._spilled_bytes = 0
        self._spilled_head = b""
        self._parts: list[bytes] = []
        self._unfinished_bytes = 0
        self._is_skipping = False
        self.skipped_lines = 0
        self.skipped_line_head = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that `chunk` completes. Lines that are entirely inside the chunk are not
        copied.
        """
        lines = chunk.split(b"\n")
        remainder = lines.pop()
        first_lines: list[bytes] = []
        if lines and (self._unfinished_bytes or self._is_skipping):
            self._buffer_part(lines.pop(0))
            first_lines = self.close()
        if len(chunk) > self._max_line_bytes:
            lines = [line for line in lines if not self._skip_if_too_long(line)]
        if remainder:
            self._buffer_part(remainder)
        if first_lines:
            return first_lines + lines
        return lines

    def close(self) -> list[bytes]:
        """Return the last line if it does not end with LF."""
        line = b""
        if not self._is_skipping:
            line = self._join_parts()
        self.skipped_lines += self._is_skipping
        self._clear_parts()
        self._unfinished_bytes = 0
        self._is_skipping = False
        if line:
            return [line]
        return []

    def _skip_if_too_long(self, line: bytes) -> bool:
        if len(line) <= self._max_line_bytes:
            return False
        self.skipped_lines += 1
        self.skipped_line_head = line[:MAX_HEAD_BYTES]
        return True

    def _buffer_part(self, part: bytes) -> None:
        if self._is_skipping:
            return
        self._unfinished_bytes += len(part)
        self._parts.append(part)
        if self._unfinished_bytes > self._max_line_bytes:
            self.skipped_line_head = self._read_head()
            self._is_skipping = True
            self._clear_parts()
        elif self._unfinished_bytes > MAX_MEMORY_BYTES and self._open_spill_file is not None:
            self._spill_parts(self._open_spill_file)

    def _read_head(self) -> bytes:
        size = len(self._spilled_head)
        for count, part in enumerate(self._parts, 1):
            size += len(part)
            if size >= MAX_HEAD_BYTES:
                return (self._spilled_head + b"".join(self._parts[:count]))[:MAX_HEAD_BYTES]
        return self._spilled_head + b"".join(self._parts)

    def _spill_parts(self, open_spill_file: OpenSpillFile) -> None:
        """Move a long unfinished line to a file. If the file cannot be written, the line stays in
        memory.
        """
        try:
            if self._spill_file is None:
                self._spilled_head = self._read_head()
                self._spill_file = open_spill_file()
            # Join small parts, because a child may write single bytes.
            self._parts = [b"".join(self._parts)]
            while self._parts:
                written_bytes = self._spill_file.write(self._parts[0])
                if not written_bytes:
                    written_bytes = 0
                self._spilled_bytes += written_bytes
                if remainder := self._parts[0][written_bytes:]:
                    self._parts[:1] = [remainder]
                else:
                    self._parts[:1] = []
        except OSError:
            self._open_spill_file = None

    def _join_parts(self) -> bytes:
        if self._spill_file is None:
            return b"".join(self._parts)
        try:
            self._spill_file.seek(0)
            spilled = self._spill_file.read(self._spilled_bytes)
            if not spilled:
                spilled = b""
        except OSError:
            spilled = b""
        if len(spilled) == self._spilled_bytes:
            return b"".join([spilled, *self._parts])
        self.skipped_lines += 1
        self.skipped_line_head = self._spilled_head
        return b""

    def _clear_parts(self) -> None:
        self._parts = []
        if self._spill_file is not None:
            self._spill_file.close()
            self._spill_file = None
        self._spilled_bytes = 0
        self._spilled_head = b""
