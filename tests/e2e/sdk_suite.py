"""Runs the end-to-end tests of the Claude Agent SDK for Python over vendors, and prints a table.

The tests are only in the SDK's public repository, so the path of a checkout is an argument. Each
test asks its model in plain words to run a command, call a tool or reply with a word. The scripted
models of this folder follow these instructions. The real claude runs first: its tests must pass.

    python tests/e2e/sdk_suite.py CHECKOUT [VENDOR ...] [-- PYTEST-ARGUMENTS]
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clis import build_isolated_environment, install_drop_in
from model_scripts import (
    ERROR_MESSAGES,
    REPLY,
    REPLY_AFTER_TOOL,
    REPLY_BEFORE_TOOL,
    REPLY_TO_HIDDEN_REQUEST,
    Failure,
    Json,
    ModelRequest,
    ScriptedAnswer,
    ScriptedCall,
    build_tool_call,
    join_message_text,
)
from programs import install_program, install_python_package
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
SUITE_SECONDS = 1800.0  # for all tests of one vendor
TEST_SECONDS = 120.0

# Instructions in a prompt, and the steps of the model that follow from them. A step is a kind of tool
# and its argument. In the argument, `*` is the pattern's group.
INSTRUCTIONS: Sequence[tuple[str, Sequence[tuple[str, str]]]] = (
    (
        r"First use the greet tool",
        (("mcp", 'test__greet {"name": "A"}'), ("mcp", 'test__echo {"text": "b"}')),
    ),
    (
        r"Call mcp__(\w+)__echo with .* and mcp__\w+__greet",
        (("mcp", '*__echo {"text": "b"}'), ("mcp", '*__greet {"name": "A"}')),
    ),
    (r"Call the mcp__(\w+) tool", (("mcp", '* {"text": "a"}'),)),
    (r"Run(?: the command| this bash command)?: ([^\n]+)", (("shell", "*"),)),
    (r"Use the Write tool to create the file (\S+)", (("write", "*"),)),
    (r"Use the Agent tool exactly once with subagent_type '(\w+)'", (("agent", "*"),)),
    (r"Reply with(?: exactly)?: (\w+)", (("say", "*"),)),
    (r"\bThink\b", (("think", REPLY),)),
    (r"Count how many Python files", (("json", '{"file_count": 3, "has_tests": true}'),)),
    (
        r"Analyze this text",
        (
            (
                "json",
                '{"analysis": {"word_count": 2, "character_count": 11},'
                ' "words": ["Hello", "world"]}',
            ),
        ),
    ),
    (r"Search for test files", (("json", '{"has_tests": true, "test_framework": "pytest"}'),)),
    (r"Count how many files", (("json", '{"file_count": 3, "has_readme": true}'),)),
)

# Vendors' tools for subagents: the name, and the names of the parameters for the agent's type and
# its prompt.
AGENT_TOOLS: Sequence[tuple[str, str, str]] = (
    ("Agent", "subagent_type", "prompt"),
    ("Task", "subagent_type", "prompt"),
    ("agent", "subagent_type", "prompt"),
    ("task.subagent_type", "subagent_type", "prompt"),
    ("task.agent_type", "agent_type", "prompt"),
    ("invoke_agent", "agent_name", "prompt"),
    ("spawn_agent", "agent_type", "message"),
)
THOUGHT = "2 and 2: that is 4, which is not in doubt."
STRUCTURED_OUTPUT = "StructuredOutput"  # the real claude's tool for answers with a schema


class InstructedServer:
    """Selects the model's answer by the instructions in the last prompt, for any API."""

    def answer_request(
        self: Any, body: Json, offered: Sequence[str]
    ) -> tuple[int, ModelRequest, ScriptedAnswer | Failure]:
        """Store the request. Return its number from 1, the request, and its answer."""
        request = ModelRequest(body, offered, "suite", "", None)
        with self._lock:
            self.requests.append(request)
            number = len(self.requests)
        if "nonexistent" in request.model:
            return number, request, Failure(404, ERROR_MESSAGES[404])
        if not offered:
            return number, request, ScriptedAnswer(REPLY_TO_HIDDEN_REQUEST)
        return number, request, self._follow_instructions(request, number)

    def _follow_instructions(self: Any, request: ModelRequest, number: int) -> ScriptedAnswer:
        steps, done_steps = self._find_steps(request)
        if done_steps >= len(steps):
            return ScriptedAnswer(REPLY_AFTER_TOOL if steps else REPLY)
        kind, argument = steps[done_steps]
        if kind in ("say", "think"):
            return ScriptedAnswer(argument, THOUGHT if kind == "think" else "")
        if kind == "json" and STRUCTURED_OUTPUT not in request.offered:
            return ScriptedAnswer(argument)
        call = _build_call(kind, argument, request, f"call_{number}")
        return ScriptedAnswer(REPLY_BEFORE_TOOL, calls=(call,))

    def _find_steps(self: Any, request: ModelRequest) -> tuple[Sequence[tuple[str, str]], int]:
        """Return the steps of the last message with instructions, and the number of tool results
        after this message.
        """
        result_count = 0
        for message in reversed(request.messages):
            if self.find_tool_result(message) is not None:
                result_count += 1
            if message.get("role") == "user":
                text = join_message_text(message)
                for pattern, steps in INSTRUCTIONS:
                    if match := re.search(pattern, text):
                        group = match[match.lastindex or 0]
                        filled = [(kind, argument.replace("*", group)) for kind, argument in steps]
                        return filled, result_count
        return (), 0


