"""Compiles the `emit` of a rule to a call of a method of the engine or the Turn. The rule's fields are
the arguments.

                                   THE VALUES OF `emit` AND THEIR FIELDS

    session       session_id, model, cwd, tools (a list of the vendor's names), mode,
                  vendor_version, key_source
    text, thinking   text, block (the vendor's key for the block), mode (delta, cumulative or final;
                     the default is the stream's mode)
    reply         model: the model starts another message
    tool_use      id, name, input: a complete tool call
    tool_input    id, name (in the first fragment), input (a JSON fragment), block (the vendor's key
                  for the call; the default is the call's id), done: a tool call in fragments. The
                  call is written once, in full, with Claude's names: when `done` is true, at its
                  `tool_use`, or when a result, a usage or the end of the turn shows that it is
                  complete
    tool_result   id, content, is_error, name, input (the last two if no `tool_use` came before);
                  oldest = true: a result without an id belongs to the oldest open call
    denied        id, name, input (the last two if the call is not open): a denied tool call
    usage         usage, stop_reason, cost_usd: the end of a message; `stream.usage` defines what
                  the usage figures mean
    result        is_error, error, code, text, usage, cost_usd, duration_ms, stop_reason, limit,
                  interrupted: the end of the turn
    error         error, code, cause, first_wins: the turn has failed; a result may add details
    notice        text: the error text if the turn fails without a reason
    retry         attempt, max, delay_ms, text: the vendor repeats its request to the model
    retract       no fields: the message was cut off and will be repeated
    compacted     trigger, tokens: the context was compacted
    input         no fields: the model has received input. Blocks that wait for late results are
                  written now
    ignore        no fields: the event has no effect

The `limit` of a result names the limit that was reached: turns, budget, or any other text.

For a subagent's event, `stream.parent` is the id of the tool call that runs the subagent. The rule's
output then belongs to the subagent. Such output is not part of the turn's answer, and neither ends
nor fails the turn.

`usage` is a table with input_tokens, cache_read_input_tokens, cache_creation_input_tokens,
output_tokens, and optionally cost_usd.
"""

from collections.abc import Callable, Mapping
from typing import Any

from shim.core.adapter.tools import Tools
from shim.core.api_errors import TurnEndCause
from shim.core.claude.usage import USAGE_KEYS
from shim.core.reading.values import as_dict
from shim.profiles.check.config_node import ConfigNode
from shim.profiles.compile.fields import (
    compile_boolean_field_expression,
    compile_field_expression,
    compile_field_expressions,
    compile_optional_field_expression,
)
from shim.profiles.compile.function_builder import FunctionBuilder, format_literal

MAX_RULES = 200
ID_SCOPES = ("session", "process")
RESULT_TIMINGS = ("next", "late")
TEXT_MODES = ("delta", "cumulative", "final")
USAGE_FIELDS = (*USAGE_KEYS, "cost_usd")
# Rules must not use any other cause. The other causes describe API errors, which are derived from
# the error text, or errors of the shim.
PROFILE_CAUSES: tuple[TurnEndCause, ...] = ("vendor_error", "limit", "refused", "truncated")


class ProfileTranslationOptions:
    """The options that apply to all rules in a profile.

    tools                the mapping from the vendor's tools to Claude's
    text_mode            the default mode for text (TEXT_MODES)
    has_late_results     a tool result may arrive after the next message, or never
    hides_unknown_tools  omit calls to tools that are missing in the profile
    has_process_ids      tool call ids are only unique within one process
    has_split_calls      a rule emits tool calls in fragments
    reconciled_kinds     the block kinds (text, thinking) that are streamed and then repeated in
                         full, without a block key
    parent_node          `stream.parent`
    server_tool_format   the vendor's format for MCP tool names (`acp.server_tool`), "" if it is
                         unknown
    """

    def __init__(self, node: ConfigNode, stream: dict[str, Any], tools: Tools) -> None:
        """Read the options from a profile. `node` is the complete profile, and `stream` has the
        values of STREAM_KEYS.
        """
        events = node.get_child("event").read_items(MAX_RULES)
        self.tools = tools
        self.text_mode = stream["text"]
        self.has_late_results = stream["results"] == "late"
        self.hides_unknown_tools = node.get_child("unknown_tools").value == "hide"
        self.has_process_ids = stream["ids"] == "process"
        self.has_split_calls = any(
            event.read_table().get("emit") == "tool_input" for event in events
        )
        self.reconciled_kinds = _find_reconciled_kinds(events, self.text_mode)
        self.parent_node = stream["parent"]
        if node.get_child("acp").value:
            self.server_tool_format = node.get_child("acp").get_child("server_tool").read_text("")
        else:
            self.server_tool_format = ""


