"""Runs the hub of a host: carries out what it wants in its order, and only then writes to the
clients.

The log comes first: what cannot be written there is told to nobody, and the session ends.
"""

import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

import anyio

from shim.core.bridge.commands import Append, Changed, Command, Drop, End, Read, Tell
from shim.core.bridge.frames import frame
from shim.core.bridge.hub import Hub
from shim.core.bridge.log import Log

# Between two rounds of writing, for each client: with many of them lines are gathered, so that the
# conversation keeps the processor. One client is written to at once.
ROUND_SECONDS = 0.00005
BYE_SECONDS = 1.0  # for a client to take its last frames
LOOK_SECONDS = 0.01  # from one look whether they have to the next


class Connection:
    """One client's socket, and what of a write it has not taken yet."""

    def __init__(self, number: int, peer: socket.socket) -> None:
        self.number = number
        self.peer = peer
        # when it is closed whatever it has taken; before that, once it has all. 0: it stays
        self.leaves = 0.0
        self.gone = anyio.Event()
        self._stuck = anyio.Event()
        self._rest = b""
        self._last = False  # what is in `_rest` is all

    @property
    def idle(self) -> bool:
        """Whether all was written that was taken from the hub."""
        return not self._rest

    def write(self, outgoing: Callable[[int], bytes]) -> None:
        """Write what waits, until it takes no more."""
        while not (self._stuck.is_set() or self.gone.is_set()):
            self._rest = self._rest or (b"" if self._last else outgoing(self.number))
            if not self._rest:
                if self._last:
                    self.gone.set()
                return
            try:
                self._rest = self._rest[self.peer.send(self._rest) :]
            except BlockingIOError:
                self._stuck.set()
            except OSError:
                self.gone.set()

    def flush(self) -> None:
        """Write what was taken from the hub and not yet by the client."""
        self.write(lambda number: b"")

    def say(self, data: bytes) -> None:
        """Last words that do not come from the hub, behind what was taken from it; then it is
        closed.
        """
        if not self._last:
            self._rest, self._last = self._rest + data, True
            self.flush()

    async def unstuck(self) -> None:
        """Wait until it takes something again after it took nothing."""
        await self._stuck.wait()
        await anyio.wait_writable(self.peer)
        self._stuck = anyio.Event()


class HubRunner:
    """`tell` gives the conversation a line, `changed` keeps facts, `end` ends the session for a
    client.

    `failed` hears why nothing more may be said.
    """

    def __init__(
        self,
        hub: Hub,
        log: Log,
        *,
        tell: Callable[[bytes], None],
        changed: Callable[[Mapping[str, Any]], None],
        end: Callable[[str], None],
        failed: Callable[[str], None],
    ) -> None:
        self.hub = hub
        self.connections: dict[int, Connection] = {}
        self.reason = ""  # why nothing may be said any more
        self._log = log
        self._tell = tell
        self._changed = changed
        self._end = end
        self._failed = failed
        self._unanswered = 0  # messages whose result is not in the log
        self._wrote = 0.0  # when the last round of writing ended
        self._due = anyio.Event()

    # -- what came ---------------------------------------------------------------------------------

    def said(self, data: bytes) -> str:
        """Lines of the conversation's; why they were told to nobody, "" if all is well."""
        if not self.reason:
            self.hub.said(data)
            self.settle()
        return self.reason

    def joined(self, connection: Connection) -> None:
        """A client has connected."""
        self.connections[connection.number] = connection
        self.hub.joined(connection.number)
        self.settle()

    def heard(self, number: int, line: bytes) -> None:
        """A line of a client."""
        if not self.reason:
            self.hub.heard(number, line)
            self.settle()

    def left(self, number: int) -> None:
        """A client's connection has ended, by whichever side."""
        connection = self.connections.pop(number, None)
        if connection is not None:
            self.hub.left(number)
            self.settle()

    # -- what the hub wants ------------------------------------------------------------------------

    def settle(self) -> None:
        """Carry out what the hub wants; then the clients are written to, at once or in the next
        round.
        """
        while not self.reason and (commands := self.hub.take()):
            last = next(
                (command for command in reversed(commands) if isinstance(command, Changed)), None
            )
            for command in commands:
                # what was so only in between is kept by nobody
                if command is last or not isinstance(command, Changed):
                    self._carry_out(command)
        if self.reason:
            return
        self._unanswered = self.hub.count_unanswered()
        if time.monotonic() - self._wrote >= ROUND_SECONDS * len(self.connections):
            self.write()
        else:
            self._due.set()

    def _carry_out(self, command: Command) -> None:
        match command:
            case _ if self.reason:
                return
            case Append(records):
                try:
                    self._log.append(records)
                except OSError as error:
                    self._fail(f"the session's log cannot be written: {error.strerror or error}")
            case Tell(line):
                self._tell(line)
            case Read():
                self._replay(command)
            case Drop(client):
                if client in self.connections:
                    self.connections[client].leaves = time.monotonic() + BYE_SECONDS
            case Changed(facts):
                self._changed(facts)
            case End(by):
                self._end(by)

    def _replay(self, read: Read) -> None:
        if read.client not in self.connections:
            return
        try:
            entries = self._log.read(read.after, read.most, read.size)
        except OSError as error:
            self._fail(f"the session's log cannot be read: {error.strerror or error}")
        else:
            self.hub.replayed(read.client, read.after, entries)

    def _fail(self, reason: str) -> None:
        """End it: of what the hub holds for the clients nobody can say what is in the log, so none
        of it is told.
        """
        self.reason = reason
        if unanswered := max(self._unanswered, self.hub.count_unanswered()):
            self._changed({"unanswered": unanswered})
        for connection in list(self.connections.values()):
            connection.say(frame("bye", reason=reason))
        self._failed(reason)

    # -- writing -----------------------------------------------------------------------------------

    def write(self) -> None:
        """One round: every client for whom something waits gets it, as far as it takes it."""
        if self.reason:
            return
        for number in self.hub.ready():
            if number in self.connections:
                self.connections[number].write(self.hub.outgoing)
        self._wrote = time.monotonic()
        if commands := self.hub.take():  # what was written made room for more of the log
            for command in commands:
                self._carry_out(command)
            self._due.set()
        elif leaving := [one for one in self.connections.values() if one.leaves and one.idle]:
            ready = set(self.hub.ready())
            for connection in leaving:
                if connection.number not in ready:
                    connection.gone.set()

    def tick(self) -> None:
        """Close who was told to go and takes nothing, so that nobody keeps a place by that."""
        now = time.monotonic()
        for connection in self.connections.values():
            if connection.leaves and now > connection.leaves:
                connection.gone.set()

    async def rounds(self) -> None:
        """Write what waits for a round, for ever."""
        while True:
            await self._due.wait()
            self._due = anyio.Event()
            pause = self._wrote + ROUND_SECONDS * len(self.connections) - time.monotonic()
            await anyio.sleep(max(0.0, pause))
            self.settle()
            self.write()

    async def serve(self, connection: Connection) -> None:
        """Write to a client whenever it takes something again, for ever."""
        while True:
            await connection.unstuck()
            connection.flush()  # the hub knows nothing of what it has given away already
            self.write()

    async def finish(self, reason: str) -> None:
        """The conversation is over: tell everybody, as far as they take it in a moment."""
        if not self.reason:
            self.hub.close(reason)
            self.settle()
        with anyio.move_on_after(BYE_SECONDS):
            while self.connections:
                self.write()
                await anyio.sleep(LOOK_SECONDS)
