"""Writes without an event loop: before the loop, instead of it, and to stderr beside it. None waits
for ever.

A descriptor that `select` calls writable takes SAFE_BYTES without blocking. Its blocking mode stays
as it is, because other processes may hold the same descriptor.
"""

import errno
import os
import select
from collections.abc import Callable

# The errors of a write to a reader that has gone: a closed pipe, socket or terminal, or a stdout
# that was never open. Any other error is a fault of the place that should hold the bytes, such as a
# full disk.
DISCONNECT_ERRNOS = (errno.EPIPE, errno.ECONNRESET, errno.EIO, errno.EBADF, errno.ENXIO)
SAFE_BYTES = 4096  # PIPE_BUF of Linux
POLL_INTERVAL_S = 0.2  # between two looks at whether we were told to end
STDERR_TIMEOUT_S = 0.2  # for stderr, which may be a pipe without a reader


def write_available(descriptor: int, data: bytes, timeout_s: float = 0.0) -> bytes:
    """Write while each write is possible within `timeout_s`. Returns the rest. OSError as
    `os.write` raises it.
    """
    while data and select.select([], [descriptor], [], timeout_s)[1]:
        data = data[os.write(descriptor, data[:SAFE_BYTES]) :]
    return data


def write_all(descriptor: int, data: bytes, is_terminating: Callable[[], bool]) -> None:
    """Write all of it, however slow the reader is; give up once `is_terminating()` and the reader
    does not read.
    """
    while data := write_available(descriptor, data, POLL_INTERVAL_S):
        if is_terminating():
            return


_is_stderr_unread = False


def warn(text: str) -> None:
    """Write lines to stderr. A reader that was too slow once is not waited for again until it
    reads.
    """
    global _is_stderr_unread
    try:
        _is_stderr_unread = bool(
            write_available(
                2, text.encode("utf-8", "replace"), 0.0 if _is_stderr_unread else STDERR_TIMEOUT_S
            )
        )
    except (OSError, ValueError):
        pass
