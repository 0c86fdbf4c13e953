"""A session's permission prompts and elicitations. A prompt is open until it is resolved, which
happens only once.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from shim.core.bridge.frames import FrameRefusedError, encode_frame
from shim.core.claude.hooks.answers import parse_hook_answer
from shim.core.claude.permissions import (
    DENIED_TEXT,
    ELICITATION_SUBTYPE,
    MAX_OPEN_PROMPTS,
)
from shim.core.policy.policy import BYPASS_MODE
from shim.core.reading.bounded_dict import BoundedDict
from shim.core.reading.values import as_dict, list_dicts

# The subtypes of control requests that a person answers.
PROMPT_SUBTYPES = ("can_use_tool", ELICITATION_SUBTYPE)
MAX_STORED_OUTCOMES = 1000  # stored for clients that answer too late
SESSION_ENDED = "The session has ended."
ANSWER_KEYS = {  # the keys of an answer that are passed on; other keys are dropped
    "allow": ("behavior", "updatedInput", "updatedPermissions"),
    "deny": ("behavior", "message", "interrupt"),
}


class PendingPrompt(NamedTuple):
    """An open prompt. `request` is the body of Claude's control request.

    `at_ms` is the time at which the prompt was opened, in milliseconds since 1970. `since_s` is the
    same time in seconds of the monotonic clock. `until_ms` is the time at which the prompt is
    denied if it is not answered, in milliseconds since 1970, or None.
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
    """A resolved prompt's outcome: the prompt's id (`question`), the name of the client that
    resolved the prompt or None (`by`), and the kind of outcome (`how`).
    """

    question: str
    by: str | None
    how: str

    @property
    def encoded_outcome_frame(self) -> bytes:
        return encode_frame("settled", **self._asdict())


class PendingPrompts:
    """A session's prompts. `open` contains the open prompts in the order of their arrival."""

    def __init__(self) -> None:
        self.open: dict[str, PendingPrompt] = {}
        self._outcomes = BoundedDict[str, PermissionPromptOutcome](MAX_STORED_OUTCOMES)
        self.last_outcome: PermissionPromptOutcome | None = (
            None  # the outcome of the last resolved prompt
        )

    def add(self, prompt: PendingPrompt) -> bool:
        """Add a prompt. Return False if a prompt with this id was already resolved, or if too many
        prompts are open.
        """
        if prompt.prompt_id in self._outcomes or len(self.open) >= MAX_OPEN_PROMPTS:
            return False
        self.open[prompt.prompt_id] = prompt
        return True

    def resolve(
        self, prompt_id: str, client_name: str | None, outcome_kind: str
    ) -> PermissionPromptOutcome | None:
        """Resolve an open prompt and return the outcome. Return None if the prompt is not open."""
        if self.open.pop(prompt_id, None) is None:
            return None
        outcome = self._outcomes[prompt_id] = self.last_outcome = PermissionPromptOutcome(
            prompt_id, client_name, outcome_kind
        )
        return outcome

    def find_outcome(self, prompt_id: str) -> PermissionPromptOutcome | None:
        """Return a resolved prompt's outcome, or None if the outcome is not stored."""
        return self._outcomes.get(prompt_id)

    @property
    def answering_client_names(self) -> set[str]:
        """The names of clients that have resolved a prompt. Only stored outcomes are considered."""
        return {outcome.by for outcome in self._outcomes.values() if outcome.by is not None}

    def list_overdue_prompt_ids(self, now_s: float, timeout_s: float) -> list[str]:
        """Return the ids of prompts that have been open for at least `timeout_s`."""
        return [
            prompt.prompt_id for prompt in self.open.values() if now_s - prompt.since_s >= timeout_s
        ]


def parse_prompt_answer(
    prompt: PendingPrompt, decision: object, *, can_bypass: bool
) -> tuple[str, dict[str, Any]]:
    """Parse a client's decision about a prompt. Return the outcome and the body of the answer to
    Claude's request. Raise FrameRefusedError if the decision is invalid.

    A decision can only allow the tool call that the prompt is about. `can_bypass` is set if the
    decision may select the mode bypassPermissions.
    """
    if not isinstance(decision, dict):
        raise FrameRefusedError("bad-decision", "a decision must be an object")
    request = prompt.request
    if request.get("subtype") == ELICITATION_SUBTYPE:
        return _parse_elicitation(decision)
    references = {
        "toolUseID": request.get("tool_use_id"),
        "tool_use_id": request.get("tool_use_id"),
        "tool_name": request.get("tool_name"),
        "request_id": prompt.prompt_id,
        "question": prompt.prompt_id,
    }
    for key, expected_value in references.items():
        if decision.get(key, expected_value) != expected_value:
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
    """Build the answer with which the shim denies a prompt itself."""
    if prompt.request.get("subtype") == ELICITATION_SUBTYPE:
        return {"action": "cancel"}
    return {
        "behavior": "deny",
        "message": message,
        "toolUseID": prompt.request.get("tool_use_id"),
    }


def has_permission_mode_change(body: Mapping[str, Any]) -> bool:
    """Return whether a client's answer changes the permission mode."""
    return _has_matching_update(
        body.get("updatedPermissions"),
        lambda update: update.get("type") == "setMode" or "mode" in update,
    )


def _has_matching_update(updates: object, is_match: Callable[[dict[str, Any]], bool]) -> bool:
    """Return whether a permission update in an answer matches. Invalid updates also match."""
    if updates is None:
        return False
    if not isinstance(updates, list):
        return True
    return any(not isinstance(update, dict) or is_match(update) for update in updates)


def check_permission_updates(body: Mapping[str, Any], *, can_bypass: bool) -> None:
    """Raise FrameRefusedError if an answer would give the session more permissions than it was
    started with.
    """
    updates = body.get("updatedPermissions")
    selects_bypass = _has_matching_update(updates, lambda update: update.get("mode") == BYPASS_MODE)
    if selects_bypass and not can_bypass:
        raise FrameRefusedError(
            "bypass", f"{BYPASS_MODE} can be chosen only if the session was started with it"
        )
    if any(map(_has_rule_removal, list_dicts(updates))):
        raise FrameRefusedError(
            "wider",
            "an answer cannot remove a deny or ask rule, unless an answer of this session added it",
        )


def convert_hook_approval_to_response(hook_answer: object) -> Mapping[str, Any] | None:
    """Convert a hook's approval to the answer that would allow the call in a prompt. Return None if
    the hook does not allow the call.
    """
    answer = parse_hook_answer(hook_answer)
    decision = answer.specific_output.get("decision")  # set by PermissionRequest hooks
    if _is_allowed(decision):
        return as_dict(decision)
    if _is_allowed(answer.specific_output.get("permissionDecision")):
        return {}
    return {} if answer.decision == "approve" else None


def remove_approval_from_hook_answer(hook_answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a hook's answer without its approval."""
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


def _has_rule_removal(update: Mapping[str, Any]) -> bool:
    """Return whether a permission update may remove a deny or ask rule that comes from a flag or a
    settings file.
    """
    removes_rules = update.get("type") in ("removeRules", "replaceRules")
    if not removes_rules:
        return False
    if update.get("behavior") == "allow":
        return False
    return update.get("destination") != "session"
