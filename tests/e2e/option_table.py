"""Compares the options and methods of the Claude Agent SDK for TypeScript over vendors with the real
claude, and prints a table.

`clients/option_client.mjs` has the cases. The real claude runs them first. A row is "equal" if a user
of the SDK sees the same, "named" if the session reports that the option has no effect or refuses the
method, and "different" otherwise. The SDK's type definitions say which options and methods exist, and
the command fails if one of them has no case.

    python tests/e2e/option_table.py [VENDOR ...] [-- CASE ...]
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from clis import build_isolated_environment, install_drop_in
from instructed_server import build_agent_call, find_mcp_tool
from model_scripts import (
    ERROR_MESSAGES,
    REPLY,
    REPLY_BEFORE_TOOL,
    Failure,
    ModelRequest,
    ScriptedAnswer,
    ScriptedCall,
    ScriptedServer,
    join_message_text,
)
from programs import find_node, install_npm_package, install_program
from sdk_clients import PROGRAMS, TYPESCRIPT_PACKAGE
from sdk_suite import VENDORS, print_line
from vendor_setups import CLAUDE_ITSELF, QWEN, Vendor

MAX_TEXT_CHARS = 160
TABLE_SECONDS = 2400.0  # for all cases of one vendor
STRUCTURED_OUTPUT = "StructuredOutput"  # the real claude's tool for an answer with a schema
TAG = re.compile(r"\[\[(json|agent|mcp|unavailable)\]\] ?([^\n]*)")
MEMBER = re.compile(r"^    (\w+)\??[:(]", re.MULTILINE)
REQUIRED_MEMBER = re.compile(r"^    (\w+):", re.MULTILINE)
OPTIONS_START = "export declare type Options = {"
METHODS_START = "export declare interface Query extends"


class CaseReport(NamedTuple):
    """What a user of the SDK sees in one case."""

    facts: Mapping[str, Any]
    texts: Sequence[str]  # the lines of stderr, and what the session names as having no effect
    aliases: Sequence[str]  # other names of the option in these texts


class OptionRow(NamedTuple):
    """One case over one vendor, compared with the real claude."""

    case: str
    outcome: str  # "equal", "named" or "different"
    detail: str


class OptionServer:
    """Adds four scripts to a scripted server: an answer in JSON, a subagent, a tool of an MCP server
    by its name in Claude, and an error for every model whose name does not contain a word.
    """

    def _choose_answer(self: Any, request: ModelRequest, number: int) -> ScriptedAnswer | Failure:
        tag = _find_tag(request)
        if tag is None or not request.offered:
            answer: ScriptedAnswer = super()._choose_answer(request, number)  # type: ignore[misc]
            return answer
        kind, argument = tag
        if kind == "unavailable":
            is_available = argument in request.model
            return ScriptedAnswer(REPLY) if is_available else Failure(500, ERROR_MESSAGES[500])
        if request.tool_result is not None:
            return ScriptedAnswer("Done.")
        if kind == "json" and STRUCTURED_OUTPUT not in request.offered:
            return ScriptedAnswer(argument)
        call = _build_call(kind, argument, request, f"call_{number}")
        return ScriptedAnswer(REPLY_BEFORE_TOOL, calls=(call,))


def _find_tag(request: ModelRequest) -> tuple[str, str] | None:
    for message in reversed(request.messages):
        if message.get("role") == "user" and (tags := TAG.findall(join_message_text(message))):
            kind, argument = tags[-1]
            return kind, argument.strip()
    return None


def _build_call(kind: str, argument: str, request: ModelRequest, call_id: str) -> ScriptedCall:
    if kind == "json":
        return ScriptedCall(call_id, STRUCTURED_OUTPUT, json.loads(argument))
    if kind == "agent":
        return build_agent_call(argument, request, call_id)
    tool, _, input_json = argument.partition(" ")
    return ScriptedCall(call_id, find_mcp_tool(tool, request), json.loads(input_json))


def create_option_server(server_class: type[ScriptedServer]) -> ScriptedServer:
    """Create a server with the API of this class and the scripts of the cases."""
    option_class = type("OptionServer", (OptionServer, server_class), {})
    return option_class()


def locate_sdk() -> Path:
    """Return the folder of the SDK's package."""
    return install_npm_package(TYPESCRIPT_PACKAGE) / "node_modules" / TYPESCRIPT_PACKAGE


