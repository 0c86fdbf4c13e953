"""Runs a session host's hub: executes the hub's commands in order, and then writes to the clients.

A line that cannot be logged is not sent to any client, and the session ends.
"""

import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

import anyio

from shim.core.bridge.commands import (
    AppendLogRecordsCommand,
    DropClientCommand,
    EndSessionCommand,
    ReadLogCommand,
    ReloadSettingsCommand,
    SessionHubCommand,
    UpdateSessionMetadataCommand,
    WriteStdinCommand,
)
from shim.core.bridge.conversation_lines import feed_conversation_stdout
from shim.core.bridge.frames import encode_frame
from shim.core.bridge.handlers import on_client_frame, remove_client
from shim.core.bridge.hub import SessionHub
from shim.core.bridge.log import SessionLog
from shim.core.errors import explain_os_error

# The interval between rounds of writing is this time multiplied by the number of clients. With many
# clients, several lines are written at once, so that the conversation gets enough CPU time.
WRITE_INTERVAL_S = 0.00005
BYE_TIMEOUT_S = 1.0  # for a client to read its last frames
POLL_INTERVAL_S = 0.01  # between checks whether the clients have disconnected


class ClientConnection:
    """A client's socket, and the bytes that could not be written to the socket yet."""

    def __init__(self, number: int, peer: socket.socket) -> None:
        self.number = number
        self.peer = peer
        # A dropped client's connection is closed after its last frames, or at the latest at this
        # time. 0 for a client that is not dropped.
        self.close_deadline = 0.0
        self.disconnect_event = anyio.Event()
        self._blocked_event = anyio.Event()
        self._unsent = b""
        self._is_closing = False  # nothing is written after `_unsent`

    @property
    def is_idle(self) -> bool:
        """Whether all bytes that were taken from the hub's queue have been written."""
        return not self._unsent

    def write_outgoing_frames(self, take_frames: Callable[[int], bytes]) -> None:
        """Write the client's queued frames until the queue is empty or the socket is full."""
        while not (self._blocked_event.is_set() or self.disconnect_event.is_set()):
            if not self._unsent and not self._is_closing:
                self._unsent = take_frames(self.number)
            if not self._unsent:
                if self._is_closing:
                    self.disconnect_event.set()
                return
            try:
                self._unsent = self._unsent[self.peer.send(self._unsent) :]
            except BlockingIOError:
                self._blocked_event.set()
            except OSError:
                self.disconnect_event.set()

    def flush(self) -> None:
        """Write the bytes that were taken from the hub's queue."""
        self.write_outgoing_frames(lambda number: b"")

    def send_and_close(self, data: bytes) -> None:
        """Write a last frame after all bytes that were taken from the hub's queue, and close the
        connection.
        """
        if not self._is_closing:
            self._unsent = self._unsent + data
            self._is_closing = True
            self.flush()

    async def wait_writable(self) -> None:
        """Wait until the socket has been full and can be written again."""
        await self._blocked_event.wait()
        await anyio.wait_writable(self.peer)
        self._blocked_event = anyio.Event()


