"""The person at the terminal, who is asked whether a call may run: one question at a time, y, n or always."""

import os
import select
import termios
from collections import deque
from collections.abc import Mapping
from typing import Any

from shim.bridge.answering import WORDS, Question, question_of

ANSWER_BYTES = 4096  # a terminal hands over no longer line


class Person:
    """Reads the answers from the terminal `descriptor`. `asked` is the question that is open."""

    def __init__(self, descriptor: int, cwd: str) -> None:
        self.descriptor = descriptor
        self.asked: Question | None = None
        self._cwd = cwd
        self._waiting = deque[Mapping[str, Any]]()

    def hear(self, line: Mapping[str, Any]) -> bool:
        """A question of the drop-in's. Returns whether it has to wait for the answer to another one."""
        if self.asked is not None:
            self._waiting.append(line)
            return True
        # What was typed before the question is no answer to it.
        termios.tcflush(self.descriptor, termios.TCIFLUSH)
        self.asked = question_of(str(line.get("request_id")), line["request"], self._cwd)
        return False

    def withdraw(self, identity: str) -> bool:
        """A question needs no answer any more. Returns whether it was the open one."""
        self._waiting = deque(line for line in self._waiting if str(line.get("request_id")) != identity)
        if self.asked is None or self.asked.identity != identity:
            return False
        self.asked = None
        return True

    def forget(self) -> None:
        """The turn is over, and with it every question."""
        self.asked = None
        self._waiting.clear()

    def next(self) -> Mapping[str, Any] | None:
        """The question that has waited longest, None if there is none."""
        return self._waiting.popleft() if self._waiting else None

    def read(self) -> str | None:
        """The answer to the open question as one of `WORDS`' values; None where the line is no answer.

        The end of input is a no.
        """
        if not select.select([self.descriptor], [], [], 0)[0]:
            return None
        data = os.read(self.descriptor, ANSWER_BYTES)
        return WORDS.get(data.decode("utf-8", "replace").strip().lower()) if data else "no"
