"""The base class of the conversation loops. It handles signals, frontend disconnects, background
tasks and the exit status.
"""

import gc
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from shim.core.errors import SystemResourceError
from shim.io.stdout import FrontendOutput

if TYPE_CHECKING:
    from shim.recording.recorder import RunRecorder

PRELOAD_DELAY_S = 5.0  # most runs are shorter, and never need the preloaded modules
FINAL_WRITE_TIMEOUT_S = 0.2  # for writing the result of a turn that was ended by SIGTERM

HANDLED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
EXIT_STATUS_BY_SIGNAL = {"SIGTERM": 143, "SIGHUP": 129}


class ConversationLoop:
    """Runs a session, together with the background tasks that can end it.

    `_work_scope` cancels the session when a signal arrives or the frontend closes stdout. If a
    background task has failed, `_run_session` raises its error from `_error`.
    """

    def __init__(self, output: FrontendOutput, recorder: "RunRecorder | None" = None) -> None:
        self._output = output
        self._recorder = recorder
        self._error: Exception | None = None
        self._work_scope = anyio.CancelScope()
        self._wakeup = anyio.Event()
        self._stop_signal: str | None = None
        self._is_ending = False
        self._frontend_disconnected = False

    async def run(self, pending_signals: list[int]) -> int:
        """Run the loop until the session ends. Return the exit status.

        `pending_signals` are the numbers of signals that arrived before the loop started.
        """
        gc.freeze()
        gc.enable()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._receive_signals, tasks, pending_signals)
            tasks.start_soon(self._watch_frontend)
            tasks.start_soon(self._preload_modules)
            if self._recorder is not None and self._recorder.strict:
                tasks.start_soon(self._watch_recording, self._recorder)
            status = await self._run_session(tasks)
            tasks.cancel_scope.cancel()
        if status:
            return status
        return int(self._output.stdout.has_failed)

    async def _run_session(self, tasks: TaskGroup) -> int:
        raise NotImplementedError

    def _interrupt_turn(self, tasks: TaskGroup) -> None:
        """Interrupt the running turn after SIGINT. The loop ends when the turn is over."""
        raise NotImplementedError

    async def _run_in_background(self, work: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run a background task of the session. If the task fails or the frontend disconnects, the
        session is cancelled.
        """
        try:
            await work(*args)
        except Exception as error:
            self._error = error
            self._work_scope.cancel()

    def _wake_waiters(self) -> None:
        """Wake all tasks that are waiting for `_wakeup`."""
        wakeup = self._wakeup
        self._wakeup = anyio.Event()
        wakeup.set()

    async def _watch_frontend(self) -> None:
        """Cancel the session when the frontend closes stdout, because the frontend has exited or
        crashed.
        """
        await self._output.wait_for_disconnect()
        self._frontend_disconnected = True
        self._work_scope.cancel()

    async def _preload_modules(self) -> None:
        """Import the modules that a long conversation may need later, before an upgrade can replace
        the package's files.
        """
        await anyio.sleep(PRELOAD_DELAY_S)
        try:
            from shim.conversation.preload import preload_conversation_modules
        except ImportError:  # an upgrade has already removed the files
            return
        await preload_conversation_modules()

    async def _watch_recording(self, recorder: "RunRecorder") -> None:
        """Cancel the session if its recording fails. Runs only if recording is required."""
        self._error = SystemResourceError(await recorder.wait_for_recording_failure())
        self._work_scope.cancel()

    async def _receive_signals(self, tasks: TaskGroup, pending: list[int]) -> None:
        handled = [
            number for number in HANDLED_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN
        ]
        with anyio.open_signal_receiver(*handled) as signals:
            for number in pending:
                self._apply_signal(signal.Signals(number).name, tasks)
            async for received in signals:
                self._apply_signal(received.name, tasks)

    def _apply_signal(self, name: str, tasks: TaskGroup) -> None:
        if name in EXIT_STATUS_BY_SIGNAL:
            self.stop(name)
            return
        self._record_signal(name)
        if not self._is_ending:
            self._is_ending = True
            self._interrupt_turn(tasks)

    def stop(self, signal_name: str = "SIGTERM") -> None:
        """End the conversation as if the signal had arrived."""
        self._record_signal(signal_name)
        self._stop_signal = signal_name
        self._work_scope.cancel()

    def _record_signal(self, name: str) -> None:
        if self._recorder is not None:
            self._recorder.record_run_event("caught", signal=name)


def explain_turn_failure(error: Exception) -> str:
    """Return the reason why a turn failed: a missing system resource, or a bug in the shim."""
    if isinstance(error, SystemResourceError):
        return str(error)
    return f"internal error: {error!r}"
