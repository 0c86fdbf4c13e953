"""A session's log as casts: one file a life of its host, more where that grows large; the first
backend of the port.

`shim show`, `shim export` and `shim cast verify` read the files like any recording. They are not
cleaned: who comes back sees what who stayed saw. `<generation>-<first number>.cast`; the number of
a line is not written, it is counted.
"""

import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import anyio
import orjson

from shim import __version__
from shim.core.bridge.conversation import taken
from shim.core.bridge.log import NOTED, SAID, Entry, Record
from shim.core.cast.encoder import Encoder
from shim.core.cast.records import SUFFIX, CastError, read_header, read_line
from shim.state.files import create, open_regular, remove, write_all

# of one file: what a reader may have to pass over, and what is dropped at once
FILE_BYTES = 64 * 1024 * 1024
# of all files of a session; the oldest are dropped, which is told as a gap
LOG_BYTES = 1024 * 1024 * 1024
READ_BYTES = 1024 * 1024  # of lines that are read at once: what a client's queue takes
MARK_LINES = 64  # from one known place in a file to the next
RECENT_LINES = 10_000  # of former lives, among which a message that is said again is looked for
# types of lines
UNNUMBERED = ("control_request", "control_response", "control_cancel_request", "keep_alive")
MARKS = (b'"control_', b'"keep_alive"')  # one of them stands in each such line
# what readers go by
ARGV = ("-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose")
PLACES = ("generation", "first", "at")  # what the header says of a file


class CastLog:
    """The log of one session in `folder`, written by one life of its host; `facts` are of each
    file's header.

    Numbers go on behind the last whole line that is there. OSError where the folder cannot be read
    or written.
    """

    def __init__(
        self,
        folder: str,
        generation: int,
        facts: Mapping[str, Any] = {},
        *,
        file_bytes: int = FILE_BYTES,
        log_bytes: int = LOG_BYTES,
    ) -> None:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self.generation = generation
        self._folder = folder
        self._facts = facts
        self._file_bytes = file_bytes
        self._log_bytes = log_bytes
        self._files = _files(folder)
        self._last = self._files[-1].end() if self._files else 0
        self._encoder = Encoder()
        self._descriptor = -1
        self._began = 0  # milliseconds since 1970, of the file that is written
        self._broken: OSError | None = None
        self._news = anyio.Event()

    @property
    def first(self) -> int:
        """The number of the oldest line that is kept."""
        return self._files[0].first if self._files else self._last + 1

    @property
    def last(self) -> int:
        """The number of the last line."""
        return self._last

    # -- writing -----------------------------------------------------------------------------------

    def append(self, records: Sequence[Record]) -> None:
        """Write them; OSError, and no trace of them, where that cannot be. Then nothing more is
        taken.
        """
        if self._broken is not None:
            raise self._broken
        try:
            for start in range(0, len(records), MARK_LINES):
                self._append(records[start : start + MARK_LINES])
        except OSError as error:
            self._broken = error
            raise
        self._news.set()
        self._news = anyio.Event()

    def _append(self, records: Sequence[Record]) -> None:
        if self._descriptor < 0 or self._files[-1].size >= self._file_bytes:
            self._next_file(records[0].at)
        file, data = self._files[-1], []
        for record in records:
            at = max(0, record.at - self._began) / 1000
            if record.letter == NOTED:
                data.append(self._encoder.fact(NOTED, at, orjson.loads(record.data)))
            else:
                data.append(self._encoder.stream(record.letter, at, record.data + b"\n"))
        whole = b"".join(data)
        try:
            write_all(self._descriptor, whole)
        except OSError:
            os.ftruncate(self._descriptor, file.size)
            raise
        file.size += len(whole)
        self._last = max(self._last, *(record.number for record in records))

    def _next_file(self, at: int) -> None:
        self.close()
        self._encoder, self._began = Encoder(), at
        first = self._last + 1
        path = os.path.join(self._folder, f"{self.generation:06}-{first:010}{SUFFIX}")
        seconds = at / 1000
        header = {
            "started": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
            + f".{at % 1000:03d}Z",
            "shim": __version__,
            "argv": ARGV,
            "env": {},
            "redact": "none",
            "platform": sys.platform,
            "dialect": "claude",
            **self._facts,
            "bridge": {"generation": self.generation, "first": first, "at": at},
        }
        head = self._encoder.header(header)
        remove(path)  # of a life that said nothing
        self._descriptor = create(path)
        write_all(self._descriptor, head)
        self._files.append(_File(path, self.generation, first, at, len(head)))
        self._drop()

    def _drop(self) -> None:
        """Drop the oldest files beyond the limit, never the one that is written."""
        while (
            len(self._files) > 1
            and sum(file.size for file in self._files) > self._log_bytes - self._file_bytes
        ):
            remove(self._files.pop(0).path)

    def close(self) -> None:
        """The last line of the file; what cannot be written is a file without it, as after SIGKILL."""
        if self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        try:
            if self._broken is None:
                write_all(descriptor, self._encoder.end(0.0))
        except OSError:
            pass
        finally:
            os.close(descriptor)

    # -- reading -----------------------------------------------------------------------------------

    def read(self, after: int, most: int, size: int = READ_BYTES) -> Sequence[Entry]:
        """The next lines: at most so many, and about so many bytes."""
        found, had = list[Entry](), 0
        for place, file in enumerate(self._files):
            following = (
                self._files[place + 1].first if place + 1 < len(self._files) else self._last + 1
            )
            if following - 1 <= after:
                continue
            for entry in file.entries(after):
                if entry.number > self._last or entry.number >= following:
                    break
                found.append(entry)
                had += len(entry.line)
                if len(found) >= most or had >= size:
                    return found
        return found

    def taken(self) -> Iterator[str]:
        """The ids of the last messages that the session has taken: a client may say one again."""
        after = max(self.first - 1, self._last - RECENT_LINES)
        while entries := self.read(after, RECENT_LINES):
            yield from taken(entries)
            after = entries[-1].number

    async def follow(self, after: int) -> AsyncIterator[Sequence[Entry]]:
        """The lines behind a number, then those that come."""
        while True:
            news = self._news
            if entries := self.read(after, MARK_LINES):
                yield entries
                after = entries[-1].number
            else:
                await news.wait()


