"""The interface of a session log, which the hub and the host use.

The implementation is a recording (`shim/bridge/log.py`). The tests in `tests/support/log_suite.py`
check every implementation.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from shim.core.claude.messages import parse_json_line

STDOUT_LETTER = "O"  # a line from the conversation: a complete line, or a prompt
STDIN_LETTER = "i"  # a line to the conversation: a message, or an answer to a prompt
NOTE_LETTER = "n"  # a JSON note about an event, such as a resolved prompt or a new controller


class SessionLogRecord(NamedTuple):
    """A record to append to the session log."""

    letter: str  # STDOUT_LETTER, STDIN_LETTER or NOTE_LETTER
    at_ms: int  # milliseconds since 1970
    data: bytes  # one line without its newline
    number: int = 0  # the line number of a complete line; 0 for other records


class SessionLogEntry(NamedTuple):
    """A complete line from the session log."""

    number: int
    generation: int
    at_ms: int
    line: bytes


class LogHistory(NamedTuple):
    """Data from the session log that a new host of the session needs."""

    generation: int  # the new host's generation; the generations of a session are counted from 1
    last_number: int = 0  # the number of the last line
    first_numbers: Mapping[int, int] = {}  # the number of each earlier generation's first line
    message_ids: Iterable[str] = ()  # the ids of recently accepted messages

    def find_last_line_number(self, host_generation: int) -> int | None:
        """Return the number of the last line that was in the log when an earlier generation ended.
        Return None if the generation did not exist.
        """
        if not 0 < host_generation < self.generation:
            return None
        next_numbers = [
            number for life, number in self.first_numbers.items() if life > host_generation
        ]
        return min([*next_numbers, self.last_number + 1]) - 1


class SessionLog(Protocol):
    """A session's log, which survives crashes of the host. Line numbers continue over all
    generations of the host. If old files were deleted, the log no longer starts with line 1.
    """

    @property
    def first_line_number(self) -> int:
        """The oldest line's number. If the log has no lines, this is `last_line_number` + 1."""

    @property
    def last_line_number(self) -> int:
        """The last line's number, or 0 if the log has no lines."""

    def append(self, records: Sequence[SessionLogRecord]) -> None:
        """Append records. They are kept even if this process is killed.

        Raise OSError on failure. In this case, the records must not be sent to clients.
        """

    def read(self, after_number: int, max_lines: int, max_bytes: int) -> Sequence[SessionLogEntry]:
        """Return the lines that follow line `after_number`: at most `max_lines` lines, and about
        `max_bytes` bytes.

        If older lines were deleted, the first line's number is higher than `after_number` + 1.
        """


def list_accepted_message_ids(entries: Iterable[SessionLogEntry]) -> Iterator[str]:
    """Yield the ids of the user messages that the conversation has accepted. The ids are read from
    log entries.
    """
    for entry in entries:
        if b'"isReplay":true' not in entry.line:
            continue
        line = parse_json_line(entry.line)
        if not isinstance(line, dict) or line.get("isReplay") is not True:
            continue
        if isinstance(line.get("uuid"), str):
            yield line["uuid"]
