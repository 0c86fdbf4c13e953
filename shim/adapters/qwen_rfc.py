"""The adapter for qwen-rfc, the dialect of the Qwen structured I/O RFC (October 2025). No released
program is known to use this dialect.

The program is started as `qwen --input-format stream-json --output-format stream-json`, or with
`stream-chunk-json` for fragments. It reads one Qwen Chat Request per line from stdin. Every test
fixture was written by hand from the RFC's documents.
"""

from collections.abc import Mapping
from typing import Any

from shim.adapters import qwen
from shim.adapters.qwen_input import CHANGED_MESSAGE
from shim.core.adapter.adapter import (
    Adapter,
    ChildInput,
    LaunchRequest,
    LaunchSpec,
    VendorAbilities,
    VendorCliInfo,
    VendorSessionBehavior,
)
from shim.core.adapter.tools import Arguments, ToolMapping, build_vendor_arguments
from shim.core.claude.messages import UserMessage
from shim.core.claude.permissions import PermissionDecision, PermissionRequest
from shim.core.errors import FrontendError
from shim.core.reading.json_text import dump_json

HEARTBEAT_TIMEOUT_S = 10.0  # the value that the RFC suggests (2.4)
NEW_SESSION = "_new"  # a request with this session id starts a new session
PROMPT_ID_SEPARATOR = "########"  # between the session id and the prompt number

# Command groups: their second word is part of the command's path and not an argument. The list
# comes from the program's documentation of its built-in commands. The RFC only shows `chat list`.
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


def _reshape_edit(arguments: Arguments) -> tuple[str, Arguments]:
    """Return an edit call with the patch as the new text, because the RFC's example has no old
    text.
    """
    if "patch" in arguments and "old_string" not in arguments:
        arguments = {"old_string": "", "new_string": arguments["patch"], **arguments}
        del arguments["patch"]
    return "Edit", arguments


TOOLS = {
    **qwen.TOOLS,
    "edit_file": ToolMapping("Edit", {"path": "file_path"}, reshape=_reshape_edit),
}


def parse_slash_command(text: str) -> dict[str, Any] | None:
    """Return the slash command in a text such as `/chat list`, or None for a path or other text."""
    if not text.startswith("/"):
        return None
    command_name, _, remainder = text[1:].partition(" ")
    if (
        not command_name.isascii()
        or not command_name.replace("-", "").replace("_", "").replace(":", "").isalnum()
    ):
        return None
    path = [command_name]
    arguments = remainder.strip()
    subcommand, _, subcommand_arguments = arguments.partition(" ")
    if subcommand in COMMAND_GROUPS.get(command_name, ()):
        path = [command_name, subcommand]
        arguments = subcommand_arguments.strip()
    return {"kind": "slash", "path": path, "args": arguments}


def build_user_message(
    text: str, *, session_id: str, prompt_id: str | None, model: str | None
) -> dict[str, Any]:
    """Build a Qwen Chat Request for a message. A slash command is sent as a command, with an empty
    text.
    """
    command = parse_slash_command(text)
    request: dict[str, Any] = {"session_id": session_id}
    if prompt_id is not None:
        request["prompt_id"] = prompt_id
    if model:
        request["model"] = model
    parts = [{"type": "text", "text": text if command is None else ""}]
    return request | {
        "input": {"origin": "user", "parts": parts, "command": command},
        "options": {},
    }


def build_control_response(request_id: str, subtype: str, **body: object) -> dict[str, Any]:
    """Build the response to a control request: a success with `result`, or an `error`."""
    return {
        "type": "control_response",
        "request_id": request_id,
        "response": {"subtype": subtype, **body},
    }


def build_permission_response(request_id: str, behavior: str, message: str = "") -> dict[str, Any]:
    """Build the response to a permission request. The RFC only defines the behavior `approve`; the
    behavior `deny` comes from Claude's protocol.
    """
    result = {"behavior": behavior, "message": message}
    return build_control_response(request_id, "success", result=result)


