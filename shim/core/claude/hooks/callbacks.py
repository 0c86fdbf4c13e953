"""Hook callbacks that a frontend registers for events and tool calls (contract C11, 6.5).

The frontend registers the callbacks in its `initialize` request. A PreToolUse callback can deny a
tool call. If the vendor asks for permission, the call is denied before it runs. Otherwise the turn
is stopped.

The module `feedback` handles the texts for the model in a hook's answer. The module `commands`
handles the hooks in Claude's settings files, which have the same matchers and answers.
"""

import re
from collections.abc import Mapping

from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import as_dict, as_str, get_text

PROMPT_EVENT = "UserPromptSubmit"
HOOK_EVENTS = (PROMPT_EVENT, "PreToolUse", "PostToolUse", "PostToolUseFailure", "Stop")
# The maximum number of open hooks and of stored decisions. Without a limit, the tables would grow
# with every tool call if a frontend never answers.
MAX_OPEN_HOOKS = 1000
MAX_CALLBACKS_PER_EVENT = 64  # no frontend needs more callbacks
MAX_PATTERN_CHARS = 500  # the maximum length of a matcher's regular expression
MATCH_ALL = ("", "*")
TOOL_NAMES = r"[A-Za-z0-9_|, ]*"
NO_REASON_TEXT = "Blocked by hook"  # used if a hook gives no reason


class HookEvent(NamedTuple):
    """An event for hooks. `tool_response` is the tool's result. `has_continued` is set if a Stop
    hook has already continued the turn. `trigger` is why a session starts or ends.
    """

    name: str
    call_id: str = ""
    tool: str = ""
    tool_input: Mapping[str, Any] = {}
    tool_response: object = None
    has_continued: bool = False
    trigger: str = ""


class HookDecision(NamedTuple):
    """A PreToolUse hook's decision. `allow` is True to allow the call without a prompt, False to
    deny the call, and None if the permission rules decide.

    `updated_input` replaces the call's arguments, and None leaves them unchanged. If
    `requires_prompt` is set, a person must confirm the call even if a rule allows it. If
    `stops_turn` is set, the turn ends after the call.
    """

    allow: bool | None = None
    reason: str = ""
    updated_input: Mapping[str, Any] | None = None
    requires_prompt: bool = False
    stops_turn: bool = False

    def merge(self, other: "HookDecision") -> "HookDecision":
        """Return the stricter of two hook decisions. A denial is stricter than a required prompt,
        and a required prompt is stricter than an approval.
        """
        if other.updated_input is None:
            updated_input = self.updated_input
        else:
            updated_input = other.updated_input
        strictest = min(
            self,
            other,
            key=lambda decision: (
                decision.allow is not False,
                not decision.requires_prompt,
                not decision.allow,
            ),
        )
        stops_turn = self.stops_turn or other.stops_turn
        return strictest._replace(updated_input=updated_input, stops_turn=stops_turn)


class ToolCallHookDecisions:
    """The hooks' decisions about the tool calls of one turn, by call id."""

    def __init__(self) -> None:
        self._decision_by_call: dict[str, HookDecision] = {}

    def get_decision(self, call_id: str) -> HookDecision:
        return self._decision_by_call.get(call_id, HookDecision())

    def add_decision(self, call_id: str, decision: HookDecision) -> None:
        self._decision_by_call[call_id] = self.get_decision(call_id).merge(decision)
        drop_oldest_entry_if_full(self._decision_by_call)

    def clear(self) -> None:
        self._decision_by_call.clear()


def drop_oldest_entry_if_full(table: dict[str, Any]) -> None:
    """Remove the oldest entry if the table has more than MAX_OPEN_HOOKS entries."""
    if len(table) > MAX_OPEN_HOOKS:
        del table[next(iter(table))]


class PromptHookRejection(NamedTuple):
    """A UserPromptSubmit hook's rejection of a user message."""

    text: str  # the text of the `informational` line and of the result
    reason: str  # "" if the hook gave no reason
    stays_in_context: bool  # the model receives the message together with the next message

    def build_rejection_notice(self) -> dict[str, Any]:
        """Return the fields of the `informational` line that reports the rejection to the
        frontend.
        """
        kind = "blocked_by_hook"
        if self.stays_in_context:
            kind = "stopped_by_hook"
        outcome = {"kind": kind, "prompt_kept": self.stays_in_context}
        if self.reason:
            outcome["reason"] = self.reason
        return {
            "content": self.text,
            "level": "warning",
            "prevent_continuation": True,
            "prompt_submit_outcome": outcome,
        }


def parse_prompt_hook_rejection(answer: object, prompt: str) -> PromptHookRejection | None:
    """Parse a UserPromptSubmit hook's answer. Return the rejection, or None if the hook accepts the
    message.
    """
    if not isinstance(answer, dict):
        return None
    if answer.get("continue") is False:
        reason = as_str(answer.get("stopReason"))
        text = "Operation stopped by hook"
        if reason:
            text = f"Operation stopped by hook: {reason}"
        return PromptHookRejection(text, reason, stays_in_context=True)
    if answer.get("decision") != "block":
        return None
    reason = as_str(answer.get("reason"))
    reason_text = get_text(answer, "reason", NO_REASON_TEXT)
    text = f"{PROMPT_EVENT} operation blocked by hook:\n{reason_text}\n\nOriginal prompt: {prompt}"
    return PromptHookRejection(text, reason, stays_in_context=False)


