"""Our stdin while a conversation runs: lines that are read as they come, without blocking the loop.

anyio is imported by the first read of the loop. Lines that are there before that are heard and
answered without it.
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
    """Where the lines of a frontend come from: our stdin, or the hub of a session that lives on its
    own.

    max_bytes       the most bytes of a line, and of lines that wait for their turn
    line_splitter   splits what `read` gives
    received_lines  lines that came before the first `read`
    """

    max_bytes: int
    line_splitter: LineSplitter
    received_lines: list[bytes]

    async def read(self) -> bytes:
        """The next bytes, b"" at the end."""


def can_block_on_read(descriptor: int) -> bool:
    """Whether a read may have to wait. A file and /dev/null answer at once, and no selector takes
    them.
    """
    mode = os.fstat(descriptor).st_mode
    is_device = stat.S_ISCHR(mode) and not os.isatty(descriptor)
    return not (stat.S_ISREG(mode) or is_device)


class Stdin:
    """File descriptor 0. A read waits for a pipe, a socket or a terminal; a file answers at once."""

    def __init__(
        self,
        descriptor: int = 0,
        max_bytes: int = MAX_LINE_BYTES,
        recorder: "RunRecordSink | None" = None,
        received: bytes = b"",
    ) -> None:
        """`received` was read from the descriptor already.

        A line of more than `max_bytes` bytes is skipped; lines of so many bytes may wait for
        their turn.
        """
        self.max_bytes = max_bytes
        self._recorder = recorder
        self.line_splitter = LineSplitter(max_bytes)
        self.received_lines = list(self.line_splitter.feed(received))
        self._descriptor = descriptor
        self._can_block = can_block_on_read(descriptor)

    def read_available_lines(self) -> list[bytes]:
        """The whole lines that have come, without waiting. They are kept in `received_lines` as
        well.
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
        """The next bytes, b"" at the end."""
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
