"""The effect of the answer "always", and the rule that a denied call would have needed."""

import json

import pytest

from shim.bridge.decisions import (
    PermissionPromptQueue,
    build_decision_body,
    build_permission_prompt,
    find_narrowest_allow_rule,
)
from shim.core.errors import FrontendError


@pytest.mark.parametrize(
    ("tool", "tool_input", "rule"),
    [
        ("Bash", {"command": "touch x"}, "Bash(touch x)"),
        ("Bash", {"command": "a && b | c"}, "Bash(a && b | c)"),
        ("Bash", {"command": "rm *"}, None),  # as a rule it would allow more than this command
        ("Bash", {"command": "a\nb"}, None),
        ("Bash", {"command": "touch x", "directory": "/elsewhere"}, None),
        ("Write", {"file_path": "/repo/a/b"}, "Edit(./**)"),
        ("Edit", {"file_path": "a"}, "Edit(./**)"),
        ("Write", {"file_path": "/other/b"}, "Edit(//other/b)"),
        ("Write", {"file_path": "/other/[b]"}, None),
        ("Write", {"file_path": "/repo/.git/config"}, None),  # no rule allows it
        ("Read", {"file_path": "/etc/hosts"}, "Read(//etc/hosts)"),
        ("WebFetch", {"url": "https://a.example/x"}, "WebFetch(domain:a.example)"),
        ("WebFetch", {"url": "file:///etc/hosts"}, None),
        ("Monitor", {"command": "tail -f x"}, None),  # of any command
        ("LS", {"path": "/etc"}, None),  # of everything below it
        ("Glob", {"path": "/etc", "pattern": "*"}, None),
        ("Grep", {"path": "/etc", "pattern": "x"}, "Read(//etc)"),
        ("mcp__s__t", {"x": 1}, "mcp__s__t"),
        ("Write", {"file_path": 3}, None),
    ],
)
def test_narrowest_allow_rule_matches_only_the_requested_call(tool, tool_input, rule):
    assert find_narrowest_allow_rule(tool, tool_input, "/repo") == rule


def build_question(**request):
    return build_permission_prompt("q", {"subtype": "can_use_tool", **request}, "/repo")


def updates(question):
    return question.build_control_response("always")["response"]["response"]["updatedPermissions"]


def test_always_stores_the_suggested_rule_for_the_session_only():
    suggested = {
        "type": "addRules",
        "rules": [{"toolName": "Bash", "ruleContent": "touch *"}],
        "behavior": "allow",
    }
    question = build_question(
        tool_name="Bash",
        input={},
        permission_suggestions=[suggested | {"destination": "localSettings"}],
    )
    assert updates(question) == [suggested | {"destination": "session"}]
    assert "a = always allow Bash(touch *) in this run" in question.format_input_prompt()


def test_always_is_not_offered_if_no_rule_covers_the_call():
    question = build_question(
        tool_name="Bash", input={"command": "rm *"}, permission_suggestions=[]
    )
    assert "always" not in question.format_input_prompt()
    assert "updatedPermissions" not in json.dumps(question.build_control_response("always"))


def test_permission_prompt_contains_no_escape_sequences():
    assert (
        "\x1b"
        not in build_question(
            tool_name="Bash", input={"command": "a\x1b]0;x\x07"}
        ).format_input_prompt()
    )


FOLDER = {"type": "addDirectories", "directories": ["/etc"], "destination": "session"}
MODE = {"type": "setMode", "mode": "acceptEdits", "destination": "session"}
RULE = {
    "type": "addRules",
    "behavior": "allow",
    "rules": [{"toolName": "Bash", "ruleContent": "rm:*"}],
}


@pytest.mark.parametrize(
    "suggested",
    [
        FOLDER, MODE, {**RULE, "behavior": "deny"}, {**RULE, "rules": "Bash"}, {**RULE, "rules": [None]},
        {**RULE, "rules": [{"toolName": "Read", "ruleContent": "//etc/**"}]}, {"type": "new"}, ["addRules"], None,
        {**RULE, "rules": [{"toolName": "Bash", "ruleContent": 1}]}, {**RULE, "rules": [{"toolName": "Bash"}]},
        {**RULE, "rules": [{"toolName": "Monitor", "ruleContent": "*"}]},
    ],
)  # fmt: skip
def test_always_accepts_only_suggested_allow_rules_for_the_requested_call(suggested):
    """This also applies if no rule is known: `rm *` has none."""
    question = build_question(
        tool_name="Bash", input={"command": "rm *"}, permission_suggestions=[suggested]
    )
    assert (question.permission_updates, question.rules) == ((), ())
    question = build_question(
        tool_name="Bash",
        input={"command": "rm *"},
        permission_suggestions=[suggested, {**RULE, "mode": "plan"}],
    )
    assert updates(question) == [{**RULE, "destination": "session"}] and question.rules == (
        "Bash(rm:*)",
    )


