"""The process `shim fleet run`: one per user and machine. It publishes this machine, accepts tunnels,
and answers the commands of its user on a Unix socket.

No session depends on it. If it ends, the sessions go on, and other machines see this one as away.
"""

import asyncio
import os
import secrets
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from shim.bridge.lock import acquire_session_host_lock
from shim.bridge.registry import SessionRecord, SessionScanError, scan_sessions
from shim.bridge.sockets import open_host_listener, remove_host_socket
from shim.core.bridge.frames import FrameError, encode_frame, parse_frame
from shim.core.errors import FrontendError, explain_os_error
from shim.core.fleet.join_file import JoinFile
from shim.core.fleet.registry import LEASE_INTERVAL_S
from shim.core.fleet.roles import MACHINE
from shim.fleet.buckets import BucketError
from shim.fleet.connection import FleetConnection, FleetUnavailableError, connect_to_fleet
from shim.fleet.folder import check_expiry, require_join_file
from shim.fleet.listing_frame import encode_listing
from shim.fleet.log_copier import LogCopier
from shim.fleet.machine_tunnels import MachineTunnels
from shim.fleet.publisher import ClonedMachineError, MachinePublisher
from shim.fleet.tasks import run_until_first_end, wait_for_signal
from shim.fleet.view import FleetView
from shim.state.config import get_fleet_folder

# The wait before the next connection, which is doubled after each failure.
FIRST_RETRY_S = 0.5
MAX_RETRY_S = 15.0
# A connection that has lasted for this long was a success.
STABLE_CONNECTION_S = 30.0
# The registry is loaded again in this interval, in case that a change was not received. Members that
# may use only one session receive no changes, so they load it as often as leases are renewed.
RELOAD_INTERVAL_S = 60.0
MAX_REQUEST_BYTES = 64 * 1024
# The local sessions are listed this often. Reading 100 of them takes a few milliseconds.
SCAN_INTERVAL_S = 1.0
# The wait before the next attempt after the server has refused a request.
REFUSAL_RETRY_S = 5.0
# The parts of this process that can have a problem. The texts are the beginnings of messages.
CONNECTION = "not connected"
OTHER_MACHINES = "the list of other machines is not loaded"
LOCAL_SESSIONS = "the sessions of this machine are not shared"
PUBLISHED_SESSIONS = "the sessions of this machine are not published"
COPIED_LOGS = "the logs of this machine are not copied"
HOLDER_BYTES = 8  # of the random text that identifies this process


def run_fleet(environment: Mapping[str, str]) -> None:
    """Run until SIGTERM or SIGINT. Raise FrontendError if this machine has not joined a fleet, if
    another process runs already, or if the machine was copied.
    """
    join = require_join_file(environment)
    folder = get_fleet_folder(environment)
    lock = acquire_session_host_lock(folder)
    if lock is None:
        raise FrontendError(
            "`shim fleet run` runs already", hint="`shim fleet status` shows its state"
        )
    try:
        remove_host_socket(folder)
        asyncio.run(FleetProcess(join, environment).run())
    finally:
        remove_host_socket(folder)
        os.close(lock)


