"""The arguments of a call in Claude's words: one function for each tool (`tools` has how a profile
says it).
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from shim.core.adapter.tools import Arguments
from shim.core.reading.account import Diagnostics
from shim.profiles.check.toml_errors import ConfigNode
from shim.profiles.compile.conditions import all_of, conditions
from shim.profiles.compile.fields import field, fields
from shim.profiles.compile.source import Function, literal
from shim.profiles.run.values import NAMES

_PATHS = ("path", "join", "plus", "minus", "any", "all", "not", "foreach")

Change = Callable[[Arguments], tuple[str, Arguments]]
Getter = Callable[[Arguments], Any]


# What is repaired in a field of arguments is counted nowhere; the call itself is.
_NAMES = NAMES | {"engine": SimpleNamespace(turn=SimpleNamespace(account=Diagnostics()))}


def change(spot: ConfigNode, alternatives: list[ConfigNode]) -> Change:
    """From a call's arguments to Claude's name and arguments; the arguments that came are not
    changed.
    """
    here = Function("event")
    for one in alternatives:
        with here.block(f"if {all_of(conditions(one.child('match')), here)}:"):
            _arguments(one, spot, here)
    _arguments(spot, spot, here)
    return here.made("change", _NAMES)


def _arguments(spot: ConfigNode, tool: ConfigNode, here: Function) -> None:
    """The lines that give Claude's name and arguments for a tool, or for one of its alternatives."""
    name = literal(spot.child("name").read_text(tool.child("name").read_text()))
    keep = spot.child("keep").read_bool()
    added = dict(spot.child("add").read_table())
    add = f" | {here.constant(added)}" if added else ""
    if not spot.child("args"):
        here.line(f"return {name}, event{add}")
    elif keep:
        here.line(f"return {name}, {here.constant(_kept(spot.child('args')))}(event){add}")
    else:
        here.line("found = {}")
        for key, value in fields(spot.child("args"), here).items():
            held, again = here.held(value)
            with here.block(f"if {held} is not None:"):
                here.line(f"found[{literal(key)}] = {again}")
        here.line(f"return {name}, found{add}")


def _kept(spot: ConfigNode) -> Callable[[Arguments], Arguments]:
    """Fields where arguments that no field names stay; a field stands where the first argument of
    it stood.
    """
    fields(spot, Function("event"))
    getters = {key: _getter(spot.child(key)) for key in spot.read_table()}
    places: dict[str, list[str]] = {}
    for key, value in spot.read_table().items():
        for named in _named(value):
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


def _getter(spot: ConfigNode) -> Getter:
    here = Function("event")
    here.line(f"return {field(spot, here)}")
    return here.made("argument", _NAMES)


def _named(value: Any) -> list[str]:
    """The arguments that a field is made of: the first keys of its paths."""
    if isinstance(value, str):
        parts = [part.strip() for part in value.split("||")]
        return [_first_key(part) for part in parts if not part.startswith("$")]
    if isinstance(value, list):
        return [name for one in value for name in _named(one)]
    if isinstance(value, dict):
        inner = [one for key in ("object", "item") if isinstance(one := value.get(key), dict)]
        found = [name for table in inner for name in _named(list(table.values()))]
        return found + [name for key, one in value.items() if key in _PATHS for name in _named(one)]
    return []


def _first_key(path: str) -> str:
    if path[:1] in ("'", '"'):
        return path[1:].partition(path[0])[0]
    return path.partition(".")[0].partition("[")[0]
