"""Loads the settings from `config.toml` in the user's configuration directory. SHIM_* variables
override the file.

Settings are never read from the working directory, because a cloned repository must not choose
which programs are run.
"""

import os
import sys
from collections.abc import Collection, Mapping

from shim.core.claude.argv.flags import Invocation
from shim.core.dialects import DIALECTS
from shim.core.errors import FrontendError, format_spelling_suggestion
from shim.core.reading import MAX_LINE_BYTES
from shim.core.reading.typed import TYPE_CHECKING, NamedTuple
from shim.core.reading.values import MAX_NUMBER
from shim.io.stderr import LOG_LEVELS

if TYPE_CHECKING:
    from shim.profiles.check.config_node import ConfigKeys, ConfigNode
    from shim.state.settings_file import Table

JOIN_FILE = "join.json"  # in the folder of the fleet

# Size limits for a recording. The default is enough for a day with a verbose vendor. The minimum is
# enough for one turn.
DEFAULT_RECORD_BYTES = 10**9
MIN_RECORD_BYTES = 10_000
# Pairs of vendors whose programs have the same name.
# Without a settings table of its own, the second vendor uses the table of the first.
TWIN_VENDORS = {"kimi": "kimi-code"}
REPLACED_VENDOR = "claude"  # the vendor whose program the drop-in replaces


class VendorSettings(NamedTuple):
    """The settings table `[vendors.X]`: a vendor's program, how it is started, its models and
    timeouts.

    With `trust_version`, the guarantees of the vendor's profile are assumed to hold for every
    version of the program.
    """

    bin: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    launcher: tuple[str, ...] = ()
    driver: str | None = None
    variant: str = "auto"
    trust: bool = False
    trust_version: bool = False
    late_denials: bool = False
    models: Mapping[str, str] = {}
    timeouts: Mapping[str, float] = {}


class BackgroundSessionSettings(NamedTuple):
    """The settings for background sessions. In the file, each key is `bridge` or starts with
    `bridge_`.

        enabled         every conversation is a background session
        idle_timeout_s  the seconds without a frontend, a turn or a prompt until a session ends
        retention_days  how long the files of an ended session are kept
        answered_by     which clients may answer permission prompts: "any" client with control, or the
                        "owner", which is the current or the last controller
    """

    enabled: bool = False
    idle_timeout_s: float = 3600.0  # the same as in the real claude
    retention_days: float = 30.0
    answered_by: str = "any"


class ShimSettings(NamedTuple):
    """All settings of a run, with default values."""

    vendor: tuple[str, ...] = ()
    dialect: str = "claude"
    terminator: str = "auto"
    end_grace: float = 2.0
    log: str | None = None
    deny: tuple[str, ...] = ()
    hide: tuple[str, ...] = ()
    vendors: Mapping[str, VendorSettings] = {}
    transcripts: bool = True
    max_line_bytes: int = 0
    max_inbound_bytes: int = MAX_LINE_BYTES
    timeouts: Mapping[str, float] = {}
    redact: str = ""
    record: str = ""
    record_strict: bool = False
    record_max_bytes: int = DEFAULT_RECORD_BYTES
    models: Mapping[str, str] = {}
    tui: str = "none"
    bridge: "BackgroundSessionSettings" = BackgroundSessionSettings()
    path: str = ""  # the path of the settings file

    def create_invalid_value_error(
        self, keys: "ConfigKeys", allowed: Collection[str], value: object
    ) -> FrontendError:
        """Create the error for a value in the settings file that is not `allowed`."""
        return _create_node(self.path, keys, value).build_choice_error(allowed)

    def create_unknown_key_error(
        self, keys: "ConfigKeys", allowed: Collection[str]
    ) -> FrontendError:
        """Create the error for a key in the settings file that is not `allowed`."""
        return _create_node(self.path, keys, None).build_unknown_key_error(allowed)

    def resolve_redaction_mode(self) -> str:
        """Return where secrets are redacted: the configured mode, or the dialect's default."""
        return self.redact or DIALECTS[self.dialect].default_redaction

    def get_vendor_settings(self, vendor: str) -> VendorSettings:
        return self.vendors.get(vendor, VendorSettings())

    def resolve_timeout_s(
        self, name: str, vendor: str, adapter_timeouts: Mapping[str, float] = {}
    ) -> float:
        """Return a timeout for a vendor, in seconds.

        `name` is a key of DEFAULT_TIMEOUTS_S. `adapter_timeouts` are the vendor's own default
        values.
        """
        vendor_timeouts = self.get_vendor_settings(vendor).timeouts
        configured_s = [
            vendor_timeouts.get(name),
            vendor_timeouts.get(name.removesuffix("_timeout")),
            self.timeouts.get(name),
        ]
        default_s = DEFAULT_TIMEOUTS_S[name]
        # The frontend cannot get more time for an answer than the vendor allows.
        if name == "permission_timeout":
            timeout_s = next(filter(None, configured_s), default_s)
            return min(timeout_s, adapter_timeouts.get(name, timeout_s))
        return next(filter(None, configured_s), adapter_timeouts.get(name, default_s))