def list_documented_names() -> list[str]:
    """Return the names of all options, and of all methods with parentheses, from the SDK's types."""
    types = (locate_sdk() / "sdk.d.ts").read_text()
    methods = [f"{name}()" for name in _list_members(types, METHODS_START)]
    return [*_list_members(types, OPTIONS_START), *methods]


def _list_members(types: str, start: str) -> list[str]:
    body = types[types.index(start) :]
    return MEMBER.findall(body[: body.index("\n}")])


def list_cases() -> list[str]:
    """Return the names of all cases. A case of a method ends with parentheses."""
    process = subprocess.run(
        _build_client_command({"list": True}), capture_output=True, timeout=60, check=True
    )
    cases: list[str] = json.loads(process.stdout)["cases"]
    return cases


def read_subject(case: str) -> str:
    """Return the option or the method of a case: `tools` of "tools empty"."""
    name = case.removesuffix("()").partition(" ")[0]
    return f"{name}()" if case.endswith("()") else name


def list_uncovered_names() -> list[str]:
    """Return the documented options and methods without a case, and the cases of unknown ones."""
    documented = list_documented_names()
    covered = {read_subject(case) for case in list_cases()}
    missing = [f"no case for {name}" for name in documented if name not in covered]
    return missing + [f"unknown to the SDK: {name}" for name in sorted(covered - {*documented})]


def _build_client_command(start: Mapping[str, Any]) -> list[str]:
    client = str(PROGRAMS / "option_client.mjs")
    return [str(find_node(24)), client, str(locate_sdk() / "sdk.mjs"), json.dumps(start)]


