"""Checks the connection of a member, asks `shim fleet run` for its state, and removes the entries of
this machine.
"""

import asyncio
import socket
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import nats.errors
import orjson

from shim.bridge import sockets
from shim.core.bridge.frames import FrameError, encode_frame, parse_frame
from shim.core.errors import FrontendError
from shim.core.fleet.join_file import JoinFile
from shim.core.fleet.registry import LEASE_TTL_S
from shim.core.fleet.roles import MACHINE
from shim.core.fleet.subjects import (
    SESSIONS_BUCKET,
    build_lease_subject,
    build_log_subject,
    build_session_subject,
    get_bucket_stream,
)
from shim.core.reading.values import as_dict, get_text
from shim.fleet.buckets import (
    REQUEST_TIMEOUT_S,
    create_buckets,
    delete_entry,
    parse_server_time,
    read_entries,
    read_entry,
)
from shim.fleet.connection import FleetConnection, FleetUnavailableError, connect_to_fleet
from shim.fleet.folder import MembershipError, check_expiry
from shim.fleet.log_stream import (
    create_log_stream,
    list_stored_sessions,
    remove_log_messages,
)
from shim.state.config import get_fleet_folder

STATUS_TIMEOUT_S = 2.0
MAX_STATUS_BYTES = 64 * 1024
# The beginnings of the server's answers to a member that it does not know, or no longer.
REFUSALS = (
    "authorization violation",
    "user authentication expired",
    "user authentication revoked",
    "account authentication expired",
)


class ProcessStatus(NamedTuple):
    """The state of `shim fleet run`.

    problem  "" if it is connected, and all its parts work
    copies   how far the logs of this machine's sessions are copied (see `summarize_copies`), or {} if
             none are copied now
    """

    pid: int
    problem: str
    copies: Mapping[str, Any]


def check_connection(join: JoinFile) -> float:
    """Connect to the server, and check what this member needs there. Return by how many seconds the
    server's clock is ahead, or 0 if this member cannot read it.

    Raise FleetUnavailableError if the server cannot be reached or refuses this member, or BucketError
    if the registry cannot be created.
    """
    return asyncio.run(_check_connection(join))


async def _check_connection(join: JoinFile) -> float:
    async with connect_to_fleet(join) as connection:
        if join.role == MACHINE:
            await create_buckets(connection.client)
        return await _measure_clock_difference(connection)


async def _measure_clock_difference(connection: FleetConnection) -> float:
    if connection.join.session:
        return 0.0
    request = f"$JS.API.STREAM.INFO.{get_bucket_stream(SESSIONS_BUCKET)}"
    try:
        message = await connection.client.request(request, timeout=REQUEST_TIMEOUT_S)
    except nats.errors.Error:
        return 0.0
    server_time_s = parse_server_time(get_text(as_dict(orjson.loads(message.data)), "ts"))
    return server_time_s - time.time() if server_time_s else 0.0


def load_process_status(environment: Mapping[str, str]) -> ProcessStatus | None:
    """Return the state of this user's `shim fleet run`, or None if it does not run."""
    try:
        connection = sockets.connect_to_host(get_fleet_folder(environment))
    except (OSError, ValueError):
        return None
    with connection:
        connection.settimeout(STATUS_TIMEOUT_S)
        try:
            connection.sendall(encode_frame("status"))
            frame = parse_frame(_read_line(connection))
        except (OSError, FrameError) as error:
            return ProcessStatus(0, f"it does not answer: {error}", {})
    pid = frame.get("pid")
    return ProcessStatus(
        pid if isinstance(pid, int) else 0,
        get_text(frame, "problem"),
        as_dict(frame.get("copies")),
    )


def _read_line(connection: socket.socket) -> bytes:
    with connection.makefile("rb") as file:
        return file.readline(MAX_STATUS_BYTES)


def check_machine_is_disconnected(join: JoinFile) -> None:
    """Raise FrontendError if the server has a lease of a machine of this name, or
    FleetUnavailableError or BucketError if the server does not answer.
    """
    if not asyncio.run(_has_lease(join)):
        return
    raise FrontendError(
        f"{join.name} is connected to the server, so it would publish its sessions again",
        hint="reload the server's configuration, wait for "
        f"{LEASE_TTL_S:.0f} s, and repeat the command",
    )


async def _has_lease(join: JoinFile) -> bool:
    async with connect_to_fleet(join) as connection:
        # A server that starts does not answer a read, as if the bucket did not exist.
        await create_buckets(connection.client)
        return bool((await read_entry(connection.client, build_lease_subject(join.name))).data)


def remove_entries(join: JoinFile) -> None:
    """Remove the lease, the sessions, the entry and the copied logs of this machine. Raise
    FleetUnavailableError or BucketError if this fails, and MembershipError if it can never succeed.
    """
    try:
        asyncio.run(_remove_entries(join))
    except FleetUnavailableError as error:
        check_expiry(join)
        if error.reason.lower().startswith(REFUSALS):
            raise MembershipError(f"the server refuses this member: {error.reason}") from None
        raise


async def _remove_entries(join: JoinFile) -> None:
    if join.role != MACHINE:
        return
    async with connect_to_fleet(join) as connection:
        client = connection.client
        await delete_entry(client, build_lease_subject(join.name))
        pattern = build_session_subject(join.name, "*")
        for stored in await read_entries(client, pattern):
            if stored.data:
                await delete_entry(client, stored.subject)
        await create_log_stream(client, join.fleet)
        for session in await list_stored_sessions(client, join.fleet, join.name):
            subject = build_log_subject(join.fleet, join.name, session)
            await remove_log_messages(client, subject)
