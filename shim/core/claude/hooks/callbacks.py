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

PROMPT_HOOK = "UserPromptSubmit"
EVENTS = (PROMPT_HOOK, "PreToolUse", "PostToolUse", "PostToolUseFailure", "Stop")
# Hooks about calls that a frontend has not answered, and what it said of calls: one that never
# answers is no reason to remember every call of a turn.
HOOKS_OPEN = 1000
CALLBACKS = 64  # of one event; more is a mistake
PATTERN_CHARACTERS = 500  # of a matcher
EVERYTHING = ("", "*")
NAMES = re.compile(r"[A-Za-z0-9_|, ]*")


class Seen(NamedTuple):
    """An event that a hook may be about. `response` is the result of a tool."""

    event: str
    call: str = ""
    tool: str = ""
    arguments: Mapping[str, Any] = {}
    response: object = None


class Verdict(NamedTuple):
    """The answer of a PreToolUse hook: True allows without a question, False denies, None leaves it
    open.

    `changed` are the arguments that the call is to have instead (None: as they are). `asks`: a
    person is to be asked, whatever allows the call.
    """

    allow: bool | None = None
    reason: str = ""
    changed: Mapping[str, Any] | None = None
    asks: bool = False

    def and_then(self, other: "Verdict") -> "Verdict":
        """The verdict of both: one that denies goes before one that asks, which goes before one
        that allows.
        """
        changed = self.changed if other.changed is None else other.changed
        one = min(
            self,
            other,
            key=lambda verdict: (verdict.allow is not False, not verdict.asks, not verdict.allow),
        )
        return one._replace(changed=changed)


class Verdicts:
    """The verdicts of hooks about the calls of a turn, by the ids of the calls."""

    def __init__(self) -> None:
        self._known: dict[str, Verdict] = {}

    def of(self, call: str) -> Verdict:
        return self._known.get(call, Verdict())

    def add(self, call: str, verdict: Verdict) -> None:
        self._known[call] = self.of(call).and_then(verdict)
        bound(self._known)

    def clear(self) -> None:
        self._known.clear()


def bound(table: dict[str, Any]) -> None:
    """Forget the oldest entry of a table that is too large."""
    if len(table) > HOOKS_OPEN:
        del table[next(iter(table))]


class PromptRefusal(NamedTuple):
    """The refusal of a message by a UserPromptSubmit hook."""

    text: str  # text of the `informational` line and of the result
    reason: str  # "" if the hook gave none
    is_kept: bool  # the model sees the message together with the next one

    def build_notice(self) -> dict[str, Any]:
        """Return the fields of the `informational` line that reports the refusal to the frontend."""
        kind = "stopped_by_hook" if self.is_kept else "blocked_by_hook"
        outcome = {"kind": kind, "prompt_kept": self.is_kept}
        if self.reason:
            outcome["reason"] = self.reason
        return {
            "content": self.text,
            "level": "warning",
            "prevent_continuation": True,
            "prompt_submit_outcome": outcome,
        }


def read_prompt_refusal(answer: object, prompt: str) -> PromptRefusal | None:
    """Return the refusal in the answer of a UserPromptSubmit hook, or None if the hook accepts the
    message.
    """
    if not isinstance(answer, dict):
        return None
    if answer.get("continue") is False:
        reason = _read_reason(answer.get("stopReason"))
        text = f"Operation stopped by hook: {reason}" if reason else "Operation stopped by hook"
        return PromptRefusal(text, reason, is_kept=True)
    if answer.get("decision") != "block":
        return None
    reason = _read_reason(answer.get("reason"))
    text = f"{PROMPT_HOOK} operation blocked by hook:\n{reason or 'Blocked by hook'}\n\nOriginal prompt: {prompt}"
    return PromptRefusal(text, reason, is_kept=False)


def _read_reason(value: object) -> str:
    return value if isinstance(value, str) else ""


class Hooks:
    """The callbacks of one frontend."""

    def __init__(self, given: object = None) -> None:
        """`given` is the `hooks` member of an initialize request. Unknown entries are left out."""
        self._callbacks: dict[str, list[tuple[str | None, str]]] = {}
        for event, groups in given.items() if isinstance(given, dict) else ():
            if event in EVENTS and isinstance(groups, list):
                self._callbacks[event] = list(_callbacks(groups))[:CALLBACKS]

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    @property
    def can_deny_calls(self) -> bool:
        """Return whether any callback can deny a call."""
        return bool(self._callbacks.get("PreToolUse"))

    def matching(self, seen: Seen) -> list[str]:
        callbacks = self._callbacks.get(seen.event, ())
        return [
            identity
            for matcher, identity in callbacks
            if matcher is None or fits(matcher, seen.tool)
        ]


def _callbacks(groups: list[Any]) -> list[tuple[str | None, str]]:
    found: list[tuple[str | None, str]] = []
    for group in groups:
        if isinstance(group, dict) and isinstance(group.get("hookCallbackIds"), list):
            matcher = group.get("matcher")
            if not isinstance(matcher, str) or matcher in EVERYTHING:
                matcher = None
            found += [
                (matcher, identity)
                for identity in group["hookCallbackIds"]
                if isinstance(identity, str)
            ]
    return found


def fits(matcher: str, tool: str) -> bool:
    """Whether a matcher fits a tool: it is names with bars or commas, or a pattern that is found in
    the tool's name.

    A broken pattern fits (never wider). A subagent's tool has two names.
    """
    names = ("Task", "Agent") if tool in ("Task", "Agent") else (tool,)
    if NAMES.fullmatch(matcher):
        return not {name.strip() for name in re.split("[|,]", matcher)}.isdisjoint(names)
    if len(matcher) > PATTERN_CHARACTERS:
        return True
    try:
        return any(re.search(matcher, name) for name in names)
    except (re.error, OverflowError, RecursionError):
        return True


def described(
    seen: Seen,
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
        "hook_event_name": seen.event,
    }
    if seen.event == "UserPromptSubmit":
        told["prompt"] = prompt
    elif seen.event == "Stop":
        told |= {"stop_hook_active": False, "last_assistant_message": last}
    else:
        told |= {"tool_name": seen.tool, "tool_input": seen.arguments, "tool_use_id": seen.call}
        if seen.event == "PostToolUse":
            told["tool_response"] = seen.response
        elif seen.event == "PostToolUseFailure":
            told |= {"error": seen.response, "is_interrupt": False}
    return told


def read_verdict(answer: object) -> Verdict:
    """The verdict in the object that a hook answers with."""
    if not isinstance(answer, dict):
        return Verdict()
    specific = answer.get("hookSpecificOutput")
    specific = specific if isinstance(specific, dict) else {}
    decision, old = specific.get("permissionDecision"), answer.get("decision")
    changed = specific.get("updatedInput")
    reason = (
        specific.get("permissionDecisionReason") or answer.get("reason") or answer.get("stopReason")
    )
    said = str(reason or "")
    if decision in ("deny", "defer") or old == "block" or answer.get("continue") is False:
        return Verdict(False, said or "A hook denied this call.")
    if changed is not None and not isinstance(changed, dict):
        return Verdict(False, "A hook gave an updatedInput that is no object.")
    if decision == "ask":
        return Verdict(
            reason=said or "A hook asked for confirmation of this call.", changed=changed, asks=True
        )
    return Verdict(
        decision == "allow" or (decision is None and old == "approve") or None, said, changed
    )
