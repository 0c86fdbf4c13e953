"""Reads files from a vendor's own data directory, for data that is missing from the vendor's output
stream. The directory is never written to.

Only regular files inside the directory are read. If a file is missing, the shim does not wait for
it, and the output is translated without the data.
"""

import os
from collections.abc import Mapping
from itertools import islice

from shim.core.adapter.adapter import Adapter
from shim.state.config import get_home_dir
from shim.state.files import open_regular_file

MAX_ENTRIES = 10_000  # folder entries that are searched; no day has as many sessions
TAIL_BYTES = 4 * 1024 * 1024  # the part of a file that is read; a file change is never larger


def open_vendor_data_dir(
    adapter: Adapter, environment: Mapping[str, str]
) -> "VendorDataDir | None":
    """Return the vendor's data directory, or None if the vendor has none. `environment` contains
    the environment variables of the vendor's children.
    """
    if adapter.environment.data_dir is None:
        return None
    return VendorDataDir(*adapter.environment.data_dir, environment)


class VendorDataDir:
    """A vendor's data directory: the path in the environment variable `variable`, or `folder` in
    the user's home directory.
    """

    def __init__(self, variable: str, folder: str, environment: Mapping[str, str]) -> None:
        configured_path = environment.get(variable, "")
        self._root = os.path.realpath(
            configured_path
            if os.path.isabs(configured_path)
            else os.path.join(get_home_dir(environment), folder)
        )

    def find_file(self, folder: str, suffix: str) -> str | None:
        """Return the path of a file in `folder` whose name ends with `suffix`, or None."""
        path = self._resolve_inside(folder)
        if path is None:
            return None
        try:
            with os.scandir(path) as entries:
                for entry in islice(entries, MAX_ENTRIES):
                    if entry.name.endswith(suffix):
                        return f"{folder}/{entry.name}"
        except OSError:
            pass
        return None

    def read_tail(self, path: str, min_offset: int = 0) -> tuple[int, bytes]:
        """Return the offset of a file's tail, and the tail itself. The tail has at most TAIL_BYTES,
        and does not begin before `min_offset`.
        """
        real_path = self._resolve_inside(path)
        if real_path is None:
            return min_offset, b""
        try:
            descriptor = open_regular_file(real_path, follow_links=False)
        except OSError:
            return min_offset, b""
        try:
            offset = max(os.fstat(descriptor).st_size - TAIL_BYTES, min_offset)
            os.lseek(descriptor, offset, os.SEEK_SET)
            return offset, os.read(descriptor, TAIL_BYTES)
        except OSError:
            return min_offset, b""
        finally:
            os.close(descriptor)

    def _resolve_inside(self, path: str) -> str | None:
        """Return the real path for a path in the directory, or None if the path leads outside."""
        real_path = ""
        if "\0" not in path:
            real_path = os.path.realpath(os.path.join(self._root, path))
        if real_path.startswith(self._root + os.sep):
            return real_path
        return None
