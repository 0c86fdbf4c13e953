"""Copies the lines of this machine's sessions to the log stream of the fleet, so that they can be read
while this machine is off.

A session never waits for its copy. The last stored message of a session says where to go on. If it
does not fit the session's log, or if there is none, the copy is made again from the beginning.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from typing import Any

from shim.bridge.client import HostNotAnsweringError, connect_to_session
from shim.bridge.ended_session import has_cursor_line, open_ended_log
from shim.bridge.registry import SessionRecord, is_session_unreadable
from shim.core.bridge.frames import WATCH, LogCursor
from shim.core.errors import FrontendError, ShimError
from shim.core.fleet.copied_line import (
    MAX_COPIED_BYTES,
    POSITION_HEADER,
    CopiedLine,
    format_position,
    open_line,
    seal_line,
)
from shim.core.fleet.sealing import NONCE_BYTES
from shim.core.fleet.subjects import LOG_STREAM, build_log_subject
from shim.core.reading.values import escape_control_chars
from shim.fleet.buckets import get_sequence, read_last_message, store_message
from shim.fleet.connection import FleetConnection
from shim.fleet.log_stream import (
    create_log_stream,
    is_age_evicted,
    list_stored_sessions,
    remove_log_messages,
)
from shim.fleet.tasks import cancel_tasks
from shim.io.stderr import warn

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
MAX_LISTED_COPIES = 20  # of those that are not complete
FULL_STREAM_TEXT = "the log stream of the server is full, and has only newer lines"


class LogCopier:
    """Copies the lines of all sessions of this machine over one connection."""

    def __init__(self, connection: FleetConnection, environment: Mapping[str, str]) -> None:
        self._connection = connection
        self._environment = environment
        self._copies: dict[str, LogCopy] = {}
        self._is_stream_created = False

    async def update(self, sessions: Sequence[SessionRecord]) -> None:
        """Start copies of the sessions of this machine, and remove the copies of all others. Raise
        BucketError if the server refuses a request. If the copy of one session fails, the others are
        not affected.
        """
        if not self._is_stream_created:
            client, join = self._connection.client, self._connection.join
            await create_log_stream(client, join.fleet)
            for session_id in await list_stored_sessions(client, join.fleet, join.name):
                self._get_copy(session_id)
            self._is_stream_created = True
        self._collect_results()
        self._start_copies(sessions)
        await self._remove_copies({session.session_id for session in sessions})

    async def stop(self) -> None:
        """End all copies. What the server has stored stays."""
        await cancel_tasks(copy.task for copy in self._copies.values() if copy.task is not None)

    def summarize_copies(self) -> dict[str, Any]:
        """Return how many sessions there are, how many of them are copied completely, and the position
        of up to MAX_LISTED_COPIES others. Those with a problem come first. Old sessions for which the
        server has no space are listed after other problems.
        """
        incomplete = [copy for copy in self._copies.values() if not copy.is_complete]
        incomplete.sort(key=lambda copy: (not copy.problem, copy.problem == FULL_STREAM_TEXT))
        return {
            "sessions": len(self._copies),
            "complete": len(self._copies) - len(incomplete),
            "incomplete": [
                {"session": copy.session_id, "line": copy.last_number, "problem": copy.problem}
                for copy in incomplete[:MAX_LISTED_COPIES]
            ],
        }

    def _get_copy(self, session_id: str) -> "LogCopy":
        if session_id not in self._copies:
            self._copies[session_id] = LogCopy(self._connection, session_id, self._environment)
        return self._copies[session_id]

    def _start_copies(self, sessions: Sequence[SessionRecord]) -> None:
        """Start as many copies as the limits allow. Those that have waited for the longest time come
        first. If running sessions wait, end copies that have had their turn.
        """
        waiting = [session for session in sessions if self._needs_copy(session)]
        waiting.sort(key=lambda session: self._copies[session.session_id].started_s)
        for is_running, max_copies in ((False, MAX_ENDED_COPIES), (True, MAX_RUNNING_COPIES)):
            active = [
                copy
                for copy in self._copies.values()
                if copy.task is not None and copy.is_running == is_running
            ]
            candidates = [session for session in waiting if session.is_running == is_running]
            free_count = max(0, max_copies - len(active))
            for session in candidates[:free_count]:
                self._copies[session.session_id].start(session)
            if is_running:
                _end_turns(active, len(candidates) - free_count)

    def _needs_copy(self, session: SessionRecord) -> bool:
        copy = self._get_copy(session.session_id)
        if copy.task is not None or time.monotonic() < copy.retry_s:
            return False
        return session.is_running or copy.final_change != _get_change(session)

    def _collect_results(self) -> None:
        """Store the results of the copies that have ended."""
        for copy in self._copies.values():
            if copy.task is None or not copy.task.done():
                continue
            task = copy.task
            copy.task = None
            if task.cancelled():
                # Other sessions were waiting. The session may have further lines.
                copy.is_complete = False
            elif (error := task.exception()) is not None:
                self._handle_failure(copy, error)

    async def _remove_copies(self, present_ids: Set[str]) -> None:
        """Remove the copies of sessions that were removed on this machine. Raise BucketError if the
        server refuses it for one of them. The others come first in the next attempt.
        """
        for session_id in sorted(self._copies.keys() - present_ids):
            copy = self._copies[session_id]
            if copy.task is not None or time.monotonic() < copy.retry_s:
                continue
            if await asyncio.to_thread(is_session_unreadable, session_id, self._environment):
                continue
            copy.retry_s = time.monotonic() + COPY_RETRY_S
            await copy.remove()
            del self._copies[session_id]

    def _handle_failure(self, copy: "LogCopy", error: BaseException) -> None:
        """Let a session wait for its next attempt. Print a problem that no other session has."""
        problem = _describe_problem(error)
        reported = {each.problem for each in self._copies.values()}
        if problem not in reported and not self._connection.client.is_closed:
            warn(f"the log of the session {copy.session_id} is not copied: {problem}\n")
        copy.is_complete = False
        copy.problem = problem
        copy.retry_s = time.monotonic() + COPY_RETRY_S


def _end_turns(active: Sequence["LogCopy"], count: int) -> None:
    """End the oldest copies of running sessions, so that `count` waiting ones can start. Each copy has
    a turn of COPY_TURN_S.
    """
    oldest = sorted(active, key=lambda copy: copy.started_s)
    for copy in oldest[: max(0, count)]:
        if copy.task is not None and time.monotonic() - copy.started_s > COPY_TURN_S:
            copy.task.cancel()


def _get_change(session: SessionRecord) -> object:
    """Return a value that differs after the session has changed."""
    return session.metadata.get("updated"), session.is_running


def _describe_problem(error: BaseException) -> str:
    text = str(error)
    if not isinstance(error, ShimError):
        text = f"{type(error).__name__}: {error}"
    return escape_control_chars(text)[:MAX_PROBLEM_CHARS]


class LogCopy:
    """Copies the lines of one session, in one attempt after another.

    task           the current attempt, or None
    is_running     whether the session was running when the last attempt started
    final_change   the change after which the ended session is not copied again, or None
    is_complete    whether all lines are copied, except for those that are on the way
    last_number    the number of the last stored line, or 0
    started_s, retry_s  the start of the last attempt, and of the next one, on the monotonic clock
    problem        why the last attempt failed, or ""
    """

    def __init__(
        self, connection: FleetConnection, session_id: str, environment: Mapping[str, str]
    ) -> None:
        join = connection.join
        self.session_id = session_id
        self.task: asyncio.Task[None] | None = None
        self.is_running = False
        self.final_change: object = None
        self.is_complete = False
        self.last_number = 0
        self.started_s = 0.0
        self.retry_s = 0.0
        self.problem = ""
        self._client = connection.client
        self._environment = environment
        self._key = connection.read_key
        self._key_pair = connection.key_pair
        self._subject = build_log_subject(join.fleet, join.name, session_id)
        self._sequence = 0  # of the last stored message

    def start(self, session: SessionRecord) -> None:
        """Start an attempt."""
        self.started_s = time.monotonic()
        self.is_running = session.is_running
        self.is_complete = False
        self.task = asyncio.create_task(self.run(session))

    async def run(self, session: SessionRecord) -> None:
        """Copy the lines after the last stored one, until the host of the session ends. Raise
        BucketError if the server does not confirm a line, and FrontendError if the log of an ended
        session cannot be read.
        """
        try:
            cursor = await self._find_position(session)
            if cursor is None and await self._was_evicted(session):
                self.final_change = _get_change(session)
                self.problem = FULL_STREAM_TEXT
                return
            async for line in self._read_lines(session, cursor):
                await self._store_line(line)
        except (FrontendError, HostNotAnsweringError):
            if not session.is_running:
                raise
            return  # The session has ended or was removed. The next scan finds its state.
        if not session.is_running:
            self.final_change = _get_change(session)
            self._set_complete()

    async def remove(self) -> None:
        """Remove the stored lines. Raise BucketError if the server does not confirm it."""
        self._sequence = await remove_log_messages(self._client, self._subject)
        self.last_number = 0

    def _set_complete(self) -> None:
        self.is_complete = True
        self.problem = ""

    async def _find_position(self, session: SessionRecord) -> LogCursor | None:
        """Return the position of the last stored line, or None if the copy starts again. Remove stored
        lines that do not fit the session's log.
        """
        self._sequence = 0
        self.last_number = 0
        message = await read_last_message(self._client, LOG_STREAM, self._subject)
        if message is None:
            return None
        self._sequence = get_sequence(message)
        public_key = self._key_pair.public_key
        line = open_line(self._key, message.data, self._subject, message.headers, public_key)
        if line is not None:
            position = LogCursor(line.generation, line.number)
            if await asyncio.to_thread(_has_line, session, position):
                self.last_number = line.number
                return position
        await self.remove()
        return None

    async def _was_evicted(self, session: SessionRecord) -> bool:
        """Return whether the server has removed the lines of an ended session for newer lines. If they
        were copied again, they would replace newer ones, and so on at each connection.
        """
        if session.is_running or self._sequence:
            return False
        metadata = session.metadata
        changed_ms = metadata.get("updated") or metadata["created"]
        return await is_age_evicted(self._client, time.time() - changed_ms / 1000)

    async def _read_lines(
        self, session: SessionRecord, cursor: LogCursor | None
    ) -> AsyncIterator[CopiedLine]:
        """Yield the lines after the cursor, and further lines of a running session."""
        if not session.is_running:
            async for line in _read_ended_log(session, cursor):
                yield line
            return
        async with await connect_to_session(
            self.session_id,
            self._environment,
            role=WATCH,
            after=cursor,
            client="shim fleet run",
            partial=False,
        ) as host:
            async for frame in host:
                if frame["kind"] == "line" and "number" in frame:
                    yield CopiedLine(
                        frame["generation"], frame["number"], frame["at"], frame["raw"]
                    )
                elif frame["kind"] == "gap" and frame["reason"] in RESTART_REASONS:
                    await self.remove()
                elif frame["kind"] == "synced":
                    self._set_complete()
                elif frame["kind"] == "bye":
                    return

    async def _store_line(self, line: CopiedLine) -> None:
        """Store a line after the last stored one. Raise BucketError if the server does not confirm
        it, or if another process has stored a line meanwhile.
        """
        if len(line.line) > MAX_COPIED_BYTES:
            return
        headers = {POSITION_HEADER: format_position(line)}
        sealed = seal_line(self._key, os.urandom(NONCE_BYTES), line, self._subject, self._key_pair)
        self._sequence = await store_message(
            self._client, self._subject, sealed, headers, expected_sequence=self._sequence
        )
        self.last_number = line.number


def _has_line(session: SessionRecord, position: LogCursor) -> bool:
    if session.is_running:
        return True  # the host checks the cursor
    return has_cursor_line(open_ended_log(session), position)


async def _read_ended_log(
    session: SessionRecord, cursor: LogCursor | None
) -> AsyncIterator[CopiedLine]:
    """Yield the lines after the cursor."""
    log = await asyncio.to_thread(open_ended_log, session)
    number = 0 if cursor is None else cursor.number
    while entries := await asyncio.to_thread(log.read, number, READ_BATCH_LINES):
        for entry in entries:
            number = entry.number
            yield CopiedLine(entry.generation, number, entry.at_ms, entry.line)
