"""Draws a recording, also while it is written (`shim show`)."""

import os
import time
from collections.abc import Callable, Iterable

from rich.console import Console

from shim.core.cast.records import CastHeader, CastRecord
from shim.core.reading.account import escape_control_chars, pluralize
from shim.story.reading import TOO_LONG_PHRASE, Recording, StoryReader
from shim.story.terminal.draw import Drawing
from shim.story.terminal.raw import RawDrawing

POLL_SECONDS = 0.1  # between two looks at a recording that is being written
TAIL_BYTES = 200  # at the end of a file, with its last checkpoint
FLUSH_RECORDS = 200  # drawn between two flushes


class Growing:
    """Waits for more of a file that is being written: until its last checkpoint, or until it is
    gone.

    At its end a recording may be replaced by a clean copy; then another, complete file has this
    name.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._identity = _identity(path)
        self._over = False
        self.waited: Callable[[], None] = lambda: None
        self.gone = False
        self.replaced = False

    def more(self) -> bool:
        """Whether to read once more at the end of the file, after a moment."""
        self.waited()
        if self._over:
            return False
        identity = _identity(self._path)
        if identity != self._identity:
            # The last lines may not have been read yet: read once more, without waiting.
            self._over = True
            self.gone = identity is None
            self.replaced = identity is not None and _ended(self._path)
            return True
        time.sleep(POLL_SECONDS)
        return True


def show(
    path: str,
    console: Console,
    *,
    follow: bool = False,
    raw: bool = False,
    full: bool = False,
    thinking: bool = False,
    unended: bool = False,
) -> None:
    """Draw a cast, as a session or as its records. CastError if it cannot be read.

    `unended`: nothing is said of a missing end, nor of an answer that may still come, because the
    session goes on.
    """
    growing = Growing(path) if follow else None
    cast = Recording(path, growing.more if growing is not None else None)
    if raw:
        drawing: RawDrawing | _SessionDrawing = RawDrawing(console, full=full)
    else:
        drawing = _SessionDrawing(console, cast.header, live=follow, thinking=thinking, full=full)
        drawing.unended = unended
    if growing is not None:
        growing.waited = drawing.flush
    drawing.said(title(cast.header))
    drawing.flush()
    stopped = False
    try:
        for count, record in enumerate(cast.read_records(), 1):
            drawing.record(record)
            if count % FLUSH_RECORDS == 0:
                drawing.flush()
    except KeyboardInterrupt:
        stopped = True
        cast.close()
    drawing.close(_ending(cast, growing, stopped or unended))


def _ending(cast: Recording, growing: Growing | None, stopped: bool) -> list[str]:
    """Remarks about the recording."""
    said = []
    skipped = cast.reader.skipped_lines
    whole = cast.is_complete or (growing is not None and growing.replaced)
    if not whole and not stopped:
        gone = growing is not None and growing.gone
        said.append("the file is gone" if gone else "the recording was cut off here")
        skipped -= cast.reader.truncated_lines
    if skipped:
        lines = pluralize(skipped, "line")
        said.append(
            f"{lines} of the recording cannot be read: `shim cast verify` says where it is damaged"
        )
    return said


class _SessionDrawing(Drawing):
    """Draws the session of a recording, record by record."""

    def __init__(
        self, console: Console, header: CastHeader, *, live: bool, thinking: bool, full: bool
    ) -> None:
        self._teller = StoryReader(header)
        super().__init__(console, self._teller.story, live=live, thinking=thinking, full=full)

    def record(self, record: CastRecord) -> None:
        for change in self._teller.feed(record):
            self.change(change)

    def close(self, ending: Iterable[str] = ()) -> None:
        for change in self._teller.close():
            self.change(change)
        skipped = self._teller.skipped_lines
        super().close(
            [
                *ending,
                *(
                    [f"{pluralize(skipped, 'line')} of the session {TOO_LONG_PHRASE}"]
                    if skipped
                    else []
                ),
            ]
        )


def title(header: CastHeader) -> str:
    """The vendor, the folder and the time."""
    vendor = " ".join(filter(None, (header.vendor, header.vendor_version)))
    when = header.started[:19].replace("T", " ") + (" UTC" if header.started.endswith("Z") else "")
    shim = f"shim {header.shim}" if header.shim else ""
    parts = (vendor, header.cwd, when.strip(), shim, header.platform)
    return escape_control_chars(" · ".join(filter(None, parts))).replace("\n", " ")


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _ended(path: str) -> bool:
    """Whether the file of this name has its last checkpoint."""
    try:
        with open(path, "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - TAIL_BYTES, 0))
            return file.read().endswith(b'","end"]\n')
    except OSError:
        return False
