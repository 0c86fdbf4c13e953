"""Connects to the server of a fleet.

A lost connection is not opened again, because the client library closes itself after most errors, and
its consumers may stay silent after a reconnection. Callers that need a lasting connection create
another `FleetConnection`.
"""

import asyncio
import base64
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from typing import Any, NoReturn, TypeVar

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport

from shim.core.errors import ShimError, explain_os_error
from shim.core.fleet.join_file import JoinFile, get_member_key_pair, get_read_key
from shim.core.fleet.subjects import build_inbox_prefix

CONNECT_TIMEOUT_S = 5  # a server that needs longer counts as unavailable
# A server that answers none of MAX_OPEN_PINGS pings is lost. Both ends have the same limits.
PING_INTERVAL_S = 2
MAX_OPEN_PINGS = 2
# A server that does not receive a message within this time is lost: it has answered no ping either.
SEND_TIMEOUT_S = float(PING_INTERVAL_S * (MAX_OPEN_PINGS + 1))
CLOSE_TIMEOUT_S = 2.0
# The client library reports a lost connection only after the TLS connection is closed, which takes
# up to 30 s if the server does not answer.
LOSS_CHECK_INTERVAL_S = 0.5
Result = TypeVar("Result")
# asyncio warns whenever the client library closes a TLS connection.
logging.getLogger("asyncio").setLevel(logging.ERROR)


class FleetUnavailableError(ShimError):
    """Raised if the fleet's server cannot be reached, refuses this member, or is lost."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the server of the fleet is not available: {reason}",
            hint="`shim fleet status` checks the connection",
        )
        self.reason = reason


class FleetClient(Client):
    """A NATS client whose messages are sent within SEND_TIMEOUT_S, or raise FleetUnavailableError."""

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        reply: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        """Send a message. Raise FleetUnavailableError if the connection is lost, or if the server
        receives nothing for SEND_TIMEOUT_S.
        """
        await self._await_sent(super().publish(subject, payload, reply, headers))

    async def subscribe(self, subject: str, *args: Any, **options: Any) -> Subscription:
        """Subscribe to a subject. Raise the errors of `publish`."""
        return await self._await_sent(super().subscribe(subject, *args, **options))

    def explain_loss(self) -> str:
        """Return why the connection was lost."""
        if self.last_error is None:
            return "the connection was lost"
        return _format_error(self.last_error)

    def abort(self) -> None:
        """Close the socket at once. Tasks of the client library that wait for the server then end."""
        if isinstance(self._transport, TcpTransport) and self._transport._io_writer is not None:
            self._transport._io_writer.transport.abort()

    async def _await_sent(self, operation: Awaitable[Result]) -> Result:
        """Return the result of an operation that waits until earlier messages are sent.

        The client library ignores a cancellation during this wait, so both the timeout and the
        cancellation of this task are checked afterwards.
        """
        task = asyncio.current_task()
        assert task is not None
        cancel_count = task.cancelling()
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S) as timeout:
                result = await operation
        except TimeoutError:
            pass
        except (nats.errors.Error, ConnectionError):
            if not self.is_closed:
                raise  # the message is not valid, for example too large
            raise FleetUnavailableError(self.explain_loss()) from None
        if task.cancelling() > cancel_count:
            raise asyncio.CancelledError
        if timeout.expired():
            raise FleetUnavailableError(f"it has received nothing for {SEND_TIMEOUT_S:g} s")
        return result


class FleetConnection:
    """A connection to the server of a fleet, as one of its members.

    read_key  seals everything that a member with the role "watch" may read
    key_pair  signs what this member sends
    """

    def __init__(self, join: JoinFile) -> None:
        self.join = join
        self.read_key = get_read_key(join)
        self.key_pair = get_member_key_pair(join)
        self.client = FleetClient()
        self._closed = asyncio.Event()
        self._violation = ""  # the last subject that the server did not allow
        self._failure = ""  # why the server has closed the connection

    async def open(self) -> None:
        """Connect to the server. Raise FleetUnavailableError with the reason if this fails."""

        def sign(nonce: str) -> bytes:
            return base64.b64encode(self.key_pair.sign(nonce.encode()))

        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self.client.connect(
                    self.join.url,
                    name=self.join.name,
                    tls=_create_tls_context(self.join),
                    user_jwt_cb=lambda: bytearray(self.join.jwt.encode()),
                    signature_cb=sign,
                    inbox_prefix=build_inbox_prefix(self.join.name),
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=CONNECT_TIMEOUT_S,
                    ping_interval=PING_INTERVAL_S,
                    max_outstanding_pings=MAX_OPEN_PINGS,
                    flush_timeout=SEND_TIMEOUT_S,
                    error_cb=self._add_error,
                    closed_cb=self._set_closed,
                )
        except (nats.errors.Error, OSError, TimeoutError) as error:
            await self.close()
            raise FleetUnavailableError(self._explain(error)) from None

    async def close(self) -> None:
        """Close the connection, after all pending messages are sent, or after CLOSE_TIMEOUT_S."""
        # A timeout alone is not enough, because the client library may ignore the cancellation.
        loop = asyncio.get_running_loop()
        abort_timer = loop.call_later(CLOSE_TIMEOUT_S, self.client.abort)
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.client.close()
        except (nats.errors.Error, OSError, TimeoutError):
            pass
        finally:
            abort_timer.cancel()
            self.client.abort()

    async def wait_until_lost(self) -> NoReturn:
        """Wait until the connection is lost. Then raise FleetUnavailableError."""
        while not self.client.is_closed:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOSS_CHECK_INTERVAL_S):
                    await self._closed.wait()
        raise FleetUnavailableError(self._explain(None))

    @property
    def last_error(self) -> str:
        """The last error that the server has reported, or ""."""
        return self._failure or self._violation

    async def _add_error(self, error: Exception) -> None:
        if isinstance(error, FleetUnavailableError | nats.errors.FlushTimeoutError):
            return  # the end of the connection follows, and has a better reason
        text = _format_error(error)
        # The library does not report the server's reason here, such as a revocation. The end of the
        # connection follows it, and is reported.
        is_end = isinstance(error, nats.errors.UnexpectedEOF | ConnectionError)
        if self.client.last_error is not None and is_end:
            text = _format_error(self.client.last_error)
        if text.lower().startswith("permissions violation"):
            self._violation = text
        else:
            self._failure = text

    async def _set_closed(self) -> None:
        if not self._failure and self.client.last_error is not None:
            self._failure = _format_error(self.client.last_error)
        self._closed.set()

    def _explain(self, error: Exception | None) -> str:
        """Return why the connection failed. A refused login is only reported to the callback."""
        if self._failure:
            return self._failure
        if isinstance(error, TimeoutError):
            return f"no answer from {self.join.url} within {CONNECT_TIMEOUT_S} s"
        if error is None:
            return self.client.explain_loss()
        return f"{self.join.url}: {explain_os_error(error)}"


def _format_error(error: Exception) -> str:
    return str(error).removeprefix("nats: ").strip("'")


@asynccontextmanager
async def connect_to_fleet(join: JoinFile) -> AsyncIterator[FleetConnection]:
    """Open a connection to the fleet's server, and close it at the end. Raise FleetUnavailableError
    with the reason if this fails.
    """
    connection = FleetConnection(join)
    await connection.open()
    try:
        yield connection
    finally:
        await connection.close()


def _create_tls_context(join: JoinFile) -> ssl.SSLContext:
    """Return a TLS context that trusts the fleet's own certificate, or those of the system if the
    fleet has none.
    """
    context = ssl.create_default_context(cadata=join.ca or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
