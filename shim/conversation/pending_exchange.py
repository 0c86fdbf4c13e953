"""Who waits for whom between a frontend and a real claude that talk through us: read off their
lines, as they pass.
"""

import re

# What the lines are looked at for. Nothing else of them is read.
USER_MESSAGE = re.compile(rb'"type"\s*:\s*"user"')
CONTROL_RESPONSE = re.compile(rb'"type"\s*:\s*"control_response"')
CONTROL_REQUEST_START = b'{"type":"control_request"'  # as the real one writes it
CONTROL_CANCEL_START = b'{"type":"control_cancel_request"'
REQUEST_ID = re.compile(rb'"request_id"\s*:\s*"([^"]{1,100})"')
MAX_OPEN_REQUESTS = 1000  # that wait for their answers and are told apart


class UnansweredRequestTracker:
    """What was said and not answered.

    `awaits_result`: the frontend waits for the answer to a message. `has_open_permission_request`:
    the frontend was asked and has not answered.
    """

    def __init__(self) -> None:
        self.awaits_result = False
        self._open_requests: set[bytes] = set()

    @property
    def has_open_permission_request(self) -> bool:
        """Whether the child waits for an answer of the frontend's."""
        return bool(self._open_requests)

    def track_frontend_message_or_response(self, line: bytes) -> bool:
        """A line of the frontend's; whether it is a message."""
        if self._open_requests and CONTROL_RESPONSE.search(line) is not None:
            self._open_requests.difference_update(REQUEST_ID.findall(line))
        is_message = USER_MESSAGE.search(line) is not None
        self.awaits_result = self.awaits_result or is_message
        return is_message

    def track_child_control_line(self, line: bytes) -> None:
        """A line of the child's: a question that is asked or taken back."""
        if line.startswith(CONTROL_REQUEST_START) and len(self._open_requests) < MAX_OPEN_REQUESTS:
            self._open_requests.update(REQUEST_ID.findall(line)[:1])
        elif self._open_requests and line.startswith(CONTROL_CANCEL_START):
            self._open_requests.difference_update(REQUEST_ID.findall(line)[:1])

    def record_permission_answer(self, line: bytes) -> None:
        """A question was answered by us, with this line."""
        self._open_requests.difference_update(REQUEST_ID.findall(line)[:1])

    def clear_unanswered_requests(self) -> None:
        """The turn has its result: no answer is waited for any more."""
        self.awaits_result = False
        self._open_requests.clear()
