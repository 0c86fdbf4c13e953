"""Our stdout: whole lines, written without ever blocking the loop, in the format that was asked
for.
"""

import os
import select
import socket
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import anyio

from shim.core.claude.messages import UserMessage
from shim.core.turn.turn import Turn
from shim.io.raw_output import DISCONNECT_ERRNOS, SAFE_BYTES, warn
from shim.io.transcript import Transcript

if TYPE_CHECKING:
    from shim.core.turn.terms import OutputWriter
    from shim.io.tap import Tap

WHOLE_BYTES = 1024 * 1024


class FrontendGoneError(Exception):
    """Nobody reads our stdout any more."""


class Outbound(Protocol):
    """Where the lines for a frontend go: our stdout, or the hub of a session that lives on its own."""

    @property
    def broken(self) -> bool:
        """Whether a write failed although the reader has not gone: the disk is full."""

    async def gone(self) -> None:
        """Wait until the reader has gone; for ever if only a write can show that."""

    async def write(self, data: bytes) -> None:
        """Write all of `data`. FrontendGoneError if nobody takes it any more."""


class Stdout:
    """File descriptor 1, written so that a slow reader slows us down and breaks nothing.

    A socket (Node's pipes are sockets) gets a flag with each call. A pipe is opened a second time,
    so that its other holders keep their blocking mode. A regular file never blocks for long.
    Anything else is written in pieces that fit. `broken` says that a write failed although the
    reader has not gone: the disk is full.
    """

    def __init__(self, descriptor: int = 1, recorder: "Tap | None" = None) -> None:
        self.broken = False
        self._recorder = recorder
        self._descriptor = descriptor
        self._unwritten = b""
        self._socket: socket.socket | None = None
        self._write: Callable[[memoryview], int] = lambda view: os.write(
            descriptor, view[:SAFE_BYTES]
        )
        self._wait_first = True
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISSOCK(mode):
            self._socket = socket.socket(fileno=os.dup(descriptor))
            sending = self._socket
            self._write = lambda view: sending.send(view, socket.MSG_DONTWAIT)
            self._wait_first = False
        elif stat.S_ISFIFO(mode):
            self._reopen()
        elif stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and not os.isatty(descriptor)):
            self._write = lambda view: os.write(descriptor, view[:WHOLE_BYTES])
            self._wait_first = False

    def _reopen(self) -> None:
        try:
            opened = os.open(
                f"/proc/self/fd/{self._descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
            )
        except OSError:
            return
        self._descriptor = opened
        self._write = lambda view: os.write(opened, view)
        self._wait_first = False

    async def gone(self) -> None:
        """Wait until the reader has gone; for ever if only a write can show that.

        The end of a pipe or a socket that we write to becomes readable when its other end is
        closed.
        """
        mode = os.fstat(self._descriptor).st_mode
        if not (stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)):
            await anyio.sleep_forever()
        await anyio.wait_readable(self._descriptor)
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        if not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
            await anyio.sleep_forever()

    async def write(self, data: bytes) -> None:
        """Write all of `data`. FrontendGoneError if the frontend has closed it.

        A call that is cancelled half-way leaves its rest to the next call, so no line is ever cut.
        """
        whole = self._unwritten + data if self._unwritten else data
        view = memoryview(whole)
        try:
            while view:
                if self._wait_first:
                    await anyio.wait_writable(self._descriptor)
                try:
                    view = view[self._write(view) :]
                except BlockingIOError:
                    await anyio.wait_writable(self._descriptor)
        except OSError as error:
            if error.errno not in DISCONNECT_ERRNOS and not self.broken:
                self.broken = True
                warn(f"stdout cannot be written: {error.strerror}\n")
            raise FrontendGoneError(str(error)) from None
        finally:
            self._unwritten = bytes(view)
            if self._recorder is not None:
                self._note(whole[: len(whole) - len(view)] if view else whole, self._recorder)

    def _note(self, taken: bytes, recorder: "Tap") -> None:
        if taken:
            recorder.stream("O", taken)
            if not taken.endswith(b"\n"):
                recorder.stream("O", b"")


# An error of these causes has the words of a vendor or of an API, which say neither whose they are.
THEIRS = ("auth", "rate_limit", "vendor_error", "refused", "truncated")
WHOSE = "the error comes from {name}, or from the API that it asks; `shim doctor {name}` checks what can be checked\n"


class Output:
    """What of the stream is printed: all of it, one object, an array of all, or the answer alone
    (contract F1).
    """

    def __init__(
        self,
        output_format: str,
        *,
        verbose: bool,
        stdout: Outbound,
        transcript: Transcript | None = None,
        history: "OutputWriter | None" = None,
    ) -> None:
        """`history` gives Claude's lines for the transcript, if the lines that go out are in
        another dialect.
        """
        self._transcript = transcript
        self._history = history
        self._stdout = stdout
        self._stream = output_format == "stream-json"
        self._array = output_format == "json" and verbose
        self._text = output_format == "text"
        self._begun = False
        self._ended = False
        self._writing = anyio.Lock()

    async def gone(self) -> None:
        """Wait until the frontend has gone."""
        await self._stdout.gone()

    @property
    def broken(self) -> bool:
        """Whether output was lost although the frontend has not gone."""
        return self._stdout.broken

    def asked(self, message: UserMessage) -> None:
        """The message that the next lines answer."""
        if self._transcript is not None:
            self._transcript.prompt(message.raw_message.get("content", message.text), message.uuid)

    async def lines(self, data: bytes) -> None:
        """Lines of the stream. The rest of a call that was cancelled comes first."""
        async with self._writing:
            try:
                await self._lines(data)
            finally:
                kept = data if self._history is None else self._history.take_bytes()
                if self._transcript is not None and kept:
                    self._transcript.lines(kept)

    async def _lines(self, data: bytes) -> None:
        if self._stream or not data:
            await self._stdout.write(data)
        elif self._array and not self._ended:  # behind its end an array holds nothing
            items = data.rstrip(b"\n").replace(b"\n", b",")
            # a write that is cancelled goes on with the next
            before, self._begun = b"," if self._begun else b"[", True
            await self._stdout.write(before + items)

    async def end(self, turn: Turn) -> None:
        """The turn is over; said once."""
        told = self._ended
        await self.close(turn.final_text, turn.writer.last_result_line)
        if (
            self._text
            and not told
            and turn.cause in THEIRS
            and turn.config.vendor.name not in turn.final_text
        ):
            warn(WHOSE.format(name=turn.config.vendor.name))

    async def close(self, text: str, result: bytes) -> None:
        """The answer is there, as a text and as its line; said once."""
        if self._ended:
            return
        self._ended = True
        if self._array:
            await self._stdout.write(b"]")
        elif self._text:
            await self._stdout.write(text.encode("utf-8", "replace") + b"\n")
        elif not self._stream:
            await self._stdout.write(result)
