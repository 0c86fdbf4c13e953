"""The hooks of Claude's settings files: which of them run before a call, what they are told, what
their end means.

Measured with 2.1.330. A hook is told of the call on its stdin. Exit code 2 denies the call, with
its stderr as the reason. A JSON object on stdout decides as a frontend's hook does, whatever the
exit code. Every other end leaves the call to the rules, a timeout too, unless the hook says
`onFailure: "block"`.
"""

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
from shim.core.policy.evaluate import PolicyEvaluator
from shim.core.policy.policy import Policy, Workspace
from shim.core.policy.rules import TOOL_ALIASES, parse_permission_rule
from shim.core.policy.settings_hooks import SettingsHook
from shim.core.reading.json_text import dump_json
from shim.core.reading.typed import Any, NamedTuple

DENY_EXIT_CODE = 2  # the exit code
DENIAL_TEXT = "PreToolUse:{tool} hook error: {reason}"


class HookContext(NamedTuple):
    """What a hook is told beside the call: our id of the session, its transcript, the permission
    mode.
    """

    session_id: str
    transcript_path: str
    permission_mode: str


class HookCommandResult(NamedTuple):
    """How a hook ended: its exit code, None where it was ended or did not start; `error` says how
    in words.
    """

    code: int | None
    stdout: str = ""
    stderr: str = ""
    error: str = ""


def is_hook_for_tool(hook: SettingsHook, tool: str) -> bool:
    """Whether a hook is about a tool."""
    return hook.matcher in MATCH_ALL or matches_tool_name(hook.matcher, tool)


def is_tool_name_list(matcher: str) -> bool:
    """Whether a matcher is names of tools, and not all tools or a pattern."""
    return matcher not in MATCH_ALL and TOOL_NAMES.fullmatch(matcher) is not None


def select_hooks(
    hooks: Iterable[SettingsHook], tool: str, tool_input: Mapping[str, Any], workspace: Workspace
) -> "list[SettingsHook]":
    """The hooks that run before a call. One that stands in several places runs once."""
    selected: dict[Any, SettingsHook] = {}
    for hook in hooks:
        if is_hook_for_tool(hook, tool) and _can_meet_condition(hook, tool, tool_input, workspace):
            selected.setdefault((hook.command, hook.args, hook.condition), hook)
    return list(selected.values())


def encode_hook_input(
    call_id: str, tool: str, tool_input: Mapping[str, Any], context: HookContext, cwd: str
) -> bytes:
    """What a hook reads."""
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
    """What the end of a hook says of a call."""
    decision = parse_hook_output(_parse_json_object(hook_result.stdout))
    command_line = " ".join((hook.command, *(hook.args or ())))
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


def _can_meet_condition(
    hook: SettingsHook, tool: str, tool_input: Mapping[str, Any], workspace: Workspace
) -> bool:
    """Whether a call may fit the rule of a hook."""
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
    """Whether a call certainly fits the rule of a hook, so that the hook may allow it."""
    evaluator = PolicyEvaluator(
        Policy(workspace=workspace, allow=(parse_permission_rule(hook.condition),)),
        asks_for_all=True,
    )
    return evaluator.evaluate_tool_call(tool, tool_input, "default").outcome == "allow"


def _parse_json_object(text: str) -> object:
    """The JSON object that is the whole of a text; None for another text."""
    text = text.strip()
    if not text.startswith("{"):
        return None
    import orjson

    try:
        output = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    specific_output = output.get("hookSpecificOutput")
    if isinstance(specific_output, dict) and specific_output.get("hookEventName") != "PreToolUse":
        return output | {"hookSpecificOutput": None}
    return output
