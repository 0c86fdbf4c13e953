"""Manages the sessions of other machines for the web page, together with those of this machine.

A thread requests the sessions of a machine, or of the fleet, but only while a page shows the list.
The page gets the last answer immediately, so a slow or unavailable machine does not delay the page.
"""

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from threading import Event, Lock, Thread
from typing import Any

import anyio.to_thread

from shim.bridge.client import connect_to_session_blocking
from shim.bridge.gateway.hosts import (
    LocalBackgroundSessionManager,
    SessionFrameStream,
    build_session_fields,
    connect_to_host,
)
from shim.bridge.listings import FleetSessionLister, MachineListing, SessionLister, SshSessionLister
from shim.bridge.remote import run_session_command
from shim.core.bridge.frames import WATCH, LogCursor
from shim.core.errors import FrontendError
from shim.core.reading.values import shorten_session_id, split_machine
from shim.state.config import has_fleet
from shim.state.machines import Machine

REFRESH_INTERVAL_S = 2.0  # between two requests while a page shows the list
# An unavailable machine is asked less often, because each request starts `ssh`.
AWAY_INTERVAL_S = 15.0
NO_ANSWER_YET = "no answer yet"
IDLE_TIMEOUT_S = 60.0  # the relay ends after no page has shown the list for this long


class MachineWatcher:
    """Stores the last answer of a machine or of the fleet, and requests the next answer in a
    thread.
    """

    def __init__(self, create_lister: Callable[[], SessionLister]) -> None:
        self._create_lister = create_lister  # each thread has its own connection
        self._listings = create_lister().load_last_listings(NO_ANSWER_YET)
        self._lock = Lock()
        self.refresh_requested = Event()  # set if a session has changed
        self._requested_until = 0.0
        self._is_running = False

    def get_listings(self) -> Sequence[MachineListing]:
        """Return the last answer, and start a request for the next one in a thread."""
        with self._lock:
            self._requested_until = time.monotonic() + IDLE_TIMEOUT_S
            if not self._is_running:
                self._is_running = True
                Thread(target=self._refresh, daemon=True).start()
            return self._listings

    def _refresh(self) -> None:
        """Request the sessions repeatedly, until no page has shown the list for
        IDLE_TIMEOUT_S.
        """
        try:
            with self._create_lister() as lister:
                while True:
                    self._listings = lister.list_sessions(includes_ended=True)
                    if not self._has_recent_viewer():
                        return
                    interval_s = REFRESH_INTERVAL_S
                    if all(listing.problem for listing in self._listings):
                        interval_s = AWAY_INTERVAL_S
                    self.refresh_requested.wait(interval_s)
                    self.refresh_requested.clear()
        except BaseException:
            self._is_running = False  # the next look at the list starts another thread
            raise

    def _has_recent_viewer(self) -> bool:
        """Return whether a page has shown the list recently. If not, mark the thread as ended."""
        with self._lock:
            self._is_running = time.monotonic() < self._requested_until
            return self._is_running


class AllMachinesSessionManager(LocalBackgroundSessionManager):
    """Manages the sessions of this machine and of other machines. New sessions are started on this
    machine.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        installed_options: Mapping[str, str],
        machines: Mapping[str, Machine],
    ) -> None:
        super().__init__(environment, installed_options)
        self._watchers = {
            name: MachineWatcher(partial(SshSessionLister, machine, environment))
            for name, machine in machines.items()
            if not machine.is_in_fleet
        }
        self._fleet_watcher = None
        if has_fleet(environment):
            self._fleet_watcher = MachineWatcher(partial(FleetSessionLister, None, environment))

    def list_sessions(self) -> list[dict[str, Any]]:
        """Return the sessions of this machine, and the sessions in the last answer of every other
        machine.
        """
        return _merge_sessions(super().list_sessions(), self._list_remote_sessions())

    def find_sessions(self, id_prefix: str) -> list[dict[str, Any]]:
        """Return the sessions whose UUID starts with `id_prefix`."""
        remote_sessions = [
            session
            for session in self._list_remote_sessions()
            if session["session"].startswith(id_prefix)
        ]
        return _merge_sessions(super().find_sessions(id_prefix), remote_sessions)

    def respawn_session(self, session_id: str, prompt: str, prompt_id: str) -> bool:
        """Resume an ended session on its machine."""
        remote_id = self._find_remote_id(session_id)
        if not remote_id:
            return super().respawn_session(session_id, prompt, prompt_id)
        args = ["--id", prompt_id] if prompt_id else []
        output = run_session_command(
            remote_id, ("bridge", "say"), self._environment, [*args, "--", prompt]
        )
        if output.status:
            raise FrontendError(f"the session {shorten_session_id(remote_id)} was not resumed")
        return True

    def has_accepted_prompt(self, session_id: str, prompt_id: str) -> bool:
        """Return whether an ended session of this machine has accepted a message. The host of
        another machine's session checks this itself.
        """
        if self._find_remote_id(session_id):
            return False
        return super().has_accepted_prompt(session_id, prompt_id)

    def is_cursor_at_log_end(self, session_id: str, cursor: LogCursor) -> bool:
        """Return whether no line follows the cursor in the log of an ended session."""
        remote_id = self._find_remote_id(session_id)
        if not remote_id:
            return super().is_cursor_at_log_end(session_id, cursor)
        with connect_to_session_blocking(
            remote_id, self._environment, role=WATCH, after=cursor, replay=False
        ) as connection:
            return bool(connection.welcome.get("number") == cursor.number)

    @asynccontextmanager
    async def connect_to_session(
        self, session_id: str, *, as_controller: bool, after: LogCursor | None = None
    ) -> AsyncIterator[SessionFrameStream]:
        """Connect to a session on its machine."""
        remote_id = await anyio.to_thread.run_sync(self._find_remote_id, session_id)
        if not remote_id:
            async with super().connect_to_session(
                session_id, as_controller=as_controller, after=after
            ) as frames:
                yield frames
            return
        async with connect_to_host(
            remote_id, self._environment, as_controller=as_controller, after=after
        ) as frames:
            yield frames
        watcher = self._watchers.get(split_machine(remote_id)[0], self._fleet_watcher)
        if watcher is not None:
            watcher.refresh_requested.set()

    def _find_remote_id(self, session_id: str) -> str:
        """Return MACHINE:UUID for a session of another machine, or "" for one of this machine."""
        if super().find_sessions(session_id):
            return ""
        for session in self._list_remote_sessions():
            if session["session"] == session_id:
                return f"{session['machine']}:{session_id}"
        return ""

    def _list_remote_sessions(self) -> list[dict[str, Any]]:
        watchers = [*self._watchers.values()]
        if self._fleet_watcher is not None:
            watchers.append(self._fleet_watcher)
        return [
            build_session_fields(record)
            for watcher in watchers
            for listing in watcher.get_listings()
            for record in listing.sessions
        ]


def _merge_sessions(
    local: list[dict[str, Any]], remote: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return all sessions once. Two names may belong to the same machine, or to this one."""
    by_id = {session["session"]: session for session in (*reversed(remote), *reversed(local))}
    return list(reversed(by_id.values()))
