"""The person at the terminal, who is asked whether a call may run: one question at a time, y, n or
always.
"""

import os
import select
import termios
from collections.abc import Iterator
from contextlib import contextmanager

from shim.bridge.decisions import CHOICES_BY_INPUT, PermissionPromptQueue

MAX_ANSWER_BYTES = 4096  # a terminal hands over no longer line


class TerminalAnswerReader:
    """Reads the answers to `questions` from the terminal `descriptor`."""

    def __init__(self, descriptor: int, cwd: str) -> None:
        self.descriptor = descriptor
        self.questions = PermissionPromptQueue(cwd)

    def discard_typeahead_and_enable_echo(self) -> None:
        """Another question is put: what was typed before it is no answer to it."""
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
            settings[3] = settings[3] | termios.ECHO if on else settings[3] & ~termios.ECHO
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
        """The answer to the open question as one of `WORDS`' values; None where the line is no
        answer.

        The end of input is a no.
        """
        if not select.select([self.descriptor], [], [], 0)[0]:
            return None
        data = os.read(self.descriptor, MAX_ANSWER_BYTES)
        return (
            CHOICES_BY_INPUT.get(data.decode("utf-8", "replace").strip().lower()) if data else "no"
        )
