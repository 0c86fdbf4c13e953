"""Stores the versions of vendors' programs, each in a small file.

One folder contains versions that programs have reported. Such a version is valid until the
program's file changes. Another folder contains the versions that ran a denied tool call. These
records are kept until `shim doctor` is run. Both folders are read before a child is started, so
this module imports only modules that a turn needs anyway.
"""

import os
import time
from binascii import crc32
from collections.abc import Mapping, Sequence

from shim.core.adapter.versions import VersionProbe
from shim.core.reading.typed import NamedTuple
from shim.core.reading.values import as_str, get_text
from shim.state.config import get_state_dir
from shim.state.files import (
    ensure_usable_dir,
    list_modification_times_and_paths,
    read_state_file,
    remove_file,
    write_state_file,
)

VERSIONS_FOLDER = "versions"
MAX_VERSIONS = 200  # the maximum number of stored versions; the oldest are removed first
# The size limit for a version file. It contains the command prefix and a pattern from the profile.
MAX_VERSION_BYTES = 64 * 1024
PROMISES_FOLDER = "promises"
MAX_PROMISE_BYTES = 4096  # the size limit for a record; tool names have at most 200 characters
MAX_FILE_NAME_CHARS = 100
MAX_TOOL_CHARS = 200
_FILE_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.+_-")


def find_stored_vendor_version(
    version_probe: VersionProbe, command: Sequence[str], environment: Mapping[str, str]
) -> str | None:
    """Return the stored version of a program. Return None if no version is stored or the program
    has changed since.
    """
    key = _build_key(version_probe, command)
    if not key:
        return None
    folder = _get_folder(environment, VERSIONS_FOLDER)
    name = _build_version_file_name(key)
    if not os.path.lexists(os.path.join(folder, name)):
        return None
    data = read_state_file(folder, name, MAX_VERSION_BYTES)
    if not data:
        data = b""
    stored_key, _, version = data.decode("utf-8", "surrogateescape").rpartition("\n")
    if stored_key == key and version:
        return version
    return None


def store_vendor_version(
    version_probe: VersionProbe,
    command: Sequence[str],
    environment: Mapping[str, str],
    version: str | None,
) -> None:
    """Store the version that a program reported, or remove the stored version if `version` is None."""
    key = _build_key(version_probe, command)
    if not key:
        return
    folder = _get_folder(environment, VERSIONS_FOLDER)
    name = _build_version_file_name(key)
    if version:
        write_state_file(folder, name, f"{key}\n{version}".encode("utf-8", "surrogateescape"))
        for _, path in list_modification_times_and_paths(folder)[:-MAX_VERSIONS]:
            remove_file(path)
    else:
        remove_file(os.path.join(folder, name))


def _get_folder(environment: Mapping[str, str], name: str) -> str:
    return os.path.join(get_state_dir(environment), name)


def _build_version_file_name(key: str) -> str:
    """Return the name of the version file for a program. The name stays the same after an update of
    the program.
    """
    return f"{crc32(key.rpartition(chr(0))[0].encode('utf-8', 'surrogateescape')):08x}"


def _build_key(version_probe: VersionProbe, command: Sequence[str]) -> str:
    """Return a key for a program, or "" if the program does not exist.

    The key contains the command and its arguments. After the last NUL character, it contains the
    state of the program's file.
    """
    program = command[-1]
    try:
        status = os.stat(program)
    except OSError:
        return ""
    command_line = "\0".join(
        (*command[:-1], os.path.realpath(program), *version_probe.args, version_probe.regex)
    ).replace("\n", " ")
    # The ctime changes when a program is copied here, even if the copy keeps an old mtime.
    return f"{command_line}\0{status.st_mtime_ns} {status.st_ctime_ns} {status.st_size}"


class ExecutedDeniedCall(NamedTuple):
    """A version of a vendor's program that ran a denied tool call. An unknown version is ""."""

    vendor: str
    version: str
    tool: str


def record_executed_denied_call(
    denied_call: ExecutedDeniedCall, environment: Mapping[str, str]
) -> bool:
    """Store a record that a version ran a denied tool call. Return False if the record cannot be
    stored.
    """
    from shim.core.reading.json_text import dump_json

    record = {
        **denied_call._asdict(),
        "tool": denied_call.tool[:MAX_TOOL_CHARS],
        "time": time.time(),
    }
    return write_state_file(
        _get_folder(environment, PROMISES_FOLDER),
        _build_promise_file_name(denied_call.vendor, denied_call.version),
        dump_json(record),
    )


def find_executed_denied_call(
    vendor: str, version: str | None, environment: Mapping[str, str]
) -> ExecutedDeniedCall | None:
    """Return the record of a denied tool call that this version ran, or None. An unreadable file
    counts as a record.
    """
    version = as_str(version)
    name = _build_promise_file_name(vendor, version)
    if not os.path.lexists(os.path.join(_get_folder(environment, PROMISES_FOLDER), name)):
        return None
    return _read_executed_denied_call(vendor, version, name, environment)


def remove_executed_denied_call_records(
    vendor: str, environment: Mapping[str, str]
) -> list[ExecutedDeniedCall]:
    """Remove and return the records of denied tool calls for all versions of a vendor, so that
    these versions are trusted again.
    """
    folder = _get_folder(environment, PROMISES_FOLDER)
    prefix = f"{vendor}@"
    if not os.path.isdir(folder) or not ensure_usable_dir(folder):
        return []
    cleared = []
    for name in sorted(os.listdir(folder)):
        if name.startswith(prefix):
            promise = _read_executed_denied_call(vendor, name[len(prefix) :], name, environment)
            if remove_file(os.path.join(folder, name)):
                cleared.append(promise)
    return cleared


def _build_promise_file_name(vendor: str, version: str) -> str:
    safe_version = "".join(
        character if character in _FILE_NAME_CHARS else "_" for character in version
    )
    return f"{vendor}@{safe_version}"[:MAX_FILE_NAME_CHARS]


def _read_executed_denied_call(
    vendor: str, version: str, name: str, environment: Mapping[str, str]
) -> ExecutedDeniedCall:
    from shim.core.reading.json_text import parse_json_object

    data = read_state_file(_get_folder(environment, PROMISES_FOLDER), name, MAX_PROMISE_BYTES)
    record = parse_json_object(data or b"")
    return ExecutedDeniedCall(
        vendor, get_text(record, "version", version), get_text(record, "tool", "a tool")
    )
