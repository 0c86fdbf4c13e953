"""What the drivers have in common: a pump that lets others work, and that comes to an end."""

from types import SimpleNamespace

import anyio
import pytest
from box import PATIENCE
from support import build_session_state

from shim.conversation.drivers.open_translation import create_standalone_child_stream
from shim.conversation.drivers.per_turn_driver import PerTurnDriver
from shim.conversation.drivers.persistent_driver import PersistentDriver
from shim.core.adapter.adapter import VendorShutdownConfig
from shim.core.adapter.commands import AskPermissionCommand, TurnStage
from shim.core.claude.control import ControlSession
from shim.core.claude.permissions import STREAM_CLOSED_TEXT, TURN_OVER_TEXT, PermissionRequest
from shim.core.turn.outcome import ChildExit
from tests.conversation.test_message_loop import FakeLauncher, FakeOutput

MANY = 1000
LATE_BYTES = 8000  # in the place of the driver's, which would take a second of blank lines


class Flood:
    """A child whose stdout always has something that says nothing, until `enough`."""

    def __init__(self, enough):
        self.reads = 0
        self._enough = enough

    async def read_stdout(self):
        self.reads += 1
        return b"" if self._enough() or self.reads > MANY else b"\n" * (LATE_BYTES // 4)


def driver(dialect="claude"):
    launcher = FakeLauncher(
        create_standalone_child_stream("demo", dialect=dialect, stable_ids=True), 5.0
    )
    launcher.adapter = SimpleNamespace(name="demo", shutdown=VendorShutdownConfig())
    return PerTurnDriver(launcher, FakeOutput()), launcher.turn_lifecycle.open_child_stream(None)


@pytest.mark.anyio
async def test_blank_output_does_not_block_other_tasks():
    pumping, stream = driver()
    received_event = anyio.Event()
    child = Flood(received_event.is_set)

    async def hear():
        received_event.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hear)
        await pumping._read_turn_output(child, stream)
    assert child.reads < MANY


@pytest.mark.anyio
async def test_output_after_the_deadline_is_read_up_to_a_limit(monkeypatch):
    monkeypatch.setattr("shim.conversation.drivers.driver.MAX_LATE_BYTES", LATE_BYTES)
    pumping, stream = driver()
    pumping._deadlines.shorten_exit_deadline(0)
    child = Flood(lambda: False)
    assert await pumping._read_turn_output(child, stream) is False
    assert child.reads == 5


@pytest.mark.anyio
async def test_cut_message_is_retried_only_once():
    pumping, stream = driver("yume")
    pumping.launcher.recorder, pumping.launcher.turn_lifecycle.retries_interrupted_streams = (
        None,
        True,
    )
    cut = []
    for _ in range(2):
        stream.turn.add_text("half")
        cut.append(pumping._retry_if_cut(stream, ChildExit(code=0), ""))
    assert cut == [True, False]


class Listener:
    """A child that listens: what it was told."""

    child_exit = None

    def __init__(self):
        self.written_lines = []

    async def write_stdin(self, data):
        self.written_lines.append(data)


class DecisionInput:
    """Tells a decision as its message."""

    def encode_permission_response(self, permission, decision):
        return f"{decision.allow} {decision.message}".encode()


def build_persistent_driver(tasks, paper):
    """A driver with a child that stays, and the frontend's side of it."""
    launcher = FakeLauncher(create_standalone_child_stream("demo", stable_ids=True), 5.0)
    launcher.adapter = SimpleNamespace(
        name="demo",
        shutdown=VendorShutdownConfig(),
        child_input_ref="a:b",
        create_child_input=DecisionInput,
    )
    launcher.policy = SimpleNamespace(hooks=())
    control = ControlSession(
        build_session_state(display_name="demo", session_id="s", answers_prompts=True),
        lambda: "id",
        lambda: "now",
    )
    made = PersistentDriver(launcher, paper, control, tasks)
    made.stream, made._child = launcher.turn_lifecycle.open_child_stream(None), Listener()
    return made, control


@pytest.mark.anyio
async def test_permission_request_after_the_result_is_denied_without_a_prompt():
    """S16b: nothing follows an error result."""
    paper = FakeOutput()
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            driver, control = build_persistent_driver(tasks, paper)
            permission = PermissionRequest("r", "c", "Bash", {}, "bash", {})
            await driver.write_output_and_run_commands(
                b"", (TurnStage.FINISHED, AskPermissionCommand(permission))
            )
    assert driver._child.written_lines == [f"False {TURN_OVER_TEXT}".encode()]
    assert (
        not control.has_pending_permission_requests
        and b"control_request" not in paper.written_bytes
    )


@pytest.mark.anyio
async def test_in_process_call_is_denied_if_the_frontend_is_disconnected():
    """The relays of other calls live on: only the turn says that nobody is there."""
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            driver, _ = build_persistent_driver(tasks, FakeOutput(is_disconnected=True))
            decision = await driver.decide_tool_call("mcp__calc__add", {"a": 1})
    assert (decision.allow, decision.message) == (False, STREAM_CLOSED_TEXT)
    assert not driver._decided_calls.is_pending("inside-1")
