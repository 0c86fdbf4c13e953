"""Checks whether this package's files were moved, removed or replaced while the process is running.

A background session and `bridge serve` run for weeks, and the package may be upgraded meanwhile.
These processes have already imported all modules that they need. Only the programs that they start
read the package's files again.
"""

import os
from collections.abc import Iterable

import shim
from shim.core.errors import SystemResourceError

PACKAGE_DIR = os.path.dirname(os.path.abspath(shim.__file__))
VERSION_FILE = os.path.join(PACKAGE_DIR, "__init__.py")
MAX_VERSION_FILE_BYTES = 4096  # the size limit for reading the version
MODULE_PREFIX = "shim."  # the prefix of module names after `python -m`
# Modules that a vendor runs as programs. Their names occur inside longer arguments.
CHILD_MODULES = ("shim.conversation.tool_hook", "shim.io.mcp.relay")


def describe_shim_package_change() -> str:
    """Return a sentence about a change to the package's files since this process started, or "" if
    nothing has changed.
    """
    try:
        with open(VERSION_FILE, encoding="utf-8", errors="replace") as file:
            text = file.read(MAX_VERSION_FILE_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return (
            f"claude-shim {shim.__version__} was moved or removed from {PACKAGE_DIR} "
            "while it was running"
        )
    except OSError:
        # An error such as a lack of file descriptors does not mean that the package has changed.
        return ""
    version = _parse_version(text)
    if version == shim.__version__:
        return ""
    return (
        f"claude-shim {shim.__version__} was replaced by {version or 'another version'} while "
        "it was running"
    )


def require_package_files_for_child(
    command: Iterable[str], environment_values: Iterable[str] = ()
) -> None:
    """Raise SystemResourceError if the files of this package were removed and the given command
    needs them.

    Without these files, a vendor would run without the settings and hooks that make it ask for
    permission.
    """
    if os.path.exists(VERSION_FILE):
        return
    names = (PACKAGE_DIR, *CHILD_MODULES)
    texts = [*command, *environment_values]
    if any(text.startswith(MODULE_PREFIX) or any(name in text for name in names) for text in texts):
        raise SystemResourceError(
            f"{describe_shim_package_change()}, and the program to be started needs the files of claude-shim",
            hint="reinstall claude-shim; `claude respawn ID` then restarts a background session",
        )


def _parse_version(text: str) -> str:
    """Return the value of `__version__` in Python source text, or ""."""
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "__version__":
            return value.strip().strip("\"'")[:40]
    return ""
