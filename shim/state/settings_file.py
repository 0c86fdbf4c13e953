"""The settings file: its table, and what is wrong in it, with file, line, key, what was found and
what is allowed.
"""

import os
from collections.abc import Mapping

from shim.core.claude.argv.models import can_pass_model_name_as_argument
from shim.core.errors import FrontendError
from shim.core.reading.typed import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shim.profiles.check.config_node import ConfigNode

MAX_CONFIG_BYTES = 1024 * 1024  # a settings file is a page; this is a mistake's limit
MAX_NUMBER = 2**53  # of a number in the settings: seconds and bytes stay far below

Table = Mapping[str, Any]
Keys = tuple[str | int, ...]

# What the value of a key may be.
TEXT, TEXTS, NAMES, VARIABLE = (
    "a string",
    "a list of strings",
    "a name or a list of names",
    "a string or a number",
)
MODEL = "a vendor's name of a model"
NUMBER, SECONDS, SWITCH, TABLE = (
    "a number",
    "a number of seconds above 0",
    "true or false",
    "a table",
)


def load_settings_table(path: str, *, must_exist: bool) -> Table:
    """The table in the file; {} where it is not there and need not be. FrontendError for a file
    that is no TOML.
    """
    if not (must_exist or os.path.lexists(path)):
        return {}  # also below a home that is no folder
    try:
        data = _read_bytes(path)
    except FileNotFoundError:
        raise FrontendError(f"the settings file {path} does not exist") from None
    except OSError as error:
        raise FrontendError(f"the settings file {path} cannot be read: {error.strerror}") from None
    if len(data) > MAX_CONFIG_BYTES:
        raise FrontendError(f"the settings file {path} is larger than {MAX_CONFIG_BYTES} bytes")
    import tomllib

    try:
        return tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FrontendError(f"the settings file {path} is not UTF-8 (at line {line})") from None
    except RecursionError:
        raise FrontendError(
            f"the settings file {path} is not TOML: its tables or lists are nested too deep"
        ) from None
    except ValueError as error:
        last_line = data.count(b"\n") + 1
        message = str(error).replace(
            "at end of document", f"at line {last_line}, the end of the file"
        )
        raise FrontendError(f"the settings file {path} is not TOML: {message}") from None


def _read_bytes(path: str) -> bytes:
    """What is in the file. OSError for a pipe, which would be waited for, and for a device that is
    not the null one.
    """
    if path == os.devnull:
        return b""
    from shim.state.files import open_regular_file

    with open(open_regular_file(path), "rb") as file:
        return file.read(MAX_CONFIG_BYTES + 1)


def check_settings_table(
    path: str, parent_keys: Keys, table: Table, value_kinds: Mapping[str, str]
) -> None:
    """FrontendError for a key that is none of `value_kinds`, and for a value of another kind.

    `parent_keys` are the keys under which the table stands.
    """
    for key, value in table.items():
        if key not in value_kinds:
            raise create_config_node(path, (*parent_keys, key), value).build_unknown_key_error(
                value_kinds
            )
        if not _matches_kind(value, value_kinds[key]):
            raise create_invalid_value_error(path, (*parent_keys, key), value, value_kinds[key])


def _matches_kind(value: object, kind: str) -> bool:
    if kind == SWITCH:
        return isinstance(value, bool)
    if kind == NUMBER:
        return (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and 0 <= value < MAX_NUMBER
        )
    if kind == SECONDS:
        return _matches_kind(value, NUMBER) and value != 0
    if kind == TABLE:
        return isinstance(value, dict)
    if kind == VARIABLE:
        return isinstance(value, str | int | float) and not isinstance(value, bool)
    if kind == MODEL:
        return isinstance(value, str) and can_pass_model_name_as_argument(value)
    if isinstance(value, str):
        return kind in (TEXT, NAMES)
    return (
        kind in (TEXTS, NAMES)
        and isinstance(value, list)
        and all(isinstance(item, str) for item in value)
    )


def create_invalid_value_error(path: str, keys: Keys, value: object, allowed: str) -> FrontendError:
    """The error about a value that is none of those `allowed`."""
    return create_config_node(path, keys, value).build_error(allowed)


def create_config_node(path: str, keys: Keys, value: object) -> "ConfigNode":
    """A wrong value of the settings file, whose line is looked for only now."""
    from shim.profiles.check.config_node import ConfigNode, ConfigSource

    return ConfigNode(
        ConfigSource(path, lambda: _read_bytes(path).decode("utf-8", "replace")), value, keys
    )
