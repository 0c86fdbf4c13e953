"""Agents of the Agent Client Protocol that are built with its official packages, started by the
drop-in.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from box import CONVERSE, Box, Running
from jsonschema import Draft202012Validator
from programs import find_node, install_npm_package
from sandbox import Line

from tests.conversation.test_conversation import request as control
from tests.conversation.test_conversation import results, user
from tests.conversation.test_persistent_driver import ASKING, answer

pytestmark = pytest.mark.e2e
schema = pytest.importorskip("acp.schema")

PEERS = Path(__file__).with_name("peers")
DENIAL_MESSAGE = "rather not"
PROFILE = """
schema = 1
id = "peer"
unattended = true
listed = ["Bash"]

[launch]
command = ["peer"]
argv = []
prompt = {{ via = "stdin" }}

[launch.permission_args]
default = []

[acp]
argv = []
permission_args = {{ default = [], plan = [], bypassPermissions = [] }}
modes = {{ default = "build", plan = "plan" }}
tool_name = "title"
asks = ["Bash"]
draft = {draft}

[tools]
bash = {{ name = "Bash" }}

[stream]
text = "delta"
end = {{ ok_exit = [0], result = "synthesize" }}

[[event]]
match = {{ type = "text" }}
emit = "text"
text = "text"
"""
StartAgent = Callable[..., Any]


@pytest.fixture
def peer(box: Box) -> StartAgent:
    """Return a function that starts a conversation with the agent of the Python package."""

    @contextmanager
    def start(*flags: str, draft: bool = False, program: str = "") -> Iterator[Running]:
        folder = box.config.parent / "vendors"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "peer.toml").write_text(PROFILE.format(draft=str(draft).lower()))
        child = box.write_program(
            "peer", f'exec {program or f"{sys.executable} {PEERS}/agent.py"} "$@"\n'
        )
        environment = {
            "SHIM_VENDOR": "peer",
            "SHIM_BIN": child,
            "AGENT_LOG": str(box.path / "heard"),
        }
        with box.start_claude(
            *CONVERSE, *flags, stdin=subprocess.PIPE, environment=environment
        ) as running:
            yield running

    return start


def read_received_messages(box: Box) -> list[Line]:
    return [json.loads(line) for line in (box.path / "heard").read_text().splitlines()]


def run_turn(running: Running, *lines: str) -> Any:
    running.send_lines(user("\n".join(lines)))
    running.read_until(b'"type":"result"')
    return running.end_input()


def decide(running: Running, allow: bool) -> Line:
    request_line: Line = running.read_line_containing(b'"subtype":"can_use_tool"')
    body = {"behavior": "allow", "updatedInput": request_line["request"]["input"]}
    running.send_lines(
        answer(
            request_line["request_id"],
            **(body if allow else {"behavior": "deny", "message": DENIAL_MESSAGE}),
        )
    )
    return request_line["request"]


def check_reply(box: Box, done: Any, next_reply: str, *, allow: bool) -> None:
    """Check the agent's reply to a decision. After a denial, the agent receives the message in
    another prompt of the turn, and gives its next reply.
    """
    if allow:
        assert done.result["result"] == "It ran."
        return
    assert b"Then not." in done.stdout
    assert done.result["result"] == next_reply
    assert DENIAL_MESSAGE in (box.path / "heard").read_text()


def check_interrupt(start: StartAgent) -> None:
    """Check that an interrupt ends the turn, and that the agent still answers the next message."""
    with start(*ASKING, "--include-partial-messages") as running:
        running.send_lines(user("[[slow]]"))
        running.read_until(b"Hold on")
        running.send_lines(control("i1", subtype="interrupt"))
        running.read_until(b'"type":"result"')
        running.send_lines(user("[[memory]]"))
        running.read_until(b"[[slow]] / [[memory]]")
        done = running.end_input()
    assert [line["subtype"] for line in results(done)] == ["error_during_execution", "success"]


# -- version 1, the Python package -----------------------------------------------------------------


def test_text_thinking_and_plan_are_translated(peer: StartAgent) -> None:
    with peer(*ASKING) as running:
        done = run_turn(running, "[[think]]", "[[plan]]", "[[text]]")
    blocks = [
        block
        for line in done.lines
        if line["type"] == "assistant"
        for block in line["message"]["content"]
    ]
    assert [block["type"] for block in blocks] == ["thinking", "tool_use", "text"]
    assert blocks[1]["input"] == {
        "todos": [{"content": "look", "status": "in_progress", "activeForm": "look"}]
    }
    assert done.result["result"] == "Hello."


@pytest.mark.parametrize("allow", [True, False])
def test_command_runs_only_if_allowed(box: Box, peer: StartAgent, allow: bool) -> None:
    with peer(*ASKING) as running:
        running.send_lines(user("[[shell]] touch made"))
        assert decide(running, allow)["input"] == {"command": "touch made"}
        running.read_until(b'"type":"result"')
        done = running.end_input()
    assert (box.cwd / "made").exists() is allow
    check_reply(box, done, "Hello.Hello.", allow=allow)


def test_agent_answers_a_message_after_an_interrupt(peer: StartAgent) -> None:
    check_interrupt(peer)


def test_permission_mode_is_set_in_the_session(peer: StartAgent) -> None:
    with peer(*ASKING, "--permission-mode", "plan") as running:
        done = run_turn(running, "[[mode]]")
    assert done.result["result"] == "I plan."


def test_file_request_of_the_agent_is_refused(peer: StartAgent) -> None:
    with peer(*ASKING) as running:
        done = run_turn(running, "[[file]]")
    assert done.result["result"].startswith("refused: ")


ANSWERS = {"How shall it be?\nWhich colour?": "blue", "Loud?": "No", "Which name?": "mine"}


def test_form_answers_are_sent_to_the_agent(box: Box, peer: StartAgent) -> None:
    with peer(*ASKING) as running:
        running.send_lines(user("[[ask]]"))
        request_line = running.read_line_containing(b'"subtype":"can_use_tool"')
        form_input = request_line["request"]["input"]
        assert [question["question"] for question in form_input["questions"]] == list(ANSWERS)
        running.send_lines(
            answer(
                request_line["request_id"],
                behavior="allow",
                updatedInput={**form_input, "answers": ANSWERS},
            )
        )
        running.read_until(b'"type":"result"')
        done = running.end_input()
    assert done.result["result"] == "accept: {'colour': 'blue', 'loud': False, 'name': 'mine'}"
    response = next(
        line["result"] for line in read_received_messages(box) if "action" in line.get("result", {})
    )
    schema.AcceptElicitationResponse.model_validate(response)


def test_agent_cannot_send_a_form_if_the_frontend_answers_no_prompts(peer: StartAgent) -> None:
    with peer() as running:
        assert run_turn(running, "[[ask]]").result["result"] == "nobody to ask"


MODELS = {
    "initialize": "InitializeRequest",
    "session/new": "NewSessionRequest",
    "session/prompt": "PromptRequest",
    "session/cancel": "CancelNotification",
    "session/set_mode": "SetSessionModeRequest",
}


def test_messages_to_the_agent_match_the_schema(box: Box, peer: StartAgent) -> None:
    with peer(*ASKING, "--permission-mode", "plan", "--include-partial-messages") as running:
        running.send_lines(user("[[shell]] touch made"))  # plan mode does not allow it
        running.read_until(b'"type":"result"')
        running.send_lines(user("[[slow]]"))
        running.read_until(b"Hold on")
        running.send_lines(control("i1", subtype="interrupt"))
        running.read_until(b'"terminal_reason":"aborted')
        running.end_input()
    lines = read_received_messages(box)
    assert {line["method"] for line in lines if "method" in line} == MODELS.keys()
    for line in lines:
        name = MODELS[line["method"]] if "method" in line else "RequestPermissionResponse"
        body = line["params"] if "method" in line else line["result"]
        read = getattr(schema, name).model_validate(body)
        assert read.model_dump(mode="json", by_alias=True, exclude_unset=True) == body


# -- the draft of version 2, the TypeScript SDK ----------------------------------------------------


@pytest.fixture
def second(peer: StartAgent) -> StartAgent:
    """Return a function that starts a conversation with the agent of the TypeScript SDK, which is
    offered version 2.
    """
    packages = install_npm_package("@agentclientprotocol/sdk") / "node_modules"
    program = f"env SDK={packages.parent} {find_node(24)} {PEERS}/agent.mjs"
    return lambda *flags: peer(*flags, draft=True, program=program)


def test_v2_turn_ends_with_its_state(second: StartAgent) -> None:
    with second(*ASKING) as running:
        running.send_lines(user("[[think]]\n[[twice]]"))
        running.read_until(b'"type":"result"')
        running.send_lines(user("[[memory]]"))
        running.read_until(b"[[twice]] / [[memory]]")
        done = running.end_input()
    assert [line["subtype"] for line in results(done)] == ["success", "success"]
    assert results(done)[0]["result"] == "Hello."


@pytest.mark.parametrize("allow", [True, False])
def test_v2_command_runs_only_if_allowed(box: Box, second: StartAgent, allow: bool) -> None:
    with second(*ASKING) as running:
        running.send_lines(user("[[shell]] echo yes | tee made"))
        tool_request = decide(running, allow)
        running.read_until(b'"type":"result"')
        done = running.end_input()
    assert (tool_request["tool_name"], tool_request["input"]["command"]) == (
        "Bash",
        "echo yes | tee made",
    )
    assert (box.cwd / "made").exists() is allow
    check_reply(box, done, "Hello.", allow=allow)
    assert (b'"content":"yes"' in done.stdout) is allow


@pytest.mark.full
def test_v2_agent_answers_a_message_after_an_interrupt(
    second: StartAgent,
) -> None:
    check_interrupt(second)


def test_messages_to_a_v2_agent_match_the_schema(box: Box, second: StartAgent) -> None:
    with second(*ASKING, "--permission-mode", "plan", "--include-partial-messages") as running:
        running.send_lines(user("[[mode]]\n[[shell]] touch made"))
        assert running.read_line_containing(b'"type":"result"')["result"] == "Then not."
        running.send_lines(user("[[slow]]"))
        running.read_until(b"Hold on")
        running.send_lines(control("i1", subtype="interrupt"))
        running.read_until(b'"terminal_reason":"aborted')
        done = running.end_input()
    assert b"I plan." in done.stdout
    document = json.loads((install_npm_package("@agentclientprotocol/sdk") / SCHEMA).read_text())
    lines = read_received_messages(box)
    assert {line["method"] for line in lines if "method" in line} == SECOND.keys()
    for line in lines:
        name = SECOND[line["method"]] if "method" in line else "RequestPermissionResponse"
        body = line["params"] if "method" in line else line["result"]
        Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": document["$defs"]}).validate(body)


SCHEMA = "node_modules/@agentclientprotocol/sdk/schema/v2/schema.json"
SECOND = {
    "initialize": "InitializeRequest",
    "session/new": "NewSessionRequest",
    "session/prompt": "PromptRequest",
    "session/cancel": "CancelSessionNotification",
    "session/set_config_option": "SetSessionConfigOptionRequest",
}
