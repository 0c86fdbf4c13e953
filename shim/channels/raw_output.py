"""Writing where no loop runs: before it, instead of it, and beside it on stderr. None of it may wait for ever.

A descriptor that `select` calls writable takes SAFE_BYTES without blocking, so nobody's blocking mode is changed: it is
shared with whoever else holds the descriptor.
"""

import errno
import os
import select
from collections.abc import Callable

# What a write says of a reader that has gone: its end of a pipe or a socket, a terminal that was closed, a stdout that
# was never open. Anything else is a fault of what should hold the bytes.
GONE = (errno.EPIPE, errno.ECONNRESET, errno.EIO, errno.EBADF, errno.ENXIO)
SAFE_BYTES = 4096  # PIPE_BUF of Linux
LOOK_SECONDS = 0.2  # how long a reader is waited for before we look whether we were told to end
COURTESY_SECONDS = 0.2  # for a reader of stderr, which may be a pipe that nobody reads


def offer(descriptor: int, data: bytes, seconds: float = 0.0) -> bytes:
    """Write what is taken without waiting longer than `seconds` at a time; what is left. OSError as `os.write` has."""
    while data and select.select([], [descriptor], [], seconds)[1]:
        data = data[os.write(descriptor, data[:SAFE_BYTES]) :]
    return data


def insist(descriptor: int, data: bytes, stopped: Callable[[], bool]) -> None:
    """Write all of it to a reader that may be slow; given up once `stopped` and nobody reads."""
    while data := offer(descriptor, data, LOOK_SECONDS):
        if stopped():
            return


_unread = False


def tell(text: str) -> None:
    """Lines on stderr, if somebody listens; who did not once is not waited for again until it does."""
    global _unread
    try:
        _unread = bool(offer(2, text.encode("utf-8", "replace"), 0.0 if _unread else COURTESY_SECONDS))
    except (OSError, ValueError):
        pass
