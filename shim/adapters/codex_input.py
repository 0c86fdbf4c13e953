"""codex driven by its app-server, so that a frontend is asked about each call. Measured with
0.169.0.
"""

import re

from shim.adapters import codex_rules
from shim.adapters.codex_thread import CodexThread, CodexThreadParams
from shim.core.adapter.adapter import Adapter, LaunchRequest, LaunchSpec
from shim.core.claude.argv.models import choose_supported_effort
from shim.core.claude.messages import UserMessage
from shim.core.claude.permissions import QUESTION_TOOL, PermissionDecision, PermissionRequest
from shim.core.errors import FrontendError
from shim.profiles.rpc.child_input import RpcChildInput
from shim.profiles.rpc.form import format_ask_user_question_result

THREAD_ID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
SUPPORTED_EFFORTS = ("low", "medium", "high", "xhigh")
PROMPTED_TOOLS = frozenset(("Bash", "Delete", "Edit", "MultiEdit", "Write"))
DENIED_MESSAGE = "The call was denied: {}"  # what its model is told, as another message of the turn
UNCHANGED_MESSAGE = (
    "Not run: codex runs a call as it is or not at all, "
    "and the call was allowed with another input only."
)


class CodexInput(RpcChildInput[CodexThread]):
    """One app-server's ear."""

    def __init__(self) -> None:
        super().__init__(CodexThread())
        # that the child was started for, in the mode of now
        self._request: LaunchRequest | None = None

    def encode_handshake(self, request: LaunchRequest) -> bytes:
        self._request = request
        invocation = request.invocation
        effort = invocation.effort
        system_prompts = (invocation.system_prompt, invocation.append_system_prompt)
        return self._session.encode_handshake(
            CodexThreadParams(
                cwd="" if request.policy is None else request.policy.workspace.cwd,
                build_hooks=lambda servers: codex_rules.build_approval_hook_settings(
                    request, servers
                ),
                resume_id=request.resume_id,
                fork=bool(request.resume_id and invocation.fork_session),
                model=invocation.model,
                effort=None
                if effort is None
                else choose_supported_effort(effort, SUPPORTED_EFFORTS),
                instructions="\n\n".join(filter(None, system_prompts)),
                servers=request.mcp_servers.all_servers,
            )
        )

    def encode_steering_message(self, message: UserMessage) -> bytes | None:
        return self._session.encode_steering_message(message)

    def pop_undelivered_message_count(self) -> int:
        """Those that codex refused, or had not put into the thread when the turn ended."""
        undelivered_count, self._session.pending_steering_count = (
            self._session.pending_steering_count,
            0,
        )
        return undelivered_count

    def encode_interrupt(self) -> bytes:
        return self._session.encode_interrupt()

    def encode_model_change(self, name: str | None) -> bytes | None:
        """From the next message on."""
        return self._session.encode_model_change(name)

    def encode_effort_change(self, level: str | None) -> bytes | None:
        """From the next message on; its own level is not known."""
        supported_level = (
            None if level is None else choose_supported_effort(level, SUPPORTED_EFFORTS)
        )
        return (
            None if supported_level is None else self._session.encode_effort_change(supported_level)
        )

    def encode_permission_mode_change(self, name: str) -> bytes | None:
        """codex asks about each call in every mode, and the policy answers; other words need
        another child.
        """
        if self._request is None or self._request.policy_bypass:
            return None
        old_arguments, self._request = (
            codex_rules.build_app_server_arguments(self._request),
            self._request._replace(permission_mode=name),
        )
        return (
            b"" if codex_rules.build_app_server_arguments(self._request) == old_arguments else None
        )

    def encode_permission_response(
        self, permission: PermissionRequest, decision: PermissionDecision
    ) -> bytes:
        """Yes to this call alone, or no. ValueError for a changed input, which codex has no word
        for.
        """
        request_id, choice, answers = (
            permission.request_id,
            {"allow": decision.allow, "stop": decision.ends_turn},
            None,
        )
        if request_id in self._session.forms.requests:
            return self._session.encode_form_answer(request_id, decision.updated_input, **choice)
        if decision.allow and decision.updated_input is not None:
            if permission.tool != QUESTION_TOOL:
                raise ValueError(UNCHANGED_MESSAGE)
            from shim.adapters.codex_items import build_user_input_answers as build_answers

            answers = build_answers(permission.vendor_input, decision.updated_input)
        answer = self._session.encode_permission_response(
            request_id,
            answers=answers,
            result_text=format_ask_user_question_result(decision.updated_input),
            **choice,
        )
        # a subagent cannot be told
        is_main_thread = permission.vendor_input.get("threadId") == self._session.thread_id
        needs_explanation = (
            answer
            and is_main_thread
            and decision.message
            and not (decision.allow or decision.ends_turn)
        )
        return (
            answer
            + self._session.encode_denial_reason_message(DENIED_MESSAGE.format(decision.message))
            if needs_explanation
            else answer
        )


def build_persistent_adapter(base: Adapter) -> Adapter:
    """codex, driven so that it asks."""

    def build_launch(request: LaunchRequest) -> LaunchSpec:
        if request.resume_id and not re.fullmatch(THREAD_ID, request.resume_id):
            raise FrontendError(
                f"{request.resume_id[:60]!r} is no session id of codex", hint="start a new session"
            )
        args = codex_rules.build_app_server_arguments(request)
        codex_rules.build_approval_hook_settings(
            request, []
        )  # where it cannot be, nothing is started
        return LaunchSpec(
            (*args, "app-server"), environment={"RUST_LOG": "error"}, needs_stdin_pipe=True
        )

    def choose_tools(request: LaunchRequest) -> tuple[str, ...]:
        question_tools = (
            (QUESTION_TOOL,) if codex_rules.can_ask_frontend_for_permission(request) else ()
        )
        has_web_search = codex_rules.can_search_web_unprompted(request)
        return (
            *(name for name in base.listed_tools if has_web_search or name != codex_rules.WEB_TOOL),
            *question_tools,
        )

    return base._replace(
        translator_ref="shim.adapters.codex_thread_stream:CodexThreadTranslator",
        child_input_ref="shim.adapters.codex_input:CodexInput",
        build_launch=build_launch,
        modes=dict.fromkeys(base.modes, ()),
        choose_tools=choose_tools,
        abilities=base.abilities._replace(can_stream=True, accepts_mcp_servers=True),
        policy_support=base.policy_support._replace(
            list_prompted_tools=lambda request: PROMPTED_TOOLS, emits_call_before_hook=True
        ),
        cli=base.cli._replace(build_two_way=None),
    )
