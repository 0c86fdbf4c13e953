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
from shim.profiles.compile.fields import field, fields, optional, truth
from shim.profiles.compile.source import Function, literal

RULES = 200
IDS = ("session", "process")
RESULTS = ("next", "late")
TEXT_MODES = ("delta", "cumulative", "final")
COUNTS = (*USAGE_KEYS, "cost_usd")
# A rule may not say the other causes: they are about the API, which is read off the text, or about
# us.
CAUSES: tuple[Cause, ...] = ("vendor_error", "limit", "refused", "truncated")


class Told:
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
        own, events = spot.child("stream"), spot.child("event").read_items(RULES)
        self.tools = tools
        self.text = own.child("text").read_choice(TEXT_MODES, "final")
        self.late = own.child("results").read_choice(RESULTS, RESULTS[0]) == "late"
        self.hides = spot.child("unknown_tools").value == "hide"
        self.marks = own.child("ids").read_choice(IDS, IDS[0]) == "process"
        self.pieces = any(one.read_table().get("emit") == "tool_input" for one in events)
        self.reconciled = _reconciled(events, self.text)
        self.parent = own.child("parent")
        self.server_tool = (
            spot.child("acp").child("server_tool").read_text("") if spot.child("acp").value else ""
        )


def _reconciled(rules: list[ConfigNode], text: str) -> frozenset[str]:
    """Of text and thinking those that a profile streams and says whole too, without a name for the
    block.
    """
    found: dict[str, set[str]] = {"text": set(), "thinking": set()}
    for one in rules:
        table = one.read_table()
        if table.get("emit") in ("text", "thinking") and "block" not in table:
            found[table["emit"]].add("final" if table.get("mode", text) == "final" else "streamed")
    return frozenset(kind for kind, modes in found.items() if len(modes) > 1)


def emit(spot: ConfigNode, told: Told, here: Function) -> None:
    """Write what a rule does with an event, or with an item of it."""
    name = spot.child("emit").read_choice(tuple(_EMITS))
    write, names = _EMITS[name]
    spot.read_table((*RULE_KEYS, *names))
    for needed in _NEEDED.get(name, ()):
        if not spot.child(needed):
            raise spot.build_error(
                f"a rule with `{needed}`, which {name} needs",
                description=f"a rule without `{needed}`",
            )
    nested = _NESTED.get(name)
    if nested is None or not told.parent:
        write(spot, told, here)
        return
    parent, parent_again = here.held(field(told.parent, here))
    with here.block(f"if {parent}:"):
        nested(spot, told, here, f"identity({parent_again})")
    with here.block("else:"):
        write(spot, told, here)


RULE_KEYS = ("match", "foreach", "item_match", "once", "emit", "continue", "note")


# -- who speaks, and what is said ------------------------------------------------------------------


def _session(spot: ConfigNode, told: Told, here: Function) -> None:
    names = ("model", "cwd", "mode", "vendor_version", "key_source")
    facts = [f"{name}={field(spot.child(name), here)}" for name in names if spot.child(name)]
    if spot.child("tools"):
        listed, again = here.held(field(spot.child("tools"), here))
        shown = f"engine.shown({again})" if told.hides else again
        facts.append(
            f"tools=claude_names({here.constant(told.tools)}, {shown}) if {listed} is not None else None"
        )
    session = optional(spot.child("session_id"), here)
    if facts:
        here.line(f"session = {session}")
        with here.block("if engine.doubts:"):
            here.line("engine.doubt(session)")
        here.line("engine.session = session")
        here.line(f"engine.turn.started(session_id=session, {', '.join(facts)})")
        return
    session, again = here.held(session)
    with here.block(f"if {session} != engine.session:"):
        here.line(f"engine.follow({again})")


def _speech(kind: str) -> Callable[[ConfigNode, Told, Function], None]:
    def write(spot: ConfigNode, told: Told, here: Function) -> None:
        words = field(spot.child("text"), here)
        block = optional(spot.child("block"), here)
        mode = spot.child("mode").read_choice(TEXT_MODES, told.text)
        say = f"say({words})" if kind == "text" else f"say({words}, {literal(kind)})"
        if not spot.child("block") and kind in told.reconciled:
            block = f"engine.keys[{literal(kind)}]"
        elif mode == "final" and not spot.child("block"):
            if told.late:
                with here.block("if engine.held or engine.turn.open:"):
                    here.line(f"engine.say({words}, {literal(kind)})")
                with here.block("else:"):
                    here.line(f"engine.turn.{say}")
            else:
                here.line(f"engine.turn.{say}")
            return
        if mode == "delta":
            here.line(f"engine.turn.{kind}({words}, {block})")
        else:
            here.line(f"engine.snapshot({literal(kind)}, {words}, {block}, {mode == 'final'})")

    return write


def _reply(spot: ConfigNode, told: Told, here: Function) -> None:
    if told.pieces:
        here.line("engine.gathered()")
    here.line(f"engine.turn.message(model={optional(spot.child('model'), here)})")


# -- calls -----------------------------------------------------------------------------------------


