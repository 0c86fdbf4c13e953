"""Hooks from Claude's settings files: which commands run for an event, what they read from stdin,
and what their exit codes and outputs mean.

Measured with claude 2.1.330. A hook command reads the event from stdin. With any exit code, a JSON
object on stdout is an answer in the same format as a callback's answer. Exit code 2 denies the tool
call or blocks the event, and stderr is the reason. After any other exit code or a timeout, a command
before a tool call decides nothing, unless the hook has `onFailure: "block"`. After exit code 0, any
other text on stdout of some hooks is context for the model.
"""

import re
from collections.abc import Iterable, Mapping

from shim.core.claude.hooks.answers import (
    NO_REASON_TEXT,
    HookDecision,
    parse_hook_answer,
    parse_hook_output,
)
from shim.core.claude.hooks.callbacks import (
    MATCH_ALL,
    TOOL_NAMES,
    HookContext,
    HookEvent,
    build_hook_input,
    matches_tool_name,
)
from shim.core.policy import (
    PERMISSION_EVENT,
    PROMPT_EVENT,
    RESULT_EVENTS,
    SESSION_END_EVENT,
    SESSION_START_EVENT,
)
from shim.core.policy.evaluate import PolicyEvaluator
from shim.core.policy.policy import TOOL_ALIASES, Policy, Workspace, parse_permission_rule
from shim.core.policy.settings_hooks import SettingsHook
from shim.core.reading.json_text import dump_json
from shim.core.reading.typed import Any, NamedTuple

DENY_EXIT_CODE = 2  # a hook command exits with this code to deny the call, or to block the event
DENIAL_TEXT = "PreToolUse:{tool} hook error: {reason}"
NO_STDERR_TEXT = "No stderr output"
# The events whose hooks may print context for the model as plain text.
TEXT_EVENTS = (PROMPT_EVENT, SESSION_START_EVENT)
# The events whose hook commands a subagent's run calls itself. The hooks of PreToolUse are a part of
# the policy, and the other events belong to the session.
RUN_EVENTS = (*RESULT_EVENTS, PERMISSION_EVENT)


class HookCommandCall(NamedTuple):
    """A hook command that must run for an event."""

    hook: SettingsHook
    event: HookEvent
    stdin: bytes  # the event as a JSON line
    call_id: str


class HookCommandResult(NamedTuple):
    """The result of a hook command. `code` is the exit code. If the command was killed or did not
    start, `code` is None and `error` is the reason.
    """

    code: int | None
    stdout: str = ""
    stderr: str = ""
    error: str = ""


class HookCommandAnswer(NamedTuple):
    """The meaning of a hook command's result.

    output  an answer in the format of a callback's answer
    text    plain text for the model, or ""
    reason  the reason for exit code 2 without the hook's command, or ""
    """

    output: Mapping[str, Any]
    text: str = ""
    reason: str = ""


# -- selection -------------------------------------------------------------------------------------


def is_tool_name_list(matcher: str) -> bool:
    """Return whether a matcher is a list of tool names and not a regular expression or a
    wildcard.
    """
    if matcher in MATCH_ALL:
        return False
    return re.fullmatch(TOOL_NAMES, matcher) is not None


def select_hooks(
    hooks: Iterable[SettingsHook], event: HookEvent, workspace: Workspace
) -> list[SettingsHook]:
    """Return the hooks to run for an event. A hook that is configured twice is returned once."""
    selected: dict[Any, SettingsHook] = {}
    for hook in hooks:
        if hook.event == event.name and _matches_event(hook, event, workspace):
            selected.setdefault((hook.command, hook.args, hook.condition), hook)
    return list(selected.values())


def _matches_event(hook: SettingsHook, event: HookEvent, workspace: Workspace) -> bool:
    """Return whether a hook's matcher and condition match an event. The condition is a permission
    rule, which the tool call may match.
    """
    if event.matched_text and not matches_tool_name(hook.matcher, event.matched_text):
        return False
    if not event.tool or not hook.condition:
        return True
    rule = parse_permission_rule(hook.condition)
    evaluator = PolicyEvaluator(Policy(workspace=workspace, deny=(rule,)))
    return evaluator.find_restricting_decision(event.tool, event.tool_input) is not None


def _is_certain_to_meet_condition(
    hook: SettingsHook, event: HookEvent, workspace: Workspace
) -> bool:
    """Return whether a tool call certainly matches a hook's condition. A hook can only allow such
    calls.
    """
    evaluator = PolicyEvaluator(
        Policy(workspace=workspace, allow=(parse_permission_rule(hook.condition),)),
        asks_for_all=True,
    )
    return evaluator.evaluate_tool_call(event.tool, event.tool_input, "default").outcome == "allow"


# -- input and result ------------------------------------------------------------------------------


