"""A frontend's hooks: which ones match, their input, and what they can deny (contract C11)."""

import itertools
import json

import pytest
from policy_builder import build_policy
from sweeps import loop_over_rows
from turn_stage import build_session_state

from shim.core.claude.control import ControlSession
from shim.core.claude.control.actions import PermissionDecided, ToolCallBlocked
from shim.core.claude.hooks.answers import (
    HookDecision,
    parse_hook_output,
    parse_prompt_hook_rejection,
)
from shim.core.claude.hooks.callbacks import (
    MAX_OPEN_HOOKS,
    HookCallbacks,
    HookEvent,
    build_stop_event,
)
from shim.core.claude.permissions import PermissionDecision, PermissionRequest

CALL = HookEvent("PreToolUse", "call_1", "Bash", {"command": "ls"})
BASH_REQUEST = PermissionRequest(
    "q1", "call_1", "Bash", {"command": "ls"}, "shell", {"command": "ls"}
)
DENY = {
    "hookSpecificOutput": {"permissionDecision": "deny", "permissionDecisionReason": "not today"}
}
CHANGE = {
    "hookSpecificOutput": {"permissionDecision": "allow", "updatedInput": {"command": "true"}}
}
ASKS = {"hookSpecificOutput": {"permissionDecision": "ask", "permissionDecisionReason": "sure?"}}
ALLOW = {"hookSpecificOutput": {"permissionDecision": "allow"}}


def hooks(event="PreToolUse", matcher=None, *identities):
    return {event: [{"matcher": matcher, "hookCallbackIds": list(identities or ("hook_0",))}]}


def control(raw_hooks, **fields):
    numbers = itertools.count(1)
    defaults = {
        "display_name": "qwen",
        "session_id": "S",
        "mode": "default",
        "answers_prompts": True,
        "asks_permissions": True,
        "cwd": "/repo",
    }
    session = ControlSession(
        build_session_state(**(defaults | fields)), lambda: f"uuid-{next(numbers)}", lambda: "now"
    )
    session.session_state.hooks = HookCallbacks(raw_hooks)
    return session


def take_lines(session):
    return [json.loads(line) for line in session.take_output().splitlines()]


def give(session, request_id, body):
    response = {"subtype": "success", "request_id": request_id, "response": body}
    return session.receive_line(
        json.dumps({"type": "control_response", "response": response}).encode()
    )


@loop_over_rows(
    ("matcher", "matches"),
    [
        (None, True),
        ("", True),
        ("*", True),
        ("Bash", True),
        ("Edit|Bash", True),
        ("Ba.*", True),
        ("Ba", False),
        ("(", True),
        ("a{99999999999999}", True),
        ("Nobody|" * 80 + "Ba.*", True),
    ],
)
def test_matcher_accepts_a_name_a_list_or_a_regular_expression(matcher, matches):
    assert HookCallbacks(hooks(matcher=matcher)).list_callback_ids(CALL) == (
        ["hook_0"] if matches else []
    )


@loop_over_rows(
    "raw_hooks",
    [None, 7, {}, {"Nonsense": [{}]}, {"Stop": 7}, {"Stop": [7, {"hookCallbackIds": 7}]}],
)
def test_invalid_hook_config_is_ignored(raw_hooks):
    assert not HookCallbacks(raw_hooks) or not HookCallbacks(raw_hooks).list_callback_ids(
        HookEvent("Stop")
    )


@loop_over_rows(
    ("answer", "decision"),
    [
        ({}, HookDecision()),
        ({"continue": True}, HookDecision()),
        (ALLOW, HookDecision(True)),
        (DENY, HookDecision(False, "not today")),
        ({"decision": "block", "reason": "no"}, HookDecision(False, "no")),
        (
            {"continue": False, "stopReason": "enough"},
            HookDecision(None, "enough", stops_turn=True),
        ),
        (CHANGE, HookDecision(True, updated_input={"command": "true"})),
        (ASKS, HookDecision(reason="sure?", requires_prompt=True)),
        ({"decision": "approve"}, HookDecision(True)),
    ],
)
def test_hook_output_is_parsed_to_a_decision(answer, decision):
    assert parse_hook_output(answer) == decision


