"""Draws a recording, also while it is written (`shim show`)."""

import os
import time
from collections.abc import Callable, Iterable

from rich.console import Console

from shim.core.cast.records import CastHeader, CastRecord
from shim.core.reading.account import escape_control_chars, pluralize
from shim.story.reading import TOO_LONG_PHRASE, Recording, StoryReader
from shim.story.terminal.draw import Renderer
from shim.story.terminal.raw import RawRenderer

POLL_SECONDS = 0.1  # between two looks at a recording that is being written
TAIL_BYTES = 200  # at the end of a file, with its last checkpoint
FLUSH_RECORDS = 200  # drawn between two flushes


class FileFollower:
    """Waits for more of a file that is being written: until its last checkpoint, or until it is
    gone.

    At its end a recording may be replaced by a clean copy; then another, complete file has this
    name.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file_id = _read_file_id(path)
        self._is_over = False
        self.on_wait: Callable[[], None] = lambda: None
        self.is_deleted = False
        self.is_replaced = False

    def wait_for_more(self) -> bool:
        """Whether to read once more at the end of the file, after a moment."""
        self.on_wait()
        if self._is_over:
            return False
        identity = _read_file_id(self._path)
        if identity != self._file_id:
            # The last lines may not have been read yet: read once more, without waiting.
            self._is_over = True
            self.is_deleted = identity is None
            self.is_replaced = identity is not None and _has_end_checkpoint(self._path)
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
    """Draw a cast, as a session or as its records. CastError if it cannot be read.

    `unended`: nothing is said of a missing end, nor of an answer that may still come, because the
    session goes on.
    """
    growing = FileFollower(path) if follow else None
    cast = Recording(path, growing.wait_for_more if growing is not None else None)
    if raw:
        drawing: RawRenderer | _RecordingRenderer = RawRenderer(console, full=full)
    else:
        drawing = _RecordingRenderer(
            console, cast.header, live=follow, thinking=thinking, full=full
        )
        drawing.is_running = is_running
    if growing is not None:
        growing.on_wait = drawing.flush
    drawing.print_remark(format_title(cast.header))
    drawing.flush()
    stopped = False
    try:
        for count, record in enumerate(cast.read_records(), 1):
            drawing.draw_record(record)
            if count % FLUSH_RECORDS == 0:
                drawing.flush()
    except KeyboardInterrupt:
        stopped = True
        cast.close()
    drawing.close(_list_remarks(cast, growing, stopped or is_running))


def _list_remarks(cast: Recording, growing: FileFollower | None, stopped: bool) -> list[str]:
    """Remarks about the recording."""
    said = []
    skipped = cast.reader.skipped_lines
    whole = cast.is_complete or (growing is not None and growing.is_replaced)
    if not whole and not stopped:
        gone = growing is not None and growing.is_deleted
        said.append("the file is gone" if gone else "the recording was cut off here")
        skipped -= cast.reader.truncated_lines
    if skipped:
        lines = pluralize(skipped, "line")
        said.append(
            f"{lines} of the recording cannot be read: `shim cast verify` says where it is damaged"
        )
    return said


class _RecordingRenderer(Renderer):
    """Draws the session of a recording, record by record."""

    def __init__(
        self, console: Console, header: CastHeader, *, live: bool, thinking: bool, full: bool
    ) -> None:
        self._reader = StoryReader(header)
        super().__init__(console, self._reader.story, live=live, thinking=thinking, full=full)

    def draw_record(self, record: CastRecord) -> None:
        for change in self._reader.feed(record):
            self.draw_change(change)

    def close(self, remarks: Iterable[str] = ()) -> None:
        for change in self._reader.close():
            self.draw_change(change)
        skipped = self._reader.skipped_lines
        super().close(
            [
                *remarks,
                *(
                    [f"{pluralize(skipped, 'line')} of the session {TOO_LONG_PHRASE}"]
                    if skipped
                    else []
                ),
            ]
        )


def format_title(header: CastHeader) -> str:
    """The vendor, the folder and the time."""
    vendor = " ".join(filter(None, (header.vendor, header.vendor_version)))
    when = header.started[:19].replace("T", " ") + (" UTC" if header.started.endswith("Z") else "")
    shim = f"shim {header.shim}" if header.shim else ""
    parts = (vendor, header.cwd, when.strip(), shim, header.platform)
    return escape_control_chars(" · ".join(filter(None, parts))).replace("\n", " ")


def _read_file_id(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _has_end_checkpoint(path: str) -> bool:
    """Whether the file of this name has its last checkpoint."""
    try:
        with open(path, "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - TAIL_BYTES, 0))
            return file.read().endswith(b'","end"]\n')
    except OSError:
        return False
