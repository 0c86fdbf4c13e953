"""A message during a turn is sent into the turn if the vendor supports it. Otherwise it waits for a
turn of its own.
"""

import json
from types import SimpleNamespace

import anyio
import box
import pytest
from box import TIMEOUT_S, format_ndjson
from turn_stage import build_session_state

from shim.conversation.drivers.open_translation import create_standalone_child_stream
from shim.conversation.drivers.persistent_driver import PersistentDriver, TurnPhase
from shim.core.adapter.adapter import VendorShutdownConfig
from shim.core.claude.control import ControlSession
from shim.core.claude.hooks.callbacks import HookCallbacks
from shim.core.claude.messages import TEXT_ONLY_KINDS, UserMessage
from tests.conversation.test_message_loop import FakeLauncher, FakeOutput

START, TEXT, END = (
    format_ndjson(event).encode()
    for event in (box.START | {"session": "s1"}, box.build_text_event("I am "), {"type": "end"})
)
REPLY = format_ndjson({"type": "reply", "usage": None, "reason": "tool_use", "cost": 0}).encode()
CALL = format_ndjson(
    {"type": "call", "id": "c1", "name": "Bash", "input": {"command": "ls"}}
).encode()
RESULT = format_ndjson({"type": "result", "id": "c1", "output": "x"}).encode()


class SteeringInput:
    """Accepts a message into a turn while `able` is set. The last `refused` messages were not
    accepted.
    """

    can_accept_prompts = True
    accepted_block_kinds = TEXT_ONLY_KINDS
    able = True
    refused = 0

    def encode_steering_message(self, message):
        return f"steer {message.text}".encode() if self.able else None

    def pop_undelivered_message_count(self):
        return self.refused


class History(FakeOutput):
    """An output that stores the prompts of the history."""

    def __init__(self):
        super().__init__()
        self.prompts = []

    def write_prompt_to_transcript(self, message):
        self.prompts.append(message)


class Listener:
    child_exit = None

    def __init__(self):
        self.written_lines = []

    async def write_stdin(self, data):
        self.written_lines.append(data.decode())


class RunningTurn:
    """A driver in the middle of a turn, and its frontend."""

    def __init__(self, tasks, lines=(START, TEXT, CALL), *, echo=True):
        self.launcher, self.paper = (
            FakeLauncher(create_standalone_child_stream("demo", stable_ids=True), 5.0),
            History(),
        )
        self.launcher.adapter = SimpleNamespace(
            name="demo",
            shutdown=VendorShutdownConfig(),
            child_input_ref="a:b",
            create_child_input=SteeringInput,
        )
        self.launcher.build_vendor_prompt = lambda prompt: f"{prompt}!"
        state = build_session_state(display_name="demo", session_id="s", max_line_bytes=10_000)
        state.hooks = HookCallbacks(
            {"UserPromptSubmit": [{"matcher": None, "hookCallbackIds": ["h"]}]}
        )
        self.control = ControlSession(state, lambda: "id", lambda: "now")
        self.driver = PersistentDriver(self.launcher, self.paper, self.control, tasks)
        self.driver.stream, self.driver._child = (
            self.launcher.turn_lifecycle.open_child_stream(None),
            Listener(),
        )
        self.driver.stream.set_user_message(
            UserMessage("first", raw_message={"content": "first"}),
            replays_message=echo,
            has_hooks=False,
        )
        self.driver._phase = TurnPhase.READING
        self.child_input, self.lines = self.driver._child_input, lines
        self.control.is_running = True

    async def begin(self):
        for line in self.lines:
            await self.driver.write_output_and_run_commands(*self.driver.stream.feed(line))
        return self

    async def hears(self, text, **more):
        event = {"type": "user", "message": {"role": "user", "content": text}, **more}
        wishes = self.control.receive_line(json.dumps(event).encode())
        await self.driver.send_steering_messages()
        return wishes

    @property
    def sent_lines(self):
        return self.driver._child.written_lines

    @property
    def waiting(self):
        return [message.text for message in self.control.queued_messages]

    @property
    def replayed(self):
        lines = map(json.loads, self.paper.written_bytes.splitlines())
        return [
            (line["uuid"], line["message"]["content"]) for line in lines if line.get("isReplay")
        ]


@pytest.fixture
async def running_turn():
    with anyio.fail_after(TIMEOUT_S):
        async with anyio.create_task_group() as tasks:
            yield await RunningTurn(tasks).begin()


