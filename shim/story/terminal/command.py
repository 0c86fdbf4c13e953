"""`shim show`."""

import os
import sys
from typing import Annotated

import typer

from shim.story.terminal.console import CastFile, open_console
from shim.story.terminal.show import show


def show_cast(
    file: CastFile,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep drawing while it is being recorded.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Raw lines to and from vendor and frontend.")] = False,
    thinking: Annotated[
        bool, typer.Option("--thinking", help="Show all of the thinking, not only its first line.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Show all of the output, not only what fits a screen.")] = False,
) -> None:
    """Draw a recorded session for reading.

    Example: shim show session.cast
    """
    try:
        show(file, open_console(), follow=follow, raw=raw, full=full, thinking=thinking)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
