"""What calls of tools returned, in captured output: paired with their calls by the id that both have."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from shim.commands.vendor.draft_calls import RULES, Call, Calls, id_of
from shim.commands.vendor.draft_seen import Event, Kind, Seen, item_condition, nodes, value_at
from shim.commands.vendor.draft_words import CALL_ID_KEYS, FAILED, INPUT_KEYS, OUTPUT_KEYS, has, key_in, plain
from shim.commands.vendor.tracing import ITEM, Path

RESULT_DEEP = 4  # tables between the id of a result and what it returned


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
        identity = id_of(node.value)
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
