"""The one loop of a turn: child's stdout → translation → our stdout, with signals, deadlines and a certain end."""

import gc
import signal

import anyio

from shim.child import Child
from shim.sinks import FrontendGoneError, Output
from shim.state import tell
from shim.translation import Translation

LAST_WORDS_SECONDS = 0.2  # for the result of a turn that a SIGTERM ended, if stdout takes it (surface page)
STDERR_SECONDS = 0.2  # for the rest of stderr when stdout is at its end

WANTED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STATUS_OF_SIGNAL = {"SIGTERM": 143, "SIGHUP": 129}


class Session:
    """Runs one turn of a child. `end_grace` is what it gets between its last word and its end, in seconds."""

    def __init__(
        self, translation: Translation, child: Child, output: Output, *, interrupt: str, end_grace: float
    ) -> None:
        self._translation = translation
        self._child = child
        self._output = output
        self._interrupt = interrupt
        self._end_grace = end_grace
        self._deadline = float("inf")
        self._reading = anyio.CancelScope()
        self._working = anyio.CancelScope()
        self._stopped_by: str | None = None
        self._interrupted = False

    async def run(self, pending: list[int]) -> int:
        """The turn, to its end; our exit status. `pending` are signals that came before the loop ran."""
        gc.freeze()
        gc.enable()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._signals, tasks, pending)
                tasks.start_soon(self._child.feed)
                tasks.start_soon(self._watch)
                status = await self._turn()
                tasks.cancel_scope.cancel()
            return status
        finally:
            self._child.close()

    async def _turn(self) -> int:
        async with anyio.create_task_group() as draining:
            draining.start_soon(self._child.drain)
            try:
                status = await self._run_child()
            except FrontendGoneError:
                status = 0
            except Exception as error:  # our own mistake: the frontend still gets its one result
                status = 1
                try:
                    await self._last_words(f"the shim failed: {error!r}", "internal")
                except Exception as another:
                    tell(f"the shim failed: {another!r}\n")
            await self._child.stop(self._interrupt)
            draining.cancel_scope.cancel()
        return status

    async def _run_child(self) -> int:
        """Pump, make sure of the child's end, say the result. A signal that ends us cancels it anywhere."""
        translation = self._translation
        with self._working:
            await self._pump()
            ended_itself = await self._end_child()
            await self._rest_of_stderr()
            if not translation.finished:
                child_exit = self._child.exit if ended_itself and not self._interrupted else None
                await self._output.lines(translation.close(child_exit, self._child.tail.text()))
            await self._output.end(translation.turn)
        if self._stopped_by is not None:
            return await self._stopped(self._stopped_by)
        if self._interrupted:
            return 0
        return 1 if translation.turn.is_error else 0

    async def _rest_of_stderr(self) -> None:
        with anyio.move_on_after(STDERR_SECONDS):
            await self._child.drained.wait()

    async def _last_words(self, reason: str, cause: str) -> None:
        """End with an error result, if none was said yet and stdout takes it soon."""
        said = b""
        if not self._translation.finished:
            self._translation.turn.failed(reason, kind=cause, api=False)
            said = self._translation.close(None)
        with anyio.move_on_after(LAST_WORDS_SECONDS):
            try:
                await self._output.lines(said)
                await self._output.end(self._translation.turn)
            except FrontendGoneError:
                pass

    async def _pump(self) -> None:
        """Until the child's stdout ends, the turn is over, or a deadline has passed."""
        translation = self._translation
        while not translation.finished:
            with anyio.CancelScope(deadline=self._deadline) as self._reading:
                chunk = await self._child.read()
            if self._reading.cancelled_caught or not chunk:
                return
            if said := translation.feed(chunk):
                await self._output.lines(said)
            if translation.turn.settled:
                self._hurry()

    def _hurry(self) -> None:
        """From now on the child has its grace and no more."""
        self._deadline = min(self._deadline, anyio.current_time() + self._end_grace)
        self._reading.deadline = min(self._reading.deadline, self._deadline)

    async def _end_child(self) -> bool:
        """Make sure that the child is gone; whether it went by itself."""
        if self._translation.finished:
            await self._child.stop(self._interrupt)
            return False
        deadline = min(self._deadline, anyio.current_time() + self._end_grace)
        with anyio.CancelScope(deadline=deadline):
            await self._child.ended()
        if self._child.exit is None:
            await self._child.stop(self._interrupt)
            return False
        return True

    async def _watch(self) -> None:
        """A child that ended while something else holds its stdout: its last bytes get their grace."""
        await self._child.ended()
        self._hurry()

    async def _signals(self, tasks: anyio.abc.TaskGroup, pending: list[int]) -> None:
        wanted = [number for number in WANTED if signal.getsignal(number) is not signal.SIG_IGN]
        with anyio.open_signal_receiver(*wanted) as received:
            for number in pending:
                self._signal(signal.Signals(number).name, tasks)
            async for caught in received:
                self._signal(caught.name, tasks)

    def _signal(self, name: str, tasks: anyio.abc.TaskGroup) -> None:
        if name in STATUS_OF_SIGNAL:
            self._stopped_by = name
            self._working.cancel()
        elif not self._interrupted:
            self._interrupted = True
            self._translation.interrupt()
            tasks.start_soon(self._child.stop, self._interrupt)

    async def _stopped(self, name: str) -> int:
        """We were told to go: blocks closed, one error result if stdout takes it, the child ended."""
        self._child.signal("SIGTERM")
        await self._last_words(f"the turn was stopped by {name}", "signal")
        return STATUS_OF_SIGNAL[name]
