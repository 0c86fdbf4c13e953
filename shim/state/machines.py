"""Other machines of the user: those of the settings file, which SSH can reach, and those of the
fleet.

[machines]
build = "ssh:build01"                       # a host name, an alias of ~/.ssh/config, or USER@HOST
lab = "ssh:me@lab.example ~/.local/bin/shim"  # the path of the shim, if it is not on PATH there

The last listing of the fleet is stored, so that commands know its machines without a connection.
"""

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from shim.core.claude.argv.flags import Invocation
from shim.core.errors import FrontendError, format_spelling_suggestion
from shim.core.reading.values import as_dict, as_list, get_text
from shim.io.stderr import warn
from shim.state.config import get_fleet_folder, get_shim_settings_path, has_fleet
from shim.state.files import read_state_file
from shim.state.settings_file import Table, create_invalid_value_error, load_settings_table

SSH_PREFIX = "ssh:"
DEFAULT_PROGRAM = "shim"
# A name must not contain a colon, because NAME:ID is split at the colon.
MAX_NAME_CHARS = 64
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")
MAX_MACHINES = 64  # each machine is contacted in its own thread
# The last listing of the fleet, in the fleet's folder. A listing of 1,000 sessions has about 1 MB.
FLEET_LISTING_FILE = "listing.json"
MAX_FLEET_LISTING_BYTES = 16 * 1024 * 1024
NAME_FORMAT = "1 to 64 letters, digits, dots, hyphens or underscores"
VALUE_FORMAT = '"ssh:HOST", or "ssh:HOST PATH" with the path of the shim on that machine'


class Machine(NamedTuple):
    """Another machine.

    destination  the destination for `ssh`, or "" for a machine of the fleet
    program      the program of the shim there, for `ssh`
    """

    name: str
    destination: str = ""
    program: str = DEFAULT_PROGRAM

    @property
    def is_in_fleet(self) -> bool:
        """Whether the machine is reached through the fleet, not with `ssh`."""
        return not self.destination


# Stands for all machines of the fleet, whose names may not be known yet.
ALL_FLEET_MACHINES = Machine("")


def load_machines(environment: Mapping[str, str]) -> Mapping[str, Machine]:
    """Load the machines of the fleet and of the settings file, which takes precedence if both have
    the same name. Raise FrontendError if an entry of the settings is not valid.
    """
    path = get_shim_settings_path(Invocation(), environment)
    table = _load_optional_table(path)
    fleet = {name: Machine(name) for name in _load_fleet_names(environment)}
    return {**fleet, **parse_machines(path, table.get("machines") or {})}


def _load_optional_table(path: str) -> Table:
    if not os.path.lexists(path):
        return {}
    return load_settings_table(path)


def _load_fleet_names(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the machines in the last listing of the fleet."""
    if not has_fleet(environment):
        return []
    data = read_state_file(
        get_fleet_folder(environment), FLEET_LISTING_FILE, MAX_FLEET_LISTING_BYTES
    )
    try:
        listing = as_dict(orjson.loads(data or b"{}"))
    except orjson.JSONDecodeError:
        return []
    names = [get_text(as_dict(fields), "name") for fields in as_list(listing.get("machines"))]
    return list(filter(NAME_PATTERN.match, names))


def may_fleet_start(environment: Mapping[str, str]) -> bool:
    """Return whether members of the fleet may start sessions on this machine. Raise FrontendError if
    the settings file is not valid.
    """
    path = get_shim_settings_path(Invocation(), environment)
    return _load_optional_table(path).get("fleet_start") is True


def build_check_command(machine: Machine) -> str:
    """Return the command that shows a user why a machine does not answer."""
    if machine.is_in_fleet:
        return "shim fleet status"
    return f"ssh {machine.destination} {machine.program} --version"


def find_machine(name: str, environment: Mapping[str, str]) -> Machine:
    """Return the machine with a name. A name that is not known here may be that of a new machine of
    the fleet. Raise FrontendError if there is no fleet, and the settings have no such machine.
    """
    machines = load_machines(environment)
    if name in machines:
        return machines[name]
    if has_fleet(environment) and NAME_PATTERN.match(name):
        return Machine(name)
    raise FrontendError(
        f"there is no machine {name[:MAX_NAME_CHARS]!r}{format_spelling_suggestion(name, machines)}",
        hint='name it in the table [machines] of config.toml, for example build = "ssh:build01"',
    )


def select_machines(machine_name: str | None, environment: Mapping[str, str]) -> list[Machine]:
    """Return the machine with a name, or all other machines if `machine_name` is None. If the
    settings have an error, print it, because the sessions of this machine can still be listed.

    Raise FrontendError for an unknown name.
    """
    if machine_name is not None:
        return [find_machine(machine_name, environment)]
    machines = list[Machine]()
    if has_fleet(environment):
        machines.append(ALL_FLEET_MACHINES)
    try:
        others = load_machines(environment).values()
    except FrontendError as error:
        warn(f"other machines are not listed: {error}\n")
        return machines
    return machines + [machine for machine in others if not machine.is_in_fleet]


def parse_machines(path: str, table: Mapping[str, Any]) -> Mapping[str, Machine]:
    """Parse the table `[machines]` of the settings file `path`. Raise FrontendError if an entry is
    not valid.
    """
    if len(table) > MAX_MACHINES:
        raise create_invalid_value_error(
            path, ("machines",), len(table), f"at most {MAX_MACHINES} machines"
        )
    return {name: _parse_machine(path, name, value) for name, value in table.items()}


def _parse_machine(path: str, name: str, value: object) -> Machine:
    if not NAME_PATTERN.match(name):
        raise create_invalid_value_error(path, ("machines", name), name, NAME_FORMAT)
    parts = []
    if isinstance(value, str) and value.startswith(SSH_PREFIX) and value.isprintable():
        parts = value.removeprefix(SSH_PREFIX).split(maxsplit=1)
    # `ssh` would treat a destination that starts with a hyphen as an option.
    if not parts or parts[0].startswith("-"):
        raise create_invalid_value_error(path, ("machines", name), value, VALUE_FORMAT)
    return Machine(name, *parts)
