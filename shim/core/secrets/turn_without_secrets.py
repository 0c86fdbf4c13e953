"""A turn that says no secrets (`redact = "all"`): they are left out of the verbs before the Turn
hears them.

What is redacted before the Turn remembers it is redacted wherever it is said: deltas and the
block's own line, the result, transcripts, spilled files, every dialect; the ids and names of tools,
the model and the folder too. Two things are left as they are: what a vendor asks permission for,
because an answer may hand it back (where the call's line is the question, that is the whole call),
and what the frontend itself said, which is no news to it.
"""

from collections.abc import Mapping
from typing import Any

from shim.core.api_errors import Cause
from shim.core.claude.complete_lines import LineNormalizer
from shim.core.claude.mcp_content import is_mcp_result
from shim.core.claude.permissions import PermissionRequest
from shim.core.claude.usage import Usage
from shim.core.errors import FailedAttempt
from shim.core.reading.account import Diagnostics
from shim.core.reading.json_text import as_content
from shim.core.secrets.lines import LineRedactor
from shim.core.secrets.redactor import Redactor, StreamRedactor, count_placeholders
from shim.core.turn.machine import CLOSED, ECHO, TEXT, THINKING, State
from shim.core.turn.outcome import Exit
from shim.core.turn.terms import Terms
from shim.core.turn.turn import Turn, Verbatim, part


class SpeechWithoutSecrets:
    """The verbs for what the model says.

    While a text is held back its block is open, and `flush` says the rest before the turn leaves
    it. Only a repeated reply (ECHO) has no block to open.
    """

    def __init__(self, turn: Turn, redactor: Redactor) -> None:
        self._speech = turn.speech
        self._machine = turn.machine
        self._account = turn.account
        self._partial = turn.pen.partial
        self._redactor = redactor
        self._counts = redactor.counts
        self._stream = StreamRedactor(self._counts)
        # in its place while something is said before what it holds back
        self._spare = StreamRedactor(self._counts)
        self._stream_of: tuple[State, object] = (TEXT, None)

    def text(self, fragment: str, key: object = None) -> None:
        machine, speech, stream = self._machine, self._speech, self._stream
        if (
            machine.state is not TEXT
            or key != speech.key
            or fragment.__class__ is not str
            or speech.carry
        ):
            self.hear(TEXT, fragment, key)
            return
        # The way of nearly every fragment of a stream: its block is open, and the stream is the
        # block's.
        if fragment in stream.harmless and not stream.busy:
            stream.passed(fragment)
        elif not (fragment := stream.feed(fragment)):
            return
        speech.more(fragment)
        if stream.busy and machine.state is not TEXT:
            self._open(stream, TEXT, key)

    def say(self, whole: str, kind: str = TEXT) -> None:
        if self._machine.state is ECHO:
            self.flush()
        self._speech.say(
            self._redactor.redact_text(whole) if whole.__class__ is str else whole, kind
        )

    def forget_unsaid(self) -> None:
        """The reply was cut: what is held back of it was not said."""
        if self._machine.state is ECHO or not self._partial:
            self._stream.flush()

    def hear(self, kind: State, fragment: str, key: object) -> None:
        if fragment.__class__ is not str or self._machine.over:
            self._speech.fragment(kind, fragment, key)
            return
        key = self._belongs(kind, key)
        stream = self._stream
        self._say_before(stream, kind, stream.feed(fragment), key)

    def _belongs(self, kind: State, key: object) -> object:
        """The stream is that of this block from now on; its key, as far as it is one."""
        if key.__class__ is not int and not isinstance(key, str | None):
            key = None
        if self._stream_of != (kind, key):
            self.flush()
            self._stream_of = (kind, key)
        return key

    def _say_before(self, stream: StreamRedactor, kind: State, said: str, key: object) -> None:
        """Say a fragment before what `stream` holds back, and open the block for that."""
        self._stream = self._spare
        if said:
            self._speech.fragment(kind, said, key)
        self._open(stream, kind, key)
        self._stream = stream

    def _open(self, stream: StreamRedactor, kind: State, key: object) -> None:
        """Open the block for what `stream` holds back."""
        state, kept = self._machine.state, self._stream
        if stream.held and state is not ECHO and not (state is kind and key == self._speech.key):
            self._stream = self._spare
            self._speech.open(kind, "…", key)
            self._stream = kept

    def flush(self) -> None:
        """The block is at its end: what was held back is said."""
        open_ = self._machine.state in (TEXT, THINKING, ECHO) and not self._speech.cutting
        if open_ and (rest := self._stream.flush()):
            self._speech.fragment(self._stream_of[0], rest, self._stream_of[1])

    def snapshot(self, kind: State, full: str, key: object) -> None:
        if full.__class__ is not str:
            raise TypeError(f"a block of {kind} is no text")
        key = self._belongs(kind, key)
        stream = StreamRedactor({})
        said, clean = self._speech.said_of(kind, key, stream.feed(full))
        if clean.startswith(said):
            stream.counts = self._counts
            count_placeholders(clean[len(said) :], self._counts)
            self._say_before(stream, kind, clean[len(said) :], key)
        elif not said.startswith(clean):
            self._account.record("contradicted_block", full)


