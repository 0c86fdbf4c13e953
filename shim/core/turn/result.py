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
from shim.core.turn.outcome import MAX_TURNS, ChildExit, TurnOutcome
from shim.core.turn.terms import Spent, Terms

INTERRUPTED = "[Request interrupted by user]"  # both texts: contract 6.4
INTERRUPTED_IN_TOOL = "[Request interrupted by user for tool use]"

# Claude's own number for a model that it does not know; clients divide by it (contract 5.3, ACP).
OUTPUT_TOKENS = 32_000

# The subtypes of an error (contract 5.3); what a vendor calls its own is none of them.
SUBTYPES = frozenset(("error_during_execution", "error_max_turns", "error_max_budget_usd"))
_TERMINAL_REASONS = {"limit": "budget_exhausted", "interrupted": "aborted_streaming"}


class EndOfTurn(NamedTuple):
    """All that a result is made of."""

    terms: Terms
    account: Diagnostics
    outcome: TurnOutcome
    child_exit: ChildExit | None  # None: we ended the child, or it stays
    began: bool  # something was said before the end
    spoken: bool  # something of the model's was said or done
    results: int  # of calls
    interrupted_call: bool  # a call was open when the turn was interrupted
    stop_reason: str | None  # of the last reply
    last_text: str  # of the last reply
    model: str
    vendor_version: str | None
    denials: list[dict[str, Any]]
    spent: Spent
    room: int  # characters of a line
    # `origin` of the message that this turn answers, sent by the frontend
    origin: Mapping[str, Any] | None = None


class ApiError(NamedTuple):
    """The line of a failed request to the model's API, which stands before the result."""

    text: str
    error: str
    status: int | None
    error_type: str | None


class Result(NamedTuple):
    """What is said at the end: `line` is the result without the members of every line."""

    line: dict[str, Any]
    is_error: bool
    cause: Cause
    final_text: str
    api_error: ApiError | None = None


