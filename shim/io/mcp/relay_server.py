"""The socket through which relays reach the MCP servers of the frontend's process.

It stands in a folder of ours with a random name that nobody else may enter. Who connects must be
our own user, and says a ticket first, which only the environment of a relay has; it names the
server.
"""

import secrets
import shutil
import socket
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import anyio
import orjson
from anyio.abc import TaskGroup

from shim.core.claude.permissions import TURN_STOPPED_TEXT, PermissionDecision
from shim.core.claude.sdk_servers import (
    MAX_PENDING_REQUESTS,
    TOO_MANY_REQUESTS_TEXT,
    SdkMcpServerRegistry,
)
from shim.core.reading.lines import LineSplitter
from shim.io.mcp.relay import SOCKET_VARIABLE, TICKET_VARIABLE
from shim.io.mcp.socket_folder import SOCKET_NAME, create_socket_folder, is_same_user_peer

RELAY_ARGS = ("-I", "-m", "shim.io.mcp.relay")
MAX_CONNECTIONS = 64  # at once: a vendor starts one relay a server, and now and then another one
TICKET_TIMEOUT_S = 10.0  # for a relay's ticket, which it says before anything else
# for what is no call: the real claude waits no longer for a server that starts
ANSWER_TIMEOUT_S = 60.0
# of one message of a vendor's; a line of ours may hold much less
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
# of answers that a relay has not read; one that reads nothing is let go
MAX_UNREAD_BYTES = 64 * 1024 * 1024
CHUNK_BYTES = 64 * 1024
# where nobody can be let in, for lack of descriptors: who waits outside is still there
ACCEPT_RETRY_S = 0.2


