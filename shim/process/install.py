"""Implements `shim install` and `shim uninstall`: writes the drop-in that replaces `claude`, and
compiles the package's bytecode.
"""

import json
import os
import shlex
import sys
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import shim
from shim.core.errors import CommandUsageError, FrontendError, format_spelling_suggestion
from shim.process.environment import SAVED_PREFIX
from shim.process.find_program import BACKUP_SUFFIX, DROP_IN_MARKER, is_drop_in_script
from shim.state.files import replace_file, write_all

PROGRAM_NAMES = ("claude", "yume-cli")
ENTRY_CODE = """\
try:
 from shim.__main__ import main
 main()
except ImportError as error:
 import sys
 sys.exit(f"claude-shim, which this file starts, is damaged: {error}\\n" + MISSING_HINT)
"""
DEFAULT_DIR = "~/.local/bin"
PACKAGE_DIR = os.path.dirname(os.path.abspath(shim.__file__))
# Variables that change where Python finds its files, even in isolated mode. They are hidden from
# the shim's Python and passed to the vendor.
MISLEADING_VARIABLES = ("PYTHONEXECUTABLE", "__PYVENV_LAUNCHER__")
JAVASCRIPT_PREFIX = "\nconst script = "
MAX_SCRIPT_BYTES = 64 * 1024  # the size limit for reading a drop-in, which has a few lines


def build_drop_in_script(settings: Mapping[str, str], name: str = "claude") -> bytes:
    """Build the drop-in script. The script runs this installation's Python in isolated mode with
    the given settings. `name` is the program that the drop-in replaces.
    """
    save_commands = "".join(
        f'[ -z "${{{variable}+x}}" ] || {{ export {SAVED_PREFIX}{variable}="${variable}"; unset {variable}; }}\n'
        for variable in MISLEADING_VARIABLES
    )
    setting_args = [
        arg for name, value in settings.items() for arg in ("--installed", f"{name}={value}")
    ]
    missing_hint = _build_missing_hint()
    missing_message = (
        f"{sys.executable}, the Python that claude-shim was installed for, no longer exists"
    )
    entry_code = ENTRY_CODE.replace("MISSING_HINT", repr(missing_hint))
    python, *messages = map(shlex.quote, (sys.executable, missing_message, missing_hint))
    check_command = f"[ -x {python} ] || {{ printf '%s: %s\\n%s\\n' \"$0\" {' '.join(messages)} >&2; exit 1; }}\n"
    # Use `-c` instead of `-m shim`. With `-m`, Python needs a fifth of the run time of
    # `claude --version` to find the module.
    command = " ".join(
        map(shlex.quote, [sys.executable, "-I", "-c", entry_code, *setting_args, name])
    )
    text = f'; `shim uninstall` removes it\n{check_command}{save_commands}exec {command} "$@"\n'
    return b"#!/bin/sh\n# " + DROP_IN_MARKER + text.encode()


def _build_missing_hint() -> str:
    """Return the hint that the drop-in prints after its error message if claude-shim is missing."""
    from shim.process.installation import build_install_hint

    return (
        f"hint: {build_install_hint()} and then `shim install`, "
        "or remove this file (`command -v claude` finds it)"
    )


def install_drop_in_script(
    directory: str, name: str, settings: Mapping[str, str], *, force: bool
) -> tuple[str, str | None]:
    """Write the drop-in to DIRECTORY/NAME. Return its path, and the backup path of the old file
    (None if there was no file).

    Raise FrontendError if another program's file exists there, unless `force` is set.
    """
    path = _resolve_target(directory, name)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    except OSError as error:
        raise FrontendError(
            f"the folder {os.path.dirname(path)} cannot be created: {error.strerror}"
        ) from None
    backup_path = None
    if os.path.lexists(path) and (os.path.islink(path) or not is_drop_in_script(path)):
        if not force:
            raise FrontendError(
                f"{path} already exists and was not created by claude-shim",
                hint=f"choose another folder with --to, or use --force to rename the file to {name}{BACKUP_SUFFIX}",
            )
        backup_path = path + BACKUP_SUFFIX
        if os.path.lexists(backup_path):
            raise FrontendError(
                f"{backup_path} exists already",
                hint="move the file first; it may be your real claude",
            )
        os.rename(path, backup_path)
    replace_file(path, lambda file: write_all(file, build_drop_in_script(settings, name)), 0o755)
    os.chmod(path, 0o755)  # regardless of umask; other users' frontends may run it
    return path, backup_path


class DropInUninstallResult(NamedTuple):
    """The result of `uninstall_drop_in_script`: the file's path, whether it was a drop-in, whether
    the old file was restored, and the path to which the drop-in recorded runs.
    """

    path: str
    was_drop_in: bool
    has_restored: bool = False
    record_path: str = ""


