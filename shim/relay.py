"""A conversation that the child holds itself, in Claude's own protocol: bytes both ways, and a certain end.

The translation follows what passes, so that a turn that the child leaves unfinished still gets its result. Where
nothing was asked of us (no terminator, nothing hidden) the child's lines are written as they came.
"""

from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from shim.account import printable
from shim.child import Child
from shim.frame import CLOSED, NEW
from shim.lines import LineSplitter
from shim.loop import LAST_WORDS_SECONDS, STATUS_OF_SIGNAL, Loop
from shim.sinks import FrontendGoneError, Output
from shim.source import Source
from shim.state import tell
from shim.translation import Translation

if TYPE_CHECKING:
    from shim.redact import Stream


class Relay(Loop):
    """One child for all. `plain`: its lines pass as they are. `end_grace` is what it has to end after its stdout."""

    def __init__(
        self,
        child: Child,
        translation: Translation,
        output: Output,
        source: Source,
        *,
        plain: bool,
        interrupt: str,
        end_grace: float,
        stream: "Stream | None" = None,
    ) -> None:
        """`stream` takes the secrets out of the child's stderr."""
        super().__init__(output)
        self._child = child
        self._translation = translation
        self._source = source
        self._plain = plain
        self._first_signal = interrupt
        self._end_grace = end_grace
        self._stream = stream
        self._lines = LineSplitter()
        self._reading = anyio.CancelScope()

    async def _work(self, tasks: TaskGroup) -> int:
        for work in (self._copy, self._drain, self._watch):
            tasks.start_soon(work)
        try:
            with self._working:
                with self._reading:
                    await self._pump()
                with anyio.move_on_after(self._end_grace):
                    await self._child.ended()
                await self._unfinished("")
        except FrontendGoneError:
            self._gone = True
        if self._stopped_by is not None:
            self._child.signal("SIGTERM")
            await self._last_words(f"the turn was stopped by {self._stopped_by}")
        status = self._child.exit.code if self._child.exit is not None else None
        await self._child.stop("SIGTERM")
        self._child.close()
        if self._stopped_by is not None:
            return STATUS_OF_SIGNAL[self._stopped_by]
        if self._gone or self._ending:
            return 0
        return 1 if status is None else status or int(self._translation.turn.is_error)

    async def _copy(self) -> None:
        """The frontend's bytes, to their end, which is the child's too."""
        while chunk := await self._source.read():
            await self._child.say(chunk)
        self._child.hang_up()

    async def _drain(self) -> None:
        stream = self._stream
        if stream is None:
            await self._child.drain(lambda chunk: tell(printable(chunk.decode("utf-8", "replace"))))
            return
        try:
            await self._child.drain(lambda chunk: tell(printable(stream.feed(chunk.decode("utf-8", "replace")))))
        finally:
            tell(printable(stream.flush()))

    async def _watch(self) -> None:
        """A child that ended while something else holds its stdout: its last bytes get their grace."""
        await self._child.ended()
        self._reading.deadline = anyio.current_time() + self._end_grace

    async def _pump(self) -> None:
        translation = self._translation
        while chunk := await self._child.read():
            said = translation.feed(chunk)
            if translation.turn.stated and not translation.finished:
                said += translation.finish()
            whole = b"".join(raw + b"\n" for raw in self._lines.feed(chunk))
            await self._output.lines(whole if self._plain else said)

    async def _unfinished(self, reason: str) -> None:
        """A turn that was begun and has no result gets one."""
        if self._translation.turn.state in (NEW, CLOSED):
            return
        if reason:
            self._translation.turn.failed(reason, kind="signal", api=False)
        await self._output.lines(self._translation.close(None if reason else self._child.exit, self._child.tail.text()))

    async def _last_words(self, reason: str) -> None:
        with anyio.move_on_after(LAST_WORDS_SECONDS):
            try:
                await self._unfinished(reason)
            except FrontendGoneError:
                pass

    def _interrupt(self, tasks: TaskGroup) -> None:
        tasks.start_soon(self._child.stop, self._first_signal)
