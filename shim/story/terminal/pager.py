"""A pager for output that is longer than a screen: the one that `PAGER` names, or `less`."""

import io
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from rich.console import Console

from shim.story.terminal.console import THEME

DEFAULT_PAGER = "less"
NO_PAGER_VALUES = ("", "cat")  # values of PAGER that disable the pager
LESS_OPTIONS = "FRX"  # less: exit if the text fits a screen, show colors, keep the screen


class PagedConsole(Console):
    """A console whose reader may close the pipe."""

    def on_broken_pipe(self) -> None:
        """Raise the error to the caller; rich would end the program."""
        raise BrokenPipeError


def find_pager_command(environment: Mapping[str, str]) -> list[str]:
    """Return the command line of the user's pager, or [] if the user wants none or it is not
    installed.
    """
    try:
        command = shlex.split(environment.get("PAGER", DEFAULT_PAGER))
    except ValueError:
        return []
    if command and command[0] not in NO_PAGER_VALUES and shutil.which(command[0]):
        return command
    return []


@contextmanager
def open_pager(console: Console, *, enabled: bool = True) -> Iterator[Console]:
    """Open a console that writes into the user's pager. Without a terminal or a pager, return the
    given one.
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
        with suppress(BrokenPipeError):  # the reader has left the pager
            yield PagedConsole(
                file=pager_input,
                force_terminal=True,
                width=console.width,
                highlight=False,
                markup=False,
                emoji=False,
                theme=THEME,
            )
            pager_input.flush()
    finally:
        with suppress(BrokenPipeError):
            pager_input.close()
        while True:
            with suppress(KeyboardInterrupt):  # the pager handles Ctrl-C itself
                process.wait()
                break
