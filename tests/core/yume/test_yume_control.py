"""Yume's frames: messages, interrupts, modes and approvals go in; only flat lines come out."""

import json

import pytest
from policy_builder import build_policy
from sweeps import loop_over_rows
from turn_stage import build_session_state

from shim.conversation.drivers.open_translation import STABLE_ID_PREFIX
from shim.core.claude.control.actions import InterruptRequested, PermissionDecided, SettingChanged
from shim.core.claude.hooks.answers import HookDecision
from shim.core.claude.hooks.commands import HookCommandResult
from shim.core.claude.messages import PRIORITY_LATER
from shim.core.claude.permissions import (
    DENIED_TEXT,
    STREAM_CLOSED_TEXT,
    PermissionDecision,
    PermissionRequest,
)
from shim.core.policy.settings_hooks import SettingsHook
from shim.core.yume.control import (
    APPROVAL_TIMEOUT_TEXT,
    CANNOT_ANSWER_TEXT,
    TURN_STOPPED_TEXT,
    YumeControlSession,
)
from shim.core.yume.encoder import YumeEncoder

BASH_REQUEST = PermissionRequest("r1", "c1", "Bash", {"command": "ls"}, "shell", {"command": "ls"})


def open_control(
    *, asks_permissions=True, answers_prompts=True, never_asks=False, mode="default", **fields
):
    state = build_session_state(
        display_name="qwen",
        session_id="s",
        mode=mode,
        asks_permissions=asks_permissions,
        answers_prompts=answers_prompts,
        max_line_bytes=99_999,
        **fields,
    )
    encoder = YumeEncoder(STABLE_ID_PREFIX)
    return YumeControlSession(state, lambda: "id", lambda: "now", encoder, never_asks=never_asks)


def receive(control, frame):
    return control.receive_line(frame if isinstance(frame, bytes) else json.dumps(frame).encode())


def test_answer_of_a_permission_hook_does_not_change_the_mode():
    hook = SettingsHook("", "run", event="PermissionRequest")
    control = open_control(mode="acceptEdits", event_hooks=(hook,))
    control.start_turn("go")
    control.decide_permission(BASH_REQUEST)
    (call,) = control.hooks.take_permission_calls()
    output = {"hookEventName": "PermissionRequest", "decision": {"behavior": "allow"}}
    stdout = json.dumps({"hookSpecificOutput": output})
    (answered,) = control.accept_hook_result(call, HookCommandResult(0, stdout))
    assert isinstance(answered, PermissionDecided) and answered.decision.allow
    assert control.session_state.mode == "acceptEdits" and not control.warnings


# -- messages --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "user", "content": "hello"},
        {"type": "user", "content": [{"type": "text", "text": "hello"}]},
        {"type": "user", "message": {"role": "user", "content": "hello"}},
    ],
)
def test_message_content_may_be_text_or_blocks(frame):
    control = open_control()
    assert receive(control, frame) == []
    assert [message.text for message in control.queued_messages] == ["hello"]


def test_requested_message_priority_is_ignored():
    control = open_control()
    receive(control, {"type": "user", "content": "see", "priority": "now"})
    assert control.queued_messages[0].priority == PRIORITY_LATER


def test_omitted_images_are_counted():
    control = open_control()
    receive(
        control,
        {
            "type": "user",
            "content": [{"type": "text", "text": "see"}, {"type": "image", "source": {}}],
        },
    )
    assert (
        control.queued_messages[0].describe_omitted_blocks("pi")
        == "[1 image left out of this message: pi only accepts text]"
    )


@pytest.mark.parametrize("line", [b"$", b"", b"  ", b"$\r"])
def test_r8_old_terminator_is_ignored_without_warning(line):
    control = open_control()
    assert control.receive_line(line) == [] and not control.warnings


@pytest.mark.parametrize(
    "line",
    [
        b"hello",
        b"[1]",
        b'{"x":1}',
        b'{"type":"user","content":7}',
        b'{"type":"dance"}',
        b'{"type":["user"]}',
    ],
)
def test_invalid_frame_is_skipped_with_a_warning_that_names_the_vendor(line):
    control = open_control()
    assert control.receive_line(line) == []
    (complaint,) = control.warnings
    assert complaint.startswith("qwen: ") and not control.queued_messages


def test_claude_control_requests_are_ignored_with_a_warning():
    control = open_control()
    receive(
        control,
        {"type": "control_request", "request_id": "1", "request": {"subtype": "initialize"}},
    )
    assert control.take_output() == b"" and control.warnings


# -- interrupts and modes --------------------------------------------------------------------------


def test_interrupt_is_ignored_without_a_running_turn():
    control = open_control()
    assert receive(control, {"type": "interrupt"}) == []
    control.start_turn("hi")
    assert receive(control, {"type": "interrupt"}) == [InterruptRequested()]