class QwenRfcInput(ChildInput):
    """Encodes the input for one child. Prompts are numbered, and contain the session id once it is
    known.
    """

    def __init__(self) -> None:
        self._session_id = ""
        self._model: str | None = None
        self._prompt_number = 0
        self._prompt_id: str | None = None

    def encode_handshake(self, request: LaunchRequest) -> bytes:
        """Return no line, because no handshake is needed before the first prompt."""
        return b""

    def set_vendor_session_id(self, session: str) -> None:
        self._session_id = session

    def encode_prompt(self, message: UserMessage) -> bytes:
        """Encode a prompt. The first prompt of a new session has no prompt id, because a prompt id
        contains the session id.
        """
        self._prompt_number += 1
        session_id = NEW_SESSION
        prompt_id = None
        if self._session_id:
            session_id = self._session_id
            prompt_id = f"{session_id}{PROMPT_ID_SEPARATOR}{self._prompt_number}"
        self._prompt_id = prompt_id
        return _encode_line(
            build_user_message(
                message.text, session_id=session_id, prompt_id=prompt_id, model=self._model
            )
        )

    def encode_interrupt(self) -> bytes:
        """Encode a request that cancels the prompt. The program completes its history and confirms
        the request.
        """
        line = {"type": "control/cancel", **self._session_fields()}
        if self._prompt_id is not None:
            line["prompt_id"] = self._prompt_id
        return _encode_line(line | {"reason": "escape"})

    def encode_model_change(self, name: str | None) -> bytes | None:
        """Set the model for the following requests. Return None for the default model, which can
        only be selected when the program is started.
        """
        self._model = name
        if name is None:
            return None
        return b""

    def encode_effort_change(self, level: str | None) -> bytes | None:
        """Return no line, because the RFC has no request to change the effort."""
        return b""

    def encode_permission_mode_change(self, name: str) -> bytes | None:
        """Return None, because the RFC has no request to change the permission mode."""
        return None

    def encode_heartbeat(self) -> bytes:
        """Encode a heartbeat request, which the program answers at any time."""
        return _encode_line({"type": "heartbeat_request", **self._session_fields()})

    def encode_permission_response(
        self, permission: PermissionRequest, decision: PermissionDecision
    ) -> bytes:
        """Approve or deny a tool call. Raise ValueError for a changed input, because the RFC has no
        field for the change.
        """
        if not decision.allow:
            message = decision.message
            if not message:
                message = "Interrupted by the user."
            return _encode_line(build_permission_response(permission.request_id, "deny", message))
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

    def _session_fields(self) -> dict[str, str]:
        if self._session_id:
            return {"session_id": self._session_id}
        return {}


def _encode_line(message: object) -> bytes:
    return dump_json(message) + b"\n"


class QwenRfcAdapter(Adapter):
    """The adapter for a program that implements Qwen's RFC."""

    name = "qwen-rfc"
    programs = ("qwen",)
    translator_ref = "shim.adapters.qwen_rfc_stream:QwenRfcTranslator"
    modes = {
        "default": ("--approval-mode", "default"),
        "plan": ("--approval-mode", "plan"),
        "acceptEdits": ("--approval-mode", "auto-edit"),
        "dontAsk": ("--approval-mode", "default"),
        "bypassPermissions": ("--approval-mode", "yolo"),
    }
    tools = TOOLS
    abilities = VendorAbilities(can_stream=True, can_resume=True)
    timeouts_s = {"heartbeat_timeout": HEARTBEAT_TIMEOUT_S}
    login_hint = (
        "start `qwen` once and log in with /auth, or set OPENAI_API_KEY (and OPENAI_BASE_URL)"
    )
    child_input_ref = "shim.adapters.qwen_rfc:QwenRfcInput"
    session_traits = VendorSessionBehavior(prefixes_system_prompt=True)
    cli = VendorCliInfo(
        unreleased_note="no released program uses this protocol; the translation follows its RFC (2025-10)"
    )

    def build_launch(self, request: LaunchRequest) -> LaunchSpec:
        """Build the launch with the approval mode as a flag. The model and the session are part of
        each request. Raise FrontendError for a fork.
        """
        invocation = request.invocation
        if request.resume_id and invocation.fork_session:
            raise FrontendError(
                "qwen-rfc cannot fork a session",
                hint="resume the session without --fork-session, or start a new session",
            )
        output_format = "stream-json"
        if invocation.partial:
            output_format = "stream-chunk-json"
        arguments = [
            "--input-format",
            "stream-json",
            "--output-format",
            output_format,
            *request.mode_arguments,
        ]
        if request.persistent:
            return LaunchSpec((*arguments, *request.format_flag("--model", invocation.model)))
        session_id = request.resume_id
        if not session_id:
            session_id = NEW_SESSION
        message = build_user_message(
            request.build_full_prompt(),
            session_id=session_id,
            prompt_id=None,
            model=invocation.model,
        )
        return LaunchSpec(tuple(arguments), dump_json(message) + b"\n")


ADAPTER = QwenRfcAdapter()
