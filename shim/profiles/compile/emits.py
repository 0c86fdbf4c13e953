"""What a rule of a profile says: the fields of each `emit`, and the verb of the Turn that they
become.

                                   WHAT A RULE EMITS, WITH ITS FIELDS

    session       session_id, model, cwd, tools (a list of the vendor's names), mode,
                  vendor_version, key_source
    text, thinking   text, block (the vendor's name of the block), mode (delta, cumulative, final:
                     else the stream's)
    reply         model: another reply of the model begins
    tool_use      id, name, input
    tool_input    id, name (of its first piece), input (a fragment of its JSON), block (the vendor's
                  name of the call,
                  else its id), done: a call in pieces. It is said once, whole, in Claude's words:
                      when it is done, when
                  a result, a usage or the end shows that it is, or when `tool_use` says it
    tool_result   id, content, is_error, name, input (these two where no `tool_use` came before);
                  oldest = true: one
                  without an id is that of the call which is open longest
    denied        id, name, input (these two where it is not open): a call that was refused
    usage         usage, stop_reason, cost_usd: a reply is over; what the numbers mean is
                  `stream.usage`
    result        is_error, error, code, text, usage, cost_usd, duration_ms, stop_reason, limit,
                  interrupted: the end
    error         error, code, cause, first_wins: the turn failed, unless a result says more
    notice        text: said again if the turn fails without a reason
    retry         attempt, max, delay_ms, text: the model is asked again
    retract       – : the reply was cut and comes again
    compacted     trigger, tokens: the context was shortened
    input         –: what the model is given; nothing is said, but what waited for late results is
    ignore        –

`limit` of a result: turns, budget, or any other that was reached.
`stream.parent` is the id of the call that runs the nested agent of an event. What a rule emits for
such an event belongs to that agent: it is not the answer of the turn, and it neither ends nor fails
the turn. `usage` is a table of input_tokens, cache_read_input_tokens, cache_creation_input_tokens,
output_tokens (and cost_usd).
"""

from collections.abc import Callable, Mapping

from shim.core.adapter.tools import Tools
from shim.core.api_errors import Cause
from shim.core.claude.usage import USAGE_KEYS
from shim.profiles.check.toml_errors import ConfigNode
from shim.profiles.compile.fields import (
    compile_boolean_field,
    compile_field,
    compile_fields,
    compile_optional_field,
)
from shim.profiles.compile.source import FunctionBuilder, format_literal

MAX_RULES = 200
ID_SCOPES = ("session", "process")
RESULT_TIMINGS = ("next", "late")
TEXT_MODES = ("delta", "cumulative", "final")
USAGE_FIELDS = (*USAGE_KEYS, "cost_usd")
# A rule may not say the other causes: they are about the API, which is read off the text, or about
# us.
PROFILE_CAUSES: tuple[Cause, ...] = ("vendor_error", "limit", "refused", "truncated")


class StreamOptions:
    """What a profile says once for all its rules.

    tools       its tools in Claude's words
    text        what its texts are (TEXT_MODES)
    late        what a call returned may come behind the next message, or never
    hides       calls of tools without a name in the profile are left out
    marks       ids of calls begin anew with each process
    pieces      a rule says calls in pieces
    reconciled  text or thinking that is streamed and then said whole, without a name for the block
    parent      `stream.parent`
    server_tool how the vendor names a tool of an MCP server (`acp.server_tool`), "" if that is not
    known
    """

    def __init__(self, spot: ConfigNode, tools: Tools) -> None:
        """`spot` is the whole profile."""
        own, events = spot.child("stream"), spot.child("event").read_items(MAX_RULES)
        self.tools = tools
        self.text_mode = own.child("text").read_choice(TEXT_MODES, "final")
        self.has_late_results = (
            own.child("results").read_choice(RESULT_TIMINGS, RESULT_TIMINGS[0]) == "late"
        )
        self.hides_unknown_tools = spot.child("unknown_tools").value == "hide"
        self.has_process_ids = own.child("ids").read_choice(ID_SCOPES, ID_SCOPES[0]) == "process"
        self.has_split_calls = any(one.read_table().get("emit") == "tool_input" for one in events)
        self.reconciled_kinds = _find_reconciled_kinds(events, self.text_mode)
        self.parent_node = own.child("parent")
        self.server_tool_format = (
            spot.child("acp").child("server_tool").read_text("") if spot.child("acp").value else ""
        )


