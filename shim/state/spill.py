"""Stores texts that are too large for an output line as `spill/<session>/<n>-<8 hex>.txt` in the
state directory.

File names never contain text from a vendor. Each time a file is written, old files are removed. If
the total size is still above the limit, the oldest remaining files are removed, too.
"""

import os
import shutil
import time
from collections.abc import Mapping
from secrets import token_hex

from shim.state.config import get_state_dir
from shim.state.files import ensure_private_dir, list_modification_times_and_paths, write_state_file

MAX_AGE_S = 7 * 24 * 3600.0
MAX_TOTAL_BYTES = 1_000_000_000


class LargeTextFolder:
    def __init__(self, environment: Mapping[str, str], session_id: str) -> None:
        self._root_dir = os.path.join(get_state_dir(environment), "spill")
        self._session_dir = os.path.join(self._root_dir, session_id)
        self._file_count = 0

    def store_text(self, text: str, suffix: str = ".txt") -> str | None:
        """Write a text to a new file whose name ends with `suffix`. Return the file's path, or None
        if the text cannot be stored.
        """
        if not ensure_private_dir(self._root_dir):
            return None
        data = text.encode("utf-8", "surrogatepass")
        if len(data) > MAX_TOTAL_BYTES:
            return None
        _remove_old_folders(
            self._root_dir, MAX_TOTAL_BYTES - len(data), current_dir=self._session_dir
        )
        self._file_count += 1
        name = f"{self._file_count}-{token_hex(4)}{suffix}"
        if write_state_file(self._session_dir, name, data):
            return os.path.join(self._session_dir, name)
        return None

    def create_private_subfolder(self) -> str | None:
        """Create a folder that only the current user can access. Return None if that fails. The
        folder is removed together with old files.
        """
        if not ensure_private_dir(self._root_dir):
            return None
        _remove_old_folders(self._root_dir, MAX_TOTAL_BYTES, current_dir=self._session_dir)
        self._file_count += 1
        path = os.path.join(self._session_dir, f"{self._file_count}-{token_hex(4)}")
        if ensure_private_dir(self._session_dir) and ensure_private_dir(path):
            return path
        return None


def _remove_old_folders(root: str, max_bytes: int, current_dir: str) -> None:
    """Remove folders that are too old, and then the oldest folders until the total size is within
    the limit.
    """
    folders = [
        (changed_at_s, path, _measure_folder(path))
        for changed_at_s, path in list_modification_times_and_paths(root)
        if not os.path.islink(path)
    ]
    total_bytes = sum(size_bytes for _, _, size_bytes in folders)
    for changed_at_s, path, size_bytes in folders:
        if path != current_dir and (
            total_bytes > max_bytes or changed_at_s < time.time() - MAX_AGE_S
        ):
            shutil.rmtree(path, ignore_errors=True)
            total_bytes -= size_bytes


def _measure_folder(folder: str) -> int:
    """Return the total size of the files in a folder, or 0 if another process has removed the
    folder.
    """
    try:
        with os.scandir(folder) as files:
            return sum(file.stat(follow_symlinks=False).st_size for file in files)
    except OSError:
        return 0
