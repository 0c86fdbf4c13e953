"""The hook commands of Claude's settings files for an event, as real processes."""

import os

import anyio
import pytest
from turn_stage import build_session_state

from shim.conversation.drivers import event_hook_runner
from shim.conversation.drivers.event_hook_runner import EventHookRunner
from shim.core.claude.control import ControlSession
from shim.core.claude.hooks.callbacks import HookEvent
from shim.core.policy.settings_hooks import SettingsHook

SECONDS = 20.0
pytestmark = pytest.mark.anyio


class SilentOutput:
    async def write_lines(self, lines):
        pass


class HookSession:
    """A session with hook commands for the event Stop. The commands write to `pipe`."""

    def __init__(self, tmp_path, tasks, *commands, **fields):
        hooks = tuple(SettingsHook("", line, event="Stop", **fields) for line in commands)
        state = build_session_state(
            display_name="qwen", session_id="S", cwd=str(tmp_path), event_hooks=hooks
        )
        self.control = ControlSession(state, lambda: "id", lambda: "now")
        self.runner = EventHookRunner(
            self.control, SilentOutput(), tasks, dict(os.environ), str(tmp_path)
        )
        os.mkfifo(tmp_path / "pipe")
        self.pipe = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)

    async def run_event(self):
        self.control.hooks.call_hooks(HookEvent("Stop"))
        await self.runner.run_requested_commands()

    async def wait_for_starts(self, count):
        """Wait until `count` commands have written a byte to the pipe."""
        while count:
            await anyio.wait_readable(self.pipe)
            count -= len(os.read(self.pipe, count))


async def test_interrupt_ends_the_commands_of_all_events(tmp_path):
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            session = HookSession(tmp_path, tasks, "exec 3> pipe; printf x >&3; sleep 600")
            tasks.start_soon(session.run_event)
            await session.wait_for_starts(1)
            tasks.start_soon(session.run_event)
            await session.wait_for_starts(1)
            session.runner.cancel_running_commands()
    os.close(session.pipe)


async def test_number_of_commands_in_the_background_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(event_hook_runner, "MAX_BACKGROUND_COMMANDS", 1)
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            session = HookSession(
                tmp_path,
                tasks,
                "exec 3> pipe; printf x >&3; sleep 600",
                runs_in_background=True,
            )
            await session.run_event()
            await session.wait_for_starts(1)
            with anyio.move_on_after(0.5) as timeout:
                await session.run_event()
            assert timeout.cancelled_caught
            await session.wait_for_starts(1)
            tasks.cancel_scope.cancel()
    os.close(session.pipe)


async def test_background_command_that_ends_lets_another_start(tmp_path, monkeypatch):
    monkeypatch.setattr(event_hook_runner, "MAX_BACKGROUND_COMMANDS", 1)
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            session = HookSession(
                tmp_path,
                tasks,
                "exec 3> pipe; printf x >&3; read line < end",
                runs_in_background=True,
            )
            os.mkfifo(tmp_path / "end")
            for _ in range(2):
                await session.run_event()
                await session.wait_for_starts(1)
                (tmp_path / "end").open("w").close()
                while session.runner._background_count:
                    await anyio.sleep(0.01)
    os.close(session.pipe)
