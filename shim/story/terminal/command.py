"""Implements `shim show`."""

import os
import sys
from typing import Annotated

import typer

from shim.recording.completion import complete_recording
from shim.recording.folders import find_newest_recording, get_recording_folder
from shim.story.terminal.console import BrokenPipeHandler, open_console
from shim.story.terminal.pager import open_pager
from shim.story.terminal.show import draw_recording


def show_recording(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="CAST",
            help="The recording, or a folder; by default the folder of the setting `record`.",
            autocompletion=complete_recording,
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Keep printing while the session is being recorded."),
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Show the raw lines of the vendor and the frontend.")
    ] = False,
    thinking: Annotated[
        bool, typer.Option("--thinking", help="Show all thinking, not only its first line.")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Show all output, not only what fits on a screen.")
    ] = False,
    no_pager: Annotated[bool, typer.Option("--no-pager", help="Do not use a pager.")] = False,
) -> None:
    """Print a recorded session for reading.

    On a terminal it opens in your pager (`PAGER`, by default `less`). For a folder, the newest
    recording is shown.

    Example: shim show ~/casts
    """
    path = find_newest_recording(file or get_recording_folder(os.environ))
    with BrokenPipeHandler():
        with open_pager(open_console(), enabled=not (follow or no_pager)) as console:
            draw_recording(path, console, follow=follow, raw=raw, full=full, thinking=thinking)
        sys.stdout.flush()
