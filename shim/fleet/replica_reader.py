"""Sends the copied log of a session in the frames that its host would send, while its machine is
away.
"""

import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from shim.bridge.ended_session import SESSION_KEYS, STATE_KEYS
from shim.core.bridge.frames import (
    ClientHello,
    LogCursor,
    encode_frame,
    encode_line_frame,
)
from shim.core.fleet.join_file import get_read_key
from shim.core.fleet.replica import ReplicaReader, parse_position
from shim.core.fleet.subjects import LOG_STREAM, build_log_subject
from shim.core.reading.values import shorten_session_id
from shim.fleet.buckets import read_last_message
from shim.fleet.connection import FleetConnection
from shim.fleet.log_stream import read_log_messages
from shim.fleet.view import FleetMachine, FleetView


class MissingReplicaError(Exception):
    """Raised if the fleet has no copy of a session."""


async def iterate_replica_frames(
    connection: FleetConnection, machine: str, session_id: str, hello: ClientHello
) -> AsyncIterator[bytes]:
    """Yield the frames of a session whose machine is away: `welcome`, the lines after the client's
    cursor, `synced`, and `bye`. Raise MissingReplicaError if the fleet has no such session, and
    BucketError if the server does not answer.
    """
    view = FleetView(connection.join)
    await view.load(connection)
    listing = view.find_machine(machine)
    if listing is None:
        raise MissingReplicaError
    listed, public_key = listing
    fields = find_session_fields(listed, session_id)
    subject = build_log_subject(connection.join.fleet, machine, session_id)
    last_message = await read_last_message(connection.client, LOG_STREAM, subject)
    if last_message is None:
        raise MissingReplicaError
    yield _encode_welcome(fields, parse_position(last_message.headers))
    after_number = 0
    if hello.cursor is not None:
        after_number = hello.cursor.number
    reader = ReplicaReader(get_read_key(connection.join), subject, public_key, after_number)
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


def find_session_fields(machine: FleetMachine, session_id: str) -> Mapping[str, Any]:
    """Return the fields of a machine's session. Raise MissingReplicaError if it has no such
    session.
    """
    for fields in machine.sessions:
        if fields.get("session") == session_id:
            return fields
    raise MissingReplicaError


def _encode_welcome(fields: Mapping[str, Any], position: LogCursor | None) -> bytes:
    return encode_frame(
        "welcome",
        **{key: fields.get(key) for key in SESSION_KEYS},
        id=shorten_session_id(str(fields.get("session"))),
        number=position.number if position else 0,
        state={key: fields.get(key) for key in STATE_KEYS},
        driver=None,
        questions=[],
    )


def _explain_absence(machine: FleetMachine) -> str:
    if machine.away_ms is None:
        return f"the machine {machine.entry.name} does not answer"
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(machine.away_ms / 1000))
    return f"the machine {machine.entry.name} has not been connected since {since}"
