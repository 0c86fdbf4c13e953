"""A session's log: recordings named `<generation>-<first number>.cast`.

A new file is started when a host process starts, and when the current file is full. `shim show`,
`shim export` and `shim cast verify` read the log's files like any recording. Nothing is redacted,
so a client that reconnects sees the same lines as all other clients. Line numbers are not stored.
They are counted when a file is read.
"""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from shim import __version__
from shim.core.bridge.log import (
    NOTE_LETTER,
    STDOUT_LETTER,
    LogHistory,
    SessionLogEntry,
    SessionLogRecord,
    list_accepted_message_ids,
)
from shim.core.cast.encoder import RecordingEncoder
from shim.core.cast.format import (
    CAST_SUFFIX,
    RecordingError,
    parse_recording_header,
    parse_recording_line,
)
from shim.core.reading.json_text import parse_json_object
from shim.core.reading.values import as_dict
from shim.state.files import open_new_file, open_regular_file, remove_file, write_all

# The size limit of one file.
# A reader may have to skip a complete file, and old lines are deleted one file at a time.
MAX_FILE_BYTES = 64 * 1024 * 1024
# The size limit of a session's files together.
# The oldest files are deleted, and clients that need them receive a `gap` frame.
MAX_LOG_BYTES = 1024 * 1024 * 1024
READ_BATCH_BYTES = 1024 * 1024  # size of one read; fits into a client's queue
INDEX_INTERVAL_LINES = 64  # one in 64 lines of a file is indexed
MAX_RECENT_LINES = 10_000  # lines of earlier hosts, to recognize messages that are sent again
UNNUMBERED_TYPES = ("control_request", "control_response", "control_cancel_request", "keep_alive")
UNNUMBERED_SNIPPETS = (b'"control_', b'"keep_alive"')  # lines without a number contain one of these
# Programs that read recordings use these arguments.
HEADER_ARGV = ("-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose")
HEADER_KEYS = ("generation", "first", "at")  # keys of a file's header


