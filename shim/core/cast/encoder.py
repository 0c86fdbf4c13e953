"""Encodes the lines of a recording: records, and the checkpoints between them."""

import binascii
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from shim.core.cast.format import FORMAT_VERSION
from shim.core.reading.json_text import dump_json

MAX_RECORD_BYTES = 1024 * 1024  # a longer line is split into several records
CHECKPOINT_LINES = 64  # the number of lines between two checkpoints
DELAY_DECIMALS = 4  # the precision of a time in seconds
# A rare character that JSON does not escape. It stands for a newline while several lines are
# encoded at once. A text that contains this character is encoded line by line.
LINE_SEPARATOR = "\x7f"
_LINE_SEPARATOR_BYTES = b"\x7f"
# The size of the blocks that are hashed. For larger blocks, `hashlib` releases the GIL, and the
# recording thread would have to wait for the GIL after each block.
HASH_BLOCK_BYTES = 2047

# A function that redacts a record's data. Its arguments are the stream's letter, a line or a part
# of a line (without the newline), and whether a newline follows.
RedactFunction = Callable[[str, bytes, bool], bytes]


class RecordingEncoder:
    """Encodes the lines of a recording. `time_s` is in seconds since the start of the recording,
    and never decreases.

    A stream's bytes are buffered until a line is complete or has MAX_RECORD_BYTES. `redact` is
    called once for each stream record, in order, and the encoder writes its result.
    """

    def __init__(self, redact: RedactFunction | None = None) -> None:
        self._redact = redact
        self._hash_chain = RecordingHashChain()
        self.encoded_time_s = 0.0
        self._unfinished_lines: dict[str, list[bytes]] = {}

    def encode_header(self, fields: Mapping[str, Any]) -> bytes:
        """Return the first line of the recording. `fields` has all keys except `shimcast`."""
        return self._hash_chain.encode_lines_with_checkpoints(
            [dump_json({"shimcast": FORMAT_VERSION, **fields}) + b"\n"]
        )

    def encode_stream_chunk(self, stream_code: str, time_s: float, chunk: bytes) -> bytes:
        """Return the records for a chunk of a stream: complete lines, and parts of a long line.

        An empty chunk means the end of the stream, and the stream's unfinished line is recorded.
        """
        if not chunk:
            return self.flush_stream(stream_code, time_s)
        parts = self._unfinished_lines.setdefault(stream_code, [])
        end = chunk.rfind(b"\n") + 1
        encoded = b""
        if end:
            complete_lines = chunk
            if end != len(chunk):
                complete_lines = chunk[:end]
            if parts:
                complete_lines = b"".join([*parts, complete_lines])
                parts.clear()
            encoded = self._encode_lines(stream_code, time_s, complete_lines)
        if end < len(chunk):
            parts.append(chunk[end:] if end else chunk)
            # Merge small parts of a line, because a child may write single bytes.
            while len(parts) > 1 and len(parts[-1]) >= len(parts[-2]):
                parts[-2:] = [parts[-2] + parts[-1]]
        if parts and sum(map(len, parts)) >= MAX_RECORD_BYTES:
            remainder = b"".join(parts)
            records = []
            while len(remainder) >= MAX_RECORD_BYTES:
                size = _find_character_boundary(remainder, MAX_RECORD_BYTES)
                records.append(self._encode_piece(stream_code, time_s, remainder[:size], "-"))
                remainder = remainder[size:]
            parts[:] = [remainder]
            encoded += self._hash_chain.encode_lines_with_checkpoints(records)
        return encoded

    def flush_stream(self, stream_code: str, time_s: float) -> bytes:
        remainder = b"".join(self._unfinished_lines.pop(stream_code, ()))
        if remainder:
            return self._hash_chain.encode_lines_with_checkpoints(
                [self._encode_piece(stream_code, time_s, remainder, "-")]
            )
        return b""

    def encode_event_record(
        self, event_code: str, time_s: float, fields: Mapping[str, Any]
    ) -> bytes:
        """Return the record for the start of a child process, for a note, or for the end of a child
        process. The child's unfinished lines are recorded before its end.
        """
        flushed = b""
        if event_code == "x":
            flushed = b"".join(self.flush_stream(stream_code, time_s) for stream_code in "Ioe")
        return flushed + self._hash_chain.encode_lines_with_checkpoints(
            [
                b'[%s,"%s",%s]\n'
                % (self._encode_delay(time_s), event_code.encode(), dump_json(fields))
            ]
        )

    def flush_all_streams(self, time_s: float) -> bytes:
        """Return the records for the unfinished lines of all streams."""
        return b"".join(
            [self.flush_stream(stream_code, time_s) for stream_code in list(self._unfinished_lines)]
        )

    def encode_recording_end(self, time_s: float) -> bytes:
        """Return the records for all unfinished lines, and the last checkpoint."""
        return self.flush_all_streams(time_s) + self._hash_chain.encode_end_checkpoint()

    def _encode_lines(self, stream_code: str, time_s: float, data: bytes) -> bytes:
        lines = []
        if self._redact is not None or len(data) > MAX_RECORD_BYTES:
            lines = data[:-1].split(b"\n")
        if lines and max(map(len, lines)) > MAX_RECORD_BYTES:
            return self._hash_chain.encode_lines_with_checkpoints(
                [
                    record
                    for line in lines
                    for record in self._split_long_line(stream_code, time_s, line)
                ]
            )
        if self._redact is not None:
            redacted_lines = [self._redact(stream_code, line, True) for line in lines]
            if any(
                redacted_line is not original_line
                for redacted_line, original_line in zip(redacted_lines, lines, strict=True)
            ):
                data = b"\n".join(redacted_lines) + b"\n"
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = LINE_SEPARATOR
        if LINE_SEPARATOR in text:
            return self._encode_line_by_line(stream_code, time_s, data)
        return self._encode_text(stream_code, time_s, text)

    def _encode_text(self, stream_code: str, time_s: float, text: str) -> bytes:
        """Return the records for text in valid UTF-8. For speed, the text is encoded as one JSON
        string with LINE_SEPARATOR in place of newlines.
        """
        records = orjson.dumps(text.replace("\n", LINE_SEPARATOR))[1:-2].split(
            _LINE_SEPARATOR_BYTES
        )
        separator = b'"]\n[0,"%s","' % stream_code.encode()
        output = list[bytes]()
        encoded_count = 0
        record_start = b"[%s" % self._encode_delay(time_s)
        while encoded_count < len(records):
            batch = records[encoded_count : encoded_count + self._hash_chain.lines_until_checkpoint]
            encoded_count += len(batch)
            self._hash_chain.append_lines_and_checkpoint(
                b'%s,"%s","%s"]\n' % (record_start, stream_code.encode(), separator.join(batch)),
                len(batch),
                output,
            )
            record_start = b"[0"
        return b"".join(output)

    def _encode_line_by_line(self, stream_code: str, time_s: float, data: bytes) -> bytes:
        lines = data[:-1].split(b"\n")
        return self._hash_chain.encode_lines_with_checkpoints(
            [
                b"[%s,%s]\n" % (self._encode_delay(time_s), encode_record_data(stream_code, line))
                for line in lines
            ]
        )

    def _split_long_line(self, stream_code: str, time_s: float, line: bytes) -> list[bytes]:
        records = []
        while len(line) > MAX_RECORD_BYTES:
            size = _find_character_boundary(line, MAX_RECORD_BYTES)
            records.append(self._encode_piece(stream_code, time_s, line[:size], "-"))
            line = line[size:]
        return [*records, self._encode_piece(stream_code, time_s, line, "")]

    def _encode_piece(
        self, stream_code: str, time_s: float, data: bytes, code_suffix: str
    ) -> bytes:
        if self._redact is not None:
            data = self._redact(stream_code, data, not code_suffix)
        return b"[%s,%s]\n" % (
            self._encode_delay(time_s),
            encode_record_data(stream_code, data, code_suffix),
        )

    def _encode_delay(self, time_s: float) -> bytes:
        """Return the seconds since the last record. The rounding error is carried over to the next
        record.
        """
        delay_s = round(time_s - self.encoded_time_s, DELAY_DECIMALS)
        if delay_s <= 0:
            return b"0"
        self.encoded_time_s += delay_s
        return b"%.4f" % delay_s


