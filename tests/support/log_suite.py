"""The requirements of every backend of the session log, as tests: a class to inherit from, which
implements how a log is opened.
"""

from collections.abc import Iterator, Sequence

import pytest

from shim.bridge.log import READ_BATCH_BYTES
from shim.core.bridge.log import (
    NOTE_LETTER,
    STDIN_LETTER,
    STDOUT_LETTER,
    SessionLog,
    SessionLogEntry,
    SessionLogRecord,
)

LINE = b'{"type":"system","n":%d,"text":"%b"}'
QUESTION = b'{"type":"control_request","request_id":"q","request":{"subtype":"can_use_tool"}}'


def build_line(number: int, text: bytes = b"\xc3\xa9") -> bytes:
    return LINE % (number, text)


def build_records(
    *numbers: int, at: int = 1_700_000_000_000, text: bytes = b"\xc3\xa9"
) -> list[SessionLogRecord]:
    """Build records of complete lines."""
    return [
        SessionLogRecord(STDOUT_LETTER, at + number, build_line(number, text), number)
        for number in numbers
    ]


class LogSuite:
    """Tests of a backend. `open_log` opens the log of one generation. The next call opens that of
    the next generation, which contains the entries of the earlier ones.
    """

    def open_log(self, generation: int) -> SessionLog:
        raise NotImplementedError

    @pytest.fixture
    def log(self) -> Iterator[SessionLog]:
        yield self.open_log(1)

    def test_new_log_is_empty(self, log):
        assert (log.first_line_number, log.last_line_number) == (1, 0)
        assert log.read(0, 10) == []

    def test_appended_records_are_read_unchanged(self, log):
        log.append(build_records(1, 2))
        log.append(build_records(3))
        at = 1_700_000_000_000
        assert log.read(0, 10) == [
            SessionLogEntry(number, 1, at + number, build_line(number)) for number in (1, 2, 3)
        ]
        assert (log.first_line_number, log.last_line_number) == (1, 3)

    def test_read_starts_after_a_number_and_is_limited(self, log):
        for number in range(1, 301):
            log.append(build_records(number))
        assert list_numbers(log.read(150, 5)) == [151, 152, 153, 154, 155]
        assert list_numbers(log.read(298, 5)) == [299, 300]
        assert log.read(300, 5) == [] == log.read(1000, 5)

    def test_control_requests_stdin_and_notes_have_no_number(self, log):
        note = b'{"kind":"settled","question":"q","by":"a","how":"allow"}'
        stdin_record = SessionLogRecord(STDIN_LETTER, 3, b'{"type":"user"}')
        log.append(
            [
                *build_records(1),
                SessionLogRecord(STDOUT_LETTER, 2, QUESTION),
                stdin_record,
                SessionLogRecord(NOTE_LETTER, 4, note),
                *build_records(2),
            ]
        )
        assert [(entry.number, entry.line) for entry in log.read(0, 10)] == [
            (1, build_line(1)),
            (2, build_line(2)),
        ]
        assert log.last_line_number == 2

    def test_long_line_is_read_completely(self, log):
        text = b"0123456789\xe2\x82\xac" * 400_000
        log.append(build_records(1, text=text))
        log.append(build_records(2))
        (first,) = log.read(0, 1)
        assert first.line == build_line(1, text) and list_numbers(log.read(1, 9)) == [2]

    def test_line_that_quotes_a_control_request_has_a_number(self, log):
        assistant_line = (
            b'{"type":"assistant","text":"\\"control_request\\" is {\\"type\\":\\"keep_alive\\"}"}'
        )
        log.append([SessionLogRecord(STDOUT_LETTER, 1, assistant_line, 1)])
        assert [entry.line for entry in log.read(0, 9)] == [assistant_line]

    def test_arbitrary_bytes_are_preserved(self, log):
        lines = [
            b'{"type":"x","s":"%b"}' % piece
            for piece in (b"\\u0000", b"\x7f", b"\xff\xfe", b"\xe2\x80\xa8")
        ]
        log.append(
            [
                SessionLogRecord(STDOUT_LETTER, number, data, number)
                for number, data in enumerate(lines, 1)
            ]
        )
        assert [entry.line for entry in log.read(0, 9)] == lines

    def test_timestamps_never_decrease(self, log):
        log.append(
            [*build_records(1, at=9000), *build_records(2, at=5000), *build_records(3, at=9500)]
        )
        times = [entry.at_ms for entry in log.read(0, 9)]
        assert times == sorted(times) and times[0] == 9001

    def test_numbers_continue_in_the_next_generation(self, log):
        log.append(build_records(1, 2))
        after = self.open_log(2)
        assert after.last_line_number == 2
        after.append(build_records(3))
        read = after.read(0, 9)
        assert [(entry.generation, entry.number) for entry in read] == [(1, 1), (1, 2), (2, 3)]

    def test_generation_without_entries_leaves_no_gap(self, log):
        self.open_log(2)
        third = self.open_log(3)
        third.append(build_records(1))
        assert list_numbers(third.read(0, 9)) == [1]

    def test_read_is_limited_in_bytes(self, log):
        log.append(build_records(*range(1, 9), text=b"x" * 1_000_000))
        assert list_numbers(log.read(0, 8, 2_500_000)) == [1, 2, 3]
        assert list_numbers(log.read(0, 8, 1)) == [1]


def list_numbers(entries: Sequence[SessionLogEntry]) -> list[int]:
    """Return the numbers of entries."""
    return [entry.number for entry in entries]


class MemoryLog:
    """A log in memory, which is the simplest backend. Tests of code that uses a log use it."""

    def __init__(self, generation: int, entries: list[SessionLogEntry]) -> None:
        self._generation = generation
        self._entries = entries

    @property
    def first_line_number(self) -> int:
        return self._entries[0].number if self._entries else 1

    @property
    def last_line_number(self) -> int:
        return self._entries[-1].number if self._entries else 0

    def append(self, records: Sequence[SessionLogRecord]) -> None:
        for record in records:
            if record.number:
                at = max(record.at_ms, self._entries[-1].at_ms if self._entries else 0)
                self._entries.append(
                    SessionLogEntry(record.number, self._generation, at, record.data)
                )

    def read(
        self, after_number: int, max_lines: int, max_bytes: int = READ_BATCH_BYTES
    ) -> Sequence[SessionLogEntry]:
        entries, had = list[SessionLogEntry](), 0
        for entry in self._entries:
            if entry.number > after_number and len(entries) < max_lines and had < max_bytes:
                entries.append(entry)
                had += len(entry.line)
        return entries