def conclude(end: EndOfTurn) -> Result:
    """The end of a turn: the line of an API failure, if it was one, and the result."""
    outcome, failure, text = end.outcome, end.outcome.failure, end.outcome.message
    is_error = outcome.kind != "ended"
    api_error = None
    if is_error and outcome.api:
        # the error's line and the result say the same
        text = cut_text(_api_text(end), end.room // 4) + _others(end)
        api_error = ApiError(text, failure.error, failure.status, failure.error_type)
    line: dict[str, Any] = {
        "subtype": _subtype(outcome),
        "is_error": is_error,
        "duration_ms": parse_count(outcome.facts.get("duration_ms")) or end.terms.clock(),
        "duration_api_ms": parse_count(outcome.facts.get("api_ms")),
        "num_turns": _num_turns(end),
    }
    if not is_error:
        final_text = line["result"] = end.last_text or str(outcome.facts.get("result") or "")
    elif outcome.api:
        final_text = line["result"] = text
    else:
        line["errors"] = _limit_reached(end) or [(text or INTERRUPTED) + _others(end)]
        final_text = line["errors"][0]
    structured = outcome.facts.get("structured_output")
    if structured is not None and not is_error:
        final_text = line["result"] = dump_json(structured).decode()
        line["structured_output"] = structured
    if not is_error or outcome.api:
        line["api_error_status"] = failure.status
    if outcome.api and failure.error_type:
        line["api_error_type"] = failure.error_type
    line["stop_reason"] = _stop_reason(end, is_error)
    line |= _accounts(end.spent)
    line["permission_denials"] = end.denials
    line["terminal_reason"] = _terminal_reason(end)
    if end.origin is not None:
        line["origin"] = end.origin
    line["fast_mode_state"] = "off"
    line["shim"] = _shim(end)
    return Result(line, is_error, outcome.cause, final_text, api_error)


def bare(vendor: str, text: str, cause: Cause = "internal") -> dict[str, Any]:
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


def _others(end: EndOfTurn) -> str:
    """Why the vendors that were asked before did not answer either, where this one said nothing
    too.
    """
    return (
        ""
        if end.spoken or end.outcome.kind == "interrupted"
        else format_failed_attempts(end.terms.tried)
    )


def _api_text(end: EndOfTurn) -> str:
    terms, outcome = end.terms, end.outcome
    if terms.vendor.worded:
        return outcome.message
    model = terms.model or end.model
    return format_api_error(
        outcome.failure,
        outcome.message,
        vendor=terms.vendor.name,
        login_hint=terms.vendor.login,
        model=model,
    )


def _limit_reached(end: EndOfTurn) -> list[str]:
    """A turn limit that the vendor itself counted, in Claude's words (contract F10) and then in its
    own.
    """
    outcome = end.outcome
    if outcome.subtype != "error_max_turns" or outcome.message.startswith(MAX_TURNS):
        return []
    asked = end.terms.limits.turns_asked
    return [
        MAX_TURNS if asked is None else f"{MAX_TURNS} ({asked})",
        *([outcome.message] if outcome.message else []),
    ]


def _subtype(outcome: TurnOutcome) -> str:
    if outcome.kind == "ended" or outcome.api:
        return "success"
    return outcome.subtype if outcome.subtype in SUBTYPES else "error_during_execution"


def _num_turns(end: EndOfTurn) -> int:
    """Contract 5.3: one, and one for each tool result, and one for an interrupt; none if it never
    began (5.10).

    What a command of the vendor's answered without its model counts as none too.
    """
    outcome = end.outcome
    if outcome.facts.get("local") or outcome.facts.get("unsent"):
        return 0
    if not end.began and outcome.kind == "failed" and not outcome.api:
        return 0
    return 1 + end.results + (outcome.kind == "interrupted")


def _stop_reason(end: EndOfTurn, is_error: bool) -> str | None:
    if end.outcome.api:
        return "refusal" if end.outcome.failure.kind == "filtered" else "stop_sequence"
    if is_error or end.outcome.facts.get("unsent"):
        return end.stop_reason
    return end.stop_reason or "end_turn"


def _accounts(spent: Spent) -> dict[str, Any]:
    only = len(spent.session_usage) == 1
    return {
        "total_cost_usd": spent.session_cost,
        "usage": spent.usage,
        "modelUsage": {
            model: {
                "inputTokens": counted["input_tokens"],
                "outputTokens": counted["output_tokens"],
                "cacheReadInputTokens": counted["cache_read_input_tokens"],
                "cacheCreationInputTokens": counted["cache_creation_input_tokens"],
                "webSearchRequests": 0,
                "costUSD": spent.session_cost if only else 0,
                "contextWindow": CONTEXT_WINDOW_TOKENS,
                "maxOutputTokens": OUTPUT_TOKENS,
            }
            for model, counted in spent.session_usage.items()
        },
    }


def _terminal_reason(end: EndOfTurn) -> str:
    outcome = end.outcome
    if outcome.kind == "ended":
        return "completed"
    if outcome.api:
        return outcome.failure.terminal_reason if outcome.failure.is_api_failure else "api_error"
    if outcome.subtype == "error_max_turns":
        return "max_turns"
    if outcome.kind == "interrupted" and end.interrupted_call:
        return "aborted_tools"
    return _TERMINAL_REASONS.get(outcome.cause, "model_error")


def _shim(end: EndOfTurn) -> dict[str, Any]:
    """The member that is ours: who answered, why it ended, and what had to be mended."""
    account, ended = end.account, end.child_exit
    shim: dict[str, Any] = {"vendor": end.terms.vendor.name}
    if end.vendor_version:
        shim["vendor_version"] = end.vendor_version
    if end.terms.vendor.replays:
        shim["replay"] = True
    if end.terms.tried:
        shim["tried"] = [it.to_json() for it in end.terms.tried]
    if end.terms.unhonoured and (wanted := _allowed_in_vain(end)):
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


def _allowed_in_vain(end: EndOfTurn) -> list[dict[str, str]]:
    """The rules that allow a tool of which a call was denied, because the vendor could not be told
    them.
    """
    denied = {denial["tool_name"] for denial in end.denials}
    return [
        it.to_json()
        for it in end.terms.unhonoured
        if any(parse_rule(it.what).matches_tool(str(name)) for name in denied)
    ]
