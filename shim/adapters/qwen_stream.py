"""Translates qwen's stream. Measured with 0.24.4 and 0.15.10.

The stream is almost the same as Claude's, with these differences:

- Ids and indices restart.
- There is no message_delta. A reply ends with the assistant line whose usage is not zero.
- Usage includes cached tokens and hidden requests.
- Some tool names and events are qwen's own.
- A text that begins with `[API Error:` is an error and not a reply.
- An `init` after a result starts the next turn.

A draft of the protocol nests the fields of `init` in `data`, writes errors as texts, and names a
call as the parent of its own result.
"""

import re
from typing import Any

from shim.adapters.claude_protocol_stream import ClaudeProtocolTranslator
from shim.adapters.qwen import (
    TOOLS,
    UNLISTED_TOOLS,
    strip_tool_name_hash,
    translate_qwen_tool_call,
)
from shim.adapters.qwen_input import CONTEXT_REQUEST, MODELS_REQUEST
from shim.core.adapter.tools import Arguments, list_claude_names
from shim.core.adapter.translator import Event, Translator
from shim.core.claude.argv.models import parse_offered_models
from shim.core.claude.offered_commands import parse_offered_commands
from shim.core.claude.usage import Usage, create_usage
from shim.core.reading.values import as_dict, as_list, list_dicts
from shim.core.turn.outcome import ChildExit
from shim.core.turn.turn import Turn

API_ERROR_PREFIX = "[API Error: "
API_ERROR_AT_END = r"(?s)\[API Error: .*\]\s*\Z"
PERMISSION_MODES = {
    "yolo": "bypassPermissions",
    "auto-edit": "acceptEdits",
    "plan": "plan",
    "auto": "auto",
}
# qwen's status of an MCP server → Claude's.
SERVER_STATUSES = {"connected": "connected", "disconnected": "failed"}
DENIED_TEXT = "requires permission to use"
CANCELLED_MESSAGE = "Operation cancelled."
CANCELLED_EXIT_CODE = 130
MAX_ERROR_CHARS = 20_000  # longer texts are not treated as error messages
IGNORED_STREAM_EVENTS = ("content_block_stop", "message_stop", "goal_state", "tool_progress")
EXIT_SUBTYPES = {53: "error_max_turns", 55: "error_during_execution"}
NOTIFICATION_TEXT = r'(?s)Background agent ".*" \w+\.\Z'


