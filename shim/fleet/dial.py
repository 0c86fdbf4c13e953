"""Connects stdin, stdout and stderr with a relay on another machine of the fleet, as
`ssh HOST shim bridge relay` does.
"""

import asyncio
import os
import secrets
import socket
import stat
import sys
from collections.abc import Mapping

import nats.errors

from shim import __version__
from shim.core.bridge.frames import FrameError, parse_frame, parse_hello
from shim.core.bridge.relay import parse_relay_request
from shim.core.errors import ShimError
from shim.core.fleet.join_file import (
    JoinFile,
    get_command_key,
    get_member_key_pair,
    get_read_key,
)
from shim.core.fleet.jwt import get_issuer, verify_member_jwt
from shim.core.fleet.roles import DRIVE, WATCH
from shim.core.fleet.sealing import NONCE_BYTES, SealError
from shim.core.fleet.subjects import (
    NAME_PATTERN,
    build_down_subject,
    build_open_subject,
    build_up_subject,
)
from shim.core.fleet.tunnel import (
    MAX_DATA_BYTES,
    TO_MACHINE,
    TUNNEL_ID_BYTES,
    MessageKind,
    OpenAnswer,
    OpenRequest,
    TunnelEnd,
    TunnelError,
    TunnelKeys,
    check_open_answer,
    decode_exit,
    seal_open_request,
    unseal_open_answer,
)
from shim.fleet.connection import FleetConnection, connect_to_fleet
from shim.fleet.folder import require_join_file
from shim.fleet.replica_reader import MissingReplicaError, iterate_replica_frames
from shim.fleet.tunnels import Tunnel, run_until_first_end
from shim.state.files import write_all

# A machine that is connected answers at once. The server notices a lost one after 6 s.
OPEN_TIMEOUT_S = 8.0
FAILURE_STATUS = 255  # the exit status of `ssh` for its own errors


class MachineAwayError(TunnelError):
    """Raised if a machine is not connected to the fleet, or does not answer."""


def dial_machine(machine: str, environment: Mapping[str, str]) -> int:
    """Connect stdin, stdout and stderr with a relay on a machine. Return the relay's exit status, or
    FAILURE_STATUS after a line on stderr if the machine cannot be reached.
    """
    try:
        return asyncio.run(_dial_machine(machine, environment))
    except ShimError as error:
        sys.stderr.write(f"{error}\n")
        return FAILURE_STATUS


async def _dial_machine(machine: str, environment: Mapping[str, str]) -> int:
    join = require_join_file(environment)
    async with connect_to_fleet(join) as connection:
        try:
            tunnel = await open_tunnel(connection, machine)
        except MachineAwayError as error:
            return await _send_copied_log(connection, machine, error)
        reader, writer = await _open_stdio()
        try:
            return await run_until_first_end(
                _copy_output(tunnel, writer),
                _copy_input(tunnel, reader),
                tunnel.check_silence(),
                connection.wait_until_lost(),
            )
        finally:
            writer.close()


async def _send_copied_log(
    connection: FleetConnection, machine: str, error: MachineAwayError
) -> int:
    """Answer a client of a session with the copy of its log. Raise the error for any other request,
    and if there is no copy.
    """
    reader, writer = await _open_stdio()
    try:
        request = parse_relay_request(await reader.readline())
        if request.kind != "connect":
            raise error
        hello = parse_hello(parse_frame(await reader.readline()))
        async for frame in iterate_replica_frames(connection, machine, request.session_id, hello):
            writer.write(frame)
            await writer.drain()
    except (FrameError, MissingReplicaError, ValueError):
        raise error from None
    finally:
        writer.close()
    await writer.wait_closed()
    return 0


