"""Drift: what a vendor prints today that neither its rules or handlers nor the recordings it was tested with know.

Events that nobody translates are counted by the account of every turn. This is about the rest: kinds of events and
fields that are new. A field is known if the tested recordings have it in events of its kind (`vendors/recorded.json`,
made from the fixtures), or if the vendor's rules or handlers name it. What lies inside of something new is not told
again.
"""

import re
from collections.abc import Iterator, Mapping, Set
from importlib import import_module
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import orjson

from shim.core.vendor.translator import Translator

RECORDED = "recorded.json"
DEPTH = 3  # of fields inside each other; below that, they are a tool's or a provider's rather than the stream's
ITEMS = 50  # of a list that are looked at; a line may hold a whole conversation
FIELDS = 1000  # of one event; the richest recorded one has 90
NAME_CHARACTERS = 64
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_KIND = re.compile(r"[A-Za-z_][\w./:-]*\Z", re.A)
_WORD = re.compile(r"\w+", re.A)
UNTYPED = "untyped"  # an object without a type: where it is none of the vendor's events, its account says so
OTHER = "*"  # a key that is no name: an id, a path or a model, each of which is another one every time
# Their fields are a tool's, a provider's or a user's own.
OPAQUE = frozenset(
    (
        *("input", "args", "arguments", "rawInput", "partialArgs", "parameters", "params", "env", "headers"),
        *("result", "results", "output", "details", "metadata", "structured_result", "tool_use_result", "toolResult"),
    )
)
_SHARED = (
    "shim.core.vendor.translator",
    "shim.profiles.profile",
    "shim.profiles.run.engine",
)  # know no vendor's words


class Field(NamedTuple):
    """A field of an event: its path (`item<agent_message>.text`), its last word, and the path that it is inside of."""

    path: str
    word: str
    inside: str


def kind_of(event: Mapping[str, Any]) -> str:
    """What an event is called: its type, with what tells its kinds apart; `untyped` for one without."""
    words = [event.get(key) for key in ("type", "subtype", "role")]
    named = [word for word in words if isinstance(word, str) and len(word) <= NAME_CHARACTERS and _KIND.match(word)]
    return "/".join(named) or UNTYPED


def fields_of(event: Mapping[str, Any]) -> list[Field]:
    """The fields of an event, those of objects and lists inside of it too. An object with a `type` is named by it."""
    found: dict[str, Field] = {}
    for field in _fields(event, "", 1):
        found.setdefault(field.path, field)
        if len(found) >= FIELDS:
            break
    return list(found.values())


def _fields(value: Mapping[str, Any], inside: str, depth: int) -> Iterator[Field]:
    for key, inner in value.items():
        name = key if len(key) <= NAME_CHARACTERS and _NAME.match(key) else OTHER
        path = f"{inside}.{name}" if inside else name
        yield Field(path, name, inside)
        if name in OPAQUE or depth >= DEPTH:
            continue
        many = isinstance(inner, list)
        for one in inner[:ITEMS] if many else (inner,):
            if isinstance(one, dict):
                within, kind = path + "[]" if many else path, one.get("type")
                if isinstance(kind, str) and len(kind) <= NAME_CHARACTERS and _KIND.match(kind):
                    within += f"<{kind}>"
                    yield Field(within, kind, path)
                yield from _fields(one, within, depth + 1)


Known = Mapping[str, Set[str]]  # kind of event → paths of its fields


def new_in(event: Mapping[str, Any], known: Known, words: Set[str]) -> list[str]:
    """What is new in an event, as `kind` or `kind: path`."""
    kind = kind_of(event)
    if kind not in known:
        return [] if kind == UNTYPED or words >= set(kind.split("/")) else [kind]
    paths, news = known[kind], list[str]()
    passed = set[str]()
    for field in fields_of(event):
        if field.path in paths:
            continue
        passed.add(field.path)
        if field.inside not in passed and field.word not in words and field.word != OTHER:
            news.append(f"{kind}: {field.path}")
    return news


def recorded() -> dict[str, dict[str, frozenset[str]]]:
    """Vendor → kind of event → the fields of it in the recordings that it was tested with."""
    package: Any = import_module("shim.vendors")
    data = orjson.loads(package.__spec__.loader.get_data(f"{package.__path__[0]}/{RECORDED}"))
    return {vendor: {kind: frozenset(paths.split()) for kind, paths in kinds.items()} for vendor, kinds in data.items()}


# -- what a vendor's rules and handlers name --------------------------------------------------------------------------


def words_of(translator: type[Translator]) -> frozenset[str]:
    """Every word that the rules of a profile, or the handlers of a module, name: types of events and fields."""
    words: set[str] = set()
    _of_rules(getattr(translator, "described", None), words)
    for owner in translator.__mro__:
        if owner.__module__ in _SHARED or not issubclass(owner, Translator):
            continue
        for name, method in vars(owner).items():
            if isinstance(method, FunctionType):
                words.add(name.removeprefix("on_"))
                _of_code(method.__code__, words)
                for other in method.__globals__.values():
                    if isinstance(other, FunctionType) and other.__module__.startswith("shim.vendors."):
                        _of_code(other.__code__, words)
    return frozenset(words)


def _of_rules(value: Any, words: set[str]) -> None:
    if isinstance(value, str):
        words.add(value)
        words.update(_WORD.findall(value))
    elif isinstance(value, list):
        for one in value:
            _of_rules(one, words)
    elif isinstance(value, dict):
        for key, one in value.items():
            words.update(_WORD.findall(key))
            _of_rules(one, words)


def _of_code(code: CodeType, words: set[str]) -> None:
    for constant in code.co_consts:
        if isinstance(constant, str):
            words.add(constant)
        elif isinstance(constant, tuple | frozenset):
            words.update(one for one in constant if isinstance(one, str))
        elif isinstance(constant, CodeType):
            _of_code(constant, words)
