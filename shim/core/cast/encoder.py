"""Writes the lines of a cast: records, and the checkpoints between them."""

import binascii
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from shim.core.cast.records import FORMAT_VERSION
from shim.core.reading.json_text import dump_json

MAX_RECORD_BYTES = 1024 * 1024  # of one record; a longer line is several records
CHECKPOINT_LINES = 64  # from one checkpoint to the next
DELAY_DECIMALS = 4  # of a time in seconds
# needs no escape in JSON, and is rare; a text with it is encoded line by line
LINE_SEPARATOR, _LINE_SEPARATOR_BYTES = "\x7f", b"\x7f"
# Hashed at once. For more bytes `hashlib` releases the interpreter, and the recording thread would
# wait for it again after each block.
HASH_BLOCK_BYTES = 2047

# Takes a stream's letter, a line without its newline or a piece of one, and whether the newline
# follows.
RedactFunction = Callable[[str, bytes, bool], bytes]


class CastEncoder:
    """Makes the lines of a cast. `at` is in seconds since the recording began, and never goes back.

    Bytes of a stream are held until their line is whole, or PIECE_BYTES long. `clean` is called
    once for each record of a stream, in order; what it returns is recorded.
    """

    def __init__(self, clean: RedactFunction | None = None) -> None:
        self._redact = clean
        self._hash_chain = HashChain()
        self._encoded_time_s = 0.0
        self._unfinished_lines: dict[str, list[bytes]] = {}

    def encode_header(self, facts: Mapping[str, Any]) -> bytes:
        """The first line; `facts` are its keys but `shimcast`."""
        return self._hash_chain.add_lines(
            [dump_json({"shimcast": FORMAT_VERSION, **facts}) + b"\n"]
        )

    def encode_stream(self, letter: str, at: float, chunk: bytes) -> bytes:
        """The records for bytes of a stream: whole lines, and pieces of a long one.

        No bytes: the stream is at its end, and the unfinished line is recorded.
        """
        if not chunk:
            return self.flush_stream(letter, at)
        parts = self._unfinished_lines.setdefault(letter, [])
        end = chunk.rfind(b"\n") + 1
        said = b""
        if end:
            whole = chunk if end == len(chunk) else chunk[:end]
            if parts:
                whole = b"".join([*parts, whole])
                parts.clear()
            said = self._encode_lines(letter, at, whole)
        if end < len(chunk):
            parts.append(chunk[end:] if end else chunk)
            # a child may write byte by byte
            while len(parts) > 1 and len(parts[-1]) >= len(parts[-2]):
                parts[-2:] = [parts[-2] + parts[-1]]
        if parts and sum(map(len, parts)) >= MAX_RECORD_BYTES:
            rest, records = b"".join(parts), []
            while len(rest) >= MAX_RECORD_BYTES:
                size = _find_character_boundary(rest, MAX_RECORD_BYTES)
                records.append(self._encode_piece(letter, at, rest[:size], "-"))
                rest = rest[size:]
            parts[:] = [rest] if rest else []
            said += self._hash_chain.add_lines(records)
        return said

    def flush_stream(self, letter: str, at: float) -> bytes:
        rest = b"".join(self._unfinished_lines.pop(letter, ()))
        return (
            self._hash_chain.add_lines([self._encode_piece(letter, at, rest, "-")]) if rest else b""
        )

    def encode_event(self, letter: str, at: float, fact: Mapping[str, Any]) -> bytes:
        """The record of a child's start, a note, or a child's end with its unfinished lines before
        it.
        """
        rests = (
            b"".join(self.flush_stream(stream, at) for stream in "Ioe") if letter == "x" else b""
        )
        return rests + self._hash_chain.add_lines(
            [b'[%s,"%s",%s]\n' % (self._encode_delay(at), letter.encode(), dump_json(fact))]
        )

    def flush_all(self, at: float) -> bytes:
        """The records of all unfinished lines."""
        return b"".join([self.flush_stream(letter, at) for letter in list(self._unfinished_lines)])

    def encode_end(self, at: float) -> bytes:
        """The records of all unfinished lines, and the last checkpoint."""
        return self.flush_all(at) + self._hash_chain.encode_end()

    def _encode_lines(self, letter: str, at: float, whole: bytes) -> bytes:
        lines = (
            whole[:-1].split(b"\n")
            if self._redact is not None or len(whole) > MAX_RECORD_BYTES
            else []
        )
        if lines and max(map(len, lines)) > MAX_RECORD_BYTES:
            return self._hash_chain.add_lines(
                [record for line in lines for record in self._split_long_line(letter, at, line)]
            )
        if self._redact is not None:
            clean = [self._redact(letter, line, True) for line in lines]
            if any(one is not other for one, other in zip(clean, lines, strict=True)):
                whole = b"\n".join(clean) + b"\n"
        try:
            text = whole.decode()
        except UnicodeDecodeError:
            text = LINE_SEPARATOR
        return (
            self._encode_line_by_line(letter, at, whole)
            if LINE_SEPARATOR in text
            else self._encode_text(letter, at, text)
        )

    def _encode_text(self, letter: str, at: float, text: str) -> bytes:
        """The records of valid text: dumped as one string, with BETWEEN for the ends of lines."""
        records = orjson.dumps(text.replace("\n", LINE_SEPARATOR))[1:-2].split(
            _LINE_SEPARATOR_BYTES
        )
        between = b'"]\n[0,"%s","' % letter.encode()
        said, done, begin = list[bytes](), 0, b"[%s" % self._encode_delay(at)
        while done < len(records):
            part = records[done : done + self._hash_chain.remaining_lines]
            done += len(part)
            self._hash_chain.add_block(
                b'%s,"%s","%s"]\n' % (begin, letter.encode(), between.join(part)), len(part), said
            )
            begin = b"[0"
        return b"".join(said)

    def _encode_line_by_line(self, letter: str, at: float, whole: bytes) -> bytes:
        lines = whole[:-1].split(b"\n")
        return self._hash_chain.add_lines(
            [b"[%s,%s]\n" % (self._encode_delay(at), encode_data(letter, line)) for line in lines]
        )

    def _split_long_line(self, letter: str, at: float, line: bytes) -> list[bytes]:
        records = []
        while len(line) > MAX_RECORD_BYTES:
            size = _find_character_boundary(line, MAX_RECORD_BYTES)
            records.append(self._encode_piece(letter, at, line[:size], "-"))
            line = line[size:]
        return [*records, self._encode_piece(letter, at, line, "")]

    def _encode_piece(self, letter: str, at: float, data: bytes, mark: str) -> bytes:
        if self._redact is not None:
            data = self._redact(letter, data, not mark)
        return b"[%s,%s]\n" % (self._encode_delay(at), encode_data(letter, data, mark))

    def _encode_delay(self, at: float) -> bytes:
        """The seconds since the last record; the rounding is carried to the next one."""
        delay = round(at - self._encoded_time_s, DELAY_DECIMALS)
        if delay <= 0:
            return b"0"
        self._encoded_time_s += delay
        return b"%.4f" % delay


