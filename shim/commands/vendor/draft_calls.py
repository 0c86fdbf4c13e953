"""Calls of tools in captured output: found by their arguments, or as items with a status that changes."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from shim.commands.vendor.draft_seen import Event, Kind, Node, Seen, as_table, item_condition, nodes, value_at
from shim.commands.vendor.draft_words import CALL_ID_KEYS, INPUT_KEYS, NAME_KEYS, OUTPUT_KEYS, USERS, has, key_in, plain
from shim.commands.vendor.tracing import ITEM, Path

NAME_CHARACTERS = 100
RULES = 40  # of calls, and of results, that a draft writes


class CallSite(NamedTuple):
    """Where calls stand: the paths of id, name and arguments.

    `name` is None where the name is `called`: the key that the arguments lie under, or the type of the item. `fields`
    are the keys of an item whose arguments stand beside its id and status; `parse`: they are a text of JSON.
    """

    item: Path
    condition: tuple[str, str] | None
    identity: Path
    name: Path | None
    called: str
    given: Path
    fields: tuple[str, ...] = ()
    parse: bool = False


class Call(NamedTuple):
    """One call at a site."""

    event: Event
    site: CallSite
    identity: str
    name: str
    given: dict[str, Any]


class Calls(NamedTuple):
    """Sites with the kinds of event that have them, and the calls that were made there."""

    sites: Mapping[CallSite, frozenset[Kind]]
    calls: tuple[Call, ...]


def find_calls(seen: Seen) -> Calls:
    """The sites that say every call, each as early and as whole as it is said."""
    found = [call for event in seen.events for call in _calls(event)]
    found += _items(seen, {(call.event.run, call.identity) for call in found})
    best: dict[tuple[int, str], int] = {}
    for call in found:
        key = call.event.run, call.identity
        best[key] = max(best.get(key, 0), len(str(call.given)))
    groups: dict[tuple[Kind, CallSite], list[Call]] = {}
    for call in found:
        groups.setdefault((call.event.kind, call.site), []).append(call)

    def whole(calls: Iterable[Call]) -> set[tuple[int, str]]:
        return {
            (one.event.run, one.identity) for one in calls if len(str(one.given)) == best[one.event.run, one.identity]
        }

    ranked = sorted(groups.items(), key=lambda one: (-len(whole(one[1])), one[1][0].event.place))
    chosen: dict[CallSite, set[Kind]] = {}
    calls: list[Call] = []
    covered: set[tuple[int, str]] = set()
    for (kind, site), made in ranked:
        new = whole(made) - covered
        if new and len(chosen) < RULES:
            chosen.setdefault(site, set()).add(kind)
            known = set[tuple[int, str]]()
            for one in made:
                key = one.event.run, one.identity
                if key in new and key not in known:
                    known.add(key)
                    calls.append(one)
            covered |= new
    return Calls({site: frozenset(kinds) for site, kinds in chosen.items()}, tuple(calls))


def _calls(event: Event) -> Iterator[Call]:
    """Calls with arguments of their own: a table, or the text of one."""
    if has(USERS, *(value for path, value in event.kind if plain(path[-1]) == "role")):
        return
    for node in nodes(event):
        if node.key not in INPUT_KEYS or ITEM in node.path[len(node.item[0]) :]:
            continue
        given = as_table(node.value)
        if given is None or _is_schema(given):
            continue
        within = node.within
        name = _name(within)
        called = "" if name else _called(node)
        if not (name or called):
            continue
        spoken = str(value_at(name[1], name[0][-1:])) if name else called
        identity = _identity(within, spoken)
        if identity is None:
            continue
        site = CallSite(
            node.item[0],
            item_condition(node.item),
            identity[0],
            name[0] if name else None,
            called,
            node.path,
            parse=isinstance(node.value, str),
        )
        yield Call(event, site, identity[1], spoken, given)


def _is_schema(given: Mapping[str, Any]) -> bool:
    """Whether this describes arguments instead of being some."""
    return given.get("type") == "object" and ("properties" in given or "required" in given)


def _name(within: tuple[tuple[Path, dict[str, Any]], ...]) -> tuple[Path, dict[str, Any]] | None:
    """The path of a call's name, and the table that it stands in: beside the arguments or above them."""
    for path, table in within:
        if key := _word_at(table):
            return (*path, key), table
        for inner, value in table.items():
            if isinstance(value, dict) and plain(inner) not in INPUT_KEYS and plain(inner) not in OUTPUT_KEYS:
                key = _word_at(value)
                if key and plain(key) in NAME_KEYS[:3]:
                    return (*path, inner, key), value
    return None


