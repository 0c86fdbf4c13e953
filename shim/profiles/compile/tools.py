"""The tools of a profile in Claude's words.

    [tools.read]
    name = "Read"                                  Claude's name
    args = { file_path = "path", limit = { minus = ["end", "start"] } }   Claude's key = a field of the arguments
    keep = true                                    arguments that no field names stay as they are (else they go)
    add = { prompt = "" }                          arguments that are always there
    alt = [ { match = { … }, name = "…", args = { … } } ]    another tool where these conditions hold; the first counts

Without `args` the arguments stay as they are. A tool that is not named keeps its own name and arguments, unless
`other_tools = { regex = '^mcp_([^_]+)_(.+)$', name = 'mcp__\\1__\\2' }` gives it another name. What that leaves is said
as it is (`unknown_tools = "pass"`), as a tool of a server (`mcp_prefix`: `mcp__VENDOR__NAME`), or left out of the
stream with its result (`hide`; a call that is denied is not hidden).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shim.core.reading.account import Account
from shim.core.vendor.tools import Arguments, Tool
from shim.profiles.compile.fields import fields, multiplied
from shim.profiles.compile.paths import Getter
from shim.profiles.compile.rules import Test, conditions
from shim.profiles.compile.toml_errors import Spot

TOOLS = 500
UNKNOWN = ("pass", "hide", "mcp_prefix")
MCP = "mcp__"  # how the name of a server's tool begins
NAME_CHARACTERS = 200  # of a tool whose name is looked at; a longer one is cut as it is
ALTERNATIVES = 20
_KEYS = ("name", "args", "keep", "add")
_PATHS = ("path", "join", "plus", "minus", "any", "all", "not", "foreach")


class _Arguments:
    """The scope of a field of arguments: what it repairs is counted nowhere, the call itself is."""

    index = 0

    @property
    def account(self) -> Account:
        """One that nobody reads."""
        return Account()


_SCOPE: Any = _Arguments()
Change = tuple[str, Callable[[Arguments], Arguments]]


class RuledTool(Tool):
    """A tool whose arguments are fields; `apply` as every tool has it."""

    __slots__ = ("alternatives", "change")

    def __init__(
        self, name: str, change: Callable[[Arguments], Arguments], alternatives: list[tuple[list[Test], Change]]
    ) -> None:
        super().__init__(name)
        self.touched = None
        self.change = change
        self.alternatives = alternatives

    def apply(self, arguments: Arguments) -> tuple[str, Arguments]:
        """Claude's name and arguments for a call; `arguments` is not changed."""
        for tests, (name, change) in self.alternatives:
            if all(test(arguments, None, _SCOPE) for test in tests):
                return name, change(arguments)
        return self.name, self.change(arguments)


