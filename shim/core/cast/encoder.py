"""Writes the lines of a cast: records, and the checkpoints between them."""

import binascii
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from shim.core.cast.records import VERSION
from shim.core.reading.json_text import dump

PIECE_BYTES = 1024 * 1024  # of one record; a longer line is several records
CHECKPOINT_LINES = 64  # from one checkpoint to the next
DIGITS = 4  # of a time in seconds
# needs no escape in JSON, and is rare; a text with it is encoded line by line
BETWEEN, _BETWEEN = "\x7f", b"\x7f"
# Hashed at once. For more bytes `hashlib` releases the interpreter, and the recording thread would
# wait for it again after each block.
HASH_BYTES = 2047

# Takes a stream's letter, a line without its newline or a piece of one, and whether the newline
# follows.
Clean = Callable[[str, bytes, bool], bytes]


class Encoder:
    """Makes the lines of a cast. `at` is in seconds since the recording began, and never goes back.

    Bytes of a stream are held until their line is whole, or PIECE_BYTES long. `clean` is called
    once for each record of a stream, in order; what it returns is recorded.
    """

    def __init__(self, clean: Clean | None = None) -> None:
        self._clean = clean
        self._chain = Chain()
        self._said = 0.0
        self._rests: dict[str, list[bytes]] = {}

    def header(self, facts: Mapping[str, Any]) -> bytes:
        """The first line; `facts` are its keys but `shimcast`."""
        return self._chain.add([dump({"shimcast": VERSION, **facts}) + b"\n"])

    def stream(self, letter: str, at: float, chunk: bytes) -> bytes:
        """The records for bytes of a stream: whole lines, and pieces of a long one.

        No bytes: the stream is at its end, and the unfinished line is recorded.
        """
        if not chunk:
            return self.flush(letter, at)
        parts = self._rests.setdefault(letter, [])
        end = chunk.rfind(b"\n") + 1
        said = b""
        if end:
            whole = chunk if end == len(chunk) else chunk[:end]
            if parts:
                whole = b"".join([*parts, whole])
                parts.clear()
            said = self._whole(letter, at, whole)
        if end < len(chunk):
            parts.append(chunk[end:] if end else chunk)
            # a child may write byte by byte
            while len(parts) > 1 and len(parts[-1]) >= len(parts[-2]):
                parts[-2:] = [parts[-2] + parts[-1]]
        if parts and sum(map(len, parts)) >= PIECE_BYTES:
            rest, records = b"".join(parts), []
            while len(rest) >= PIECE_BYTES:
                size = _character(rest, PIECE_BYTES)
                records.append(self._piece(letter, at, rest[:size], "-"))
                rest = rest[size:]
            parts[:] = [rest] if rest else []
            said += self._chain.add(records)
        return said

    def flush(self, letter: str, at: float) -> bytes:
        rest = b"".join(self._rests.pop(letter, ()))
        return self._chain.add([self._piece(letter, at, rest, "-")]) if rest else b""

    def fact(self, letter: str, at: float, fact: Mapping[str, Any]) -> bytes:
        """The record of a child's start, a note, or a child's end with its unfinished lines before
        it.
        """
        rests = b"".join(self.flush(stream, at) for stream in "Ioe") if letter == "x" else b""
        return rests + self._chain.add(
            [b'[%s,"%s",%s]\n' % (self._delay(at), letter.encode(), dump(fact))]
        )

    def rests(self, at: float) -> bytes:
        """The records of all unfinished lines."""
        return b"".join([self.flush(letter, at) for letter in list(self._rests)])

    def end(self, at: float) -> bytes:
        """The records of all unfinished lines, and the last checkpoint."""
        return self.rests(at) + self._chain.end()

    def _whole(self, letter: str, at: float, whole: bytes) -> bytes:
        lines = (
            whole[:-1].split(b"\n") if self._clean is not None or len(whole) > PIECE_BYTES else []
        )
        if lines and max(map(len, lines)) > PIECE_BYTES:
            return self._chain.add(
                [record for line in lines for record in self._cut(letter, at, line)]
            )
        if self._clean is not None:
            clean = [self._clean(letter, line, True) for line in lines]
            if any(one is not other for one, other in zip(clean, lines, strict=True)):
                whole = b"\n".join(clean) + b"\n"
        try:
            text = whole.decode()
        except UnicodeDecodeError:
            text = BETWEEN
        return (
            self._one_by_one(letter, at, whole)
            if BETWEEN in text
            else self._at_once(letter, at, text)
        )

    def _at_once(self, letter: str, at: float, text: str) -> bytes:
        """The records of valid text: dumped as one string, with BETWEEN for the ends of lines."""
        records = orjson.dumps(text.replace("\n", BETWEEN))[1:-2].split(_BETWEEN)
        between = b'"]\n[0,"%s","' % letter.encode()
        said, done, begin = list[bytes](), 0, b"[%s" % self._delay(at)
        while done < len(records):
            part = records[done : done + self._chain.room]
            done += len(part)
            self._chain.block(
                b'%s,"%s","%s"]\n' % (begin, letter.encode(), between.join(part)), len(part), said
            )
            begin = b"[0"
        return b"".join(said)

    def _one_by_one(self, letter: str, at: float, whole: bytes) -> bytes:
        lines = whole[:-1].split(b"\n")
        return self._chain.add(
            [b"[%s,%s]\n" % (self._delay(at), coded(letter, line)) for line in lines]
        )

    def _cut(self, letter: str, at: float, line: bytes) -> list[bytes]:
        records = []
        while len(line) > PIECE_BYTES:
            size = _character(line, PIECE_BYTES)
            records.append(self._piece(letter, at, line[:size], "-"))
            line = line[size:]
        return [*records, self._piece(letter, at, line, "")]

    def _piece(self, letter: str, at: float, data: bytes, mark: str) -> bytes:
        if self._clean is not None:
            data = self._clean(letter, data, not mark)
        return b"[%s,%s]\n" % (self._delay(at), coded(letter, data, mark))

    def _delay(self, at: float) -> bytes:
        """The seconds since the last record; the rounding is carried to the next one."""
        delay = round(at - self._said, DIGITS)
        if delay <= 0:
            return b"0"
        self._said += delay
        return b"%.4f" % delay