def run_cases(vendor: Vendor, cases: Sequence[str] | None) -> Iterator[tuple[str, CaseReport]]:
    """Run cases over a vendor, or all of them. CLAUDE_ITSELF is the real claude. Yield the reports by
    the names of the cases.
    """
    with tempfile.TemporaryDirectory() as folder, create_option_server(vendor.server) as server:
        root = Path(folder)
        program = install_program(vendor.package)
        environment = build_isolated_environment(vendor, program, server.url, root)
        claude = program.executable
        if vendor is not CLAUDE_ITSELF:
            claude = install_drop_in(vendor, environment, root)
        work = root / "work"
        work.mkdir()
        start = {
            "claude": str(claude),
            "folder": str(work),
            "cases": cases,
            "python": sys.executable,
            "server": str(Path(__file__).with_name("mcp_server.py")),
        }
        argv = _build_client_command(start)
        with subprocess.Popen(argv, cwd=work, env=environment, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            try:
                yield from _read_reports(process.stdout, server)
            finally:
                process.kill()


def _read_reports(
    stdout: Iterable[bytes], server: ScriptedServer
) -> Iterator[tuple[str, CaseReport]]:
    start_index = 0
    for raw in stdout:
        line = json.loads(raw)
        if "begin" in line:
            start_index = len(server.requests)
            continue
        bodies = [
            json.dumps(request.body, ensure_ascii=False)
            for request in server.requests[start_index:]
        ]
        facts = dict(line["facts"])
        for text in line.get("sees") or ():
            facts[f"the model sees {text}"] = any(text in body for body in bodies)
        texts = [*line["named"], *line["stderr"].splitlines()]
        yield line["name"], CaseReport(facts, texts, line.get("aliases") or ())


def compare_case(case: str, real: CaseReport, ours: CaseReport) -> OptionRow:
    """Compare one case of a vendor with the real claude."""
    # A text that the real claude writes, too, does not say that an option has no effect.
    texts = [text for text in ours.texts if text not in real.texts]
    naming_text = _find_naming_text(case, texts, ours.aliases)
    if naming_text is not None:
        return OptionRow(case, "named", naming_text)
    differences = list(_list_differences(case, real.facts, ours.facts))
    if not differences:
        return OptionRow(case, "equal", "")
    refusal = _find_refusal(case, ours)
    if refusal is not None:
        return OptionRow(case, "named", refusal)
    return OptionRow(case, "different", "; ".join(differences))


def _list_differences(case: str, real: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
    for fact in dict.fromkeys((*real, *ours)):
        if case.endswith("()") and fact == "value":
            problem = _find_shape_problem(case, real.get(fact), ours.get(fact))
            if problem:
                yield problem
        elif real.get(fact) != ours.get(fact):
            yield f"{fact}: {_shorten(real.get(fact))} → {_shorten(ours.get(fact))}"


def _find_shape_problem(case: str, real: object, ours: object) -> str:
    """Return how the value of a method differs from the real claude's, or "". Members that the SDK's
    types declare as optional may be missing, and a list may be empty.
    """
    if not (isinstance(real, dict) and isinstance(ours, dict) and real.keys() == ours.keys()):
        return "" if real == ours else f"{_shorten(real)} → {_shorten(ours)}"
    ((kind, real_members),) = real.items()
    our_members = ours[kind]
    if kind == "list" and not (isinstance(real_members, list) and isinstance(our_members, list)):
        return ""
    required = _list_required_members(read_subject(case).removesuffix("()"))
    missing = [name for name in real_members if name in required and name not in our_members]
    return f"missing: {', '.join(missing)}" if missing else ""


def _list_required_members(method: str) -> list[str]:
    """Return the members that the result of a method must have according to the SDK's types."""
    types = (locate_sdk() / "sdk.d.ts").read_text()
    body = types[types.index(METHODS_START) :]
    match = re.search(rf"^    {method}\([^;]*?Promise<(\w+)", body, re.MULTILINE)
    start = f"export declare type {match[1]} = {{" if match else ""
    if not start or start not in types:
        return []
    declaration = types[types.index(start) :]
    return REQUIRED_MEMBER.findall(declaration[: declaration.index("\n}")])


def _find_refusal(case: str, report: CaseReport) -> str | None:
    """Return the error with which a session refuses an option or a method, or None."""
    if case.endswith("()"):
        error = report.facts.get("error")
        return None if error is None else str(error)
    end = report.facts.get("end") or {}
    return _find_naming_text(case, end.get("errors") or (), report.aliases)


def _find_naming_text(case: str, texts: Sequence[str], aliases: Sequence[str]) -> str | None:
    """Return the text that names the option of a case, or None."""
    name = read_subject(case)
    flag = "--" + re.sub(r"[A-Z]", lambda letter: f"-{letter[0].lower()}", name)
    pattern = "|".join(
        rf"(?<![\w-]){re.escape(alias)}(?![\w-])" for alias in (name, flag, *aliases)
    )
    return next((text for text in texts if re.search(pattern, text)), None)


def _shorten(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_TEXT_CHARS else f"{text[:MAX_TEXT_CHARS]}…"


def print_table(vendor: Vendor, rows: Sequence[OptionRow]) -> None:
    """Print the rows of a vendor, and how many have each outcome."""
    print_line(f"\n## {vendor.name}\n\n| case | outcome | detail |\n|---|---|---|")
    for row in rows:
        detail = row.detail.replace("|", "\\|").replace("\n", " ")
        print_line(f"| `{row.case}` | {row.outcome} | {detail} |")
    outcomes = [row.outcome for row in rows]
    counts = [f"{outcomes.count(name)} {name}" for name in ("equal", "named", "different")]
    print_line(f"\n{vendor.name}: {', '.join(counts)}")


def main(arguments: Sequence[str]) -> int:
    """Compare the named vendors with the real claude. Return the exit status."""
    names, cases = list(arguments), None
    if "--" in names:
        position = names.index("--")
        cases = names[position + 1 :]
        del names[position:]
    uncovered = list_uncovered_names()
    for problem in uncovered:
        print_line(problem)
    real = dict(run_cases(CLAUDE_ITSELF, cases))
    has_difference = False
    for vendor in [vendor for vendor in VENDORS if vendor.name in (names or [QWEN.name])]:
        ours = dict(run_cases(vendor, cases))
        rows = [compare_case(case, report, ours[case]) for case, report in real.items()]
        print_table(vendor, rows)
        has_difference |= any(row.outcome == "different" for row in rows)
    return int(bool(uncovered) or has_difference)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
