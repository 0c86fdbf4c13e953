"""Hooks from Claude's settings files: which commands run before a tool call, what they read from
stdin, and what their exit codes mean.

Measured with claude 2.1.330. A hook command reads the tool call from stdin. Exit code 2 denies the
call, and stderr is the reason. With any exit code, a JSON object on stdout is a decision in the
same format as a callback's answer. After any other exit code or a timeout, the permission rules
decide, unless the hook has `onFailure: "block"`.
"""

import re
from collections.abc import Iterable, Mapping

from shim.core.claude.hooks.callbacks import (
    MATCH_ALL,
    TOOL_NAMES,
    HookDecision,
    HookEvent,
    build_hook_input,
    matches_tool_name,
    parse_hook_output,
)
from shim.core.policy import PRE_TOOL_EVENT
from shim.core.policy.evaluate import PolicyEvaluator
from shim.core.policy.policy import TOOL_ALIASES, Policy, Workspace, parse_permission_rule
from shim.core.policy.settings_hooks import SettingsHook
from shim.core.reading.json_text import dump_json
from shim.core.reading.typed import Any, NamedTuple

DENY_EXIT_CODE = 2  # a hook command exits with this code to deny the call
DENIAL_TEXT = "PreToolUse:{tool} hook error: {reason}"


class HookContext(NamedTuple):
    """The fields that a hook receives in addition to the tool call: the shim's session id, the
    transcript's path and the permission mode.
    """

    session_id: str
    transcript_path: str
    permission_mode: str


class HookCommandResult(NamedTuple):
    """The result of a hook command. `code` is the exit code. If the command was killed or did not
    start, `code` is None and `error` is the reason.
    """

    code: int | None
    stdout: str = ""
    stderr: str = ""
    error: str = ""


def is_hook_for_tool(hook: SettingsHook, tool: str) -> bool:
    """Return whether a hook applies to a tool."""
    if hook.matcher in MATCH_ALL:
        return True
    return matches_tool_name(hook.matcher, tool)


def is_tool_name_list(matcher: str) -> bool:
    """Return whether a matcher is a list of tool names and not a regular expression or a
    wildcard.
    """
    if matcher in MATCH_ALL:
        return False
    return re.fullmatch(TOOL_NAMES, matcher) is not None


def select_hooks(
    hooks: Iterable[SettingsHook], tool: str, tool_input: Mapping[str, Any], workspace: Workspace
) -> "list[SettingsHook]":
    """Return the hooks to run before a tool call. A hook that is configured twice is
    returned once.
    """
    selected: dict[Any, SettingsHook] = {}
    for hook in hooks:
        if is_hook_for_tool(hook, tool) and can_meet_condition(hook, tool, tool_input, workspace):
            selected.setdefault((hook.command, hook.args, hook.condition), hook)
    return list(selected.values())


def encode_hook_input(
    call_id: str, tool: str, tool_input: Mapping[str, Any], context: HookContext, cwd: str
) -> bytes:
    """Encode the JSON line that a hook command reads from stdin."""
    tool_name = next(
        (alias for alias, canonical_name in TOOL_ALIASES.items() if canonical_name == tool), tool
    )
    context_fields = {
        "session_id": context.session_id,
        "transcript": context.transcript_path,
        "mode": context.permission_mode,
    }
    return (
        dump_json(
            build_hook_input(
                HookEvent("PreToolUse", call_id, tool_name, tool_input), cwd=cwd, **context_fields
            )
        )
        + b"\n"
    )


def decide_from_hook_result(
    hook: SettingsHook,
    hook_result: HookCommandResult,
    tool: str,
    tool_input: Mapping[str, Any],
    workspace: Workspace,
) -> HookDecision:
    """Return the decision that results from a hook command's exit code and output."""
    decision = parse_hook_output(parse_hook_stdout(hook_result.stdout, PRE_TOOL_EVENT))
    command_line = hook.format_command_line()
    if decision.allow is False:
        return decision._replace(reason=DENIAL_TEXT.format(tool=tool, reason=decision.reason))
    if hook_result.code == DENY_EXIT_CODE:
        reason = f"[{command_line}]: {hook_result.stderr.strip() or 'No stderr output'}"
        return HookDecision(False, DENIAL_TEXT.format(tool=tool, reason=reason))
    if hook_result.code != 0 and hook.blocks_on_failure:
        reason = f'[{command_line}]: {hook_result.error}; blocking because onFailure is "block"'
        return HookDecision(False, DENIAL_TEXT.format(tool=tool, reason=reason))
    if (
        decision.allow
        and hook.condition
        and not _is_certain_to_meet_condition(hook, tool, tool_input, workspace)
    ):
        return decision._replace(allow=None)
    return decision


def can_meet_condition(
    hook: SettingsHook, tool: str, tool_input: Mapping[str, Any], workspace: Workspace
) -> bool:
    """Return whether a tool call may match a hook's condition, which is a permission rule."""
    if not hook.condition:
        return True
    rule = parse_permission_rule(hook.condition)
    return (
        PolicyEvaluator(Policy(workspace=workspace, deny=(rule,))).find_restricting_decision(
            tool, tool_input
        )
        is not None
    )


def _is_certain_to_meet_condition(
    hook: SettingsHook, tool: str, tool_input: Mapping[str, Any], workspace: Workspace
) -> bool:
    """Return whether a tool call certainly matches a hook's condition. A hook can only allow such
    calls.
    """
    evaluator = PolicyEvaluator(
        Policy(workspace=workspace, allow=(parse_permission_rule(hook.condition),)),
        asks_for_all=True,
    )
    return evaluator.evaluate_tool_call(tool, tool_input, "default").outcome == "allow"


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
