"""The common part of the drivers: a read loop that yields to other tasks and that ends."""

import errno
import os
from types import SimpleNamespace

import anyio
import pytest
from box import TIMEOUT_S, parse_lines
from turn_stage import build_session_state

from shim.conversation.drivers.open_translation import create_standalone_child_stream
from shim.conversation.drivers.per_turn_driver import PerTurnDriver
from shim.conversation.drivers.persistent_driver import PersistentDriver
from shim.core.adapter.adapter import VendorShutdownConfig
from shim.core.adapter.commands import AskPermissionCommand, TurnStage
from shim.core.claude.control import ControlSession
from shim.core.claude.messages import UserMessage
from shim.core.claude.permissions import STREAM_CLOSED_TEXT, TURN_OVER_TEXT, PermissionRequest
from shim.core.turn.outcome import ChildExit
from tests.conversation.test_message_loop import FakeLauncher, FakeOutput

MANY = 1000
ADD = "mcp__calc__add"
LATE_BYTES = 8000  # replaces the driver's limit, which would take a second of blank lines


class Flood:
    """A child whose stdout always has meaningless data, until `enough`."""

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
    """A persistent child. It stores what it received."""

    child_exit = None

    def __init__(self):
        self.written_lines = []

    async def write_stdin(self, data):
        self.written_lines.append(data)


class DecisionInput:
    """Encodes a decision as its message."""

    def encode_permission_response(self, permission, decision):
        return f"{decision.allow} {decision.message}".encode()


def build_persistent_driver(tasks, paper):
    """Build a driver with a persistent child, and the frontend's side of the driver."""
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
    with anyio.fail_after(TIMEOUT_S):
        async with anyio.create_task_group() as tasks:
            driver, control = build_persistent_driver(tasks, paper)
            permission = PermissionRequest("r", "c", "Bash", {}, "bash", {})
            await driver.write_output_and_run_commands(
                b"", (TurnStage.FINISHED, AskPermissionCommand(permission))
            )
    assert driver._child.written_lines == [f"False {TURN_OVER_TEXT}".encode()]
    assert not control.has_undecided_requests and b"control_request" not in paper.written_bytes


@pytest.mark.anyio
async def test_in_process_call_is_denied_if_the_frontend_is_disconnected():
    """The relays of other calls are still running. Only the turn knows that the frontend is
    disconnected.
    """
    with anyio.fail_after(TIMEOUT_S):
        async with anyio.create_task_group() as tasks:
            driver, _ = build_persistent_driver(tasks, FakeOutput(is_disconnected=True))
            decision = await driver.decide_tool_call("mcp__calc__add", {"a": 1})
    assert (decision.allow, decision.message) == (False, STREAM_CLOSED_TEXT)
    assert not driver._permissions.call_decisions.is_pending("inside-1")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("tool_input", "call_id"), [({"a": 1}, "call_1"), ({"a": 2}, "call_2"), ({"a": 3}, "inside-1")]
)
async def test_in_process_call_is_prompted_under_the_id_of_the_call_with_its_arguments(
    tool_input, call_id
):
    output = FakeOutput()
    with anyio.fail_after(TIMEOUT_S):
        async with anyio.create_task_group() as tasks:
            driver, _ = build_persistent_driver(tasks, output)
            for number in (1, 2):
                driver.stream.turn.add_tool_call(f"call_{number}", ADD, {"a": number})
            tasks.start_soon(driver.decide_tool_call, ADD, tool_input)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    (line,) = parse_lines(output.written_bytes)
    request = line["request"]
    assert (request["input"], request["tool_use_id"]) == (tool_input, call_id)


@pytest.mark.anyio
async def test_in_process_call_belongs_to_a_call_without_arguments_if_no_other_matches():
    output = FakeOutput()
    with anyio.fail_after(TIMEOUT_S):
        async with anyio.create_task_group() as tasks:
            driver, _ = build_persistent_driver(tasks, output)
            driver.stream.turn.add_tool_call("call_1", ADD, {"a": 1})
            driver.stream.turn.add_tool_call("call_2", ADD, {})
            tasks.start_soon(driver.decide_tool_call, ADD, {"a": 2})
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    (line,) = parse_lines(output.written_bytes)
    assert line["request"]["tool_use_id"] == "call_2"


@pytest.mark.anyio
async def test_turn_whose_stream_cannot_be_opened_is_refused_with_the_cause():
    discarded, child = [], SimpleNamespace(process="a process")
    refused, stream = driver()
    refused.launcher.start_child = lambda prompt: child
    refused.launcher.discard_child = discarded.append
    results = [OSError(errno.EMFILE, os.strerror(errno.EMFILE)), stream]

    def open_child_stream(*_):
        result = results.pop(0)
        if isinstance(result, OSError):
            raise result
        return result

    refused.launcher.open_child_stream = open_child_stream
    await refused.run_turn(UserMessage("hi"))
    result_line = parse_lines(refused._output.written_bytes)[-2]
    assert (result_line["type"], result_line["is_error"]) == ("result", True)
    assert "Too many open files" in result_line["errors"][0]
    assert discarded == [child]
