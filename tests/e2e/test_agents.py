"""Subagents that a frontend or a file defines: they are listed, the model can start them, and they
have no more permissions than the session.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from frontend import DropInFrontend
from model_scripts import REPLY, REPLY_AFTER_TOOL, ScriptedServer
from permission_rows import BYPASS
from programs import install_program
from sandbox import Line
from test_acp import ASKING, FrontendConversation, list_created_files
from test_hook_feedback import build_context
from test_settings_hooks import STOP_ONCE, build_event_hooks
from vendor_setups import (
    CLAUDE_ITSELF,
    CODEX,
    COPILOT,
    GEMINI,
    KIMI_CODE,
    OPENCODE,
    PI,
    QWEN,
    Vendor,
)

pytestmark = pytest.mark.e2e

# How each vendor's model starts an agent.
TOOLS = {
    CLAUDE_ITSELF: "Agent",
    CODEX: "mcp__claudeagents.Task",
    GEMINI: "mcp_claudeagents_Task",
    OPENCODE: "claudeagents_Task",
    COPILOT: "claudeagents-Task",
}
TOOL = "mcp__claudeagents__Task"
HELPER = {"description": "Helps", "prompt": "You are HELPER.", "model": "inherit"}
READER = {"description": "Reads", "prompt": "You are READER.", "tools": ["Read"]}
full = pytest.mark.full
OTHERS = [pytest.param(vendor, marks=full) for vendor in (GEMINI, OPENCODE, KIMI_CODE, COPILOT)]
asks = pytest.mark.parametrize(
    "vendor", [CLAUDE_ITSELF, QWEN, CODEX, *OTHERS], ids=str, indirect=True
)
forbids = pytest.mark.parametrize(
    "vendor",
    [QWEN, *(pytest.param(vendor, marks=full) for vendor in (CLAUDE_ITSELF, CODEX)), *OTHERS],
    ids=str,
    indirect=True,
)


def write_agent_file(frontend: DropInFrontend) -> None:
    folder = Path(frontend.folder) / ".claude" / "agents"
    folder.mkdir(parents=True)
    header = "---\nname: file-agent\ndescription: From a file\nmodel: haiku\n---\n"
    (folder / "x.md").write_text(f"{header}You are FILE.\n")


def start(frontend: DropInFrontend, vendor: Vendor, *flags: str) -> FrontendConversation:
    """Start a conversation whose frontend defines two agents, beside one of the project."""
    write_agent_file(frontend)
    if vendor is CLAUDE_ITSELF:
        frontend.claude = install_program(vendor.package).executable
    conversation = FrontendConversation(frontend, *ASKING, *flags)
    request = {"subtype": "initialize", "agents": {"helper": HELPER, "reader": READER}}
    conversation.process.send(
        {"type": "control_request", "request_id": "start", "request": request}
    )
    return conversation


def start_agent(conversation: FrontendConversation, vendor: Vendor, name: str, script: str) -> None:
    tool_input = {"description": "a task", "prompt": script, "subagent_type": name}
    if vendor is CLAUDE_ITSELF:
        tool_input["run_in_background"] = False  # type: ignore[assignment]
    conversation.send(f"[[call]] {TOOLS.get(vendor, TOOL)} {json.dumps(tool_input)}")


def finish(conversation: FrontendConversation) -> None:
    conversation.process.close_stdin()
    conversation.process.read_to_end()


def list_nested_blocks(conversation: FrontendConversation) -> list[tuple[str, str]]:
    """Return the subagent's tool calls and results: the kind, and the name or the text."""
    nested = []
    for line in conversation.lines:
        if line["type"] in ("assistant", "user") and line["parent_tool_use_id"]:
            for block in line["message"]["content"]:
                nested.append((block["type"], str(block.get("name") or block.get("content"))))
    return [block for block in nested if block[0] != "text"]


def list_agent_results(conversation: FrontendConversation) -> list[Line]:
    results = [line.get("tool_use_result") for line in conversation.lines]
    return [result for result in results if isinstance(result, dict) and "agentId" in result]


def home_folder(frontend: DropInFrontend) -> Path:
    return Path(frontend.environment["HOME"])


def find_init(conversation: FrontendConversation) -> Line:
    (init,) = (line for line in conversation.lines if line.get("subtype") == "init")
    return init


