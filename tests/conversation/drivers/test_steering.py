"""A message while a turn runs: said into it where the vendor takes it there, kept for a turn of its
own elsewhere.
"""

import json
from types import SimpleNamespace

import anyio
import box
import pytest
from box import PATIENCE, ndjson
from support import facts_of

from shim.conversation.drivers.child_per_conversation import PersistentDriver
from shim.conversation.drivers.open_translation import open_translation
from shim.core.adapter.vendor import ShutdownConfig
from shim.core.claude.control import ControlSession
from shim.core.claude.hooks.callbacks import HookCallbacks
from shim.core.claude.messages import TEXT_ONLY_KINDS, UserMessage
from tests.conversation.test_message_loop import Launched, Paper

START, TEXT, END = (
    ndjson(event).encode()
    for event in (box.START | {"session": "s1"}, box.text("I am "), {"type": "end"})
)
REPLY = ndjson({"type": "reply", "usage": None, "reason": "tool_use", "cost": 0}).encode()
CALL = ndjson({"type": "call", "id": "c1", "name": "Bash", "input": {"command": "ls"}}).encode()
RESULT = ndjson({"type": "result", "id": "c1", "output": "x"}).encode()


class Speech:
    """Takes a message into a turn while it is `able`; `refused` of the last ones the vendor did not
    take.
    """

    usable = True
    takes = TEXT_ONLY_KINDS
    able = True
    refused = 0

    def steer(self, message):
        return f"steer {message.text}".encode() if self.able else None

    def untaken(self):
        return self.refused


class History(Paper):
    """An output that keeps the prompts of the history."""

    def __init__(self):
        super().__init__()
        self.prompts = []

    def asked(self, message):
        self.prompts.append(message)


class Listener:
    exit = None

    def __init__(self):
        self.told = []

    async def say(self, data):
        self.told.append(data.decode())


class Steered:
    """A driver in the middle of a turn, and its frontend."""

    def __init__(self, tasks, said=(START, TEXT, CALL), *, echo=True):
        self.launcher, self.paper = Launched(open_translation("demo", stable=True), 5.0), History()
        self.launcher.vendor = SimpleNamespace(
            name="demo", exit=ShutdownConfig(), speaks="a:b", speech=Speech
        )
        self.launcher.asked = lambda prompt: f"{prompt}!"
        facts = facts_of(vendor="demo", session_id="s", line_bytes=10_000)
        facts.hooks = HookCallbacks(
            {"UserPromptSubmit": [{"matcher": None, "hookCallbackIds": ["h"]}]}
        )
        self.control = ControlSession(facts, lambda: "id", lambda: "now")
        self.driver = PersistentDriver(self.launcher, self.paper, self.control, tasks)
        self.driver.stream, self.driver._child = self.launcher.turns.pump(None), Listener()
        self.driver.stream.answer_message(
            UserMessage("first", raw_message={"content": "first"}), echo=echo, hooks=False
        )
        self.driver._turn_running = True
        self.speech, self.said = self.driver._child_input, said
        self.control.is_running = True

    async def begin(self):
        for line in self.said:
            await self.driver.deliver(*self.driver.stream.feed(line))
        return self

    async def hears(self, text, **more):
        event = {"type": "user", "message": {"role": "user", "content": text}, **more}
        wishes = self.control.receive_line(json.dumps(event).encode())
        await self.driver.send_steering_messages()
        return wishes

    @property
    def told(self):
        return self.driver._child.told

    @property
    def waiting(self):
        return [message.text for message in self.control.queued_messages]

    @property
    def replayed(self):
        lines = map(json.loads, self.paper.said.splitlines())
        return [
            (line["uuid"], line["message"]["content"]) for line in lines if line.get("isReplay")
        ]


@pytest.fixture
async def steered():
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            yield await Steered(tasks).begin()


