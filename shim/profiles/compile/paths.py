"""Paths of a profile (`a.b[0].c`, `[*]`, `a || b`, `$`, `$index`), each written as a Python
expression.
"""

import re
from collections.abc import Iterable
from typing import Any

from shim.profiles.check.toml_errors import ConfigNode
from shim.profiles.compile.source import EVENT_ROOT, FunctionBuilder, PathRoot, format_literal
from shim.profiles.run.values import EVERY, MAX_LIST_ITEMS

MAX_PATH_CHARS = 300
MAX_INLINE_STEPS = 8  # steps that are written inside each other; a longer path is walked by a loop
_STEP_PATTERN = r"\.?(?:([A-Za-z0-9_@:/-]+)|'([^']+)'|\"([^\"]+)\")|\[(\*|-?\d{1,4})\]"


def compile_path(spot: ConfigNode, here: FunctionBuilder) -> str:
    """A path as an expression; None where there is nothing."""
    text = spot.read_text()
    if len(text) > MAX_PATH_CHARS:
        raise spot.build_error(f"a path of at most {MAX_PATH_CHARS} characters")
    read = here.current_block.value_names
    *others, found = [
        read.get(part) or _compile_alternative(spot, part, here)
        for part in map(str.strip, text.split("||"))
    ]
    if not others:
        return found
    for one in reversed(others):
        value, again = here.bind_value(one)
        found = f"{again} if {value} is not None else {found}"
    return f"({found})"


def preload_shared_paths(asked: Iterable[ConfigNode], here: FunctionBuilder) -> None:
    """Read the paths first that are asked for more than once."""
    spots = [one for one in asked if one.value.replace(".", "").isidentifier()]
    texts = [one.value for one in spots]
    for one in spots:
        if texts.count(one.value) > 1 and one.value not in here.current_block.value_names:
            here.preload_value(one.value, compile_path(one, here))


def _compile_alternative(spot: ConfigNode, text: str, here: FunctionBuilder) -> str:
    if text == "$index":
        return here.index
    if not text.startswith("$"):
        return _compile_walk(here, EVENT_ROOT, parse_path(spot, text))
    of_item = parse_path(spot, text[1:], may_be_empty=True)
    if here.item is None:
        return "None"
    return _compile_walk(here, here.item, of_item) if of_item else here.item.name


def _compile_walk(here: FunctionBuilder, subject: PathRoot, path: list[Any]) -> str:
    """From a subject along steps: objects that several paths go through are read once."""
    keys = 0
    while keys < len(path) and path[keys].__class__ is str:
        keys += 1
    if subject.can_preload and keys:
        found = f"{here.preload_object(subject, tuple(path[: keys - 1]))}.get({format_literal(path[keys - 1])})"
        return _compile_steps(here, found, path[keys:])
    return _compile_steps(here, subject.name, path)


def _compile_steps(here: FunctionBuilder, value: str, path: list[Any]) -> str:
    """From a value along steps, each inside of the one before."""
    if len(path) > MAX_INLINE_STEPS:
        return f"along({value}, {here.add_constant(tuple(path))})"
    for place, step in enumerate(path):
        found, again = here.bind_value(value)
        if step is EVERY:
            one = here.create_variable()
            inner, there = here.bind_value(_compile_steps(here, one, path[place + 1 :]))
            listed = f"[{there} for {one} in {again}[:{MAX_LIST_ITEMS}] if {inner} is not None]"
            return f"({listed} or None if {found}.__class__ is list and {again} else None)"
        if step.__class__ is str:
            value = f"({again}.get({format_literal(step)}) if {found}.__class__ is dict else None)"
        else:
            least = step + 1 if step >= 0 else -step
            value = f"({again}[{step:d}] if {found}.__class__ is list and len({again}) >= {least:d} else None)"
    return value


def parse_path(spot: ConfigNode, text: str, *, may_be_empty: bool = False) -> list[Any]:
    """The steps of a path: keys, places in a list, EVERY. `may_be_empty`: it stands behind a `$`."""
    if may_be_empty and text[:1] not in ("", ".", "["):
        raise spot.build_error("$, $index, or a path behind it such as $.id", f"${text}")
    plain = text.removeprefix(".") if may_be_empty else text
    found: list[Any] = []
    # this is enough for nearly all paths, and costs less than a pattern
    for part in plain.split("."):
        key, bracket, place = part.partition("[")
        if not key.isidentifier() or (
            bracket and not (place == "*]" or (place[:-1].isdecimal() and len(place) < 6))
        ):
            break
        found += [key] if not bracket else [key, EVERY if place == "*]" else int(place[:-1])]
        if bracket and place[-1] != "]":
            break
    else:
        return found
    found.clear()
    pattern, position = re.compile(_STEP_PATTERN), 0
    while position < len(text):
        hit = pattern.match(text, position)
        if hit is None or (position == 0 and text[0] == "." and not may_be_empty):
            break
        if hit[4] is not None:
            found.append(EVERY if hit[4] == "*" else int(hit[4]))
        elif position and text[position] != ".":
            break
        else:
            found.append(hit[1] or hit[2] or hit[3])
        position = hit.end()
    if position < len(text) or not (found or may_be_empty):
        raise spot.build_error(
            "a path: keys with dots between them, [0], [*], `||` between two of them", text
        )
    return found
