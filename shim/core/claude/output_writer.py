"""The events of a turn for which a dialect writes lines."""

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
    """Collects complete lines in the frontend's dialect. `take_bytes` returns them.

    This class ignores every event of a turn. A dialect overrides the methods for which it has
    lines. `transcript_writer` collects Claude's lines if a transcript of another dialect is kept. A
    terminator follows each result if `has_result_terminator_line`.

    If `writes_partial_messages`, the Turn writes fragments when they arrive. The Turn keeps texts
    and calls below `max_bytes` bytes, and the writer shortens everything else. `last_result_line`
    is the line of the last result, and `last_call_bytes` the size of the last call.
    """

    writes_partial_messages = False
    has_result_terminator_line = False
    transcript_writer: "OutputWriter | None" = None
    last_result_line = b""
    last_call_bytes = 0

    def __init__(self, max_line_bytes: int = 0) -> None:
        """`max_line_bytes` is the maximum length of a line, or 0 for no limit."""
        self.max_bytes = max(
            (max_line_bytes or NO_LIMIT_BYTES) - MAX_ENVELOPE_BYTES, MIN_CUT_BYTES + MAX_NOTE_BYTES
        )

    def _encode_line(self, fields: Mapping[str, Any]) -> bytes:
        """Encode a complete line. Its longest strings are shortened if it is too long."""
        line_json = dump_json(fields)
        if len(line_json) <= self.max_bytes:
            return line_json
        return dump_json(shorten_line_to_fit(fields, self.max_bytes))

    def take_bytes(self) -> bytes:
        """Remove and return the bytes written since the last call. They are complete lines."""
        return b""

    def discard_turn(self) -> None:
        """Discard the lines of the turn, because the frontend has not received any of them."""

    def compact_buffered_lines(self) -> None:
        """Reduce the memory of the buffered lines."""

    def create_uuid(self) -> str:
        """Return a new UUID for a synthetic id."""
        return ""

    def create_message_id(self) -> str:
        """Return a new id for an assistant message of a subagent."""
        return ""

    def set_session_id(self, session_id: str) -> None:
        """Set the session of the next lines."""

    def set_current_message(self, message_id: str, model: str, usage: Usage) -> None:
        """Set the assistant message that a passthrough line has started."""

    def set_block_index(self, index: int) -> None:
        """Set the block that a passthrough line has started."""

    def write_passthrough_line(self, line: bytes) -> None:
        """Write a line that is already in the dialect, without its LF."""

    def write_vendor_result_line(self, line: bytes) -> None:
        """Write a result that is already in the dialect. Its terminator is written later."""

    def count_prompt_chars(self, prompt: str) -> None:
        """Count the characters of the message that the turn answers."""

    def write_init_message(self, session_id: str, fields: Mapping[str, Any]) -> None:
        """Write the first line of a turn."""

    def write_session_id_change(self, session_id: str) -> None:
        """Write that the session continues under another id."""

    def write_system_message(self, subtype: str, fields: Mapping[str, Any]) -> None:
        """Write a `system` line."""

    def write_result(self, fields: Mapping[str, Any]) -> None:
        """Write the result, and the terminator if this stream has one."""

    def write_result_terminator_line(self) -> None:
        """Write the terminator after a passthrough result."""

    def start_message(self, model: str, usage: Usage) -> None:
        """Start an assistant message."""

    def set_message_usage(self, usage: Usage) -> None:
        """Set the usage for the next lines of the assistant message."""

    def start_block(self, kind: str) -> None:
        """Start a streamed block. `kind` is `text` or `thinking`."""

    def write_block_delta(self, text_json: bytes) -> None:
        """Write a fragment of the open block. It is already encoded."""

    def write_block(self, kind: str, text_json: bytes, is_aborted: bool = False) -> None:
        """Write the complete open block with its encoded content. If `writes_partial_messages`, its
        fragments were written before.
        """

    def write_complete_block(self, block_kind: str, text_json: bytes) -> None:
        """Write a block that was not streamed. Its content is already encoded."""

    def end_block(self) -> None:
        """End the block that a passthrough line has started."""

    def write_tool_call(
        self, call_id: str, name: str, tool_input: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        """Write a complete call. Return other arguments if they had to be shortened."""
        return None

    def end_message(self, stop_reason: str | None, usage: Usage) -> None:
        """End the assistant message."""

    def finalize_turn_usage(self, result_fields: Mapping[str, Any]) -> None:
        """Add the part of a result's usage that belongs to no message."""

    def add_usage(self, usage: Usage) -> None:
        """Add usage to the last assistant message, or to the next one if there was none. Usage is
        often known only after the message.
        """

    def write_tool_result(
        self,
        call_id: str,
        name: str,
        tool_input: Mapping[str, Any],
        content: object,
        is_error: bool,
    ) -> None:
        """Write the result of a call. `call_id`, `name` and `tool_input` are those of the call."""

    def write_user_text(self, text: str) -> None:
        """Write a text as a user message, such as the line of an interrupt."""

    def echo_user_message(
        self, message: Mapping[str, Any], message_id: str | None, timestamp: str
    ) -> None:
        """Echo the user's own message."""

    def write_synthetic_message(self, text: str) -> None:
        """Write a message of the shim to the user. No model wrote it."""

    def write_api_error(
        self, text: str, error: str, status: int | None, error_type: str | None = None
    ) -> None:
        """Write a failed request to the model's API. The result follows."""

    def write_subagent_message(
        self, parent_call_id: str | None, role: str, message: Mapping[str, Any]
    ) -> None:
        """Write a message of a subagent. `parent_call_id` is the id of the call that runs it."""
