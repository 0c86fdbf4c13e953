"""The lock of a session, which dies with its host: never a process id alone, those come back.

A host holds it alone for its life. Who looks whether a host lives shares it for a moment, so that no host begins while
a dead one is tidied. Some filesystems have no locks, or not for every process: a socket that answers is a sign of life
too.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from shim.bridge import sockets
from shim.core.reading.typed import NamedTuple

NAME = "lock"
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
TAKE_SECONDS = 0.5  # for those to finish who only look
LOOK_SECONDS = 0.005
TRIES = 10  # to lock a file that is removed and made anew meanwhile


class Held(NamedTuple):
    """A lock that we hold by its descriptor. `sure` is False where the filesystem has no locks."""

    descriptor: int
    sure: bool = True


def take(folder: str) -> Held | None:
    """The lock for a host of ours; None while another one lives. OSError where the folder cannot be written."""
    deadline = time.monotonic() + TAKE_SECONDS
    for _ in range(TRIES):
        descriptor = os.open(os.path.join(folder, NAME), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            while not (locked := _lock(descriptor, fcntl.LOCK_EX)) and locked is not None:
                if time.monotonic() > deadline:
                    os.close(descriptor)
                    return None
                time.sleep(LOOK_SECONDS)
        except BaseException:
            os.close(descriptor)
            raise
        if sockets.answers(folder):
            os.close(descriptor)
            return None
        if _in_place(descriptor, folder):
            return Held(descriptor, sure=bool(locked))
        os.close(descriptor)
    return None


@contextmanager
def dead(folder: str) -> Iterator[bool]:
    """Whether no host lives; while the context lasts, none begins."""
    try:
        descriptor = os.open(os.path.join(folder, NAME), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        yield not sockets.answers(folder)
        return
    try:
        shared = _lock(descriptor, fcntl.LOCK_SH)
        yield shared is not False and not sockets.answers(folder)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, how: int) -> bool | None:
    """Whether the lock was had; None where there are no locks."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in NO_LOCKS:
            return None
        raise
    return True


def _in_place(descriptor: int, folder: str) -> bool:
    """Whether the file is still the one of that name: who removes a session removes it under this lock."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(os.path.join(folder, NAME), follow_symlinks=False))
    except OSError:
        return False
