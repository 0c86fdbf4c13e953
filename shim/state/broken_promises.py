"""Versions of programs that ran a call which had been denied: one small file for each, until `shim doctor` is run."""

import os
import time
from collections.abc import Mapping

from shim.core.reading.typed import NamedTuple
from shim.state.config import state_directory
from shim.state.files import read_file, remove, usable, write_file

FOLDER = "promises"
RECORD_BYTES = 4096  # of one file; a name of a tool has 200 characters at most
NAME_CHARACTERS = 100  # of a file's name
TOOL_CHARACTERS = 200
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.+_-")


class BrokenPromise(NamedTuple):
    """A version of a vendor's program ("" if it is not known), and the tool whose denied call it ran."""

    vendor: str
    version: str
    tool: str


def record_broken_promise(promise: BrokenPromise, environment: Mapping[str, str]) -> bool:
    """Keep that a version ran a denied call; return False if it cannot be kept."""
    from shim.core.reading.json_text import dump

    record = {**promise._asdict(), "tool": promise.tool[:TOOL_CHARACTERS], "time": time.time()}
    return write_file(_folder(environment), _name(promise.vendor, promise.version), dump(record))


def find_broken_promise(vendor: str, version: str | None, environment: Mapping[str, str]) -> BrokenPromise | None:
    """Return what is kept about a version; None if nothing is. A file that cannot be read counts."""
    name = _name(vendor, version or "")
    if not os.path.lexists(os.path.join(_folder(environment), name)):
        return None
    return _read(vendor, version or "", name, environment)


def clear_broken_promises(vendor: str, environment: Mapping[str, str]) -> list[BrokenPromise]:
    """Trust all versions of a vendor again; return what was kept about them."""
    folder, prefix = _folder(environment), f"{vendor}@"
    if not os.path.isdir(folder) or not usable(folder):
        return []
    cleared = []
    for name in sorted(os.listdir(folder)):
        if name.startswith(prefix):
            promise = _read(vendor, name[len(prefix) :], name, environment)
            if remove(os.path.join(folder, name)):
                cleared.append(promise)
    return cleared


def _folder(environment: Mapping[str, str]) -> str:
    return os.path.join(state_directory(environment), FOLDER)


def _name(vendor: str, version: str) -> str:
    plain = "".join(character if character in _PLAIN else "_" for character in version)
    return f"{vendor}@{plain}"[:NAME_CHARACTERS]


def _read(vendor: str, version: str, name: str, environment: Mapping[str, str]) -> BrokenPromise:
    import orjson

    try:
        record = orjson.loads(read_file(_folder(environment), name, RECORD_BYTES) or b"{}")
    except orjson.JSONDecodeError:
        record = {}
    record = record if isinstance(record, dict) else {}
    return BrokenPromise(vendor, str(record.get("version") or version), str(record.get("tool") or "a tool"))
