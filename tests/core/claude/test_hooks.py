"""A frontend's hooks: which are meant, what they are told, what they may forbid (contract C11)."""

import itertools
import json

import pytest
from ruling import build_policy
from support import build_session_state
from sweeps import loop_over_rows

from shim.core.claude.control import ControlSession
from shim.core.claude.control.wishes import CallBlocked, PermissionAnswered
from shim.core.claude.hooks.callbacks import (
    HookCallbacks,
    HookDecision,
    HookEvent,
    parse_hook_output,
)
from shim.core.claude.permissions import PermissionDecision, PermissionRequest

CALL = HookEvent("PreToolUse", "call_1", "Bash", {"command": "ls"})
ASKED = PermissionRequest("q1", "call_1", "Bash", {"command": "ls"}, "shell", {"command": "ls"})
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


def control(given, **facts):
    numbers = itertools.count(1)
    known = {
        "vendor": "qwen",
        "session_id": "S",
        "mode": "default",
        "prompts": True,
        "asks": True,
        "cwd": "/repo",
    }
    one = ControlSession(
        build_session_state(**(known | facts)), lambda: f"uuid-{next(numbers)}", lambda: "now"
    )
    one.session_state.hooks = HookCallbacks(given)
    return one


def take_lines(one):
    return [json.loads(line) for line in one.take_output().splitlines()]


def give(one, identity, body):
    response = {"subtype": "success", "request_id": identity, "response": body}
    return one.receive_line(json.dumps({"type": "control_response", "response": response}).encode())


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
def test_a_matcher_is_a_name_several_or_an_expression(matcher, matches):
    assert HookCallbacks(hooks(matcher=matcher)).list_callback_ids(CALL) == (
        ["hook_0"] if matches else []
    )


@loop_over_rows(
    "given", [None, 7, {}, {"Nonsense": [{}]}, {"Stop": 7}, {"Stop": [7, {"hookCallbackIds": 7}]}]
)
def test_what_is_no_hook_is_left_out(given):
    assert not HookCallbacks(given) or not HookCallbacks(given).list_callback_ids(HookEvent("Stop"))


@loop_over_rows(
    ("answer", "verdict"),
    [
        ({}, HookDecision()),
        ({"continue": True}, HookDecision()),
        (ALLOW, HookDecision(True)),
        (DENY, HookDecision(False, "not today")),
        ({"decision": "block", "reason": "no"}, HookDecision(False, "no")),
        ({"continue": False, "stopReason": "enough"}, HookDecision(False, "enough")),
        (CHANGE, HookDecision(True, updated_input={"command": "true"})),
        (ASKS, HookDecision(reason="sure?", requires_prompt=True)),
        ({"decision": "approve"}, HookDecision(True)),
    ],
)
def test_an_answer_allows_denies_or_leaves_it_open(answer, verdict):
    assert parse_hook_output(answer) == verdict


def test_a_call_is_told_with_what_the_real_one_tells():
    """C11"""
    one = control(hooks())
    one.notify_hooks(CALL)
    (line,) = take_lines(one)
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


def test_a_question_waits_for_the_hook_about_its_call():
    one = control(hooks())
    one.notify_hooks(CALL)
    take_lines(one)
    assert one.ask_permission(ASKED) is None
    assert take_lines(one) == []
    assert give(one, "uuid-1", {}) == []
    (question,) = take_lines(one)
    assert question["request"]["subtype"] == "can_use_tool"


def test_a_hook_decides_in_the_frontends_place():
    for answer, allow in ((DENY, False), (ALLOW, True)):
        one = control(hooks())
        one.notify_hooks(CALL)
        one.ask_permission(ASKED)
        take_lines(one)
        ((permission, decision),) = give(one, "uuid-1", answer)
        assert permission is ASKED and decision.allow is allow
        assert take_lines(one) == []


def test_one_denial_of_several_hooks_is_enough_whoever_answers_last():
    one = control(hooks("PreToolUse", None, "hook_0", "hook_1"))
    one.notify_hooks(CALL)
    one.ask_permission(ASKED)
    assert give(one, "uuid-1", DENY) == []
    ((_, decision),) = give(one, "uuid-2", ALLOW)
    assert decision == PermissionDecision(False, message="not today", frontend_knows=False)


