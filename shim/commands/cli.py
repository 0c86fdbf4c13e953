"""The entry point of the `shim` command, which registers all of its subcommands."""

import errno
import json
import os
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from shim import __version__
from shim.adapters import get_adapter
from shim.commands.cast.command import app as cast_app
from shim.commands.cast.replay_command import replay
from shim.commands.claude.dropin import reopen_closed_stdio
from shim.commands.completion.command import print_completion_script
from shim.commands.completion.values import complete_vendor, create_completer
from shim.commands.conform.command import check_conformance
from shim.commands.doctor.command import doctor
from shim.commands.doctor.vendor_table import list_vendors
from shim.commands.fleet.command import app as fleet_app
from shim.commands.help.command_groups import TitledCommandGroup
from shim.commands.help.plain_help import SimplifiedHelpCommand
from shim.commands.help.topics import show_help
from shim.commands.help.usage_errors import describe_usage_error, is_usage_error
from shim.commands.install.dropin import install_dropin, uninstall_dropin
from shim.commands.profile.command import app as vendor_app
from shim.commands.sessions.command import app as bridge_app
from shim.commands.turn.explain import explain_turn
from shim.commands.turn.run import run_demo, run_turn
from shim.commands.turn.sessions import app as sessions_app
from shim.conversation.drivers.open_translation import (
    MAX_STDERR_BYTES,
    create_standalone_child_stream,
    translate_stream,
)
from shim.core.errors import CommandUsageError, ShimError
from shim.core.reading.values import escape_control_chars
from shim.core.turn.outcome import ChildExit
from shim.process.environment import get_working_directory
from shim.process.exit_status import parse_exit_status
from shim.state.config import CHOICES
from shim.state.own_profiles import register_user_profiles
from shim.story.export.command import export_recordings
from shim.story.terminal.command import show_recording
from shim.story.terminal.console import BrokenPipeHandler, check_option_value

USAGE_ERROR_STATUS = 2

app = typer.Typer(
    name="shim",
    help="A drop-in `claude` for any agent CLI: one UI, every agent.",
    no_args_is_help=True,
    cls=TitledCommandGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def run_shim(argv: list[str]) -> None:
    """Run `shim ARGUMENTS` and exit. The status is 0 for success, 1 for a failure, and 2 for a
    usage error.
    """
    _open_standard_files()
    try:
        try:
            status = app(argv, prog_name="shim", standalone_mode=False)
        finally:
            sys.stdout.flush()  # a write error can still be reported here
        sys.exit(status)
    except ShimError as error:
        status = 1
        if isinstance(error, CommandUsageError):
            status = USAGE_ERROR_STATUS
        _exit_with_error(str(error), error.hint, status)
    except (BrokenPipeError, SystemExit) as error_or_exit:
        # Click exits with status 1 on a broken pipe
        if isinstance(error_or_exit, SystemExit) and not isinstance(
            error_or_exit.__context__, BrokenPipeError
        ):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)  # a closed pipe is not a failure of `shim`
    except OSError as error:
        # Otherwise the interpreter would flush stdout again at exit and print an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if error.errno == errno.ENOENT and error.filename is None and not get_working_directory():
            _exit_with_error(
                "the working directory no longer exists", "run the command from another folder"
            )
        _exit_with_error(f"{error.filename or 'cannot write the output'}: {error.strerror}")
    except Exception as error:
        if not is_usage_error(error):
            raise
        _exit_with_usage_error(error)


def _exit_with_usage_error(error: Any) -> None:
    """Print an error from the argument parser and exit. If only a command group was named, print
    the group's help instead.
    """
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        sys.exit(error.exit_code)
    description = describe_usage_error(error)
    _exit_with_error(description.text, description.hint, error.exit_code)


def _exit_with_error(text: str, hint: str = "", status: int = 1) -> None:
    stderr = Console(stderr=True)
    stderr.print(
        Text(f"error: {escape_control_chars(text)}", style="red"),
        soft_wrap=not stderr.is_terminal,
    )
    if hint:
        stderr.print(Text(f"hint: {escape_control_chars(hint)}"), soft_wrap=True)
    sys.exit(status)


def _open_standard_files() -> None:
    """Open the null device for each closed standard stream."""
    reopen_closed_stdio(os.O_RDWR)
    sys.stdin, sys.stdout, sys.stderr = (
        stream if stream is not None else open(descriptor, mode, closefd=False)  # noqa: SIM115 - kept open
        for descriptor, (stream, mode) in enumerate(
            ((sys.stdin, "r"), (sys.stdout, "w"), (sys.stderr, "w"))
        )
    )


def _print_version(is_requested: bool) -> None:
    if is_requested:
        sys.stdout.write(f"shim {__version__}\n")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = (False),
) -> None:
    "A drop-in `claude` for any agent CLI: one UI, every agent."
    register_user_profiles(os.environ)


