"""The outcome of a turn, derived from the vendor's report and the exit of its process.

An interrupt takes precedence over a failure, and a failure over a success. A turn without a report
is an error.
"""

from collections.abc import Mapping
from itertools import islice

from shim.core.api_errors import ApiFailure, TurnEndCause, classify_api_error
from shim.core.errors import FailedVendorAttempt, create_failed_vendor_attempt
from shim.core.reading.diagnostics import strip_ansi_colors
from shim.core.reading.head_and_tail import shorten_middle
from shim.core.reading.typed import Any, NamedTuple
from shim.core.turn.context import TurnConfig
from shim.core.turn.machine import CLOSED, DONE, NEW, READY, TurnState, TurnStateMachine

# The part of stderr in an error text. It can contain a reason and still fits into a dialog.
STDERR_EXCERPT_CHARS = 2000
BUDGET_SUBTYPE = "error_max_budget_usd"
MAX_TURNS_TEXT = "Reached maximum number of turns"
MAX_NAMED_CALLS = 8  # open calls in an error text; the others are counted

# Causes for which another vendor of a list may answer: this vendor is not logged in, or has reached
# a rate limit. If its stream never started, START_FAILURE_CAUSES are accepted too, because its
# program could not start. After unknown events no cause is accepted, because these may have been
# work.
FALLBACK_CAUSES = frozenset(("auth", "rate_limit"))
START_FAILURE_CAUSES = frozenset(("exit_code", "signal", "truncated", "protocol"))

DISCONNECT_PHRASES = (
    "stream ended",
    "stream disconnected",
    "stream closed",
    "premature close",
    "premature end",
)


class ChildExit(NamedTuple):
    """How a child ended: its exit code, or the name of the signal that ended it. Both are None if
    it is unknown.
    """

    code: int | None = None
    signal: str | None = None

    def __str__(self) -> str:
        if self.signal:
            return f"was ended by {self.signal}"
        return f"exited with code {self.code}"


class TurnOutcome(NamedTuple):
    """The outcome of a turn. All fields except `kind` and `fields` describe a failure."""

    kind: str  # ended, failed or interrupted
    message: str = ""
    cause: TurnEndCause = "clean"
    failure: ApiFailure = ApiFailure()
    is_api_error: bool = False  # a request to the model's API failed
    subtype: str | None = None
    fields: Mapping[str, Any] = {}  # usage, cost, result …, as the vendor reported them
    # the shim ended the turn, so a later report of the vendor is not the reason
    ended_by_shim: bool = False


