"""A first profile out of captured output: what `shim vendor draft` writes.

For each kind of event it has the fields with samples, and a rule: one that was recognised
(`draft_rules`), or one that ignores the kind, for a person to finish. The draft is valid as it is:
`shim vendor check` runs on it at once.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jinja2 import Environment, StrictUndefined

from shim.commands.profile.draft_kinds import Event, Kind, Seen, matching, places, words
from shim.commands.profile.draft_rules import Found, Read, Site, recognised
from shim.commands.profile.tracing import ITEM, Path, spelled
from shim.core.reading.account import counted, printable
from shim.core.secrets.redactor import Redactor

TEMPLATE = os.path.join(os.path.dirname(__file__), "draft.toml.jinja")
RULES = 150  # a profile may have 200
FIELDS = 12  # of a kind that are shown
SAMPLE_CHARACTERS = 50
COMMENT_CHARACTERS = 160
TOOLS = 100  # entries that are drafted
# A rule to begin with, where there was nothing: a profile has at least one.
EXAMPLE = Found(Site(frozenset({(("type",), "text")})), "text", {"text": Read(("text",))})


def draft(seen: Seen, name: str) -> str:
    """The text of a profile called `name`, from all that was seen."""
    events = seen.events()
    rules = recognised(events)
    kinds: dict[Kind, list[Event]] = {}
    for event in events:
        kinds.setdefault(event.kind, []).append(event)
    all_kinds = tuple(kinds)
    ruled = {found.site.kind for found in rules.found}
    rest = [Found(Site(kind), "ignore", {}) for kind in kinds if kind not in ruled]
    parts = []
    every = [*rules.found, *rest][:RULES] or [EXAMPLE]
    for place, found in enumerate(every):
        kind, later = found.site.kind, [one.site.kind for one in every[place + 1 :]]
        parts.append([*_fields(kinds.pop(kind, [])), *_rule(found, list(all_kinds), kind in later)])
    templates = Environment(trim_blocks=True, undefined=StrictUndefined, keep_trailing_newline=True)
    with open(TEMPLATE, encoding="utf-8") as file:
        template = templates.from_string(file.read())
    return template.render(
        name=name,
        runs=counted(seen.runs, "run"),
        events=counted(len(events), "event"),
        odd=counted(seen.odd, "line") if seen.odd else "",
        emits={found.emit for found in rules.found},
        delta=rules.delta,
        ends=rules.ends,
        rules=parts,
        tools=_tools(rules.tools),
    )


def _fields(events: Sequence[Event]) -> list[str]:
    """A kind and its fields, as comments."""
    if not events:
        return []
    redactor, found = Redactor(), dict[str, Any]()
    for place in places(events[0].table):
        for key, value in place.table.items():
            if not isinstance(value, dict) and not (
                isinstance(value, list) and any(isinstance(one, dict) for one in value)
            ):
                found.setdefault(spelled((*place.path, key)), value)
    lines = [
        f"{' · '.join(words(events[0].kind)) or 'without a type'} ({counted(len(events), 'event')})"
    ]
    for name, value in list(found.items())[:FIELDS]:
        sample = json.dumps(redactor.value(value), ensure_ascii=False)
        lines.append(
            f"  {name} = {sample[:SAMPLE_CHARACTERS]}{'…' * (len(sample) > SAMPLE_CHARACTERS)}"
        )
    return [
        *map(_comment, lines),
        *([f"#   and {len(found) - FIELDS} more"] if len(found) > FIELDS else []),
    ]


def _rule(found: Found, kinds: list[Kind], goes_on: bool) -> list[str]:
    site = found.site
    conditions = matching(frozenset((site.kind,)), kinds)
    match = ", ".join(
        f"{_key(spelled(path))} = {_listed(values)}" for path, values in conditions.items()
    )
    lines = ["# TODO: nothing is made of it."] if found.emit == "ignore" else []
    if found.emit == "tool_result" and "is_error" not in found.fields:
        lines.append("# TODO: is_error, once it is known how a call that failed looks.")
    lines += ["[[event]]", *([f"match = {{ {match} }}"] if match else [])]
    if site.item:
        lines.append(f"foreach = {_quoted(spelled(site.item[:-1]))}")
        if site.word is not None:
            lines.append(f"item_match = {{ {_key(site.word[0])} = {_quoted(site.word[1])} }}")
    lines.append(f"emit = {_quoted(found.emit)}")
    lines += [f"{name} = {_value(value, site.item)}" for name, value in found.fields.items()]
    if goes_on:
        lines.append("continue = true")
    return lines


def _value(read: Read, item: Path) -> str:
    place = _path(read.path, item)
    if read.parse:
        return f'{{ path = {place}, parse = "json" }}'
    how, values = "not_in" if read.good else "in", ", ".join(map(json.dumps, read.values))
    return f"{{ path = {place}, {how} = [{values}] }}" if values else place


def _path(path: Path, item: Path) -> str:
    """A path as a field says it: of an item of a list with `$`, of other lists the first item."""
    if item and path[: len(item)] == item:
        return _quoted(".".join(("$", spelled(path[len(item) :]))).rstrip("."))
    return _quoted(spelled(path).replace(ITEM, "[0]"))


def _tools(tools: Mapping[str, set[str]]) -> list[str]:
    lines = []
    for name, keys in sorted(tools.items())[:TOOLS]:
        arguments = ", ".join(sorted(keys)) or "none"
        lines.append(
            _comment(f'TODO {_quoted(name)} = {{ name = "…" }}   its arguments: {arguments}')
        )
    return lines


def _quoted(text: str) -> str:
    """A string of TOML, with nothing in it that a terminal obeys."""
    return json.dumps(printable(text), ensure_ascii=False).replace("\x7f", "\\u007f")


def _listed(values: Iterable[str]) -> str:
    found = [_quoted(value) for value in values]
    return found[0] if len(found) == 1 else f"[{', '.join(found)}]"


def _key(text: str) -> str:
    return (
        text
        if text and all(one.isalnum() or one in "_-" for one in text) and text.isascii()
        else _quoted(text)
    )


def _comment(text: str) -> str:
    return f"# {printable(text)[:COMMENT_CHARACTERS]}".replace("\n", " ")
