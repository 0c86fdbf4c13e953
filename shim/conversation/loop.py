"""What all loops have in common: signals, a frontend that leaves, work beside the wait for the end,
an exit status.
"""

import gc
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from shim.core.errors import MachineError
from shim.io.stdout import Output

if TYPE_CHECKING:
    from shim.recording.recorder import Recorder

PRELOAD_SECONDS = 5.0  # most runs end earlier, and do not need the modules that are imported then
LAST_WORDS_SECONDS = 0.2  # for writing the result of a turn that a SIGTERM ended (surface page)

WANTED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STATUS_OF_SIGNAL = {"SIGTERM": 143, "SIGHUP": 129}


class Loop:
    """`_work` is cancelled (through `_working`) when a signal ends us or the frontend has closed
    our stdout.

    `_fault` is what `_work` has to raise behind that.
    """

    def __init__(self, output: Output, recorder: "Recorder | None" = None) -> None:
        self._output = output
        self._recorder = recorder
        self._fault: Exception | None = None
        self._working = anyio.CancelScope()
        self._news = anyio.Event()
        self._stopped_by: str | None = None
        self._ending = False
        self._gone = False

    async def run(self, pending: list[int]) -> int:
        """Run to the end; our exit status. `pending` are the numbers of signals that came before
        the loop ran.
        """
        gc.freeze()
        gc.enable()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._signals, tasks, pending)
            tasks.start_soon(self._frontend_gone)
            tasks.start_soon(self._preload)
            if self._recorder is not None and self._recorder.strict:
                tasks.start_soon(self._recording_failed, self._recorder)
            status = await self._work(tasks)
            tasks.cancel_scope.cancel()
        return status or int(self._output.broken)

    async def _work(self, tasks: TaskGroup) -> int:
        raise NotImplementedError

    def _interrupt(self, tasks: TaskGroup) -> None:
        """A SIGINT: stop the turn that runs, and end after it."""
        raise NotImplementedError

    async def _beside(self, work: Callable[..., Awaitable[None]], *given: object) -> None:
        """What runs beside the wait for the end; a mistake in it, or a frontend that has gone, ends
        the loop.
        """
        try:
            await work(*given)
        except Exception as error:
            self._fault = error
            self._working.cancel()

    def _tell_news(self) -> None:
        """Wake what waits for `_news`."""
        told, self._news = self._news, anyio.Event()
        told.set()

    async def _frontend_gone(self) -> None:
        """A frontend that has closed our stdout has gone, or has crashed: its turn is stopped."""
        await self._output.gone()
        self._gone = True
        self._working.cancel()

    async def _preload(self) -> None:
        """Import what a long conversation may need, before an upgrade replaces the files."""
        await anyio.sleep(PRELOAD_SECONDS)
        try:
            from shim.conversation.preload import preload_slowly
        except ImportError:  # the files are gone already
            return
        await preload_slowly()

    async def _recording_failed(self, recorder: "Recorder") -> None:
        """A turn that must be recorded ends when its recording fails."""
        self._fault = MachineError(await recorder.failed())
        self._working.cancel()

    async def _signals(self, tasks: TaskGroup, pending: list[int]) -> None:
        wanted = [number for number in WANTED if signal.getsignal(number) is not signal.SIG_IGN]
        with anyio.open_signal_receiver(*wanted) as received:
            for number in pending:
                self._signal(signal.Signals(number).name, tasks)
            async for caught in received:
                self._signal(caught.name, tasks)

    def _signal(self, name: str, tasks: TaskGroup) -> None:
        if self._recorder is not None:
            self._recorder.note("caught", signal=name)
        if name in STATUS_OF_SIGNAL:
            self._stopped_by = name
            self._working.cancel()
        elif not self._ending:
            self._ending = True
            self._interrupt(tasks)


def said_of(error: Exception) -> str:
    """The reason for a turn that ends without a fault of its own: the machine's, or a mistake of
    ours.
    """
    return str(error) if isinstance(error, MachineError) else f"the shim failed: {error!r}"
