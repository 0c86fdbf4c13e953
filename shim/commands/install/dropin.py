"""Implements `shim install` and `shim uninstall`, including their checks and the suggested next
step.
"""

import os
from typing import Annotated

import typer
from rich.console import Console

from shim.adapters import get_adapter
from shim.commands.completion.values import complete_vendor, create_completer
from shim.commands.doctor.diagnosis import (
    EXAMPLE_VENDOR,
    check_vendor,
    explain_missing_default_vendor,
)
from shim.commands.doctor.findings import OK, PROBLEM, WARNING, DiagnosisFinding, VendorDiagnosis
from shim.commands.doctor.installation_checks import load_and_check_settings
from shim.commands.doctor.printing import print_finding, print_vendor_report
from shim.commands.install.leftovers import list_uninstall_leftovers, remove_uninstall_leftover
from shim.commands.install.replacement_report import (
    install_dropin_with_report,
    uninstall_dropin_and_print_result,
)
from shim.conversation.vendor_list import MAX_VENDORS
from shim.core.claude.argv.models import parse_vendor_list
from shim.core.reading.values import as_str
from shim.process.find_program import find_programs_on_path
from shim.process.install import (
    DEFAULT_DIR,
    PROGRAM_NAMES,
    compile_bytecode,
    find_first_program_on_path,
    install_drop_in_script,
    uninstall_drop_in_script,
)
from shim.state.config import CHOICES, ShimSettings
from shim.state.own_profiles import load_valid_adapters
from shim.story.terminal.console import check_option_value, print_line, show_status

NameOption = Annotated[
    str,
    typer.Option(
        "--as",
        help="The file name: claude or yume-cli.",
        autocompletion=create_completer(PROGRAM_NAMES),
    ),
]
FolderOption = Annotated[str, typer.Option(help="The folder to install into.")]


