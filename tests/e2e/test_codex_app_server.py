"""codex with its app-server, so that the frontend is asked about each call: the real program, a
scripted model.

`test_acp` has the tests for every agent with permission prompts, `test_hooked_vendors` those for
rules and modes.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from frontend import DropInFrontend
from model_scripts import (
    REPLY,
    REPLY_AFTER_TOOL,
    ModelRequest,
    ScriptedAnswer,
    ScriptedCall,
    ScriptedServer,
)
from sandbox import Line, wait_until
from test_acp import ASKING, FrontendConversation, list_created_files
from test_policy_hooks import (
    LET_OUT,
    MADE,
    SERVER,
    STEP,
    STEPPING_CODEX,
    SUBAGENTS,
    Stepping,
    SteppingResponses,
)
from vendor_setups import CODEX

pytestmark = pytest.mark.e2e

of_codex = pytest.mark.parametrize("vendor", [CODEX], ids=str, indirect=True)
stepping = pytest.mark.parametrize("vendor", [STEPPING_CODEX], ids=str, indirect=True)
BYPASS = ("--dangerously-skip-permissions",)
# 1 x 1 pixel.
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
QUESTION = {"header": "Color", "id": "color", "question": "Which color?"}
OPTIONS = [{"label": "Red", "description": "warm"}, {"label": "Blue", "description": "cold"}]


class AtOnce(SteppingResponses):
    """A model that makes all calls of `steps` in one reply."""

    def _choose_answer(self, request: ModelRequest, number: int) -> ScriptedAnswer:
        results = [
            message for message in request.messages if str(message.get("type")).endswith("_output")
        ]
        if results or request.script != "hidden":
            return (
                super()._choose_answer(request, number)
                if request.script != "hidden"
                else ScriptedAnswer(REPLY_AFTER_TOOL)
            )
        calls = (
            ScriptedCall(f"call_{number}_{index}", name, tool_input)
            for index, (name, tool_input) in enumerate(self.steps)
        )
        return ScriptedAnswer("Both.", calls=tuple(calls))


at_once = pytest.mark.parametrize("vendor", [replace(CODEX, server=AtOnce)], ids=str, indirect=True)


def shell(command: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "exec_command", {"cmd": command, **more}


def outputs(model: ScriptedServer) -> str:
    """Return the tool results that the model received."""
    items = model.requests[-1].messages
    return json.dumps(
        [item["output"] for item in items if str(item.get("type")).endswith("_output")]
    )


# -- permission requests ---------------------------------------------------------------------------


@of_codex
def test_command_waits_for_permission_despite_a_codex_allow_rule(
    frontend: DropInFrontend, model: ScriptedServer
) -> None:
    rules = Path(frontend.environment["HOME"]) / ".codex" / "rules" / "default.rules"
    rules.parent.mkdir()
    rules.write_text(LET_OUT)
    conversation = FrontendConversation(frontend, *ASKING)
    conversation.send(f"[[shell]] touch {MADE}")
    question = conversation.until("can_use_tool", "result")
    assert question["request"]["input"] == {"command": f"touch {MADE}"}
    assert list_created_files(frontend) == set()
    conversation.answer(question, allow=False)
    assert conversation.until("result")["result"] == REPLY_AFTER_TOOL
    assert list_created_files(frontend) == set()
    assert "rather not" in json.dumps(model.requests[-1].body)


@at_once
def test_parallel_permission_requests_are_answered_out_of_order(
    frontend: DropInFrontend, model: Stepping
) -> None:
    model.steps = [shell("touch one"), shell("touch two")]
    conversation = FrontendConversation(frontend, *ASKING)
    conversation.send(STEP)
    first, second = conversation.until("can_use_tool"), conversation.until("can_use_tool")
    names = [line["request"]["input"]["command"].removeprefix("touch ") for line in (first, second)]
    assert sorted(names) == ["one", "two"]
    conversation.answer(second, allow=True)
    conversation.answer(first, allow=False)
    assert conversation.until("result")["result"] == REPLY_AFTER_TOOL
    assert list_created_files(frontend) == {names[1]}


@pytest.mark.full
@of_codex
def test_patch_permission_request_contains_the_old_and_new_text(frontend: DropInFrontend) -> None:
    conversation = FrontendConversation(frontend, *ASKING)
    conversation.send(f"[[edit]] {frontend.folder / 'hello.txt'}")
    question = conversation.until("can_use_tool")["request"]
    assert question["tool_name"] == "Edit"
    assert "hello world\n" in question["input"]["old_string"]
    assert "HELLO world\n" in question["input"]["new_string"]
    conversation.answer({"request": question, **conversation.lines[-1]}, allow=True)
    conversation.until("result")
    assert (frontend.folder / "hello.txt").read_text().startswith("HELLO")


@pytest.mark.full
@of_codex
def test_interrupting_denial_ends_the_turn_and_the_next_turn_succeeds(
    frontend: DropInFrontend,
) -> None:
    conversation = FrontendConversation(frontend, *ASKING)
    conversation.send("[[shell]] touch one")
    question = conversation.until("can_use_tool")
    decision = {"behavior": "deny", "message": "no", "interrupt": True}
    response = {"subtype": "success", "request_id": question["request_id"], "response": decision}
    conversation.process.send({"type": "control_response", "response": response})
    assert conversation.until("result")["subtype"] == "error_during_execution"
    conversation.send("[[text]] hi")
    assert conversation.until("result")["result"] == REPLY
    assert list_created_files(frontend) == set()


@pytest.mark.full
@of_codex
def test_command_with_an_updated_input_is_rejected_and_not_run(frontend: DropInFrontend) -> None:
    conversation = FrontendConversation(frontend, *ASKING)
    conversation.send("[[shell]] touch one")
    question = conversation.until("can_use_tool")
    question["request"]["input"] = {"command": "touch two"}
    conversation.answer(question, allow=True)
    conversation.until("result")
    assert "only with a different input" in str(conversation.results()[0])
    assert list_created_files(frontend) == set()


@pytest.mark.full
@stepping
def test_model_question_reaches_the_user_and_returns_the_answer(
    frontend: DropInFrontend, model: Stepping
) -> None:
    model.steps = [("request_user_input", {"questions": [{**QUESTION, "options": OPTIONS}]})]
    conversation = FrontendConversation(frontend, *ASKING)
    conversation.send(STEP)
    question = conversation.until("can_use_tool")
    assert question["request"]["tool_name"] == "AskUserQuestion"
    question["request"]["input"]["answers"] = {QUESTION["question"]: "Blue"}
    conversation.answer(question, allow=True)
    conversation.until("result")
    assert "Blue" in outputs(model)


# -- no call runs without permission ---------------------------------------------------------------


@pytest.mark.full
@stepping
def test_read_only_mcp_tool_needs_permission(frontend: DropInFrontend, model: Stepping) -> None:
    """codex itself runs such a tool without asking."""
    model.steps = [("mcp__srv.tool", {})]
    (frontend.folder.parent / "server.py").write_text(SERVER)
    args = [str(frontend.folder.parent / "server.py"), str(frontend.folder / MADE)]
    servers = {"mcpServers": {"srv": {"command": sys.executable, "args": args}}}
    conversation = FrontendConversation(frontend, *ASKING, "--mcp-config", json.dumps(servers))
    conversation.send(STEP)
    question = conversation.until("can_use_tool")
    assert question["request"]["tool_name"] == "mcp__srv__tool"
    conversation.answer(question, allow=False)
    conversation.until("result")
    assert list_created_files(frontend) == set()
    conversation.send("[[call]] mcp__srv.tool {}")
    conversation.answer(conversation.until("can_use_tool"), allow=True)
    conversation.until("result")
    assert list_created_files(frontend) == {MADE}


@pytest.mark.full
@stepping
def test_calls_that_codex_runs_without_approval_are_refused(
    frontend: DropInFrontend, model: Stepping
) -> None:
    """The calls are an image outside of the folder, a terminal for input, and a web search."""
    image = frontend.folder.parent / "pixel.png"
    image.write_bytes(base64.b64decode(PIXEL))
    model.steps = [("view_image", {"path": str(image)}), shell("bash", tty=True)]
    conversation = FrontendConversation(frontend, *ASKING)
    conversation.send(STEP)
    while conversation.until("can_use_tool", "result")["type"] != "result":
        conversation.answer(conversation.lines[-1], allow=True)
    assert PIXEL not in json.dumps(model.requests[-1].body)
    assert "TTY execution is disabled" in outputs(model)
    assert "web_search" not in [tool["type"] for tool in model.requests[0].body["tools"]]
    denied = conversation.lines[-1]["permission_denials"]
    assert [denial["tool_name"] for denial in denied] == ["Read"]


@pytest.mark.full
@stepping
def test_subagent_command_needs_permission(frontend: DropInFrontend, model: Stepping) -> None:
    model.steps, model.subagent_steps = list(SUBAGENTS[STEPPING_CODEX]), [shell("touch below")]
    conversation = FrontendConversation(frontend, *ASKING)
    conversation.send(STEP)
    question = conversation.until("can_use_tool", "result")
    assert question["request"]["input"]["command"] == "touch below"
    assert list_created_files(frontend) == set()
    conversation.answer(question, allow=False)
    conversation.until("result")
    assert list_created_files(frontend) == set()


@pytest.mark.full
@of_codex
def test_plan_mode_set_between_turns_blocks_the_next_command(
    frontend: DropInFrontend,
) -> None:
    conversation = FrontendConversation(frontend, *ASKING, *BYPASS)
    conversation.send("[[shell]] touch one")
    conversation.until("result")
    conversation.order(subtype="set_permission_mode", mode="plan")
    conversation.send("[[shell]] touch two")
    conversation.until("result")
    assert list_created_files(frontend) == {"one"}


# -- turns -----------------------------------------------------------------------------------------


@of_codex
def test_text_is_streamed_in_deltas_and_the_result_counts_its_tokens(
    frontend: DropInFrontend,
) -> None:
    conversation = FrontendConversation(frontend, "--include-partial-messages")
    conversation.send("[[think]] hi")
    result = conversation.until("result")
    events = [line["event"] for line in conversation.lines if line["type"] == "stream_event"]
    kinds = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
    assert kinds.count("text_delta") > 1 and kinds.count("thinking_delta") > 1
    assert result["result"] == REPLY
    assert (
        result["usage"] | {"input_tokens": 100, "cache_read_input_tokens": 20, "output_tokens": 30}
        == result["usage"]
    )
    assert list(result["modelUsage"]) == ["mock-1"]


@pytest.mark.full
@of_codex
def test_interrupt_ends_the_command_and_the_next_message_is_answered(
    frontend: DropInFrontend,
) -> None:
    conversation = FrontendConversation(frontend, *BYPASS)
    conversation.send("[[shell]] touch begun; sleep 60; touch ended")
    while "begun" not in list_created_files(frontend):
        time.sleep(0.05)
    conversation.order(subtype="interrupt")
    assert conversation.until("result")["subtype"] == "error_during_execution"
    conversation.send("[[text]] hi")
    assert conversation.until("result")["result"] == REPLY
    assert list_created_files(frontend) == {"begun"}


@stepping
def test_background_command_is_killed_after_an_interrupt(
    frontend: DropInFrontend, model: Stepping
) -> None:
    """codex itself ends only the call that it waits for, not a background command."""
    loop = "echo $$ > pid; while true; do date >> marks; sleep 0.1; done"
    model.steps = [
        shell(loop, yield_time_ms=250),
        shell("touch begun; sleep 60", yield_time_ms=30_000),
    ]
    conversation = FrontendConversation(frontend, *BYPASS)
    conversation.send(STEP)
    assert wait_until(lambda: {"begun", "pid"} <= list_created_files(frontend), 30)
    process = int((frontend.folder / "pid").read_text())
    conversation.order(subtype="interrupt")
    assert conversation.until("result")["subtype"] == "error_during_execution"
    assert wait_until(lambda: not Path(f"/proc/{process}").exists(), 3)


@stepping
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("kind", ["one-shot", "conversation"])
def test_background_command_is_killed_when_a_signal_ends_the_drop_in(
    frontend: DropInFrontend, model: Stepping, kind: str, number: signal.Signals
) -> None:
    loop = "echo $$ > pid; while true; do date >> marks; sleep 0.1; done"
    model.steps = [
        shell(loop, yield_time_ms=250),
        shell("touch begun; sleep 60", yield_time_ms=30_000),
    ]
    if kind == "one-shot":
        process = frontend.start_run(STEP, *BYPASS)
    else:
        conversation = FrontendConversation(frontend, *BYPASS)
        conversation.send(STEP)
        process = conversation.process
    assert wait_until(lambda: {"begun", "pid"} <= list_created_files(frontend), 30)
    command = int((frontend.folder / "pid").read_text())
    os.kill(process.number, number)
    process.read_to_end()
    assert wait_until(lambda: not Path(f"/proc/{command}").exists(), 3)


@pytest.mark.full
@of_codex
def test_message_during_a_turn_steers_the_running_turn(
    frontend: DropInFrontend, model: ScriptedServer
) -> None:
    conversation = FrontendConversation(frontend, *BYPASS)
    conversation.send("[[shell]] touch begun; sleep 6")
    while "begun" not in list_created_files(frontend):
        time.sleep(0.05)
    conversation.send("[[text]] rather say hello")
    assert conversation.until("result")["result"] == REPLY
    assert len(model.list_requests("shell")) == 1
    conversation.send("[[think]] and now?")
    assert conversation.until("result")["result"] == REPLY
    assert len(model.list_requests("text")) == 1


@pytest.mark.full
@of_codex
def test_another_process_resumes_or_forks_the_thread(
    frontend: DropInFrontend, model: ScriptedServer
) -> None:
    first = FrontendConversation(frontend, *ASKING)
    first.send("[[text]] the number is 42")
    session = first.until("result")["session_id"]
    first.process.close_stdin()
    for flags, is_same_session in (
        (("--resume", session), True),
        (("--resume", session, "--fork-session"), False),
    ):
        resumed = FrontendConversation(frontend, *ASKING, *flags)
        resumed.send("[[text]] which number?")
        result = resumed.until("result")
        assert (result["session_id"] == session) is is_same_session
        assert result["usage"]["input_tokens"] == 100
        assert "the number is 42" in json.dumps(model.requests[-1].body)
        resumed.process.close_stdin()


@pytest.mark.full
@of_codex
def test_model_change_applies_to_the_next_message(
    frontend: DropInFrontend, model: ScriptedServer
) -> None:
    conversation = FrontendConversation(frontend, *ASKING)
    conversation.send("[[text]] one")
    conversation.until("result")
    conversation.order(subtype="set_model", model=CODEX.second_model)
    conversation.send("[[text]] two")
    result = conversation.until("result")
    assert [request.model for request in model.requests] == [
        model.requests[0].model,
        CODEX.second_model,
    ]
    assert CODEX.second_model in result["modelUsage"]


@pytest.mark.full
@of_codex
def test_image_in_a_message_reaches_the_model(
    frontend: DropInFrontend, model: ScriptedServer
) -> None:
    conversation = FrontendConversation(frontend, *ASKING)
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    blocks: list[Line] = [
        {"type": "image", "source": source},
        {"type": "text", "text": "[[text]] look"},
    ]
    conversation.process.send({"type": "user", "message": {"role": "user", "content": blocks}})
    assert conversation.until("result")["result"] == REPLY
    assert "data:image/png;base64," in json.dumps(model.requests[-1].body)


# -- comparison with `codex exec` ------------------------------------------------------------------


@pytest.mark.full
@of_codex
def test_first_text_takes_less_than_twice_as_long_as_with_codex_exec(
    frontend: DropInFrontend, capsys: pytest.CaptureFixture[str]
) -> None:
    """The runs are in pairs, because the machine is not idle. The times are printed."""
    settings = Path(frontend.environment["HOME"]) / ".config" / "shim" / "config.toml"
    original_settings, pairs = settings.read_text(), []
    for _ in range(5):
        pair = []
        for driver in ('driver = "one-way"\n', ""):
            settings.write_text(original_settings + driver)
            conversation = FrontendConversation(frontend, "--include-partial-messages")
            started_at = time.monotonic()
            conversation.send("[[text]] hi")
            conversation.until("stream_event")
            pair.append(time.monotonic() - started_at)
            conversation.until("result")
            conversation.process.close_stdin()
        pairs.append(pair)
    one_way, two_way = map(statistics.median, zip(*pairs, strict=True))
    ratio = statistics.median(two / exec_s for exec_s, two in pairs)
    with capsys.disabled():
        sys.stdout.write(
            f"\nfirst text: exec {one_way:.2f} s, app-server {two_way:.2f} s, {ratio:.2f} times as long\n"
        )
    assert ratio < 2
