"""Edits of an input. Each edit changes a run once, with a seeded random source.

Lines are moved, repeated and cut. Bytes are broken. JSON lines are edited as JSON. Lines of other
runs, of other vendors and of the torture list are inserted. Hypothesis and the guided fuzzer both
choose from EDITS.
"""

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

import orjson

from fuzzing.inputs import FLOOD, KNOB_LARGEST, KNOBS, FuzzRun

LINE_BYTES = 300_000  # a line of this size is not enlarged further
SPLICE_LINES = 40
# The share of requested floods that are skipped: a flood costs as much as all other lines.
RARE = 0.9
FLOODS = (*(20, 50, 100, 300) * 5, 1100, 1100, 12_000)


class Pool(NamedTuple):
    """Lines for insertion: by target, and the torture list."""

    lines: dict[str, list[bytes]]
    torture: list[bytes]

    def pick_lines(self, chance: Random, target: str) -> list[bytes]:
        """Return some consecutive lines, mostly of the same target."""
        if chance.random() < 0.15:
            target = chance.choice(list(self.lines))
        lines = self.lines.get(target) or self.torture
        start = chance.randrange(len(lines))
        return lines[start : start + chance.randint(1, SPLICE_LINES)]


Edit = Callable[[FuzzRun, Random, Pool], None]


# -- whole lines -----------------------------------------------------------------------------------


def _pick_line_index(run: FuzzRun, chance: Random) -> int:
    return chance.randrange(len(run.lines)) if run.lines else 0


def repeat_lines(run: FuzzRun, chance: Random, pool: Pool) -> None:
    here, target_index = _pick_line_index(run, chance), _pick_line_index(run, chance)
    run.lines[target_index:target_index] = run.lines[
        here : here + chance.choice((1, 1, 2, 5))
    ] * chance.choice((1, 1, 2, 9))


def swap_lines(run: FuzzRun, chance: Random, pool: Pool) -> None:
    here, other_index = _pick_line_index(run, chance), _pick_line_index(run, chance)
    if run.lines:
        run.lines[here], run.lines[other_index] = run.lines[other_index], run.lines[here]


def move_lines(run: FuzzRun, chance: Random, pool: Pool) -> None:
    here, target_index = _pick_line_index(run, chance), _pick_line_index(run, chance)
    moved_lines = run.lines[here : here + chance.choice((1, 1, 3))]
    del run.lines[here : here + len(moved_lines)]
    run.lines[target_index:target_index] = moved_lines


def drop_lines(run: FuzzRun, chance: Random, pool: Pool) -> None:
    here = _pick_line_index(run, chance)
    del run.lines[here : here + chance.choice((1, 1, 1, 2, 5))]


def reverse_lines(run: FuzzRun, chance: Random, pool: Pool) -> None:
    here = _pick_line_index(run, chance)
    end = here + chance.randint(2, 8)
    run.lines[here:end] = run.lines[here:end][::-1]


def end_early(run: FuzzRun, chance: Random, pool: Pool) -> None:
    here = _pick_line_index(run, chance)
    if run.lines:
        line = run.lines[here]
        run.lines[here:] = [line[: chance.randint(0, len(line))]]


def splice_lines(run: FuzzRun, chance: Random, pool: Pool) -> None:
    here = _pick_line_index(run, chance)
    run.lines[here:here] = pool.pick_lines(chance, run.target)


def insert_torture_line(run: FuzzRun, chance: Random, pool: Pool) -> None:
    here = _pick_line_index(run, chance)
    run.lines[here:here] = [chance.choice(pool.torture)]


def insert_flood(run: FuzzRun, chance: Random, pool: Pool) -> None:
    """Repeat one line many times, with its ids (or other strings) numbered."""
    if not run.lines or chance.random() < RARE or any(line.startswith(FLOOD) for line in run.lines):
        return
    here = _pick_line_index(run, chance)
    line = run.lines[here]
    event = _parse_event(line)
    if isinstance(event, dict) and len(line) < 2000:
        for _ in range(chance.choice((0, 1, 1, 3))):
            location = _pick_location(event, chance, str)
            if location is not None:
                location[0][location[1]] = str(location[0][location[1]])[:40] + "%d"
        line = _dump_event(event, chance)
    if len(line) < 2000 and b"\n" not in line:
        run.lines.insert(here, b"%b%d %b" % (FLOOD, chance.choice(FLOODS), line))


