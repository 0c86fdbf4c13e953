"""A draft as TOML: rules, and comments that tell a person what to finish. It is valid for the checker as it is."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shim.commands.vendor.draft_seen import Kind, matching
from shim.commands.vendor.draft_words import TOOL_ARGUMENTS, TOOL_NEEDS, TOOL_WORDS, key_in, plain
from shim.commands.vendor.tracing import ITEM, Path, spelled
from shim.core.reading.account import printable

PATH_CHARACTERS = 280  # of alternatives in one field; a path of a profile may have 300
COMMENT_CHARACTERS = 160
TOOLS = 100  # entries that are drafted


def quoted(text: str) -> str:
    """A string of TOML, with nothing in it that a terminal obeys."""
    said = json.dumps(printable(text), ensure_ascii=False)
    return said.replace("\x7f", "\\u007f")


def comment(text: str) -> str:
    """A line of comment."""
    return f"# {printable(text)[:COMMENT_CHARACTERS]}".replace("\n", " ")


def literal(value: Any) -> str:
    """A word, a number or a truth value."""
    return quoted(value) if isinstance(value, str) else json.dumps(value)


def listed(values: Iterable[Any]) -> str:
    """A list of literals; the one alone where it is alone."""
    found = list(values)
    return literal(found[0]) if len(found) == 1 else f"[{', '.join(map(literal, found))}]"


def within(path: Path, item: Path) -> str:
    """A path as a field says it: of an item of a list with `$`."""
    if item and path[: len(item)] == item:
        rest = path[len(item) :]
        return f"$.{spelled(rest)}" if rest else "$"
    return single(path)


def single(path: Path) -> str:
    """A path outside of the list that a rule walks over; of other lists the first item."""
    return spelled(path).replace(ITEM, "[0]")


def alternatives(paths: Sequence[Path], item: Path) -> str:
    """The first that there is of some paths, as many as fit."""
    said = ""
    for path in paths:
        longer = f"{said} || {within(path, item)}" if said else within(path, item)
        if len(longer) > PATH_CHARACTERS:
            break
        said = longer
    return said


class Rule:
    """One `[[event]]` that is being written: for which kinds, over which list, and its fields in order."""

    def __init__(
        self, kinds: Iterable[Kind], emit: str, item: Path = (), condition: tuple[str, str] | None = None
    ) -> None:
        self.kinds = frozenset(kinds)
        self.emit = emit
        self.item = item
        self.condition = condition
        self.more: dict[str, str] = {}  # further conditions, written already
        self.fields: list[tuple[str, str]] = []
        self.notes: list[str] = []
        self.tables: list[tuple[str, dict[str, str]]] = []

    def add(self, key: str, value: str) -> None:
        """A field, its value written already."""
        self.fields.append((key, value))

    def text(self, every: Iterable[Kind], *, goes_on: bool) -> str:
        """The rule."""
        conditions, exact = matching(self.kinds, every) if self.kinds else ({}, True)
        match = {_key(single(path)): listed(values) for path, values in conditions.items()} | self.more
        if not exact and not self.more and self.item:
            match[_key(single(self.item[:-1]))] = '{ kind = "array" }'
        lines = [comment(note) for note in self.notes]
        lines.append("[[event]]")
        if match:
            lines.append(f"match = {{ {', '.join(f'{key} = {value}' for key, value in match.items())} }}")
        if self.item:
            lines.append(f"foreach = {quoted(single(self.item[:-1]))}")
            if self.condition is not None:
                lines.append(f"item_match = {{ {_key(self.condition[0])} = {quoted(self.condition[1])} }}")
        lines.append(f"emit = {quoted(self.emit)}")
        lines += [f"{key} = {value}" for key, value in self.fields]
        if goes_on:
            lines.append("continue = true")
        for name, table in self.tables:
            lines += ["", f"[event.{name}]", *(f"{key} = {value}" for key, value in table.items())]
        return "\n".join(lines) + "\n"


def _key(text: str) -> str:
    return text if text and all(one.isalnum() or one in "_-" for one in text) and text.isascii() else quoted(text)


def exists(path: Path) -> tuple[str, str]:
    """A condition that something stands at a path."""
    return _key(single(path)), "{ exists = true }"


def fields_of(path: Path, keys: Iterable[str]) -> str:
    """An object of some keys of the table at a path."""
    pairs = ", ".join(f"{_key(key)} = {quoted(single((*path, key)))}" for key in keys)
    return f"{{ object = {{ {pairs} }} }}"


def failure(signs: Sequence[tuple[Path, str, Sequence[Any]]], item: Path) -> str:
    """What says that something failed, as a field."""
    said = []
    for path, how, values in signs:
        place = quoted(within(path, item))
        said.append(place if how == "true" else f"{{ path = {place}, {how} = [{', '.join(map(literal, values))}] }}")
    return said[0] if len(said) == 1 else f"{{ any = [{', '.join(said)}] }}"


def tool_entries(arguments: Mapping[str, set[str]]) -> list[str]:
    """`[tools]`: Claude's tool for each name where its words and arguments say which; the others as comments."""
    lines = ["[tools]"]
    for name, keys in sorted(arguments.items())[:TOOLS]:
        claude = _claude(name, keys)
        shown = ", ".join(sorted(keys)) or "none"
        if claude is None:
            lines.append(comment(f'TODO {quoted(name)} = {{ name = "…" }}   its arguments: {shown}'))
            continue
        table = dict.fromkeys(keys, True)
        found = {ours: key for ours, names in TOOL_ARGUMENTS[claude].items() if (key := key_in(table, names))}
        lines.append(comment(f"TODO: is this Claude's {claude}? Its arguments: {shown}"))
        if all(ours == theirs for ours, theirs in found.items()) and len(found) == len(keys):
            lines.append(f"{_key(name)} = {{ name = {quoted(claude)} }}")
        else:
            pairs = ", ".join(f"{ours} = {quoted(spelled((theirs,)))}" for ours, theirs in found.items())
            lines.append(f"{_key(name)} = {{ name = {quoted(claude)}, args = {{ {pairs} }} }}")
    return lines


def _claude(name: str, keys: set[str]) -> str | None:
    said = plain(name)
    for claude, words in TOOL_WORDS:
        if any(word == said or (len(word) > 2 and word in said) for word in words):
            table = dict.fromkeys(keys, True)
            found = {ours for ours, names in TOOL_ARGUMENTS[claude].items() if key_in(table, names)}
            return claude if found.issuperset(TOOL_NEEDS[claude]) else None
    return None
