"""codex below the drop-in runs what the real claude would run under the same rules, and nothing more.

Its hook is asked before each call: of a command, a patch, a tool of MCP, a subagent. The file that a call would make
tells whether the call ran.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from frontend import Frontend, Run, check_contract
from responses_server import ResponsesServer
from scripts import PATCHING, REPLY_AFTER_TOOL, Call, Reply, Request, ScriptedServer
from vendor_setups import CODEX

STEP = "step by step"  # what the script of a prompt without a tag is told


class Stepping(ResponsesServer):
    """A model that makes the calls of `steps`, one a reply, and in a subagent those of `below`."""

    steps: list[tuple[str, dict[str, Any]]]
    below: list[tuple[str, dict[str, Any]]]

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.below = [], []

    def _reply(self, request: Request, number: int) -> Reply:
        if request.script != "hidden":
            return super()._reply(request, number)
        told = [item for item in request.messages if str(item.get("type")).endswith("_output")]
        asked = json.dumps([item for item in request.messages if item.get("role") == "user"])
        steps = self.below if "do what is below" in asked else self.steps
        for name, arguments in steps[len(told) : len(told) + 1]:
            given = dict(arguments)
            if name.endswith("wait_agent"):
                given["targets"] = [json.loads(told[0]["output"])["agent_id"]]
            return Reply("A step.", calls=(Call(f"call_{number}", name, given),))
        return Reply(REPLY_AFTER_TOOL)


VENDOR = replace(CODEX, server=Stepping)
pytestmark = [pytest.mark.e2e, pytest.mark.parametrize("vendor", [VENDOR], indirect=True, ids=str)]

BYPASS = ("--dangerously-skip-permissions",)
EDITS = ("--permission-mode", "acceptEdits")
PLAN = ("--permission-mode", "plan")
MADE = "made"
HIDDEN = "what nobody may read"
TOUCH = f"[[shell]] touch {MADE}"
LET_OUT = 'prefix_rule(pattern=["touch"], decision="allow")\n'
OF_THE_PROJECT = {".codex/rules/default.rules": LET_OUT, ".codex/config.toml": 'sandbox_mode = "danger-full-access"\n'}


@dataclass(frozen=True)
class Row:
    """Flags, files below home ("~") or the folder, and a call. `runs`: the real claude runs it."""

    name: str
    call: str
    flags: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    trusted: bool = False  # the person trusts the folder, as codex asks for it
    runs: bool = False
    brief: bool = False  # tried in the short run too

    def __str__(self) -> str:
        return self.name


def denied(rule: str) -> tuple[str, ...]:
    return (*BYPASS, "--disallowedTools", rule)


ROWS = (
    Row("W15 a program in acceptEdits", f"[[shell]] python3 -c \"open('{MADE}','w')\"", EDITS, brief=True),
    Row("W15 a file beside the folder", f"[[shell]] touch ../{MADE}", EDITS),
    Row("W15 a file in the temporary folder", f"[[shell]] touch $TMPDIR/{MADE}", EDITS),
    Row("acceptEdits and a command that edits", TOUCH, EDITS, runs=True),
    Row("acceptEdits and a patch", f"[[write]] {MADE}", EDITS, runs=True, brief=True),
    Row("acceptEdits and a patch elsewhere", f"[[write]] ../{MADE}", EDITS),
    Row("acceptEdits and a patch of what gives permissions", f"[[write]] .claude/{MADE}", EDITS),
    Row("W10 rules of the user's, default", TOUCH, (), {"~/.codex/rules/default.rules": LET_OUT}, brief=True),
    Row("W10 rules of the user's, plan", TOUCH, PLAN, {"~/.codex/rules/default.rules": LET_OUT}),
    Row("W10 files of a trusted project, default", TOUCH, (), OF_THE_PROJECT, trusted=True),
    Row("W10 files of a trusted project, plan", TOUCH, PLAN, OF_THE_PROJECT, trusted=True),
    Row("a whole tool", TOUCH, denied("Bash"), brief=True),
    Row("a whole tool, and another that does the same", f"[[write]] {MADE}", denied("Bash"), runs=True),
    Row("a bare Edit, and a new file", f"[[write]] {MADE}", denied("Edit"), runs=True),
    Row("a bare Write", f"[[write]] {MADE}", denied("Write")),
    Row("W5 a path, and a patch", f"[[write]] secret/{MADE}", denied("Edit(./secret/**)"), brief=True),
    Row("a path, and a patch elsewhere", f"[[write]] {MADE}", denied("Edit(./secret/**)"), runs=True),
    Row("W6 behind a variable", f"[[shell]] A=1 touch {MADE}", denied("Bash(touch:*)")),
    Row("W6 behind a wrapper", f"[[shell]] timeout 5 touch {MADE}", denied("Bash(touch:*)")),
    Row("behind another command", f"[[shell]] true && touch {MADE}", denied("Bash(touch:*)")),
    Row("another command", f"[[shell]] cp hello.txt {MADE}", denied("Bash(touch:*)"), runs=True),
    Row("W16 a redirection", f"[[shell]] echo x > secret/{MADE}", denied("Edit(./secret/**)")),
    Row("a choice of tools", TOUCH, (*BYPASS, "--tools", "Read")),
    Row("W4 a rule that asks", TOUCH, (*BYPASS, "--settings", '{"permissions":{"ask":["Bash(touch:*)"]}}')),
    Row("W13 the user's file", TOUCH, BYPASS, {"~/.claude/settings.json": '{"permissions":{"deny":["Bash"]}}'}),
    Row("N1 an allowed tool", TOUCH, ("--allowedTools", "Bash"), runs=True),
    Row("N1 an allowed command", TOUCH, ("--allowedTools", "Bash(touch:*)"), runs=True, brief=True),
    Row("another than the allowed command", f"[[shell]] cp hello.txt {MADE}", ("--allowedTools", "Bash(touch:*)")),
    Row("N2 an allowed tool in acceptEdits", f"[[shell]] tee {MADE}", (*EDITS, "--allowedTools", "Bash"), runs=True),
    Row("plan and an allowed tool", TOUCH, (*PLAN, "--allowedTools", "Bash")),
)  # fmt: skip


def prepared(frontend: Frontend, row: Row) -> None:
    home = Path(frontend.environment["HOME"])
    (frontend.folder / "secret").mkdir()
    (frontend.folder / "secret" / "kept.txt").write_text(HIDDEN)
    for place, text in row.files.items():
        path = home / place[2:] if place.startswith("~/") else frontend.folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    if row.trusted:
        with (home / ".codex" / "config.toml").open("a") as config:
            config.write(f'\n[projects."{frontend.folder}"]\ntrust_level = "trusted"\n')


def made(frontend: Frontend) -> list[Path]:
    return list(frontend.folder.parent.rglob(MADE))


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.name, marks=[] if row.brief else [pytest.mark.full]) for row in ROWS]
)
def test_a_call_runs_if_the_real_claude_would_have_run_it(frontend: Frontend, model: ScriptedServer, row: Row) -> None:
    prepared(frontend, row)
    run = frontend.run(row.call, *row.flags)
    check_contract(run)
    assert run.exit == 0 and len(model.requests) == 2, run.result
    assert bool(made(frontend)) is row.runs, run.tool_results
    assert bool(run.result["permission_denials"]) is not row.runs


@pytest.mark.full
def test_a_file_that_may_not_be_read_is_not_shown_to_the_model(frontend: Frontend, model: ScriptedServer) -> None:
    """W17: codex reads by commands."""
    prepared(frontend, ROWS[0])
    check_contract(frontend.run("[[shell]] cat secret/kept.txt", *denied("Read(./secret/**)")))
    assert HIDDEN not in json.dumps(model.requests[-1].body)


def stepped(frontend: Frontend, model: Stepping, *steps: tuple[str, dict[str, Any]], flags: tuple[str, ...]) -> Run:
    model.steps = list(steps)
    run = frontend.run(STEP, *flags)
    check_contract(run)
    return run


def test_the_folder_of_a_command_counts(frontend: Frontend, model: Stepping) -> None:
    (frontend.folder / "secret").mkdir()
    there = ("exec_command", {"cmd": f"touch {MADE}", "workdir": str(frontend.folder / "secret")})
    begin, end = PATCHING
    patch = f"{begin}*** Begin Patch\n*** Add File: {MADE}\n+x\n*** End Patch\n{end}"
    also = ("exec_command", {"cmd": patch, "workdir": str(frontend.folder / "secret")})
    run = stepped(frontend, model, there, also, flags=denied("Edit(./secret/**)"))
    assert made(frontend) == [] and len(run.result["permission_denials"]) == 2


SUBAGENT = (
    ("multi_agent_v1.spawn_agent", {"message": "do what is below"}),
    ("multi_agent_v1.wait_agent", {"targets": "agent", "timeout_ms": 20_000}),
)


@pytest.mark.parametrize("rule", ["Bash", pytest.param("Bash(touch:*)", marks=pytest.mark.full), None])
def test_a_subagent_keeps_the_same_rules(frontend: Frontend, model: Stepping, rule: str | None) -> None:
    model.below = [("exec_command", {"cmd": f"touch {MADE}"})]
    stepped(frontend, model, *SUBAGENT, flags=BYPASS if rule is None else denied(rule))
    assert bool(made(frontend)) is (rule is None), [request.messages[-1] for request in model.requests]
    assert any("do what is below" in json.dumps(request.messages) for request in model.requests)


SERVER = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    name = {"name": "tool", "description": "makes a file", "inputSchema": {"type": "object", "properties": {}}}
    results = {
        "initialize": {
            "protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}
        },
        "tools/list": {"tools": [{**name, "annotations": {"readOnlyHint": True}}]},
        "tools/call": {"content": [{"type": "text", "text": "made"}]},
    }
    if message.get("method") == "tools/call":
        open(sys.argv[1], "w").close()
    if "id" in message:
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": results.get(message["method"], {})}
        print(json.dumps(answer), flush=True)
"""