def test_an_early_verdict_holds_for_the_question_that_comes_later():
    one = control(hooks())
    one.notify_hooks(CALL)
    assert give(one, "uuid-1", DENY) == []
    decision = one.ask_permission(ASKED)
    assert decision is not None and not decision.allow


def test_a_denied_call_of_a_vendor_that_never_asks_is_forbidden():
    one = control(hooks(), asks=False)
    one.notify_hooks(CALL)
    assert give(one, "uuid-1", DENY) == [CallBlocked("call_1", "not today")]


def test_the_others_are_told_and_not_waited_for():
    given = (
        hooks("Stop")
        | hooks("PostToolUse", None, "hook_1")
        | hooks("UserPromptSubmit", None, "hook_2")
    )
    one = control(given)
    one.start_turn("do it")
    one.notify_hooks(HookEvent("PostToolUse", "call_1", "Bash", {}, "out"))
    one.notify_hooks(HookEvent("Stop"), last="Done.")
    lines = take_lines(one)
    inputs = [line["request"]["input"] for line in lines]
    assert [line["hook_event_name"] for line in inputs] == [
        "UserPromptSubmit",
        "PostToolUse",
        "Stop",
    ]
    assert (inputs[0]["prompt"], inputs[1]["tool_response"]) == ("do it", "out")
    assert inputs[2]["last_assistant_message"] == "Done."
    assert [give(one, line["request_id"], DENY) for line in lines] == [[], [], []]


def test_an_interrupt_answers_a_question_that_waits_for_a_hook():
    one = control(hooks())
    one.start_turn("go")
    one.notify_hooks(CALL)
    one.ask_permission(ASKED)
    wishes = one.receive_line(
        b'{"type":"control_request","request_id":"s","request":{"subtype":"interrupt"}}'
    )
    assert isinstance(wishes[0], PermissionAnswered) and not wishes[0].decision.allow


def test_a_hook_that_changes_a_call_does_not_allow_the_call_as_it_was():
    one = control(hooks("PreToolUse", None, "hook_0", "hook_1"))
    one.notify_hooks(CALL)
    one.ask_permission(ASKED)
    assert give(one, "uuid-1", CHANGE) == []
    ((_, decision),) = give(one, "uuid-2", ALLOW)
    assert decision == PermissionDecision(
        True, updated_input={"command": "true"}, frontend_knows=False
    )


def test_a_hook_that_changes_a_call_of_a_vendor_that_never_asks_forbids_it():
    one = control(hooks(), asks=False)
    one.notify_hooks(CALL)
    (wish,) = give(one, "uuid-1", CHANGE)
    assert isinstance(wish, CallBlocked)


def test_a_call_that_ran_unasked_although_a_hook_denied_it_is_forbidden_whichever_came_first():
    one = control(hooks())
    one.notify_hooks(CALL)
    assert give(one, "uuid-1", DENY) == []
    assert one.record_executed_call("call_1") == CallBlocked("call_1", "not today")
    other = control(hooks())
    other.notify_hooks(CALL)
    assert other.record_executed_call("call_1") is None
    assert give(other, "uuid-1", DENY) == [CallBlocked("call_1", "not today")]


def test_a_denied_call_is_forbidden_at_once_where_everything_runs():
    one = control(hooks(), mode="bypassPermissions")
    one.notify_hooks(CALL)
    assert give(one, "uuid-1", DENY) == [CallBlocked("call_1", "not today")]


def test_a_denied_call_of_a_vendor_that_always_asks_waits_for_its_question():
    one = control(hooks(), mode="bypassPermissions", always=True)
    one.notify_hooks(CALL)
    take_lines(one)
    assert give(one, "uuid-1", DENY) == []
    assert one.ask_permission(ASKED) == PermissionDecision(
        False, message="not today", frontend_knows=False
    )


def test_a_hook_that_never_answers_holds_a_question_no_longer_than_its_time():
    one = control(hooks())
    one.notify_hooks(CALL)
    one.ask_permission(ASKED)
    take_lines(one)
    assert one.is_awaiting_hooks(ASKED)
    assert one.skip_hooks(ASKED) is None
    (question,) = take_lines(one)
    assert question["request"]["subtype"] == "can_use_tool"
    assert (
        not one.is_awaiting_hooks(ASKED) and one.skip_hooks(ASKED) is None and take_lines(one) == []
    )
    assert give(one, "uuid-1", DENY) == []


