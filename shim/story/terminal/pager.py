"""Opens a pager for long output: the program in `PAGER`, or `less`."""

import io
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from rich.console import Console

from shim.story.terminal.console import SESSION_CONSOLE_OPTIONS

DEFAULT_PAGER = "less"
NO_PAGER_VALUES = ("", "cat")  # `PAGER` values that disable the pager
LESS_OPTIONS = "FRX"  # exit if the text fits, show colors, do not clear the screen


class PagedConsole(Console):
    """A console that writes to a pager. The person may quit the pager before all output is written."""

    def on_broken_pipe(self) -> None:
        """Raise the error again. Rich would exit the program instead."""
        raise BrokenPipeError


def find_pager_command(environment: Mapping[str, str]) -> list[str]:
    """Return the command line of the user's pager, or [] if the pager is disabled or not installed."""
    try:
        command = shlex.split(environment.get("PAGER", DEFAULT_PAGER))
    except ValueError:
        return []
    if command and command[0] not in NO_PAGER_VALUES and shutil.which(command[0]):
        return command
    return []


@contextmanager
def open_pager(console: Console, *, enabled: bool = True) -> Iterator[Console]:
    """Open a console that writes to the user's pager. Return `console` itself if there is no
    terminal or no pager.
    """
    command = []
    if enabled and console.is_terminal:
        command = find_pager_command(os.environ)
    if not command:
        yield console
        return
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, env={"LESS": LESS_OPTIONS, **os.environ}
    )
    assert process.stdin is not None
    pager_input = io.TextIOWrapper(process.stdin, encoding="utf-8", errors="replace")
    try:
        with suppress(BrokenPipeError):  # the user has quit the pager
            yield PagedConsole(
                file=pager_input,
                force_terminal=True,
                width=console.width,
                **SESSION_CONSOLE_OPTIONS,
            )
            pager_input.flush()
    finally:
        with suppress(BrokenPipeError):
            pager_input.close()
        while True:
            with suppress(KeyboardInterrupt):  # the pager handles Ctrl-C itself
                process.wait()
                break
