"""What a rule of a profile says: the fields of each `emit`, and the verb of the Turn that they become.

                                   WHAT A RULE EMITS, WITH ITS FIELDS

    session       session_id, model, cwd, tools (a list of the vendor's names), mode, vendor_version, key_source
    text, thinking   text, block (the vendor's name of the block), mode (delta, cumulative, final: else the stream's)
    reply         model: another reply of the model begins
    tool_use      id, name, input
    tool_input    id, name (of its first piece), input (a fragment of its JSON), block (the vendor's name of the call,
                  else its id), done: a call in pieces. It is said once, whole, in Claude's words: when it is done, when
                  a result, a usage or the end shows that it is, or when `tool_use` says it
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
from typing import Any

from shim.core.vendor.tools import claude_names, translate
from shim.profiles.compile import ends
from shim.profiles.compile.ends import field
from shim.profiles.compile.engine import Act, Engine, Told, identity
from shim.profiles.compile.fields import field_getter
from shim.profiles.compile.paths import Getter
from shim.profiles.compile.toml_errors import Spot

TEXT_MODES = ("delta", "cumulative", "final")


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


def _session(spot: Spot, told: Told) -> Act:
    session = field(spot, "session_id")
    names = ("model", "cwd", "mode", "vendor_version", "key_source")
    others = [(name, field_getter(spot.at(name))) for name in names if spot.at(name)]
    listed = field_getter(spot.at("tools")) if spot.at("tools") else None
    if not others and listed is None:

        def only(engine: Engine, event: Any, item: Any = None) -> None:
            found = session(event, item, engine)
            if found != engine.session:
                if engine.doubts:
                    engine.doubt(found)
                engine.session = found
                engine.turn.started(session_id=found)

        return only

    def started(engine: Engine, event: Any, item: Any = None) -> None:
        facts = {name: get(event, item, engine) for name, get in others}
        if listed is not None and (found := listed(event, item, engine)) is not None:
            facts["tools"] = claude_names(told.tools, engine.shown(found) if told.hides else found)
        found = session(event, item, engine)
        if engine.doubts:
            engine.doubt(found)
        engine.session = found
        engine.turn.started(session_id=found, **facts)

    return started


def _key(kind: str) -> Getter:
    def key(event: Any, item: Any, engine: Any) -> Any:
        return engine.keys[kind]

    return key


def _speech(kind: str) -> Callable[[Spot, Told], Act]:
    def build(spot: Spot, told: Told) -> Act:
        words = field_getter(spot.at("text"))
        block = field_getter(spot.at("block")) if spot.at("block") else None
        mode = spot.at("mode").choice(TEXT_MODES, told.text)
        if block is None and kind in told.reconciled:
            block = _key(kind)
        elif mode == "final" and block is None:
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
                engine.keys[kind] += 1

        return snapshot

    return build


def _reply(spot: Spot, told: Told) -> Act:
    model = field(spot, "model")

    def reply(engine: Engine, event: Any, item: Any = None) -> None:
        engine.gathered()
        engine.turn.message(model=model(event, item, engine))

    return reply


def _tool_use(spot: Spot, told: Told) -> Act:
    call, name, given = (field(spot, key) for key in ("id", "name", "input"))

    def tool_use(engine: Engine, event: Any, item: Any = None) -> None:
        own = identity(call(event, item, engine), engine.mark)
        engine.call(own, name(event, item, engine), given(event, item, engine))

    return tool_use


def _tool_input(spot: Spot, told: Told) -> Act:
    call, name, given, over = (field(spot, key) for key in ("id", "name", "input", "done"))
    block = field_getter(spot.at("block")) if spot.at("block") else call

    def tool_input(engine: Engine, event: Any, item: Any = None) -> None:
        own = identity(call(event, item, engine), engine.mark)
        key = block(event, item, engine)
        engine.piece(key, own, name(event, item, engine), given(event, item, engine))
        if over(event, item, engine):
            engine.gathered(key)

    return tool_input


def _tool_result(spot: Spot, told: Told) -> Act:
    call, content = (field(spot, key) for key in ("id", "content"))
    failed, tools, late, oldest = field(spot, "is_error"), told.tools, told.late, spot.at("oldest").switch()
    if not spot.at("name"):

        def tool_result(engine: Engine, event: Any, item: Any = None) -> None:
            said, own = content(event, item, engine), call(event, item, engine)
            own = next(iter(engine.turn.open), "") if oldest and not own else identity(own, engine.mark)
            if engine.parts is not None:
                engine.gathered()
            if late:
                engine.answers = True
            engine.turn.tool_result(own, "" if said is None else said, bool(failed(event, item, engine)))
            if late and engine.held and not engine.turn.open:
                engine.say_held()

        return tool_result
    name, given = field(spot, "name"), field(spot, "input")

    def with_call(engine: Engine, event: Any, item: Any = None) -> None:
        said, own = content(event, item, engine), identity(call(event, item, engine), engine.mark)
        named, arguments = name(event, item, engine), given(event, item, engine)
        if engine.hidden(named):
            engine.call(own, named, arguments)
            return
        bad = bool(failed(event, item, engine))
        engine.turn.tool_result(own, "" if said is None else said, bad, *translate(tools, named, arguments))

    return with_call


def _denied(spot: Spot, told: Told) -> Act:
    tools = told.tools
    call, name, given = (field(spot, key) for key in ("id", "name", "input"))

    def denied(engine: Engine, event: Any, item: Any = None) -> None:
        own = identity(call(event, item, engine), engine.mark)
        known = engine.turn.open.get(own) if own.__class__ is str else None
        if known is not None:
            engine.turn.denied(*known)
            return
        claude, arguments = translate(tools, name(event, item, engine), given(event, item, engine))
        claude = claude if claude.__class__ is str else "unknown"
        engine.turn.denied(str(own or claude), claude, arguments)

    return denied


def _input(spot: Spot, told: Told) -> Act:
    def given(engine: Engine, event: Any, item: Any = None) -> None:
        engine.gathered()
        if engine.held:
            engine.say_held()

    return given


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
    "tool_input": (_tool_input, (*_CALL, "block", "done")),
    "tool_result": (_tool_result, (*_CALL, "content", "is_error", "oldest")),
    "denied": (_denied, _CALL),
    "usage": (ends.replied, _COUNTED),
    "result": (
        ends.result,
        (*_COUNTED, "is_error", "error", "code", "text", "duration_ms", "limit", "interrupted"),
    ),
    "error": (ends.error, ("error", "code", "cause", "first_wins")),
    "notice": (ends.notice, ("text",)),
    "retry": (ends.retry, ("attempt", "max", "delay_ms", "text")),
    "retract": (ends.retract, ()),
    "compacted": (ends.compacted, ("trigger", "tokens")),
    "input": (_input, ()),
    "ignore": (_ignore, ()),
}
_NEEDED = {
    "text": ("text",),
    "thinking": ("text",),
    "tool_use": ("name",),
    "tool_input": ("input",),
    "tool_result": ("id",),
    "denied": ("id",),
    "error": ("error",),
    "notice": ("text",),
}
