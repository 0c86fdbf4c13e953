"""Builds a turn's only `result` line, with `is_error`, `subtype`, texts, usage and cost. The input
is immutable data about the turn's end.
"""

from collections.abc import Mapping

from shim.core.api_errors import TurnEndCause, format_api_error
from shim.core.claude.usage import (
    NO_USAGE,
    format_model_usage,
    parse_count_or_zero,
    parse_dollars,
    parse_usage,
)
from shim.core.errors import format_failed_attempts
from shim.core.policy.policy import parse_permission_rule
from shim.core.reading.diagnostics import Diagnostics
from shim.core.reading.json_text import convert_json_to_text, dump_json
from shim.core.reading.limits import omit_middle
from shim.core.reading.typed import Any, NamedTuple
from shim.core.turn.context import TurnConfig, UsageTotals
from shim.core.turn.outcome import HOOK_STOPPED, MAX_TURNS_TEXT, ChildExit, TurnOutcome

INTERRUPTED = "[Request interrupted by user]"  # contract 6.4 defines both texts
INTERRUPTED_IN_TOOL = "[Request interrupted by user for tool use]"

# The subtypes of error results (contract 5.3). Any other subtype from a vendor is replaced with
# error_during_execution.
ERROR_SUBTYPES = frozenset(("error_during_execution", "error_max_turns", "error_max_budget_usd"))
_TERMINAL_REASONS = {"limit": "budget_exhausted", "interrupted": "aborted_streaming"}


class FinishedTurn(NamedTuple):
    """The data about a finished turn from which the result is built."""

    config: TurnConfig
    diagnostics: Diagnostics
    outcome: TurnOutcome
    child_exit: ChildExit | None  # None if the shim ended the child, or it is running
    has_started: bool  # a line was written before the end
    has_output: bool  # the model has produced output
    result_count: int  # the number of tool results that were written
    has_interrupted_call: bool  # a call was open when the turn was interrupted
    stop_reason: str | None  # the last reply's stop reason
    last_text: str  # the last reply's text
    model: str
    vendor_version: str | None
    denials: list[dict[str, Any]]
    usage_totals: UsageTotals
    max_bytes: int  # the maximum length of a line
    # The `origin` member of the user message that this turn answers.
    origin: Mapping[str, Any] | None = None
    # The name of the command that the turn answered without the model, or "".
    local_command: str = ""


class ApiErrorLine(NamedTuple):
    """The line about a failed API request to the model. The result line follows it."""

    text: str
    error: str
    status: int | None
    error_type: str | None


class TurnResult(NamedTuple):
    """A turn's result. `line` is the result line without the fields that every line has."""

    line: dict[str, Any]
    is_error: bool
    cause: TurnEndCause
    final_text: str
    api_error: ApiErrorLine | None = None


