"""Decides about a tool call. These checks are applied in order:

1. A permission request that already has a refusal is denied.
2. The decision waits for all PreToolUse hooks: the frontend's callbacks, and the commands in
   Claude's settings files.
3. A call that a hook denies is denied.
4. A call that the rules or the permission mode deny is denied (`core.policy.evaluate`).
5. If the call is a question to the user that this frontend cannot answer, the call is denied.
6. A call that a hook, a rule or the mode allows is allowed, unless a person must confirm it.
7. The frontend is asked by a prompt and by its PermissionRequest hooks. The first answer counts. If
   the frontend cannot be asked, the call is denied.
"""

from collections.abc import Mapping

from shim.core.claude.hooks.answers import HookDecision
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
    """The decision about a tool call must wait for hooks that have not answered."""


class FrontendDecisionRequired(NamedTuple):
    """The frontend must decide about the tool call."""

    tool_input: Mapping[str, Any]  # the call's arguments, including changes by hooks
    # The decision if no PermissionRequest hook decides; None if a prompt can be shown.
    fallback_denial: PermissionDecision | None = None


class PendingPermission(NamedTuple):
    """A permission request that is not decided yet. Hooks are asked first, followed by the
    frontend.
    """

    request: PermissionRequest
    runs_commands: bool  # whether hook commands from settings files are still running
    command_decision: HookDecision = HookDecision()  # the hook commands' merged decision
    prompt_id: str | None = None  # the id of the frontend's prompt; None before it is sent
    prompt_line: Mapping[str, Any] = {}  # the prompt, as it was sent to the frontend
    # The decision if no PermissionRequest hook decides. It is set while the call waits for these
    # hooks and there is no prompt.
    fallback_denial: PermissionDecision | None = None


class PermissionPromptAbilities(NamedTuple):
    """The capabilities of a frontend's permission prompts."""

    question_refusal: str = ""  # why AskUserQuestion cannot be answered, or ""
    confirms_mode: bool = False  # a person must confirm calls that only the mode allows
    shows_changed_input: bool = True  # prompts can show arguments that a hook changed


class PermissionGate:
    """Decides about a session's tool calls. The gate reads the session state and never
    changes it.
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
        """Decide about a tool call. The session calls this method again after a hook has answered.

        `prompt_error` is the reason why the frontend cannot be asked now, or "".
        """
        if request.refusal:
            return PermissionDecision(False, message=request.refusal)
        if has_open_hooks:
            return WaitForHooks()
        if hook_decision.allow is False:  # without a notice, as with the real claude
            return PermissionDecision(
                False, message=hook_decision.reason, is_message_for_model=True
            )
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
        needs_confirmation = is_question and "answers" not in tool_input
        if self._abilities.confirms_mode and answers_prompts and not policy_decision.is_by_rule:
            needs_confirmation = True
        if policy_decision.outcome == "allow" and not needs_confirmation:
            return PermissionDecision(True, updated_input=_find_changed_input(request, tool_input))
        if answers_prompts and prompt_error:
            return PermissionDecision(False, message=prompt_error)
        can_show_input = self._abilities.shows_changed_input
        if not can_show_input:
            can_show_input = tool_input == request.tool_input
        if answers_prompts and can_show_input and self._session_state.mode != "dontAsk":
            return FrontendDecisionRequired(tool_input)
        denial = _deny(NOT_GRANTED_TEXT.format(tool=request.tool))
        if hook_decision.requires_prompt or (hook_decision.reason and not can_show_input):
            denial = _deny_by_hook(hook_decision)
        if self._session_state.mode == "dontAsk" or is_question:
            return denial
        return FrontendDecisionRequired(tool_input, denial)

    def check_answer(
        self, request: PermissionRequest, answer: PermissionDecision, hook_decision: HookDecision
    ) -> PermissionDecision:
        """Return the final decision after the frontend has answered a permission prompt.

        A deny rule overrides a person's approval. The rule may be newer than the prompt, or it may
        match only the arguments that the person changed. The real claude would run such a call. A
        hook can also deny a call while its prompt is open, because the vendor may change the call's
        arguments.
        """
        if not answer.allow:
            return answer
        if hook_decision.allow is False:
            return _deny_by_hook(hook_decision)
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
    """Return the tool call's arguments, including the changes that hooks made."""
    if hook_decision.updated_input is None:
        return request.tool_input
    return hook_decision.updated_input


def _find_changed_input(
    request: PermissionRequest, tool_input: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Return the arguments if they differ from the requested arguments, otherwise None."""
    if tool_input == request.tool_input:
        return None
    return tool_input


def _deny(reason: str) -> PermissionDecision:
    """Deny a tool call without asking the frontend. The frontend must be notified about
    the denial.
    """
    return PermissionDecision(False, message=reason, needs_notice=True)


def _deny_by_hook(hook_decision: HookDecision) -> PermissionDecision:
    return _deny(hook_decision.reason)._replace(is_message_for_model=True)


def _deny_by_rule(request: PermissionRequest, reason: str) -> PermissionDecision:
    return _deny(DENIED_BY_RULE_TEXT.format(tool=request.tool, why=reason))
