"""The interface of a session's durable log, for the hub and the host.

The backend is a recording (`shim/bridge/log.py`). One suite of tests checks every backend
(`tests/support/log_suite.py`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from shim.core.claude.messages import parse_json_line

STDOUT_LETTER = "O"  # a line of the conversation: a complete line, or a prompt
STDIN_LETTER = "i"  # a line for the conversation: a message or an answer
NOTE_LETTER = "n"  # JSON: a prompt was resolved, or the controller changed


class SessionLogRecord(NamedTuple):
    """A record to append."""

    letter: str  # STDOUT_LETTER, STDIN_LETTER or NOTE_LETTER
    at_ms: int  # milliseconds since 1970
    data: bytes  # one line without its newline
    number: int = 0  # 0 for all records except complete lines of the conversation


class SessionLogEntry(NamedTuple):
    """A complete line that was read from the log."""

    number: int
    generation: int
    at_ms: int
    line: bytes


class LogHistory(NamedTuple):
    """The data from a session's log that a new generation of its host needs."""

    generation: int  # the new generation; the first generation is 1
    last_number: int = 0  # the number of the last line
    first_numbers: Mapping[int, int] = {}  # by earlier generation: the number of its first line
    message_ids: Iterable[str] = ()  # the ids of the last accepted messages

    def find_last_line_number(self, host_generation: int) -> int | None:
        """Return the number of the last line of an earlier generation, or of the generations before
        it if it has no lines. Return None if there was no such generation.
        """
        if not 0 < host_generation < self.generation:
            return None
        next_numbers = [
            number for life, number in self.first_numbers.items() if life > host_generation
        ]
        return min([*next_numbers, self.last_number + 1]) - 1


class SessionLog(Protocol):
    """A session's log. Line numbers continue over all generations. Lines are only missing at the
    start, after old files were deleted.
    """

    @property
    def first_line_number(self) -> int:
        """The number of the oldest line, or `last_line_number` + 1 without any line."""

    @property
    def last_line_number(self) -> int:
        """The number of the last line, or 0."""

    def append(self, records: Sequence[SessionLogRecord]) -> None:
        """Write records so that they are kept if this process is killed.

        Raise OSError on failure. Then no record may be sent to a client.
        """

    def read(self, after_number: int, max_lines: int, max_bytes: int) -> Sequence[SessionLogEntry]:
        """Return the lines after a number: at most `max_lines`, and about `max_bytes` bytes.

        The first line has a number above `after_number` + 1 if older lines were deleted.
        """


def list_accepted_message_ids(entries: Iterable[SessionLogEntry]) -> Iterator[str]:
    """Yield the ids of the messages that the conversation has accepted according to these lines."""
    for entry in entries:
        if b'"isReplay":true' not in entry.line:
            continue
        line = parse_json_line(entry.line)
        if not isinstance(line, dict) or line.get("isReplay") is not True:
            continue
        if isinstance(line.get("uuid"), str):
            yield line["uuid"]
