"""Writes without an event loop: blocking writes, warnings on stderr, and the log.

No write waits forever. If `select` reports a descriptor as writable, SAFE_BYTES can be written
without blocking. The descriptor's blocking mode is not changed, because other processes may share
the descriptor. The log is written to stderr or to a file, never to stdout. structlog is imported
only if a log is configured.
"""

import errno
import os
import select
from collections.abc import Callable

from shim.core.errors import FrontendError
from shim.core.reading.typed import Any
from shim.core.reading.values import MAX_SAMPLE_CHARS

# The errors that mean that the reader has disconnected: a closed pipe, socket or terminal, or a
# stdout that was never open. All other errors are errors of the destination, such as a full disk.
DISCONNECT_ERRNOS = (errno.EPIPE, errno.ECONNRESET, errno.EIO, errno.EBADF, errno.ENXIO)
SAFE_BYTES = 4096  # PIPE_BUF of Linux
POLL_INTERVAL_S = 0.2  # between two calls of `is_terminating`
STDERR_TIMEOUT_S = 0.2  # for a write to stderr, because the reader of stderr may never read


def write_available(descriptor: int, data: bytes, timeout_s: float = 0.0) -> bytes:
    """Write for as long as the reader accepts bytes within `timeout_s`. Return the bytes that were
    not written. Raise OSError like `os.write`.
    """
    while data and select.select([], [descriptor], [], timeout_s)[1]:
        data = data[os.write(descriptor, data[:SAFE_BYTES]) :]
    return data


def write_all(descriptor: int, data: bytes, is_terminating: Callable[[], bool]) -> None:
    """Write all bytes, even if the reader is slow. Give up if the reader does not read and
    `is_terminating()` is true.
    """
    while data := write_available(descriptor, data, POLL_INTERVAL_S):
        if is_terminating():
            return


_is_stderr_unread = False


def warn(text: str) -> None:
    """Write lines to stderr. After the reader was too slow once, do not wait for the reader again
    until it has continued to read.
    """
    global _is_stderr_unread
    try:
        timeout_s = STDERR_TIMEOUT_S
        if _is_stderr_unread:
            timeout_s = 0.0
        _is_stderr_unread = bool(write_available(2, text.encode("utf-8", "replace"), timeout_s))
    except (OSError, ValueError):
        pass


LOG_LEVELS = ("debug", "info", "warning", "error")

LogFunction = Callable[..., None]


def open_log(log_setting: str | None, *, redact: bool = True) -> LogFunction:
    """Open the log that `SHIM_LOG` configures as LEVEL or LEVEL:FILE. Return a function that logs
    an event by its name and fields.

    The field `level` is the event's level ("info" by default). Without a log, return SILENT_LOG.
    Secrets are redacted unless `redact` is False. Raise FrontendError for an unknown level, and for
    a file that cannot be opened.
    """
    if not log_setting:
        return SILENT_LOG
    level, _, path = log_setting.partition(":")
    if level not in LOG_LEVELS:
        raise FrontendError(
            f"log is {log_setting!r}; it must be one of {', '.join(LOG_LEVELS)}, or LEVEL:FILE"
        )
    import logging

    import structlog

    try:
        write_text = _RunLogFile(_open_log_file(path)).write if path else warn
    except OSError as error:
        raise FrontendError(f"the log {path} cannot be written: {error.strerror}") from None
    # `structlog.configure` and `structlog.WriteLogger` are not used, because both would keep the
    # file open until the process exits.
    logger: Any = structlog.wrap_logger(
        _LineLogger(write_text),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        cache_logger_on_first_use=True,
    )

    def write(event: str, *, level: str = "info", **fields: Any) -> None:
        try:
            getattr(logger, level)(event, **fields)
        except OSError:
            pass  # a turn must not fail because of a full disk

    if not redact:
        return write
    from shim.core.secrets.redactor import Redactor

    def write_redacted(event: str, *, level: str = "info", **fields: Any) -> None:
        redactor = Redactor(cut_chars=MAX_SAMPLE_CHARS)
        write(redactor.redact_text(event), level=level, **redactor.redact_value(fields))

    return write_redacted


def _open_log_file(path: str) -> int:
    """Open a log file that only its owner can read. Raise OSError for a pipe that has no reader."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


class _RunLogFile:
    """Appends lines to a log file, and closes the file when the log is no longer used.

    A line that does not fit into a full pipe is dropped, because a turn must not wait for its log.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)

    def write(self, line: str) -> None:
        os.write(self._descriptor, line.encode("utf-8", "backslashreplace"))


class _LineLogger:
    """Writes each rendered structlog event as one line."""

    def __init__(self, write_text: Callable[[str], None]) -> None:
        self._write_text = write_text

    def write_line(self, event: str) -> None:
        self._write_text(event + "\n")

    debug = info = warning = error = write_line


def _ignore_event(event: str, **fields: Any) -> None:
    """Do nothing, because no log was requested."""


SILENT_LOG: LogFunction = _ignore_event
