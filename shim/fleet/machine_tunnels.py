"""Accepts tunnels on a machine of the fleet, and connects each with a relay of its own.

This machine checks the membership, the role and the session of a member. It does not rely on the
server for that.
"""

import asyncio
import os
import re
import secrets
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NoReturn

from nats.aio.msg import Msg

from shim.core.bridge.relay import RelayAccess, build_access_options
from shim.core.errors import ShimError, explain_os_error
from shim.core.fleet.join_file import get_command_key
from shim.core.fleet.jwt import MemberClaims, get_issuer, open_introduction
from shim.core.fleet.roles import DRIVE, WATCH
from shim.core.fleet.sealing import NONCE_BYTES, seal_fields
from shim.core.fleet.subjects import (
    ALL_SESSIONS,
    OpenSubject,
    build_down_subject,
    build_up_subject,
    parse_open_subject,
)
from shim.core.fleet.tunnel import (
    CHALLENGE_BYTES,
    MAX_DATA_BYTES,
    SILENCE_LIMIT_S,
    TO_MEMBER,
    TUNNEL_ID_BYTES,
    MessageKind,
    OpenAnswer,
    TunnelEndpoint,
    TunnelError,
    TunnelKeys,
    build_answer_context,
    encode_exit,
)
from shim.fleet.connection import FleetConnection, FleetUnavailableError
from shim.fleet.tasks import cancel_tasks, run_to_end, run_until_first_end, wait_forever
from shim.fleet.tunnels import Tunnel
from shim.state.machines import may_fleet_start

# Each tunnel has a process. A page with 100 open sessions needs 100 of them. A guest with one session
# has a few clients.
MAX_TUNNELS = 256
MAX_MEMBER_TUNNELS = 128
MAX_GUEST_TUNNELS = 16
TUNNEL_ID_PATTERN = re.compile(rf"[0-9a-f]{{{2 * TUNNEL_ID_BYTES}}}\Z")
# A member that has opened a tunnel sends its first message within this time.
FIRST_MESSAGE_TIMEOUT_S = SILENCE_LIMIT_S
RELAY_EXIT_TIMEOUT_S = 2.0  # for the relay to exit after the end of its stdin, or after a signal
EXPIRY_CHECK_INTERVAL_S = 30.0  # the clock may be changed
RELAY_ARGV = (sys.executable, "-I", "-m", "shim", "bridge", "relay")
# The member's exit status if the tunnel fails, and if the relay cannot be started, as in a shell.
FAILURE_STATUS = 255
START_FAILURE_STATUS = 126
# The exit status of a process that a signal ended is this, plus the number of the signal.
STATUS_OF_SIGNAL = 128


class RelayStartError(TunnelError):
    """Raised if the relay of a tunnel cannot be started."""