class _File:
    """One file: its life, the number of its first line, when it began, its bytes, and places in it."""

    def __init__(self, path: str, generation: int, first: int, at: int, size: int) -> None:
        self.path = path
        self.generation = generation
        self.first = first
        self.size = size
        self._at = at
        # number of the next line, offset, seconds
        self._marks: list[tuple[int, int, float]] = [(first, 0, 0.0)]

    def entries(self, after: int) -> Iterator[Entry]:
        """The whole lines behind a number."""
        number, offset, at = next(
            mark for mark in reversed(self._marks) if mark[0] <= max(after + 1, self.first)
        )
        pieces = list[bytes]()
        try:
            descriptor = open_regular(self.path, follow=False)
        except OSError:
            return  # dropped or removed meanwhile
        with open(descriptor, "rb") as file:
            file.seek(offset)
            for raw in file:
                offset += len(raw)
                if not raw.endswith(b"\n"):
                    return  # cut off by a kill
                line = read_line(raw[:-1])
                at += line.delay
                if line.letter != SAID:
                    continue
                pieces.append(line.data)
                if not line.whole:
                    continue
                whole = b"".join(pieces) if len(pieces) > 1 else line.data
                pieces.clear()
                if not numbered(whole):
                    continue
                if number > after:
                    yield Entry(number, self.generation, self._at + round(at * 1000), whole)
                number += 1
                if number - self._marks[-1][0] >= MARK_LINES:
                    self._marks.append((number, offset, at))

    def end(self) -> int:
        """The number of the last whole line; one less than `first` if there is none."""
        last = self.first - 1
        for entry in self.entries(last):
            last = entry.number
        return last


def numbered(line: bytes) -> bool:
    """Whether a line that was said has a number: it is none of the control protocol."""
    if not any(mark in line for mark in MARKS):
        return True
    try:
        said = orjson.loads(line)
    except orjson.JSONDecodeError:
        return True
    return not isinstance(said, dict) or said.get("type") not in UNNUMBERED


def _files(folder: str) -> list[_File]:
    """The files of former lives, in their order. What is no log of ours is passed over."""
    found = list[_File]()
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if not name.endswith(SUFFIX):
            continue
        try:
            with open(open_regular(path, follow=False), "rb") as file:
                header, size = (
                    read_header(file.readline().rstrip(b"\n")),
                    os.fstat(file.fileno()).st_size,
                )
        except (OSError, CastError):
            continue
        known = header.facts.get("bridge")
        known = known if isinstance(known, dict) else {}
        generation, first, at = (
            fact if isinstance(fact := known.get(key), int) else -1 for key in PLACES
        )
        if min(generation, first, at) >= 0:
            found.append(_File(path, generation, first, at, size))
    return found
