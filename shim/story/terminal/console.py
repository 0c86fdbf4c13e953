"""Opens consoles, prints lines and checks options for commands that people use."""

import json
import os
import sys
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from rich.theme import Theme

from shim.core.errors import format_spelling_suggestion
from shim.core.reading.values import format_single_line
from shim.recording.completion import complete_recording

# Rich draws code on a black background, which looks wrong in a light terminal.
THEME = Theme({"markdown.code": "bold cyan", "markdown.code_block": "cyan"})
# The options of every console that draws a session. Text is never parsed as markup or emoji.
SESSION_CONSOLE_OPTIONS: dict[str, Any] = {
    "highlight": False,
    "markup": False,
    "emoji": False,
    "theme": THEME,
}
PIPE_COLUMNS = 10_000  # wide enough that no table row is cut in a pipe

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RecordingArgument = Annotated[
    str,
    typer.Argument(metavar="CAST", help="The recording.", autocompletion=complete_recording),
]
RecordingsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        help="Recordings, or folders of recordings.",
        metavar="CAST",
        autocompletion=complete_recording,
    ),
]


def open_console() -> Console:
    """Open a console for stdout. Characters that stdout cannot encode become question marks."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    return Console(**SESSION_CONSOLE_OPTIONS)


def open_table_console() -> Console:
    """Open a console for a table. On a terminal it has the terminal's width. In a pipe it is wide
    enough for any row.
    """
    console = Console(highlight=False)
    if console.is_terminal:
        return console
    return Console(highlight=False, width=PIPE_COLUMNS)


def is_light_terminal(environment: Mapping[str, str]) -> bool:
    """Return whether the terminal has a light background. The last number of COLORFGBG is the
    background color.
    """
    return environment.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15")


class BrokenPipeHandler:
    """A context manager that ends without an error when the reader of stdout closes the pipe."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, BrokenPipeError):
            return False
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the interpreter flushes stdout at exit
        return True


def print_line(text: str) -> None:
    """Print one line unchanged. The line is not shortened, wrapped or parsed as markup."""
    Console(highlight=False).print(Text(format_single_line(text)), soft_wrap=True)


def show_status(message: str) -> AbstractContextManager[object]:
    """Show a status line on a terminal during a slow operation."""
    console = Console(stderr=True)
    if console.is_terminal:
        return console.status(message)
    return nullcontext()


def print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def check_option_value(allowed: Collection[str], value: str | None, option: str) -> None:
    """Raise a usage error if the option has a value that is not allowed."""
    if value is not None and value not in allowed:
        suggestion = format_spelling_suggestion(value, allowed)
        choices = ", ".join(allowed)
        raise typer.BadParameter(
            f"{value!r}{suggestion}\nhint: the choices are {choices}", param_hint=option
        )


def abbreviate_home(folder: str) -> str:
    """Return a folder's path, with ~ for the user's home directory."""
    home_folder = os.path.expanduser("~")
    if f"{folder}/".startswith(f"{home_folder}/"):
        return f"~{folder[len(home_folder) :]}"
    return folder
