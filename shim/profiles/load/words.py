"""The words of a command line: literal, with placeholders, or under a condition (see `launch`)."""

from collections.abc import Callable, Mapping

import shim
from shim.core.errors import FrontendError
from shim.core.reading.typed import Any
from shim.profiles.check.toml_errors import ConfigNode
from shim.profiles.load.prompt import PromptDelivery

MAX_PARTS = 200  # of one part
MAX_CONDITIONS = 10
LIST_PLACEHOLDERS = ("add_dirs", "denied_tools", "allowed_tools", "chosen_tools", "mcp_configs")
SYSTEM_PLACEHOLDERS = ("system_prompt", "append_system_prompt")
TEXT_PLACEHOLDERS = (
    *("prompt", "prompt_file", "model", "effort", "resume", "session_id"),
    *(*SYSTEM_PLACEHOLDERS, "max_turns", "report_folder", "item", *LIST_PLACEHOLDERS),
)
RULES_CONDITION = "rules"
SWITCH_CONDITIONS = (
    "permission_args",
    RULES_CONDITION,
    "prompt_argument",
    "prompt_stdin",
    "fork",
    "new_session",
    "trust",
    "partial",
)
CONDITION_NAMES = (
    *SWITCH_CONDITIONS,
    *(name for name in TEXT_PLACEHOLDERS if name not in ("prompt", "item")),
)
BUNDLED_PLACEHOLDER = "bundled"
BUNDLED_FOLDER = f"{shim.__path__[0]}/adapters"  # the bundled profiles, and what lies beside them
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz_")

PlaceholderValues = Mapping[str, Any]
PartFormatter = Callable[[PlaceholderValues], list[str]]


def compile_part(
    spot: ConfigNode, uses: set[str], prompt: PromptDelivery, variants: tuple[str, ...]
) -> PartFormatter:
    """One entry of `argv`, compiled; what it depends on is added to `uses`."""
    if isinstance(spot.value, str):
        return _compile_arg(spot, uses, prompt)
    spot.read_table(("when", "unless", "each", "args"))
    known = (*CONDITION_NAMES, *variants)
    wanted, unwanted = (_parse_conditions(spot.child(key), known) for key in ("when", "unless"))
    if not (wanted or unwanted or spot.child("each")):
        raise spot.build_error("a string, or a table with one of when, unless, each")
    uses.update(wanted, unwanted)
    for key in ("permission_args", RULES_CONDITION):
        if key in wanted:
            if len(wanted) > 1 or set(spot.value) != {"when"}:
                raise spot.build_error(
                    f'{{ when = "{key}" }} and nothing else: what keeps it narrow is never left out'
                )
            return lambda filled, key=key: list(filled[key])  # type: ignore[misc]
    words = _compile_args(spot, uses, prompt, wanted)
    if not (wanted or unwanted):
        return words
    return lambda filled: (
        words(filled)
        if all(filled[key] for key in wanted) and not any(filled[key] for key in unwanted)
        else []
    )


def _parse_conditions(spot: ConfigNode, known: tuple[str, ...]) -> tuple[str, ...]:
    if not spot:
        return ()
    if isinstance(spot.value, list):
        found = tuple(one.read_choice(known) for one in spot.read_items(MAX_CONDITIONS))
        if not found:
            raise spot.build_error("a list of conditions")
        return found
    return (spot.read_choice(known),)


def _compile_args(
    spot: ConfigNode, uses: set[str], prompt: PromptDelivery, wanted: tuple[str, ...]
) -> PartFormatter:
    """The words of `args`, once or for each item of a list."""
    if not spot.child("each"):
        own = tuple(key for key in wanted if key in LIST_PLACEHOLDERS)
        parts = [
            _compile_arg(one, uses, prompt, own) for one in spot.child("args").read_items(MAX_PARTS)
        ]
        return lambda filled: [word for one in parts for word in one(filled)]
    key = spot.child("each").read_choice(LIST_PLACEHOLDERS)
    uses.add(key)
    parts = [
        _compile_arg(one, uses, prompt, ("item",))
        for one in spot.child("args").read_items(MAX_PARTS)
    ]
    return lambda filled: [
        word for item in filled[key] for one in parts for word in one({**filled, "item": item})
    ]


def _compile_arg(
    spot: ConfigNode, uses: set[str], prompt: PromptDelivery, own: tuple[str, ...] = ()
) -> PartFormatter:
    """One word: literal, or with placeholders; a word that has nothing to be filled with is left
    out.
    """
    text = spot.value if spot.value == "" else spot.read_text()
    pieces = _split_placeholders(text)
    names = pieces[1::2]
    if not names:
        return lambda filled: [text]
    known = (
        *(name for name in TEXT_PLACEHOLDERS if name not in ("item", *LIST_PLACEHOLDERS)),
        BUNDLED_PLACEHOLDER,
        *own,
    )
    for name in names:
        if name not in known:
            raise spot.build_error(
                f"a word with placeholders out of {', '.join('{' + one + '}' for one in known)}"
            )
    uses.update(names)
    of_prompt = "prompt" in names
    if of_prompt and prompt.via != "arg":
        raise spot.build_error(f"a word without {{prompt}}, because prompt.via is {prompt.via}")
    joined = (
        text.startswith("-")
        and "{" not in pieces[0]
        and pieces[0].endswith("=")
        and names[0] == "prompt"
    )
    if of_prompt and prompt.dash_guard == "equals" and not joined:
        raise spot.build_error(
            'a word such as "--prompt={prompt}", because prompt.dash_guard is equals'
        )
    guard = ["--"] if of_prompt and prompt.dash_guard == "--" else []

    def word(filled: PlaceholderValues) -> list[str]:
        if of_prompt and not filled["prompt_argument"]:
            return []
        if not all(filled.get(name) for name in names):
            return []
        found = "".join(
            [_format_value(filled[one]) if place % 2 else one for place, one in enumerate(pieces)]
        )
        if not of_prompt and found.startswith("-") and not text.startswith("-"):
            found = _escape_dash(found, names[0])
        return [*guard, found]

    return word


def _split_placeholders(text: str) -> list[str]:
    """A word in pieces: literal text and the name of a placeholder by turns; the first and the last
    are literal.
    """
    found = [""]
    while text:
        before, brace, behind = text.partition("{")
        name, end, rest = behind.partition("}")
        found[-1] += before
        if end and name and _NAME_CHARACTERS.issuperset(name):
            found += [name, ""]
            text = rest
        else:
            found[-1] += brace
            text = behind
    return found


def _escape_dash(word: str, name: str) -> str:
    """A word whose value begins with a dash, so that it could be taken for a flag (threats:
    frontend).
    """
    if name in SYSTEM_PLACEHOLDERS:
        return f" {word}"
    raise FrontendError(f"the {name} {word[:60]!r} begins with a dash", hint="put ./ before a path")


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else ",".join(map(str, value))
