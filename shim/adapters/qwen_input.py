"""Encodes the input of a persistent qwen.

The first line must be `initialize`. Otherwise qwen does not answer later requests. The model and
the permission mode can change between turns.
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
from shim.core.policy.policy import AGENT_SERVER
from shim.core.reading.json_text import dump_json
from shim.core.reading.values import as_list

# How long qwen waits for a permission decision. This is the longest time that qwen accepts; it
# replaces longer values with its default of 60 s.
PERMISSION_TIMEOUT_MS = 600_000
VENDOR_MODES = {
    "default": "default",
    "plan": "plan",
    "acceptEdits": "default",  # the policy allows the edits
    "dontAsk": "default",
    "auto": "auto",
    # in qwen's own mode, qwen would answer its own questions with an empty text
    "bypassPermissions": "default",
}
# 0.24.4 records `updatedInput`, but runs the original input. So a changed input must be denied.
CHANGED_MESSAGE = (
    "Not run: the user allows this call only with a different input. Make the call again "
    "with exactly this input: {input}"
)
COMPACTION_COMMAND = "/compress"
NO_FILE_MESSAGE = "[An image was sent here; it could not be stored in a file.]"
SPECIAL_CHARS = r"[^\w./-]"  # characters to escape in a path in a prompt


# The requests for the models that qwen offers, and for the size of the context. qwen answers both
# without a request to its model.
MODELS_REQUEST = "get_available_models"
CONTEXT_REQUEST = "get_context_usage"


class QwenInput(ClaudeInput):
    """Encodes Claude's control protocol in qwen's form."""

    accepted_block_kinds: BlockKinds = TEXT_ONLY_KINDS
    can_compact = True
    _store_attachment: Callable[[str, str], str | None] | None = None

    def encode_handshake(self, request: LaunchRequest) -> bytes:
        """Encode the request that enables the control protocol and adds the MCP servers that are
        not on the command line. qwen is also asked for its models and the size of its context.
        """
        self._store_attachment = request.files.store_attachment
        if request.files.store_attachment is None:
            self.accepted_block_kinds = TEXT_ONLY_KINDS
        else:
            self.accepted_block_kinds = frozenset(("image",))
        options: dict[str, Any] = {"hooks": None, "timeout": {"canUseTool": PERMISSION_TIMEOUT_MS}}
        servers = {
            name: config
            for name, config in request.mcp_servers.private_servers.items()
            if name != AGENT_SERVER  # this one is in a file, with a key that stdin does not support
        }
        if servers:
            options["mcpServers"] = servers
        if (effort := request.invocation.effort) is not None:
            options["effort"] = effort
        return (
            self._encode_request(subtype="initialize", **options)
            + self._encode_request(subtype=MODELS_REQUEST)
            + self._encode_request(subtype=CONTEXT_REQUEST)
        )

    def encode_model_change(self, name: str | None) -> bytes | None:
        """Encode a change of the model, and a request for the context size of the new model."""
        line = super().encode_model_change(name)
        if line is None:
            return None
        return line + self._encode_request(subtype=CONTEXT_REQUEST)

    def encode_prompt(self, message: UserMessage) -> bytes:
        """Encode a message. Each image is replaced with the path of a file, because qwen reads the
        files that a prompt names, but would pass image data to the model as text.
        """
        if message.is_compaction:
            return super().encode_prompt(
                message._replace(text=f"{COMPACTION_COMMAND} {message.text}".rstrip())
            )
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
        if path is None:
            return NO_FILE_MESSAGE
        return "@" + re.sub(SPECIAL_CHARS, r"\\\g<0>", path)

    def encode_effort_change(self, level: str | None) -> bytes | None:
        """Return None for the default effort, because qwen has no name for this level."""
        if level is None:
            return None
        return self._encode_request(subtype="set_effort", effort=level)

    def encode_permission_mode_change(self, name: str) -> bytes | None:
        return super().encode_permission_mode_change(VENDOR_MODES[name])

    def encode_permission_response(
        self, permission: PermissionRequest, decision: PermissionDecision
    ) -> bytes:
        """Encode a permission decision without the input. Raise ValueError for a changed input,
        because qwen would run the original input.
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
    """Return the answers to qwen's questions, keyed by question number. Claude keys its answers by
    the text of the question.
    """
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