def add_result_fields(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the fields of two reports about the end of one turn. The usage, the cost and the times
    are added up. For all other fields, the later report takes precedence.
    """
    fields = {**earlier, **later}
    if "usage" in earlier and "usage" in later:
        usage = parse_usage(earlier["usage"])
        later_usage = parse_usage(later["usage"])
        fields["usage"] = {kind: count + later_usage[kind] for kind, count in usage.items()}
    if earlier.get("cost") is not None and later.get("cost") is not None:
        fields["cost"] = parse_dollars(earlier["cost"]) + parse_dollars(later["cost"])
    for name in ("duration_ms", "api_ms"):
        if name in earlier and name in later:
            fields[name] = parse_count_or_zero(earlier[name]) + parse_count_or_zero(later[name])
    return fields


def build_turn_result(turn_end: FinishedTurn) -> TurnResult:
    """Build the result line, and the line about a failed API request if there was one."""
    outcome = turn_end.outcome
    is_error = outcome.kind != "ended"
    api_error = None
    if is_error and outcome.is_api_error:
        api_error = _build_api_error_line(turn_end)
    duration_ms = parse_count_or_zero(outcome.fields.get("duration_ms"))
    if not duration_ms:
        duration_ms = turn_end.config.elapsed_ms()
    line: dict[str, Any] = {
        "subtype": _choose_subtype(outcome),
        "is_error": is_error,
        "duration_ms": duration_ms,
        "duration_api_ms": parse_count_or_zero(outcome.fields.get("api_ms")),
        "num_turns": _count_turns(turn_end),
    }
    if is_error:
        final_text = _add_error(line, turn_end, api_error)
    else:
        final_text = _add_answer(line, turn_end)
    line["stop_reason"] = _choose_stop_reason(turn_end, is_error)
    line |= _format_usage(turn_end.usage_totals)
    line["permission_denials"] = turn_end.denials
    if turn_end.local_command and not is_error:
        line["local_command"] = turn_end.local_command
    elif not outcome.fields.get("rejected"):
        line["terminal_reason"] = _choose_terminal_reason(turn_end)
    if turn_end.origin is not None:
        line["origin"] = turn_end.origin
    line["fast_mode_state"] = "off"
    line["shim"] = _build_shim_member(turn_end)
    return TurnResult(line, is_error, outcome.cause, final_text, api_error)


def _build_api_error_line(turn_end: FinishedTurn) -> ApiErrorLine:
    """Build the line about a failed API request. It has the same text as the result."""
    failure = turn_end.outcome.failure
    text = omit_middle(_format_api_error(turn_end), turn_end.max_bytes // 4)
    text += _format_failed_attempts(turn_end)
    return ApiErrorLine(text, failure.assistant_error, failure.status, failure.error_type)


def _add_error(line: dict[str, Any], turn_end: FinishedTurn, api_error: ApiErrorLine | None) -> str:
    """Add the description of a failure to a result line, and return it."""
    if api_error is None:
        line["errors"] = _list_errors(turn_end)
        return str(line["errors"][0])
    line["result"] = api_error.text
    line["api_error_status"] = api_error.status
    if api_error.error_type:
        line["api_error_type"] = api_error.error_type
    return api_error.text


def _add_answer(line: dict[str, Any], turn_end: FinishedTurn) -> str:
    """Add the answer of a successful turn to a result line, and return the answer's text."""
    outcome = turn_end.outcome
    structured_output = outcome.fields.get("structured_output")
    if structured_output is None:
        line["result"] = _choose_result_text(turn_end)
    else:
        line["result"] = dump_json(structured_output).decode()
        line["structured_output"] = structured_output
    # The real claude omits this member if no request was sent.
    was_rejected_by_hook = outcome.fields.get("rejected")
    if not turn_end.local_command and not was_rejected_by_hook:
        line["api_error_status"] = outcome.failure.status
    return str(line["result"])


def build_minimal_error_result(
    vendor_name: str, text: str, cause: TurnEndCause = "internal"
) -> dict[str, Any]:
    """Build an error result without any data from the turn.

    `num_turns` is 1 for an internal error. Otherwise `num_turns` is 0, because a session that does
    not exist had no turn (5.10).
    """
    return {
        "subtype": "error_during_execution",
        "is_error": True,
        "duration_ms": 0,
        "duration_api_ms": 0,
        "num_turns": int(cause == "internal"),
        "errors": [text],
        "stop_reason": None,
        "total_cost_usd": 0,
        "usage": NO_USAGE,
        "modelUsage": {},
        "permission_denials": [],
        "terminal_reason": "model_error",
        "shim": {"vendor": vendor_name, "cause": cause, "repairs": {}, "unknown_events": {}},
    }


def _format_failed_attempts(turn_end: FinishedTurn) -> str:
    """Describe why the vendors that were tried earlier gave no answer."""
    if turn_end.has_output or turn_end.outcome.kind == "interrupted":
        return ""
    return format_failed_attempts(turn_end.config.failed_attempts)


def _format_api_error(turn_end: FinishedTurn) -> str:
    config = turn_end.config
    outcome = turn_end.outcome
    if config.vendor.has_claude_errors:
        return outcome.message
    model = config.model
    if not model:
        model = turn_end.model
    return format_api_error(
        outcome.failure,
        outcome.message,
        vendor=config.vendor.name,
        login_hint=config.vendor.login_command,
        model=model,
    )


def _list_errors(turn_end: FinishedTurn) -> list[str]:
    """Return the error texts of a failed or interrupted turn. For a turn limit that the vendor
    enforced, these are Claude's text (contract F10) and the vendor's text.
    """
    outcome = turn_end.outcome
    if outcome.subtype != "error_max_turns" or outcome.message.startswith(MAX_TURNS_TEXT):
        return [(outcome.message or INTERRUPTED) + _format_failed_attempts(turn_end)]
    max_turns = turn_end.config.limits.requested_max_turns
    return [
        MAX_TURNS_TEXT if max_turns is None else f"{MAX_TURNS_TEXT} ({max_turns})",
        *([outcome.message] if outcome.message else []),
    ]


def _choose_result_text(turn_end: FinishedTurn) -> str:
    """Return the text of a successful result. A turn that a hook ended after a tool call has no
    answer.
    """
    if turn_end.outcome.terminal_reason == HOOK_STOPPED:
        return ""
    return choose_answer(turn_end.last_text, turn_end.outcome)


def choose_answer(last_text: str, outcome: TurnOutcome) -> str:
    """Return the text of the last reply. If there is none, return the answer from the vendor's
    report about the turn's end.
    """
    if last_text:
        return last_text
    return convert_json_to_text(outcome.fields.get("result"))


def _choose_subtype(outcome: TurnOutcome) -> str:
    if outcome.kind == "ended" or outcome.is_api_error:
        return "success"
    if outcome.subtype in ERROR_SUBTYPES:
        return outcome.subtype
    return "error_during_execution"


def _count_turns(turn_end: FinishedTurn) -> int:
    """Return `num_turns`: 1, plus 1 for each tool result and 1 for an interrupt (contract 5.3).

    A turn that never started counts as 0 (5.10). A command that the vendor answered without its
    model also counts as 0.
    """
    outcome = turn_end.outcome
    if outcome.fields.get("local") or outcome.fields.get("unsent") or turn_end.local_command:
        return 0
    if not turn_end.has_started and outcome.kind == "failed" and not outcome.is_api_error:
        return 0
    return 1 + turn_end.result_count + (outcome.kind == "interrupted")


def _choose_stop_reason(turn_end: FinishedTurn, is_error: bool) -> str | None:
    if turn_end.outcome.is_api_error:
        if turn_end.outcome.failure.kind == "filtered":
            return "refusal"
        return "stop_sequence"
    if turn_end.outcome.terminal_reason == HOOK_STOPPED:
        return "tool_use"
    if is_error or turn_end.outcome.fields.get("unsent") or turn_end.local_command:
        return turn_end.stop_reason
    return turn_end.stop_reason or "end_turn"


def _format_usage(totals: UsageTotals) -> dict[str, Any]:
    return {
        "total_cost_usd": totals.session_cost_usd,
        "usage": totals.turn_usage,
        "modelUsage": format_model_usage(
            totals.session_usage, totals.session_cost_usd, totals.context_window_by_model
        ),
    }


def _choose_terminal_reason(turn_end: FinishedTurn) -> str:
    outcome = turn_end.outcome
    if outcome.kind == "ended":
        return outcome.terminal_reason or "completed"
    if outcome.is_api_error:
        if outcome.failure.is_recognized_api_failure:
            return outcome.failure.terminal_reason
        return "api_error"
    if outcome.subtype == "error_max_turns":
        return "max_turns"
    if outcome.kind == "interrupted" and turn_end.has_interrupted_call:
        return "aborted_tools"
    return _TERMINAL_REASONS.get(outcome.cause, "model_error")


def _build_shim_member(turn_end: FinishedTurn) -> dict[str, Any]:
    """Build the result's `shim` member: the vendor, the cause of the turn's end, and the
    repairs.
    """
    diagnostics = turn_end.diagnostics
    child_exit = turn_end.child_exit
    member: dict[str, Any] = {"vendor": turn_end.config.vendor.name}
    if turn_end.vendor_version:
        member["vendor_version"] = turn_end.vendor_version
    if turn_end.config.vendor.is_replay:
        member["replay"] = True
    if turn_end.config.failed_attempts:
        member["tried"] = [item.to_json() for item in turn_end.config.failed_attempts]
    if turn_end.config.unsupported_rules and (
        unsupported_rules := _list_unsupported_rules(turn_end)
    ):
        member["not_honoured"] = unsupported_rules
    member["cause"] = turn_end.outcome.cause
    if child_exit is not None and child_exit.signal:
        member["signal"] = child_exit.signal
    elif child_exit is not None and child_exit.code:
        member["exit_code"] = child_exit.code
    member |= {"repairs": diagnostics.repairs, "unknown_events": diagnostics.unknown_events}
    if diagnostics.redactions:
        member["redacted"] = diagnostics.redactions
    return member


def _list_unsupported_rules(turn_end: FinishedTurn) -> list[dict[str, str]]:
    """Return the allow rules that could not be passed to the vendor and that apply to the tool of a
    denied call.
    """
    denied_tools = {denial["tool_name"] for denial in turn_end.denials}
    return [
        rule.to_json()
        for rule in turn_end.config.unsupported_rules
        if any(parse_permission_rule(rule.what).matches_tool(str(name)) for name in denied_tools)
    ]
