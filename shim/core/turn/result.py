"""The one `result` of a turn: `is_error`, `subtype`, texts, usage and cost, out of frozen facts
about the end.
"""

from collections.abc import Mapping

from shim.core.api_errors import Cause, format_api_error
from shim.core.claude.usage import CONTEXT_WINDOW_TOKENS, NO_USAGE, parse_count
from shim.core.errors import format_failed_attempts
from shim.core.policy.rules import parse_rule
from shim.core.reading.account import Diagnostics
from shim.core.reading.json_text import dump_json
from shim.core.reading.limits import cut_text
from shim.core.reading.typed import Any, NamedTuple
from shim.core.turn.outcome import MAX_TURNS_TEXT, ChildExit, TurnOutcome
from shim.core.turn.terms import TurnConfig, UsageTotals

INTERRUPTED = "[Request interrupted by user]"  # both texts: contract 6.4
INTERRUPTED_IN_TOOL = "[Request interrupted by user for tool use]"

# Claude's own number for a model that it does not know; clients divide by it (contract 5.3, ACP).
MAX_OUTPUT_TOKENS = 32_000

# The subtypes of an error (contract 5.3); what a vendor calls its own is none of them.
ERROR_SUBTYPES = frozenset(("error_during_execution", "error_max_turns", "error_max_budget_usd"))
_TERMINAL_REASONS = {"limit": "budget_exhausted", "interrupted": "aborted_streaming"}


class TurnEnd(NamedTuple):
    """All that a result is made of."""

    config: TurnConfig
    diagnostics: Diagnostics
    outcome: TurnOutcome
    child_exit: ChildExit | None  # None: we ended the child, or it stays
    has_started: bool  # something was said before the end
    has_output: bool  # something of the model's was said or done
    result_count: int  # of calls
    has_interrupted_call: bool  # a call was open when the turn was interrupted
    stop_reason: str | None  # of the last reply
    last_text: str  # of the last reply
    model: str
    vendor_version: str | None
    denials: list[dict[str, Any]]
    usage_totals: UsageTotals
    max_bytes: int  # characters of a line
    # `origin` of the message that this turn answers, sent by the frontend
    origin: Mapping[str, Any] | None = None


class ApiErrorLine(NamedTuple):
    """The line of a failed request to the model's API, which stands before the result."""

    text: str
    error: str
    status: int | None
    error_type: str | None


class TurnResult(NamedTuple):
    """What is said at the end: `line` is the result without the members of every line."""

    line: dict[str, Any]
    is_error: bool
    cause: Cause
    final_text: str
    api_error: ApiErrorLine | None = None


