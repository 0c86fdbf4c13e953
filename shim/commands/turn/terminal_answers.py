"""Reads a person's answers to permission prompts from the terminal: one prompt at a time, with y, n
or always.
"""

import os
import select
import termios
from collections.abc import Iterator
from contextlib import contextmanager

from shim.bridge.decisions import CHOICES_BY_INPUT, PermissionPromptQueue

MAX_ANSWER_BYTES = 4096  # the longest line of a terminal


class TerminalAnswerReader:
    """Reads the answers to `questions` from the terminal `descriptor`."""

    def __init__(self, descriptor: int, cwd: str) -> None:
        self.descriptor = descriptor
        self.questions = PermissionPromptQueue(cwd)

    def discard_typeahead_and_enable_echo(self) -> None:
        """Discard what was typed before a prompt was shown, and show what is typed from now on."""
        termios.tcflush(self.descriptor, termios.TCIFLUSH)
        self.set_echo(on=True)

    def set_echo(self, *, on: bool) -> None:
        """Show or hide what is typed. Do nothing if the terminal is gone.

        A background process leaves the terminal unchanged, because the system would stop it for a
        change.
        """
        try:
            if os.tcgetpgrp(self.descriptor) != os.getpgrp():
                return
            settings = termios.tcgetattr(self.descriptor)
            if on:
                settings[3] = settings[3] | termios.ECHO
            else:
                settings[3] = settings[3] & ~termios.ECHO
            termios.tcsetattr(self.descriptor, termios.TCSANOW, settings)
        except (termios.error, OSError):
            return

    @contextmanager
    def disable_terminal_echo(self) -> Iterator[None]:
        """Hide what is typed within this context, because it would appear in the output of the
        turn.
        """
        had_echo = self._has_echo()
        self.set_echo(on=False)
        try:
            yield
        finally:
            self.set_echo(on=had_echo)

    def _has_echo(self) -> bool:
        """Return whether the terminal shows what is typed, as most do."""
        try:
            return bool(termios.tcgetattr(self.descriptor)[3] & termios.ECHO)
        except (termios.error, OSError):
            return True

    def read_answer(self) -> str | None:
        """Return the answer to the open prompt as one of the values of `WORDS`, or None if the line
        is not an answer.

        The end of input is a denial.
        """
        if not select.select([self.descriptor], [], [], 0)[0]:
            return None
        data = os.read(self.descriptor, MAX_ANSWER_BYTES)
        if data:
            return CHOICES_BY_INPUT.get(data.decode("utf-8", "replace").strip().lower())
        return "no"