def _find_reconciled_kinds(rules: list[ConfigNode], text_mode: str) -> frozenset[str]:
    """Return the block kinds (text, thinking) that a profile both streams and repeats in full
    without a block key.
    """
    modes_by_kind: dict[str, set[str]] = {"text": set(), "thinking": set()}
    for rule in rules:
        table = rule.read_table()
        if table.get("emit") in ("text", "thinking") and "block" not in table:
            modes_by_kind[table["emit"]].add(
                "final" if table.get("mode", text_mode) == "final" else "streamed"
            )
    return frozenset(kind for kind, modes in modes_by_kind.items() if len(modes) > 1)


def write_event_rule_code(
    node: ConfigNode, options: ProfileTranslationOptions, builder: FunctionBuilder
) -> None:
    """Write the code that a rule runs for an event, or for one item in the event. Raise
    FrontendError for an invalid rule.
    """
    name = node.get_child("emit").read_choice(tuple(_EMIT_WRITERS))
    write, keys = _EMIT_WRITERS[name]
    node.read_table((*COMMON_RULE_KEYS, *keys))
    for required_key in _REQUIRED_KEYS.get(name, ()):
        if not node.get_child(required_key):
            raise node.build_error(
                f"a rule with `{required_key}`, which {name} needs",
                description=f"a rule without `{required_key}`",
            )
    write_nested = _NESTED_WRITERS.get(name)
    if write_nested is None or not options.parent_node:
        write(node, options, builder)
        return
    parent_binding, parent_name = builder.bind_expression_to_variable(
        compile_field_expression(options.parent_node, builder)
    )
    with builder.open_block(f"if {parent_binding}:"):
        write_nested(node, options, builder, f"convert_integer_id_to_text({parent_name})")
    with builder.open_block("else:"):
        write(node, options, builder)


COMMON_RULE_KEYS = ("match", "foreach", "item_match", "once", "emit", "continue", "note")


# -- sessions, text and messages -------------------------------------------------------------------


def _write_session(
    node: ConfigNode, options: ProfileTranslationOptions, builder: FunctionBuilder
) -> None:
    names = ("model", "cwd", "mode", "vendor_version", "key_source")
    arguments = [
        f"{name}={compile_field_expression(node.get_child(name), builder)}"
        for name in names
        if node.get_child(name)
    ]
    if node.get_child("tools"):
        tools_binding, bound_name = builder.bind_expression_to_variable(
            compile_field_expression(node.get_child("tools"), builder)
        )
        visible_tools = bound_name
        if options.hides_unknown_tools:
            visible_tools = f"engine.remove_hidden_tools({bound_name})"
        arguments.append(
            f"tools=list_claude_names({builder.add_constant(options.tools)}, {visible_tools}) "
            f"if {tools_binding} is not None else None"
        )
    session = compile_optional_field_expression(node.get_child("session_id"), builder)
    if arguments:
        builder.add_line(f"session = {session}")
        with builder.open_block("if engine.is_doubtful:"):
            builder.add_line("engine.check_event_session_id(session)")
        builder.add_line("engine.vendor_session = session")
        builder.add_line(
            f"engine.turn.record_vendor_session_info(session_id=session, {', '.join(arguments)})"
        )
        return
    session, bound_name = builder.bind_expression_to_variable(session)
    with builder.open_block(f"if {session} != engine.vendor_session:"):
        builder.add_line(f"engine.set_vendor_session_id({bound_name})")


