"""Loads `config.toml`, and checks its keys and its values.

An error message names the file, the line, the key, the value and the allowed values. A turn of a
user who has no settings file does not import this module.
"""

import os
import tomllib
from collections.abc import Collection, Mapping

from shim.core.claude.argv.models import can_pass_model_name_as_argument
from shim.core.errors import FrontendError
from shim.core.reading.typed import TYPE_CHECKING, Any
from shim.core.reading.values import MAX_NUMBER, is_valid_vendor_name
from shim.state.files import open_regular_file

if TYPE_CHECKING:
    from shim.profiles.check.config_node import ConfigKeys, ConfigNode

MAX_CONFIG_BYTES = 1024 * 1024  # the size limit for a settings file

Table = Mapping[str, Any]

# The kinds of values.
TEXT = "a string"
TEXTS = "a list of strings"
NAMES = "a name or a list of names"
VARIABLE = "a string or a number"
MODEL = "a vendor's name for a model"
NUMBER = "a number"
SECONDS = "a number of seconds above 0"
SWITCH = "true or false"
TABLE = "a table"

# The kind of value for each key.
KEY_KINDS = {
    "vendor": NAMES,
    "dialect": TEXT,
    "terminator": TEXT,
    "tui": TEXT,
    "bridge": SWITCH,
    "bridge_idle": SECONDS,
    "bridge_days": NUMBER,
    "bridge_answers": TEXT,
    "record": TEXT,
    "record_strict": SWITCH,
    "record_max_bytes": NUMBER,
    "redact": TEXT,
    "max_line_bytes": NUMBER,
    "max_inbound_bytes": NUMBER,
    "first_byte_timeout": SECONDS,
    "idle_timeout": SECONDS,
    "tool_timeout": SECONDS,
    "heartbeat_timeout": SECONDS,
    "permission_timeout": SECONDS,
    "end_grace": NUMBER,
    "transcripts": SWITCH,
    "log": TEXT,
    "fleet_start": SWITCH,  # read by shim.state.machines, when a member of the fleet connects
    "machines": TABLE,  # parsed by shim.state.machines, when a command needs it
    "models": TABLE,
    "tools": TABLE,
    "vendors": TABLE,
}
TOOL_KEY_KINDS = {"deny": TEXTS, "hide": TEXTS}
VENDOR_KEY_KINDS = {
    "bin": TEXT,
    "args": TEXTS,
    "env": TABLE,
    "launcher": TEXTS,
    "driver": TEXT,
    "variant": TEXT,
    "trust": SWITCH,
    "trust_version": SWITCH,
    "late_denials": SWITCH,
    "models": TABLE,
    "timeouts": TABLE,
}


def check_settings(
    path: str, table: Table, *, drivers: Collection[str], timeout_names: Collection[str]
) -> None:
    """Raise FrontendError for an unknown key in the settings file, and for a value of the wrong
    kind. Values that have a list of choices are checked when they are used.
    """
    _check_table(path, (), table, KEY_KINDS)
    _check_table(path, ("tools",), table.get("tools", {}), TOOL_KEY_KINDS)
    short_timeout_names = [name.removesuffix("_timeout") for name in timeout_names]
    timeout_kinds = dict.fromkeys((*short_timeout_names, *timeout_names), SECONDS)
    for name, settings in table.get("vendors", {}).items():
        if not is_valid_vendor_name(name) or not isinstance(settings, dict):
            raise create_invalid_value_error(
                path, ("vendors", name), settings, "a table under a vendor's name"
            )
        _check_vendor_settings(path, ("vendors", name), settings, drivers, timeout_kinds)
    models = table.get("models", {})
    _check_table(path, ("models",), models, dict.fromkeys(models, MODEL))


def _check_vendor_settings(
    path: str,
    keys: "ConfigKeys",
    settings: Table,
    drivers: Collection[str],
    timeout_kinds: Mapping[str, str],
) -> None:
    """Raise FrontendError for an error in the settings table of one vendor."""
    _check_table(path, keys, settings, VENDOR_KEY_KINDS)
    _check_table(path, (*keys, "timeouts"), settings.get("timeouts", {}), timeout_kinds)
    for key, kind in (("env", VARIABLE), ("models", MODEL)):
        entries = settings.get(key, {})
        _check_table(path, (*keys, key), entries, dict.fromkeys(entries, kind))
    for key in ("bin", "launcher"):
        _check_program(path, (*keys, key), settings.get(key) or "")
    if "driver" in settings and settings["driver"] not in drivers:
        node = create_config_node(path, (*keys, "driver"), settings["driver"])
        raise node.build_choice_error(drivers)


def _check_program(path: str, keys: "ConfigKeys", value: str | list[str]) -> None:
    """Raise FrontendError if the path of a program or a command prefix is relative to the working
    directory.
    """
    if isinstance(value, str):
        program = value
    else:
        program = value[0]
    if os.sep in program and not (os.path.isabs(program) or program.startswith("~/")):
        raise create_invalid_value_error(
            path, keys, value, "an absolute path, ~/… or a bare name on PATH"
        )


def load_settings_table(path: str) -> Table:
    """Load the settings file as a TOML table. Raise FrontendError if the file does not exist or is
    not valid TOML.
    """
    try:
        data = read_settings_file(path)
    except FileNotFoundError:
        raise FrontendError(f"the settings file {path} does not exist") from None
    except OSError as error:
        raise FrontendError(f"the settings file {path} cannot be read: {error.strerror}") from None
    if len(data) > MAX_CONFIG_BYTES:
        raise FrontendError(f"the settings file {path} is larger than {MAX_CONFIG_BYTES} bytes")
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


def read_settings_file(path: str) -> bytes:
    """Return the contents of a file. Raise OSError for a pipe, and for any device except the null
    device.
    """
    if path == os.devnull:
        return b""
    with open(open_regular_file(path), "rb") as file:
        return file.read(MAX_CONFIG_BYTES + 1)


def _check_table(
    path: str, parent_keys: "ConfigKeys", table: Table, value_kinds: Mapping[str, str]
) -> None:
    """Raise FrontendError for a key that is not in `value_kinds`, and for a value of the wrong
    kind.

    `parent_keys` is the path of keys that leads to the table.
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
        if not isinstance(value, int | float):
            return False
        if isinstance(value, bool):
            return False
        return 0 <= value < MAX_NUMBER
    if kind == SECONDS:
        if not _matches_kind(value, NUMBER):
            return False
        return value != 0
    if kind == TABLE:
        return isinstance(value, dict)
    if kind == VARIABLE:
        if not isinstance(value, str | int | float):
            return False
        return not isinstance(value, bool)
    if kind == MODEL:
        if not isinstance(value, str):
            return False
        return can_pass_model_name_as_argument(value)
    if isinstance(value, str):
        return kind in (TEXT, NAMES)
    if kind not in (TEXTS, NAMES):
        return False
    if not isinstance(value, list):
        return False
    return all(isinstance(item, str) for item in value)


def create_invalid_value_error(
    path: str, keys: "ConfigKeys", value: object, allowed: str
) -> FrontendError:
    """Create the error for a value that is not `allowed`."""
    return create_config_node(path, keys, value).build_error(allowed)


def create_config_node(path: str, keys: "ConfigKeys", value: object) -> "ConfigNode":
    """Return the config node for an invalid value in the settings file. The value's line number is
    determined only when the error message is built.
    """
    from shim.profiles.check.config_node import ConfigNode, ConfigSource

    return ConfigNode(
        ConfigSource(path, lambda: read_settings_file(path).decode("utf-8", "replace")), value, keys
    )