@pytest.mark.parametrize(
    ("flags", "runs"),
    [
        (BYPASS, True),
        (denied("mcp__srv"), False),
        pytest.param(denied("mcp__srv__*"), False, marks=pytest.mark.full),
        pytest.param(denied("mcp__srv__tool"), False, marks=pytest.mark.full),
        pytest.param(denied("mcp__other"), True, marks=pytest.mark.full),
        pytest.param((), False, marks=pytest.mark.full),
        pytest.param(PLAN, False, marks=pytest.mark.full),
        pytest.param(("--allowedTools", "mcp__srv__tool"), True, marks=pytest.mark.full),
    ],
)
def test_a_tool_of_a_server_runs_if_claude_would_run_it(
    frontend: Frontend, model: Stepping, flags: tuple[str, ...], runs: bool
) -> None:
    """W3. codex itself runs what says of itself that it only reads."""
    (frontend.folder.parent / "server.py").write_text(SERVER)
    words = json.dumps([str(frontend.folder.parent / "server.py"), str(frontend.folder / MADE)])
    with (Path(frontend.environment["HOME"]) / ".codex" / "config.toml").open("a") as config:
        config.write(f'\n[mcp_servers.srv]\ncommand = "{sys.executable}"\nargs = {words}\n')
    run = stepped(frontend, model, ("mcp__srv.tool", {}), flags=flags)
    assert bool(made(frontend)) is runs, [request.messages[-1] for request in model.requests]
    assert run.exit == 0


@pytest.mark.full
@pytest.mark.parametrize(
    ("flags", "offered"),
    [(BYPASS, True), ((), False), (denied("WebSearch"), False), (("--allowedTools", "WebSearch"), True)],
)
def test_the_web_is_searched_only_with_leave(
    frontend: Frontend, model: Stepping, flags: tuple[str, ...], offered: bool
) -> None:
    """The model's service searches: no hook sees it."""
    frontend.run("[[text]] hi", *flags)
    tools = [tool["type"] for tool in model.requests[0].body["tools"]]
    assert ("web_search" in tools) is offered
