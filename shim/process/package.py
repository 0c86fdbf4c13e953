"""Notice that the files of this package were moved, removed or replaced while the process runs.

A background session and `bridge serve` run for weeks, and an upgrade does not wait for them. They have imported what
they need; only the programs that they start read the package's files again.
"""

import os
from collections.abc import Iterable

import shim
from shim.core.errors import MachineError

FOLDER = os.path.dirname(os.path.abspath(shim.__file__))
VERSION_FILE = os.path.join(FOLDER, "__init__.py")
VERSION_BYTES = 4096  # of the file with the version, which is a few lines
OUR_MODULES = "shim."  # begins the module name after `python -m`
# Modules that a vendor starts: their names stand in the middle of a longer argument.
CHILD_MODULES = ("shim.conversation.tool_hook", "shim.channels.mcp.relay")


def describe_package_change() -> str:
    """Return a sentence about what happened to the package's files since this process started; "" for nothing."""
    try:
        with open(VERSION_FILE, encoding="utf-8", errors="replace") as file:
            text = file.read(VERSION_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return f"claude-shim {shim.__version__} was moved or removed from {FOLDER} while it runs"
    except OSError:  # no descriptor is free, or the disk is away: this does not tell anything about the package
        return ""
    version = _parse_version(text)
    if version == shim.__version__:
        return ""
    return f"claude-shim {shim.__version__} was replaced by {version or 'another version'} while it runs"


def check_package_files(command: Iterable[str], environment: Iterable[str] = ()) -> None:
    """Raise MachineError if a program that is about to start needs files of this package, and they are gone.

    Without them a vendor would run without the settings and hooks that ask for permission.
    """
    if os.path.exists(VERSION_FILE):
        return
    marks = (FOLDER, *CHILD_MODULES)
    words = [*command, *environment]
    if any(word.startswith(OUR_MODULES) or any(mark in word for mark in marks) for word in words):
        raise MachineError(
            f"{describe_package_change()}, and the program that is to be started needs its files",
            hint="install claude-shim again; `claude respawn ID` then continues a background session",
        )


def _parse_version(text: str) -> str:
    """Return the value of `__version__`, "" if there is none."""
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "__version__":
            return value.strip().strip("\"'")[:40]
    return ""