def test_pre_tool_use_request_contains_the_fields_of_claude():
    """C11"""
    session = control(hooks())
    session.hooks.send_callbacks(CALL)
    (line,) = take_lines(session)
    assert line["request_id"] == "uuid-1"
    assert line["request"]["subtype"] == "hook_callback"
    assert (line["request"]["callback_id"], line["request"]["tool_use_id"]) == ("hook_0", "call_1")
    assert line["request"]["input"] == {
        "session_id": "S",
        "transcript_path": "",
        "cwd": "/repo",
        "permission_mode": "default",
        "hook_event_name": "PreToolUse",
        "tool_name": "Bash",
        "tool_input": {"command": "ls"},
        "tool_use_id": "call_1",
    }


def test_permission_request_waits_for_the_hook_of_its_call():
    session = control(hooks())
    session.hooks.send_callbacks(CALL)
    take_lines(session)
    assert session.decide_permission(BASH_REQUEST) is None
    assert take_lines(session) == []
    assert give(session, "uuid-1", {}) == []
    (question,) = take_lines(session)
    assert question["request"]["subtype"] == "can_use_tool"


def test_hook_decision_replaces_the_permission_prompt():
    for answer, allow in ((DENY, False), (ALLOW, True)):
        session = control(hooks())
        session.hooks.send_callbacks(CALL)
        session.decide_permission(BASH_REQUEST)
        take_lines(session)
        ((permission, decision),) = give(session, "uuid-1", answer)
        assert permission is BASH_REQUEST and decision.allow is allow
        assert take_lines(session) == []


def test_single_hook_denial_overrides_a_later_allow():
    session = control(hooks("PreToolUse", None, "hook_0", "hook_1"))
    session.hooks.send_callbacks(CALL)
    session.decide_permission(BASH_REQUEST)
    assert give(session, "uuid-1", DENY) == []
    ((_, decision),) = give(session, "uuid-2", ALLOW)
    assert decision == PermissionDecision(False, message="not today", is_message_for_model=True)


def test_early_hook_decision_applies_to_a_later_permission_request():
    session = control(hooks())
    session.hooks.send_callbacks(CALL)
    assert give(session, "uuid-1", DENY) == []
    decision = session.decide_permission(BASH_REQUEST)
    assert decision is not None and not decision.allow


def test_hook_denial_survives_many_open_hooks():
    session = control(hooks() | hooks("PostToolUse", None, "hook_1"))
    session.hooks.send_callbacks(CALL)
    for number in range(MAX_OPEN_HOOKS):
        session.hooks.send_callbacks(HookEvent("PostToolUse", f"other{number}", "Bash", {}, "out"))
    session.decide_permission(BASH_REQUEST)
    ((_, decision),) = give(session, "uuid-1", DENY)
    assert decision.allow is False


def test_hook_denial_blocks_the_call_if_the_vendor_never_asks():
    session = control(hooks(), asks_permissions=False)
    session.hooks.send_callbacks(CALL)
    assert give(session, "uuid-1", DENY) == [ToolCallBlocked("call_1", "not today")]


def test_non_blocking_hooks_are_notified_and_their_output_is_ignored():
    raw_hooks = (
        hooks("Stop")
        | hooks("PostToolUse", None, "hook_1")
        | hooks("UserPromptSubmit", None, "hook_2")
    )
    session = control(raw_hooks)
    session.start_turn("do it")
    session.hooks.send_callbacks(HookEvent("PostToolUse", "call_1", "Bash", {}, "out"))
    session.hooks.send_callbacks(build_stop_event("Done."))
    lines = take_lines(session)
    inputs = [line["request"]["input"] for line in lines]
    assert [line["hook_event_name"] for line in inputs] == [
        "UserPromptSubmit",
        "PostToolUse",
        "Stop",
    ]
    assert (inputs[0]["prompt"], inputs[1]["tool_response"]) == ("do it", "out")
    assert inputs[2]["last_assistant_message"] == "Done."
    assert [give(session, line["request_id"], DENY) for line in lines] == [[], [], []]


def test_interrupt_denies_a_permission_request_that_waits_for_a_hook():
    session = control(hooks())
    session.start_turn("go")
    session.hooks.send_callbacks(CALL)
    session.decide_permission(BASH_REQUEST)
    wishes = session.receive_line(
        b'{"type":"control_request","request_id":"s","request":{"subtype":"interrupt"}}'
    )
    assert isinstance(wishes[0], PermissionDecided) and not wishes[0].decision.allow


def test_callback_is_not_called_after_the_end_of_stdin():
    session = control(hooks())
    session.start_turn("hi")
    assert not session.is_input_closed
    session.close_input()
    session.take_output()
    session.hooks.call_hooks(CALL)
    assert take_lines(session) == []


