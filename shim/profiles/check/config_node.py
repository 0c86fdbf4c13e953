"""Reads and validates the values of profiles and settings. An error message names the file, the
line, the key, the value and the allowed values.

`tomllib` returns no line numbers. After an error, the file's text is searched for the keys to find
the line.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from shim.core.errors import FrontendError, format_spelling_suggestion
from shim.core.reading.typed import TYPE_CHECKING, Any
from shim.core.reading.values import escape_control_chars, shorten_end

if TYPE_CHECKING:
    import re

MAX_EXCERPT_CHARS = 80  # the longest excerpt of an invalid value in an error message
MAX_PATTERN_CHARS = 500  # for regular expressions; the longest in use has 100 characters
# A vendor's text is untrusted, so patterns only search the beginning of a text. The text that rules
# look for is at the beginning.
MAX_SEARCHED_CHARS = 4000
MAX_ENDING_CHARS = 200  # the end of a text, for rules that match its last line
MAX_VARIABLE_NAME_CHARS = 100  # for names of environment variables
# Environment variables that a profile must not set. They belong to the shim or to Claude, or they
# make a program run other code before its own. Only `command` decides which program runs.
FORBIDDEN_PREFIXES = ("SHIM_", "CLAUDE", "LD_", "DYLD_")
FORBIDDEN_VARIABLES = frozenset(
    ("PATH", "HOME", "NODE_OPTIONS", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP")
)

ConfigKeys = tuple[str | int, ...]


class ConfigSource:
    """A profile's file. `read_text` is only called after an error, to find the line.

    `is_bundled` is true for a profile in this package. The tests have already compiled the rules of
    bundled profiles and checked the cost of their patterns.
    """

    def __init__(
        self, path: str, read_text: Callable[[], str], *, is_bundled: bool = False
    ) -> None:
        self.path = path
        self.read_text = read_text
        self.is_bundled = is_bundled


class ConfigKey:
    """A key that a table may have.

    read         a method of ConfigNode that returns the value; None if the node itself is returned
    type_name    the type that the manual shows for a value that is returned as a node
    description  the description in the manual
    arguments    arguments for `read`: bounds, choices, a default
    successor    the replacement for a key that no bundled profile uses; "" if there is none
    """

    __slots__ = ("arguments", "description", "read", "successor", "type_name")

    def __init__(
        self,
        read: Callable[..., Any] | None,
        description: str,
        *arguments: Any,
        type_name: str = "",
        successor: str | None = None,
    ) -> None:
        self.read = read
        self.description = description
        self.arguments = arguments
        self.type_name = type_name
        self.successor = successor

    @classmethod
    def for_node(
        cls, type_name: str, description: str, *, successor: str | None = None
    ) -> "ConfigKey":
        """Return a key whose value is returned as a ConfigNode."""
        return cls(None, description, type_name=type_name, successor=successor)


ConfigTable = Mapping[str, ConfigKey]


class ConfigNode:
    """A value in a profile, with its location in the file. Each `read` method returns the value as
    one type, and raises FrontendError if the value has a different type.
    """

    __slots__ = ("keys", "source", "value")

    def __init__(self, source: ConfigSource, value: Any, keys: ConfigKeys = ()) -> None:
        self.source = source
        self.value = value
        self.keys = keys

    def build_error(
        self, allowed: str, value: object = None, *, description: str = ""
    ) -> FrontendError:
        """Return the error about this value.

        allowed      describes the allowed values
        value        the part of the value that is wrong, if only a part is wrong
        description  a description to show instead of the quoted value
        """
        value_text = description
        if not value_text:
            value_text = escape_control_chars(
                format_as_toml(self.value if value is None else value)
            )
        value_text = shorten_end(value_text, MAX_EXCERPT_CHARS)
        return FrontendError(
            f"{self.source.path}:{self._line}: {format_key_path(self.keys)} is {value_text}; it must be {allowed}"
        )

    def build_unknown_key_error(self, allowed_keys: Collection[str]) -> FrontendError:
        """Return the error about a key that is not in `allowed_keys`. This node holds the value of
        the unknown key.
        """
        suggestion = format_spelling_suggestion(str(self.keys[-1]), allowed_keys)
        allowed_text = f"the allowed keys are: {', '.join(allowed_keys)}"
        text = f"unknown key `{format_key_path(self.keys)}` in {self.source.path} line {self._line}"
        if suggestion:
            return FrontendError(text + suggestion, allowed_text)
        return FrontendError(f"{text}; {allowed_text}")

    def build_choice_error(self, choices: Collection[str], value: object = None) -> FrontendError:
        """Return the error about a value that is not one of `choices`."""
        choice = value
        if value is None:
            choice = self.value
        suggestion = ""
        if isinstance(choice, str):
            suggestion = format_spelling_suggestion(choice, choices, "; ")
        return self.build_error(f"one of {', '.join(choices)}{suggestion}", value)

    @property
    def _line(self) -> int:
        return find_key_line(self.source.read_text(), self.keys)

    def get_child(self, key: str | int) -> "ConfigNode":
        """Return the child node at a table key or a list index. The child's value is None if the
        key is missing.
        """
        if isinstance(key, int):
            return ConfigNode(self.source, self.value[key], (*self.keys, key))
        return ConfigNode(self.source, self.read_table().get(key), (*self.keys, key))

    def __bool__(self) -> bool:
        return self.value is not None

    def read_table(self, allowed_keys: Collection[str] = ()) -> Mapping[str, Any]:
        """Return the table, or {} if it is missing. Raise FrontendError for a key that is not in
        `allowed_keys`. An empty collection allows all keys.
        """
        if self.value is None:
            return {}
        if not isinstance(self.value, dict):
            raise self.build_error("a table")
        if allowed_keys:
            for key in self.value:
                if key not in allowed_keys:
                    raise self.get_child(key).build_unknown_key_error(allowed_keys)
        return self.value

    def read_keys(self, keys: ConfigTable) -> dict[str, Any]:
        """Return the value for each key in `keys`. A missing key gets its default value. Raise
        FrontendError if the table has any other key.
        """
        self.read_table(keys)
        values = {}
        for name, key in keys.items():
            child = self.get_child(name)
            if key.read is None:
                values[name] = child
            else:
                values[name] = key.read(child, *key.arguments)
        return values

    def read_optional_keys(self, keys: ConfigTable) -> dict[str, Any] | None:
        """Return the value for each key in `keys`, or None if the table is missing."""
        if self:
            return self.read_keys(keys)
        return None

    def read_items(self, max_items: int) -> list["ConfigNode"]:
        """Return the child nodes of a list, or [] if it is missing. Raise FrontendError if the list
        has more than `max_items` items.
        """
        if self.value is None:
            return []
        if not isinstance(self.value, list) or len(self.value) > max_items:
            description = ""
            if isinstance(self.value, list):
                description = f"a list of {len(self.value)} items"
            raise self.build_error(f"a list of at most {max_items} items", description=description)
        return [self.get_child(index) for index in range(len(self.value))]

    def read_text(self, default: str | None = None) -> str:
        """Return a string. Raise FrontendError if it is empty, or if it is missing and there is no
        default.
        """
        if self.value is None and default is not None:
            return default
        if not isinstance(self.value, str) or not self.value or "\0" in self.value:
            raise self.build_error("a string")
        return self.value

    def read_optional_text(self) -> str:
        return self.read_text("")

    def read_text_list(self, max_items: int = 200) -> tuple[str, ...]:
        """Return a list of strings, or () if it is missing. The strings may be empty."""
        return tuple(
            node.read_text() if node.value != "" else "" for node in self.read_items(max_items)
        )

    def read_text_table(self) -> dict[str, str]:
        """Return a table of strings, or {} if it is missing."""
        return {name: self.get_child(name).read_text() for name in self.read_table()}

    def read_text_list_table(self, max_items: int = 200) -> dict[str, tuple[str, ...]]:
        """Return a table whose values are lists of strings, or {} if it is missing."""
        return {name: self.get_child(name).read_text_list(max_items) for name in self.read_table()}

    def read_variables(self) -> dict[str, str]:
        """Return a table of environment variables, or {} if it is missing. The values may be empty.
        Raise FrontendError for a variable that a profile must not set.
        """
        variables = {}
        for name in self.read_table():
            node = self.get_child(name)
            if (
                not is_variable_name(name)
                or name.startswith(FORBIDDEN_PREFIXES)
                or name in FORBIDDEN_VARIABLES
            ):
                raise node.build_error("a variable that only this program uses", name)
            if not isinstance(node.value, str) or "\0" in node.value:
                raise node.build_error("a string")
            variables[name] = node.value
        return variables

    def read_bool(self) -> bool:
        if self.value is None:
            return False
        if not isinstance(self.value, bool):
            raise self.build_error("true or false")
        return self.value

    def read_number(self, minimum: float, maximum: float, default: float | None = None) -> float:
        if self.value is None and default is not None:
            return default
        if (
            isinstance(self.value, bool)
            or not isinstance(self.value, int | float)
            or not minimum <= self.value <= maximum
        ):
            raise self.build_error(f"a number from {minimum:g} to {maximum:g}")
        return float(self.value)

    def read_choice(self, allowed: Collection[str], default: str | None = None) -> str:
        if self.value is None and default is not None:
            return default
        if not isinstance(self.value, str) or self.value not in allowed:
            raise self.build_choice_error(allowed)
        return self.value

    def read_choice_defaulting_to_first(self, allowed: Sequence[str]) -> str:
        return self.read_choice(allowed, allowed[0])

    def read_optional_regex(self) -> str:
        return self.read_regex("")

    def read_optional_capturing_regex(self) -> str:
        """Return the source of a regular expression that captures a part of the text, or "". Raise
        FrontendError if the expression has no group.
        """
        text = self.read_regex("")
        if text and not self.source.is_bundled and not self.compile_pattern().groups:
            raise self.build_error("a regular expression with a group")
        return text

    def read_regex(self, default: str | None = None) -> str:
        """Return the source of a regular expression. Raise FrontendError if the expression is
        invalid or may be slow.

        A bundled profile's pattern is not checked here, because the tests have already checked it.
        The pattern is compiled when it is first used.
        """
        if self.value is None and default is not None:
            return default
        if not self.source.is_bundled:
            self.compile_pattern()
        return self.read_text()

    def compile_pattern(self) -> "re.Pattern[str]":
        """Return a compiled regular expression. Raise FrontendError if the expression is invalid or
        may be slow.
        """
        import re

        text = self.read_text()
        if len(text) > MAX_PATTERN_CHARS:
            raise self.build_error(
                f"a regular expression of at most {MAX_PATTERN_CHARS} characters"
            )
        if not self.source.is_bundled and (problem := _explain_slow_pattern(text)):
            raise self.build_error(problem)
        try:
            return re.compile(text)
        except (re.error, RecursionError, OverflowError) as error:
            raise self.build_error(f"a regular expression ({error})") from None


def is_variable_name(name: str) -> bool:
    """Return whether a text can be the name of an environment variable."""
    if not name.isidentifier():
        return False
    if not name.isascii():
        return False
    return len(name) <= MAX_VARIABLE_NAME_CHARS


def format_as_toml(value: object) -> str:
    """Return a value formatted as TOML."""
    import json

    if isinstance(value, bool):
        if value:
            return "true"
        return "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(format_as_toml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {format_as_toml(item)}' for key, item in value.items())}}}"
    return str(value)


def format_key_path(keys: ConfigKeys) -> str:
    """Return a key path in the form that error messages use, such as `event[3].match.type`."""
    import re

    text = ""
    for key in keys:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            text += ("." if text else "") + (key if re.fullmatch(_BARE_KEY, key) else f'"{key}"')
    return escape_control_chars(text) or "the profile"


# Only error messages need the patterns in this module, so the functions import `re` themselves.
_BARE_KEY = r"[A-Za-z0-9_-]+"


def _explain_slow_pattern(pattern: str) -> str:
    """Return a description of the allowed patterns if this pattern may be slow, or "" if it is
    allowed.

    Most patterns have at most one repetition and need no further analysis.
    """
    if sum(map(pattern.count, "*+,")) < 2 and not any(
        sign in pattern for sign in (")*", ")+", "){")
    ):
        return ""
    from shim.profiles.check.regex_cost import explain_slow_regex

    return explain_slow_regex(pattern)


_HEADER_PATTERN = r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$"
_KEY_PATTERN = r"\"([^\"]*)\"|'([^']*)'|([A-Za-z0-9_-]+)"


def find_key_line(text: str, keys: ConfigKeys) -> int:
    """Return the number of the line that most likely holds the value at `keys`. The first line is
    1.

    The search starts with the header of the value's table, and continues with each key in turn.
    """
    import re

    indexes: dict[ConfigKeys, int] = {}
    lines = text.splitlines()
    best_length = -1
    start = 0
    end = len(lines)
    for number, line in enumerate(lines):
        if not (match := re.match(_HEADER_PATTERN, line)):
            continue
        if best_length >= 0 and end == len(lines):
            end = number
        header = _parse_header(match[1] == "[[", match[2], indexes)
        if header == keys[: len(header)] and len(header) > best_length:
            best_length = len(header)
            start = number
            end = len(lines)
    remaining_keys = [key for key in keys[max(best_length, 0) :] if isinstance(key, str)]
    for key in remaining_keys:
        key_pattern = re.compile(rf"(?:^|[\s{{,.])[\"']?{re.escape(key)}[\"']?\s*[=.]")
        key_line = next(
            (number for number in range(start, end) if key_pattern.search(lines[number])), None
        )
        if key_line is None:
            break
        start = key_line
    return start + 1


def _parse_header(is_array: bool, name: str, indexes: dict[ConfigKeys, int]) -> ConfigKeys:
    """Return the keys in a `[table]` or `[[table]]` header. The key of an array of tables is
    followed by the index of the table.
    """
    import re

    header: ConfigKeys = ()
    parts = ["".join(groups) for groups in re.findall(_KEY_PATTERN, name)]
    for position, part in enumerate(parts):
        header = (*header, part)
        if is_array and position == len(parts) - 1:
            indexes[header] = indexes.get(header, -1) + 1
        if header in indexes:
            header = (*header, indexes[header])
    return header
