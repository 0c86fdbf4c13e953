"""Who waits for whom between a frontend and a real claude that talk through us: read off their
lines, as they pass.
"""

import re

# What the lines are looked at for. Nothing else of them is read.
MESSAGE = re.compile(rb'"type"\s*:\s*"user"')
ANSWER = re.compile(rb'"type"\s*:\s*"control_response"')
QUESTION = b'{"type":"control_request"'  # as the real one writes it
CANCEL = b'{"type":"control_cancel_request"'
IDENTITY = re.compile(rb'"request_id"\s*:\s*"([^"]{1,100})"')
QUESTIONS = 1000  # that wait for their answers and are told apart


class Exchange:
    """What was said and not answered.

    `awaited`: the frontend waits for the answer to a message. `asking`: the frontend was asked and
    has not answered.
    """

    def __init__(self) -> None:
        self.awaited = False
        self._questions: set[bytes] = set()

    @property
    def asking(self) -> bool:
        """Whether the child waits for an answer of the frontend's."""
        return bool(self._questions)

    def heard(self, line: bytes) -> bool:
        """A line of the frontend's; whether it is a message."""
        if self._questions and ANSWER.search(line) is not None:
            self._questions.difference_update(IDENTITY.findall(line))
        message = MESSAGE.search(line) is not None
        self.awaited = self.awaited or message
        return message

    def said(self, line: bytes) -> None:
        """A line of the child's: a question that is asked or taken back."""
        if line.startswith(QUESTION) and len(self._questions) < QUESTIONS:
            self._questions.update(IDENTITY.findall(line)[:1])
        elif self._questions and line.startswith(CANCEL):
            self._questions.difference_update(IDENTITY.findall(line)[:1])

    def answered(self, line: bytes) -> None:
        """A question was answered by us, with this line."""
        self._questions.difference_update(IDENTITY.findall(line)[:1])

    def end(self) -> None:
        """The turn has its result: no answer is waited for any more."""
        self.awaited = False
        self._questions.clear()