@pytest.mark.parametrize(
    "request_",
    [{"tool_name": "ExitPlanMode"}, {"tool_name": "AskUserQuestion"}, {"subtype": "elicitation"}],
)
def test_plans_questions_and_elicitations_have_no_permission_updates(request_):
    assert build_question(input={}, **request_).permission_updates == ()


BASH_REQUEST = {
    "subtype": "can_use_tool",
    "tool_name": "Bash",
    "input": {"command": "touch x"},
    "permission_suggestions": [MODE],
}
FORM = {"subtype": "elicitation", "message": "Which city?"}


def exactly(command):
    rule = {"toolName": "Bash", "ruleContent": command}
    return [{"type": "addRules", "rules": [rule], "behavior": "allow", "destination": "session"}]


@pytest.mark.parametrize(
    ("request_", "answer_fields", "decision"),
    [
        (BASH_REQUEST, {"behavior": "allow"}, {"behavior": "allow"}),
        (
            BASH_REQUEST,
            {"behavior": "allow", "always": True},
            {"behavior": "allow", "updatedPermissions": exactly("touch x")},
        ),
        (
            BASH_REQUEST,
            {"behavior": "allow", "always": True, "replacement_input": {"command": "ls"}},
            {
                "behavior": "allow",
                "updatedInput": {"command": "ls"},
                "updatedPermissions": exactly("ls"),
            },
        ),
        (
            BASH_REQUEST,
            {"behavior": "deny", "message": "no"},
            {"behavior": "deny", "message": "no"},
        ),
        ({}, {"behavior": "allow", "always": True}, {"behavior": "allow"}),
        (
            FORM,
            {"behavior": "allow", "replacement_input": {"city": "Oslo"}},
            {"action": "accept", "content": {"city": "Oslo"}},
        ),
        (FORM, {"behavior": "deny", "message": "no"}, {"action": "decline"}),
    ],
)
def test_answer_fields_are_converted_to_a_permission_decision(request_, answer_fields, decision):
    assert build_decision_body(request=request_, cwd="/repo", **answer_fields) == decision


@pytest.mark.parametrize(
    ("request_", "behavior", "answer_fields", "why"),
    [
        (
            BASH_REQUEST,
            "allow",
            {"message": "but quickly"},
            "a message can only be used with `deny`",
        ),
        (BASH_REQUEST, "deny", {"always": True}, "can only be used with `allow`"),
        (BASH_REQUEST, "deny", {"replacement_input": {}}, "can only be used with `allow`"),
        (FORM, "allow", {"always": True}, "cannot be answered with `always`"),
        (
            {**BASH_REQUEST, "input": {"command": "rm *"}},
            "allow",
            {"always": True},
            "no rule matches exactly",
        ),
        # The agent's suggestions are for its own request.
        (
            {**BASH_REQUEST, "permission_suggestions": [RULE]},
            "allow",
            {"always": True, "replacement_input": {"command": "ls *"}},
            "no rule",
        ),
    ],
)
def test_conflicting_answer_fields_raise_an_error(request_, behavior, answer_fields, why):
    with pytest.raises(FrontendError, match=why):
        build_decision_body(behavior, request_, "/repo", **answer_fields)


def test_prompt_queue_makes_the_oldest_pending_prompt_current():
    questions = PermissionPromptQueue("/work")
    put = [
        questions.add_request(name, {"tool_name": "Bash", "input": {"command": name}})
        for name in ("a", "b", "c")
    ]
    assert put == [True, False, False] and (
        questions.current.request_id,
        questions.waiting_count,
    ) == ("a", 2)
    assert (
        not questions.remove_resolved_request("b")
        and not questions.remove_resolved_request("unknown")
        and questions.current.request_id == "a"
    )
    assert questions.remove_resolved_request("a") and (
        questions.current.request_id,
        questions.waiting_count,
    ) == (
        "c",
        0,
    )
    assert questions.remove_resolved_request("c") and questions.current is None
    assert questions.add_request("d", {"tool_name": "Bash"})
    questions.clear()
    assert questions.current is None and questions.add_request("e", {"tool_name": "Bash"})
