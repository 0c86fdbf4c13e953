"""`shim show`."""

import os
import sys
from typing import Annotated

import typer

from shim.story.terminal.show import open_console, show


def show_cast(
    file: Annotated[str, typer.Argument(metavar="CAST", help="The recording.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on while it is being recorded.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Both wires, line by line.")] = False,
    thinking: Annotated[bool, typer.Option("--thinking", help="All of the thinking, not its first lines.")] = False,
    full: Annotated[bool, typer.Option("--full", help="All of the output, not what fits a screen.")] = False,
) -> None:
    """Draw a recorded session for reading.

    Example: shim show session.cast
    """
    try:
        show(file, open_console(), follow=follow, raw=raw, full=full, thinking=thinking)
        sys.stdout.flush()
    except BrokenPipeError:  # who read it has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
