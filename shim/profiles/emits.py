"""What a rule of a profile says: the fields of each `emit`, and the verb of the Turn that they become.

                                   WHAT A RULE EMITS, WITH ITS FIELDS

    session       session_id, model, cwd, tools (a list of the vendor's names), mode, vendor_version, key_source
    text, thinking   text, block (the vendor's name of the block), mode (delta, cumulative, final: else the stream's)
    reply         model: another reply of the model begins
    tool_use      id, name, input
    tool_result   id, content, is_error, name, input (these two where no `tool_use` came before); oldest = true: one
                  without an id is that of the call which is open longest
    denied        id, name, input (these two where it is not open): a call that was refused
    usage         usage, stop_reason, cost_usd: a reply is over; what the numbers mean is `stream.usage`
    result        is_error, error, code, text, usage, cost_usd, duration_ms, stop_reason, limit, interrupted: the end
    error         error, code, cause, first_wins: the turn failed, unless a result says more
    notice        text: said again if the turn fails without a reason
    retry         attempt, max, delay_ms, text: the model is asked again
    retract       – : the reply was cut and comes again
    compacted     trigger, tokens: the context was shortened
    input         –: what the model is given; nothing is said, but what waited for late results is
    ignore        –

`limit` of a result: turns, budget, or any other that was reached.
`usage` is a table of input_tokens, cache_read_input_tokens, cache_creation_input_tokens, output_tokens (and cost_usd).
"""

from collections.abc import Callable, Mapping
from typing import Any, get_args

from shim.failures import Cause
from shim.profiles.check import Spot
from shim.profiles.engine import Act, Engine, Told, identity
from shim.profiles.fields import field_getter, fields
from shim.profiles.paths import Getter
from shim.tools import claude_names, translate
from shim.usage import ORDER, Usage, count, dollars, usage

TEXT_MODES = ("delta", "cumulative", "final")
COUNTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens", "cost_usd")
LIMITS = {
    **dict.fromkeys(("turns", "max_turns"), "error_max_turns"),
    **dict.fromkeys(("budget", "max_budget"), "error_max_budget_usd"),
}
# A rule may not say these: they are about the API, which is read off the text, or about us.
CAUSES = tuple(cause for cause in get_args(Cause) if cause in ("vendor_error", "refused", "limit", "truncated"))
NOTICE_CHARACTERS = 2000


def act(spot: Spot, told: Told) -> tuple[Act, str]:
    """What a rule does, and the name of it."""
    emit = spot.at("emit").choice(tuple(_EMITS))
    build, names = _EMITS[emit]
    spot.table((*RULE_KEYS, *names))
    for name in _NEEDED.get(emit, ()):
        if not spot.at(name):
            raise spot.refused(f"a rule with `{name}`, which {emit} needs", f"a rule without `{name}`")
    return build(spot, told), emit


RULE_KEYS = ("match", "foreach", "item_match", "once", "emit", "continue", "note")


def _nothing(event: Any, item: Any, engine: Any) -> None:
    return None


def _field(spot: Spot, name: str) -> Getter:
    return field_getter(spot.at(name)) if spot.at(name) else _nothing


def _session(spot: Spot, told: Told) -> Act:
    session = _field(spot, "session_id")
    names = ("model", "cwd", "mode", "vendor_version", "key_source")
    others = [(name, field_getter(spot.at(name))) for name in names if spot.at(name)]
    listed = field_getter(spot.at("tools")) if spot.at("tools") else None
    if not others and listed is None:

        def only(engine: Engine, event: Any, item: Any = None) -> None:
            found = session(event, item, engine)
            if found != engine.session:
                engine.session = found
                engine.turn.started(session_id=found)

        return only

    def started(engine: Engine, event: Any, item: Any = None) -> None:
        facts = {name: get(event, item, engine) for name, get in others}
        if listed is not None and (found := listed(event, item, engine)) is not None:
            facts["tools"] = claude_names(told.tools, found)
        engine.session = session(event, item, engine)
        engine.turn.started(session_id=engine.session, **facts)

    return started


def _speech(kind: str) -> Callable[[Spot, Told], Act]:
    def build(spot: Spot, told: Told) -> Act:
        words = field_getter(spot.at("text"))
        block = field_getter(spot.at("block")) if spot.at("block") else None
        mode = spot.at("mode").choice(TEXT_MODES, told.text)
        if mode == "final" and block is None:
            if told.late:
                return lambda engine, event, item=None: engine.say(words(event, item, engine), kind)

            def say(engine: Engine, event: Any, item: Any = None) -> None:
                engine.turn.say(words(event, item, engine), kind)

            return say
        if mode == "delta":

            def delta(engine: Engine, event: Any, item: Any = None) -> None:
                key = None if block is None else block(event, item, engine)
                turn = engine.turn
                (turn.text if kind == "text" else turn.thinking)(words(event, item, engine), key)

            return delta

        def snapshot(engine: Engine, event: Any, item: Any = None) -> None:
            whole, key = words(event, item, engine), None if block is None else block(event, item, engine)
            if whole is None:
                return
            turn = engine.turn
            (turn.text_snapshot if kind == "text" else turn.thinking_snapshot)(whole, key)
            if mode == "final":
                turn.block_end()

        return snapshot

    return build