@asks
def test_agent_asks_the_frontend_before_it_runs_a_command(
    frontend: DropInFrontend, vendor: Vendor
) -> None:
    conversation = start(frontend, vendor)
    listed = conversation.until("control_response")["response"]["response"]["agents"]
    for entry in (
        {"name": "file-agent", "description": "From a file", "model": "haiku"},
        {"name": "helper", "description": "Helps", "model": "inherit"},
        {"name": "reader", "description": "Reads"},
    ):
        assert entry in listed
    for allow in (False, True):
        start_agent(conversation, vendor, "helper", f"[[shell]] touch {allow}")
        question = conversation.until("can_use_tool")
        assert question["request"]["tool_name"] == "Bash" and question["request"]["agent_id"]
        assert list_created_files(frontend) == {".claude"}
        conversation.answer(question, allow=allow)
        assert conversation.until("result")["result"] == REPLY_AFTER_TOOL
    finish(conversation)
    for result in list_agent_results(conversation):
        assert (result["status"], result["agentType"]) == ("completed", "helper")
        assert result["totalToolUseCount"] == 1 and result["content"][0]["text"]
        assert list(home_folder(frontend).rglob(f"subagents/agent-{result['agentId']}.jsonl"))
    assert len(list_agent_results(conversation)) == 2
    assert list_created_files(frontend) == {".claude", "True"}
    init = next(line for line in conversation.lines if line.get("subtype") == "init")
    assert {"file-agent", "helper", "reader"} <= set(init["agents"])
    assert "Task" in init["tools"] and "claudeagents" not in json.dumps(init)
    (call, result, *_) = list_nested_blocks(conversation)
    assert call == ("tool_use", "Bash")
    assert result == ("tool_result", "rather not") or (
        vendor is CLAUDE_ITSELF and result[0] == "tool_result"
    )


@forbids
def test_forbidden_tool_does_not_run_in_an_agent(frontend: DropInFrontend, vendor: Vendor) -> None:
    """A rule of the session applies, and so does the list of the agent's own tools."""
    conversation = start(frontend, vendor, "--disallowedTools", "Bash(touch:*)")
    conversation.until("control_response")
    for name in ("helper", "reader"):
        start_agent(conversation, vendor, name, f"[[shell]] touch {name}")
        assert conversation.until("result", "can_use_tool")["type"] == "result"
    finish(conversation)
    assert list_created_files(frontend) == {".claude"}


@pytest.mark.parametrize("vendor", [PI], ids=str, indirect=True)
def test_vendor_without_agents_says_so(frontend: DropInFrontend, vendor: Vendor) -> None:
    conversation = start(frontend, vendor)
    assert conversation.until("control_response")["response"]["response"]["agents"] == []
    conversation.send("[[text]]")
    conversation.until("result")
    finish(conversation)
    init = find_init(conversation)
    entries = [entry for entry in init["shim"]["not_honoured"] if entry["what"] == "agents"]
    assert [entry["source"] for entry in entries] == [".claude/agents", "initialize"]
    assert init["agents"] == []
    assert "agents have no effect" in conversation.process.stderr


@pytest.mark.parametrize("vendor", [QWEN], ids=str, indirect=True)
def test_agent_ends_with_an_interrupted_turn(frontend: DropInFrontend, vendor: Vendor) -> None:
    conversation = start(frontend, vendor)
    conversation.until("control_response")
    start_agent(conversation, vendor, "helper", "[[shell]] tail -f hello.txt")
    conversation.answer(conversation.until("can_use_tool"), allow=True)
    assert frontend.wait_for_start("tail -f hello.txt")
    conversation.order(subtype="interrupt")
    conversation.until("result")
    assert frontend.wait_for_end("tail -f hello.txt")
    finish(conversation)


@pytest.mark.parametrize("vendor", [QWEN], ids=str, indirect=True)
def test_agent_of_a_file_works_in_one_shot_mode(
    frontend: DropInFrontend, model: ScriptedServer
) -> None:
    write_agent_file(frontend)
    tool_input = {"description": "a task", "prompt": "[[text]]", "subagent_type": "file-agent"}
    run = frontend.run_prompt(f"[[call]] {TOOL} {json.dumps(tool_input)}")
    assert run.init["agents"] == ["file-agent"] and run.result["result"] == REPLY_AFTER_TOOL
    assert [block["content"] for block in run.tool_results] == [REPLY]
    (request,) = model.list_requests("text")
    assert "You are FILE." in str(request.messages[0])


@forbids
def test_hook_commands_of_the_settings_add_context_and_continue_an_agent(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor
) -> None:
    frontend.environment = {
        **frontend.environment,
        "IS_SANDBOX": "1",
    }  # for the real claude as root
    context = json.dumps(build_context("SubagentStart", "it rains"))
    hooks = build_event_hooks(SubagentStart=f"echo '{context}'", SubagentStop=STOP_ONCE)
    conversation = start(frontend, vendor, *BYPASS, "--settings", json.dumps(hooks))
    start_agent(conversation, vendor, "helper", "[[text]] hello")
    assert not conversation.until("result")["is_error"]
    bodies = [json.dumps(request.body) for request in model.requests if request.offered]
    assert any("hook additional context: it rains" in body for body in bodies)
    assert any("Stop hook feedback:" in body and "run the tests" in body for body in bodies)
    finish(conversation)
