"""Implements `shim vendor`, which checks a vendor against captured output and drafts a profile from
captured output.
"""

import os
import sys
from typing import Annotated

import typer

from shim import adapters
from shim.commands.completion.values import complete_vendor
from shim.commands.help.command_groups import TitledCommandGroup
from shim.commands.help.plain_help import SimplifiedHelpCommand
from shim.commands.profile.captured_output import read_captured_files
from shim.commands.profile.lint import (
    FINDING_TITLES,
    NOTE_TITLES,
    LineExplanation,
    LintReport,
    LintReportEntry,
    ProfileLinter,
)
from shim.commands.profile.rule_tracer import RuleTracer
from shim.core.adapter.adapter import Adapter
from shim.core.errors import CommandUsageError, FrontendError
from shim.core.reading.diagnostics import pluralize
from shim.core.reading.values import as_str, is_valid_vendor_name
from shim.state.profile_files import list_unused_key_warnings
from shim.state.profile_files import load_adapter_from_profile as load_profile
from shim.story.terminal.console import JsonOption, print_json, print_line

MAX_LISTED_ENTRIES = 40  # per kind of finding or note; --json lists all

app = typer.Typer(
    name="vendor",
    help="Draft and check a profile for your own vendor.\n\nExample: shim vendor draft run.ndjson",
    cls=TitledCommandGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
)

CapturedFiles = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE", help="Captured output of the program, one file per run; or recordings."
    ),
]


@app.command(cls=SimplifiedHelpCommand)
def check(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A vendor, or the path of a profile (NAME.toml).",
            autocompletion=complete_vendor,
        ),
    ],
    files: CapturedFiles,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Show each line, the rules that matched it, and what they emitted."
        ),
    ] = (False),
    as_json: JsonOption = False,
) -> None:
    """Check a vendor's profile against captured output.

    The exit status is 1 if there is something to fix: lines without a rule, lines that are not
    JSON, tools without an entry, calls without a result, results without a call, runs without an
    end or a session id, and text rules that match no text. Notes may be correct as they are: rules
    that matched no line, and fields that no rule reads (without their values). Secrets are redacted
    in the output.

    Example: shim vendor check ./vendors/parrot.toml run1.ndjson run2.ndjson --explain
    """
    adapter, tracer, remarks = _load_traced_adapter(name)
    _check_readable(files)
    rows: list[LineExplanation] = []
    on_explanation = None
    if explain:
        if as_json:
            on_explanation = rows.append
        else:
            on_explanation = _print_explanation
    checker = ProfileLinter(adapter, tracer, on_explanation, remarks)
    read_captured_files(files, checker)
    report = checker.build_report()
    if as_json:
        document = report.format_json() | (
            {"explained": [row._asdict() for row in rows]} if explain else {}
        )
        print_json(document)
    else:
        _print_report(report)
    if report.findings:
        raise typer.Exit(1)


@app.command(cls=SimplifiedHelpCommand)
def draft(
    files: CapturedFiles,
    name: Annotated[
        str,
        typer.Option("--id", help="The vendor's name; by default the name of the output file."),
    ] = "",
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            help="Write to this file, which must not exist; by default stdout.",
        ),
    ] = None,
) -> None:
    """Generate a first profile from captured output.

    The draft has rules for recognized output, and TODO lines for the rest.

    Pass several runs: one that only answers, one that reads a file and runs a command, one that
    fails. The draft is valid, so you can run `shim vendor check` on it at once.

    Example: shim vendor draft run1.ndjson run2.ndjson -o ~/.config/shim/vendors/parrot.toml
    """
    if not name:
        name = os.path.basename(as_str(output)).removesuffix(adapters.PROFILE_SUFFIX)
    if not name:
        name = "mine"
    if not is_valid_vendor_name(name):
        raise typer.BadParameter(
            f"{name!r} may have only lower-case letters, digits and dashes", param_hint="--id"
        )
    _check_readable(files)
    from shim.commands.profile.draft import generate_profile_toml as draft_profile
    from shim.commands.profile.draft_events import CapturedEventCollector

    collector = CapturedEventCollector()
    read_captured_files(files, collector)
    text = draft_profile(collector, name)
    if output is None:
        sys.stdout.write(text)
        return
    try:
        os.makedirs(os.path.dirname(os.path.abspath(output)), exist_ok=True)
        with open(output, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise FrontendError(
            f"{output} already exists", hint="choose another name with -o"
        ) from None
    except OSError as error:
        raise FrontendError(f"{output} cannot be written: {error.strerror}") from None
    print_line(f"wrote {output}; complete its TODO lines")
    print_line(
        f"then: shim vendor check {output} {' '.join(files[:3])}{' …' if len(files) > 3 else ''}"
    )


def _load_traced_adapter(name: str) -> tuple[Adapter, RuleTracer | None, list[str]]:
    """Return the adapter for a vendor name or a profile path, and remarks about keys in the
    profile. If the vendor has rules, they are traced.
    """
    path = adapters.VENDORS.get(name, "")
    if name.endswith(adapters.PROFILE_SUFFIX):
        path = os.path.abspath(name)
        name = os.path.basename(name).removesuffix(adapters.PROFILE_SUFFIX)
        if not is_valid_vendor_name(name):
            raise CommandUsageError(
                f"{path} is not a valid profile name: it may have only lower-case letters, "
                "digits and dashes"
            )
    if not path.endswith(adapters.PROFILE_SUFFIX):
        return adapters.get_adapter(name, without_passthrough=True), None, []
    tracer = RuleTracer()
    return (
        load_profile(name, path, os.environ, tracer),
        tracer,
        list_unused_key_warnings(path, os.environ),
    )


def _check_readable(files: list[str]) -> None:
    for path in files:
        if not os.access(path, os.R_OK) or os.path.isdir(path):
            problem = "cannot be read"
            if os.path.isdir(path):
                problem = "is a folder"
            raise typer.BadParameter(f"{path} {problem}", param_hint="FILE")


def _print_explanation(explanation: LineExplanation) -> None:
    print_line(f"{explanation.place}  {explanation.sample}")
    for location, emit in explanation.rules:
        print_line(f"  {location} {emit}")
    for verb in explanation.verbs:
        print_line(f"    {verb}")
    if not explanation.rules and not explanation.verbs:
        print_line("    (nothing)")


def _print_report(report: LintReport) -> None:
    for entries, titles in ((report.findings, FINDING_TITLES), (report.notes, NOTE_TITLES)):
        for kind, title in titles.items():
            _print_section(title, [entry for entry in entries if entry.sort == kind])
    verbs = ", ".join(f"{count} {name}" for name, count in report.verb_counts.items())
    print_line(f"emitted: {verbs or 'nothing'}")
    finding_count = sum(entry.times for entry in report.findings)
    summary = "nothing to fix"
    if finding_count:
        summary = f"{pluralize(finding_count, 'thing')} to fix"
    print_line(
        f"{report.vendor}: {pluralize(report.run_count, 'run')}, {pluralize(report.line_count, 'line')}, {summary}"
    )


def _print_section(title: str, entries: list[LintReportEntry]) -> None:
    if not entries:
        return
    print_line(f"{title}:")
    for entry in entries[:MAX_LISTED_ENTRIES]:
        print_line(
            f"  {entry.name}  ×{entry.times}" + (f"  first in {entry.place}" if entry.place else "")
        )
        if entry.sample:
            print_line(f"      {entry.sample}")
    if len(entries) > MAX_LISTED_ENTRIES:
        print_line(f"  and {len(entries) - MAX_LISTED_ENTRIES} more; --json prints all of them")
