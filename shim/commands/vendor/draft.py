"""A first profile out of captured output: what `shim vendor draft` writes. Pure: events in, TOML out.

For each kind of event it has the fields with samples, and a rule: one that was recognised (`draft_rules`), or one that
ignores the kind, for a person to finish. The draft is valid as it is: `shim vendor check` runs on it at once.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shim.commands.vendor.draft_kinds import Event, Kind, Seen, matching, places, words
from shim.commands.vendor.draft_rules import Found, Read, Rules, Site, recognised
from shim.commands.vendor.tracing import ITEM, Path, spelled
from shim.core.reading.account import counted, printable
from shim.core.secrets.redactor import Redactor

RULES = 150  # a profile may have 200
FIELDS = 12  # of a kind that are shown
SAMPLE_CHARACTERS = 50
COMMENT_CHARACTERS = 160
TOOLS = 100  # entries that are drafted
# A rule to begin with, where there was nothing: a profile has at least one.
EXAMPLE = Found(Site(frozenset({(("type",), "text")})), "text", {"text": Read(("text",))})
MISSING = {
    "text": "# TODO: no text of the model was recognised. Capture a run that answers something.",
    "tool_use": "# TODO: no call was recognised. Capture a run that reads a file and runs a command.",
}


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
    parts = [_head(seen, name, len(events), rules), _stream(rules)]
    every = [*rules.found, *rest][:RULES] or [EXAMPLE]
    for place, found in enumerate(every):
        kind, later = found.site.kind, [one.site.kind for one in every[place + 1 :]]
        parts.append("\n".join([*_fields(kinds.pop(kind, [])), *_rule(found, list(all_kinds), kind in later), ""]))
    return "\n".join([*parts, *_tools(rules.tools), ""])


def _head(seen: Seen, name: str, events: int, rules: Rules) -> str:
    emits = {found.emit for found in rules.found}
    lines = [
        f"# {name}: drafted from {counted(seen.runs, 'run')}, {counted(events, 'event')}. Finish the TODO lines, then",
        f"# `shim vendor check {name}.toml FILE…` until it has nothing to fix.",
        *(line for emit, line in MISSING.items() if emit not in emits),
        *(
            [f"# Not JSON objects: {counted(seen.odd, 'line')}. Is there a flag that keeps them away?"]
            if seen.odd
            else []
        ),
        "schema = 1",
        f"id = {_quoted(name)}",
        "# TODO: delete this line if it asks before it runs a tool.",
        "unattended = true",
        "",
        "[launch]",
        "# TODO: the program on PATH, with the flags that make it print lines of JSON.",
        f"command = [{_quoted(name)}]",
        '# TODO: its own flags, such as { when = "model", args = ["--model", "{model}"] } and',
        '# { when = "resume", args = ["--resume", "{resume}"] }.',
        'argv = [{ when = "permission_args" }, "{prompt}"]',
        "# TODO: how it takes a prompt that begins with a dash, or is long: `stdin` if it reads one there.",
        'prompt = { via = "arg", dash_guard = "space", long = "refuse" }',
        "",
        "[launch.permission_args]",
        "default = []",
        '# TODO: bypassPermissions = ["--its-own-flag"], acceptEdits, plan: only where it has them.',
    ]
    return "\n".join(lines) + "\n"


def _stream(rules: Rules) -> str:
    lines = ["[stream]", *(['text = "delta"'] if rules.delta else [])]
    lines.append(
        '# TODO: if it says usage: usage = "request" (adds up), "run_total" or "thread_total", and where it stands.'
    )
    if not rules.ends:
        lines += ["# TODO: no event was recognised that ends a run, so a good exit does."]
        lines.append('end = { ok_exit = [0], result = "synthesize" }')
    return "\n".join(lines) + "\n"


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
    lines = [f"{' · '.join(words(events[0].kind)) or 'without a type'} ({counted(len(events), 'event')})"]
    for name, value in list(found.items())[:FIELDS]:
        sample = json.dumps(redactor.value(value), ensure_ascii=False)
        lines.append(f"  {name} = {sample[:SAMPLE_CHARACTERS]}{'…' * (len(sample) > SAMPLE_CHARACTERS)}")
    return [*map(_comment, lines), *([f"#   and {len(found) - FIELDS} more"] if len(found) > FIELDS else [])]


def _rule(found: Found, kinds: list[Kind], goes_on: bool) -> list[str]:
    site = found.site
    conditions = matching(frozenset((site.kind,)), kinds)
    match = ", ".join(f"{_key(spelled(path))} = {_listed(values)}" for path, values in conditions.items())
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
    lines = ["# Claude's tool for each of its own: Bash, Read, Write, Edit, Glob, Grep, WebFetch …", "[tools]"]
    for name, keys in sorted(tools.items())[:TOOLS]:
        arguments = ", ".join(sorted(keys)) or "none"
        lines.append(_comment(f'TODO {_quoted(name)} = {{ name = "…" }}   its arguments: {arguments}'))
    return lines


def _quoted(text: str) -> str:
    """A string of TOML, with nothing in it that a terminal obeys."""
    return json.dumps(printable(text), ensure_ascii=False).replace("\x7f", "\\u007f")


def _listed(values: Iterable[str]) -> str:
    found = [_quoted(value) for value in values]
    return found[0] if len(found) == 1 else f"[{', '.join(found)}]"


def _key(text: str) -> str:
    return text if text and all(one.isalnum() or one in "_-" for one in text) and text.isascii() else _quoted(text)


def _comment(text: str) -> str:
    return f"# {printable(text)[:COMMENT_CHARACTERS]}".replace("\n", " ")
