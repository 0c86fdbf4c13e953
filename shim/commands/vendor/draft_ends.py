"""What stands around the words and calls of captured output: session ids, ends of runs, usage, errors."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from shim.commands.vendor.draft_seen import Event, Kind, Seen, nodes, words
from shim.commands.vendor.draft_words import (
    COST_KEYS,
    COUNTS,
    DURATION_KEYS,
    ENDS,
    ERROR_TEXT_KEYS,
    ERRORS,
    FAILED,
    FRAGMENTS,
    SESSION_KEYS,
    TOOLS,
    has,
    key_in,
    plain,
)
from shim.commands.vendor.tracing import ITEM, Path

STEPS = ("step", "iteration")  # of a run, which end too
OFTEN = 1.25  # times in a run on average: what comes more often ends a part of it
TAIL = 3  # events at the end of a run among which its end is looked for


class Session(NamedTuple):
    """The path of the session's id, of the model beside it, and the kinds that have it; None: nearly all."""

    path: Path
    model: Path | None
    kinds: frozenset[Kind] | None


class Numbers(NamedTuple):
    """Claude's counts ← the paths of the vendor's, and the path of a cost."""

    counts: Mapping[str, Path]
    cost: Path | None


class End(NamedTuple):
    """The event that ends a run: what says that it failed, why, the last text, time and usage."""

    kinds: frozenset[Kind]
    failed: tuple[tuple[Path, str, tuple[Any, ...]], ...]
    errors: tuple[Path, ...]
    text: Path | None
    duration: Path | None
    usage: Numbers | None


class Complaint(NamedTuple):
    """Events that tell of an error: where its text is, and whether runs went on well after it."""

    kinds: frozenset[Kind]
    text: Path
    harmless: bool


def find_session(seen: Seen) -> Session | None:
    """Where the id of the session is said."""
    found: dict[Path, list[Event]] = {}
    for event in seen.events:
        for node in nodes(event):
            good = isinstance(node.value, str) and node.value and ITEM not in node.path and len(node.path) <= 3
            named = node.path == ("id",) and has(("session", "thread"), *words(event.kind))
            if good and (node.key in SESSION_KEYS or named):
                found.setdefault(node.path, []).append(event)
    if not found:
        return None

    def rank(path: Path) -> tuple[int, int, int]:
        name = plain(path[-1])
        order = SESSION_KEYS.index(name) if name in SESSION_KEYS else len(SESSION_KEYS)
        return len(path), order, -len({event.run for event in found[path]})

    most = max(len({event.run for event in events}) for events in found.values())
    path = min((one for one in found if 2 * len({event.run for event in found[one]}) >= most), key=rank)
    events = found[path]
    kinds = frozenset(event.kind for event in events)
    first = events[0].table
    model = next((("model",) for _ in (0,) if isinstance(first.get("model"), str)), None)
    return Session(path, model, kinds if len(kinds) <= 2 else None)


def find_numbers(tables: Iterable[tuple[Path, Any]]) -> Numbers | None:
    """The counts of tokens among tables (with their paths): the first that has input and output."""
    for path, table in tables:
        if not isinstance(table, dict):
            continue
        flat: dict[str, Path] = {key: (key,) for key in table}
        for key, value in table.items():
            if isinstance(value, dict):
                flat |= {f"{key}{inner}": (key, inner) for inner in value if f"{key}{inner}" not in flat}
        counts: dict[str, Path] = {}
        for ours, names in COUNTS.items():
            key = key_in(flat, names)
            value = table
            for step in flat.get(key or "", ("",)):
                value = value.get(step) if isinstance(value, dict) else None
            if key and isinstance(value, int | float) and not isinstance(value, bool):
                counts[ours] = (*path, *flat[key])
        if "input_tokens" in counts and "output_tokens" in counts:
            cost = key_in(table, COST_KEYS)
            good = cost is not None and isinstance(table[cost], int | float)
            return Numbers(counts, (*path, cost) if good and cost else None)
    return None


def _tables(event: Event) -> list[tuple[Path, Any]]:
    found = [node for node in nodes(event) if isinstance(node.value, dict) and ITEM not in node.path]
    return [(node.path, node.value) for node in sorted(found, key=lambda one: len(one.path)) if len(node.path) <= 3]


