"""The answers of hooks: the decisions about tool calls and user messages.

Callbacks of a frontend and commands from Claude's settings files have the same answers. The module
`feedback` handles the texts for the model in an answer.
"""

from collections.abc import Mapping

from shim.core.claude.hooks.callbacks import MAX_OPEN_HOOKS
from shim.core.policy import PERMISSION_EVENT, PRE_TOOL_EVENT, PROMPT_EVENT
from shim.core.reading.bounded_dict import BoundedDict
from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import as_dict, as_str, get_text

# Models recognize from these tags that the user has not written the text.
TEXT_START = "<system-reminder>\n"
TEXT_END = "\n</system-reminder>"
WRONG_EVENT_TEXT = "Hook returned incorrect event name: expected '{expected}' but got '{name}'."
NO_REASON_TEXT = "Blocked by hook"  # used if a hook gives no reason


class HookAnswer(NamedTuple):
    """The parts of a hook's answer. A part that is missing or malformed is empty.

    decision         "block" or "approve"; the real claude's older form of a decision
    reason           the reason of the decision
    stops            the hook does not let the turn continue (`continue`)
    stop_reason      why the turn does not continue
    user_message     a message for the user
    event_name       the event to which the answer belongs
    specific_output  the members whose meaning depends on the event
    """

    decision: str
    reason: str
    stops: bool
    stop_reason: str
    user_message: str
    event_name: str
    specific_output: Mapping[str, Any]

    def is_for_other_event(self, event_name: str) -> bool:
        """Return whether the answer names another event. Such an answer is invalid."""
        return self.event_name not in ("", event_name)


def parse_hook_answer(value: object) -> HookAnswer:
    """Parse the object that a hook has returned."""
    fields = as_dict(value)
    specific_output = as_dict(fields.get("hookSpecificOutput"))
    return HookAnswer(
        as_str(fields.get("decision")),
        as_str(fields.get("reason")),
        fields.get("continue") is False,
        as_str(fields.get("stopReason")),
        as_str(fields.get("systemMessage")),
        as_str(specific_output.get("hookEventName")),
        specific_output,
    )


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


class ToolCallHookDecisions(BoundedDict[str, HookDecision]):
    """The hooks' decisions about the tool calls of one turn, by call id."""

    def __init__(self) -> None:
        super().__init__(MAX_OPEN_HOOKS)

    def get_decision(self, call_id: str) -> HookDecision:
        return self.get(call_id, HookDecision())

    def add_decision(self, call_id: str, decision: HookDecision) -> None:
        self[call_id] = self.get_decision(call_id).merge(decision)


def parse_hook_output(value: object) -> HookDecision:
    """Parse the object that a PreToolUse hook has returned. Return the hook's decision. An answer to
    another event denies the call.
    """
    answer = parse_hook_answer(value)
    if answer.is_for_other_event(PRE_TOOL_EVENT):
        return HookDecision(
            False, WRONG_EVENT_TEXT.format(expected=PRE_TOOL_EVENT, name=answer.event_name)
        )
    permission_decision = answer.specific_output.get("permissionDecision")
    updated_input = answer.specific_output.get("updatedInput")
    reason = get_text(
        answer.specific_output, "permissionDecisionReason", answer.reason or answer.stop_reason
    )
    decision = HookDecision(None, reason, updated_input, stops_turn=answer.stops)
    if permission_decision in ("deny", "defer") or answer.decision == "block":
        reason = reason or "A hook denied this call."
        return HookDecision(False, reason, stops_turn=answer.stops)
    if updated_input is not None and not isinstance(updated_input, dict):
        return HookDecision(False, "A hook returned an updatedInput that is not an object.")
    if permission_decision == "ask":
        reason = reason or "A hook asked for confirmation of this call."
        return decision._replace(reason=reason, requires_prompt=True)
    if permission_decision == "allow" or (
        permission_decision is None and answer.decision == "approve"
    ):
        return decision._replace(allow=True)
    return decision


def find_permission_hook_decision(value: object) -> Mapping[str, Any] | None:
    """Return the decision in a PermissionRequest hook's answer, in the format of an answer to a
    permission prompt. Return None if the hook does not decide.
    """
    answer = parse_hook_answer(value)
    decision = as_dict(answer.specific_output.get("decision"))
    if answer.event_name == PERMISSION_EVENT and decision.get("behavior") in ("allow", "deny"):
        return decision
    return None


class PromptHookRejection(NamedTuple):
    """A UserPromptSubmit hook's rejection of a user message."""

    text: str  # the text of the `informational` line and of the result
    reason: str  # "" if the hook gave no reason
    stays_in_context: bool  # the model receives the message together with the next message
    is_error: bool = False  # the turn fails, because the hook's answer is invalid

    def format_for_model(self) -> str:
        """Return the text that the model receives after the rejected message."""
        return f"{TEXT_START}{self.text}{TEXT_END}"

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


def parse_prompt_hook_rejection(value: object, prompt: str) -> PromptHookRejection | None:
    """Parse a UserPromptSubmit hook's answer. Return the rejection, or None if the hook accepts the
    message.
    """
    answer = parse_hook_answer(value)
    if answer.is_for_other_event(PROMPT_EVENT):
        text = WRONG_EVENT_TEXT.format(expected=PROMPT_EVENT, name=answer.event_name)
        return PromptHookRejection(text, "", stays_in_context=False, is_error=True)
    if answer.stops:
        text = "Operation stopped by hook"
        if answer.stop_reason:
            text = f"Operation stopped by hook: {answer.stop_reason}"
        return PromptHookRejection(text, answer.stop_reason, stays_in_context=True)
    if answer.decision != "block":
        return None
    text = f"{PROMPT_EVENT} operation blocked by hook:\n{answer.reason or NO_REASON_TEXT}"
    if answer.specific_output.get("suppressOriginalPrompt") is not True:
        text = f"{text}\n\nOriginal prompt: {prompt}"
    return PromptHookRejection(text, answer.reason, stays_in_context=False)
