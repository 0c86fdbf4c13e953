"""Accepts tunnels on a machine of the fleet, and connects each with a relay of its own.

This machine checks the membership, the role and the session of a member. It does not rely on the
server for that.
"""

import asyncio
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple, NoReturn

from nats.aio.msg import Msg

from shim.core.bridge.relay import RelayAccess, build_access_options
from shim.core.errors import ShimError
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
    TO_MEMBER,
    TUNNEL_ID_BYTES,
    OpenAnswer,
    TunnelEndpoint,
    TunnelError,
    TunnelKeys,
    build_answer_context,
)
from shim.fleet.connection import FleetConnection, FleetUnavailableError
from shim.fleet.tasks import cancel_tasks, wait_forever
from shim.fleet.tunnel_relay import serve_tunnel
from shim.fleet.tunnels import Tunnel
from shim.state.machines import may_fleet_start

# Each tunnel has a process. A page with 100 open sessions needs 100 of them. A guest with one session
# has a few clients.
MAX_TUNNELS = 256
MAX_MEMBER_TUNNELS = 128
MAX_GUEST_TUNNELS = 16
TUNNEL_ID_PATTERN = re.compile(rf"[0-9a-f]{{{2 * TUNNEL_ID_BYTES}}}\Z")
RELAY_ARGV = (sys.executable, "-I", "-m", "shim", "bridge", "relay")


class ServedTunnel(NamedTuple):
    """A tunnel of a member with a public key, and the task that serves the tunnel."""

    tunnel: Tunnel
    public_key: str
    task: asyncio.Task[None]


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
        self._served: dict[str, ServedTunnel] = {}  # by the subjects of the members' messages

    async def serve(self) -> NoReturn:
        """Accept tunnels until the task is cancelled. Then end all relays."""
        client, join = self._connection.client, self._connection.join
        prefix = f"shim.{join.fleet}.{join.name}"
        try:
            await client.subscribe(f"{prefix}.open.>", cb=self._handle_open)
            await client.subscribe(f"{prefix}.up.>", cb=self._handle_message)
            await wait_forever()
        finally:
            await cancel_tasks(served.task for served in self._served.values())

    async def _handle_message(self, message: Msg) -> None:
        served = self._served.get(message.subject)
        if served is not None:
            await served.tunnel.handle_message(message)

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
        public_keys = [served.public_key for served in self._served.values()]
        if public_keys.count(claims.public_key) >= max_tunnels:
            raise TunnelError(f"{claims.name} already has {max_tunnels} tunnels to this machine")
        if len(public_keys) >= MAX_TUNNELS:
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
        if subject in self._served or not TUNNEL_ID_PATTERN.match(tunnel_id):
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
        task = asyncio.create_task(serve_tunnel(tunnel, argv, self._environment, claims.expires_s))
        self._served[subject] = ServedTunnel(tunnel, claims.public_key, task)

        def remove_tunnel(task: asyncio.Task[None]) -> None:
            del self._served[subject]
            self._handle_end()

        task.add_done_callback(remove_tunnel)
        return OpenAnswer(join.jwt, challenge)


def _build_relay_argv(claims: MemberClaims, role: str, *, may_start: bool) -> list[str]:
    """Return the command of a relay that does only what the member may do."""
    access = RelayAccess(role == WATCH, claims.session, may_start)
    return [*RELAY_ARGV, *build_access_options(access)]
