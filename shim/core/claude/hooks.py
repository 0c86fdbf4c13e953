"""A frontend's hooks: events that it wants to hear of, and calls that it may forbid (contract C11, 6.5).

They are the frontend's own callbacks, named in its `initialize`. PreToolUse may deny a call: before it runs where the
vendor asks for permission, else by stopping the turn. The others are told and not waited for.
"""

import re
from collections.abc import Mapping

from shim.core.reading.typed import Any, NamedTuple

EVENTS = ("UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop")
CALLBACKS = 64  # of one event; more is a mistake
PATTERN_CHARACTERS = 500  # of a matcher
EVERYTHING = ("", "*")


class Seen(NamedTuple):
    """An event that a hook may be about. `response` is the result of a tool."""

    event: str
    call: str = ""
    tool: str = ""
    arguments: Mapping[str, Any] = {}
    response: object = None


class Verdict(NamedTuple):
    """The answer of a PreToolUse hook: True allows without a question, False denies, None leaves it open.

    `changed` are the arguments that it allows instead (None: as they are).
    """

    allow: bool | None = None
    reason: str = ""
    changed: Mapping[str, Any] | None = None


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

    def matching(self, seen: Seen) -> list[str]:
        callbacks = self._callbacks.get(seen.event, ())
        return [identity for matcher, identity in callbacks if matcher is None or _matches(matcher, seen.tool)]


def _callbacks(groups: list[Any]) -> list[tuple[str | None, str]]:
    found: list[tuple[str | None, str]] = []
    for group in groups:
        if isinstance(group, dict) and isinstance(group.get("hookCallbackIds"), list):
            matcher = group.get("matcher")
            if not isinstance(matcher, str) or matcher in EVERYTHING:
                matcher = None
            found += [(matcher, identity) for identity in group["hookCallbackIds"] if isinstance(identity, str)]
    return found


def _matches(matcher: str, tool: str) -> bool:
    """Whether a matcher fits a tool: a name, names with bars, or a pattern. A broken one fits (never wider)."""
    if tool in matcher.split("|"):
        return True
    if len(matcher) > PATTERN_CHARACTERS:
        return True
    try:
        return re.fullmatch(matcher, tool) is not None
    except (re.error, OverflowError, RecursionError):
        return True


def described(
    seen: Seen, *, session_id: str, transcript: str, cwd: str, mode: str, prompt: str = "", last: str = ""
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
    return told


def read_verdict(response: Mapping[str, Any]) -> Verdict:
    answer = response.get("response")
    if not isinstance(answer, dict):
        return Verdict()
    specific = answer.get("hookSpecificOutput")
    specific = specific if isinstance(specific, dict) else {}
    reason = specific.get("permissionDecisionReason") or answer.get("reason") or answer.get("stopReason")
    said = str(reason or "A hook of the frontend denied this call.")
    if specific.get("permissionDecision") == "deny" or answer.get("decision") == "block":
        return Verdict(False, said)
    if answer.get("continue") is False:
        return Verdict(False, said)
    if specific.get("permissionDecision") != "allow":
        return Verdict()
    changed = specific.get("updatedInput")
    if changed is not None and not isinstance(changed, dict):
        return Verdict(False, "A hook of the frontend gave an updatedInput that is no object.")
    return Verdict(True, changed=changed)
