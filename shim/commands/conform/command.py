"""Implements `shim conform`, which checks a claude-compatible command against Claude's contract."""

import os
import sys
from contextlib import nullcontext
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console

# A copy of `runner.DEFAULT_TIMEOUT_S`, because `runner` is only imported when the command runs.
DEFAULT_TIMEOUT_S = 60.0


class CheckedProgramKind(StrEnum):
    """The kind of program that the checked command claims to be."""

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
        typer.Option("--as", help="real: skip the rules that apply only to drop-ins."),
    ] = CheckedProgramKind.DROP_IN,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=3600, help="The time limit for one answer, in seconds.")
    ] = DEFAULT_TIMEOUT_S,
    prompt: Annotated[str | None, typer.Option(help="A message with a short answer.")] = None,
    tool_prompt: Annotated[
        str | None,
        typer.Option(help="A message that needs a tool. Its permission prompts are allowed."),
    ] = None,
    long_prompt: Annotated[
        str | None, typer.Option(help="A message with a long answer, which is interrupted.")
    ] = None,
    frontend: Annotated[
        EmulatedFrontend, typer.Option(help="Start the command as this frontend does.")
    ] = EmulatedFrontend.ALL,
) -> None:
    """Check a claude-compatible command against Claude's contract.

    The command is tested from outside. It is started about forty times, for about twenty short
    turns, in a temporary folder and with your environment. It sends requests to your model, which
    may cost money, and writes its usual files. The exit status is 1 if a MUST rule is broken.

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
                "must not be empty, begin with a dash, or contain NUL", param_hint=name
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
