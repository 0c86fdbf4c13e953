"""Writes without an event loop: they never block forever, and write no more than is accepted."""

import fcntl
import os
import threading

import pytest

from shim.io import stderr


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    yield reader, writer
    for descriptor in (reader, writer):
        try:
            os.close(descriptor)
        except OSError:
            pass


def test_write_available_returns_the_unwritten_bytes(pipe):
    reader, writer = pipe
    remainder = stderr.write_available(writer, b"x" * 10_000)
    assert remainder == b"x" * (10_000 - 4096)
    assert os.read(reader, 9999) == b"x" * 4096
    assert os.get_blocking(writer), "the mode is shared with whoever else holds the pipe"


def test_write_all_writes_everything_to_a_slow_reader(pipe):
    reader, writer = pipe
    chunks = []
    thread = threading.Thread(
        target=lambda: [chunks.append(os.read(reader, 777)) for _ in range(40)]
    )
    thread.start()
    stderr.write_all(writer, b"x" * 20_000, lambda: True)
    os.close(writer)
    thread.join()
    assert b"".join(chunks) == b"x" * 20_000


def test_write_all_returns_at_termination_if_the_pipe_is_full(pipe):
    stderr.write_all(pipe[1], b"x" * 20_000, lambda: True)


def test_unread_stderr_is_waited_for_only_once_until_read(monkeypatch):
    waits = []
    answers = [b"left", b"left", b"", b"left"]

    def offer(descriptor, data, seconds):
        waits.append(seconds)
        return answers.pop(0)

    monkeypatch.setattr(stderr, "write_available", offer)
    monkeypatch.setattr(stderr, "_is_stderr_unread", False)
    for _ in range(4):
        stderr.warn("word\n")
    assert waits == [stderr.STDERR_TIMEOUT_S, 0.0, 0.0, stderr.STDERR_TIMEOUT_S]
