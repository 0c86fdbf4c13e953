"""A frontend's hooks: events that it wants to hear of, and calls that it may forbid (contract C11,
6.5).

They are the frontend's own callbacks, named in its `initialize`. PreToolUse may deny a call: before
it runs where the vendor asks for permission, else by stopping the turn. The others are told and not
waited for. The hooks of Claude's settings files have the same matchers and give the same answers
(`commands`).
"""

import re
from collections.abc import Mapping

from shim.core.reading.typed import Any, NamedTuple

PROMPT_EVENT = "UserPromptSubmit"
HOOK_EVENTS = (PROMPT_EVENT, "PreToolUse", "PostToolUse", "PostToolUseFailure", "Stop")
# Hooks about calls that a frontend has not answered, and what it said of calls: one that never
# answers is no reason to remember every call of a turn.
MAX_OPEN_HOOKS = 1000
MAX_CALLBACKS_PER_EVENT = 64  # of one event; more is a mistake
MAX_PATTERN_CHARS = 500  # of a matcher
MATCH_ALL = ("", "*")
TOOL_NAMES = re.compile(r"[A-Za-z0-9_|, ]*")


class HookEvent(NamedTuple):
    """An event that a hook may be about. `response` is the result of a tool."""

    name: str
    call_id: str = ""
    tool: str = ""
    tool_input: Mapping[str, Any] = {}
    tool_response: object = None


class HookDecision(NamedTuple):
    """The answer of a PreToolUse hook: True allows without a question, False denies, None leaves it
    open.

    `changed` are the arguments that the call is to have instead (None: as they are). `asks`: a
    person is to be asked, whatever allows the call.
    """

    allow: bool | None = None
    reason: str = ""
    updated_input: Mapping[str, Any] | None = None
    requires_prompt: bool = False

    def merge(self, other: "HookDecision") -> "HookDecision":
        """The verdict of both: one that denies goes before one that asks, which goes before one
        that allows.
        """
        changed = self.updated_input if other.updated_input is None else other.updated_input
        one = min(
            self,
            other,
            key=lambda verdict: (
                verdict.allow is not False,
                not verdict.requires_prompt,
                not verdict.allow,
            ),
        )
        return one._replace(updated_input=changed)


class HookDecisions:
    """The verdicts of hooks about the calls of a turn, by the ids of the calls."""

    def __init__(self) -> None:
        self._decision_by_call: dict[str, HookDecision] = {}

    def get_decision(self, call: str) -> HookDecision:
        return self._decision_by_call.get(call, HookDecision())

    def add(self, call: str, verdict: HookDecision) -> None:
        self._decision_by_call[call] = self.get_decision(call).merge(verdict)
        drop_oldest_if_full(self._decision_by_call)

    def clear(self) -> None:
        self._decision_by_call.clear()


def drop_oldest_if_full(table: dict[str, Any]) -> None:
    """Forget the oldest entry of a table that is too large."""
    if len(table) > MAX_OPEN_HOOKS:
        del table[next(iter(table))]


class PromptRefusal(NamedTuple):
    """The refusal of a message by a UserPromptSubmit hook."""

    text: str  # text of the `informational` line and of the result
    reason: str  # "" if the hook gave none
    stays_in_context: bool  # the model sees the message together with the next one

    def build_notice(self) -> dict[str, Any]:
        """Return the fields of the `informational` line that reports the refusal to the frontend."""
        kind = "stopped_by_hook" if self.stays_in_context else "blocked_by_hook"
        outcome = {"kind": kind, "prompt_kept": self.stays_in_context}
        if self.reason:
            outcome["reason"] = self.reason
        return {
            "content": self.text,
            "level": "warning",
            "prevent_continuation": True,
            "prompt_submit_outcome": outcome,
        }


def parse_prompt_refusal(answer: object, prompt: str) -> PromptRefusal | None:
    """Return the refusal in the answer of a UserPromptSubmit hook, or None if the hook accepts the
    message.
    """
    if not isinstance(answer, dict):
        return None
    if answer.get("continue") is False:
        reason = _parse_reason(answer.get("stopReason"))
        text = f"Operation stopped by hook: {reason}" if reason else "Operation stopped by hook"
        return PromptRefusal(text, reason, stays_in_context=True)
    if answer.get("decision") != "block":
        return None
    reason = _parse_reason(answer.get("reason"))
    text = f"{PROMPT_EVENT} operation blocked by hook:\n{reason or 'Blocked by hook'}\n\nOriginal prompt: {prompt}"
    return PromptRefusal(text, reason, stays_in_context=False)