def _create_text_writer(
    kind: str,
) -> Callable[[ConfigNode, ProfileTranslationOptions, FunctionBuilder], None]:
    def write_text(
        node: ConfigNode, options: ProfileTranslationOptions, builder: FunctionBuilder
    ) -> None:
        text = compile_field_expression(node.get_child("text"), builder)
        block = compile_optional_field_expression(node.get_child("block"), builder)
        mode = node.get_child("mode").read_choice(TEXT_MODES, options.text_mode)
        if not node.get_child("block") and kind in options.reconciled_kinds:
            block = f"engine.block_keys[{format_literal(kind)}]"
        elif mode == "final" and not node.get_child("block"):
            _write_complete_block(kind, text, options, builder)
            return
        if mode == "delta":
            builder.add_line(f"engine.turn.add_{kind}({text}, {block})")
        else:
            builder.add_line(
                f"engine.update_content_block({format_literal(kind)}, {text}, {block}, {mode == 'final'})"
            )

    return write_text


def _write_complete_block(
    kind: str, text: str, options: ProfileTranslationOptions, builder: FunctionBuilder
) -> None:
    """Write the code that adds a complete content block to the turn. If tool results may arrive
    after the block, the code buffers the block while calls are open.
    """
    call_text = f"add_block({text}, {format_literal(kind)})"
    if kind == "text":
        call_text = f"add_block({text})"
    if not options.has_late_results:
        builder.add_line(f"engine.turn.{call_text}")
        return
    with builder.open_block("if engine.buffered_blocks or engine.turn.open_calls:"):
        builder.add_line(f"engine.write_complete_content_block({text}, {format_literal(kind)})")
    with builder.open_block("else:"):
        builder.add_line(f"engine.turn.{call_text}")


def _write_reply(
    node: ConfigNode, options: ProfileTranslationOptions, builder: FunctionBuilder
) -> None:
    if options.has_split_calls:
        builder.add_line("engine.finish_partial_calls()")
    builder.add_line(
        f"engine.turn.start_message(model={compile_optional_field_expression(node.get_child('model'), builder)})"
    )


# -- tool calls ------------------------------------------------------------------------------------


def _compile_id(value: str, options: ProfileTranslationOptions, builder: FunctionBuilder) -> str:
    """Return the Python expression for an id as text. If ids are only unique within one process,
    the expression adds the prefix `engine.id_prefix`.
    """
    if value == "None":
        return value
    binding, bound_name = builder.bind_expression_to_variable(value)
    if options.has_process_ids:
        return f'(f"{{engine.id_prefix}}{{{bound_name}}}" if {binding} else convert_integer_id_to_text({bound_name}))'
    return f"({bound_name} if {binding}.__class__ is str else convert_integer_id_to_text({bound_name}))"


def _write_tool_use(
    node: ConfigNode, options: ProfileTranslationOptions, builder: FunctionBuilder
) -> None:
    call_id = _compile_id(
        compile_optional_field_expression(node.get_child("id"), builder), options, builder
    )
    name = compile_field_expression(node.get_child("name"), builder)
    tool_input = compile_optional_field_expression(node.get_child("input"), builder)
    source = _compile_source_argument(node)
    if options.has_split_calls or options.hides_unknown_tools:
        builder.add_line(f"engine.write_call({call_id}, {name}, {tool_input}{source})")
        return
    if options.has_late_results:
        with builder.open_block("if engine.buffered_blocks:"):
            builder.add_line("engine.write_buffered_blocks_before_call()")
    if options.server_tool_format:
        builder.add_line(
            f"name, tool_input = engine.translate_vendor_tool_call({name}, {tool_input})"
        )
    else:
        builder.add_line(
            f"name, tool_input = translate_tool_call({builder.add_constant(options.tools)}, {name}, {tool_input})"
        )
    builder.add_line(f"engine.turn.add_tool_call({call_id}, name, tool_input{source})")