def _find_reconciled_kinds(rules: list[ConfigNode], text: str) -> frozenset[str]:
    """Of text and thinking those that a profile streams and says whole too, without a name for the
    block.
    """
    found: dict[str, set[str]] = {"text": set(), "thinking": set()}
    for one in rules:
        table = one.read_table()
        if table.get("emit") in ("text", "thinking") and "block" not in table:
            found[table["emit"]].add("final" if table.get("mode", text) == "final" else "streamed")
    return frozenset(kind for kind, modes in found.items() if len(modes) > 1)


def write_emit(spot: ConfigNode, told: StreamOptions, here: FunctionBuilder) -> None:
    """Write what a rule does with an event, or with an item of it."""
    name = spot.child("emit").read_choice(tuple(_EMIT_WRITERS))
    write, names = _EMIT_WRITERS[name]
    spot.read_table((*COMMON_RULE_KEYS, *names))
    for needed in _REQUIRED_KEYS.get(name, ()):
        if not spot.child(needed):
            raise spot.build_error(
                f"a rule with `{needed}`, which {name} needs",
                description=f"a rule without `{needed}`",
            )
    nested = _NESTED_WRITERS.get(name)
    if nested is None or not told.parent_node:
        write(spot, told, here)
        return
    parent, parent_again = here.bind_value(compile_field(told.parent_node, here))
    with here.open_block(f"if {parent}:"):
        nested(spot, told, here, f"identity({parent_again})")
    with here.open_block("else:"):
        write(spot, told, here)


COMMON_RULE_KEYS = ("match", "foreach", "item_match", "once", "emit", "continue", "note")


# -- who speaks, and what is said ------------------------------------------------------------------


def _write_session(spot: ConfigNode, told: StreamOptions, here: FunctionBuilder) -> None:
    names = ("model", "cwd", "mode", "vendor_version", "key_source")
    facts = [
        f"{name}={compile_field(spot.child(name), here)}" for name in names if spot.child(name)
    ]
    if spot.child("tools"):
        listed, again = here.bind_value(compile_field(spot.child("tools"), here))
        shown = f"engine.shown({again})" if told.hides_unknown_tools else again
        facts.append(
            f"tools=claude_names({here.add_constant(told.tools)}, {shown}) if {listed} is not None else None"
        )
    session = compile_optional_field(spot.child("session_id"), here)
    if facts:
        here.add_line(f"session = {session}")
        with here.open_block("if engine.doubts:"):
            here.add_line("engine.doubt(session)")
        here.add_line("engine.session = session")
        here.add_line(f"engine.turn.started(session_id=session, {', '.join(facts)})")
        return
    session, again = here.bind_value(session)
    with here.open_block(f"if {session} != engine.session:"):
        here.add_line(f"engine.follow({again})")


def _create_text_writer(kind: str) -> Callable[[ConfigNode, StreamOptions, FunctionBuilder], None]:
    def write(spot: ConfigNode, told: StreamOptions, here: FunctionBuilder) -> None:
        words = compile_field(spot.child("text"), here)
        block = compile_optional_field(spot.child("block"), here)
        mode = spot.child("mode").read_choice(TEXT_MODES, told.text_mode)
        say = f"say({words})" if kind == "text" else f"say({words}, {format_literal(kind)})"
        if not spot.child("block") and kind in told.reconciled_kinds:
            block = f"engine.keys[{format_literal(kind)}]"
        elif mode == "final" and not spot.child("block"):
            if told.has_late_results:
                with here.open_block("if engine.held or engine.turn.open:"):
                    here.add_line(f"engine.say({words}, {format_literal(kind)})")
                with here.open_block("else:"):
                    here.add_line(f"engine.turn.{say}")
            else:
                here.add_line(f"engine.turn.{say}")
            return
        if mode == "delta":
            here.add_line(f"engine.turn.{kind}({words}, {block})")
        else:
            here.add_line(
                f"engine.snapshot({format_literal(kind)}, {words}, {block}, {mode == 'final'})"
            )

    return write


def _write_reply(spot: ConfigNode, told: StreamOptions, here: FunctionBuilder) -> None:
    if told.has_split_calls:
        here.add_line("engine.gathered()")
    here.add_line(f"engine.turn.message(model={compile_optional_field(spot.child('model'), here)})")


# -- calls -----------------------------------------------------------------------------------------