def uninstall_drop_in_script(directory: str, name: str) -> DropInUninstallResult:
    """Remove the drop-in DIRECTORY/NAME and restore the old file. Another program's file is not
    changed, and a missing file is not an error.
    """
    path = _resolve_target(directory, name)
    if os.path.islink(path) or not is_drop_in_script(path):
        return DropInUninstallResult(path, was_drop_in=False)
    record_path = read_drop_in_settings(path)[1].get("record", "")
    os.unlink(path)
    backup_path = path + BACKUP_SUFFIX
    has_restored = os.path.lexists(backup_path)
    if has_restored:
        os.rename(backup_path, path)
    return DropInUninstallResult(path, True, has_restored, record_path)


def describe_missing_python(python: str) -> str:
    """Describe why a drop-in cannot start. `python` is the path of its Python, or "" if the path
    cannot be read.
    """
    if python:
        return f"its Python {python} does not exist"
    return "its file is damaged"


def read_drop_in_settings(path: str) -> tuple[str, dict[str, str]]:
    """Return the path of the Python that a drop-in runs, and the drop-in's settings. The path is ""
    if the drop-in cannot be parsed.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_SCRIPT_BYTES).decode("utf-8", "replace")
        # A JavaScript drop-in contains the shell script as a string.
        _, separator, line = text.partition(JAVASCRIPT_PREFIX)
        script_text = text
        if separator:
            script_text = json.JSONDecoder().raw_decode(line)[0]
        args = shlex.split(str(script_text).rpartition("\nexec ")[2])
    except (OSError, ValueError):
        return "", {}
    setting_args = [arg for previous_arg, arg in pairwise(args) if previous_arg == "--installed"]
    return next(iter(args), ""), {
        name: value for name, _, value in (arg.partition("=") for arg in setting_args)
    }


def compile_bytecode(package_dir: str = PACKAGE_DIR) -> bool:
    """Compile missing and stale bytecode of the package. Return whether all bytecode is now up to
    date.

    Python writes bytecode itself unless that is disabled. Without bytecode, each start takes twice
    as long.
    """
    import compileall

    return bool(compileall.compile_dir(package_dir, quiet=2))


def list_uncompiled_modules(package_dir: str = PACKAGE_DIR) -> list[str]:
    """Return the modules with missing or stale bytecode, as paths relative to the package."""
    return [
        os.path.relpath(os.path.join(folder, name), package_dir)
        for folder, _, names in os.walk(package_dir)
        for name in sorted(names)
        if name.endswith(".py") and not _has_bytecode(os.path.join(folder, name))
    ]


def _has_bytecode(source_path: str) -> bool:
    """Return whether a module has bytecode that Python would use. The magic number, the flags, the
    time and the size in the bytecode file are checked (PEP 552).
    """
    from importlib.util import MAGIC_NUMBER, cache_from_source

    try:
        with open(cache_from_source(source_path), "rb") as file:
            file_header = file.read(16)
        status = os.stat(source_path)
    except OSError:
        return False
    # Hash-based bytecode is not compared by time and size.
    is_hash_based = bool(int.from_bytes(file_header[4:8], "little"))
    modified_s, size_bytes = (
        number & 0xFFFFFFFF for number in (int(status.st_mtime), status.st_size)
    )
    expected_stamp = modified_s.to_bytes(4, "little") + size_bytes.to_bytes(4, "little")
    if file_header[:4] != MAGIC_NUMBER:
        return False
    if is_hash_based:
        return True
    return file_header[8:] == expected_stamp


def find_first_program_on_path(name: str, path_variable: str) -> str | None:
    """Return the path of the program that a shell would run for `name`, or None."""
    for directory in path_variable.split(os.pathsep):
        candidate = os.path.join(directory or ".", name)
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    return None


def load_installed_dropin_options() -> dict[str, str]:
    """Return the options that `shim install` stored in the `claude` on PATH, or in the `claude` in
    the default install folder.
    """
    default_path = os.path.join(os.path.expanduser(DEFAULT_DIR), "claude")
    for path in (find_first_program_on_path("claude", os.environ.get("PATH", "")), default_path):
        if path is not None and is_drop_in_script(path):
            return read_drop_in_settings(path)[1]
    return {}


def _resolve_target(directory: str, name: str) -> str:
    if name not in PROGRAM_NAMES:
        raise CommandUsageError(
            f"invalid value for --as: {name!r}{format_spelling_suggestion(name, PROGRAM_NAMES)}",
            hint=f"the choices are {', '.join(PROGRAM_NAMES)}",
        )
    return os.path.join(os.path.abspath(os.path.expanduser(directory)), name)
