"""How much may be asked of the gateway with one token: requests in a time, streams at once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from anyio import CancelScope

from shim.bridge.gateway.connections import max_connections
from shim.bridge.gateway.gate import Refused

# at once, and from then on: a person types slower, a script may wait
POSTS, POSTS_A_SECOND = 60, 10.0
# the streams of one token take at most a third of all connections, so that requests have room
STREAM_DIVISOR = 3
STREAMS = 128  # at once: some tabs, phones and scripts; each is a connection to a host


class Limits:
    """The counts of one gateway, by the role of the token: there is one token for each."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        # role → how many are left, and when that was so
        self._posts: dict[str, tuple[float, float]] = {}
        self._streams: dict[str, int] = {}
        self._open: set[CancelScope] = set()

    def post(self, role: str) -> None:
        """Count a request that does something. Refused if there are too many."""
        now = self._clock()
        left, since = self._posts.get(role, (float(POSTS), now))
        left = min(left + (now - since) * POSTS_A_SECOND, float(POSTS))
        if left < 1:
            raise Refused(
                429, f"more than {POSTS_A_SECOND:.0f} requests a second; try again in a second"
            )
        self._posts[role] = left - 1, now

    @contextmanager
    def stream(self, role: str) -> Iterator[None]:
        """A place for a stream, for as long as the server lives. Refused if there is none."""
        max_streams = min(STREAMS, max_connections() // STREAM_DIVISOR)
        if self._streams.get(role, 0) >= max_streams:
            raise Refused(
                429,
                f"{max_streams} streams are open with this token already, and no more are allowed",
            )
        self._streams[role] = self._streams.get(role, 0) + 1
        with CancelScope() as scope:
            self._open.add(scope)
            try:
                yield
            finally:
                self._open.discard(scope)
                self._streams[role] -= 1

    def end_streams(self) -> None:
        """End all that are open: the server ends."""
        for scope in list(self._open):
            scope.cancel()