def translate_file(
    vendor: Annotated[
        str,
        typer.Argument(help="The vendor that printed the output.", autocompletion=complete_vendor),
    ],
    file: Annotated[str, typer.Argument(help="The recorded stdout; - reads stdin.")] = "-",
    partial: Annotated[bool, typer.Option("--partial", help="Write partial messages too.")] = False,
    dialect: Annotated[
        str,
        typer.Option(
            help="The output format: claude or yume.",
            autocompletion=create_completer(CHOICES["dialect"]),
        ),
    ] = "claude",
    terminator: Annotated[
        str,
        typer.Option(
            help="The line after each result: message_stop, dollar or none.",
            autocompletion=create_completer(("message_stop", "dollar", "none")),
        ),
    ] = "message_stop",
    child_exit: Annotated[
        str,
        typer.Option("--exit", help="The vendor's exit code, or the signal that ended it."),
    ] = "0",
    stderr: Annotated[str | None, typer.Option(help="A file with the recorded stderr.")] = None,
    session_id: Annotated[str | None, typer.Option(help="The session id to write.")] = None,
    stable_ids: Annotated[
        bool,
        typer.Option(
            "--stable-ids",
            help="Use sequential ids and a fixed clock, so that every run writes the same bytes.",
        ),
    ] = False,
    prints_diagnostics: Annotated[
        bool, typer.Option("--account", help="Write the repair report to stderr, as JSON.")
    ] = False,
) -> None:
    """Translate a vendor's recorded stdout to Claude's stream-json.

    Example: shim translate pi run.ndjson --exit 0 --partial
    """
    from shim.core.claude.writer import TERMINATORS

    get_adapter(vendor)
    check_option_value(CHOICES["dialect"], dialect, "--dialect")
    check_option_value(TERMINATORS, terminator, "--terminator")
    uuid = _parse_session_id(session_id)
    parsed_exit = _parse_exit_option(child_exit)
    child_stream = create_standalone_child_stream(
        vendor,
        dialect=dialect,
        include_partial_messages=partial,
        terminator=terminator,
        session_id=uuid,
        stable_ids=stable_ids,
    )
    source, stderr_text = _open_recorded_output(file, stderr)
    try:
        with BrokenPipeHandler():
            translate_stream(child_stream, source, 1, parsed_exit, stderr_text)
    except IsADirectoryError:
        raise typer.BadParameter(f"{file} is a folder", param_hint="FILE") from None
    if prints_diagnostics:
        sys.stderr.write(json.dumps(child_stream.diagnostics.build_report()) + "\n")


def _parse_session_id(text: str | None) -> str | None:
    """Return the value of `--session-id`. Raise BadParameter if it is not a UUID."""
    from shim.core.reading.values import canonicalize_uuid

    if text is None:
        return None
    uuid = canonicalize_uuid(text)
    if uuid is None:
        raise typer.BadParameter(f"{text!r} is not a UUID", param_hint="--session-id")
    return uuid


def _parse_exit_option(text: str) -> ChildExit:
    """Return the value of `--exit`. Raise BadParameter if it is not an exit status."""
    try:
        return parse_exit_status(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--exit") from None


def _open_recorded_output(file: str, stderr_file: str | None) -> tuple[int, str]:
    """Return the descriptor of the recorded stdout and the recorded stderr. Raise BadParameter if a
    file cannot be read.
    """
    try:
        source = 0
        if file != "-":
            source = os.open(file, os.O_RDONLY)
        stderr_text = ""
        if stderr_file:
            stderr_text = _read_stderr_file(stderr_file)
    except OSError as error:
        raise typer.BadParameter(f"cannot read {error.filename}: {error.strerror}") from None
    return source, stderr_text


def _read_stderr_file(path: str) -> str:
    with open(path, "rb") as file:
        return file.read(MAX_STDERR_BYTES).decode("utf-8", "replace")


# `shim --help` lists the commands in this order, followed by the groups.
for name, command in (
    ("demo", run_demo),
    ("run", run_turn),
    ("install", install_dropin),
    ("uninstall", uninstall_dropin),
    ("vendors", list_vendors),
    ("doctor", doctor),
    ("show", show_recording),
    ("replay", replay),
    ("export", export_recordings),
    ("translate", translate_file),
):
    app.command(name, cls=SimplifiedHelpCommand)(command)
app.command(
    "explain", cls=SimplifiedHelpCommand, context_settings={"allow_interspersed_args": False}
)(explain_turn)
app.command(
    "conform", cls=SimplifiedHelpCommand, context_settings={"allow_interspersed_args": False}
)(check_conformance)
app.command("help", cls=SimplifiedHelpCommand)(show_help)
app.command("completion", cls=SimplifiedHelpCommand)(print_completion_script)
app.add_typer(sessions_app)
app.add_typer(bridge_app)
app.add_typer(fleet_app)
app.add_typer(cast_app)
app.add_typer(vendor_app)