@pytest.mark.anyio
async def test_steering_message_is_sent_to_the_vendor_and_replayed_to_the_frontend(running_turn):
    await running_turn.hears("second", uuid="u2")
    assert running_turn.sent_lines == ["steer second!"] and running_turn.waiting == []
    assert running_turn.replayed[1:] == [] and running_turn.paper.prompts == []
    for line in (REPLY, RESULT, TEXT):
        await running_turn.driver.write_output_and_run_commands(
            *running_turn.driver.stream.feed(line)
        )
    assert running_turn.replayed[1:] == [("u2", "second")]
    assert [message.text for message in running_turn.paper.prompts] == ["second"], (
        "it stands in the history too"
    )
    assert b'"hook_event_name":"UserPromptSubmit"' in running_turn.paper.written_bytes, (
        "and its hooks are run, as its own turn would"
    )
    kinds = [
        line["type"] for line in map(json.loads, running_turn.paper.written_bytes.splitlines())
    ]
    assert kinds[-3:] == ["user", "control_request", "user"], (
        "between the result and the next reply"
    )


@pytest.mark.anyio
async def test_steering_messages_are_queued_until_the_vendor_accepts_them(running_turn):
    running_turn.child_input.able = False
    await running_turn.hears("second")
    assert running_turn.sent_lines == [] and running_turn.waiting == ["second"]
    running_turn.child_input.able = True
    await running_turn.driver.write_output_and_run_commands(*running_turn.driver.stream.feed(TEXT))
    await running_turn.hears("third")
    assert (
        running_turn.sent_lines == ["steer second!", "steer third!"] and running_turn.waiting == []
    )


@pytest.mark.anyio
async def test_later_priority_message_waits_for_the_end_of_the_turn(running_turn):
    await running_turn.hears("second", priority="later")
    await running_turn.hears("third", priority="next")
    assert running_turn.sent_lines == ["steer third!"] and running_turn.waiting == ["second"]


@pytest.mark.anyio
async def test_now_priority_message_interrupts_the_turn_and_is_first_in_the_queue(running_turn):
    await running_turn.hears("second", priority="later")
    wishes = await running_turn.hears("third", priority="now")
    assert [type(wish).__name__ for wish in wishes] == ["InterruptRequested"]
    assert running_turn.sent_lines == [] and running_turn.waiting == ["third", "second"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "lines", [(), (START,), (START, TEXT), (START, TEXT, CALL, REPLY, RESULT), (START, TEXT, END)]
)
async def test_message_is_queued_if_no_tool_call_is_running(lines):
    """As with the real claude, the model receives the message with the next tool result. The
    model's final text ends its turn.
    """
    with anyio.fail_after(TIMEOUT_S):
        async with anyio.create_task_group() as tasks:
            running_turn = await RunningTurn(tasks, lines).begin()
            await running_turn.hears("second")
    assert running_turn.sent_lines == [] and running_turn.waiting == ["second"]


@pytest.mark.anyio
async def test_steering_messages_beyond_the_count_limit_are_queued(running_turn, monkeypatch):
    monkeypatch.setattr("shim.core.adapter.child_stream.MAX_STEERING_MESSAGES", 2)
    for text in ("second", "third", "fourth"):
        await running_turn.hears(text)
    assert running_turn.sent_lines == [
        "steer second!",
        "steer third!",
    ] and running_turn.waiting == ["fourth"]


@pytest.mark.anyio
async def test_steering_messages_beyond_the_byte_limit_are_queued(running_turn, monkeypatch):
    monkeypatch.setattr("shim.core.adapter.child_stream.MAX_LINE_BYTES", 1000)
    for text in ("second", "x" * 1000, "fourth"):
        await running_turn.hears(text)
    assert len(running_turn.sent_lines) == 2 and running_turn.waiting == ["fourth"]


@pytest.mark.anyio
async def test_message_is_queued_after_the_turn_is_interrupted(running_turn):
    running_turn.driver._interrupted = True
    await running_turn.hears("second")
    assert running_turn.sent_lines == [] and running_turn.waiting == ["second"]


@pytest.mark.anyio
async def test_unread_steering_messages_are_listed_after_an_interrupt(
    running_turn,
):
    await running_turn.hears("second")
    for line in (REPLY, RESULT, TEXT):
        await running_turn.driver.write_output_and_run_commands(
            *running_turn.driver.stream.feed(line)
        )
    await running_turn.driver.write_output_and_run_commands(
        *running_turn.driver.stream.feed(CALL.replace(b"c1", b"c2"))
    )
    await running_turn.hears("third")
    untaken = running_turn.driver._list_unread_messages
    assert untaken(running_turn.driver.stream) == []
    running_turn.driver._interrupted = True
    assert [message.text for message in untaken(running_turn.driver.stream)] == ["third"]
    running_turn.child_input.refused = 2
    assert [message.text for message in untaken(running_turn.driver.stream)] == ["second", "third"]


@pytest.mark.anyio
async def test_unread_steering_messages_are_requeued_in_order(running_turn):
    for text in ("second", "third", "fourth"):
        await running_turn.hears(text)
    await running_turn.hears("fifth", priority="later")
    running_turn.driver._requeue_messages(
        running_turn.driver.stream.turn.user_messages.steering_messages[-2:]
    )
    assert running_turn.waiting == ["third", "fourth", "fifth"]
