"""Real clients with a `claude`: the real one, and the drop-in for each vendor.

Each test is a scenario of the table that a run prints, tested with every client and every claude.
It asserts what the client's user sees. The column of the real claude proves that the test itself is
right.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from acp_clients import ACPS, AcpClient
from client_matrix import NEW_NODE, add_scenario
from clis import Cli
from model_scripts import ERROR_MESSAGE, REASONING, REPLY, REPLY_AFTER_TOOL, WRITTEN, ScriptedServer
from sandbox import EXIT_SECONDS, STOP_SECONDS, TURN_SECONDS, Sandbox, scale_timeout
from sdk_clients import BEFORE, CODE_CLI, PYTHON, PYTHON_OLDEST, SDKS, TYPESCRIPT, SdkClient
from vendor_setups import GEMINI

pytestmark = pytest.mark.e2e

IDLE_LEAVE_SECONDS = 4.0  # the Python SDK would wait for 5 s and then send a signal
DENIAL = "Not today, says the test."

ENDLESS_COMMAND = "tail -f hello.txt"  # qwen refuses a bare `sleep`


@add_scenario("one prompt", (*SDKS, *BEFORE), basic=True, brief=True, older=BEFORE)
def test_single_prompt_has_a_reply_and_a_result(client: SdkClient, sandbox: Sandbox) -> None:
    turn = client.connect(sandbox, once="[[text]] hi").finish()
    assert turn.kinds == ["init", "text", "result", "end"]
    assert turn.texts == [REPLY]
    assert turn.result["subtype"] == "success" and turn.result["is_error"] is False
    assert turn.result["text"] == REPLY
    assert turn.result["session"] == turn.init["session"]


@add_scenario("thinking, partial messages", SDKS)
def test_partial_messages_add_up_to_the_reply(client: SdkClient, sandbox: Sandbox) -> None:
    turn = client.connect(sandbox, once="[[think]] hi", partial=True).finish()
    assert [line["text"] for line in turn.list_lines("thinking")] == [REASONING]
    assert turn.texts == [REPLY]
    assert turn.streamed == REPLY and len(turn.list_lines("delta")) > 1
    assert turn.kinds.index("delta") < turn.kinds.index("text")
    assert turn.kinds[-2:] == ["result", "end"]


@add_scenario("error", (*SDKS, *BEFORE), brief=True)
def test_model_service_error_raises_a_client_exception(client: SdkClient, sandbox: Sandbox) -> None:
    turn = client.connect(sandbox, once="[[error]] 401").finish()
    assert ERROR_MESSAGE in turn.texts[-1]
    assert turn.result["is_error"] is True
    assert ERROR_MESSAGE in turn.result["text"]
    (exception,) = turn.list_lines("exception")
    assert not client.raises_text or ERROR_MESSAGE in exception["text"]


@add_scenario(
    "three turns, a tool in one",
    (*SDKS, *BEFORE),
    basic=True,
    brief=True,
    older=SDKS,
    everywhere=True,
)
def test_three_turns_share_a_session(
    client: SdkClient, cli: Cli, sandbox: Sandbox, service: ScriptedServer, hello_file: Path
) -> None:
    conversation = client.connect(sandbox)
    first = conversation.run_turn("[[text]] the first words")
    second = conversation.run_turn(f"[[read]] {cli.vendor.format_file_argument(hello_file)}")
    third = conversation.run_turn("[[text]] the last words")
    conversation.disconnect()
    assert first.result["text"] == third.result["text"] == REPLY
    assert len({turn.init["session"] for turn in (first, second, third)}) == 1
    (call,) = second.list_lines("tool_use")
    assert (
        call["name"] == cli.vendor.reader
        and call["input"].items() >= cli.vendor.read_input(hello_file).items()
    )
    (result,) = second.list_lines("tool_result")
    assert result["id"] == call["id"] and not result["is_error"]
    visible_text = hello_file.read_text() if cli.vendor.shows_files else ""
    assert all(line in result["text"] for line in visible_text.splitlines())
    assert second.result["text"] == REPLY_AFTER_TOOL
    remembered = json.dumps(service.list_requests("text")[-1].messages)
    assert (
        "the first words" in remembered
        and visible_text[:11] in remembered
        and "the last words" in remembered
    )


@add_scenario("interrupt, then another turn", (*SDKS, *BEFORE), passed=True, dialog=True)
def test_turn_can_follow_an_interrupted_turn(
    client: SdkClient, sandbox: Sandbox, service: ScriptedServer
) -> None:
    conversation = client.connect(sandbox, partial=True)
    start_index = len(conversation.lines)
    conversation.send_message("[[slow]] hi")
    conversation.await_saw("delta")
    conversation.run_command("interrupt")
    cut = conversation.read_turn(start_index)
    following = conversation.run_turn("[[text]] and again")
    conversation.disconnect()
    assert cut.result["subtype"] == "error_during_execution" and cut.result["is_error"] is True
    assert cut.texts == [cut.streamed]
    assert [line["text"] for line in cut.list_lines("user_text")] == [
        "[Request interrupted by user]"
    ]
    assert following.result["subtype"] == "success" and following.result["text"] == REPLY
    (request,) = service.list_requests("slow")
    assert request.client_left.wait(EXIT_SECONDS)


@add_scenario("interrupt of a command", [PYTHON, TYPESCRIPT], dialog=True)
def test_interrupt_ends_a_running_command_and_the_conversation_continues(
    client: SdkClient, cli: Cli, sandbox: Sandbox, service: ScriptedServer
) -> None:
    conversation = client.connect(sandbox, asks=not cli.vendor.silent)
    conversation.run_turn("[[text]] the first words")
    start_index = len(conversation.lines)
    # a read-only command needs no permission
    command = f"{ENDLESS_COMMAND} > made.txt; touch after.txt"
    conversation.send_message(f"[[shell]] {command}")
    if not cli.vendor.silent:
        conversation.await_saw("asked")
        conversation.allow_call()
    assert sandbox.wait_for_start(ENDLESS_COMMAND, TURN_SECONDS)
    conversation.run_command("interrupt")
    cut = conversation.read_turn(start_index)
    assert not cli.vendor.stops_commands or sandbox.wait_for_end(
        ENDLESS_COMMAND, scale_timeout(STOP_SECONDS)
    )
    following = conversation.run_turn("[[text]] and again")
    conversation.disconnect()
    assert not (sandbox.folder / "after.txt").exists(), "the rest of the command ran"
    (result,) = cut.list_lines("tool_result")
    assert result["is_error"]
    assert [line["text"] for line in cut.list_lines("user_text")] == [
        "[Request interrupted by user for tool use]"
    ]
    assert cut.result["subtype"] == "error_during_execution" and cut.result["is_error"] is True
    assert following.result["text"] == REPLY
    assert "the first words" in json.dumps(service.list_requests("text")[-1].messages)


@add_scenario("interrupt of a question", [PYTHON, TYPESCRIPT], asks=True, dialog=True)
def test_command_does_not_run_if_its_prompt_is_interrupted(
    client: SdkClient, sandbox: Sandbox
) -> None:
    conversation = client.connect(sandbox, asks=True)
    start_index = len(conversation.lines)
    conversation.send_message("[[shell]] touch made.txt")
    conversation.await_saw("asked")
    conversation.run_command("interrupt")
    cut = conversation.read_turn(start_index)
    following = conversation.run_turn("[[text]] and again")
    conversation.disconnect()
    assert cut.result["subtype"] == "error_during_execution" and cut.result["is_error"] is True
    assert not (sandbox.folder / "made.txt").exists()
    assert following.result["text"] == REPLY


@add_scenario("set_model", (*NEW_NODE, CODE_CLI), brief=True, dialog=True)
def test_set_model_applies_from_the_next_turn(
    client: SdkClient, cli: Cli, sandbox: Sandbox, service: ScriptedServer
) -> None:
    conversation = client.connect(sandbox)
    first = conversation.run_turn("[[text]] hi")
    conversation.run_command("set_model", model=cli.vendor.second_model)
    second = conversation.run_turn("[[text]] and again")
    conversation.disconnect()
    models = [request.model for request in service.list_requests("text")]
    name = cli.vendor.second_model.rpartition("/")[2]
    assert name not in models[0] and name in models[-1]
    assert name not in first.init["model"] and name in second.init["model"]
    assert second.result["text"] == REPLY


@add_scenario("set_permission_mode", (*NEW_NODE, CODE_CLI), brief=True)
def test_plan_mode_writes_no_file_and_accept_edits_mode_does(
    client: SdkClient, cli: Cli, sandbox: Sandbox
) -> None:
    made = sandbox.folder / "made.txt"
    conversation = client.connect(sandbox)
    conversation.run_command("set_permission_mode", mode="plan")
    planned = conversation.run_turn(f"[[write]] {cli.vendor.format_file_argument(made)}")
    assert planned.init["mode"] == "plan"
    assert not made.exists()
    assert planned.result["subtype"] == "success"
    conversation.run_command("set_permission_mode", mode="acceptEdits")
    accepted = conversation.run_turn(f"[[write]] {cli.vendor.format_file_argument(made)}")
    conversation.disconnect()
    assert accepted.init["mode"] == "acceptEdits"
    assert [call["name"] for call in accepted.list_lines("tool_use")] == ["Write"]
    assert made.read_text() == WRITTEN
    assert accepted.result["text"] == REPLY_AFTER_TOOL


@add_scenario("permission: allowed", (*SDKS, *BEFORE), asks=True, passed=True, dialog=True)
def test_allowed_command_runs(client: SdkClient, sandbox: Sandbox) -> None:
    conversation = client.connect(sandbox, asks=True)
    start_index = len(conversation.lines)
    conversation.send_message("[[shell]] touch made.txt")
    request = conversation.await_saw("asked")
    assert request["name"] == "Bash" and request["input"]["command"] == "touch made.txt"
    assert not (sandbox.folder / "made.txt").exists()
    conversation.allow_call()
    turn = conversation.read_turn(start_index)
    conversation.disconnect()
    (result,) = turn.list_lines("tool_result")
    assert not result["is_error"]
    assert (sandbox.folder / "made.txt").exists()
    assert turn.result["text"] == REPLY_AFTER_TOOL and turn.result["denied"] == []


@add_scenario("permission: denied", (*SDKS, *BEFORE), asks=True, dialog=True)
def test_denied_command_does_not_run_and_the_turn_continues(
    client: SdkClient, cli: Cli, sandbox: Sandbox
) -> None:
    conversation = client.connect(sandbox, asks=True)
    start_index = len(conversation.lines)
    conversation.send_message("[[shell]] touch made.txt")
    conversation.await_saw("asked")
    conversation.deny_call(DENIAL)
    turn = conversation.read_turn(start_index)
    conversation.disconnect()
    (result,) = turn.list_lines("tool_result")
    assert result["is_error"] and DENIAL in result["text"]
    assert not (sandbox.folder / "made.txt").exists()
    assert turn.result["subtype"] == "success" and turn.result["denied"] == ["Bash"]
    assert turn.result["text"] == REPLY_AFTER_TOOL


@add_scenario("permission: input changed", SDKS, asks=True, dialog=True)
def test_changed_command_replaces_the_original_command(
    client: SdkClient, cli: Cli, sandbox: Sandbox
) -> None:
    conversation = client.connect(sandbox, asks=True)
    start_index = len(conversation.lines)
    conversation.send_message("[[shell]] touch made.txt")
    request = conversation.await_saw("asked")
    conversation.allow_call({**request["input"], "command": "touch other.txt"})
    turn = conversation.read_turn(start_index)
    conversation.disconnect()
    assert (sandbox.folder / "other.txt").exists() is cli.vendor.changes
    assert not (sandbox.folder / "made.txt").exists()
    assert cli.vendor.changes or "Not run" in turn.list_lines("tool_result")[0]["text"]
    assert turn.result["text"] == REPLY_AFTER_TOOL


@add_scenario("leaves when idle", NEW_NODE)
def test_disconnect_when_idle_ends_all_processes_quickly(
    client: SdkClient, sandbox: Sandbox
) -> None:
    conversation = client.connect(sandbox)
    conversation.run_turn("[[text]] hi")
    assert conversation.disconnect() < scale_timeout(IDLE_LEAVE_SECONDS)
    assert sandbox.list_remaining_processes() == {}


@add_scenario("leaves in mid-reply", [PYTHON, PYTHON_OLDEST])
def test_disconnect_during_a_reply_ends_all_processes_and_requests(
    client: SdkClient, sandbox: Sandbox, service: ScriptedServer
) -> None:
    conversation = client.connect(sandbox, partial=True)
    conversation.send_message("[[slow]] hi")
    conversation.await_saw("delta")
    conversation.disconnect()
    assert sandbox.list_remaining_processes() == {}
    (request,) = service.list_requests("slow")
    assert request.client_left.wait(EXIT_SECONDS)


@add_scenario("session/new, session/prompt", ACPS, basic=True, brief=True, older=ACPS, passed=True)
def test_editor_opens_a_session_and_receives_a_reply(
    client: AcpClient, cli: Cli, sandbox: Sandbox
) -> None:
    editor = client.connect(sandbox)
    response = editor.open_session()
    assert response["protocolVersion"] == 1
    prompt = editor.run_prompt("[[think]] hi")
    editor.shut_down()
    assert prompt.text == REPLY
    # gemini prints its thoughts in a conversation only.
    assert prompt.thought == REASONING * (cli.vendor.thinks or cli.vendor is GEMINI)
    assert prompt.stop_reason == "end_turn"


@add_scenario("tool call", ACPS)
def test_editor_receives_a_tool_call_and_its_result(
    client: AcpClient, cli: Cli, sandbox: Sandbox, hello_file: Path
) -> None:
    editor = client.connect(sandbox)
    editor.open_session()
    prompt = editor.run_prompt(f"[[read]] {cli.vendor.format_file_argument(hello_file)}")
    editor.shut_down()
    (call,) = prompt.calls.values()
    assert call["kind"] == "read" and call["status"] == "completed"
    assert str(hello_file) in json.dumps([call["locations"], call["rawInput"]])
    assert "hello world" in json.dumps(call["content"])
    assert prompt.text.endswith(REPLY_AFTER_TOOL)
    assert prompt.stop_reason == "end_turn"


@add_scenario("permission: allowed", ACPS, asks=True, passed=True, dialog=True)
def test_editor_can_allow_a_command(client: AcpClient, sandbox: Sandbox) -> None:
    editor = client.connect(sandbox)
    editor.open_session()
    prompt = editor.run_prompt("[[shell]] touch made.txt", choice="allow_once")
    editor.shut_down()
    (request,) = prompt.permission_requests
    assert request["toolCall"]["toolCallId"] in prompt.calls
    (call,) = prompt.calls.values()
    assert call["status"] == "completed"
    assert (sandbox.folder / "made.txt").exists()
    assert prompt.stop_reason == "end_turn"


@add_scenario("permission: denied", ACPS, asks=True, dialog=True)
def test_editor_can_reject_a_command(client: AcpClient, sandbox: Sandbox) -> None:
    editor = client.connect(sandbox)
    editor.open_session()
    prompt = editor.run_prompt("[[shell]] touch made.txt", choice="reject_once")
    editor.shut_down()
    assert len(prompt.permission_requests) == 1
    (call,) = prompt.calls.values()
    assert call["status"] == "failed"
    assert not (sandbox.folder / "made.txt").exists()
    assert (prompt.stop_reason is None) is client.denial_fails


@add_scenario("session/cancel, then another prompt", ACPS, dialog=True)
def test_editor_can_prompt_after_cancelling_a_reply(
    client: AcpClient, sandbox: Sandbox, service: ScriptedServer
) -> None:
    editor = client.connect(sandbox)
    editor.open_session()
    start_index, number = len(editor.lines), editor.start_prompt("[[slow]] hi")
    editor.await_update("agent_message_chunk")
    editor.cancel_prompt()
    cut = editor.read_prompt(number, start_index)
    following = editor.run_prompt("[[text]] and again")
    editor.shut_down()
    assert cut.stop_reason == "cancelled"
    assert following.text == REPLY and following.stop_reason == "end_turn"
    (request,) = service.list_requests("slow")
    assert request.client_left.wait(EXIT_SECONDS)


@add_scenario("error", ACPS)
def test_editor_receives_the_reason_of_a_failed_prompt(client: AcpClient, sandbox: Sandbox) -> None:
    editor = client.connect(sandbox)
    editor.open_session()
    prompt = editor.run_prompt("[[error]] 401")
    editor.shut_down()
    assert prompt.error is not None and prompt.stop_reason is None
    assert ERROR_MESSAGE in json.dumps(prompt.error) + prompt.text
