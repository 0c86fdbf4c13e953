"""Compiles `argv`. Its entries are literal arguments, arguments with placeholders, and arguments
with a condition. The module `launch` describes the syntax.
"""

from collections.abc import Callable, Mapping, Sequence

import shim
from shim.core.errors import FrontendError
from shim.core.reading.typed import Any
from shim.profiles.check.config_node import ConfigNode
from shim.profiles.load.prompt import PromptDeliveryConfig

MAX_ENTRIES = 200  # in `argv`
MAX_PARTS = 200  # arguments in one `argv` entry
MAX_CONDITIONS = 10
LIST_PLACEHOLDERS = ("add_dirs", "denied_tools", "allowed_tools", "chosen_tools", "mcp_configs")
SYSTEM_PLACEHOLDERS = ("system_prompt", "append_system_prompt")
TEXT_PLACEHOLDERS = (
    *("prompt", "prompt_file", "model", "effort", "resume", "session_id"),
    *(*SYSTEM_PLACEHOLDERS, "max_turns", "report_folder", "item", *LIST_PLACEHOLDERS),
)
RULES_CONDITION = "rules"
# The conditions whose arguments restrict the program. These arguments are always passed.
RESTRICTING_CONDITIONS = ("permission_args", RULES_CONDITION)
SWITCH_CONDITIONS = (
    *RESTRICTING_CONDITIONS,
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
BUNDLED_FOLDER = f"{shim.__path__[0]}/adapters"  # has the bundled profiles and their files
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz_")

PlaceholderValues = Mapping[str, Any]
PartFormatter = Callable[[PlaceholderValues], list[str]]


class ArgvTemplate:
    """A compiled `argv` list. `used_names` has the placeholders and conditions in the list."""

    def __init__(
        self, node: ConfigNode, delivery: PromptDeliveryConfig, variants: tuple[str, ...]
    ) -> None:
        used_names: set[str] = set()
        self._formatters = [
            _compile_argv_entry(entry_node, used_names, delivery, variants)
            for entry_node in node.read_items(MAX_ENTRIES)
        ]
        self.used_names = frozenset(used_names)
        self._check_prompt_placeholder(node, delivery)

    def _check_prompt_placeholder(self, node: ConfigNode, delivery: PromptDeliveryConfig) -> None:
        """Raise FrontendError if the list does not contain the prompt or its file, although the
        program does not read the prompt from stdin.
        """
        if delivery.via == "stdin":
            return
        placeholder = "prompt_file"
        if delivery.via == "arg":
            placeholder = "prompt"
        if placeholder not in self.used_names:
            raise node.build_error(
                f"a list that contains {{{placeholder}}}, because prompt.via is {delivery.via}",
                description=f"a list without {{{placeholder}}}",
            )

    def format_args(self, values: PlaceholderValues) -> list[str]:
        """Return the arguments for the values of the placeholders and conditions, which are needed
        for all `used_names`.
        """
        return [arg for format_entry in self._formatters for arg in format_entry(values)]


def _compile_argv_entry(
    node: ConfigNode,
    used_names: set[str],
    delivery: PromptDeliveryConfig,
    variants: tuple[str, ...],
) -> PartFormatter:
    """Compile one entry in `argv`, and add the names that the entry uses to `used_names`. Raise
    FrontendError for an invalid entry.
    """
    if isinstance(node.value, str):
        return _compile_arg(node, used_names, delivery)
    node.read_table(("when", "unless", "each", "args"))
    conditions = (*CONDITION_NAMES, *variants)
    required, excluded = (
        _parse_conditions(node.get_child(key), conditions) for key in ("when", "unless")
    )
    if not (required or excluded or node.get_child("each")):
        raise node.build_error("a string, or a table with one of when, unless, each")
    used_names.update(required, excluded)
    for key in RESTRICTING_CONDITIONS:
        if key in required:
            return _compile_restricting_args(node, key, required)
    format_args = _compile_args(node, used_names, delivery, required)

    def format_entry(values: PlaceholderValues) -> list[str]:
        if not all(values[key] for key in required):
            return []
        if any(values[key] for key in excluded):
            return []
        return format_args(values)

    return format_entry


def _compile_restricting_args(
    node: ConfigNode, condition: str, required: tuple[str, ...]
) -> PartFormatter:
    """Compile an entry whose arguments restrict the program. Raise FrontendError if the entry has
    another condition.
    """
    if len(required) > 1 or set(node.value) != {"when"}:
        raise node.build_error(
            f'{{ when = "{condition}" }} without other keys, because restricting arguments are '
            "always passed"
        )
    return lambda values: list(values[condition])


def _parse_conditions(node: ConfigNode, allowed_names: tuple[str, ...]) -> tuple[str, ...]:
    if not node:
        return ()
    if isinstance(node.value, list):
        conditions = tuple(
            condition_node.read_choice(allowed_names)
            for condition_node in node.read_items(MAX_CONDITIONS)
        )
        if not conditions:
            raise node.build_error("a list of conditions")
        return conditions
    return (node.read_choice(allowed_names),)


def _compile_args(
    node: ConfigNode,
    used_names: set[str],
    delivery: PromptDeliveryConfig,
    required: tuple[str, ...],
) -> PartFormatter:
    """Compile the arguments in `args`, once or for each item of a list."""
    if not node.get_child("each"):
        lists = tuple(key for key in required if key in LIST_PLACEHOLDERS)
        formatters = [
            _compile_arg(format_arg, used_names, delivery, lists)
            for format_arg in node.get_child("args").read_items(MAX_PARTS)
        ]
        return lambda values: [arg for format_arg in formatters for arg in format_arg(values)]
    key = node.get_child("each").read_choice(LIST_PLACEHOLDERS)
    used_names.add(key)
    formatters = [
        _compile_arg(format_arg, used_names, delivery, ("item",))
        for format_arg in node.get_child("args").read_items(MAX_PARTS)
    ]
    return lambda values: [
        arg
        for item in values[key]
        for format_arg in formatters
        for arg in format_arg({**values, "item": item})
    ]


def _compile_arg(
    node: ConfigNode,
    used_names: set[str],
    delivery: PromptDeliveryConfig,
    extra_placeholders: tuple[str, ...] = (),
) -> PartFormatter:
    """Compile one argument. The argument is omitted if its placeholder is empty."""
    text = node.value
    if text != "":
        text = node.read_text()
    pieces = _split_placeholders(text)
    names = pieces[1::2]
    if not names:
        return lambda values: [text]
    _check_placeholders(node, names, extra_placeholders)
    used_names.update(names)
    if "prompt" not in names:
        return lambda values: _format_arg(pieces, values)
    _check_prompt_arg(node, pieces, delivery)
    return lambda values: _format_prompt_arg(pieces, values, delivery.dash_guard)


def _check_placeholders(
    node: ConfigNode, names: Sequence[str], extra_placeholders: tuple[str, ...]
) -> None:
    """Raise FrontendError if an argument has a placeholder that is not allowed in it."""
    allowed_names = (
        *(name for name in TEXT_PLACEHOLDERS if name not in ("item", *LIST_PLACEHOLDERS)),
        BUNDLED_PLACEHOLDER,
        *extra_placeholders,
    )
    if not set(names) <= set(allowed_names):
        raise node.build_error(
            "a string whose placeholders are among "
            f"{', '.join('{' + name + '}' for name in allowed_names)}"
        )


def _check_prompt_arg(
    node: ConfigNode, pieces: Sequence[str], delivery: PromptDeliveryConfig
) -> None:
    """Raise FrontendError if an argument with the prompt contradicts `launch.prompt`."""
    if delivery.via != "arg":
        raise node.build_error(f"a string without {{prompt}}, because prompt.via is {delivery.via}")
    if delivery.dash_guard != "equals":
        return
    flag = pieces[0]
    is_joined = flag.startswith("-") and flag.endswith("=") and "{" not in flag
    if not is_joined or pieces[1] != "prompt":
        raise node.build_error(
            'a string such as "--prompt={prompt}", because prompt.dash_guard is equals'
        )


def _format_arg(pieces: Sequence[str], values: PlaceholderValues) -> list[str]:
    """Return an argument without the prompt, or [] if a placeholder is empty. Raise FrontendError
    if a value turns the argument into a flag.
    """
    if not _has_values(pieces, values):
        return []
    arg = _fill_placeholders(pieces, values)
    if arg.startswith("-") and not pieces[0].startswith("-"):
        arg = _escape_dash(arg, pieces[1])
    return [arg]


def _format_prompt_arg(
    pieces: Sequence[str], values: PlaceholderValues, dash_guard: str
) -> list[str]:
    """Return an argument with the prompt, after `--` if this is the dash guard. Return [] if the
    prompt is not an argument, or if a placeholder is empty.
    """
    if not values["prompt_argument"] or not _has_values(pieces, values):
        return []
    arg = _fill_placeholders(pieces, values)
    if dash_guard == "--":
        return ["--", arg]
    return [arg]


def _has_values(pieces: Sequence[str], values: PlaceholderValues) -> bool:
    """Return whether all placeholders of an argument have values."""
    return all(values.get(name) for name in pieces[1::2])


def _fill_placeholders(pieces: Sequence[str], values: PlaceholderValues) -> str:
    """Return an argument with the values of its placeholders."""
    filled_pieces = list(pieces)
    filled_pieces[1::2] = [_format_value(values[name]) for name in pieces[1::2]]
    return "".join(filled_pieces)


def _split_placeholders(text: str) -> list[str]:
    """Split an argument into pieces. Literal text and placeholder names alternate; the first and
    the last piece are literal.
    """
    pieces = [""]
    while text:
        before, brace, after = text.partition("{")
        name, end, remaining = after.partition("}")
        pieces[-1] += before
        if end and name and _NAME_CHARACTERS.issuperset(name):
            pieces += [name, ""]
            text = remaining
        else:
            pieces[-1] += brace
            text = after
    return pieces


def _escape_dash(arg: str, name: str) -> str:
    """Escape an argument whose value starts with a dash, so that the program does not parse it as a
    flag.

    Only a system prompt can be escaped. Raise FrontendError for any other value that starts with a
    dash.
    """
    if name in SYSTEM_PLACEHOLDERS:
        return f" {arg}"
    raise FrontendError(f"the {name} {arg[:60]!r} begins with a dash", hint="put ./ before a path")


def _format_value(value: Any) -> str:
    if isinstance(value, str):
        return value
    return ",".join(map(str, value))
