"""Reads lines from stdin during a conversation, without blocking the event loop.

The event loop's first read imports anyio. Lines that arrive earlier are read and answered without
anyio.
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
    """A source of lines from the frontend: stdin, or the hub of a background session.

    max_bytes       the size limit for a line, and for all lines that wait for a turn
    line_splitter   splits the bytes from `read` into lines
    received_lines  lines that arrived before the first `read`
    """

    max_bytes: int
    line_splitter: LineSplitter
    received_lines: list[bytes]

    async def read(self) -> bytes:
        """Return the next bytes, or b"" at the end."""


def can_block_on_read(descriptor: int) -> bool:
    """Return whether a read from the descriptor may block. Reads from files and /dev/null never
    block, and selectors do not accept them.
    """
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return False
    return not stat.S_ISCHR(mode) or os.isatty(descriptor)


class Stdin:
    """File descriptor 0. A read from a pipe, a socket or a terminal waits for data without blocking
    the event loop. A read from a file never waits.
    """

    def __init__(
        self,
        descriptor: int = 0,
        max_bytes: int = MAX_LINE_BYTES,
        recorder: "RunRecordSink | None" = None,
        received: bytes = b"",
    ) -> None:
        """Create the reader. `received` contains bytes that were already read from the descriptor.

        A line of more than `max_bytes` is skipped. Lines that are waiting for a turn may take up
        `max_bytes` in total.
        """
        self.max_bytes = max_bytes
        self._recorder = recorder
        self.line_splitter = LineSplitter(max_bytes)
        self.received_lines = list(self.line_splitter.feed(received))
        self._descriptor = descriptor
        self._can_block = can_block_on_read(descriptor)

    def read_available_lines(self) -> list[bytes]:
        """Return the complete lines that have already arrived. The lines are also appended to
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
