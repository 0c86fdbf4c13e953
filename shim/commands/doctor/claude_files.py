"""Finds the `claude` files that npm and PyPI packages bundle, and backups of such files."""

import os
import re
from typing import NamedTuple

from shim.core.errors import FrontendError
from shim.process.find_program import BACKUP_SUFFIX

# File suffixes that the SDKs start with Node or Bun.
SCRIPT_SUFFIXES = (".js", ".mjs", ".cjs", ".jsx", ".ts", ".tsx")
# Paths in the Python SDK, in all generations of the TypeScript SDK, and in Claude Code from npm.
CLAUDE_PATH_REGEX = re.compile(
    r"/(claude_agent_sdk/_bundled/claude"
    r"|@anthropic-ai/claude-agent-sdk/cli\.js"
    r"|@anthropic-ai/claude-code/(cli\.js|bin/claude\.exe)"
    r"|@anthropic-ai/claude-(agent-sdk|code)-[a-z0-9-]+/claude)$"
)
# The maximum number of searched folders.
# Searching this many takes a few seconds, and a large monorepo has half as many.
MAX_FOLDERS = 200_000
# The maximum number of backups of older versions of a file.
MAX_BACKUPS = 100


class EmbeddedClaudeBinaries(NamedTuple):
    """The bundled `claude` files below a folder, sorted by path. `is_complete` is False if the
    search stopped at its limit.
    """

    files: list[str]
    is_complete: bool


def find_embedded_claude_binaries(folder: str) -> EmbeddedClaudeBinaries:
    """Find every `claude` file that a package bundles, including files that were replaced. Symbolic
    links are not followed.
    """
    paths: set[str] = set()
    for folder_count, (parent, folders, names) in enumerate(os.walk(folder)):
        if folder_count >= MAX_FOLDERS:
            return EmbeddedClaudeBinaries(sorted(paths), is_complete=False)
        folders[:] = [name for name in folders if name not in (".git", "__pycache__")]
        paths.update(
            filter(None, (_match_claude_path(os.path.join(parent, name)) for name in names))
        )
    return EmbeddedClaudeBinaries(sorted(paths), is_complete=True)


def _match_claude_path(path: str) -> str | None:
    """Return the path if it is a package's bundled `claude`. For the backup of such a file, return
    the original path.
    """
    if CLAUDE_PATH_REGEX.search(path):
        return path
    return find_original_path(path)


def build_backup_path(path: str) -> str:
    """Return the path for a backup of the file at `path`. A JavaScript file keeps its suffix,
    because Node requires it.
    """
    stem, suffix = os.path.splitext(path)
    if suffix in SCRIPT_SUFFIXES:
        return stem + BACKUP_SUFFIX + suffix
    return path + BACKUP_SUFFIX


def find_original_path(path: str) -> str | None:
    """Return the original path of a backup, or None if the path was not created by
    `build_backup_path`.
    """
    stem, suffix = os.path.splitext(path)
    if path.endswith(BACKUP_SUFFIX):
        return path.removesuffix(BACKUP_SUFFIX)
    if stem.endswith(BACKUP_SUFFIX) and suffix in SCRIPT_SUFFIXES:
        return stem.removesuffix(BACKUP_SUFFIX) + suffix
    return None


def find_free_backup_path(path: str) -> str:
    """Return an unused path for the backup of an older version. Raise FrontendError if no path is
    free.
    """
    for number in range(1, MAX_BACKUPS):
        backup_path = f"{build_backup_path(path)}.{number}"
        if not os.path.lexists(backup_path):
            return backup_path
    raise FrontendError(
        f"{MAX_BACKUPS - 1} older backup files exist next to {path}",
        hint="remove the ones you do not need",
    )


def list_backup_paths(path: str) -> list[str]:
    """Return the backups of the file at `path`."""
    backup_paths = [
        build_backup_path(path),
        *(f"{build_backup_path(path)}.{number}" for number in range(1, MAX_BACKUPS)),
    ]
    return [backup_path for backup_path in backup_paths if os.path.lexists(backup_path)]
