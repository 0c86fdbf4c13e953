"""Runs the hooks from Claude's settings files for all events except PreToolUse.

`core.claude.hooks.commands` defines which hooks run, and the meaning of their exit codes.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from shim.conversation.drivers.hook_runner import TIMED_OUT, run_hook_command
from shim.core.claude.hooks.commands import HookCommandCall, HookCommandResult
from shim.core.policy import SESSION_END_EVENT
from shim.io.stderr import warn
from shim.io.stdout import FrontendDisconnectedError, FrontendOutput

if TYPE_CHECKING:
    from shim.core.claude.control import ControlSession
    from shim.core.claude.control.actions import FrontendAction

# A slow command of a frequent event, such as PostToolUse, would otherwise fill the machine with
# processes. The event waits for the commands beyond this limit.
MAX_BACKGROUND_COMMANDS = 32


class EventHookRunner:
    """Runs the hook commands that the control session requests, for all events except PreToolUse.

    tasks        the tasks of the conversation, for hooks that run in the background
    environment  the environment variables of the hooks
    """

    def __init__(
        self,
        control: "ControlSession",
        output: FrontendOutput,
        tasks: TaskGroup,
        environment: Mapping[str, str],
        cwd: str,
    ) -> None:
        self._control = control
        self._output = output
        self._tasks = tasks
        self._environment = environment
        self._cwd = cwd
        self._scopes: set[anyio.CancelScope] = set()  # of the events whose commands are running
        self._background_count = 0  # the commands that are running in the background

    async def run_requested_commands(self) -> "list[FrontendAction]":
        """Run the requested commands until all of them have exited. Return the actions that result
        from their answers.
        """
        return await self.run_commands(self._control.hooks.take_command_calls())

    async def run_commands(self, calls: "Sequence[HookCommandCall]") -> "list[FrontendAction]":
        """Run commands until all of them have exited. Return the actions that result from their
        answers.
        """
        actions: list[FrontendAction] = []
        if not calls:
            return actions

        async def run_call(call: HookCommandCall) -> None:
            actions.extend(await self._run_call(call))

        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                async with anyio.create_task_group() as tasks:
                    for call in calls:
                        if not self._start_in_background(call):
                            tasks.start_soon(run_call, call)
            finally:
                self._scopes.remove(scope)
        return actions

    def cancel_running_commands(self) -> None:
        """End the commands that are running, of all events. Commands in the background continue."""
        for scope in tuple(self._scopes):
            scope.cancel()

    def _start_in_background(self, call: HookCommandCall) -> bool:
        """Start a command for which nothing waits. Return False if the command must be waited for,
        or if too many commands are running in the background.
        """
        if not call.hook.runs_in_background:
            return False
        if self._background_count >= MAX_BACKGROUND_COMMANDS:
            return False
        self._background_count += 1
        self._tasks.start_soon(self._run_in_background, call)
        return True

    async def _run_in_background(self, call: HookCommandCall) -> None:
        try:
            await self._run_call(call)
        finally:
            self._background_count -= 1

    async def _run_call(self, call: HookCommandCall) -> "list[FrontendAction]":
        self._control.hooks.report_start(call)
        await self._write_control_lines()
        result = await run_hook_command(call.hook, call.stdin, self._environment, self._cwd)
        if call.event.name == SESSION_END_EVENT and result.code != 0:
            warn(
                f"the SessionEnd hook [{call.hook.format_command_line()}] failed: {_describe_failure(result)}\n"
            )
        actions = self._control.accept_hook_result(call, result)
        await self._write_control_lines()
        return actions

    async def _write_control_lines(self) -> None:
        try:
            await self._output.write_lines(self._control.take_output())
        except FrontendDisconnectedError:
            pass  # the loop also detects the disconnect


def _describe_failure(result: HookCommandResult) -> str:
    if result.error == TIMED_OUT:
        return "it took too long"
    stderr = result.stderr.strip()
    if stderr:
        return stderr
    return result.error
