"""Where programs keep a claude of their own: the files of npm's and PyPI's packages, and what was
kept beside them.
"""

import os
import re
from typing import NamedTuple

from shim.core.errors import FrontendError
from shim.process.find_program import BACKUP_SUFFIX

# What the SDKs start with node or bun instead of by itself.
SCRIPTS = (".js", ".mjs", ".cjs", ".jsx", ".ts", ".tsx")
# The Python SDK, the TypeScript SDK by its generations, Claude Code of npm's.
FILES = re.compile(
    r"/(claude_agent_sdk/_bundled/claude"
    r"|@anthropic-ai/claude-agent-sdk/cli\.js"
    r"|@anthropic-ai/claude-code/(cli\.js|bin/claude\.exe)"
    r"|@anthropic-ai/claude-(agent-sdk|code)-[a-z0-9-]+/claude)$"
)
LOOKED_AT = 200_000  # folders below a project, some seconds; a large monorepo has half of them
OLDER = 100  # files of older versions that are kept beside one file


class Found(NamedTuple):
    """The files in which programs below a folder keep a claude, sorted; `whole`: the search came to
    its end.
    """

    files: list[str]
    whole: bool


def places_below(folder: str) -> Found:
    """Every file that a package keeps as its claude, and every one that was replaced; links are not
    followed.
    """
    found: set[str] = set()
    for looked_at, (here, folders, names) in enumerate(os.walk(folder)):
        if looked_at >= LOOKED_AT:
            return Found(sorted(found), whole=False)
        folders[:] = [name for name in folders if name not in (".git", "__pycache__")]
        found.update(filter(None, (_replaceable(os.path.join(here, name)) for name in names)))
    return Found(sorted(found), whole=True)


def _replaceable(path: str) -> str | None:
    """The path, if a package keeps its claude there; of a kept file, the path that it had."""
    return path if FILES.search(path) else original_of(path)


def backup_of(path: str) -> str:
    """Where the file that was at `path` is kept. What node starts keeps its suffix, or node does
    not know it.
    """
    stem, suffix = os.path.splitext(path)
    return stem + BACKUP_SUFFIX + suffix if suffix in SCRIPTS else path + BACKUP_SUFFIX


def original_of(path: str) -> str | None:
    """The file whose place a kept file had; None if it is not one that `backup_of` names."""
    stem, suffix = os.path.splitext(path)
    if path.endswith(BACKUP_SUFFIX):
        return path.removesuffix(BACKUP_SUFFIX)
    return (
        stem.removesuffix(BACKUP_SUFFIX) + suffix
        if stem.endswith(BACKUP_SUFFIX) and suffix in SCRIPTS
        else None
    )


def spare_name(path: str) -> str:
    """A free name for what is kept of an older version. FrontendError if all of them are taken."""
    for number in range(1, OLDER):
        name = f"{backup_of(path)}.{number}"
        if not os.path.lexists(name):
            return name
    raise FrontendError(
        f"{OLDER - 1} older files are kept beside {path}", hint="remove those that you do not need"
    )


def kept_beside(path: str) -> list[str]:
    """What is still kept beside `path`."""
    names = [backup_of(path), *(f"{backup_of(path)}.{number}" for number in range(1, OLDER))]
    return [name for name in names if os.path.lexists(name)]