def find_end(seen: Seen, taken: set[Kind]) -> End | None:
    """The event that ends runs: one of its sort a run, among the last, and called so; the one that tells most."""
    runs: dict[int, list[Event]] = {}
    for event in seen.events:
        runs.setdefault(event.run, []).append(event)
    groups: dict[str, list[Event]] = {}
    for events in runs.values():
        for event in events[-TAIL:]:
            kind = event.table.get("type")
            if isinstance(kind, str) and event.kind not in taken and has(ENDS, kind) and not has(TOOLS, kind):
                groups.setdefault(kind, []).append(event)
    often = set()
    for kind in groups:
        own = [event.run for event in seen.events if event.table.get("type") == kind]
        if len(own) > OFTEN * len(set(own)) or has(STEPS, kind):
            often.add(kind)
    candidates = [kind for kind in groups if kind not in often and not has(ERRORS, kind)]
    if not candidates:
        return None

    def tells(kind: str) -> tuple[int, int, int]:
        one = groups[kind][0]
        return len(groups[kind]), find_numbers(_tables(one)) is not None, one.place

    best = max(len(groups[kind]) for kind in candidates)
    kind = max((one for one in candidates if 2 * len(groups[one]) >= best), key=lambda one: (tells(one)[1], tells(one)))
    return _end(groups[kind], frozenset(event.kind for event in seen.events if event.table.get("type") == kind))


def _end(events: list[Event], kinds: frozenset[Kind]) -> End:
    tables = [event.table for event in events]
    every: dict[str, Any] = {}
    for table in tables:
        every |= {key: value for key, value in table.items() if value is not None}
    failed: list[tuple[Path, str, tuple[Any, ...]]] = []
    if key := key_in(every, ("iserror",)):
        failed.append(((key,), "true", ()))
    elif key := key_in(every, ("success", "ok")):
        failed.append(((key,), "in", (False,)))
    elif key := key_in(every, ("status", "subtype", "finishreason", "reason", "outcome")):
        seen = {str(table.get(key)) for table in tables if has(FAILED, table.get(key))}
        failed.append(((key,), "in", tuple(sorted({*seen, "error", "failed"}))))
    elif key := key_in(every, ("exitcode", "returncode", "code")):
        failed.append(((key,), "not_in", (0,)))
    errors: list[Path] = []
    for table in tables:
        for key, value in table.items():
            if plain(key) == "error":
                inner = key_in(value, ERROR_TEXT_KEYS) if isinstance(value, dict) else None
                path = (key, inner) if inner else (key,)
                errors += [path] if path not in errors and value is not None else []
    text = key_in({k: v for k, v in every.items() if isinstance(v, str)}, ("result", "finaltext", "text", "response"))
    duration = key_in(every, DURATION_KEYS)
    numbers = next((found for event in events if (found := find_numbers(_tables(event))) is not None), None)
    cost = key_in(every, COST_KEYS)
    if numbers is not None and numbers.cost is None and cost and isinstance(every[cost], int | float):
        numbers = numbers._replace(cost=(cost,))
    duration_path: Path | None = (duration,) if duration else None
    for key, value in every.items():
        if duration_path is None and isinstance(value, dict) and (inner := key_in(value, DURATION_KEYS)):
            duration_path = key, inner
    return End(kinds, tuple(failed), tuple(errors), (text,) if text else None, duration_path, numbers)


def find_usage(seen: Seen, end: End | None) -> tuple[frozenset[Kind], Numbers] | None:
    """Numbers that are said once a reply, where the end of the run says none."""
    if end is not None and end.usage is not None:
        return None
    best: dict[Kind, Numbers] = {}
    for kind, events in seen.kinds().items():
        if has(FRAGMENTS, *words(kind)) or has(("begin",), *words(kind)):
            continue
        found = next((one for event in events if (one := find_numbers(_tables(event))) is not None), None)
        if found is not None and (end is None or kind not in end.kinds):
            best[kind] = found
    if not best:
        return None
    last = [kind for kind in best if has(ENDS, *words(kind))] or list(best)
    return frozenset([last[0]]), best[last[0]]


def find_complaints(seen: Seen, taken: set[Kind], end: End | None) -> list[Complaint]:
    """Events that tell of errors."""
    good = {event.run for event in seen.events if end is not None and event.kind in end.kinds and not _bad(event, end)}
    found = []
    for kind, events in seen.kinds().items():
        if kind in taken or not has(ERRORS, *words(kind)) or has(TOOLS, *words(kind)):
            continue
        text = _complaint(events[0])
        if text is not None:
            runs = {event.run for event in events}
            weak = has(("warn", "notice", "retry", "log", "reconnect"), *words(kind))
            found.append(Complaint(frozenset([kind]), text, weak or bool(runs & good)))
    return found


def _bad(event: Event, end: End) -> bool:
    for path, how, values in end.failed:
        value = event.table.get(path[0])
        if (how == "true" and value) or (how == "in" and value in values) or (how == "not_in" and value not in values):
            return True
    return False


def _complaint(event: Event) -> Path | None:
    for wanted in ERROR_TEXT_KEYS:
        for node in nodes(event):
            if node.key == wanted and isinstance(node.value, str) and ITEM not in node.path and len(node.path) <= 4:
                return node.path
    return None