def encode_data(letter: str, data: bytes, mark: str = "") -> bytes:
    """The code and the data of a record; `mark` is `-` if no newline follows."""
    try:
        text = orjson.dumps(data.decode())
    except UnicodeDecodeError:
        mark, text = mark + "b", b'"%s"' % binascii.b2a_base64(data, newline=False)
    return b'"%s",%s' % ((letter + mark).encode(), text)


class HashChain:
    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._line_count = 0  # lines since the last checkpoint

    def add_lines(self, lines: list[bytes]) -> bytes:
        said, at = list[bytes](), 0
        while at < len(lines):
            part = lines[at : at + self.remaining_lines]
            at += len(part)
            self.add_block(b"".join(part), len(part), said)
        return b"".join(said)

    @property
    def remaining_lines(self) -> int:
        """How many lines fit in before the next checkpoint."""
        return CHECKPOINT_LINES - self._line_count

    def add_block(self, block: bytes, count: int, said: list[bytes]) -> None:
        """Add `count` lines, at most `room`, to `said`, and a checkpoint if one is due."""
        said.append(block)
        self._line_count += count
        if len(block) < HASH_BLOCK_BYTES:
            self._hash.update(block)
        else:
            view = memoryview(block)
            for start in range(0, len(block), HASH_BLOCK_BYTES):
                self._hash.update(view[start : start + HASH_BLOCK_BYTES])
        if self._line_count == CHECKPOINT_LINES:
            checkpoint = b'["h","%s"]\n' % self._hash.hexdigest().encode()
            self._hash.update(checkpoint)
            said.append(checkpoint)
            self._line_count = 0

    def encode_end(self) -> bytes:
        """The last line."""
        return b'["h","%s","end"]\n' % self._hash.hexdigest().encode()


def _find_character_boundary(data: bytes, size: int) -> int:
    """Where to cut at most `size` bytes so that no UTF-8 character is split."""
    if size >= len(data):  # the next bytes are not known yet
        return size
    for back in range(4):
        if data[size - back] & 0xC0 != 0x80:
            return size - back
    return size
