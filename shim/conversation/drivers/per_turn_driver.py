"""The driver that starts a new child process for each message. Each new child resumes the vendor's
session.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio

from shim.conversation.drivers.driver import ChildDriver
from shim.conversation.drivers.launcher import ChildLauncher
from shim.core.adapter.child_stream import ChildStream
from shim.core.adapter.commands import TurnStage
from shim.core.claude.messages import UserMessage
from shim.core.errors import ShimError
from shim.io.stdout import FrontendOutput
from shim.process.child import Child
from shim.process.spawn import ChildSpawnResult

if TYPE_CHECKING:
    from shim.conversation.drivers.event_hook_runner import EventHookRunner
    from shim.core.claude.control import ControlSession
    from shim.core.claude.control.actions import SettingChanged


class PerTurnDriver(ChildDriver):
    """Starts a child process for each message. The child receives only the message, and cannot ask
    for permission.
    """

    def __init__(
        self,
        launcher: ChildLauncher,
        output: FrontendOutput,
        control: "ControlSession | None" = None,
        create_stream: Callable[..., ChildStream] = ChildStream,
        first_child: ChildSpawnResult | None = None,
        refusal_error: ShimError | None = None,
        hook_commands: "EventHookRunner | None" = None,
    ) -> None:
        """Create the driver. `first_child` is a child that was already started for the first
        message.

        `refusal_error` is the reason why no turn can start, or None.
        """
        super().__init__(launcher, output, control, create_stream, hook_commands)
        self._first_child = first_child
        self._refusal_error = refusal_error

    async def run_turn(self, message: UserMessage) -> None:
        """Start a child, translate its output, and write the result after the child has exited."""
        if self._refusal_error is not None:
            await self.refuse_turn(message, self._refusal_error)
            return
        spawned = self._first_child
        self._first_child = None
        try:
            if not spawned:
                spawned = self.launcher.start_child(message.text)
        except Exception as error:
            await self.refuse_turn(message, error)
            return
        self._reset_turn()
        try:
            stream = self.open_stream(self.stream)
        except OSError as error:
            # For example, the translator cannot be loaded because no file descriptors are left.
            self.launcher.discard_child(spawned)
            await self.refuse_turn(message, error)
            return
        except Exception:
            self.launcher.discard_child(spawned)
            raise
        child = Child(spawned)
        try:
            self._start_turn(stream, message)
            if not (
                await self._run_child(child, stream) or await self._finish_if_interrupted(stream)
            ):
                await self._retry_message(stream, message)
        finally:
            self._close_child(child)
            if self.launcher.report_file is not None:
                self.launcher.report_file.remove()

    async def _retry_message(self, stream: ChildStream, message: UserMessage) -> None:
        """Start a second child for the same message, because the first child's output was cut
        off.
        """
        try:
            self.launcher.turn_lifecycle.prepare_retry(stream)
            spawned = self.launcher.start_child(message.text)
        except ShimError as error:
            await self._fail_turn(stream, error)
            return
        child = Child(spawned)
        try:
            await self._run_child(child, stream)
        finally:
            self._close_child(child)

    async def _run_child(self, child: Child, stream: ChildStream) -> bool:
        """Translate the complete output of a child. Return whether the turn is over."""
        self._deadlines.reset()
        self._turn_has_output = False
        self._child = child
        is_done = False
        failure = None
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            for task in (child.write_initial_stdin_and_close, child.drain_stderr):
                tasks.start_soon(task)
            tasks.start_soon(self._watch_child_exit, child)
            try:
                await self._read_turn_output(child, stream)
                is_done = await self._close_turn(child, stream)
            except Exception as error:  # raised below, so that no exception group wraps it
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        self._child = None
        return is_done

    def _apply_stage(self, stage: TurnStage) -> None:
        """Start the exit timeout if the vendor reports that it is done. Cancel the exit timeout
        otherwise.
        """
        if stage is TurnStage.VENDOR_DONE:
            self._deadlines.start_idle_timeout(self.launcher.exit_timeout_s)
        else:
            self._deadlines.cancel_idle_timeout()

    async def interrupt(self) -> None:
        """Send the interrupt signal to the vendor. The turn ends when the vendor's output ends."""
        self.cancel_hook_commands()
        if self.stream is None or self._child is None or self._interrupted:
            return
        self._interrupted = True
        self.stream.turn.record_interrupt()
        await self._child.stop(self.launcher.adapter.shutdown.interrupt_signal)

    async def apply_setting_change(self, change: "SettingChanged") -> None:
        """Apply a changed setting to the next child. If the shim's hook checks tool calls, a
        changed permission mode already applies to the next tool call.
        """
        if change.setting == "mode":
            self.launcher.write_permission_mode_file()

    async def stop(self) -> None:
        if self._child is not None:
            await self._child.stop(self.launcher.adapter.shutdown.interrupt_signal)
            self._close_child(self._child)
