"""Accepts Unix socket connections from processes of the same user."""

import socket
from collections.abc import AsyncIterator

import anyio

from shim.io.unix.socket_folder import is_same_user_peer

READ_CHUNK_BYTES = 64 * 1024
# The delay before the next attempt if the process has no free file descriptor.
# The client waits in the backlog.
ACCEPT_RETRY_DELAY_S = 0.2


async def accept_connections(listener: socket.socket) -> AsyncIterator[socket.socket]:
    """Yield connections from processes of the same user."""
    listener.setblocking(False)
    while True:
        await anyio.wait_readable(listener)
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            continue
        except OSError:  # the client has disconnected, or there is no free descriptor
            await anyio.sleep(ACCEPT_RETRY_DELAY_S)
            continue
        connection.setblocking(False)
        if is_same_user_peer(connection):
            yield connection
        else:
            connection.close()


async def read_chunk(connection: socket.socket) -> bytes:
    """Return the next bytes from a connection, or b"" at the end."""
    while True:
        await anyio.wait_readable(connection)
        try:
            return connection.recv(READ_CHUNK_BYTES)
        except BlockingIOError:
            continue
        except OSError:
            return b""
