"""What qwen is told through its stdin."""

import json

import pytest
from sweeps import loop_over_rows

from shim.adapters.qwen_input import NO_FILE_MESSAGE, QwenInput
from shim.core.adapter.adapter import LaunchRequest, TurnFiles
from shim.core.claude.argv.flags import parse_argv
from shim.core.claude.messages import parse_user_message
from shim.core.claude.permissions import PermissionDecision, PermissionRequest

ASKED = PermissionRequest(
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
def test_an_answer_names_its_question_and_repeats_no_arguments(decision, answer):
    response = {"subtype": "success", "request_id": "q1", "response": answer}
    assert json.loads(QwenInput().encode_decision(ASKED, decision)) == {
        "type": "control_response",
        "response": response,
    }


def test_arguments_that_were_changed_are_never_answered():
    with pytest.raises(ValueError, match=r'\{"command":"pwd"\}'):
        QwenInput().encode_decision(
            ASKED, PermissionDecision(True, updated_input={"command": "pwd"})
        )


def test_each_request_has_a_number_of_its_own():
    child_input = QwenInput()
    requests = [
        json.loads(line)
        for line in (
            child_input.encode_handshake(LaunchRequest(parse_argv(()), "")),
            child_input.encode_interrupt(),
            child_input.encode_model_change("m"),
        )
    ]
    assert [request["request"]["subtype"] for request in requests] == [
        "initialize",
        "interrupt",
        "set_model",
    ]
    assert len({request["request_id"] for request in requests}) == 3


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
def test_a_mode_has_the_vendors_name_and_is_no_wider(mode, vendor_mode):
    assert json.loads(QwenInput().encode_mode_change(mode))["request"] == {
        "subtype": "set_permission_mode",
        "mode": vendor_mode,
    }


def test_an_image_is_named_by_its_path_in_its_place():
    content = [
        {"type": "text", "text": "one"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        {"type": "text", "text": "two"},
    ]
    message = parse_user_message({"message": {"role": "user", "content": content}}, "")

    def build_content(attach):
        child_input = QwenInput()
        child_input.encode_handshake(
            LaunchRequest(parse_argv(()), "", files=TurnFiles(store_attachment=attach))
        )
        return json.loads(child_input.encode_prompt(message))["message"]["content"]

    assert (
        build_content(lambda data, suffix: f"/a b/{data}.{suffix}") == "one\n@/a\\ b/AAAA.png\ntwo"
    )
    assert build_content(lambda data, suffix: None) == f"one\n{NO_FILE_MESSAGE}\ntwo"
    assert build_content(None) == "one\ntwo"
