"""Text and thinking of a turn: fragments, whole blocks, snapshots, halves of characters, and
replies said again.
"""

import orjson

from shim.core.claude.usage import NO_USAGE
from shim.core.reading.account import Diagnostics
from shim.core.reading.json_text import dump_json, escape_line_separators
from shim.core.reading.limits import split_text
from shim.core.reading.surrogates import (
    count_unfinished_chars,
    has_lone_surrogates,
    join_halves,
    join_surrogates,
)
from shim.core.turn.machine import ECHO, MESSAGE, NEW, READY, TEXT, THINKING, TurnMachine, TurnState
from shim.core.turn.outcome import OutcomeTracker
from shim.core.turn.reply import AssistantMessage
from shim.core.turn.terms import OutputWriter, TurnConfig

MAX_ESCAPE_FACTOR = 3  # times longer is a text at most once its separators are escaped


class TextBlocks:
    """The verbs for what the model says, and the block that is open."""

    def __init__(
        self,
        machine: TurnMachine,
        pen: OutputWriter,
        terms: TurnConfig,
        account: Diagnostics,
        reply: AssistantMessage,
        end: OutcomeTracker,
    ) -> None:
        self._machine = machine
        self._writer = pen
        self._diagnostics = account
        self._assistant_message = reply
        self._outcome_tracker = end
        self._partial = pen.writes_partial_messages
        self.max_bytes = pen.max_bytes  # bytes of a block in a line
        self._safe_bytes = (
            pen.max_bytes // MAX_ESCAPE_FACTOR
        )  # bytes that fit a line whatever is escaped in them
        self._can_retract = terms.vendor.can_retract
        self._can_retry = terms.can_retry
        self.block_key: object = None  # the vendor's name for the open block
        self.fragments: list[str] = []  # of the open block, as they came
        self._size = 0  # of the open block, in bytes as it is streamed, else in characters
        # a block that is too long for its line is being closed, to go on as another
        self.is_splitting = False
        # half a character, which waits for the other half; it is the last of the parts too
        self.half_character = ""
        self._prefix = ""  # what the result has before the text of the open block
        # reply, key and text of a block that was too long for a line
        self._long_block: tuple[int, object, str] | None = None

    # -- the verbs ---------------------------------------------------------------------------------

    def add_text(self, fragment: str, block_key: object = None) -> None:
        """A fragment of text; `key` is the vendor's block index, another key is another block."""
        is_next = (
            self._machine.state is TEXT
            and block_key == self.block_key
            and fragment.__class__ is str
            and not self.half_character
        )
        if not is_next or not fragment:
            self.add_fragment(TEXT, fragment, block_key)
            return
        # The way of nearly every fragment of a stream, without a second call.
        self.fragments.append(fragment)
        if self._partial:
            self._write_delta(TEXT, fragment, block_key)
            return
        self._size = size = self._size + len(fragment)
        if size > self.max_bytes:
            self._split_long_block(TEXT, fragment, block_key)

    def append_text(self, fragment: str) -> None:
        """A fragment of the text that is open, where no half of a character waits."""
        self.fragments.append(fragment)
        if self._partial:
            self._write_delta(TEXT, fragment, self.block_key)
            return
        self._size = size = self._size + len(fragment)
        if size > self.max_bytes:
            self._split_long_block(TEXT, fragment, self.block_key)

    def add_block(self, whole: str, kind: str = TEXT) -> None:
        """A whole block of text (or of thinking) that was never streamed."""
        if not whole:
            return
        if whole.__class__ is not str:
            raise TypeError(f"a block of {kind} is no text")
        state = TEXT if kind is TEXT or kind == TEXT else THINKING
        machine = self._machine
        if machine.state is not MESSAGE:
            if machine.state is ECHO and not (whole := self._skip_repeated(state, whole, None)):
                return
            if not machine.move_to(MESSAGE):
                return
        try:
            dumped = orjson.dumps(whole)
        except TypeError:
            if has_lone_surrogates(whole):
                self._diagnostics.record("surrogate", whole)
            whole = join_surrogates(whole)
            dumped = dump_json(whole)
        if len(dumped) <= self._safe_bytes:
            self._writer.write_complete_block(state, dumped)
        else:
            dumped = b""  # it may be large
            for piece in split_text(whole, self.max_bytes):
                self._writer.write_complete_block(state, dump_json(piece))
                self._writer.join_lines()
        reply = self._assistant_message
        # a reply of known usage is complete
        if self._can_retract and (self._can_retry or reply.start_usage is NO_USAGE):
            reply.written_text.add(state, whole)
        if state is TEXT:
            reply.ends_with_call = False
            reply.last_text = self._prefix + whole if self._prefix else whole
            self._prefix = ""

    def update_block(self, kind: TurnState, full: str, key: object) -> None:
        """The block's text so far: says only what is new; a contradiction is counted, nothing is
        taken back.
        """
        if full.__class__ is not str:
            raise TypeError(f"a block of {kind} is no text")
        said, full = self.compare_block(kind, key, full)
        if full.startswith(said):
            if rest := full[len(said) :]:
                self.add_fragment(kind, rest, key)
        elif full.strip() != said.strip():  # copilot streams a text and then sends it trimmed
            self._diagnostics.record("contradicted_block", full)

    def compare_block(self, kind: TurnState, key: object, full: str) -> tuple[str, str]:
        """What was said of a block, and what of its whole text has to be compared with it."""
        said, full = self._assistant_message.written_blocks.get_comparison(kind, key, full)
        if self._machine.state is kind and key == self.block_key:
            said += "".join(self.fragments)
        if not full.startswith(said):
            said, full = join_surrogates(said), join_surrogates(full)
        return said, full

    def end_block(self) -> None:
        """The open block is complete: its line is said now instead of at the next event."""
        state = self._machine.state
        if state is TEXT or state is THINKING:
            self._machine.move_to(MESSAGE)

    def retract_message(self) -> None:
        """The reply was cut and comes again: what was unsaid is forgotten, what was said is not
        said twice.
        """
        machine, reply = self._machine, self._assistant_message
        if machine.is_over:
            machine.record_late_event()
            return
        if not self._partial and machine.state in (TEXT, THINKING):
            self.fragments = []
            self.half_character = ""
            machine.move_to(MESSAGE, True)
        if machine.state is ECHO:
            reply.written_blocks.clear()
            reply.written_text.restart_repeat()
            return
        if machine.state is not NEW:
            reply.was_aborted = machine.state is not READY
            machine.move_to(READY)
        reply.written_blocks.clear()
        if reply.written_text.start_repeat():
            machine.move_to(ECHO, True)

    def clear_block(self) -> None:
        """The beginning of a block has passed."""
        self.fragments, self._size = [], 0

    def record_fragment(self, fragment: str) -> None:
        """A fragment has passed; a block that is longer than a line is not remembered to its end."""
        if self._size < self.max_bytes:
            self.fragments.append(fragment)
            self._size += len(fragment)

    # -- the steps of the table --------------------------------------------------------------------

    def start_text(self) -> None:
        if self._partial:
            self._writer.start_block(TEXT)

    def start_thinking(self) -> None:
        if self._partial:
            self._writer.start_block(THINKING)

    def close_block(self) -> None:
        """The open block is complete: its last delta, its line, its stop."""
        kind, parts, pen = self._machine.state, self.fragments, self._writer
        if self.half_character:
            half, self.half_character = self.half_character, ""
            if self._partial:
                pen.write_delta(dump_json(half))
        text = parts[0] if len(parts) == 1 else "".join(parts)
        self.fragments = []
        try:
            dumped = orjson.dumps(text)
        except TypeError:
            if not self._partial and has_lone_surrogates(text):
                self._diagnostics.record("surrogate", text)
            dumped = dump_json(text)
        aborted = self._outcome_tracker.outcome is not None and self._outcome_tracker.is_interrupted
        if (
            len(dumped) <= self._safe_bytes or self._partial
        ):  # a streamed block was kept short as it went
            pen.write_block(kind, dumped, aborted)
        else:
            dumped = b""  # it may be large
            for piece in split_text(join_surrogates(text), self.max_bytes):
                pen.write_block(kind, dump_json(piece), aborted)
                pen.join_lines()
        self._record_block(kind, text)

    def end_repeat(self) -> None:
        """A repeated reply turns out to be nothing new: the answer is what came again of it."""
        reply = self._assistant_message
        reply.last_text = reply.written_text.get_repeated().get(TEXT, "")
        reply.written_text.end_repeat()

    # -- how it is done ----------------------------------------------------------------------------

    def add_fragment(self, kind: TurnState, fragment: str, key: object) -> None:
        if not fragment:
            return
        if fragment.__class__ is not str:
            raise TypeError(f"a fragment of {kind} is no text")
        if key is not None and key.__class__ is not int and not isinstance(key, str):
            key = None
        if (self._machine.state is not kind or key != self.block_key) and not (
            fragment := self.open_block(kind, fragment, key)
        ):
            return
        if self.half_character:
            fragment, self.half_character = join_halves(self.half_character + fragment), ""
            self.fragments.pop()
        self.fragments.append(fragment)
        if self._partial:
            self._write_delta(kind, fragment, key)
            return
        self._size = size = self._size + len(fragment)
        if size > self.max_bytes:
            self._split_long_block(kind, fragment, key)

    def open_block(self, kind: TurnState, fragment: str, key: object) -> str:
        """Open a block of `kind` for `key`; gives back what of `fragment` is left to say."""
        if self._machine.state is ECHO:
            fragment = self._skip_repeated(kind, fragment, key)
        if not fragment or not self._machine.move_to(kind):
            return ""
        self.block_key = key
        self._size = 0
        if self._long_block is not None and kind is TEXT:
            number, said_key, said = self._long_block
            self._long_block = None
            if said_key == key and number == self._assistant_message.number:
                self._prefix = said
        return fragment

    def _write_delta(self, kind: TurnState, fragment: str, key: object) -> None:
        """A fragment of the open block, streamed."""
        try:
            dumped = orjson.dumps(fragment)
        except TypeError:
            fragment = self._split_half_character(fragment)
            if not fragment:
                return
            dumped = dump_json(fragment)
        if not dumped.isascii():
            dumped = escape_line_separators(dumped)
        self._size = size = self._size + len(dumped)
        if size > self.max_bytes:
            dumped = b""  # it may be large
            self._split_long_block(kind, fragment, key)
        else:
            self._writer.write_delta(dumped)

    def _split_half_character(self, fragment: str) -> str:
        """A fragment without half a character at its end, which waits for the next fragment."""
        if has_lone_surrogates(fragment):
            self._diagnostics.record("surrogate", fragment)
        if count := count_unfinished_chars(fragment):
            self.half_character = fragment[-count:]
            self.fragments[-1:] = [fragment[:-count], self.half_character]
            return fragment[:-count]
        return fragment

    def _split_long_block(self, kind: TurnState, fragment: str, key: object) -> None:
        """The open block would be too long for its line with this fragment: it is closed and goes
        on as another.

        Two halves of a character stay together, whichever side of the cut they came on.
        """
        cutting, self.is_splitting = self.is_splitting, True
        half, self.half_character = self.half_character, ""
        if half:
            self.fragments.pop()
        elif count := count_unfinished_chars(fragment):
            half, fragment = fragment[-count:], fragment[:-count]
        self.fragments.pop()
        if self.fragments and (count := count_unfinished_chars(self.fragments[-1])):
            fragment = self.fragments[-1][-count:] + fragment
            self.fragments[-1] = self.fragments[-1][:-count]
        if any(self.fragments):
            self._close_long_block(kind, key)
            self.add_fragment(kind, fragment, key)
        else:
            self.fragments.clear()
            self._write_pieces(kind, fragment, key)
        self.add_fragment(kind, half, key)
        self.is_splitting = cutting

    def _write_pieces(self, kind: TurnState, fragment: str, key: object) -> None:
        """A fragment that is longer than a line by itself."""
        for piece in split_text(join_surrogates(fragment), self.max_bytes):
            if self._machine.state is not kind and not self.open_block(kind, piece, key):
                return
            self.fragments.append(piece)
            if self._partial:
                self._writer.write_delta(dump_json(piece))
            self._close_long_block(kind, key)
            self._writer.join_lines()

    def _close_long_block(self, kind: TurnState, key: object) -> None:
        """Close the block; what comes for the same one is the same text to the result."""
        self._machine.move_to(MESSAGE)
        if kind is TEXT:
            self._long_block = (
                self._assistant_message.number,
                key,
                self._assistant_message.shorten_text(self._assistant_message.last_text),
            )

    def _skip_repeated(self, kind: TurnState, fragment: str, key: object) -> str:
        """In ECHO: swallow what repeats the cut reply; give back what is new, and leave ECHO for
        it.
        """
        reply, account = self._assistant_message, self._diagnostics
        blocks, memory = reply.written_blocks, reply.written_text
        said, position = memory.get_expected(kind)
        if said.startswith(fragment, position):
            memory.set_position(kind, position + len(fragment))
            if key is not None:
                blocks.add(kind, key, fragment)
            account.record("repeated_reply")
            return ""
        if position < len(said) and not fragment.startswith(said[position:]):
            rest, repeated = said[:position] + fragment, ""
            blocks.remove(kind, key)
            account.record("contradicted_reply")
        else:
            rest, repeated = fragment[len(said) - position :], said
        copied, again = blocks.copy_texts(), memory.get_repeated() | {kind: repeated}
        self._machine.move_to(MESSAGE)
        blocks.restore(copied)
        if key is not None and repeated:
            blocks.remove(kind, key)
            blocks.add(kind, key, repeated)
        if self._can_retract:  # it may be cut once more
            for other, text in again.items():
                if text:
                    memory.add(other, text)
        if kind is TEXT:
            self._prefix = repeated
        return rest

    def _record_block(self, kind: TurnState, text: str) -> None:
        """What a complete block said, for the result and for the vendor that says it again."""
        reply = self._assistant_message
        if self._can_retract and (self._can_retry or reply.start_usage is NO_USAGE):
            reply.written_text.add(kind, text)
        if kind is TEXT:
            reply.ends_with_call = False
            before = self._prefix
            if not before and (kind, self.block_key) in reply.written_blocks.texts:
                before = reply.written_blocks.get_text(kind, self.block_key)
            reply.last_text = before + text
            self._prefix = ""
        if self.block_key is not None:
            reply.written_blocks.add(kind, self.block_key, text)