def _identity(value: str, told: Told, here: Function) -> str:
    """An id as text; `engine.mark` tells the ids of one process from those of another."""
    if value == "None":
        return value
    found, again = here.held(value)
    if told.marks:
        return f'(f"{{engine.mark}}{{{again}}}" if {found} else identity({again}))'
    return f"({again} if {found}.__class__ is str else identity({again}))"


def _tool_use(spot: ConfigNode, told: Told, here: Function) -> None:
    own = _identity(optional(spot.child("id"), here), told, here)
    name, given = field(spot.child("name"), here), optional(spot.child("input"), here)
    source = _write_source(spot)
    if told.pieces or told.hides:
        here.line(f"engine.call({own}, {name}, {given}{source})")
        return
    if told.late:
        with here.block("if engine.held:"):
            here.line("engine.calls()")
    if told.server_tool:
        here.line(f"name, given = engine.translate({name}, {given})")
    else:
        here.line(f"name, given = translate({here.constant(told.tools)}, {name}, {given})")
    here.line(f"engine.turn.tool_use({own}, name, given{source})")


def _write_source(spot: ConfigNode) -> str:
    """Return the argument that names the kind of event: events of two kinds may announce one call."""
    match = spot.child("match").value
    kind = match.get("type") if isinstance(match, dict) else None
    if isinstance(kind, list):
        return ', source=event["type"]'
    return f", source={literal(kind)}" if isinstance(kind, str) else ""


def _tool_input(spot: ConfigNode, told: Told, here: Function) -> None:
    own, key = here.variable(), here.variable()
    call = optional(spot.child("id"), here)
    here.line(f"{own} = {_identity(call, told, here)}")
    if told.parent:
        parent, parent_again = here.held(field(told.parent, here))
        with here.block(f"if {parent}:"):
            here.line(f"engine.nested.begin_pieces(identity({parent_again}), {own})")
    here.line(f"{key} = {field(spot.child('block'), here) if spot.child('block') else call}")
    here.line(
        f"engine.piece({key}, {own}, {optional(spot.child('name'), here)}, {field(spot.child('input'), here)})"
    )
    if spot.child("done"):
        with here.block(f"if {field(spot.child('done'), here)}:"):
            here.line(f"engine.gathered({key})")


def _tool_result(spot: ConfigNode, told: Told, here: Function) -> None:
    said, again = here.held(optional(spot.child("content"), here))
    content = f'("" if {said} is None else {again})' if spot.child("content") else '""'
    call = field(spot.child("id"), here)
    own = _identity(call, told, here)
    if spot.child("oldest").read_bool() and not spot.child("name"):
        call, again = here.held(call)
        own = f"({_identity(again, told, here)} if {call} else engine.oldest)"
    failed = truth(spot.child("is_error"), here)
    if spot.child("name"):
        name, given = field(spot.child("name"), here), optional(spot.child("input"), here)
        here.line(f"engine.result_with_call({own}, {content}, {failed}, {name}, {given})")
        return
    if told.pieces:
        here.line("engine.gathered()")
    if told.parent:
        own, own_again = here.held(own)
        here.line(f"engine.nested.flush({own})")
        own = own_again
    if told.late:
        here.line("engine.answers = True")
    here.line(f"engine.turn.tool_result({own}, {content}, {failed})")
    if told.late:
        with here.block("if engine.held and not engine.turn.open:"):
            here.line("engine.say_held()")


def _denied(spot: ConfigNode, told: Told, here: Function) -> None:
    own, name = (
        _identity(field(spot.child("id"), here), told, here),
        optional(spot.child("name"), here),
    )
    here.line(f"engine.denied({own}, {name}, {optional(spot.child('input'), here)})")


# -- numbers and ends ------------------------------------------------------------------------------


def _counted(spot: ConfigNode, here: Function) -> tuple[str, str]:
    """Usage and cost of a rule; None for a usage that is not there."""
    within = spot.child("usage")
    found = fields(within, here) if within.read_table(COUNTS) else {}
    cost = found.pop("cost_usd") if "cost_usd" in found else optional(spot.child("cost_usd"), here)
    cost = "0.0" if cost == "None" else f"dollars({cost})"
    return (
        f"counted({', '.join(found.get(name, 'None') for name in USAGE_KEYS)})" if found else "None"
    ), cost


def _usage(spot: ConfigNode, told: Told, here: Function) -> None:
    usage, cost = _counted(spot, here)
    here.line(f"engine.replied({usage}, {optional(spot.child('stop_reason'), here)}, {cost})")


def _result(spot: ConfigNode, told: Told, here: Function) -> None:
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
    values = {name: field(spot.child(name), here) for name in names if spot.child(name)}
    said = "".join(f", {name}={value}" for name, value in values.items())
    usage, cost = _counted(spot, here)
    here.line(f"engine.result({usage}, {cost}{said})")


def _error(spot: ConfigNode, told: Told, here: Function) -> None:
    words, code = field(spot.child("error"), here), optional(spot.child("code"), here)
    kind = spot.child("cause").read_choice(CAUSES) if spot.child("cause") else None
    with here.block(
        "if not engine.failed:" if spot.child("first_wins").read_bool() else "if True:"
    ):
        here.line(f"engine.error({words}, {code}, {literal(kind)})")