def test_input_change_of_a_hook_is_preserved_by_a_later_allow():
    session = control(hooks("PreToolUse", None, "hook_0", "hook_1"))
    session.hooks.send_callbacks(CALL)
    session.decide_permission(BASH_REQUEST)
    assert give(session, "uuid-1", CHANGE) == []
    ((_, decision),) = give(session, "uuid-2", ALLOW)
    assert decision == PermissionDecision(True, updated_input={"command": "true"})


def test_input_change_of_a_hook_blocks_the_call_if_the_vendor_never_asks():
    session = control(hooks(), asks_permissions=False)
    session.hooks.send_callbacks(CALL)
    (wish,) = give(session, "uuid-1", CHANGE)
    assert isinstance(wish, ToolCallBlocked)


def test_input_change_of_a_hook_blocks_a_call_that_needs_no_prompt():
    session = control(hooks(), mode="bypassPermissions")
    session.hooks.send_callbacks(CALL)
    (wish,) = give(session, "uuid-1", CHANGE)
    assert isinstance(wish, ToolCallBlocked)


def test_denied_call_that_was_executed_is_blocked_in_either_order():
    session = control(hooks())
    session.hooks.send_callbacks(CALL)
    assert give(session, "uuid-1", DENY) == []
    assert session.hooks.record_executed_call("call_1") == ToolCallBlocked("call_1", "not today")
    other = control(hooks())
    other.hooks.send_callbacks(CALL)
    assert other.hooks.record_executed_call("call_1") is None
    assert give(other, "uuid-1", DENY) == [ToolCallBlocked("call_1", "not today")]


def test_hook_denial_blocks_the_call_immediately_in_bypass_mode():
    session = control(hooks(), mode="bypassPermissions")
    session.hooks.send_callbacks(CALL)
    assert give(session, "uuid-1", DENY) == [ToolCallBlocked("call_1", "not today")]


def test_hook_denial_waits_for_the_request_if_the_vendor_asks_in_bypass_mode():
    session = control(hooks(), mode="bypassPermissions", asks_in_bypass_mode=True)
    session.hooks.send_callbacks(CALL)
    take_lines(session)
    assert give(session, "uuid-1", DENY) == []
    assert session.decide_permission(BASH_REQUEST) == PermissionDecision(
        False, message="not today", is_message_for_model=True
    )


def test_skipping_an_unanswered_hook_sends_the_permission_request():
    session = control(hooks())
    session.hooks.send_callbacks(CALL)
    session.decide_permission(BASH_REQUEST)
    take_lines(session)
    assert session.is_awaiting_hook_decisions(BASH_REQUEST)
    assert session.decide_permission_without_hooks(BASH_REQUEST) is None
    (question,) = take_lines(session)
    assert question["request"]["subtype"] == "can_use_tool"
    assert (
        not session.is_awaiting_hook_decisions(BASH_REQUEST)
        and session.decide_permission_without_hooks(BASH_REQUEST) is None
        and take_lines(session) == []
    )
    assert give(session, "uuid-1", DENY) == []


PERMISSION_HOOK = hooks("PermissionRequest")


def build_permission_answer(**decision):
    return {"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": decision}}


def test_permission_hook_is_called_beside_the_prompt_and_the_first_answer_counts():
    session = control(PERMISSION_HOOK)
    assert session.decide_permission(BASH_REQUEST) is None
    prompt, hook = take_lines(session)
    assert (prompt["request"]["subtype"], hook["request"]["subtype"]) == (
        "can_use_tool",
        "hook_callback",
    )
    assert (
        hook["request"]["input"]["permission_suggestions"]
        == (prompt["request"]["permission_suggestions"])
    )
    (answered,) = give(session, hook["request_id"], build_permission_answer(behavior="allow"))
    assert answered == PermissionDecided(BASH_REQUEST, PermissionDecision(True))
    (cancelled,) = take_lines(session)
    assert cancelled == {"type": "control_cancel_request", "request_id": prompt["request_id"]}
    assert give(session, prompt["request_id"], {"behavior": "deny", "message": "no"}) == []


def test_late_answer_of_a_permission_hook_has_no_effect():
    session = control(PERMISSION_HOOK)
    session.decide_permission(BASH_REQUEST)
    prompt, hook = take_lines(session)
    ((_, decision),) = give(session, prompt["request_id"], {"behavior": "deny", "message": "no"})
    assert not decision.allow
    assert give(session, hook["request_id"], build_permission_answer(behavior="allow")) == []


