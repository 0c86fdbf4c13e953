"""A folder for a socket of ours, those that killed processes of ours left behind, and who may be at
the other end.
"""

import os
import socket
import stat
import struct
import time
from contextlib import suppress
from itertools import islice

PREFIX, NAME = "claude-shim-", "s"  # of the folder, and of the socket in it
RANDOM_CHARACTERS = 8  # behind the prefix, as `mkdtemp` has them
PATH_BYTES = 100  # of a socket: Linux takes 107, macOS 103
LOOKED_AT = 10_000  # names beside a new folder: a shared folder may have any number
TRIED = 100  # folders of our name, each of which costs a connection
FRESH_SECONDS = 60.0  # a folder that is younger may belong to a process that does not listen yet


def new_folder() -> str:
    """A new folder that only we may enter, whose path is short enough for a socket. OSError where
    there is none.

    What was left behind beside it is removed: nobody else would, because SIGKILL leaves a process
    no time for that.
    """
    import tempfile  # costs some milliseconds, and most sockets need no folder of their own

    for place in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):
        if (
            place
            and len(os.fsencode(place)) <= PATH_BYTES - len(f"/{PREFIX}/{NAME}") - RANDOM_CHARACTERS
        ):
            with suppress(OSError):
                folder = tempfile.mkdtemp(prefix=PREFIX, dir=place)
                _sweep(place)
                return folder
    raise OSError("there is no folder for a socket")


def _sweep(place: str) -> None:
    """Remove folders of ours in `place` in whose socket nobody listens. One that cannot be removed
    stays.
    """
    length = len(PREFIX) + RANDOM_CHARACTERS
    with suppress(OSError), os.scandir(place) as entries:
        names = (one.name for one in islice(entries, LOOKED_AT))
        found = [name for name in names if name.startswith(PREFIX) and len(name) == length]
        for name in found[:TRIED]:
            with suppress(OSError):
                _remove_stale(os.path.join(place, name))


def _remove_stale(path: str) -> None:
    """Remove one folder if it is ours, has nothing but a socket in which nobody listens, and is not
    new.
    """
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status, inside = os.fstat(folder), os.listdir(folder)
        ours = status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) == 0o700
        if (
            not ours
            or inside not in ([], [NAME])
            or abs(time.time() - status.st_mtime) < FRESH_SECONDS
        ):
            return
        if inside:
            if not stat.S_ISSOCK(os.lstat(NAME, dir_fd=folder).st_mode) or not _refused(
                os.path.join(path, NAME)
            ):
                return
            os.unlink(NAME, dir_fd=folder)
        os.rmdir(path)
    finally:
        os.close(folder)


def _refused(path: str) -> bool:
    """Whether nobody listens. A socket that is only busy has its process."""
    with socket.socket(socket.AF_UNIX) as link:
        link.setblocking(False)
        try:
            link.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def same_user(link: socket.socket) -> bool:
    """Whether the other end is a process of our own user."""
    try:
        if hasattr(socket, "SO_PEERCRED"):
            _, user, _ = struct.unpack(
                "3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            )
        else:  # struct xucred of macOS and the BSDs: its version, then the user
            _, user = struct.unpack("2I", link.getsockopt(0, 1, 76)[:8])
    except (OSError, struct.error):
        return False
    return bool(user == os.getuid())
