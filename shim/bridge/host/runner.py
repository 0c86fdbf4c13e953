"""Runs the hub of a host: carries out what it wants in its order, and only then writes to the
clients.

The log comes first: what cannot be written there is told to nobody, and the session ends.
"""

import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

import anyio

from shim.core.bridge.commands import (
    AppendLogRecords,
    DropClient,
    EndSession,
    ReadLog,
    SessionHubCommand,
    UpdateSessionMetadata,
    WriteStdin,
)
from shim.core.bridge.conversation_lines import feed_stdout
from shim.core.bridge.frames import encode_frame
from shim.core.bridge.handlers import on_client_frame, remove_client
from shim.core.bridge.hub import SessionHub
from shim.core.bridge.log import SessionLog

# Between two rounds of writing, for each client: with many of them lines are gathered, so that the
# conversation keeps the processor. One client is written to at once.
WRITE_INTERVAL_S = 0.00005
BYE_TIMEOUT_S = 1.0  # for a client to take its last frames
POLL_INTERVAL_S = 0.01  # from one look whether they have to the next


class ClientConnection:
    """One client's socket, and what of a write it has not taken yet."""

    def __init__(self, number: int, peer: socket.socket) -> None:
        self.number = number
        self.peer = peer
        # when it is closed whatever it has taken; before that, once it has all. 0: it stays
        self.close_deadline = 0.0
        self.disconnect_event = anyio.Event()
        self._blocked_event = anyio.Event()
        self._unsent = b""
        self._is_closing = False  # what is in `_unsent` is all

    @property
    def is_idle(self) -> bool:
        """Whether all was written that was taken from the hub."""
        return not self._unsent

    def write(self, take_outgoing: Callable[[int], bytes]) -> None:
        """Write what waits, until it takes no more."""
        while not (self._blocked_event.is_set() or self.disconnect_event.is_set()):
            self._unsent = self._unsent or (b"" if self._is_closing else take_outgoing(self.number))
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
        """Write what was taken from the hub and not yet by the client."""
        self.write(lambda number: b"")

    def send_and_close(self, data: bytes) -> None:
        """Last words that do not come from the hub, behind what was taken from it; then it is
        closed.
        """
        if not self._is_closing:
            self._unsent, self._is_closing = self._unsent + data, True
            self.flush()

    async def wait_writable(self) -> None:
        """Wait until it takes something again after it took nothing."""
        await self._blocked_event.wait()
        await anyio.wait_writable(self.peer)
        self._blocked_event = anyio.Event()


