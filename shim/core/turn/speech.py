"""Text and thinking of a turn: fragments, whole blocks, snapshots, halves of characters, and replies said again."""

import orjson

from shim.core.claude.usage import NO_USAGE
from shim.core.reading.json_text import dump, escape
from shim.core.reading.limits import pieces
from shim.core.reading.surrogates import completed, join_surrogates, surrogates, waiting
from shim.core.turn.machine import CLOSED, DONE, ECHO, MESSAGE, NEW, READY, TEXT, THINKING, Frame

# Of a reply that may be cut and come again: more than any model says in one, less than would matter in memory.
SAID_CHARACTERS = 4 * 1024 * 1024
SAID_BLOCKS = 1000

ESCAPED = 3  # times longer is a text at most once its separators are escaped


class Blocks(Frame):
    """The verbs for what the model says."""

    def text(self, fragment: str, key: object = None) -> None:
        """A fragment of text; `key` is the vendor's block index, another key is another block."""
        if self.state is TEXT and key == self._key and fragment.__class__ is str and fragment and not self._carry:
            # The way of nearly every fragment of a stream, without a second call.
            self._parts.append(fragment)
            if self._partial:
                self._delta(TEXT, fragment, key)
                return
            self._size = size = self._size + len(fragment)
            if size > self._room:
                self._overflow(TEXT, fragment, key)
            return
        self._fragment(TEXT, fragment, key)

    def thinking(self, fragment: str, key: object = None) -> None:
        """A fragment of thinking, as `text`."""
        self._fragment(THINKING, fragment, key)

    def say(self, whole: str, kind: str = TEXT) -> None:
        """A whole block of text (or of thinking) that was never streamed."""
        if not whole:
            return
        if whole.__class__ is not str:
            raise TypeError(f"a block of {kind} is no text")
        if self.state is not MESSAGE:
            if self.state is ECHO and not (whole := self._listen(kind, whole, None)):
                return
            if not self.go(MESSAGE):
                return
        try:
            dumped = orjson.dumps(whole)
        except TypeError:
            if surrogates(whole):
                self.account.repaired("surrogate", whole)
            whole = join_surrogates(whole)
            dumped = dump(whole)
        if len(dumped) <= self._room // ESCAPED:
            self._whole(kind, dumped)
        else:
            dumped = b""  # it may be large
            for piece in pieces(whole, self._room):
                self._whole(kind, dump(piece))
                self.pen.fold()
        if self._retracts and (self._retries or self._start_usage is NO_USAGE):  # one whose usage is known is complete
            self._keep(kind, whole)
        if kind is TEXT:
            self._calls_in_reply = False
            self.last_text = self._prefix + whole if self._prefix else whole
            self._prefix = ""

    def _whole(self, kind: str, dumped: bytes) -> None:
        pen = self.pen
        if self._partial:
            pen.block_start(kind)
            pen.delta(dumped)
        pen.block(kind, dumped)
        pen.block_stop()

    def think(self, whole: str) -> None:
        """A whole block of thinking that was never streamed."""
        self.say(whole, THINKING)

    def text_snapshot(self, full: str, key: object = None) -> None:
        """The block's text so far: says only what is new; a contradiction is counted, nothing is taken back."""
        self._snapshot(TEXT, full, key)

    def thinking_snapshot(self, full: str, key: object = None) -> None:
        """The block's thinking so far, as `text_snapshot`."""
        self._snapshot(THINKING, full, key)

    def block_end(self) -> None:
        """The open block is complete: its line is said now instead of at the next event."""
        if self.state is TEXT or self.state is THINKING:
            self.go(MESSAGE)

    def retract(self) -> None:
        """The reply was cut and comes again: what was unsaid is forgotten, what was said is not said twice."""
        if self.state is CLOSED or self.state is DONE:
            self._late()
            return
        if not self._partial and self.state in (TEXT, THINKING):
            self._parts = []
            self._carry = ""
            self.state = MESSAGE
        if self.state is ECHO:
            said = {kind: text for kind, (text, _) in self._echo.items()}
        else:
            if self.state is not NEW:
                self._aborted = self.state is not READY
                self.go(READY)
            said = {TEXT: "".join(self._said_text), THINKING: "".join(self._said_thinking)}
        self._spoken.clear()
        self._echo = {kind: (text, 0) for kind, text in said.items()}
        if any(said.values()):
            self.state = ECHO

    def again(self) -> None:
        """The whole turn is asked for once more: what was said stays said, and is not said twice."""
        self.outcome = None
        self.settled = self.paused = self._judged = False
        if self.state is DONE:
            self.state = READY if self.began else NEW
        if self.state is not NEW:
            self.retract()

    # -- the steps of the table ---------------------------------------------------------------------------

    def _start(self) -> None:
        self.replies += 1
        self.last_text = ""
        self._long = None
        self.stop_reason = None
        if self._spoken.blocks:
            self._spoken.clear()
        if self._said_size:
            self._forget_said()
        self._calls_in_reply = False
        self.pen.message_start(self.model, self._start_usage)

    def _text(self) -> None:
        if self._partial:
            self.pen.block_start("text")

    def _thinking(self) -> None:
        if self._partial:
            self.pen.block_start("thinking")

    def _close(self) -> None:
        kind, parts = self.state, self._parts
        if self._carry:
            half, self._carry = self._carry, ""
            if self._partial:
                self.pen.delta(dump(half))
        text = parts[0] if len(parts) == 1 else "".join(parts)
        self._parts = []
        try:
            dumped = orjson.dumps(text)
        except TypeError:
            dumped = self._repaired(text)
        aborted = self.outcome is not None and self.outcome.kind == "interrupted"
        if len(dumped) <= self._room // ESCAPED or self._partial:  # a streamed block was kept short as it went
            self.pen.block(kind, dumped, aborted=aborted)
            self.pen.block_stop()
        else:
            dumped = b""  # it may be large
            for piece in pieces(join_surrogates(text), self._room):
                self.pen.block(kind, dump(piece), aborted=aborted)
                self.pen.block_stop()
                self.pen.fold()
        self._remember(kind, text)
        if self._key is not None:
            self._spoken.add(kind, self._key, text)

    def _stop(self) -> None:
        if self._stop_due:
            self._stop_due = False
            self.pen.block_stop()
        if self._aborted or (self.outcome is not None and self.outcome.kind != "ended"):
            self._aborted = False
            self.stop_reason = None
        elif self.stop_reason is None:
            self.stop_reason = "tool_use" if self._calls_in_reply else "end_turn"
        if self._partial:
            self.pen.message_stop(self.stop_reason, self._reply_usage)
        self._reply_usage = self._start_usage = NO_USAGE
        if self._spoken.blocks:
            self._spoken.clear()

    def _unecho(self) -> None:
        text, position = self._echo.get(TEXT, ("", 0))
        self.last_text = text[:position]
        self._echo = {}

    # -- how it is done -----------------------------------------------------------------------------------

    def _fragment(self, kind: str, fragment: str, key: object) -> None:
        if not fragment:
            return
        if fragment.__class__ is not str:
            raise TypeError(f"a fragment of {kind} is no text")
        if key.__class__ is not int and not isinstance(key, str | None):
            key = None
        if (self.state is not kind or key != self._key) and not (fragment := self._open(kind, fragment, key)):
            return
        if self._carry:
            fragment, self._carry = completed(self._carry + fragment), ""
            self._parts.pop()
        self._parts.append(fragment)
        if self._partial:
            self._delta(kind, fragment, key)
            return
        self._size = size = self._size + len(fragment)
        if size > self._room:
            self._overflow(kind, fragment, key)

    def _delta(self, kind: str, fragment: str, key: object) -> None:
        """A fragment of the open block, streamed."""
        try:
            dumped = orjson.dumps(fragment)
        except TypeError:
            fragment = self._halved(fragment)
            if not fragment:
                return
            dumped = dump(fragment)
        if not dumped.isascii():
            dumped = escape(dumped)
        self._size = size = self._size + len(dumped)
        if size > self._room:
            dumped = b""  # it may be large
            self._overflow(kind, fragment, key)
        else:
            self.pen.delta(dumped)

    def _overflow(self, kind: str, fragment: str, key: object) -> None:
        """The open block would be too long for its line with this fragment: it is closed and goes on as another.

        Two halves of a character stay together, whichever side of the cut they came on.
        """
        half, self._carry = self._carry, ""
        if half:
            self._parts.pop()
        elif count := waiting(fragment):
            half, fragment = fragment[-count:], fragment[:-count]
        self._parts.pop()
        if self._parts and (count := waiting(self._parts[-1])):
            fragment = self._parts[-1][-count:] + fragment
            self._parts[-1] = self._parts[-1][:-count]
        if any(self._parts):
            self._go_on(kind, key)
            self._fragment(kind, fragment, key)
        else:
            self._parts.clear()
            self._say_pieces(kind, fragment, key)
        self._fragment(kind, half, key)

    def _say_pieces(self, kind: str, fragment: str, key: object) -> None:
        """A fragment that is longer than a line by itself."""
        for piece in pieces(join_surrogates(fragment), self._room):
            if self.state is not kind and not self._open(kind, piece, key):
                return
            self._parts.append(piece)
            if self._partial:
                self.pen.delta(dump(piece))
            self._go_on(kind, key)
            self.pen.fold()

    def _go_on(self, kind: str, key: object) -> None:
        """Close the block; what comes for the same one is the same text to the result."""
        self.go(MESSAGE)
        if kind is TEXT:
            self._long = (key, self._answerable(self.last_text))

    def _open(self, kind: str, fragment: str, key: object) -> str:
        """Open a block of `kind` for `key`; gives back what of `fragment` is left to say."""
        if self.state is ECHO:
            fragment = self._listen(kind, fragment, key)
        if not fragment or not self.go(kind):
            return ""
        self._key = key
        self._size = 0
        if self._long is not None and kind is TEXT:
            (said_key, said), self._long = self._long, None
            if said_key == key:
                self._prefix = said
        return fragment

    def _listen(self, kind: str, fragment: str, key: object) -> str:
        """In ECHO: swallow what repeats the cut reply; give back what is new, and leave ECHO for it."""
        said, position = self._echo.get(kind, ("", 0))
        if said.startswith(fragment, position):
            self._echo[kind] = (said, position + len(fragment))
            if key is not None:
                self._spoken.add(kind, key, fragment)
            self.account.repaired("repeated_reply")
            return ""
        if position < len(said) and not fragment.startswith(said[position:]):
            rest, repeated = said[:position] + fragment, ""
            self._spoken.drop(kind, key)
            self.account.repaired("contradicted_reply")
        else:
            rest, repeated = fragment[len(said) - position :], said
        spoken = self._spoken.copy()
        if key is not None and repeated:
            spoken.drop(kind, key)
            spoken.add(kind, key, repeated)
        again = {name: text[:end] for name, (text, end) in self._echo.items()} | {kind: repeated}
        self.go(MESSAGE)
        self._spoken = spoken
        if self._retracts:  # it may be cut once more
            for name, text in again.items():
                if text:
                    self._keep(name, text)
        if kind is TEXT:
            self._prefix = repeated
        return rest

    def _snapshot(self, kind: str, full: str, key: object) -> None:
        if full.__class__ is not str:
            raise TypeError(f"a block of {kind} is no text")
        said, full = self._spoken.compare(kind, key, full)
        if self.state is kind and key == self._key:
            said += "".join(self._parts)
        if not full.startswith(said):
            said = join_surrogates(said)
            full = join_surrogates(full)
        if full.startswith(said):
            if rest := full[len(said) :]:
                self._fragment(kind, rest, key)
        else:
            self.account.repaired("contradicted_block", full)

    def _remember(self, kind: str, text: str) -> None:
        if self._retracts and (self._retries or self._start_usage is NO_USAGE):
            self._keep(kind, text)
        if kind is TEXT:
            self._calls_in_reply = False
            before = self._prefix
            if not before and (kind, self._key) in self._spoken.blocks:
                before = self._spoken.before(kind, self._key)
            self.last_text = before + text
            self._prefix = ""

    def _keep(self, kind: str, text: str) -> None:
        """Remember what a reply said, for the case that it comes again; too much of it is not remembered."""
        said = self._said_text if kind is TEXT else self._said_thinking
        said.append(text)
        self._said_size += len(text)
        if self._said_size > SAID_CHARACTERS or len(said) > SAID_BLOCKS:
            self._forget_said()
            self.repeatable = False

    def _forget_said(self) -> None:
        self._said_text.clear()
        self._said_thinking.clear()
        self._said_size = 0

    def _repaired(self, text: str) -> bytes:
        if not self._partial and surrogates(text):
            self.account.repaired("surrogate", text)
        return dump(text)

    def _halved(self, fragment: str) -> str:
        """A fragment with half a character, less the half at its end, which waits for the next fragment."""
        if surrogates(fragment):
            self.account.repaired("surrogate", fragment)
        if count := waiting(fragment):
            self._carry = fragment[-count:]
            self._parts[-1:] = [fragment[:-count], self._carry]
            return fragment[:-count]
        return fragment
