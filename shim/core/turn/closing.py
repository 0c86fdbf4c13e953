"""The end of a turn: what is still owed is said, and then the result."""

from collections.abc import Callable

from shim.core.claude.usage import parse_dollars
from shim.core.errors import FailedAttempt
from shim.core.reading.account import Diagnostics
from shim.core.turn import outcome as ends
from shim.core.turn.machine import CLOSED, DONE, NEW, READY, Machine
from shim.core.turn.nested import NestedAgents
from shim.core.turn.opening import Opening
from shim.core.turn.outcome import End, Exit, Outcome, Standing
from shim.core.turn.questions import Questions
from shim.core.turn.reply import Reply
from shim.core.turn.result import (
    INTERRUPTED,
    INTERRUPTED_IN_TOOL,
    EndOfTurn,
    Result,
    bare,
    conclude,
)
from shim.core.turn.terms import Conversation, Pen, Structured
from shim.core.turn.tool_calls import ToolCalls


class Closing:
    """Ends one turn; `result` is None until then."""

    def __init__(
        self,
        machine: Machine,
        pen: Pen,
        conversation: Conversation,
        account: Diagnostics,
        opening: Opening,
        reply: Reply,
        calls: ToolCalls,
        nested: NestedAgents,
        questions: Questions,
        end: End,
    ) -> None:
        self.result: Result | None = None
        self._machine = machine
        self._pen = pen
        self._conversation = conversation
        self._account = account
        self._opening = opening
        self._reply = reply
        self._calls = calls
        self._nested = nested
        self._questions = questions
        self._end = end

    @property
    def spoken(self) -> bool:
        """Whether anything was said or done in this turn that is the model's: a block, a call, a
        result, a question.
        """
        return bool(
            self._reply.number or self._calls.any or self._nested.open or self._questions.asked
        )

    def close(self, child_exit: Exit | None, stderr: str) -> None:
        """The child's stdout is at its end. `child_exit` is None when we ended the child ourselves."""
        machine, end, read = self._machine, self._end, self._opening.terms.read
        if machine.state is CLOSED:
            return
        if machine.state is DONE:
            machine.go(READY, True)
        else:
            end.began = machine.state is not NEW
        end.outcome = ends.decide(self._standing(), child_exit, stderr)
        if read is not None and end.outcome.kind == "ended":
            end.outcome = self._structured(read, end.outcome)
        if end.outcome.kind == "ended" and self._is_over_budget(end.outcome):
            end.outcome = ends.make_budget_outcome(
                self._opening.terms.limits.budget or 0.0, end.outcome.facts
            )
        end.child_exit = child_exit
        self._questions.refuse_all()
        machine.go(CLOSED)

    def unanswered(
        self, child_exit: Exit | None, stderr: str, *, whatever: bool
    ) -> FailedAttempt | None:
        """Why the vendor said nothing, where another may be asked; None where this turn is the
        answer.
        """
        return ends.unanswered(self._standing(), child_exit, stderr, whatever=whatever)

    def broke_off(self, child_exit: Exit | None, stderr: str) -> bool:
        """Whether the stream was cut, and nothing has happened that must not happen twice (Yume's
        R11).
        """
        return ends.broke_off(self._standing(), child_exit, stderr)

    def fail_hard(self, reason: str) -> None:
        """The end itself failed, our own mistake: a result all the same, with nothing in it that
        could fail again.
        """
        self._machine.go(CLOSED, True)
        terms, text = self._opening.terms, f"the shim failed: {reason}"
        self.result = Result(bare(terms.vendor.name, text), True, "internal", text)
        if not self._end.began:
            self._pen.init(self._conversation.session_id or terms.session.fresh_id, {})
        self._pen.result(self.result.line)

    def seal(self) -> None:
        """Say the terminator that a passed result still owes: nothing at all comes behind it."""
        if not self._end.sealed:
            self._end.sealed = True
            self._pen.end_of_stream()

    # -- the steps of the table --------------------------------------------------------------------

    def fill(self) -> None:
        """Results that never came, and the user line of an interrupt."""
        text = self._calls.fill()
        self._nested.fill(text)
        self._calls.count_orphans()
        if self._end.interrupted and not self._end.told:
            self._pen.user_text(INTERRUPTED_IN_TOOL if self._calls.interrupted else INTERRUPTED)

    def conclude(self) -> None:
        """The result; a real claude's own is said as it came where nothing contradicts it."""
        end, reply, outcome = self._end, self._reply, self._end.outcome
        assert outcome is not None
        stated, meant = end.stated
        if stated and outcome is meant:
            text = reply.last_text if outcome.kind == "ended" else outcome.message
            self.result = Result({}, outcome.kind != "ended", outcome.cause, text)
            self._pen.verbatim_result(stated)
            end.sealed = False
            return
        opening, conversation = self._opening, self._conversation
        self.result = result = conclude(
            EndOfTurn(
                terms=opening.terms,
                account=self._account,
                outcome=outcome,
                child_exit=end.child_exit,
                began=end.began,
                spoken=self.spoken,
                results=self._calls.results,
                interrupted_call=self._calls.interrupted,
                stop_reason=reply.stop_reason,
                last_text=reply.last_text,
                model=reply.model,
                vendor_version=opening.facts.get("vendor_version") or opening.terms.vendor.version,
                denials=list(self._questions.denials.entries.values()),
                spent=conversation.spend(outcome.facts, reply.usage, reply.cost, reply.model),
                room=self._pen.room,
                origin=None if opening.message is None else opening.message.origin,
            )
        )
        if result.api_error is not None:
            self._pen.api_error(*result.api_error)
        self._pen.result(result.line)

    def _is_over_budget(self, outcome: Outcome) -> bool:
        """Return whether the session has cost more than `--max-budget-usd` allows, by the vendor's
        own count.
        """
        budget = self._opening.terms.limits.budget
        if budget is None:
            return False
        spent = parse_dollars(outcome.facts.get("cost")) or self._reply.cost
        return self._conversation.cost + spent > budget

    # -- how it is done ----------------------------------------------------------------------------

    def _standing(self) -> Standing:
        """The facts that decide how the turn ended."""
        calls, reply, account = self._calls, self._reply, self._account
        acted = (
            calls.results
            or calls.open
            or calls.table.hidden
            or self._nested.open
            or self._questions.denials.entries
        )
        return Standing(
            terms=self._opening.terms,
            outcome=self._end.outcome,
            state=self._machine.state,
            began=self._end.began,
            spoken=self.spoken,
            acted=bool(acted) or reply.number > 1,
            repeatable=reply.said.repeatable,
            open_calls=ends.open_calls(calls.open) if calls.open and reply.asked_tools else "",
            unknown=bool(account.unknown_events),
            misunderstood=account.has_unreadable_output,
        )

    def _structured(self, read: Callable[[str], Structured], outcome: Outcome) -> Outcome:
        """Contract F11, 5.11: the last text as `StructuredOutput`, or an error when it does not fit
        the schema.
        """
        if outcome.facts.get("structured_output") is not None:
            return outcome
        self._machine.go(READY)
        value, fault = read(self._reply.last_text or str(outcome.facts.get("result") or ""))
        if value is None:
            message = f"the answer does not fit --json-schema: {fault}"
            return Outcome("failed", message=message, cause="vendor_error", facts=outcome.facts)
        self._calls.structured(value)
        return outcome._replace(facts={**outcome.facts, "structured_output": value})
