"""The order in which refusals, hooks, rules and the frontend decide about a tool call.

1. A request with a refusal is denied.
2. The decision waits for all hooks: the frontend's callbacks and the commands of Claude's settings
   files.
3. A call that a hook denies is denied.
4. A call that the rules or the permission mode deny is denied (`core.policy.evaluate`).
5. A question of the vendor that this frontend cannot answer is denied.
6. A call that a hook, a rule or the mode allows is allowed, unless a person must confirm it.
7. The frontend is asked. If it cannot be asked, the call is denied.
"""

from collections.abc import Mapping

from shim.core.claude.hooks.callbacks import HookDecision
from shim.core.claude.permissions import (
    DENIED_BY_RULE_TEXT,
    NOT_GRANTED_TEXT,
    QUESTION_TOOL,
    PermissionDecision,
    PermissionRequest,
)
from shim.core.claude.session_state import SessionState
from shim.core.reading.typed import Any, NamedTuple


class WaitForHooks(NamedTuple):
    """The decision must wait for open hooks."""


class FrontendDecisionRequired(NamedTuple):
    """The frontend must be asked."""

    tool_input: Mapping[str, Any]  # the arguments after the changes of the hooks


class PendingPermission(NamedTuple):
    """A permission request without a decision. First hooks decide about it, then the frontend."""

    request: PermissionRequest
    runs_commands: bool  # hook commands of the settings files have not decided yet
    command_decision: HookDecision = HookDecision()  # the merged decision of these commands
    prompt_id: str | None = None  # None before the frontend is asked


class PermissionPromptAbilities(NamedTuple):
    """What a frontend's permission prompts can do."""

    question_refusal: str = ""  # why AskUserQuestion cannot be answered; "" if it can
    confirms_mode: bool = False  # a person confirms each call that only the mode allows
    shows_changed_input: bool = True  # a prompt can show arguments that a hook changed


class PermissionGate:
    """Decides about the tool calls of one session. It reads the session state and does not change
    it.
    """

    def __init__(self, session_state: SessionState, abilities: PermissionPromptAbilities) -> None:
        self._session_state = session_state
        self._abilities = abilities

    def decide(
        self,
        request: PermissionRequest,
        hook_decision: HookDecision,
        *,
        has_open_hooks: bool,
        prompt_error: str,
    ) -> PermissionDecision | WaitForHooks | FrontendDecisionRequired:
        """Decide about a call. The session calls this again when a hook has decided.

        `prompt_error` is why the frontend cannot be asked now, or "".
        """
        if request.refusal:
            return PermissionDecision(False, message=request.refusal)
        if has_open_hooks:
            return WaitForHooks()
        if hook_decision.allow is False:
            return _deny(hook_decision.reason)
        tool_input = get_tool_input_after_hooks(request, hook_decision)
        policy_decision = self._session_state.evaluate_tool_call(
            request.tool, tool_input, hook_decision
        )
        if policy_decision.outcome == "deny":
            return _deny_by_rule(request, policy_decision.reason)
        is_question = request.tool == QUESTION_TOOL
        if is_question and self._abilities.question_refusal:
            return _deny(self._abilities.question_refusal)
        answers_prompts = self._session_state.answers_prompts
        needs_confirmation = (
            self._abilities.confirms_mode and answers_prompts and not policy_decision.is_by_rule
        ) or (is_question and "answers" not in tool_input)
        if policy_decision.outcome == "allow" and not needs_confirmation:
            return PermissionDecision(
                True,
                updated_input=_find_changed_input(request, tool_input),
                frontend_knows=hook_decision.allow is None,
            )
        if answers_prompts and prompt_error:
            return PermissionDecision(False, message=prompt_error)
        can_show_input = self._abilities.shows_changed_input
        if not can_show_input:
            can_show_input = tool_input == request.tool_input
        if answers_prompts and can_show_input and self._session_state.mode != "dontAsk":
            return FrontendDecisionRequired(tool_input)
        if hook_decision.requires_prompt or (hook_decision.reason and not can_show_input):
            return _deny(hook_decision.reason)
        return _deny(NOT_GRANTED_TEXT.format(tool=request.tool))

    def check_answer(
        self, request: PermissionRequest, answer: PermissionDecision, hook_decision: HookDecision
    ) -> PermissionDecision:
        """Return the decision that follows from the frontend's answer.

        A deny rule also applies to a call that a person allowed. The rule may be newer than the
        prompt, or match only the arguments that the person changed. The real claude runs such a
        call. A hook may deny a call after its prompt was written, because the vendor may change the
        arguments of the call.
        """
        if not answer.allow:
            return answer
        if hook_decision.allow is False:
            return _deny(hook_decision.reason)
        tool_input = get_tool_input_after_hooks(request, hook_decision)
        if answer.updated_input is not None:
            tool_input = answer.updated_input
        policy_decision = self._session_state.evaluate_tool_call(request.tool, tool_input)
        if policy_decision.outcome == "deny" and policy_decision.is_by_rule:
            return _deny_by_rule(request, policy_decision.reason)
        return answer._replace(updated_input=_find_changed_input(request, tool_input))


def get_tool_input_after_hooks(
    request: PermissionRequest, hook_decision: HookDecision
) -> Mapping[str, Any]:
    """Return the arguments of a call after the changes of its hooks."""
    if hook_decision.updated_input is None:
        return request.tool_input
    return hook_decision.updated_input


def _find_changed_input(
    request: PermissionRequest, tool_input: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Return the arguments if they differ from the requested ones, or None."""
    if tool_input == request.tool_input:
        return None
    return tool_input


def _deny(reason: str) -> PermissionDecision:
    """Deny a call without asking the frontend. The frontend needs a notice of the denial."""
    return PermissionDecision(False, message=reason, frontend_knows=False)


def _deny_by_rule(request: PermissionRequest, reason: str) -> PermissionDecision:
    return _deny(DENIED_BY_RULE_TEXT.format(tool=request.tool, why=reason))
