"""Reads casts from files, and tells them as a story: from the frontend's output, or from the
child's.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson

from shim.adapters import get_adapter
from shim.conversation.drivers.open_translation import open_translation
from shim.core.adapter.translation import StreamTranslation
from shim.core.cast.records import STREAMS, CastError, CastHeader, CastReader, CastRecord
from shim.core.cast.words import NOTE_RESULT, NOTE_SIGNAL
from shim.core.dialects import resolve_dialect
from shim.core.errors import ShimError
from shim.core.reading.head_and_tail import HeadTailBuffer
from shim.core.reading.lines import LineSplitter
from shim.core.turn.outcome import ChildExit
from shim.recording.playable_run import parse_invocation
from shim.state.files import open_regular
from shim.story.story import Change, Story

CHUNK_BYTES = 256 * 1024
PROMPT_BYTES = 1024 * 1024  # of a prompt on stdin; nobody reads more
LINE_BYTES = 16 * 1024 * 1024  # of a line in pieces: 16 times the drop-in's longest line for an SDK
TOO_LONG = "could not be read, being too long"
_SIGNAL = re.compile(r"SIG[A-Z0-9]{1,16}\Z|signal \d{1,4}\Z")  # a name of a signal as recorded
CAUGHT = {"kind": "caught", "signal": "SIGINT"}  # the note of an interrupt
RETOLD_BYTES = 1_000_000  # of a line that is translated anew, as for an SDK


class Cast:
    """A cast in a file, read once. CastError if it cannot be read or is no cast.

    `more` is called at the end of the file, and says whether to read again: it waits for a
    recording that still runs.
    """

    def __init__(self, path: str, more: Callable[[], bool] | None = None) -> None:
        self.path = path
        self.reader = CastReader()
        self._more = more
        try:
            self.file = open_regular(path)
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
        self.header: CastHeader = self.reader.header

    @property
    def whole(self) -> bool:
        """Whether the last checkpoint was read; False for a recording that was cut off."""
        return self.reader.has_end

    def _beginning(self) -> list[CastRecord]:
        records: list[CastRecord] = []
        while self.reader.header is None:
            if chunk := self._read():
                records += self.reader.feed(chunk)
            else:
                self.reader.close()
        return records

    def _read(self) -> bytes:
        """The next bytes; b"" at the end."""
        try:
            while not (chunk := os.read(self.file, CHUNK_BYTES)):
                if self.reader.has_end or self._more is None or not self._more():
                    break
        except OSError as error:
            raise CastError(f"{self.path} cannot be read: {error.strerror}") from None
        return chunk

    def records(self) -> Iterator[CastRecord]:
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
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def header_of(path: str) -> CastHeader:
    """The header of a cast. CastError if it cannot be read or is no cast."""
    cast = Cast(path)
    cast.close()
    return cast.header


class Teller:
    """Makes the changes of a story from the records of a cast.

    The source is the frontend's output if that is Claude's stream, else the child's output, which
    is translated anew. If no vendor here can translate it, the frontend's output is told as text.
    """

    def __init__(self, header: CastHeader) -> None:
        self.story = Story()
        self._header = header
        self._invocation = parse_invocation(header)
        stream = (
            self._invocation.streams.output_format == "stream-json" and header.dialect == "claude"
        )
        self._told = "O" if stream else "o"
        self._messages = self._invocation.streams.input_format == "stream-json"
        self._asked = self._messages
        self._stdin = bytearray()
        self._heard = 0.0
        self._splitters = {letter: LineSplitter(LINE_BYTES) for letter in STREAMS}
        self._translation: StreamTranslation | None = None
        self._readable = False  # the output of some child can be translated
        self._stderr = HeadTailBuffer()
        self._at = 0.0
        self._signalled: object = None  # the child that we sent a signal
        # retold, and waits for the note of it
        self._result: tuple[float, Mapping[str, Any]] | None = None
        self._early = False  # a result was told without its note

    @property
    def skipped(self) -> int:
        """How many lines were too long to be read."""
        return sum(splitter.skipped_lines for splitter in self._splitters.values())

    def tell(self, cast: Cast) -> Iterator[tuple[float, Change]]:
        """All changes of a cast, each with its time in seconds since the beginning."""
        for record in cast.records():
            yield from ((record.time_s, change) for change in self.feed(record))
        yield from ((self._at, change) for change in self.close())

    def feed(self, record: CastRecord) -> list[Change]:
        self._at = at = record.time_s
        letter = record.code
        if letter == "i":
            return self._decided() + self._sent(record)
        if letter == "e":
            self._stderr.add(record.data)
            return []
        changes = [] if self._asked else self._ask()
        if letter == "n":
            changes += self._note(at, record.fields)
        elif letter == self._told == "O":
            changes += self._events(at, self._line(record))
        elif self._told == "o" and letter in "osx":
            changes += self._retold(at, record)
        elif letter == "O" and not self._readable:
            changes += self._plain(record)
        return changes

    def close(self) -> list[Change]:
        changes = [] if self._asked else self._ask()
        for splitter in self._splitters.values():
            splitter.close()
        if self._translation is not None and not self._translation.is_finished:
            changes += self._held(self._at, self._translation.close(None, self._stderr.to_text()))
        return changes + self._decided() + self.story.close(self._at)

    def _ask(self) -> list[Change]:
        """The prompt, from the command line and from stdin; stdin is whole when other records
        follow.
        """
        self._asked = True
        texts = [self._invocation.prompt or "", self._stdin.decode("utf-8", "replace").strip()]
        text = "\n".join(filter(None, texts))
        return self.story.prompt(self._heard, text) if text else []

    def _sent(self, record: CastRecord) -> list[Change]:
        if not self._messages:
            self._heard = record.time_s
            self._stdin += record.data[: max(PROMPT_BYTES - len(self._stdin), 0)]
            return []
        return [
            change
            for event in objects(self._line(record))
            for change in self.story.sent(record.time_s, event)
        ]

    def _events(self, at: float, lines: bytes) -> list[Change]:
        return [change for event in objects(lines) for change in self.story.event(at, event)]

    def _note(self, at: float, fact: Mapping[str, Any]) -> list[Change]:
        """A note of the recorder; the one about a result is no step of its own."""
        kind = fact.get("kind")
        if kind == NOTE_RESULT:
            return self._noted(fact.get("result"))
        if kind == NOTE_SIGNAL:
            self._signalled = fact.get("child")
        elif fact == CAUGHT and self._translation is not None and not self._translation.is_finished:
            self._translation.interrupt()
        return self.story.note(at, fact)

    def _retold(self, at: float, record: CastRecord) -> list[Change]:
        """What a record of a child means. Its result waits for the note of what was decided."""
        changes = self._decided() if record.code != "x" else []
        return changes + self._held(at, self._translated(record))

    def _held(self, at: float, lines: bytes) -> list[Change]:
        changes = list[Change]()
        for event in objects(lines):
            if event.get("type") == "result":
                self._result = at, event
            else:
                changes += self.story.event(at, event)
        return changes

    def _noted(self, said: object) -> list[Change]:
        """The note of a result: it beats what was retold. Where nothing was, it says what a text
        does not.
        """
        facts = said if isinstance(said, Mapping) else {}
        if self._result is not None:
            (at, event), self._result = self._result, None
            return self.story.event(at, {**event, **facts, "type": "result"})
        early, self._early = self._early, False
        bare = (
            self._told == "o"
            and self._invocation.streams.output_format == "text"
            and not self._readable
        )
        return self.story.event(self._at, {**facts, "type": "result"}) if bare and not early else []

    def _decided(self) -> list[Change]:
        """The result that waits, now that no note of it has come: earlier versions recorded none."""
        if self._result is None:
            return []
        (at, event), self._result, self._early = self._result, None, True
        return self.story.event(at, event)

    def _plain(self, record: CastRecord) -> list[Change]:
        """The frontend's output in another format: one JSON result, Yume's lines, or text."""
        if resolve_dialect(self._header.dialect).is_flat:
            return [
                change
                for event in objects(self._line(record))
                for change in self._flat(record.time_s, event)
            ]
        if self._invocation.streams.output_format == "json":
            return self._events(record.time_s, self._line(record))
        return self._text(record.time_s, record.data.decode("utf-8", "replace"))

    def _flat(self, at: float, event: Mapping[str, Any]) -> list[Change]:
        """A line of Yume's; a session begins and ends as in Claude's stream."""
        return (
            self._text(at, event.get("content"))
            if event.get("type") == "text"
            else self.story.event(at, event)
        )

    def _text(self, at: float, text: object) -> list[Change]:
        delta = {"type": "content_block_delta", "delta": {"text": text}}
        return self.story.event(at, {"type": "stream_event", "event": delta})

    def _line(self, record: CastRecord) -> bytes:
        """The whole line that a record completes."""
        return b"\n".join(self._splitters[record.code].feed(record.data))

    def _translated(self, record: CastRecord) -> bytes:
        if record.code == "s":
            self._translation = self._opened(record.fields.get("vendor"))
            self._readable = self._readable or self._translation is not None
            self._stderr = HeadTailBuffer()
            return b""
        translation = self._translation
        if translation is None:
            return b""
        if record.code == "x":
            ours = self._signalled is not None and self._signalled == record.fields.get("child")
            ended = None if ours else child_exit(record.fields)
            return (
                b"" if translation.is_finished else translation.close(ended, self._stderr.to_text())
            )
        if translation.is_finished and self._messages:
            translation.start_turn()
        said = translation.feed(record.data)
        if translation.turn.is_finalized and not translation.is_finished and self._messages:
            said += translation.finish()
        return said

    def _opened(self, other: object) -> StreamTranslation | None:
        """A translation of the next child's output, in the same conversation as the last one.

        `other` is the child's vendor if that is not the header's: in a fallback list a later vendor
        may answer.
        """
        vendor = other if isinstance(other, str) else self._header.vendor
        try:
            opened = open_translation(
                vendor, partial=True, terminator="none", stable=True, max_line_bytes=RETOLD_BYTES
            )
            if (last := self._translation) is not None:
                if vendor != last.turn.config.vendor.name:
                    # the other vendor has its own session
                    last.turn.conversation.vendor_session_id = None
                return StreamTranslation(
                    get_adapter(vendor).translator_class, opened.turn.config, last.writer, last.turn
                )
            return opened
        except ShimError:
            return None  # an unknown vendor


def objects(lines: bytes) -> Iterator[Mapping[str, Any]]:
    """The JSON objects among some lines. Other lines are skipped."""
    for line in lines.split(b"\n"):
        if not line.lstrip().startswith(b"{"):
            continue
        try:
            event = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(event, dict):
            yield event


def child_exit(fact: Mapping[str, Any]) -> ChildExit | None:
    """How a child ended, from the fact of its `x` record; None if that is not known."""
    code, signal = fact.get("code"), fact.get("signal")
    if isinstance(signal, str) and _SIGNAL.match(signal):
        return ChildExit(signal=signal)
    return ChildExit(code=code) if signal is None and code.__class__ is int else None