class RecordedSessionLog:
    """The log of one session in `folder`, written by one host process.

    `header_fields` are added to each file's header. Line numbers continue after the last complete
    line. The constructor raises OSError if the folder cannot be read or written.
    """

    def __init__(
        self,
        folder: str,
        generation: int,
        header_fields: Mapping[str, Any] = {},
        *,
        max_file_bytes: int = MAX_FILE_BYTES,
        max_log_bytes: int = MAX_LOG_BYTES,
    ) -> None:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self.generation = generation
        self._folder = folder
        self._header_fields = header_fields
        self._max_file_bytes = max_file_bytes
        self._max_log_bytes = max_log_bytes
        self._log_files = _load_log_files(folder)
        if self._log_files:
            self.last_line_number = self._log_files[-1].find_last_number()
        else:
            self.last_line_number = 0
        self._encoder = RecordingEncoder()
        self._descriptor = -1
        self._file_start_ms = 0  # when the current file was started, in ms since 1970
        self._write_error: OSError | None = None

    @property
    def first_line_number(self) -> int:
        """The number of the oldest line that the log still contains."""
        if self._log_files:
            return self._log_files[0].first_number
        return self.last_line_number + 1

    def load_history(self) -> LogHistory:
        """Return what a new host needs from the log of the session's earlier hosts."""
        first_numbers = dict[int, int]()
        for file in self._log_files:
            first_numbers.setdefault(file.generation, file.first_number)
        message_ids = self.list_message_ids() if self.generation > 1 else ()
        return LogHistory(self.generation, self.last_line_number, first_numbers, message_ids)

    # -- writing -----------------------------------------------------------------------------------

    def append(self, records: Sequence[SessionLogRecord]) -> None:
        """Write records. Raise OSError if they cannot be written. After an error, every later call
        raises OSError, too.

        A batch that could not be written completely is removed from the file.
        """
        if self._write_error is not None:
            raise self._write_error
        try:
            for start in range(0, len(records), INDEX_INTERVAL_LINES):
                self._write_batch(records[start : start + INDEX_INTERVAL_LINES])
        except OSError as error:
            self._write_error = error
            raise

    def _write_batch(self, records: Sequence[SessionLogRecord]) -> None:
        if self._descriptor < 0 or self._log_files[-1].size_bytes >= self._max_file_bytes:
            self._start_next_file(records[0].at_ms)
        file = self._log_files[-1]
        data = []
        file.extend_index(self.last_line_number + 1, file.size_bytes, self._encoder.encoded_time_s)
        for record in records:
            elapsed_s = max(0, record.at_ms - self._file_start_ms) / 1000
            if record.letter == NOTE_LETTER:
                note = orjson.loads(record.data)
                data.append(self._encoder.encode_event_record(NOTE_LETTER, elapsed_s, note))
            else:
                line = record.data + b"\n"
                data.append(self._encoder.encode_stream_chunk(record.letter, elapsed_s, line))
        chunk = b"".join(data)
        try:
            write_all(self._descriptor, chunk)
        except OSError:
            os.ftruncate(self._descriptor, file.size_bytes)
            raise
        file.size_bytes += len(chunk)
        self.last_line_number = max(self.last_line_number, *(record.number for record in records))

    def _start_next_file(self, start_ms: int) -> None:
        self.close()
        self._encoder = RecordingEncoder()
        self._file_start_ms = start_ms
        first_number = self.last_line_number + 1
        path = os.path.join(self._folder, f"{self.generation:06}-{first_number:010}{CAST_SUFFIX}")
        start_s = start_ms / 1000
        header = {
            "started": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(start_s))
            + f".{start_ms % 1000:03d}Z",
            "shim": __version__,
            "argv": HEADER_ARGV,
            "env": {},
            "redact": "none",
            "platform": sys.platform,
            "dialect": "claude",
            **self._header_fields,
            "bridge": {"generation": self.generation, "first": first_number, "at": start_ms},
        }
        header_line = self._encoder.encode_header(header)
        remove_file(path)  # an empty file of a host that wrote no line
        self._descriptor = open_new_file(path)
        write_all(self._descriptor, header_line)
        self._log_files.append(
            _LogFile(path, self.generation, first_number, start_ms, len(header_line))
        )
        self._drop_old_files()

    def _drop_old_files(self) -> None:
        """Delete the oldest files while the log is too large. The file that is being written is
        never deleted.
        """
        while (
            len(self._log_files) > 1
            and sum(file.size_bytes for file in self._log_files)
            > self._max_log_bytes - self._max_file_bytes
        ):
            remove_file(self._log_files.pop(0).path)

    def close(self) -> None:
        """Write the last line of the current file, and close the file.

        If the write fails, the file ends without this line, as it does after SIGKILL.
        """
        if self._descriptor < 0:
            return
        descriptor = self._descriptor
        self._descriptor = -1
        try:
            if self._write_error is None:
                write_all(descriptor, self._encoder.encode_recording_end(0.0))
        except OSError:
            pass
        finally:
            os.close(descriptor)

    # -- reading -----------------------------------------------------------------------------------

    def read(
        self, after_number: int, max_lines: int, max_bytes: int = READ_BATCH_BYTES
    ) -> Sequence[SessionLogEntry]:
        """Return the lines after a number: at most `max_lines` lines, and about
        `max_bytes` bytes.
        """
        entries = list[SessionLogEntry]()
        total_bytes = 0
        for index, file in enumerate(self._log_files):
            if index + 1 < len(self._log_files):
                next_first = self._log_files[index + 1].first_number
            else:
                next_first = self.last_line_number + 1
            if next_first - 1 <= after_number:
                continue
            for entry in file.read_entries(after_number):
                if entry.number > self.last_line_number or entry.number >= next_first:
                    break
                entries.append(entry)
                total_bytes += len(entry.line)
                if len(entries) >= max_lines or total_bytes >= max_bytes:
                    return entries
        return entries

    def list_message_ids(self) -> Iterator[str]:
        """Yield the ids of recently accepted messages, to recognize a message that a client sends
        again.
        """
        after_number = max(self.first_line_number - 1, self.last_line_number - MAX_RECENT_LINES)
        while entries := self.read(after_number, MAX_RECENT_LINES):
            yield from list_accepted_message_ids(entries)
            after_number = entries[-1].number


