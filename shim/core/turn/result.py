"""How a turn ended, and the one `result` that says so.

The cause, `is_error`, `subtype` and the texts are decided here, from what the vendor said and how its process ended:
interrupted beats failed, failed beats ended, and no word at all is an error.
"""

from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from shim.core.api_errors import Failure, api_text, classify
from shim.core.claude.usage import NO_USAGE, ORDER, Usage, count, dollars, known, place
from shim.core.errors import Cause, Tried, listed, tried
from shim.core.reading.account import uncoloured
from shim.core.reading.json_text import dump
from shim.core.reading.limits import cut

if TYPE_CHECKING:
    from shim.core.turn.machine import Frame

INTERRUPTED = "[Request interrupted by user]"  # both texts: contract 6.4
INTERRUPTED_IN_TOOL = "[Request interrupted by user for tool use]"
MAX_TURNS = "Reached maximum number of turns"
STRUCTURED_SAID = "Structured output provided successfully"  # contract 5.11
UNANSWERED = "No result was reported for this call."
UNANSWERED_INTERRUPTED = "Interrupted while this call was running; it may have run in part or in full."

STDERR_CHARACTERS = 2000  # of a vendor's stderr in an error text: enough for a reason, short enough for a dialog


class Exit(NamedTuple):
    """How a child ended: an exit code, or the name of the signal that ended it."""

    code: int | None = None
    signal: str | None = None

    def __str__(self) -> str:
        return f"was ended by {self.signal}" if self.signal else f"exited with code {self.code}"


class Outcome(NamedTuple):
    """What is known of the end: `kind` is ended, failed or interrupted; the rest belongs to a failure.

    `ours`: we ended the turn, and what the vendor says of it afterwards is no reason.
    """

    kind: str
    message: str = ""
    cause: Cause = "clean"
    failure: Failure = Failure()
    api: bool = False
    subtype: str | None = None
    facts: Mapping[str, Any] = {}
    ours: bool = False


def decide(turn: "Frame", child_exit: Exit | None, stderr: str) -> Outcome:
    """The outcome, now that the child is gone. `child_exit` is None when we ended the child ourselves."""
    outcome, vendor = turn.outcome, turn.terms.vendor
    if outcome is not None and outcome.kind != "ended":
        return outcome
    if outcome is not None:
        if child_exit is None or (child_exit.signal is None and child_exit.code in turn.terms.clean_exits):
            return _unfinished(turn, outcome) or outcome
        text = f"{vendor} said that it was done, but {child_exit}" + _reason(stderr)
        return Outcome("failed", text, "signal" if child_exit.signal else "exit_code", facts=outcome.facts)
    if turn.terms.gate and turn.terms.gate in stderr:
        hint = f"\nhint: set trust = true under [vendors.{vendor}] in config.toml, if you trust this folder"
        return Outcome("failed", message=_clean(stderr) + hint, cause="refused")
    failure = classify(stderr)
    ended = "was ended" if child_exit is None else str(child_exit)
    cause: Cause = "truncated"
    if child_exit is not None and child_exit.signal:
        cause = "signal"
    elif failure.api:
        return Outcome("failed", message=_clean(stderr), cause=failure.cause, failure=failure, api=True)
    elif child_exit is not None and child_exit.code:
        cause = "exit_code"
    elif child_exit is not None and not turn.began and turn.account.misunderstood:
        text = f"{vendor} {ended}, and nothing that it printed was what it was started to print"
        return Outcome("failed", text + _reason(stderr), "protocol")
    return Outcome("failed", message=f"{vendor} {ended} before it finished" + _reason(stderr), cause=cause)


# Why another vendor of a list may answer: this one is not logged in, or may not be asked now. And, of one whose stream
# never began, that its program is gone: it could not start. What nobody understood of its stream may have been work.
UNANSWERED_CAUSES = frozenset(("auth", "rate_limit"))
UNSTARTED_CAUSES = frozenset(("exit_code", "signal", "truncated", "protocol"))


def unanswered(turn: "Frame", child_exit: Exit | None, stderr: str) -> Tried | None:
    """Why a vendor that is at its end said nothing, where another may be asked; None where its turn is the answer."""
    if turn.spoken or turn.account.unknown or turn.state == "closed":
        return None
    outcome = decide(turn, child_exit, stderr)
    if outcome.kind != "failed":
        return None
    unstarted = turn.state == "new" and child_exit is not None and turn.outcome is None
    if outcome.cause not in UNANSWERED_CAUSES and not (unstarted and outcome.cause in UNSTARTED_CAUSES):
        return None
    words = outcome.message if turn.redact is None else turn.redact(outcome.message)
    return tried(turn.terms.vendor, outcome.cause, words)


CUT = ("stream ended", "stream disconnected", "stream closed", "premature close", "premature end")


