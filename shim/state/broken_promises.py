"""Stores which versions of programs ran a denied call: one small file for each, until `shim doctor`
is run.
"""

import os
import time
from collections.abc import Mapping

from shim.core.reading.typed import NamedTuple
from shim.state.config import get_state_dir
from shim.state.files import ensure_usable_dir, read_state_file, remove_file, write_state_file

FOLDER_NAME = "promises"
MAX_RECORD_BYTES = 4096  # a name of a tool has 200 characters at most
MAX_FILE_NAME_CHARS = 100
MAX_TOOL_CHARS = 200
_FILE_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.+_-")


class ExecutedDeniedCall(NamedTuple):
    """A version of a vendor's program that ran a denied call. The version is "" if it is not known."""

    vendor: str
    version: str
    tool: str


def record_executed_denied_call(
    denied_call: ExecutedDeniedCall, environment: Mapping[str, str]
) -> bool:
    """Store that a version ran a denied call. Return False if it cannot be stored."""
    from shim.core.reading.json_text import dump_json

    record = {
        **denied_call._asdict(),
        "tool": denied_call.tool[:MAX_TOOL_CHARS],
        "time": time.time(),
    }
    return write_state_file(
        _get_folder(environment),
        _build_file_name(denied_call.vendor, denied_call.version),
        dump_json(record),
    )


def find_executed_denied_call(
    vendor: str, version: str | None, environment: Mapping[str, str]
) -> ExecutedDeniedCall | None:
    """Return the record of a version, or None. A file that cannot be read counts as a record."""
    name = _build_file_name(vendor, version or "")
    if not os.path.lexists(os.path.join(_get_folder(environment), name)):
        return None
    return _read_record(vendor, version or "", name, environment)


def remove_executed_denied_call_records(
    vendor: str, environment: Mapping[str, str]
) -> list[ExecutedDeniedCall]:
    """Remove and return the records of all versions of a vendor, so that they are trusted again."""
    folder, prefix = _get_folder(environment), f"{vendor}@"
    if not os.path.isdir(folder) or not ensure_usable_dir(folder):
        return []
    cleared = []
    for name in sorted(os.listdir(folder)):
        if name.startswith(prefix):
            promise = _read_record(vendor, name[len(prefix) :], name, environment)
            if remove_file(os.path.join(folder, name)):
                cleared.append(promise)
    return cleared


def _get_folder(environment: Mapping[str, str]) -> str:
    return os.path.join(get_state_dir(environment), FOLDER_NAME)


def _build_file_name(vendor: str, version: str) -> str:
    safe_version = "".join(
        character if character in _FILE_NAME_CHARS else "_" for character in version
    )
    return f"{vendor}@{safe_version}"[:MAX_FILE_NAME_CHARS]


def _read_record(
    vendor: str, version: str, name: str, environment: Mapping[str, str]
) -> ExecutedDeniedCall:
    from shim.core.reading.json_text import parse_json_object

    data = read_state_file(_get_folder(environment), name, MAX_RECORD_BYTES)
    record = parse_json_object(data or b"")
    return ExecutedDeniedCall(
        vendor, str(record.get("version") or version), str(record.get("tool") or "a tool")
    )
