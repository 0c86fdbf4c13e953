"""The hooks of Claude's settings files as real processes."""

import os

import anyio
import pytest

from shim.conversation.drivers import hook_runner
from shim.conversation.drivers.hook_runner import run_hooks
from shim.core.claude.hooks.answers import HookDecision
from shim.core.claude.hooks.callbacks import HookContext, HookEvent
from shim.core.policy.policy import Policy, Workspace
from shim.core.policy.settings_hooks import SettingsHook

SECONDS = 20.0
pytestmark = pytest.mark.anyio
DENY = '{"decision": "block", "reason": "no"}'


async def decide_with_hooks(folder, *hooks, tool_input=None):
    policy = Policy(workspace=Workspace(str(folder)), hooks=hooks)
    hook_context = HookContext("S", "/t", "default")
    with anyio.fail_after(SECONDS):
        call = HookEvent("PreToolUse", "c", "Bash", tool_input or {"command": "ls"})
        return await run_hooks(policy, call, hook_context, dict(os.environ))


def shell(*lines, **more):
    return [SettingsHook("", line, **more) for line in lines]


async def test_hooks_run_concurrently(tmp_path):
    """Each hook waits until the other one has started."""
    os.mkfifo(tmp_path / "pipe")
    both = shell("echo x > pipe; exit 2", "read x < pipe; exit 2")
    assert (await decide_with_hooks(tmp_path, *both)).allow is False


async def test_deny_takes_precedence_over_ask_and_ask_over_allow(tmp_path):
    hook_output = (
        '{{"hookSpecificOutput": {{"hookEventName": "PreToolUse", "permissionDecision": "{}"}}}}'
    )
    allow, ask, deny = (
        f"echo '{hook_output.format(decision)}'" for decision in ("allow", "ask", "deny")
    )
    assert (await decide_with_hooks(tmp_path, *shell(allow, ask, deny))).allow is False
    assert (await decide_with_hooks(tmp_path, *shell(allow, ask, "true"))).requires_prompt
    assert (await decide_with_hooks(tmp_path, *shell("true", allow))).allow is True
    assert await decide_with_hooks(tmp_path, *shell("true", "exit 1", "nosuch")) == HookDecision()
    assert await decide_with_hooks(tmp_path) == HookDecision()


async def test_hook_that_times_out_is_killed_with_its_descendants(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        line = "exec 3> pipe; (trap '' TERM; sleep 600) & sleep 600"
        assert await decide_with_hooks(tmp_path, *shell(line, timeout_s=0.5)) == HookDecision()
        with anyio.fail_after(SECONDS):
            await anyio.wait_readable(reader)  # the writing end is closed
        assert os.read(reader, 1) == b""
        assert (
            await decide_with_hooks(
                tmp_path, *shell("sleep 600", timeout_s=0.2, blocks_on_failure=True)
            )
        ).allow is False
    finally:
        os.close(reader)


async def test_hook_that_exceeds_the_maximum_timeout_denies_the_call(tmp_path, monkeypatch):
    monkeypatch.setattr(hook_runner, "MAX_HOOK_TIMEOUT_S", 0.2)
    assert (await decide_with_hooks(tmp_path, *shell("sleep 600", timeout_s=900.0))).allow is False


async def test_background_process_of_a_hook_is_not_awaited(tmp_path):
    assert (
        await decide_with_hooks(tmp_path, *shell(f"echo '{DENY}'; sleep 600 & exit 0"))
    ).allow is False


async def test_hook_that_does_not_read_large_input_is_not_an_error(tmp_path):
    large = {"command": "x" * 3_000_000}
    assert await decide_with_hooks(tmp_path, *shell("exit 0"), tool_input=large) == HookDecision()


async def test_hook_with_excessive_output_denies_the_call(tmp_path):
    assert (await decide_with_hooks(tmp_path, *shell("head -c 3000000 /dev/zero"))).allow is False
    hook_decision = await decide_with_hooks(
        tmp_path, *shell("head -c 3000000 /dev/zero >&2; echo the end >&2; exit 2")
    )
    assert (
        hook_decision.allow is False
        and len(hook_decision.reason) < 100_000
        and "the end" in hook_decision.reason
    )


async def test_hook_with_arguments_runs_without_a_shell(tmp_path):
    hook = SettingsHook("", "sh", ("-c", "echo $0 >&2; exit 2", "$HOME"))
    assert "]: $HOME" in (await decide_with_hooks(tmp_path, hook)).reason
    assert await decide_with_hooks(tmp_path, hook._replace(command="/nowhere/x")) == HookDecision()
    assert (
        await decide_with_hooks(
            tmp_path, hook._replace(command="/nowhere/x", blocks_on_failure=True)
        )
    ).allow is False


async def test_hook_is_killed_when_the_turn_is_cancelled(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(
                    decide_with_hooks, tmp_path, *shell("echo x > pipe; exec 3> pipe; sleep 600")
                )
                await anyio.wait_readable(reader)
                tasks.cancel_scope.cancel()
            while os.read(reader, 10):
                await anyio.wait_readable(reader)
    finally:
        os.close(reader)