def test_permission_hook_decides_if_the_frontend_shows_no_prompts():
    denial = PermissionDecision(False, message="no", needs_notice=True, is_message_for_model=True)
    for answer, decision in (
        (
            build_permission_answer(behavior="allow", updatedInput={"command": "true"}),
            PermissionDecision(True, {"command": "true"}, needs_notice=True),
        ),
        (build_permission_answer(behavior="deny", message="no"), denial),
        (
            build_permission_answer(behavior="deny", message="no", interrupt=True),
            denial._replace(ends_turn=True),
        ),
    ):
        session = control(PERMISSION_HOOK, answers_prompts=False)
        assert session.decide_permission(BASH_REQUEST) is None
        (hook,) = take_lines(session)
        (answered,) = give(session, hook["request_id"], answer)
        assert answered == PermissionDecided(BASH_REQUEST, decision)


def test_call_is_denied_if_no_permission_hook_decides():
    raw_hooks = hooks("PermissionRequest", None, "hook_0", "hook_1")
    session = control(raw_hooks, answers_prompts=False)
    session.decide_permission(BASH_REQUEST)
    first, second = take_lines(session)
    assert give(session, first["request_id"], {"decision": "block"}) == []
    ((_, decision),) = give(session, second["request_id"], {})
    assert not decision.allow and decision == control(
        None, answers_prompts=False
    ).decide_permission(BASH_REQUEST)
    session.decide_permission(BASH_REQUEST)
    assert session.decide_permission_without_hooks(BASH_REQUEST) == decision


def test_permission_hook_cannot_allow_what_a_rule_or_the_mode_denies():
    session = apply_rules(control(PERMISSION_HOOK), deny=["Bash(rm:*)"])
    session.decide_permission(BASH_REQUEST._replace(tool_input={"command": "touch m"}))
    _, hook = take_lines(session)
    changed = build_permission_answer(behavior="allow", updatedInput={"command": "rm x"})
    ((_, decision),) = give(session, hook["request_id"], changed)
    assert not decision.allow
    session = control(PERMISSION_HOOK, mode="dontAsk")
    assert session.decide_permission(BASH_REQUEST) is not None and take_lines(session) == []


def test_answer_to_another_event_denies_the_call_and_the_message():
    answer = {"hookSpecificOutput": {"hookEventName": "Stop", "permissionDecision": "allow"}}
    assert parse_hook_output(answer).allow is False
    rejection = parse_prompt_hook_rejection(answer, "hi")
    assert rejection is not None and rejection.is_error


def test_hook_input_has_absolute_paths_the_message_and_the_duration():
    times = iter((1000, 1250))
    session = control(hooks() | hooks("PostToolUse", None, "hook_1"), effort="high")
    session.session_state.options = session.session_state.options._replace(
        elapsed_ms=lambda: next(times)
    )
    session.session_state.prompt_id = "P"
    call = HookEvent("PreToolUse", "call_1", "Write", {"file_path": "a/b"})
    session.hooks.call_hooks(call)
    session.hooks.call_hooks(call._replace(name="PostToolUse", tool_response="ok"))
    before, after = (line["request"]["input"] for line in take_lines(session))
    assert before["tool_input"] == after["tool_input"] == {"file_path": "/repo/a/b"}
    assert (before["prompt_id"], before["effort"]) == ("P", {"level": "high"})
    assert after["duration_ms"] == 250 and "duration_ms" not in before


def test_unchanged_input_of_a_hook_is_not_a_change():
    session = control(hooks(), asks_permissions=False)
    session.hooks.call_hooks(CALL._replace(tool="Write", tool_input={"file_path": "a"}))
    output = {"hookEventName": "PreToolUse", "updatedInput": {"file_path": "/repo/a"}}
    assert give(session, "uuid-1", {"hookSpecificOutput": output}) == []


def test_hook_that_answers_with_an_error_is_reported():
    session = control(hooks("Stop"))
    session.start_turn(None)
    session.hooks.send_callbacks(HookEvent("Stop"))
    (line,) = take_lines(session)
    response = {"subtype": "error", "request_id": line["request_id"], "error": "boom"}
    session.receive_line(json.dumps({"type": "control_response", "response": response}).encode())
    (notice,) = take_lines(session)
    assert (notice["level"], notice["tag"]) == ("warning", "hook_callback_failed")