# -- bytes -----------------------------------------------------------------------------------------

BROKEN = [
    b"\xff", b"\xc0\xaf", b"\xf0\x9f", b"\x98\x80", b"\xed\xa0\xbd\xed\xb8\x80", b"\xed\xb0\x80", b"\xf4\x90\x80\x80",
    b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\xe2\x80\xa9", b"\xc2\x85", b"\x00", b"\x1b[31m", b"\x1b]0;t\x07", b"\r", b"\t",
    b"\x08", b"\x7f", b"\xc2\x9b", b"\xe2\x80\xae", b"\n", b"\r\n", b'"', b"\\", b"\\u", b"\\ud83d", b"\\ude00",
    b"\\ud83d\\ude00", b"\\u2028", b"\\u0000", b"\\n", b"{", b"}", b"[", b"]", b",", b":", b"null", b"NaN", b"Infinity",
    b"-0", b"1e400", b"1e-400", b"9" * 20, b"9" * 400, b"\xf0\x9f\x98\x80", b"{}", b"[]", b'{"type":',
    b'"type":"result"',
]  # fmt: skip


def flip_bytes(run: FuzzRun, chance: Random, pool: Pool) -> None:
    here = _pick_line_index(run, chance)
    if run.lines and run.lines[here]:
        broken = bytearray(run.lines[here])
        for _ in range(chance.choice((1, 1, 2, 6))):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        run.lines[here : here + 1] = bytes(broken).split(b"\n")


def insert_bytes(run: FuzzRun, chance: Random, pool: Pool) -> None:
    here = _pick_line_index(run, chance)
    if run.lines:
        line = run.lines[here]
        at = chance.choice(
            (0, len(line), chance.randint(0, len(line)), chance.randint(0, len(line)))
        )
        run.lines[here : here + 1] = (line[:at] + chance.choice(BROKEN) + line[at:]).split(b"\n")


def remove_bytes(run: FuzzRun, chance: Random, pool: Pool) -> None:
    here = _pick_line_index(run, chance)
    if run.lines and run.lines[here]:
        line = run.lines[here]
        at = chance.randrange(len(line))
        run.lines[here] = line[:at] + line[at + chance.choice((1, 1, 2, 10, 100)) :]


def break_line(run: FuzzRun, chance: Random, pool: Pool) -> None:
    here = _pick_line_index(run, chance)
    if run.lines and run.lines[here]:
        line = run.lines[here]
        at = chance.randrange(len(line))
        run.lines[here : here + 1] = [line[:at], line[at:]]


def join_lines(run: FuzzRun, chance: Random, pool: Pool) -> None:
    here = _pick_line_index(run, chance)
    if len(run.lines) > here + 1:
        between = chance.choice((b"", b"", b" ", b",", b"\r", b"YOLO mode is enabled.", b"\x1b[2K"))
        run.lines[here : here + 2] = [run.lines[here] + between + run.lines[here + 1]]


def prepend_banner(run: FuzzRun, chance: Random, pool: Pool) -> None:
    here = _pick_line_index(run, chance)
    if run.lines:
        text = chance.choice(
            (
                b"(node:1) Warning: x",
                b"Active code page: 65001\r",
                b"[info] {",
                b"\xef\xbb\xbf",
                b"$ ",
            )
        )
        run.lines[here] = text + run.lines[here]


# -- JSON ------------------------------------------------------------------------------------------

ODD: list[Any] = [
    None, True, False, 0, 7, -1, 1.5, 10**30, 2**64, -(2**63) - 1, float("nan"), float("inf"), "", "x", "5", " ",
    "\x00", "\ud83d", "\ude00", "\U0001f600", "\u2028\u2029\x85", "\x1b[31m", "%s%n", "../../etc/passwd", "--flag", [],
    {}, [None], [{}], [[]], {"type": "text"}, {"type": "text", "text": None}, [{"type": "text", "text": "x"}],
    [[["x"]]],
    {"\ud800": 1}, "[API Error: 429 slow]", "0" * 300, [1] * 50, {"": ""}, "\n", "a\rb", "tool_use", "result",
    "assistant", "<synthetic>",
]  # fmt: skip


