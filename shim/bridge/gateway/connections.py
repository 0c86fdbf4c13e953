"""Connections of uvicorn with limits that it does not have: their number, and the time until a
request is whole.

A flood of connections, or of requests that never end (slow-loris), costs a bounded amount and shuts
nobody out: who has not said a whole request makes room for the next one.
"""

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from shim.process.descriptors import compute_connection_limit

# at once, if the process has enough file descriptors; a person needs about ten
MAX_CONNECTIONS = 512
DESCRIPTORS_PER_CONNECTION = 2  # a stream also has a connection to its host
# For files, for hosts that are started, and for connections that were accepted but not yet counted
# (ACCEPT_BACKLOG).
RESERVED_DESCRIPTORS = 96
ACCEPT_BACKLOG = 16  # asyncio accepts so many connections before the first of them is counted
REQUEST_TIMEOUT_S = 20.0  # until a request is whole: the largest over a slow network
MAX_HEAD_BYTES = 32 * 1024
# Linux: until what nobody took is an error
TCP_USER_TIMEOUT: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)
WRITE_TIMEOUT_S = 60.0  # a client that takes nothing of its answer for so long has gone


def compute_max_connections() -> int:
    """Return how many connections may be open at once."""
    return compute_connection_limit(
        MAX_CONNECTIONS, per_connection=DESCRIPTORS_PER_CONNECTION, reserved=RESERVED_DESCRIPTORS
    )


class GatewayConnection(H11Protocol):
    """One connection. All of a server share the table of those that have not said a request yet."""

    # By server: its connections that have no request open, the one that waits longest first.
    _idle_connections: dict[int, dict["GatewayConnection", None]] = {}  # noqa: RUF012 - one for all, on purpose

    def connection_made(self, transport: Any) -> None:
        """Let it in; the one that has been silent for the longest time goes when there are too
        many.
        """
        super().connection_made(transport)
        if TCP_USER_TIMEOUT is not None:  # a phone that left the network says no goodbye
            client_socket = transport.get_extra_info("socket")
            client_socket.setsockopt(
                socket.IPPROTO_TCP, TCP_USER_TIMEOUT, round(1000 * WRITE_TIMEOUT_S)
            )
        self._request_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        idle_connections = self._get_idle_connections()
        if len(self.connections) > compute_max_connections():
            if not idle_connections:
                transport.abort()
                return
            next(iter(idle_connections)).drop()
        self._start_request_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._clear_request_timer()
        if not self._get_idle_connections():
            self._idle_connections.pop(id(self.server_state), None)
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; with a whole request it is nobody to be dropped any more."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete:
            self._clear_request_timer()

    def on_response_complete(self) -> None:
        """The next request has its own time."""
        previous_cycle = self.cycle
        super().on_response_complete()
        is_complete = self.cycle is not previous_cycle and not self.cycle.more_body
        if not is_complete and not self.transport.is_closing():
            self._start_request_timer()

    def pause_writing(self) -> None:
        """The client takes nothing; not for ever."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(WRITE_TIMEOUT_S, self.drop)

    def resume_writing(self) -> None:
        """The client takes its answer."""
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        super().resume_writing()

    def drop(self) -> None:
        """End it without a word."""
        self._clear_request_timer()
        self.transport.abort()

    def _start_request_timer(self) -> None:
        self._clear_request_timer()
        self._get_idle_connections()[self] = None
        self._request_timer = self.loop.call_later(REQUEST_TIMEOUT_S, self.drop)

    def _clear_request_timer(self) -> None:
        self._get_idle_connections().pop(self, None)
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _get_idle_connections(self) -> dict["GatewayConnection", None]:
        return self._idle_connections.setdefault(id(self.server_state), {})
