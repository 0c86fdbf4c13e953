"""The shim's lines for a child of the Qwen RFC, compared with the examples of its page (2.3 to
2.5), and the start of a child.
"""

import json

import pytest
from sweeps import loop_over_rows

from shim.adapters import get_adapter
from shim.adapters.qwen_rfc import (
    QwenRfcInput,
    build_control_response,
    build_permission_response,
    build_user_message,
    parse_slash_command,
)
from shim.core.adapter.adapter import LaunchRequest
from shim.core.claude.argv.flags import parse_argv
from shim.core.claude.messages import UserMessage
from shim.core.claude.permissions import PermissionDecision, PermissionRequest
from shim.core.errors import FrontendError

SESSION = "session-123"
PROMPT = "session-123########8"


def test_user_message_is_encoded_as_a_chat_request():
    assert build_user_message(
        "Please fix the bug in @main.py", session_id=SESSION, prompt_id=PROMPT, model="qwen-coder"
    ) == {
        "session_id": "session-123",
        "prompt_id": "session-123########8",
        "model": "qwen-coder",
        "input": {
            "origin": "user",
            "parts": [{"type": "text", "text": "Please fix the bug in @main.py"}],
            "command": None,
        },
        "options": {},
    }


def test_slash_command_is_sent_as_a_command_with_empty_text():
    assert build_user_message("/chat list", session_id=SESSION, prompt_id=PROMPT, model=None) == {
        "session_id": "session-123",
        "prompt_id": "session-123########8",
        "input": {
            "origin": "user",
            "parts": [{"type": "text", "text": ""}],
            "command": {"kind": "slash", "path": ["chat", "list"], "args": ""},
        },
        "options": {},
    }


@loop_over_rows(
    ("text", "path", "command_args"),
    [
        ("/chat resume friday night", ["chat", "resume"], "friday night"),
        ("/memory add buy milk", ["memory", "add"], "buy milk"),
        ("/model qwen3", ["model"], "qwen3"),
        ("/chat", ["chat"], ""),
        ("/team:review  all of it ", ["team:review"], "all of it"),
        ("/init\nand more", None, None),
        ("/etc/passwd is a file", None, None),
        ("/", None, None),
        ("/ list", None, None),
        ("/ünï", None, None),
        ("say /chat list", None, None),
        ("", None, None),
    ],
)
def test_text_is_a_slash_command_only_if_the_first_word_is_a_command_name(text, path, command_args):
    expected = None if path is None else {"kind": "slash", "path": path, "args": command_args}
    assert parse_slash_command(text) == expected


def test_permission_and_error_responses_match_the_rfc():
    success = {
        "type": "control_response",
        "request_id": "req-1",
        "response": {"subtype": "success"},
    }
    for made, result in (
        (
            build_permission_response("req-1", "approve", "Allowed to execute."),
            {"behavior": "approve", "message": "Allowed to execute."},
        ),
        (build_permission_response("req-1", "deny", "no"), {"behavior": "deny", "message": "no"}),
    ):
        assert made == success | {"response": {"subtype": "success", "result": result}}
    error = {"message": "the callback failed", "retryable": False}
    assert build_control_response("req-1", "error", error=error) == success | {
        "response": {
            "subtype": "error",
            "error": {"message": "the callback failed", "retryable": False},
        }
    }


def test_heartbeat_and_interrupt_include_the_session_id_once_set():
    child_input = QwenRfcInput()
    assert parse_lines(child_input.encode_heartbeat()) == [{"type": "heartbeat_request"}]
    assert parse_lines(child_input.encode_interrupt()) == [
        {"type": "control/cancel", "reason": "escape"}
    ]
    child_input.set_vendor_session_id(SESSION)
    assert parse_lines(child_input.encode_heartbeat()) == [
        {"type": "heartbeat_request", "session_id": "session-123"}
    ]
    child_input.encode_prompt(UserMessage("one"))
    assert parse_lines(child_input.encode_interrupt()) == [
        {
            "type": "control/cancel",
            "session_id": SESSION,
            "prompt_id": "session-123########1",
            "reason": "escape",
        }
    ]


# -- lines of a conversation -----------------------------------------------------------------------