# How long a vendor may be silent, in seconds.
# Vendors that are silent for longer have their own values (`Adapter.timeouts_s`).
DEFAULT_TIMEOUTS_S = {
    "first_byte_timeout": 120.0,  # before the first output
    "idle_timeout": 900.0,  # while no tool call is open
    "tool_timeout": 3600.0,  # while a tool call is open
    # For a vendor that sends heartbeats in this turn. The Qwen RFC suggests 10 s.
    "heartbeat_timeout": 10.0,
    # For the frontend to answer a permission prompt. The user may be away for a while.
    "permission_timeout": 24 * 60 * 60.0,
}
TIMEOUT_VARIABLES = {
    "idle_timeout": "SHIM_IDLE_TIMEOUT",
    "tool_timeout": "SHIM_TOOL_TIMEOUT",
    "permission_timeout": "SHIM_PERMISSION_TIMEOUT",
}

LOG_VALUES = (*LOG_LEVELS, "LEVEL:FILE")

TWO_WAY = "two-way"  # one child per conversation, which reads all messages from stdin
ONE_WAY = "one-way"  # one child per message; the child reads no further messages
DRIVERS = (TWO_WAY, ONE_WAY)
CHOICES = {
    "dialect": tuple(DIALECTS),
    "redact": ("casts", "all", "none"),
    "terminator": ("auto", "message_stop", "dollar", "none"),
    "tui": ("none", "vendor"),
    "bridge_answers": ("any", "owner"),
}


def get_shim_settings_path(invocation: Invocation, environment: Mapping[str, str]) -> str:
    """Return the path of the settings file: the file chosen for this run, or the user's file, which
    may not exist.
    """
    configured_path = invocation.shim_config
    if not configured_path:
        configured_path = environment.get("SHIM_CONFIG")
    if configured_path:
        return configured_path
    return os.path.join(get_config_dir(environment), "config.toml")


def has_machines(invocation: Invocation, environment: Mapping[str, str]) -> bool:
    """Return whether there may be other machines: in the fleet, or in the settings file."""
    if has_fleet(environment):
        return True
    path = get_shim_settings_path(invocation, environment)
    if not os.path.isfile(path):
        return False
    from shim.state.settings_file import read_settings_file

    try:
        return b"machines" in read_settings_file(path)
    except OSError:
        return False  # loading the settings reports the error


def has_fleet(environment: Mapping[str, str]) -> bool:
    """Return whether this user's machine has joined a fleet. The check needs no imports."""
    return os.path.isfile(os.path.join(get_fleet_folder(environment), JOIN_FILE))


