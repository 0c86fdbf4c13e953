"""The shim's policy and the real claude's, decision by decision: the same flags, the same files,
the same calls.

The real claude's decisions are stored in `tests/core/policy/judged.toml`, where the policy is
tested against them without a claude. Here the real claude is run again, because another version may
decide otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import policy_cases
import pytest
from anthropic_server import AnthropicServer
from clis import build_isolated_environment
from model_scripts import Failure, ModelRequest, ScriptedAnswer, ScriptedCall
from programs import install_program
from sandbox import LineProcess
from vendor_setups import CLAUDE_ITSELF

pytestmark = pytest.mark.e2e

DENIALS = (
    "has been denied",
    "is denied by your permission",
    "by a Read deny rule",
    "denied access to",
    "was blocked",
)
ABSENT = ("No such tool available", "Auto mode is unavailable")


class SequentialCallServer(AnthropicServer):
    """A model that makes the calls of a case, each after the result of the one before."""

    def __init__(self, calls: list[tuple[str, dict[str, Any]]]) -> None:
        super().__init__()
        self._calls = calls

    def answer_request(
        self, body: dict[str, Any], offered: Any
    ) -> tuple[int, ModelRequest, ScriptedAnswer | Failure]:
        request = self._parse_request(body, offered)
        self.requests.append(request)
        contents = [message.get("content") for message in body.get("messages") or ()]
        parts = [part for content in contents if isinstance(content, list) for part in content]
        done = sum(part.get("type") == "tool_result" for part in parts)
        number = len(self.requests)
        if not offered or done >= len(self._calls):
            return number, request, ScriptedAnswer("done")
        return (
            number,
            request,
            ScriptedAnswer("now", calls=(ScriptedCall(f"toolu_{done:03}", *self._calls[done]),)),
        )


CHOSEN = {  # the others run in `make full`
    "a prefix is denied", "denied: Edit(./secret/**)", "denied: Read(./secret/**)", "nothing is said",
    "a project that allows",
    "the user's rule from its own folder",
}  # fmt: skip
CASES = [
    pytest.param(case, id=str(case), marks=[pytest.mark.full] * (case.name not in CHOSEN))
    for case in policy_cases.load_cases()
]


@pytest.mark.parametrize("case", CASES)
def test_real_claude_decides_as_recorded(case, tmp_path):
    program = install_program(CLAUDE_ITSELF.package)
    with SequentialCallServer([call.build_call(tmp_path) for call in case.calls]) as server:
        environment = build_isolated_environment(CLAUDE_ITSELF, program, server.url, tmp_path)
        case.write_files(tmp_path)
        became = list_decisions(
            program.executable, case.build_args(tmp_path), tmp_path / "work", environment
        )
    assert dict(zip(map(str, case.calls), became, strict=True)) == {
        str(call): call.theirs for call in case.calls
    }


def list_decisions(
    claude: Path, args: list[str], folder: Path, environment: Mapping[str, str]
) -> list[str]:
    """Return what became of each call: "allow", "ask" or "deny". Every permission request is
    denied.
    """
    talk = [
        "--print",
        "--verbose",
        "--output-format",
        "stream-json",
        "--input-format",
        "stream-json",
    ]
    process = LineProcess(
        [str(claude), *talk, "--permission-prompt-tool", "stdio", *args], folder, environment
    )
    prompted_ids: set[str] = set()
    became: list[str] = []
    try:
        process.send({"type": "user", "message": {"role": "user", "content": "[[text]] go"}})
        while (line := process.read_until(lambda line: True))["type"] != "result":
            if line["type"] == "control_request":
                prompted_ids.add(line["request"]["tool_use_id"])
                answer = {"behavior": "deny", "message": "no"}
                response = {
                    "subtype": "success",
                    "request_id": line["request_id"],
                    "response": answer,
                }
                process.send({"type": "control_response", "response": response})
            elif line["type"] == "user":
                became += [
                    _classify_result(part, prompted_ids) for part in line["message"]["content"]
                ]
    finally:
        process.close()
    return became


def _classify_result(part: Mapping[str, Any], prompted_ids: set[str]) -> str:
    if part["tool_use_id"] in prompted_ids:
        return "ask"
    text = part["content"] if isinstance(part["content"], str) else json.dumps(part["content"])
    return (
        "deny"
        if part.get("is_error") and any(phrase in text for phrase in (*DENIALS, *ABSENT))
        else "allow"
    )