class _LogFile:
    """One file of a session's log, with an index of some of its lines."""

    def __init__(
        self, path: str, generation: int, first_number: int, start_ms: int, size_bytes: int
    ) -> None:
        self.path = path
        self.generation = generation
        self.first_number = first_number
        self.size_bytes = size_bytes
        self._start_ms = start_ms
        # (number of the next line, its offset in the file, seconds since the start of the file)
        self._index: list[tuple[int, int, float]] = [(first_number, 0, 0.0)]

    def read_entries(self, after_number: int) -> Iterator[SessionLogEntry]:
        """Yield the log entries of the complete lines that follow the line `after_number`."""
        number, offset, elapsed_s = next(
            index_entry
            for index_entry in reversed(self._index)
            if index_entry[0] <= max(after_number + 1, self.first_number)
        )
        pieces = list[bytes]()
        try:
            descriptor = open_regular_file(self.path, follow_links=False)
        except OSError:
            return  # the file was deleted
        with open(descriptor, "rb") as file:
            file.seek(offset)
            for raw in file:
                offset += len(raw)
                if not raw.endswith(b"\n"):
                    return  # truncated by SIGKILL
                line = parse_recording_line(raw[:-1])
                elapsed_s += line.delay_s
                if line.code != STDOUT_LETTER:
                    continue
                pieces.append(line.data)
                if not line.has_newline:
                    continue
                full_line = b"".join(pieces)
                pieces.clear()
                if not needs_log_line_number(full_line):
                    continue
                if number > after_number:
                    yield SessionLogEntry(
                        number, self.generation, self._start_ms + round(elapsed_s * 1000), full_line
                    )
                number += 1
                self.extend_index(number, offset, elapsed_s)

    def extend_index(self, number: int, offset: int, elapsed_s: float) -> None:
        """Add the offset of a line to the index. Only one in INDEX_INTERVAL_LINES lines is indexed.

        The host extends the index while it writes the file. The event loop therefore never reads a
        complete file for a client that reconnects.
        """
        if number - self._index[-1][0] >= INDEX_INTERVAL_LINES:
            self._index.append((number, offset, elapsed_s))

    def find_last_number(self) -> int:
        """Return the number of the file's last complete line, or `first_number` - 1 if there is
        none.
        """
        last_number = self.first_number - 1
        for entry in self.read_entries(last_number):
            last_number = entry.number
        return last_number


def needs_log_line_number(line: bytes) -> bool:
    """Return whether a line gets a number in the log. Lines of the control protocol have
    no number.
    """
    if not any(snippet in line for snippet in UNNUMBERED_SNIPPETS):
        return True
    return parse_json_object(line).get("type") not in UNNUMBERED_TYPES


def _load_log_files(folder: str) -> list[_LogFile]:
    """Return the log files of earlier hosts, in order. All other files are ignored."""
    log_files = list[_LogFile]()
    for file_name in sorted(os.listdir(folder)):
        path = os.path.join(folder, file_name)
        if not file_name.endswith(CAST_SUFFIX):
            continue
        try:
            with open(open_regular_file(path, follow_links=False), "rb") as file:
                header = parse_recording_header(file.readline().rstrip(b"\n"))
                size_bytes = os.fstat(file.fileno()).st_size
        except (OSError, RecordingError):
            continue
        bridge_header = as_dict(header.fields.get("bridge"))
        generation, first_number, start_ms = (
            value if isinstance(value := bridge_header.get(key), int) else -1 for key in HEADER_KEYS
        )
        if min(generation, first_number, start_ms) >= 0:
            log_files.append(_LogFile(path, generation, first_number, start_ms, size_bytes))
    return log_files
