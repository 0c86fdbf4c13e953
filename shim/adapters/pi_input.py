"""What pi is told through its stdin while it stays for a conversation (pi page, section 5)."""

from collections.abc import Mapping
from typing import Any

from shim.adapters.pi import SUPPORTED_EFFORTS, TOOLS, uses_permission_extension
from shim.adapters.pi_rpc_session import PiRpcSession, PiRunParams
from shim.core.adapter.adapter import LaunchRequest
from shim.core.adapter.tools import build_vendor_arguments
from shim.core.claude.argv.models import choose_supported_effort
from shim.core.claude.messages import UserMessage
from shim.core.claude.permissions import PermissionDecision, PermissionRequest
from shim.core.policy.policy import BYPASS_MODE
from shim.core.reading.json_text import dump_json
from shim.profiles.rpc.child_input import RpcChildInput

PLAN_MODE = "plan"
UNSUPPORTED_CHANGE_MESSAGE = (
    "Not run: the call was allowed with an input that pi's {tool} has no words for: {input}"
)
INTERRUPTED_MESSAGE = "Interrupted by the user."


class PiInput(RpcChildInput[PiRpcSession]):
    """One pi's ear. Our extension asks about each call in every mode, so that a mode need not be
    told.
    """

    def __init__(self) -> None:
        super().__init__(PiRpcSession())
        self._mode = ""
        self._uses_extension = True

    def encode_handshake(self, request: LaunchRequest) -> bytes:
        self._mode, self._uses_extension = (
            request.permission_mode,
            uses_permission_extension(request),
        )
        params = PiRunParams(
            cwd="" if request.policy is None else request.policy.workspace.cwd,
            must_ask=self._uses_extension,
            chooses_model=request.invocation.model is None,
            can_ask_person=request.can_ask_user(),
        )
        return self._session.encode_handshake(params)

    def encode_steering_message(self, message: UserMessage) -> bytes | None:
        return self._session.encode_steering_message(message)

    def pop_undelivered_message_count(self) -> int:
        count, self._session.undelivered_count = self._session.undelivered_count, 0
        return count

    def encode_interrupt(self) -> bytes:
        return self._session.encode_abort()

    def encode_model_change(self, name: str | None) -> bytes | None:
        """From the next request on."""
        return self._session.encode_model_change(name)

    def encode_effort_change(self, level: str | None) -> bytes | None:
        """From the next request on; its own level has no name."""
        supported_level = (
            None if level is None else choose_supported_effort(level, SUPPORTED_EFFORTS)
        )
        return (
            None
            if supported_level is None
            else self._session.encode_thinking_level(supported_level)
        )

    def encode_permission_mode_change(self, name: str) -> bytes | None:
        """Nothing has to be told where every call is asked about; only a plan has other tools."""
        old_mode, self._mode = self._mode, name
        is_unchanged = name == old_mode or (
            self._uses_extension and PLAN_MODE not in (name, old_mode)
        )
        return b"" if is_unchanged and (self._uses_extension or name == BYPASS_MODE) else None

    def encode_permission_response(
        self, permission: PermissionRequest, decision: PermissionDecision
    ) -> bytes:
        """What was allowed runs, changed or not. ValueError where pi has no words for the change."""
        form_answer = self._session.encode_form_answer(
            permission.request_id,
            decision.updated_input,
            allow=decision.allow,
            interrupt=decision.ends_turn,
        )
        if form_answer is not None:
            return form_answer
        answer: dict[str, Any] = {"allow": decision.allow}
        if not decision.allow:
            answer["reason"] = decision.message or INTERRUPTED_MESSAGE
        elif decision.updated_input is not None:
            answer["input"] = _convert_changed_input(permission, decision.updated_input)
        return self._session.encode_permission_response(permission.request_id, answer)


def _convert_changed_input(
    permission: PermissionRequest, changed: Mapping[str, Any]
) -> Mapping[str, Any]:
    """A changed input in pi's words."""
    vendor_arguments = build_vendor_arguments(
        TOOLS, permission.vendor_tool, permission.vendor_input, changed
    )
    if vendor_arguments is None:
        raise ValueError(
            UNSUPPORTED_CHANGE_MESSAGE.format(
                tool=permission.vendor_tool, input=dump_json(changed).decode()
            )
        )
    return vendor_arguments
