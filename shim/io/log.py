"""The log, by structlog, which is imported only if a log is asked for. It goes to stderr or a file,
never to stdout.
"""

import os
from collections.abc import Callable

from shim.core.errors import FrontendError
from shim.core.reading.diagnostics import MAX_SAMPLE_CHARS
from shim.core.reading.typed import Any
from shim.io.stderr import warn

LEVELS = ("debug", "info", "warning", "error")

LogFunction = Callable[..., None]


def open_log(log_setting: str | None, *, redact: bool = True) -> LogFunction:
    """Open the log that `SHIM_LOG` names, LEVEL or LEVEL:FILE. Returns a function of an event's
    name and its facts.

    `level` among the facts is that of the event, "info" without it. SILENT_LOG is what a log is
    that nobody asked for. Secrets are blanked, unless `redact` is False. FrontendError for an
    unknown level or a file that cannot be opened.
    """
    if not log_setting:
        return SILENT_LOG
    level, _, path = log_setting.partition(":")
    if level not in LEVELS:
        raise FrontendError(
            f"log is {log_setting!r}, it must be one of {', '.join(LEVELS)}, or LEVEL:FILE"
        )
    import logging

    import structlog

    try:
        write_text = _RunLogFile(_open_log_file(path)).write if path else warn
    except OSError as error:
        raise FrontendError(f"the log {path} cannot be written: {error.strerror}") from None
    # Neither `structlog.configure` nor `structlog.WriteLogger`: both would keep the file open for
    # the life of the process.
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
            pass  # no turn fails because the disk of its log is full

    if not redact:
        return write
    from shim.core.secrets.redactor import Redactor

    def write_redacted(event: str, *, level: str = "info", **fields: Any) -> None:
        redactor = Redactor(cut_chars=MAX_SAMPLE_CHARS)
        write(redactor.redact_text(event), level=level, **redactor.redact_value(fields))

    return write_redacted


def _open_log_file(path: str) -> int:
    """Open a log file that only its owner may read. Raises OSError for a pipe without a reader."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


class _RunLogFile:
    """Append lines to an open log file, and close it when the last user of the log is gone.

    A full pipe loses the line: a turn never waits for its log.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)

    def write(self, line: str) -> None:
        os.write(self._descriptor, line.encode("utf-8", "backslashreplace"))


class _LineLogger:
    """Write each event that structlog has rendered as a line."""

    def __init__(self, write_text: Callable[[str], None]) -> None:
        self._write_text = write_text

    def write_line(self, event: str) -> None:
        self._write_text(event + "\n")

    debug = info = warning = error = write_line


def _ignore_event(event: str, **fields: Any) -> None:
    """No log was asked for."""


SILENT_LOG: LogFunction = _ignore_event
