"""Uvicorn connections with two further limits: the number of connections, and the time until a
request is complete.

The limits bound the cost of a flood of connections and of requests that never end (slow loris).
Other clients are not locked out, because a new connection replaces the oldest connection without a
complete request.
"""

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from shim.process.descriptors import compute_connection_limit

# Maximum number of open connections, if the process has enough file descriptors.
# A person needs about ten.
MAX_CONNECTIONS = 512
DESCRIPTORS_PER_CONNECTION = 2  # an event stream also has a connection to a host
# File descriptors for files, for starting hosts, and for accepted connections not yet counted
# (ACCEPT_BACKLOG).
RESERVED_DESCRIPTORS = 96
# asyncio accepts up to this many connections before the first of them is counted.
ACCEPT_BACKLOG = 16
REQUEST_TIMEOUT_S = 20.0  # the largest request needs less time, even over a slow network
MAX_HEAD_BYTES = 32 * 1024
# The Linux socket option that limits how long sent bytes may stay unacknowledged.
TCP_USER_TIMEOUT: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)
WRITE_TIMEOUT_S = 60.0  # for a client that does not read its response


def compute_max_connections() -> int:
    """Return how many connections may be open at once."""
    return compute_connection_limit(
        MAX_CONNECTIONS, per_connection=DESCRIPTORS_PER_CONNECTION, reserved=RESERVED_DESCRIPTORS
    )


class GatewayConnection(H11Protocol):
    """One client connection of the server.

    `idle_connections` are the server's connections that have not sent a complete request. The
    oldest comes first.
    """

    def __init__(
        self, idle_connections: dict["GatewayConnection", None], *uvicorn_args: Any
    ) -> None:
        super().__init__(*uvicorn_args)
        self._idle_connections = idle_connections
        self._request_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Accept the connection. If too many connections are open, close the oldest one that has
        not sent a complete request.
        """
        super().connection_made(transport)
        # A phone that loses its network does not close its connection.
        if TCP_USER_TIMEOUT is not None:
            client_socket = transport.get_extra_info("socket")
            client_socket.setsockopt(
                socket.IPPROTO_TCP, TCP_USER_TIMEOUT, round(1000 * WRITE_TIMEOUT_S)
            )
        if len(self.connections) > compute_max_connections():
            if not self._idle_connections:
                transport.abort()
                return
            next(iter(self._idle_connections)).drop()
        self._start_request_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Clear the timers of a closed connection."""
        self._clear_request_timer()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle received bytes. A connection with a complete request is not idle."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete:
            self._clear_request_timer()

    def on_response_complete(self) -> None:
        """Start the timeout for the client's next request."""
        previous_cycle = self.cycle
        super().on_response_complete()
        is_complete = self.cycle is not previous_cycle and not self.cycle.more_body
        if not is_complete and not self.transport.is_closing():
            self._start_request_timer()

    def pause_writing(self) -> None:
        """Start the timeout for a client that does not read its response."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(WRITE_TIMEOUT_S, self.drop)

    def resume_writing(self) -> None:
        """Cancel the write timeout, because the client reads its response again."""
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        super().resume_writing()

    def drop(self) -> None:
        """Close the connection without a response."""
        self._clear_request_timer()
        self.transport.abort()

    def _start_request_timer(self) -> None:
        self._clear_request_timer()
        self._idle_connections[self] = None
        self._request_timer = self.loop.call_later(REQUEST_TIMEOUT_S, self.drop)

    def _clear_request_timer(self) -> None:
        self._idle_connections.pop(self, None)
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None