def _compile_source_argument(node: ConfigNode) -> str:
    """Return the code for the argument `source`, the event's type. It is needed because events of
    two types may report the same tool call.
    """
    match = node.get_child("match").value
    kind = as_dict(match).get("type")
    if isinstance(kind, list):
        return ', source=event["type"]'
    if isinstance(kind, str):
        return f", source={format_literal(kind)}"
    return ""


def _write_tool_input(
    node: ConfigNode, options: ProfileTranslationOptions, builder: FunctionBuilder
) -> None:
    id_variable = builder.create_variable()
    key_variable = builder.create_variable()
    call_id = compile_optional_field_expression(node.get_child("id"), builder)
    builder.add_line(f"{id_variable} = {_compile_id(call_id, options, builder)}")
    if options.parent_node:
        parent_binding, parent_name = builder.bind_expression_to_variable(
            compile_field_expression(options.parent_node, builder)
        )
        with builder.open_block(f"if {parent_binding}:"):
            builder.add_line(
                f"engine.subagent_events.record_parent_of_partial_call("
                f"convert_integer_id_to_text({parent_name}), {id_variable})"
            )
    block_node = node.get_child("block")
    block_key = call_id
    if block_node:
        block_key = compile_field_expression(block_node, builder)
    builder.add_line(f"{key_variable} = {block_key}")
    builder.add_line(
        f"engine.add_call_fragment({key_variable}, {id_variable}, "
        f"{compile_optional_field_expression(node.get_child('name'), builder)}, "
        f"{compile_field_expression(node.get_child('input'), builder)})"
    )
    if node.get_child("done"):
        with builder.open_block(f"if {compile_field_expression(node.get_child('done'), builder)}:"):
            builder.add_line(f"engine.finish_partial_calls({key_variable})")


def _write_tool_result(
    node: ConfigNode, options: ProfileTranslationOptions, builder: FunctionBuilder
) -> None:
    content_binding, bound_name = builder.bind_expression_to_variable(
        compile_optional_field_expression(node.get_child("content"), builder)
    )
    content = '""'
    if node.get_child("content"):
        content = f'("" if {content_binding} is None else {bound_name})'
    raw_id = compile_field_expression(node.get_child("id"), builder)
    call_id = _compile_id(raw_id, options, builder)
    if node.get_child("oldest").read_bool() and not node.get_child("name"):
        raw_id, bound_name = builder.bind_expression_to_variable(raw_id)
        call_id = f"({_compile_id(bound_name, options, builder)} if {raw_id} else engine.oldest_open_call_id)"
    is_error = compile_boolean_field_expression(node.get_child("is_error"), builder)
    if node.get_child("name"):
        name = compile_field_expression(node.get_child("name"), builder)
        tool_input = compile_optional_field_expression(node.get_child("input"), builder)
        builder.add_line(
            f"engine.write_result_with_call({call_id}, {content}, {is_error}, {name}, {tool_input})"
        )
        return
    if options.has_split_calls:
        builder.add_line("engine.finish_partial_calls()")
    if options.has_late_results:
        builder.add_line("engine.reports_results = True")
    arguments = f"{call_id}, {content}, {is_error}"
    if options.parent_node:
        builder.add_line(f"engine.subagent_events.write_result_without_parent({arguments})")
    else:
        builder.add_line(f"engine.turn.add_tool_result({arguments})")
    if options.has_late_results:
        with builder.open_block("if engine.buffered_blocks and not engine.turn.open_calls:"):
            builder.add_line("engine.write_buffered_blocks()")


def _write_denied(
    node: ConfigNode, options: ProfileTranslationOptions, builder: FunctionBuilder
) -> None:
    call_id = _compile_id(compile_field_expression(node.get_child("id"), builder), options, builder)
    name = compile_optional_field_expression(node.get_child("name"), builder)
    tool_input = compile_optional_field_expression(node.get_child("input"), builder)
    builder.add_line(f"engine.record_tool_call_denial({call_id}, {name}, {tool_input})")


# -- usage, results and errors ---------------------------------------------------------------------


