"""Stores the version that a program printed, until the program's file changes: one small file for
each program.

The file is read before a child is started, so this module imports nothing that a turn does not
need.
"""

import os
from binascii import crc32
from collections.abc import Mapping, Sequence

from shim.core.adapter.versions import VersionProbe
from shim.state.config import get_state_dir
from shim.state.files import (
    list_modification_times_and_paths,
    read_state_file,
    remove_file,
    write_state_file,
)

FOLDER_NAME = "versions"
MAX_VERSIONS = 200  # programs whose version is stored; the oldest files are removed
MAX_RECORD_BYTES = 64 * 1024  # a key contains the words of a launcher and a pattern of a profile


def find_stored_vendor_version(
    version_probe: VersionProbe, command: Sequence[str], environment: Mapping[str, str]
) -> str | None:
    """Return the stored version of a program, or None if it is not known or the program has
    changed.
    """
    key = _build_key(version_probe, command)
    if not key:
        return None
    folder, name = _get_folder(environment), _build_file_name(key)
    if not os.path.lexists(os.path.join(folder, name)):
        return None
    data = read_state_file(folder, name, MAX_RECORD_BYTES) or b""
    stored_key, _, version = data.decode("utf-8", "surrogateescape").rpartition("\n")
    return version if stored_key == key and version else None


def store_vendor_version(
    version_probe: VersionProbe,
    command: Sequence[str],
    environment: Mapping[str, str],
    version: str | None,
) -> None:
    """Store the version that a program printed, or remove the stored version if `version` is None."""
    key = _build_key(version_probe, command)
    if not key:
        return
    folder, name = _get_folder(environment), _build_file_name(key)
    if version:
        write_state_file(folder, name, f"{key}\n{version}".encode("utf-8", "surrogateescape"))
        for _, path in list_modification_times_and_paths(folder)[:-MAX_VERSIONS]:
            remove_file(path)
    else:
        remove_file(os.path.join(folder, name))


def _get_folder(environment: Mapping[str, str]) -> str:
    return os.path.join(get_state_dir(environment), FOLDER_NAME)


def _build_file_name(key: str) -> str:
    """Return the name of a program's file, which stays the same after an update of the program."""
    return f"{crc32(key.rpartition(chr(0))[0].encode('utf-8', 'surrogateescape')):08x}"


def _build_key(version_probe: VersionProbe, command: Sequence[str]) -> str:
    """Return what identifies the command, its arguments and, after the last NUL, the state of the
    program's file.

    Return "" if the program does not exist.
    """
    program = command[-1]
    try:
        status = os.stat(program)
    except OSError:
        return ""
    command_line = "\0".join(
        (*command[:-1], os.path.realpath(program), *version_probe.args, version_probe.regex)
    ).replace("\n", " ")
    # The time of the last change of the entry tells a program that was copied here with the time of
    # another file.
    return f"{command_line}\0{status.st_mtime_ns} {status.st_ctime_ns} {status.st_size}"
