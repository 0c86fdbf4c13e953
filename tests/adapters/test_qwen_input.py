"""The lines that qwen receives on stdin."""

import json

import pytest
from sweeps import loop_over_rows

from shim.adapters.qwen_input import NO_FILE_MESSAGE, QwenInput
from shim.core.adapter.adapter import LaunchRequest, TurnReportAndAttachmentFiles
from shim.core.claude.argv.flags import parse_argv
from shim.core.claude.messages import parse_user_message
from shim.core.claude.permissions import PermissionDecision, PermissionRequest

BASH_REQUEST = PermissionRequest(
    "q1", "call_1", "Bash", {"command": "ls"}, "run_shell_command", {"command": "ls"}
)


@pytest.mark.parametrize(
    ("decision", "answer"),
    [
        (PermissionDecision(True), {"behavior": "allow"}),
        (PermissionDecision(False, message="no"), {"behavior": "deny", "message": "no"}),
        (PermissionDecision(False), {"behavior": "deny", "message": "Interrupted by the user."}),
    ],
)
def test_permission_response_has_the_request_id_and_no_arguments(decision, answer):
    response = {"subtype": "success", "request_id": "q1", "response": answer}
    assert json.loads(QwenInput().encode_permission_response(BASH_REQUEST, decision)) == {
        "type": "control_response",
        "response": response,
    }


def test_allow_with_changed_arguments_raises_value_error():
    with pytest.raises(ValueError, match=r'\{"command":"pwd"\}'):
        QwenInput().encode_permission_response(
            BASH_REQUEST, PermissionDecision(True, updated_input={"command": "pwd"})
        )


def test_each_control_request_has_a_unique_id():
    child_input = QwenInput()
    requests = [
        json.loads(line)
        for lines in (
            child_input.encode_handshake(LaunchRequest(parse_argv(()), "")),
            child_input.encode_interrupt(),
            child_input.encode_model_change("m"),
        )
        for line in lines.splitlines()
    ]
    assert [request["request"]["subtype"] for request in requests] == [
        "initialize",
        "get_available_models",
        "get_context_usage",
        "interrupt",
        "set_model",
        "get_context_usage",
    ]
    assert len({request["request_id"] for request in requests}) == len(requests)


@loop_over_rows(
    ("mode", "vendor_mode"),
    [
        ("default", "default"),
        ("plan", "plan"),
        ("acceptEdits", "default"),
        ("dontAsk", "default"),
        ("auto", "auto"),
        ("bypassPermissions", "default"),
    ],
)
def test_permission_mode_is_mapped_to_an_equal_or_stricter_qwen_mode(mode, vendor_mode):
    assert json.loads(QwenInput().encode_permission_mode_change(mode))["request"] == {
        "subtype": "set_permission_mode",
        "mode": vendor_mode,
    }


def test_image_block_is_replaced_by_its_file_path():
    content = [
        {"type": "text", "text": "one"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        {"type": "text", "text": "two"},
    ]
    message = parse_user_message({"message": {"role": "user", "content": content}}, "")

    def build_content(attach):
        child_input = QwenInput()
        child_input.encode_handshake(
            LaunchRequest(
                parse_argv(()), "", files=TurnReportAndAttachmentFiles(store_attachment=attach)
            )
        )
        return json.loads(child_input.encode_prompt(message))["message"]["content"]

    assert (
        build_content(lambda data, suffix: f"/a b/{data}.{suffix}") == "one\n@/a\\ b/AAAA.png\ntwo"
    )
    assert build_content(lambda data, suffix: None) == f"one\n{NO_FILE_MESSAGE}\ntwo"
    assert build_content(None) == "one\ntwo"