def build_result(end: TurnEnd) -> TurnResult:
    """The end of a turn: the line of an API failure, if it was one, and the result."""
    outcome, failure, text = end.outcome, end.outcome.failure, end.outcome.message
    is_error = outcome.kind != "ended"
    api_error = None
    if is_error and outcome.is_api_error:
        # the error's line and the result say the same
        text = cut_text(_format_api_error(end), end.max_bytes // 4) + _format_failed_attempts(end)
        api_error = ApiErrorLine(text, failure.error, failure.status, failure.error_type)
    line: dict[str, Any] = {
        "subtype": _choose_subtype(outcome),
        "is_error": is_error,
        "duration_ms": parse_count(outcome.fields.get("duration_ms")) or end.config.elapsed_ms(),
        "duration_api_ms": parse_count(outcome.fields.get("api_ms")),
        "num_turns": _count_turns(end),
    }
    if not is_error:
        final_text = line["result"] = end.last_text or str(outcome.fields.get("result") or "")
    elif outcome.is_api_error:
        final_text = line["result"] = text
    else:
        line["errors"] = _list_limit_errors(end) or [
            (text or INTERRUPTED) + _format_failed_attempts(end)
        ]
        final_text = line["errors"][0]
    structured = outcome.fields.get("structured_output")
    if structured is not None and not is_error:
        final_text = line["result"] = dump_json(structured).decode()
        line["structured_output"] = structured
    if not is_error or outcome.is_api_error:
        line["api_error_status"] = failure.status
    if outcome.is_api_error and failure.error_type:
        line["api_error_type"] = failure.error_type
    line["stop_reason"] = _choose_stop_reason(end, is_error)
    line |= _format_usage(end.usage_totals)
    line["permission_denials"] = end.denials
    line["terminal_reason"] = _choose_terminal_reason(end)
    if end.origin is not None:
        line["origin"] = end.origin
    line["fast_mode_state"] = "off"
    line["shim"] = _build_shim_member(end)
    return TurnResult(line, is_error, outcome.cause, final_text, api_error)


def build_bare_error(vendor: str, text: str, cause: Cause = "internal") -> dict[str, Any]:
    """An error result that depends on nothing that happened; a session that is not there had no
    turn (5.10).
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
        "shim": {"vendor": vendor, "cause": cause, "repairs": {}, "unknown_events": {}},
    }


def _format_failed_attempts(end: TurnEnd) -> str:
    """Why the vendors that were asked before did not answer either, where this one said nothing
    too.
    """
    return (
        ""
        if end.has_output or end.outcome.kind == "interrupted"
        else format_failed_attempts(end.config.failed_attempts)
    )


def _format_api_error(end: TurnEnd) -> str:
    terms, outcome = end.config, end.outcome
    if terms.vendor.has_claude_errors:
        return outcome.message
    model = terms.model or end.model
    return format_api_error(
        outcome.failure,
        outcome.message,
        vendor=terms.vendor.name,
        login_hint=terms.vendor.login_command,
        model=model,
    )


def _list_limit_errors(end: TurnEnd) -> list[str]:
    """A turn limit that the vendor itself counted, in Claude's words (contract F10) and then in its
    own.
    """
    outcome = end.outcome
    if outcome.subtype != "error_max_turns" or outcome.message.startswith(MAX_TURNS_TEXT):
        return []
    asked = end.config.limits.requested_max_turns
    return [
        MAX_TURNS_TEXT if asked is None else f"{MAX_TURNS_TEXT} ({asked})",
        *([outcome.message] if outcome.message else []),
    ]


def _choose_subtype(outcome: TurnOutcome) -> str:
    if outcome.kind == "ended" or outcome.is_api_error:
        return "success"
    return outcome.subtype if outcome.subtype in ERROR_SUBTYPES else "error_during_execution"


def _count_turns(end: TurnEnd) -> int:
    """Contract 5.3: one, and one for each tool result, and one for an interrupt; none if it never
    began (5.10).

    What a command of the vendor's answered without its model counts as none too.
    """
    outcome = end.outcome
    if outcome.fields.get("local") or outcome.fields.get("unsent"):
        return 0
    if not end.has_started and outcome.kind == "failed" and not outcome.is_api_error:
        return 0
    return 1 + end.result_count + (outcome.kind == "interrupted")


def _choose_stop_reason(end: TurnEnd, is_error: bool) -> str | None:
    if end.outcome.is_api_error:
        return "refusal" if end.outcome.failure.kind == "filtered" else "stop_sequence"
    if is_error or end.outcome.fields.get("unsent"):
        return end.stop_reason
    return end.stop_reason or "end_turn"


def _format_usage(spent: UsageTotals) -> dict[str, Any]:
    only = len(spent.session_usage) == 1
    return {
        "total_cost_usd": spent.session_cost_usd,
        "usage": spent.turn_usage,
        "modelUsage": {
            model: {
                "inputTokens": counted["input_tokens"],
                "outputTokens": counted["output_tokens"],
                "cacheReadInputTokens": counted["cache_read_input_tokens"],
                "cacheCreationInputTokens": counted["cache_creation_input_tokens"],
                "webSearchRequests": 0,
                "costUSD": spent.session_cost_usd if only else 0,
                "contextWindow": CONTEXT_WINDOW_TOKENS,
                "maxOutputTokens": MAX_OUTPUT_TOKENS,
            }
            for model, counted in spent.session_usage.items()
        },
    }


def _choose_terminal_reason(end: TurnEnd) -> str:
    outcome = end.outcome
    if outcome.kind == "ended":
        return "completed"
    if outcome.is_api_error:
        return outcome.failure.terminal_reason if outcome.failure.is_api_failure else "api_error"
    if outcome.subtype == "error_max_turns":
        return "max_turns"
    if outcome.kind == "interrupted" and end.has_interrupted_call:
        return "aborted_tools"
    return _TERMINAL_REASONS.get(outcome.cause, "model_error")


def _build_shim_member(end: TurnEnd) -> dict[str, Any]:
    """The member that is ours: who answered, why it ended, and what had to be mended."""
    account, ended = end.diagnostics, end.child_exit
    shim: dict[str, Any] = {"vendor": end.config.vendor.name}
    if end.vendor_version:
        shim["vendor_version"] = end.vendor_version
    if end.config.vendor.is_replay:
        shim["replay"] = True
    if end.config.failed_attempts:
        shim["tried"] = [it.to_json() for it in end.config.failed_attempts]
    if end.config.unsupported_rules and (wanted := _list_unsupported_rules(end)):
        shim["not_honoured"] = wanted
    shim["cause"] = end.outcome.cause
    if ended is not None and ended.signal:
        shim["signal"] = ended.signal
    elif ended is not None and ended.code:
        shim["exit_code"] = ended.code
    shim |= {"repairs": account.repairs, "unknown_events": account.unknown_events}
    if account.redactions:
        shim["redacted"] = account.redactions
    return shim


def _list_unsupported_rules(end: TurnEnd) -> list[dict[str, str]]:
    """The rules that allow a tool of which a call was denied, because the vendor could not be told
    them.
    """
    denied = {denial["tool_name"] for denial in end.denials}
    return [
        it.to_json()
        for it in end.config.unsupported_rules
        if any(parse_rule(it.what).matches_tool(str(name)) for name in denied)
    ]