def load_shim_settings(
    invocation: Invocation,
    environment: Mapping[str, str],
    installed_settings: Mapping[str, str] = {},
) -> ShimSettings:
    """Load the settings for a turn from the settings file, the SHIM_* variables and the
    command-line flags, with increasing precedence.

    `installed_settings` are the options that `shim install` stored in the drop-in. Raise
    FrontendError for an error in any of these sources.
    """
    path = get_shim_settings_path(invocation, environment)
    must_exist = bool(invocation.shim_config or environment.get("SHIM_CONFIG"))
    table = _load_table(path, must_exist=must_exist)
    tools = table.get("tools", {})
    vendors = {name: _parse_vendor(settings) for name, settings in table.get("vendors", {}).items()}
    models = table.get("models")
    if not models:
        models = {}
    chosen_vendor = table.get("vendor")
    if not chosen_vendor:
        chosen_vendor = ()
    dialect = DIALECTS[
        _resolve_choice(path, "dialect", invocation.shim_dialect, environment, table, "claude")
    ]
    line_bytes = _resolve_max_line_bytes(path, environment, table)
    if isinstance(chosen_vendor, str):
        vendor = (chosen_vendor,)
    else:
        vendor = tuple(chosen_vendor)
    return ShimSettings(
        vendor=vendor,
        dialect=dialect.name,
        redact=_resolve_choice(path, "redact", None, environment, table, ""),
        record=_parse_record_path(path, table),
        record_strict=bool(table.get("record_strict", False)),
        record_max_bytes=_parse_bytes(
            path, table, "record_max_bytes", DEFAULT_RECORD_BYTES, MIN_RECORD_BYTES
        ),
        terminator=_resolve_choice(
            path, "terminator", invocation.shim_terminator, environment, table, "auto"
        ),
        tui=_resolve_choice(path, "tui", None, environment, table, "none"),
        bridge=_parse_bridge(path, environment, table),
        end_grace=float(table.get("end_grace", 2.0)),
        transcripts=bool(table.get("transcripts", True)),
        max_line_bytes=min(line_bytes, dialect.max_line_bytes or line_bytes),
        max_inbound_bytes=_parse_bytes(
            path, table, "max_inbound_bytes", MAX_LINE_BYTES, MIN_LINE_BYTES
        ),
        timeouts=_parse_timeouts(environment, table),
        log=_resolve_log(path, invocation.shim_log, environment, table),
        deny=tuple(tools.get("deny", ())),
        hide=tuple(tools.get("hide", ())),
        vendors=_use_replaced_program(
            installed_settings.get("replaced", ""), _share_settings(vendors)
        ),
        models=models,
        path=path,
    )


def _load_table(path: str, *, must_exist: bool) -> "Table":
    """Load the settings file as a checked TOML table. Return {} if the file does not exist and is
    optional.
    """
    if not (must_exist or os.path.lexists(path)):
        return {}  # the file is also missing if the home directory is not a folder
    from shim.state.settings_file import check_settings, load_settings_table

    table = load_settings_table(path)
    check_settings(path, table, drivers=DRIVERS, timeout_names=DEFAULT_TIMEOUTS_S)
    return table


def _create_value_error(
    path: str, keys: "ConfigKeys", value: object, allowed: str
) -> FrontendError:
    """Create the error for a value in the settings file that is not `allowed`."""
    from shim.state.settings_file import create_invalid_value_error

    return create_invalid_value_error(path, keys, value, allowed)


def _create_node(path: str, keys: "ConfigKeys", value: object) -> "ConfigNode":
    """Create the config node for an invalid value in the settings file."""
    from shim.state.settings_file import create_config_node

    return create_config_node(path, keys, value)


def _share_settings(vendors: Mapping[str, VendorSettings]) -> Mapping[str, VendorSettings]:
    """Return the vendors' settings tables. A vendor in TWIN_VENDORS without a table of its own gets
    its twin's table. This works in one direction only: `kimi-code` gets the table of `kimi`.
    """
    shared = {twin: vendors[name] for name, twin in TWIN_VENDORS.items() if name in vendors}
    return {**shared, **vendors}


