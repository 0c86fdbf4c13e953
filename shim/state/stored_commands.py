"""Stores the commands that a vendor offered in its last session, for each vendor and working
directory.

A frontend requests the commands before the vendor runs, so the response contains the stored
commands.
"""

import os
from collections.abc import Mapping

from shim.core.claude.offered_commands import OfferedCommand, parse_offered_commands
from shim.core.reading.json_text import dump_json
from shim.core.reading.typed import Any
from shim.core.reading.values import as_dict
from shim.state.config import get_state_dir
from shim.state.files import read_state_file, write_state_file

COMMANDS_FOLDER = "commands"
MAX_FOLDERS = 20  # the number of working directories for which a vendor's commands are stored
# The size limit for a file. A larger file counts as empty.
MAX_FILE_BYTES = 4 * 1024 * 1024


def load_offered_commands(
    vendor: str, environment: Mapping[str, str], cwd: str
) -> tuple[OfferedCommand, ...]:
    """Return the commands that a vendor offered in its last session in a working directory, or ()
    if none are stored.
    """
    return parse_offered_commands(_load_file(vendor, environment).get(cwd))


def store_offered_commands(
    vendor: str, commands: tuple[OfferedCommand, ...], environment: Mapping[str, str], cwd: str
) -> None:
    """Store the commands that a vendor has offered. Nothing is written if the list is unchanged.
    The oldest working directories are dropped beyond MAX_FOLDERS.
    """
    entries_by_cwd = _load_file(vendor, environment)
    if parse_offered_commands(entries_by_cwd.get(cwd)) == commands:
        return
    entries_by_cwd.pop(cwd, None)
    entries_by_cwd[cwd] = [command._asdict() for command in commands]
    newest_entries = dict([*entries_by_cwd.items()][-MAX_FOLDERS:])
    folder, name = _locate_file(vendor, environment)
    write_state_file(folder, name, dump_json(newest_entries))


def _load_file(vendor: str, environment: Mapping[str, str]) -> dict[str, Any]:
    folder, name = _locate_file(vendor, environment)
    if not os.path.lexists(os.path.join(folder, name)):
        return {}
    data = read_state_file(folder, name, MAX_FILE_BYTES)
    if not data:
        return {}
    import orjson

    try:
        return {**as_dict(orjson.loads(data))}
    except orjson.JSONDecodeError:
        return {}


def _locate_file(vendor: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the folder and the name of a vendor's file."""
    return os.path.join(get_state_dir(environment), COMMANDS_FOLDER), f"{vendor}.json"
