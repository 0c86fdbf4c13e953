"""Files of a message, where a vendor reads them that is given files by their paths: of ours, and
only for its turn.
"""

import os
import time
from base64 import b64decode
from collections.abc import Mapping
from secrets import token_hex

from shim.state.files import (
    list_modification_times_and_paths,
    remove_file,
    write_all,
    write_new_file,
)

FILE_PREFIX = "claude-shim-"
MAX_AGE_S = 24 * 3600.0  # of a file that a killed process of ours left behind
MAX_TOTAL_BYTES = 200_000_000  # of the files of one turn


class AttachmentStore:
    """`locations` are pairs of a variable of the vendor's environment and a folder below it: the
    first one that is set.
    """

    def __init__(
        self, locations: tuple[tuple[str, str], ...], environment: Mapping[str, str]
    ) -> None:
        folders = (
            os.path.join(environment[name], subfolder)
            for name, subfolder in locations
            if environment.get(name)
        )
        self._folder = next(folders, "")
        self._paths: list[str] = []
        self._stored_bytes = 0

    def store_file(self, data: str, suffix: str) -> str | None:
        """The path of a file with the bytes of `data`, base64; None where it cannot be written."""
        raw = b64decode(data)
        if not os.path.isabs(self._folder) or self._stored_bytes + len(raw) > MAX_TOTAL_BYTES:
            return None
        path = os.path.join(self._folder, f"{FILE_PREFIX}{token_hex(8)}.{suffix}")
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            self._remove_old_files()
            write_new_file(path, lambda file: write_all(file, raw))
        except OSError:
            return None
        self._paths.append(path)
        self._stored_bytes += len(raw)
        return path

    def clear(self) -> None:
        """Remove the files: the vendor has read them, or never will."""
        for path in self._paths:
            remove_file(path)
        self._paths.clear()
        self._stored_bytes = 0

    def _remove_old_files(self) -> None:
        """Remove what processes of ours left behind that were killed."""
        for changed_at_s, path in list_modification_times_and_paths(self._folder):
            if changed_at_s >= time.time() - MAX_AGE_S:
                break
            if os.path.basename(path).startswith(FILE_PREFIX):
                remove_file(path)
