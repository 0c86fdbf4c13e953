"""The messages that a frontend and a two-way vendor exchange during a turn: every such vendor, with
real clients.

`test_clients` has the other scenarios. The real claude proves that a test is right. A new vendor is
a row of `vendor_setups` and `clis`.
"""

from __future__ import annotations

import base64
import json
import struct
import subprocess
import zlib

import pytest
from acp_clients import ACPS, AcpClient
from client_matrix import add_dialog
from clis import Cli
from model_scripts import REPLY, REPLY_AFTER_TOOL, ScriptedServer
from sandbox import STOP_SECONDS, TURN_SECONDS, Line, Sandbox, scale_timeout, wait_until
from sdk_clients import PYTHON, TYPESCRIPT, SdkClient

pytestmark = pytest.mark.e2e

SDKS, ADAPTER = (PYTHON, TYPESCRIPT), (ACPS[-1],)
DENIAL = "Not today, says the test."
ENDLESS_COMMAND = "tail -f hello.txt"


def list_created_files(sandbox: Sandbox) -> set[str]:
    return {path.name for path in sandbox.folder.iterdir()} - {"hello.txt", ".git", ".claude"}


def project(sandbox: Sandbox) -> None:
    """Make the folder a separate project. The real claude stores permanent permissions there."""
    subprocess.run(["git", "init", "-q"], cwd=sandbox.folder, check=True)


def format_create_command(name: str) -> str:
    """Return a command that creates a file. It needs permission in every mode."""
    return f"python3 -c \"open('{name}','w')\""