def apply_rules(session, **rules):
    session.session_state.policy = build_policy(**rules)
    return session


def decide_after_hooks(session, hook_decision):
    """Return the outcome of the permission request after the hooks of the settings have decided."""
    session.decide_permission(BASH_REQUEST, has_hook_commands=True)
    assert session.has_undecided_requests
    return session.apply_hook_decision(BASH_REQUEST, hook_decision)


def test_hook_ask_decision_overrides_an_allow_rule():
    session = apply_rules(control(hooks()), allow=["Bash"])
    session.hooks.send_callbacks(CALL)
    take_lines(session)
    session.decide_permission(BASH_REQUEST)
    assert give(session, "uuid-1", ASKS) == []
    (question,) = take_lines(session)
    assert question["request"]["input"] == {"command": "ls"}
    alone = apply_rules(control(None, answers_prompts=False), allow=["Bash"])
    assert decide_after_hooks(alone, HookDecision(reason="sure?", requires_prompt=True)) == (
        True,
        PermissionDecision(False, message="sure?", needs_notice=True, is_message_for_model=True),
    )


def test_hook_ask_decision_blocks_the_call_if_the_vendor_never_asks():
    session = control(hooks(), asks_permissions=False)
    session.hooks.send_callbacks(CALL)
    assert give(session, "uuid-1", ASKS) == [ToolCallBlocked("call_1", "sure?")]


def test_hook_allow_does_not_override_deny_rules_or_plan_mode():
    for rules, mode, allow in (
        ({}, "default", True),
        ({"deny": ["Bash(ls:*)"]}, "default", False),
        ({}, "dontAsk", True),
        ({}, "acceptEdits", True),
    ):
        session = apply_rules(control(None, mode=mode), **rules)
        assert decide_after_hooks(session, HookDecision(True))[1].allow is allow
    changes = BASH_REQUEST._replace(tool_input={"command": "touch m"})
    session = apply_rules(control(None, mode="plan", answers_prompts=False))
    session.decide_permission(changes, has_hook_commands=True)
    assert not session.apply_hook_decision(changes, HookDecision(True))[1].allow


def test_input_changed_by_a_hook_is_used_for_rules_and_the_prompt():
    changed = HookDecision(updated_input={"command": "touch m"})
    assert not decide_after_hooks(apply_rules(control(None), deny=["Bash(touch:*)"]), changed)[
        1
    ].allow
    assert decide_after_hooks(
        apply_rules(control(None), deny=["Bash(ls:*)"], allow=["Bash"]), changed
    )[1] == PermissionDecision(True, updated_input={"command": "touch m"})
    for answer_fields, runs in (({}, "touch m"), ({"updatedInput": {"command": "rm m"}}, "rm m")):
        session = apply_rules(control(None))
        assert decide_after_hooks(session, changed) == (True, None)
        question = take_lines(session)[-1]
        assert question["request"]["input"] == {"command": "touch m"}
        ((_, decision),) = give(
            session, question["request_id"], {"behavior": "allow", **answer_fields}
        )
        assert decision.updated_input == {"command": runs}


def test_hook_decision_after_an_interrupt_is_ignored():
    session = control(None)
    session.start_turn("go")
    session.decide_permission(BASH_REQUEST, has_hook_commands=True)
    session.receive_line(
        b'{"type":"control_request","request_id":"s","request":{"subtype":"interrupt"}}'
    )
    assert session.apply_hook_decision(BASH_REQUEST, HookDecision(True)) == (False, None)


@pytest.mark.parametrize("callback_answer", [ALLOW, {}])
def test_callback_does_not_release_a_call_while_hook_commands_run(callback_answer):
    session = apply_rules(control(hooks()), allow=["Bash"])
    session.hooks.send_callbacks(CALL)
    assert session.decide_permission(BASH_REQUEST, has_hook_commands=True) is None
    assert give(session, "uuid-1", callback_answer) == []
    assert session.apply_hook_decision(BASH_REQUEST, HookDecision(False, "blocked")) == (
        True,
        PermissionDecision(False, message="blocked", is_message_for_model=True),
    )


