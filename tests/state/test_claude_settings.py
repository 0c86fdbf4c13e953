"""`--settings` for a vendor that is not Claude: what narrows is obeyed."""

import json

import pytest
from box import ANSWER, ASK, STREAM, ndjson

from shim.core.claude.argv.invocation import Invocation
from shim.core.claude.argv.parse import parse
from shim.core.errors import ArgumentError
from shim.state.claude_settings import obey_settings

DENY = {"permissions": {"deny": ["Bash(rm *)", "Write"], "allow": ["Read"], "defaultMode": "plan"}}


def obeyed(settings, *words):
    return obey_settings(parse([*words, "--settings", settings if isinstance(settings, str) else json.dumps(settings)]))


def test_rules_and_mode_are_those_of_the_flags():
    invocation = obeyed(DENY, "--disallowedTools=Edit")
    assert invocation.rules.disallowed_tools == ("Edit", "Bash(rm *)", "Write")
    assert invocation.rules.allowed_tools == ("Read",)
    assert invocation.permissions.permission_mode == "plan"


def test_a_file_says_the_same(tmp_path):
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(DENY), encoding="utf-8")
    assert obeyed(str(path)).rules.disallowed_tools == ("Bash(rm *)", "Write")


def test_a_mode_that_is_a_flag_goes_first_and_none_is_wider_than_was_asked_for():
    assert obeyed(DENY, "--permission-mode", "acceptEdits").permissions.permission_mode == "acceptEdits"
    assert obeyed({"permissions": {"defaultMode": "bypassPermissions"}}).permissions.permission_mode is None


@pytest.mark.parametrize("settings", [{}, {"permissions": 7}, {"permissions": {"deny": "Bash"}}, {"model": "m"}])
def test_what_says_nothing_to_us_changes_nothing(settings):
    invocation = obeyed(settings)
    assert (invocation.rules, invocation.permissions) == (Invocation().rules, Invocation().permissions)


@pytest.mark.parametrize("settings", ["{bad", "/nowhere.json", "a\0b", "[]", "7"])
def test_what_cannot_be_read_is_refused(settings):
    with pytest.raises(ArgumentError, match="ettings"):
        obeyed(settings)


def test_a_file_that_is_not_there_is_said_in_the_real_ones_words(box):
    """Contract 11"""
    done = box.claude(*ASK, "--settings", "{bad", SHIM_VENDOR="demo", SHIM_BIN=box.fake(["out", ANSWER]))
    assert (done.status, done.stdout) == (1, b"")
    assert done.stderr == f"Error: Settings file not found: {box.cwd}/{{bad\n"


def test_a_denied_tool_is_not_listed_and_stops_the_turn(box):
    call = {"type": "call", "id": "c1", "name": "Bash", "input": {"command": "rm -rf x"}}
    first, *rest = ANSWER.splitlines(keepends=True)
    child = box.fake(["read"], ["out", first + ndjson(call) + "".join(rest)])
    settings = json.dumps({"permissions": {"deny": ["Bash(rm *)", "Read"]}})
    done = box.claude("hi", *STREAM, "--settings", settings, SHIM_VENDOR="demo", SHIM_BIN=child)
    assert done.init["tools"] == ["Bash"]
    assert (done.status, done.cause) == (1, "denied")


def test_a_mode_that_the_vendor_cannot_honour_is_refused(box):
    child = box.fake(["record", str(box.recording)])
    settings = json.dumps({"permissions": {"defaultMode": "plan"}})
    done = box.claude(*ASK, "--settings", settings, SHIM_VENDOR="acai", SHIM_BIN=child)
    assert (done.status, done.cause) == (1, "refused")
    assert not box.recording.exists()


def test_a_sandbox_that_is_not_there_is_said(box):
    child = box.fake(["out", ANSWER])
    done = box.claude(*ASK, "--settings", '{"sandbox":{"enabled":true}}', SHIM_VENDOR="demo", SHIM_BIN=child)
    assert (done.status, done.stderr.count("\n")) == (0, 1)
    assert "sandbox" in done.stderr


def test_a_real_claude_reads_its_own(box):
    box.fake(["record", str(box.recording)], name="claude")
    settings = json.dumps(DENY)
    box.claude(*ASK, "--settings", settings, SHIM_VENDOR="claude")
    assert f"--settings={settings}" in box.record()["arguments"]
    assert not [word for word in box.record()["arguments"] if word.startswith("--disallowedTools")]
