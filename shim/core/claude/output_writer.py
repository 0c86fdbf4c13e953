"""The interface of the writers that turn a session's events into lines in a dialect."""

from collections.abc import Mapping

from shim.core.claude.usage import Usage
from shim.core.reading.json_text import dump_json
from shim.core.reading.limits import (
    MAX_ENVELOPE_BYTES,
    MAX_NOTE_BYTES,
    MIN_CUT_BYTES,
    shorten_line_to_fit,
)
from shim.core.reading.typed import Any

NO_LIMIT_BYTES = 1 << 62


class OutputWriter:
    """The base class of all dialect writers. A writer collects complete lines in the frontend's
    dialect, and `take_bytes` returns them.

    This class ignores every event. A dialect's writer overrides the methods for the events that
    have lines in that dialect. If the session's transcript has another dialect, `transcript_writer`
    collects the lines for it in Claude's format. If `has_result_terminator_line` is set, a
    terminator line follows each result.

    If `writes_partial_messages` is set, the Turn writes fragments as they arrive. The Turn keeps
    texts and tool calls below `max_bytes` bytes, and the writer shortens everything else.
    `last_result_line` is the last result's line. `last_call_bytes` is the size of the last tool
    call.
    """

    writes_partial_messages = False
    has_result_terminator_line = False
    transcript_writer: "OutputWriter | None" = None
    last_result_line = b""
    last_call_bytes = 0

    def __init__(self, max_line_bytes: int = 0) -> None:
        """`max_line_bytes` is the maximum length of a line. 0 means no limit."""
        self.max_bytes = max(
            (max_line_bytes or NO_LIMIT_BYTES) - MAX_ENVELOPE_BYTES, MIN_CUT_BYTES + MAX_NOTE_BYTES
        )

    def _encode_line(self, fields: Mapping[str, Any]) -> bytes:
        """Encode a complete line as JSON. If the line is too long, its longest strings are
        shortened.
        """
        line_json = dump_json(fields)
        if len(line_json) <= self.max_bytes:
            return line_json
        return dump_json(shorten_line_to_fit(fields, self.max_bytes))

    def take_bytes(self) -> bytes:
        """Remove and return the complete lines that were written since the last call."""
        return b""

    def discard_turn(self) -> None:
        """Discard the turn's lines. The frontend has not received any of them."""

    def compact_buffered_lines(self) -> None:
        """Reduce the memory that the buffered lines use."""

    def create_uuid(self) -> str:
        """Return a new UUID for a synthetic id."""
        return ""

    def create_message_id(self) -> str:
        """Return a new id for a subagent's assistant message."""
        return ""

    def set_session_id(self, session_id: str) -> None:
        """Set the session id for all following lines."""

    def set_current_message(self, message_id: str, model: str, usage: Usage) -> None:
        """Set the current assistant message after a passthrough line has started one."""

    def set_block_index(self, index: int) -> None:
        """Set the current content block's index after a passthrough line has started a block."""

    def write_passthrough_line(self, line: bytes) -> None:
        """Write a line that is already in the frontend's dialect. `line` has no newline."""

    def write_vendor_result_line(self, line: bytes) -> None:
        """Write a result line that is already in the frontend's dialect. Its terminator is written
        later.
        """

    def count_prompt_chars(self, prompt: str) -> None:
        """Count the characters of the user message that the turn answers."""

    def write_init_message(self, session_id: str, fields: Mapping[str, Any]) -> None:
        """Write the init line, which is the first line of a turn."""

    def write_session_id_change(self, session_id: str) -> None:
        """Write a line that reports the session's new id."""

    def write_conversation_reset(self, session_id: str, message_id: str | None) -> None:
        """Write the line that reports the end of the session `session_id`. The conversation
        continues in a new session. `message_id` is the id of the user message that asked for it.
        """

    def write_system_message(self, subtype: str, fields: Mapping[str, Any]) -> None:
        """Write a `system` line."""

    def write_result(self, fields: Mapping[str, Any]) -> None:
        """Write the turn's result, followed by a terminator line if the dialect has one."""

    def write_result_terminator_line(self) -> None:
        """Write the terminator line after a passthrough result."""

    def start_message(self, model: str, usage: Usage) -> None:
        """Start an assistant message."""

    def set_message_usage(self, usage: Usage) -> None:
        """Set the usage in the assistant message's following lines."""

    def start_block(self, kind: str) -> None:
        """Start a content block that is streamed. `kind` is `text` or `thinking`."""

    def write_block_delta(self, text_json: bytes) -> None:
        """Write a fragment of the open content block. `text_json` is already encoded."""

    def write_block(self, kind: str, text_json: bytes, is_aborted: bool = False) -> None:
        """Write the open content block as a complete block and close it. Its content is already
        encoded. If `writes_partial_messages` is set, the block's fragments were written before.
        """

    def write_complete_block(self, block_kind: str, text_json: bytes) -> None:
        """Write a content block that was not streamed. Its content is already encoded."""

    def end_block(self) -> None:
        """End the content block that a passthrough line has started."""

    def write_tool_call(
        self, call_id: str, name: str, tool_input: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        """Write a complete tool call. If its arguments were too long, return the shortened
        arguments.
        """
        return None

    def end_message(self, stop_reason: str | None, usage: Usage) -> None:
        """End the assistant message."""

    def finalize_turn_usage(self, result_fields: Mapping[str, Any]) -> None:
        """Add the part of the turn's usage that does not belong to a message."""

    def add_usage(self, usage: Usage) -> None:
        """Add usage that was reported late to the last assistant message. If no message was written
        yet, the usage belongs to the first message.
        """

    def write_tool_result(
        self,
        call_id: str,
        name: str,
        tool_input: Mapping[str, Any],
        content: object,
        is_error: bool,
    ) -> None:
        """Write a tool call's result. `call_id`, `name` and `tool_input` describe the tool call."""

    def write_user_text(self, text: str) -> None:
        """Write a text as a user message, for example the line that follows an interrupt."""

    def write_synthetic_user_text(self, text: str) -> None:
        """Write a hook's text as a user message that is marked as not written by the user."""

    def echo_user_message(
        self, message: Mapping[str, Any], message_id: str | None, timestamp: str
    ) -> None:
        """Echo the user's own message."""

    def write_synthetic_message(self, text: str) -> None:
        """Write a message from the shim to the user. No model wrote this message."""

    def write_compaction_note(self) -> None:
        """Write the user line that follows a compaction which the user requested."""

    def write_local_command_output(self, text: str, *, is_failed: bool) -> None:
        """Write the output of a command that was answered without the model."""

    def write_api_error(
        self, text: str, error: str, status: int | None, error_type: str | None = None
    ) -> None:
        """Write the error of a failed API request to the model. The turn's result follows."""

    def write_subagent_message(
        self, parent_call_id: str | None, role: str, message: Mapping[str, Any]
    ) -> None:
        """Write a subagent's message. `parent_call_id` is the id of the tool call that runs the
        subagent.
        """

    def record_hidden_subagent_message(
        self, parent_call_id: str | None, role: str, message: Mapping[str, Any]
    ) -> None:
        """Record a subagent's message that only its transcript contains."""
