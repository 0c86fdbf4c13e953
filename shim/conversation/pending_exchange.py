"""Tracks unanswered requests between a frontend and a real claude by inspecting the lines that pass
through.
"""

import re

# The texts that identify the lines to be tracked. Of such a line, only the request id is read.
USER_MESSAGE = re.compile(rb'"type"\s*:\s*"user"')
CONTROL_RESPONSE = re.compile(rb'"type"\s*:\s*"control_response"')
CONTROL_REQUEST_START = b'{"type":"control_request"'  # as the real claude writes it
CONTROL_CANCEL_START = b'{"type":"control_cancel_request"'
REQUEST_ID = re.compile(rb'"request_id"\s*:\s*"([^"]{1,100})"')
MAX_OPEN_REQUESTS = 1000  # the number of open requests that are tracked individually


class UnansweredRequestTracker:
    """Tracks the messages and requests that have no answer yet.

    `awaits_result` tells whether the frontend is waiting for the result of a message.
    """

    def __init__(self) -> None:
        self.awaits_result = False
        self._open_requests: set[bytes] = set()

    @property
    def has_open_permission_request(self) -> bool:
        """Return whether the child is waiting for the frontend to answer a permission prompt."""
        return bool(self._open_requests)

    def track_frontend_message_or_response(self, line: bytes) -> bool:
        """Track a line from the frontend. Return whether the line is a message."""
        if self._open_requests and CONTROL_RESPONSE.search(line) is not None:
            self._open_requests.difference_update(REQUEST_ID.findall(line))
        is_message = USER_MESSAGE.search(line) is not None
        self.awaits_result |= is_message
        return is_message

    def track_child_control_line(self, line: bytes) -> None:
        """Track a line from the child that opens or cancels a request."""
        if line.startswith(CONTROL_REQUEST_START) and len(self._open_requests) < MAX_OPEN_REQUESTS:
            self._open_requests.update(REQUEST_ID.findall(line)[:1])
        elif self._open_requests and line.startswith(CONTROL_CANCEL_START):
            self._open_requests.difference_update(REQUEST_ID.findall(line)[:1])

    def record_permission_answer(self, line: bytes) -> None:
        """Mark a permission request as answered by the shim. `line` is the answer."""
        self._open_requests.difference_update(REQUEST_ID.findall(line)[:1])

    def clear_unanswered_requests(self) -> None:
        """Clear all unanswered requests after the turn's result."""
        self.awaits_result = False
        self._open_requests.clear()
