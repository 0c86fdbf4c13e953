"""codex and copilot with the drop-in run what the real claude would run with the same rules, and
nothing else.

The shim's hook runs before each call: of a command, a patch, an MCP tool, a subagent. The file that
a call would create shows whether the call ran.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from frontend import DropInFrontend, DropInRun, check_contract
from model_scripts import (
    PATCHING,
    REPLY_AFTER_TOOL,
    ModelRequest,
    ScriptedAnswer,
    ScriptedCall,
    ScriptedServer,
)
from model_server import ModelServer
from responses_server import ResponsesServer
from sandbox import LineProcess, wait_until
from vendor_setups import CODEX, COPILOT, Vendor

STEP = "step by step"  # the prompt of a script without a tag


class Stepping(ScriptedServer):
    """A model that makes the calls of `steps`, one per reply, and in a subagent those of
    `subagent_steps`.
    """

    steps: list[tuple[str, dict[str, Any]]]
    subagent_steps: list[tuple[str, dict[str, Any]]]

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.subagent_steps = [], []

    def _choose_answer(self, request: ModelRequest, number: int) -> ScriptedAnswer:
        if request.script != "hidden":
            return super()._choose_answer(request, number)
        results = [
            message
            for message in request.messages
            if str(message.get("type")).endswith("_output") or message.get("role") == "tool"
        ]
        user_text = json.dumps([item for item in request.messages if item.get("role") == "user"])
        steps = self.subagent_steps if "do what is below" in user_text else self.steps
        for name, tool_input in steps[len(results) : len(results) + 1]:
            call_input = dict(tool_input)
            if name.endswith("wait_agent"):
                call_input["targets"] = [json.loads(results[0]["output"])["agent_id"]]
            return ScriptedAnswer(
                "A step.", calls=(ScriptedCall(f"call_{number}", name, call_input),)
            )
        return ScriptedAnswer(REPLY_AFTER_TOOL)


class SteppingResponses(Stepping, ResponsesServer):
    """The same for codex."""


class SteppingCompletions(Stepping, ModelServer):
    """The same for copilot."""


pytestmark = pytest.mark.e2e
STEPPING_CODEX = replace(CODEX, server=SteppingResponses)
STEPPING_COPILOT = replace(COPILOT, server=SteppingCompletions)
of_codex = pytest.mark.parametrize("vendor", [STEPPING_CODEX], indirect=True, ids=str)

BYPASS = ("--dangerously-skip-permissions",)
EDITS = ("--permission-mode", "acceptEdits")
PLAN = ("--permission-mode", "plan")
MADE = "made"
HIDDEN = "what nobody may read"
TOUCH = f"[[shell]] touch {MADE}"
LET_OUT = 'prefix_rule(pattern=["touch"], decision="allow")\n'
PROGRAM = f"[[shell]] python3 -c \"open('{MADE}','w')\""
ALLOW = json.dumps({"permissionDecision": "allow"})
ALLOWING = json.dumps(
    {"version": 1, "hooks": {"preToolUse": [{"type": "command", "bash": f"echo '{ALLOW}'"}]}}
)
OF_THE_PROJECT = {
    ".codex/rules/default.rules": LET_OUT,
    ".codex/config.toml": 'sandbox_mode = "danger-full-access"\n',
}


@dataclass(frozen=True)
class Case:
    """Flags, files below home ("~") or the folder, and a call, which has "@" before a path.

    `runs`: the real claude runs it. `only_vendor` is the only vendor that knows such files.
    """

    name: str
    call: str
    flags: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    trusted: bool = False  # the person trusts the folder, as codex requires
    runs: bool = False
    brief: bool = False  # in the short run too
    only_vendor: Vendor | None = None

    def __str__(self) -> str:
        return self.name


def build_deny_flags(rule: str) -> tuple[str, ...]:
    return (*BYPASS, "--disallowedTools", rule)


CASES = (
    Case("W15 a program in acceptEdits", f"[[shell]] python3 -c \"open('{MADE}','w')\"", EDITS, brief=True),
    Case("W15 a file beside the folder", f"[[shell]] touch ../{MADE}", EDITS),
    Case("W15 a file in the temporary folder", f"[[shell]] touch $TMPDIR/{MADE}", EDITS),
    Case("acceptEdits and a command that edits", TOUCH, EDITS, runs=True),
    Case("acceptEdits and a patch", f"[[write]] @{MADE}", EDITS, runs=True, brief=True),
    Case("acceptEdits and a patch elsewhere", f"[[write]] @../{MADE}", EDITS),
    Case("acceptEdits and a patch of what gives permissions", f"[[write]] @.claude/{MADE}", EDITS),
    Case("W10 rules of the user's", TOUCH, (), {"~/.codex/rules/default.rules": LET_OUT}, only_vendor=CODEX,
         brief=True),
    Case("W10 rules of the user's, plan", TOUCH, PLAN, {"~/.codex/rules/default.rules": LET_OUT}, only_vendor=CODEX),
    Case("W10 files of a trusted project, default", TOUCH, (), OF_THE_PROJECT, only_vendor=CODEX, trusted=True),
    Case("W10 files of a trusted project, plan", TOUCH, PLAN, OF_THE_PROJECT, only_vendor=CODEX, trusted=True),
    Case("W10 a hook of the user's", PROGRAM, (), {"~/.copilot/hooks/a.json": ALLOWING}, only_vendor=COPILOT),
    Case("a whole tool", TOUCH, build_deny_flags("Bash"), brief=True),
    Case("a whole tool, and another that does the same", f"[[write]] @{MADE}", build_deny_flags("Bash"), runs=True),
    Case("a bare Edit, and a new file", f"[[write]] @{MADE}", build_deny_flags("Edit"), runs=True),
    Case("a bare Write", f"[[write]] @{MADE}", build_deny_flags("Write")),
    Case("W5 a path, and a patch", f"[[write]] @secret/{MADE}", build_deny_flags("Edit(./secret/**)"), brief=True),
    Case("a path, and a patch elsewhere", f"[[write]] @{MADE}", build_deny_flags("Edit(./secret/**)"), runs=True),
    Case("W6 behind a variable", f"[[shell]] A=1 touch {MADE}", build_deny_flags("Bash(touch:*)")),
    Case("W6 behind a wrapper", f"[[shell]] timeout 5 touch {MADE}", build_deny_flags("Bash(touch:*)")),
    Case("behind another command", f"[[shell]] true && touch {MADE}", build_deny_flags("Bash(touch:*)")),
    Case("another command", f"[[shell]] cp hello.txt {MADE}", build_deny_flags("Bash(touch:*)"), runs=True),
    Case("W16 a redirection", f"[[shell]] echo x > secret/{MADE}", build_deny_flags("Edit(./secret/**)")),
    Case("a choice of tools", TOUCH, (*BYPASS, "--tools", "Read")),
    Case("W4 a rule that asks", TOUCH, (*BYPASS, "--settings", '{"permissions":{"ask":["Bash(touch:*)"]}}')),
    Case("W13 the user's file", TOUCH, BYPASS, {"~/.claude/settings.json": '{"permissions":{"deny":["Bash"]}}'}),
    Case("N1 an allowed tool", TOUCH, ("--allowedTools", "Bash"), runs=True),
    Case("N1 an allowed command", TOUCH, ("--allowedTools", "Bash(touch:*)"), runs=True, brief=True),
    Case("another than the allowed command", f"[[shell]] cp hello.txt {MADE}", ("--allowedTools", "Bash(touch:*)")),
    Case("N2 an allowed tool in acceptEdits", f"[[shell]] tee {MADE}", (*EDITS, "--allowedTools", "Bash"), runs=True),
    Case("plan and an allowed tool", TOUCH, (*PLAN, "--allowedTools", "Bash")),
)  # fmt: skip


def prepare_files(frontend: DropInFrontend, case: Case) -> None:
    home_folder = Path(frontend.environment["HOME"])
    (frontend.folder / "secret").mkdir()
    (frontend.folder / "secret" / "kept.txt").write_text(HIDDEN)
    for location, text in case.files.items():
        path = (
            home_folder / location[2:] if location.startswith("~/") else frontend.folder / location
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    if case.trusted:
        with (home_folder / ".codex" / "config.toml").open("a") as config:
            config.write(f'\n[projects."{frontend.folder}"]\ntrust_level = "trusted"\n')


def list_created_files(frontend: DropInFrontend) -> list[Path]:
    return list(frontend.folder.parent.rglob(MADE))


CELLS = [
    pytest.param(vendor, case, id=f"{vendor}-{case}", marks=[pytest.mark.full] * (not case.brief))
    for vendor in (CODEX, COPILOT)
    for case in CASES
    if case.only_vendor in (None, vendor)
]


@pytest.mark.parametrize(("vendor", "case"), CELLS, indirect=["vendor"])
def test_call_runs_only_if_claude_would_run_the_call(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor, case: Case
) -> None:
    prepare_files(frontend, case)
    script, at, path = case.call.partition("@")
    path_argument = path if vendor is CODEX else str(frontend.folder / path)
    run = frontend.run_prompt(script + (path_argument if at else ""), *case.flags)
    check_contract(run)
    assert run.exit == 0 and len(model.requests) == 2, run.result
    assert bool(list_created_files(frontend)) is case.runs, run.tool_results
    assert bool(run.result["permission_denials"]) is not case.runs


@pytest.mark.full
@pytest.mark.parametrize("vendor", [CODEX, COPILOT], indirect=True, ids=str)
def test_file_denied_for_reading_is_not_sent_to_the_model(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor
) -> None:
    """W17: codex reads files by commands."""
    prepare_files(frontend, CASES[0])
    check_contract(
        frontend.run_prompt("[[shell]] cat secret/kept.txt", *build_deny_flags("Read(./secret/**)"))
    )
    assert HIDDEN not in json.dumps(model.requests[-1].body)


def run_steps(
    frontend: DropInFrontend,
    model: Stepping,
    *steps: tuple[str, dict[str, Any]],
    flags: tuple[str, ...],
) -> DropInRun:
    model.steps = list(steps)
    run = frontend.run_prompt(STEP, *flags)
    check_contract(run)
    return run


@of_codex
def test_rule_applies_to_the_working_directory_of_a_command(
    frontend: DropInFrontend, model: Stepping
) -> None:
    (frontend.folder / "secret").mkdir()
    first_call = (
        "exec_command",
        {"cmd": f"touch {MADE}", "workdir": str(frontend.folder / "secret")},
    )
    patch_start, end = PATCHING
    patch = f"{patch_start}*** Begin Patch\n*** Add File: {MADE}\n+x\n*** End Patch\n{end}"
    also = ("exec_command", {"cmd": patch, "workdir": str(frontend.folder / "secret")})
    run = run_steps(frontend, model, first_call, also, flags=build_deny_flags("Edit(./secret/**)"))
    assert list_created_files(frontend) == [] and len(run.result["permission_denials"]) == 2


SUBAGENTS = {
    STEPPING_CODEX: (
        ("multi_agent_v1.spawn_agent", {"message": "do what is below"}),
        ("multi_agent_v1.wait_agent", {"targets": "agent", "timeout_ms": 20_000}),
    ),
    STEPPING_COPILOT: (
        (
            "task",
            {
                "description": "a part",
                "prompt": "do what is below",
                "agent_type": "general-purpose",
                "name": "part",
            },
        ),
    ),
}
SHELLS = {
    STEPPING_CODEX: ("exec_command", {"cmd": f"touch {MADE}"}),
    STEPPING_COPILOT: ("bash", {"command": f"touch {MADE}", "description": "make a file"}),
}


@pytest.mark.parametrize(
    ("vendor", "rule"),
    [
        pytest.param(
            vendor, rule, id=f"{vendor}-{rule}", marks=[pytest.mark.full] * (rule != "Bash")
        )
        for vendor in SUBAGENTS
        for rule in ("Bash", "Bash(touch:*)", None)
    ],
    indirect=["vendor"],
)
def test_subagent_calls_follow_the_same_rules(
    frontend: DropInFrontend, model: Stepping, vendor: Vendor, rule: str | None
) -> None:
    """W2."""
    model.subagent_steps = [SHELLS[vendor]]
    run_steps(
        frontend,
        model,
        *SUBAGENTS[vendor],
        flags=BYPASS if rule is None else build_deny_flags(rule),
    )
    assert bool(list_created_files(frontend)) is (rule is None), [
        request.messages[-1] for request in model.requests
    ]
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


@of_codex
@pytest.mark.parametrize(
    ("flags", "runs"),
    [
        (BYPASS, True),
        (build_deny_flags("mcp__srv"), False),
        pytest.param(build_deny_flags("mcp__srv__*"), False, marks=pytest.mark.full),
        pytest.param(build_deny_flags("mcp__srv__tool"), False, marks=pytest.mark.full),
        pytest.param(build_deny_flags("mcp__other"), True, marks=pytest.mark.full),
        pytest.param((), False, marks=pytest.mark.full),
        pytest.param(PLAN, False, marks=pytest.mark.full),
        pytest.param(("--allowedTools", "mcp__srv__tool"), True, marks=pytest.mark.full),
    ],
)
def test_mcp_tool_runs_only_if_claude_would_run_the_tool(
    frontend: DropInFrontend, model: Stepping, flags: tuple[str, ...], runs: bool
) -> None:
    """W3. codex itself runs a tool that claims to be read-only."""
    (frontend.folder.parent / "server.py").write_text(SERVER)
    server_args = json.dumps(
        [str(frontend.folder.parent / "server.py"), str(frontend.folder / MADE)]
    )
    with (Path(frontend.environment["HOME"]) / ".codex" / "config.toml").open("a") as config:
        config.write(f'\n[mcp_servers.srv]\ncommand = "{sys.executable}"\nargs = {server_args}\n')
    run = run_steps(frontend, model, ("mcp__srv.tool", {}), flags=flags)
    assert bool(list_created_files(frontend)) is runs, [
        request.messages[-1] for request in model.requests
    ]
    assert run.exit == 0


@of_codex
@pytest.mark.full
@pytest.mark.parametrize(
    ("flags", "offered"),
    [
        (BYPASS, True),
        ((), False),
        (build_deny_flags("WebSearch"), False),
        (("--allowedTools", "WebSearch"), True),
    ],
)
def test_web_search_is_offered_only_if_allowed(
    frontend: DropInFrontend, model: Stepping, flags: tuple[str, ...], offered: bool
) -> None:
    """The model's service searches, so no hook sees it."""
    frontend.run_prompt("[[text]] hi", *flags)
    tools = [tool["type"] for tool in model.requests[0].body["tools"]]
    assert ("web_search" in tools) is offered


