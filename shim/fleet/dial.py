"""Connects stdin, stdout and stderr with a relay on another machine of the fleet, as
`ssh HOST shim bridge relay` does.
"""

import asyncio
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import suppress
from typing import NoReturn

import nats.errors
from nats.aio.client import Client

from shim.core.bridge.frames import FrameError, parse_frame, parse_hello
from shim.core.bridge.relay import parse_relay_request
from shim.core.errors import ShimError
from shim.core.fleet.join_file import get_command_key
from shim.core.fleet.jwt import get_issuer, open_introduction
from shim.core.fleet.roles import DRIVE, MACHINE, WATCH
from shim.core.fleet.sealing import NONCE_BYTES, SealError, seal_fields
from shim.core.fleet.subjects import (
    ALL_SESSIONS,
    NAME_PATTERN,
    OpenSubject,
    build_down_subject,
    build_open_subject,
    build_up_subject,
)
from shim.core.fleet.tunnel import (
    TO_MACHINE,
    TUNNEL_ID_BYTES,
    MessageKind,
    TunnelEndpoint,
    TunnelError,
    TunnelKeys,
    build_answer_context,
    decode_exit,
    encode_exit,
)
from shim.core.reading.values import get_text
from shim.fleet.buckets import NO_RESPONDERS_STATUS, get_status, unsubscribe
from shim.fleet.connection import FleetConnection, FleetUnavailableError, connect_to_fleet
from shim.fleet.copied_log import MissingCopyError, iterate_copied_frames
from shim.fleet.folder import require_join_file
from shim.fleet.tasks import run_until_first_end, wait_for_signal, wait_forever
from shim.fleet.tunnels import Tunnel
from shim.io.stdin import Stdin
from shim.io.stdout import FrontendDisconnectedError, Stdout

# A machine that is connected answers at once. The server notices a lost one after 6 s.
OPEN_TIMEOUT_S = 8.0
MIN_OPEN_TIMEOUT_S = 2.0  # after a connection that took long
FAILURE_STATUS = 255  # the exit status of `ssh` for its own errors


class MachineAwayError(TunnelError):
    """Raised if a machine is not connected to the fleet, or does not answer."""


class LostTunnelError(TunnelError):
    """Raised if a tunnel ends before the relay. A command may have been executed, or may not."""

    def __init__(self, machine: str, reason: str) -> None:
        super().__init__(
            f"the connection to {machine} was lost, and a command may have been executed: {reason}"
        )


def dial_machine(machine: str, environment: Mapping[str, str]) -> int:
    """Connect stdin, stdout and stderr with a relay on a machine. Return the relay's exit status, or
    FAILURE_STATUS after a line on stderr if the machine cannot be reached.
    """
    try:
        return asyncio.run(_dial_machine(machine, environment))
    except FrontendDisconnectedError:
        return FAILURE_STATUS
    except ShimError as error:
        sys.stderr.write(f"{error}\n")
        return FAILURE_STATUS


async def _dial_machine(machine: str, environment: Mapping[str, str]) -> int:
    join = require_join_file(environment)
    deadline_s = time.monotonic() + OPEN_TIMEOUT_S
    async with connect_to_fleet(join) as connection:
        timeout_s = max(MIN_OPEN_TIMEOUT_S, deadline_s - time.monotonic())
        stdout = Stdout()
        try:
            tunnel = await run_until_first_end(
                open_tunnel(connection, machine, timeout_s), connection.wait_until_lost()
            )
        except MachineAwayError as error:
            return await _send_copied_log(connection, machine, error, stdout)
        try:
            return await run_until_first_end(
                _copy_output(tunnel, stdout),
                _copy_input(tunnel),
                tunnel.check_silence(),
                connection.wait_until_lost(),
                # The machine must be told that the tunnel is closed.
                _fail_after(wait_for_signal(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)),
                _fail_after(stdout.wait_for_disconnect()),
            )
        except (FleetUnavailableError, SealError, TunnelError) as error:
            raise LostTunnelError(machine, str(error)) from None
        finally:
            with suppress(TunnelError):
                await tunnel.send(MessageKind.EXIT, encode_exit(0, ""))


async def _send_copied_log(
    connection: FleetConnection, machine: str, error: MachineAwayError, stdout: Stdout
) -> int:
    """Answer a client of a session with the copy of its log. Raise the error for any other request,
    and if there is no copy.
    """
    lines = _iterate_lines(Stdin())
    try:
        request = parse_relay_request(await anext(lines, b""))
        if request.kind != "connect":
            raise error
        hello = parse_hello(parse_frame(await anext(lines, b"")))
        async for frame in iterate_copied_frames(connection, machine, request.session_id, hello):
            await stdout.write(frame)
    except (FrameError, MissingCopyError, ValueError):
        raise error from None
    return 0


