"""What a program of the Qwen RFC is told through its stdin (qwen-rfc page, 2.3 to 2.5): requests,
one to a line.

Of the texts' requests only those are here that a frontend of Claude can cause: no hints for what is
being typed, no tools that run outside of the program, no MCP servers of the caller's.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shim.adapters.qwen_input import CHANGED_MESSAGE
from shim.adapters.qwen_rfc_tools import TOOLS
from shim.core.adapter.adapter import LaunchRequest
from shim.core.adapter.tools import build_vendor_arguments
from shim.core.claude.messages import TEXT_ONLY_KINDS, BlockKinds, UserMessage
from shim.core.claude.permissions import PermissionDecision, PermissionRequest
from shim.core.reading.json_text import dump_json

if TYPE_CHECKING:
    from shim.core.adapter.translator import Translator

QwenJsonObject = dict[str, Any]

NEW_SESSION = "_new"  # in place of the id of a session: begin one
PROMPT_ID_SEPARATOR = "########"  # between the session and the number of the turn in a prompt's id

# Commands that are groups: their second word is part of the command's path, not of its arguments
# (the program's own documentation of its built-in commands; the RFC shows `chat list`).
COMMAND_GROUPS: Mapping[str, frozenset[str]] = {
    "agents": frozenset(("create", "manage")),
    "chat": frozenset(("delete", "list", "resume", "save", "share")),
    "directory": frozenset(("add", "show")),
    "extensions": frozenset(("list", "update")),
    "mcp": frozenset(("auth", "desc", "list", "nodesc", "refresh", "schema")),
    "memory": frozenset(("add", "refresh", "show")),
    "stats": frozenset(("model", "tools")),
    "tools": frozenset(("desc", "nodesc")),
}


def parse_slash_command(text: str) -> QwenJsonObject | None:
    """A text such as `/chat list` as the command that it is; None for one that is none (a path,
    prose).
    """
    command_name, _, remainder = text[1:].partition(" ") if text.startswith("/") else ("", "", "")
    if (
        not command_name.isascii()
        or not command_name.replace("-", "").replace("_", "").replace(":", "").isalnum()
    ):
        return None
    path, arguments = [command_name], remainder.strip()
    subcommand, _, subcommand_arguments = arguments.partition(" ")
    if subcommand in COMMAND_GROUPS.get(command_name, ()):
        path, arguments = [command_name, subcommand], subcommand_arguments.strip()
    return {"kind": "slash", "path": path, "args": arguments}


def build_user_message(
    text: str, *, session_id: str, prompt_id: str | None, model: str | None
) -> QwenJsonObject:
    """A Qwen Chat Request. A text that is a command is declared as one, so that the program need
    not find it.
    """
    command = parse_slash_command(text)
    request: QwenJsonObject = {"session_id": session_id}
    if prompt_id is not None:
        request["prompt_id"] = prompt_id
    if model is not None:
        request["model"] = model
    parts = [{"type": "text", "text": text if command is None else ""}]
    return request | {
        "input": {"origin": "user", "parts": parts, "command": command},
        "options": {},
    }


def build_permission_response(request_id: str, behavior: str, message: str = "") -> QwenJsonObject:
    """The answer to a question. The RFC shows the word `approve` only; `deny` is that of Claude's
    protocol.
    """
    result = {"behavior": behavior, "message": message}
    return {
        "type": "control_response",
        "request_id": request_id,
        "response": {"subtype": "success", "result": result},
    }


def build_error_response(request_id: str, message: str) -> QwenJsonObject:
    """A control request cannot be answered: the program denies what it was about."""
    error = {"message": message, "retryable": False}
    return {
        "type": "control_response",
        "request_id": request_id,
        "response": {"subtype": "error", "error": error},
    }


class QwenRfcInput:
    """One child's ear: prompts are numbered, and name the session once the child said which it is."""

    can_accept_prompts = True
    accepted_block_kinds: BlockKinds = TEXT_ONLY_KINDS  # the texts show no other part of a message

    def __init__(self) -> None:
        self._session_id = ""
        self._model: str | None = None
        self._prompt_number = 0
        self._prompt_id: str | None = None

    def create_translator_factory(self, translator: "type[Translator]") -> "type[Translator]":
        """The translator itself: every line of the program says what it is about."""
        return translator

    def encode_handshake(self, request: LaunchRequest) -> bytes:
        """The program speaks first, or at its first message."""
        return b""

    def set_vendor_session_id(self, session: str) -> None:
        """The session that every request names."""
        self._session_id = session

    def encode_prompt(self, message: UserMessage) -> bytes:
        """A message; a command is declared as one. The first one of a session has no id, for an id
        names a session.
        """
        self._prompt_number += 1
        session = self._session_id
        self._prompt_id = (
            f"{session}{PROMPT_ID_SEPARATOR}{self._prompt_number}" if session else None
        )
        session_id = session or NEW_SESSION
        return _encode_line(
            build_user_message(
                message.text, session_id=session_id, prompt_id=self._prompt_id, model=self._model
            )
        )

    def encode_steering_message(self, message: UserMessage) -> bytes | None:
        """None: the texts have no word for it."""
        return None

    def pop_undelivered_message_count(self) -> int:
        """None: no message was steered."""
        return 0

    def encode_interrupt(self) -> bytes:
        """The program finishes its history and says so."""
        session_fields = {"session_id": self._session_id} if self._session_id else {}
        prompt_fields = {"prompt_id": self._prompt_id} if self._prompt_id is not None else {}
        return _encode_line(
            {"type": "control/cancel", **session_fields, **prompt_fields, "reason": "escape"}
        )

    def encode_model_change(self, name: str | None) -> bytes | None:
        """Each request names the model: the next one this; its own is that of its command line."""
        self._model = name
        return None if name is None else b""

    def encode_effort_change(self, level: str | None) -> bytes | None:
        """Nothing: the RFC has no word for it."""
        return b""

    def encode_permission_mode_change(self, name: str) -> bytes | None:
        """The RFC has no request for another permission mode."""
        return None

    def encode_heartbeat(self) -> bytes:
        """The program answers at any time."""
        return _encode_line(
            {
                "type": "heartbeat_request",
                **({"session_id": self._session_id} if self._session_id else {}),
            }
        )

    def encode_permission_response(
        self, permission: PermissionRequest, decision: PermissionDecision
    ) -> bytes:
        """It knows yes and no. ValueError: it would run a changed call as it was."""
        if not decision.allow:
            return _encode_line(
                build_permission_response(
                    permission.request_id, "deny", decision.message or "Interrupted by the user."
                )
            )
        if decision.updated_input is not None:
            vendor_arguments = build_vendor_arguments(
                TOOLS, permission.vendor_tool, permission.vendor_input, decision.updated_input
            )
            raise ValueError(
                CHANGED_MESSAGE.format(
                    input=dump_json(
                        decision.updated_input if vendor_arguments is None else vendor_arguments
                    ).decode()
                )
            )
        return _encode_line(build_permission_response(permission.request_id, "approve"))


def _encode_line(message: object) -> bytes:
    return dump_json(message) + b"\n"
