"""`shim install` and `shim uninstall`: what they do, what they looked at, and what to type next."""

import os
from typing import Annotated

import typer
from rich.console import Console

from shim.adapters import get_adapter
from shim.commands.doctor.diagnosis import EXAMPLE_VENDOR, check_vendor, explain_missing_choice
from shim.commands.doctor.draw import print_finding, print_vendor
from shim.commands.doctor.findings import OK, PROBLEM, WARNING, DiagnosisFinding, VendorReport
from shim.commands.doctor.machine import check_settings
from shim.commands.install.command import install_and_report, uninstall_and_report
from shim.commands.install.leftovers import list_leftovers, remove_leftover
from shim.conversation.fallback.vendor_list import MAX_VENDORS
from shim.core.adapter.routing import parse_vendor_list
from shim.process.find_program import find_programs_on_path
from shim.process.install import (
    DEFAULT_DIR,
    compile_bytecode,
    find_first_on_path,
    install_drop_in,
    uninstall_drop_in,
)
from shim.state.config import CHOICES, Settings
from shim.state.own_vendors import load_readable_adapters
from shim.story.terminal.console import check_choice, print_line, show_status

NameOption = Annotated[str, typer.Option("--as", help="The name of the file: claude or yume-cli.")]
FolderOption = Annotated[str, typer.Option(help="The folder of the file.")]


def install_dropin(
    vendor: Annotated[
        str | None,
        typer.Option(help="The vendor that answers by default, or a list of them, as qwen,pi."),
    ] = None,
    name: NameOption = "claude",
    to: FolderOption = DEFAULT_DIR,
    into: Annotated[
        str | None,
        typer.Option(
            "--into", help="Replace this file instead, where a program keeps a claude of its own."
        ),
    ] = None,
    record: Annotated[str | None, typer.Option(help="Record every run into this folder.")] = None,
    dialect: Annotated[
        str | None, typer.Option(help="The format of the output: claude or yume.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Rename an existing claude to claude.before-shim.")
    ] = False,
) -> None:
    """Write the drop-in `claude`.

    Then look at the vendor, its version and its login, say which `claude` your PATH finds, and what
    to type next.

    Example: shim install --vendor qwen
    """
    check_choice(CHOICES["dialect"], dialect, "--dialect")
    names = tuple(dict.fromkeys(parse_vendor_list(vendor or "")))
    if len(names) > MAX_VENDORS:
        raise typer.BadParameter(
            f"{len(names)} vendors; at most {MAX_VENDORS} are allowed", param_hint="--vendor"
        )
    for one in names:
        get_adapter(one)
    folder = record and os.path.join(os.path.abspath(record), "")
    baked = {"vendor": ",".join(names), "record": folder, "dialect": dialect}
    installed = {key: value for key, value in baked.items() if value}
    if into is not None:
        if force or name != "claude" or to != DEFAULT_DIR:
            raise typer.BadParameter(
                "it goes with none of --to, --as and --force", param_hint="--into"
            )
        install_and_report(into, installed)
        compile_bytecode()
        _report_vendors(names)
        return
    path, kept = install_drop_in(to, name, installed, force=force)
    compile_bytecode()
    print_line(f"wrote {path}")
    if kept:
        print_line(f"kept the file that was there as {kept}; `shim uninstall` restores it")
    first = _report_vendors(names)
    console = Console(highlight=False)
    found = _check_path(path, name)
    print_finding(console, found)
    if isinstance(first, str):
        print_line(f"next: shim install --vendor {first}")
    elif first is not None:
        print_line(
            f"next: {_format_next_step(path if found.level == WARNING else name, first, plain=name == 'claude')}"
        )


def _report_vendors(names: tuple[str, ...]) -> VendorReport | str | None:
    """Look at the vendors that will answer and tell of them.

    The report of the first; where none is chosen, the name of one to choose; None where the
    settings have a mistake.
    """
    console = Console(highlight=False)
    settings, found = check_settings(os.environ)
    if settings is None:
        print_finding(console, found)
        return None
    with show_status("asking programs for their version and login …"):
        chosen = _resolve_vendors(names, settings)
        reports = [
            check_vendor(
                get_adapter(name), settings.get_vendor_settings(name), os.environ, os.getcwd()
            )
            for name in chosen
        ]
    for report in reports:
        print_vendor(console, report)
    if reports:
        return reports[0]
    there = list(find_programs_on_path(load_readable_adapters(), os.environ, os.getcwd()))
    print_finding(console, explain_missing_choice(there))
    return there[0] if there else EXAMPLE_VENDOR


def _resolve_vendors(names: tuple[str, ...], settings: Settings) -> tuple[str, ...]:
    """The vendors that answer where the file names `names`: with none, SHIM_VENDOR or the settings
    choose.
    """
    named = os.environ.get("SHIM_VENDOR", "")
    return (
        names
        or (() if named.startswith("replay:") else parse_vendor_list(named))
        or settings.vendor
    )


def _check_path(path: str, name: str) -> DiagnosisFinding:
    """Which file PATH finds under `name`; a warning if that is not `path`."""
    first, folder = find_first_on_path(name, os.environ.get("PATH", "")), os.path.dirname(path)
    if first is None:
        fix = f'put it there: export PATH="{folder}:$PATH"; or give {path} to your frontend'
        return DiagnosisFinding(WARNING, f"{folder} is not on PATH", fix)
    if os.path.abspath(first) != path:
        return DiagnosisFinding(
            WARNING, f"PATH still finds {first} first", f"put {folder} before it"
        )
    return DiagnosisFinding(OK, f"PATH finds {first}")


def _format_next_step(command: str, first: VendorReport, *, plain: bool) -> str:
    """What to type next."""
    bad = next((finding for finding in first.findings if finding.level == PROBLEM), None)
    if first.program is None and (how := get_adapter(first.name).cli.install_command):
        return f"{how}, then shim doctor {first.name}"
    if bad is not None:
        return f"{bad.fix}; then shim doctor {first.name}"
    return f'{command} -p "what is here?"' if plain else f"start your frontend with {command}"


def uninstall_dropin(
    name: NameOption = "claude",
    to: FolderOption = DEFAULT_DIR,
    into: Annotated[
        str | None,
        typer.Option("--into", help="Take it out of this file, and put back what was there."),
    ] = None,
    purge: Annotated[
        bool, typer.Option("--purge", help="Remove the settings and the state of the shim too.")
    ] = False,
) -> None:
    """Remove the drop-in, and say what is left.

    A `claude` that was there before is restored. A file that is not ours is left alone.

    Example: shim uninstall
    """
    if into is not None:
        if purge:
            raise typer.BadParameter("it does not go with --into", param_hint="--purge")
        uninstall_and_report(into)
        return
    done = uninstall_drop_in(to, name)
    left = list_leftovers(os.environ, done.record_path)
    if done.has_restored:
        print_line(f"removed {done.path}; the file that was there before is back")
    elif done.was_drop_in:
        print_line(f"removed {done.path}")
    elif os.path.lexists(done.path):
        print_line(f"{done.path} is not a file that `shim install` wrote; it is left alone")
    else:
        print_line(f"there is no {done.path}, so there is nothing to remove")
    for one in left:
        removed = purge and remove_leftover(one)
        hint = "; --purge removes it" if one.owned_entries and not purge else ""
        print_line(
            f"removed {one.path}" if removed else f"left {one.path}: {one.description}{hint}"
        )
    first = find_first_on_path(name, os.environ.get("PATH", ""))
    print_line(f"PATH finds {first}" if first else f"PATH finds no {name}")
