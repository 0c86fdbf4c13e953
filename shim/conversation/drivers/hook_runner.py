"""Runs the hooks from Claude's settings files before a tool call. Hooks run in parallel, each in
its own process group. `event_hook_runner` runs the hooks for other events.

`core.claude.hooks.commands` defines the input of a hook and the meaning of its exit code.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence

import anyio

from shim.core.claude.hooks.answers import HookDecision
from shim.core.claude.hooks.callbacks import HookContext, HookEvent
from shim.core.claude.hooks.commands import (
    DENY_EXIT_CODE,
    HookCommandResult,
    decide_from_hook_result,
    encode_hook_input,
    select_hooks,
)
from shim.core.errors import ShimError
from shim.core.policy.policy import Policy
from shim.core.policy.settings_hooks import SettingsHook
from shim.process.child import Child
from shim.process.spawn import ChildSpawnResult, kill_child, spawn_child

# The size limit for a hook's stdout. A hook that prints more blocks the tool call, because its
# output cannot be parsed.
MAX_OUTPUT_BYTES = 1024 * 1024
STDERR_TIMEOUT_S = 0.2  # for the remaining stderr, because another process may hold the pipe open
# Vendors do not wait longer for a hook. A hook command that reaches this limit blocks the call.
MAX_HOOK_TIMEOUT_S = 660.0
TIMED_OUT = "timed out"
TIMEOUT_REASON = f"a hook took more than {MAX_HOOK_TIMEOUT_S:g} s, the limit for hooks"


async def run_hooks(
    policy: Policy,
    call: HookEvent,
    context: HookContext,
    environment: Mapping[str, str],
    report_result: Callable[[SettingsHook, HookCommandResult], None] | None = None,
) -> HookDecision:
    """Run all hooks before a tool call. Return the combined decision, which is undecided if no hook
    applies.

    `call` is the event PreToolUse, with Claude's name for the tool. `report_result` receives the
    result of each hook.
    """
    hooks = select_hooks(policy.hooks, call, policy.workspace)
    cwd = policy.workspace.cwd
    hook_input = encode_hook_input(call, context._replace(cwd=cwd))
    decisions: list[HookDecision] = []  # in order of arrival; the last input change wins

    async def run_hook(hook: SettingsHook) -> None:
        hook_exit = await run_hook_command(hook, hook_input, environment, cwd)
        is_late = hook_exit.error == TIMED_OUT and hook.timeout_s > MAX_HOOK_TIMEOUT_S
        if is_late:
            hook_decision = HookDecision(False, TIMEOUT_REASON)
        else:
            hook_decision = decide_from_hook_result(hook, call, hook_exit, policy.workspace)
        decisions.append(hook_decision)
        if report_result is not None:
            report_result(hook, hook_exit)

    async with anyio.create_task_group() as tasks:
        for hook in hooks:
            tasks.start_soon(run_hook, hook)
    combined = HookDecision()
    for decision in decisions:
        combined = combined.merge(decision)
    return combined


async def run_hook_command(
    hook: SettingsHook, hook_input: bytes, environment: Mapping[str, str], cwd: str
) -> HookCommandResult:
    """Run a hook command until its process exits."""
    environment = {**environment, "CLAUDE_PROJECT_DIR": cwd}
    argv = ["/bin/sh", "-c", hook.command]
    if hook.args is not None:
        argv = [
            shutil.which(hook.command, path=environment.get("PATH")) or hook.command,
            *hook.args,
        ]
    return await run_program(
        argv, environment, cwd, timeout_s=min(hook.timeout_s, MAX_HOOK_TIMEOUT_S), stdin=hook_input
    )


async def run_program(
    argv: Sequence[str],
    environment: Mapping[str, str],
    cwd: str,
    *,
    timeout_s: float,
    stdin: bytes = b"",
) -> HookCommandResult:
    """Run a short program until its process exits. Processes that it leaves running are killed."""
    try:
        process = spawn_child([*argv], environment, cwd, opens_stdin=True)
    except ShimError as error:
        return HookCommandResult(None, error=str(error))
    child = Child(ChildSpawnResult(process, stdin))
    stdout = bytearray()

    async def read_stdout() -> None:
        while chunk := await child.read_stdout():
            stdout.extend(chunk[: MAX_OUTPUT_BYTES + 1 - len(stdout)])

    try:
        async with anyio.create_task_group() as tasks:
            for task in (child.write_initial_stdin_and_close, child.drain_stderr, read_stdout):
                tasks.start_soon(task)
            with anyio.move_on_after(timeout_s) as timeout_scope:
                await child.wait_for_exit_without_reaping()
            await anyio.sleep(0)  # let the readers run: the pipes may still contain output
            while chunk := child.read_available_stdout():
                stdout.extend(chunk[: MAX_OUTPUT_BYTES + 1 - len(stdout)])
            if timeout_scope.cancelled_caught:
                child.send_signal("SIGKILL")
            with anyio.CancelScope(shield=True):
                child_exit = await child.wait_for_exit()
            with anyio.move_on_after(STDERR_TIMEOUT_S):
                await child.stderr_drained.wait()
            tasks.cancel_scope.cancel()
    except BaseException:
        kill_child(process)
        raise
    finally:
        child.close()
    if timeout_scope.cancelled_caught:
        return HookCommandResult(None, error=TIMED_OUT)
    if len(stdout) > MAX_OUTPUT_BYTES:
        return HookCommandResult(
            DENY_EXIT_CODE, stderr=f"the hook printed more than {MAX_OUTPUT_BYTES} bytes"
        )
    return HookCommandResult(
        child_exit.code,
        stdout.decode("utf-8", "replace"),
        child.stderr_tail.to_text(),
        f"it {child_exit}",
    )
