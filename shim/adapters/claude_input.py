"""What a real claude is told through its stdin while it stays for a conversation in another dialect
(contract 6).

A vendor that took its protocol over says the same, but for what it does otherwise.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shim.core.adapter.adapter import LaunchRequest
from shim.core.claude.messages import TEXT_ONLY_KINDS, BlockKinds, UserMessage
from shim.core.claude.permissions import PermissionDecision, PermissionRequest
from shim.core.reading.json_text import dump_json

if TYPE_CHECKING:
    from shim.core.adapter.translator import Translator


class ClaudeInput:
    """One child's ear; requests are numbered."""

    can_accept_prompts = True
    accepted_block_kinds: BlockKinds = TEXT_ONLY_KINDS

    def __init__(self) -> None:
        self._request_number = 0

    def create_translator_factory(self, translator: "type[Translator]") -> "type[Translator]":
        """The translator itself: its answers to requests of ours say nothing that matters."""
        return translator

    def encode_handshake(self, request: LaunchRequest) -> bytes:
        """Turn the control protocol on."""
        return self._encode_request(subtype="initialize", hooks=None)

    def set_vendor_session_id(self, session: str) -> None:
        """Nothing: a claude knows its session."""

    def encode_heartbeat(self) -> bytes:
        """Nothing: a claude gives no signs of life."""
        return b""

    def encode_prompt(self, message: UserMessage) -> bytes:
        payload = {"role": "user", "content": message.text}
        return _encode_line(
            {"type": "user", "session_id": "", "message": payload, "parent_tool_use_id": None}
        )

    def encode_steering_message(self, message: UserMessage) -> bytes | None:
        """None: the message waits for its own turn."""
        return None

    def pop_undelivered_message_count(self) -> int:
        """None: no message was steered."""
        return 0

    def encode_interrupt(self) -> bytes:
        """A claude ends the turn with a result and stays."""
        return self._encode_request(subtype="interrupt")

    def encode_model_change(self, name: str | None) -> bytes | None:
        """From the next request on; Claude's default model has no name."""
        return None if name is None else self._encode_request(subtype="set_model", model=name)

    def encode_effort_change(self, level: str | None) -> bytes | None:
        return self._encode_request(subtype="apply_flag_settings", settings={"effortLevel": level})

    def encode_permission_mode_change(self, name: str) -> bytes | None:
        """Claude's own names of modes."""
        return self._encode_request(subtype="set_permission_mode", mode=name)

    def encode_permission_response(
        self, permission: PermissionRequest, decision: PermissionDecision
    ) -> bytes:
        """An allowed call is sent with its input, as the SDKs do."""
        if decision.allow:
            tool_input = (
                permission.vendor_input
                if decision.updated_input is None
                else decision.updated_input
            )
            answer: dict[str, Any] = {"behavior": "allow", "updatedInput": tool_input}
        else:
            answer = {
                "behavior": "deny",
                "message": decision.message,
                "interrupt": decision.ends_turn,
            }
        return encode_control_response(
            {"subtype": "success", "request_id": permission.request_id, "response": answer}
        )

    def _encode_request(self, **request: object) -> bytes:
        self._request_number += 1
        return _encode_line(
            {
                "type": "control_request",
                "request_id": f"shim-{self._request_number}",
                "request": request,
            }
        )


def encode_control_response(response: Mapping[str, Any]) -> bytes:
    """An answer to one of its requests."""
    return _encode_line({"type": "control_response", "response": response})


def encode_unsupported_request_error(request_id: str, subtype: object) -> bytes:
    """The answer to a request that has none: silence would let it wait."""
    return encode_control_response(
        {
            "subtype": "error",
            "request_id": request_id,
            "error": f"Unsupported control request: {subtype}",
        }
    )


def _encode_line(value: object) -> bytes:
    return dump_json(value) + b"\n"
