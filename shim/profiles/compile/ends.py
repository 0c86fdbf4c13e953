"""What a rule of a profile says of numbers and ends: usage, results, errors, and what is told beside them.

The fields are listed in `emits`.
"""

from collections.abc import Callable
from typing import Any, get_args

from shim.core.claude.usage import ORDER, Usage, count, dollars, usage
from shim.core.errors import Cause
from shim.profiles.compile.engine import Act, Engine, Told
from shim.profiles.compile.fields import field_getter, fields
from shim.profiles.compile.paths import Getter
from shim.profiles.compile.toml_errors import Spot

COUNTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens", "cost_usd")
LIMITS = {
    **dict.fromkeys(("turns", "max_turns"), "error_max_turns"),
    **dict.fromkeys(("budget", "max_budget"), "error_max_budget_usd"),
}
# A rule may not say the others: they are about the API, which is read off the text, or about us.
CAUSES = tuple(cause for cause in get_args(Cause) if cause in ("vendor_error", "refused", "limit", "truncated"))
NOTICE_CHARACTERS = 2000


def nothing(event: Any, item: Any, engine: Any) -> None:
    """The field that a rule does not have."""


def field(spot: Spot, name: str) -> Getter:
    """A field of a rule."""
    return field_getter(spot.at(name)) if spot.at(name) else nothing


Counter = Callable[[Any, Any, Engine], tuple[Usage | None, float]]


def _counter(spot: Spot) -> Counter:
    """Usage and cost of a rule; None for a usage that is not there."""
    within = spot.at("usage")
    getters: dict[str, Getter] = fields(within) if within.table(COUNTS) else {}
    cost = getters.pop("cost_usd") if "cost_usd" in getters else field(spot, "cost_usd")
    numbers: list[Getter] = [getters.get(name, nothing) for name in ORDER]
    if not getters:

        def only_cost(event: Any, item: Any, engine: Engine) -> tuple[Usage | None, float]:
            return None, dollars(cost(event, item, engine))

        return only_cost

    def counted(event: Any, item: Any, engine: Engine) -> tuple[Usage | None, float]:
        found = [get(event, item, engine) for get in numbers]
        there = any(one is not None for one in found)
        return usage(*found) if there else None, dollars(cost(event, item, engine))

    return counted


def replied(spot: Spot, told: Told) -> Act:
    """`usage`."""
    counter, reason = _counter(spot), field(spot, "stop_reason")

    def replied(engine: Engine, event: Any, item: Any = None) -> None:
        counted, cost = counter(event, item, engine)
        engine.replied(counted, reason(event, item, engine), cost)

    return replied


def result(spot: Spot, told: Told) -> Act:
    """`result`."""
    counter = _counter(spot)
    names = ("is_error", "error", "code", "text", "duration_ms", "stop_reason", "limit", "interrupted")
    getters = {name: field(spot, name) for name in names}
    late = told.late

    def result(engine: Engine, event: Any, item: Any = None) -> None:
        found = {name: get(event, item, engine) for name, get in getters.items()}
        bad = bool(found["interrupted"] or found["is_error"])
        engine.gathered(whole=not bad)
        if late:
            engine.ends(well=not bad)
        facts = engine.facts(*counter(event, item, engine))
        facts |= {"duration_ms": count(found["duration_ms"]) or None, "result": found["text"]}
        if isinstance(found["stop_reason"], str):
            engine.turn.message_end(None, found["stop_reason"])
        if found["interrupted"]:
            engine.turn.interrupted(**facts)
        elif found["is_error"] and not (found["error"] or found["text"]) and engine.failed:
            engine.add(facts)  # why was said before
        elif found["is_error"]:
            status = found["code"] if found["code"].__class__ is int else None
            text = str(found["error"] or found["text"] or engine.notice or "error")
            kind: Cause | None = None if found["limit"] is None else "limit"
            engine.turn.failed(text, kind=kind, status=status, subtype=LIMITS.get(str(found["limit"])), **facts)
        else:
            engine.turn.ended(**facts)
        engine.turn.settle()

    return result


def error(spot: Spot, told: Told) -> Act:
    """`error`."""
    words, code = field(spot, "error"), field(spot, "code")
    kind: Any = spot.at("cause").choice(CAUSES) if spot.at("cause") else None
    first = spot.at("first_wins").switch()

    def error(engine: Engine, event: Any, item: Any = None) -> None:
        if first and engine.failed:
            return
        status = code(event, item, engine)
        text = words(event, item, engine)
        status = status if status.__class__ is int else None
        engine.turn.failed(str(text or "error"), kind=kind, status=status)

    return error


def notice(spot: Spot, told: Told) -> Act:
    """`notice`."""
    words = field_getter(spot.at("text"))

    def notice(engine: Engine, event: Any, item: Any = None) -> None:
        engine.notice = str(words(event, item, engine) or "")[:NOTICE_CHARACTERS]

    return notice


def retry(spot: Spot, told: Told) -> Act:
    """`retry`."""
    attempt, most, delay, words = (field(spot, name) for name in ("attempt", "max", "delay_ms", "text"))

    def retry(engine: Engine, event: Any, item: Any = None) -> None:
        numbers = [count(get(event, item, engine)) for get in (attempt, most, delay)]
        engine.notice = str(words(event, item, engine) or "")[:NOTICE_CHARACTERS]
        engine.turn.retry(numbers[0] or 1, numbers[1] or numbers[0] or 1, numbers[2], engine.notice)

    return retry


def retract(spot: Spot, told: Told) -> Act:
    """`retract`."""

    def retract(engine: Engine, event: Any, item: Any = None) -> None:
        engine.gathered(whole=False)
        engine.turn.retract()

    return retract


def compacted(spot: Spot, told: Told) -> Act:
    """`compacted`."""
    trigger, tokens = field(spot, "trigger"), field(spot, "tokens")

    def compacted(engine: Engine, event: Any, item: Any = None) -> None:
        said = "manual" if trigger(event, item, engine) == "manual" else "auto"
        engine.turn.compacted(said, count(tokens(event, item, engine)))

    return compacted
