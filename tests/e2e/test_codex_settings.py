"""A person's own codex settings never answer a permission request in place of the person: the real
program.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from frontend import DropInFrontend
from test_acp import ASKING, FrontendConversation, list_created_files
from test_codex_app_server import shell, stepping
from test_policy_hooks import LET_OUT, MADE, SERVER, STEP, STEPPING_CODEX, SUBAGENTS, Stepping

pytestmark = [pytest.mark.e2e, pytest.mark.full]

ALLOWS = {"hookEventName": "PermissionRequest", "decision": {"behavior": "allow"}}
CHANGES = {
    "hookEventName": "PreToolUse",
    "permissionDecision": "allow",
    "updatedInput": {"command": f"touch {MADE}"},
}
TOUCH = [shell(f"touch {MADE}")]


def home(frontend: DropInFrontend) -> Path:
    return Path(frontend.environment["HOME"]) / ".codex"


def write_hook_script(frontend: DropInFrontend, output: dict[str, object], before: str = "") -> str:
    """Write a program that answers codex's hook with `output`. Return its path."""
    script = frontend.folder.parent / "hook.sh"
    script.write_text(f"#!/bin/sh\n{before}\necho '{json.dumps({'hookSpecificOutput': output})}'\n")
    script.chmod(0o755)
    return str(script)


def hooks_file(frontend: DropInFrontend, event: str, command: str) -> None:
    handler = {"type": "command", "command": command}
    (home(frontend) / "hooks.json").write_text(
        json.dumps({"hooks": {event: [{"hooks": [handler]}]}})
    )


def append_config(frontend: DropInFrontend, text: str) -> None:
    path = home(frontend) / "config.toml"
    path.write_text(path.read_text() + "\n" + text)


def server(frontend: DropInFrontend, text: str = SERVER) -> dict[str, object]:
    script = frontend.folder.parent / "server.py"
    script.write_text(text)
    return {"command": sys.executable, "args": [str(script), str(frontend.folder / MADE)]}


def list_prompted_tools(frontend: DropInFrontend, *flags: str) -> list[str]:
    """Return the tools for which the frontend was asked. It denies each of them."""
    conversation, tools = FrontendConversation(frontend, *ASKING, *flags), []
    conversation.send(STEP)
    while (line := conversation.until("can_use_tool", "result"))["type"] != "result":
        tools.append(line["request"]["tool_name"])
        conversation.answer(line, allow=False)
    return tools


@stepping
@pytest.mark.parametrize("where", ["hooks.json", "config.toml"])
def test_user_hook_that_allows_does_not_answer_the_permission_prompt(
    frontend: DropInFrontend, model: Stepping, where: str
) -> None:
    command = write_hook_script(frontend, ALLOWS, f"touch {frontend.folder}/ran")
    if where == "hooks.json":
        hooks_file(frontend, "PermissionRequest", command)
    else:
        append_config(
            frontend,
            f'[[hooks.PermissionRequest]]\nhooks=[{{type="command",command="{command}"}}]\n',
        )
    model.steps = [*TOUCH, ("mcp__srv.tool", {})]
    tools = list_prompted_tools(
        frontend, "--mcp-config", json.dumps({"mcpServers": {"srv": server(frontend)}})
    )
    assert (tools, list_created_files(frontend)) == (["Bash", "mcp__srv__tool"], set())


@stepping
def test_user_hook_that_allows_does_not_override_deny_rules_or_permission_modes(
    frontend: DropInFrontend, model: Stepping
) -> None:
    hooks_file(frontend, "PermissionRequest", write_hook_script(frontend, ALLOWS))
    deny, mode = "--disallowedTools", "--permission-mode"
    for flags in ((deny, "Bash(touch:*)"), (deny, "Bash"), (mode, "plan"), (mode, "dontAsk")):
        model.steps = TOUCH
        assert (list_prompted_tools(frontend, *flags), list_created_files(frontend)) == (
            [],
            set(),
        ), flags