def _reply(spot: Spot, told: Told) -> Act:
    model = _field(spot, "model")

    def reply(engine: Engine, event: Any, item: Any = None) -> None:
        engine.turn.message(model=model(event, item, engine))

    return reply


def _tool_use(spot: Spot, told: Told) -> Act:
    tools = told.tools
    call, name, given = (_field(spot, key) for key in ("id", "name", "input"))
    late = told.late

    def tool_use(engine: Engine, event: Any, item: Any = None) -> None:
        if late and engine.held:
            engine.calls()
        claude, arguments = translate(tools, name(event, item, engine), given(event, item, engine))
        engine.turn.tool_use(identity(call(event, item, engine), engine.mark), claude, arguments)

    return tool_use


def _tool_result(spot: Spot, told: Told) -> Act:
    call, content = (_field(spot, key) for key in ("id", "content"))
    failed, tools, late, oldest = _field(spot, "is_error"), told.tools, told.late, spot.at("oldest").switch()
    if not spot.at("name"):

        def tool_result(engine: Engine, event: Any, item: Any = None) -> None:
            said, own = content(event, item, engine), call(event, item, engine)
            own = next(iter(engine.turn.open), "") if oldest and not own else identity(own, engine.mark)
            if late:
                engine.answers = True
            engine.turn.tool_result(own, "" if said is None else said, bool(failed(event, item, engine)))
            if late and engine.held and not engine.turn.open:
                engine.say_held()

        return tool_result
    name, given = _field(spot, "name"), _field(spot, "input")

    def with_call(engine: Engine, event: Any, item: Any = None) -> None:
        said = content(event, item, engine)
        engine.turn.tool_result(
            identity(call(event, item, engine), engine.mark),
            "" if said is None else said,
            bool(failed(event, item, engine)),
            *translate(tools, name(event, item, engine), given(event, item, engine)),
        )

    return with_call


def _denied(spot: Spot, told: Told) -> Act:
    tools = told.tools
    call, name, given = (_field(spot, key) for key in ("id", "name", "input"))

    def denied(engine: Engine, event: Any, item: Any = None) -> None:
        own = identity(call(event, item, engine), engine.mark)
        known = engine.turn.open.get(own) if own.__class__ is str else None
        if known is not None:
            engine.turn.denied(*known)
            return
        claude, arguments = translate(tools, name(event, item, engine), given(event, item, engine))
        engine.turn.denied(str(own or claude), str(claude), arguments)

    return denied


Counter = Callable[[Any, Any, Engine], tuple[Usage | None, float]]


def _counter(spot: Spot) -> Counter:
    """Usage and cost of a rule; None for a usage that is not there."""
    within = spot.at("usage")
    getters: dict[str, Getter] = fields(within) if within.table(COUNTS) else {}
    cost = getters.pop("cost_usd") if "cost_usd" in getters else _field(spot, "cost_usd")
    numbers: list[Getter] = [getters.get(name, _nothing) for name in ORDER]
    if not getters:

        def only_cost(event: Any, item: Any, engine: Engine) -> tuple[Usage | None, float]:
            return None, dollars(cost(event, item, engine))

        return only_cost

    def counted(event: Any, item: Any, engine: Engine) -> tuple[Usage | None, float]:
        found = [get(event, item, engine) for get in numbers]
        there = any(one is not None for one in found)
        return usage(*found) if there else None, dollars(cost(event, item, engine))

    return counted


def _usage(spot: Spot, told: Told) -> Act:
    counter, reason = _counter(spot), _field(spot, "stop_reason")

    def replied(engine: Engine, event: Any, item: Any = None) -> None:
        counted, cost = counter(event, item, engine)
        engine.replied(counted, reason(event, item, engine), cost)

    return replied


