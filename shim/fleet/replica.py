"""Copies the lines of this machine's sessions to the log stream of the fleet, so that they can be read
while this machine is off.

A session never waits for its copy. The last stored message of a session says where to go on. If it
does not fit the session's log, or if there is none, the copy is made again from the beginning.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from shim.bridge.client import HostNotAnsweringError, connect_to_session
from shim.bridge.ended_session import has_cursor_line, open_ended_log
from shim.bridge.registry import (
    SessionRecord,
    SessionScanError,
    is_session_unreadable,
    scan_sessions,
)
from shim.core.bridge.frames import WATCH, LogCursor
from shim.core.errors import FrontendError, ShimError
from shim.core.fleet.join_file import get_member_key_pair, get_read_key
from shim.core.fleet.replica import (
    MAX_REPLICATED_BYTES,
    POSITION_HEADER,
    ReplicatedLine,
    format_position,
    open_line,
    parse_position,
    seal_line,
)
from shim.core.fleet.sealing import NONCE_BYTES, SealError
from shim.core.fleet.subjects import LOG_STREAM, build_log_subject
from shim.core.reading.values import escape_control_chars
from shim.fleet.buckets import (
    LAST_SEQUENCE_HEADER,
    BucketError,
    get_sequence,
    read_last_message,
    store_message,
)
from shim.fleet.connection import FleetConnection
from shim.fleet.log_stream import (
    create_log_stream,
    is_age_evicted,
    list_stored_sessions,
    remove_log_messages,
)
from shim.fleet.tunnels import cancel_tasks
from shim.io.stderr import warn

SCAN_INTERVAL_S = 1.0
READ_BATCH_LINES = 256
# The reasons of a gap after which a host sends its whole log.
RESTART_REASONS = ("generation", "unknown")
# Sessions that are copied at the same time. A running one has a connection to its host.
MAX_RUNNING_COPIES = 150
MAX_ENDED_COPIES = 50
# If more sessions run, a copy ends after this time, so that another one can start.
COPY_TURN_S = 30.0
COPY_RETRY_S = 10.0  # the wait after a failure
MAX_PROBLEM_CHARS = 300


@dataclass
class CopyState:
    """The copy of one session: its task while it runs, and the result of the last attempt.

    change         the state of the session when the copy started
    copied_change  the state in which an ended session was copied completely, or None
    started_s, retry_s  the start of the last copy, and of the next attempt, on the monotonic clock
    problem        why the last attempt failed, or ""
    """

    task: asyncio.Task[None] | None = None
    is_running: bool = False
    change: object = None
    copied_change: object = None
    started_s: float = 0.0
    retry_s: float = 0.0
    problem: str = ""


class SessionReplicator:
    """Copies the lines of all sessions of this machine over one connection."""

    def __init__(self, connection: FleetConnection, environment: Mapping[str, str]) -> None:
        self._connection = connection
        self._environment = environment
        self._states: dict[str, CopyState] = {}

    async def run(self) -> NoReturn:
        """Copy lines forever. Raise BucketError if the stream cannot be created. If the copy of one
        session fails, the others are not affected.
        """
        client, join = self._connection.client, self._connection.join
        await create_log_stream(client, join.fleet)
        for session_id in await list_stored_sessions(client, join.fleet, join.name):
            self._states[session_id] = CopyState()
        try:
            while True:
                with suppress(SessionScanError):  # MachinePublisher reports it
                    sessions = await asyncio.to_thread(scan_sessions, self._environment)
                    self._start_copies(sessions)
                    await self._remove_copies(sessions)
                await asyncio.sleep(SCAN_INTERVAL_S)
                self._collect_copies()
        finally:
            tasks = [state.task for state in self._states.values() if state.task is not None]
            await cancel_tasks(tasks)

    def _start_copies(self, sessions: list[SessionRecord]) -> None:
        waiting = [session for session in sessions if self._needs_copy(session)]
        running = [session for session in waiting if session.is_running]
        ended = [session for session in waiting if not session.is_running]
        self._start_waiting(ended, self._list_active(is_running=False), MAX_ENDED_COPIES)
        active = self._list_active(is_running=True)
        waiting_count = self._start_waiting(running, active, MAX_RUNNING_COPIES)
        for state in active[:waiting_count]:
            if state.task is not None and time.monotonic() - state.started_s > COPY_TURN_S:
                state.task.cancel()

    def _needs_copy(self, session: SessionRecord) -> bool:
        state = self._states.setdefault(session.session_id, CopyState())
        if state.task is not None or time.monotonic() < state.retry_s:
            return False
        return session.is_running or state.copied_change != _get_change(session)

    def _list_active(self, *, is_running: bool) -> list[CopyState]:
        """Return the copies of running or of ended sessions, in the order of their start."""
        active = [
            state
            for state in self._states.values()
            if state.task is not None and state.is_running == is_running
        ]
        return sorted(active, key=lambda state: state.started_s)

    def _start_waiting(
        self, waiting: list[SessionRecord], active: list[CopyState], max_copies: int
    ) -> int:
        """Start copies of waiting sessions. Those that have waited for the longest time come first.
        Return how many sessions still wait.
        """
        free_count = max_copies - len(active)
        waiting.sort(key=lambda session: self._states[session.session_id].started_s)
        for session in waiting[:free_count]:
            state = self._states[session.session_id]
            state.is_running = session.is_running
            state.change = _get_change(session)
            state.started_s = time.monotonic()
            copy = SessionCopy(self._connection, session, self._environment)
            state.task = asyncio.create_task(copy.run())
        return max(0, len(waiting) - free_count)

    def _collect_copies(self) -> None:
        """Store the results of the copies that have ended."""
        for session_id, state in self._states.items():
            if state.task is None or not state.task.done():
                continue
            task = state.task
            state.task = None
            if task.cancelled():
                continue  # other sessions were waiting
            error = task.exception()
            if error is not None:
                self._handle_failure(session_id, error)
                continue
            state.problem = ""
            if not state.is_running:
                state.copied_change = state.change

    async def _remove_copies(self, sessions: list[SessionRecord]) -> None:
        """Remove the copies of sessions that were removed on this machine."""
        present = {session.session_id for session in sessions}
        client, join = self._connection.client, self._connection.join
        for session_id in self._states.keys() - present:
            state = self._states[session_id]
            if state.task is not None or time.monotonic() < state.retry_s:
                continue
            if await asyncio.to_thread(is_session_unreadable, session_id, self._environment):
                continue
            subject = build_log_subject(join.fleet, join.name, session_id)
            try:
                await remove_log_messages(client, subject)
            except BucketError as error:
                self._handle_failure(session_id, error)
                return
            del self._states[session_id]

    def _handle_failure(self, session_id: str, error: BaseException) -> None:
        """Let a session wait for its next attempt. Print a problem that no other session has."""
        problem = _describe_problem(error)
        reported = {state.problem for state in self._states.values()}
        if problem not in reported and not self._connection.client.is_closed:
            warn(f"the log of the session {session_id} is not copied: {problem}\n")
        state = self._states[session_id]
        state.problem = problem
        state.retry_s = time.monotonic() + COPY_RETRY_S


def _get_change(session: SessionRecord) -> object:
    """Return a value that differs after the session has changed."""
    return session.metadata.get("updated"), session.is_running


def _describe_problem(error: BaseException) -> str:
    text = str(error)
    if not isinstance(error, ShimError):
        text = f"{type(error).__name__}: {error}"
    return escape_control_chars(text)[:MAX_PROBLEM_CHARS]


class SessionCopy:
    """Copies the lines of one session until its host ends."""

    def __init__(
        self, connection: FleetConnection, session: SessionRecord, environment: Mapping[str, str]
    ) -> None:
        join = connection.join
        self._client = connection.client
        self._session = session
        self._environment = environment
        self._key = get_read_key(join)
        self._key_pair = get_member_key_pair(join)
        self._subject = build_log_subject(join.fleet, join.name, session.session_id)
        self._sequence = 0  # of the last stored message

    async def run(self) -> None:
        """Copy the lines after the last stored one. Raise BucketError if the server does not confirm
        a line, and FrontendError if the log of an ended session cannot be read.
        """
        try:
            cursor = await self._find_position()
            if cursor is None and await self._was_evicted():
                return
            async for line in self._read_lines(cursor):
                await self._store_line(line)
        except (FrontendError, HostNotAnsweringError):
            if not self._session.is_running:
                raise
            # The session has ended or was removed. The next scan finds its state.

    async def _find_position(self) -> LogCursor | None:
        """Return the position of the last stored line, or None if the copy starts again."""
        message = await read_last_message(self._client, LOG_STREAM, self._subject)
        if message is None:
            return None
        self._sequence = get_sequence(message)
        position = parse_position(message.headers)
        if (
            position is not None
            and self._is_signed_here(message.data, position)
            and await asyncio.to_thread(self._has_line, position)
        ):
            return position
        await self._remove_lines()
        return None

    async def _was_evicted(self) -> bool:
        """Return whether the server has removed the lines of an ended session for newer lines. If they
        were copied again, they would replace newer ones, and so on at each connection.
        """
        if self._session.is_running or self._sequence:
            return False
        metadata = self._session.metadata
        changed_ms = metadata.get("updated") or metadata["created"]
        return await is_age_evicted(self._client, time.time() - changed_ms / 1000)

    def _is_signed_here(self, data: bytes, position: LogCursor) -> bool:
        try:
            open_line(self._key, data, self._subject, position, self._key_pair.public_key)
        except SealError:
            return False
        return True

    async def _remove_lines(self) -> None:
        """Remove the stored lines, which do not fit the session's log."""
        self._sequence = await remove_log_messages(self._client, self._subject)

    def _has_line(self, position: LogCursor) -> bool:
        if self._session.is_running:
            return True  # the host checks the cursor
        return has_cursor_line(open_ended_log(self._session), position)

    async def _read_lines(self, cursor: LogCursor | None) -> AsyncIterator[ReplicatedLine]:
        """Yield the lines after the cursor, and further lines of a running session."""
        if not self._session.is_running:
            async for line in self._read_ended_log(cursor):
                yield line
            return
        async with await connect_to_session(
            self._session.session_id,
            self._environment,
            role=WATCH,
            after=cursor,
            client="shim fleet run",
            partial=False,
        ) as host:
            async for frame in host:
                if frame["kind"] == "line" and "number" in frame:
                    yield ReplicatedLine(
                        frame["generation"], frame["number"], frame["at"], frame["raw"]
                    )
                elif frame["kind"] == "gap" and frame["reason"] in RESTART_REASONS:
                    await self._remove_lines()
                elif frame["kind"] == "bye":
                    return

    async def _read_ended_log(self, cursor: LogCursor | None) -> AsyncIterator[ReplicatedLine]:
        log = await asyncio.to_thread(open_ended_log, self._session)
        number = 0 if cursor is None else cursor.number
        while entries := await asyncio.to_thread(log.read, number, READ_BATCH_LINES):
            for entry in entries:
                number = entry.number
                yield ReplicatedLine(entry.generation, number, entry.at_ms, entry.line)

    async def _store_line(self, line: ReplicatedLine) -> None:
        """Store a line after the last stored one. Raise BucketError if the server does not confirm
        it, or if another process has stored a line meanwhile.
        """
        if len(line.line) > MAX_REPLICATED_BYTES:
            return
        headers = {
            POSITION_HEADER: format_position(line),
            LAST_SEQUENCE_HEADER: str(self._sequence),
        }
        sealed = seal_line(self._key, os.urandom(NONCE_BYTES), line, self._subject, self._key_pair)
        self._sequence = await store_message(self._client, self._subject, sealed, headers)