class MachineTunnels:
    """Accepts and serves the tunnels of one connection. `handle_end` is called after each tunnel,
    because its commands may have changed sessions.
    """

    def __init__(
        self,
        connection: FleetConnection,
        environment: Mapping[str, str],
        handle_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._connection = connection
        self._environment = environment
        self._handle_end = handle_end
        self._command_key = get_command_key(connection.join)
        self._issuer = get_issuer(connection.join.jwt)
        self._tunnels: dict[str, Tunnel] = {}
        self._tunnel_counts = Counter[str]()  # by the public key of the member
        self._tasks = set[asyncio.Task[None]]()

    async def serve(self) -> NoReturn:
        """Accept tunnels until the task is cancelled. Then end all relays."""
        join = self._connection.join
        prefix = f"shim.{join.fleet}.{join.name}"
        try:
            await self._connection.client.subscribe(f"{prefix}.open.>", cb=self._handle_open)
            await self._connection.client.subscribe(f"{prefix}.up.>", cb=self._handle_message)
            await wait_forever()
        finally:
            await cancel_tasks(self._tasks)

    async def _handle_message(self, message: Msg) -> None:
        tunnel = self._tunnels.get(message.subject)
        if tunnel is not None:
            await tunnel.handle_message(message)

    async def _handle_open(self, message: Msg) -> None:
        """Answer an open request. A refused member gets the reason.

        The answer is sent to the subject of the tunnel, because a member may name any subject for it.
        """
        try:
            request = parse_open_subject(message.subject)
        except ValueError:
            return
        join = self._connection.join
        try:
            answer = self._open_tunnel(message, request)
        except ShimError as error:
            answer = OpenAnswer(join.jwt, refusal=str(error))
        sealed = seal_fields(
            self._connection.read_key,
            os.urandom(NONCE_BYTES),
            answer._asdict(),
            build_answer_context(message.subject),
            self._connection.key_pair,
        )
        subject = build_down_subject(join.fleet, join.name, request.member, request.tunnel)
        with suppress(FleetUnavailableError):  # the end of the connection ends all tunnels
            await self._connection.client.publish(subject, sealed)

    def _check_member(self, claims: MemberClaims, request: OpenSubject) -> None:
        """Raise TunnelError if the member may not have the tunnel that a request names."""
        role, session = request.role, request.session
        if claims.name != request.member:
            raise TunnelError(f"{claims.name} has sent a request of {request.member}")
        if claims.fleet != self._connection.join.fleet:
            raise TunnelError(f"{claims.name} is a member of another fleet, {claims.fleet}")
        if claims.expires_s and claims.expires_s <= time.time():
            raise TunnelError(f"the membership of {claims.name} has ended")
        if role not in (DRIVE, WATCH) or (role == DRIVE and claims.role == WATCH):
            raise TunnelError(f"{claims.name} may only watch sessions")
        if session != (claims.session or ALL_SESSIONS):
            limit = (
                f"the session {claims.session}" if claims.session else "tunnels for all sessions"
            )
            raise TunnelError(f"{claims.name} may only use {limit}")

    def _check_limits(self, claims: MemberClaims) -> None:
        """Raise TunnelError if the member or all members have too many tunnels."""
        max_tunnels = MAX_GUEST_TUNNELS if claims.session else MAX_MEMBER_TUNNELS
        if self._tunnel_counts[claims.public_key] >= max_tunnels:
            raise TunnelError(f"{claims.name} already has {max_tunnels} tunnels to this machine")
        if len(self._tunnels) >= MAX_TUNNELS:
            raise TunnelError(f"this machine already has {MAX_TUNNELS} tunnels")

    def _open_tunnel(self, message: Msg, request: OpenSubject) -> OpenAnswer:
        """Check an open request, and start a task that serves the tunnel. Return the answer for the
        member. Raise ShimError if the request is refused.
        """
        receive_key = self._command_key if request.role == DRIVE else self._connection.read_key
        _, claims = open_introduction(receive_key, message.data, message.subject, self._issuer)
        self._check_member(claims, request)
        self._check_limits(claims)
        return self._start_tunnel(claims, request, receive_key)

    def _start_tunnel(
        self, claims: MemberClaims, request: OpenSubject, receive_key: bytes
    ) -> OpenAnswer:
        join = self._connection.join
        role, tunnel_id = request.role, request.tunnel
        challenge = secrets.token_hex(CHALLENGE_BYTES)
        subject = build_up_subject(join.fleet, join.name, role, claims.name, tunnel_id)
        if subject in self._tunnels or not TUNNEL_ID_PATTERN.match(tunnel_id):
            raise TunnelError("the id of the tunnel is not new")
        keys = TunnelKeys(
            self._connection.key_pair, claims.public_key, self._connection.read_key, receive_key
        )
        tunnel = Tunnel(
            self._connection.client,
            build_down_subject(join.fleet, join.name, claims.name, tunnel_id),
            TunnelEndpoint(keys, tunnel_id, challenge, TO_MEMBER),
        )
        argv = _build_relay_argv(claims, role, may_start=may_fleet_start(self._environment))
        self._tunnels[subject] = tunnel
        self._tunnel_counts[claims.public_key] += 1
        task = asyncio.create_task(_serve_tunnel(tunnel, argv, self._environment, claims.expires_s))
        self._tasks.add(task)

        def remove_tunnel(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            del self._tunnels[subject]
            self._tunnel_counts[claims.public_key] -= 1
            self._handle_end()

        task.add_done_callback(remove_tunnel)
        return OpenAnswer(join.jwt, challenge)


def _build_relay_argv(claims: MemberClaims, role: str, *, may_start: bool) -> list[str]:
    """Return the command of a relay that does only what the member may do."""
    access = RelayAccess(role == WATCH, claims.session, may_start)
    return [*RELAY_ARGV, *build_access_options(access)]


async def _serve_tunnel(
    tunnel: Tunnel, argv: list[str], environment: Mapping[str, str], expires_s: int
) -> None:
    """Run a relay for the member, after its first message. If something else than the relay ends the
    tunnel, send the reason to the member.
    """
    status, reason = FAILURE_STATUS, ""
    try:
        async with asyncio.timeout(FIRST_MESSAGE_TIMEOUT_S):
            await tunnel.wait_for_first_message()
        await _run_relay(tunnel, argv, environment, expires_s)
    except TimeoutError:
        return
    except RelayStartError as error:
        status, reason = START_FAILURE_STATUS, str(error)
    except (FleetUnavailableError, TunnelError) as error:
        reason = str(error)
    except asyncio.CancelledError:
        reason = "`shim fleet run` has ended there"
        raise
    except Exception as error:
        # The other tunnels are not affected. Without an EXIT message, the member would wait.
        traceback.print_exc()
        reason = f"the tunnel has failed: {type(error).__name__}: {error}"
    finally:
        if reason:
            with suppress(TunnelError):
                await tunnel.send(MessageKind.EXIT, encode_exit(status, reason))


async def _run_relay(
    tunnel: Tunnel, argv: list[str], environment: Mapping[str, str], expires_s: int
) -> None:
    """Run a relay until it or the member ends. Raise RelayStartError if it cannot be started. Raise
    TunnelError or FleetUnavailableError if the tunnel is lost.
    """
    process = await _start_relay(argv, environment)
    try:
        await run_until_first_end(
            _copy_output(tunnel, process),
            _copy_input(tunnel, process),
            tunnel.check_silence(),
            _wait_until_expired(expires_s),
        )
    finally:
        await run_to_end(_stop_relay(process))


async def _start_relay(
    argv: list[str], environment: Mapping[str, str]
) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
            limit=MAX_DATA_BYTES,
        )
    except OSError as error:
        reason = f"the relay cannot be started: {explain_os_error(error)}"
        raise RelayStartError(reason) from None


async def _wait_until_expired(expires_s: int) -> NoReturn:
    """Raise TunnelError when the membership ends."""
    if not expires_s:
        await wait_forever()
    while (remaining_s := expires_s - time.time()) > 0:
        await asyncio.sleep(min(remaining_s, EXPIRY_CHECK_INTERVAL_S))
    raise TunnelError("the membership has ended")


async def _copy_input(tunnel: Tunnel, process: asyncio.subprocess.Process) -> None:
    """Write the member's stdin to the relay, until the tunnel ends."""
    assert process.stdin is not None
    while True:
        message = await tunnel.receive()
        with suppress(OSError):  # the relay has exited; its status follows
            if message.kind is MessageKind.STDIN:
                process.stdin.write(message.content)
                await process.stdin.drain()
            elif message.kind is MessageKind.STDIN_END:
                process.stdin.close()
        if message.kind is MessageKind.EXIT:
            return
        await tunnel.grant_written(message)


async def _copy_output(tunnel: Tunnel, process: asyncio.subprocess.Process) -> None:
    """Send the output of the relay to the member, and then the relay's exit status."""
    assert process.stdout is not None
    assert process.stderr is not None
    copies = [
        asyncio.create_task(_copy_stream(tunnel, process.stdout, MessageKind.STDOUT)),
        asyncio.create_task(_copy_stream(tunnel, process.stderr, MessageKind.STDERR)),
    ]
    try:
        await asyncio.gather(*copies)
    finally:
        await cancel_tasks(copies)  # a stream has only one reader, and `_stop_relay` reads next
    status = await process.wait()
    if status < 0:
        status = STATUS_OF_SIGNAL - status
    await tunnel.send(MessageKind.EXIT, encode_exit(status, ""))


async def _copy_stream(tunnel: Tunnel, stream: asyncio.StreamReader, kind: MessageKind) -> None:
    while data := await stream.read(MAX_DATA_BYTES):
        await tunnel.send_data(kind, data)


async def _stop_relay(process: asyncio.subprocess.Process) -> None:
    """End the relay and the commands that it has started: close its stdin, and then send signals if
    that is not enough. Report a relay that does not end on stderr.
    """
    assert process.stdin is not None
    process.stdin.close()
    for signal_number in (0, signal.SIGTERM, signal.SIGKILL):
        # macOS reports processes that have exited with PermissionError.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal_number)
        with suppress(TimeoutError):
            async with asyncio.timeout(RELAY_EXIT_TIMEOUT_S):
                await _wait_for_exit(process)
                return
    if process.returncode is None:
        sys.stderr.write(f"the relay {process.pid} does not end after SIGKILL\n")


async def _wait_for_exit(process: asyncio.subprocess.Process) -> None:
    """Wait until the relay has exited. Its remaining output is discarded, because a relay that cannot
    write does not exit.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    await asyncio.gather(_discard(process.stdout), _discard(process.stderr), process.wait())


async def _discard(stream: asyncio.StreamReader) -> None:
    while await stream.read(MAX_DATA_BYTES):
        pass
