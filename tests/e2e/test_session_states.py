"""The session states around a permission request, line by line: the real claude, and every vendor
that asks.
"""

from __future__ import annotations

import pytest
from frontend import DropInFrontend
from programs import install_program
from test_acp import ASKING, FrontendConversation, list_created_files
from vendor_setups import CLAUDE_ITSELF, CODEX, COPILOT, GEMINI, KIMI, OPENCODE, PI, QWEN, Vendor

pytestmark = pytest.mark.e2e

OTHERS = (CLAUDE_ITSELF, GEMINI, OPENCODE, PI, CODEX, COPILOT, KIMI)
EVENTS = {"CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS": "1"}
AROUND = ["running", "requires_action", "can_use_tool", "running", "result", "idle"]


def list_states(conversation: FrontendConversation) -> list[str]:
    """Return the lines that state the session's status, in short form."""
    states = []
    for line in conversation.process.lines:
        if line["type"] == "control_request":
            states.append(line["request"]["subtype"])
        elif line.get("subtype") == "session_state_changed":
            states.append(line["state"])
        elif line["type"] in ("result", "control_cancel_request"):
            states.append(line["type"])
    return states


@pytest.mark.parametrize(
    "vendor",
    [QWEN, *(pytest.param(vendor, marks=pytest.mark.full) for vendor in OTHERS)],
    ids=str,
    indirect=True,
)
@pytest.mark.parametrize(
    "end",
    [
        pytest.param("an answer", marks=pytest.mark.full),
        "an interrupt",
        pytest.param("the end of stdin", marks=pytest.mark.full),
    ],
)
def test_session_requires_action_while_a_prompt_is_open(
    frontend: DropInFrontend, vendor: Vendor, end: str
) -> None:
    frontend.environment = {**frontend.environment, **EVENTS}
    if vendor is CLAUDE_ITSELF:
        frontend.claude = install_program(vendor.package).executable
    conversation = FrontendConversation(frontend, *ASKING)
    conversation.send("[[shell]] touch one")
    question = conversation.until("can_use_tool")
    if end == "an answer":
        conversation.answer(question, allow=True)
    elif end == "an interrupt":
        conversation.order(subtype="interrupt")
    else:
        conversation.process.close_stdin()
    conversation.until("result")
    conversation.process.close_stdin()
    conversation.process.read_to_end()
    cancelled = ["control_cancel_request"] if end == "an interrupt" else []
    assert list_states(conversation) == [*AROUND[:3], *cancelled, *AROUND[3:]]
    assert list_created_files(frontend) == ({"one"} if end == "an answer" else set())
