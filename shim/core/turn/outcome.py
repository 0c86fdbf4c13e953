"""Determines a turn's outcome from the vendor's report and from how the vendor's process ended.

An interrupt takes precedence over a failure, and a failure over a success. A turn without a report
from the vendor is an error.
"""

from collections.abc import Mapping
from itertools import islice

from shim.core.api_errors import ApiFailure, TurnEndCause, classify_api_error
from shim.core.errors import FailedVendorAttempt, create_failed_vendor_attempt
from shim.core.reading.head_and_tail import shorten_middle
from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import strip_ansi_colors
from shim.core.turn.context import TurnConfig
from shim.core.turn.machine import CLOSED, DONE, NEW, READY, TurnState, TurnStateMachine

# The maximum length of stderr in an error text: enough for a reason, and short enough for a dialog.
STDERR_EXCERPT_CHARS = 2000
BUDGET_SUBTYPE = "error_max_budget_usd"
MAX_TURNS_TEXT = "Reached maximum number of turns"
# The terminal reasons of a turn that a hook ended: after a tool call, or after the answer.
HOOK_STOPPED = "hook_stopped"
STOP_HOOK_PREVENTED = "stop_hook_prevented"
MAX_NAMED_CALLS = 8  # the maximum number of open calls that an error text names

# Causes of a failure after which the next vendor in a list is tried: the vendor is not logged in,
# or has reached a rate limit. If the vendor's stream never started, START_FAILURE_CAUSES are also
# accepted, because the program could not start. After unknown events, no cause is accepted, because
# the vendor may already have done work.
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
    """How a child process ended: its exit code, or the name of the signal that ended it. If neither
    is known, both are None.
    """

    code: int | None = None
    signal: str | None = None

    def __str__(self) -> str:
        if self.signal:
            return f"was ended by {self.signal}"
        return f"exited with code {self.code}"


class TurnOutcome(NamedTuple):
    """A turn's outcome. All fields except `kind` and `fields` describe a failure."""

    kind: str  # ended, failed or interrupted
    message: str = ""
    cause: TurnEndCause = "clean"
    failure: ApiFailure = ApiFailure()
    is_api_error: bool = False  # an API request to the model failed
    subtype: str | None = None
    fields: Mapping[str, Any] = {}  # usage, cost, result …, as the vendor reported them
    # Whether the shim ended the turn. Later reports from the vendor do not change the reason.
    ended_by_shim: bool = False
    terminal_reason: str = ""  # how a hook ended the turn, or ""