def install_dropin(
    vendor: Annotated[
        str | None,
        typer.Option(
            help="The default vendor, or a list of vendors, such as qwen,pi.",
            autocompletion=complete_vendor,
        ),
    ] = None,
    name: NameOption = "claude",
    to: FolderOption = DEFAULT_DIR,
    into: Annotated[
        str | None,
        typer.Option("--into", help="Replace this file, the bundled claude of another program."),
    ] = None,
    record: Annotated[str | None, typer.Option(help="Record every run to this folder.")] = None,
    dialect: Annotated[
        str | None,
        typer.Option(
            help="The output format: claude or yume.",
            autocompletion=create_completer(CHOICES["dialect"]),
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Rename an existing claude to claude.before-shim.")
    ] = False,
) -> None:
    """Install the drop-in `claude`.

    Writes the file, checks the vendor's version and login, and prints which `claude` is on your
    PATH and what to type next.

    Example: shim install --vendor qwen
    """
    check_option_value(CHOICES["dialect"], dialect, "--dialect")
    names = tuple(dict.fromkeys(parse_vendor_list(as_str(vendor))))
    if len(names) > MAX_VENDORS:
        raise typer.BadParameter(
            f"{len(names)} vendors; at most {MAX_VENDORS} are allowed", param_hint="--vendor"
        )
    for vendor_name in names:
        get_adapter(vendor_name)
    record_folder = ""
    if record:
        record_folder = os.path.join(os.path.abspath(record), "")
    options = {"vendor": ",".join(names), "record": record_folder, "dialect": dialect}
    installed_options = {key: value for key, value in options.items() if value}
    if into is not None:
        if force or name != "claude" or to != DEFAULT_DIR:
            raise typer.BadParameter(
                "cannot be combined with --to, --as or --force", param_hint="--into"
            )
        install_dropin_with_report(into, installed_options)
        compile_bytecode()
        _report_vendors(names)
        return
    path, backup = install_drop_in_script(to, name, installed_options, force=force)
    compile_bytecode()
    print_line(f"wrote {path}")
    if backup:
        print_line(f"saved the previous file as {backup}; `shim uninstall` restores it")
    first_vendor = _report_vendors(names)
    console = Console(highlight=False)
    path_finding = _check_path(path, name)
    print_finding(console, path_finding)
    if isinstance(first_vendor, str):
        print_line(f"next: shim install --vendor {first_vendor}")
    elif first_vendor is not None:
        program = name
        if path_finding.level == WARNING:
            program = path
        next_step = _format_next_step(program, first_vendor, is_claude=name == "claude")
        print_line(f"next: {next_step}")


def _report_vendors(names: tuple[str, ...]) -> VendorDiagnosis | str | None:
    """Check the vendors that will answer and print their reports.

    Return the report of the first vendor. If no vendor is chosen, return the name of a suggested
    vendor. Return None if the settings have an error.
    """
    console = Console(highlight=False)
    settings, settings_finding = load_and_check_settings(os.environ)
    if settings is None:
        print_finding(console, settings_finding)
        return None
    with show_status("checking versions and logins …"):
        vendor_names = _resolve_vendors(names, settings)
        reports = [
            check_vendor(
                get_adapter(name), settings.get_vendor_settings(name), os.environ, os.getcwd()
            )
            for name in vendor_names
        ]
    for report in reports:
        print_vendor_report(console, report)
    if reports:
        return reports[0]
    installed_names = list(find_programs_on_path(load_valid_adapters(), os.environ, os.getcwd()))
    print_finding(console, explain_missing_default_vendor(installed_names))
    if installed_names:
        return installed_names[0]
    return EXAMPLE_VENDOR


def _resolve_vendors(names: tuple[str, ...], settings: ShimSettings) -> tuple[str, ...]:
    """Return the vendors that the installed file will use. Without `names`, they come from
    SHIM_VENDOR or the settings.
    """
    variable = os.environ.get("SHIM_VENDOR", "")
    if not names and not variable.startswith("replay:"):
        names = parse_vendor_list(variable)
    if not names:
        names = settings.vendor
    return names


def _check_path(path: str, name: str) -> DiagnosisFinding:
    """Report which file PATH finds under `name`. The finding is a warning if that file is not
    `path`.
    """
    path_match = find_first_program_on_path(name, os.environ.get("PATH", ""))
    folder = os.path.dirname(path)
    if path_match is None:
        fix = f'add the folder: export PATH="{folder}:$PATH"; or set {path} as the program in your frontend'
        return DiagnosisFinding(WARNING, f"{folder} is not on PATH", fix)
    if os.path.abspath(path_match) != path:
        return DiagnosisFinding(
            WARNING, f"the first {name} on PATH is {path_match}", f"put {folder} first on PATH"
        )
    return DiagnosisFinding(OK, f"the {name} on PATH is {path_match}")


def _format_next_step(command: str, report: VendorDiagnosis, *, is_claude: bool) -> str:
    """Return the command that the user should type next."""
    problem = next((finding for finding in report.findings if finding.level == PROBLEM), None)
    if report.program is None and (install_hint := get_adapter(report.name).cli.install_command):
        return f"{install_hint}, then shim doctor {report.name}"
    if problem is not None:
        return f"{problem.fix}; then shim doctor {report.name}"
    if is_claude:
        return f'{command} -p "what is here?"'
    return f"configure your frontend to run {command}"


def uninstall_dropin(
    name: NameOption = "claude",
    to: FolderOption = DEFAULT_DIR,
    into: Annotated[
        str | None,
        typer.Option("--into", help="Restore this file, which `shim install --into` replaced."),
    ] = None,
    purge: Annotated[
        bool, typer.Option("--purge", help="Remove the settings and the state of the shim too.")
    ] = False,
) -> None:
    """Remove the drop-in, and list what remains.

    A `claude` that was there before is restored. A file that `shim install` did not write is left
    alone.

    Example: shim uninstall
    """
    if into is not None:
        if purge:
            raise typer.BadParameter("cannot be combined with --into", param_hint="--purge")
        uninstall_dropin_and_print_result(into)
        return
    removal = uninstall_drop_in_script(to, name)
    remaining = list_uninstall_leftovers(os.environ, removal.record_path)
    if removal.has_restored:
        print_line(f"removed {removal.path}; restored the previous file")
    elif removal.was_drop_in:
        print_line(f"removed {removal.path}")
    elif os.path.lexists(removal.path):
        print_line(f"{removal.path} was not written by `shim install`, so it is not removed")
    else:
        print_line(f"{removal.path} does not exist; nothing to remove")
    for leftover in remaining:
        removed = False
        if purge:
            removed = remove_uninstall_leftover(leftover)
        hint = ""
        if leftover.owned_entries and not purge:
            hint = "; --purge removes it"
        print_line(
            f"removed {leftover.path}"
            if removed
            else f"left {leftover.path}: {leftover.description}{hint}"
        )
    path_match = find_first_program_on_path(name, os.environ.get("PATH", ""))
    print_line(f"the {name} on PATH is {path_match}" if path_match else f"no {name} is on PATH")
