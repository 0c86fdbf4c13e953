"""Replays one side of a recording without I/O: what this side wrote, when it waited, and how it
ended.

The other side is a live program. If the recording has a line from the other side, the replay waits
for a matching line from the live program. The recorded ids of requests and messages are replaced
with the live program's ids.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import orjson

from shim.core.cast.format import RecordingRecord
from shim.core.cast.protocol_lines import (
    ANSWER_KINDS,
    INTERRUPT_KINDS,
    NOTE_REPORT,
    NOTE_SIGNAL,
    ProtocolLine,
    parse_protocol_line,
)
from shim.core.claude.control_responses import build_control_response_line
from shim.core.reading.bounded_dict import BoundedDict

# The limit for lines from the live program that wait for the replay. Further lines are dropped.
MAX_PENDING_LINES = 1000
MAX_IDS = 1000  # the limit for stored pairs of a recorded and a live id
MAX_ID_CHARS = 200  # longer ids are not replaced

SESSION_ID_PATTERN = re.compile(rb'"session_id"\s*:\s*("[0-9a-fA-F-]{36}")')
# These patterns match the live program's ids in a response and in a repeated user message. The same
# text at any other position is not an id, because a frontend may use ids such as "2".
REQUEST_ID_PATTERN = re.compile(
    rb'("request_id"\s*:\s*)("(?:[^"\\]|\\.){0,%d}")' % (6 * MAX_ID_CHARS)
)
UUID_PATTERN = re.compile(rb'("uuid"\s*:\s*)("(?:[^"\\]|\\.){0,%d}")' % (6 * MAX_ID_CHARS))
RESULT_LINE = re.compile(rb'\s*\{\s*"type"\s*:\s*"result"')
NO_END_REASON = "the recording ends here; the rest of the session is unknown"


class ReplayStep(NamedTuple):
    """The next step of a replay."""

    kind: str  # `say` (write data after a pause), `wait` (for a line or a signal), `end` or `fail`
    pause_s: float = 0.0  # the recorded pause before the data
    stream_code: str = ""  # the stream code, or NOTE_REPORT for a child's report file
    data: bytes = b""
    exit_code: int | None = None
    signal_name: str | None = None
    reason: str = ""


class RecordingReplayer:
    """Replays one side of a recording. The streams `output_streams` are written, and the lines in
    `input_stream` are awaited from the live program.

    With `waits_for_signals`, the replay waits for each recorded signal. `session_id` is the live
    session's id. `select_records` takes the first live message, and returns the records after the
    same recorded message. These records may be in a different recording. It returns None if no
    recording has the message.
    """

    def __init__(
        self,
        records: Iterable[RecordingRecord],
        *,
        output_streams: str,
        input_stream: str,
        waits_for_signals: bool = False,
        session_id: str = "",
        select_records: Callable[[bytes], Iterator[RecordingRecord] | None] | None = None,
    ) -> None:
        self._records = ReplayRecordCursor(iter(records), output_streams, input_stream)
        self._live_input = ReplayLiveInput()
        self._id_mapper = ReplayIdMapper(session_id)
        self._waits_for_signals = waits_for_signals
        self._select_records = select_records
        self._first_message = b""  # the first live message, passed to `select_records`
        self._expected_line: ProtocolLine | None = None  # the recorded line to wait for
        # recorded requests that the live program did not send
        self._unmatched_ids: set[bytes] = set()
        self._uses_protocol = self._is_turn_running = False
        # True if the recorded child was stopped because it was silent. The replay does not wait for
        # the signals that stopped it, because no frontend sends them.
        self._has_timed_out = False
        self._is_turn_finished = False  # whether the last returned step ends the turn
        self._is_at_line_start = True  # whether the last data ended with a newline
        self._is_dropping_line = False
        self._is_error_result = False  # whether the last result reports an error
        self._end_step: ReplayStep | None = None
        self.jump_count = 0  # the number of jumps to a different record

    # -- input from the live program ---------------------------------------------------------------

    def feed_line(self, line: bytes) -> None:
        protocol_line = parse_protocol_line(line)
        if not protocol_line.kind:
            self._live_input.text_count += 1
        elif protocol_line.kind in INTERRUPT_KINDS:
            self._apply_interrupt(protocol_line)
        elif (
            self._live_input.add_pending_line(protocol_line)
            and protocol_line.kind == "user"
            and self._select_records is not None
            and not self._first_message
        ):
            self._first_message = line

    def close_input(self) -> None:
        """Stop waiting for lines from the live program."""
        self._live_input.is_closed = True

    def feed_signal(self, signal_name: str) -> None:
        """Continue after the recorded signal. If the signal was not recorded, end the replay."""
        note_kinds = [NOTE_SIGNAL]
        if self._records.input_stream != "I":
            note_kinds.append("caught")
        self._start_jump()
        while (record := self._records.peek()) is not None and record.code != "x":
            self._records.skip_record_and_get_delay()
            fields = record.fields
            if (
                record.code == "n"
                and fields.get("kind") in note_kinds
                and fields.get("signal") == signal_name
            ):
                self._expected_line = None
                return
        self._end_step = ReplayStep("end", signal_name=signal_name)

    def _start_jump(self) -> None:
        """Prepare to continue the replay at a different record. If the last returned step was the
        end of a turn, it no longer counts as the end.
        """
        self.jump_count += 1
        self._is_turn_finished = False

    def _apply_interrupt(self, live_line: ProtocolLine) -> None:
        """Continue the replay after the interrupt that was recorded in this turn. If no interrupt
        was recorded, end the turn.
        """
        expected_line = self._expected_line
        self._expected_line = None
        if expected_line is not None and expected_line.kind in INTERRUPT_KINDS:
            self._pair_lines(expected_line, live_line)
            return
        if not self._is_turn_running:
            self._expected_line = expected_line
            self._live_input.answer_control_request(live_line)
            return
        self._start_jump()
        while (record := self._records.peek()) is not None and record.code != "x":
            if record.code == self._records.input_stream:
                recorded_line = self._records.take_input_line()
                if recorded_line is not None and recorded_line.kind in INTERRUPT_KINDS:
                    self._pair_lines(recorded_line, live_line)
                    return
                if recorded_line is not None and recorded_line.kind == "user":
                    break
            else:
                self._records.skip_record_and_get_delay()
        self._live_input.answer_control_request(live_line)
        self._end_step = ReplayStep("end", signal_name="SIGINT")

    # -- steps -------------------------------------------------------------------------------------

    def take_next_step(self) -> ReplayStep:
        """Return the next step of the replay. Each step is returned once. Only a `wait` step is
        returned again until the awaited input has arrived.
        """
        if (
            self._expected_line is not None
            and self._expected_line.kind == "user"
            and self._first_message
            and not self._switch_recording()
        ):
            return self._end_step or ReplayStep("fail")
        if self._is_turn_finished:
            self._is_turn_running = self._is_turn_finished = False
        if (response_step := self._take_response_step()) is not None:
            return response_step
        if self._end_step is not None:
            return self._end_step
        while True:
            if self._expected_line is not None:
                if (step := self._match_input(self._expected_line)) is not None:
                    return step
                continue
            record = self._records.peek()
            if record is None or record.code == "x":
                return self._build_end_step(record)
            if record.code == self._records.input_stream:
                self._expect_input()
            elif record.code == "n":
                if (step := self._apply_note(record)) is not None:
                    return step
            elif (step := self._build_output_step(record)) is not None:
                return step

    def _take_response_step(self) -> ReplayStep | None:
        """Return a step with the next response to the live program, or None if there is no response
        to send.
        """
        if not self._live_input.responses:
            return None
        response = self._live_input.responses.popleft()
        return ReplayStep("say", stream_code=self._records.output_streams[0], data=response)

    def _switch_recording(self) -> bool:
        """Continue in the recording that has the first live message. Return whether there is such a
        recording.
        """
        select_records = self._select_records
        self._select_records = None
        records = None
        if select_records is not None:
            records = select_records(self._first_message)
        self._first_message = b""
        if records is None:
            self._end_step = ReplayStep("fail", reason="no recording starts with this message")
            return False
        self._records.switch_records(records)
        self._expected_line = None
        return True

    def skip_awaited_event(self) -> None:
        """Stop waiting for an event that has not arrived, and continue the replay."""
        record = self._records.peek()
        if self._expected_line is not None:
            self._expected_line = None
        elif record is not None and record.code == "n":
            self._records.skip_record_and_get_delay()
        else:
            self._live_input.is_closed = True

    def _build_output_step(self, record: RecordingRecord) -> ReplayStep | None:
        pause_s = self._records.skip_record_and_get_delay()
        data = record.data
        if record.code != self._records.output_streams[0]:
            return ReplayStep("say", pause_s, record.code, data)
        if self._is_at_line_start and self._uses_protocol:
            match = None
            if b'"control_response"' in data:
                match = REQUEST_ID_PATTERN.search(data)
            self._is_dropping_line = match is not None and match[2] in self._unmatched_ids
        if self._is_at_line_start and RESULT_LINE.match(data) is not None:
            self._is_turn_finished = True
            self._is_error_result = b'"is_error":true' in data
        self._is_at_line_start = data.endswith(b"\n")
        if self._is_dropping_line:
            return None
        return ReplayStep("say", pause_s, record.code, self._id_mapper.replace_ids(data))

    def _expect_input(self) -> None:
        """Wait for the live line that matches the next recorded line. Consecutive lines of plain
        text count as one line.
        """
        recorded_line = self._records.take_input_line()
        if recorded_line is None:
            return
        self._expected_line = recorded_line
        if recorded_line.kind:
            self._uses_protocol = True
            return
        while (
            record := self._records.peek()
        ) is not None and record.code == self._records.input_stream:
            if parse_protocol_line(record.data).kind:
                return
            self._records.skip_record_and_get_delay()

    def _match_input(self, recorded_line: ProtocolLine) -> ReplayStep | None:
        """Compare a recorded line with the lines from the live program. Return None if the replay
        can continue, otherwise the step to return next, such as `wait`.
        """
        if not recorded_line.kind:
            if (
                self._live_input.text_count
                or self._live_input.is_closed
                or self._live_input.lines
                or self._uses_protocol
            ):
                self._live_input.text_count = 0
                self._expected_line = None
                return None
            return ReplayStep("wait", reason="a line")
        if (live_line := self._live_input.take_matching_line(recorded_line)) is not None:
            self._expected_line = None
            return self._pair_lines(recorded_line, live_line)
        if self._live_input.is_closed or (
            recorded_line.kind.startswith("control_request/") and self._live_input.has_message
        ):
            if len(self._unmatched_ids) < MAX_IDS:
                self._unmatched_ids.add(encode_protocol_id(recorded_line.id))
            if recorded_line.kind == "user":
                self._is_turn_running = True
            self._expected_line = None
            return None
        return self._answer_requests_and_wait(recorded_line.kind)

    def _answer_requests_and_wait(self, reason: str) -> ReplayStep:
        """Return a step that answers the live program's requests, or a `wait` step if there are
        none.
        """
        self._live_input.answer_pending_control_requests()
        return self._take_response_step() or ReplayStep("wait", reason=reason)

    def _pair_lines(
        self, recorded_line: ProtocolLine, live_line: ProtocolLine
    ) -> ReplayStep | None:
        """Pair a recorded line with a live line. If the two lines contain different decisions,
        return a step that ends the replay.
        """
        if recorded_line.kind == "user":
            self._is_turn_running = True
        if (
            recorded_line.kind in ANSWER_KINDS
            and recorded_line.decision
            and live_line.decision
            and recorded_line.decision != live_line.decision
        ):
            reason = (
                f"the recording continues with {recorded_line.decision}, but the answer is now "
                f"{live_line.decision}"
            )
            self._end_step = ReplayStep("fail", reason=reason)
            return self._end_step
        self._id_mapper.add_id_pair(recorded_line, live_line)
        return None

    def _apply_note(self, record: RecordingRecord) -> ReplayStep | None:
        kind = record.fields.get("kind")
        if kind == NOTE_REPORT and self._records.output_streams[0] != "O":
            return ReplayStep(
                "say",
                self._records.skip_record_and_get_delay(),
                NOTE_REPORT,
                orjson.dumps(record.fields.get("report")),
            )
        if kind == "timeout":
            self._has_timed_out = True
        if self._waits_for_signals and kind == NOTE_SIGNAL and not self._has_timed_out:
            return ReplayStep("wait", reason="signal")
        self._records.skip_next_record()
        return None

    def _build_end_step(self, record: RecordingRecord | None) -> ReplayStep:
        """Return the step that ends the replay. If the replayed program uses a protocol, the replay
        first waits for the end of the program's input.
        """
        if self._uses_protocol and not self._is_turn_running and not self._live_input.is_closed:
            if self._live_input.has_message:
                return ReplayStep("fail", reason="the recording has no further message")
            step = self._answer_requests_and_wait("the end of stdin")
            self._live_input.lines.clear()
            return step
        if record is None and self._records.output_streams[0] == "O":
            return ReplayStep("end", exit_code=int(self._is_error_result))
        if record is None:
            return ReplayStep("fail", reason=NO_END_REASON)
        pause_s = 0.0
        if not self._uses_protocol:
            pause_s = max(record.time_s - self._records.time_s, 0.0)
        exit_code = record.fields.get("code")
        signal_name = record.fields.get("signal")
        if isinstance(signal_name, str):
            return ReplayStep("end", pause_s, signal_name=signal_name)
        return ReplayStep("end", pause_s, exit_code=exit_code if isinstance(exit_code, int) else 0)


class ReplayRecordCursor:
    """Reads the records of one side of a recording, with a lookahead of one record."""

    def __init__(
        self, records: Iterator[RecordingRecord], output_streams: str, input_stream: str
    ) -> None:
        self.output_streams = output_streams
        self.input_stream = input_stream
        self.time_s = 0.0  # the time of the last skipped record
        self._records = records
        self._next_record: RecordingRecord | None = None
        self._partial_line = b""  # the beginning of an incomplete input line

    def switch_records(self, records: Iterator[RecordingRecord]) -> None:
        """Continue with different records."""
        self._records = records
        self._next_record = None

    def peek(self) -> RecordingRecord | None:
        """Return the next record, or None at the end of the recording."""
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
        """Skip the next record. Return the seconds between the previous record and this one."""
        record = self._next_record
        self._next_record = None
        assert record is not None
        pause_s = record.time_s - self.time_s
        self.time_s = record.time_s
        return max(pause_s, 0.0)

    def skip_next_record(self) -> None:
        """Skip the next record. Its delay is added to the delay of the record after it."""
        self._next_record = None

    def take_input_line(self) -> ProtocolLine | None:
        """Skip the next record, which belongs to `input_stream`. Return its line, or None if the
        line is incomplete.
        """
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
        line = self._partial_line
        self._partial_line = b""
        return parse_protocol_line(line)


class ReplayLiveInput:
    """The lines from the live program that the replay has not used yet."""

    def __init__(self) -> None:
        self.lines = deque[ProtocolLine]()
        self.text_count = 0  # the number of lines that belong to no protocol
        self.is_closed = False
        self.responses = deque[bytes]()  # responses to requests that were not recorded

    def add_pending_line(self, line: ProtocolLine) -> bool:
        """Store a line from the live program. Return False if too many lines are stored already."""
        if len(self.lines) >= MAX_PENDING_LINES:
            return False
        self.lines.append(line)
        return True

    def take_matching_line(self, recorded_line: ProtocolLine) -> ProtocolLine | None:
        """Remove and return the live line that matches a recorded line, or return None."""
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
        """Queue a successful response to a request that was not recorded. The request has no real
        effect in a replay.
        """
        if request.kind.startswith("control_request/") and len(self.responses) < MAX_PENDING_LINES:
            response = {"subtype": "success", "request_id": request.id, "response": {}}
            self.responses.append(orjson.dumps(build_control_response_line(response)) + b"\n")

    def answer_pending_control_requests(self) -> None:
        """Queue a successful response to each pending request."""
        for line in [line for line in self.lines if line.kind.startswith("control_request/")]:
            self.lines.remove(line)
            self.answer_control_request(line)


class ReplayIdMapper:
    """Replaces recorded ids with live ids. `session_id` is the live session's id, or ""."""

    def __init__(self, session_id: str) -> None:
        if session_id:
            self._session_id = encode_protocol_id(session_id)
        else:
            self._session_id = b""
        self._session_id_pair: tuple[bytes, bytes] | None = None  # the recorded id and the live id
        self._ids = BoundedDict[bytes, bytes](MAX_IDS)

    def add_id_pair(self, recorded_line: ProtocolLine, live_line: ProtocolLine) -> None:
        """Store the id in a recorded line with the id in the matching live line."""
        if (
            recorded_line.id
            and live_line.id != recorded_line.id
            and 0 < len(live_line.id) <= MAX_ID_CHARS
        ):
            self._ids[encode_protocol_id(recorded_line.id)] = encode_protocol_id(live_line.id)

    def replace_ids(self, data: bytes) -> bytes:
        """Return a recorded line with its ids replaced with live ids."""
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
