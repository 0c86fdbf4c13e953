"""Creates private folders for Unix sockets, removes stale folders, and checks which user has
connected.
"""

import os
import socket
import stat
import struct
import time
from contextlib import suppress
from itertools import islice

# The prefix for names of socket folders, and the name of the socket inside a folder.
FOLDER_PREFIX = "claude-shim-"
SOCKET_NAME = "s"
RANDOM_SUFFIX_CHARS = 8  # the number of characters that `mkdtemp` adds to the prefix
MAX_PATH_BYTES = 100  # for a socket path; Linux allows 107 bytes and macOS 103
MAX_SCANNED_NAMES = 10_000  # the parent may be a shared folder with any number of entries
MAX_STALE_CHECKS = 100  # limits the checks, because each check opens a connection
MIN_STALE_AGE_S = 60.0  # a newer folder may belong to a process that is not listening yet


def create_socket_folder() -> str:
    """Create a private folder whose path is short enough for a Unix socket. Raise OSError if no
    parent folder is suitable.

    Stale folders in the same parent are removed. A process that was killed by SIGKILL could not
    remove its own folder.
    """
    import tempfile  # takes milliseconds, and most runs need no socket folder

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
    """Remove the shim's folders in `parent` whose sockets have no listener. Errors are ignored."""
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
    """Remove a folder if it belongs to the user, is not new, and contains only a socket without a
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
    """Return whether a socket has no listener. A full backlog means that there is a listener."""
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
    """Return whether the process at the other end of a connection belongs to the same user."""
    try:
        if hasattr(socket, "SO_PEERCRED"):
            _, user_id, _ = struct.unpack(
                "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            )
        else:  # struct xucred on macOS and the BSDs: the version, then the user id
            _, user_id = struct.unpack("2I", connection.getsockopt(0, 1, 76)[:8])
    except (OSError, struct.error):
        return False
    return bool(user_id == os.getuid())
