"""Reads a person's answers to permission prompts from the terminal. Prompts are answered one at a
time, with y, n or always.
"""

import os
import select
import termios
from collections.abc import Iterator
from contextlib import contextmanager

from shim.bridge.decisions import CHOICES_BY_INPUT, PermissionPromptQueue

MAX_ANSWER_BYTES = 4096  # the longest line of a terminal


class TerminalAnswerReader:
    """Reads answers to permission prompts from a terminal. `descriptor` is the terminal, and
    `questions` is the prompt queue.
    """

    def __init__(self, descriptor: int, cwd: str) -> None:
        self.descriptor = descriptor
        self.questions = PermissionPromptQueue(cwd)

    def discard_typeahead_and_enable_echo(self) -> None:
        """Discard input that was typed before the prompt was shown, and enable the terminal's echo."""
        termios.tcflush(self.descriptor, termios.TCIFLUSH)
        self.set_echo(on=True)

    def set_echo(self, *, on: bool) -> None:
        """Enable or disable the terminal's echo. Do nothing if the terminal is gone.

        A process in the background leaves the terminal unchanged, because the system would stop a
        background process that changes it.
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
        """Disable the terminal's echo within this context, so that typed characters do not appear
        in the turn's output.
        """
        had_echo = self._has_echo()
        self.set_echo(on=False)
        try:
            yield
        finally:
            self.set_echo(on=had_echo)

    def _has_echo(self) -> bool:
        """Return whether the terminal's echo is enabled. If that is unknown, return True."""
        try:
            return bool(termios.tcgetattr(self.descriptor)[3] & termios.ECHO)
        except (termios.error, OSError):
            return True

    def read_answer(self) -> str | None:
        """Return the answer to the open prompt as a value of `CHOICES_BY_INPUT`, or None if the
        typed line is not a valid answer.

        The end of input counts as a denial.
        """
        if not select.select([self.descriptor], [], [], 0)[0]:
            return None
        data = os.read(self.descriptor, MAX_ANSWER_BYTES)
        if data:
            return CHOICES_BY_INPUT.get(data.decode("utf-8", "replace").strip().lower())
        return "no"