def apply_rules(one, **rules):
    one.session_state.policy = build_policy(**rules)
    return one


def decide_after_hooks(one, verdict):
    """What becomes of the question once the hooks of the settings have judged its call."""
    one.await_hooks(ASKED)
    assert one.has_open_requests
    return one.apply_hook_decision(ASKED, verdict)


def test_a_hook_that_asks_goes_before_a_rule_that_allows():
    one = apply_rules(control(hooks()), allow=["Bash"])
    one.notify_hooks(CALL)
    take_lines(one)
    one.ask_permission(ASKED)
    assert give(one, "uuid-1", ASKS) == []
    (question,) = take_lines(one)
    assert question["request"]["input"] == {"command": "ls"}
    alone = apply_rules(control(None, prompts=False), allow=["Bash"])
    assert decide_after_hooks(alone, HookDecision(reason="sure?", requires_prompt=True)) == (
        True,
        PermissionDecision(False, message="sure?", frontend_knows=False),
    )


def test_a_hook_that_asks_about_what_runs_unasked_forbids_it():
    one = control(hooks(), asks=False)
    one.notify_hooks(CALL)
    assert give(one, "uuid-1", ASKS) == [CallBlocked("call_1", "sure?")]


def test_a_hook_allows_no_more_than_a_rule_about_the_tool_would():
    for rules, mode, allow in (
        ({}, "default", True),
        ({"deny": ["Bash(ls:*)"]}, "default", False),
        ({}, "dontAsk", True),
        ({}, "acceptEdits", True),
    ):
        one = apply_rules(control(None, mode=mode), **rules)
        assert decide_after_hooks(one, HookDecision(True))[1].allow is allow
    changes = ASKED._replace(tool_input={"command": "touch m"})
    one = apply_rules(control(None, mode="plan", prompts=False))
    one.await_hooks(changes)
    assert not one.apply_hook_decision(changes, HookDecision(True))[1].allow


def test_what_a_hook_changed_is_what_rules_judge_and_a_person_sees():
    changed = HookDecision(updated_input={"command": "touch m"})
    assert not decide_after_hooks(apply_rules(control(None), deny=["Bash(touch:*)"]), changed)[
        1
    ].allow
    assert decide_after_hooks(
        apply_rules(control(None), deny=["Bash(ls:*)"], allow=["Bash"]), changed
    )[1] == PermissionDecision(True, updated_input={"command": "touch m"})
    for given, runs in (({}, "touch m"), ({"updatedInput": {"command": "rm m"}}, "rm m")):
        one = apply_rules(control(None))
        assert decide_after_hooks(one, changed) == (True, None)
        question = take_lines(one)[-1]
        assert question["request"]["input"] == {"command": "touch m"}
        ((_, decision),) = give(one, question["request_id"], {"behavior": "allow", **given})
        assert decision.updated_input == {"command": runs}


def test_a_hook_that_answers_after_the_turn_was_stopped_decides_nothing():
    one = control(None)
    one.start_turn("go")
    one.await_hooks(ASKED)
    one.receive_line(
        b'{"type":"control_request","request_id":"s","request":{"subtype":"interrupt"}}'
    )
    assert one.apply_hook_decision(ASKED, HookDecision(True)) == (False, None)


LARGE = CALL._replace(tool_input={"command": "x" * 60_000})


def test_an_input_too_large_for_a_hook_is_denied_where_the_hook_could_change_it():
    one = control(hooks(), line_bytes=50_000)
    one.notify_hooks(LARGE)
    assert take_lines(one) == []
    decision = one.ask_permission(ASKED)
    assert decision is not None and not decision.allow and "too large" in decision.message


@pytest.mark.parametrize("facts", [{"asks": False}, {"mode": "bypassPermissions"}])
def test_an_input_too_large_for_a_hook_is_shown_cut_where_nothing_comes_of_it(facts):
    one = control(hooks(), line_bytes=50_000, **facts)
    one.notify_hooks(LARGE)
    (line,) = take_lines(one)
    assert len(json.dumps(line)) <= 50_000
    echo = {"permissionDecision": "allow", "updatedInput": line["request"]["input"]["tool_input"]}
    assert give(one, line["request_id"], {"hookSpecificOutput": echo}) == [], (
        "what was shown is no change"
    )
