"""The hooks in Claude's settings files for all events except PreToolUse: which ones run, and what
their exits mean. Every row was measured with the real claude 2.1.330.
"""

import itertools
import json

import pytest
from policy_builder import WORKSPACE
from sweeps import loop_over_rows
from turn_stage import build_session_state

from shim.core.claude.control import ControlSession
from shim.core.claude.control.actions import PermissionDecided, TurnStoppedByHook
from shim.core.claude.hooks.callbacks import HookEvent
from shim.core.claude.hooks.commands import HookCommandResult, parse_hook_result, select_hooks
from shim.core.claude.hooks.unsupported import HookSupport, list_unsupported_settings_hooks
from shim.core.claude.permissions import PermissionDecision, PermissionRequest
from shim.core.policy.settings import ClaudeSettings
from shim.core.policy.settings_hooks import SettingsHook

PROMPT = HookEvent("UserPromptSubmit")
START = HookEvent("SessionStart", trigger="startup")
END = HookEvent("SessionEnd", trigger="other")
STOP = HookEvent("Stop")
RESULT = HookEvent("PostToolUse", "call_1", "Bash", {"command": "ls"}, {"stdout": "out"})
BLOCK = {"decision": "block", "reason": "R"}


def build_hook(event, matcher="", command="run", **fields):
    return SettingsHook(matcher, command, event=event, **fields)


def build_context_output(event, text):
    return json.dumps({"hookSpecificOutput": {"hookEventName": event, "additionalContext": text}})


def build_control(*hooks, **fields):
    numbers = itertools.count(1)
    defaults = {"display_name": "qwen", "session_id": "S", "cwd": "/repo", "event_hooks": hooks}
    state = build_session_state(**(defaults | fields))
    return ControlSession(state, lambda: f"uuid-{next(numbers)}", lambda: "now")


def run_hook(control, event, *, code=0, stdout="", stderr=""):
    """Call the hooks for an event, and return the actions that result from the first answer."""
    control.hooks.call_hooks(event)
    call, *_ = control.hooks.take_command_calls()
    control.hooks.report_start(call)
    return control.accept_hook_result(call, HookCommandResult(code, stdout, stderr))


def take_lines(control):
    return [json.loads(line) for line in control.take_output().splitlines()]


@loop_over_rows(
    ("event", "matcher", "runs"),
    [
        (START, "", True),
        (START, "startup", True),
        (START, "clear|startup", True),
        (START, "resume", False),
        (END, "other", True),
        (END, "clear", False),
        (PROMPT, "Bash", True),  # these events ignore the matcher
        (STOP, "Bash", True),
        (RESULT, "Bash", True),
        (RESULT, "Write", False),
    ],
)
def test_matcher_is_compared_with_the_tool_or_the_trigger(event, matcher, runs):
    hooks = [build_hook(event.name, matcher), build_hook("PreToolUse")]
    assert len(select_hooks(hooks, event, WORKSPACE)) == runs


def test_condition_of_a_hook_selects_calls():
    hooks = [
        build_hook("PostToolUse", condition="Bash(ls:*)"),
        build_hook("PostToolUse", condition="Bash(git:*)"),
    ]
    assert select_hooks(hooks, RESULT, WORKSPACE) == hooks[:1]


@loop_over_rows(
    ("event", "code", "stdout", "output", "text"),
    [
        (PROMPT, 0, "ctx\n", {}, "UserPromptSubmit hook success: ctx"),
        (START, 0, "ctx", {}, "SessionStart:startup hook success: ctx"),
        (STOP, 0, "ctx", {}, ""),
        (RESULT, 0, "ctx", {}, ""),
        (PROMPT, 1, "ctx", {}, ""),
        (PROMPT, None, "ctx", {}, ""),
        (PROMPT, 0, "{bad", {}, ""),
        (PROMPT, 0, json.dumps(BLOCK), BLOCK, ""),
        (PROMPT, 1, json.dumps(BLOCK), BLOCK, ""),
        (PROMPT, 2, json.dumps(BLOCK), BLOCK, ""),
        (PROMPT, 2, "out", {"decision": "block", "reason": "[run]: err\n"}, ""),
        (STOP, 2, "", {"decision": "block", "reason": "[run]: err\n"}, ""),
    ],
)
def test_exit_code_and_stdout_make_an_answer(event, code, stdout, output, text):
    result = HookCommandResult(code, stdout, "err\n")
    answer = parse_hook_result(build_hook(event.name), event, result)
    assert (answer.output, answer.text) == (output, text)


def test_answer_for_another_event_is_ignored():
    stdout = build_context_output("Stop", "ctx")
    answer = parse_hook_result(build_hook(PROMPT.name), PROMPT, HookCommandResult(0, stdout))
    assert answer.output == {"hookSpecificOutput": None}