def _notice(spot: ConfigNode, told: Told, here: Function) -> None:
    here.line(f"engine.noticed({field(spot.child('text'), here)})")


def _retry(spot: ConfigNode, told: Told, here: Function) -> None:
    values = [optional(spot.child(name), here) for name in ("attempt", "max", "delay_ms", "text")]
    here.line(f"engine.retry({', '.join(values)})")


def _retract(spot: ConfigNode, told: Told, here: Function) -> None:
    here.line("engine.gathered(whole=False)")
    here.line("engine.turn.retract()")


def _compacted(spot: ConfigNode, told: Told, here: Function) -> None:
    here.line(
        f"engine.compacted({optional(spot.child('trigger'), here)}, {optional(spot.child('tokens'), here)})"
    )


def _input(spot: ConfigNode, told: Told, here: Function) -> None:
    if told.pieces:
        here.line("engine.gathered()")
    with here.block("if engine.held:"):
        here.line("engine.say_held()")


def _ignore(spot: ConfigNode, told: Told, here: Function) -> None:
    """Nothing is said."""


# -- events of nested agents -----------------------------------------------------------------------


def _nested_block(kind: str) -> Callable[[ConfigNode, Told, Function, str], None]:
    def write(spot: ConfigNode, told: Told, here: Function, parent: str) -> None:
        text = field(spot.child("text"), here)
        block = optional(spot.child("block"), here)
        mode = spot.child("mode").read_choice(TEXT_MODES, told.text)
        here.line(
            f"engine.nested.text({parent}, {literal(kind)}, {text}, {block}, {literal(mode)})"
        )

    return write


def _nested_reply(spot: ConfigNode, told: Told, here: Function, parent: str) -> None:
    here.line(f"engine.nested.begin_reply({parent})")


def _nested_call(spot: ConfigNode, told: Told, here: Function, parent: str) -> None:
    own = _identity(optional(spot.child("id"), here), told, here)
    name, given = field(spot.child("name"), here), optional(spot.child("input"), here)
    here.line(f"engine.nested.call({parent}, {own}, {name}, {given}{_write_source(spot)})")


def _nested_result(spot: ConfigNode, told: Told, here: Function, parent: str) -> None:
    content, again = here.held(optional(spot.child("content"), here))
    own, failed = (
        _identity(field(spot.child("id"), here), told, here),
        truth(spot.child("is_error"), here),
    )
    call = ""
    if spot.child("name"):
        call = f", {field(spot.child('name'), here)}, {optional(spot.child('input'), here)}"
    here.line(
        f'engine.nested.result({parent}, {own}, "" if {content} is None else {again}, {failed}{call})'
    )


def _nested_denied(spot: ConfigNode, told: Told, here: Function, parent: str) -> None:
    own, name = (
        _identity(field(spot.child("id"), here), told, here),
        optional(spot.child("name"), here),
    )
    here.line(f"engine.nested.denied({own}, {name}, {optional(spot.child('input'), here)})")


def _nested_usage(spot: ConfigNode, told: Told, here: Function, parent: str) -> None:
    usage, cost = _counted(spot, here)
    here.line(f"engine.nested.end_reply({parent}, {usage}, {cost})")


def _nested_error(spot: ConfigNode, told: Told, here: Function, parent: str) -> None:
    here.line(f"engine.noticed({field(spot.child('error'), here)})")


def _nested_retract(spot: ConfigNode, told: Told, here: Function, parent: str) -> None:
    here.line(f"engine.nested.retract({parent})")


def _nested_nothing(spot: ConfigNode, told: Told, here: Function, parent: str) -> None:
    """Write nothing: only events of the main agent have this effect."""


_NESTED: Mapping[str, Callable[[ConfigNode, Told, Function, str], None]] = {
    "session": _nested_nothing,
    "text": _nested_block("text"),
    "thinking": _nested_block("thinking"),
    "reply": _nested_reply,
    "tool_use": _nested_call,
    "tool_result": _nested_result,
    "denied": _nested_denied,
    "usage": _nested_usage,
    "result": _nested_reply,
    "error": _nested_error,
    "retract": _nested_retract,
    "compacted": _nested_nothing,
}

_CALL = ("id", "name", "input")
_COUNTED = ("usage", "cost_usd", "stop_reason")
_EMITS: Mapping[str, tuple[Callable[[ConfigNode, Told, Function], None], tuple[str, ...]]] = {
    "session": (
        _session,
        ("session_id", "model", "cwd", "tools", "mode", "vendor_version", "key_source"),
    ),
    "text": (_speech("text"), ("text", "block", "mode")),
    "thinking": (_speech("thinking"), ("text", "block", "mode")),
    "reply": (_reply, ("model",)),
    "tool_use": (_tool_use, _CALL),
    "tool_input": (_tool_input, (*_CALL, "block", "done")),
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
    "tool_input": ("input",),
    "tool_result": ("id",),
    "denied": ("id",),
    "error": ("error",),
    "notice": ("text",),
}