class HookCallbacks:
    """The hook callbacks of one frontend."""

    def __init__(self, raw_hooks: object = None) -> None:
        """`raw_hooks` is the `hooks` member of an initialize request. Unknown entries are
        ignored.
        """
        self._callbacks: dict[str, list[tuple[str | None, str]]] = {}
        for event, groups in as_dict(raw_hooks).items():
            if event in HOOK_EVENTS and isinstance(groups, list):
                self._callbacks[event] = list(_parse_callbacks(groups))[:MAX_CALLBACKS_PER_EVENT]

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    @property
    def can_deny_calls(self) -> bool:
        """Whether any registered callback can deny a tool call."""
        return bool(self._callbacks.get("PreToolUse"))

    def list_callback_ids(self, event: HookEvent) -> list[str]:
        callbacks = self._callbacks.get(event.name, ())
        return [
            callback_id
            for matcher, callback_id in callbacks
            if matcher is None or matches_tool_name(matcher, event.tool)
        ]


def _parse_callbacks(groups: list[Any]) -> list[tuple[str | None, str]]:
    callbacks: list[tuple[str | None, str]] = []
    for group in groups:
        if isinstance(group, dict) and isinstance(group.get("hookCallbackIds"), list):
            matcher = group.get("matcher")
            if not isinstance(matcher, str) or matcher in MATCH_ALL:
                matcher = None
            callbacks += [
                (matcher, callback_id)
                for callback_id in group["hookCallbackIds"]
                if isinstance(callback_id, str)
            ]
    return callbacks


def matches_tool_name(matcher: str, tool: str) -> bool:
    """Return whether a hook's matcher matches a tool name.

    A matcher is either a list of names, separated by bars or commas, or a regular expression. The
    expression may match any part of the name. An invalid expression matches every tool, so that the
    hook is not skipped. The subagent tool has two names, and a matcher for either name matches.
    """
    names = ("Task", "Agent") if tool in ("Task", "Agent") else (tool,)
    if re.fullmatch(TOOL_NAMES, matcher):
        return not {name.strip() for name in re.split("[|,]", matcher)}.isdisjoint(names)
    if len(matcher) > MAX_PATTERN_CHARS:
        return True
    try:
        return any(re.search(matcher, name) for name in names)
    except (re.error, OverflowError, RecursionError):
        return True


def build_hook_input(
    event: HookEvent,
    *,
    session_id: str,
    transcript: str,
    cwd: str,
    mode: str,
    prompt: str = "",
    last_message: str = "",
) -> dict[str, Any]:
    hook_input: dict[str, Any] = {
        "session_id": session_id,
        "transcript_path": transcript,
        "cwd": cwd,
        "permission_mode": mode,
        "hook_event_name": event.name,
    }
    if event.name == "UserPromptSubmit":
        hook_input["prompt"] = prompt
    elif event.name == "SessionStart":
        del hook_input["permission_mode"]
        hook_input["source"] = event.trigger
    elif event.name == "SessionEnd":
        del hook_input["permission_mode"]
        hook_input["reason"] = event.trigger
    elif event.name == "Stop":
        hook_input |= {
            "stop_hook_active": event.has_continued,
            "last_assistant_message": last_message,
        }
    else:
        hook_input |= {
            "tool_name": event.tool,
            "tool_input": event.tool_input,
            "tool_use_id": event.call_id,
        }
        if event.name == "PostToolUse":
            hook_input["tool_response"] = event.tool_response
        elif event.name == "PostToolUseFailure":
            hook_input |= {"error": event.tool_response, "is_interrupt": False}
    return hook_input


def parse_hook_output(output: object) -> HookDecision:
    """Parse the object that a hook has returned. Return the hook's decision."""
    if not isinstance(output, dict):
        return HookDecision()
    specific_output = as_dict(output.get("hookSpecificOutput"))
    permission_decision = specific_output.get("permissionDecision")
    legacy_decision = output.get("decision")
    updated_input = specific_output.get("updatedInput")
    stops_turn = output.get("continue") is False
    if permission_decision in ("deny", "defer") or legacy_decision == "block":
        reason = _find_reason(output, "A hook denied this call.")
        return HookDecision(False, reason, stops_turn=stops_turn)
    if updated_input is not None and not isinstance(updated_input, dict):
        return HookDecision(False, "A hook returned an updatedInput that is not an object.")
    if permission_decision == "ask":
        return HookDecision(
            reason=_find_reason(output, "A hook asked for confirmation of this call."),
            updated_input=updated_input,
            requires_prompt=True,
            stops_turn=stops_turn,
        )
    allow = None
    if permission_decision == "allow" or (
        permission_decision is None and legacy_decision == "approve"
    ):
        allow = True
    return HookDecision(allow, _find_reason(output), updated_input, stops_turn=stops_turn)


def _find_reason(output: Mapping[str, Any], default: str = "") -> str:
    """Return the reason in a hook's output, or `default` if the hook gives no reason."""
    specific_output = as_dict(output.get("hookSpecificOutput"))
    general_reason = get_text(output, "reason", get_text(output, "stopReason", default))
    return get_text(specific_output, "permissionDecisionReason", general_reason)