@stepping
def test_user_hook_of_a_subagent_role_does_not_override_deny_rules(
    frontend: DropInFrontend, model: Stepping
) -> None:
    (home(frontend) / "agents").mkdir(exist_ok=True)
    hook_config = (
        "[[hooks.PermissionRequest]]\n"
        f'hooks=[{{type="command",command="{write_hook_script(frontend, ALLOWS)}"}}]\n'
    )
    role = 'name="widening"\ndescription="x"\ndeveloper_instructions="Widen."\n'
    (home(frontend) / "agents" / "widening.toml").write_text(role + hook_config)
    (first, *others) = SUBAGENTS[STEPPING_CODEX]
    model.steps = [(first[0], {**first[1], "agent_type": "widening"}), *others]
    for flags, expected_tools in ((("--disallowedTools", "Bash(touch:*)"), []), ((), ["Bash"])):
        model.subagent_steps = TOUCH
        assert (list_prompted_tools(frontend, *flags), list_created_files(frontend)) == (
            expected_tools,
            set(),
        ), flags
    assert any("Widen." in json.dumps(request.body) for request in model.requests)


@stepping
def test_user_hook_that_changes_a_command_does_not_skip_the_permission_prompt(
    frontend: DropInFrontend, model: Stepping
) -> None:
    hooks_file(frontend, "PreToolUse", write_hook_script(frontend, CHANGES, "sleep 2"))
    (home(frontend) / "rules").mkdir()
    (home(frontend) / "rules" / "default.rules").write_text(LET_OUT)
    model.steps = TOUCH
    assert (list_prompted_tools(frontend), list_created_files(frontend)) == (["Bash"], set())


@stepping
def test_mcp_server_approved_in_codex_config_still_requires_permission(
    frontend: DropInFrontend, model: Stepping
) -> None:
    """Two settings reached codex in a varying order, so the test repeats the run."""
    server_config = server(frontend)
    append_config(
        frontend,
        f"[mcp_servers.srv]\ncommand={json.dumps(server_config['command'])}\nargs={json.dumps(server_config['args'])}\n"
        '[mcp_servers.srv.tools.tool]\napproval_mode="approve"\n',
    )
    for _ in range(4):
        model.steps = [("mcp__srv.tool", {})]
        tools = list_prompted_tools(
            frontend, "--mcp-config", json.dumps({"mcpServers": {"srv": server_config}})
        )
        assert (tools, list_created_files(frontend)) == (["mcp__srv__tool"], set())


@stepping
def test_approved_codex_tool_with_a_dot_in_its_name_still_requires_permission(
    frontend: DropInFrontend, model: Stepping
) -> None:
    server_config = server(frontend, SERVER.replace('"name": "tool"', '"name": "a.b"'))
    append_config(
        frontend,
        f"[mcp_servers.srv]\ncommand={json.dumps(server_config['command'])}\nargs={json.dumps(server_config['args'])}\n"
        '[mcp_servers.srv.tools."a.b"]\napproval_mode="approve"\n',
    )
    model.steps = [("mcp__srv.a.b", {}), ("mcp__srv.a_b", {})]
    assert (list_prompted_tools(frontend), list_created_files(frontend)) == (
        ["mcp__srv__a_b"],
        set(),
    )


@stepping
def test_denied_mcp_call_is_reported_with_its_server_name(
    frontend: DropInFrontend, model: Stepping
) -> None:
    server_config = server(frontend)
    model.steps = [("mcp__srv.tool", {})]
    conversation = FrontendConversation(
        frontend,
        *ASKING,
        "--mcp-config",
        json.dumps({"mcpServers": {"srv": server_config}}),
        "--disallowedTools",
        "mcp__srv",
    )
    conversation.send(STEP)
    result = conversation.until("result")
    calls = [
        block["name"]
        for line in conversation.lines
        for block in blocks_of(line)
        if block["type"] == "tool_use"
    ]
    assert calls == ["mcp__srv__tool"]
    assert [denial["tool_name"] for denial in result["permission_denials"]] == ["mcp__srv__tool"]
    assert list_created_files(frontend) == set()


def blocks_of(line: dict[str, Any]) -> list[dict[str, Any]]:
    content = line.get("message", {}).get("content")
    return content if isinstance(content, list) else []
