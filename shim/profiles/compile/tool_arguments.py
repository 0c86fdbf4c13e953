"""Compiles the conversion from a vendor's tool call arguments to Claude's. Each tool gets its own
function. The module `tools` describes the syntax.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from shim.core.adapter.tools import Arguments
from shim.core.reading.diagnostics import Diagnostics
from shim.profiles.check.config_node import ConfigNode
from shim.profiles.compile.conditions import compile_conditions_expression, parse_match_conditions
from shim.profiles.compile.fields import compile_field_expression, compile_field_expressions
from shim.profiles.compile.function_builder import FunctionBuilder, format_literal
from shim.profiles.run.values import RULE_GLOBALS

_PATH_KEYS = ("path", "join", "plus", "minus", "any", "all", "not", "foreach")

ConvertFunction = Callable[[Arguments], tuple[str, Arguments]]
ArgumentGetter = Callable[[Arguments], Any]


# Repairs to the arguments are not reported individually. The tool call itself is counted.
_NAMESPACE = RULE_GLOBALS | {
    "engine": SimpleNamespace(turn=SimpleNamespace(diagnostics=Diagnostics()))
}


def compile_tool_argument_converter(
    node: ConfigNode, alternatives: list[ConfigNode]
) -> ConvertFunction:
    """Return a function that converts tool call arguments to Claude's tool name and arguments. The
    function does not modify its parameter.
    """
    builder = FunctionBuilder("event")
    for alternative in alternatives:
        with builder.open_block(
            f"if {compile_conditions_expression(parse_match_conditions(alternative.get_child('match')), builder)}:"
        ):
            _write_conversion(alternative, node, builder)
    _write_conversion(node, node, builder)
    return builder.compile_function("change", _NAMESPACE)


def _write_conversion(node: ConfigNode, tool: ConfigNode, builder: FunctionBuilder) -> None:
    """Write the code that returns Claude's tool name and arguments, for a tool or an alternative."""
    name = format_literal(node.get_child("name").read_text(tool.get_child("name").read_text()))
    keeps_others = node.get_child("keep").read_bool()
    extra = dict(node.get_child("add").read_table())
    extra_code = ""
    if extra:
        extra_code = f" | {builder.add_constant(extra)}"
    if not node.get_child("args"):
        builder.add_line(f"return {name}, event{extra_code}")
    elif keeps_others:
        converter = builder.add_constant(_create_merging_converter(node.get_child("args")))
        builder.add_line(f"return {name}, {converter}(event){extra_code}")
    else:
        builder.add_line("converted = {}")
        for key, value in compile_field_expressions(node.get_child("args"), builder).items():
            binding, bound_name = builder.bind_expression_to_variable(value)
            with builder.open_block(f"if {binding} is not None:"):
                builder.add_line(f"converted[{format_literal(key)}] = {bound_name}")
        builder.add_line(f"return {name}, converted{extra_code}")


def _create_merging_converter(node: ConfigNode) -> Callable[[Arguments], Arguments]:
    """Return a function that converts some arguments and keeps all others. A converted argument
    takes the position of the first argument that it uses.
    """
    compile_field_expressions(node, FunctionBuilder("event"))
    getters = {key: _compile_getter(node.get_child(key)) for key in node.read_table()}
    fields_by_argument: dict[str, list[str]] = {}
    for key, value in node.read_table().items():
        for argument in _list_arguments(value):
            fields_by_argument.setdefault(argument, []).append(key)

    def convert_arguments(arguments: Arguments) -> Arguments:
        converted: Arguments = {}

        def set_field(key: str) -> None:
            if key not in converted and (value := getters[key](arguments)) is not None:
                converted[key] = value

        for key, value in arguments.items():
            if key in fields_by_argument:
                for field_name in fields_by_argument[key]:
                    set_field(field_name)
            elif key not in getters:
                converted[key] = value
        for key in getters:
            set_field(key)
            if key not in converted and key in arguments and key not in fields_by_argument:
                converted[key] = arguments[key]
        return converted

    return convert_arguments


def _compile_getter(node: ConfigNode) -> ArgumentGetter:
    builder = FunctionBuilder("event")
    builder.add_line(f"return {compile_field_expression(node, builder)}")
    return builder.compile_function("argument", _NAMESPACE)


def _list_arguments(value: Any) -> list[str]:
    """Return the names of the arguments that a field uses: the first key of each path."""
    if isinstance(value, str):
        parts = [part.strip() for part in value.split("||")]
        return [_parse_first_key(part) for part in parts if not part.startswith("$")]
    if isinstance(value, list):
        return [name for item in value for name in _list_arguments(item)]
    if isinstance(value, dict):
        inner_tables = [
            item for key in ("object", "item") if isinstance(item := value.get(key), dict)
        ]
        names = [name for table in inner_tables for name in _list_arguments(list(table.values()))]
        return names + [
            name
            for key, item in value.items()
            if key in _PATH_KEYS
            for name in _list_arguments(item)
        ]
    return []


def _parse_first_key(path: str) -> str:
    if path[:1] in ("'", '"'):
        return path[1:].partition(path[0])[0]
    return path.partition(".")[0].partition("[")[0]
