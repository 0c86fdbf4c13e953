"""The Unix socket of a background session: a file in the session's folder. The path may have any
length, and only the same user may connect.
"""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from shim.io.unix.socket_folder import MAX_PATH_BYTES, create_socket_folder, is_same_user_peer
from shim.io.unix.socket_folder import SOCKET_NAME as SHORT_SOCKET_FILE

SOCKET_FILE = "socket"
# The backlog: connections that wait while the host is busy or starts. The system may allow fewer.
LISTEN_BACKLOG = 128
CONNECT_TIMEOUT_S = 5  # how long to wait while the backlog is full


def open_host_listener(folder: str) -> socket.socket:
    """Open a listening socket in `folder` with mode 0600. Raise OSError (EADDRINUSE) if the socket
    file already exists.
    """
    listener = socket.socket(socket.AF_UNIX)
    try:
        with _open_short_path(folder, is_new=True) as path:
            listener.bind(path)
            os.chmod(path, 0o600)
        listener.listen(LISTEN_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def connect_to_host(folder: str) -> socket.socket:
    """Connect to the session host whose socket is in `folder`. Return a blocking socket. Raise
    OSError if no process of the same user is listening.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        # `settimeout` would make the socket non-blocking, and `connect` would fail at once if the
        # backlog is full.
        connection.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDTIMEO, _pack_timeval(CONNECT_TIMEOUT_S)
        )
        with _open_short_path(folder) as path:
            connection.connect(path)
        if not is_same_user_peer(connection):
            raise PermissionError("the socket belongs to another user")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _pack_timeval(0))
    except BaseException:
        connection.close()
        raise
    return connection


def is_host_listening(folder: str) -> bool:
    """Return whether a process listens on the socket. A full backlog also proves that a process is
    listening.
    """
    try:
        with socket.socket(socket.AF_UNIX) as connection, _open_short_path(folder) as path:
            connection.setblocking(False)
            connection.connect(path)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


def find_socket_file_id(folder: str) -> tuple[int, int] | None:
    """Return the device and inode of the socket file, or None if the file is missing. They
    distinguish the file from a later file with the same name.
    """
    try:
        status = os.lstat(os.path.join(folder, SOCKET_FILE))
    except OSError:
        return None
    return status.st_dev, status.st_ino


def remove_host_socket(folder: str) -> None:
    """Remove the socket file. If it is a symlink, which is used for a long path, remove its target,
    too.
    """
    path = os.path.join(folder, SOCKET_FILE)
    with suppress(OSError):
        target_path = os.readlink(path)
        os.unlink(target_path)
        os.rmdir(os.path.dirname(target_path))
    with suppress(OSError):
        os.unlink(path)


def _pack_timeval(seconds: int) -> bytes:
    """Return a packed `struct timeval`."""
    return struct.pack("@ll", seconds, 0)


@contextmanager
def _open_short_path(folder: str, *, is_new: bool = False) -> Iterator[str]:
    """Yield a path of the socket that has at most MAX_PATH_BYTES bytes."""
    path = os.path.join(folder, SOCKET_FILE)
    if len(os.fsencode(path)) <= MAX_PATH_BYTES:
        yield path
    elif os.path.isdir("/proc/self/fd"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{descriptor}/{SOCKET_FILE}"
        finally:
            os.close(descriptor)
    elif not is_new:
        yield os.readlink(path)
    else:
        target_path = os.path.join(create_socket_folder(), SHORT_SOCKET_FILE)
        os.symlink(target_path, path)
        yield target_path
