"""Opens and reads recording files."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shim.core.cast.format import (
    RECORD_HINT,
    RecordingError,
    RecordingHeader,
    RecordingReader,
    RecordingRecord,
)
from shim.state.files import open_regular_file

CHUNK_BYTES = 256 * 1024


@dataclass
class RecordingReadBudget:
    """The number of bytes that may still be read. Several recordings can share a budget."""

    bytes_left: int


class Recording:
    """A recording file, which is read once. Raise RecordingError if the file cannot be read or is
    not a recording.

    `wait_for_more` is called at the end of the file. For a recording that is still being written,
    it waits for more data and returns whether to continue. With a `budget`, reading stops when the
    budget is used up.
    """

    def __init__(
        self,
        path: str,
        wait_for_more: Callable[[], bool] | None = None,
        budget: RecordingReadBudget | None = None,
    ) -> None:
        self.path = path
        self.reader = RecordingReader()
        self._wait_for_more = wait_for_more
        self._budget = budget
        self.file_descriptor = open_recording_file(path)
        try:
            self._first_records = self._read_header()
        except BaseException as error:
            self.close()
            if isinstance(error, RecordingError) and not str(error).startswith(path):
                raise RecordingError(f"{path}: {error}", error.hint) from None
            raise
        assert self.reader.header is not None
        self.header: RecordingHeader = self.reader.header

    def _read_header(self) -> list[RecordingRecord]:
        records: list[RecordingRecord] = []
        while self.reader.header is None:
            if chunk := self._read_chunk():
                records += self.reader.feed(chunk)
            else:
                self.reader.close()
        return records

    def _read_chunk(self) -> bytes:
        """Return the next bytes, or b"" at the end."""
        max_bytes = CHUNK_BYTES
        if self._budget is not None:
            max_bytes = min(max_bytes, self._budget.bytes_left)
            if max_bytes <= 0:
                return b""
        try:
            while not (chunk := os.read(self.file_descriptor, max_bytes)):
                if self.reader.has_end or self._wait_for_more is None or not self._wait_for_more():
                    break
        except OSError as error:
            raise RecordingError(f"{self.path} cannot be read: {error.strerror}") from None
        if self._budget is not None:
            self._budget.bytes_left -= len(chunk)
        return chunk

    def read_records(self) -> Iterator[RecordingRecord]:
        """Yield the records of the file up to its last complete line."""
        try:
            yield from self._first_records
            self._first_records = []
            while chunk := self._read_chunk():
                yield from self.reader.feed(chunk)
            self.reader.close()
        finally:
            self.close()

    def close(self) -> None:
        if self.file_descriptor >= 0:
            os.close(self.file_descriptor)
            self.file_descriptor = -1


def load_cast_header(path: str) -> RecordingHeader:
    """Load the header of the recording at `path`. Raise RecordingError if the file cannot be read
    or is not a recording.
    """
    recording = Recording(path)
    recording.close()
    return recording.header


def open_recording_file(path: str) -> int:
    """Open a recording and return its file descriptor. Raise RecordingError if the path is not a
    regular file or cannot be read.
    """
    try:
        return open_regular_file(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RecordingError(f"{path} cannot be read: {reason}", hint=RECORD_HINT) from None
