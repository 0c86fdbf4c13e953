"""`shim conform`: the contract's black-box check of any claude-like command, for a person and for a
program.
"""

import os
import sys
from contextlib import nullcontext
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console

# the same as conform.PATIENCE, whose module is imported only when the command runs
DEFAULT_TIMEOUT_S = 60.0


class CheckedProgramKind(StrEnum):
    """The kind of program that the command claims to be."""

    DROP_IN = "drop-in"
    REAL = "real"


class EmulatedFrontend(StrEnum):
    SDK = "sdk"
    YUME = "yume"
    ALL = "all"


def check_conformance(
    command: Annotated[
        list[str], typer.Argument(help="The command to check, after --.", show_default=False)
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    kind: Annotated[
        CheckedProgramKind,
        typer.Option("--as", help="real leaves out the rules that bind drop-ins only."),
    ] = CheckedProgramKind.DROP_IN,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=3600, help="The seconds that one answer may take.")
    ] = DEFAULT_TIMEOUT_S,
    prompt: Annotated[str | None, typer.Option(help="A message that has a short answer.")] = None,
    tool_prompt: Annotated[
        str | None,
        typer.Option(help="A message that needs a tool. What it asks permission for is allowed."),
    ] = None,
    long_prompt: Annotated[
        str | None, typer.Option(help="A message that has a long answer, which is interrupted.")
    ] = None,
    frontend: Annotated[
        EmulatedFrontend, typer.Option(help="How the command is started.")
    ] = EmulatedFrontend.ALL,
) -> None:
    """Check a claude-like command against Claude's contract.

    It is a check from outside. The command is started about forty times, for some twenty short
    turns, in a temporary folder and with your environment. It asks your model, which may cost
    money, and writes the files that it always writes. Exit 1 when a MUST is broken.

    Example: shim conform -- claude
    """
    from shim.commands.conform.report import compute_exit_code, print_conformance_report
    from shim.commands.conform.report import format_findings_json as report
    from shim.commands.conform.runner import run_and_evaluate_conformance_rules
    from shim.commands.conform.scenarios import LONG_PROMPT, PROMPT, TOOL_PROMPT, ConformanceOptions

    for name, value in (
        ("--prompt", prompt),
        ("--tool-prompt", tool_prompt),
        ("--long-prompt", long_prompt),
    ):
        if value is not None and (not value.strip() or value.startswith("-") or "\0" in value):
            raise typer.BadParameter(
                "it is empty, begins with a dash, or contains NUL", param_hint=name
            )
    options = ConformanceOptions(
        drop_in=kind is CheckedProgramKind.DROP_IN,
        sdk=frontend is not EmulatedFrontend.YUME,
        yume=frontend is not EmulatedFrontend.SDK,
        prompt=prompt or PROMPT,
        tool_prompt=tool_prompt or TOOL_PROMPT,
        long_prompt=long_prompt or LONG_PROMPT,
    )
    stderr = Console(stderr=True)
    with (
        stderr.status("starting the command about forty times …")
        if stderr.is_terminal
        else nullcontext()
    ):
        findings = run_and_evaluate_conformance_rules(
            command, os.environ, os.getcwd(), options, timeout
        )
    if as_json:
        sys.stdout.write(report(command, findings))
    else:
        print_conformance_report(Console(highlight=False), command, findings)
    raise typer.Exit(compute_exit_code(findings))
