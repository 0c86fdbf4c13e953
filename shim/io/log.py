"""The log, by structlog, which is imported only if a log is asked for. It goes to stderr or a file,
never to stdout.
"""

import os
from collections.abc import Callable

from shim.core.errors import FrontendError
from shim.core.reading.diagnostics import MAX_SAMPLE_CHARS
from shim.core.reading.typed import TYPE_CHECKING, Any
from shim.io.stderr import warn

if TYPE_CHECKING:
    from typing import TextIO

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
        stream: Any = _open_file(path) if path else _Stderr()
    except OSError as error:
        raise FrontendError(f"the log {path} cannot be written: {error.strerror}") from None
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=True,
    )
    logger = structlog.get_logger()

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


def _open_file(path: str) -> "TextIO":
    """A log file, which only its owner may read. A pipe that has no reader is an error; nothing
    waits for one.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
    return open(os.open(path, flags, 0o600), "a", encoding="utf-8", buffering=1)


class _Stderr:
    """stderr, without waiting for its reader."""

    write = staticmethod(warn)

    def flush(self) -> None:
        """There is no buffer."""


def _ignore_event(event: str, **fields: Any) -> None:
    """No log was asked for."""


SILENT_LOG: LogFunction = _ignore_event
