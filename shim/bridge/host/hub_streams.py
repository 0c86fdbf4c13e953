"""The stdin and stdout of a conversation whose frontends are the clients of a hub."""

from collections import deque
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from shim.bridge.host.runner import SessionHubRunner
from shim.core.reading.lines import LineSplitter
from shim.io.stdout import FrontendDisconnectedError

if TYPE_CHECKING:
    from shim.io.record_sinks import RunRecordSink

MAX_READ_BYTES = 256 * 1024  # size of one read
MAX_WAITING_LINES = 10_000  # at this limit, nothing is read from the clients


class HubStdin:
    """The conversation's stdin. The hub writes its lines."""

    def __init__(self, max_bytes: int, recorder: "RunRecordSink | None" = None) -> None:
        self.max_bytes = max_bytes
        self.line_splitter = LineSplitter(max_bytes)
        self.received_lines: list[bytes] = []
        self._recorder = recorder
        self._waiting_lines = deque[bytes]()
        self._waiting_bytes = 0
        self._is_closed = False
        self._line_event: anyio.Event | None = None
        self._space_event: anyio.Event | None = None

    def put(self, line: bytes) -> None:
        """Add a line, including its newline. Lines after `close` are ignored."""
        if not self._is_closed:
            self._waiting_lines.append(line)
            self._waiting_bytes += len(line)
            self._wake_reader()

    def close(self) -> None:
        """Signal EOF to the conversation."""
        self._is_closed = True
        self._wake_reader()

    @property
    def is_full(self) -> bool:
        """Whether clients must wait until the conversation has read more lines."""
        if self._waiting_bytes >= self.max_bytes:
            return True
        return len(self._waiting_lines) >= MAX_WAITING_LINES

    async def wait_for_queue_space(self) -> None:
        """Wait until the stdin queue is no longer full, or the stdin is closed."""
        while self.is_full and not self._is_closed:
            if self._space_event is None:
                self._space_event = anyio.Event()
            await self._space_event.wait()

    async def read(self) -> bytes:
        """Return the next lines, or b"" at EOF."""
        while not self._waiting_lines:
            if self._is_closed:
                return b""
            self._line_event = anyio.Event()
            await self._line_event.wait()
        lines = list[bytes]()
        size = 0
        while self._waiting_lines and size < MAX_READ_BYTES:
            lines.append(self._waiting_lines.popleft())
            size += len(lines[-1])
        self._waiting_bytes -= size
        if self._space_event is not None:
            space_event = self._space_event
            self._space_event = None
            space_event.set()
        chunk = b"".join(lines)
        if self._recorder is not None:
            self._recorder.record_stream("i", chunk)
        return chunk

    def _wake_reader(self) -> None:
        if self._line_event is not None:
            self._line_event.set()


class HubStdout:
    """The conversation's stdout. The hub's runner writes its lines to the log and sends them to the
    clients.

    Writing never waits for a client. A slow client receives the remaining lines from the log.
    """

    def __init__(self, runner: SessionHubRunner, recorder: "RunRecordSink | None" = None) -> None:
        self.has_failed = False  # lines could not be logged, and no client received them
        self._runner = runner
        self._recorder = recorder

    async def wait_for_disconnect(self) -> None:
        """Wait until a line cannot be logged. The conversation then ends as if its frontend had
        disconnected.
        """
        await self._runner.failure_event.wait()
        self.has_failed = True

    async def write(self, data: bytes) -> None:
        """Write complete lines. Raise FrontendDisconnectedError if they cannot be logged."""
        if data and not self._runner.has_failed:
            if self._recorder is not None:
                self._recorder.record_stream("O", data)
            self._runner.on_conversation_lines(data)
        if self._runner.has_failed:
            self.has_failed = True
            raise FrontendDisconnectedError(self._runner.failure_reason)
        await anyio.lowlevel.cancel_shielded_checkpoint()  # lets the client tasks run