class NamedTools(Mapping[str, Tool]):
    """A table of tools where those that it does not name get a name by a pattern, or behind a prefix."""

    def __init__(self, table: Mapping[str, Tool], pattern: re.Pattern[str] | None, name: str, prefix: str) -> None:
        self._table = table
        self._pattern = pattern
        self._name = name
        self._prefix = prefix

    def get(self, key: str, default: Any = None) -> Any:
        """The tool called `key`, made up where the table has none."""
        found = self._table.get(key)
        if found is not None:
            return found
        if key.__class__ is not str or len(key) > NAME_CHARACTERS:
            return default
        hit = self._pattern.fullmatch(key) if self._pattern else None
        if hit:
            return Tool(hit.expand(self._name))
        return Tool(f"{self._prefix}{key}") if self._prefix and not key.startswith(MCP) else default

    def __getitem__(self, key: str) -> Tool:
        return self._table[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


def tools(spot: Spot, others: Spot, unknown: Spot, vendor: str) -> Mapping[str, Tool]:
    """The table `[tools]`, compiled, with what is said of tools that it does not name."""
    given = spot.table()
    if len(given) > TOOLS:
        raise spot.refused(f"a table of at most {TOOLS} tools", f"a table of {len(given)}")
    table = {name: _tool(spot.at(name)) for name in given}
    prefix = f"{MCP}{vendor}__" if unknown.choice(UNKNOWN, UNKNOWN[0]) == "mcp_prefix" else ""
    if not others:
        return NamedTools(table, None, "", prefix) if prefix else table
    others.table(("regex", "name"))
    pattern, name = others.at("regex").pattern(), others.at("name").text()
    try:
        pattern.sub(name, "")
        re.compile(pattern.pattern + "|").fullmatch("")  # the groups of the name are those of the pattern
        if any(int(group) > pattern.groups for group in re.findall(r"\\(\d+)", name)):
            raise re.error("no such group")
    except (re.error, IndexError) as error:
        raise others.at("name").refused(f"a name with groups of the pattern ({error})") from None
    return NamedTools(table, pattern, name, prefix)


def _tool(spot: Spot) -> Tool:
    spot.table((*_KEYS, "alt"))
    name, change = _change(spot)
    alternatives = []
    for one in spot.at("alt").items(ALTERNATIVES):
        one.table((*_KEYS, "match"))
        if not one.at("match"):
            raise one.refused("a table with `match`", "a table without `match`")
        alternatives.append((conditions(one.at("match")), _change(one, name)))
    if not (alternatives or spot.at("args") or spot.at("add")):
        return Tool(name)
    if not alternatives and spot.at("keep").switch() and (renamed := _renamed(spot.at("args").table())) is not None:
        return Tool(name, renamed[0], convert=renamed[1], extra=spot.at("add").table())
    return RuledTool(name, change, alternatives)


def _change(spot: Spot, name: str = "") -> Change:
    claude = spot.at("name").text(name or None)
    keep = spot.at("keep").switch()
    add = dict(spot.at("add").table())
    if not spot.at("args"):
        return claude, lambda arguments: arguments | add if add else arguments
    getters: dict[str, Getter] = fields(spot.at("args"))
    pairs = tuple(getters.items())

    def change(arguments: Arguments) -> Arguments:
        found = {}
        for key, get in pairs:
            if (value := get(arguments, None, _SCOPE)) is not None:
                found[key] = value
        return found | add if add else found

    if not keep:
        return claude, change
    places: dict[str, list[tuple[str, Getter]]] = {}
    for key, value in spot.at("args").table().items():
        for named in _named(value):
            places.setdefault(named, []).append((key, getters[key]))

    def change_kept(arguments: Arguments) -> Arguments:
        """Each field stands where the first argument stood that it is made of."""
        found = {}
        for key, value in arguments.items():
            if key not in places:
                if key not in getters:
                    found[key] = value
                continue
            for ours, get in places[key]:
                if ours not in found and (one := get(arguments, None, _SCOPE)) is not None:
                    found[ours] = one
        for key, get in pairs:
            if key not in found and (one := get(arguments, None, _SCOPE)) is not None:
                found[key] = one
            elif key not in found and key in arguments and key not in places:
                found[key] = arguments[key]
        return found | add if add else found

    return claude, change_kept


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


def _times(factor: float) -> Callable[[Any], Any]:
    return lambda found: multiplied(found, factor)


def _renamed(table: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Callable[[Any], Any]]] | None:
    """Arguments that only get other names, or are multiplied: what `core.vendor.tools` does without a look at each."""
    rename: dict[str, str] = {}
    convert: dict[str, Callable[[Any], Any]] = {}
    for claude, value in table.items():
        path = value.get("path") if isinstance(value, dict) and set(value) == {"path", "times"} else value
        if not isinstance(path, str) or not path.isidentifier() or path in rename:
            return None
        rename[path] = claude
        if path is not value:
            convert[claude] = _times(value["times"])
    return {theirs: ours for theirs, ours in rename.items() if theirs != ours}, convert