def _parse_reason(value: object) -> str:
    return value if isinstance(value, str) else ""


class HookCallbacks:
    """The callbacks of one frontend."""

    def __init__(self, given: object = None) -> None:
        """`given` is the `hooks` member of an initialize request. Unknown entries are left out."""
        self._callbacks: dict[str, list[tuple[str | None, str]]] = {}
        for event, groups in given.items() if isinstance(given, dict) else ():
            if event in HOOK_EVENTS and isinstance(groups, list):
                self._callbacks[event] = list(_parse_callbacks(groups))[:MAX_CALLBACKS_PER_EVENT]

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    @property
    def can_deny_calls(self) -> bool:
        """Return whether any callback can deny a call."""
        return bool(self._callbacks.get("PreToolUse"))

    def list_callback_ids(self, seen: HookEvent) -> list[str]:
        callbacks = self._callbacks.get(seen.name, ())
        return [
            identity
            for matcher, identity in callbacks
            if matcher is None or is_matching_tool(matcher, seen.tool)
        ]


def _parse_callbacks(groups: list[Any]) -> list[tuple[str | None, str]]:
    found: list[tuple[str | None, str]] = []
    for group in groups:
        if isinstance(group, dict) and isinstance(group.get("hookCallbackIds"), list):
            matcher = group.get("matcher")
            if not isinstance(matcher, str) or matcher in MATCH_ALL:
                matcher = None
            found += [
                (matcher, identity)
                for identity in group["hookCallbackIds"]
                if isinstance(identity, str)
            ]
    return found


def is_matching_tool(matcher: str, tool: str) -> bool:
    """Whether a matcher fits a tool: it is names with bars or commas, or a pattern that is found in
    the tool's name.

    A broken pattern fits (never wider). A subagent's tool has two names.
    """
    names = ("Task", "Agent") if tool in ("Task", "Agent") else (tool,)
    if TOOL_NAMES.fullmatch(matcher):
        return not {name.strip() for name in re.split("[|,]", matcher)}.isdisjoint(names)
    if len(matcher) > MAX_PATTERN_CHARS:
        return True
    try:
        return any(re.search(matcher, name) for name in names)
    except (re.error, OverflowError, RecursionError):
        return True


def build_hook_input(
    seen: HookEvent,
    *,
    session_id: str,
    transcript: str,
    cwd: str,
    mode: str,
    prompt: str = "",
    last: str = "",
) -> dict[str, Any]:
    told: dict[str, Any] = {
        "session_id": session_id,
        "transcript_path": transcript,
        "cwd": cwd,
        "permission_mode": mode,
        "hook_event_name": seen.name,
    }
    if seen.name == "UserPromptSubmit":
        told["prompt"] = prompt
    elif seen.name == "Stop":
        told |= {"stop_hook_active": False, "last_assistant_message": last}
    else:
        told |= {"tool_name": seen.tool, "tool_input": seen.tool_input, "tool_use_id": seen.call_id}
        if seen.name == "PostToolUse":
            told["tool_response"] = seen.tool_response
        elif seen.name == "PostToolUseFailure":
            told |= {"error": seen.tool_response, "is_interrupt": False}
    return told


def parse_hook_output(answer: object) -> HookDecision:
    """The verdict in the object that a hook answers with."""
    if not isinstance(answer, dict):
        return HookDecision()
    specific = answer.get("hookSpecificOutput")
    specific = specific if isinstance(specific, dict) else {}
    decision, old = specific.get("permissionDecision"), answer.get("decision")
    changed = specific.get("updatedInput")
    reason = (
        specific.get("permissionDecisionReason") or answer.get("reason") or answer.get("stopReason")
    )
    said = str(reason or "")
    if decision in ("deny", "defer") or old == "block" or answer.get("continue") is False:
        return HookDecision(False, said or "A hook denied this call.")
    if changed is not None and not isinstance(changed, dict):
        return HookDecision(False, "A hook gave an updatedInput that is no object.")
    if decision == "ask":
        return HookDecision(
            reason=said or "A hook asked for confirmation of this call.",
            updated_input=changed,
            requires_prompt=True,
        )
    return HookDecision(
        decision == "allow" or (decision is None and old == "approve") or None, said, changed
    )