@pytest.mark.full
@pytest.mark.parametrize("vendor", [STEPPING_CODEX, STEPPING_COPILOT], indirect=True, ids=str)
@pytest.mark.parametrize("narrows", [True, False])
def test_stricter_mode_set_during_a_call_applies_to_the_next_call(
    frontend: DropInFrontend, model: Stepping, vendor: Vendor, narrows: bool
) -> None:
    name, tool_input = SHELLS[vendor]
    key = "cmd" if "cmd" in tool_input else "command"
    model.steps = [
        (name, tool_input | {key: line}) for line in (f"touch {MADE}1 && sleep 8", f"touch {MADE}2")
    ]
    talk = ("-p", "--verbose", "--input-format", "stream-json", "--output-format", "stream-json")
    argv = [
        str(frontend.claude),
        *talk,
        *frontend.extra_args,
        *EDITS,
        "--allowedTools",
        "Bash(sleep:*)",
    ]
    process = LineProcess(argv, frontend.folder, frontend.environment)
    frontend.started.append(process)
    process.send({"type": "user", "message": {"role": "user", "content": STEP}})
    assert wait_until((frontend.folder / f"{MADE}1").exists, 60.0)
    if narrows:
        request = {"subtype": "set_permission_mode", "mode": "default"}
        process.send({"type": "control_request", "request_id": "order", "request": request})
    process.read_until(lambda line: line["type"] == "result")
    assert (frontend.folder / f"{MADE}2").exists() is not narrows
