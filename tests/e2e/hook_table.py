"""Compares the effect of each answer of a frontend's hooks over vendors with the real claude.

A cell is one conversation: a hook answers its first call, and all later calls get an empty answer.
The observations of a conversation are the number of calls, the results, the notices, the files that the
tools made, and the requests in which the model received a text of the hook. A cell is equal if all
observations are those of the real claude. It is named if they differ and the session says so, and described
if the topic `frontends` does. All differences are printed.

    python tests/e2e/hook_table.py [VENDOR ...] [-- EVENT ...]
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from clis import build_isolated_environment, install_drop_in
from model_scripts import ScriptedServer
from programs import install_program
from sandbox import Line, LineProcess
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

VENDORS = (CLAUDE_ITSELF, QWEN, PI, CODEX, GEMINI, OPENCODE, COPILOT, KIMI_CODE)
TALK_ARGS = ("-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose")
BYPASS = ("--permission-mode", "bypassPermissions")
PROMPTS = ("--permission-prompt-tool", "stdio")
MADE, CHANGED = "made.txt", "changed.txt"
FAILS = "error"  # stands for an answer: the callback fails in the frontend
CONTEXT, REASON, STOP_REASON, OUTPUT = "CTX-4711", "WHY-4711", "END-4711", "OUT-4711"
MARKERS = (CONTEXT, REASON, STOP_REASON, OUTPUT)
TEXT, SHELL, FAILING = "[[text]] hello", f"[[shell]] touch {MADE}", "[[shell]] exit 3"
NEXT = "[[text]] next"
AGENT = "<agent>"  # stands for a message that starts a subagent
AGENT_TOOLS = {
    CLAUDE_ITSELF: "Agent",
    CODEX: "mcp__claudeagents.Task",
    GEMINI: "mcp_claudeagents_Task",
    OPENCODE: "claudeagents_Task",
}
AGENTS = {"helper": {"description": "Helps.", "prompt": "You help."}}
# The SDKs' types of a hook's input mark these members as optional. Vendors do not report an effort.
OPTIONAL_INPUT_KEYS = frozenset({"effort"})
# The member that the session names if the answer has a smaller effect.
NAMED_MEMBERS = {
    "decision: block": "reason",
    "deny": "reason",
    "ask": "reason",
    "deny and interrupt": "reason",
    "another event": "reason",
    "allow changed": "updatedInput",
}
# Rows whose differences the topic `frontends` describes: the real claude ends its process after the first,
# and its model receives no reason after the second.
DESCRIBED_ROWS = frozenset(
    (("UserPromptSubmit", "another event"), ("PermissionRequest", "deny and interrupt"))
)
SILENT_SECONDS = 60.0
CONVERSATIONS = 4  # at the same time
# A program that is being written cannot be started, and a fork may hold its file open.
START_LOCK = threading.Lock()


class HookCase(NamedTuple):
    """A row of the table: an event, and what its hook answers to the first call."""

    event: str
    name: str  # the answer in short
    answer: Any
    message: str = TEXT
    flags: Sequence[str] = BYPASS

    def __str__(self) -> str:
        return f"{self.event}: {self.name}"


def build_output(event: str, **fields: object) -> Line:
    return {"hookSpecificOutput": {"hookEventName": event, **fields}}


def build_decision(**decision: object) -> Line:
    return build_output("PermissionRequest", decision=decision)


BLOCK: Line = {"decision": "block", "reason": REASON}
END: Line = {"continue": False, "stopReason": STOP_REASON}
MESSAGE: Line = {"systemMessage": "for the user"}


def _list_common_cases(event: str, message: str) -> list[HookCase]:
    """Return the rows that most events have."""
    other_event = "Stop" if event != "Stop" else "PostToolUse"
    return [
        HookCase(
            event, "additionalContext", build_output(event, additionalContext=CONTEXT), message
        ),
        HookCase(event, "decision: block", BLOCK, message),
        HookCase(event, "continue: false", END, message),
        HookCase(event, "systemMessage", MESSAGE, message),
        HookCase(
            event, "another event", build_output(other_event, additionalContext=CONTEXT), message
        ),
        HookCase(event, "failure", FAILS, message),
    ]


CASES: Sequence[HookCase] = (
    *_list_common_cases("UserPromptSubmit", TEXT),
    *_list_common_cases("PreToolUse", SHELL),
    *(
        HookCase("PreToolUse", name, build_output("PreToolUse", **fields), SHELL, flags)
        for name, fields, flags in (
            ("allow", {"permissionDecision": "allow"}, ()),
            ("deny", {"permissionDecision": "deny", "permissionDecisionReason": REASON}, BYPASS),
            ("ask", {"permissionDecision": "ask", "permissionDecisionReason": REASON}, BYPASS),
            (
                "updatedInput",
                {"permissionDecision": "allow", "updatedInput": {"command": f"touch {CHANGED}"}},
                BYPASS,
            ),
        )
    ),
    *_list_common_cases("PostToolUse", SHELL),
    HookCase(
        "PostToolUse",
        "updatedToolOutput",
        build_output(
            "PostToolUse",
            updatedToolOutput={
                "stdout": OUTPUT,
                "stderr": "",
                "interrupted": False,
                "isImage": False,
            },
        ),
        SHELL,
    ),
    *_list_common_cases("PostToolUseFailure", FAILING),
    *_list_common_cases("Stop", TEXT),
    *(
        HookCase("PermissionRequest", f"{name}{suffix}", answer, SHELL, flags)
        for suffix, flags in ((", with a prompt", PROMPTS), ("", ()))
        for name, answer in (
            ("allow", build_decision(behavior="allow")),
            ("allow changed", build_decision(behavior="allow", updatedInput={"command": f"touch {CHANGED}"})),
            ("deny", build_decision(behavior="deny", message=REASON)),
            ("deny and interrupt", build_decision(behavior="deny", message=REASON, interrupt=True)),
        )
    ),
    HookCase("PermissionRequest", "nothing", {}, SHELL, ()),
    HookCase("PermissionRequest", "decision: block", BLOCK, SHELL, ()),
    HookCase("PreCompact", "nothing", {}, "/compact"),
    HookCase("PreCompact", "decision: block", BLOCK, "/compact"),
    HookCase("PreCompact", "continue: false", END, "/compact"),
    HookCase("PostCompact", "nothing", {}, "/compact"),
    HookCase(
        "SessionStart", "additionalContext", build_output("SessionStart", additionalContext=CONTEXT), "/clear"
    ),
    HookCase("SessionStart", "without /clear", {}),
    HookCase("SessionEnd", "nothing", {}, "/clear"),
    HookCase("SessionEnd", "without /clear", {}),
    *_list_common_cases("SubagentStart", AGENT)[:3],
    *_list_common_cases("SubagentStop", AGENT)[:3],
    HookCase("StopFailure", "nothing", {}, "[[error]] 401"),
    HookCase("Notification", "nothing", {}, SHELL),
    HookCase("PostToolBatch", "nothing", {}, SHELL),
    HookCase("MessageDisplay", "nothing", {}, SHELL),
)  # fmt: skip


class Cell(NamedTuple):
    """What happened in one conversation.

    observations         compared with the real claude
    named_events  the hooks that `init.shim.not_honoured` lists
    stderr        the end of stderr
    """

    observations: Mapping[str, Any]
    named_events: frozenset[str] = frozenset()
    stderr: str = ""


class HookedSession:
    """A conversation with one hook, in a sandbox of its own."""

    def __init__(self, vendor: Vendor, case: HookCase, server: ScriptedServer, root: Path) -> None:
        self.vendor = vendor
        self.case = case
        self.server = server
        program = install_program(vendor.package)
        environment = build_isolated_environment(vendor, program, server.url, root)
        environment["IS_SANDBOX"] = "1"  # otherwise the real claude lets root bypass nothing
        claude = program.executable
        if vendor is not CLAUDE_ITSELF:
            claude = install_drop_in(vendor, environment, root)
        self.folder = root / "work"
        self.folder.mkdir(exist_ok=True)
        argv = [str(claude), *TALK_ARGS, *vendor.claude_flags, *case.flags]
        self.process = LineProcess(argv, self.folder, environment)
        self.inputs: list[Line] = []
        self.lines: list[Line] = []

    def run(self) -> Cell:
        hooks = {self.case.event: [{"hookCallbackIds": ["hook"]}]}
        request = {"subtype": "initialize", "hooks": hooks, "agents": AGENTS}
        self._send({"type": "control_request", "request_id": "init", "request": request})
        messages = [self.case.message, NEXT]
        if self.case.message.startswith("/"):
            messages.insert(0, TEXT)
        results = []
        requests = []
        for message in messages:
            first_request = len(self.server.requests)
            results.append(self._ask(self._write_message(message)))
            requests.append(
                [json.dumps(r.body) for r in self.server.requests[first_request:] if r.offered]
            )
        self.process.close_stdin()
        self.process.read_to_end()
        return self._build_cell(results, requests)

    def build_partial_observations(self) -> dict[str, Any]:
        """Return the observations of a conversation that has ended early."""
        results = [line for line in self.lines if line["type"] == "result"]
        return {"calls": len(self.inputs), "results": [_describe_result(line) for line in results]}

    def _write_message(self, message: str) -> str:
        if message != AGENT:
            return message
        tool = AGENT_TOOLS.get(self.vendor, "mcp__claudeagents__Task")
        tool_input = {"description": "x", "prompt": TEXT, "subagent_type": "helper"}
        if self.vendor is CLAUDE_ITSELF:
            tool_input |= {"run_in_background": False}
        return f"[[call]] {tool} {json.dumps(tool_input)}"

    def _send(self, line: Line) -> None:
        self.process.send(line)

    def _ask(self, message: str) -> Line:
        """Send a message, answer its hooks, and return its result. Permission prompts stay open."""
        self._send({"type": "user", "message": {"role": "user", "content": message}})
        while True:
            line = self.process.read_until(lambda line: True, SILENT_SECONDS)
            self.lines.append(line)
            if line["type"] == "result":
                return line
            if line["type"] == "control_request" and line["request"]["subtype"] == "hook_callback":
                self._answer(line)

    def _answer(self, line: Line) -> None:
        answer = {} if self.inputs else self.case.answer
        self.inputs.append(line["request"]["input"])
        response: Line = {"subtype": "success", "response": answer}
        if answer == FAILS:
            response = {"subtype": "error", "error": "the callback has failed"}
        response["request_id"] = line["request_id"]
        self._send({"type": "control_response", "response": response})

    def _build_cell(self, results: Sequence[Line], requests: Sequence[Sequence[str]]) -> Cell:
        notices = [
            line.get("level")
            for line in self.lines
            if line["type"] == "system" and line["subtype"] == "informational"
        ]
        observations = {
            "calls": len(self.inputs),
            "input keys": sorted({*self.inputs[0]} - OPTIONAL_INPUT_KEYS) if self.inputs else [],
            "results": [_describe_result(result) for result in results],
            "notices": notices,
            "cancelled prompts": sum(
                line["type"] == "control_cancel_request" for line in self.lines
            ),
            "files": sorted(name for name in (MADE, CHANGED) if (self.folder / name).exists()),
            "model received": {
                marker: position
                for marker in MARKERS
                if (position := _find_first(requests, marker)) is not None
            },
            # A vendor may compact with or without tools, and has no request for a command of ours.
            "asked the model": [bool(requests[0]), bool(requests[-1])],
        }
        inits = [line for line in self.lines if line.get("subtype") == "init"]
        entries = [
            entry for init in inits for entry in (init.get("shim") or {}).get("not_honoured", ())
        ]
        named = frozenset(entry["what"].removeprefix("hooks.") for entry in entries)
        return Cell(observations, named, self.process.stderr[-500:])


def _describe_result(result: Line) -> str:
    reason = result.get("terminal_reason") or result.get("local_command") or ""
    return f"{result['subtype']} {'error' if result['is_error'] else 'ok'} {reason}".strip()


def _find_first(requests: Sequence[Sequence[str]], marker: str) -> int | None:
    """Return the number of the first message whose requests to the model contain the marker."""
    for number, turn in enumerate(requests):
        if any(marker in request for request in turn):
            return number
    return None


def observe_case(vendor: Vendor, case: HookCase) -> Cell:
    """Run the conversation of a cell. A program that stays silent is a fact, too."""
    with tempfile.TemporaryDirectory() as folder, vendor.server() as server:
        with START_LOCK:
            session = HookedSession(vendor, case, server, Path(folder))
        try:
            return session.run()
        except AssertionError as error:
            observations = {
                **session.build_partial_observations(),
                "failure": str(error).splitlines()[0][:100],
            }
            return Cell(observations, stderr=session.process.stderr)
        finally:
            session.process.close()


def list_differences(real: Cell, ours: Cell) -> list[str]:
    """Return the observations of a cell that are not those of the real claude."""
    return [
        f"{name}: {_shorten(real.observations.get(name))} ≠ {_shorten(ours.observations.get(name))}"
        for name in dict.fromkeys((*real.observations, *ours.observations))
        if real.observations.get(name) != ours.observations.get(name)
    ]


def _shorten(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)[:160]


def is_named(case: HookCase, ours: Cell) -> bool:
    """Return whether the session says that this answer has a smaller effect."""
    answer = case.name.partition(",")[0]
    member = NAMED_MEMBERS.get(answer, answer)
    return bool({case.event, f"{case.event}.{member}"} & ours.named_events)


def classify_difference(case: HookCase, ours: Cell) -> str:
    """Return "named", "described" or "DIFFERENT" for a cell that differs from the real claude."""
    if is_named(case, ours):
        return "named"
    if (case.event, case.name.partition(",")[0]) in DESCRIBED_ROWS:
        return "described"
    return "DIFFERENT"


def print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def print_row(case: HookCase, real: Cell, cells: Mapping[str, Cell]) -> None:
    """Print one row of the table, and the differences that no session names."""
    outcomes = []
    notes = []
    for name, ours in cells.items():
        differences = list_differences(real, ours)
        outcome = "equal"
        if differences:
            outcome = classify_difference(case, ours)
            notes.append(f"    {name} ({outcome}): {'; '.join(differences)}")
        outcomes.append(outcome)
    print_line(f"| {case.event} | {case.name} | {' | '.join(outcomes)} |")
    for note in notes:
        print_line(note)


def main(arguments: Sequence[str]) -> None:
    """Print the table for the named vendors and events, or for all of them."""
    names, events = list(arguments), []
    if "--" in names:
        position = names.index("--")
        events = names[position + 1 :]
        del names[position:]
    if unknown := {*names} - {vendor.name for vendor in VENDORS[1:]}:
        sys.exit(f"unknown vendors: {', '.join(sorted(unknown))}")
    chosen = [vendor for vendor in VENDORS[1:] if not names or vendor.name in names]
    print_line(f"| event | answer | {' | '.join(vendor.name for vendor in chosen)} |")
    print_line("|---|---|" + "---|" * len(chosen))
    for case in CASES:
        if not events or case.event in events:
            with ThreadPoolExecutor(CONVERSATIONS) as pool:
                real, *ours = pool.map(
                    observe_case, (CLAUDE_ITSELF, *chosen), [case] * (len(chosen) + 1)
                )
            cells = {vendor.name: cell for vendor, cell in zip(chosen, ours, strict=True)}
            print_row(case, real, cells)


if __name__ == "__main__":
    main(sys.argv[1:])
