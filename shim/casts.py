"""Casts in files: read in pieces, and told as a story from what the frontend saw, or from what the child said."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from shim.argv import Invocation, parse
from shim.cast import CastError, Header, Reader, Record
from shim.ending import Exit
from shim.errors import FrontendError, ShimError
from shim.story import Change, Story
from shim.tail import Tail
from shim.translate import open_translation
from shim.translation import Translation

CHUNK_BYTES = 256 * 1024
PROMPT_BYTES = 1024 * 1024  # of a prompt that came on stdin as text; nobody reads more of it


class Cast:
    """A cast in a file, read once from its beginning. CastError when it cannot be read or is none."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.reader = Reader()
        try:
            self._file = os.open(path, os.O_RDONLY)
            self._begun = self._beginning()
        except OSError as error:
            raise CastError(f"{path} cannot be read: {error.strerror}") from None
        assert self.reader.header is not None
        self.header: Header = self.reader.header

    def _beginning(self) -> list[Record]:
        records: list[Record] = []
        while self.reader.header is None:
            chunk = os.read(self._file, CHUNK_BYTES)
            records += self.reader.feed(chunk)
            if not chunk:
                self.reader.close()
        return records

    def records(self) -> Iterator[Record]:
        """Its records, to the last whole line."""
        try:
            yield from self._begun
            self._begun = []
            while chunk := os.read(self._file, CHUNK_BYTES):
                yield from self.reader.feed(chunk)
            self.reader.close()
        except OSError as error:
            raise CastError(f"{self.path} cannot be read: {error.strerror}") from None
        finally:
            os.close(self._file)


def invocation_of(header: Header) -> Invocation:
    """How the frontend called the drop-in; an empty one where that was refused."""
    try:
        return parse(header.argv)
    except FrontendError:
        return Invocation()


class Teller:
    """Makes the changes of a story from the records of a cast.

    What the frontend saw is told where that was Claude's stream; else the child's output is translated anew.
    """

    def __init__(self, header: Header) -> None:
        self.story = Story()
        self._header = header
        self._invocation = invocation_of(header)
        stream = self._invocation.output_format == "stream-json" and header.dialect == "claude"
        self._told = "O" if stream else "o"
        self._messages = self._invocation.input_format == "stream-json"
        self._asked = False
        self._stdin: list[bytes] = []
        self._stdin_bytes = 0
        self._rests: dict[str, bytes] = {}
        self._translation: Translation | None = None
        self._stderr = Tail()
        self._at = 0.0

    def feed(self, record: Record) -> list[Change]:
        """The changes that a record makes."""
        self._at = record.at
        letter = record.letter
        if letter == "i":
            return self._sent(record)
        if letter == "n":
            return self.story.note(record.at, record.fact)
        if letter == "e":
            self._stderr.add(record.data)
            return []
        changes = [] if self._asked or self._messages else self._ask(record.at)
        if letter == self._told == "O":
            changes += self._events(record.at, self._line(record))
        elif self._told == "o" and letter in "osx":
            changes += self._events(record.at, self._translated(record))
        return changes

    def close(self) -> list[Change]:
        """The cast is at its end."""
        changes = [] if self._asked or self._messages else self._ask(self._at)
        if self._translation is not None:
            changes += self._events(self._at, self._translation.close(None, self._stderr.text()))
        return changes + self.story.close(self._at)

    def _ask(self, at: float) -> list[Change]:
        """The prompt of the command line and of stdin."""
        self._asked = True
        texts = [self._invocation.prompt or "", b"".join(self._stdin).decode("utf-8", "replace").strip()]
        return self.story.prompt(at, "\n".join(filter(None, texts)))

    def _sent(self, record: Record) -> list[Change]:
        if not self._messages:
            if self._stdin_bytes < PROMPT_BYTES:
                self._stdin.append(record.data)
                self._stdin_bytes += len(record.data)
            return []
        return [change for event in _objects(self._line(record)) for change in self.story.sent(record.at, event)]

    def _events(self, at: float, lines: bytes) -> list[Change]:
        return [change for event in _objects(lines) for change in self.story.event(at, event)]

    def _line(self, record: Record) -> bytes:
        """The whole line that a record completes."""
        rest = self._rests.pop(record.letter, b"") + record.data
        if rest.endswith(b"\n"):
            return rest
        self._rests[record.letter] = rest
        return b""

    def _translated(self, record: Record) -> bytes:
        if record.letter == "s":
            self._translation = self._opened()
            self._stderr = Tail()
            return b""
        translation = self._translation
        if translation is None:
            return b""
        if record.letter == "x":
            self._translation = None
            return translation.close(_exit(record.fact), self._stderr.text())
        said = translation.feed(record.data)
        if translation.turn.settled and not translation.finished and self._messages:
            said += translation.finish()
        return said

    def _opened(self) -> Translation | None:
        try:
            return open_translation(self._header.vendor, terminator="none")
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


def _exit(fact: Mapping[str, Any]) -> Exit | None:
    """How a child ended; None where nobody knows."""
    code, signal = fact.get("code"), fact.get("signal")
    if isinstance(signal, str):
        return Exit(signal=signal)
    return Exit(code=code) if isinstance(code, int) else None