def png() -> str:
    """Return a small picture in base64, different for each call."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = b"".join(b"\0" + bytes((row, 99, 255 - row) * 8) for row in range(8))
    parts = (
        chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)),
        chunk(b"IDAT", zlib.compress(rows)),
    )
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(parts) + chunk(b"IEND", b"")).decode()


@add_dialog("deny and interrupt", SDKS, everywhere=True)
def test_deny_with_interrupt_ends_the_turn_and_the_next_turn_runs(
    client: SdkClient, sandbox: Sandbox
) -> None:
    conversation = client.connect(sandbox, asks=True)
    start_index = len(conversation.lines)
    conversation.send_message(f"[[shell]] {format_create_command('one')}")
    conversation.await_saw("asked")
    conversation.deny_call(DENIAL, interrupt=True)
    cut = conversation.read_turn(start_index)
    following = conversation.run_turn("[[text]] and again")
    conversation.disconnect()
    assert cut.result["subtype"] == "error_during_execution" and cut.result["denied"] == ["Bash"]
    assert [line["text"] for line in cut.list_lines("user_text")] == [
        "[Request interrupted by user for tool use]"
    ]
    assert following.result["text"] == REPLY
    assert list_created_files(sandbox) == set()


@add_dialog("allowed for good", SDKS)
def test_always_allow_covers_only_the_suggested_command(
    client: SdkClient, sandbox: Sandbox
) -> None:
    """The rule applies to no other call: a command with another name needs permission."""
    project(sandbox)
    conversation = client.connect(sandbox, asks=True)
    start_index = len(conversation.lines)
    conversation.send_message("[[shell]] git init one")
    conversation.await_saw("asked")
    conversation.allow_call(always=True)
    conversation.read_turn(start_index)
    second_turn = conversation.run_turn("[[shell]] git init two")
    assert not second_turn.list_lines("asked") and list_created_files(sandbox) == {"one", "two"}
    start_index = len(conversation.lines)
    conversation.send_message(f"[[shell]] {format_create_command('three')}")
    conversation.await_saw("asked")
    conversation.deny_call(DENIAL)
    conversation.read_turn(start_index)
    conversation.disconnect()
    assert list_created_files(sandbox) == {"one", "two"}


@add_dialog("two questions", SDKS, later=True)
def test_two_permission_prompts_receive_their_respective_decisions(
    client: SdkClient, cli: Cli, sandbox: Sandbox
) -> None:
    """If a vendor sends both requests at once, the second one is answered first. Other vendors send
    one after the other was answered.
    """
    conversation = client.connect(sandbox, asks=True)
    start_index = len(conversation.lines)

    def answer(request: Line) -> None:
        if format_create_command("one") == request["input"]["command"]:
            conversation.allow_call(number=request["number"])
        else:
            conversation.deny_call(DENIAL, number=request["number"])

    conversation.send_message(
        f"[[both]] {format_create_command('one')} ;; {format_create_command('two')}"
    )
    first = conversation.await_saw("asked")
    if not cli.vendor.asks_at_once:
        answer(first)
    answer(conversation.await_saw("asked"))
    if cli.vendor.asks_at_once:
        answer(first)
    turn = conversation.read_turn(start_index)
    conversation.disconnect()
    assert list_created_files(sandbox) == {"one"} and turn.result["denied"] == ["Bash"]
    assert turn.result["text"] == REPLY_AFTER_TOOL
    assert sorted(line["is_error"] for line in turn.list_lines("tool_result")) == [False, True]


@add_dialog("a question to the person", SDKS, able=lambda vendor: vendor.questions)
def test_answer_to_ask_user_question_reaches_the_model(
    client: SdkClient, sandbox: Sandbox, service: ScriptedServer
) -> None:
    conversation = client.connect(sandbox, asks=True)
    start_index = len(conversation.lines)
    conversation.send_message("[[ask]] Which colour?")
    request = conversation.await_saw("asked")
    (question,) = request["input"]["questions"]
    assert request["name"] == "AskUserQuestion" and question["question"] == "Which colour?"
    assert [option["label"] for option in question["options"]] == ["red", "blue"]
    conversation.allow_call({**request["input"], "answers": {"Which colour?": "blue"}})
    turn = conversation.read_turn(start_index)
    conversation.disconnect()
    (result,) = turn.list_lines("tool_result")
    assert "blue" in result["text"] and not result["is_error"]
    assert "blue" in (service.list_requests("ask")[-1].tool_result or "")
    assert turn.result["text"] == REPLY_AFTER_TOOL and turn.result["denied"] == []


@add_dialog(
    "resume", SDKS, able=lambda vendor: vendor.two_way and vendor.resumes, asks=False, later=True
)
def test_resumed_session_sends_earlier_messages_to_the_model(
    client: SdkClient, sandbox: Sandbox, service: ScriptedServer
) -> None:
    before = client.connect(sandbox)
    first = before.run_turn("[[text]] the first words")
    before.disconnect()
    after = client.connect(sandbox, resume=first.result["session"])
    second = after.run_turn("[[text]] the last words")
    after.disconnect()
    assert second.result["text"] == REPLY and second.result["session"] == first.result["session"]
    assert "the first words" in json.dumps(service.list_requests("text")[-1].messages)


@add_dialog("an image", SDKS, able=lambda vendor: vendor.two_way and vendor.images, asks=False)
def test_image_of_a_message_reaches_the_model(
    client: SdkClient, sandbox: Sandbox, service: ScriptedServer
) -> None:
    picture = png()
    conversation = client.connect(sandbox)
    start_index = len(conversation.lines)
    conversation.send_message("[[text]] look at this", picture)
    turn = conversation.read_turn(start_index)
    conversation.disconnect()
    assert turn.result["text"] == REPLY
    assert picture in json.dumps(service.list_requests("text")[-1].body)


@add_dialog(
    "a message while a command runs", SDKS, able=lambda vendor: vendor.two_way and vendor.steers
)
def test_message_during_a_command_joins_the_running_turn(
    client: SdkClient, sandbox: Sandbox, service: ScriptedServer
) -> None:
    conversation = client.connect(sandbox, asks=True)
    start_index = len(conversation.lines)
    conversation.send_message(f"[[shell]] {format_create_command('one')}; sleep 6")
    conversation.await_saw("asked")
    conversation.allow_call()
    assert wait_until(lambda: "one" in list_created_files(sandbox), TURN_SECONDS)
    conversation.send_message("and be brief")
    turn = conversation.read_turn(start_index)
    following = conversation.run_turn("[[text]] next")
    conversation.disconnect()
    assert turn.result["text"] == REPLY_AFTER_TOOL
    assert "and be brief" in json.dumps(service.list_requests("shell")[-1].body)
    assert following.result["text"] == REPLY, "there was no result between them"


@add_dialog("nobody answers", [PYTHON])
def test_unanswered_permission_prompt_is_denied_and_the_turn_continues(
    client: SdkClient, cli: Cli, sandbox: Sandbox, service: ScriptedServer
) -> None:
    if cli.bare:
        pytest.skip("the real claude waits for ever")
    sandbox.environment = {**sandbox.environment, "SHIM_PERMISSION_TIMEOUT": "2"}
    conversation = client.connect(sandbox, asks=True)
    start_index = len(conversation.lines)
    conversation.send_message(f"[[shell]] {format_create_command('one')}")
    turn = conversation.read_turn(start_index)
    conversation.disconnect()
    (result,) = turn.list_lines("tool_result")
    assert result["is_error"] and "permission_timeout" in result["text"]
    assert turn.result["denied"] == ["Bash"] and list_created_files(sandbox) == set()
    assert (
        turn.result["text"] == REPLY_AFTER_TOOL and service.list_requests("shell")[-1].tool_result
    )


@add_dialog("allowed for good", ADAPTER)
def test_editor_always_allow_covers_only_the_suggested_command(
    client: AcpClient, sandbox: Sandbox
) -> None:
    project(sandbox)
    editor = client.connect(sandbox)
    editor.open_session()
    first = editor.run_prompt("[[shell]] git init one", choice="allow_always")
    second = editor.run_prompt("[[shell]] git init two", choice="reject_once")
    other = editor.run_prompt(f"[[shell]] {format_create_command('three')}", choice="reject_once")
    editor.shut_down()
    assert (
        len(first.permission_requests),
        len(second.permission_requests),
        len(other.permission_requests),
    ) == (1, 0, 1)
    assert list_created_files(sandbox) == {"one", "two"}


@add_dialog("a question to the person", ADAPTER, able=lambda vendor: vendor.questions)
def test_editor_form_answer_reaches_the_model(
    client: AcpClient, sandbox: Sandbox, service: ScriptedServer
) -> None:
    editor = client.connect(sandbox)
    editor.open_session(forms=True)
    start_index, number = len(editor.lines), editor.start_prompt("[[ask]] Which colour?")
    form = editor.await_request("elicitation/create")
    fields = form["params"]["requestedSchema"]["properties"]
    (name,) = (name for name, field in fields.items() if "blue" in json.dumps(field))
    editor.send_response(form, {"action": "accept", "content": {name: "blue"}})
    prompt = editor.read_prompt(number, start_index)
    editor.shut_down()
    assert "blue" in (service.list_requests("ask")[-1].tool_result or "")
    assert prompt.text.endswith(REPLY_AFTER_TOOL) and prompt.stop_reason == "end_turn"


@add_dialog("cancel of a command", ADAPTER)
def test_editor_cancel_stops_a_command_and_the_next_prompt_runs(
    client: AcpClient, cli: Cli, sandbox: Sandbox
) -> None:
    editor = client.connect(sandbox)
    editor.open_session()
    command = f"{ENDLESS_COMMAND} > made.txt; touch after.txt"
    start_index, number = len(editor.lines), editor.start_prompt(f"[[shell]] {command}")
    editor.choose_option(editor.await_request("session/request_permission"), "allow_once")
    assert sandbox.wait_for_start(ENDLESS_COMMAND, TURN_SECONDS)
    editor.cancel_prompt()
    cut = editor.read_prompt(number, start_index)
    assert not cli.vendor.stops_commands or sandbox.wait_for_end(
        ENDLESS_COMMAND, scale_timeout(STOP_SECONDS)
    )
    following = editor.run_prompt("[[text]] and again")
    editor.shut_down()
    assert list_created_files(sandbox) == {"made.txt"}, "the rest of the command ran"
    assert cut.stop_reason == "cancelled"
    assert following.text == REPLY and following.stop_reason == "end_turn"


@add_dialog("cancel of a question", ADAPTER)
def test_editor_cancel_ends_a_permission_prompt_and_the_next_prompt_runs(
    client: AcpClient, sandbox: Sandbox
) -> None:
    editor = client.connect(sandbox)
    editor.open_session()
    start_index, number = (
        len(editor.lines),
        editor.start_prompt(f"[[shell]] {format_create_command('one')}"),
    )
    question = editor.await_request("session/request_permission")
    editor.cancel_prompt()
    editor.send_response(question, {"outcome": {"outcome": "cancelled"}})
    cut = editor.read_prompt(number, start_index)
    following = editor.run_prompt("[[text]] and again")
    editor.shut_down()
    assert cut.stop_reason == "cancelled" and list_created_files(sandbox) == set()
    assert following.text == REPLY


@add_dialog("three prompts", ADAPTER, asks=False)
def test_editor_prompt_includes_earlier_prompts_of_the_session(
    client: AcpClient, sandbox: Sandbox, service: ScriptedServer
) -> None:
    editor = client.connect(sandbox)
    editor.open_session()
    for text in ("the first words", "the second", "the last words"):
        assert editor.run_prompt(f"[[text]] {text}").text == REPLY
    editor.shut_down()
    assert "the first words" in json.dumps(service.list_requests("text")[-1].messages)


@add_dialog(
    "session/resume", ADAPTER, able=lambda vendor: vendor.two_way and vendor.resumes, asks=False
)
def test_session_resumed_by_an_editor_includes_earlier_messages(
    client: AcpClient, sandbox: Sandbox, service: ScriptedServer
) -> None:
    before = client.connect(sandbox)
    before.open_session()
    before.run_prompt("[[text]] the first words")
    before.shut_down()
    after = client.connect(sandbox)
    after.open_session(resume=before.session)
    assert after.run_prompt("[[text]] the last words").text == REPLY
    after.shut_down()
    assert "the first words" in json.dumps(service.list_requests("text")[-1].messages)


@add_dialog("an image", ADAPTER, able=lambda vendor: vendor.two_way and vendor.images, asks=False)
def test_image_from_an_editor_reaches_the_model(
    client: AcpClient, sandbox: Sandbox, service: ScriptedServer
) -> None:
    picture = png()
    editor = client.connect(sandbox)
    editor.open_session()
    start_index = len(editor.lines)
    prompt = editor.read_prompt(editor.start_prompt("[[text]] look at this", picture), start_index)
    editor.shut_down()
    assert prompt.text == REPLY
    assert picture in json.dumps(service.list_requests("text")[-1].body)
