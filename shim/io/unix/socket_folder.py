"""Creates private folders for sockets, removes stale ones, and checks the user of a connection."""

import os
import socket
import stat
import struct
import time
from contextlib import suppress
from itertools import islice

# of the folder, and of the socket in it
FOLDER_PREFIX = "claude-shim-"
SOCKET_NAME = "s"
RANDOM_SUFFIX_CHARS = 8  # after the prefix, added by `mkdtemp`
MAX_PATH_BYTES = 100  # of a socket; Linux allows 107 and macOS 103
MAX_SCANNED_NAMES = 10_000  # beside a new folder; a shared folder may have any number of entries
MAX_STALE_CHECKS = 100  # folders with the shim's prefix; each check costs a connection
MIN_STALE_AGE_S = 60.0  # the process of a newer folder may not listen yet


def create_socket_folder() -> str:
    """Create a private folder whose path is short enough for a socket. Raise OSError if no parent
    is suitable.

    Stale folders beside it are removed, because a process that was killed by SIGKILL could not
    remove its folder.
    """
    import tempfile  # takes some milliseconds, and most runs need no socket folder

    for parent in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):
        if (
            parent
            and len(os.fsencode(parent))
            <= MAX_PATH_BYTES - len(f"/{FOLDER_PREFIX}/{SOCKET_NAME}") - RANDOM_SUFFIX_CHARS
        ):
            with suppress(OSError):
                folder = tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent)
                _remove_stale_folders(parent)
                return folder
    raise OSError("no folder is available for a socket")


def _remove_stale_folders(parent: str) -> None:
    """Remove the shim's folders in `parent` whose socket has no listener. Errors are ignored."""
    length = len(FOLDER_PREFIX) + RANDOM_SUFFIX_CHARS
    with suppress(OSError), os.scandir(parent) as entries:
        names = (entry.name for entry in islice(entries, MAX_SCANNED_NAMES))
        candidates = [
            name for name in names if name.startswith(FOLDER_PREFIX) and len(name) == length
        ]
        for name in candidates[:MAX_STALE_CHECKS]:
            with suppress(OSError):
                _remove_if_stale(os.path.join(parent, name))


def _remove_if_stale(path: str) -> None:
    """Remove a folder of the user that is not new, and that contains nothing but a socket without a
    listener.
    """
    folder_descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(folder_descriptor)
        names = os.listdir(folder_descriptor)
        is_private = status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) == 0o700
        if (
            not is_private
            or names not in ([], [SOCKET_NAME])
            or abs(time.time() - status.st_mtime) < MIN_STALE_AGE_S
        ):
            return
        if names:
            if not stat.S_ISSOCK(
                os.lstat(SOCKET_NAME, dir_fd=folder_descriptor).st_mode
            ) or not _is_refused(os.path.join(path, SOCKET_NAME)):
                return
            os.unlink(SOCKET_NAME, dir_fd=folder_descriptor)
        os.rmdir(path)
    finally:
        os.close(folder_descriptor)


def _is_refused(path: str) -> bool:
    """Return whether a socket has no listener. A socket with a full backlog has a listener."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.setblocking(False)
        try:
            connection.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def is_same_user_peer(connection: socket.socket) -> bool:
    """Return whether the other end is a process of the same user."""
    try:
        if hasattr(socket, "SO_PEERCRED"):
            _, user_id, _ = struct.unpack(
                "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            )
        else:  # struct xucred of macOS and the BSDs: its version, then the user
            _, user_id = struct.unpack("2I", connection.getsockopt(0, 1, 76)[:8])
    except (OSError, struct.error):
        return False
    return bool(user_id == os.getuid())