class HubRunner:
    """The hub, the log and the connections of the clients.

    `send_line` writes a line to the conversation's stdin, `update_metadata` changes `host.json`, and
    `end_session` ends the session for a client.
    """

    def __init__(
        self,
        hub: SessionHub,
        log: SessionLog,
        *,
        send_line: Callable[[bytes], None],
        update_metadata: Callable[[Mapping[str, Any]], None],
        end_session: Callable[[], None],
    ) -> None:
        self.hub = hub
        self.connections: dict[int, ClientConnection] = {}
        self.failure_event = anyio.Event()
        self.failure_reason = ""  # why no client may be sent anything more
        self._log = log
        self._send_line = send_line
        self._update_metadata = update_metadata
        self._end_session = end_session
        self._unanswered_count = 0  # messages whose result is not in the log
        self._last_write = 0.0  # when the last round of writing ended
        self._write_due = anyio.Event()

    # -- what came ---------------------------------------------------------------------------------

    @property
    def has_failed(self) -> bool:
        """Return whether the log cannot be written or read."""
        return self.failure_event.is_set()

    def on_conversation_lines(self, data: bytes) -> None:
        """Handle lines of the conversation, unless the log has failed."""
        if not self.has_failed:
            feed_stdout(self.hub, data)
            self.run_hub_commands()

    def add_client(self, connection: ClientConnection) -> None:
        """A client has connected."""
        self.connections[connection.number] = connection
        self.hub.add_client(connection.number)
        self.run_hub_commands()

    def on_client_frame(self, number: int, line: bytes) -> None:
        """A line of a client."""
        if not self.has_failed:
            on_client_frame(self.hub, number, line)
            self.run_hub_commands()

    def remove_client(self, number: int) -> None:
        """A client's connection has ended, by whichever side."""
        connection = self.connections.pop(number, None)
        if connection is not None:
            remove_client(self.hub, number)
            self.run_hub_commands()

    # -- what the hub wants ------------------------------------------------------------------------

    def run_hub_commands(self) -> None:
        """Carry out what the hub wants; then the clients are written to, at once or in the next
        round.
        """
        while not self.has_failed and (commands := self.hub.take_commands()):
            last_change = next(
                (
                    command
                    for command in reversed(commands)
                    if isinstance(command, UpdateSessionMetadata)
                ),
                None,
            )
            for command in commands:
                # what was so only in between is kept by nobody
                if command is last_change or not isinstance(command, UpdateSessionMetadata):
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
            case AppendLogRecords(records):
                try:
                    self._log.append(records)
                except OSError as error:
                    self._fail_session(
                        f"the session's log cannot be written: {error.strerror or error}"
                    )
            case WriteStdin(line):
                self._send_line(line)
            case ReadLog():
                self._replay_log(command)
            case DropClient(client):
                if client in self.connections:
                    self.connections[client].close_deadline = time.monotonic() + BYE_TIMEOUT_S
            case UpdateSessionMetadata(metadata):
                self._update_metadata(metadata)
            case EndSession():
                self._end_session()

    def _replay_log(self, request: ReadLog) -> None:
        if request.client_number not in self.connections:
            return
        try:
            entries = self._log.read(request.after_number, request.max_lines, request.max_bytes)
        except OSError as error:
            self._fail_session(f"the session's log cannot be read: {error.strerror or error}")
        else:
            self.hub.subscribers.deliver_log_entries(
                request.client_number, request.after_number, entries
            )

    def _fail_session(self, reason: str) -> None:
        """End it: of what the hub holds for the clients nobody can say what is in the log, so none
        of it is told.
        """
        self.failure_reason = reason
        self.failure_event.set()
        if unanswered_count := max(self._unanswered_count, self.hub.count_unanswered_messages()):
            self._update_metadata({"unanswered": unanswered_count})
        for connection in list(self.connections.values()):
            connection.send_and_close(encode_frame("bye", reason=reason))

    # -- writing -----------------------------------------------------------------------------------

    def write_to_clients(self) -> None:
        """One round: every client for whom something waits gets it, as far as it takes it."""
        if self.has_failed:
            return
        for number in self.hub.list_ready_clients():
            if number in self.connections:
                self.connections[number].write(self.hub.take_outgoing_frames)
        self._last_write = time.monotonic()
        if commands := self.hub.take_commands():  # what was written made room for more of the log
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
        """Close who was told to go and takes nothing, so that nobody keeps a place by that."""
        now = time.monotonic()
        for connection in self.connections.values():
            if connection.close_deadline and now > connection.close_deadline:
                connection.disconnect_event.set()

    async def run_write_loop(self) -> None:
        """Write what waits for a round, for ever."""
        while True:
            await self._write_due.wait()
            self._write_due = anyio.Event()
            pause_s = self._last_write + WRITE_INTERVAL_S * len(self.connections) - time.monotonic()
            await anyio.sleep(max(0.0, pause_s))
            self.run_hub_commands()
            self.write_to_clients()

    async def serve_client(self, connection: ClientConnection) -> None:
        """Write to a client whenever it takes something again, for ever."""
        while True:
            await connection.wait_writable()
            connection.flush()  # the hub knows nothing of what it has given away already
            self.write_to_clients()

    async def close_clients(self, reason: str) -> None:
        """The conversation is over: tell everybody, as far as they take it in a moment."""
        if not self.has_failed:
            self.hub.close(reason)
            self.run_hub_commands()
        with anyio.move_on_after(BYE_TIMEOUT_S):
            while self.connections:
                self.write_to_clients()
                await anyio.sleep(POLL_INTERVAL_S)