SWITCH_VALUES = {"1": True, "true": True, "0": False, "false": False}


def _parse_bridge(
    path: str, environment: Mapping[str, str], table: "Table"
) -> BackgroundSessionSettings:
    switch = environment.get("SHIM_BRIDGE")
    if switch and switch not in SWITCH_VALUES:
        raise _create_choice_error("SHIM_BRIDGE", switch, SWITCH_VALUES)
    defaults = BackgroundSessionSettings()
    if switch:
        enabled = SWITCH_VALUES[switch]
    else:
        enabled = bool(table.get("bridge", defaults.enabled))
    return BackgroundSessionSettings(
        enabled=enabled,
        idle_timeout_s=float(table.get("bridge_idle", defaults.idle_timeout_s)),
        retention_days=float(table.get("bridge_days", defaults.retention_days)),
        answered_by=_resolve_choice(
            path, "bridge_answers", None, environment, table, defaults.answered_by
        ),
    )


def _use_replaced_program(
    replaced_path: str, vendors: Mapping[str, VendorSettings]
) -> Mapping[str, VendorSettings]:
    """Return the vendors' settings tables, in which Claude's program is the file that the drop-in
    replaced. A program in the settings file takes precedence.
    """
    claude_settings = vendors.get(REPLACED_VENDOR)
    if not claude_settings:
        claude_settings = VendorSettings()
    if claude_settings.bin or not os.path.isfile(replaced_path):
        return vendors
    return {**vendors, REPLACED_VENDOR: claude_settings._replace(bin=replaced_path)}


DEFAULT_LINE_BYTES = 100_000  # the longest line that Yume's parser reads
SDK_LINE_BYTES = 1_000_000  # the longest line that the Python SDK reads (contract P12)
MIN_LINE_BYTES = 10_000  # a shorter line could not hold a message


def _resolve_max_line_bytes(path: str, environment: Mapping[str, str], table: "Table") -> int:
    """Return the size limit for an output line in bytes. The default value depends on the
    frontend, because an SDK reads longer lines.
    """
    value = environment.get("SHIM_MAX_LINE_BYTES")
    if not value:
        is_sdk = environment.get("CLAUDE_CODE_ENTRYPOINT", "").startswith("sdk-")
        default = DEFAULT_LINE_BYTES
        if is_sdk:
            default = SDK_LINE_BYTES
        return _parse_bytes(path, table, "max_line_bytes", default, MIN_LINE_BYTES)
    number = 0
    if value.isascii() and value.isdigit():
        number = int(value)
    if not MIN_LINE_BYTES <= number <= MAX_NUMBER:
        allowed = f"a number of bytes, at least {MIN_LINE_BYTES}"
        raise FrontendError(f"SHIM_MAX_LINE_BYTES is {value!r}; it must be {allowed}")
    return number


def _parse_bytes(path: str, table: "Table", key: str, default: int, minimum: int) -> int:
    value = table.get(key, default)
    if value < minimum:
        raise _create_value_error(path, (key,), value, f"a number of bytes, at least {minimum}")
    return int(value)


def _parse_record_path(path: str, table: "Table") -> str:
    """Return the path for recordings. The path must be absolute, because a settings file has no
    working directory.
    """
    value = str(table.get("record", ""))
    if not value or os.path.isabs(value):
        return value
    home = os.path.expanduser("~")
    if value.startswith("~/") and os.path.isabs(home):
        return home + value[1:]
    raise _create_value_error(
        path, ("record",), value, "an absolute path, or one that begins with ~/"
    )


def resolve_recording_path(
    invocation: Invocation,
    environment: Mapping[str, str],
    installed_settings: Mapping[str, str],
    settings: ShimSettings,
) -> str:
    """Return the path for this run's recording, from the first source that has one. Return "" if
    recording is off.
    """
    return (
        invocation.shim_record
        or environment.get("SHIM_RECORD")
        or installed_settings.get("record")
        or settings.record
    )