class McpRelayServer:
    """One socket, opened when a vendor is first told of the servers.

    `flush` writes what the servers are asked; `decide_call` decides about a call of a tool before
    it is put to its server; `call_timeout_s` is how long the frontend may take for one.
    """

    def __init__(
        self,
        servers: SdkMcpServerRegistry,
        flush: Callable[[], Awaitable[None]],
        decide_call: Callable[[str, Mapping[str, Any]], Awaitable[PermissionDecision]],
        call_timeout_s: float,
    ) -> None:
        self._servers = servers
        self._flush = flush
        self._decide_call = decide_call
        self._pending_decisions = 0  # calls that wait for a decision
        self._call_timeout_s = call_timeout_s
        self._tickets: dict[str, str] = {}  # ticket → server
        # request → when it is late, and after how many seconds
        self._deadlines: dict[str, tuple[float, float]] = {}
        self._deadlines_changed = anyio.Event()
        self._folder = ""
        self._socket: socket.socket | None = None
        self.connection_count = 0

    def build_server_configs(self, server_names: Iterable[str]) -> dict[str, Mapping[str, Any]]:
        """What a vendor is told of the servers: each is a command, which is a relay. OSError where
        there is no socket.

        The ticket stands in the environment of the relay alone, so that nothing else that the
        vendor starts has it.
        """
        if self._socket is None:
            self._open_socket()
        ticket_by_server = {server: ticket for ticket, server in self._tickets.items()}
        for name in server_names:
            if name not in ticket_by_server:
                ticket_by_server[name] = secrets.token_hex(16)
                self._tickets[ticket_by_server[name]] = name
        path = f"{self._folder}/{SOCKET_NAME}"
        command = {"command": sys.executable, "args": list(RELAY_ARGS)}
        return {
            name: {
                **command,
                "env": {SOCKET_VARIABLE: path, TICKET_VARIABLE: ticket_by_server[name]},
            }
            for name in server_names
        }

    def _open_socket(self) -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.setblocking(False)
        try:
            self._folder = create_socket_folder()
            listener.bind(f"{self._folder}/{SOCKET_NAME}")
            listener.listen(MAX_CONNECTIONS)
        except OSError:
            listener.close()
            self._remove_folder()
            raise
        self._socket = listener

    def _remove_folder(self) -> None:
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def serve(self) -> None:
        """Take connections until cancelled; then nothing of the door is left."""
        assert self._socket is not None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._expire_requests)
                while True:
                    await anyio.wait_readable(self._socket)
                    try:
                        connection, _ = self._socket.accept()
                    except OSError:  # who wanted in has gone again, or there is no descriptor left
                        await anyio.sleep(ACCEPT_RETRY_S)
                    else:
                        self._accept_connection(connection, tasks)
        finally:
            self._socket.close()
            self._remove_folder()

    def _accept_connection(self, connection: socket.socket, tasks: TaskGroup) -> None:
        connection.setblocking(False)
        if self.connection_count >= MAX_CONNECTIONS or not is_same_user_peer(connection):
            connection.close()
            return
        self.connection_count += 1
        tasks.start_soon(self._serve_connection, connection)

    async def _serve_connection(self, connection: socket.socket) -> None:
        """One relay, from its ticket to its end."""
        splitter, relay = LineSplitter(MAX_MESSAGE_BYTES), None
        try:
            with anyio.move_on_after(TICKET_TIMEOUT_S):
                lines = await _read_first_lines(connection, splitter)
                server = (
                    self._tickets.get(lines.pop(0).decode("ascii", "replace")) if lines else None
                )
                relay = None if server is None else McpRelayConnection(connection, server)
            if relay is None:
                return
            self._servers.add_connection(relay)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(relay.write_queued_lines)
                await self._forward_lines(relay, lines, tasks)
                while chunk := await _read_chunk(connection):
                    await self._forward_lines(relay, splitter.feed(chunk), tasks)
                tasks.cancel_scope.cancel()
        finally:
            connection.close()
            self.connection_count -= 1
            if relay is not None:
                self._servers.remove_connection(relay)
                with anyio.move_on_after(1, shield=True):
                    await self._flush()

    async def _forward_lines(
        self, relay: "McpRelayConnection", lines: list[bytes], tasks: TaskGroup
    ) -> None:
        """Put whole lines of a vendor's to the frontend; a call waits for its decision, and no
        other line for it.
        """
        for line in lines:
            if not line.strip():
                continue
            try:
                message = orjson.loads(line)
            except orjson.JSONDecodeError:
                message = None
            tool_call = self._servers.parse_tool_call(relay, message)
            if tool_call is None:
                self._send_request(relay, message, ANSWER_TIMEOUT_S)
            elif self._pending_decisions >= MAX_PENDING_REQUESTS:
                self._servers.deny_tool_call(relay, message, TOO_MANY_REQUESTS_TEXT)
            else:
                self._pending_decisions += 1
                tasks.start_soon(self._call_tool, relay, message, *tool_call)
        await self._flush()

    async def _call_tool(
        self,
        relay: "McpRelayConnection",
        message: dict[str, Any],
        tool: str,
        tool_input: Mapping[str, Any],
    ) -> None:
        """Call a tool if that may be: as it was said, or as the frontend changed it."""
        try:
            decision = await self._decide_call(tool, tool_input)
        finally:
            self._pending_decisions -= 1
        if not decision.allow:
            self._servers.deny_tool_call(relay, message, decision.message or TURN_STOPPED_TEXT)
            return
        if decision.updated_input is not None:
            message = {
                **message,
                "params": {**message["params"], "arguments": decision.updated_input},
            }
        self._send_request(relay, message, self._call_timeout_s)
        await self._flush()

    def _send_request(self, relay: "McpRelayConnection", message: object, timeout_s: float) -> None:
        request_id = self._servers.forward_client_message(relay, message)
        if request_id is not None:
            self._deadlines[request_id] = anyio.current_time() + timeout_s, timeout_s
            self._deadlines_changed.set()

    async def _expire_requests(self) -> None:
        """Give up on what the frontend does not answer."""
        while True:
            self._deadlines_changed = anyio.Event()
            self._deadlines = {
                pending_id: deadline
                for pending_id, deadline in self._deadlines.items()
                if self._servers.is_request_pending(pending_id)
            }
            now = anyio.current_time()
            for request_id, (deadline, timeout_s) in self._deadlines.items():
                if deadline <= now:
                    self._servers.expire_request(request_id, timeout_s)
            next_deadlines = [
                deadline for deadline, _ in self._deadlines.values() if deadline > now
            ]
            await self._flush()
            with anyio.move_on_at(min(next_deadlines, default=float("inf"))):
                await self._deadlines_changed.wait()


class McpRelayConnection:
    """One connection to the server `server_name`, and what is still to be written to it."""

    def __init__(self, connection: socket.socket, server_name: str) -> None:
        self.server_name = server_name
        self._connection = connection
        self._lines: deque[bytes] = deque()
        self._unread_bytes = 0
        self._has_lines = anyio.Event()

    def queue_line(self, line: bytes) -> None:
        self._unread_bytes += len(line)
        if self._unread_bytes > MAX_UNREAD_BYTES:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)  # our reading of it comes to its end
            return
        self._lines.append(line)
        self._has_lines.set()

    async def write_queued_lines(self) -> None:
        """Write what is delivered, until cancelled or the relay has gone."""
        while True:
            while self._lines:
                view = memoryview(self._lines.popleft())
                self._unread_bytes -= len(view)
                while view:
                    try:
                        view = view[self._connection.send(view) :]
                    except BlockingIOError:
                        await anyio.wait_writable(self._connection)
                    except OSError:
                        return
            self._has_lines = anyio.Event()
            await self._has_lines.wait()


async def _read_first_lines(connection: socket.socket, splitter: LineSplitter) -> list[bytes]:
    """The first whole lines; none from one that says nothing."""
    while chunk := await _read_chunk(connection):
        if lines := splitter.feed(chunk):
            return lines
    return []


async def _read_chunk(connection: socket.socket) -> bytes:
    """The next bytes, b"" at the end."""
    while True:
        await anyio.wait_readable(connection)
        try:
            return connection.recv(CHUNK_BYTES)
        except BlockingIOError:
            continue
        except OSError:
            return b""
