"""Changes in the middle of a conversation apply to the next call: a mode, or a rule from a person's
answer.

The real claude runs the same scenarios, which proves that the tests are right.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from frontend import DropInFrontend
from programs import install_program
from sandbox import Line, LineProcess
from vendor_setups import CLAUDE_ITSELF, CODEX, GEMINI, OPENCODE, PI, QWEN, Vendor

pytestmark = pytest.mark.e2e

TALK = ("-p", "--verbose", "--input-format", "stream-json", "--output-format", "stream-json")
ASKING = ("--permission-prompt-tool", "stdio")
ASK = [GEMINI, *(pytest.param(vendor, marks=pytest.mark.full) for vendor in (OPENCODE, PI, CODEX))]
BYPASS = ("--permission-mode", "bypassPermissions", "--allow-dangerously-skip-permissions")


class PermissionConversation:
    """A frontend in a conversation with a claude. It answers permission requests with `answer`."""

    def __init__(self, frontend: DropInFrontend, *flags: str) -> None:
        argv = [str(frontend.claude), *TALK, *frontend.extra_args, *flags]
        self._process = LineProcess(argv, frontend.folder, frontend.environment)
        frontend.started.append(self._process)
        self.answer: Line = {"behavior": "deny", "message": "no"}
        self.prompted_commands: list[str] = []

    def order(self, **request: Any) -> Line:
        self._process.send({"type": "control_request", "request_id": "order", "request": request})
        return self._process.read_until(lambda line: line["type"] == "control_response")

    def say(self, text: str) -> Line:
        """Send a message and return its result."""
        self._process.send({"type": "user", "message": {"role": "user", "content": text}})
        while (line := self._process.read_until(lambda line: True))["type"] != "result":
            if line["type"] == "control_request" and line["request"]["subtype"] == "can_use_tool":
                self.prompted_commands.append(line["request"]["input"]["command"])
                answer = {"updatedInput": line["request"]["input"], **self.answer}
                response = {
                    "subtype": "success",
                    "request_id": line["request_id"],
                    "response": answer,
                }
                self._process.send({"type": "control_response", "response": response})
        return line


@pytest.fixture
def claude(frontend: DropInFrontend, vendor: Vendor) -> Iterator[DropInFrontend]:
    if vendor is CLAUDE_ITSELF:
        frontend.claude = install_program(vendor.package).executable
        frontend.environment = {**frontend.environment, "IS_SANDBOX": "1"}
    yield frontend


def list_created_files(frontend: DropInFrontend) -> set[str]:
    return {path.name for path in Path(frontend.folder).iterdir()} - {"hello.txt"}


@pytest.mark.parametrize("vendor", [CLAUDE_ITSELF, QWEN, *ASK], ids=str, indirect=True)
def test_permission_mode_change_applies_to_the_next_call(claude: DropInFrontend) -> None:
    conversation = PermissionConversation(claude, *BYPASS)
    conversation.say("[[shell]] touch one")
    conversation.order(subtype="set_permission_mode", mode="plan")
    conversation.say("[[shell]] touch two")
    conversation.order(subtype="set_permission_mode", mode="bypassPermissions")
    conversation.say("[[shell]] touch three")
    assert list_created_files(claude) == {"one", "three"}


@pytest.mark.parametrize("vendor", [CLAUDE_ITSELF, QWEN, *ASK], ids=str, indirect=True)
@pytest.mark.parametrize("kind", ["deny", pytest.param("allow", marks=pytest.mark.full)])
def test_permission_rule_from_an_answer_applies_to_the_next_call(
    claude: DropInFrontend, kind: str
) -> None:
    conversation = PermissionConversation(claude, *ASKING)
    rules = [{"toolName": "Bash", "ruleContent": "python3:*"}]
    change = {"type": "addRules", "rules": rules, "behavior": kind, "destination": "session"}
    conversation.answer = {"behavior": "allow", "updatedPermissions": [change]}
    conversation.say("[[shell]] python3 -c \"open('one','w')\"")
    conversation.say("[[shell]] python3 -c \"open('two','w')\"")
    assert len(conversation.prompted_commands) == 1
    assert list_created_files(claude) == ({"one"} if kind == "deny" else {"one", "two"})


@pytest.mark.parametrize("vendor", [CLAUDE_ITSELF, QWEN, *ASK], ids=str, indirect=True)
def test_permission_mode_from_an_answer_applies_to_the_next_call(claude: DropInFrontend) -> None:
    conversation = PermissionConversation(claude, *ASKING)
    change = {"type": "setMode", "mode": "acceptEdits", "destination": "session"}
    conversation.answer = {"behavior": "allow", "updatedPermissions": [change]}
    conversation.say("[[shell]] touch one")
    conversation.say("[[shell]] touch two")
    assert len(conversation.prompted_commands) == 1
    assert list_created_files(claude) == {"one", "two"}


@pytest.mark.parametrize("vendor", [QWEN], ids=str, indirect=True)
def test_updated_input_that_matches_a_deny_rule_does_not_run(claude: DropInFrontend) -> None:
    """The real claude runs it: there the person's answer takes precedence over the rule."""
    conversation = PermissionConversation(claude, *ASKING, "--disallowedTools", "Bash(touch:*)")
    conversation.answer = {"behavior": "allow", "updatedInput": {"command": "touch two"}}
    conversation.say("[[shell]] python3 -c \"open('one','w')\"")
    assert list_created_files(claude) == set()
