"""The end of a turn: what is still owed is said, and then the result."""

from collections.abc import Callable

from shim.core.claude.usage import parse_dollars
from shim.core.errors import FailedVendorAttempt
from shim.core.reading.diagnostics import Diagnostics
from shim.core.turn import outcome as outcomes
from shim.core.turn.assistant_message import AssistantMessage
from shim.core.turn.context import ConversationState, OutputWriter, StructuredAnswer
from shim.core.turn.machine import CLOSED, DONE, NEW, READY, TurnStateMachine
from shim.core.turn.outcome import ChildExit, TurnOutcome, TurnOutcomeTracker, TurnSnapshot
from shim.core.turn.permission_requests import PermissionRequests
from shim.core.turn.result import (
    INTERRUPTED,
    INTERRUPTED_IN_TOOL,
    FinishedTurn,
    TurnResult,
    build_minimal_error_result,
    build_turn_result,
)
from shim.core.turn.subagents import SubagentTracker
from shim.core.turn.tool_calls import ToolCalls
from shim.core.turn.turn_start import TurnStart


class TurnFinisher:
    """Ends one turn; `result` is None until then."""

    def __init__(
        self,
        machine: TurnStateMachine,
        writer: OutputWriter,
        conversation: ConversationState,
        diagnostics: Diagnostics,
        turn_start: TurnStart,
        assistant_message: AssistantMessage,
        tool_calls: ToolCalls,
        subagents: SubagentTracker,
        permission_requests: PermissionRequests,
        outcome_tracker: TurnOutcomeTracker,
    ) -> None:
        self.result: TurnResult | None = None
        self._machine = machine
        self._writer = writer
        self._conversation = conversation
        self._diagnostics = diagnostics
        self._turn_start = turn_start
        self._assistant_message = assistant_message
        self._tool_calls = tool_calls
        self._subagents = subagents
        self._permission_requests = permission_requests
        self._outcome_tracker = outcome_tracker

    @property
    def has_output(self) -> bool:
        """Whether anything was said or done in this turn that is the model's: a block, a call, a
        result, a question.
        """
        return bool(
            self._assistant_message.number
            or self._tool_calls.has_tool_activity
            or self._subagents.open_calls
            or self._permission_requests.pending
        )

    def close(self, child_exit: ChildExit | None, stderr: str) -> None:
        """The child's stdout is at its end. `child_exit` is None when we ended the child ourselves."""
        machine, outcome_tracker, read_answer = (
            self._machine,
            self._outcome_tracker,
            self._turn_start.config.read_answer,
        )
        if machine.state is CLOSED:
            return
        if machine.state is DONE:
            machine.move_to(READY, True)
        else:
            outcome_tracker.has_started = machine.state is not NEW
        outcome_tracker.outcome = outcomes.decide_outcome(self._take_snapshot(), child_exit, stderr)
        if read_answer is not None and outcome_tracker.outcome.kind == "ended":
            outcome_tracker.outcome = self._read_structured_answer(
                read_answer, outcome_tracker.outcome
            )
        if outcome_tracker.outcome.kind == "ended" and self._is_over_budget(
            outcome_tracker.outcome
        ):
            outcome_tracker.outcome = outcomes.build_over_budget_outcome(
                self._turn_start.config.limits.max_budget_usd or 0.0, outcome_tracker.outcome.fields
            )
        outcome_tracker.child_exit = child_exit
        self._permission_requests.refuse_pending_requests()
        machine.move_to(CLOSED)

    def find_failed_attempt(
        self, child_exit: ChildExit | None, stderr: str, *, any_cause: bool
    ) -> FailedVendorAttempt | None:
        """Why the vendor said nothing, where another may be asked; None where this turn is the
        answer.
        """
        return outcomes.find_failed_attempt(
            self._take_snapshot(), child_exit, stderr, any_cause=any_cause
        )

    def can_retry(self, child_exit: ChildExit | None, stderr: str) -> bool:
        """Whether the stream was cut, and nothing has happened that must not happen twice (Yume's
        R11).
        """
        return outcomes.can_retry(self._take_snapshot(), child_exit, stderr)

    def write_internal_error(self, reason: str) -> None:
        """The end itself failed, our own mistake: a result all the same, with nothing in it that
        could fail again.
        """
        self._machine.move_to(CLOSED, True)
        config, text = self._turn_start.config, f"the shim failed: {reason}"
        self.result = TurnResult(
            build_minimal_error_result(config.vendor.name, text), True, "internal", text
        )
        if not self._outcome_tracker.has_started:
            self._writer.write_init_message(
                self._conversation.session_id or config.session.new_id, {}
            )
        self._writer.write_result(self.result.line)

    def write_turn_end_line(self) -> None:
        """Say the terminator that a passed result still owes: nothing at all comes behind it."""
        if not self._outcome_tracker.is_terminated:
            self._outcome_tracker.is_terminated = True
            self._writer.write_turn_end_line()

    # -- the steps of the table --------------------------------------------------------------------

    def write_missing_results(self) -> None:
        """Results that never came, and the user line of an interrupt."""
        text = self._tool_calls.write_missing_results()
        self._subagents.write_missing_results(text)
        self._tool_calls.record_orphan_tool_results()
        if self._outcome_tracker.is_interrupted and not self._outcome_tracker.has_interrupt_line:
            self._writer.write_user_text(
                INTERRUPTED_IN_TOOL if self._tool_calls.has_interrupted_call else INTERRUPTED
            )

    def write_result(self) -> None:
        """The result; a real claude's own is said as it came where nothing contradicts it."""
        outcome_tracker, message, outcome = (
            self._outcome_tracker,
            self._assistant_message,
            self._outcome_tracker.outcome,
        )
        assert outcome is not None
        vendor_line, vendor_outcome = outcome_tracker.vendor_result
        if vendor_line and outcome is vendor_outcome:
            text = message.last_text if outcome.kind == "ended" else outcome.message
            self.result = TurnResult({}, outcome.kind != "ended", outcome.cause, text)
            self._writer.write_vendor_turn_result(vendor_line)
            outcome_tracker.is_terminated = False
            return
        turn_start, conversation = self._turn_start, self._conversation
        self.result = result = build_turn_result(
            FinishedTurn(
                config=turn_start.config,
                diagnostics=self._diagnostics,
                outcome=outcome,
                child_exit=outcome_tracker.child_exit,
                has_started=outcome_tracker.has_started,
                has_output=self.has_output,
                result_count=self._tool_calls.result_count,
                has_interrupted_call=self._tool_calls.has_interrupted_call,
                stop_reason=message.stop_reason,
                last_text=message.last_text,
                model=message.model,
                vendor_version=turn_start.vendor_info.get("vendor_version")
                or turn_start.config.vendor.version,
                denials=list(self._permission_requests.denials.entries.values()),
                usage_totals=conversation.add_turn_usage(
                    outcome.fields, message.usage_by_model, message.cost_usd, message.model
                ),
                max_bytes=self._writer.max_bytes,
                origin=None if turn_start.user_message is None else turn_start.user_message.origin,
            )
        )
        if result.api_error is not None:
            self._writer.write_api_error(*result.api_error)
        self._writer.write_result(result.line)

    def _is_over_budget(self, outcome: TurnOutcome) -> bool:
        """Return whether the session has cost more than `--max-budget-usd` allows, by the vendor's
        own count.
        """
        max_budget_usd = self._turn_start.config.limits.max_budget_usd
        if max_budget_usd is None:
            return False
        spent_usd = parse_dollars(outcome.fields.get("cost")) or self._assistant_message.cost_usd
        return self._conversation.cost_usd + spent_usd > max_budget_usd

    # -- how it is done ----------------------------------------------------------------------------

    def _take_snapshot(self) -> TurnSnapshot:
        """The facts that decide how the turn ended."""
        calls, message, diagnostics = self._tool_calls, self._assistant_message, self._diagnostics
        has_effects = (
            calls.result_count
            or calls.open_calls
            or calls.table.hidden_keys
            or self._subagents.open_calls
            or self._permission_requests.denials.entries
        )
        return TurnSnapshot(
            config=self._turn_start.config,
            outcome=self._outcome_tracker.outcome,
            state=self._machine.state,
            has_started=self._outcome_tracker.has_started,
            has_output=self.has_output,
            has_effects=bool(has_effects) or message.number > 1,
            is_repeatable=message.written_text.is_repeatable,
            open_call_names=outcomes.format_open_call_names(calls.open_calls)
            if calls.open_calls and message.has_ended_with_calls
            else "",
            has_unknown_events=bool(diagnostics.unknown_events),
            has_misread_output=diagnostics.has_unreadable_output,
        )

    def _read_structured_answer(
        self, read_answer: Callable[[str], StructuredAnswer], outcome: TurnOutcome
    ) -> TurnOutcome:
        """Contract F11, 5.11: the last text as `StructuredOutput`, or an error when it does not fit
        the schema.
        """
        if outcome.fields.get("structured_output") is not None:
            return outcome
        self._machine.move_to(READY)
        value, problem = read_answer(
            self._assistant_message.last_text or str(outcome.fields.get("result") or "")
        )
        if value is None:
            message = f"the answer does not fit --json-schema: {problem}"
            return TurnOutcome(
                "failed", message=message, cause="vendor_error", fields=outcome.fields
            )
        self._tool_calls.write_structured_answer(value)
        return outcome._replace(fields={**outcome.fields, "structured_output": value})