def _compile_id(value: str, told: StreamOptions, here: FunctionBuilder) -> str:
    """An id as text; `engine.mark` tells the ids of one process from those of another."""
    if value == "None":
        return value
    found, again = here.bind_value(value)
    if told.has_process_ids:
        return f'(f"{{engine.mark}}{{{again}}}" if {found} else identity({again}))'
    return f"({again} if {found}.__class__ is str else identity({again}))"


def _write_tool_use(spot: ConfigNode, told: StreamOptions, here: FunctionBuilder) -> None:
    own = _compile_id(compile_optional_field(spot.child("id"), here), told, here)
    name, given = (
        compile_field(spot.child("name"), here),
        compile_optional_field(spot.child("input"), here),
    )
    source = _compile_source_argument(spot)
    if told.has_split_calls or told.hides_unknown_tools:
        here.add_line(f"engine.call({own}, {name}, {given}{source})")
        return
    if told.has_late_results:
        with here.open_block("if engine.held:"):
            here.add_line("engine.calls()")
    if told.server_tool_format:
        here.add_line(f"name, given = engine.translate({name}, {given})")
    else:
        here.add_line(f"name, given = translate({here.add_constant(told.tools)}, {name}, {given})")
    here.add_line(f"engine.turn.tool_use({own}, name, given{source})")


def _compile_source_argument(spot: ConfigNode) -> str:
    """Return the argument that names the kind of event: events of two kinds may announce one call."""
    match = spot.child("match").value
    kind = match.get("type") if isinstance(match, dict) else None
    if isinstance(kind, list):
        return ', source=event["type"]'
    return f", source={format_literal(kind)}" if isinstance(kind, str) else ""


def _write_tool_input(spot: ConfigNode, told: StreamOptions, here: FunctionBuilder) -> None:
    own, key = here.create_variable(), here.create_variable()
    call = compile_optional_field(spot.child("id"), here)
    here.add_line(f"{own} = {_compile_id(call, told, here)}")
    if told.parent_node:
        parent, parent_again = here.bind_value(compile_field(told.parent_node, here))
        with here.open_block(f"if {parent}:"):
            here.add_line(f"engine.nested.begin_pieces(identity({parent_again}), {own})")
    here.add_line(
        f"{key} = {compile_field(spot.child('block'), here) if spot.child('block') else call}"
    )
    here.add_line(
        f"engine.piece({key}, {own}, {compile_optional_field(spot.child('name'), here)}, {compile_field(spot.child('input'), here)})"
    )
    if spot.child("done"):
        with here.open_block(f"if {compile_field(spot.child('done'), here)}:"):
            here.add_line(f"engine.gathered({key})")


def _write_tool_result(spot: ConfigNode, told: StreamOptions, here: FunctionBuilder) -> None:
    said, again = here.bind_value(compile_optional_field(spot.child("content"), here))
    content = f'("" if {said} is None else {again})' if spot.child("content") else '""'
    call = compile_field(spot.child("id"), here)
    own = _compile_id(call, told, here)
    if spot.child("oldest").read_bool() and not spot.child("name"):
        call, again = here.bind_value(call)
        own = f"({_compile_id(again, told, here)} if {call} else engine.oldest)"
    failed = compile_boolean_field(spot.child("is_error"), here)
    if spot.child("name"):
        name, given = (
            compile_field(spot.child("name"), here),
            compile_optional_field(spot.child("input"), here),
        )
        here.add_line(f"engine.result_with_call({own}, {content}, {failed}, {name}, {given})")
        return
    if told.has_split_calls:
        here.add_line("engine.gathered()")
    if told.parent_node:
        own, own_again = here.bind_value(own)
        here.add_line(f"engine.nested.flush({own})")
        own = own_again
    if told.has_late_results:
        here.add_line("engine.answers = True")
    here.add_line(f"engine.turn.tool_result({own}, {content}, {failed})")
    if told.has_late_results:
        with here.open_block("if engine.held and not engine.turn.open:"):
            here.add_line("engine.say_held()")


def _write_denied(spot: ConfigNode, told: StreamOptions, here: FunctionBuilder) -> None:
    own, name = (
        _compile_id(compile_field(spot.child("id"), here), told, here),
        compile_optional_field(spot.child("name"), here),
    )
    here.add_line(
        f"engine.denied({own}, {name}, {compile_optional_field(spot.child('input'), here)})"
    )


# -- numbers and ends ------------------------------------------------------------------------------