async def open_tunnel(connection: FleetConnection, machine: str) -> Tunnel:
    """Open a tunnel to a machine. Raise TunnelError if the machine refuses it, or does not answer."""
    join = connection.join
    if not NAME_PATTERN.match(machine):
        raise TunnelError(f"{machine[:80]!r} is not the name of a machine")
    role = WATCH if join.role == WATCH else DRIVE
    send_key = get_read_key(join) if role == WATCH else get_command_key(join)
    key_pair = get_member_key_pair(join)
    tunnel_id = secrets.token_hex(TUNNEL_ID_BYTES)
    subject = build_open_subject(join.fleet, machine, role, join.session)
    request = seal_open_request(
        send_key,
        os.urandom(NONCE_BYTES),
        OpenRequest(tunnel_id, join.jwt, __version__),
        subject,
        key_pair,
    )
    data = await _request_tunnel(connection, machine, subject, request)
    answer, public_key = _parse_answer(join, machine, data, subject, tunnel_id)
    keys = TunnelKeys(key_pair, public_key, send_key, get_read_key(join))
    tunnel = Tunnel(
        connection.client,
        build_up_subject(join.fleet, machine, role, join.machine, tunnel_id),
        TunnelEnd(keys, tunnel_id, answer.challenge, TO_MACHINE),
    )
    down_subject = build_down_subject(join.fleet, machine, join.machine, tunnel_id)
    await connection.client.subscribe(down_subject, cb=tunnel.handle_message)
    return tunnel


async def _request_tunnel(
    connection: FleetConnection, machine: str, subject: str, request: bytes
) -> bytes:
    """Send an open request, and return the answer. Raise TunnelError if there is none."""
    try:
        message = await connection.client.request(subject, request, timeout=OPEN_TIMEOUT_S)
    except nats.errors.NoRespondersError:
        raise MachineAwayError(f"{machine} is not connected to the fleet") from None
    except nats.errors.TimeoutError:
        reason = connection.last_error or f"{machine} did not answer within {OPEN_TIMEOUT_S:g} s"
        raise MachineAwayError(reason) from None
    except nats.errors.Error as error:
        raise TunnelError(f"the connection to the fleet was lost: {error}") from None
    return message.data


def _parse_answer(
    join: JoinFile, machine: str, data: bytes, subject: str, tunnel_id: str
) -> tuple[OpenAnswer, str]:
    """Return the answer of a machine, and its public key. Raise SealError if the answer is not the
    machine's. Raise TunnelError if the machine refuses the tunnel.
    """
    read_key = get_read_key(join)
    answer = unseal_open_answer(read_key, data, subject, tunnel_id)
    claims = verify_member_jwt(answer.jwt, get_issuer(join.jwt))
    if claims.name != machine:
        raise SealError(f"{claims.name} has answered instead of {machine}")
    check_open_answer(read_key, data, subject, tunnel_id, claims.public_key)
    if answer.refusal:
        raise TunnelError(answer.refusal)
    return answer, claims.public_key


async def _open_stdio() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return streams for stdin and stdout. Both may be the same socket."""
    if stat.S_ISSOCK(os.fstat(0).st_mode):
        return await asyncio.open_connection(sock=socket.socket(fileno=os.dup(0)))
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(MAX_DATA_BYTES)
    # Copies of the descriptors, because the transports close them.
    stdin, stdout = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stdin)
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), stdout
    )
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


async def _copy_input(tunnel: Tunnel, reader: asyncio.StreamReader) -> int:
    """Send stdin to the machine. Wait at its end, because output may follow."""
    while data := await reader.read(MAX_DATA_BYTES):
        await tunnel.send_data(MessageKind.STDIN, data)
    await tunnel.send(MessageKind.STDIN_END)
    await asyncio.Event().wait()
    return FAILURE_STATUS


async def _copy_output(tunnel: Tunnel, writer: asyncio.StreamWriter) -> int:
    """Write the output of the relay until it has ended. Return its exit status."""
    while True:
        message = await tunnel.receive()
        if message.kind is MessageKind.STDOUT:
            writer.write(message.content)
            await writer.drain()
        elif message.kind is MessageKind.STDERR:
            await asyncio.to_thread(write_all, 2, message.content)
        elif message.kind is MessageKind.EXIT:
            status, reason = decode_exit(message.content)
            if reason:
                raise TunnelError(reason)
            return status
        await tunnel.grant_written(message)
