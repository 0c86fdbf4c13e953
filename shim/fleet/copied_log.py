"""Sends the copied log of a session in the frames that its host would send, while its machine is
away.
"""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

from shim.bridge.ended_session import SESSION_KEYS, STATE_KEYS
from shim.core.bridge.frames import (
    ClientHello,
    LogCursor,
    encode_frame,
    encode_line_frame,
)
from shim.core.fleet.copied_line import CopyReader
from shim.core.fleet.subjects import LOG_STREAM, build_log_subject
from shim.core.reading.values import shorten_session_id
from shim.fleet.buckets import read_last_message
from shim.fleet.connection import FleetConnection
from shim.fleet.log_stream import read_log_messages
from shim.fleet.view import FleetMachine, FleetView


class MissingCopyError(Exception):
    """Raised if the fleet has no copy of a session."""


class CopiedLog(NamedTuple):
    """The copy of a session's log. `public_key` is that of the machine."""

    connection: FleetConnection
    subject: str
    public_key: str

    def create_reader(self, after_number: int) -> CopyReader:
        """Return a reader of the lines after a number."""
        return CopyReader(self.connection.read_key, self.subject, self.public_key, after_number)

    async def read_last_position(self) -> LogCursor:
        """Return the position of the last line. Its number is 0 if the machine has not signed the line.
        Raise MissingCopyError if there is no line, and BucketError if the server does not answer.
        """
        message = await read_last_message(self.connection.client, LOG_STREAM, self.subject)
        if message is None:
            raise MissingCopyError
        line = self.create_reader(0).read(message.headers, message.data)
        if line is None:
            return LogCursor(0, 0)
        return LogCursor(line.generation, line.number)

    async def matches_cursor(self, cursor: LogCursor) -> bool:
        """Return whether no line contradicts a client's cursor. If a system crash loses lines, a later
        generation uses their numbers again.
        """
        reader = self.create_reader(0)
        async with aclosing(read_log_messages(self.connection.client, self.subject)) as messages:
            async for message in messages:
                line = reader.read(message.headers, message.data)
                if line is None:
                    continue
                if line.number > cursor.number:
                    return line.generation >= cursor.generation
                if line.generation > cursor.generation:
                    return False
                if line.number == cursor.number:
                    return line.generation == cursor.generation
        return True


async def iterate_copied_frames(
    connection: FleetConnection, machine: str, session_id: str, hello: ClientHello
) -> AsyncIterator[bytes]:
    """Yield the frames of a session whose machine is away: `welcome`, the lines after the client's
    cursor, `synced`, and `bye`. All lines are yielded, after a gap, if the copy contradicts the cursor.
    Raise MissingCopyError if the fleet has no such session, and BucketError if the server does not
    answer.
    """
    view = FleetView(connection.join)
    await view.load(connection)
    listed = view.machines.get(machine)
    if listed is None or session_id not in listed.sessions:
        raise MissingCopyError
    subject = build_log_subject(connection.join.fleet, machine, session_id)
    log = CopiedLog(connection, subject, listed.public_key)
    last_position = await log.read_last_position()
    yield _encode_welcome(listed.sessions[session_id], last_position.number)
    after_number = 0
    cursor = hello.cursor
    if cursor is not None and (cursor == last_position or await log.matches_cursor(cursor)):
        after_number = cursor.number
    elif cursor is not None:
        yield encode_frame("gap", **{"from": 0, "to": last_position.number, "reason": "unknown"})
    reader = log.create_reader(after_number)
    if hello.wants_history:
        async for message in read_log_messages(connection.client, subject):
            line = reader.read(message.headers, message.data)
            if line is None:
                continue
            if reader.missing_numbers is not None:
                first, last = reader.missing_numbers
                yield encode_frame("gap", **{"from": first, "to": last, "reason": "lost"})
            yield encode_line_frame(line.number, line.generation, line.at_ms, line.line)
    yield encode_frame("synced", number=reader.last_number)
    yield encode_frame("bye", reason=_explain_absence(listed))


def _encode_welcome(fields: Mapping[str, Any], last_number: int) -> bytes:
    return encode_frame(
        "welcome",
        **{key: fields.get(key) for key in SESSION_KEYS},
        id=shorten_session_id(str(fields.get("session"))),
        number=last_number,
        state={key: fields.get(key) for key in STATE_KEYS},
        driver=None,
        questions=[],
    )


def _explain_absence(machine: FleetMachine) -> str:
    if machine.away_ms is None:
        return f"the machine {machine.name} does not answer"
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(machine.away_ms / 1000))
    return f"the machine {machine.name} has not been connected since {since}"
