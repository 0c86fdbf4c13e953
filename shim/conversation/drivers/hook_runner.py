"""Runs the hooks of Claude's settings files before a call: all at once, each in a process group
that is ended.

What they are told and what their end means is in `core.claude.hooks.commands`.
"""

import shutil
from collections.abc import Mapping
from typing import Any

import anyio

from shim.core.claude.hooks.callbacks import HookDecision
from shim.core.claude.hooks.commands import (
    DENY_EXIT_CODE,
    HookContext,
    HookExit,
    decide_from_exit,
    encode_hook_input,
    select_hooks,
)
from shim.core.errors import ShimError
from shim.core.policy.policy import Policy
from shim.core.policy.settings_hooks import SettingsHook
from shim.process.child import Child
from shim.process.spawn import SpawnedChild, kill_child, spawn_child

# of a hook's stdout; one that says more blocks, because nobody knows what it means
MAX_OUTPUT_BYTES = 1024 * 1024
STDERR_TIMEOUT_S = 0.2  # for the rest of a hook's stderr, which another process may hold
MAX_HOOK_TIMEOUT_S = (
    660.0  # vendors wait no longer for our hook: one that is not done by then blocks
)
TIMED_OUT = "timed out"
TIMEOUT_REASON = (
    f"a hook took more than {MAX_HOOK_TIMEOUT_S:g} s, which is as long as one may take here"
)


async def run_hooks(
    policy: Policy,
    call: str,
    tool: str,
    arguments: Mapping[str, Any],
    told: HookContext,
    environment: Mapping[str, str],
) -> HookDecision:
    """The verdict of all hooks that are about a call, which is said in Claude's words. Without a
    hook it is open.
    """
    hooks = select_hooks(policy.hooks, tool, arguments, policy.workspace)
    cwd = policy.workspace.cwd
    data = encode_hook_input(call, tool, arguments, told, cwd)
    verdicts: list[HookDecision] = []  # as they come: what the last one changes counts

    async def run(hook: SettingsHook) -> None:
        ended = await _run_hook_command(hook, data, {**environment, "CLAUDE_PROJECT_DIR": cwd}, cwd)
        late = ended.error == TIMED_OUT and hook.timeout_s > MAX_HOOK_TIMEOUT_S
        said = (
            HookDecision(False, TIMEOUT_REASON)
            if late
            else decide_from_exit(hook, ended, tool, arguments, policy.workspace)
        )
        verdicts.append(said)

    async with anyio.create_task_group() as tasks:
        for hook in hooks:
            tasks.start_soon(run, hook)
    found = HookDecision()
    for verdict in verdicts:
        found = found.merge(verdict)
    return found


async def _run_hook_command(
    hook: SettingsHook, data: bytes, environment: Mapping[str, str], cwd: str
) -> HookExit:
    """Run a hook to its end. It is over when its process has ended, whatever that has left running."""
    words = ["/bin/sh", "-c", hook.command]
    if hook.args is not None:
        words = [
            shutil.which(hook.command, path=environment.get("PATH")) or hook.command,
            *hook.args,
        ]
    try:
        process = spawn_child(words, environment, cwd, feed=True)
    except ShimError as error:
        return HookExit(None, error=str(error))
    child = Child(SpawnedChild(process, data))
    said = bytearray()

    async def listen() -> None:
        while chunk := await child.read_stdout():
            said.extend(chunk[: MAX_OUTPUT_BYTES + 1 - len(said)])

    try:
        async with anyio.create_task_group() as tasks:
            for work in (child.write_and_close_stdin, child.drain_stderr, listen):
                tasks.start_soon(work)
            with anyio.move_on_after(min(hook.timeout_s, MAX_HOOK_TIMEOUT_S)) as waiting:
                await child.wait_for_process()
            await anyio.sleep(0)  # what it wrote before its end is in the pipes
            while chunk := child.read_available_stdout():
                said.extend(chunk[: MAX_OUTPUT_BYTES + 1 - len(said)])
            if waiting.cancelled_caught:
                child.send_signal("SIGKILL")
            with anyio.CancelScope(shield=True):
                ended = await child.wait_for_exit()
            with anyio.move_on_after(STDERR_TIMEOUT_S):
                await child.stderr_drained.wait()
            tasks.cancel_scope.cancel()
    except BaseException:
        kill_child(process)
        raise
    finally:
        child.close()
    if waiting.cancelled_caught:
        return HookExit(None, error=TIMED_OUT)
    if len(said) > MAX_OUTPUT_BYTES:
        return HookExit(DENY_EXIT_CODE, stderr=f"it printed more than {MAX_OUTPUT_BYTES} bytes")
    return HookExit(
        ended.code, said.decode("utf-8", "replace"), child.stderr_tail.to_text(), f"it {ended}"
    )
