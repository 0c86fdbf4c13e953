"""The server for a host's Unix socket. It accepts clients and reads their frames."""

import socket
from collections.abc import Iterable
from itertools import count

import anyio
from anyio.abc import TaskGroup

from shim.bridge.host.hub_streams import HubStdin
from shim.bridge.host.runner import ClientConnection, SessionHubRunner
from shim.core.bridge.frames import FULL_REASON, encode_frame
from shim.core.reading.lines import LineSplitter
from shim.io.stderr import warn
from shim.io.unix.connections import accept_connections, read_chunk
from shim.process.descriptors import compute_connection_limit
from shim.state.files import select_spill_file_opener

# The limit for frontends and gateway streams together. Each needs a few KiB and a descriptor.
MAX_CONNECTIONS = 256
RESERVED_DESCRIPTORS = 96  # used by the vendor, MCP servers, the log, the recording and settings
HELLO_TIMEOUT_S = 10.0  # from the connection to the first frame
MAX_HELLO_BYTES = 64 * 1024  # size of the first frame


class UnixServer:
    """The server for a host's Unix socket. It accepts a limited number of clients. While
    `hub_stdin` is full, frames are not read from clients.
    """

    def __init__(
        self, listener: socket.socket, runner: SessionHubRunner, hub_stdin: HubStdin
    ) -> None:
        self._listener = listener
        self._runner = runner
        self._hub_stdin = hub_stdin
        self._client_numbers = count(1)
        self._max_connections = compute_connection_limit(
            MAX_CONNECTIONS, per_connection=1, reserved=RESERVED_DESCRIPTORS
        )

    async def accept_clients(self) -> None:
        """Accept connections until the task is cancelled."""
        async with anyio.create_task_group() as tasks:
            async for peer in accept_connections(self._listener):
                self._accept_client(peer, tasks)

    def _accept_client(self, peer: socket.socket, tasks: TaskGroup) -> None:
        connection = ClientConnection(next(self._client_numbers), peer)
        if len(self._runner.connections) >= self._max_connections:
            # The frame fits into the empty buffer of a new socket.
            connection.send_and_close(
                encode_frame("bye", reason=f"{self._max_connections}{FULL_REASON}")
            )
            peer.close()
            return
        self._runner.add_client(connection)
        tasks.start_soon(self._serve_client, connection)

    async def _serve_client(self, connection: ClientConnection) -> None:
        """Serve one client until its connection ends."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._runner.serve_client, connection)
                tasks.start_soon(self._read_client, connection)
                await connection.disconnect_event.wait()
                tasks.cancel_scope.cancel()
        finally:
            connection.peer.close()
            self._runner.remove_client(connection.number)

    async def _read_client(self, connection: ClientConnection) -> None:
        """Read frames from a client until the connection ends or a frame is too long."""
        hello_splitter = LineSplitter(MAX_HELLO_BYTES)
        lines = list[bytes]()
        size = 0
        with anyio.move_on_after(HELLO_TIMEOUT_S):
            while (
                not lines
                and size <= MAX_HELLO_BYTES
                and (chunk := await read_chunk(connection.peer))
            ):
                lines = hello_splitter.feed(chunk)
                size = size + len(chunk)
        if not lines:
            connection.send_and_close(
                encode_frame(
                    "bye",
                    reason=f"no hello frame of at most {MAX_HELLO_BYTES} bytes was received within "
                    f"{HELLO_TIMEOUT_S:g} s",
                )
            )
            return
        splitter = LineSplitter(
            self._hub_stdin.max_bytes, select_spill_file_opener(self._hub_stdin.max_bytes)
        )
        splitter.feed(b"".join(hello_splitter.close()))
        await self._pass_lines(connection, lines)
        while chunk := await read_chunk(connection.peer):
            await self._pass_lines(connection, splitter.feed(chunk))
            if splitter.skipped_lines:
                connection.send_and_close(
                    encode_frame(
                        "bye", reason=f"a frame can have at most {self._hub_stdin.max_bytes} bytes"
                    )
                )
                return
        connection.disconnect_event.set()

    async def _pass_lines(self, connection: ClientConnection, lines: Iterable[bytes]) -> None:
        for line in lines:
            try:
                self._runner.on_client_frame(connection.number, line)
            except Exception as error:
                # An error in the shim must not end the session for the other clients.
                warn(f"internal error while handling a client frame: {error!r}\n")
                connection.send_and_close(
                    encode_frame(
                        "bye",
                        reason="internal error while handling a client frame; please report this",
                    )
                )
                return
            await self._hub_stdin.wait_for_queue_space()
