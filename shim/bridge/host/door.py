"""The socket of a host, its inner side: who may come in, and what is read of whom."""

import socket
from collections.abc import Iterable
from itertools import count

import anyio
from anyio.abc import TaskGroup

from shim.bridge.host.ends import HubSource
from shim.bridge.host.runner import Connection, HubRunner
from shim.core.bridge.frames import FULL, frame
from shim.core.reading.lines import LineSplitter
from shim.io.mcp.socket_folder import same_user
from shim.io.raw_output import tell
from shim.process.descriptors import limit_connections
from shim.state.files import aside_for

# at once: frontends, and the streams of a gateway's pages; each costs a few KiB and a descriptor
CONNECTIONS = 256
RESERVED_DESCRIPTORS = 96  # for the vendor, its tools' servers, the log, the recording and settings
HELLO_SECONDS = 10.0  # for a client's first frame, so that nobody holds a place for nothing
HELLO_BYTES = 64 * 1024  # of the first frame
CHUNK_BYTES = 64 * 1024
# where nobody can be let in, for lack of descriptors: who waits outside is still there
PAUSE_SECONDS = 0.2


class Door:
    """Lets clients in, as many as may be, and hears them; `source` says when the conversation takes
    no more lines.
    """

    def __init__(self, listening: socket.socket, runner: HubRunner, source: HubSource) -> None:
        self._listening = listening
        self._runner = runner
        self._source = source
        self._numbers = count(1)
        self._most = limit_connections(CONNECTIONS, per_connection=1, reserved=RESERVED_DESCRIPTORS)

    async def serve(self) -> None:
        """Take connections until cancelled."""
        self._listening.setblocking(False)
        async with anyio.create_task_group() as tasks:
            while True:
                await anyio.wait_readable(self._listening)
                try:
                    peer, _ = self._listening.accept()
                except BlockingIOError:
                    continue
                except OSError:  # who wanted in has gone again, or there is no descriptor left
                    await anyio.sleep(PAUSE_SECONDS)
                else:
                    self._let_in(peer, tasks)

    def _let_in(self, peer: socket.socket, tasks: TaskGroup) -> None:
        peer.setblocking(False)
        if not same_user(peer):
            peer.close()
            return
        connection = Connection(next(self._numbers), peer)
        if len(self._runner.connections) >= self._most:
            # which an empty socket takes
            connection.say(frame("bye", reason=f"{self._most}{FULL}"))
            peer.close()
            return
        self._runner.joined(connection)
        tasks.start_soon(self._converse, connection)

    async def _converse(self, connection: Connection) -> None:
        """One client, to its end."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._runner.serve, connection)
                tasks.start_soon(self._hear, connection)
                await connection.gone.wait()
                tasks.cancel_scope.cancel()
        finally:
            connection.peer.close()
            self._runner.left(connection.number)

    async def _hear(self, connection: Connection) -> None:
        """Hear a client until it has said all, or says what is no frame."""
        first = LineSplitter(HELLO_BYTES)
        lines, size = list[bytes](), 0
        with anyio.move_on_after(HELLO_SECONDS):
            while not lines and size <= HELLO_BYTES and (chunk := await _read(connection.peer)):
                lines, size = first.feed(chunk), size + len(chunk)
        if not lines:
            connection.say(
                frame(
                    "bye", reason=f"no hello of at most {HELLO_BYTES} bytes in {HELLO_SECONDS:g} s"
                )
            )
            return
        splitter = LineSplitter(self._source.limit, aside_for(self._source.limit))
        splitter.feed(b"".join(first.close()))
        await self._tell(connection, lines)
        while chunk := await _read(connection.peer):
            await self._tell(connection, splitter.feed(chunk))
            if splitter.skipped:
                connection.say(
                    frame("bye", reason=f"a frame has at most {self._source.limit} bytes")
                )
                return
        connection.gone.set()

    async def _tell(self, connection: Connection, lines: Iterable[bytes]) -> None:
        for line in lines:
            try:
                self._runner.heard(connection.number, line)
            except (
                Exception
            ) as error:  # a mistake of ours; no client may end the session of all others by it
                tell(f"the shim failed over a client's frame: {error!r}\n")
                connection.say(
                    frame("bye", reason="the shim failed over a frame; please report this")
                )
                return
            await self._source.room()


async def _read(peer: socket.socket) -> bytes:
    """The next bytes, b"" at the end."""
    while True:
        await anyio.wait_readable(peer)
        try:
            return peer.recv(CHUNK_BYTES)
        except BlockingIOError:
            continue
        except OSError:
            return b""