def coded(letter: str, data: bytes, mark: str = "") -> bytes:
    """The code and the data of a record; `mark` is `-` if no newline follows."""
    try:
        text = orjson.dumps(data.decode())
    except UnicodeDecodeError:
        mark, text = mark + "b", b'"%s"' % binascii.b2a_base64(data, newline=False)
    return b'"%s",%s' % ((letter + mark).encode(), text)


class Chain:
    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._proved = 0  # lines since the last checkpoint

    def add(self, lines: list[bytes]) -> bytes:
        said, at = list[bytes](), 0
        while at < len(lines):
            part = lines[at : at + self.room]
            at += len(part)
            self.block(b"".join(part), len(part), said)
        return b"".join(said)

    @property
    def room(self) -> int:
        """How many lines fit in before the next checkpoint."""
        return CHECKPOINT_LINES - self._proved

    def block(self, block: bytes, count: int, said: list[bytes]) -> None:
        """Add `count` lines, at most `room`, to `said`, and a checkpoint if one is due."""
        said.append(block)
        self._proved += count
        if len(block) < HASH_BYTES:
            self._hash.update(block)
        else:
            view = memoryview(block)
            for start in range(0, len(block), HASH_BYTES):
                self._hash.update(view[start : start + HASH_BYTES])
        if self._proved == CHECKPOINT_LINES:
            checkpoint = b'["h","%s"]\n' % self._hash.hexdigest().encode()
            self._hash.update(checkpoint)
            said.append(checkpoint)
            self._proved = 0

    def end(self) -> bytes:
        """The last line."""
        return b'["h","%s","end"]\n' % self._hash.hexdigest().encode()


def _character(data: bytes, size: int) -> int:
    """Where to cut at most `size` bytes so that no UTF-8 character is split."""
    if size >= len(data):  # the next bytes are not known yet
        return size
    for back in range(4):
        if data[size - back] & 0xC0 != 0x80:
            return size - back
    return size
