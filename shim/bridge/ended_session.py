"""Sends the log of an ended session in the frames that its host would send."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from shim.bridge.log import RecordedSessionLog
from shim.bridge.registry import SessionRecord
from shim.core.bridge.frames import LogCursor
from shim.core.errors import FrontendError
from shim.core.reading.values import get_text

READ_BATCH_LINES = 256  # lines of a log that are read at once
# The maximum number of cached logs of ended sessions. The index of a log needs a few kB, and a page
# shows only one session.
MAX_OPEN_LOGS = 16
STATE_KEYS = ("state", "status", "waitingFor", "needs", "detail")
SESSION_KEYS = ("session", "vendor", "name", "cwd", "generation", "version")


def iterate_ended_session_frames(
    session: SessionRecord, log: RecordedSessionLog, after: LogCursor | None
) -> Iterator[dict[str, Any]]:
    """Yield the frames of an ended session: `welcome`, the lines after the cursor, `synced`, and
    `bye`. In a `line` frame, `raw` contains Claude's line byte for byte.
    """
    metadata = session.metadata
    last_number = log.last_line_number
    yield {
        "kind": "welcome",
        **{key: metadata.get(key) for key in SESSION_KEYS},
        "id": session.short_id,
        "number": last_number,
        "state": {key: metadata.get(key) for key in STATE_KEYS},
        "driver": None,
        "questions": [],
    }
    after_number = 0
    if after is not None and has_cursor_line(log, after):
        after_number = after.number
    elif after is not None:
        yield {"kind": "gap", "from": 0, "to": last_number, "reason": "unknown"}
    while entries := log.read(after_number, READ_BATCH_LINES):
        for entry in entries:
            after_number = entry.number
            yield {
                "kind": "line",
                "number": after_number,
                "generation": entry.generation,
                "at": entry.at_ms,
                "raw": entry.line,
            }
    yield {"kind": "synced", "number": last_number}
    reason = get_text(metadata, "detail", get_text(metadata, "state", "ended"))
    yield {"kind": "bye", "reason": reason}


def has_cursor_line(log: RecordedSessionLog, cursor: LogCursor) -> bool:
    """Return whether a log contains the line at a cursor, with the same generation. A cursor with
    the number 0 matches every log.

    If a system crash loses a line, a later generation uses the line's number again.
    """
    if cursor.number == 0:
        return True
    entries = log.read(cursor.number - 1, 1)
    if not entries:
        return False
    return (entries[0].number, entries[0].generation) == (
        cursor.number,
        cursor.generation,
    )


def open_ended_log(session: SessionRecord) -> RecordedSessionLog:
    """Return the log of an ended session. Raise FrontendError if it cannot be read."""
    try:
        return _load_ended_log(session.log_folder, int(session.metadata["generation"]))
    except OSError as error:
        raise FrontendError(f"the session's history cannot be read: {error.strerror}") from None


@lru_cache(maxsize=MAX_OPEN_LOGS)
def _load_ended_log(folder: str, generation: int) -> RecordedSessionLog:
    """Return the log of an ended session. The log does not change until the session is resumed.

    The lines of the log's last file are counted only once.
    """
    return RecordedSessionLog(folder, generation)
