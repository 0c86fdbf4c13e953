"""The person at the terminal, who is asked whether a call may run: one question at a time, y, n or always."""

import os
import select
import termios

from shim.bridge.answering import WORDS, OpenQuestions

ANSWER_BYTES = 4096  # a terminal hands over no longer line


class Person:
    """Reads the answers to `questions` from the terminal `descriptor`."""

    def __init__(self, descriptor: int, cwd: str) -> None:
        self.descriptor = descriptor
        self.questions = OpenQuestions(cwd)

    def listen(self) -> None:
        """Another question is put: what was typed before it is no answer to it."""
        termios.tcflush(self.descriptor, termios.TCIFLUSH)

    def read(self) -> str | None:
        """The answer to the open question as one of `WORDS`' values; None where the line is no answer.

        The end of input is a no.
        """
        if not select.select([self.descriptor], [], [], 0)[0]:
            return None
        data = os.read(self.descriptor, ANSWER_BYTES)
        return WORDS.get(data.decode("utf-8", "replace").strip().lower()) if data else "no"
