"""How much may be asked of the gateway with one token: requests in a time, streams at once."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from anyio import CancelScope

from shim.bridge.gateway.auth import HTTPError
from shim.bridge.gateway.connections import compute_max_connections

# at once, and from then on: a person types slower, a script may wait
MAX_POST_BURST, MAX_POSTS_PER_S = 60, 10.0
# the streams of one token take at most a third of all connections, so that requests have room
STREAM_DIVISOR = 3
MAX_STREAMS = 128  # at once: some tabs, phones and scripts; each is a connection to a host


class GatewayRequestLimiter:
    """The counts of one gateway, by the role of the token: there is one token for each."""

    def __init__(self) -> None:
        # role → how many are left, and when that was so
        self._post_budgets: dict[str, tuple[float, float]] = {}
        self._stream_counts: dict[str, int] = {}
        self._open_scopes: set[CancelScope] = set()

    def check_post_rate_limit(self, role: str) -> None:
        """Count a request that does something. Refused if there are too many."""
        now = monotonic()
        remaining, updated_at = self._post_budgets.get(role, (float(MAX_POST_BURST), now))
        remaining = min(remaining + (now - updated_at) * MAX_POSTS_PER_S, float(MAX_POST_BURST))
        if remaining < 1:
            raise HTTPError(
                429, f"more than {MAX_POSTS_PER_S:.0f} requests a second; try again in a second"
            )
        self._post_budgets[role] = remaining - 1, now

    @contextmanager
    def reserve_event_stream(self, role: str) -> Iterator[None]:
        """A place for a stream, for as long as the server lives. Refused if there is none."""
        max_streams = min(MAX_STREAMS, compute_max_connections() // STREAM_DIVISOR)
        if self._stream_counts.get(role, 0) >= max_streams:
            raise HTTPError(
                429,
                f"{max_streams} streams are open with this token already, and no more are allowed",
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
        """End all that are open: the server ends."""
        for scope in list(self._open_scopes):
            scope.cancel()