class TurnOutcomeTracker:
    """Records the vendor's reports about the end of the turn, and the decisions of the shim."""

    def __init__(self, machine: TurnStateMachine) -> None:
        self._machine = machine
        self.outcome: TurnOutcome | None = None
        self.has_vendor_outcome = False  # the vendor has reported how the turn ended
        self.is_finalized = False  # the vendor has reported that it is done
        self.is_paused = False  # the vendor may be done; it is done if no output follows
        self.has_started = False  # a line was written before the end
        self.child_exit: ChildExit | None = None  # None: the shim ended the child, or it still runs
        # a real claude's own result line, and what it means
        self.vendor_result: tuple[bytes, TurnOutcome | None] = (b"", None)
        self.has_interrupt_line = False  # a real claude wrote the user line of an interrupt
        self.has_interrupted_call = False  # a call was open when the turn was interrupted

    def record_turn_end(self, result_fields: Mapping[str, Any]) -> None:
        if self._is_too_late():
            return
        self.has_vendor_outcome = True
        if self.outcome is None or self.outcome.kind == "ended":
            self.outcome = TurnOutcome("ended", fields=result_fields)
        elif self.outcome.kind == "interrupted" or self.outcome.ended_by_shim:
            self.outcome = self.outcome._replace(fields=result_fields)

    def record_failure(
        self,
        message: str,
        result_fields: Mapping[str, Any],
        api: bool | None = None,
        kind: TurnEndCause | None = None,
        status: int | None = None,
        subtype: str | None = None,
    ) -> None:
        """Record that the turn failed. See `Turn.record_failure`."""
        if self._is_too_late():
            return
        self.has_vendor_outcome = True
        if self.outcome is not None and (
            self.outcome.kind == "interrupted" or self.outcome.ended_by_shim
        ):
            fields = result_fields
            if not fields:
                fields = self.outcome.fields
            self.outcome = self.outcome._replace(fields=fields)
            return
        failure = classify_api_error(message, status)
        if api is None:
            api = failure.is_recognized_api_failure and subtype is None and kind is None
        cause: TurnEndCause = kind or (failure.cause if api else "vendor_error")
        self.outcome = TurnOutcome("failed", message, cause, failure, api, subtype, result_fields)

    def stop(self, message: str, cause: TurnEndCause) -> None:
        """End the turn for this reason. Later reports of the vendor about its end are ignored."""
        if self._machine.state is CLOSED or self.is_interrupted:
            return
        fields = {} if self.outcome is None else self.outcome.fields
        self.outcome = TurnOutcome("failed", message, cause, fields=fields, ended_by_shim=True)

    def record_interrupt(
        self, result_fields: Mapping[str, Any], *, has_open_call: bool = False
    ) -> None:
        """Record that the frontend stopped the turn, or that the vendor reported an interrupt. It
        takes precedence over the vendor's report about the end.
        """
        if self._machine.is_over:
            return
        if self.outcome is not None and self.outcome.ended_by_shim:
            fields = result_fields
            if not fields:
                fields = self.outcome.fields
            self.outcome = self.outcome._replace(fields=fields)
        else:
            self.outcome = TurnOutcome("interrupted", cause="interrupted", fields=result_fields)
        self.record_open_call(has_open_call)

    def record_open_call(self, has_open_call: bool) -> None:
        """Record whether a call is open in an interrupted turn."""
        is_call_interrupted = self.has_interrupted_call or has_open_call
        self.has_interrupted_call = self.is_interrupted and is_call_interrupted

    def record_interrupt_line(self, *, names_tool: bool) -> None:
        """Record the user line that a real claude writes after an interrupt."""
        self.record_interrupt({})
        self.has_interrupt_line = True
        self.has_interrupted_call = names_tool

    def set_vendor_result(self, line: bytes, outcome: TurnOutcome) -> None:
        """Set the result line of a real claude, and the outcome that it means."""
        self.outcome = outcome
        self.vendor_result = line, outcome

    def add_fields(self, fields: Mapping[str, Any]) -> None:
        """Add fields to the outcome, if there is one."""
        if self.outcome is not None:
            self.outcome = self.outcome._replace(fields={**self.outcome.fields, **fields})

    def record_vendor_completion(self) -> None:
        """Record that the vendor is done. The driver may end its process after a moment.

        If the vendor has also reported its outcome, all later output is ignored.
        """
        self.is_finalized = True
        machine = self._machine
        if self.has_vendor_outcome and not machine.is_over:
            self.has_started = machine.state is not NEW
            machine.move_to(READY)
            machine.move_to(DONE, True)

    def cancel_vendor_completion(self) -> None:
        """Record that the vendor continues. This has no effect after the vendor has reported its
        outcome.
        """
        self.is_finalized = self._machine.state is DONE
        self.is_paused = False

    def record_possible_turn_end(self) -> None:
        """Record that the vendor may be done. Used for vendors that do not report their end. If the
        child is persistent, the turn ends when no output follows.
        """
        self.is_paused = not self._machine.is_over

    def reset(self) -> None:
        """Reset the outcome before another attempt."""
        self.outcome = None
        self.is_finalized = self.is_paused = self.has_vendor_outcome = False

    @property
    def is_interrupted(self) -> bool:
        """Whether the turn was interrupted."""
        if self.outcome is None:
            return False
        return self.outcome.kind == "interrupted"

    @property
    def has_failed(self) -> bool:
        """Whether the turn failed or was interrupted."""
        if self.outcome is None:
            return False
        return self.outcome.kind != "ended"

    def _is_too_late(self) -> bool:
        """Return whether the vendor has already reported the end. Only the first report counts."""
        machine = self._machine
        if machine.is_over and machine.state is not CLOSED:
            machine.record_late_event()
        return machine.is_over


class TurnSnapshot(NamedTuple):
    """The state of a turn when its child has ended."""

    config: TurnConfig
    outcome: TurnOutcome | None  # reported by the vendor or decided by the shim
    state: TurnState
    has_started: bool  # a line was written before the end
    has_output: bool  # the model has produced output
    has_effects: bool  # the turn had effects that must not happen twice
    is_repeatable: bool  # the written text is stored, so that it is not written twice
    # the names of the calls without a result, if the last reply ended with calls
    open_call_names: str
    has_unknown_events: bool  # there were events that are not translated
    has_misread_output: bool  # the vendor printed text that is not a known event