def _compile_usage_and_cost(node: ConfigNode, builder: FunctionBuilder) -> tuple[str, str]:
    """Return the Python expressions for the usage and the cost in a rule. The usage expression is
    "None" if the rule has no usage.
    """
    usage_node = node.get_child("usage")
    counts = {}
    if usage_node.read_table(USAGE_FIELDS):
        counts = compile_field_expressions(usage_node, builder)
    if "cost_usd" in counts:
        cost = counts.pop("cost_usd")
    else:
        cost = compile_optional_field_expression(node.get_child("cost_usd"), builder)
    if cost == "None":
        cost = "0.0"
    else:
        cost = f"parse_dollars({cost})"
    return (
        f"build_usage({', '.join(counts.get(name, 'None') for name in USAGE_KEYS)})"
        if counts
        else "None"
    ), cost


def _write_usage(
    node: ConfigNode, options: ProfileTranslationOptions, builder: FunctionBuilder
) -> None:
    usage, cost = _compile_usage_and_cost(node, builder)
    stop_reason = compile_optional_field_expression(node.get_child("stop_reason"), builder)
    builder.add_line(f"engine.end_message({usage}, {stop_reason}, {cost})")


def _write_result(
    node: ConfigNode, options: ProfileTranslationOptions, builder: FunctionBuilder
) -> None:
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
    values = {
        name: compile_field_expression(node.get_child(name), builder)
        for name in names
        if node.get_child(name)
    }
    arguments = "".join(f", {name}={value}" for name, value in values.items())
    usage, cost = _compile_usage_and_cost(node, builder)
    builder.add_line(f"engine.end_turn({usage}, {cost}{arguments})")


def _write_error(
    node: ConfigNode, options: ProfileTranslationOptions, builder: FunctionBuilder
) -> None:
    error_text = compile_field_expression(node.get_child("error"), builder)
    code = compile_optional_field_expression(node.get_child("code"), builder)
    cause = None
    if node.get_child("cause"):
        cause = node.get_child("cause").read_choice(PROFILE_CAUSES)
    with builder.open_block(
        "if not engine.has_failed:" if node.get_child("first_wins").read_bool() else "if True:"
    ):
        builder.add_line(f"engine.fail_turn({error_text}, {code}, {format_literal(cause)})")


def _write_notice(
    node: ConfigNode, options: ProfileTranslationOptions, builder: FunctionBuilder
) -> None:
    builder.add_line(
        f"engine.record_notice({compile_field_expression(node.get_child('text'), builder)})"
    )


def _write_retry(
    node: ConfigNode, options: ProfileTranslationOptions, builder: FunctionBuilder
) -> None:
    values = [
        compile_optional_field_expression(node.get_child(name), builder)
        for name in ("attempt", "max", "delay_ms", "text")
    ]
    builder.add_line(f"engine.record_retry({', '.join(values)})")


def _write_retract(
    node: ConfigNode, options: ProfileTranslationOptions, builder: FunctionBuilder
) -> None:
    builder.add_line("engine.finish_partial_calls(is_complete=False)")
    builder.add_line("engine.turn.retract_message()")


def _write_compacted(
    node: ConfigNode, options: ProfileTranslationOptions, builder: FunctionBuilder
) -> None:
    builder.add_line(
        f"engine.record_compaction({compile_optional_field_expression(node.get_child('trigger'), builder)}, "
        f"{compile_optional_field_expression(node.get_child('tokens'), builder)})"
    )


def _write_input(
    node: ConfigNode, options: ProfileTranslationOptions, builder: FunctionBuilder
) -> None:
    if options.has_split_calls:
        builder.add_line("engine.finish_partial_calls()")
    with builder.open_block("if engine.buffered_blocks:"):
        builder.add_line("engine.write_buffered_blocks()")


def _write_nothing(
    node: ConfigNode, options: ProfileTranslationOptions, builder: FunctionBuilder
) -> None:
    """Write no code, because the rule has no effect."""


# -- events of subagents ---------------------------------------------------------------------------