def _compile_usage_and_cost(spot: ConfigNode, here: FunctionBuilder) -> tuple[str, str]:
    """Usage and cost of a rule; None for a usage that is not there."""
    within = spot.child("usage")
    found = compile_fields(within, here) if within.read_table(USAGE_FIELDS) else {}
    cost = (
        found.pop("cost_usd")
        if "cost_usd" in found
        else compile_optional_field(spot.child("cost_usd"), here)
    )
    cost = "0.0" if cost == "None" else f"dollars({cost})"
    return (
        f"counted({', '.join(found.get(name, 'None') for name in USAGE_KEYS)})" if found else "None"
    ), cost


def _write_usage(spot: ConfigNode, told: StreamOptions, here: FunctionBuilder) -> None:
    usage, cost = _compile_usage_and_cost(spot, here)
    here.add_line(
        f"engine.replied({usage}, {compile_optional_field(spot.child('stop_reason'), here)}, {cost})"
    )


def _write_result(spot: ConfigNode, told: StreamOptions, here: FunctionBuilder) -> None:
    names = (
        "is_error",
        "error",
        "code",
        "text",
        "duration_ms",
        "stop_reason",
        "limit",
        "interrupted",
    )
    values = {name: compile_field(spot.child(name), here) for name in names if spot.child(name)}
    said = "".join(f", {name}={value}" for name, value in values.items())
    usage, cost = _compile_usage_and_cost(spot, here)
    here.add_line(f"engine.result({usage}, {cost}{said})")


def _write_error(spot: ConfigNode, told: StreamOptions, here: FunctionBuilder) -> None:
    words, code = (
        compile_field(spot.child("error"), here),
        compile_optional_field(spot.child("code"), here),
    )
    kind = spot.child("cause").read_choice(PROFILE_CAUSES) if spot.child("cause") else None
    with here.open_block(
        "if not engine.failed:" if spot.child("first_wins").read_bool() else "if True:"
    ):
        here.add_line(f"engine.error({words}, {code}, {format_literal(kind)})")


def _write_notice(spot: ConfigNode, told: StreamOptions, here: FunctionBuilder) -> None:
    here.add_line(f"engine.noticed({compile_field(spot.child('text'), here)})")


def _write_retry(spot: ConfigNode, told: StreamOptions, here: FunctionBuilder) -> None:
    values = [
        compile_optional_field(spot.child(name), here)
        for name in ("attempt", "max", "delay_ms", "text")
    ]
    here.add_line(f"engine.retry({', '.join(values)})")


def _write_retract(spot: ConfigNode, told: StreamOptions, here: FunctionBuilder) -> None:
    here.add_line("engine.gathered(whole=False)")
    here.add_line("engine.turn.retract()")


def _write_compacted(spot: ConfigNode, told: StreamOptions, here: FunctionBuilder) -> None:
    here.add_line(
        f"engine.compacted({compile_optional_field(spot.child('trigger'), here)}, {compile_optional_field(spot.child('tokens'), here)})"
    )


def _write_input(spot: ConfigNode, told: StreamOptions, here: FunctionBuilder) -> None:
    if told.has_split_calls:
        here.add_line("engine.gathered()")
    with here.open_block("if engine.held:"):
        here.add_line("engine.say_held()")


def _write_nothing(spot: ConfigNode, told: StreamOptions, here: FunctionBuilder) -> None:
    """Nothing is said."""


# -- events of nested agents -----------------------------------------------------------------------


def _create_nested_text_writer(
    kind: str,
) -> Callable[[ConfigNode, StreamOptions, FunctionBuilder, str], None]:
    def write(spot: ConfigNode, told: StreamOptions, here: FunctionBuilder, parent: str) -> None:
        text = compile_field(spot.child("text"), here)
        block = compile_optional_field(spot.child("block"), here)
        mode = spot.child("mode").read_choice(TEXT_MODES, told.text_mode)
        here.add_line(
            f"engine.nested.text({parent}, {format_literal(kind)}, {text}, {block}, {format_literal(mode)})"
        )

    return write


def _write_nested_reply(
    spot: ConfigNode, told: StreamOptions, here: FunctionBuilder, parent: str
) -> None:
    here.add_line(f"engine.nested.begin_reply({parent})")


def _write_nested_call(
    spot: ConfigNode, told: StreamOptions, here: FunctionBuilder, parent: str
) -> None:
    own = _compile_id(compile_optional_field(spot.child("id"), here), told, here)
    name, given = (
        compile_field(spot.child("name"), here),
        compile_optional_field(spot.child("input"), here),
    )
    here.add_line(
        f"engine.nested.call({parent}, {own}, {name}, {given}{_compile_source_argument(spot)})"
    )


