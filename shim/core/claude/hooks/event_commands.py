"""Hooks from Claude's settings files for all events except PreToolUse: which commands run, and what
their exit codes and outputs mean.

Measured with claude 2.1.330. A hook command reads the event from stdin. With any exit code, a JSON
object on stdout is an answer in the same format as a callback's answer. Exit code 2 blocks, and
stderr is the reason. After exit code 0, any other text on stdout of some hooks is context for the
model.
"""

from collections.abc import Iterable, Mapping

from shim.core.claude.hooks.callbacks import (
    MATCH_ALL,
    NO_REASON_TEXT,
    HookEvent,
    matches_tool_name,
)
from shim.core.claude.hooks.commands import (
    DENY_EXIT_CODE,
    HookCommandResult,
    can_meet_condition,
    parse_hook_stdout,
)
from shim.core.policy.policy import Workspace
from shim.core.policy.settings_hooks import SESSION_END_EVENT, SettingsHook
from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import get_text

SESSION_START_EVENT = "SessionStart"
# The events whose hooks may print context for the model as plain text.
TEXT_EVENTS = ("UserPromptSubmit", SESSION_START_EVENT)
# The hooks of a subagent's run. The other events belong to the session.
AGENT_EVENTS = ("PostToolUse", "PostToolUseFailure", "PermissionRequest")
NO_STDERR_TEXT = "No stderr output"


class HookCommandCall(NamedTuple):
    """A hook command that must run for an event."""

    hook: SettingsHook
    event: HookEvent
    stdin: bytes  # the event as a JSON line
    call_id: str


class HookCommandAnswer(NamedTuple):
    """The meaning of a hook command's result.

    output  an answer in the format of a callback's answer
    text    plain text for the model, or ""
    reason  the reason for exit code 2 without the hook's command, or ""
    """

    output: Mapping[str, Any]
    text: str = ""
    reason: str = ""


def select_event_hooks(
    hooks: Iterable[SettingsHook], event: HookEvent, workspace: Workspace
) -> list[SettingsHook]:
    """Return the hooks to run for an event. A hook that is configured twice is returned once."""
    selected: dict[Any, SettingsHook] = {}
    for hook in hooks:
        if hook.event == event.name and _matches_event(hook, event, workspace):
            selected.setdefault((hook.command, hook.args, hook.condition), hook)
    return list(selected.values())


def _matches_event(hook: SettingsHook, event: HookEvent, workspace: Workspace) -> bool:
    """Return whether a hook's matcher and condition match an event. Some events have no matcher."""
    subject = _get_subject(event)
    if not subject:
        return True
    if hook.matcher not in MATCH_ALL and not matches_tool_name(hook.matcher, subject):
        return False
    if not event.tool:
        return True
    return can_meet_condition(hook, event.tool, event.tool_input, workspace)


def _get_subject(event: HookEvent) -> str:
    """Return the tool or the trigger, to which a matcher applies."""
    if event.tool:
        return event.tool
    return event.trigger


def format_hook_name(event: HookEvent) -> str:
    """Return an event's name in messages, with its tool or trigger."""
    subject = _get_subject(event)
    if subject:
        return f"{event.name}:{subject}"
    return event.name


def parse_hook_result(
    hook: SettingsHook, event: HookEvent, result: HookCommandResult
) -> HookCommandAnswer:
    """Return the meaning of a hook command's result."""
    output = parse_hook_stdout(result.stdout, event.name)
    if output is not None and _is_blocking(output):
        return HookCommandAnswer(output)
    if result.code == DENY_EXIT_CODE:
        reason = result.stderr
        if not reason:
            reason = NO_STDERR_TEXT
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


def _is_blocking(output: Mapping[str, Any]) -> bool:
    """Return whether a hook's answer blocks or stops something."""
    if output.get("decision") == "block":
        return True
    return output.get("continue") is False


def format_block_reason(hook: SettingsHook, answer: HookCommandAnswer) -> str:
    """Return the reason of an answer that blocks, with the hook's command. Return "" for another
    answer.
    """
    if answer.output.get("decision") != "block":
        return ""
    reason = get_text(answer.output, "reason", NO_REASON_TEXT)
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
