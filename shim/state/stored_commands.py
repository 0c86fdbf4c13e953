"""Stores the commands that a vendor offered in its last session, for each vendor and working
directory.

A frontend requests the commands before the vendor runs, so the response contains the stored
commands.
"""

from collections.abc import Mapping

from shim.core.claude.offered_commands import OfferedCommand, parse_offered_commands
from shim.core.reading.values import as_dict
from shim.state.vendor_file import VendorFile

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
    entries_by_cwd = as_dict(_open_file(vendor, environment).load())
    return parse_offered_commands(entries_by_cwd.get(cwd))


def store_offered_commands(
    vendor: str, commands: tuple[OfferedCommand, ...], environment: Mapping[str, str], cwd: str
) -> None:
    """Store the commands that a vendor has offered. Nothing is written if the list is unchanged.
    The oldest working directories are dropped beyond MAX_FOLDERS.
    """
    file = _open_file(vendor, environment)
    entries_by_cwd = as_dict(file.load())
    if parse_offered_commands(entries_by_cwd.get(cwd)) == commands:
        return
    entries_by_cwd.pop(cwd, None)
    entries_by_cwd[cwd] = [command._asdict() for command in commands]
    file.store(dict([*entries_by_cwd.items()][-MAX_FOLDERS:]))


def _open_file(vendor: str, environment: Mapping[str, str]) -> VendorFile:
    return VendorFile(COMMANDS_FOLDER, vendor, environment, MAX_FILE_BYTES)
