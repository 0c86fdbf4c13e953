"""Implements `shim doctor`, which prints a diagnosis. The exit status is 1 if something must be
fixed.
"""

import os
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from shim.commands.completion.values import complete_vendor
from shim.commands.doctor.diagnosis import build_diagnosis
from shim.commands.doctor.findings import PROBLEM, WARNING, Diagnosis
from shim.commands.doctor.printing import print_finding, print_vendor_report
from shim.commands.doctor.project import check_project_claude_binaries
from shim.commands.doctor.recorded_logins import collect_missing_login_messages
from shim.core.reading.values import escape_control_chars
from shim.story.terminal.console import JsonOption, print_json, show_status


def doctor(
    vendor: Annotated[
        str | None,
        typer.Argument(
            help="Check this vendor alone; exit 1 if it does not work.",
            autocompletion=complete_vendor,
        ),
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait",
            min=0.1,
            max=600,
            help="Seconds to wait for a program's version; by default 10.",
        ),
    ] = None,
    project: Annotated[
        str | None,
        typer.Option(
            "--project", help="For each program in this folder, show which `claude` it starts."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check this installation, and suggest fixes.

    Checks the settings, the state folder, PATH and the program of each vendor. Each program is
    asked for its version; no turn is started. The exit status is 1 if VENDOR does not work, or
    without VENDOR if the default vendor does not.

    Example: shim doctor qwen
    """
    with show_status("checking versions and logins …"):
        logins = collect_missing_login_messages(os.environ)
        vendor_names = []
        if vendor:
            vendor_names = [vendor]
        diagnosis = build_diagnosis(vendor_names, os.environ, os.getcwd(), wait, logins)
        if project is not None:
            diagnosis = diagnosis._replace(
                machine=[*diagnosis.machine, *check_project_claude_binaries(project, os.environ)]
            )
    if as_json:
        print_json(diagnosis.build_json())
    else:
        _print_diagnosis(Console(highlight=False), diagnosis, is_single_vendor=vendor is not None)
    raise typer.Exit(0 if diagnosis.has_no_problem else 1)


def _print_diagnosis(console: Console, diagnosis: Diagnosis, *, is_single_vendor: bool) -> None:
    for finding in diagnosis.machine:
        print_finding(console, finding)
    missing_vendors = []
    for vendor_report in diagnosis.vendors:
        has_problem = any(finding.level in (WARNING, PROBLEM) for finding in vendor_report.findings)
        if vendor_report.program is None and not (is_single_vendor or has_problem):
            missing_vendors.append(vendor_report.name)
        elif is_single_vendor or vendor_report.program != "bundled" or has_problem:
            console.print()
            print_vendor_report(console, vendor_report)
    if missing_vendors:
        console.print()
        absent_text = Text(
            f"not found on PATH: {', '.join(map(escape_control_chars, missing_vendors))}",
            style="dim",
        )
        console.print(absent_text, soft_wrap=not console.is_terminal)
