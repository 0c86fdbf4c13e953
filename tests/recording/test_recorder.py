"""The recorder, whose failures do not affect the turn: its disk may be slow, full or broken, and
nothing waits for it.
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from box import TIMEOUT_S
from cast_builder import HEADER, read_cast, stream_of
from fake_secrets import generate_secret

from shim.core.reading.diagnostics import Diagnostics
from shim.core.turn.outcome import ChildExit
from shim.recording import event_queue, writer
from shim.recording.recorder import RunRecorder
from shim.recording.rewrite import CastRewriteStoppedError
from shim.recording.writer import RecordingLimits

SECRET = f"sk-ant-api03-{generate_secret(80)}"


@pytest.fixture
def record(tmp_path: Path, monkeypatch):
    """Return a function that creates a recorder for a file of the test, with a function that reads
    the file. The timeout for a stuck disk is longer, because the disk of a busy machine may
    pause.
    """
    monkeypatch.setattr(writer, "STUCK_TIMEOUT_S", writer.CLOSE_TIMEOUT_S)
    path = tmp_path / "one.cast"

    def make(write: Callable[[int, bytes], int] = os.write, *, clean: bool = False, **limits):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        options = {"max_bytes": 10**9} | limits
        return RunRecorder(
            file, str(path), HEADER, limits=RecordingLimits(**options), redact=clean, write=write
        )

    make.read = lambda: read_cast(path.read_bytes())
    make.path = path
    return make


class Hung:
    """A disk whose write hangs until `free` is set."""

    def __init__(self) -> None:
        self.called, self.free = threading.Event(), threading.Event()

    def __call__(self, file: int, data: bytes) -> int:
        self.called.set()
        self.free.wait(10)
        return len(data)


def test_events_are_recorded_in_order(record):
    recorder = record()
    track = recorder.record_child_start(["vendor", "-p"], "/home/user")
    recorder.record_stream("i", b"one\n")
    track.record_stdin(b"two")
    track.record_output("o", b"three\nfo")
    track.record_output("e", b"five\n")
    track.record_output("o", b"ur\n")
    track.record_exit(ChildExit(code=3))
    for letter in "oe":
        track.record_output(letter, b"")
    track.record_stdin(b"too late")
    recorder.close()
    reader, records = record.read()
    assert [record.code for record in records] == [
        "s",
        "i",
        "o",
        "e",
        "o",
        "I",
        "x",
    ] and reader.has_end
    assert (stream_of(records, "o"), stream_of(records, "I")) == (b"three\nfour\n", b"two")
    assert records[0].fields == {
        "child": 1,
        "turn": 1,
        "argv": ["vendor", "-p"],
        "cwd": "/home/user",
    }
    assert records[-1].fields == {"child": 1, "code": 3, "signal": None}


def test_secret_argument_of_a_child_is_redacted(record):
    recorder = record()
    recorder.record_child_start(["vendor", "--api-key", "correct horse"], "/home/user")
    assert recorder.close()
    assert b"correct horse" not in record.path.read_bytes()


def test_recording_stays_near_its_size_limit_with_many_small_chunks(record):
    recorder = record(max_bytes=2000)
    for _ in range(100):
        recorder.record_stream("O", b"x" * 99 + b"\n")
    recorder.close()
    assert record.path.stat().st_size < 4000  # the limit, one chunk and the last lines


def test_short_writes_are_completed(record):
    recorder = record(lambda file, data: os.write(file, data[:7]))
    recorder.record_stream("o", b"line\n" * 200)
    recorder.close()
    assert stream_of(record.read()[1], "o") == b"line\n" * 200


def test_hanging_disk_blocks_neither_events_nor_close(record, capfd, monkeypatch):
    monkeypatch.setattr(writer, "STUCK_TIMEOUT_S", 0.01)
    hung = Hung()
    recorder = record(hung)
    assert hung.called.wait(10)
    for _ in range(1000):  # a call that waited for the disk would never return
        recorder.record_stream("o", b"line\n")
        recorder.record_run_event("kind")
    recorder.close()
    assert not hung.free.is_set() and "the disk is too slow" in capfd.readouterr().err
    recorder.close()
    hung.free.set()
    assert recorder._writer.done.wait(10)
    assert capfd.readouterr().err == ""


def test_slow_redaction_is_not_reported_as_a_slow_disk(record, capfd, monkeypatch):
    monkeypatch.setattr(writer, "STUCK_TIMEOUT_S", 0.5)
    monkeypatch.setattr(writer, "CLOSE_TIMEOUT_S", TIMEOUT_S)
    start_event = threading.Event()

    def busy(file, data):
        until = time.thread_time() + (0 if start_event.is_set() else 0.7)
        start_event.set()
        while time.thread_time() < until:
            pass
        return os.write(file, data)

    recorder = record(busy)
    assert start_event.wait(10)
    assert recorder.close() and record.read()[0].has_end and capfd.readouterr().err == ""


def test_close_does_not_wait_for_the_disk_during_termination(record, capfd, monkeypatch):
    monkeypatch.setattr(writer, "STUCK_TIMEOUT_S", 1000)
    monkeypatch.setattr(writer, "TERMINATE_TIMEOUT_S", 0.01)
    hung = Hung()
    recorder = record(hung)
    assert hung.called.wait(10)
    recorder.close(lambda: True)
    assert "the disk is too slow" in capfd.readouterr().err
    hung.free.set()


def test_hanging_disk_uses_bounded_memory_and_warns_once(record, capfd, monkeypatch):
    monkeypatch.setattr(event_queue, "MAX_QUEUED_BYTES", 1000)
    hung = Hung()
    recorder = record(hung)
    assert hung.called.wait(10)
    for _ in range(1000):
        recorder.record_stream("o", b"line\n")
    assert len(recorder._queue) < 300
    stderr = capfd.readouterr().err
    assert (
        stderr.count("\n") == 1
        and "the disk is too slow; the turn continues without a recording" in stderr
    )
    hung.free.set()
    recorder.close()
    assert capfd.readouterr().err == ""


def test_recording_is_complete_up_to_the_queue_limit(record, monkeypatch):
    monkeypatch.setattr(event_queue, "MAX_QUEUED_EVENTS", 10)
    started = threading.Event()

    def slow(file, data):
        started.wait(10)
        return os.write(file, data)

    recorder = record(slow)
    for number in range(50):
        recorder.record_stream("o", b"%d\n" % number)
    started.set()
    recorder.close()
    reader, records = record.read()
    assert reader.has_end and records[-1].fields["kind"] == "limit"
    assert stream_of(records, "o").startswith(b"0\n1\n") and len(records) < 20


def test_failed_write_stops_the_recording_and_warns_once(record, capfd):
    def full(file, data):
        raise OSError(28, "No space left on device")

    recorder = record(full)
    assert recorder._writer.done.wait(10)
    for _ in range(10):
        recorder.record_stream("o", b"line\n")
    recorder.close()
    stderr = capfd.readouterr().err
    assert (
        stderr
        == f"the recording {record.path} stopped: No space left on device; the turn continues without a recording\n"
    )
    assert len(recorder._queue) <= 11


def test_internal_error_stops_only_the_recording(record, capfd):
    recorder = record()
    recorder.record_stream("o", "no bytes")
    recorder.close()
    assert "stopped: internal error: TypeError" in capfd.readouterr().err


@pytest.mark.anyio
async def test_strict_recorder_reports_a_failed_write(record, capfd):
    def full(file, data):
        raise OSError(28, "No space left on device")

    recorder = record(full, strict=True)
    with anyio.fail_after(TIMEOUT_S):
        assert "No space left on device" in await recorder.wait_for_recording_failure()
    assert recorder.close()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("strict", [False, True])
def test_failed_write_after_the_last_turn_is_reported(record, capfd, strict):
    """There is no result left that could report the failure."""

    def full(file, data):
        if b'"end"]' in data:
            raise OSError(28, "No space left on device")
        return os.write(file, data)

    recorder = record(full, strict=strict)
    assert recorder.close() is not strict
    assert capfd.readouterr().err.count("No space left on device") == 1


def test_split_secret_is_redacted_at_close(record):
    recorder = record(clean=True)
    for part in (SECRET[:30], SECRET[30:]):
        recorder.record_stream("o", b'{"text":"%s"}\n' % part.encode())
    recorder.close()
    reader, records = record.read()
    assert stream_of(records, "o") == b'{"text":"[REDACTED:anthropic-key]"}\n{"text":""}\n'
    assert reader.header.swept and reader.has_end
    assert records[-1].fields == {"kind": "redaction", "counts": {"anthropic-key": 1}}
    assert os.listdir(record.path.parent) == ["one.cast"]


def test_failed_redaction_at_close_suggests_the_redact_command(record, capfd):
    recorder = record(clean=True)
    for part in (SECRET[:30], SECRET[30:]):
        recorder.record_stream("o", b'{"text":"%s"}\n' % part.encode())
    record.path.unlink()
    recorder.close()
    stderr = capfd.readouterr().err
    assert (
        "a secret that was split over lines is still in" in stderr and "shim cast redact" in stderr
    )


@pytest.mark.parametrize("hangs", [b'"swept":true', b'"end"]'])
def test_skipped_redaction_is_reported_if_the_disk_hangs(record, capfd, monkeypatch, hangs):
    free, start_event = threading.Event(), threading.Event()
    monkeypatch.setattr(writer, "TERMINATE_TIMEOUT_S", 0.01)

    def hung(*_):
        start_event.set()
        free.wait(10)
        raise CastRewriteStoppedError

    def write(file, data):
        return hung() if hangs in data else os.write(file, data)

    monkeypatch.setattr(writer, "redact_split_secrets", hung)
    recorder = record(write, clean=True)
    for part in (SECRET[:30], SECRET[30:]):
        recorder.record_stream("o", b'{"text":"%s"}\n' % part.encode())
    recorder.close(start_event.is_set)
    stderr = capfd.readouterr().err
    assert stderr.count("may still be in") == 1 and "shim cast redact" in stderr
    assert ("the disk is too slow" in stderr) is (hangs == b'"end"]')
    free.set()
    assert recorder._writer.done.wait(10)
    assert "split" not in capfd.readouterr().err


def test_unredacted_secret_is_reported_if_the_disk_is_full(record, capfd):
    def write(file, data):
        if b"[REDACTED" in data or b'"end"]' in data:
            raise OSError(28, "No space left on device")
        return os.write(file, data)

    recorder = record(write, clean=True)
    for part in (SECRET[:30], SECRET[30:]):
        recorder.record_stream("o", b'{"text":"%s"}\n' % part.encode())
    recorder.close()
    stderr = capfd.readouterr().err
    assert stderr.count("\n") == 2 and "No space left" in stderr and "shim cast redact" in stderr


def test_child_without_an_exit_event_gets_an_exit_record(record):
    recorder = record()
    recorder.record_child_start(["one"], "/")
    recorder.record_child_start(["two"], "/").record_output("o", b"x\n")
    recorder.close()
    child_events = [
        (record.code, record.fields["child"]) for record in record.read()[1] if record.code in "sx"
    ]
    assert child_events == [("s", 1), ("x", 1), ("s", 2), ("x", 2)]


def test_diagnostics_are_recorded_as_notes(record):
    recorder, diagnostics = record(), Diagnostics()
    diagnostics.record("not_json", "x")
    diagnostics.record_unknown_event("odd")
    recorder.turn_number = 2
    recorder.record_diagnostics(diagnostics)
    recorder.close()
    assert [dict(record.fields) for record in record.read()[1]] == [
        {"kind": "repair", "repair": "not_json", "count": 1, "turn": 2},
        {"kind": "unknown_event", "event": "odd", "count": 1, "turn": 2},
    ]


def test_non_utf8_arguments_do_not_stop_the_recording(record):
    recorder = record()
    recorder.record_child_start(["a\udcff", "b"], "/home/\udcfe")
    recorder.close()
    assert record.read()[1][0].fields["argv"][1] == "b"


def test_event_time_is_the_time_of_arrival(record):
    recorder = record()
    start_s = time.monotonic()
    recorder.record_stream("o", b"x\n")
    spent = time.monotonic() - recorder._queue._start_time_s
    recorder.close()
    at = record.read()[1][0].time_s
    assert start_s - recorder._queue._start_time_s - 0.001 <= at <= spent + 0.001
