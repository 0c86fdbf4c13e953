"""Kimi Code CLI, which has the same program name as kimi-cli. The shim recognises it by its
version, and it asks for permission.
"""

from __future__ import annotations

import json

import pytest
from frontend import DropInFrontend, check_contract
from model_scripts import REPLY, REPLY_AFTER_TOOL, ScriptedServer
from test_acp import ASKING, FrontendConversation, list_created_files
from vendor_setups import KIMI_CODE

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.parametrize("vendor", [KIMI_CODE], indirect=True, ids=["kimi-code"]),
]
WRITE = '[[call]] Write {"path": "made", "content": "x"}'


def test_print_mode_runs_unattended_and_its_session_can_be_resumed(
    frontend: DropInFrontend, model: ScriptedServer
) -> None:
    first = frontend.run_prompt(WRITE)
    check_contract(first)
    assert first.init["shim"] == {"vendor": "kimi-code", "unattended": True} and list_created_files(
        frontend
    ) == {"made"}
    second = frontend.run_prompt("[[text]] and again", "--resume", first.init["session_id"])
    assert (second.init["session_id"], second.result["result"]) == (first.init["session_id"], REPLY)
    assert "[[call]] Write" in json.dumps(model.requests[-1].messages)


def test_writes_and_commands_trigger_permission_prompts(frontend: DropInFrontend) -> None:
    conversation = FrontendConversation(frontend, *ASKING)
    for prompt in (WRITE, "[[shell]] touch made"):
        for allow in (False, True):
            conversation.send(prompt)
            question = conversation.until("can_use_tool")
            assert list_created_files(frontend) == set()
            conversation.answer(question, allow=allow)
            result = conversation.until("result")
            assert list_created_files(frontend) == ({"made"} if allow else set()), prompt
            denied = [] if allow else [question["request"]["tool_name"]]
            assert [denial["tool_name"] for denial in result["permission_denials"]] == denied, (
                prompt
            )
        (frontend.folder / "made").unlink()


def test_plan_mode_creates_no_files(frontend: DropInFrontend) -> None:
    conversation = FrontendConversation(frontend, *ASKING, "--permission-mode", "plan")
    for prompt in (WRITE, "[[shell]] touch made"):
        conversation.send(prompt)
        assert conversation.until("result", "can_use_tool")["type"] == "result"
    assert list_created_files(frontend) == set()


def test_print_mode_refuses_plan_mode(frontend: DropInFrontend) -> None:
    run = frontend.run_prompt("[[text]]", "--permission-mode", "plan")
    assert run.result["shim"]["cause"] == "refused"
    reason = "because it runs some tools without asking"
    assert f"does not support the permission mode plan, {reason}" in run.result["errors"][0]


def test_ask_user_question_gets_no_answer_without_a_prompt_tool(
    frontend: DropInFrontend, model: ScriptedServer
) -> None:
    conversation = FrontendConversation(frontend, "--permission-mode", "bypassPermissions")
    conversation.send("[[ask]] Which colour?")
    assert conversation.until("result")["result"] == REPLY_AFTER_TOOL
    assert "red" not in (model.list_requests("ask")[-1].tool_result or "red")