class TurnWithoutSecrets:
    """Stands in the place of a turn: redacts its verbs and the lines that pass; all else the turn
    does itself.
    """

    __slots__ = ("_counts", "_passed", "_redactor", "_speech", "_verbatim", "say", "text", "turn")

    # What others set, too.
    asked = part("turn.asked")
    observed = part("turn.observed")
    outcome = part("turn.outcome")
    terms = part("turn.terms")

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self._counts = turn.account.redactions
        self._redactor = redactor = Redactor(self._counts)
        self._speech = speech = SpeechWithoutSecrets(turn, redactor)
        self._passed: LineRedactor | None = None
        self._verbatim: Verbatim | None = None
        self.text = speech.text
        self.say = speech.say
        turn.machine.before_going = speech.flush
        turn.opening.redact = turn.calls.redact = redactor.value
        turn.nested.redact = self._nested

    def __getattr__(self, name: str) -> Any:
        return getattr(self.turn, name)

    def next(
        self, terms: Terms | None = None, account: Diagnostics | None = None
    ) -> "TurnWithoutSecrets":
        return TurnWithoutSecrets(self.turn.next(terms, account))

    # -- what the model says -----------------------------------------------------------------------

    def thinking(self, fragment: str, key: object = None) -> None:
        self._speech.hear(THINKING, fragment, key)

    def think(self, whole: str) -> None:
        self._speech.say(whole, THINKING)

    def text_snapshot(self, full: str, key: object = None) -> None:
        self._speech.snapshot(TEXT, full, key)

    def thinking_snapshot(self, full: str, key: object = None) -> None:
        self._speech.snapshot(THINKING, full, key)

    def retract(self) -> None:
        """The reply was cut and comes again; what is held back of it was not said."""
        self._speech.forget_unsaid()
        self.turn.retract()

    def again(self) -> None:
        self._speech.forget_unsaid()
        self.turn.again()

    # -- who says it -------------------------------------------------------------------------------

    def message(self, model: str | None = None, usage: Usage | None = None) -> None:
        self.turn.message(self._redactor.value(model), usage)

    def message_facts(self, model: str | None = None, usage: Usage | None = None) -> None:
        self.turn.message_facts(self._redactor.value(model), usage)

    # -- calls -------------------------------------------------------------------------------------

    def tool_result(
        self,
        identity: str | None,
        content: object,
        is_error: bool = False,
        name: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        if content.__class__ is not str and not is_mcp_result(content):
            content = as_content(content)
        self.turn.tool_result(identity, self._redactor.value(content), is_error, name, arguments)

    def fill_results(self, content: str = "") -> None:
        self.turn.fill_results(self._redactor.redact_text(content))

    def denied(self, identity: str, name: str, arguments: Mapping[str, Any]) -> None:
        self.turn.denied(*map(self._redactor.value, (identity, name, arguments)))

    def refused(
        self,
        permission: PermissionRequest,
        message: str,
        *,
        announced: bool,
        vendor_knows: bool = True,
    ) -> None:
        clean = permission._replace(tool_input=self._redactor.value(permission.tool_input))
        self.turn.refused(
            clean,
            self._redactor.redact_text(message),
            announced=announced,
            vendor_knows=vendor_knows,
        )

    def forbid(self, call: str, reason: str) -> None:
        self.turn.forbid(call, self._redactor.redact_text(reason))

    def _nested(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """A message of a nested agent, unless it is the question to the frontend."""
        if self.turn.calls.asks_by_line and message["content"][0]["type"] == "tool_use":
            return message
        clean: Mapping[str, Any] = self._redactor.value(message)
        return clean

    # -- beside the conversation, and the end ------------------------------------------------------

    def system(self, subtype: str, **fields: Any) -> None:
        self.turn.system(subtype, **self._redactor.value(fields))

    def compacted(self, trigger: str, before: int) -> None:
        self.turn.compacted(self._redactor.redact_text(trigger), before)

    def unknown(self, kind: object, sample: object = "") -> None:
        """An event without a translation: the result names its kind."""
        self.turn.unknown(
            self._redactor.redact_text(kind) if isinstance(kind, str) else kind, sample
        )

    def ended(self, **facts: Any) -> None:
        """The vendor said that it is done; its facts repeat what was said, and counted, before."""
        self.turn.ended(**Redactor().value(facts))

    def failed(self, message: str, **facts: Any) -> None:
        clean = self._redactor.redact_text(message)
        self.turn.failed(clean, **Redactor().value(facts))

    def stopped(self, message: str, cause: Cause) -> None:
        """We end the turn; the reason may name what a vendor calls its tools."""
        self.turn.stopped(self._redactor.redact_text(message), cause)

    def finish(self) -> None:
        self.closed(None, "")

    def closed(self, child_exit: Exit | None, stderr: str) -> None:
        if self.turn.state is CLOSED:
            return
        if self._passed is not None and self._verbatim is not None:
            for line, event in self._passed.flush():
                self._verbatim(line, event)
        count_placeholders(stderr, self._counts)
        self.turn.closed(child_exit, self._redactor.redact_text(stderr))

    def unanswered(
        self, child_exit: Exit | None, stderr: str, *, whatever: bool = False
    ) -> FailedAttempt | None:
        tried = self.turn.unanswered(child_exit, Redactor().redact_text(stderr), whatever=whatever)
        if tried is not None:
            count_placeholders(tried.reason, self._counts)
        return tried

    def fail_hard(self, reason: str) -> None:
        self.turn.fail_hard(self._redactor.redact_text(reason))

    # -- pass-through ------------------------------------------------------------------------------

    def clean_lines(self, verbatim: Verbatim) -> Verbatim:
        """What the lines of a real claude are said to: they go on to `verbatim` without their
        secrets.
        """
        pen, account = self.turn.pen, self.turn.account
        passing = LineNormalizer(account, pen.new_uuid, pen.room, self.turn.terms.keep)
        self._passed = LineRedactor(self._redactor, pen.new_uuid, pen.room, passing.split_long_line)
        self._verbatim = verbatim
        return self._line

    def _line(self, raw: bytes, event: dict[str, Any]) -> None:
        assert self._passed is not None and self._verbatim is not None
        for line, clean in self._passed.redact_line(raw, event):
            self._verbatim(line, clean)
