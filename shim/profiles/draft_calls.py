"""Calls of tools and their results in captured output: found by their arguments, paired by their common id."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from shim.profiles.draft_seen import Event, Kind, Node, Seen, as_table, item_condition, nodes, value_at
from shim.profiles.draft_words import (
    CALL_ID_KEYS,
    FAILED,
    INPUT_KEYS,
    NAME_KEYS,
    OUTPUT_KEYS,
    USERS,
    has,
    key_in,
    plain,
)
from shim.profiles.tracing import ITEM, Path

NAME_CHARACTERS = 100
RULES = 40  # of calls, and of results, that a draft writes
RESULT_DEEP = 4  # tables between the id of a result and what it returned


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
                if plain(key) == wanted and (said := _id(value)) and said != name:
                    return (*path, key), said
    return None


def _id(value: Any) -> str:
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
            identity = _id(table[str(key_in(table, ("id", "callid")))])
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


# -- results --------------------------------------------------------------------------------------------------------


class ResultSite(NamedTuple):
    """Where results stand: the path of the id, those of what was returned, and what says that a call failed.

    `state` is a status with the values that it has once the call is over.
    """

    item: Path
    condition: tuple[str, str] | None
    identity: Path
    state: tuple[Path, tuple[str, ...]] | None


class Results(NamedTuple):
    """Sites with their kinds, and the tables of the results, from which `contents` and `failures` are read."""

    sites: Mapping[ResultSite, frozenset[Kind]]
    tables: Mapping[ResultSite, tuple[dict[str, Any], ...]]
    unpaired: int


class _Mention(NamedTuple):
    event: Event
    item: tuple[Path, dict[str, Any]]
    path: Path
    identity: str
    table: dict[str, Any]  # the one with the id
    state: str


def find_results(seen: Seen, calls: Calls) -> Results:
    """The sites that say once for each call what it returned, each as early as it is said."""
    ids = {(call.event.run, call.identity): call for call in calls.calls}
    mentions: dict[tuple[int, str], list[_Mention]] = {}
    for event in seen.events:
        for one in _mentions(event, ids):
            mentions.setdefault((event.run, one.identity), []).append(one)
    groups: dict[tuple[Kind, Path, tuple[str, str] | None], dict[tuple[int, str], list[_Mention]]] = {}
    for key, found in mentions.items():
        for one in found:
            place = one.event.kind, one.path, item_condition(one.item)
            groups.setdefault(place, {}).setdefault(key, []).append(one)
    candidates = []
    for (kind, path, condition), by_call in groups.items():
        last = {key: found[-1] for key, found in by_call.items()}
        states = {one.state for one in last.values()}
        passed = {one.state for found in by_call.values() for one in found[:-1]} - states
        returned = {key for key, one in last.items() if contents([one.table])}
        repeated = [key for key, found in by_call.items() if len(found) > 1 and not passed]
        if not returned or len(repeated) * 2 > len(by_call):
            continue
        began = {key: ids[key].event.place for key in last}
        if all(one.event.place == began[key] for key, one in last.items()):  # a call that comes with its result
            last = {
                key: one
                for key, one in last.items()
                if key in returned and mentions[key][-1].event.place == one.event.place
            }
        if sum(one.event.place >= began[key] for key, one in last.items()) * 2 <= len(by_call):
            continue
        state_path = _state(next(iter(last.values())).table)
        state = (state_path, tuple(sorted(states))) if state_path and passed and "" not in states else None
        at = next(iter(last.values()))
        site = ResultSite(at.item[0], condition, path, state)
        candidates.append((kind, site, last, at.event.place))
    candidates.sort(key=lambda one: (-len(one[2]), one[3]))
    return _chosen(candidates, len(ids))


def _chosen(candidates: list[tuple[Kind, ResultSite, dict[tuple[int, str], _Mention], int]], total: int) -> Results:
    sites: dict[ResultSite, set[Kind]] = {}
    tables: dict[ResultSite, list[dict[str, Any]]] = {}
    covered: set[tuple[int, str]] = set()
    for kind, site, last, _ in candidates:
        new = last.keys() - covered
        if new and len(sites) < RULES:
            sites.setdefault(site, set()).add(kind)
            tables.setdefault(site, []).extend(last[key].table for key in new)
            covered |= new
    return Results(
        {site: frozenset(kinds) for site, kinds in sites.items()},
        {site: tuple(found) for site, found in tables.items()},
        total - len(covered),
    )


def _mentions(event: Event, ids: Mapping[tuple[int, str], Call]) -> Iterator[_Mention]:
    """Where an event names the id of a call that has been made."""
    for node in nodes(event):
        if not node.above or not (node.key in CALL_ID_KEYS or node.key.endswith("id")):
            continue
        identity = _id(node.value)
        if (event.run, identity) not in ids or node.path[-1] == ITEM or node.path.count(ITEM) > 1:
            continue
        table = node.above[-1][1] if node.item[0] == () or node.above[-1][0] == node.item[0] else node.item[1]
        place = _state(table)
        state = value_at(table, place) if place else ""
        yield _Mention(event, node.item, node.path, identity, table, state if isinstance(state, str) else "")


def _state(table: Mapping[str, Any]) -> Path | None:
    """The path of a status in words, from the table with the id."""
    for name in ("status", "phase"):
        for key, value in table.items():
            if plain(key) == name and isinstance(value, str):
                return (key,)
            if isinstance(value, dict) and plain(key) in ("state", "detail"):
                inner = key_in(value, (name,))
                if inner and isinstance(value[inner], str):
                    return key, inner
    return None


def contents(tables: Iterable[Mapping[str, Any]]) -> dict[Path, int]:
    """The paths to what calls returned, from the tables with their ids: errors first, then what tells most.

    Where a call returned a table, the text inside it stands before the table. What has nothing has its status.
    """
    found: dict[Path, int] = {}
    order = {name: rank for rank, name in enumerate(OUTPUT_KEYS)}
    states: dict[Path, int] = {}
    for table in tables:
        said = [path for path, value in _outputs(table, ()) if value is not None]
        for path in said:
            found[path] = found.get(path, 0) + 1
        place = _state(table)
        if place and not said:
            states[place] = states.get(place, 0) + 1

    def rank(path: Path) -> tuple[bool, int, int]:
        first = next((order[plain(key)] for key in path if plain(key) in order), len(order))
        return not has(("error",), *path), first, -len(path)

    return {path: found[path] for path in sorted(found, key=rank)} | states


def _outputs(table: Mapping[str, Any], path: Path) -> Iterator[tuple[Path, Any]]:
    for key, value in table.items():
        name, here = plain(key), (*path, key)
        if name in INPUT_KEYS or value is None:
            continue
        if name == "error":
            inner = key_in(value, ("message", "text")) if isinstance(value, dict) else None
            if inner:
                yield (*here, inner), value[inner]
            elif isinstance(value, str):
                yield here, value
        elif name in OUTPUT_KEYS:
            if isinstance(value, dict) and len(path) < RESULT_DEEP:
                inside = [one for one in _outputs(value, here) if not isinstance(one[1], dict)]
                yield from inside[:1]
            yield here, value
        elif isinstance(value, dict) and len(path) < RESULT_DEEP and name not in ("usage", "metadata", "display"):
            yield from _outputs(value, here)


def failures(tables: Iterable[Mapping[str, Any]]) -> list[tuple[Path, str, list[Any]]]:
    """What says that a call failed: a path, how it says so (`true`, `in`, `not_in`), and the values."""
    found: dict[Path, tuple[str, list[Any]]] = {}
    for table in tables:
        for path, value in _signs(table, ()):
            name = plain(path[-1])
            if name == "iserror" and isinstance(value, bool):
                found[path] = "true", []
            elif name in ("success", "ok") and isinstance(value, bool):
                found[path] = "in", [False]
            elif name in ("exitcode", "returncode") and isinstance(value, int):
                found[path] = "not_in", [0]
            elif name in ("status", "state", "outcome") and isinstance(value, str) and value.lower() in FAILED:
                found[path] = "in", sorted({value, *found.get(path, ("", []))[1]})
    return [(path, how, values) for path, (how, values) in found.items()]


def _signs(table: Mapping[str, Any], path: Path) -> Iterator[tuple[Path, Any]]:
    for key, value in table.items():
        if plain(key) in INPUT_KEYS:
            continue
        if isinstance(value, dict) and len(path) < 2:
            yield from _signs(value, (*path, key))
        else:
            yield (*path, key), value