def test_interrupt_denies_the_open_permission_request():
    control = open_control()
    control.start_turn("hi")
    control.decide_permission(BASH_REQUEST)
    denied, interrupt = receive(control, {"type": "interrupt"})
    assert (
        denied
        == PermissionDecided(
            BASH_REQUEST, PermissionDecision(False, message=TURN_STOPPED_TEXT, ends_turn=True)
        )
        and interrupt == InterruptRequested()
    )
    assert control.take_output() == b"", "nothing of Claude's is said"


@loop_over_rows(
    ("mode", "expected_mode", "prompts"),
    [
        ("interactive", "default", True),
        ("default", "default", False),
        ("auto", "acceptEdits", False),
        ("deny", "plan", False),
        ("acceptEdits", "acceptEdits", False),
    ],
)
def test_set_permission_mode_changes_the_mode_immediately(mode, expected_mode, prompts):
    control = open_control()
    assert receive(control, {"type": "set_permission_mode", "mode": mode}) == [
        SettingChanged("mode", expected_mode)
    ]
    assert (control.session_state.mode, control.session_state.answers_prompts) == (
        expected_mode,
        prompts,
    )


@pytest.mark.parametrize("mode", ["yolo", "bypassPermissions", None, 3])
def test_r15_unknown_mode_falls_back_to_default_with_a_warning(mode):
    control = open_control(mode="acceptEdits")
    assert receive(control, {"type": "set_permission_mode", "mode": mode}) == [
        SettingChanged("mode", "default")
    ]
    assert "; using default" in control.warnings[0]


def test_interactive_mode_prints_a_warning_if_the_vendor_cannot_ask():
    control = open_control(asks_permissions=False, never_asks=True)
    receive(control, {"type": "set_permission_mode", "mode": "interactive"})
    assert (control.session_state.mode, control.session_state.answers_prompts) == (
        "default",
        True,
    ), "its next turn is refused"
    assert control.warnings == ["qwen: permission prompts are not available here\n"]
    second_control = open_control(asks_permissions=False)
    receive(second_control, {"type": "set_permission_mode", "mode": "interactive"})
    assert (
        second_control.session_state.mode == "default"
        and "the vendor's default mode" in second_control.warnings[0]
    )


# -- approvals -------------------------------------------------------------------------------------


def test_tool_call_is_written_before_its_permission_request():
    control = open_control()
    encoder = control._encoder
    encoder.write_tool_call("c0", "Bash", {})
    encoder.write_tool_call("c1", "Bash", {"command": "ls"})
    assert b'"id":"c1"' not in encoder.take_bytes()
    assert control.decide_permission(BASH_REQUEST) is None and control.has_undecided_requests
    assert b'"id":"c1"' in control.take_output()


@loop_over_rows(
    ("frame", "decision"),
    [
        ({"approved": True}, PermissionDecision(True)),
        ({"approved": False}, PermissionDecision(False, message=DENIED_TEXT)),
        ({"approved": "yes"}, PermissionDecision(False, message=DENIED_TEXT)),
        ({"approved": 1}, PermissionDecision(False, message=DENIED_TEXT)),
        ({}, PermissionDecision(False, message=DENIED_TEXT)),
        (
            {"approved": False, "reason": "not here"},
            PermissionDecision(False, message="not here", is_message_for_model=True),
        ),
    ],
)
def test_r14_only_true_approves_a_call(frame, decision):
    control = open_control()
    control.decide_permission(BASH_REQUEST)
    assert receive(control, {"type": "tool_approval", "id": "c1"} | frame) == [
        PermissionDecided(BASH_REQUEST, decision)
    ]
    assert not control.has_undecided_requests


@pytest.mark.parametrize("call_id", ["c2", "r1", None, 7])
def test_approval_with_another_call_id_is_ignored_with_a_warning(call_id):
    control = open_control()
    control.decide_permission(BASH_REQUEST)
    assert receive(control, {"type": "tool_approval", "id": call_id, "approved": True}) == []
    assert control.has_undecided_requests and control.warnings


@pytest.mark.parametrize("approved", [True, False])
def test_early_approval_is_stored_for_a_single_permission_request(approved):
    control = open_control()
    control.start_turn("hi")
    assert receive(control, {"type": "tool_approval", "id": "c1", "approved": approved}) == []
    decision = control.decide_permission(BASH_REQUEST)
    assert decision is not None and decision.allow is approved
    assert control.decide_permission(BASH_REQUEST) is None, "once"