def broke_off(turn: "Frame", child_exit: Exit | None, stderr: str) -> bool:
    """Whether the stream of a turn was cut, and nothing has happened that must not happen twice (Yume's R11)."""
    acted = turn.results or turn.open or turn.nested_calls or turn.denials or turn.replies > 1
    if not turn.terms.retries or turn.state == "closed" or acted or turn.hides_calls or not turn.repeatable:
        return False
    outcome = decide(turn, child_exit, stderr)
    if outcome.kind != "failed" or outcome.subtype is not None:
        return False
    cut = outcome.cause == "truncated" and not outcome.api and child_exit is not None and turn.state != "new"
    return cut or outcome.failure.kind == "connection" or lost(outcome.message)


def lost(message: str) -> bool:
    """Whether an error text is about a stream that broke off."""
    return any(word in message.lower() for word in CUT)


def _unfinished(turn: "Frame", outcome: Outcome) -> Outcome | None:
    """A good end in the middle of the work is none: the last reply asked for tools and nothing came of them.

    A vendor that meant it gives a result of its own, in words or as structured output. A call that has its result may
    be the last thing: some models have nothing to add (acai page, section 1).
    """
    if not (turn.open and turn.asks_tools):
        return None
    if outcome.facts.get("result") or outcome.facts.get("structured_output") is not None:
        return None
    text = f"{turn.terms.vendor} said that it was done, but these calls of its last reply have no result"
    return Outcome("failed", f"{text}: {open_calls(turn)}", "truncated", facts=outcome.facts)


CALLS_NAMED = 8  # of those that are open; the rest is a number


def open_calls(turn: "Frame") -> str:
    """The names of the calls that have no result, for a sentence."""
    names = [call[1] for call in islice(turn.open.values(), CALLS_NAMED)]
    more = len(turn.open) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _clean(stderr: str) -> str:
    text = uncoloured(stderr.strip())
    if len(text) > STDERR_CHARACTERS:
        half = STDERR_CHARACTERS // 2
        text = text[:half] + "\n…\n" + text[-half:]
    return text


def _reason(stderr: str) -> str:
    text = _clean(stderr)
    return f": {text}" if text else ""