def _create_nested_text_writer(
    kind: str,
) -> Callable[[ConfigNode, ProfileTranslationOptions, FunctionBuilder, str], None]:
    def write_text(
        node: ConfigNode, options: ProfileTranslationOptions, builder: FunctionBuilder, parent: str
    ) -> None:
        text = compile_field_expression(node.get_child("text"), builder)
        block = compile_optional_field_expression(node.get_child("block"), builder)
        mode = node.get_child("mode").read_choice(TEXT_MODES, options.text_mode)
        builder.add_line(
            f"engine.subagent_events.add_text({parent}, {format_literal(kind)}, "
            f"{text}, {block}, {format_literal(mode)})"
        )

    return write_text


def _write_nested_reply(
    node: ConfigNode, options: ProfileTranslationOptions, builder: FunctionBuilder, parent: str
) -> None:
    builder.add_line(f"engine.subagent_events.start_message({parent})")


def _write_nested_call(
    node: ConfigNode, options: ProfileTranslationOptions, builder: FunctionBuilder, parent: str
) -> None:
    call_id = _compile_id(
        compile_optional_field_expression(node.get_child("id"), builder), options, builder
    )
    name = compile_field_expression(node.get_child("name"), builder)
    tool_input = compile_optional_field_expression(node.get_child("input"), builder)
    builder.add_line(
        f"engine.subagent_events.write_call({parent}, {call_id}, {name}, {tool_input}{_compile_source_argument(node)})"
    )


def _write_nested_result(
    node: ConfigNode, options: ProfileTranslationOptions, builder: FunctionBuilder, parent: str
) -> None:
    content_binding, bound_name = builder.bind_expression_to_variable(
        compile_optional_field_expression(node.get_child("content"), builder)
    )
    call_id = _compile_id(compile_field_expression(node.get_child("id"), builder), options, builder)
    is_error = compile_boolean_field_expression(node.get_child("is_error"), builder)
    call_arguments = ""
    if node.get_child("name"):
        call_arguments = (
            f", {compile_field_expression(node.get_child('name'), builder)}, "
            f"{compile_optional_field_expression(node.get_child('input'), builder)}"
        )
    builder.add_line(
        f"engine.subagent_events.write_result({parent}, {call_id}, "
        f'"" if {content_binding} is None else {bound_name}, {is_error}{call_arguments})'
    )


def _write_nested_denied(
    node: ConfigNode, options: ProfileTranslationOptions, builder: FunctionBuilder, parent: str
) -> None:
    call_id = _compile_id(compile_field_expression(node.get_child("id"), builder), options, builder)
    name = compile_optional_field_expression(node.get_child("name"), builder)
    call_input = compile_optional_field_expression(node.get_child("input"), builder)
    builder.add_line(
        f"engine.subagent_events.record_tool_call_denial({call_id}, {name}, {call_input})"
    )


def _write_nested_usage(
    node: ConfigNode, options: ProfileTranslationOptions, builder: FunctionBuilder, parent: str
) -> None:
    usage, cost = _compile_usage_and_cost(node, builder)
    builder.add_line(f"engine.subagent_events.end_message({parent}, {usage}, {cost})")


def _write_nested_error(
    node: ConfigNode, options: ProfileTranslationOptions, builder: FunctionBuilder, parent: str
) -> None:
    builder.add_line(
        f"engine.record_notice({compile_field_expression(node.get_child('error'), builder)})"
    )


def _write_nested_retract(
    node: ConfigNode, options: ProfileTranslationOptions, builder: FunctionBuilder, parent: str
) -> None:
    builder.add_line(f"engine.subagent_events.discard_block({parent})")


def _write_nested_nothing(
    node: ConfigNode, options: ProfileTranslationOptions, builder: FunctionBuilder, parent: str
) -> None:
    """Write no code for a subagent's event. The rule only has an effect on events of the main
    agent.
    """


_NESTED_WRITERS: Mapping[
    str, Callable[[ConfigNode, ProfileTranslationOptions, FunctionBuilder, str], None]
] = {
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
    str,
    tuple[
        Callable[[ConfigNode, ProfileTranslationOptions, FunctionBuilder], None], tuple[str, ...]
    ],
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
