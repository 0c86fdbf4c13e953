"""A turn from which secrets are removed (`redact = "all"`). Each event is redacted before the Turn
records it.

So secrets are removed from all output: deltas, complete blocks, the result, transcripts and spill
files, in every dialect. They are also removed from tool names and ids, the model's name and the
folder.

There are three exceptions. A permission request's input is not redacted, because the frontend's
answer may return it. If the line with a tool call is also the permission prompt, the complete call
is not redacted. The frontend's own messages are not redacted, because the frontend already knows
them.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from shim.core.api_errors import TurnEndCause
from shim.core.claude.normalize import ClaudeEventNormalizer
from shim.core.claude.output_writer import OutputWriter
from shim.core.claude.permissions import PermissionRequest
from shim.core.claude.tool_content import is_mcp_result
from shim.core.claude.usage import Usage
from shim.core.errors import FailedVendorAttempt
from shim.core.reading.diagnostics import Diagnostics
from shim.core.reading.json_text import convert_to_tool_result_content
from shim.core.secrets.claude_lines import ClaudeLineRedactor, RedactedLine
from shim.core.secrets.redactor import Redactor, StreamRedactor, add_placeholder_counts
from shim.core.turn.context import ConversationState, TurnConfig
from shim.core.turn.machine import CLOSED, ECHO, TEXT, THINKING, TurnState
from shim.core.turn.outcome import ChildExit
from shim.core.turn.turn import Turn, WriteLine


class RedactedTextBlocks:
    """Redacts the model's text and thinking.

    While text is buffered, its content block stays open. `write_buffered_text` writes the rest of
    the text before the turn leaves the block. The only exception is a repeated message (state
    ECHO), which opens no block.
    """

    def __init__(self, turn: Turn, redactor: Redactor) -> None:
        self._text_blocks = turn.text_blocks
        self._machine = turn.machine
        self._diagnostics = turn.diagnostics
        self._writes_partial_messages = turn.writer.writes_partial_messages
        self._redactor = redactor
        self._counts = redactor.counts
        self._stream_redactor = StreamRedactor(self._counts)
        # true while text that precedes the buffered text is written
        self._writes_earlier_text = False
        self._block_of_stream: tuple[TurnState, object] = (TEXT, None)

    def add_text(self, fragment: str, block_key: object = None) -> None:
        machine = self._machine
        text_blocks = self._text_blocks
        stream_redactor = self._stream_redactor
        if (
            machine.state is not TEXT
            or block_key != text_blocks.block_key
            or fragment.__class__ is not str
            or text_blocks.half_character
        ):
            self.add_block_fragment(TEXT, fragment, block_key)
            return
        # Nearly every text fragment takes this path: its content block is open, and the redactor's
        # buffered text belongs to that block.
        if fragment in stream_redactor.harmless_fragments and not stream_redactor.is_busy:
            stream_redactor.record_passed(fragment)
        elif not (fragment := stream_redactor.feed(fragment)):
            return
        text_blocks.append_to_open_block(fragment)
        if stream_redactor.is_busy and machine.state is not TEXT:
            self._open_block(TEXT, block_key)

    def add_block(self, full_text: str, kind: str = TEXT) -> None:
        if self._machine.state is ECHO:
            self.write_buffered_text()
        if full_text.__class__ is str:
            full_text = self._redactor.redact_text(full_text)
        self._text_blocks.add_block(full_text, kind)

    def discard_buffered_text(self) -> None:
        """Discard the buffered text of an incomplete message, if this text was never written."""
        if self._machine.state is ECHO or not self._writes_partial_messages:
            self._stream_redactor.flush()

    def add_block_fragment(self, block_kind: TurnState, fragment: str, block_key: object) -> None:
        if fragment.__class__ is not str or self._machine.is_over:
            self._text_blocks.add_block_fragment(block_kind, fragment, block_key)
            return
        block_key = self._switch_block(block_kind, block_key)
        self._write_before_buffered(block_kind, self._stream_redactor.feed(fragment), block_key)

    def _switch_block(self, kind: TurnState, block_key: object) -> object:
        """Start to redact the text of a content block. Return the block's key, or None if the key
        is invalid.
        """
        if block_key.__class__ is not int and not isinstance(block_key, str | None):
            block_key = None
        if self._block_of_stream != (kind, block_key):
            self.write_buffered_text()
            self._block_of_stream = (kind, block_key)
        return block_key

    def _write_before_buffered(self, kind: TurnState, text: str, block_key: object) -> None:
        """Write text that precedes the buffered text, and open the content block of the buffered
        text.
        """
        if text:
            self._writes_earlier_text = True
            self._text_blocks.add_block_fragment(kind, text, block_key)
            self._writes_earlier_text = False
        self._open_block(kind, block_key)

    def _open_block(self, kind: TurnState, block_key: object) -> None:
        """Open the content block of the buffered text. Do nothing if no text is buffered."""
        state = self._machine.state
        if (
            self._stream_redactor.has_buffered_text
            and state is not ECHO
            and not (state is kind and block_key == self._text_blocks.block_key)
        ):
            self._writes_earlier_text = True
            self._text_blocks.open_block_for_fragment(kind, "…", block_key)
            self._writes_earlier_text = False

    def write_buffered_text(self) -> None:
        """Write the buffered text at the end of its content block."""
        if (
            self._machine.state in (TEXT, THINKING, ECHO)
            and not self._writes_earlier_text
            and not self._text_blocks.is_splitting
            and (text := self._stream_redactor.flush())
        ):
            self._text_blocks.add_block_fragment(
                self._block_of_stream[0], text, self._block_of_stream[1]
            )

    def update_block_text(self, block_kind: TurnState, full_text: str, block_key: object) -> None:
        if full_text.__class__ is not str:
            raise TypeError(f"the content of a {block_kind} block is not text")
        block_key = self._switch_block(block_kind, block_key)
        stream_redactor = StreamRedactor({})
        written_text, redacted_text = self._text_blocks.get_written_and_comparable_text(
            block_kind, block_key, stream_redactor.feed(full_text)
        )
        if redacted_text.startswith(written_text):
            new_text = redacted_text[len(written_text) :]
            add_placeholder_counts(new_text, self._counts)
            stream_redactor.counts = self._counts
            self._stream_redactor = stream_redactor
            self._write_before_buffered(block_kind, new_text, block_key)
        elif not written_text.startswith(redacted_text):
            self._diagnostics.record("contradicted_block", full_text)


class RedactedTurn(Turn):
    """A turn that redacts its events, and also the lines that a real claude passes through."""

    def __init__(
        self,
        writer: OutputWriter,
        config: TurnConfig,
        conversation: ConversationState,
        diagnostics: Diagnostics,
    ) -> None:
        self._counts = diagnostics.redactions
        self._redactor = redactor = Redactor(self._counts)
        super().__init__(
            writer,
            config,
            conversation,
            diagnostics,
            redactor.redact_value,
            lambda: self._redacted_blocks.write_buffered_text(),
        )
        self._redacted_blocks = redacted_blocks = RedactedTextBlocks(self, redactor)
        # writes text that was buffered from passthrough lines
        self._flush_passthrough_lines: Callable[[], None] | None = None
        self.add_text = redacted_blocks.add_text
        self.add_block = redacted_blocks.add_block
        self.retract_message = self._retract_redacted_message
        self.update_message = self._update_redacted_message
        self.add_tool_result = self._add_redacted_tool_result
        self.fill_open_call_results = self._fill_redacted_results
        self.stop_for_forbidden_call = self._forbid_redacted_call
        self.record_unknown_event = self._record_redacted_event
        self.stop = self._stop_with_redacted_message

    # -- text --------------------------------------------------------------------------------------

    def add_thinking(self, fragment: str, key: object = None) -> None:
        self._redacted_blocks.add_block_fragment(THINKING, fragment, key)

    def add_thinking_block(self, full_text: str) -> None:
        self._redacted_blocks.add_block(full_text, THINKING)

    def update_text(self, full_text: str, key: object = None) -> None:
        self._redacted_blocks.update_block_text(TEXT, full_text, key)

    def update_thinking(self, full_text: str, key: object = None) -> None:
        self._redacted_blocks.update_block_text(THINKING, full_text, key)

    def _retract_redacted_message(self) -> None:
        """Retract an incomplete message. Its buffered text was never written, so it is discarded."""
        self._redacted_blocks.discard_buffered_text()
        self.text_blocks.retract_message()

    def prepare_retry(self) -> None:
        self._redacted_blocks.discard_buffered_text()
        super().prepare_retry()

    def start_message(self, model: str | None = None, usage: Usage | None = None) -> None:
        super().start_message(self._redactor.redact_value(model), usage)

    def _update_redacted_message(
        self, model: str | None = None, usage: Usage | None = None
    ) -> None:
        self.assistant_message.update(self._redactor.redact_value(model), usage)

    # -- calls -------------------------------------------------------------------------------------

    def _add_redacted_tool_result(
        self,
        call_id: str | None,
        content: object,
        is_error: bool = False,
        name: str | None = None,
        tool_input: Mapping[str, Any] | None = None,
    ) -> None:
        if content.__class__ is not str and not is_mcp_result(content):
            content = convert_to_tool_result_content(content)
        self.tool_calls.add_tool_result(
            call_id, self._redactor.redact_value(content), is_error, name, tool_input
        )

    def _fill_redacted_results(self, result_content: str = "") -> None:
        self.tool_calls.write_result_for_each_open_call(self._redactor.redact_text(result_content))

    def add_denial(self, call_id: str, name: str, tool_input: Mapping[str, Any]) -> None:
        super().add_denial(*map(self._redactor.redact_value, (call_id, name, tool_input)))

    def record_permission_denial(
        self,
        permission: PermissionRequest,
        message: str,
        *,
        needs_notice: bool = False,
        vendor_knows: bool = True,
    ) -> None:
        redacted_request = permission._replace(
            tool_input=self._redactor.redact_value(permission.tool_input)
        )
        super().record_permission_denial(
            redacted_request,
            self._redactor.redact_text(message),
            needs_notice=needs_notice,
            vendor_knows=vendor_knows,
        )

    def _forbid_redacted_call(self, call_id: str, reason: str) -> None:
        self.tool_calls.stop_turn_for_forbidden_call(call_id, self._redactor.redact_text(reason))

    # -- system events and the end of the turn -----------------------------------------------------

    def write_system_event(self, subtype: str, **fields: Any) -> None:
        super().write_system_event(subtype, **self._redactor.redact_value(fields))

    def _record_redacted_event(self, kind: object, sample: object = "") -> None:
        """Record an event that has no translation. The result will report the event's kind."""
        if isinstance(kind, str):
            kind = self._redactor.redact_text(kind)
        self.diagnostics.record_unknown_event(kind, sample)

    def record_turn_end(self, **result_fields: Any) -> None:
        """Record that the vendor has ended the turn. The fields repeat texts whose secrets were
        already counted, so secrets in them are not counted again.
        """
        super().record_turn_end(**Redactor().redact_value(result_fields))

    def record_failure(self, message: str, **result_fields: Any) -> None:
        super().record_failure(
            self._redactor.redact_text(message), **Redactor().redact_value(result_fields)
        )

    def _stop_with_redacted_message(self, message: str, cause: TurnEndCause) -> None:
        """End the turn with a redacted reason. The reason may contain the vendor's tool names."""
        self.outcome_tracker.stop(self._redactor.redact_text(message), cause)

    def close(self, child_exit: ChildExit | None, stderr: str) -> None:
        if self.machine.state is CLOSED:
            return
        if self._flush_passthrough_lines is not None:
            self._flush_passthrough_lines()
        add_placeholder_counts(stderr, self._counts)
        super().close(child_exit, self._redactor.redact_text(stderr))

    def find_failed_attempt(
        self, child_exit: ChildExit | None, stderr: str, *, any_cause: bool = False
    ) -> FailedVendorAttempt | None:
        failed_attempt = super().find_failed_attempt(
            child_exit, Redactor().redact_text(stderr), any_cause=any_cause
        )
        if failed_attempt is not None:
            add_placeholder_counts(failed_attempt.reason, self._counts)
        return failed_attempt

    def write_internal_error(self, reason: str) -> None:
        super().write_internal_error(self._redactor.redact_text(reason))

    # -- passthrough -------------------------------------------------------------------------------

    def wrap_passthrough_line_writer(self, write_line: WriteLine) -> WriteLine:
        """Return a function that redacts each line of a real claude and passes the redacted lines
        to `write_line`.
        """
        writer = self.writer
        normalizer = ClaudeEventNormalizer(
            self.diagnostics, writer.create_uuid, writer.max_bytes, self.config.store_text
        )
        line_redactor = ClaudeLineRedactor(
            self._redactor, writer.create_uuid, writer.max_bytes, normalizer.split_long_event
        )

        def write_lines(lines: Iterable[RedactedLine]) -> None:
            for line, event in lines:
                write_line(line, event)

        self._flush_passthrough_lines = lambda: write_lines(line_redactor.flush())
        return lambda line, event: write_lines(line_redactor.redact_line(line, event))