def _build_call(kind: str, argument: str, request: ModelRequest, call_id: str) -> ScriptedCall:
    if kind == "json":
        return ScriptedCall(call_id, STRUCTURED_OUTPUT, json.loads(argument))
    if kind == "mcp":
        tool, _, input_json = argument.partition(" ")
        return ScriptedCall(call_id, _find_mcp_tool(tool, request), json.loads(input_json))
    if kind == "agent":
        for name, type_key, prompt_key in AGENT_TOOLS:
            if name in request.offered:
                tool_input: Json = {
                    type_key: argument,
                    prompt_key: "say hi",
                    "description": "say hi",
                }
                if name == "Agent":
                    tool_input["run_in_background"] = False
                return ScriptedCall(call_id, name.partition(".")[0], tool_input)
        return ScriptedCall(call_id, "Agent", {"subagent_type": argument, "prompt": "say hi"})
    return build_tool_call(kind, argument, request.offered, call_id)


def _find_mcp_tool(tool: str, request: ModelRequest) -> str:
    """Return the vendor's name of an MCP tool. The argument is `SERVER__TOOL`. If the tool is not
    offered, return Claude's name: the real claude knows it all the same.
    """
    claude_name = f"mcp__{tool}"
    tool = tool.rpartition("__")[2]
    for name in request.offered:
        if name.endswith(tool) and name != tool:
            return name
    namespaces = [
        str(entry.get("name"))
        for entry in request.body.get("tools") or []
        for inner in entry.get("tools") or []
        if inner.get("name") == tool
    ]
    return f"{namespaces[0]}.{tool}" if namespaces else claude_name


def run_suite(vendor: Vendor, checkout: Path, pytest_arguments: Sequence[str]) -> Mapping[str, str]:
    """Run the tests over one vendor. Return "passed" or the failure's text by the test's name."""
    server_class = type("Server", (InstructedServer, vendor.server), {})
    with tempfile.TemporaryDirectory() as folder, server_class() as server:
        root = Path(folder)
        program = install_program(vendor.package)
        environment = build_isolated_environment(vendor, program, server.url, root)
        claude = program.executable
        if vendor is not CLAUDE_ITSELF:
            claude = install_drop_in(vendor, environment, root)
        environment |= {
            "PATH": f"{claude.parent}{os.pathsep}{environment['PATH']}",
            "PYTHONPATH": f"{checkout / 'src'}{os.pathsep}{install_python_package('newest')}",
            "ANTHROPIC_API_KEY": "sk-dummy",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        report = root / "report.xml"
        work = root / "work"
        work.mkdir(exist_ok=True)
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"),
            *("-c", "/dev/null", "--rootdir", str(checkout), f"--junitxml={report}"),
            *(str(checkout / "e2e-tests"), *pytest_arguments),
        ]
        process = subprocess.run(
            command,
            cwd=work,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SUITE_SECONDS,
            check=False,
        )
        if not report.exists():
            raise SystemExit(process.stdout.decode(errors="replace"))
        return dict(_read_report(report))


def _read_report(report: Path) -> Iterator[tuple[str, str]]:
    for case in ElementTree.parse(report).iter("testcase"):
        failure = case.find("failure")
        if failure is None:
            failure = case.find("error")
        outcome = "passed" if failure is None else failure.get("message") or "failed"
        yield str(case.get("name")), outcome


def print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def print_table(outcomes: Mapping[str, Mapping[str, str]]) -> None:
    """Print a table of tests and vendors, the failures, and the number of passed tests."""
    names = list(dict.fromkeys(name for column in outcomes.values() for name in column))
    print_line(f"| test | {' | '.join(outcomes)} |")
    print_line("|---|" + "---|" * len(outcomes))
    for name in names:
        cells = [
            "✓" if column.get(name) == "passed" else "–" if name not in column else "✗"
            for column in outcomes.values()
        ]
        print_line(f"| {name} | {' | '.join(cells)} |")
    for vendor, column in outcomes.items():
        print_line(f"\n{vendor}: {list(column.values()).count('passed')} of {len(column)} passed")
        for name, outcome in column.items():
            if outcome != "passed":
                print_line(f"  {name}: {outcome[:300]}")


def main(arguments: Sequence[str]) -> None:
    """Run the suite over the named vendors, or over all of them."""
    own_arguments, pytest_arguments = list(arguments), []
    if "--" in own_arguments:
        position = own_arguments.index("--")
        pytest_arguments = own_arguments[position + 1 :]
        del own_arguments[position:]
    checkout, *names = own_arguments
    chosen = [vendor for vendor in VENDORS if not names or vendor.name in names]
    outcomes = {}
    for vendor in chosen:
        outcomes[vendor.name] = run_suite(vendor, Path(checkout).resolve(), pytest_arguments)
    print_table(outcomes)


if __name__ == "__main__":
    main(sys.argv[1:])