class SessionHubRunner:
    """The session's hub, its log and its client connections.

    send_line        writes a line to the conversation's stdin
    update_metadata  changes `host.json`
    end_session      ends the session when a client requests it
    reload_settings  reads Claude's settings files again and returns the merged settings as text
    """

    def __init__(
        self,
        hub: SessionHub,
        log: SessionLog,
        *,
        send_line: Callable[[bytes], None],
        update_metadata: Callable[[Mapping[str, Any]], None],
        end_session: Callable[[], None],
        reload_settings: Callable[[], str],
    ) -> None:
        self.hub = hub
        self.connections: dict[int, ClientConnection] = {}
        self.failure_event = anyio.Event()
        self.failure_reason = ""  # why no more frames may be sent to clients; "" without a failure
        self._log = log
        self._send_line = send_line
        self._update_metadata = update_metadata
        self._end_session = end_session
        self._reload_settings = reload_settings
        self._unanswered_count = 0  # messages that have no result in the log
        self._last_write = 0.0  # monotonic time at the end of the last round of writing
        self._write_due = anyio.Event()

    # -- events ------------------------------------------------------------------------------------

    @property
    def has_failed(self) -> bool:
        """Whether the log could not be written or read."""
        return self.failure_event.is_set()

    def on_conversation_lines(self, data: bytes) -> None:
        """Handle lines from the conversation. After a log failure, lines are ignored."""
        if not self.has_failed:
            feed_conversation_stdout(self.hub, data)
            self.run_hub_commands()

    def add_client(self, connection: ClientConnection) -> None:
        """Add a client that has connected."""
        self.connections[connection.number] = connection
        self.hub.add_client(connection.number)
        self.run_hub_commands()

    def on_client_frame(self, number: int, line: bytes) -> None:
        """Handle one line with a frame from a client."""
        if not self.has_failed:
            on_client_frame(self.hub, number, line)
            self.run_hub_commands()

    def remove_client(self, number: int) -> None:
        """Remove a client whose connection has ended."""
        connection = self.connections.pop(number, None)
        if connection is not None:
            remove_client(self.hub, number)
            self.run_hub_commands()

    # -- commands of the hub -----------------------------------------------------------------------

    def run_hub_commands(self) -> None:
        """Execute the hub's commands. Write to the clients, either immediately or in the next round
        of writing.
        """
        while not self.has_failed and (commands := self.hub.take_commands()):
            last_change = next(
                (
                    command
                    for command in reversed(commands)
                    if isinstance(command, UpdateSessionMetadataCommand)
                ),
                None,
            )
            for command in commands:
                # `host.json` is written only once, with the latest metadata.
                if command is last_change or not isinstance(command, UpdateSessionMetadataCommand):
                    self._run_command(command)
        if self.has_failed:
            return
        self._unanswered_count = self.hub.count_unanswered_messages()
        if time.monotonic() - self._last_write >= WRITE_INTERVAL_S * len(self.connections):
            self.write_to_clients()
        else:
            self._write_due.set()

    def _run_command(self, command: SessionHubCommand) -> None:
        match command:
            case _ if self.has_failed:
                return
            case AppendLogRecordsCommand(records):
                try:
                    self._log.append(records)
                except OSError as error:
                    self._fail_session(
                        f"the session's log cannot be written: {explain_os_error(error)}"
                    )
            case WriteStdinCommand(line):
                self._send_line(line)
            case ReadLogCommand():
                self._replay_log(command)
            case DropClientCommand(client):
                if client in self.connections:
                    self.connections[client].close_deadline = time.monotonic() + BYE_TIMEOUT_S
            case UpdateSessionMetadataCommand(metadata):
                self._update_metadata(metadata)
            case ReloadSettingsCommand(client, request_id):
                self.hub.send_settings(client, request_id, self._reload_settings())
            case EndSessionCommand():
                self._end_session()

    def _replay_log(self, request: ReadLogCommand) -> None:
        if request.client_number not in self.connections:
            return
        try:
            entries = self._log.read(request.after_number, request.max_lines, request.max_bytes)
        except OSError as error:
            self._fail_session(f"the session's log cannot be read: {explain_os_error(error)}")
        else:
            self.hub.subscribers.deliver_log_entries(
                request.client_number, request.after_number, entries
            )

    def _fail_session(self, reason: str) -> None:
        """End the session after a log failure. Queued frames are not sent, because some of their
        lines may be missing from the log.
        """
        self.failure_reason = reason
        self.failure_event.set()
        if unanswered_count := max(self._unanswered_count, self.hub.count_unanswered_messages()):
            self._update_metadata({"unanswered": unanswered_count})
        for connection in list(self.connections.values()):
            connection.send_and_close(encode_frame("bye", reason=reason))

    # -- writing -----------------------------------------------------------------------------------

    def write_to_clients(self) -> None:
        """Write to every client that has queued frames, until its socket is full."""
        if self.has_failed:
            return
        for number in self.hub.list_ready_clients():
            if number in self.connections:
                self.connections[number].write_outgoing_frames(self.hub.take_outgoing_frames)
        self._last_write = time.monotonic()
        # There are commands if a client's queue has space for more log lines.
        if commands := self.hub.take_commands():
            for command in commands:
                self._run_command(command)
            self._write_due.set()
        elif leaving := [
            candidate
            for candidate in self.connections.values()
            if candidate.close_deadline and candidate.is_idle
        ]:
            ready = set(self.hub.list_ready_clients())
            for connection in leaving:
                if connection.number not in ready:
                    connection.disconnect_event.set()

    def close_unresponsive_clients(self) -> None:
        """Close the connections of dropped clients that do not read their last frames in time."""
        now = time.monotonic()
        for connection in self.connections.values():
            if connection.close_deadline and now > connection.close_deadline:
                connection.disconnect_event.set()

    async def run_write_loop(self) -> None:
        """Write to the clients in rounds, until the task is cancelled."""
        while True:
            await self._write_due.wait()
            self._write_due = anyio.Event()
            pause_s = self._last_write + WRITE_INTERVAL_S * len(self.connections) - time.monotonic()
            await anyio.sleep(max(0.0, pause_s))
            self.run_hub_commands()
            self.write_to_clients()

    async def serve_client(self, connection: ClientConnection) -> None:
        """Write to a client whenever its socket becomes writable, until the task is cancelled."""
        while True:
            await connection.wait_writable()
            connection.flush()  # bytes that were taken from the hub's queue earlier
            self.write_to_clients()

    async def close_clients(self, reason: str) -> None:
        """Send `bye` to all clients after the conversation has ended. Wait up to BYE_TIMEOUT_S
        until the clients have read it.
        """
        if not self.has_failed:
            self.hub.close(reason)
            self.run_hub_commands()
        with anyio.move_on_after(BYE_TIMEOUT_S):
            while self.connections:
                self.write_to_clients()
                await anyio.sleep(POLL_INTERVAL_S)
