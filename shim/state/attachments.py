"""Stores the attachments of a message as files, for vendors that read files by path. The files
exist only during the turn.
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
MAX_AGE_S = 24 * 3600.0  # older files belong to killed processes
MAX_TOTAL_BYTES = 200_000_000  # the total size limit for the files of one turn


class AttachmentStore:
    """Stores the attachments of one turn.

    `locations` are pairs of an environment variable of the vendor and a folder below the variable's
    value. The first variable that is set is used.
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
        """Decode base64 `data` and store it as a file. Return the file's path, or None if the file
        cannot be written.
        """
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
        """Remove the attachment files at the end of the turn."""
        for path in self._paths:
            remove_file(path)
        self._paths.clear()
        self._stored_bytes = 0

    def _remove_old_files(self) -> None:
        """Remove attachment files that were left by killed processes."""
        for changed_at_s, path in list_modification_times_and_paths(self._folder):
            if changed_at_s >= time.time() - MAX_AGE_S:
                break
            if os.path.basename(path).startswith(FILE_PREFIX):
                remove_file(path)
