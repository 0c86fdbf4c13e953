"""Encodes Claude's stream-json and its control protocol for the stdin of a persistent child.

`ClaudeInput` serves a real claude in the flat dialect. A vendor that adopted the protocol overrides
the methods that differ.
"""

from collections.abc import Mapping
from typing import Any

from shim.core.adapter.adapter import ChildInput, LaunchRequest
from shim.core.claude.control_responses import build_control_error, build_control_response_line
from shim.core.claude.messages import UserMessage
from shim.core.claude.permissions import PermissionDecision, PermissionRequest
from shim.core.reading.json_text import dump_json


class ClaudeInput(ChildInput):
    """Encodes input lines for one child. Control requests are numbered."""

    def __init__(self) -> None:
        self._request_number = 0

    def encode_handshake(self, request: LaunchRequest) -> bytes:
        """Encode the request that enables the control protocol."""
        return self._encode_request(subtype="initialize", hooks=None)

    def encode_prompt(self, message: UserMessage) -> bytes:
        payload = {"role": "user", "content": message.text}
        return _encode_line(
            {"type": "user", "session_id": "", "message": payload, "parent_tool_use_id": None}
        )

    def encode_interrupt(self) -> bytes:
        """Encode an interrupt of the turn. A real claude then ends the turn with a result and keeps
        running.
        """
        return self._encode_request(subtype="interrupt")

    def encode_model_change(self, name: str | None) -> bytes | None:
        """Encode a change of the model, which takes effect at the next request. Return None for
        Claude's default model, which has no name.
        """
        if name is None:
            return None
        return self._encode_request(subtype="set_model", model=name)

    def encode_effort_change(self, level: str | None) -> bytes | None:
        return self._encode_request(subtype="apply_flag_settings", settings={"effortLevel": level})

    def encode_permission_mode_change(self, name: str) -> bytes | None:
        return self._encode_request(subtype="set_permission_mode", mode=name)

    def encode_permission_response(
        self, permission: PermissionRequest, decision: PermissionDecision
    ) -> bytes:
        """Encode a permission decision. The response to an allowed call includes the call's input,
        as in the SDKs.
        """
        if decision.allow:
            if decision.updated_input is None:
                tool_input = permission.vendor_input
            else:
                tool_input = decision.updated_input
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
    """Encode the response to a control request from the child."""
    return _encode_line(build_control_response_line(response))


def encode_unsupported_request_error(request_id: str, subtype: object) -> bytes:
    """Encode an error response to an unsupported control request. Without a response, the child
    would wait forever.
    """
    error = f"Unsupported control request: {subtype}"
    return encode_control_response(build_control_error(request_id, error))


def _encode_line(value: object) -> bytes:
    return dump_json(value) + b"\n"