class FleetProcess:
    """The process: its view of the registry, and the problems of its parts."""

    def __init__(self, join: JoinFile, environment: Mapping[str, str]) -> None:
        self._join = join
        self._environment = environment
        self._view = FleetView(join)
        self._holder = secrets.token_hex(HOLDER_BYTES)
        self._problems = {CONNECTION: "no attempt yet"}
        self._scan_requested = asyncio.Event()  # set if local sessions may have changed
        self._sessions: Sequence[SessionRecord] = ()  # of the last scan
        self._scan_number = 0  # of the last scan
        self._scan_finished = asyncio.Condition()  # notified after each scan
        self._copier: LogCopier | None = None
        self._clients = set[asyncio.StreamWriter]()
        self._is_stopping = False
        self._is_loaded = False  # whether the registry was loaded once

    async def run(self) -> None:
        """Run until a signal arrives."""
        listener = open_host_listener(get_fleet_folder(self._environment))
        server = await asyncio.start_unix_server(
            self._answer_client, sock=listener, limit=MAX_REQUEST_BYTES
        )
        async with server:
            try:
                await run_until_first_end(
                    self._stay_connected(), wait_for_signal(signal.SIGTERM, signal.SIGINT)
                )
            finally:
                self._disconnect_clients()

    async def _stay_connected(self) -> NoReturn:
        """Connect again whenever the connection is lost."""
        retry_s = FIRST_RETRY_S
        while True:
            started_s = time.monotonic()
            try:
                check_expiry(self._join)
                async with connect_to_fleet(self._join) as connection:
                    await self._serve_connection(connection)
            except ClonedMachineError:
                raise
            except (BucketError, FleetUnavailableError, OSError) as error:
                reason = explain_os_error(error) if isinstance(error, OSError) else str(error)
                self._problems.clear()
                self._set_problem(CONNECTION, reason)
            self._copier = None
            self._view.set_disconnected()
            if time.monotonic() - started_s > STABLE_CONNECTION_S:
                retry_s = FIRST_RETRY_S
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, MAX_RETRY_S)

    async def _serve_connection(self, connection: FleetConnection) -> None:
        """Serve a connection until it is lost. Then raise FleetUnavailableError or BucketError."""
        if not self._join.session:
            await self._view.watch(connection)
        services = list[Coroutine[Any, Any, NoReturn]]()
        publisher = None
        if self._join.role == MACHINE:
            publisher = MachinePublisher(connection, self._environment, self._holder)
            await publisher.start()
            tunnels = MachineTunnels(connection, self._environment, self._scan_requested.set)
            copier = LogCopier(connection, self._environment)
            self._copier = copier
            services = [
                publisher.renew_lease(),
                tunnels.serve(),
                self._scan_local_sessions(),
                self._run_after_scans(PUBLISHED_SESSIONS, publisher.publish),
                self._copy_logs(copier),
            ]
        self._problems = {OTHER_MACHINES: "no answer yet"}
        try:
            await run_until_first_end(
                connection.wait_until_lost(), *services, self._reload_view(connection)
            )
        finally:
            if publisher is not None:
                with suppress(BucketError, FleetUnavailableError):
                    await publisher.stop()

    async def _reload_view(self, connection: FleetConnection) -> NoReturn:
        interval_s = LEASE_INTERVAL_S if self._join.session else RELOAD_INTERVAL_S
        while True:
            await self._attempt(OTHER_MACHINES, self._view.load(connection))
            if OTHER_MACHINES in self._problems:
                await asyncio.sleep(REFUSAL_RETRY_S)
            else:
                self._is_loaded = True
                await asyncio.sleep(interval_s)

    async def _scan_local_sessions(self) -> NoReturn:
        """List the sessions of this machine in an interval, and whenever they may have changed."""
        while True:
            self._scan_requested.clear()
            await self._attempt(LOCAL_SESSIONS, self._scan_once())
            wait_s = REFUSAL_RETRY_S if LOCAL_SESSIONS in self._problems else SCAN_INTERVAL_S
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._scan_requested.wait()

    async def _scan_once(self) -> None:
        self._sessions = await asyncio.to_thread(scan_sessions, self._environment)
        self._scan_number += 1
        async with self._scan_finished:
            self._scan_finished.notify_all()

    async def _run_after_scans(
        self, part: str, handle_sessions: Callable[[Sequence[SessionRecord]], Awaitable[None]]
    ) -> NoReturn:
        """Call `handle_sessions` with the sessions of this machine after each scan. Publishing and
        copying have a loop each, so that neither waits for the other.
        """
        scan_number = self._scan_number
        while True:
            scan_number = await self._wait_for_scan(scan_number)
            await self._attempt(part, handle_sessions(self._sessions))
            if part in self._problems:
                await asyncio.sleep(REFUSAL_RETRY_S)

    async def _wait_for_scan(self, last_number: int) -> int:
        """Wait until a scan after the one with this number has ended. Return the number of the last
        scan.
        """
        async with self._scan_finished:
            await self._scan_finished.wait_for(lambda: self._scan_number > last_number)
        return self._scan_number

    async def _copy_logs(self, copier: LogCopier) -> NoReturn:
        try:
            await self._run_after_scans(COPIED_LOGS, copier.update)
        finally:
            await copier.stop()

    async def _attempt(self, part: str, operation: Awaitable[None]) -> None:
        """Await an operation. If it fails, store the problem of this part of the process, so that the
        other parts are not affected. Otherwise, the part has no problem any more.
        """
        try:
            await operation
        except (BucketError, SessionScanError) as error:
            self._set_problem(part, str(error))
        else:
            self._set_problem(part, "")

    def _set_problem(self, part: str, reason: str) -> None:
        """Store why a part of this process does not work, or "" if it works. Print changes."""
        if reason == self._problems.get(part, ""):
            return
        if reason:
            self._problems[part] = reason
            _print_line(f"{part}: {reason}")
            return
        del self._problems[part]
        if not self._problems:
            _print_line(f"connected to {self._join.url} as {self._join.name}")

    def _describe_problems(self) -> str:
        """Return the problems of all parts in one line, or ""."""
        return "; ".join(f"{part}: {reason}" for part, reason in self._problems.items())

    async def _answer_client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer the requests of a command of this user."""
        self._clients.add(writer)
        try:
            while not self._is_stopping and (line := await reader.readline()):
                writer.write(self._answer_request(line))
                await writer.drain()
        except (OSError, ValueError):  # the client has gone, or has sent too much
            pass
        finally:
            self._clients.discard(writer)
            writer.close()

    def _disconnect_clients(self) -> None:
        """End all connections of commands. Since Python 3.12.1, a server waits for them, and the page
        keeps its connection open.
        """
        self._is_stopping = True
        for writer in self._clients:
            writer.transport.abort()

    def _answer_request(self, line: bytes) -> bytes:
        try:
            kind = parse_frame(line)["kind"]
        except FrameError as error:
            return encode_frame("bye", reason=str(error))
        if kind == "fleet" and self._is_loaded:
            return encode_listing(self._view.list_machines())
        if kind == "fleet":
            # The command uses the last listing.
            return encode_frame("bye", reason=self._describe_problems())
        if kind == "status":
            return self._encode_status()
        return encode_frame("bye", reason=f"the request {kind[:40]!r} is unknown")

    def _encode_status(self) -> bytes:
        copies = None
        if self._copier is not None:
            copies = self._copier.summarize_copies()
        return encode_frame(
            "status", problem=self._describe_problems(), pid=os.getpid(), copies=copies
        )


def _print_line(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()
