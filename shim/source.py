"""Our stdin while a conversation runs: read when there is something, without blocking the loop."""

import os
import stat

import anyio

CHUNK_BYTES = 256 * 1024


class Source:
    """File descriptor 0. A pipe, a socket or a terminal is waited for; a file is never waited for long."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        mode = os.fstat(descriptor).st_mode
        device = stat.S_ISCHR(mode) and not os.isatty(descriptor)
        self._waits = not (stat.S_ISREG(mode) or device)

    async def read(self) -> bytes:
        """The next bytes, b"" at the end."""
        if self._waits:
            await anyio.wait_readable(self._descriptor)
        else:
            await anyio.lowlevel.checkpoint()
        try:
            return os.read(self._descriptor, CHUNK_BYTES)
        except OSError:
            return b""
