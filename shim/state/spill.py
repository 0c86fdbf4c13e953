"""Texts that are too large for a line: `spill/<session>/<n>-<8 hex>.txt` in the state directory
(surface page).

No file is named after a vendor's words. Old files, and the oldest beyond a total size, are removed
when the next one is written.
"""

import os
import shutil
import time
from collections.abc import Mapping
from secrets import token_hex

from shim.state.config import get_state_dir
from shim.state.files import ensure_private_dir, list_by_age, write_file

KEPT_SECONDS = 7 * 24 * 3600.0
KEPT_BYTES = 1_000_000_000


class Spill:
    def __init__(self, environment: Mapping[str, str], session_id: str) -> None:
        self._root = os.path.join(get_state_dir(environment), "spill")
        self._directory = os.path.join(self._root, session_id)
        self._number = 0

    def keep(self, text: str, suffix: str = ".txt") -> str | None:
        """Write a text into a file whose name ends with `suffix`. Returns its path, or None if it
        cannot be kept.
        """
        if not ensure_private_dir(self._root):
            return None
        data = text.encode("utf-8", "surrogatepass")
        if len(data) > KEPT_BYTES:
            return None
        _prune(self._root, KEPT_BYTES - len(data), keep=self._directory)
        self._number += 1
        name = f"{self._number}-{token_hex(4)}{suffix}"
        return (
            os.path.join(self._directory, name) if write_file(self._directory, name, data) else None
        )

    def folder(self) -> str | None:
        """A new folder that only we may enter (None: impossible). It is removed like old files."""
        if not ensure_private_dir(self._root):
            return None
        _prune(self._root, KEPT_BYTES, keep=self._directory)
        self._number += 1
        path = os.path.join(self._directory, f"{self._number}-{token_hex(4)}")
        return path if ensure_private_dir(self._directory) and ensure_private_dir(path) else None


def _prune(root: str, room: int, keep: str) -> None:
    """Remove the folders that are too old, then the oldest until the rest fits."""
    folders = [
        (changed, path, _size(path))
        for changed, path in list_by_age(root)
        if not os.path.islink(path)
    ]
    total = sum(size for _, _, size in folders)
    for changed, path, size in folders:
        if path != keep and (total > room or changed < time.time() - KEPT_SECONDS):
            shutil.rmtree(path, ignore_errors=True)
            total -= size


def _size(folder: str) -> int:
    """The size of the files in a folder; 0 if another process has removed it."""
    try:
        with os.scandir(folder) as files:
            return sum(file.stat(follow_symlinks=False).st_size for file in files)
    except OSError:
        return 0
