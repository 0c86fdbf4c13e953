"""Reads stdin while a conversation runs: lines are read as they come, without blocking the loop.

The first read of the loop imports anyio. Lines that arrive earlier are read and answered without
it.
"""

import os
import select
import stat
from typing import TYPE_CHECKING, Protocol

from shim.core.reading import MAX_LINE_BYTES
from shim.core.reading.lines import LineSplitter

if TYPE_CHECKING:
    from shim.io.record_sinks import RunRecordSink

CHUNK_BYTES = 256 * 1024


class FrontendLineSource(Protocol):
    """The source of the frontend's lines: stdin, or the hub of a background session.

    max_bytes       the maximum size of a line, and of the lines that wait for a turn
    line_splitter   splits the bytes that `read` returns
    received_lines  lines that arrived before the first `read`
    """

    max_bytes: int
    line_splitter: LineSplitter
    received_lines: list[bytes]

    async def read(self) -> bytes:
        """Return the next bytes, or b"" at the end."""


def can_block_on_read(descriptor: int) -> bool:
    """Return whether a read may have to wait. Files and /dev/null never wait, and a selector does
    not accept them.
    """
    mode = os.fstat(descriptor).st_mode
    is_device = stat.S_ISCHR(mode) and not os.isatty(descriptor)
    return not (stat.S_ISREG(mode) or is_device)


class Stdin:
    """File descriptor 0. A read waits for a pipe, a socket or a terminal, but not for a file."""

    def __init__(
        self,
        descriptor: int = 0,
        max_bytes: int = MAX_LINE_BYTES,
        recorder: "RunRecordSink | None" = None,
        received: bytes = b"",
    ) -> None:
        """Create the reader. `received` has bytes that were already read from the descriptor.

        A line of more than `max_bytes` is skipped. The lines that wait for a turn have at most
        `max_bytes` in total.
        """
        self.max_bytes = max_bytes
        self._recorder = recorder
        self.line_splitter = LineSplitter(max_bytes)
        self.received_lines = list(self.line_splitter.feed(received))
        self._descriptor = descriptor
        self._can_block = can_block_on_read(descriptor)

    def read_available_lines(self) -> list[bytes]:
        """Return the complete lines that have arrived, without waiting. They are also stored in
        `received_lines`.
        """
        if not self._can_block or not select.select([self._descriptor], [], [], 0)[0]:
            return []
        try:
            chunk = os.read(self._descriptor, CHUNK_BYTES)
        except OSError:
            return []
        if self._recorder is not None:
            self._recorder.record_stream("i", chunk)
        self.received_lines = list(self.line_splitter.feed(chunk))
        return self.received_lines

    async def read(self) -> bytes:
        """Return the next bytes, or b"" at the end."""
        import anyio

        if self._can_block:
            await anyio.wait_readable(self._descriptor)
        else:
            await anyio.lowlevel.checkpoint()
        try:
            chunk = os.read(self._descriptor, CHUNK_BYTES)
        except OSError:
            return b""
        if self._recorder is not None:
            self._recorder.record_stream("i", chunk)
        return chunk