async def _iterate_lines(stdin: Stdin) -> AsyncIterator[bytes]:
    while data := await stdin.read():
        for line in stdin.line_splitter.feed(data):
            yield line


async def _fail_after(event: Awaitable[None]) -> int:
    await event
    return FAILURE_STATUS


async def open_tunnel(
    connection: FleetConnection, machine: str, timeout_s: float = OPEN_TIMEOUT_S
) -> Tunnel:
    """Open a tunnel to a machine. Raise TunnelError if the machine refuses it, or does not answer.
    Raise FleetUnavailableError if the connection is lost.
    """
    join = connection.join
    if not NAME_PATTERN.match(machine):
        raise TunnelError(f"{machine[:80]!r} is not the name of a machine")
    role = WATCH if join.role == WATCH else DRIVE
    send_key = connection.read_key if role == WATCH else get_command_key(join)
    tunnel_id = secrets.token_hex(TUNNEL_ID_BYTES)
    request = OpenSubject(role, join.session or ALL_SESSIONS, join.name, tunnel_id)
    subject = build_open_subject(join.fleet, machine, request)
    sealed = seal_fields(
        send_key, os.urandom(NONCE_BYTES), {"jwt": join.jwt}, subject, connection.key_pair
    )
    down_subject = build_down_subject(join.fleet, machine, join.name, tunnel_id)
    try:
        data = await _request_answer(connection.client, subject, sealed, down_subject, timeout_s)
    except nats.errors.TimeoutError:
        reason = connection.last_error or f"{machine} did not answer within {timeout_s:.0f} s"
        raise MachineAwayError(reason) from None
    except nats.errors.Error as error:
        raise TunnelError(f"the connection to the fleet was lost: {error}") from None
    if data is None:
        raise MachineAwayError(f"{machine} is not connected to the fleet")
    challenge, public_key = _parse_answer(connection, machine, data, subject)
    keys = TunnelKeys(connection.key_pair, public_key, send_key, connection.read_key)
    tunnel = Tunnel(
        connection.client,
        build_up_subject(join.fleet, machine, role, join.name, tunnel_id),
        TunnelEndpoint(keys, tunnel_id, challenge, TO_MACHINE),
    )
    await connection.client.subscribe(down_subject, cb=tunnel.handle_message)
    return tunnel


async def _request_answer(
    client: Client, subject: str, request: bytes, down_subject: str, timeout_s: float
) -> bytes | None:
    """Send an open request. Return the answer, which is the first message in the tunnel, or None if no
    machine receives the request. Raise TimeoutError of the client library if there is no answer.
    """
    subscription = await client.subscribe(down_subject)
    try:
        await client.publish(subject, request, reply=down_subject)
        message = await subscription.next_msg(timeout_s)
    finally:
        await unsubscribe(subscription)
    if get_status(message) == NO_RESPONDERS_STATUS:
        return None
    return message.data


def _parse_answer(
    connection: FleetConnection, machine: str, data: bytes, subject: str
) -> tuple[str, str]:
    """Return the challenge in the answer of a machine, and the machine's public key. Raise TunnelError
    if the answer is not valid, or if the machine refuses the tunnel.
    """
    join = connection.join
    try:
        fields, claims = open_introduction(
            connection.read_key, data, build_answer_context(subject), get_issuer(join.jwt)
        )
    except SealError as error:
        raise TunnelError(
            f"the answer of {machine} is not valid: {error}; compare `shim --version` and "
            "`shim fleet status` on both machines"
        ) from None
    if (claims.fleet, claims.name, claims.role) != (join.fleet, machine, MACHINE):
        raise TunnelError(
            f"{claims.name} of the fleet {claims.fleet} has answered instead of {machine}"
        )
    if refusal := get_text(fields, "refusal"):
        raise TunnelError(refusal)
    return get_text(fields, "challenge"), claims.public_key


async def _copy_input(tunnel: Tunnel) -> NoReturn:
    """Send stdin to the machine. Wait at its end, because output may follow."""
    stdin = Stdin()
    while data := await stdin.read():
        await tunnel.send_data(MessageKind.STDIN, data)
    await tunnel.send(MessageKind.STDIN_END)
    await wait_forever()


async def _copy_output(tunnel: Tunnel, stdout: Stdout) -> int:
    """Write the output of the relay until it has ended. Return its exit status."""
    outputs = {MessageKind.STDOUT: stdout, MessageKind.STDERR: Stdout(2)}
    while True:
        message = await tunnel.receive()
        if message.kind is MessageKind.EXIT:
            status, reason = decode_exit(message.content)
            if reason and status == FAILURE_STATUS:
                raise TunnelError(reason)
            if reason:
                sys.stderr.write(f"{reason}\n")
            return status
        if message.kind in outputs:
            await outputs[message.kind].write(message.content)
        await tunnel.grant_written(message)
