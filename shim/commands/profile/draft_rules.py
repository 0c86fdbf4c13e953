"""What of captured output is plain enough for a rule: the session, calls and results, texts, the
end.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from shim.commands.profile import draft_words as known
from shim.commands.profile.draft_kinds import Event, Kind, Place, places, words
from shim.commands.profile.draft_words import has, key_in, plain
from shim.commands.profile.tracing import Path


class Site(NamedTuple):
    """Where a rule reads: the kind of event, the list that it walks over (() for none), the word of
    its items.
    """

    kind: Kind
    item: Path = ()
    word: tuple[str, str] | None = None


class Read(NamedTuple):
    """What a field reads: the value at a path.

    `parse`: the text there is JSON. `values`: it is true where one of them stands there; with
    `good`, where none does.
    """

    path: Path
    parse: bool = False
    values: Sequence[Any] = ()
    good: bool = False


class Found(NamedTuple):
    """A rule: what it emits at a site, and its fields."""

    site: Site
    emit: str
    fields: Mapping[str, Read]


class Rules(NamedTuple):
    """All that was recognised. `tools` has the names of arguments of each tool, `delta` says that
    texts are pieces.
    """

    found: list[Found]
    tools: Mapping[str, set[str]]
    delta: bool
    ends: bool


def recognised(events: Sequence[Event]) -> Rules:
    """The rules for these events, in the order in which a profile asks them."""
    session = _session(events)
    tools: dict[str, set[str]] = {}
    ids: dict[str, Site] = {}
    calls = _calls(events, tools, ids)
    results = _results(events, ids, calls)
    end = _end(events)
    taken = {*calls, *results}
    texts, delta = _texts(events, taken, end.site.kind if end is not None else None)
    errors = [
        one
        for event in _first(events)
        if _is_error(event.kind, taken, texts)
        for one in _error(event)
    ]
    found = [
        *session,
        *calls.values(),
        *results.values(),
        *texts.values(),
        *errors,
        *([end] if end is not None else []),
    ]
    return Rules(found, tools, delta, end is not None)


def _first(events: Iterable[Event]) -> Iterable[Event]:
    found: dict[Kind, Event] = {}
    for event in events:
        found.setdefault(event.kind, event)
    return found.values()


def _session(events: Sequence[Event]) -> list[Found]:
    for event in events:
        for place in places(event.table):
            key = key_in(place.table, known.SESSION_KEYS, str)
            if key is not None and not place.item:
                return [
                    Found(Site(event.kind), "session", {"session_id": Read((*place.path, key))})
                ]
    return []


def _calls(
    events: Sequence[Event], tools: dict[str, set[str]], ids: dict[str, Site]
) -> dict[Site, Found]:
    """A table with an id, a name and arguments; the last two may stand in a table of their own."""
    found: dict[Site, Found] = {}
    for event in events:
        for place in places(event.table):
            name, given = (
                _inside(place, known.NAME_KEYS, str),
                _inside(place, known.INPUT_KEYS, (dict, str)),
            )
            if name is None or given is None:
                continue
            arguments = _object(given.value)
            identity = next((key for key in _ids(place) if place.table[key] != name.value), None)
            if identity is None or arguments is None:
                continue
            site = Site(event.kind, place.item, place.word)
            if ids.setdefault(place.table[identity], site) != site:
                continue  # the same call, said again
            fields = {"id": Read((*place.path, identity)), "name": Read(name.path)}
            fields["input"] = Read(given.path, parse=arguments is not given.value)
            found.setdefault(site, Found(site, "tool_use", fields))
            tools.setdefault(name.value, set()).update(arguments)
    return found


def _ids(place: Place) -> list[str]:
    """The keys that may have the id of a call, the most telling first."""
    words = {plain(key): key for key, value in place.table.items() if isinstance(value, str)}
    return [words[name] for name in known.CALL_ID_KEYS if name in words]


class Inside(NamedTuple):
    """A value with the path to it."""

    path: Path
    value: Any


def _inside(place: Place, names: tuple[str, ...], kind: type | tuple[type, ...]) -> Inside | None:
    """The value under the first of some names: in a table, or in one that it holds."""
    for path, table in (
        ((), place.table),
        *(((key,), one) for key, one in place.table.items() if isinstance(one, dict)),
    ):
        if (key := key_in(table, names, kind)) is not None:
            return Inside((*place.path, *path, key), table[key])
    return None


def _object(value: Any) -> Mapping[str, Any] | None:
    """Arguments: an object, or the text of one."""
    try:
        found = orjson.loads(value) if isinstance(value, str) else value
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _results(
    events: Sequence[Event], ids: Mapping[str, Site], calls: Mapping[Site, Found]
) -> dict[Site, Found]:
    """A table with the id of a call and what it returned; a call that is said once it is over has
    both.
    """
    found: dict[Site, Found] = {}
    for event in events:
        for place in places(event.table):
            identity = next((key for key in _ids(place) if place.table[key] in ids), None)
            output = _inside(place, known.OUTPUT_KEYS, object)
            site = Site(event.kind, place.item, place.word)
            if identity is None or output is None or has(known.FRAGMENTS, *words(event.kind)):
                continue
            if site in calls and calls[site].fields["input"].path[:-1] != output.path[:-1]:
                continue
            fields = {"id": Read((*place.path, identity)), "content": Read(output.path)}
            found.setdefault(site, Found(site, "tool_result", fields | _failure(place)))
    return found


def _failure(place: Place) -> dict[str, Read]:
    if flag := key_in(place.table, ("iserror", "failed"), bool):
        return {"is_error": Read((*place.path, flag))}
    if code := key_in(place.table, ("exitcode", "code"), int):
        return {"is_error": Read((*place.path, code), values=(0,), good=True)}
    if state := key_in(place.table, known.STATE_KEYS, str):
        return {"is_error": Read((*place.path, state), values=known.FAILED)}
    return {}


def _end(events: Sequence[Event]) -> Found | None:
    """The kind that is the last of each run and never comes before."""
    last = {event.run: event.kind for event in events}
    kinds = set(last.values())
    alone = [event for event in events if event.kind in kinds]
    if len(kinds) != 1 or len(alone) != len(last) or len(events) == len(last):
        return None
    place = Place((), alone[-1].table)
    fields = _failure(place)
    if text := key_in(place.table, known.FINAL_KEYS, str):
        fields["text"] = Read((text,))
    if error := key_in(place.table, known.ERROR_KEYS, str):
        fields["error"] = Read((error,))
    return Found(Site(alone[0].kind), "result", fields)


def _texts(
    events: Sequence[Event], taken: Iterable[Site], end: Kind | None
) -> tuple[dict[Site, Found], bool]:
    """Texts and thoughts of the model, and whether they come in pieces. Whole texts are preferred."""
    whole: dict[Site, Found] = {}
    pieces: dict[Site, Found] = {}
    by_text: dict[tuple[int, str], Site] = {}  # what says a text of a run first
    for event in events:
        if event.kind == end or Site(event.kind) in taken or _another(event.kind):
            continue
        for place in places(event.table):
            key = key_in(place.table, known.TEXT_KEYS, str)
            site = Site(event.kind, place.item, place.word)
            if (
                key is None
                or site in taken
                or not place.table[key]
                or has(known.NOT_THE_MODEL, *(place.word or ())[1:])
            ):
                continue
            said = (*words(event.kind), *place.path, key, *(place.word or ()))
            found = Found(
                site,
                "thinking" if has(known.THINKING, *said) else "text",
                {"text": Read((*place.path, key))},
            )
            if has(known.FRAGMENTS, *said):
                pieces.setdefault(site, found)
            elif by_text.setdefault((event.run, place.table[key]), site) == site:
                whole.setdefault(site, found)
    delta = bool(pieces) and not any(found.emit == "text" for found in whole.values())
    return (pieces if delta else whole), delta


def _another(kind: Kind) -> bool:
    """Whether the kind is not the model's, such as the user's."""
    roles = [word for path, word in kind if plain(path[-1]) == "role"]
    return has(known.NOT_THE_MODEL, *(roles or words(kind)))


def _is_error(kind: Kind, taken: Iterable[Site], texts: Iterable[Site]) -> bool:
    return has(known.ERRORS, *words(kind)) and not any(
        site.kind == kind for site in (*taken, *texts)
    )


def _error(event: Event) -> list[Found]:
    for place in places(event.table):
        key = key_in(place.table, known.ERROR_KEYS, str)
        if key is not None and not place.item:
            return [Found(Site(event.kind), "error", {"error": Read((*place.path, key))})]
    return []