def _parse_timeouts(environment: Mapping[str, str], table: "Table") -> dict[str, float]:
    timeouts = {name: float(table[name]) for name in DEFAULT_TIMEOUTS_S if name in table}
    for name, variable in TIMEOUT_VARIABLES.items():
        if value := environment.get(variable):
            try:
                timeouts[name] = float(value)
            except ValueError:
                timeouts[name] = 0.0
            if not 0 < timeouts[name] <= MAX_NUMBER:
                raise FrontendError(f"{variable} is {value!r}; it must be a number of seconds")
    return timeouts


MACOS = "darwin"


def get_home_dir(environment: Mapping[str, str]) -> str:
    """Return the user's home directory: $HOME, or the directory in the user database."""
    home = environment.get("HOME")
    if home:
        return home
    return os.path.expanduser("~")


def get_config_dir(environment: Mapping[str, str]) -> str:
    """Return the directory for the user's settings. On macOS, `platformdirs` determines it."""
    if sys.platform != MACOS:
        base = environment.get("XDG_CONFIG_HOME", "")
        if not os.path.isabs(base):
            base = os.path.join(get_home_dir(environment), ".config")
        return os.path.join(base, "shim")
    from platformdirs import user_config_dir

    return user_config_dir("shim", appauthor=False)


def get_state_dir(environment: Mapping[str, str]) -> str:
    """Return the state directory of the shim."""
    configured_path = environment.get("SHIM_STATE", "")
    if os.path.isabs(configured_path):
        return configured_path
    return os.path.join(get_home_dir(environment), ".local", "state", "shim")


def get_fleet_folder(environment: Mapping[str, str]) -> str:
    """Return the folder of the fleet that this user's machine has joined. It may not exist."""
    return os.path.join(get_state_dir(environment), "fleet")


def _resolve_choice(
    path: str,
    key: str,
    flag: str | None,
    environment: Mapping[str, str],
    table: "Table",
    default: str,
) -> str:
    for source, value in _list_overrides(key, flag, environment):
        if value and value not in CHOICES[key]:
            raise _create_choice_error(source, value, CHOICES[key])
        if value:
            return value
    value = table.get(key)
    if not value:
        return default
    if value not in CHOICES[key]:
        raise _create_node(path, (key,), value).build_choice_error(CHOICES[key])
    return str(value)


def _resolve_log(
    path: str, flag: str | None, environment: Mapping[str, str], table: "Table"
) -> str | None:
    """Return LEVEL or LEVEL:FILE from the first source that configures the log, or None. Raise
    FrontendError for an unknown level.
    """
    for source, value in _list_overrides("log", flag, environment):
        if value and value.partition(":")[0] not in LOG_LEVELS:
            raise _create_choice_error(source, value, LOG_VALUES)
        if value:
            return value
    value = table.get("log")
    if value and value.partition(":")[0] not in LOG_LEVELS:
        raise _create_node(path, ("log",), value).build_choice_error(LOG_VALUES)
    return value


def _list_overrides(
    key: str, flag: str | None, environment: Mapping[str, str]
) -> "list[tuple[str, str | None]]":
    """Return the sources that override the settings file for a key, each with its value or None."""
    variable = f"SHIM_{key.upper()}"
    return [(f"--shim-{key}", flag), (variable, environment.get(variable))]


def _create_choice_error(source: str, value: str, allowed: Collection[str]) -> FrontendError:
    suggestion = format_spelling_suggestion(value, allowed, "; ")
    return FrontendError(
        f"{source} is {value!r}; it must be one of {', '.join(allowed)}{suggestion}"
    )


def _parse_vendor(table: "Table") -> VendorSettings:
    lists = {key: tuple(table[key]) for key in ("args", "launcher") if key in table}
    env = {name: str(value) for name, value in table.get("env", {}).items()}
    return VendorSettings(**{**table, **lists, "env": env})
