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
from shim.core.turn.reply import Reply
from shim.core.turn.terms import Pen, Terms

ESCAPED = 3  # times longer is a text at most once its separators are escaped


class Speech:
    """The verbs for what the model says, and the block that is open."""

    def __init__(
        self,
        machine: TurnMachine,
        pen: Pen,
        terms: Terms,
        account: Diagnostics,
        reply: Reply,
        end: OutcomeTracker,
    ) -> None:
        self._machine = machine
        self._pen = pen
        self._account = account
        self._reply = reply
        self._end = end
        self._partial = pen.partial
        self.room = pen.room  # bytes of a block in a line
        self._sure = pen.room // ESCAPED  # bytes that fit a line whatever is escaped in them
        self._retracts = terms.vendor.retracts
        self._retries = terms.retries
        self.key: object = None  # the vendor's name for the open block
        self.parts: list[str] = []  # of the open block, as they came
        self._size = 0  # of the open block, in bytes as it is streamed, else in characters
        # a block that is too long for its line is being closed, to go on as another
        self.cutting = False
        # half a character, which waits for the other half; it is the last of the parts too
        self.carry = ""
        self._prefix = ""  # what the result has before the text of the open block
        # reply, key and text of a block that was too long for a line
        self._long: tuple[int, object, str] | None = None

    # -- the verbs ---------------------------------------------------------------------------------

    def text(self, fragment: str, key: object = None) -> None:
        """A fragment of text; `key` is the vendor's block index, another key is another block."""
        is_next = (
            self._machine.state is TEXT
            and key == self.key
            and fragment.__class__ is str
            and not self.carry
        )
        if not is_next or not fragment:
            self.fragment(TEXT, fragment, key)
            return
        # The way of nearly every fragment of a stream, without a second call.
        self.parts.append(fragment)
        if self._partial:
            self._delta(TEXT, fragment, key)
            return
        self._size = size = self._size + len(fragment)
        if size > self.room:
            self._overflow(TEXT, fragment, key)

    def more(self, fragment: str) -> None:
        """A fragment of the text that is open, where no half of a character waits."""
        self.parts.append(fragment)
        if self._partial:
            self._delta(TEXT, fragment, self.key)
            return
        self._size = size = self._size + len(fragment)
        if size > self.room:
            self._overflow(TEXT, fragment, self.key)

    def say(self, whole: str, kind: str = TEXT) -> None:
        """A whole block of text (or of thinking) that was never streamed."""
        if not whole:
            return
        if whole.__class__ is not str:
            raise TypeError(f"a block of {kind} is no text")
        state = TEXT if kind is TEXT or kind == TEXT else THINKING
        machine = self._machine
        if machine.state is not MESSAGE:
            if machine.state is ECHO and not (whole := self._new_of_repeated(state, whole, None)):
                return
            if not machine.move_to(MESSAGE):
                return
        try:
            dumped = orjson.dumps(whole)
        except TypeError:
            if has_lone_surrogates(whole):
                self._account.record("surrogate", whole)
            whole = join_surrogates(whole)
            dumped = dump_json(whole)
        if len(dumped) <= self._sure:
            self._pen.whole(state, dumped)
        else:
            dumped = b""  # it may be large
            for piece in split_text(whole, self.room):
                self._pen.whole(state, dump_json(piece))
                self._pen.fold()
        reply = self._reply
        # a reply of known usage is complete
        if self._retracts and (self._retries or reply.start_usage is NO_USAGE):
            reply.said.keep(state, whole)
        if state is TEXT:
            reply.asks_tools = False
            reply.last_text = self._prefix + whole if self._prefix else whole
            self._prefix = ""

    def snapshot(self, kind: TurnState, full: str, key: object) -> None:
        """The block's text so far: says only what is new; a contradiction is counted, nothing is
        taken back.
        """
        if full.__class__ is not str:
            raise TypeError(f"a block of {kind} is no text")
        said, full = self.said_of(kind, key, full)
        if full.startswith(said):
            if rest := full[len(said) :]:
                self.fragment(kind, rest, key)
        elif full.strip() != said.strip():  # copilot streams a text and then sends it trimmed
            self._account.record("contradicted_block", full)

    def said_of(self, kind: TurnState, key: object, full: str) -> tuple[str, str]:
        """What was said of a block, and what of its whole text has to be compared with it."""
        said, full = self._reply.blocks.compare(kind, key, full)
        if self._machine.state is kind and key == self.key:
            said += "".join(self.parts)
        if not full.startswith(said):
            said, full = join_surrogates(said), join_surrogates(full)
        return said, full

    def block_end(self) -> None:
        """The open block is complete: its line is said now instead of at the next event."""
        state = self._machine.state
        if state is TEXT or state is THINKING:
            self._machine.move_to(MESSAGE)

    def retract(self) -> None:
        """The reply was cut and comes again: what was unsaid is forgotten, what was said is not
        said twice.
        """
        machine, reply = self._machine, self._reply
        if machine.is_over:
            machine.record_late_event()
            return
        if not self._partial and machine.state in (TEXT, THINKING):
            self.parts = []
            self.carry = ""
            machine.move_to(MESSAGE, True)
        if machine.state is ECHO:
            reply.blocks.clear()
            reply.said.cut_again()
            return
        if machine.state is not NEW:
            reply.aborted = machine.state is not READY
            machine.move_to(READY)
        reply.blocks.clear()
        if reply.said.cut():
            machine.move_to(ECHO, True)

    def follow_block(self) -> None:
        """The beginning of a block has passed."""
        self.parts, self._size = [], 0

    def follow(self, fragment: str) -> None:
        """A fragment has passed; a block that is longer than a line is not remembered to its end."""
        if self._size < self.room:
            self.parts.append(fragment)
            self._size += len(fragment)

    # -- the steps of the table --------------------------------------------------------------------

    def open_text(self) -> None:
        if self._partial:
            self._pen.block_start(TEXT)

    def open_thinking(self) -> None:
        if self._partial:
            self._pen.block_start(THINKING)

    def close(self) -> None:
        """The open block is complete: its last delta, its line, its stop."""
        kind, parts, pen = self._machine.state, self.parts, self._pen
        if self.carry:
            half, self.carry = self.carry, ""
            if self._partial:
                pen.delta(dump_json(half))
        text = parts[0] if len(parts) == 1 else "".join(parts)
        self.parts = []
        try:
            dumped = orjson.dumps(text)
        except TypeError:
            if not self._partial and has_lone_surrogates(text):
                self._account.record("surrogate", text)
            dumped = dump_json(text)
        aborted = self._end.outcome is not None and self._end.interrupted
        if len(dumped) <= self._sure or self._partial:  # a streamed block was kept short as it went
            pen.block(kind, dumped, aborted)
        else:
            dumped = b""  # it may be large
            for piece in split_text(join_surrogates(text), self.room):
                pen.block(kind, dump_json(piece), aborted)
                pen.fold()
        self._remember(kind, text)

    def end_of_repeat(self) -> None:
        """A repeated reply turns out to be nothing new: the answer is what came again of it."""
        reply = self._reply
        reply.last_text = reply.said.all_repeated().get(TEXT, "")
        reply.said.end_of_repeat()

    # -- how it is done ----------------------------------------------------------------------------

    def fragment(self, kind: TurnState, fragment: str, key: object) -> None:
        if not fragment:
            return
        if fragment.__class__ is not str:
            raise TypeError(f"a fragment of {kind} is no text")
        if key is not None and key.__class__ is not int and not isinstance(key, str):
            key = None
        if (self._machine.state is not kind or key != self.key) and not (
            fragment := self.open(kind, fragment, key)
        ):
            return
        if self.carry:
            fragment, self.carry = join_halves(self.carry + fragment), ""
            self.parts.pop()
        self.parts.append(fragment)
        if self._partial:
            self._delta(kind, fragment, key)
            return
        self._size = size = self._size + len(fragment)
        if size > self.room:
            self._overflow(kind, fragment, key)

    def open(self, kind: TurnState, fragment: str, key: object) -> str:
        """Open a block of `kind` for `key`; gives back what of `fragment` is left to say."""
        if self._machine.state is ECHO:
            fragment = self._new_of_repeated(kind, fragment, key)
        if not fragment or not self._machine.move_to(kind):
            return ""
        self.key = key
        self._size = 0
        if self._long is not None and kind is TEXT:
            number, said_key, said = self._long
            self._long = None
            if said_key == key and number == self._reply.number:
                self._prefix = said
        return fragment

    def _delta(self, kind: TurnState, fragment: str, key: object) -> None:
        """A fragment of the open block, streamed."""
        try:
            dumped = orjson.dumps(fragment)
        except TypeError:
            fragment = self._without_half(fragment)
            if not fragment:
                return
            dumped = dump_json(fragment)
        if not dumped.isascii():
            dumped = escape_line_separators(dumped)
        self._size = size = self._size + len(dumped)
        if size > self.room:
            dumped = b""  # it may be large
            self._overflow(kind, fragment, key)
        else:
            self._pen.delta(dumped)

    def _without_half(self, fragment: str) -> str:
        """A fragment without half a character at its end, which waits for the next fragment."""
        if has_lone_surrogates(fragment):
            self._account.record("surrogate", fragment)
        if count := count_unfinished_chars(fragment):
            self.carry = fragment[-count:]
            self.parts[-1:] = [fragment[:-count], self.carry]
            return fragment[:-count]
        return fragment

    def _overflow(self, kind: TurnState, fragment: str, key: object) -> None:
        """The open block would be too long for its line with this fragment: it is closed and goes
        on as another.

        Two halves of a character stay together, whichever side of the cut they came on.
        """
        cutting, self.cutting = self.cutting, True
        half, self.carry = self.carry, ""
        if half:
            self.parts.pop()
        elif count := count_unfinished_chars(fragment):
            half, fragment = fragment[-count:], fragment[:-count]
        self.parts.pop()
        if self.parts and (count := count_unfinished_chars(self.parts[-1])):
            fragment = self.parts[-1][-count:] + fragment
            self.parts[-1] = self.parts[-1][:-count]
        if any(self.parts):
            self._close_long(kind, key)
            self.fragment(kind, fragment, key)
        else:
            self.parts.clear()
            self._say_pieces(kind, fragment, key)
        self.fragment(kind, half, key)
        self.cutting = cutting

    def _say_pieces(self, kind: TurnState, fragment: str, key: object) -> None:
        """A fragment that is longer than a line by itself."""
        for piece in split_text(join_surrogates(fragment), self.room):
            if self._machine.state is not kind and not self.open(kind, piece, key):
                return
            self.parts.append(piece)
            if self._partial:
                self._pen.delta(dump_json(piece))
            self._close_long(kind, key)
            self._pen.fold()

    def _close_long(self, kind: TurnState, key: object) -> None:
        """Close the block; what comes for the same one is the same text to the result."""
        self._machine.move_to(MESSAGE)
        if kind is TEXT:
            self._long = self._reply.number, key, self._reply.shorten(self._reply.last_text)

    def _new_of_repeated(self, kind: TurnState, fragment: str, key: object) -> str:
        """In ECHO: swallow what repeats the cut reply; give back what is new, and leave ECHO for
        it.
        """
        reply, account = self._reply, self._account
        blocks, memory = reply.blocks, reply.said
        said, position = memory.expected(kind)
        if said.startswith(fragment, position):
            memory.repeated(kind, position + len(fragment))
            if key is not None:
                blocks.add(kind, key, fragment)
            account.record("repeated_reply")
            return ""
        if position < len(said) and not fragment.startswith(said[position:]):
            rest, repeated = said[:position] + fragment, ""
            blocks.drop(kind, key)
            account.record("contradicted_reply")
        else:
            rest, repeated = fragment[len(said) - position :], said
        copied, again = blocks.copy(), memory.all_repeated() | {kind: repeated}
        self._machine.move_to(MESSAGE)
        blocks.restore(copied)
        if key is not None and repeated:
            blocks.drop(kind, key)
            blocks.add(kind, key, repeated)
        if self._retracts:  # it may be cut once more
            for other, text in again.items():
                if text:
                    memory.keep(other, text)
        if kind is TEXT:
            self._prefix = repeated
        return rest

    def _remember(self, kind: TurnState, text: str) -> None:
        """What a complete block said, for the result and for the vendor that says it again."""
        reply = self._reply
        if self._retracts and (self._retries or reply.start_usage is NO_USAGE):
            reply.said.keep(kind, text)
        if kind is TEXT:
            reply.asks_tools = False
            before = self._prefix
            if not before and (kind, self.key) in reply.blocks.texts:
                before = reply.blocks.before(kind, self.key)
            reply.last_text = before + text
            self._prefix = ""
        if self.key is not None:
            reply.blocks.add(kind, self.key, text)
