"""Finds a vendor's program. The search never returns the drop-in itself, and a malicious repository
cannot influence it.

Relative PATH entries and entries inside the working directory are ignored. Entries inside the
working directory are only accepted if it is the home directory or a parent of the home directory,
because repositories are not cloned there.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence

from shim.core.adapter.adapter import Adapter, LaunchRequest
from shim.core.claude.argv.flags import Invocation
from shim.core.errors import FrontendError, UnsupportedPermissionModeError, VendorError
from shim.state.config import VendorSettings, get_home_dir, get_shim_settings_path

# The marker in the second line of every drop-in that `shim install` writes.
DROP_IN_MARKER = b"claude-shim drop-in"
BACKUP_SUFFIX = ".before-shim"
MAX_SETTINGS_BYTES = 1_000_000  # a vendor's settings file is searched up to this size


def runs_bundled_program(adapter: Adapter, environment: Mapping[str, str]) -> bool:
    """Return whether the vendor's program is a module of the shim. SHIM_BIN replaces this program,
    except for a replay.
    """
    if not adapter.cli.bundled_module:
        return False
    return bool(adapter.cli.replayed_vendor) or not environment.get("SHIM_BIN")


def find_program(
    adapter: Adapter, settings: VendorSettings, environment: Mapping[str, str], cwd: str
) -> str:
    """Return the absolute path of a vendor's program. Raise VendorError if the program cannot be
    found.
    """
    configured = environment.get("SHIM_BIN")
    if not configured:
        configured = settings.bin
    if configured:
        path = _resolve_program(configured, environment, cwd)
        if path is None:
            raise VendorError(
                f"{adapter.name}: the program {configured} was not found",
                hint="SHIM_BIN and `bin` in the settings accept an absolute path, ~/… or a bare name on PATH; "
                f"the settings are {get_shim_settings_path(Invocation(), environment)}",
            )
        return path
    for name in adapter.programs:
        for path in list_program_candidates(name, environment, cwd):
            return path
    install_hint = "install it"
    if adapter.cli.install_command:
        install_hint = f"install {adapter.name} (`{adapter.cli.install_command}`)"
    raise VendorError(
        f"{adapter.name}: no program called {' or '.join(adapter.programs)} was found on PATH",
        hint=f"{install_hint}, or set the program's path in SHIM_BIN or in `bin` under "
        f"[vendors.{adapter.name}] in "
        f"{get_shim_settings_path(Invocation(), environment)}; `shim doctor "
        f"{adapter.name}` runs more checks",
    )


def _resolve_program(program: str, environment: Mapping[str, str], cwd: str) -> str | None:
    if program.startswith("~/"):
        program = os.path.join(get_home_dir(environment), program[2:])
    if os.path.isabs(program):
        if os.path.isfile(program):
            return program
        return None
    if os.sep in program:
        raise FrontendError(
            f"the program {program} is a relative path; it must be absolute, ~/… or a bare name"
        )
    return next(list_program_candidates(program, environment, cwd), None)


def resolve_command_prefix(
    args: Sequence[str], environment: Mapping[str, str], cwd: str
) -> list[str]:
    """Return the command prefix with the absolute path of its program. Raise VendorError if that
    program cannot be found.
    """
    if not args:
        return []
    path = _resolve_program(args[0], environment, cwd)
    if path is None:
        raise VendorError(
            f"the launcher {args[0]} was not found",
            hint="use an absolute path, ~/… or a bare name on PATH",
        )
    return [path, *args[1:]]


def list_program_candidates(name: str, environment: Mapping[str, str], cwd: str) -> Iterator[str]:
    """Return the executables with the given name, in PATH order. A drop-in is replaced by the
    original file that `shim install` moved away.
    """
    for directory in list_search_dirs(environment, cwd):
        path = os.path.join(directory, name)
        if is_drop_in_script(path):
            path += BACKUP_SUFFIX
        if os.path.isfile(path) and os.access(path, os.X_OK):
            yield path


def list_search_dirs(environment: Mapping[str, str], cwd: str) -> list[str]:
    """Return the PATH directories that may be searched."""
    return [directory for directory, reason in _check_path_entries(environment, cwd) if not reason]


def list_ignored_path_entries(environment: Mapping[str, str], cwd: str) -> list[tuple[str, str]]:
    """Return the PATH entries that are not searched, each with the reason."""
    return [
        (directory, reason) for directory, reason in _check_path_entries(environment, cwd) if reason
    ]


def _check_path_entries(environment: Mapping[str, str], cwd: str) -> Iterator[tuple[str, str]]:
    working_dir = os.path.realpath(cwd)
    home_dir = os.path.realpath(get_home_dir(environment))
    excludes_working_dir = not _is_inside(home_dir, working_dir)
    for directory in environment.get("PATH", os.defpath).split(os.pathsep):
        if not os.path.isabs(directory):
            yield directory, "the path is relative"
        elif excludes_working_dir and _is_inside(os.path.realpath(directory), working_dir):
            yield directory, "the path is inside the working directory"
        else:
            yield directory, ""


def _is_inside(path: str, directory: str) -> bool:
    if path == directory:
        return True
    return path.startswith(directory.rstrip(os.sep) + os.sep)


def is_drop_in_script(path: str) -> bool:
    """Return whether a file is a drop-in that `shim install` wrote."""
    try:
        with open(path, "rb") as file:
            return DROP_IN_MARKER in file.read(512)
    except OSError:
        return False


def find_programs_on_path(
    adapters: Mapping[str, Adapter], environment: Mapping[str, str], cwd: str
) -> dict[str, str]:
    """Return the vendors whose program is on PATH, as a dict from vendor name to program path. The
    result is used in hints.
    """
    paths = {}
    for name, adapter in adapters.items():
        if adapter.cli.unreleased_note:
            continue  # a different program has the same name
        path = next(
            (
                path
                for program in adapter.programs
                for path in list_program_candidates(program, environment, cwd)
            ),
            None,
        )
        if path:
            paths[name] = path
    return paths


def explain_possible_policy_bypass(
    adapter: Adapter, command_prefix: Sequence[str], folders: Sequence[str] = ()
) -> str:
    """Return why a vendor's program might ignore the shim's settings file or hook, or "" if no
    reason is known.

    The program may run on another machine, where it cannot read the shim's file. Other settings
    files may take precedence over the shim's file. Settings files in `folders` (the working
    directory and the user's home directory) may add tools that no rule names.
    """
    if command_prefix:
        return "a program that a launcher starts might not see the shim's file"
    for override_path in adapter.environment.overriding_files.get(sys.platform, ()):
        try:
            if any(name.endswith(".toml") for name in os.listdir(override_path)):
                return f"the files in {override_path} take precedence over the shim's file"
        except NotADirectoryError:
            return f"{override_path} takes precedence over the shim's file"
        except OSError:
            continue  # the file is missing, or the vendor cannot read it either
    for name, key in adapter.environment.extra_tool_keys.items():
        for folder in filter(None, folders):
            path = os.path.join(folder, name)
            if _may_contain_key(path, key):
                return f"{path} may add tools that no rule covers ({key})"
    return ""


def check_project_autostart_programs(
    adapter: Adapter, request: LaunchRequest, environment: Mapping[str, str], cwd: str
) -> None:
    """Raise UnsupportedPermissionModeError if a vendor would start programs from the working
    directory although the user has not trusted that directory.

    All folders up to the repository's root are searched, except the user's home directory.
    """
    environment_info = adapter.environment
    if request.opens_trust_prompt or not environment_info.autostart_files:
        return
    path = _find_project_program(environment_info.autostart_files, cwd, environment.get("HOME", ""))
    if (
        path
        and environment_info.no_autostart_flag
        and request.has_flag(environment_info.no_autostart_flag)
    ):
        return
    if path:
        raise UnsupportedPermissionModeError(
            f"{adapter.name} starts programs that {path} configures without asking; the "
            "real claude starts none in a folder that is not trusted",
            hint=f"check the file, then set [vendors.{adapter.name}] trust = true, or remove "
            "the file",
        )


def _find_project_program(
    programs: Mapping[str, tuple[str, ...]], folder: str, home_dir: str
) -> str:
    """Return the path of the first file that would make the vendor start a program, or ""."""
    while True:
        for name, keys in programs.items() if folder != home_dir else ():
            path = os.path.join(folder, name)
            if (
                any(_may_contain_key(path, f'"{key}"') for key in keys)
                if keys
                else os.path.lexists(path)
            ):
                return path
        parent = os.path.dirname(folder)
        if parent == folder or os.path.lexists(os.path.join(folder, ".git")):
            return ""
        folder = parent


def _may_contain_key(path: str, key: str) -> bool:
    """Return whether a JSON file may contain a key. Files with Unicode escapes and files that are
    too large are assumed to contain it.
    """
    if not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_SETTINGS_BYTES + 1)
    except OSError:
        return False  # the vendor cannot read the file either
    if key.encode() in data:
        return True
    if b"\\u" in data:
        return True
    return len(data) > MAX_SETTINGS_BYTES
