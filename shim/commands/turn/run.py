"""Implements `shim run` and `shim demo`, which run one turn through the drop-in and draw it live."""

import os
import sys
from typing import Annotated

import typer

from shim.adapters import get_adapter
from shim.commands.completion.values import complete_session, complete_vendor, create_completer
from shim.commands.turn.live_turn import TerminalTurnRunner
from shim.commands.turn.next_steps import print_next_steps
from shim.commands.turn.sessions import resolve_resumed_id
from shim.commands.turn.terminal_answers import TerminalAnswerReader
from shim.core.claude.argv.models import REPLAY_PREFIX, parse_vendor_list
from shim.core.policy.policy import PERMISSION_MODES
from shim.core.reading.values import as_list
from shim.process.install import load_installed_dropin_options
from shim.story.terminal.console import BrokenPipeHandler, open_console


def run_demo() -> None:
    """Run a demo turn with the bundled demo agent.

    The turn uses the real drop-in. It needs no API key and no network. At the end it prints what to
    type next.

    Example: shim demo
    """
    status = _run_and_draw(
        ["--shim-vendor", "demo", "--no-session-persistence"], {}, "make greet.py nicer"
    )
    if status == 0:
        print_next_steps(open_console())
    raise typer.Exit(status)


def run_turn(
    prompt: Annotated[str, typer.Argument(help="The message for the agent.")],
    vendor: Annotated[
        str | None,
        typer.Option(
            "--vendor",
            "-v",
            help="The vendor; by default the drop-in's choice.",
            autocompletion=complete_vendor,
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The model, by the vendor's name for it.")
    ] = None,
    permission_mode: Annotated[
        str | None,
        typer.Option(
            help="The permission mode: default, plan, acceptEdits, dontAsk or bypassPermissions.",
            autocompletion=create_completer(PERMISSION_MODES),
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RULE",
            help="Auto-approve calls that match this rule, such as 'Bash(git diff:*)'; repeatable.",
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            "-r",
            metavar="ID",
            help="Resume a session.",
            autocompletion=complete_session,
        ),
    ] = None,
    go_on: Annotated[
        bool, typer.Option("--continue", "-c", help="Resume the last session of this folder.")
    ] = False,
    record: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Record the run to this file or folder."),
    ] = None,
) -> None:
    """Run one turn and print it as it happens.

    On a terminal you are asked for permission when the vendor asks. Ctrl-C interrupts the turn; a
    second Ctrl-C kills it.

    Example: shim run -v qwen "what does this project do?"
    """
    if vendor is not None and not vendor.startswith(REPLAY_PREFIX):
        for name in parse_vendor_list(vendor):
            get_adapter(name)  # raises an error for an unknown vendor
    if resume is not None:
        resume = resolve_resumed_id(resume)
    flags = [f"--allowedTools={rule}" for rule in as_list(allow)] + (
        ["--continue"] if go_on else []
    )
    for name, value in (
        ("--shim-vendor", vendor),
        ("--model", model),
        ("--permission-mode", permission_mode),
        ("--resume", resume),
        ("--shim-record", record),
    ):
        if value is not None:
            flags += [f"{name}={value}"]
    raise typer.Exit(_run_and_draw(flags, load_installed_dropin_options(), prompt))


def _run_and_draw(flags: list[str], installed_options: dict[str, str], prompt: str) -> int:
    """Start the drop-in and draw its output. Return the exit status."""
    console = open_console()
    is_interactive = console.is_terminal and sys.stdin.isatty()
    command = [sys.executable, "-I", "-m", "shim"]
    command += [
        argument
        for name, value in installed_options.items()
        for argument in ("--installed", f"{name}={value}")
    ]
    command += [
        "claude",
        "-p",
        "--input-format",
        "stream-json",
        "--output-format",
        "stream-json",
        "--verbose",
    ]
    command += ["--include-partial-messages", "--shim-dialect", "claude", *flags]
    if is_interactive:
        command += ["--permission-prompt-tool", "stdio"]
    with BrokenPipeHandler():
        person = None
        if is_interactive:
            person = TerminalAnswerReader(0, os.getcwd())
        return TerminalTurnRunner(console, person).run(command, prompt)
    return 0
