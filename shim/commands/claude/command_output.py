"""Defines the output of a `claude` subcommand and prints it."""

import os
from typing import NamedTuple

from shim.core.reading.values import escape_control_chars
from shim.io.stderr import DISCONNECT_ERRNOS
from shim.state.files import write_all

DISABLE_VARIABLE = "CLAUDE_CODE_DISABLE_AGENT_VIEW"
TRUE_VALUES = ("1", "true", "yes", "on")


class CommandOutput(NamedTuple):
    """The text and the exit status of a subcommand. If the status is not 0, the text is printed to
    stderr, unless the user requested the text.
    """

    text: str
    status: int = 0
    is_requested: bool = False


def print_command_output(output: CommandOutput) -> int:
    """Print a subcommand's output and return the exit status. A closed stdout is not a failure, but
    a full disk is.
    """
    try:
        write_all(
            1 if output.status == 0 or output.is_requested else 2,
            output.text.encode("utf-8", "replace"),
        )
    except OSError as error:
        if output.status == 0:
            return int(error.errno not in DISCONNECT_ERRNOS)
    return output.status


def build_disabled_command_error(command: str) -> CommandOutput | None:
    """Return the error for a command that the user or an organization has disabled, or None."""
    is_disabled = os.environ.get(DISABLE_VARIABLE, "").strip().lower() in TRUE_VALUES
    if is_disabled:
        return CommandOutput(f"'{command}' is disabled by {DISABLE_VARIABLE}.\n", 1)
    return None


def build_error_output(text: str) -> CommandOutput:
    """Build the output for an error of one or more lines, with control characters escaped."""
    return CommandOutput(escape_control_chars(text) + "\n", 1)
