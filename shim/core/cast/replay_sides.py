"""The two sides of a script: the records of the one, the lines of the live one, and the ids that
are paired.
"""

import re
from collections import deque
from collections.abc import Iterator

import orjson

from shim.core.cast.format import RecordingRecord
from shim.core.cast.protocol_lines import ANSWER_KINDS, ProtocolLine, parse_protocol_line
from shim.core.reading.bounded_dict import BoundedDict

# of the other side that are kept until the script waits for them; more are dropped
MAX_PENDING_LINES = 1000
MAX_IDS = 1000  # that are replaced
MAX_ID_CHARS = 200  # of one id; a longer one is not replaced

SESSION_ID_PATTERN = re.compile(rb'"session_id"\s*:\s*("[0-9a-fA-F-]{36}")')
# The places of the other side's ids in a line: in an answer, and in its repeated message. The same
# text in any other place is not an id: a frontend may number its requests, with ids like "2".
REQUEST_ID_PATTERN = re.compile(
    rb'("request_id"\s*:\s*)("(?:[^"\\]|\\.){0,%d}")' % (6 * MAX_ID_CHARS)
)
UUID_PATTERN = re.compile(rb'("uuid"\s*:\s*)("(?:[^"\\]|\\.){0,%d}")' % (6 * MAX_ID_CHARS))


class ReplayRecordCursor:
    """The records of one side, one ahead: `output_streams` are its output streams, `input_stream`
    is its input stream.
    """

    def __init__(
        self, records: Iterator[RecordingRecord], output_streams: str, input_stream: str
    ) -> None:
        self.output_streams = output_streams
        self.input_stream = input_stream
        self.time_s = 0.0  # the seconds of the last record that was taken
        self._records = records
        self._next_record: RecordingRecord | None = None
        self._partial_line = b""  # the pieces of a line of `input_stream` so far

    def switch_records(self, records: Iterator[RecordingRecord]) -> None:
        """Go on with other records."""
        self._records, self._next_record = records, None

    def peek(self) -> RecordingRecord | None:
        """The next record; None at the end of the recording."""
        while self._next_record is None:
            record = next(self._records, None)
            if record is not None and record.code == "s":
                self.time_s = record.time_s
            elif (
                record is None
                or record.code in self.output_streams
                or record.code in (self.input_stream, "x", "n")
            ):
                self._next_record = record
                break
        return self._next_record

    def skip_record_and_get_delay(self) -> float:
        """Pass the next record; the seconds since the one before."""
        record, self._next_record = self._next_record, None
        assert record is not None
        pause_s, self.time_s = record.time_s - self.time_s, record.time_s
        return max(pause_s, 0.0)

    def skip_next_record(self) -> None:
        """Pass the next record; the seconds before it count for the one behind it."""
        self._next_record = None

    def take_input_line(self) -> ProtocolLine | None:
        """Take the next record, of `input_stream`. Its line; None if it is not whole yet."""
        record = self.peek()
        assert record is not None
        self.skip_record_and_get_delay()
        self._partial_line += record.data
        next_record = self.peek()
        if (
            not self._partial_line.endswith(b"\n")
            and next_record is not None
            and next_record.code == self.input_stream
        ):
            return None
        line, self._partial_line = self._partial_line, b""
        return parse_protocol_line(line)


class ReplayLiveInput:
    """What the live side has sent and the script has not met yet.

    lines       its lines of the protocol
    text_count  how many of its lines are not of the protocol
    is_closed   it sends nothing more
    responses   lines for it: to requests that the recording does not have
    """

    def __init__(self) -> None:
        self.lines = deque[ProtocolLine]()
        self.text_count = 0
        self.is_closed = False
        self.responses = deque[bytes]()

    def add_pending_line(self, line: ProtocolLine) -> bool:
        """Keep a line; False if too many wait already."""
        if len(self.lines) >= MAX_PENDING_LINES:
            return False
        self.lines.append(line)
        return True

    def take_matching_line(self, recorded_line: ProtocolLine) -> ProtocolLine | None:
        """Take out the line that a recorded one stands for, if it has come."""
        for line in self.lines:
            if line.kind == recorded_line.kind and (
                recorded_line.kind not in ANSWER_KINDS or line.id == recorded_line.id
            ):
                self.lines.remove(line)
                return line
        return None

    @property
    def has_message(self) -> bool:
        return any(line.kind == "user" for line in self.lines)

    def answer_control_request(self, request: ProtocolLine) -> None:
        """Grant a request that the recording does not have: a replay does nothing real."""
        if request.kind.startswith("control_request/") and len(self.responses) < MAX_PENDING_LINES:
            response = {"subtype": "success", "request_id": request.id, "response": {}}
            self.responses.append(
                orjson.dumps({"type": "control_response", "response": response}) + b"\n"
            )

    def answer_pending_control_requests(self) -> None:
        """Grant all requests that wait."""
        for line in [line for line in self.lines if line.kind.startswith("control_request/")]:
            self.lines.remove(line)
            self.answer_control_request(line)


class ReplayIdMapper:
    """The ids of today for those of the recording. `session_id` is today's id of the session, or
    empty.
    """

    def __init__(self, session_id: str) -> None:
        self._session_id = encode_protocol_id(session_id) if session_id else b""
        self._session_id_pair: tuple[bytes, bytes] | None = None  # the recorded one, and today's
        self._ids = BoundedDict[bytes, bytes](MAX_IDS)

    def add_id_pair(self, recorded_line: ProtocolLine, live_line: ProtocolLine) -> None:
        """`live_line` stands today for the recorded line `recorded_line`."""
        if (
            recorded_line.id
            and live_line.id != recorded_line.id
            and 0 < len(live_line.id) <= MAX_ID_CHARS
        ):
            self._ids[encode_protocol_id(recorded_line.id)] = encode_protocol_id(live_line.id)

    def replace_ids(self, data: bytes) -> bytes:
        """A line with today's ids."""
        if self._ids and b'"control_response"' in data:
            data = REQUEST_ID_PATTERN.sub(self._replace_id, data, count=1)
        elif self._ids and b'"isReplay"' in data:
            data = UUID_PATTERN.sub(self._replace_id, data)
        if self._session_id:
            if (
                self._session_id_pair is None
                and (match := SESSION_ID_PATTERN.search(data)) is not None
            ):
                self._session_id_pair = match[1], self._session_id
            if self._session_id_pair is not None:
                data = data.replace(*self._session_id_pair)
        return data

    def _replace_id(self, match: re.Match[bytes]) -> bytes:
        return match[1] + self._ids.get(match[2], match[2])


def encode_protocol_id(protocol_id: str) -> bytes:
    return orjson.dumps(protocol_id)