def test_hook_commands_do_not_release_a_call_while_a_callback_is_open():
    session = apply_rules(control(hooks()), allow=["Bash"])
    session.hooks.send_callbacks(CALL)
    session.decide_permission(BASH_REQUEST, has_hook_commands=True)
    assert session.apply_hook_decision(BASH_REQUEST, HookDecision(True)) == (True, None)
    assert give(session, "uuid-1", DENY) == [
        PermissionDecided(
            BASH_REQUEST, PermissionDecision(False, message="not today", is_message_for_model=True)
        )
    ]


def test_running_hook_commands_of_a_finished_turn_do_not_delay_the_next_call():
    session = apply_rules(control(hooks()), allow=["Bash"])
    session.start_turn("go")
    session.decide_permission(BASH_REQUEST, has_hook_commands=True)
    session.end_turn()
    assert session.decide_permission(BASH_REQUEST) == PermissionDecision(True)


def test_late_hook_wait_of_a_finished_turn_does_not_decide_a_request_with_the_same_id():
    session = control(hooks())
    next_request = BASH_REQUEST._replace(tool_input={"command": "touch m"})
    for request in (BASH_REQUEST, next_request):
        session.start_turn("go")
        session.hooks.send_callbacks(CALL)
        assert session.decide_permission(request) is None
        if request is BASH_REQUEST:
            session.end_turn()
    assert session.decide_permission_without_hooks(BASH_REQUEST) is None
    assert session.is_awaiting_hook_decisions(next_request)


def test_decision_of_hook_commands_does_not_apply_to_another_request():
    session = apply_rules(control(None))
    second_request = BASH_REQUEST._replace(request_id="q2", tool_input={"command": "touch m"})
    for request in (BASH_REQUEST, second_request):
        assert session.decide_permission(request, has_hook_commands=True) is None
    assert session.apply_hook_decision(BASH_REQUEST, HookDecision(True))[1].allow
    assert session.is_awaiting_hook_decisions(second_request)
    assert session.apply_hook_decision(second_request, HookDecision()) == (True, None)
    assert session.requests_with_open_prompt == [second_request]


def test_callback_releases_all_requests_about_its_call():
    session = control(hooks())
    session.hooks.send_callbacks(CALL)
    second_request = BASH_REQUEST._replace(request_id="q2")
    for request in (BASH_REQUEST, second_request):
        session.decide_permission(request)
    answers = give(session, "uuid-1", DENY)
    assert [answer.request for answer in answers] == [BASH_REQUEST, second_request]
    assert not any(answer.decision.allow for answer in answers)


def test_skipping_callbacks_does_not_skip_running_hook_commands():
    session = apply_rules(control(hooks()), allow=["Bash"])
    session.hooks.send_callbacks(CALL)
    session.decide_permission(BASH_REQUEST, has_hook_commands=True)
    assert session.decide_permission_without_hooks(BASH_REQUEST) is None
    assert session.is_awaiting_hook_decisions(BASH_REQUEST)


def test_hook_denial_after_the_prompt_overrides_the_answer_of_a_person():
    session = control(hooks())
    session.decide_permission(BASH_REQUEST)
    (question,) = take_lines(session)
    session.hooks.send_callbacks(CALL._replace(tool_input={"command": "touch m"}))
    (callback,) = take_lines(session)
    assert give(session, callback["request_id"], DENY) == []
    ((_, decision),) = give(session, question["request_id"], {"behavior": "allow"})
    assert decision == PermissionDecision(
        False, message="not today", needs_notice=True, is_message_for_model=True
    )


LARGE = CALL._replace(tool_input={"command": "x" * 60_000})


def test_call_is_denied_if_its_input_is_too_large_for_the_hook():
    session = control(hooks(), max_line_bytes=50_000)
    session.hooks.send_callbacks(LARGE)
    assert take_lines(session) == []
    decision = session.decide_permission(BASH_REQUEST)
    assert decision is not None and not decision.allow and "too large" in decision.message


@pytest.mark.parametrize("fields", [{"asks_permissions": False}, {"mode": "bypassPermissions"}])
def test_oversized_hook_input_is_truncated_if_calls_run_without_prompts(fields):
    session = control(hooks(), max_line_bytes=50_000, **fields)
    session.hooks.send_callbacks(LARGE)
    (line,) = take_lines(session)
    assert len(json.dumps(line)) <= 50_000
    echo = {"permissionDecision": "allow", "updatedInput": line["request"]["input"]["tool_input"]}
    assert give(session, line["request_id"], {"hookSpecificOutput": echo}) == [], (
        "what was shown is no change"
    )
