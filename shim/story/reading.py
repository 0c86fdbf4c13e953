"""Casts in files: read in pieces, and told as a story from what the frontend saw, or from what the child said."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson

from shim.conversation.drivers.open_translation import open_translation
from shim.core.cast.records import STREAMS, CastError, Header, Reader, Record
from shim.core.dialects import dialect_called
from shim.core.errors import ShimError
from shim.core.reading.head_and_tail import Tail
from shim.core.reading.lines import LineSplitter
from shim.core.turn.outcome import Exit
from shim.core.vendor.translation import Translation
from shim.recording.choice import invocation_of
from shim.story.story import Change, Story
from shim.vendors import find

CHUNK_BYTES = 256 * 1024
PROMPT_BYTES = 1024 * 1024  # of a prompt that came on stdin as text; nobody reads more of it
LINE_BYTES = 16 * 1024 * 1024  # of a line that came in pieces: 16 times what the drop-in writes to an SDK
TOO_LONG = "could not be read, being too long"
_SIGNAL = re.compile(r"SIG[A-Z0-9]{1,16}\Z|signal \d{1,4}\Z")  # what a recorder calls one
RETOLD_BYTES = 1_000_000  # of a line of what is translated anew: what an SDK would have got


def never() -> bool:
    """A file that is at its end does not grow any more."""
    return False


class Cast:
    """A cast in a file, read once from its beginning. CastError when it cannot be read or is none.

    `more` is asked at the end of the file whether to look again: it waits for a recording that goes on.
    """

    def __init__(self, path: str, more: Callable[[], bool] = never) -> None:
        self.path = path
        self.reader = Reader()
        self._more = more
        try:
            self.file = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise CastError(f"{path} cannot be read: {error.strerror}") from None
        try:
            self._begun = self._beginning()
        except BaseException as error:
            self.close()
            if isinstance(error, CastError) and not str(error).startswith(path):
                raise CastError(f"{path}: {error}", error.hint) from None
            raise
        assert self.reader.header is not None
        self.header: Header = self.reader.header

    @property
    def whole(self) -> bool:
        """Whether the last checkpoint was there; False of a recording that was cut off."""
        return self.reader.ended

    def _beginning(self) -> list[Record]:
        records: list[Record] = []
        while self.reader.header is None:
            if chunk := self._read():
                records += self.reader.feed(chunk)
            else:
                self.reader.close()
        return records

    def _read(self) -> bytes:
        """What comes next; nothing at the end."""
        try:
            while not (chunk := os.read(self.file, CHUNK_BYTES)):
                if self.reader.ended or not self._more():
                    break
        except OSError as error:
            raise CastError(f"{self.path} cannot be read: {error.strerror}") from None
        return chunk

    def records(self) -> Iterator[Record]:
        """Its records, to the last whole line."""
        try:
            yield from self._begun
            self._begun = []
            while chunk := self._read():
                yield from self.reader.feed(chunk)
            self.reader.close()
        finally:
            self.close()

    def close(self) -> None:
        """Nothing more is read of it."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def header_of(path: str) -> Header:
    """The header of a cast alone. CastError when it cannot be read or is none."""
    cast = Cast(path)
    cast.close()
    return cast.header


