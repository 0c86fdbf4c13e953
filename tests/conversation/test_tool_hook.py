"""The hook that judges a call before a vendor runs it: a real process behind the line that a vendor is given."""

import json
import subprocess
import sys

import pytest
from ruling import PLACE, policy

from shim.conversation.drivers.launcher import HOOK
from shim.core.claude.argv.parse import parse
from shim.core.vendor.hook import UNASKED, command
from shim.core.vendor.vendor import Request
from shim.vendors.codex_rules import HOOK as CODEX

SECONDS = 30.0
RULES = policy(deny=["Bash(touch:*)"])
SLOW = """
import sys, types
from shim.conversation import tool_hook
tool_hook.SECONDS = 1
module = types.ModuleType("slow")
def calls(event, place):
    while True: pass
module.calls = calls
sys.modules["slow"] = module
sys.exit(tool_hook.main())
"""


def hooked(event, *, judge=HOOK, module=CODEX):
    """The exit status of the hook, and what it tells the model."""
    request = Request(parse(()), "", permission_mode="bypassPermissions", policy=RULES, judge=judge)
    line = command(request, "codex", module)
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        input=event.encode(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=SECONDS,
    )
    return done.returncode, done.stderr.decode()


def call(line):
    return json.dumps({"tool_name": "Bash", "tool_input": {"command": line}, "cwd": PLACE.cwd})


def test_a_call_that_no_rule_is_about_runs():
    assert hooked(call("ls")) == (0, "")


def test_a_denied_call_is_refused_with_its_rule():
    status, said = hooked(call("A=1 touch m"))
    assert status == 2
    assert "Bash(touch:*)" in said


@pytest.mark.parametrize("event", ["", "no JSON", "{}", "[" * 100_000], ids=["nothing", "words", "empty", "nested"])
def test_an_event_that_cannot_be_read_is_a_refusal(event):
    status, said = hooked(event)
    assert status == 2
    assert said


def test_a_judge_that_takes_too_long_ends_and_refuses():
    status, said = hooked(call("ls"), judge=(sys.executable, "-c", SLOW), module="slow")
    assert (status, said.splitlines()[-1]) == (2, UNASKED)


def test_a_judge_that_is_not_there_refuses():
    status, said = hooked(call("ls"), judge=("/nowhere/python",))
    assert status == 2
    assert UNASKED in said
