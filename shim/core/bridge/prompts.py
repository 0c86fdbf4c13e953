"""The permission prompts and elicitations of a session. Each is open until it is resolved, once."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from shim.core.bridge.frames import FrameRefusedError, encode_frame
from shim.core.claude.permissions import (
    DENIED_TEXT,
    ELICITATION_SUBTYPE,
    MAX_OPEN_PROMPTS,
    PROMPT_TIMEOUT_TEXT,
)
from shim.core.policy.policy import BYPASS_MODE
from shim.core.reading.bounded_dict import BoundedDict
from shim.core.reading.values import as_dict

# the control requests that a person answers
PROMPT_SUBTYPES = ("can_use_tool", ELICITATION_SUBTYPE)
MAX_STORED_OUTCOMES = 1000  # for clients that answer too late
SESSION_ENDED = "The session has ended."
ANSWER_KEYS = {  # the keys of an answer that are passed on; all others are dropped
    "allow": ("behavior", "updatedInput", "updatedPermissions"),
    "deny": ("behavior", "message", "interrupt"),
}
# the keys of an answer that must refer to the prompt itself
REFERENCE_KEYS = ("toolUseID", "tool_use_id", "tool_name", "request_id", "question")


class PendingPrompt(NamedTuple):
    """An open prompt. `request` is the body of Claude's request.

    `at_ms` is its time in milliseconds since 1970, and `since_s` in seconds of the monotonic clock.
    `until_ms` is the time at which an unanswered prompt is denied, in milliseconds since 1970, or
    None.
    """

    prompt_id: str
    request: Mapping[str, Any]
    at_ms: int
    since_s: float
    until_ms: int | None = None

    @property
    def encoded_prompt_frame(self) -> bytes:
        deadline = {}
        if self.until_ms is not None:
            deadline = {"until": self.until_ms}
        return encode_frame(
            "question", question=self.prompt_id, at=self.at_ms, **deadline, request=self.request
        )


class PermissionPromptOutcome(NamedTuple):
    """The id of a resolved prompt, the name of the client that resolved it (None: no client), and
    the outcome.
    """

    question: str
    by: str | None
    how: str

    @property
    def encoded_outcome_frame(self) -> bytes:
        return encode_frame("settled", **self._asdict())


class PendingPrompts:
    """The prompts of a session. `open` has the open prompts in their order."""

    def __init__(self) -> None:
        self.open: dict[str, PendingPrompt] = {}
        self._outcomes = BoundedDict[str, PermissionPromptOutcome](MAX_STORED_OUTCOMES)
        self.last_outcome: PermissionPromptOutcome | None = None  # of the last resolved prompt

    def add(self, prompt: PendingPrompt) -> bool:
        """Add a prompt. Return False if its id is known or too many prompts are open."""
        if prompt.prompt_id in self._outcomes or len(self.open) >= MAX_OPEN_PROMPTS:
            return False
        self.open[prompt.prompt_id] = prompt
        return True

    def resolve(
        self, prompt_id: str, client_name: str | None, outcome_kind: str
    ) -> PermissionPromptOutcome | None:
        """Resolve an open prompt and return its outcome. Return None if the prompt is not open."""
        if self.open.pop(prompt_id, None) is None:
            return None
        outcome = self._outcomes[prompt_id] = self.last_outcome = PermissionPromptOutcome(
            prompt_id, client_name, outcome_kind
        )
        return outcome

    def find_outcome(self, prompt_id: str) -> PermissionPromptOutcome | None:
        """Return the outcome of a prompt, or None if it is not stored."""
        return self._outcomes.get(prompt_id)

    @property
    def answering_client_names(self) -> set[str]:
        """The names of the clients in the stored outcomes."""
        return {outcome.by for outcome in self._outcomes.values() if outcome.by is not None}

    def list_overdue_prompt_ids(self, now_s: float, timeout_s: float) -> list[str]:
        """Return the ids of the prompts that have been open for at least `timeout_s`."""
        return [
            prompt.prompt_id for prompt in self.open.values() if now_s - prompt.since_s >= timeout_s
        ]


def parse_prompt_answer(
    prompt: PendingPrompt, decision: object, *, can_bypass: bool
) -> tuple[str, dict[str, Any]]:
    """Return the outcome of a decision, and the body of Claude's answer. Raise FrameRefusedError
    for an invalid decision.

    The allowed call is always that of the prompt. `can_bypass` is true if the decision may choose
    the mode bypassPermissions.
    """
    if not isinstance(decision, dict):
        raise FrameRefusedError("bad-decision", "a decision must be an object")
    request = prompt.request
    if request.get("subtype") == ELICITATION_SUBTYPE:
        return _parse_elicitation(decision)
    expected_ids = {
        "toolUseID": request.get("tool_use_id"),
        "tool_use_id": request.get("tool_use_id"),
    }
    expected_ids |= {
        "tool_name": request.get("tool_name"),
        "request_id": prompt.prompt_id,
        "question": prompt.prompt_id,
    }
    for key in REFERENCE_KEYS:
        if key in decision and decision[key] != expected_ids[key]:
            raise FrameRefusedError(
                "bad-decision", f"`{key}` does not match the prompt's tool call"
            )
    behavior = decision.get("behavior")
    if behavior not in ANSWER_KEYS:
        raise FrameRefusedError(
            "bad-decision", 'a decision must have `behavior`, "allow" or "deny"'
        )
    body = {key: decision[key] for key in ANSWER_KEYS[behavior] if decision.get(key) is not None}
    if not isinstance(body.get("updatedInput", {}), dict):
        raise FrameRefusedError("bad-decision", "`updatedInput` must be an object")
    if not isinstance(body.get("message", ""), str):
        raise FrameRefusedError("bad-decision", "`message` must be a string")
    check_permission_updates(body, can_bypass=can_bypass)
    if behavior == "allow":
        body.setdefault("updatedInput", request.get("input"))
    else:
        body.setdefault("message", DENIED_TEXT)
    if request.get("tool_use_id") is not None:
        body["toolUseID"] = request["tool_use_id"]
    return behavior, body


def _parse_elicitation(decision: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    action = decision.get("action")
    if decision.get("behavior") == "deny":
        action = "decline"
    if action not in ("accept", "decline", "cancel"):
        raise FrameRefusedError(
            "bad-decision", 'a decision must have `action`, "accept", "decline" or "cancel"'
        )
    body = {"action": action}
    if action == "accept" and isinstance(decision.get("content"), dict):
        body["content"] = decision["content"]
    return "allow" if action == "accept" else "deny", body


def build_prompt_denial(prompt: PendingPrompt, message: str) -> dict[str, Any]:
    """Return the body of the shim's own answer to an unanswered prompt."""
    if prompt.request.get("subtype") == ELICITATION_SUBTYPE:
        return {"action": "cancel"}
    return {
        "behavior": "deny",
        "message": message,
        "toolUseID": prompt.request.get("tool_use_id"),
    }


