"""A message during a turn. The frontend sees the same as with the real claude, whose row is in the
same table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from frontend import DropInFrontend
from model_scripts import REPLY, REPLY_AFTER_TOOL, ScriptedServer
from sandbox import Line
from test_acp import FrontendConversation
from vendor_setups import CLAUDE_ITSELF, CODEX, PI

pytestmark = pytest.mark.e2e

RUNNING = "[[shell]] sleep 6"  # long enough for another message on a busy machine
FIRST, SECOND, THIRD = (f"{digit * 8}-1111-4111-8111-111111111111" for digit in "123")
steering = pytest.mark.parametrize(
    "vendor",
    [PI, *(pytest.param(vendor, marks=pytest.mark.full) for vendor in (CODEX, CLAUDE_ITSELF))],
    ids=str,
    indirect=True,
)


@pytest.fixture
def conversation(frontend: DropInFrontend) -> FrontendConversation:
    """Start a conversation in whose turn a command runs."""
    # Otherwise the real claude lets root bypass nothing.
    frontend.environment = {**frontend.environment, "IS_SANDBOX": "1"}
    new_conversation = FrontendConversation(
        frontend, "--permission-mode", "bypassPermissions", "--replay-user-messages"
    )
    say(new_conversation, RUNNING, FIRST)
    while not any(
        block["type"] == "tool_use"
        for block in new_conversation.until("assistant")["message"]["content"]
    ):
        pass
    return new_conversation


def say(conversation: FrontendConversation, text: str, uuid: str, **more: str) -> None:
    message = {"role": "user", "content": text}
    conversation.process.send({"type": "user", "message": message, "uuid": uuid, **more})


def summarize_lines(lines: list[Line]) -> Iterator[str]:
    """Yield what a frontend shows of the lines, in short form."""
    for line in lines:
        if line["type"] in ("assistant", "user") and not line.get("isReplay"):
            yield from (block["type"] for block in line["message"]["content"])
        elif line["type"] in ("result", "user"):
            yield line.get("uuid", "") if line["type"] == "user" else line["subtype"]


@steering
def test_message_during_a_call_changes_the_turn_without_a_separate_result(
    conversation: FrontendConversation, model: ScriptedServer
) -> None:
    say(conversation, "and be brief", SECOND)
    assert conversation.until("result")["result"] == REPLY_AFTER_TOOL
    assert list(summarize_lines(conversation.lines))[-4:] == [
        "tool_result",
        SECOND,
        "text",
        "success",
    ]
    assert "and be brief" in json.dumps(model.requests[-1].body)
    say(conversation, "[[text]] next", THIRD)
    assert conversation.until("result")["result"] == REPLY, "there was no result between them"


@steering
def test_command_during_a_call_is_answered_after_the_turn(
    conversation: FrontendConversation, model: ScriptedServer
) -> None:
    say(conversation, "/cost", SECOND)
    assert conversation.until("result")["result"] == REPLY_AFTER_TOOL
    assert conversation.until("result")["local_command"] == "cost"
    assert "/cost" not in json.dumps([request.body for request in model.requests])


@pytest.mark.full
@steering
def test_message_with_priority_later_gets_a_separate_turn(
    conversation: FrontendConversation,
) -> None:
    say(conversation, "[[text]] and be brief", SECOND, priority="later")
    assert conversation.until("result")["result"] == REPLY_AFTER_TOOL
    assert conversation.until("result")["result"] == REPLY
    assert list(summarize_lines(conversation.lines))[-3:] == [SECOND, "text", "success"]


@pytest.mark.full
@steering
def test_message_pending_at_an_interrupt_gets_a_separate_turn(
    conversation: FrontendConversation,
) -> None:
    say(conversation, "[[text]] and be brief", SECOND)
    conversation.order(subtype="interrupt")
    assert conversation.until("result")["subtype"] == "error_during_execution"
    assert conversation.until("result")["result"] == REPLY
    assert list(summarize_lines(conversation.lines)).count(SECOND) == 1
