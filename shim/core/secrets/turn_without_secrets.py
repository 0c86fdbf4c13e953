"""A turn that says no secrets (`redact = "all"`): they are left out of the verbs before the Turn hears them.

What is redacted before the Turn remembers it is redacted wherever it is said: deltas and the block's own line, the
result, transcripts, spilled files, every dialect. Two things are left as they are: what a vendor asks permission for,
because an answer may hand it back (where the call's line is the question, that is the call's input), and what the
frontend itself said, which is no news to it.
"""

from collections.abc import Mapping
from typing import Any

from shim.core.api_errors import Cause
from shim.core.claude.complete_lines import Passing
from shim.core.claude.permissions import Permission
from shim.core.errors import Tried
from shim.core.reading.account import Account
from shim.core.reading.json_text import as_content
from shim.core.secrets.lines import RedactedLines
from shim.core.secrets.redactor import Redactor, Stream, marks
from shim.core.turn.machine import CLOSED, ECHO, TEXT, THINKING, State
from shim.core.turn.outcome import Exit
from shim.core.turn.terms import Terms
from shim.core.turn.turn import Forwarding, Turn


class TurnWithoutSecrets(Forwarding):
    """Redacts verbs for a turn, or the lines of a real claude for a turn that passes them.

    While a text is held back its block is open, and `_flush` says the rest before the turn leaves it. Only a repeated
    reply (ECHO) has no block to open.
    """

    __slots__ = ("_counts", "_passed", "_redactor", "_spare", "_stream", "_stream_of")

    turn: Turn

    def __init__(self, turn: Turn) -> None:
        super().__init__(turn)
        self._counts = turn.account.redacted
        self._redactor = Redactor(self._counts)
        self._stream = Stream(self._counts)
        self._spare = Stream(self._counts)  # in its place while something is said before what it holds back
        self._stream_of: tuple[State, object] = (TEXT, None)
        self._passed: RedactedLines | None = None
        turn.machine.before_going = self._flush
        turn.calls.redact = self._redactor.value
        turn.nested.redact = self._nested

    def next(self, terms: Terms | None = None, account: Account | None = None) -> "TurnWithoutSecrets":
        """The turn after this one."""
        return TurnWithoutSecrets(self.turn.next(terms, account))

    # -- what the model says ------------------------------------------------------------------------------

    def text(self, fragment: str, key: object = None) -> None:
        """A fragment of text."""
        turn, stream = self.turn, self._stream
        if turn.machine.state is not TEXT or key != turn.speech.key or fragment.__class__ is not str:
            self._hear(TEXT, fragment, key)
            return
        # The way of nearly every fragment of a stream: its block is open, and the stream is the block's.
        if fragment in stream.harmless and not stream.busy:
            stream.passed(fragment)
        elif not (fragment := stream.feed(fragment)):
            return
        self._stream = self._spare
        turn.text(fragment, key)
        self._stream = stream
        if stream.busy and turn.machine.state is not TEXT:
            self._open(stream, TEXT, key)

    def thinking(self, fragment: str, key: object = None) -> None:
        """A fragment of thinking."""
        self._hear(THINKING, fragment, key)

    def say(self, whole: str, kind: str = TEXT) -> None:
        """A whole block."""
        if self.turn.state is ECHO:
            self._flush()
        self.turn.say(self._redactor.text(whole) if whole.__class__ is str else whole, kind)

    def think(self, whole: str) -> None:
        """A whole block of thinking."""
        self.say(whole, THINKING)

    def text_snapshot(self, full: str, key: object = None) -> None:
        """The text of a block so far."""
        self._snapshot(TEXT, full, key)

    def thinking_snapshot(self, full: str, key: object = None) -> None:
        """The thinking of a block so far."""
        self._snapshot(THINKING, full, key)

    def retract(self) -> None:
        """The reply was cut and comes again; what is held back of it was not said."""
        self._forget_unsaid()
        self.turn.retract()

    def again(self) -> None:
        """The whole turn is asked for once more."""
        self._forget_unsaid()
        self.turn.again()

    def _forget_unsaid(self) -> None:
        if self.turn.state is ECHO or not self.turn.pen.partial:
            self._stream.flush()

    def _hear(self, kind: State, fragment: str, key: object) -> None:
        """A fragment that may open its block."""
        if fragment.__class__ is not str or self.turn.machine.over:
            self.turn.speech.fragment(kind, fragment, key)
            return
        key = self._belongs(kind, key)
        stream = self._stream
        self._say_before(stream, kind, stream.feed(fragment), key)

    def _belongs(self, kind: State, key: object) -> object:
        """The stream is that of this block from now on; its key, as far as it is one."""
        if key.__class__ is not int and not isinstance(key, str | None):
            key = None
        if self._stream_of != (kind, key):
            self._flush()
            self._stream_of = (kind, key)
        return key

    def _say_before(self, stream: Stream, kind: State, said: str, key: object) -> None:
        """Say a fragment before what `stream` holds back, and open the block for that."""
        self._stream = self._spare
        if said:
            self.turn.speech.fragment(kind, said, key)
        self._open(stream, kind, key)
        self._stream = stream

    def _open(self, stream: Stream, kind: State, key: object) -> None:
        """Open the block for what `stream` holds back."""
        turn, kept = self.turn, self._stream
        if stream.held and turn.state is not ECHO and not (turn.state is kind and key == turn.speech.key):
            self._stream = self._spare
            turn.speech.open(kind, "…", key)
            self._stream = kept

    def _flush(self) -> None:
        """The block is at its end: what was held back is said."""
        if self.turn.machine.state in (TEXT, THINKING, ECHO) and (rest := self._stream.flush()):
            self.turn.speech.fragment(self._stream_of[0], rest, self._stream_of[1])

    def _snapshot(self, kind: State, full: str, key: object) -> None:
        if full.__class__ is not str:
            raise TypeError(f"a block of {kind} is no text")
        key = self._belongs(kind, key)
        stream = Stream({})
        said, clean = self.turn.speech.said_of(kind, key, stream.feed(full))
        if clean.startswith(said):
            stream.counts = self._counts
            marks(clean[len(said) :], self._counts)
            self._say_before(stream, kind, clean[len(said) :], key)
        elif not said.startswith(clean):
            self.turn.account.repaired("contradicted_block", full)

    # -- calls --------------------------------------------------------------------------------------------

    def tool_result(
        self,
        identity: str,
        content: object,
        is_error: bool = False,
        name: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """What a call returned."""
        content = content if content.__class__ is str else as_content(content)
        self.turn.tool_result(identity, self._redactor.value(content), is_error, name, arguments)

    def fill_results(self, content: str = "") -> None:
        """What all open calls returned."""
        self.turn.fill_results(self._redactor.text(content))

    def denied(self, identity: str, name: str, arguments: Mapping[str, Any]) -> None:
        """A call that was refused."""
        self.turn.denied(identity, name, self._redactor.value(arguments))

    def refused(self, permission: Permission, message: str, *, announced: bool) -> None:
        """A permission was refused."""
        clean = permission._replace(arguments=self._redactor.value(permission.arguments))
        self.turn.refused(clean, self._redactor.text(message), announced=announced)

    def forbid(self, call: str, reason: str) -> None:
        """The frontend forbids a call that runs."""
        self.turn.forbid(call, self._redactor.text(reason))

    def _nested(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """A message of a nested agent, unless it is the question to the frontend."""
        if self.turn.calls.asks_by_line and message["content"][0]["type"] == "tool_use":
            return message
        clean: Mapping[str, Any] = self._redactor.value(message)
        return clean

    # -- beside the conversation, and the end -------------------------------------------------------------

    def system(self, subtype: str, **fields: Any) -> None:
        """A `system` line."""
        self.turn.system(subtype, **self._redactor.value(fields))

    def compacted(self, trigger: str, before: int) -> None:
        """The vendor shortened its context."""
        self.turn.compacted(self._redactor.text(trigger), before)

    def unknown(self, kind: object, sample: object = "") -> None:
        """An event without a translation: the result names its kind."""
        self.turn.unknown(self._redactor.text(kind) if isinstance(kind, str) else kind, sample)

    def ended(self, **facts: Any) -> None:
        """The vendor said that it is done; its facts repeat what was said, and counted, before."""
        self.turn.ended(**Redactor().value(facts))

    def failed(self, message: str, **facts: Any) -> None:
        """The turn failed."""
        clean = self._redactor.text(message)
        self.turn.failed(clean, **Redactor().value(facts))

    def stopped(self, message: str, cause: Cause) -> None:
        """We end the turn; the reason may name what a vendor calls its tools."""
        self.turn.stopped(self._redactor.text(message), cause)

    def finish(self) -> None:
        """Say the result now."""
        self.closed(None, "")

    def closed(self, child_exit: Exit | None, stderr: str) -> None:
        """The child's stdout is at its end."""
        if self.turn.state is CLOSED:
            return
        self._say_rest()
        marks(stderr, self._counts)
        self.turn.closed(child_exit, self._redactor.text(stderr))

    def unanswered(self, child_exit: Exit | None, stderr: str) -> Tried | None:
        """Why the vendor said nothing."""
        tried = self.turn.unanswered(child_exit, Redactor().text(stderr))
        if tried is not None:
            marks(tried.reason, self._counts)
        return tried

    def fail_hard(self, reason: str) -> None:
        """The end itself failed."""
        self.turn.fail_hard(self._redactor.text(reason))

    # -- pass-through -------------------------------------------------------------------------------------

    def verbatim(self, raw: bytes, event: dict[str, Any]) -> None:
        """A line of a real claude, as it came unless there is a secret in it."""
        if self._passed is None:
            pen, account = self.turn.pen, self.turn.account
            passing = Passing(account, pen.new_uuid, pen.room, self.turn.terms.keep)
            self._passed = RedactedLines(self._redactor, pen.new_uuid, pen.room, passing.short)
        for line, clean in self._passed.lines(raw, event):
            self.turn.verbatim(line, clean)  # type: ignore[attr-defined]  # a turn that passes lines has it

    def _say_rest(self) -> None:
        """What is held back of a passed block."""
        for line, event in self._passed.rest() if self._passed is not None else ():
            self.turn.verbatim(line, event)  # type: ignore[attr-defined]