class QwenTranslator(ClaudeProtocolTranslator):
    """Translates the output lines of one qwen process. `_error_text` is a text that may be an
    error.
    """

    ignored_stderr_prefixes = (
        "Ripgrep not available",
        "Warning: running headless",
        "Retrying provider attempt",
    )

    def __init__(self, turn: Turn, *, partial: bool = False) -> None:
        super().__init__(turn, partial=partial)
        self._error_text = ""
        self._has_started = False
        self._error_event: Event | None = None

    def choose_translator_for_unknown_event(self, event: Event) -> Translator:
        """Return the translator for the RFC's dialect if the stream starts in that dialect. An
        error may belong to both dialects, so it is held until the next event.
        """
        if self._has_started or not is_chat_completion_protocol_event(event):
            return super().choose_translator_for_unknown_event(event)
        if "error" in event and "object" not in event and "type" not in event:
            if self._error_event is None:
                self._error_event = event
            return self
        from shim.adapters.qwen_rfc_stream import QwenRfcTranslator

        successor = QwenRfcTranslator(self.turn, partial=self.partial)
        if self._error_event is not None:
            successor.feed(self._error_event)
        return successor

    def start_turn(self, turn: Turn) -> None:
        super().start_turn(turn)
        self._error_text = ""

    # -- session -----------------------------------------------------------------------------------

    def on_system(self, event: Event) -> None:
        subtype = event.get("subtype")
        data = as_dict(event.get("data"))
        if subtype == "init":
            self._start_session(data | event)
        elif subtype == "retry":
            self._retract_reply()
        elif subtype == "task_started":
            task = {"task_id": "", "description": ""} | data
            self.turn.write_system_event("task_started", **task, task_type="local_agent")
        elif subtype == "task_notification":
            notification = {
                "task_id": "",
                "status": "completed",
                "output_file": "",
                "summary": data.get("status", ""),
            }
            self.turn.write_system_event("task_notification", **(notification | data))
        elif subtype not in ("session_start", "session_end"):
            self.turn.record_unknown_event(f"system/{subtype}", event)

    def _start_session(self, event: Event) -> None:
        self.start_next_turn()
        self._has_started = True
        if self._error_event is not None:
            self.turn.record_unknown_event("untyped", self._error_event)
            self._error_event = None
        mode = event.get("permission_mode")  # `default` stands for several Claude modes
        tools = [
            strip_tool_name_hash(name)
            for name in as_list(event.get("tools"))
            if isinstance(name, str) and name not in UNLISTED_TOOLS
        ]
        self.turn.record_offered_commands(parse_offered_commands(event.get("slash_commands")))
        self.turn.record_vendor_session_info(
            session_id=event.get("session_id"),
            cwd=event.get("cwd"),
            model=event.get("model"),
            tools=list_claude_names(TOOLS, tools),
            mode=PERMISSION_MODES.get(str(mode), self.turn.config.mode) if mode else None,
            mcp_servers=self._translate_servers(event.get("mcp_servers")),
            agents=event.get("agents"),
            vendor_version=event.get("qwen_code_version"),
        )

    @staticmethod
    def _translate_servers(entries: object) -> list[Event]:
        """Return qwen's MCP servers with Claude's words for their statuses."""
        return [
            {**entry, "status": SERVER_STATUSES.get(str(entry.get("status")), "pending")}
            for entry in list_dicts(entries)
        ]

    def on_control_response(self, event: Event) -> None:
        """Record the models and the size of the context. Other responses need no translation."""
        body = as_dict(as_dict(event.get("response")).get("response"))
        if body.get("subtype") == MODELS_REQUEST:
            self.turn.record_offered_models(parse_offered_models(body.get("models"), "id", "label"))
        elif body.get("subtype") == CONTEXT_REQUEST:
            self.turn.record_context_window(body.get("contextWindowSize"))

    @staticmethod
    def translate_tool_use(block: Event) -> tuple[str, Arguments]:
        """Return Claude's tool name and arguments for a call. qwen's `tool_call` wraps the call of
        a deferred tool.
        """
        name = block["name"]
        arguments = block.get("input")
        if name == "tool_call":
            wrapped_call = as_dict(arguments)
            if isinstance(wrapped_call.get("name"), str):
                name = wrapped_call["name"]
                arguments = wrapped_call.get("arguments")
        return translate_qwen_tool_call(name, arguments)

    # -- replies -----------------------------------------------------------------------------------

    def _translate_other_stream_event(self, inner: Event) -> None:
        if inner["type"] not in IGNORED_STREAM_EVENTS:
            self.turn.record_unknown_event(f"stream_event/{inner['type']}", inner)

    def _write_fragment(self, kind: str, fragment: str) -> None:
        if kind == "text" and (self._error_text or fragment.startswith(API_ERROR_PREFIX)):
            self._error_text += fragment
            if len(self._error_text) <= MAX_ERROR_CHARS:
                return
            fragment = self._error_text
            self._error_text = ""
        super()._write_fragment(kind, fragment)

    def on_assistant(self, event: Event) -> None:
        message = event["message"]
        if parent := event.get("parent_tool_use_id"):
            self._write_nested(
                self.turn.get_subagent(parent, convert_usage(message.get("usage"))),
                message["content"],
            )
            return
        reply_usage = convert_usage(message.get("usage"))
        turn = self.turn
        turn.update_message(message.get("model"), reply_usage)
        for block in message["content"]:
            kind = block["type"]
            if kind == "text":
                text = block["text"]
                if self._streamed_blocks or self._error_text or API_ERROR_PREFIX in text:
                    self._write_text(text)
                else:
                    turn.add_block(text)
            elif kind == "thinking":
                self._write_block("thinking", block["thinking"])
            elif kind == "tool_use":
                turn.add_tool_call(block.get("id"), *self.translate_tool_use(block))
            else:
                self.turn.record_unknown_event(f"block/{kind}", block)
        if reply_usage is not None:
            self._streamed_blocks.clear()
            self.turn.end_message(
                reply_usage, "tool_use" if message.get("stop_reason") == "tool_use" else "end_turn"
            )

    def _write_text(self, text: str) -> None:
        match = None
        if API_ERROR_PREFIX in text:
            match = re.search(API_ERROR_AT_END, text)
        if match:
            self._error_text = match[0]
            text = text[: match.start()]
        elif self._error_text:
            self._error_text = ""
        self._write_block("text", text)

    def on_user(self, event: Event) -> None:
        content = event["message"]["content"]
        parent = event.get("parent_tool_use_id")
        blocks = content
        if isinstance(content, str):
            blocks = [{"type": "text", "text": content}]
        for block in blocks:
            if block["type"] == "tool_result":
                self._write_result(block, None if parent == block.get("tool_use_id") else parent)
            elif block["type"] == "text" and parent:
                self.turn.get_subagent(parent).add_user_text(block["text"])
            elif block["type"] != "text" or not re.match(NOTIFICATION_TEXT, block["text"]):
                self.turn.record_unknown_event(f"user/{block['type']}", block)

    def _write_result(self, block: dict[str, Any], parent: str | None) -> None:
        call_id = block.get("tool_use_id")
        content = block.get("content", "")
        failed = bool(block.get("is_error"))
        if parent:
            self.turn.get_subagent(parent).add_tool_result(call_id, content, failed)
            return
        if (
            failed
            and DENIED_TEXT in str(content)
            and (call := self.turn.find_call(call_id)) is not None
        ):
            self.turn.add_denial(*call)
        self.turn.add_tool_result(call_id, content, failed)

    # -- the end -----------------------------------------------------------------------------------

    def on_result(self, event: Event) -> None:
        fields: dict[str, Any] = {
            "duration_ms": event.get("duration_ms"),
            "api_ms": event.get("duration_api_ms"),
            "result": event.get("result"),
            "structured_output": event.get("structured_result"),
        }
        for denial in list_dicts(event.get("permission_denials")):
            name, arguments = translate_qwen_tool_call(
                str(denial.get("tool_name", "")), denial.get("tool_input")
            )
            self.turn.add_denial(str(denial.get("tool_use_id")), name, arguments)
        error = event.get("error")
        if not error:
            error = {}
        message = error
        if not isinstance(error, str):
            message = error.get("message")
            if not message:
                message = ""
        text = event.get("result")
        if not text:
            text = ""
        if event.get("is_error") or text.startswith(API_ERROR_PREFIX):
            self._fail_turn(str(message or text or event.get("subtype")), fields)
        else:
            if self._error_text:
                self.turn.add_block(self._error_text)
            self.turn.record_turn_end(**fields)
        self._error_text = ""
        self.turn.record_vendor_completion()

    def _fail_turn(self, message: str, fields: dict[str, Any]) -> None:
        if message == CANCELLED_MESSAGE:
            self.turn.record_interrupt(**fields)
        elif message.startswith(API_ERROR_PREFIX):
            reason = message.removeprefix(API_ERROR_PREFIX).rstrip().removesuffix("]")
            self.turn.record_failure(f"API Error: {reason}", api=True, **fields)
        else:
            self.turn.record_failure(message, **fields)

    def feed_eof(self, child_exit: ChildExit | None, stderr: str) -> None:
        """Record the end of a stream without a `result` line. The only information is the exit
        code, and perhaps a text on stderr.
        """
        if self.turn.outcome_tracker.outcome is not None or child_exit is None:
            return
        if self._error_text:
            self._fail_turn(self._error_text, {})
            return
        if self._error_event is not None:
            from shim.adapters.qwen_rfc_lines import format_vendor_error

            self.turn.record_failure(format_vendor_error(self._error_event["error"]))
            return
        if child_exit.code == CANCELLED_EXIT_CODE:
            self.turn.record_interrupt()
            return
        if child_exit.code in EXIT_SUBTYPES:
            subtype = EXIT_SUBTYPES[child_exit.code]
            reason_lines = [
                line for line in stderr.splitlines() if line.startswith(("Reached", "Run aborted"))
            ]
            self.turn.record_failure(
                " ".join(reason_lines) or str(child_exit), kind="limit", subtype=subtype
            )


def is_chat_completion_protocol_event(event: Event) -> bool:
    """Return whether an event belongs to the RFC's dialect: its object is from OpenAI's API, its
    type is from the RFC, or it is only an error.
    """
    kind = event.get("type")
    name = event.get("object")
    if isinstance(name, str) and name.startswith("chat.completion"):
        return True
    if isinstance(kind, str):
        return kind.startswith(("x-qwen-", "result/", "control/"))
    if kind is not None:
        return False
    return isinstance(event.get("error"), dict | str)


def convert_usage(raw_usage: object) -> Usage | None:
    """Return Claude's usage for one reply, or None if the usage is not known yet. qwen's
    input_tokens include the cached tokens.
    """
    if not isinstance(raw_usage, dict):
        return None
    input_tokens = raw_usage.get("input_tokens")
    output_tokens = raw_usage.get("output_tokens")
    if not input_tokens and not output_tokens:
        return None
    cached_tokens = raw_usage.get("cache_read_input_tokens", 0)
    written_tokens = raw_usage.get("cache_creation_input_tokens", 0)
    return create_usage(
        input_tokens, cached_tokens, written_tokens, output_tokens, input_includes_cached=True
    )
