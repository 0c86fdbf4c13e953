"""A Turn that says no secrets (`redact = "all"`): the same machine, which is told everything without them.

What is redacted before the machine remembers it is redacted wherever it is said: deltas and the block's own line, the
result, transcripts, spilled files, every dialect. Two things are left as they are: what a vendor asks permission for,
because an answer may hand it back (where the call's line is the question, that is the call's input), and what the
frontend itself said, which is no news to it.
"""

from collections.abc import Mapping
from typing import Any

from shim.core.claude.complete_lines import Passing
from shim.core.claude.pen import ClaudePen
from shim.core.claude.permissions import Permission
from shim.core.errors import Cause
from shim.core.reading.account import Account
from shim.core.reading.json_text import as_content
from shim.core.reading.surrogates import join_surrogates
from shim.core.secrets.lines import RedactedLines
from shim.core.secrets.redactor import Redactor, Stream, marks
from shim.core.turn.machine import CLOSED, DONE, ECHO, TEXT, THINKING, paths
from shim.core.turn.nested import Nested
from shim.core.turn.result import Exit
from shim.core.turn.terms import Conversation, Terms
from shim.core.turn.turn import Turn


class RedactedNested(Nested):
    """A nested agent that says no secrets."""

    def _line(self, role: str, message: Mapping[str, Any]) -> None:
        assert self._turn.redact is not None
        question = self._turn.asks_by_line and message["content"][0]["type"] == "tool_use"
        super()._line(role, message if question else self._turn.redact(message))


