"""The durable log of a session, as the hub and the host see it: a small port with many possible
backends.

The cast of a session is the first one. A suite of tests tries every backend (tests/bridge).
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from shim.core.claude.messages import parse_json_line

STDOUT_LETTER = "O"  # a line of the conversation: numbered if it is whole, 0 for a question
STDIN_LETTER = "i"  # a line for the conversation: a message or an answer
NOTE_LETTER = "n"  # a fact, as JSON: a question that was settled, another driver


class SessionLogRecord(NamedTuple):
    """What is appended: STDOUT_LETTER, STDIN_LETTER or NOTE_LETTER, when (milliseconds since 1970),
    one line without its newline.

    Only whole lines of the conversation have a number; the number of others is 0.
    """

    letter: str
    at_ms: int
    data: bytes
    number: int = 0


class SessionLogEntry(NamedTuple):
    """A whole line as it is read again."""

    number: int
    generation: int
    at_ms: int
    line: bytes


class LogHistory(NamedTuple):
    """What the log of a session tells a new life of its host."""

    generation: int  # the new life; the first one is 1
    last_number: int = 0  # the number of the last line
    first_numbers: Mapping[int, int] = {}  # a former life -> the number of its first line
    message_ids: Iterable[str] = ()  # the ids of the last messages that former lives accepted

    def find_last_number(self, generation: int) -> int | None:
        """Return the number of the last line that the log has of a former life and the lives
        before it, or None if there was no such life.
        """
        if not 0 < generation < self.generation:
            return None
        next_numbers = [number for life, number in self.first_numbers.items() if life > generation]
        return min([*next_numbers, self.last_number + 1]) - 1


class SessionLog(Protocol):
    """Numbers go on over generations and have no holes but those of files that were dropped."""

    @property
    def first_line_number(self) -> int:
        """The number of the oldest line that is kept; one more than `last_number` if there is none."""

    @property
    def last_number(self) -> int:
        """The number of the last line, 0 before there is one."""

    def append(self, records: Sequence[SessionLogRecord]) -> None:
        """Write them so that they survive the death of this process. OSError: none of them may be
        told.
        """

    def read(self, after_number: int, max_lines: int, max_bytes: int) -> Sequence[SessionLogEntry]:
        """The lines behind a number, at most `max_lines`, and no further one from `max_bytes` bytes
        on; none at the end.

        The first has a higher number than `after_number` + 1 where older lines were dropped.
        """

    def follow(self, after_number: int) -> AsyncIterator[Sequence[SessionLogEntry]]:
        """The lines behind a number, then those that come."""


def list_accepted_message_ids(entries: Iterable[SessionLogEntry]) -> Iterator[str]:
    """Yield the ids of the messages that the conversation has accepted, by these lines."""
    for entry in entries:
        if b'"isReplay":true' not in entry.line:
            continue
        line = parse_json_line(entry.line)
        if not isinstance(line, dict) or line.get("isReplay") is not True:
            continue
        if isinstance(line.get("uuid"), str):
            yield line["uuid"]
