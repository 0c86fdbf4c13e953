"""Encodes what a persistent qwen is told.

`initialize` has to be the first line. Otherwise qwen answers no later request. The model and the
mode change between turns.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from shim.adapters.claude_input import ClaudeInput, encode_control_response
from shim.adapters.qwen import TOOLS
from shim.core.adapter.adapter import LaunchRequest
from shim.core.adapter.tools import build_vendor_arguments
from shim.core.claude.messages import TEXT_ONLY_KINDS, BlockKinds, MessageBlock, UserMessage
from shim.core.claude.permissions import PermissionDecision, PermissionRequest
from shim.core.reading.json_text import dump_json
from shim.core.reading.values import as_list

# How long it waits for a permission: the longest that it takes. With more it goes back to its own
# default of 60 s.
PERMISSION_TIMEOUT_MS = 600_000
VENDOR_MODES = {
    "default": "default",
    "plan": "plan",
    "acceptEdits": "default",  # what the policy then lets run unasked, and no more
    "dontAsk": "default",
    "auto": "auto",
    # for the rest of the turn; its own would answer its questions with nothing
    "bypassPermissions": "default",
}
# 0.24.4 takes `updatedInput` for its records and runs the call as it was: only a refusal keeps the
# old input from it.
CHANGED_MESSAGE = (
    "Not run: the user allows this call with another input only. "
    "Make the call again with exactly this input: {input}"
)
NO_FILE_MESSAGE = "[An image was sent here; it could not be kept in a file.]"
SPECIAL_CHARS = r"[^\w./-]"  # in a path that a prompt names


class QwenInput(ClaudeInput):
    """Encodes Claude's control protocol as qwen understands it."""

    accepted_block_kinds: BlockKinds = TEXT_ONLY_KINDS
    _store_attachment: Callable[[str, str], str | None] | None = None

    def encode_handshake(self, request: LaunchRequest) -> bytes:
        """Turn the control protocol on, and tell it the MCP servers that its command line does not
        name.
        """
        self._store_attachment = request.files.store_attachment
        self.accepted_block_kinds = (
            TEXT_ONLY_KINDS if request.files.store_attachment is None else frozenset(("image",))
        )
        options: dict[str, Any] = {"hooks": None, "timeout": {"canUseTool": PERMISSION_TIMEOUT_MS}}
        if request.mcp_servers.private_servers:
            options["mcpServers"] = request.mcp_servers.private_servers
        if (effort := request.invocation.effort) is not None:
            options["effort"] = effort
        return self._encode_request(subtype="initialize", **options)

    def encode_prompt(self, message: UserMessage) -> bytes:
        """It pastes the block of an image as text; a file that the prompt names it reads, and gives
        its model.
        """
        return super().encode_prompt(
            message._replace(
                text="\n".join(
                    map(self._format_part, message.select_blocks(self.accepted_block_kinds))
                )
            )
        )

    def _format_part(self, part: MessageBlock) -> str:
        if part.kind == "text" or self._store_attachment is None:
            return part.text
        path = self._store_attachment(part.data, part.media_type.rpartition("/")[2])
        return NO_FILE_MESSAGE if path is None else "@" + re.sub(SPECIAL_CHARS, r"\\\g<0>", path)

    def encode_effort_change(self, level: str | None) -> bytes | None:
        """None for its own: that cannot be told."""
        return None if level is None else self._encode_request(subtype="set_effort", effort=level)

    def encode_permission_mode_change(self, name: str) -> bytes | None:
        """qwen's own names of modes differ."""
        return super().encode_permission_mode_change(VENDOR_MODES[name])

    def encode_permission_response(
        self, permission: PermissionRequest, decision: PermissionDecision
    ) -> bytes:
        """Arguments that were not changed are not sent: it keeps its own. ValueError: it would run
        the old ones.
        """
        answer: dict[str, Any] = {"behavior": "allow"}
        if not decision.allow:
            answer = {"behavior": "deny", "message": decision.message or "Interrupted by the user."}
        elif decision.updated_input is not None:
            answer["updatedInput"] = _convert_answers(permission, decision.updated_input)
        return encode_control_response(
            {"subtype": "success", "request_id": permission.request_id, "response": answer}
        )


def _convert_answers(
    permission: PermissionRequest, changed: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The answers to its question, keyed by their number (Claude's are keyed by their text)."""
    answers = changed.get("answers")
    if permission.vendor_tool != "ask_user_question" or not isinstance(answers, dict):
        vendor_arguments = build_vendor_arguments(
            TOOLS, permission.vendor_tool, permission.vendor_input, changed
        )
        raise ValueError(
            CHANGED_MESSAGE.format(
                input=dump_json(changed if vendor_arguments is None else vendor_arguments).decode()
            )
        )
    questions = permission.vendor_input.get("questions")
    numbers = {
        question.get("question"): str(number)
        for number, question in enumerate(as_list(questions))
        if isinstance(question, dict)
    }
    return {
        **permission.vendor_input,
        "answers": {numbers.get(name, name): answer for name, answer in answers.items()},
    }
