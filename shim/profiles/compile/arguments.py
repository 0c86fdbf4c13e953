"""The arguments of a call in Claude's words: one function for each tool (`tools` has how a profile
says it).
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from shim.core.adapter.tools import Arguments
from shim.core.reading.account import Diagnostics
from shim.profiles.check.toml_errors import ConfigNode
from shim.profiles.compile.conditions import compile_all, parse_conditions
from shim.profiles.compile.fields import compile_field, compile_fields
from shim.profiles.compile.source import FunctionBuilder, format_literal
from shim.profiles.run.values import RULE_GLOBALS

_PATH_KEYS = ("path", "join", "plus", "minus", "any", "all", "not", "foreach")

ConvertFunction = Callable[[Arguments], tuple[str, Arguments]]
ArgumentGetter = Callable[[Arguments], Any]


# What is repaired in a field of arguments is counted nowhere; the call itself is.
_NAMESPACE = RULE_GLOBALS | {"engine": SimpleNamespace(turn=SimpleNamespace(account=Diagnostics()))}


def compile_tool(spot: ConfigNode, alternatives: list[ConfigNode]) -> ConvertFunction:
    """From a call's arguments to Claude's name and arguments; the arguments that came are not
    changed.
    """
    here = FunctionBuilder("event")
    for one in alternatives:
        with here.open_block(f"if {compile_all(parse_conditions(one.child('match')), here)}:"):
            _write_conversion(one, spot, here)
    _write_conversion(spot, spot, here)
    return here.compile_function("change", _NAMESPACE)


def _write_conversion(spot: ConfigNode, tool: ConfigNode, here: FunctionBuilder) -> None:
    """The lines that give Claude's name and arguments for a tool, or for one of its alternatives."""
    name = format_literal(spot.child("name").read_text(tool.child("name").read_text()))
    keep = spot.child("keep").read_bool()
    added = dict(spot.child("add").read_table())
    add = f" | {here.add_constant(added)}" if added else ""
    if not spot.child("args"):
        here.add_line(f"return {name}, event{add}")
    elif keep:
        here.add_line(
            f"return {name}, {here.add_constant(_create_merging_converter(spot.child('args')))}(event){add}"
        )
    else:
        here.add_line("found = {}")
        for key, value in compile_fields(spot.child("args"), here).items():
            held, again = here.bind_value(value)
            with here.open_block(f"if {held} is not None:"):
                here.add_line(f"found[{format_literal(key)}] = {again}")
        here.add_line(f"return {name}, found{add}")


def _create_merging_converter(spot: ConfigNode) -> Callable[[Arguments], Arguments]:
    """Fields where arguments that no field names stay; a field stands where the first argument of
    it stood.
    """
    compile_fields(spot, FunctionBuilder("event"))
    getters = {key: _compile_getter(spot.child(key)) for key in spot.read_table()}
    places: dict[str, list[str]] = {}
    for key, value in spot.read_table().items():
        for named in _list_arguments(value):
            places.setdefault(named, []).append(key)

    def kept(arguments: Arguments) -> Arguments:
        found: Arguments = {}

        def put(key: str) -> None:
            if key not in found and (value := getters[key](arguments)) is not None:
                found[key] = value

        for key, value in arguments.items():
            if key in places:
                for ours in places[key]:
                    put(ours)
            elif key not in getters:
                found[key] = value
        for key in getters:
            put(key)
            if key not in found and key in arguments and key not in places:
                found[key] = arguments[key]
        return found

    return kept


def _compile_getter(spot: ConfigNode) -> ArgumentGetter:
    here = FunctionBuilder("event")
    here.add_line(f"return {compile_field(spot, here)}")
    return here.compile_function("argument", _NAMESPACE)


def _list_arguments(value: Any) -> list[str]:
    """The arguments that a field is made of: the first keys of its paths."""
    if isinstance(value, str):
        parts = [part.strip() for part in value.split("||")]
        return [_parse_first_key(part) for part in parts if not part.startswith("$")]
    if isinstance(value, list):
        return [name for one in value for name in _list_arguments(one)]
    if isinstance(value, dict):
        inner = [one for key in ("object", "item") if isinstance(one := value.get(key), dict)]
        found = [name for table in inner for name in _list_arguments(list(table.values()))]
        return found + [
            name for key, one in value.items() if key in _PATH_KEYS for name in _list_arguments(one)
        ]
    return []


def _parse_first_key(path: str) -> str:
    if path[:1] in ("'", '"'):
        return path[1:].partition(path[0])[0]
    return path.partition(".")[0].partition("[")[0]
