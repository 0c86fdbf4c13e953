"""Draws a recording for `shim show`, even while the recording is still being written."""

import os
import time
from collections.abc import Callable, Iterable

from rich.console import Console

from shim.core.cast.format import RecordingHeader, RecordingRecord
from shim.core.reading.diagnostics import pluralize
from shim.core.reading.values import escape_control_chars
from shim.recording.recording_file import Recording
from shim.story.reader import TOO_LONG_PHRASE, RecordedSessionStepReader
from shim.story.terminal.raw_renderer import RawRecordRenderer
from shim.story.terminal.renderer import TerminalSessionRenderer

POLL_SECONDS = 0.1  # how often a growing recording is checked
TAIL_BYTES = 200  # the final checkpoint is within these last bytes
FLUSH_RECORDS = 200  # records between two flushes


class RecordingFileFollower:
    """Waits for more data in a recording that is still being written. It stops at the final
    checkpoint, or if the file is removed.

    A finished recording may be replaced by a redacted copy. The path then belongs to a different,
    complete file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file_id = _read_file_id(path)
        self._is_over = False
        self.on_wait: Callable[[], None] = lambda: None
        self.is_deleted = False
        self.is_replaced = False

    def wait_for_more_data(self) -> bool:
        """Wait a moment at the end of the file. Return whether to read again."""
        self.on_wait()
        if self._is_over:
            return False
        file_id = _read_file_id(self._path)
        if file_id != self._file_id:
            # The last lines may not have been read yet, so the file is read once more without waiting.
            self._is_over = True
            self.is_deleted = file_id is None
            self.is_replaced = file_id is not None and _has_end_checkpoint(self._path)
            return True
        time.sleep(POLL_SECONDS)
        return True


def draw_recording(
    path: str,
    console: Console,
    *,
    follow: bool = False,
    raw: bool = False,
    full: bool = False,
    thinking: bool = False,
    is_running: bool = False,
) -> None:
    """Draw a recording, as a session or as raw records. Raise RecordingError if the recording
    cannot be read.

    If `is_running` is set, the session is still running. A missing end and missing answers are not
    reported.
    """
    follower = None
    if follow:
        follower = RecordingFileFollower(path)
    wait_for_more = None
    if follower is not None:
        wait_for_more = follower.wait_for_more_data
    recording = Recording(path, wait_for_more)
    if raw:
        renderer: RawRecordRenderer | _RecordingRenderer = RawRecordRenderer(console, full=full)
    else:
        renderer = _RecordingRenderer(
            console, recording.header, live=follow, thinking=thinking, full=full
        )
        renderer.is_running = is_running
    if follower is not None:
        follower.on_wait = renderer.flush
    renderer.print_notice(format_recording_title(recording.header))
    renderer.flush()
    interrupted = False
    try:
        for count, record in enumerate(recording.read_records(), 1):
            renderer.draw_record(record)
            if count % FLUSH_RECORDS == 0:
                renderer.flush()
    except KeyboardInterrupt:
        interrupted = True
        recording.close()
    renderer.close(_list_remarks(recording, follower, interrupted or is_running))


def _list_remarks(
    recording: Recording, follower: RecordingFileFollower | None, interrupted: bool
) -> list[str]:
    """Return the notices about a recording, for example that it is incomplete."""
    remarks = []
    skipped = recording.reader.skipped_lines
    is_complete = recording.reader.has_end or (follower is not None and follower.is_replaced)
    if not is_complete and not interrupted:
        is_deleted = follower is not None and follower.is_deleted
        remarks.append(
            "the file no longer exists" if is_deleted else "the recording was cut off here"
        )
        skipped -= recording.reader.truncated_lines
    if skipped:
        lines = pluralize(skipped, "line")
        remarks.append(
            f"{lines} of the recording cannot be read: `shim cast verify` shows where it is damaged"
        )
    return remarks


class _RecordingRenderer(TerminalSessionRenderer):
    """Draws the session in a recording, record by record."""

    def __init__(
        self, console: Console, header: RecordingHeader, *, live: bool, thinking: bool, full: bool
    ) -> None:
        self._reader = RecordedSessionStepReader(header)
        super().__init__(console, self._reader.story, live=live, thinking=thinking, full=full)

    def draw_record(self, record: RecordingRecord) -> None:
        for change in self._reader.feed(record):
            self.draw_step_change(change)

    def close(self, notices: Iterable[str] = ()) -> None:
        for change in self._reader.close():
            self.draw_step_change(change)
        skipped = self._reader.skipped_line_count
        super().close(
            [
                *notices,
                *(
                    [f"{pluralize(skipped, 'line')} of the session {TOO_LONG_PHRASE}"]
                    if skipped
                    else []
                ),
            ]
        )


def format_recording_title(header: RecordingHeader) -> str:
    """Return a recording's title: its vendor, folder and start time."""
    vendor = " ".join(filter(None, (header.vendor, header.vendor_version)))
    start_time = header.started[:19].replace("T", " ") + (
        " UTC" if header.started.endswith("Z") else ""
    )
    shim_version = ""
    if header.shim:
        shim_version = f"shim {header.shim}"
    parts = (vendor, header.cwd, start_time.strip(), shim_version, header.platform)
    return escape_control_chars(" · ".join(filter(None, parts))).replace("\n", " ")


def _read_file_id(path: str) -> tuple[int, int] | None:
    try:
        file_status = os.stat(path)
    except OSError:
        return None
    return file_status.st_dev, file_status.st_ino


def _has_end_checkpoint(path: str) -> bool:
    """Return whether the file at this path contains the final checkpoint."""
    try:
        with open(path, "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - TAIL_BYTES, 0))
            return file.read().endswith(b'","end"]\n')
    except OSError:
        return False
