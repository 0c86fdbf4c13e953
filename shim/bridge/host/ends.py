"""The two ends of a conversation whose frontends are the clients of a hub: what it reads, and where
it writes.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from shim.core.reading.lines import LineSplitter
from shim.io.stdout import FrontendGoneError

if TYPE_CHECKING:
    from shim.io.tap import Tap

READ_BYTES = 256 * 1024  # that are given to the conversation at once
WAITING_LINES = 10_000  # for the conversation, as it holds itself; then the clients are not read


class HubSource:
    """In the place of our stdin: lines that the hub tells the conversation."""

    def __init__(self, limit: int, recorder: "Tap | None" = None) -> None:
        self.limit = limit
        self.lines = LineSplitter(limit)
        self.heard: list[bytes] = []
        self._recorder = recorder
        self._waiting = deque[bytes]()
        self._bytes = 0
        self._closed = False
        self._news: anyio.Event | None = None
        self._taken: anyio.Event | None = None

    def put(self, line: bytes) -> None:
        """A line with its newline. What comes after the end is dropped."""
        if not self._closed:
            self._waiting.append(line)
            self._bytes += len(line)
            self._tell()

    def close(self) -> None:
        """Nothing more comes."""
        self._closed = True
        self._tell()

    @property
    def full(self) -> bool:
        """Whether the clients have to wait: the conversation takes no line for now."""
        return self._bytes >= self.limit or len(self._waiting) >= WAITING_LINES

    async def room(self) -> None:
        """Wait until it is not full."""
        while self.full and not self._closed:
            self._taken = self._taken or anyio.Event()
            await self._taken.wait()

    async def read(self) -> bytes:
        """The next lines, b"" at the end."""
        while not self._waiting:
            if self._closed:
                return b""
            self._news = anyio.Event()
            await self._news.wait()
        lines, size = list[bytes](), 0
        while self._waiting and size < READ_BYTES:
            lines.append(self._waiting.popleft())
            size += len(lines[-1])
        self._bytes -= size
        if self._taken is not None:
            taken, self._taken = self._taken, None
            taken.set()
        chunk = b"".join(lines)
        if self._recorder is not None:
            self._recorder.stream("i", chunk)
        return chunk

    def _tell(self) -> None:
        if self._news is not None:
            self._news.set()


class HubStdout:
    """In the place of our stdout. `said` takes whole lines, and says why nobody may be told them,
    "" if all is well.

    It never waits for a client: a slow one goes on from the log.
    """

    def __init__(self, said: Callable[[bytes], str], recorder: "Tap | None" = None) -> None:
        self._said = said
        self._recorder = recorder
        self._failed = anyio.Event()
        self.reason = ""

    @property
    def broken(self) -> bool:
        """Whether what was said could not be kept, so that it was said to nobody."""
        return bool(self.reason)

    def fail(self, reason: str) -> None:
        """Nothing more is said; the conversation ends as if its frontend had gone."""
        if not self.reason:
            self.reason = reason
            self._failed.set()

    async def gone(self) -> None:
        """Wait until nothing more can be said."""
        await self._failed.wait()

    async def write(self, data: bytes) -> None:
        """Say whole lines. FrontendGoneError where they cannot be kept."""
        if not self.reason and data:
            if self._recorder is not None:
                self._recorder.stream("O", data)
            if reason := self._said(data):
                self.fail(reason)
        if self.reason:
            raise FrontendGoneError(self.reason)
        await anyio.lowlevel.cancel_shielded_checkpoint()  # the clients get their turn
