"""The folder in which a vendor keeps its own records, read for what its stream leaves out; never written to.

Only what lies inside it, only regular files, nothing that has to be waited for. Where a file is not to be had there is
nothing, and the stream is said as it is.
"""

import os
from collections.abc import Mapping
from itertools import islice

from shim.core.vendor.vendor import Vendor
from shim.state.files import open_regular

ENTRIES = 10_000  # of a folder that are looked through: as many sessions as a day never has
TAIL_BYTES = 4 * 1024 * 1024  # of a record: what was written last is looked for, and a change of a file is smaller


def home_of(vendor: Vendor, environment: Mapping[str, str]) -> "Home | None":
    """The folder of a vendor that says where its records are; `environment` is that of its children."""
    return None if vendor.home is None else Home(*vendor.home, environment)


class Home:
    """One vendor's folder: where `variable` says, else `folder` in the person's home."""

    def __init__(self, variable: str, folder: str, environment: Mapping[str, str]) -> None:
        named = environment.get(variable, "")
        person = environment.get("HOME") or os.path.expanduser("~")
        self._root = os.path.realpath(named if os.path.isabs(named) else os.path.join(person, folder))

    def find(self, folder: str, ending: str) -> str | None:
        """The path in it of a file of `folder` whose name ends so."""
        place = self._inside(folder)
        if place is None:
            return None
        try:
            with os.scandir(place) as entries:
                for entry in islice(entries, ENTRIES):
                    if entry.name.endswith(ending):
                        return f"{folder}/{entry.name}"
        except OSError:
            pass
        return None

    def tail(self, path: str, start: int = 0) -> tuple[int, bytes]:
        """What a file in it has behind `start`, the last TAIL_BYTES at most, and where that begins."""
        place = self._inside(path)
        if place is None:
            return start, b""
        try:
            descriptor = open_regular(place, follow=False)
        except OSError:
            return start, b""
        try:
            begin = max(os.fstat(descriptor).st_size - TAIL_BYTES, start)
            os.lseek(descriptor, begin, os.SEEK_SET)
            return begin, os.read(descriptor, TAIL_BYTES)
        except OSError:
            return start, b""
        finally:
            os.close(descriptor)

    def _inside(self, path: str) -> str | None:
        """Where a path in it really leads, None for one that leads out of it."""
        place = "" if "\0" in path else os.path.realpath(os.path.join(self._root, path))
        return place if place.startswith(self._root + os.sep) else None
