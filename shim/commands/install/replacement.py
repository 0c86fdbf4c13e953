"""Replaces a file with the drop-in. The original is kept beside the file and can be restored.

The SDKs start files that end in `.js` with Node or Bun. In place of such a file, the drop-in is
JavaScript. It must be valid both as an ES module and as a CommonJS script, because the package
decides how the file is loaded.
"""

import errno
import json
import os
from collections.abc import Mapping
from typing import NamedTuple

from shim.commands.doctor.claude_files import (
    SCRIPT_SUFFIXES,
    build_backup_path,
    find_embedded_claude_binaries,
    find_free_backup_path,
    list_backup_paths,
)
from shim.core.errors import CommandUsageError, FrontendError
from shim.process.find_program import DROP_IN_MARKER, is_drop_in_script
from shim.process.install import JAVASCRIPT_PREFIX, build_drop_in_script
from shim.state.files import replace_file, write_all

MAX_NAMED_PATHS = 5  # paths that a hint lists

# If Node supports `execve` (22.15 and newer), the shell script replaces the Node process. Otherwise
# Node waits for the script, forwards the frontend's signals to the script, and exits with the
# script's status. Ctrl-C reaches both processes.
JAVASCRIPT_TEMPLATE = """\
#!/usr/bin/env node
// {marker}; to restore the previous file, run `shim uninstall --into` with the path of this file{declared}{script};
const command = ["/bin/sh", "-c", script, "claude", ...process.argv.slice(2)];
const beside = ({{ spawn }}, {{ isatty }}) => {{
  const child = spawn(command[0], command.slice(1), {{ stdio: "inherit" }});
  const signals = ["SIGTERM", "SIGHUP", ...(isatty(0) ? [] : ["SIGINT"])];
  for (const name of signals) process.on(name, () => child.kill(name));
  if (isatty(0)) process.on("SIGINT", () => {{}});
  child.on("error", (error) => {{ console.error(String(error)); process.exit(1); }});
  child.on("exit", (code, signal) => {{
    if (signal === null) process.exit(code);
    process.removeAllListeners(signal);
    process.kill(process.pid, signal);
  }});
}};
if (typeof process.execve === "function") process.execve(command[0], command, process.env);
else Promise.all([import("node:child_process"), import("node:tty")]).then((modules) => beside(...modules));
"""


class DropinReplacementResult(NamedTuple):
    """The result of `replace_file_with_dropin`: the replaced file, its backup, and the new path of
    an older backup, if there was one.
    """

    path: str
    backup: str | None
    old_backup: str | None = None


class DropinRestorationResult(NamedTuple):
    """The result of `restore_replaced_file`: whether the file was a drop-in, whether the original
    was restored, and the remaining backups.
    """

    path: str
    was_ours: bool
    restored: bool
    old_backups: list[str]


def build_dropin_script(path: str, installed_options: Mapping[str, str]) -> bytes:
    """Return the content of the drop-in that replaces the file at `path`."""
    shell = build_drop_in_script(installed_options)
    if not path.endswith(SCRIPT_SUFFIXES):
        return shell
    return JAVASCRIPT_TEMPLATE.format(
        marker=DROP_IN_MARKER.decode(),
        declared=JAVASCRIPT_PREFIX,
        script=json.dumps(shell.decode()),
    ).encode()


def replace_file_with_dropin(
    file: str, installed_options: Mapping[str, str]
) -> DropinReplacementResult:
    """Replace `file` with the drop-in, and keep the original beside it.

    Raise FrontendError if `file` does not exist or cannot be replaced, for example if it is a
    folder or a symbolic link.
    """
    path = _resolve_target(file)
    backup = build_backup_path(path)
    settings = {**installed_options, "replaced": backup}
    if is_drop_in_script(path):
        _write_dropin(path, settings)
        return DropinReplacementResult(path, backup if os.path.lexists(backup) else None)
    old_backup = None
    # The package has been updated, so the existing backup is from an older version.
    if os.path.lexists(backup):
        old_backup = find_free_backup_path(path)
        _rename_file(backup, old_backup)
    _rename_file(path, backup)
    try:
        _write_dropin(path, settings)
    except BaseException as error:
        _restore_files(path, backup, old_backup, error)
        raise
    return DropinReplacementResult(path, backup, old_backup)


def _restore_files(path: str, backup: str, old_backup: str | None, cause: BaseException) -> None:
    """Undo the renames of a failed replacement. If that fails too, raise FrontendError with
    commands that restore the files.
    """
    moves = [(backup, path), *([(old_backup, backup)] if old_backup is not None else [])]
    for index, (source, target) in enumerate(moves):
        try:
            os.rename(source, target)
        except OSError as error:
            commands = "; ".join(f"mv {current} {original}" for current, original in moves[index:])
            raise FrontendError(
                f"{cause}; restoring the file failed too: {error.strerror}",
                hint=f"restore the file manually: {commands}",
            ) from None


def restore_replaced_file(file: str) -> DropinRestorationResult:
    """Remove the drop-in from `file` and restore the original. If `file` is not a drop-in, it is
    not changed.
    """
    path = os.path.abspath(os.path.expanduser(file))
    backup = build_backup_path(path)
    is_dropin = is_drop_in_script(path) and not os.path.islink(path)
    if not is_dropin and os.path.lexists(path):
        return DropinRestorationResult(
            path, was_ours=False, restored=False, old_backups=list_backup_paths(path)
        )
    has_backup = os.path.lexists(backup)
    if has_backup:
        _rename_file(backup, path)
    elif is_dropin:
        os.unlink(path)
    return DropinRestorationResult(path, is_dropin, has_backup, list_backup_paths(path))


def _resolve_target(file: str) -> str:
    path = os.path.abspath(os.path.expanduser(file))
    if os.path.isdir(path):
        nearby_files = find_embedded_claude_binaries(path).files[:MAX_NAMED_PATHS]
        hint = "`shim install --to DIR` creates a `claude` command in a folder"
        if nearby_files:
            hint = f"the folder contains {', '.join(nearby_files)}"
        raise CommandUsageError(f"--into expects a file, but {path} is a folder", hint=hint)
    if not os.path.lexists(path):
        hint = (
            "`shim doctor --project DIR` lists the files that can be replaced; `shim install --to DIR` "
            "creates a `claude` command"
        )
        raise CommandUsageError(f"--into replaces a file, but {path} does not exist", hint=hint)
    if os.path.islink(path):
        hint = f"if the link is the program's bundled claude, use --into {os.path.realpath(path)}"
        raise CommandUsageError(
            f"{path} is a symbolic link; --into does not follow links", hint=hint
        )
    if not os.path.isfile(path):
        raise CommandUsageError(f"--into replaces a regular file, but {path} is not one")
    return path


def _write_dropin(path: str, installed_options: Mapping[str, str]) -> None:
    try:
        replace_file(
            path, lambda file: write_all(file, build_dropin_script(path, installed_options)), 0o755
        )
        os.chmod(path, 0o755)  # independent of the umask, because other users may run the package
    except OSError as error:
        raise _build_refusal(path, error) from None


def _rename_file(old: str, new: str) -> None:
    try:
        os.rename(old, new)
    except OSError as error:
        raise _build_refusal(old, error) from None


def _build_refusal(path: str, error: OSError) -> FrontendError:
    is_permission_error = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
    hint = ""
    if is_permission_error:
        hint = f"run the command as the owner of {os.path.dirname(path)}"
    return FrontendError(f"cannot replace {path}: {error.strerror}", hint=hint)
