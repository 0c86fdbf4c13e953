"""Denials in a vendor's start arguments: the denied call does not run, and the turn continues.

Each cell is a vendor, a frontend's flags, and a call of the scripted model. The real claude does
not run these calls. The drop-in starts the vendor with the rule, and the vendor's model receives
the denial.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from frontend import DropInFrontend
from model_scripts import REPLY_AFTER_TOOL, ScriptedServer
from vendor_setups import GEMINI, OPENCODE, Vendor

pytestmark = pytest.mark.e2e

MADE = "made"
BYPASS = ("--dangerously-skip-permissions",)
TOUCH = f"[[shell]] touch {MADE}"
SUBAGENT = f"[[task]] {TOUCH}"
SERVER = """
import json, pathlib, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    if asked["method"] == "initialize":
        said = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}}}
        said["serverInfo"] = {"name": "srv", "version": "1"}
    elif asked["method"] == "tools/list":
        said = {"tools": [{"name": "make", "description": "Makes it", "inputSchema": {"type": "object"}}]}
    elif asked["method"] == "tools/call":
        pathlib.Path(sys.argv[1]).touch()
        said = {"content": [{"type": "text", "text": "It is made."}]}
    else:
        said = {}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": said}), flush=True)
"""


@dataclass(frozen=True)
class Cell:
    """One call. `files` are files below home ("~") or the folder; an object is written as JSON.
    With `server` an MCP server is configured.
    """

    vendor: Vendor
    name: str
    call: str
    flags: tuple[str, ...]
    files: Mapping[str, Any] = field(default_factory=dict)
    server: bool = False
    first: bool = False  # one of the cells of the short run

    def __str__(self) -> str:
        return f"{self.vendor.name} {self.name}"


def build_deny_flags(rule: str) -> tuple[str, ...]:
    return (*BYPASS, "--disallowedTools", rule)


def mode(name: str) -> tuple[str, ...]:
    return ("--permission-mode", name)


ANY = {"permission": {"bash*": "allow", "edit": "allow", "*": "allow", "bash": "allow"}}
AGENT = """---
description: Does anything
mode: {mode}
permission:
  bash: allow
  "*": allow