def encode_hook_input(event: HookEvent, context: HookContext) -> bytes:
    """Encode the JSON line that a hook command before a tool call reads from stdin."""
    tool_name = next(
        (alias for alias, name in TOOL_ALIASES.items() if name == event.tool), event.tool
    )
    return dump_json(build_hook_input(event._replace(tool=tool_name), context)) + b"\n"


def decide_from_hook_result(
    hook: SettingsHook, event: HookEvent, result: HookCommandResult, workspace: Workspace
) -> HookDecision:
    """Return the decision about a tool call that results from a hook command's exit code and
    output.
    """
    decision = parse_hook_output(parse_hook_stdout(result.stdout, event.name))
    command_line = hook.format_command_line()
    if decision.allow is False:
        return decision._replace(reason=DENIAL_TEXT.format(tool=event.tool, reason=decision.reason))
    if result.code == DENY_EXIT_CODE:
        reason = f"[{command_line}]: {result.stderr.strip() or NO_STDERR_TEXT}"
        return HookDecision(False, DENIAL_TEXT.format(tool=event.tool, reason=reason))
    if result.code != 0 and hook.blocks_on_failure:
        reason = f'[{command_line}]: {result.error}; blocking because onFailure is "block"'
        return HookDecision(False, DENIAL_TEXT.format(tool=event.tool, reason=reason))
    if (
        decision.allow
        and hook.condition
        and not _is_certain_to_meet_condition(hook, event, workspace)
    ):
        return decision._replace(allow=None)
    return decision


def parse_hook_stdout(text: str, event: str) -> dict[str, Any] | None:
    """Parse the output of a hook, if it consists of one JSON object. Return None for any other
    text. The object's part for another event is removed.
    """
    text = text.strip()
    if not text.startswith("{"):
        return None
    import orjson

    try:
        output: dict[str, Any] = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    specific_output = output.get("hookSpecificOutput")
    if isinstance(specific_output, dict) and specific_output.get("hookEventName") != event:
        return output | {"hookSpecificOutput": None}
    return output


def format_hook_name(event: HookEvent) -> str:
    """Return an event's name in messages, with its tool or trigger."""
    if event.matched_text:
        return f"{event.name}:{event.matched_text}"
    return event.name


def parse_hook_result(
    hook: SettingsHook, event: HookEvent, result: HookCommandResult
) -> HookCommandAnswer:
    """Return the meaning of a hook command's result."""
    output = parse_hook_stdout(result.stdout, event.name)
    answer = parse_hook_answer(output)
    if output is not None and (answer.decision == "block" or answer.stops):
        return HookCommandAnswer(output)
    if result.code == DENY_EXIT_CODE:
        reason = result.stderr or NO_STDERR_TEXT
        text = f"[{hook.format_command_line()}]: {reason}"
        return HookCommandAnswer({"decision": "block", "reason": text}, reason=reason)
    if output is not None:
        return HookCommandAnswer(output)
    text = result.stdout.strip()
    if result.code == 0 and event.name in TEXT_EVENTS and text and not text.startswith("{"):
        return HookCommandAnswer({}, text=f"{format_hook_name(event)} hook success: {text}")
    return HookCommandAnswer({})


def is_reported(event: HookEvent, *, reports_all: bool) -> bool:
    """Return whether the frontend receives lines about the run of a hook command. The real claude
    always reports the start of a session, and never its end.
    """
    if event.name == SESSION_START_EVENT:
        return True
    return reports_all and event.name != SESSION_END_EVENT


def format_block_reason(hook: SettingsHook, answer: HookCommandAnswer) -> str:
    """Return the reason of an answer that blocks, with the hook's command. Return "" for another
    answer.
    """
    parsed_answer = parse_hook_answer(answer.output)
    if parsed_answer.decision != "block":
        return ""
    reason = parsed_answer.reason or NO_REASON_TEXT
    if answer.reason:  # the reason of exit code 2 has the command already
        return reason
    return f"[{hook.format_command_line()}]: {reason}"


def build_started_fields(call: HookCommandCall) -> dict[str, Any]:
    """Return the fields of the line that reports the start of a hook command."""
    return {
        "hook_id": call.call_id,
        "hook_name": format_hook_name(call.event),
        "hook_event": call.event.name,
    }


def build_response_fields(call: HookCommandCall, result: HookCommandResult) -> dict[str, Any]:
    """Return the fields of the line that reports the result of a hook command."""
    outcome = "error"
    if result.code is None:
        outcome = "cancelled"
    elif result.code == 0:
        outcome = "success"
    exit_code = result.code
    if exit_code is None:
        exit_code = 1
    return {
        **build_started_fields(call),
        "output": result.stdout + result.stderr,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "exit_code": exit_code,
        "outcome": outcome,
    }
