"""The answers of a frontend's hooks have the same effect as with the real claude: texts reach the
model, and hooks end or continue a turn.
"""

from __future__ import annotations

import json

import pytest
from frontend import DropInFrontend
from model_scripts import REPLY, ScriptedServer
from programs import install_program
from sandbox import Line
from test_acp import FrontendConversation
from vendor_setups import CLAUDE_ITSELF, CODEX, GEMINI, PI, QWEN, Vendor

pytestmark = pytest.mark.e2e
full = pytest.mark.full
of_vendors = pytest.mark.parametrize(
    "vendor",
    [QWEN, *(pytest.param(vendor, marks=full) for vendor in (PI, CODEX, GEMINI, CLAUDE_ITSELF))],
    indirect=True,
    ids=str,
)
RUNNING = "[[shell]] echo out"


class HookedConversation:
    """A conversation whose hooks answer once with these outputs, and with `{}` afterwards."""

    def __init__(self, frontend: DropInFrontend, vendor: Vendor, answers: dict[str, Line]) -> None:
        if vendor is CLAUDE_ITSELF:
            frontend.claude = install_program(vendor.package).executable
        # Otherwise the real claude lets root bypass nothing.
        frontend.environment = {**frontend.environment, "IS_SANDBOX": "1"}
        self.answers = answers
        self.calls: list[str] = []
        self.conversation = FrontendConversation(frontend, "--permission-mode", "bypassPermissions")
        hooks = {event: [{"hookCallbackIds": [event]}] for event in answers}
        request = {"subtype": "initialize", "hooks": hooks}
        self.send({"type": "control_request", "request_id": "init", "request": request})

    def send(self, line: Line) -> None:
        self.conversation.process.send(line)

    def ask(self, text: str) -> Line:
        """Send a message, answer the hooks, and return the result."""
        self.conversation.send(text)
        while (line := self.conversation.until("hook_callback", "result"))["type"] != "result":
            event = line["request"]["input"]["hook_event_name"]
            self.calls.append(event)
            response = {
                "subtype": "success",
                "request_id": line["request_id"],
                "response": self.answers.pop(event, {}),
            }
            self.send({"type": "control_response", "response": response})
        return line


def build_context(event: str, text: str) -> Line:
    return {"hookSpecificOutput": {"hookEventName": event, "additionalContext": text}}


def count_in_last_request(model: ScriptedServer, text: str) -> int:
    """Return how often the model's last request of the conversation has the text."""
    request = [request for request in model.requests if request.offered][-1]
    return json.dumps(request.body.get("messages") or request.body).count(text)


@of_vendors
def test_hooks_add_context_and_continue_the_turn(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor
) -> None:
    answers = {
        "UserPromptSubmit": build_context("UserPromptSubmit", "it rains"),
        "Stop": {"decision": "block", "reason": "run the tests"},
    }
    conversation = HookedConversation(frontend, vendor, answers)
    result = conversation.ask("[[text]] hello")
    assert (result["result"], result["num_turns"]) == (REPLY, 2)
    assert conversation.calls == ["UserPromptSubmit", "Stop", "Stop"]
    assert count_in_last_request(model, "UserPromptSubmit hook additional context: it rains") == 1
    assert count_in_last_request(model, "Stop hook feedback:") == 1
    (feedback,) = [line for line in conversation.conversation.lines if line.get("isSynthetic")]
    assert feedback["message"]["content"][0]["text"] == "Stop hook feedback:\nrun the tests"


@of_vendors
def test_hooks_of_a_tool_result_reach_the_model_and_end_the_turn(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor
) -> None:
    answers = {"PostToolUse": {"decision": "block", "reason": "lint failed"}, "Stop": {}}
    conversation = HookedConversation(frontend, vendor, answers)
    assert conversation.ask(RUNNING)["terminal_reason"] == "completed"
    text = "PostToolUse:Bash hook blocking error from command: "
    assert count_in_last_request(model, text) == 1
    conversation.answers["PostToolUse"] = {"continue": False, "stopReason": "enough"}
    conversation.calls.clear()
    result = conversation.ask(RUNNING)
    assert (result["subtype"], result["result"]) == ("success", "")
    assert (result["terminal_reason"], result["stop_reason"]) == ("hook_stopped", "tool_use")
    assert conversation.calls == ["PostToolUse"], "no Stop hook is called"
    assert conversation.ask("[[text]] next")["result"] == REPLY
    assert count_in_last_request(model, "PostToolUse:Bash hook stopped continuation: enough") == 1