def test_hook_reads_the_input_of_the_real_claude():
    control = build_control(build_hook("SessionStart"), build_hook("SessionEnd"))
    for event, member in ((START, {"source": "startup"}), (END, {"reason": "other"})):
        control.hooks.call_hooks(event)
        (call,) = control.hooks.take_command_calls()
        assert json.loads(call.stdin) == {
            "session_id": "S",
            "transcript_path": "",
            "cwd": "/repo",
            "hook_event_name": event.name,
            **member,
        }
    assert not control.hooks.has_command_calls


def test_rejected_message_has_the_command_in_the_text_but_not_in_the_reason():
    control = build_control(build_hook("UserPromptSubmit"))
    control.start_turn("hello")
    (call,) = control.hooks.take_command_calls()
    assert json.loads(call.stdin)["prompt"] == "hello"
    control.accept_hook_result(call, HookCommandResult(2, "", "no way"))
    rejection = control.hooks.take_prompt_rejection()
    assert rejection.text == (
        "UserPromptSubmit operation blocked by hook:\n[run]: no way\n\nOriginal prompt: hello"
    )
    assert rejection.reason == "no way"
    assert control.hooks.take_prompt_rejection() is None


@loop_over_rows(
    ("event", "exits", "text"),
    [
        (PROMPT, {"stdout": "ctx"}, "UserPromptSubmit hook success: ctx"),
        (START, {"stdout": "ctx"}, "SessionStart:startup hook success: ctx"),
        (
            START,
            {"stdout": build_context_output("SessionStart", "ctx")},
            "SessionStart hook additional context: ctx",
        ),
        (
            RESULT,
            {"stdout": build_context_output("PostToolUse", "ctx")},
            "PostToolUse:Bash hook additional context: ctx",
        ),
        (
            RESULT,
            {"code": 2, "stderr": "bad"},
            'PostToolUse:Bash hook blocking error from command: "run": [run]: bad',
        ),
        (STOP, {"code": 2, "stderr": "go on"}, "Stop hook feedback:\n[run]: go on"),
    ],
)
def test_model_receives_the_text_of_a_hook(event, exits, text):
    control = build_control(build_hook(event.name))
    run_hook(control, event, **exits)
    expected = f"<system-reminder>\n{text}\n</system-reminder>"
    assert control.hooks.feedback.take_model_text() == expected


def test_hook_of_a_result_stops_the_turn():
    control = build_control(build_hook("PostToolUse"))
    control.start_turn("hello")
    actions = run_hook(control, RESULT, stdout='{"continue":false}')
    assert actions == [TurnStoppedByHook()]


def test_answer_of_a_hook_in_the_background_has_no_effect():
    control = build_control(build_hook("Stop", runs_in_background=True))
    assert run_hook(control, STOP, code=2, stderr="go on") == []
    assert control.hooks.feedback.take_model_text() == ""


@loop_over_rows(
    ("exits", "reason"),
    [
        ({"code": 2, "stderr": "not now"}, "[run]: not now"),
        ({"stdout": json.dumps(BLOCK)}, "[run]: R"),
    ],
)
def test_hook_blocks_a_compaction_with_its_command_and_reason(exits, reason):
    control = build_control(build_hook("PreCompact", "manual"))
    run_hook(control, HookEvent("PreCompact", trigger="manual"), **exits)
    assert control.hooks.feedback.stops_turn
    assert control.hooks.take_compaction_refusal() == reason
    assert control.hooks.take_compaction_refusal() == "[callback]"


@loop_over_rows(
    ("event", "reports_all", "reported"),
    [
        (START, False, True),
        (PROMPT, False, False),
        (PROMPT, True, True),
        (END, True, False),
    ],
)
def test_runs_of_hooks_are_reported(event, reports_all, reported):
    control = build_control(build_hook(event.name), shows_hook_events=reports_all)
    run_hook(control, event, stdout="out", stderr="err")
    lines = take_lines(control)
    assert [line["subtype"] for line in lines] == ["hook_started", "hook_response"] * reported
    for line in lines:
        assert line["hook_event"] == event.name
        assert line["hook_id"] == lines[0]["hook_id"]
    if reported:
        assert (lines[1]["output"], lines[1]["exit_code"], lines[1]["outcome"]) == (
            "outerr",
            0,
            "success",
        )


@pytest.mark.parametrize(("code", "outcome"), [(1, "error"), (None, "cancelled")])
def test_report_of_a_failed_hook_has_its_outcome(code, outcome):
    control = build_control(build_hook("SessionStart"))
    run_hook(control, START, code=code)
    _, response = take_lines(control)
    assert (response["exit_code"], response["outcome"]) == (1, outcome)


def test_hooks_of_a_real_claude_are_not_run_twice():
    control = build_control(build_hook("Stop"), runs_settings_hooks=True)
    control.hooks.call_hooks(STOP)
    assert not control.hooks.has_command_calls


SUPPORT = HookSupport(
    "pi",
    is_persistent=True,
    accepts_steering=True,
    asks_permissions=True,
    changes_input=True,
    passes_reasons=True,
    denies_calls=True,
    runs_agents=True,
)