def build_timeout_denial(prompt: PendingPrompt) -> dict[str, Any]:
    """Return the denial of a prompt that was open for too long."""
    return build_prompt_denial(prompt, PROMPT_TIMEOUT_TEXT)


def has_permission_mode_change(body: Mapping[str, Any]) -> bool:
    """Return whether a parsed answer changes the permission mode."""
    updates = body.get("updatedPermissions")
    if updates is None:
        return False
    if not isinstance(updates, list):
        return True
    return any(
        not isinstance(update, dict) or update.get("type") == "setMode" or "mode" in update
        for update in updates
    )


def check_permission_updates(body: Mapping[str, Any], *, can_bypass: bool) -> None:
    """Raise FrameRefusedError for an answer that gives a session more permissions than it was
    started with.
    """
    updates = body.get("updatedPermissions")
    if not can_bypass and _allows_bypass(updates):
        raise FrameRefusedError(
            "bypass", f"{BYPASS_MODE} can be chosen only if the session was started with it"
        )
    if isinstance(updates, list) and any(
        isinstance(update, dict) and _has_rule_removal(update) for update in updates
    ):
        raise FrameRefusedError(
            "wider",
            "an answer cannot remove a deny or ask rule, unless an answer of this session added it",
        )


def convert_hook_approval_to_response(hook_answer: object) -> Mapping[str, Any] | None:
    """Return a hook's approval as the body of an answer to a prompt for its call. Return None if
    the hook does not allow the call.
    """
    fields = as_dict(hook_answer)
    hook_output = as_dict(fields.get("hookSpecificOutput"))
    decision = hook_output.get("decision")  # of the event PermissionRequest
    if _is_allowed(decision):
        return as_dict(decision)
    if _is_allowed(hook_output.get("permissionDecision")) or fields.get("decision") == "approve":
        return {}
    return None


def remove_approval_from_hook_answer(hook_answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a hook's answer without its approval."""
    fields = {
        key: value for key, value in hook_answer.items() if key != "decision" or value != "approve"
    }
    if hook_output := as_dict(fields.get("hookSpecificOutput")):
        remaining_keys = (
            key
            for key in hook_output
            if key not in ("decision", "permissionDecision") or not _is_allowed(hook_output[key])
        )
        fields["hookSpecificOutput"] = {key: hook_output[key] for key in remaining_keys}
    return fields


def _is_allowed(decision: object) -> bool:
    if decision == "allow":
        return True
    return as_dict(decision).get("behavior") == "allow"


def _allows_bypass(updates: object) -> bool:
    """Return whether permission updates choose the mode bypassPermissions, or cannot be parsed."""
    if updates is None:
        return False
    if not isinstance(updates, list):
        return True
    return any(
        not isinstance(update, dict) or update.get("mode") == BYPASS_MODE for update in updates
    )


def _has_rule_removal(update: Mapping[str, Any]) -> bool:
    """Return whether a permission update may remove a deny or ask rule of a flag or a settings
    file.
    """
    removes_rules = update.get("type") in ("removeRules", "replaceRules")
    if not removes_rules:
        return False
    if update.get("behavior") == "allow":
        return False
    return update.get("destination") != "session"
