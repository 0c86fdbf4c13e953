"""Formats the output of a background session as `shim show` draws a recording."""

import os
import tempfile
from collections import deque
from collections.abc import Iterable, Mapping
from io import StringIO

from rich.console import Console

from shim.bridge.client import connect_to_session_blocking
from shim.bridge.log import RecordedSessionLog
from shim.bridge.registry import SessionRecord
from shim.core.bridge.frames import WATCH
from shim.core.bridge.log import STDOUT_LETTER, SessionLogRecord
from shim.core.cast.format import CAST_SUFFIX, RecordingError
from shim.core.reading.values import escape_control_chars
from shim.story.terminal.console import SESSION_CONSOLE_OPTIONS
from shim.story.terminal.show import draw_recording

# The real claude shows the last 500 chunks.
# If earlier lines are dropped, a note tells the user where to find them.
MAX_LINES = 500
COPY_TIMEOUT_S = 30.0  # for the fleet to send the next lines of a copy
NO_LINES_TEXT = "no output yet\n"


class LastLinesBuffer(StringIO):
    """A text file in memory that only keeps its last lines. `dropped_count` is the number of
    dropped lines.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._last_line = ""
        self.dropped_count = 0

    def write(self, text: str) -> int:
        """Add text to the buffer."""
        *complete_lines, self._last_line = (self._last_line + text).split("\n")
        self.dropped_count += max(len(self._lines) + len(complete_lines) - MAX_LINES, 0)
        self._lines.extend(complete_lines)
        return len(text)

    def get_text(self) -> str:
        """Return the last lines as text."""
        return "".join(f"{line}\n" for line in self._lines) + self._last_line


def list_recording_paths(folder: str) -> list[str]:
    """Return the paths of the recordings in a folder, in the order of the numbers in their names."""
    try:
        return [
            os.path.join(folder, name)
            for name in sorted(os.listdir(folder))
            if name.endswith(CAST_SUFFIX)
        ]
    except OSError:
        return []


def format_recent_session_output(session: SessionRecord) -> str:
    """Return the last lines of a session as text, with colors if stdout is a terminal."""
    return _format_recordings(session, session.log_folder)


def _format_recordings(session: SessionRecord, folder: str) -> str:
    """Return the last lines of the recordings in a folder."""
    buffer = LastLinesBuffer()
    is_terminal = os.isatty(1)
    console = Console(file=buffer, force_terminal=is_terminal, **SESSION_CONSOLE_OPTIONS)
    paths = list_recording_paths(folder)
    problems = _draw_recordings(paths, console, is_running=session.is_running)
    text = buffer.get_text() + "".join(f"{problem}\n" for problem in problems)
    if buffer.dropped_count and session.machine:
        text = f"… {buffer.dropped_count} earlier lines\n" + text
    elif buffer.dropped_count:
        text = f"… {buffer.dropped_count} earlier lines: `shim show {folder}`\n" + text
    if text:
        return text
    return _explain_empty_log(session)


def format_copied_session_output(session: SessionRecord, environment: Mapping[str, str]) -> str:
    """Return the last lines of a session whose machine is away, from the copy in the fleet. Raise
    MachineUnavailableError if the fleet has no copy.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = RecordedSessionLog(folder, 1)
        with connect_to_session_blocking(
            session.session_id, environment, role=WATCH, partial=False
        ) as connection:
            for frame in connection.read_frames(COPY_TIMEOUT_S):
                if frame["kind"] == "synced":
                    break
                if frame["kind"] == "line":
                    record = SessionLogRecord(
                        STDOUT_LETTER, frame["at"], frame["raw"], frame["number"]
                    )
                    log.append([record])
        copy = session._replace(folder=folder, is_running=False)
        return _format_recordings(copy, folder)


def _explain_empty_log(session: SessionRecord) -> str:
    """Return a message for a session without output. If the session has failed, the message is the
    reason.
    """
    detail = session.metadata.get("detail")
    if session.is_running or session.metadata.get("state") != "failed" or not detail:
        return NO_LINES_TEXT
    return f"the session failed before its first output: {escape_control_chars(str(detail))}\n"


def _draw_recordings(paths: Iterable[str], console: Console, *, is_running: bool) -> list[str]:
    """Draw recordings one after another. Return the errors of recordings that cannot be read."""
    problems = []
    paths = list(paths)
    for path in paths:
        try:
            draw_recording(path, console, is_running=is_running and path == paths[-1])
        except RecordingError as error:
            problems.append(str(error))
    return problems
