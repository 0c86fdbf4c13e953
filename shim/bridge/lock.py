"""The lock file of a background session, which shows whether the session's host process is running.

The host holds the lock exclusively while it runs, and the kernel releases the lock when the host
dies. A process id would not be reliable, because it can be reused. A process that checks for a host
takes a shared lock briefly, so that no host starts while the files of a dead host are removed.

A socket that accepts connections also proves that a host is running, because the lock file may have
been deleted. Filesystems without file locks are not supported.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from shim.bridge import sockets
from shim.core.errors import FrontendError

LOCK_FILE = "lock"
NO_LOCK_ERRNOS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
ACQUIRE_TIMEOUT_S = 0.5  # processes that only check for a host release the lock sooner
POLL_INTERVAL_S = 0.005
ACQUIRE_ATTEMPTS = 10  # another process may delete and create the file meanwhile


class FileLocksUnsupportedError(FrontendError):
    """The filesystem of the state directory does not support file locks."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(
            f"background sessions need file locks, which the file system of {folder} does "
            f"not support: {reason}",
            hint="set SHIM_STATE to a folder on a file system with file locks, such as a local "
            "disk",
        )


def acquire_session_host_lock(session_folder: str) -> int | None:
    """Acquire the lock for a host that this process starts. Return the descriptor of the lock file,
    or None if another host is running.

    Raise FileLocksUnsupportedError if the filesystem has no file locks, and OSError if the folder
    cannot be written.
    """
    deadline = time.monotonic() + ACQUIRE_TIMEOUT_S
    for _ in range(ACQUIRE_ATTEMPTS):
        descriptor = os.open(
            os.path.join(session_folder, LOCK_FILE),
            os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o600,
        )
        try:
            while not _try_flock(descriptor, fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    os.close(descriptor)
                    return None
                time.sleep(POLL_INTERVAL_S)
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, OSError) and error.errno in NO_LOCK_ERRNOS:
                raise FileLocksUnsupportedError(
                    os.path.dirname(session_folder), os.strerror(error.errno)
                ) from None
            raise
        if sockets.is_host_listening(session_folder):
            os.close(descriptor)
            return None
        if _is_current_file(descriptor, session_folder):
            return descriptor
        os.close(descriptor)
    return None


@contextmanager
def probe_session_host_lock(session_folder: str) -> Iterator[bool]:
    """Yield True if the session has no running host, else False. No host can start inside the
    context.

    If the lock file is missing, only the socket is checked. Raise OSError if the filesystem has no
    file locks.
    """
    try:
        descriptor = os.open(
            os.path.join(session_folder, LOCK_FILE), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        )
    except FileNotFoundError:
        yield not sockets.is_host_listening(session_folder)
        return
    try:
        is_locked = _try_flock(descriptor, fcntl.LOCK_SH)
        yield is_locked and not sockets.is_host_listening(session_folder)
    finally:
        os.close(descriptor)


def _try_flock(descriptor: int, operation: int) -> bool:
    """Return whether the lock was acquired. Raise OSError if the filesystem has no file locks."""
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_current_file(descriptor: int, folder: str) -> bool:
    """Return whether the lock file's name still refers to the open descriptor. `remove_session`
    deletes the lock file while it holds the lock.
    """
    try:
        return os.path.samestat(
            os.fstat(descriptor), os.stat(os.path.join(folder, LOCK_FILE), follow_symlinks=False)
        )
    except OSError:
        return False