class Teller:
    """Makes the changes of a story from the records of a cast.

    What the frontend saw is told where that was Claude's stream; else the child's output is translated anew, and where
    nobody here can read that, what the frontend saw is told as text.
    """

    def __init__(self, header: Header) -> None:
        self.story = Story()
        self._header = header
        self._invocation = invocation_of(header)
        stream = self._invocation.output_format == "stream-json" and header.dialect == "claude"
        self._told = "O" if stream else "o"
        self._messages = self._invocation.input_format == "stream-json"
        self._asked = self._messages
        self._stdin = bytearray()
        self._heard = 0.0
        self._splitters = {letter: LineSplitter(LINE_BYTES) for letter in STREAMS}
        self._translation: Translation | None = None
        self._readable = False  # a child was started whose output can be translated
        self._stderr = Tail()
        self._at = 0.0

    @property
    def skipped(self) -> int:
        """How many lines were too long to be read."""
        return sum(splitter.skipped for splitter in self._splitters.values())

    def feed(self, record: Record) -> list[Change]:
        """The changes that a record makes."""
        self._at = at = record.at
        letter = record.letter
        if letter == "i":
            return self._sent(record)
        if letter == "e":
            self._stderr.add(record.data)
            return []
        changes = [] if self._asked else self._ask()
        if letter == "n":
            changes += self.story.note(at, record.fact)
        elif letter == self._told == "O":
            changes += self._events(at, self._line(record))
        elif self._told == "o" and letter in "osx":
            changes += self._events(at, self._translated(record))
        elif letter == "O" and not self._readable:
            changes += self._plain(record)
        return changes

    def close(self) -> list[Change]:
        """The cast is at its end."""
        changes = [] if self._asked else self._ask()
        for splitter in self._splitters.values():
            splitter.close()
        if self._translation is not None and not self._translation.finished:
            changes += self._events(self._at, self._translation.close(None, self._stderr.text()))
        return changes + self.story.close(self._at)

    def _ask(self) -> list[Change]:
        """The prompt of the command line and of stdin, which was whole when something followed."""
        self._asked = True
        texts = [self._invocation.prompt or "", self._stdin.decode("utf-8", "replace").strip()]
        text = "\n".join(filter(None, texts))
        return self.story.prompt(self._heard, text) if text else []

    def _sent(self, record: Record) -> list[Change]:
        if not self._messages:
            self._heard = record.at
            self._stdin += record.data[: max(PROMPT_BYTES - len(self._stdin), 0)]
            return []
        return [change for event in _objects(self._line(record)) for change in self.story.sent(record.at, event)]

    def _events(self, at: float, lines: bytes) -> list[Change]:
        return [change for event in _objects(lines) for change in self.story.event(at, event)]

    def _plain(self, record: Record) -> list[Change]:
        """The frontend's output as what it is: the result of the `json` format, flat lines, or a text."""
        if dialect_called(self._header.dialect).flat:
            return [change for event in _objects(self._line(record)) for change in self._flat(record.at, event)]
        if self._invocation.output_format == "json":
            return self._events(record.at, self._line(record))
        delta = {"type": "content_block_delta", "delta": {"text": record.data.decode("utf-8", "replace")}}
        return self.story.event(record.at, {"type": "stream_event", "event": delta})

    def _flat(self, at: float, event: Mapping[str, Any]) -> list[Change]:
        """A line of Yume's: a session begins and ends there as it does in Claude's stream."""
        if event.get("type") != "text":
            return self.story.event(at, event)
        delta = {"type": "content_block_delta", "delta": {"text": event.get("content")}}
        return self.story.event(at, {"type": "stream_event", "event": delta})

    def _line(self, record: Record) -> bytes:
        """The whole line that a record completes."""
        return b"\n".join(self._splitters[record.letter].feed(record.data))

    def _translated(self, record: Record) -> bytes:
        if record.letter == "s":
            self._translation = self._opened(record.fact.get("vendor"))
            self._readable = self._readable or self._translation is not None
            self._stderr = Tail()
            return b""
        translation = self._translation
        if translation is None:
            return b""
        if record.letter == "x":
            return b"" if translation.finished else translation.close(child_exit(record.fact), self._stderr.text())
        if translation.finished and self._messages:
            translation.begin()
        said = translation.feed(record.data)
        if translation.turn.settled and not translation.finished and self._messages:
            said += translation.finish()
        return said

    def _opened(self, other: object) -> Translation | None:
        """A translation of the next child's output; of a later one, in the same conversation.

        `other` is its vendor where that is not the recording's: of a list another one may have answered.
        """
        vendor = other if isinstance(other, str) else self._header.vendor
        try:
            opened = open_translation(vendor, partial=True, terminator="none", stable=True, limit=RETOLD_BYTES)
            if (last := self._translation) is not None:
                if vendor != last.turn.terms.vendor:
                    last.turn.conversation.vendor_session = None  # it has a session of its own
                return Translation(find(vendor).translator, opened.turn.terms, last.pen, last.turn)
            return opened
        except ShimError:
            return None  # a vendor of somebody else's: what it said cannot be read here


def _objects(lines: bytes) -> Iterator[Mapping[str, Any]]:
    for line in lines.split(b"\n"):
        if not line.startswith(b"{"):
            continue
        try:
            event = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(event, dict):
            yield event


def child_exit(fact: Mapping[str, Any]) -> Exit | None:
    """How a child ended, from the fact of its `x` record; None where the recording does not know."""
    code, signal = fact.get("code"), fact.get("signal")
    if isinstance(signal, str) and _SIGNAL.match(signal):
        return Exit(signal=signal)
    return Exit(code=code) if signal is None and code.__class__ is int else None