def _parse_event(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None


def _dump_event(event: Any, chance: Random) -> bytes:
    """Return JSON as vendors print it, including lone surrogates and NaN, which orjson would not
    write.
    """
    text = json.dumps(event, separators=(",", ":"), ensure_ascii=chance.random() < 0.3)
    return text.encode("utf-8", "surrogatepass")


def _pick_location(event: Any, chance: Random, kind: type | None = None) -> tuple[Any, Any] | None:
    """Return a location inside a value: its container and its key. With `kind`, the value has that
    type.
    """
    for _ in range(8):
        inside, location = event, None
        while isinstance(inside, dict | list) and inside:
            key = (
                chance.choice(list(inside))
                if isinstance(inside, dict)
                else chance.randrange(len(inside))
            )
            location = inside, key
            if chance.random() < 0.2:
                break
            inside = inside[key]
        if location is not None and (kind is None or isinstance(location[0][location[1]], kind)):
            return location
    return None


def _build_event_edit(
    change: Callable[[Any, Any, Random, FuzzRun], None], kind: type | None = None
) -> Edit:
    """Build an edit that changes one location in one event."""

    def edit_event(run: FuzzRun, chance: Random, pool: Pool) -> None:
        here = _pick_line_index(run, chance)
        if not run.lines or len(run.lines[here]) > LINE_BYTES:
            return
        event = _parse_event(run.lines[here])
        location = _pick_location(event, chance, kind)
        if location is not None:
            change(*location, chance, run)
            run.lines[here] = _dump_event(event, chance)

    edit_event.__name__ = change.__name__
    return edit_event


def replace_value(inside: Any, key: Any, chance: Random, run: FuzzRun) -> None:
    inside[key] = chance.choice(ODD)


def remove_key(inside: Any, key: Any, chance: Random, run: FuzzRun) -> None:
    del inside[key]


def rename_key(inside: Any, key: Any, chance: Random, run: FuzzRun) -> None:
    if isinstance(inside, dict):
        inside[
            chance.choice(
                (
                    "type",
                    "id",
                    "x",
                    "",
                    "\ud83d",
                    "message",
                    "content",
                    str(key) + "s",
                    str(key)[::-1],
                )
            )
        ] = inside.pop(key)


def replace_number(inside: Any, key: Any, chance: Random, run: FuzzRun) -> None:
    inside[key] = chance.choice(
        (0, -1, 1, 2**31, 2**53, 2**63, 2**64, 10**40, -(10**40), 0.1, 1e308, -0.0)
    )


def nest_value(inside: Any, key: Any, chance: Random, run: FuzzRun) -> None:
    value = inside[key]
    for _ in range(chance.choice((1, 2, 150, 199, 200, 201, 260, 900))):
        value = [value] if chance.random() < 0.5 else {"x": value}
    inside[key] = value


def lengthen_text(inside: Any, key: Any, chance: Random, run: FuzzRun) -> None:
    text = inside[key] or chance.choice(("a", "\x01", "\u00e9", "\u2028", "\U0001f600", "\\", '"'))
    times = chance.choice((2, 10, 100, 1000, 10_000))
    inside[key] = (text * times)[: LINE_BYTES // 2]


def widen_list(inside: Any, key: Any, chance: Random, run: FuzzRun) -> None:
    value = inside[key] or [chance.choice(ODD)]
    inside[key] = (value * chance.choice((2, 20, 300, 5000)))[:20_000]


def insert_lone_surrogate(inside: Any, key: Any, chance: Random, run: FuzzRun) -> None:
    text, half = inside[key], chance.choice(("\ud83d", "\ude00", "\ud83d\ud83d", "\ude00\ud83d"))
    at = chance.choice((0, len(text), chance.randint(0, len(text))))
    inside[key] = text[:at] + half + text[at:]


def insert_odd_text(inside: Any, key: Any, chance: Random, run: FuzzRun) -> None:
    text = inside[key]
    at = chance.randint(0, len(text))
    inside[key] = (
        text[:at] + chance.choice([odd for odd in ODD if isinstance(odd, str)]) + text[at:]
    )


def copy_text(inside: Any, key: Any, chance: Random, run: FuzzRun) -> None:
    """Replace a string by a string of another line, so that ids repeat and types are swapped."""
    other = _pick_location(_parse_event(chance.choice(run.lines)), chance, str)
    if other is not None:
        inside[key] = other[0][other[1]]


def copy_value(inside: Any, key: Any, chance: Random, run: FuzzRun) -> None:
    other = _pick_location(_parse_event(chance.choice(run.lines)), chance)
    if other is not None:
        inside[key] = other[0][other[1]]


def copy_same_key(run: FuzzRun, chance: Random, pool: Pool) -> None:
    """Copy a key's value from the same key of another line."""
    if not run.lines:
        return
    here = _pick_line_index(run, chance)
    event, other = _parse_event(run.lines[here]), _parse_event(chance.choice(run.lines))
    for _ in range(6):
        location = _pick_location(event, chance)
        if (
            location is not None
            and isinstance(location[0], dict)
            and (value := _find_value(other, location[1])) is not None
        ):
            location[0][location[1]] = value
            run.lines[here] = _dump_event(event, chance)
            return


def _find_value(value: Any, key: Any) -> Any:
    if isinstance(value, dict):
        if key in value:
            return value[key]
        value = list(value.values())
    if isinstance(value, list):
        return next(
            (match for item in value if (match := _find_value(item, key)) is not None), None
        )
    return None


def duplicate_key(run: FuzzRun, chance: Random, pool: Pool) -> None:
    """Write a key of an object twice."""
    here = _pick_line_index(run, chance)
    event = _parse_event(run.lines[here]) if run.lines else None
    if isinstance(event, dict) and event:
        key = chance.choice(list(event))
        extra = {key: chance.choice(ODD)}
        run.lines[here] = _dump_event(event, chance)[:-1] + b"," + _dump_event(extra, chance)[1:]


def merge_events(run: FuzzRun, chance: Random, pool: Pool) -> None:
    """Join several lines into one list of events."""
    here = _pick_line_index(run, chance)
    events = [event for event in map(_parse_event, run.lines[here : here + 4]) if event is not None]
    run.lines[here : here + 4] = [_dump_event(events, chance)]


def turn_knob(run: FuzzRun, chance: Random, pool: Pool) -> None:
    """Change a setting of the run. `apply_edit` does it instead, because a run cannot be changed in
    place.
    """
    raise NotImplementedError


EDITS: Sequence[Edit] = (
    repeat_lines, swap_lines, move_lines, drop_lines, reverse_lines, end_early, splice_lines,
    insert_torture_line, insert_flood,
    flip_bytes, insert_bytes, remove_bytes, break_line, join_lines, prepend_banner,
    _build_event_edit(replace_value), _build_event_edit(replace_value), _build_event_edit(remove_key),
    _build_event_edit(rename_key), _build_event_edit(replace_number, int), _build_event_edit(nest_value),
    _build_event_edit(lengthen_text, str), _build_event_edit(widen_list, list),
    _build_event_edit(insert_lone_surrogate, str), _build_event_edit(insert_odd_text, str),
    _build_event_edit(copy_text, str), _build_event_edit(copy_text, str),
    _build_event_edit(copy_value), copy_same_key, duplicate_key, merge_events, turn_knob, turn_knob,
)  # fmt: skip


def apply_edit(run: FuzzRun, number: int, seed: int, pool: Pool) -> FuzzRun:
    """Return a run after the edit of that number. Its lines may be changed in place."""
    edit, chance = EDITS[number % len(EDITS)], Random(seed)
    if edit is turn_knob:
        return run.replace_knobs(**{chance.choice(KNOBS): chance.randrange(KNOB_LARGEST)})
    try:
        edit(run, chance, pool)
    except RecursionError:
        pass  # Too deeply nested to edit. The line stays unchanged.
    return run
