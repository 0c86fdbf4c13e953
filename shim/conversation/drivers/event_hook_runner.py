"""Runs the hooks from Claude's settings files for all events except PreToolUse.

`core.claude.hooks.event_commands` defines which hooks run, and the meaning of their exit codes.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from shim.conversation.drivers.hook_runner import TIMED_OUT, run_hook_command
from shim.core.claude.hooks.commands import HookCommandResult
from shim.core.claude.hooks.event_commands import HookCommandCall
from shim.core.policy.settings_hooks import SESSION_END_EVENT
from shim.io.stderr import warn
from shim.io.stdout import FrontendDisconnectedError, FrontendOutput

if TYPE_CHECKING:
    from shim.core.claude.control import ControlSession
    from shim.core.claude.control.actions import FrontendAction


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
        self._environment = {**environment, "CLAUDE_PROJECT_DIR": cwd}
        self._cwd = cwd
        self.running_scope = anyio.CancelScope()  # of the commands that are running

    async def run_requested_commands(self) -> "list[FrontendAction]":
        """Run the requested commands until all of them have exited. Return the actions that result
        from their answers.
        """
        calls = self._control.take_hook_calls()
        actions: list[FrontendAction] = []
        if not calls:
            return actions

        async def run_call(call: HookCommandCall) -> None:
            actions.extend(await self._run_call(call))

        with anyio.CancelScope() as self.running_scope:
            async with anyio.create_task_group() as tasks:
                for call in calls:
                    group = self._tasks if call.hook.runs_in_background else tasks
                    group.start_soon(run_call, call)
        return actions

    async def _run_call(self, call: HookCommandCall) -> "list[FrontendAction]":
        self._control.report_hook_start(call)
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