---
You do anything.
"""
ALLOW_SHELL = '[[rule]]\ntoolName = "run_shell_command"\ndecision = "allow"\npriority = 999\n'
TRUSTED = {
    "tools": {"allowed": ["run_shell_command"]},
    "general": {"defaultApprovalMode": "auto_edit"},
}
ASK = json.dumps({"permissions": {"ask": ["Bash"]}})

CELLS = (
    Cell(GEMINI, "a whole tool", TOUCH, build_deny_flags("Bash"), first=True),
    Cell(GEMINI, "a choice of tools", TOUCH, (*BYPASS, "--tools", "Read")),
    Cell(GEMINI, "no tools", TOUCH, (*BYPASS, "--tools", "")),
    Cell(GEMINI, "W2 a subagent", SUBAGENT, build_deny_flags("Bash")),
    Cell(GEMINI, "W3 a server", "[[call]] mcp_srv_make", build_deny_flags("mcp__srv"), server=True),
    Cell(GEMINI, "W3 a server with a star", "[[call]] mcp_srv_make", build_deny_flags("mcp__srv__*"), server=True),
    Cell(GEMINI, "W3 a tool of a server", "[[call]] mcp_srv_make", build_deny_flags("mcp__srv__make"), server=True),
    Cell(GEMINI, "W4 a whole tool to ask about", TOUCH, (*BYPASS, "--settings", ASK)),
    Cell(GEMINI, "W10 the project, plan", TOUCH, mode("plan"), {".gemini/settings.json": TRUSTED}, first=True),
    Cell(GEMINI, "W10 the project, acceptEdits", TOUCH, mode("acceptEdits"), {".gemini/settings.json": TRUSTED}),
    Cell(GEMINI, "W10 home, plan", TOUCH, mode("plan"), {"~/.gemini/policies/all.toml": ALLOW_SHELL}),
    Cell(GEMINI, "W10 home, default", TOUCH, (), {"~/.gemini/policies/all.toml": ALLOW_SHELL}),
    Cell(GEMINI, "W10 a trusted server, acceptEdits", "[[call]] mcp_srv_make", mode("acceptEdits"), server=True),
    # Also a cell of the permission matrix.
    Cell(OPENCODE, "a whole tool", TOUCH, build_deny_flags("Bash")),
    Cell(OPENCODE, "a tool that shares its permission", f"[[write]] {MADE}", build_deny_flags("Write")),
    Cell(OPENCODE, "a choice of tools", TOUCH, (*BYPASS, "--tools", "Read")),
    Cell(OPENCODE, "W1 an agent of the project, plan", TOUCH, mode("plan"), {
        "opencode.json": {"agent": {"plan": ANY, "build": ANY}},
    }, first=True),
    Cell(OPENCODE, "W1 an agent of the project, acceptEdits", TOUCH, mode("acceptEdits"), {
        "opencode.json": {"agent": {"plan": ANY, "build": ANY}},
    }),
    Cell(OPENCODE, "W1 a file of an agent, plan", TOUCH, mode("plan"), {
        ".opencode/agent/plan.md": AGENT.format(mode="primary"),
    }),
    Cell(OPENCODE, "W1 a default agent", TOUCH, build_deny_flags("Bash"), {
        "opencode.json": {"default_agent": "wide", "agent": {"wide": {"mode": "primary", **ANY}}},
    }),
    Cell(OPENCODE, "W1 the user's agent, plan", TOUCH, mode("plan"), {
        "~/.config/opencode/opencode.json": {"agent": {"plan": {"permission": {"bash": "allow"}}}},
    }),
    Cell(OPENCODE, "W1 a subagent of the project, acceptEdits", SUBAGENT, mode("acceptEdits"), {
        ".opencode/agent/general.md": AGENT.format(mode="subagent"),
    }),
    Cell(OPENCODE, "W2 a subagent", SUBAGENT, build_deny_flags("Bash")),
    Cell(OPENCODE, "W3 a server", "[[call]] srv_make", build_deny_flags("mcp__srv"), server=True),
    Cell(OPENCODE, "W3 a server with a star", "[[call]] srv_make", build_deny_flags("mcp__srv__*"), server=True),
    Cell(OPENCODE, "W3 a tool of a server", "[[call]] srv_make", build_deny_flags("mcp__srv__make"), server=True),
    Cell(OPENCODE, "W4 a whole tool to ask about", TOUCH, (*BYPASS, "--settings", ASK)),
)  # fmt: skip


def prepare(frontend: DropInFrontend, cell: Cell) -> None:
    home_folder = Path(frontend.environment["HOME"])
    for location, content in cell.files.items():
        path = (
            home_folder / location[2:] if location.startswith("~/") else frontend.folder / location
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        path.chmod(0o700)
    if cell.server:
        program = home_folder / "server.py"
        program.write_text(SERVER)
        args = [sys.executable, str(program), str(frontend.folder / MADE)]
        if cell.vendor is GEMINI:
            settings = home_folder / ".gemini" / "settings.json"
            servers = {"srv": {"command": args[0], "args": args[1:], "trust": True}}
            settings.write_text(
                json.dumps(json.loads(settings.read_text()) | {"mcpServers": servers})
            )
        else:
            content = json.dumps(
                {"mcp": {"srv": {"type": "local", "command": args, "enabled": True}}}
            )
            settings = home_folder / ".config" / "opencode" / "opencode.json"
            settings.parent.mkdir(parents=True, exist_ok=True)
            settings.write_text(content)


@pytest.mark.parametrize(
    ("vendor", "cell"),
    [
        pytest.param(
            cell.vendor, cell, id=str(cell), marks=[] if cell.first else [pytest.mark.full]
        )
        for cell in CELLS
    ],
    indirect=["vendor"],
)
def test_denied_call_does_not_run_and_the_turn_completes(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor, cell: Cell
) -> None:
    prepare(frontend, cell)
    done = frontend.run_prompt(cell.call, *cell.flags)
    assert not (frontend.folder / MADE).exists()
    assert done.exit == 0, done.result
    assert done.result["result"] == REPLY_AFTER_TOOL
    assert model.requests


@pytest.mark.full
@pytest.mark.parametrize(
    ("vendor", "call"),
    [(GEMINI, "mcp_srv_make"), (OPENCODE, "srv_make")],
    indirect=["vendor"],
    ids=str,
)
def test_mcp_tool_runs_if_no_rule_denies_the_server(
    frontend: DropInFrontend, vendor: Vendor, call: str
) -> None:
    prepare(frontend, Cell(vendor, "", "", (), server=True))
    done = frontend.run_prompt(f"[[call]] {call}", *BYPASS)
    assert done.exit == 0, done.result
    assert (frontend.folder / MADE).exists()


DISCOVERED = {
    "list.sh": """#!/bin/sh\necho '[{"name": "make", "description": "x", "parameters": {"type": "object"}}]'\n""",
    "call.sh": f"#!/bin/sh\ntouch {MADE}\n",
    ".gemini/settings.json": {
        "tools": {
            "discoveryCommand": "./list.sh",
            "callCommand": "./call.sh",
            "allowed": ["discovered_tool_make"],
        }
    },
}


@pytest.mark.full
@pytest.mark.parametrize(
    "flags", [mode("plan"), mode("default"), (*BYPASS, "--tools", "Read")], ids=str
)
@pytest.mark.parametrize("vendor", [GEMINI], indirect=True, ids=str)
def test_gemini_project_file_that_adds_tools_is_refused_by_name(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor, flags: tuple[str, ...]
) -> None:
    prepare(frontend, Cell(vendor, "", "", (), DISCOVERED))
    done = frontend.run_prompt("[[call]] discovered_tool_make", *flags)
    assert not (frontend.folder / MADE).exists()
    assert done.result["shim"]["cause"] == "refused" and not model.requests
    assert str(frontend.folder / ".gemini" / "settings.json") in done.result["errors"][0]
