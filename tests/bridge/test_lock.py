"""The lock that ends with its host, and the refusal of a file system without locks."""

import errno
import fcntl
import os
import threading
import time

import pytest
from box import TIMEOUT_S

from shim.bridge import lock, sockets


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path)


def dead(folder):
    with lock.probe_session_host_lock(folder) as is_free:
        return is_free


def test_host_lock_is_exclusive(folder, monkeypatch):
    monkeypatch.setattr(lock, "ACQUIRE_TIMEOUT_S", 0.05)
    assert dead(folder)
    host_lock = lock.acquire_session_host_lock(folder)
    assert host_lock is not None
    assert lock.acquire_session_host_lock(folder) is None and not dead(folder)
    os.close(host_lock)
    assert dead(folder)


def test_acquire_succeeds_after_a_concurrent_probe(folder, monkeypatch):
    monkeypatch.setattr(lock, "ACQUIRE_TIMEOUT_S", TIMEOUT_S)
    os.close(lock.acquire_session_host_lock(folder))
    with (
        lock.probe_session_host_lock(folder) as first,
        lock.probe_session_host_lock(folder) as second,
    ):
        assert first and second
    looking = lock.probe_session_host_lock(folder)
    assert looking.__enter__()
    timer = threading.Timer(0.1, lambda: looking.__exit__(None, None, None))
    timer.start()
    host_lock = lock.acquire_session_host_lock(folder)
    timer.join()
    assert host_lock is not None
    os.close(host_lock)


def test_lock_file_removed_during_acquire_is_recreated(folder, monkeypatch):
    real, removed = fcntl.flock, []

    def remove_first(descriptor, how):
        if not removed:
            removed.append(os.unlink(os.path.join(folder, lock.LOCK_FILE)))
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    host_lock = lock.acquire_session_host_lock(folder)
    assert host_lock is not None and os.path.samestat(
        os.fstat(host_lock), os.stat(os.path.join(folder, lock.LOCK_FILE))
    )
    os.close(host_lock)


@pytest.mark.parametrize("number", lock.NO_LOCK_ERRNOS, ids=errno.errorcode.get)
def test_filesystem_without_file_locks_is_rejected(folder, monkeypatch, number):
    def refuse(descriptor, how):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(lock.FileLocksUnsupportedError) as refused:
        lock.acquire_session_host_lock(folder)
    assert os.path.dirname(folder) in str(refused.value) and os.strerror(number) in str(
        refused.value
    )
    assert "SHIM_STATE" in refused.value.hint
    with pytest.raises(OSError, match=os.strerror(number)):
        dead(folder)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_listening_socket_blocks_the_lock(folder):
    """The lock's file may have been deleted."""
    with sockets.open_host_listener(folder):
        assert not dead(folder) and lock.acquire_session_host_lock(folder) is None
    host_lock = lock.acquire_session_host_lock(folder)
    assert host_lock is not None
    os.close(host_lock)


def test_other_lock_error_is_raised(folder, monkeypatch):
    def refuse(descriptor, how):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="Input/output"):
        lock.acquire_session_host_lock(folder)


def test_symlink_as_lock_file_is_rejected(folder, tmp_path):
    target = tmp_path / "target"
    target.touch()
    os.symlink(target, os.path.join(folder, lock.LOCK_FILE))
    with pytest.raises(OSError):
        lock.acquire_session_host_lock(folder)


def test_lock_acquisition_times_out(folder, monkeypatch):
    monkeypatch.setattr(lock, "ACQUIRE_TIMEOUT_S", 0.05)
    host_lock = lock.acquire_session_host_lock(folder)
    started_at = time.monotonic()
    assert lock.acquire_session_host_lock(folder) is None and time.monotonic() - started_at >= 0.05
    os.close(host_lock)
