"""`shim doctor`: a diagnosis, drawn for a person; exit 1 when something must be fixed."""

import os
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from shim.commands.doctor.diagnosis import diagnose
from shim.commands.doctor.draw import draw_finding, draw_vendor
from shim.commands.doctor.findings import NOTE, OK, PROBLEM, WARNING, Diagnosis, Finding, VendorReport
from shim.commands.doctor.project import look_at_project
from shim.commands.doctor.recorded_drift import Drifts, drift_of
from shim.core.errors import ShimError
from shim.core.reading.account import counted, printable
from shim.recording.folders import usual_folder
from shim.story.terminal.console import AsJson, busy, print_json

SHOWN = 6  # names of what is new in a vendor's recordings; --json has all


def doctor(
    vendor: Annotated[str | None, typer.Argument(help="Check this vendor alone; exit 1 if it does not work.")] = None,
    casts: Annotated[
        list[str] | None,
        typer.Option("--casts", help="Recordings, or folders, to search for events and fields that are new."),
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option("--wait", min=0.1, max=600, help="Seconds to wait for the version of a program; by default 10."),
    ] = None,
    project: Annotated[
        str | None,
        typer.Option("--project", help="A folder: say which claude the programs below it start."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what works on this machine, and what to fix.

    The settings, the state folder, PATH, the program of each vendor, and what is new in your recordings are checked.
    Programs are asked for their version; no turn is started. Exit 1 when VENDOR does not work, or without VENDOR the
    one that answers by default.

    Example: shim doctor qwen
    """
    with busy("asking programs for their version and login …"):
        drifts = _drift(casts)
        rows = [asdict(row) for row in drifts.rows.values() if vendor in (None, row.vendor)] if drifts else []
        logins = drifts.logins if drifts else {}
        diagnosis = diagnose([vendor] if vendor else [], os.environ, os.getcwd(), rows, wait, logins)
        if project is not None:
            diagnosis = diagnosis._replace(machine=[*diagnosis.machine, *look_at_project(project, os.environ)])
    if as_json:
        print_json(diagnosis.report())
    else:
        _draw(Console(highlight=False), diagnosis, drifts, alone=vendor is not None)
    raise typer.Exit(0 if diagnosis.works else 1)


def _drift(casts: list[str] | None) -> Drifts | None:
    """What is new in the recordings; None without recordings."""
    if casts:
        return drift_of(casts)
    try:
        return drift_of([usual_folder(os.environ)])
    except ShimError:  # nothing is recorded, or the settings have a mistake, which the diagnosis names
        return None


def _draw(console: Console, diagnosis: Diagnosis, drifts: Drifts | None, *, alone: bool) -> None:
    for finding in diagnosis.machine:
        draw_finding(console, finding)
    missing = []
    for vendor in diagnosis.vendors:
        drift = [row for row in diagnosis.drift if row["vendor"] == vendor.name]
        serious = any(finding.level in (WARNING, PROBLEM) for finding in vendor.findings)
        if vendor.program is None and not (alone or serious or drift):
            missing.append(vendor.name)
        elif alone or vendor.program != "bundled" or serious:
            _vendor(console, vendor, drift)
    if missing:
        console.print()
        absent = Text(f"not found on PATH: {', '.join(map(printable, missing))}", style="dim")
        console.print(absent, soft_wrap=not console.is_terminal)
    if drifts is not None and drifts.problem:
        unread = f"not read: {counted(drifts.unread, 'recording')}: " if drifts.unread else ""
        console.print(Text(unread + drifts.problem, style="dim"), soft_wrap=True)


def _vendor(console: Console, vendor: VendorReport, drift: list[dict[str, Any]]) -> None:
    console.print()
    draw_vendor(console, vendor)
    for row in drift:
        for finding in _drifted(row):
            draw_finding(console, finding, "  ")


def _drifted(row: dict[str, Any]) -> list[Finding]:
    of = f"in {counted(row['casts'], 'recording')} of version {row['version']}"
    found = []
    fix = "a newer claude-shim may know them; `shim cast fixture` cuts out of a recording what a report needs"
    for level, what, news in (
        (WARNING, "events that are not translated", row["events"]),
        (NOTE, "new fields", row["fields"]),
    ):
        if news:
            told = ", ".join(f"{name} ({count})" for name, count in list(news.items())[:SHOWN])
            more = f", and {len(news) - SHOWN} more" if len(news) > SHOWN else ""
            found.append(Finding(level, f"{of}: {what}: {told}{more}", fix if level == WARNING else ""))
    if row["malformed"]:
        text = f"{of}: {counted(row['malformed'], 'event')} without what its handler needs"
        found.append(Finding(WARNING, text, fix))
    return found or [Finding(OK, f"{of}: nothing is new")]
