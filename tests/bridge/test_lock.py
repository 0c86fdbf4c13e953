"""The lock that dies with its host, and what stands in its place where a filesystem has none."""

import errno
import fcntl
import os
import threading
import time

import pytest
from box import PATIENCE

from shim.bridge import lock, sockets


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path)


def dead(folder):
    with lock.dead(folder) as found:
        return found


@pytest.fixture
def lockless(monkeypatch):
    def refuse(descriptor, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_a_lock_is_held_by_one(folder, monkeypatch):
    monkeypatch.setattr(lock, "TAKE_SECONDS", 0.05)
    assert dead(folder)
    held = lock.take(folder)
    assert held is not None and held.sure
    assert lock.take(folder) is None and not dead(folder)
    os.close(held.descriptor)
    assert dead(folder)


def test_who_looks_does_not_keep_a_host_from_beginning(folder, monkeypatch):
    monkeypatch.setattr(lock, "TAKE_SECONDS", PATIENCE)
    os.close(lock.take(folder).descriptor)
    with lock.dead(folder) as first, lock.dead(folder) as second:
        assert first and second
    looking = lock.dead(folder)
    assert looking.__enter__()
    timer = threading.Timer(0.1, lambda: looking.__exit__(None, None, None))
    timer.start()
    held = lock.take(folder)
    timer.join()
    assert held is not None
    os.close(held.descriptor)


def test_a_lock_of_a_folder_that_was_removed_meanwhile_is_taken_anew(folder, monkeypatch):
    real, removed = fcntl.flock, []

    def remove_first(descriptor, how):
        if not removed:
            removed.append(os.unlink(os.path.join(folder, lock.NAME)))
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    held = lock.take(folder)
    assert held is not None and os.path.samestat(os.fstat(held.descriptor), os.stat(os.path.join(folder, lock.NAME)))
    os.close(held.descriptor)


def test_where_there_are_no_locks_a_socket_that_answers_is_the_sign_of_life(folder, lockless):
    held = lock.take(folder)
    assert held is not None and not held.sure and dead(folder)
    with sockets.listen(folder):
        assert not dead(folder) and lock.take(folder) is None
    assert dead(folder)
    os.close(held.descriptor)


def test_a_socket_that_answers_is_a_sign_of_life_whatever_the_lock_says(folder):
    """Its host may have had no lock where we have one."""
    with sockets.listen(folder):
        assert not dead(folder) and lock.take(folder) is None
    held = lock.take(folder)
    assert held is not None
    os.close(held.descriptor)


def test_another_fault_of_a_lock_is_an_error(folder, monkeypatch):
    def refuse(descriptor, how):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="Input/output"):
        lock.take(folder)


def test_a_link_in_the_place_of_the_lock_is_not_followed(folder, tmp_path):
    target = tmp_path / "target"
    target.touch()
    os.symlink(target, os.path.join(folder, lock.NAME))
    with pytest.raises(OSError):
        lock.take(folder)


def test_who_has_to_wait_gives_up_in_time(folder, monkeypatch):
    monkeypatch.setattr(lock, "TAKE_SECONDS", 0.05)
    held = lock.take(folder)
    begun = time.monotonic()
    assert lock.take(folder) is None and time.monotonic() - begun >= 0.05
    os.close(held.descriptor)
