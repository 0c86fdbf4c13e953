"""A turn's text and thinking blocks: streamed fragments, complete blocks, block snapshots,
characters that are split between fragments, and repeated replies.
"""

import orjson

from shim.core.claude.usage import NO_USAGE
from shim.core.reading.json_text import dump_json, escape_line_separators
from shim.core.reading.limits import split_text
from shim.core.reading.surrogates import (
    count_incomplete_trailing_chars,
    has_lone_surrogates,
    join_split_chars,
    replace_lone_surrogates,
)
from shim.core.turn.assistant_message import AssistantMessage
from shim.core.turn.machine import (
    ECHO,
    MESSAGE,
    NEW,
    READY,
    TEXT,
    THINKING,
    TurnState,
)
from shim.core.turn.turn_context import TurnContext

MAX_ESCAPE_FACTOR = 3  # JSON escapes make a text at most this many times longer


class TextBlocks:
    """Writes the model's text and thinking, and stores the open block."""

    def __init__(self, context: TurnContext, assistant_message: AssistantMessage) -> None:
        self._machine = context.machine
        self._writer = writer = context.writer
        self._diagnostics = context.diagnostics
        self._assistant_message = assistant_message
        self._outcome_tracker = context.outcome_tracker
        self._partial = writer.writes_partial_messages
        self.max_bytes = writer.max_bytes  # the maximum length of a block in a line
        # The maximum length of a text that fits into a line even if every character is escaped.
        self._safe_bytes = writer.max_bytes // MAX_ESCAPE_FACTOR
        self._can_retract = context.config.vendor.can_retract
        self._can_retry = context.config.can_retry
        self.block_key: object = None  # the vendor's index of the open block
        self.fragments: list[str] = []  # the fragments of the open block, as received
        # The open block's size, in bytes with partial messages and in characters without them.
        self._size = 0
        # Whether a block that is too long for a line is being closed, to be continued in a new
        # block.
        self.is_splitting = False
        # The first half of a character whose second half has not arrived. It is also stored as the
        # last fragment.
        self.half_character = ""
        self._prefix = ""  # the part of the result's text that precedes the open block
        # The reply number, key and text of a block that was too long for a line.
        self._long_block: tuple[int, object, str] | None = None

    # -- text from the translators -----------------------------------------------------------------

    def add_text(self, fragment: str, block_key: object = None) -> None:
        """Add a fragment of text. `block_key` is the vendor's index of the block. A different key
        starts a new block.
        """
        if (
            self._machine.state is not TEXT
            or block_key != self.block_key
            or fragment.__class__ is not str
            or self.half_character
            or not fragment
        ):
            self.add_block_fragment(TEXT, fragment, block_key)
            return
        # Nearly every fragment of a stream takes this path, which avoids a second call.
        self.fragments.append(fragment)
        if self._partial:
            self._write_delta(TEXT, fragment, block_key)
            return
        self._size = size = self._size + len(fragment)
        if size > self.max_bytes:
            self._split_long_block(TEXT, fragment, block_key)

    def append_to_open_block(self, fragment: str) -> None:
        """Append a fragment to the open text block. This is only allowed while `half_character` is
        empty.
        """
        self.fragments.append(fragment)
        if self._partial:
            self._write_delta(TEXT, fragment, self.block_key)
            return
        self._size = size = self._size + len(fragment)
        if size > self.max_bytes:
            self._split_long_block(TEXT, fragment, self.block_key)

    def add_block(self, full_text: str, kind: str = TEXT) -> None:
        """Add a complete text or thinking block that was not streamed."""
        if not full_text:
            return
        if full_text.__class__ is not str:
            raise TypeError(f"the content of a {kind} block is not text")
        state = THINKING
        if kind is TEXT or kind == TEXT:
            state = TEXT
        machine = self._machine
        if machine.state is not MESSAGE:
            if machine.state is ECHO and not (
                full_text := self._skip_repeated(state, full_text, None)
            ):
                return
            if not machine.move_to(MESSAGE):
                return
        try:
            text_json = orjson.dumps(full_text)
        except TypeError:
            if has_lone_surrogates(full_text):
                self._diagnostics.record("surrogate", full_text)
            full_text = replace_lone_surrogates(full_text)
            text_json = dump_json(full_text)
        if len(text_json) <= self._safe_bytes:
            self._writer.write_complete_block(state, text_json)
        else:
            text_json = b""  # the text may be large
            for piece in split_text(full_text, self.max_bytes):
                self._writer.write_complete_block(state, dump_json(piece))
                self._writer.compact_buffered_lines()
        message = self._assistant_message
        # If a reply's usage is known, the reply is complete and will not be repeated.
        if self._can_retract and (self._can_retry or message.start_usage is NO_USAGE):
            message.written_text.add_block_text(state, full_text)
        if state is TEXT:
            message.ends_with_call = False
            if self._prefix:
                message.last_text = self._prefix + full_text
            else:
                message.last_text = full_text
            self._prefix = ""

    def update_block_text(self, block_kind: TurnState, full_text: str, block_key: object) -> None:
        """Set a block's full text so far, and write the part that is new.

        If the full text contradicts text that was already written, the contradiction is counted.
        Text that was written cannot be retracted.
        """
        if full_text.__class__ is not str:
            raise TypeError(f"the content of a {block_kind} block is not text")
        written_text, full_text = self.get_written_and_comparable_text(
            block_kind, block_key, full_text
        )
        if full_text.startswith(written_text):
            if new_text := full_text[len(written_text) :]:
                self.add_block_fragment(block_kind, new_text, block_key)
        elif full_text.strip() != written_text.strip():
            # Leading and trailing white space is ignored, because copilot removes it when it sends
            # the complete text after the stream.
            self._diagnostics.record("contradicted_block", full_text)

    def get_written_and_comparable_text(
        self, block_kind: TurnState, block_key: object, full_text: str
    ) -> tuple[str, str]:
        """Return a block's written text, and the part of its full text to compare with the written
        text.
        """
        written_text, full_text = (
            self._assistant_message.written_blocks.get_written_and_comparable_text(
                block_kind, block_key, full_text
            )
        )
        if self._machine.state is block_kind and block_key == self.block_key:
            written_text += "".join(self.fragments)
        if not full_text.startswith(written_text):
            written_text = replace_lone_surrogates(written_text)
            full_text = replace_lone_surrogates(full_text)
        return written_text, full_text

    def end_block(self) -> None:
        """End the open block now, so that its line is not delayed until the next event."""
        state = self._machine.state
        if state is TEXT or state is THINKING:
            self._machine.move_to(MESSAGE)

    def retract_message(self) -> None:
        """Handle an interrupted reply that the vendor will repeat. Text that was not written yet is
        dropped, and text that was already written will be skipped.
        """
        machine = self._machine
        message = self._assistant_message
        if machine.is_over:
            machine.record_late_event()
            return
        if not self._partial and machine.state in (TEXT, THINKING):
            self.fragments = []
            self.half_character = ""
            machine.move_to(MESSAGE, True)
        if machine.state is ECHO:
            message.written_blocks.clear()
            message.written_text.restart_comparing_with_cut_message()
            return
        if machine.state is not NEW:
            message.was_aborted = machine.state is not READY
            machine.move_to(READY)
        message.written_blocks.clear()
        if message.written_text.start_comparing_with_cut_message():
            machine.move_to(ECHO, True)

    def clear_passthrough_fragments(self) -> None:
        """Clear the stored fragments when a passthrough line starts a new block."""
        self.fragments = []
        self._size = 0

    def record_passthrough_text_fragment(self, fragment: str) -> None:
        """Store a text fragment from a passthrough line. Text beyond the maximum length of a line
        is not stored.
        """
        if self._size < self.max_bytes:
            self.fragments.append(fragment)
            self._size += len(fragment)

    # -- actions of the state machine --------------------------------------------------------------

    def start_text_block(self) -> None:
        if self._partial:
            self._writer.start_block(TEXT)

    def start_thinking_block(self) -> None:
        if self._partial:
            self._writer.start_block(THINKING)

    def write_open_block(self) -> None:
        """Write the end of the open block: its last delta, its complete line, and its stop
        event.
        """
        kind = self._machine.state
        parts = self.fragments
        writer = self._writer
        if self.half_character:
            half = self.half_character
            self.half_character = ""
            if self._partial:
                writer.write_block_delta(dump_json(half))
        if len(parts) == 1:
            text = parts[0]
        else:
            text = "".join(parts)
        self.fragments = []
        try:
            text_json = orjson.dumps(text)
        except TypeError:
            if not self._partial and has_lone_surrogates(text):
                self._diagnostics.record("surrogate", text)
            text_json = dump_json(text)
        aborted = self._outcome_tracker.is_interrupted
        if len(text_json) <= self._safe_bytes or self._partial:
            # With partial messages, a long block was already split while it was streamed.
            writer.write_block(kind, text_json, aborted)
        else:
            text_json = b""  # the text may be large
            for piece in split_text(replace_lone_surrogates(text), self.max_bytes):
                writer.write_block(kind, dump_json(piece), aborted)
                writer.compact_buffered_lines()
        self._record_block(kind, text)

    def finish_fully_repeated_message(self) -> None:
        """Finish a repeated reply that had no new text. The repeated text becomes the answer."""
        message = self._assistant_message
        message.last_text = message.written_text.get_repeated_text_by_block_kind().get(TEXT, "")
        message.written_text.stop_comparing_with_cut_message()

    # -- helpers -----------------------------------------------------------------------------------

    def add_block_fragment(self, block_kind: TurnState, fragment: str, block_key: object) -> None:
        if not fragment:
            return
        if fragment.__class__ is not str:
            raise TypeError(f"a fragment of a {block_kind} block is not text")
        if (
            block_key is not None
            and block_key.__class__ is not int
            and not isinstance(block_key, str)
        ):
            block_key = None
        if (self._machine.state is not block_kind or block_key != self.block_key) and not (
            fragment := self.open_block_for_fragment(block_kind, fragment, block_key)
        ):
            return
        if self.half_character:
            fragment = join_split_chars(self.half_character + fragment)
            self.half_character = ""
            self.fragments.pop()
        self.fragments.append(fragment)
        if self._partial:
            self._write_delta(block_kind, fragment, block_key)
            return
        self._size = size = self._size + len(fragment)
        if size > self.max_bytes:
            self._split_long_block(block_kind, fragment, block_key)

    def open_block_for_fragment(
        self, block_kind: TurnState, fragment: str, block_key: object
    ) -> str:
        """Open a block with the key `block_key`. Return the part of `fragment` that still needs to
        be written.
        """
        if self._machine.state is ECHO:
            fragment = self._skip_repeated(block_kind, fragment, block_key)
        if not fragment or not self._machine.move_to(block_kind):
            return ""
        self.block_key = block_key
        self._size = 0
        if self._long_block is not None and block_kind is TEXT:
            number, long_key, text = self._long_block
            self._long_block = None
            if long_key == block_key and number == self._assistant_message.number:
                self._prefix = text
        return fragment

    def _write_delta(self, kind: TurnState, fragment: str, block_key: object) -> None:
        """Write a fragment of the open block as a delta."""
        try:
            text_json = orjson.dumps(fragment)
        except TypeError:
            fragment = self._split_half_character(fragment)
            if not fragment:
                return
            text_json = dump_json(fragment)
        if not text_json.isascii():
            text_json = escape_line_separators(text_json)
        self._size = size = self._size + len(text_json)
        if size > self.max_bytes:
            text_json = b""  # the text may be large
            self._split_long_block(kind, fragment, block_key)
        else:
            self._writer.write_block_delta(text_json)

    def _split_half_character(self, fragment: str) -> str:
        """Remove an incomplete character from the end of a fragment. The removed half is stored
        until the next fragment arrives.
        """
        if has_lone_surrogates(fragment):
            self._diagnostics.record("surrogate", fragment)
        if half_length := count_incomplete_trailing_chars(fragment):
            self.half_character = fragment[-half_length:]
            self.fragments[-1:] = [fragment[:-half_length], self.half_character]
            return fragment[:-half_length]
        return fragment

    def _split_long_block(self, kind: TurnState, fragment: str, block_key: object) -> None:
        """Close the open block before it becomes longer than a line. The text continues in a new
        block.

        A character is never split between two blocks.
        """
        was_splitting = self.is_splitting
        self.is_splitting = True
        half = self.half_character
        self.half_character = ""
        if half:
            self.fragments.pop()
        elif half_length := count_incomplete_trailing_chars(fragment):
            half = fragment[-half_length:]
            fragment = fragment[:-half_length]
        self.fragments.pop()
        if self.fragments and (half_length := count_incomplete_trailing_chars(self.fragments[-1])):
            fragment = self.fragments[-1][-half_length:] + fragment
            self.fragments[-1] = self.fragments[-1][:-half_length]
        if any(self.fragments):
            self._close_long_block(kind, block_key)
            self.add_block_fragment(kind, fragment, block_key)
        else:
            self.fragments.clear()
            self._write_pieces(kind, fragment, block_key)
        self.add_block_fragment(kind, half, block_key)
        self.is_splitting = was_splitting

    def _write_pieces(self, kind: TurnState, fragment: str, block_key: object) -> None:
        """Write a fragment that is longer than a line as several blocks."""
        for piece in split_text(replace_lone_surrogates(fragment), self.max_bytes):
            if self._machine.state is not kind and not self.open_block_for_fragment(
                kind, piece, block_key
            ):
                return
            self.fragments.append(piece)
            if self._partial:
                self._writer.write_block_delta(dump_json(piece))
            self._close_long_block(kind, block_key)
            self._writer.compact_buffered_lines()

    def _close_long_block(self, kind: TurnState, block_key: object) -> None:
        """Close a block whose text continues in the next block. The result contains the joined
        text.
        """
        self._machine.move_to(MESSAGE)
        if kind is TEXT:
            self._long_block = (
                self._assistant_message.number,
                block_key,
                self._assistant_message.shorten_text_to_line_limit(
                    self._assistant_message.last_text
                ),
            )

    def _skip_repeated(self, kind: TurnState, fragment: str, block_key: object) -> str:
        """Skip the part of a fragment that repeats the interrupted reply, and return the rest. If
        the rest is not empty, leave the state ECHO.
        """
        message = self._assistant_message
        diagnostics = self._diagnostics
        blocks = message.written_blocks
        written_text = message.written_text
        expected_text, position = written_text.get_cut_text_and_repeated_chars(kind)
        if expected_text.startswith(fragment, position):
            written_text.set_repeated_char_count(kind, position + len(fragment))
            if block_key is not None:
                blocks.add_block_text(kind, block_key, fragment)
            diagnostics.record("repeated_reply")
            return ""
        if position < len(expected_text) and not fragment.startswith(expected_text[position:]):
            new_text = expected_text[:position] + fragment
            repeated_text = ""
            blocks.remove(kind, block_key)
            diagnostics.record("contradicted_reply")
        else:
            new_text = fragment[len(expected_text) - position :]
            repeated_text = expected_text
        texts_by_block = blocks.copy_texts()
        repeated_texts = written_text.get_repeated_text_by_block_kind() | {kind: repeated_text}
        self._machine.move_to(MESSAGE)
        blocks.restore_texts(texts_by_block)
        if block_key is not None and repeated_text:
            blocks.remove(kind, block_key)
            blocks.add_block_text(kind, block_key, repeated_text)
        if self._can_retract:  # the reply may be interrupted again
            for other_kind, text in repeated_texts.items():
                if text:
                    written_text.add_block_text(other_kind, text)
        if kind is TEXT:
            self._prefix = repeated_text
        return new_text

    def _record_block(self, kind: TurnState, text: str) -> None:
        """Store a complete block's text, for the turn's result and for comparison if the vendor
        repeats the text.
        """
        message = self._assistant_message
        if self._can_retract and (self._can_retry or message.start_usage is NO_USAGE):
            message.written_text.add_block_text(kind, text)
        if kind is TEXT:
            message.ends_with_call = False
            prefix = self._prefix
            if not prefix and (kind, self.block_key) in message.written_blocks.texts:
                prefix = message.written_blocks.get_block_text(kind, self.block_key)
            message.last_text = prefix + text
            self._prefix = ""
        if self.block_key is not None:
            message.written_blocks.add_block_text(kind, self.block_key, text)
