"""The meaning of a hook's exit in Claude's settings files. Every row was measured with the real
claude 2.1.330.
"""

import json

import pytest
from policy_builder import WORKSPACE
from sweeps import loop_over_rows

from shim.core.claude.hooks.answers import HookDecision
from shim.core.claude.hooks.callbacks import HookContext, HookEvent
from shim.core.claude.hooks.commands import (
    HookCommandResult,
    decide_from_hook_result,
    encode_hook_input,
    select_hooks,
)
from shim.core.policy.settings_hooks import SettingsHook

TOUCH = {"command": "touch made"}


def specific(decision=None, **more):
    output = {
        "hookEventName": "PreToolUse",
        **({"permissionDecision": decision} if decision else {}),
        **more,
    }
    return json.dumps({"hookSpecificOutput": output})


def decide_hook(stdout="", code=0, stderr="", hook=None, error=""):
    hook = hook or SettingsHook("", "true")
    call = HookEvent("PreToolUse", "call_1", "Bash", TOUCH)
    return decide_from_hook_result(
        hook, call, HookCommandResult(code, stdout, stderr, error), WORKSPACE
    )


def test_exit_code_2_denies_with_the_text_of_stderr():
    assert decide_hook(code=2, stderr="no way\n") == HookDecision(
        False, "PreToolUse:Bash hook error: [true]: no way"
    )
    assert decide_hook(code=2, stdout=specific("allow")).allow is False
    assert decide_hook(code=2).reason.endswith("[true]: No stderr output")


@pytest.mark.parametrize("code", [1, 127, None])
def test_other_exit_codes_make_no_decision(code):
    assert decide_hook(code=code, error="x") == HookDecision()


@pytest.mark.parametrize("code", [1, None])
def test_failed_hook_denies_if_configured_to_block(code):
    hook = SettingsHook("", "check", ("a",), blocks_on_failure=True)
    assert decide_hook(code=code, hook=hook, error="timed out").reason == (
        'PreToolUse:Bash hook error: [check a]: timed out; blocking because onFailure is "block"'
    )
    assert decide_hook("no JSON", hook=hook) == HookDecision()


@pytest.mark.parametrize("code", [0, 1])
def test_hook_output_counts_for_exit_codes_0_and_1(code):
    assert decide_hook(specific("deny", permissionDecisionReason="dd"), code) == HookDecision(
        False, "PreToolUse:Bash hook error: dd"
    )
    assert decide_hook(specific("allow"), code).allow is True


@loop_over_rows(
    ("stdout", "decision"),
    [
        (
            '{"decision": "block", "reason": "old"}',
            HookDecision(False, "PreToolUse:Bash hook error: old"),
        ),
        (
            '{\n "decision": "block",\n "reason": "old"}\n',
            HookDecision(False, "PreToolUse:Bash hook error: old"),
        ),
        ('{"decision": "approve", "reason": "old"}', HookDecision(True, "old")),
        (
            specific("ask", permissionDecisionReason="kk"),
            HookDecision(reason="kk", requires_prompt=True),
        ),
        (
            specific("ask"),
            HookDecision(
                reason="A hook asked for confirmation of this call.", requires_prompt=True
            ),
        ),
        (
            specific("allow", updatedInput={"command": "ls"}),
            HookDecision(True, updated_input={"command": "ls"}),
        ),
        (specific(updatedInput={"command": "ls"}), HookDecision(updated_input={"command": "ls"})),
        ('{"systemMessage": "hello"}', HookDecision()),
        (
            '{"hookSpecificOutput": {"hookEventName": "PostToolUse", "permissionDecision": "allow"}}',
            HookDecision(),
        ),
        ('{"hookSpecificOutput": {"permissionDecision": "allow"}}', HookDecision()),
        (specific("never"), HookDecision()),
        ("{broken", HookDecision()),
        ("hi " + specific("deny"), HookDecision()),
        (specific("deny") + " hi", HookDecision()),
        ("[]", HookDecision()),
    ],
)
def test_json_output_sets_the_decision(stdout, decision):
    assert decide_hook(stdout) == decision


@pytest.mark.parametrize("stdout", [specific("defer"), specific("allow", updatedInput="x")])
def test_hook_output_that_cannot_be_applied_denies_the_call(stdout):
    assert decide_hook(stdout).allow is False


def hooks_before(tool, tool_input, *hooks):
    call = HookEvent("PreToolUse", "call_1", tool, tool_input)
    return [hook.command for hook in select_hooks(hooks, call, WORKSPACE)]


@loop_over_rows(
    ("matcher", "runs"),
    [
        *[
            (matcher, True)
            for matcher in (
                "Bash",
                "",
                "*",
                "Ba.*",
                ".*",
                "^B",
                "Edit|Bash",
                "Write, Bash",
                "Edit,Bash",
            )
        ],
        *[(matcher, True) for matcher in ("Bash ", ".*ash$", "(?!Edit).*")],
        *[
            (matcher, False)
            for matcher in ("bash", "Ba", "Edit|Write", "mcp__.*", "Bash(touch:*)", "Bash(ls:*)")
        ],
        # The real claude never runs it. Here a pattern that cannot be parsed may block.
        ("(", True),
    ],
)
def test_matcher_is_a_list_of_names_or_a_regex(matcher, runs):
    assert hooks_before("Bash", TOUCH, SettingsHook(matcher, "x")) == (["x"] if runs else [])


def test_subagent_call_matches_hooks_for_agent_and_task():
    both = SettingsHook("Agent", "a"), SettingsHook("Task", "b")
    assert hooks_before("Task", {}, *both) == ["a", "b"]


@loop_over_rows(
    ("rule", "command", "runs", "allows"),
    [
        ("Bash(touch:*)", "touch made", True, True),
        ("Bash(touch:*)", "make && touch made", True, False),
        ("Bash(ls:*)", "touch made", False, False),
        ("Bash", "touch made", True, True),
        ("Edit(**)", "ls", False, False),
        ("Edit(**)", "touch made", True, False),
    ],
)
def test_hook_condition_decides_whether_a_hook_runs_and_may_allow(rule, command, runs, allows):
    hook, tool_input = SettingsHook("", "x", condition=rule), {"command": command}
    assert hooks_before("Bash", tool_input, hook) == (["x"] if runs else [])
    call = HookEvent("PreToolUse", "call_1", "Bash", tool_input)
    decision = decide_from_hook_result(
        hook, call, HookCommandResult(0, specific("allow")), WORKSPACE
    )
    assert bool(decision.allow) is allows


def test_duplicate_hook_runs_once():
    duplicates = SettingsHook("", "a", source="user"), SettingsHook("Bash", "a", source="project")
    assert hooks_before("Bash", TOUCH, *duplicates) == ["a"]


def test_hook_input_uses_claude_names():
    assert json.loads(
        encode_hook_input(
            HookEvent("PreToolUse", "call_1", "Task", {"prompt": "x"}),
            HookContext("S", "/t", "plan", "/work"),
        )
    ) == {
        "session_id": "S",
        "transcript_path": "/t",
        "cwd": "/work",
        "permission_mode": "plan",
        "hook_event_name": "PreToolUse",
        "tool_name": "Agent",
        "tool_input": {"prompt": "x"},
        "tool_use_id": "call_1",
    }