@pytest.mark.anyio
async def test_a_message_is_said_into_the_turn_and_said_again_to_the_frontend(steered):
    await steered.hears("second", uuid="u2")
    assert steered.told == ["steer second!"] and steered.waiting == []
    assert steered.replayed[1:] == [] and steered.paper.prompts == []
    for line in (REPLY, RESULT, TEXT):
        await steered.driver.deliver(*steered.driver.stream.feed(line))
    assert steered.replayed[1:] == [("u2", "second")]
    assert [message.text for message in steered.paper.prompts] == ["second"], (
        "it stands in the history too"
    )
    assert b'"hook_event_name":"UserPromptSubmit"' in steered.paper.said, (
        "and its hooks are run, as its own turn would"
    )
    kinds = [line["type"] for line in map(json.loads, steered.paper.said.splitlines())]
    assert kinds[-3:] == ["user", "control_request", "user"], (
        "between the result and the next reply"
    )


@pytest.mark.anyio
async def test_a_message_waits_until_the_vendor_takes_it_and_those_behind_it_too(steered):
    steered.speech.able = False
    await steered.hears("second")
    assert steered.told == [] and steered.waiting == ["second"]
    steered.speech.able = True
    await steered.driver.deliver(*steered.driver.stream.feed(TEXT))
    await steered.hears("third")
    assert steered.told == ["steer second!", "steer third!"] and steered.waiting == []


@pytest.mark.anyio
async def test_a_message_for_later_waits_for_the_end_of_the_turn(steered):
    await steered.hears("second", priority="later")
    await steered.hears("third", priority="next")
    assert steered.told == ["steer third!"] and steered.waiting == ["second"]


@pytest.mark.anyio
async def test_a_message_for_now_ends_the_turn_and_is_the_next(steered):
    await steered.hears("second", priority="later")
    wishes = await steered.hears("third", priority="now")
    assert [type(wish).__name__ for wish in wishes] == ["Interrupt"]
    assert steered.told == [] and steered.waiting == ["third", "second"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "said", [(), (START,), (START, TEXT), (START, TEXT, CALL, REPLY, RESULT), (START, TEXT, END)]
)
async def test_nothing_is_said_into_a_turn_in_which_no_call_runs(said):
    """As with the real claude: the model hears it with what a call returned, and its last words end
    its turn.
    """
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            steered = await Steered(tasks, said).begin()
            await steered.hears("second")
    assert steered.told == [] and steered.waiting == ["second"]


@pytest.mark.anyio
async def test_one_turn_takes_so_many_messages_and_the_others_wait(steered, monkeypatch):
    monkeypatch.setattr("shim.core.adapter.pump.MAX_STEERED_MESSAGES", 2)
    for text in ("second", "third", "fourth"):
        await steered.hears(text)
    assert steered.told == ["steer second!", "steer third!"] and steered.waiting == ["fourth"]


@pytest.mark.anyio
async def test_one_turn_takes_so_many_bytes_of_messages_and_the_others_wait(steered, monkeypatch):
    monkeypatch.setattr("shim.core.adapter.pump.MAX_LINE_BYTES", 1000)
    for text in ("second", "x" * 1000, "fourth"):
        await steered.hears(text)
    assert len(steered.told) == 2 and steered.waiting == ["fourth"]


@pytest.mark.anyio
async def test_nothing_is_said_into_a_turn_that_was_interrupted(steered):
    steered.driver._interrupted = True
    await steered.hears("second")
    assert steered.told == [] and steered.waiting == ["second"]


@pytest.mark.anyio
async def test_what_no_reply_has_followed_when_the_turn_is_interrupted_gets_a_turn_of_its_own(
    steered,
):
    await steered.hears("second")
    for line in (REPLY, RESULT, TEXT):
        await steered.driver.deliver(*steered.driver.stream.feed(line))
    await steered.driver.deliver(*steered.driver.stream.feed(CALL.replace(b"c1", b"c2")))
    await steered.hears("third")
    untaken = steered.driver._list_unread_messages
    assert untaken(steered.driver.stream) == []
    steered.driver._interrupted = True
    assert [message.text for message in untaken(steered.driver.stream)] == ["third"]
    steered.speech.refused = 2
    assert [message.text for message in untaken(steered.driver.stream)] == ["second", "third"]


@pytest.mark.anyio
async def test_what_the_vendor_did_not_take_gets_turns_of_its_own_in_order(steered):
    for text in ("second", "third", "fourth"):
        await steered.hears(text)
    await steered.hears("fifth", priority="later")
    steered.driver._requeue_messages(steered.driver.stream.steered_messages[-2:])
    assert steered.waiting == ["third", "fourth", "fifth"]