def decide_outcome(
    snapshot: TurnSnapshot, child_exit: ChildExit | None, stderr: str
) -> TurnOutcome:
    """Decide the outcome when the child has exited. `child_exit` is None if the shim ended the
    child.
    """
    outcome = snapshot.outcome
    config = snapshot.config
    vendor = config.vendor.name
    if outcome is not None and outcome.kind != "ended":
        return outcome
    if outcome is not None:
        if child_exit is None or (
            child_exit.signal is None and child_exit.code in config.vendor.clean_exit_codes
        ):
            return _check_open_calls(snapshot, outcome) or outcome
        text = f"{vendor} reported success, but {child_exit}" + _format_reason(stderr)
        return TurnOutcome(
            "failed", text, "signal" if child_exit.signal else "exit_code", fields=outcome.fields
        )
    if config.vendor.trust_prompt and config.vendor.trust_prompt in stderr:
        hint = f"\nhint: set trust = true under [vendors.{vendor}] in config.toml, if you trust this folder"
        return TurnOutcome("failed", message=_clean_stderr(stderr) + hint, cause="refused")
    failure = classify_api_error(stderr)
    exit_text = "was ended"
    if child_exit is not None:
        exit_text = str(child_exit)
    cause: TurnEndCause = "truncated"
    if child_exit is not None and child_exit.signal:
        cause = "signal"
    elif failure.is_recognized_api_failure:
        return TurnOutcome(
            "failed",
            message=_clean_stderr(stderr),
            cause=failure.cause,
            failure=failure,
            is_api_error=True,
        )
    elif child_exit is not None and child_exit.code:
        cause = "exit_code"
    elif child_exit is not None and not snapshot.has_started and snapshot.has_misread_output:
        text = f"{vendor} {exit_text} without printing any of the expected output"
        return TurnOutcome("failed", text + _format_reason(stderr), "protocol")
    return TurnOutcome(
        "failed",
        message=f"{vendor} {exit_text} before it finished" + _format_reason(stderr),
        cause=cause,
    )


def build_over_budget_outcome(max_budget_usd: float, fields: Mapping[str, Any]) -> TurnOutcome:
    """Return the outcome of a turn after which the session has cost more than its budget, with
    Claude's text.
    """
    amount = f"{max_budget_usd:.12f}".rstrip("0").rstrip(".")
    text = f"Reached maximum budget (${amount})"
    return TurnOutcome(
        "failed", text, "limit", subtype=BUDGET_SUBTYPE, fields=fields, ended_by_shim=True
    )


def find_failed_attempt(
    snapshot: TurnSnapshot, child_exit: ChildExit | None, stderr: str, *, any_cause: bool
) -> FailedVendorAttempt | None:
    """Return why a vendor did not answer, if another vendor may be asked. Return None if its turn
    is the answer.

    `any_cause`: accept every cause. Otherwise only causes are accepted that another vendor may not
    have.
    """
    if snapshot.has_output or snapshot.has_unknown_events or snapshot.state is CLOSED:
        return None
    outcome = decide_outcome(snapshot, child_exit, stderr)
    if outcome.kind != "failed":
        return None
    failed_to_start = snapshot.state is NEW and child_exit is not None and snapshot.outcome is None
    allows_fallback = any_cause
    if not allows_fallback:
        allows_fallback = outcome.cause in FALLBACK_CAUSES
    if not allows_fallback and not (failed_to_start and outcome.cause in START_FAILURE_CAUSES):
        return None
    return create_failed_vendor_attempt(snapshot.config.vendor.name, outcome.cause, outcome.message)


def can_retry_turn(snapshot: TurnSnapshot, child_exit: ChildExit | None, stderr: str) -> bool:
    """Return whether the stream of a turn was interrupted before it had effects that must not
    happen twice (Yume's R11).
    """
    if (
        not snapshot.config.can_retry
        or snapshot.state is CLOSED
        or snapshot.has_effects
        or not snapshot.is_repeatable
    ):
        return False
    outcome = decide_outcome(snapshot, child_exit, stderr)
    if outcome.kind != "failed" or outcome.subtype is not None:
        return False
    is_cut = (
        outcome.cause == "truncated"
        and not outcome.is_api_error
        and child_exit is not None
        and snapshot.state is not NEW
    )
    if is_cut:
        return True
    if outcome.failure.kind == "connection":
        return True
    return is_disconnect_message(outcome.message)


def is_disconnect_message(message: str) -> bool:
    """Return whether an error text is about an interrupted stream."""
    return any(phrase in message.lower() for phrase in DISCONNECT_PHRASES)


def _check_open_calls(snapshot: TurnSnapshot, outcome: TurnOutcome) -> TurnOutcome | None:
    """Return a failure in place of a success if calls of the last reply have no result.

    A vendor that ends deliberately reports a result as text or structured output. A call with a
    result may be the last event, because some models write no text after it.
    """
    if not snapshot.open_call_names:
        return None
    if outcome.fields.get("result") or outcome.fields.get("structured_output") is not None:
        return None
    text = f"{snapshot.config.vendor.name} reported success, but these calls of its last reply have no result"
    return TurnOutcome(
        "failed", f"{text}: {snapshot.open_call_names}", "truncated", fields=outcome.fields
    )


def format_open_call_names(calls: Mapping[str, tuple[str, str, Any]]) -> str:
    """Format the names of the calls without a result as part of a sentence."""
    names = [name for _, name, _ in islice(calls.values(), MAX_NAMED_CALLS)]
    unnamed_count = len(calls) - len(names)
    return ", ".join(names) + (f" and {unnamed_count} more" if unnamed_count else "")


def _clean_stderr(stderr: str) -> str:
    return shorten_middle(strip_ansi_colors(stderr.strip()), STDERR_EXCERPT_CHARS, "\n…\n")


def _format_reason(stderr: str) -> str:
    text = _clean_stderr(stderr)
    if text:
        return f": {text}"
    return ""