@pytest.mark.parametrize("how", ["asked", "early", "expired"])
def test_repeated_approval_does_not_answer_a_later_permission_request(how):
    control = open_control()
    control.start_turn("hi")
    approval = {"type": "tool_approval", "id": "c1", "approved": True}
    if how == "early":
        receive(control, approval)
    control.decide_permission(BASH_REQUEST)
    if how == "asked":
        receive(control, approval)
    elif how == "expired":
        control.expire_prompt(BASH_REQUEST)
    assert receive(control, approval) == [] and control.warnings
    assert control.decide_permission(BASH_REQUEST) is None
    assert receive(control, approval) == [PermissionDecided(BASH_REQUEST, PermissionDecision(True))]


def test_early_approval_expires_at_the_end_of_its_turn():
    control = open_control()
    control.start_turn("hi")
    receive(control, {"type": "tool_approval", "id": "c1", "approved": True})
    control.end_turn()
    control.start_turn("again")
    assert control.decide_permission(BASH_REQUEST) is None


def test_early_approval_is_ignored_if_the_frontend_answers_no_prompts():
    control = open_control(answers_prompts=False)
    control.start_turn("hi")
    receive(control, {"type": "tool_approval", "id": "c1", "approved": True})
    decision = control.decide_permission(BASH_REQUEST)
    assert decision is not None and not decision.allow


def test_second_approval_of_a_call_is_ignored():
    control = open_control()
    control.decide_permission(BASH_REQUEST)
    receive(control, {"type": "tool_approval", "id": "c1", "approved": True})
    assert receive(control, {"type": "tool_approval", "id": "c1", "approved": True}) == []


def test_r14_expired_permission_request_is_denied_once():
    control = open_control()
    control.decide_permission(BASH_REQUEST)
    assert control.expire_prompt(BASH_REQUEST) == PermissionDecision(
        False, message=APPROVAL_TIMEOUT_TEXT
    )
    assert control.expire_prompt(BASH_REQUEST) is None
    assert receive(control, {"type": "tool_approval", "id": "c1", "approved": True}) == []


def test_answered_permission_request_does_not_expire():
    control = open_control()
    control.decide_permission(BASH_REQUEST)
    receive(control, {"type": "tool_approval", "id": "c1", "approved": True})
    assert control.expire_prompt(BASH_REQUEST) is None


def test_permission_request_is_denied_if_the_frontend_answers_no_prompts():
    decision = open_control(answers_prompts=False).decide_permission(BASH_REQUEST)
    assert decision is not None and not decision.allow and decision.needs_notice


def test_closed_input_denies_open_and_later_permission_requests():
    control = open_control()
    control.decide_permission(BASH_REQUEST)
    assert control.close_input() == [
        PermissionDecided(BASH_REQUEST, PermissionDecision(False, message=STREAM_CLOSED_TEXT))
    ]
    assert control.decide_permission(BASH_REQUEST) == PermissionDecision(
        False, message=STREAM_CLOSED_TEXT
    )


def test_call_with_too_large_input_is_denied_despite_an_early_approval():
    huge = BASH_REQUEST._replace(tool_input={"command": "x" * 200_000})
    control = open_control()
    control.start_turn("hi")
    receive(control, {"type": "tool_approval", "id": "c1", "approved": True})
    decision = control.decide_permission(huge)
    assert decision is not None and not decision.allow and "too large" in decision.message


def apply_policy(control, **rules):
    control.session_state.policy = build_policy(**rules)
    return control


def test_person_approves_a_call_that_only_the_mode_allows():
    assert apply_policy(open_control()).decide_permission(BASH_REQUEST) is None
    unattended = apply_policy(open_control(answers_prompts=False))
    assert unattended.decide_permission(BASH_REQUEST) == PermissionDecision(True)
    allowed_by_rule = apply_policy(open_control(), allow=["Bash"])
    assert allowed_by_rule.decide_permission(BASH_REQUEST) == PermissionDecision(True)


def test_question_to_the_user_is_denied_even_if_a_rule_allows_it():
    control = apply_policy(open_control(), allow=["AskUserQuestion"])
    decision = control.decide_permission(BASH_REQUEST._replace(tool="AskUserQuestion"))
    assert decision == PermissionDecision(False, message=CANNOT_ANSWER_TEXT, needs_notice=True)


def test_call_whose_input_a_hook_changed_is_denied_with_the_reason_of_the_hook():
    control = apply_policy(open_control(), ask=["Bash(touch:*)"])
    control.decide_permission(BASH_REQUEST, has_hook_commands=True)
    hook_decision = HookDecision(True, "safer", {"command": "touch b"})
    assert control.apply_hook_decision(BASH_REQUEST, hook_decision) == (
        True,
        PermissionDecision(False, message="safer", needs_notice=True, is_message_for_model=True),
    )


def test_refused_call_is_denied_without_a_permission_prompt():
    assert open_control().decide_permission(
        BASH_REQUEST._replace(refusal="no")
    ) == PermissionDecision(False, message="no")
