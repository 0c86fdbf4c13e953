"""Copies the lines of this machine's sessions to the log stream of the fleet, so that they can be read
while this machine is off.

A session never waits for its copy. The last stored message of a session says where to go on. If it
does not fit the session's log, or if there is none, the copy is made again from the beginning.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import NoReturn

from shim.bridge.client import HostNotAnsweringError, HostUnavailableError, connect_to_session
from shim.bridge.ended_session import has_cursor_line, open_ended_log
from shim.bridge.registry import (
    SessionRecord,
    SessionScanError,
    is_session_unreadable,
    scan_sessions,
)
from shim.core.bridge.frames import WATCH, LogCursor
from shim.core.errors import FrontendError
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
from shim.fleet.buckets import read_last_message, read_sequence, request_json
from shim.fleet.connection import FleetConnection
from shim.fleet.log_stream import (
    LAST_SEQUENCE_HEADER,
    create_log_stream,
    list_stored_sessions,
    remove_log_messages,
)

SCAN_INTERVAL_S = 1.0
READ_BATCH_LINES = 256
# The reasons of a gap after which a host sends its whole log.
RESTART_REASONS = ("generation", "unknown")
# Sessions that are copied at the same time. Each has a connection to its host.
MAX_COPIES = 200


class SessionReplicator:
    """Copies the lines of all sessions of this machine over one connection."""

    def __init__(self, connection: FleetConnection, environment: Mapping[str, str]) -> None:
        self._connection = connection
        self._environment = environment
        # The running copies. A session that has ended is copied once, until it changes.
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._copied_changes: dict[str, object] = {}
        self._stored_sessions = set[str]()

    async def run(self) -> NoReturn:
        """Copy lines forever. Raise BucketError if the server does not confirm one."""
        client, join = self._connection.client, self._connection.join
        await create_log_stream(client, join.fleet)
        self._stored_sessions = await list_stored_sessions(client, join.fleet, join.machine)
        try:
            while True:
                with suppress(SessionScanError):  # MachinePublisher reports it
                    sessions = await asyncio.to_thread(scan_sessions, self._environment)
                    self._start_copies(sessions)
                    await self._remove_copies(sessions)
                await asyncio.sleep(SCAN_INTERVAL_S)
                self._collect_copies()
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _start_copies(self, sessions: list[SessionRecord]) -> None:
        for session in sessions:
            change = (session.metadata.get("updated"), session.is_running)
            if session.session_id in self._tasks or len(self._tasks) >= MAX_COPIES:
                continue
            if self._copied_changes.get(session.session_id) == change:
                continue
            if not session.is_running:
                self._copied_changes[session.session_id] = change
            self._stored_sessions.add(session.session_id)
            copy = SessionCopy(self._connection, session, self._environment)
            self._tasks[session.session_id] = asyncio.create_task(copy.run())

    def _collect_copies(self) -> None:
        """Forget the copies that have ended. Raise the error of a copy that has failed."""
        for session_id, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[session_id]
                task.result()

    async def _remove_copies(self, sessions: list[SessionRecord]) -> None:
        """Remove the copies of sessions that were removed on this machine."""
        present = {session.session_id for session in sessions}
        client, join = self._connection.client, self._connection.join
        for session_id in self._stored_sessions - present - self._tasks.keys():
            if await asyncio.to_thread(is_session_unreadable, session_id, self._environment):
                continue
            subject = build_log_subject(join.fleet, join.machine, session_id)
            await remove_log_messages(client, subject)
            self._stored_sessions.discard(session_id)
            self._copied_changes.pop(session_id, None)


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
        self._subject = build_log_subject(join.fleet, join.machine, session.session_id)
        self._sequence = 0  # of the last stored message

    async def run(self) -> None:
        """Copy the lines after the last stored one."""
        try:
            cursor = await self._find_position()
            async for line in self._read_lines(cursor):
                await self._store_line(line)
        except (FrontendError, HostUnavailableError, HostNotAnsweringError):
            return  # the session has ended or was removed; the next scan finds its state

    async def _find_position(self) -> LogCursor | None:
        """Return the position of the last stored line, or None if the copy starts again."""
        message = await read_last_message(self._client, LOG_STREAM, self._subject)
        if message is None:
            return None
        self._sequence = read_sequence(message)
        position = parse_position(message.headers)
        if (
            position is not None
            and self._is_signed_here(message.data, position)
            and await asyncio.to_thread(self._has_line, position)
        ):
            return position
        await self._remove_lines()
        return None

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
        answer = await request_json(self._client, self._subject, sealed, headers)
        sequence = answer.get("seq")
        if isinstance(sequence, int):
            self._sequence = sequence