def _word_at(table: Mapping[str, Any]) -> str | None:
    for name in NAME_KEYS:
        for key, value in table.items():
            if plain(key) == name and isinstance(value, str) and 0 < len(value) <= NAME_CHARACTERS:
                return None if any(map(str.isspace, value)) else key
    return None


def _called(node: Node) -> str:
    """The name of a call that is the key of the table with its arguments: `"readToolCall": {"args": …}`."""
    key = node.path[-2] if len(node.path) > 1 else ""
    return key if has(("tool", "call", "function"), key) and len(node.path) > 2 else ""


def _identity(within: tuple[tuple[Path, dict[str, Any]], ...], name: str) -> tuple[Path, str] | None:
    """The path of a call's id and the id."""
    for wanted in CALL_ID_KEYS:
        for path, table in within:
            for key, value in table.items():
                if plain(key) == wanted and (said := id_of(value)) and said != name:
                    return (*path, key), said
    return None


def id_of(value: Any) -> str:
    """An id as text: a short word, or a number; "" for what is none."""
    if isinstance(value, str):
        return value if 0 < len(value) <= NAME_CHARACTERS * 2 else ""
    return str(value) if value.__class__ is int else ""


# -- items with a status: the arguments stand beside it ------------------------------------------------------------


def _items(seen: Seen, known: set[tuple[int, str]]) -> Iterator[Call]:
    """Calls without arguments of their own: a typed item with an id and a status that changes, or fails."""
    first: dict[tuple[int, str, Path], tuple[Event, dict[str, Any]]] = {}
    later: dict[tuple[int, str, Path], list[dict[str, Any]]] = {}
    for event in seen.events:
        for path, table in _typed(event):
            identity = id_of(table[str(key_in(table, ("id", "callid")))])
            key = event.run, identity, path
            if (event.run, identity) in known or not identity:
                continue
            if key in first:
                later.setdefault(key, []).append(table)
            else:
                first[key] = event, table
    changing: dict[str, set[str]] = {}
    for key, (_, table) in first.items():
        for other in later.get(key, ()):
            changing.setdefault(_type(table), set()).update(k for k in {*table, *other} if table.get(k) != other.get(k))
    for (_, identity, path), (event, table) in first.items():
        kind = _type(table)
        own = {str(key_in(table, (name,))) for name in ("id", "callid", "type", "kind", "status", "state")}
        keys = [key for key in table if key not in own and key not in changing.get(kind, ())]
        kept = tuple(key for key in keys if plain(key) not in OUTPUT_KEYS and not has(("exit", "duration"), key))
        if not kept:
            continue
        given = {key: table[key] for key in kept if table[key] is not None}
        name = str(key_in(table, ("id", "callid")))
        site = CallSite((), None, (*path, name), None, kind, path, kept)
        yield Call(event, site, identity, kind, given)


def _typed(event: Event) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Tables inside an event, not in a list, with an id, a type and a status in words."""
    for key, value in event.table.items():
        if isinstance(value, dict):
            state = key_in(value, ("status",))
            if key_in(value, ("id", "callid")) and _type(value) and state and isinstance(value[state], str):
                yield (key,), value


def _type(table: Mapping[str, Any]) -> str:
    key = key_in(table, ("type", "kind"))
    value = table[key] if key else None
    return value if isinstance(value, str) else ""