def _write_nested_result(
    spot: ConfigNode, told: StreamOptions, here: FunctionBuilder, parent: str
) -> None:
    content, again = here.bind_value(compile_optional_field(spot.child("content"), here))
    own, failed = (
        _compile_id(compile_field(spot.child("id"), here), told, here),
        compile_boolean_field(spot.child("is_error"), here),
    )
    call = ""
    if spot.child("name"):
        call = f", {compile_field(spot.child('name'), here)}, {compile_optional_field(spot.child('input'), here)}"
    here.add_line(
        f'engine.nested.result({parent}, {own}, "" if {content} is None else {again}, {failed}{call})'
    )


def _write_nested_denied(
    spot: ConfigNode, told: StreamOptions, here: FunctionBuilder, parent: str
) -> None:
    own, name = (
        _compile_id(compile_field(spot.child("id"), here), told, here),
        compile_optional_field(spot.child("name"), here),
    )
    here.add_line(
        f"engine.nested.denied({own}, {name}, {compile_optional_field(spot.child('input'), here)})"
    )


def _write_nested_usage(
    spot: ConfigNode, told: StreamOptions, here: FunctionBuilder, parent: str
) -> None:
    usage, cost = _compile_usage_and_cost(spot, here)
    here.add_line(f"engine.nested.end_reply({parent}, {usage}, {cost})")


def _write_nested_error(
    spot: ConfigNode, told: StreamOptions, here: FunctionBuilder, parent: str
) -> None:
    here.add_line(f"engine.noticed({compile_field(spot.child('error'), here)})")


def _write_nested_retract(
    spot: ConfigNode, told: StreamOptions, here: FunctionBuilder, parent: str
) -> None:
    here.add_line(f"engine.nested.retract({parent})")


def _write_nested_nothing(
    spot: ConfigNode, told: StreamOptions, here: FunctionBuilder, parent: str
) -> None:
    """Write nothing: only events of the main agent have this effect."""


_NESTED_WRITERS: Mapping[str, Callable[[ConfigNode, StreamOptions, FunctionBuilder, str], None]] = {
    "session": _write_nested_nothing,
    "text": _create_nested_text_writer("text"),
    "thinking": _create_nested_text_writer("thinking"),
    "reply": _write_nested_reply,
    "tool_use": _write_nested_call,
    "tool_result": _write_nested_result,
    "denied": _write_nested_denied,
    "usage": _write_nested_usage,
    "result": _write_nested_reply,
    "error": _write_nested_error,
    "retract": _write_nested_retract,
    "compacted": _write_nested_nothing,
}

_CALL_KEYS = ("id", "name", "input")
_USAGE_KEYS = ("usage", "cost_usd", "stop_reason")
_EMIT_WRITERS: Mapping[
    str, tuple[Callable[[ConfigNode, StreamOptions, FunctionBuilder], None], tuple[str, ...]]
] = {
    "session": (
        _write_session,
        ("session_id", "model", "cwd", "tools", "mode", "vendor_version", "key_source"),
    ),
    "text": (_create_text_writer("text"), ("text", "block", "mode")),
    "thinking": (_create_text_writer("thinking"), ("text", "block", "mode")),
    "reply": (_write_reply, ("model",)),
    "tool_use": (_write_tool_use, _CALL_KEYS),
    "tool_input": (_write_tool_input, (*_CALL_KEYS, "block", "done")),
    "tool_result": (_write_tool_result, (*_CALL_KEYS, "content", "is_error", "oldest")),
    "denied": (_write_denied, _CALL_KEYS),
    "usage": (_write_usage, _USAGE_KEYS),
    "result": (
        _write_result,
        (*_USAGE_KEYS, "is_error", "error", "code", "text", "duration_ms", "limit", "interrupted"),
    ),
    "error": (_write_error, ("error", "code", "cause", "first_wins")),
    "notice": (_write_notice, ("text",)),
    "retry": (_write_retry, ("attempt", "max", "delay_ms", "text")),
    "retract": (_write_retract, ()),
    "compacted": (_write_compacted, ("trigger", "tokens")),
    "input": (_write_input, ()),
    "ignore": (_write_nothing, ()),
}
_REQUIRED_KEYS = {
    "text": ("text",),
    "thinking": ("text",),
    "tool_use": ("name",),
    "tool_input": ("input",),
    "tool_result": ("id",),
    "denied": ("id",),
    "error": ("error",),
    "notice": ("text",),
}
