"""The socket server that connects relays to the MCP servers in the frontend's process.

The socket is in a private folder. A client must run as the current user, and must first send a
ticket, which identifies its MCP server. The ticket is only in the relay's environment.
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
from shim.core.policy.policy import AGENT_SERVER
from shim.core.reading.lines import LineSplitter
from shim.io.mcp.agent_server import AgentToolServer
from shim.io.mcp.relay import SOCKET_VARIABLE, TICKET_VARIABLE
from shim.io.unix.connections import accept_connections, read_chunk
from shim.io.unix.socket_folder import SOCKET_NAME, create_socket_folder

RELAY_ARGS = ("-I", "-m", "shim.io.mcp.relay")
MAX_CONNECTIONS = 64  # a vendor starts one relay per server, or sometimes two
TICKET_TIMEOUT_S = 10.0  # for a relay to send its ticket
# The timeout for requests other than tool calls.
# The real claude waits as long for a server to start.
ANSWER_TIMEOUT_S = 60.0
# The size limit for one message from a vendor.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
# The size limit for unread answers. A relay that exceeds it is disconnected.
MAX_UNREAD_BYTES = 64 * 1024 * 1024


class McpRelayServer:
    """The relay socket of one run. The socket is opened when servers are first passed to a vendor.

    flush           writes queued requests to the frontend
    decide_call     decides whether a tool call may run, before the MCP server receives it
    call_timeout_s  how long the frontend may take for a tool call, in seconds
    agent_server    the shim's own server, whose tool starts subagents; None if this run has no
                    subagents
    """

    def __init__(
        self,
        servers: SdkMcpServerRegistry,
        flush: Callable[[], Awaitable[None]],
        decide_call: Callable[[str, Mapping[str, Any]], Awaitable[PermissionDecision]],
        call_timeout_s: float,
        agent_server: AgentToolServer | None = None,
    ) -> None:
        self._servers = servers
        self._agent_server = agent_server
        self._flush = flush
        self._decide_call = decide_call
        self._pending_decisions = 0  # the number of tool calls that wait for a decision
        self._call_timeout_s = call_timeout_s
        self._tickets: dict[str, str] = {}  # server names by ticket
        # The deadline and the timeout of each open request, by request id.
        self._deadlines: dict[str, tuple[float, float]] = {}
        self._deadlines_changed = anyio.Event()
        self._folder = ""
        self._socket: socket.socket | None = None
        self.connection_count = 0

    def build_server_configs(self, server_names: Iterable[str]) -> dict[str, Mapping[str, Any]]:
        """Return server configurations that make a vendor start a relay for each server. Raise
        OSError if the socket cannot be opened.

        The ticket is only in the environment of the relay. Other programs that the vendor starts do
        not receive it.
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
        """Accept connections until the task is cancelled. Then remove the socket and its folder."""
        assert self._socket is not None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._expire_requests)
                async for connection in accept_connections(self._socket):
                    self._accept_connection(connection, tasks)
        finally:
            self._socket.close()
            self._remove_folder()

    def _accept_connection(self, connection: socket.socket, tasks: TaskGroup) -> None:
        if self.connection_count >= MAX_CONNECTIONS:
            connection.close()
            return
        self.connection_count += 1
        tasks.start_soon(self._serve_connection, connection)

    async def _serve_connection(self, connection: socket.socket) -> None:
        """Serve one relay connection, from its ticket to its end."""
        splitter = LineSplitter(MAX_MESSAGE_BYTES)
        relay = None
        try:
            with anyio.move_on_after(TICKET_TIMEOUT_S):
                lines = await _read_first_lines(connection, splitter)
                server = None
                if lines:
                    server = self._tickets.get(lines.pop(0).decode("ascii", "replace"))
                relay = None
                if server is not None:
                    relay = McpRelayConnection(connection, server)
            if relay is None:
                return
            self._servers.add_connection(relay)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(relay.write_queued_lines)
                await self._forward_lines(relay, lines, tasks)
                while chunk := await read_chunk(connection):
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
        """Forward a vendor's lines to the frontend. A tool call waits for its permission decision,
        but later lines do not wait for it.
        """
        for line in lines:
            if not line.strip():
                continue
            try:
                message = orjson.loads(line)
            except orjson.JSONDecodeError:
                message = None
            if self._agent_server is not None and relay.server_name == AGENT_SERVER:
                self._agent_server.accept_message(relay, message, tasks)
                continue
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
        """Call a tool if the permission decision allows the call. If the frontend has changed the
        arguments, use the changed arguments.
        """
        try:
            decision = await self._decide_call(tool, tool_input)
        finally:
            self._pending_decisions -= 1
        if not decision.allow:
            reason = decision.message
            if not reason:
                reason = TURN_STOPPED_TEXT
            self._servers.deny_tool_call(relay, message, reason)
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
        """Answer each request with an error if the frontend does not answer it in time."""
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
    """A relay's connection for the MCP server `server_name`, with a queue of lines to write."""

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
                self._connection.shutdown(
                    socket.SHUT_RDWR
                )  # this also ends the task that reads from the relay
            return
        self._lines.append(line)
        self._has_lines.set()

    async def write_queued_lines(self) -> None:
        """Write queued lines until the task is cancelled or the relay disconnects."""
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
    """Return the first complete lines of a connection. Return an empty list if the connection ends
    first.
    """
    while chunk := await read_chunk(connection):
        if lines := splitter.feed(chunk):
            return lines
    return []