def _result(spot: Spot, told: Told) -> Act:
    counter = _counter(spot)
    names = ("is_error", "error", "code", "text", "duration_ms", "stop_reason", "limit", "interrupted")
    getters = {name: _field(spot, name) for name in names}
    late = told.late

    def result(engine: Engine, event: Any, item: Any = None) -> None:
        found = {name: get(event, item, engine) for name, get in getters.items()}
        if late:
            engine.ends(well=not (found["interrupted"] or found["is_error"]))
        facts = engine.facts(*counter(event, item, engine))
        facts |= {"duration_ms": count(found["duration_ms"]) or None, "result": found["text"]}
        if isinstance(found["stop_reason"], str):
            engine.turn.message_end(None, found["stop_reason"])
        if found["interrupted"]:
            engine.turn.interrupted(**facts)
        elif found["is_error"] and not (found["error"] or found["text"]) and _failed(engine):
            engine.total = facts["usage"]  # why was said before
        elif found["is_error"]:
            subtype = LIMITS.get(str(found["limit"]))
            status = found["code"] if found["code"].__class__ is int else None
            text = str(found["error"] or found["text"] or engine.notice or "error")
            kind: Cause | None = None if found["limit"] is None else "limit"
            engine.turn.failed(text, kind=kind, status=status, subtype=subtype, **facts)
        else:
            engine.turn.ended(**facts)
        engine.turn.settle()

    return result


def _failed(engine: Engine) -> bool:
    outcome = engine.turn.outcome
    return outcome is not None and outcome.kind == "failed"


def _error(spot: Spot, told: Told) -> Act:
    words, code = _field(spot, "error"), _field(spot, "code")
    kind: Any = spot.at("cause").choice(CAUSES) if spot.at("cause") else None
    first = spot.at("first_wins").switch()

    def error(engine: Engine, event: Any, item: Any = None) -> None:
        if first and _failed(engine):
            return
        status = code(event, item, engine)
        text = words(event, item, engine)
        status = status if status.__class__ is int else None
        engine.turn.failed(str(text or "error"), kind=kind, status=status)

    return error


def _notice(spot: Spot, told: Told) -> Act:
    words = field_getter(spot.at("text"))

    def notice(engine: Engine, event: Any, item: Any = None) -> None:
        engine.notice = str(words(event, item, engine) or "")[:NOTICE_CHARACTERS]

    return notice


def _retry(spot: Spot, told: Told) -> Act:
    attempt, most, delay, words = (_field(spot, name) for name in ("attempt", "max", "delay_ms", "text"))

    def retry(engine: Engine, event: Any, item: Any = None) -> None:
        numbers = [count(get(event, item, engine)) for get in (attempt, most, delay)]
        engine.notice = str(words(event, item, engine) or "")[:NOTICE_CHARACTERS]
        engine.turn.retry(numbers[0] or 1, numbers[1] or numbers[0] or 1, numbers[2], engine.notice)

    return retry


def _retract(spot: Spot, told: Told) -> Act:
    return lambda engine, event, item=None: engine.turn.retract()


def _compacted(spot: Spot, told: Told) -> Act:
    trigger, tokens = _field(spot, "trigger"), _field(spot, "tokens")

    def compacted(engine: Engine, event: Any, item: Any = None) -> None:
        said = "manual" if trigger(event, item, engine) == "manual" else "auto"
        engine.turn.compacted(said, count(tokens(event, item, engine)))

    return compacted


def _input(spot: Spot, told: Told) -> Act:
    return lambda engine, event, item=None: engine.say_held() if engine.held else None


def _ignore(spot: Spot, told: Told) -> Act:
    return lambda engine, event, item=None: None


_CALL = ("id", "name", "input")
_COUNTED = ("usage", "cost_usd", "stop_reason")
_EMITS: Mapping[str, tuple[Callable[[Spot, Told], Act], tuple[str, ...]]] = {
    "session": (_session, ("session_id", "model", "cwd", "tools", "mode", "vendor_version", "key_source")),
    "text": (_speech("text"), ("text", "block", "mode")),
    "thinking": (_speech("thinking"), ("text", "block", "mode")),
    "reply": (_reply, ("model",)),
    "tool_use": (_tool_use, _CALL),
    "tool_result": (_tool_result, (*_CALL, "content", "is_error", "oldest")),
    "denied": (_denied, _CALL),
    "usage": (_usage, _COUNTED),
    "result": (
        _result,
        (*_COUNTED, "is_error", "error", "code", "text", "duration_ms", "limit", "interrupted"),
    ),
    "error": (_error, ("error", "code", "cause", "first_wins")),
    "notice": (_notice, ("text",)),
    "retry": (_retry, ("attempt", "max", "delay_ms", "text")),
    "retract": (_retract, ()),
    "compacted": (_compacted, ("trigger", "tokens")),
    "input": (_input, ()),
    "ignore": (_ignore, ()),
}
_NEEDED = {
    "text": ("text",),
    "thinking": ("text",),
    "tool_use": ("name",),
    "tool_result": ("id",),
    "denied": ("id",),
    "error": ("error",),
    "notice": ("text",),
}