def encode_record_data(stream_code: str, data: bytes, code_suffix: str = "") -> bytes:
    """Return the code and the data of a record. `code_suffix` is `-` if no newline follows the
    data.
    """
    try:
        text = orjson.dumps(data.decode())
    except UnicodeDecodeError:
        code_suffix = code_suffix + "b"
        text = b'"%s"' % binascii.b2a_base64(data, newline=False)
    return b'"%s",%s' % ((stream_code + code_suffix).encode(), text)


class RecordingHashChain:
    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._line_count = 0  # the number of lines since the last checkpoint

    def encode_lines_with_checkpoints(self, lines: list[bytes]) -> bytes:
        output = list[bytes]()
        index = 0
        while index < len(lines):
            batch = lines[index : index + self.lines_until_checkpoint]
            index += len(batch)
            self.append_lines_and_checkpoint(b"".join(batch), len(batch), output)
        return b"".join(output)

    @property
    def lines_until_checkpoint(self) -> int:
        """The number of lines before the next checkpoint."""
        return CHECKPOINT_LINES - self._line_count

    def append_lines_and_checkpoint(
        self, line_block: bytes, line_count: int, output: list[bytes]
    ) -> None:
        """Append `line_count` lines to `output`, followed by a checkpoint if one is due.
        `line_count` is at most `lines_until_checkpoint`.
        """
        output.append(line_block)
        self._line_count += line_count
        if len(line_block) < HASH_BLOCK_BYTES:
            self._hash.update(line_block)
        else:
            view = memoryview(line_block)
            for start in range(0, len(line_block), HASH_BLOCK_BYTES):
                self._hash.update(view[start : start + HASH_BLOCK_BYTES])
        if self._line_count == CHECKPOINT_LINES:
            checkpoint = b'["h","%s"]\n' % self._hash.hexdigest().encode()
            self._hash.update(checkpoint)
            output.append(checkpoint)
            self._line_count = 0

    def encode_end_checkpoint(self) -> bytes:
        """Return the last line of the recording, which is a checkpoint."""
        return b'["h","%s","end"]\n' % self._hash.hexdigest().encode()


def _find_character_boundary(data: bytes, size: int) -> int:
    """Return the largest position up to `size` that does not split a UTF-8 character."""
    if size >= len(data):  # the data is not split
        return size
    for offset in range(4):
        if data[size - offset] & 0xC0 != 0x80:
            return size - offset
    return size