def conclude(turn: "Frame") -> None:
    """Say the end: the synthetic line of an API failure, then the result with the terminator."""
    outcome = turn.outcome
    assert outcome is not None
    if turn.stated and outcome is turn.stated_outcome:
        _pass(turn, outcome)
        return
    turn.is_error = outcome.kind != "ended"
    turn.cause = outcome.cause
    text, failure = outcome.message, outcome.failure
    if turn.is_error and outcome.api:
        text = cut(_api_text(turn, outcome), turn.pen.room // 4) + _others(turn)  # its line and the result say the same
        turn.pen.api_error(text, failure.error, failure.status, failure.error_type)
    result: dict[str, Any] = {
        "subtype": _subtype(outcome),
        "is_error": turn.is_error,
        "duration_ms": count(outcome.facts.get("duration_ms")) or turn.terms.clock(),
        "duration_api_ms": count(outcome.facts.get("api_ms")),
        "num_turns": _num_turns(turn, outcome),
    }
    if not turn.is_error:
        turn.final_text = turn.last_text or str(outcome.facts.get("result") or "")
        result["result"] = turn.final_text
    elif outcome.api:
        turn.final_text = result["result"] = text
    else:
        result["errors"] = _limit_reached(turn, outcome) or [(text or INTERRUPTED) + _others(turn)]
        turn.final_text = result["errors"][0]
    structured = outcome.facts.get("structured_output")
    if structured is not None and not turn.is_error:
        turn.final_text = result["result"] = dump(structured).decode()
        result["structured_output"] = structured
    if not turn.is_error or outcome.api:
        result["api_error_status"] = failure.status
    if outcome.api and failure.error_type:
        result["api_error_type"] = failure.error_type
    result["stop_reason"] = _stop_reason(turn, outcome)
    result |= _accounts(turn, outcome)
    result["permission_denials"] = list(turn.denials.values())
    result["terminal_reason"] = _terminal_reason(turn, outcome)
    result["fast_mode_state"] = "off"
    result["shim"] = _shim(turn)
    turn.pen.result(result)


def _others(turn: "Frame") -> str:
    """Why the vendors that were asked before did not answer either, where this one said nothing too."""
    interrupted = turn.outcome is not None and turn.outcome.kind == "interrupted"
    return "" if turn.spoken or interrupted else listed(turn.terms.tried)


def _pass(turn: "Frame", outcome: Outcome) -> None:
    """A real claude's own result that nothing contradicts is said as it came."""
    turn.is_error, turn.cause = outcome.kind != "ended", outcome.cause
    turn.final_text = outcome.message if turn.is_error else turn.last_text
    turn.pen.verbatim_result(turn.stated)
    turn.sealed = False


def bare(vendor: str, text: str, cause: Cause = "internal") -> dict[str, Any]:
    """An error result that depends on nothing that happened; a session that is not there had no turn (5.10)."""
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


def _api_text(turn: "Frame", outcome: Outcome) -> str:
    terms = turn.terms
    if terms.worded:
        return outcome.message
    model = terms.model or turn.model
    return api_text(outcome.failure, outcome.message, vendor=terms.vendor, login=terms.login, model=model)


def _limit_reached(turn: "Frame", outcome: Outcome) -> list[str]:
    """A turn limit that the vendor itself counted, in Claude's words (contract F10) and then in its own."""
    if outcome.subtype != "error_max_turns" or outcome.message.startswith(MAX_TURNS):
        return []
    asked = turn.terms.turns_asked
    return [MAX_TURNS if asked is None else f"{MAX_TURNS} ({asked})", *([outcome.message] if outcome.message else [])]


# Of an error (contract 5.3); what a vendor calls its own is none.
SUBTYPES = frozenset(("error_during_execution", "error_max_turns", "error_max_budget_usd"))


def _subtype(outcome: Outcome) -> str:
    if outcome.kind == "ended" or outcome.api:
        return "success"
    return outcome.subtype if outcome.subtype in SUBTYPES else "error_during_execution"


def _num_turns(turn: "Frame", outcome: Outcome) -> int:
    """Contract 5.3: one, and one for each tool result, and one for an interrupt; none if it never began (5.10).

    What a command of the vendor's answered without its model is none either.
    """
    if outcome.facts.get("local"):
        return 0
    if not turn.began and outcome.kind == "failed" and not outcome.api:
        return 0
    return 1 + turn.results + (outcome.kind == "interrupted")


def _stop_reason(turn: "Frame", outcome: Outcome) -> str | None:
    if outcome.api:
        return "refusal" if outcome.failure.kind == "filtered" else "stop_sequence"
    return turn.stop_reason if turn.is_error else turn.stop_reason or "end_turn"


def _accounts(turn: "Frame", outcome: Outcome) -> dict[str, Any]:
    """Usage of this turn; cost and usage by model of the session so far (contract 5.3)."""
    stated = known(outcome.facts.get("usage"))
    if any(stated.values()) and not turn.usage:
        turn.usage = {turn.model or "unknown": stated}
    total = Usage(stated)
    conversation = turn.conversation
    for model, counted in turn.usage.items():
        so_far = place(conversation.usage, model)
        for name in ORDER:
            so_far[name] += counted[name]
            if not any(stated.values()):
                total[name] += counted[name]
    cost = outcome.facts.get("cost")
    conversation.cost += turn.cost if cost is None else dollars(cost)
    only = len(conversation.usage) == 1
    return {
        "total_cost_usd": conversation.cost,
        "usage": total,
        "modelUsage": {
            model: {
                "inputTokens": counted["input_tokens"],
                "outputTokens": counted["output_tokens"],
                "cacheReadInputTokens": counted["cache_read_input_tokens"],
                "cacheCreationInputTokens": counted["cache_creation_input_tokens"],
                "webSearchRequests": 0,
                "costUSD": conversation.cost if only else 0,
                "contextWindow": CONTEXT_WINDOW,
                "maxOutputTokens": OUTPUT_TOKENS,
            }
            for model, counted in conversation.usage.items()
        },
    }


# Claude's own numbers for a model that it does not know; clients divide by them (contract 5.3, ACP).
CONTEXT_WINDOW = 200_000
OUTPUT_TOKENS = 32_000

_TERMINAL_REASONS = {"limit": "budget_exhausted", "interrupted": "aborted_streaming"}


def _terminal_reason(turn: "Frame", outcome: Outcome) -> str:
    if outcome.kind == "ended":
        return "completed"
    if outcome.api:
        return outcome.failure.reason if outcome.failure.api else "api_error"
    if outcome.subtype == "error_max_turns":
        return "max_turns"
    if outcome.kind == "interrupted" and turn.interrupted_call:
        return "aborted_tools"
    return _TERMINAL_REASONS.get(outcome.cause, "model_error")


def _shim(turn: "Frame") -> dict[str, Any]:
    shim: dict[str, Any] = {"vendor": turn.terms.vendor}
    if version := turn.facts.get("vendor_version") or turn.terms.vendor_version:
        shim["vendor_version"] = version
    if turn.terms.replays:
        shim["replay"] = True
    if turn.terms.tried:
        shim["tried"] = [it.fact() for it in turn.terms.tried]
    shim["cause"] = turn.cause
    if turn.child_exit is not None and turn.child_exit.signal:
        shim["signal"] = turn.child_exit.signal
    elif turn.child_exit is not None and turn.child_exit.code:
        shim["exit_code"] = turn.child_exit.code
    shim |= {
        "repairs": turn.account.repairs,
        "unknown_events": turn.account.unknown,
    }
    if turn.account.redacted:
        shim["redacted"] = turn.account.redacted
    return shim