def parse_lines(data):
    return [json.loads(line) for line in data.splitlines()]


def test_prompt_ids_are_numbered_once_the_session_id_is_set():
    child_input = QwenRfcInput()
    assert child_input.encode_handshake(LaunchRequest(parse_argv(()), "")) == b""
    (first,) = parse_lines(child_input.encode_prompt(UserMessage("one")))
    child_input.set_vendor_session_id(SESSION)
    (cancel,) = parse_lines(child_input.encode_interrupt())
    (second,) = parse_lines(child_input.encode_prompt(UserMessage("/chat list")))
    assert (first["session_id"], "prompt_id" in first) == ("_new", False)
    assert cancel == {"type": "control/cancel", "session_id": SESSION, "reason": "escape"}
    assert (second["session_id"], second["prompt_id"]) == (SESSION, "session-123########2")
    assert second["input"]["command"]["path"] == ["chat", "list"]
    assert parse_lines(child_input.encode_interrupt())[0]["prompt_id"] == "session-123########2"


def test_new_model_is_sent_with_the_next_prompt_and_mode_is_not_encoded():
    child_input = QwenRfcInput()
    assert child_input.encode_model_change("qwen-large") == b""
    assert parse_lines(child_input.encode_prompt(UserMessage("one")))[0]["model"] == "qwen-large"
    assert child_input.encode_permission_mode_change("plan") is None


READ_REQUEST = PermissionRequest(
    "r1", "t1", "Read", {"file_path": "/a", "offset": 1}, "read_file", {"path": "/a", "offset": 0}
)


def test_decision_with_changed_input_raises_value_error_with_the_vendor_input():
    """The child would run the call unchanged: the RFC has no field for a changed input."""
    child_input = QwenRfcInput()
    assert parse_lines(
        child_input.encode_permission_response(READ_REQUEST, PermissionDecision(True))
    ) == [build_permission_response("r1", "approve")]
    assert parse_lines(
        child_input.encode_permission_response(
            READ_REQUEST, PermissionDecision(False, message="no")
        )
    ) == [build_permission_response("r1", "deny", "no")]
    with pytest.raises(ValueError, match=r'"path":"/b"'):
        child_input.encode_permission_response(
            READ_REQUEST, PermissionDecision(True, updated_input={"file_path": "/b", "offset": 1})
        )


# -- the start -------------------------------------------------------------------------------------


def build_launch(*args, **more):
    vendor = get_adapter("qwen-rfc")
    return vendor.build_launch(
        LaunchRequest(
            parse_argv(["-p", "hi", "--output-format", "stream-json", *args]),
            "hi",
            **({"mode_arguments": vendor.modes["default"]} | more),
        )
    )


def test_prompt_is_written_to_stdin_as_a_single_request():
    launch = build_launch("--model", "qwen-coder")
    assert launch.arguments == (
        *("--input-format", "stream-json", "--output-format", "stream-json"),
        *("--approval-mode", "default"),
    )
    (request,) = parse_lines(launch.stdin)
    assert (request["session_id"], request["model"]) == ("_new", "qwen-coder")
    assert request["input"]["parts"] == [{"type": "text", "text": "hi"}]


def test_partial_messages_select_the_chunk_output_format():
    launch = build_launch("--include-partial-messages")
    assert launch.arguments[:4] == (
        "--input-format",
        "stream-json",
        "--output-format",
        "stream-chunk-json",
    )


def test_session_is_resumed_by_id_and_fork_is_rejected():
    assert parse_lines(build_launch(resume_id=SESSION).stdin)[0]["session_id"] == SESSION
    with pytest.raises(FrontendError, match="cannot fork"):
        build_launch("--resume", "x", "--fork-session", resume_id=SESSION)


def test_persistent_child_is_launched_with_empty_stdin():
    launch = build_launch("--model", "qwen-coder", persistent=True)
    assert (launch.stdin, launch.arguments[-2:]) == (b"", ("--model", "qwen-coder"))


def test_only_bypass_mode_uses_yolo():
    vendor = get_adapter("qwen-rfc")
    assert [mode for mode, mode_args in vendor.modes.items() if "yolo" in mode_args] == [
        "bypassPermissions"
    ]
    assert "auto" not in vendor.modes
