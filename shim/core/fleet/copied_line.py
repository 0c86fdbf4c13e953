"""The copies of session lines in the fleet's log stream: sealed, signed and numbered.

A message holds one complete line of a session. Its header names the generation and the number of the
line, so that the machine can continue after the last stored message. Readers believe a number only if
the machine has signed it.
"""

from collections.abc import Mapping
from typing import NamedTuple

from shim.core.bridge.frames import LogCursor
from shim.core.fleet.keys import KeyPair
from shim.core.fleet.sealing import SealError, open_sealed, seal

POSITION_HEADER = "Shim-Line"  # the generation and the number of the line
TIME_BYTES = 8
# The server accepts messages of 1 MiB, with their headers. A longer line is not copied.
MAX_COPIED_BYTES = 1000 * 1024


class CopiedLine(NamedTuple):
    """A line of a session. `at_ms` is its time in milliseconds since 1970."""

    generation: int
    number: int
    at_ms: int
    line: bytes


def format_position(line: CopiedLine) -> str:
    """Return the value of POSITION_HEADER for a line."""
    return f"{line.generation} {line.number}"


def parse_position(headers: Mapping[str, str] | None) -> LogCursor | None:
    """Return the position in the headers of a message, or None if they have none."""
    generation, _, number = (headers or {}).get(POSITION_HEADER, "").partition(" ")
    if not (generation.isdecimal() and number.isdecimal()):
        return None
    return LogCursor(int(generation), int(number))


def seal_line(key: bytes, nonce: bytes, line: CopiedLine, subject: str, sender: KeyPair) -> bytes:
    """Seal a line for its subject and its position."""
    payload = line.at_ms.to_bytes(TIME_BYTES, "big") + line.line
    return seal(key, nonce, payload, _build_context(subject, line.generation, line.number), sender)


def open_line(
    key: bytes, data: bytes, subject: str, headers: Mapping[str, str] | None, public_key: str
) -> CopiedLine | None:
    """Return the line of a message, or None if the machine has not signed it for this subject, and for
    the position in its headers.
    """
    position = parse_position(headers)
    if position is None:
        return None
    context = _build_context(subject, position.generation, position.number)
    try:
        payload = open_sealed(key, data, context, public_key)
    except SealError:
        return None
    at_ms = int.from_bytes(payload[:TIME_BYTES], "big")
    return CopiedLine(position.generation, position.number, at_ms, payload[TIME_BYTES:])


class CopyReader:
    """Checks the order of the lines that the server sends, and finds missing ones."""

    def __init__(self, key: bytes, subject: str, public_key: str, after_number: int) -> None:
        self._key = key
        self._subject = subject
        self._public_key = public_key
        self.last_number = after_number
        self.generation = 0  # of the last line
        self.missing_numbers: tuple[int, int] | None = None  # before the last line

    def read(self, headers: Mapping[str, str] | None, data: bytes) -> CopiedLine | None:
        """Return the line of a message, or None if it is not a line that follows. After a line,
        `missing_numbers` are the first and the last number that are missing before it, or None.
        """
        position = parse_position(headers)
        if position is None or position.number <= self.last_number:
            return None
        line = open_line(self._key, data, self._subject, headers, self._public_key)
        if line is None:
            return None
        self.missing_numbers = None
        if line.number > self.last_number + 1:
            self.missing_numbers = (self.last_number + 1, line.number - 1)
        self.last_number = line.number
        self.generation = line.generation
        return line


def _build_context(subject: str, generation: int, number: int) -> str:
    return f"{subject} {generation} {number}"
