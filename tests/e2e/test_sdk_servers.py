"""MCP servers in the frontend's own process: real SDKs, real vendors that call their tools, and the
real claude.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from clis import Cli
from model_scripts import REPLY, REPLY_AFTER_TOOL
from sandbox import Sandbox
from sdk_clients import PYTHON, TYPESCRIPT, SdkClient
from vendor_setups import CLAUDE_ITSELF, CODEX, COPILOT, GEMINI, KIMI, KIMI_CODE, OPENCODE, QWEN

pytestmark = pytest.mark.e2e

NAME, ADD = "my_calc", "mcp__my_calc__add"
# How each vendor's model calls the tool.
VENDOR_TOOL_NAMES: Mapping[str, str] = {
    "gemini": "mcp_my_calc_add",
    "opencode": "my_calc_add",
    "codex": "mcp__my_calc.add",
    "copilot": "my_calc-add",
}
full = pytest.mark.full
CELLS = [
    pytest.param(PYTHON, Cli(CLAUDE_ITSELF, bare=True), marks=full, id="python-claude"),
    pytest.param(PYTHON, Cli(QWEN), id="python-qwen"),
    pytest.param(PYTHON, Cli(GEMINI), id="python-gemini"),
    pytest.param(PYTHON, Cli(OPENCODE), marks=full, id="python-opencode"),
    pytest.param(PYTHON, Cli(CODEX), marks=full, id="python-codex"),
    pytest.param(PYTHON, Cli(COPILOT), id="python-copilot"),
    pytest.param(TYPESCRIPT, Cli(CLAUDE_ITSELF, bare=True), marks=full, id="typescript-claude"),
    pytest.param(TYPESCRIPT, Cli(QWEN), marks=full, id="typescript-qwen"),
    pytest.param(TYPESCRIPT, Cli(GEMINI), marks=full, id="typescript-gemini"),
]
cells = pytest.mark.parametrize(("client", "cli"), CELLS)


def call(cli: Cli, a: int, b: int) -> str:
    return f'[[call]] {VENDOR_TOOL_NAMES.get(cli.vendor.name, ADD)} {{"a":{a},"b":{b}}}'


@cells
def test_sdk_tool_call_prompts_and_runs_after_allow(
    client: SdkClient, cli: Cli, sandbox: Sandbox
) -> None:
    conversation = client.connect(sandbox, asks=True, serves=NAME)
    conversation.send_message(call(cli, 2, 3))
    request = conversation.await_saw("asked")
    assert (request["name"], request["input"]) == (ADD, {"a": 2, "b": 3}) and not [
        line for line in conversation.lines if line["saw"] == "ran"
    ]
    conversation.allow_call()
    turn = conversation.read_turn(0)
    assert [line["input"] for line in turn.list_lines("ran")] == [{"a": 2, "b": 3}]
    assert [
        (line["text"], line["is_error"], line["has_blocks"])
        for line in turn.list_lines("tool_result")
    ] == [("the sum is 5", False, True)]
    assert turn.result["text"] == REPLY_AFTER_TOOL and turn.result["denied"] == []
    assert [line["name"] for line in turn.list_lines("tool_use")] == [ADD]
    assert ADD in turn.init["tools"]
    assert [(server["name"], server["status"]) for server in turn.init["servers"]] == [
        (NAME, "connected")
    ]
    conversation.run_command("servers")
    (status,) = conversation.lines[-2]["servers"]
    assert (status["name"], status["status"], status["tools"][0]["name"]) == (
        NAME,
        "connected",
        "add",
    )
    conversation.disconnect()


@cells
def test_denied_sdk_tool_call_does_not_run(client: SdkClient, cli: Cli, sandbox: Sandbox) -> None:
    conversation = client.connect(sandbox, asks=True, serves=NAME)
    conversation.send_message(call(cli, 2, 3))
    conversation.await_saw("asked")
    conversation.deny_call("rather not")
    turn = conversation.read_turn(0)
    assert turn.list_lines("ran") == [] and turn.result["denied"] == [ADD]
    conversation.disconnect()


@full
@cells
def test_sdk_tool_call_runs_with_changed_input(
    client: SdkClient, cli: Cli, sandbox: Sandbox
) -> None:
    conversation = client.connect(sandbox, asks=True, serves=NAME)
    conversation.send_message(call(cli, 2, 3))
    conversation.await_saw("asked")
    conversation.allow_call({"a": 5, "b": 6})
    turn = conversation.read_turn(0)
    assert [line["input"] for line in turn.list_lines("ran")] == [{"a": 5, "b": 6}]
    assert [line["text"] for line in turn.list_lines("tool_result")] == ["the sum is 11"]
    conversation.disconnect()


@full
@cells
def test_failed_sdk_tool_call_returns_an_error_result(
    client: SdkClient, cli: Cli, sandbox: Sandbox
) -> None:
    conversation = client.connect(sandbox, asks=True, serves=NAME, allowed=[ADD])
    turn = conversation.run_turn(call(cli, 3, 3))
    ((text, failed),) = [
        (line["text"], line["is_error"]) for line in turn.list_lines("tool_result")
    ]
    assert "they are the same" in text and failed and turn.result["text"] == REPLY_AFTER_TOOL
    conversation.disconnect()


@full
@cells
def test_interrupt_ends_a_hanging_sdk_tool_call_and_the_session_continues(
    client: SdkClient, cli: Cli, sandbox: Sandbox
) -> None:
    conversation = client.connect(sandbox, asks=True, serves=NAME, allowed=[ADD])
    conversation.send_message(call(cli, -1, 1))
    conversation.await_saw("ran")
    conversation.run_command("interrupt")
    conversation.read_turn(0)
    assert conversation.run_turn("[[text]]").result["text"] == REPLY
    conversation.disconnect()


@full
@cells
def test_permission_rules_apply_to_sdk_tools(client: SdkClient, cli: Cli, sandbox: Sandbox) -> None:
    allowing = client.connect(sandbox, asks=True, serves=NAME, allowed=[ADD])
    turn = allowing.run_turn(call(cli, 4, 5))
    assert turn.list_lines("asked") == [] and [
        line["input"] for line in turn.list_lines("ran")
    ] == [{"a": 4, "b": 5}]
    allowing.disconnect()
    denying = client.connect(sandbox, asks=True, serves=NAME, denied=["mcp__my_calc"])
    turn = denying.run_turn(call(cli, 4, 5))
    assert (
        turn.list_lines("ran") == turn.list_lines("asked") == [] and ADD not in turn.init["tools"]
    )
    denying.disconnect()


@pytest.mark.parametrize(
    ("client", "cli"), [pytest.param(PYTHON, Cli(KIMI_CODE), id="python-kimi-code")]
)
def test_rule_about_an_sdk_tool_applies_with_a_vendor_that_enforces_no_rules(
    client: SdkClient, cli: Cli, sandbox: Sandbox
) -> None:
    conversation = client.connect(sandbox, asks=True, serves=NAME, denied=[ADD])
    turn = conversation.run_turn(call(cli, 4, 5))
    assert turn.list_lines("ran") == turn.list_lines("asked") == []
    assert turn.result["text"] == REPLY_AFTER_TOOL and turn.result["denied"] == [ADD]
    conversation.disconnect()


@full
@pytest.mark.parametrize(("client", "cli"), [pytest.param(PYTHON, Cli(KIMI), id="python-kimi")])
@pytest.mark.parametrize("allowed", [True, False], ids=("allowed", "denied"))
def test_kimi_prompt_for_a_tool_is_followed_by_a_prompt_with_its_server(
    client: SdkClient, cli: Cli, sandbox: Sandbox, allowed: bool
) -> None:
    conversation = client.connect(sandbox, asks=True, serves=NAME)
    conversation.send_message('[[call]] add {"a":2,"b":3}')
    assert conversation.await_saw("asked")["name"] == "add"
    conversation.allow_call()
    assert conversation.await_saw("asked")["name"] == ADD
    if allowed:
        conversation.allow_call()
    else:
        conversation.deny_call("rather not")
    turn = conversation.read_turn(0)
    assert [line["input"] for line in turn.list_lines("ran")] == (
        [{"a": 2, "b": 3}] if allowed else []
    )
    assert turn.result["text"] == REPLY_AFTER_TOOL
    conversation.disconnect()