class TurnOutcomeTracker:
    """Records what the vendor reports about the end of the turn, and what the shim decides."""

    def __init__(self, machine: TurnStateMachine) -> None:
        self._machine = machine
        self.outcome: TurnOutcome | None = None
        self.has_vendor_outcome = False  # the vendor has reported how the turn ended
        self.is_finalized = False  # the vendor has reported that it is done
        self.is_paused = False  # the turn ends if the vendor prints no more output
        self.has_started = False  # a line was written before the end
        self.child_exit: ChildExit | None = (
            None  # None if the shim ended the child, or it is running
        )
        # The real claude's own result line, and the outcome that the line reports.
        self.vendor_result: tuple[bytes, TurnOutcome | None] = (b"", None)
        self.has_interrupt_line = False  # the real claude wrote its line about an interrupt
        self.has_interrupted_call = False  # a call was open when the turn was interrupted
        # The vendor's reports about the end of the turn, each of which a hook has made obsolete by
        # continuing the turn.
        self.earlier_fields: list[Mapping[str, Any]] = []
        self.hook_text_count = 0  # the number of hook texts that were written as user messages

    def record_turn_end(self, result_fields: Mapping[str, Any]) -> None:
        if self._is_too_late():
            return
        self.has_vendor_outcome = True
        if self.outcome is not None and self.outcome.ended_by_shim:
            self.outcome = self.outcome._replace(fields=result_fields)
        elif self.outcome is None or self.outcome.kind == "ended":
            self.outcome = TurnOutcome("ended", fields=result_fields)
        elif self.outcome.kind == "interrupted":
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
        """Record that the turn failed. `Turn.record_failure` describes the arguments."""
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
        cause: TurnEndCause = "vendor_error"
        if kind is not None:
            cause = kind
        elif api:
            cause = failure.cause
        self.outcome = TurnOutcome("failed", message, cause, failure, api, subtype, result_fields)

    def stop(self, message: str, cause: TurnEndCause) -> None:
        """Let the turn fail with this message and cause. Later reports from the vendor about the
        turn's end are ignored.
        """
        if self._machine.state is CLOSED or self.is_interrupted:
            return
        fields = {} if self.outcome is None else self.outcome.fields
        self.outcome = TurnOutcome("failed", message, cause, fields=fields, ended_by_shim=True)

    def record_interrupt(
        self, result_fields: Mapping[str, Any], *, has_open_call: bool = False
    ) -> None:
        """Record that the turn was interrupted, by the frontend or by the vendor. An interrupt
        takes precedence over the vendor's report about the turn's end.
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
        """Record whether an interrupted turn has an open tool call."""
        if not self.is_interrupted:
            self.has_interrupted_call = False
        elif has_open_call:
            self.has_interrupted_call = True

    def record_interrupt_line(self, *, names_tool: bool) -> None:
        """Record that the real claude wrote its user line about an interrupt."""
        self.record_interrupt({})
        self.has_interrupt_line = True
        self.has_interrupted_call = names_tool

    def stop_by_hook(self) -> None:
        """End the turn successfully, because a hook does not let it continue after a tool call."""
        if self._machine.state is CLOSED or self.is_interrupted:
            return
        fields = {} if self.outcome is None else self.outcome.fields
        self.outcome = TurnOutcome(
            "ended", fields=fields, ended_by_shim=True, terminal_reason=HOOK_STOPPED
        )

    def set_terminal_reason(self, terminal_reason: str) -> None:
        """Set how a hook ended the turn. The rest of the outcome stays as the vendor reported it."""
        if self.outcome is not None:
            self.outcome = self.outcome._replace(terminal_reason=terminal_reason)

    def set_vendor_result(self, line: bytes, outcome: TurnOutcome) -> None:
        """Set the real claude's own result line, and the outcome that the line reports."""
        self.outcome = outcome
        self.vendor_result = line, outcome

    def add_fields(self, fields: Mapping[str, Any]) -> None:
        """Add fields to the outcome if the outcome is already known."""
        if self.outcome is not None:
            self.outcome = self.outcome._replace(fields={**self.outcome.fields, **fields})

    def record_vendor_completion(self) -> None:
        """Record that the vendor has completed the turn. The driver may end the vendor's process
        shortly afterwards.

        If the vendor has also reported its outcome, all further output is ignored.
        """
        self.is_finalized = True
        machine = self._machine
        if self.has_vendor_outcome and not machine.is_over:
            self.has_started = machine.state is not NEW
            machine.move_to(READY)
            machine.move_to(DONE, True)

    def cancel_vendor_completion(self) -> None:
        """Record that the vendor continues the turn. If the vendor has already reported its
        outcome, this has no effect.
        """
        self.is_finalized = self._machine.state is DONE
        self.is_paused = False

    def record_possible_turn_end(self) -> None:
        """Record that the vendor may have completed the turn. This method is used for vendors that
        do not report the end of a turn. If the vendor's process is persistent, the turn ends
        when no more output follows.
        """
        self.is_paused = not self._machine.is_over

    def reset(self) -> None:
        """Reset the outcome before the turn is tried again."""
        self.outcome = None
        self.is_finalized = self.is_paused = self.has_vendor_outcome = False

    def continue_after_hook(self, text_count: int) -> None:
        """Reset the outcome, because a hook continues the turn with texts for the model.
        `text_count` is the number of these texts that are written as user messages.
        """
        if self.outcome is not None:
            self.earlier_fields.append(self.outcome.fields)
        self.hook_text_count += text_count
        self.reset()

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
        """Return whether the vendor has already reported the end of the turn. Only its first report
        counts.
        """
        machine = self._machine
        if machine.is_over and machine.state is not CLOSED:
            machine.record_late_event()
        return machine.is_over


