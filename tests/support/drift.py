"""Detects drift: kinds of events and fields that a vendor prints now and that are new to the shim.

A field is known in three cases: the fixtures have it in events of the same kind (RECORDED_FILE,
which `make accept` writes), the rules of the vendor's profile name it, or the list of the names
that its handlers read contains it (HANDLED_FILE). Fields inside a new field are not reported.

Events that are not translated are counted elsewhere, in the diagnostics of a turn.
"""

import json
import re
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple

from fixture_cases import ROOT

from shim.core.adapter.translator import Translator
from shim.profiles.profile import ProfileTranslator

# The fields in the fixtures, generated from them.
RECORDED_FILE = ROOT / "tests" / "golden" / "recorded.json"
# The names that handlers in Python read, written by hand.
HANDLED_FILE = ROOT / "tests" / "support" / "handled.json"
# Deeper fields belong to a tool or a provider rather than to the stream.
MAX_FIELD_DEPTH = 3
MAX_LIST_ITEMS = 50  # per list; a line may contain a complete conversation
MAX_FIELDS = 1000  # per event; the largest recorded event has 90
MAX_NAME_CHARS = 64
_NAME_REGEX = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_KIND_REGEX = re.compile(r"[A-Za-z_][\w./:-]*\Z", re.A)
_TOKEN_REGEX = re.compile(r"\w+", re.A)
# An object without a type. If it is not an event of the vendor, the diagnostics of the turn report it.
UNTYPED_KIND = "untyped"
# Replaces a key that is not a name but an id, a path or a model, which differs every time.
UNNAMED_KEY = "*"
# The fields below these keys belong to a tool, a provider or a user.
OPAQUE_FIELDS = frozenset(
    (
        *(
            "input",
            "args",
            "arguments",
            "rawInput",
            "partialArgs",
            "parameters",
            "params",
            "env",
            "headers",
        ),
        *(
            "result",
            "results",
            "output",
            "details",
            "metadata",
            "structured_result",
            "tool_use_result",
            "toolResult",
        ),
    )
)


class EventField(NamedTuple):
    """A field of an event: its path (`item<agent_message>.text`), the last part of the path, and
    the path of its parent.
    """

    path: str
    name: str
    parent_path: str


def format_kind(event: Mapping[str, Any]) -> str:
    """Return the name of an event's kind: its type, subtype and role, or `untyped`."""
    parts = [event.get(key) for key in ("type", "subtype", "role")]
    names = [
        part
        for part in parts
        if isinstance(part, str) and len(part) <= MAX_NAME_CHARS and _KIND_REGEX.match(part)
    ]
    return "/".join(names) or UNTYPED_KIND


def list_fields(event: Mapping[str, Any]) -> list[EventField]:
    """Return the fields of an event, including those of nested objects and lists. The path of an
    object with a `type` contains the type.
    """
    fields_by_path: dict[str, EventField] = {}
    for field in _walk_fields(event, "", 1):
        fields_by_path.setdefault(field.path, field)
        if len(fields_by_path) >= MAX_FIELDS:
            break
    return list(fields_by_path.values())


def _walk_fields(value: Mapping[str, Any], parent_path: str, depth: int) -> Iterator[EventField]:
    for key, inner in value.items():
        name = key
        if len(key) > MAX_NAME_CHARS or not _NAME_REGEX.match(key):
            name = UNNAMED_KEY
        path = f"{parent_path}.{name}".lstrip(".")
        yield EventField(path, name, parent_path)
        if name in OPAQUE_FIELDS or depth >= MAX_FIELD_DEPTH:
            continue
        items = (inner,)
        base_path = path
        if isinstance(inner, list):
            items = inner[:MAX_LIST_ITEMS]
            base_path = f"{path}[]"
        for item in items:
            if isinstance(item, dict):
                item_path = base_path
                kind = item.get("type")
                if (
                    isinstance(kind, str)
                    and len(kind) <= MAX_NAME_CHARS
                    and _KIND_REGEX.match(kind)
                ):
                    item_path += f"<{kind}>"
                    yield EventField(item_path, kind, path)
                yield from _walk_fields(item, item_path, depth + 1)


RecordedFields = Mapping[str, Set[str]]  # kind of event → paths of its fields


def list_new_names(
    event: Mapping[str, Any], recorded_fields: RecordedFields, handled_names: Set[str]
) -> list[str]:
    """Return the new names in an event, as `kind` or `kind: path`."""
    kind = format_kind(event)
    if kind not in recorded_fields:
        if kind == UNTYPED_KIND or handled_names >= set(kind.split("/")):
            return []
        return [kind]
    paths = recorded_fields[kind]
    new_names: list[str] = []
    new_paths = set[str]()
    for field in list_fields(event):
        if field.path in paths:
            continue
        new_paths.add(field.path)
        if (
            field.parent_path not in new_paths
            and field.name not in handled_names
            and field.name != UNNAMED_KEY
        ):
            new_names.append(f"{kind}: {field.path}")
    return new_names


def load_recorded_fields() -> dict[str, dict[str, frozenset[str]]]:
    """Return vendor → kind of event → its fields in the recordings that the vendor was tested with."""
    return {
        vendor: {kind: frozenset(paths.split()) for kind, paths in kinds.items()}
        for vendor, kinds in load_table(RECORDED_FILE).items()
    }


def collect_handled_names(name: str, translator: type[Translator]) -> frozenset[str]:
    """Return every name in the rules of a profile, or in the handlers of a module: types of events
    and fields.
    """
    names = set(load_table(HANDLED_FILE).get(name, "").split())
    _collect_names(list_rules(translator), names)
    return frozenset(names)


def list_rules(translator: type[Translator]) -> list[Any]:
    """Return the rules of a profile as they were written, or an empty list for a translator in
    Python.
    """
    if not issubclass(translator, ProfileTranslator):
        return []
    return [rule.node.value for rule in translator.rules]


def _collect_names(value: Any, names: set[str]) -> None:
    if isinstance(value, str):
        names.add(value)
        names.update(_TOKEN_REGEX.findall(value))
    elif isinstance(value, list):
        for item in value:
            _collect_names(item, names)
    elif isinstance(value, dict):
        for key, item in value.items():
            names.update(_TOKEN_REGEX.findall(key))
            _collect_names(item, names)


def load_table(path: Path) -> dict[str, Any]:
    """Load one of the two tables, whose keys are vendors."""
    table: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return table
