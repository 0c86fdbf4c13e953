"""The backends of the log interface: the common tests for each, and the file limits and faults of
recordings.
"""

import os
from itertools import count

import orjson
import pytest
from log_suite import LogSuite, MemoryLog, build_line, build_records, list_numbers

from shim.bridge import log
from shim.bridge.log import RecordedSessionLog
from shim.commands.cli import app
from shim.core.bridge.log import NOTE_LETTER, SessionLogRecord

pytestmark = pytest.mark.anyio


class TestMemoryLog(LogSuite):
    @pytest.fixture(autouse=True)
    def _entries(self):
        self.entries = []

    def open_log(self, generation):
        return MemoryLog(generation, self.entries)


class TestCastLog(LogSuite):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.folder = str(tmp_path / "log")

    def open_log(self, generation):
        return RecordedSessionLog(self.folder, generation)


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "log")


def test_log_continues_in_a_new_file_when_a_file_is_full(folder):
    session_log = RecordedSessionLog(folder, 1, max_file_bytes=1000)
    for number in range(1, 101):
        session_log.append(build_records(number))
    assert len(os.listdir(folder)) > 5
    assert (
        list_numbers(session_log.read(0, 200))
        == list(range(1, 101))
        == list_numbers(RecordedSessionLog(folder, 2).read(0, 200))
    )


def test_oldest_log_files_are_deleted_beyond_the_size_limit(folder):
    session_log = RecordedSessionLog(folder, 1, max_file_bytes=1000, max_log_bytes=5000)
    for number in range(1, 1001):
        session_log.append(build_records(number))
    size = sum(entry.stat().st_size for entry in os.scandir(folder))
    assert size < 6000 and session_log.first_line_number > 900
    assert list_numbers(session_log.read(0, 2000)) == list(
        range(session_log.first_line_number, 1001)
    )


def test_history_has_the_last_line_number_of_each_generation(folder):
    for generation, numbers in ((1, [1, 2, 3]), (3, [4, 5])):
        session_log = RecordedSessionLog(folder, generation, max_file_bytes=1)
        for number in numbers:
            session_log.append(build_records(number))
        session_log.close()
    history = RecordedSessionLog(folder, 4).load_history()
    assert (history.generation, history.last_number) == (4, 5)
    assert [history.find_last_line_number(life) for life in range(6)] == [None, 3, 3, 5, None, None]


def test_line_truncated_by_a_kill_is_not_read(folder):
    RecordedSessionLog(folder, 1).append(build_records(1, 2, 3))
    (path,) = (entry.path for entry in os.scandir(folder))
    full_size = os.path.getsize(path)
    for size in range(full_size - 100, full_size):
        os.truncate(path, size)
        session_log = RecordedSessionLog(folder, 2)
        assert list_numbers(session_log.read(0, 9)) == [1, 2][
            : session_log.last_line_number
        ] and session_log.last_line_number in (
            1,
            2,
        )
        with open(path, "ab") as file:
            file.truncate(full_size)
    assert os.path.getsize(path) == full_size


def test_failed_write_is_rolled_back_and_later_appends_fail(folder, monkeypatch):
    session_log = RecordedSessionLog(folder, 1)
    session_log.append(build_records(1))
    (path,) = (entry.path for entry in os.scandir(folder))
    before, calls = os.path.getsize(path), count()

    def full(descriptor, data):
        os.write(descriptor, data[:20])
        next(calls)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log, "write_all", full)
    with pytest.raises(OSError, match="No space"):
        session_log.append(build_records(2))
    monkeypatch.undo()
    with pytest.raises(OSError, match="No space"):
        session_log.append(build_records(2))
    assert os.path.getsize(path) == before and next(calls) == 1
    assert list_numbers(session_log.read(0, 9)) == [1] and session_log.last_line_number == 1


def test_last_lines_are_read_without_the_lines_before_them(folder, monkeypatch):
    session_log, parsed_lines = RecordedSessionLog(folder, 1), []
    for number in range(1, 1001):
        session_log.append(build_records(number))
    parse_line = log.parse_recording_line
    monkeypatch.setattr(
        log, "parse_recording_line", lambda line: parsed_lines.append(line) or parse_line(line)
    )
    last_entries = session_log.read(990, 20)
    assert list_numbers(last_entries) == list(range(991, 1001))
    assert len(parsed_lines) <= 2 * log.INDEX_INTERVAL_LINES
    assert RecordedSessionLog(folder, 2).read(990, 20) == last_entries


def test_log_files_pass_cast_verify(folder, capsys):
    session_log = RecordedSessionLog(
        folder, 1, {"vendor": "demo", "cwd": "/repo"}, max_file_bytes=2000
    )
    for number in range(1, 200):
        session_log.append(
            [
                *build_records(number),
                SessionLogRecord(NOTE_LETTER, number, b'{"kind":"driver","client":"a"}'),
            ]
        )
    session_log.close()
    for entry in os.scandir(folder):
        with pytest.raises(SystemExit) as ended:
            app(["cast", "verify", entry.path])
        assert ended.value.code == 0, capsys.readouterr().out


def test_invalid_files_in_the_log_folder_are_ignored(folder):
    RecordedSessionLog(folder, 1).append(build_records(1))
    for name, text in (
        ("000002-0000000002.cast", b"{}"),
        ("000003-0000000002.cast", b'{"shimcast":1}'),
        ("x", b""),
    ):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(text + b"\n")
    os.mkfifo(os.path.join(folder, "000004-0000000002.cast"))
    session_log = RecordedSessionLog(folder, 5)
    assert session_log.last_line_number == 1 and list_numbers(session_log.read(0, 9)) == [1]


def test_log_header_contains_generation_and_first_line_number(folder):
    RecordedSessionLog(folder, 1).append(build_records(1, 2))
    RecordedSessionLog(folder, 2).append(build_records(3, at=5))
    with open(os.path.join(folder, "000002-0000000003.cast"), "rb") as file:
        assert orjson.loads(file.readline())["bridge"] == {"generation": 2, "first": 3, "at": 8}
    assert build_line(3) in RecordedSessionLog(folder, 3).read(2, 9)[0].line