def test_hooks_with_a_smaller_effect_are_listed_by_file():
    hooks = (
        build_hook("Stop", source="a"),
        build_hook("PostToolUse", source="a"),
        build_hook("SessionStart", source="a"),
        build_hook("Stop", source="b", refusal="why"),
    )

    def list_entries(*, is_persistent, accepts_steering):
        support = SUPPORT._replace(is_persistent=is_persistent, accepts_steering=accepts_steering)
        entries = list_unsupported_settings_hooks(ClaudeSettings(hooks=hooks), support)
        return [(entry.what, entry.source) for entry in entries]

    refused = ("hooks.Stop", "b")
    assert list_entries(is_persistent=True, accepts_steering=True) == [refused]
    assert list_entries(is_persistent=True, accepts_steering=False) == [
        refused,
        ("hooks.PostToolUse", "a"),
    ]
    assert list_entries(is_persistent=False, accepts_steering=False) == [
        refused,
        ("hooks.Stop", "a"),
        ("hooks.PostToolUse", "a"),
    ]


def test_hook_that_names_the_file_of_variables_is_listed():
    commands = ("echo A=1 >> $CLAUDE_ENV_FILE", "echo hi")
    hooks = tuple(build_hook("SessionStart", command=command) for command in commands)
    (entry,) = list_unsupported_settings_hooks(ClaudeSettings(hooks=hooks), SUPPORT)
    assert entry.what == "hooks.SessionStart.CLAUDE_ENV_FILE"


# -- PermissionRequest -----------------------------------------------------------------------------

CALL = PermissionRequest("q1", "call_1", "Bash", {"command": "touch x"}, "shell", {})
UNDECIDED = PermissionDecision(
    False,
    message="Bash needs permission, which was not granted in advance and cannot be requested here.",
    needs_notice=True,
)


def ask_about_call(*hooks, answers_prompts):
    """Return the session, its first decision about a call, and the hook commands that must run."""
    session = build_control(*hooks, answers_prompts=answers_prompts)
    session.start_turn("hi")
    session.hooks.take_command_calls()
    decision = session.decide_permission(CALL)
    return session, decision, session.hooks.take_permission_calls()


def decide(**decision):
    output = {"hookEventName": "PermissionRequest", "decision": decision}
    return json.dumps({"hookSpecificOutput": output})


@pytest.mark.parametrize("answers_prompts", [True, False])
@loop_over_rows(
    ("stdout", "decision"),
    [
        (decide(behavior="allow"), PermissionDecision(True)),
        (
            decide(behavior="deny", message="R"),
            PermissionDecision(False, message="R", is_message_for_model=True),
        ),
    ],
)
def test_permission_hook_decides_and_withdraws_the_prompt(answers_prompts, stdout, decision):
    hook = build_hook("PermissionRequest", "Bash")
    session, first_decision, (call,) = ask_about_call(hook, answers_prompts=answers_prompts)
    assert first_decision is None and b"permission_suggestions" in call.stdin
    prompts = [line for line in take_lines(session) if line["type"] == "control_request"]
    assert len(prompts) == answers_prompts
    (answered,) = session.accept_hook_result(call, HookCommandResult(0, stdout))
    expected = decision._replace(needs_notice=not answers_prompts)
    assert answered == PermissionDecided(CALL, expected)
    lines = [line for line in take_lines(session) if line["type"] == "control_cancel_request"]
    assert len(lines) == answers_prompts
    assert session.accept_hook_result(call, HookCommandResult(0, stdout)) == []


@loop_over_rows(
    ("code", "stdout"), [(2, ""), (1, ""), (0, ""), (0, "text"), (0, json.dumps(BLOCK))]
)
def test_other_results_of_a_permission_hook_decide_nothing(code, stdout):
    result = HookCommandResult(code, stdout, "R")
    hooks = [build_hook("PermissionRequest", command=name) for name in ("first", "second")]
    session, _, (first, second) = ask_about_call(*hooks, answers_prompts=True)
    for call in (first, second):
        assert session.accept_hook_result(call, result) == []
    assert session.has_undecided_requests  # the prompt stays open
    session, _, (first, second) = ask_about_call(*hooks, answers_prompts=False)
    assert session.accept_hook_result(first, result) == []
    assert session.hooks.is_running_command(CALL.call_id)
    assert session.accept_hook_result(second, result) == [PermissionDecided(CALL, UNDECIDED)]


def test_permission_hooks_of_other_tools_and_in_the_background_do_not_decide():
    hooks = [
        build_hook("PermissionRequest", "Write"),
        build_hook("PermissionRequest", command="slow", runs_in_background=True),
    ]
    session, decision, (call,) = ask_about_call(*hooks, answers_prompts=False)
    assert decision == UNDECIDED and call.hook.command == "slow"
    allowed = HookCommandResult(0, decide(behavior="allow"))
    assert session.accept_hook_result(call, allowed) == []


def test_permission_hook_decides_nothing_after_the_turn():
    hook = build_hook("PermissionRequest")
    session, _, (call,) = ask_about_call(hook, answers_prompts=False)
    session.end_turn()
    allowed = HookCommandResult(0, decide(behavior="allow"))
    assert session.accept_hook_result(call, allowed) == []
