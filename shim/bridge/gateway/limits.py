"""Limits the gateway's use by each token: requests per second, and open event streams."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from anyio import CancelScope

from shim.bridge.gateway.auth import HTTPError
from shim.bridge.gateway.connections import compute_max_connections

# A person sends requests more slowly than this limit. A script can wait and retry.
MAX_POST_BURST = 60
MAX_POSTS_PER_S = 10.0
# One token's streams may use at most a third of all connections. The remaining connections are
# reserved for requests.
STREAM_DIVISOR = 3
MAX_STREAMS = 128  # open streams of tabs, phones and scripts; each needs a host connection


class GatewayRequestLimiter:
    """Counts the requests and streams of one gateway by the token's role. Each role has
    one token.
    """

    def __init__(self) -> None:
        # role → (remaining requests, time of the last request in seconds)
        self._post_budgets: dict[str, tuple[float, float]] = {}
        self._stream_counts: dict[str, int] = {}
        self._open_scopes: set[CancelScope] = set()

    def check_post_rate_limit(self, role: str) -> None:
        """Count a POST request. Raise HTTPError if the role has exceeded its rate limit."""
        now = monotonic()
        remaining, updated_at = self._post_budgets.get(role, (float(MAX_POST_BURST), now))
        remaining = min(remaining + (now - updated_at) * MAX_POSTS_PER_S, float(MAX_POST_BURST))
        if remaining < 1:
            raise HTTPError(
                429, f"more than {MAX_POSTS_PER_S:.0f} requests per second; try again in a second"
            )
        self._post_budgets[role] = remaining - 1, now

    @contextmanager
    def reserve_event_stream(self, role: str) -> Iterator[None]:
        """Reserve an event stream until the context exits or the server shuts down. Raise HTTPError
        if too many streams are open.
        """
        max_streams = min(MAX_STREAMS, compute_max_connections() // STREAM_DIVISOR)
        if self._stream_counts.get(role, 0) >= max_streams:
            raise HTTPError(
                429,
                f"{max_streams} streams are already open with this token, which is the limit",
            )
        self._stream_counts[role] = self._stream_counts.get(role, 0) + 1
        with CancelScope() as scope:
            self._open_scopes.add(scope)
            try:
                yield
            finally:
                self._open_scopes.discard(scope)
                self._stream_counts[role] -= 1

    def cancel_open_streams(self) -> None:
        """End all open streams when the server shuts down."""
        for scope in list(self._open_scopes):
            scope.cancel()
