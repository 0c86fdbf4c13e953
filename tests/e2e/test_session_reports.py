"""What a client can ask about a session: models, context, usage and MCP servers, with real vendors
and the real claude.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from clis import Cli
from compare_init import STREAM_FLAGS, send_request
from model_scripts import ScriptedServer
from sandbox import LineProcess, Sandbox
from vendor_setups import CLAUDE_ITSELF, CODEX, GEMINI, OPENCODE, PI, QWEN

pytestmark = pytest.mark.e2e

SERVER = {"command": sys.executable, "args": [str(Path(__file__).with_name("mcp_server.py"))]}
full = pytest.mark.full
# A vendor, the size of its model's context, and whether it lists the scripted second model.
REPORTS = [
    pytest.param(Cli(CLAUDE_ITSELF, bare=True), 1_000_000, False, id="claude"),
    pytest.param(Cli(QWEN), 200_000, False, id="qwen"),
    pytest.param(Cli(PI), 128_000, True, id="pi"),
    pytest.param(Cli(CODEX), 258_400, False, id="codex"),
    pytest.param(Cli(OPENCODE), 128_000, True, marks=full, id="opencode"),
    pytest.param(Cli(GEMINI), 200_000, False, marks=full, id="gemini"),
]
SERVERS = [
    pytest.param(Cli(CLAUDE_ITSELF, bare=True), id="claude"),
    pytest.param(Cli(QWEN), id="qwen"),
    pytest.param(Cli(CODEX), marks=full, id="codex"),
    pytest.param(Cli(OPENCODE), marks=full, id="opencode"),
    pytest.param(Cli(GEMINI), marks=full, id="gemini"),
]


def start(sandbox: Sandbox, cli: Cli) -> LineProcess:
    argv = [str(sandbox.claude), *STREAM_FLAGS, *cli.vendor.claude_flags]
    process = LineProcess(argv, sandbox.folder, sandbox.environment)
    sandbox.started.append(process)
    send_request(process, "initialize", {"hooks": None})
    return process


def run_turn(process: LineProcess, text: str) -> dict[str, Any]:
    process.send({"type": "user", "message": {"role": "user", "content": text}})
    return process.read_until(lambda line: line["type"] == "result")


def request_body(process: LineProcess, subtype: str, **parameters: Any) -> dict[str, Any]:
    response = send_request(process, subtype, parameters)
    assert response["subtype"] == "success", response
    body: dict[str, Any] = response.get("response") or {}
    return body


@pytest.mark.parametrize(("cli", "window_tokens", "lists_second_model"), REPORTS)
def test_context_usage_and_models_are_those_of_the_vendor(
    cli: Cli, window_tokens: int, lists_second_model: bool, sandbox: Sandbox
) -> None:
    process = start(sandbox, cli)
    result = run_turn(process, "[[text]] hello")
    context = request_body(process, "get_context_usage", detail="summary")
    assert context["maxTokens"] == window_tokens
    assert 0 < context["totalTokens"] < window_tokens
    assert {len(row) for row in context["gridRows"]} == {20}
    (usage,) = result["modelUsage"].values()
    assert usage["contextWindow"] == window_tokens
    session = request_body(process, "get_usage")["session"]
    assert session["model_usage"].keys() == result["modelUsage"].keys()
    assert session["total_cost_usd"] == result["total_cost_usd"]
    models = request_body(process, "list_models")["models"]
    assert models[0]["value"] == "default" and all(model["displayName"] for model in models)
    if lists_second_model:
        assert cli.vendor.second_model in [model["value"] for model in models]
    process.close_stdin()
    assert process.read_to_end() == 0
    # The next session knows the models before the vendor runs.
    second = start(sandbox, cli)
    assert request_body(second, "list_models")["models"][1:] == models[1:]
    second.close_stdin()
    assert second.read_to_end() == 0


@pytest.mark.parametrize("cli", SERVERS)
def test_servers_can_be_added_disabled_and_removed(
    cli: Cli, sandbox: Sandbox, service: ScriptedServer
) -> None:
    process = start(sandbox, cli)
    run_turn(process, "[[text]] one")
    added = request_body(process, "mcp_set_servers", servers={"extra": SERVER})
    assert added == {"added": ["extra"], "removed": [], "errors": {}}
    assert not run_turn(process, "[[text]] two")["is_error"]
    assert "[[text]] one" in str(service.requests[-1].body)  # the new process knows the history
    assert cli.bare or offers_server_tool(service)
    if cli.vendor not in (OPENCODE, GEMINI):  # these do not report the status of a server
        assert list_statuses(process) == {"extra": "connected"}
    request_body(process, "mcp_toggle", serverName="extra", enabled=False)
    assert list_statuses(process) == {"extra": "disabled"}
    run_turn(process, "[[text]] three")
    assert cli.bare or not offers_server_tool(service)
    request_body(process, "mcp_toggle", serverName="extra", enabled=True)
    removed = request_body(process, "mcp_set_servers", servers={})
    assert removed == {"added": [], "removed": ["extra"], "errors": {}}
    assert list_statuses(process) == {}
    process.close_stdin()
    assert process.read_to_end() == 0


def list_statuses(process: LineProcess) -> dict[str, str]:
    servers = request_body(process, "mcp_status")["mcpServers"]
    return {server["name"]: server["status"] for server in servers}


def offers_server_tool(service: ScriptedServer) -> bool:
    """Return whether the last request of the conversation offers a tool of the server. qwen names
    it in a text. The real claude does so too, but keeps older texts.
    """
    last_request = [request for request in service.requests if request.offered][-1]
    return "get_it" in str(last_request.body)


@pytest.mark.parametrize("cli", SERVERS[:2])
def test_title_of_a_session_is_in_its_transcript(cli: Cli, sandbox: Sandbox) -> None:
    process = start(sandbox, cli)
    request_body(process, "rename_session", title="About apricots")
    result = run_turn(process, "[[text]] hello")
    request_body(process, "rename_session", title="About plums")
    refused = send_request(process, "rename_session", {"title": ""})
    assert (refused["subtype"], refused["error"]) == ("error", "title must be non-empty")
    process.close_stdin()
    assert process.read_to_end() == 0
    home_folder = Path(sandbox.environment["HOME"])
    (path,) = home_folder.glob(f".claude/projects/*/{result['session_id']}.jsonl")
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    titles = [entry["customTitle"] for entry in entries if entry["type"] == "custom-title"]
    assert titles[-1] == "About plums"
    changes = [line for line in process.lines if line.get("subtype") == "session_title_changed"]
    assert [line["title"] for line in changes] == ["About apricots", "About plums"]