class TurnSnapshot(NamedTuple):
    """A turn's state after its child process has ended."""

    config: TurnConfig
    outcome: TurnOutcome | None  # reported by the vendor or decided by the shim
    state: TurnState
    has_started: bool  # a line was written before the end
    has_output: bool  # the model has produced output
    has_effects: bool  # the turn had effects that must not happen twice
    is_repeatable: bool  # the written text is stored, so a retry does not write the text twice
    # The names of the calls without a result, if the last reply ended with calls.
    open_call_names: str
    has_unknown_events: bool  # the vendor sent events that the shim does not know
    has_misread_output: bool  # the vendor printed text that is not an event


def decide_outcome(
    snapshot: TurnSnapshot, child_exit: ChildExit | None, stderr: str
) -> TurnOutcome:
    """Decide a turn's outcome after the child process has exited. `child_exit` is None if the shim
    ended the process.
    """
    outcome = snapshot.outcome
    config = snapshot.config
    vendor = config.vendor.name
    if outcome is not None and (outcome.kind != "ended" or outcome.ended_by_shim):
        return outcome
    if outcome is not None:
        if child_exit is None or (
            child_exit.signal is None and child_exit.code in config.vendor.clean_exit_codes
        ):
            return _check_open_calls(snapshot, outcome)
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
    """Return the outcome for a session that has exceeded its budget. The message is Claude's own
    text.
    """
    amount = f"{max_budget_usd:.12f}".rstrip("0").rstrip(".")
    text = f"Reached maximum budget (${amount})"
    return TurnOutcome(
        "failed", text, "limit", subtype=BUDGET_SUBTYPE, fields=fields, ended_by_shim=True
    )


def find_failed_attempt(
    snapshot: TurnSnapshot, child_exit: ChildExit | None, stderr: str, *, any_cause: bool
) -> FailedVendorAttempt | None:
    """Return why a vendor gave no answer, if another vendor may be tried. Return None if the turn
    must not be repeated with another vendor.

    If `any_cause` is set, every cause of a failure is accepted. Otherwise, only causes that concern
    a single vendor are accepted: FALLBACK_CAUSES and START_FAILURE_CAUSES.
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
    """Return whether a turn can be retried: its stream was interrupted before the turn had effects
    that must not happen twice (Yume's R11).
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
    if (
        outcome.cause == "truncated"
        and not outcome.is_api_error
        and child_exit is not None
        and snapshot.state is not NEW
    ):
        return True
    if outcome.failure.kind == "connection":
        return True
    return is_disconnect_message(outcome.message)


def is_disconnect_message(message: str) -> bool:
    """Return whether an error text describes an interrupted stream."""
    return any(phrase in message.lower() for phrase in DISCONNECT_PHRASES)


def _check_open_calls(snapshot: TurnSnapshot, outcome: TurnOutcome) -> TurnOutcome:
    """Return a failure if tool calls of the last reply have no result, although the vendor reported
    success. Otherwise return `outcome`.

    If the vendor reported the answer as text or structured output, it ended the turn on purpose. A
    tool call with a result may be the last event, because some models write no text after it.
    """
    if not snapshot.open_call_names:
        return outcome
    if outcome.fields.get("result") or outcome.fields.get("structured_output") is not None:
        return outcome
    text = f"{snapshot.config.vendor.name} reported success, but these calls of its last reply have no result"
    return TurnOutcome(
        "failed", f"{text}: {snapshot.open_call_names}", "truncated", fields=outcome.fields
    )


def format_open_call_names(calls: Mapping[str, tuple[str, str, Any]]) -> str:
    """Format the names of tool calls without a result as a list for an error text."""
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