class RedactedTurn(Turn):
    """One turn without secrets.

    While a text is held back its block is open, so that whatever comes next closes it: `go` says the rest first. Only
    a repeated reply (ECHO) has no block to open.
    """

    nested = RedactedNested

    def __init__(self, pen: ClaudePen, terms: Terms, conversation: Conversation, account: Account) -> None:
        super().__init__(pen, terms, conversation, account)
        self._counts = account.redacted
        self._redactor = Redactor(self._counts)
        self.redact = self._redactor.value
        self._stream = Stream(self._counts)
        self._spare = Stream(self._counts)  # in its place while something is said before what it holds back
        self._stream_of: tuple[str, object] = (TEXT, None)
        passing = Passing(account, pen.new_uuid, pen.room, terms.keep)
        self._passed = RedactedLines(self._redactor, pen.new_uuid, pen.room, passing.short)

    # -- what the model says ------------------------------------------------------------------------------

    def text(self, fragment: str, key: object = None) -> None:
        """A fragment of text."""
        if self.state is not TEXT or key != self._key or fragment.__class__ is not str or self._carry:
            self._hear(TEXT, fragment, key)
            return
        # The way of nearly every fragment of a stream: its block is open, and the stream is the block's.
        stream = self._stream
        if fragment in stream.harmless and not stream.busy:
            stream.passed(fragment)
        elif not (fragment := stream.feed(fragment)):
            return
        self._parts.append(fragment)
        if self._partial:
            self._delta(TEXT, fragment, key)
            return
        self._size = size = self._size + len(fragment)
        if size > self._room:
            self._overflow(TEXT, fragment, key)

    def thinking(self, fragment: str, key: object = None) -> None:
        """A fragment of thinking."""
        self._hear(THINKING, fragment, key)

    def say(self, whole: str, kind: str = TEXT) -> None:
        """A whole block."""
        if self.state is ECHO:
            self._flush()
        super().say(self._redactor.text(whole) if whole.__class__ is str else whole, kind)

    def retract(self) -> None:
        """The reply was cut and comes again; what is held back of it was not said."""
        if self.state is ECHO or not self._partial:
            self._stream.flush()
        super().retract()

    def go(self, goal: str) -> bool:
        """Say what lies on the way; what was held back of the open block comes first."""
        if self.state is TEXT or self.state is THINKING or self.state is ECHO:
            self._flush()
        return super().go(goal)

    def _hear(self, kind: str, fragment: str, key: object) -> None:
        """A fragment that may open its block."""
        if fragment.__class__ is not str or self.state is CLOSED or self.state is DONE:
            self._fragment(kind, fragment, key)
            return
        key = self._belongs(kind, key)
        stream = self._stream
        said = stream.feed(fragment)
        self._say_before(stream, kind, said, key)

    def _belongs(self, kind: str, key: object) -> object:
        """The stream is that of this block from now on; its key, as far as it is one."""
        if key.__class__ is not int and not isinstance(key, str | None):
            key = None
        if self._stream_of != (kind, key):
            self._flush()
            self._stream_of = (kind, key)
        return key

    def _say_before(self, stream: Stream, kind: str, said: str, key: object) -> None:
        """Say a fragment before what `stream` holds back, and open the block for that."""
        self._stream = self._spare
        if said:
            self._fragment(kind, said, key)
        if stream.held and self.state is not ECHO and not (self.state is kind and key == self._key):
            self._open(kind, "…", key)
        self._stream = stream

    def _overflow(self, kind: str, fragment: str, key: object) -> None:
        stream, self._stream = self._stream, self._spare
        super()._overflow(kind, fragment, key)
        self._say_before(stream, kind, "", key)

    def _flush(self) -> None:
        """The block is at its end: what was held back is said."""
        if rest := self._stream.flush():
            self._fragment(self._stream_of[0], rest, self._stream_of[1])

    def _snapshot(self, kind: str, full: str, key: object) -> None:
        if full.__class__ is not str:
            raise TypeError(f"a block of {kind} is no text")
        key = self._belongs(kind, key)
        stream = Stream({})
        clean = stream.feed(full)
        said, clean = self._spoken.compare(kind, key, clean)
        if self.state is kind and key == self._key:
            said += "".join(self._parts)
        if not clean.startswith(said):
            said, clean = join_surrogates(said), join_surrogates(clean)
        if clean.startswith(said):
            stream.counts = self._counts
            marks(clean[len(said) :], self._counts)
            self._say_before(stream, kind, clean[len(said) :], key)
        elif not said.startswith(clean):
            self.account.repaired("contradicted_block", full)

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
        super().tool_result(identity, self._redactor.value(content), is_error, name, arguments)

    def fill_results(self, content: str = "") -> None:
        """What all open calls returned."""
        super().fill_results(self._redactor.text(content))

    def denied(self, identity: str, name: str, arguments: Mapping[str, Any]) -> None:
        """A call that was refused."""
        super().denied(identity, name, self._redactor.value(arguments))

    def refused(self, permission: Permission, message: str, *, announced: bool) -> None:
        """A permission was refused."""
        super().refused(permission, self._redactor.text(message), announced=announced)

    # -- beside the conversation, and the end -------------------------------------------------------------

    def system(self, subtype: str, **fields: Any) -> None:
        """A `system` line."""
        super().system(subtype, **self._redactor.value(fields))

    def unknown(self, kind: object, sample: object = "") -> None:
        """An event without a translation: the result names its kind."""
        super().unknown(self._redactor.text(kind) if isinstance(kind, str) else kind, sample)

    def ended(self, **facts: Any) -> None:
        """The vendor said that it is done."""
        super().ended(**self._repeated(facts))

    def failed(
        self,
        message: str,
        *,
        api: bool | None = None,
        kind: Cause | None = None,
        status: int | None = None,
        subtype: str | None = None,
        **facts: Any,
    ) -> None:
        """The turn failed."""
        clean = self._redactor.text(message)
        super().failed(clean, api=api, kind=kind, status=status, subtype=subtype, **self._repeated(facts))

    def stopped(self, message: str, cause: Cause) -> None:
        """We end the turn; the reason may name what a vendor calls its tools."""
        super().stopped(self._redactor.text(message), cause)

    def _repeated(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Facts that repeat what was said, and counted, before."""
        clean: dict[str, Any] = Redactor().value(facts)
        return clean

    def closed(self, child_exit: Exit | None, stderr: str) -> None:
        """The child's stdout is at its end."""
        if self.state is CLOSED:
            return
        for line, event in self._passed.rest():
            super().verbatim(line, event)
        marks(stderr, self._counts)
        super().closed(child_exit, self._redactor.text(stderr))

    def fail_hard(self, reason: str) -> None:
        """The end itself failed."""
        super().fail_hard(self._redactor.text(reason))

    # -- pass-through -------------------------------------------------------------------------------------

    def verbatim(self, raw: bytes, event: dict[str, Any]) -> None:
        """A line of a real claude, as it came unless there is a secret in it."""
        for line, clean in self._passed.lines(raw, event):
            super().verbatim(line, clean)


RedactedTurn.paths = paths(RedactedTurn)
