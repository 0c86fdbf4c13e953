"""Claude's commands in a conversation over real programs. The real claude is the control."""

from __future__ import annotations

import json

import pytest
from clis import BARE, Cli
from model_scripts import REPLY, ScriptedServer
from sandbox import Line, LineProcess, Sandbox
from vendor_setups import CODEX, COPILOT, GEMINI, KIMI, KIMI_CODE, OPENCODE, PI, QWEN

pytestmark = pytest.mark.e2e

FLAGS = (
    *("-p", "--input-format", "stream-json"),
    *("--output-format", "stream-json", "--verbose"),
)
clis = pytest.mark.parametrize(
    "cli",
    [
        BARE,
        Cli(PI),
        *(
            pytest.param(Cli(vendor), marks=pytest.mark.full)
            for vendor in (QWEN, CODEX, GEMINI, OPENCODE, KIMI_CODE)
        ),
    ],
    ids=str,
)


@pytest.fixture
def conversation(sandbox: Sandbox, cli: Cli) -> LineProcess:
    process = LineProcess(
        [str(sandbox.claude), *FLAGS, *cli.vendor.claude_flags],
        sandbox.folder,
        sandbox.environment,
    )
    sandbox.started.append(process)
    return process


def ask(conversation: LineProcess, text: str) -> list[Line]:
    """Send a message. Return the lines of its turn, up to the result."""
    start = len(conversation.lines)
    conversation.send({"type": "user", "message": {"role": "user", "content": text}})
    conversation.read_until(lambda line: line["type"] == "result")
    return conversation.lines[start:]


@clis
def test_commands_are_answered_without_the_model(
    conversation: LineProcess, service: ScriptedServer
) -> None:
    first = ask(conversation, "[[text]] first")[-1]
    request_count = len(service.list_requests("text"))
    for command, start in (("/cost", "Estimated cost:"), ("/context", "## Context Usage")):
        *_, answer, result = ask(conversation, command)
        assert answer["message"]["model"] == "<synthetic>"
        assert answer["message"]["content"][0]["text"] == result["result"].strip()
        assert result["result"].startswith(start)
        assert (result["num_turns"], result["local_command"]) == (0, command[1:])
    reset, *lines = (
        line
        for line in ask(conversation, "/clear")
        if line.get("subtype") != "background_tasks_changed"
    )
    assert reset["type"] == "conversation_reset"
    assert reset["session_id"] == first["session_id"]
    assert [line["type"] for line in lines] == ["system", "result"]
    (session_id,) = {line["session_id"] for line in lines} - {first["session_id"]}
    assert (lines[-1]["result"], lines[-1]["total_cost_usd"]) == ("", 0)
    assert len(service.list_requests("text")) == request_count
    second = ask(conversation, "[[text]] second")[-1]
    assert second["session_id"] == session_id
    last_request = json.dumps(service.list_requests("text")[-1].body)
    assert "second" in last_request and "[[text]] first" not in last_request
    conversation.close_stdin()
    assert conversation.read_to_end() == 0


MESSAGE_COUNT = 4  # the real claude keeps the last ones
# These vendors compact any context. The others answer that a short one is not worth it.
COMPACTING = (CODEX, OPENCODE, COPILOT, KIMI)


@pytest.mark.parametrize(
    "cli",
    [
        BARE,
        Cli(CODEX),
        *(
            pytest.param(Cli(vendor), marks=pytest.mark.full)
            for vendor in (PI, QWEN, GEMINI, OPENCODE, COPILOT, KIMI, KIMI_CODE)
        ),
    ],
    ids=str,
)
def test_compact_shortens_the_context_or_gives_the_reason(
    conversation: LineProcess, service: ScriptedServer, cli: Cli
) -> None:
    for number in range(MESSAGE_COUNT):
        ask(conversation, f"[[text]] message {number}")
    lines = ask(conversation, "/compact keep the names")
    boundaries = [line for line in lines if line.get("subtype") == "compact_boundary"]
    result = lines[-1]
    assert (result["num_turns"], result["local_command"]) == (0, "compact")
    assert result["is_error"] is False
    if cli is BARE or cli.vendor in COMPACTING:
        assert boundaries[0]["compact_metadata"]["trigger"] == "manual"
    else:
        assert result["result"] and not boundaries
    assert ask(conversation, "[[text]] last")[-1]["result"]
    # A summary replaces replies of the model. Some vendors keep the messages of the user.
    last_request = service.list_requests("text")[-1]
    assert "last" in json.dumps(last_request.body)
    reply_count = json.dumps(last_request.body, ensure_ascii=False).count(REPLY[:20])
    assert (reply_count < MESSAGE_COUNT) == bool(boundaries)
    conversation.close_stdin()
    assert conversation.read_to_end() == 0
