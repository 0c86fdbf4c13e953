"""Checks a project folder for programs that bundle their own `claude`."""

import os
from collections.abc import Mapping

from shim.commands.doctor.claude_files import (
    MAX_FOLDERS,
    build_backup_path,
    find_embedded_claude_binaries,
)
from shim.commands.doctor.findings import NOTE, OK, PROBLEM, WARNING, DiagnosisFinding
from shim.core.errors import CommandUsageError
from shim.process.find_program import is_drop_in_script
from shim.process.install import (
    describe_missing_python,
    find_first_program_on_path,
    read_drop_in_settings,
)


def check_project_claude_binaries(
    folder: str, environment: Mapping[str, str]
) -> list[DiagnosisFinding]:
    """Return a finding for each bundled `claude` below `folder`. Raise FrontendError if `folder` is
    not a folder.
    """
    folder = os.path.abspath(os.path.expanduser(folder))
    if not os.path.isdir(folder):
        raise CommandUsageError(f"--project expects a folder, but {folder} is not one")
    claude_files = find_embedded_claude_binaries(folder)
    findings = [_check_claude_file(path) for path in claude_files.files]
    if not findings:
        path_claude = find_first_program_on_path("claude", environment.get("PATH", ""))
        text = (
            f"no program in {folder} bundles its own claude; programs there start the claude "
            "on PATH"
        )
        findings.append(DiagnosisFinding(NOTE, f"{text}: {path_claude or 'none found'}"))
    if not claude_files.is_complete:
        text = f"{folder} was not searched completely: it has more than {MAX_FOLDERS:,} folders"
        findings.append(DiagnosisFinding(NOTE, text, "pass the folder of one program"))
    return findings


def _check_claude_file(path: str) -> DiagnosisFinding:
    backup_path = build_backup_path(path)
    if is_drop_in_script(path):
        python, installed_options = read_drop_in_settings(path)
        if not os.access(python, os.X_OK):
            text = f"{path} is claude-shim's drop-in, but {describe_missing_python(python)}"
            return DiagnosisFinding(PROBLEM, text, f"run `shim install --into {path}` again")
        options_text = ", ".join(
            f"{name} {value}" for name, value in installed_options.items() if name != "replaced"
        )
        return DiagnosisFinding(
            OK, f"{path} is claude-shim's drop-in" + (f" ({options_text})" if options_text else "")
        )
    if not os.path.lexists(path):
        text = f"{backup_path} is a backup for a file that no longer exists"
        return DiagnosisFinding(
            NOTE, text, f"remove the backup, or restore it with `shim uninstall --into {path}`"
        )
    install_hint = f"`shim install --vendor NAME --into {path}` installs the drop-in there"
    if os.path.lexists(backup_path):
        text = f"{path} is no longer claude-shim's drop-in: its package was updated or reinstalled"
        return DiagnosisFinding(WARNING, text, install_hint)
    return DiagnosisFinding(
        NOTE,
        f"{path} is the package's bundled claude, which the program starts instead of the "
        "one on PATH",
        install_hint,
    )
