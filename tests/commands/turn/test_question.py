"""What the answer "always" allows, and which rule a denied call would have needed."""

import json

import pytest

from shim.commands.turn.granting import granting_rule
from shim.commands.turn.question import question_of


@pytest.mark.parametrize(
    ("tool", "arguments", "rule"),
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
        ("mcp__s__t", {"x": 1}, "mcp__s__t"),
        ("Write", {"file_path": 3}, None),
    ],
)
def test_the_rule_that_lets_a_call_run_lets_no_more_run_than_it_says(tool, arguments, rule):
    assert granting_rule(tool, arguments, "/repo") == rule


def asked(**request):
    return question_of("q", {"subtype": "can_use_tool", **request}, "/repo")


def updates(question):
    return question.answer("always")["response"]["response"]["updatedPermissions"]


def test_always_holds_for_this_run_only_whatever_a_real_claude_suggests():
    suggested = {"type": "addRules", "rules": [{"toolName": "Bash", "ruleContent": "touch *"}], "behavior": "allow"}
    question = asked(tool_name="Bash", input={}, permission_suggestions=[suggested | {"destination": "localSettings"}])
    assert updates(question) == [suggested | {"destination": "session"}]
    assert "a = always allow Bash(touch *) in this run" in question.prompt()


def test_where_no_rule_would_do_always_is_not_offered():
    question = asked(tool_name="Bash", input={"command": "rm *"}, permission_suggestions=[])
    assert "always" not in question.prompt()
    assert "updatedPermissions" not in json.dumps(question.answer("always"))


def test_a_question_cannot_command_the_terminal():
    assert "\x1b" not in asked(tool_name="Bash", input={"command": "a\x1b]0;x\x07"}).prompt()
