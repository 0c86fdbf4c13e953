"""Replays one side of a recording: what it says next, what it waits for, how it ends. Sans-IO.

The other side is live. Its lines are paired with the recorded ones: the script waits where the
recording has a line of the other side, and replaces recorded ids of its requests and messages by
today's.
"""

import re
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
from shim.core.cast.replay_sides import (
    MAX_IDS,
    REQUEST_ID_PATTERN,
    ReplayIdMapper,
    ReplayLiveInput,
    ReplayRecordCursor,
    encode_protocol_id,
)

RESULT_LINE = re.compile(rb'\s*\{\s*"type"\s*:\s*"result"')
NO_END_REASON = "the recording ends here: how the session went on is not known"


class ReplayStep(NamedTuple):
    """What comes next: `say` data after a pause, `wait` for a line or a signal, `end`, or `fail`
    with a reason.

    `stream_code` is the stream of the data, or REPORT for the child's file. `pause_s` is the
    recorded one, in seconds.
    """

    kind: str
    pause_s: float = 0.0
    stream_code: str = ""
    data: bytes = b""
    exit_code: int | None = None
    signal_name: str | None = None
    reason: str = ""


class RecordingReplayer:
    """Replays the records of one side: `output_streams` are its output streams, `input_stream` is
    its input stream.

    `waits_for_signals`: wait for a signal where the recording has one. `session_id` is today's id
    of the session. `select_records` takes today's first message, and returns the records from the
    same message on, perhaps of another recording; None if no recording has it.
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
        self._first_message = b""  # the first message, for `select_records`
        # the recorded line that the script waits for
        self._expected_line: ProtocolLine | None = None
        self._unmatched_ids: set[bytes] = set()  # recorded requests that nobody made today
        self._uses_protocol = self._is_turn_running = False
        # the recorded child was ended for its silence; no frontend repeats that signal
        self._has_timed_out = False
        self._is_turn_finished = False  # the turn is over once the last step is said
        self._is_at_line_start = True  # the last piece ended a line
        self._is_dropping_line = False
        self._is_error_result = False  # what the last result says
        self._end_step: ReplayStep | None = None
        self.jump_count = 0  # how often the script went on at another place

    # -- what the other side does ------------------------------------------------------------------

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
        ):
            self._first_message = self._first_message or line

    def close_input(self) -> None:
        """The other side has closed: stop waiting for its lines."""
        self._live_input.is_closed = True

    def feed_signal(self, signal_name: str) -> None:
        """A signal came: go on after the recorded one, or end by it if the recording has none."""
        # the kinds of notes about a signal
        note_kinds = (
            (NOTE_SIGNAL,) if self._records.input_stream == "I" else ("caught", NOTE_SIGNAL)
        )
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
        """Continue at another place, without the last step."""
        self.jump_count += 1
        self._is_turn_finished = False

    def _apply_interrupt(self, live_line: ProtocolLine) -> None:
        """Go on after the recorded interrupt of this turn, or end the turn if the recording has
        none.
        """
        expected_line, self._expected_line = self._expected_line, None
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

    # -- what comes next ---------------------------------------------------------------------------

    def take_next_step(self) -> ReplayStep:
        """What comes next. After a `wait`, ask again when something happened; other steps are
        returned once.
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
        if self._live_input.responses:
            return ReplayStep(
                "say",
                stream_code=self._records.output_streams[0],
                data=self._live_input.responses.popleft(),
            )
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
                if (step := self._expect_input()) is not None:
                    return step
            elif record.code == "n":
                if (step := self._apply_note(record)) is not None:
                    return step
            elif (step := self._build_output_step(record)) is not None:
                return step

    def _switch_recording(self) -> bool:
        """Whether a recording has the first message; if so, continue there."""
        select_records, self._select_records = self._select_records, None
        records = select_records(self._first_message) if select_records is not None else None
        self._first_message = b""
        if records is None:
            self._end_step = ReplayStep(
                "fail", reason="no recording there begins with this message"
            )
            return False
        self._records.switch_records(records)
        self._expected_line = None
        return True

    def skip_awaited_event(self) -> None:
        """Continue without the awaited event, which did not come."""
        record = self._records.peek()
        if self._expected_line is not None:
            self._expected_line = None
        elif record is not None and record.code == "n":
            self._records.skip_record_and_get_delay()
        else:
            self._live_input.is_closed = True

    def _build_output_step(self, record: RecordingRecord) -> ReplayStep | None:
        pause_s, data = self._records.skip_record_and_get_delay(), record.data
        if record.code != self._records.output_streams[0]:
            return ReplayStep("say", pause_s, record.code, data)
        if self._is_at_line_start and self._uses_protocol:
            match = REQUEST_ID_PATTERN.search(data) if b'"control_response"' in data else None
            self._is_dropping_line = match is not None and match[2] in self._unmatched_ids
        if self._is_at_line_start and RESULT_LINE.match(data) is not None:
            self._is_turn_finished = True
            self._is_error_result = b'"is_error":true' in data
        self._is_at_line_start = data.endswith(b"\n")
        return (
            None
            if self._is_dropping_line
            else ReplayStep("say", pause_s, record.code, self._id_mapper.replace_ids(data))
        )

    def _expect_input(self) -> ReplayStep | None:
        """The recorded side read something here."""
        recorded_line = self._records.take_input_line()
        if recorded_line is None:
            return None
        if recorded_line.kind:
            self._uses_protocol = True
            self._expected_line = recorded_line
            return None
        self._expected_line = recorded_line  # text: consecutive lines are one
        while (
            record := self._records.peek()
        ) is not None and record.code == self._records.input_stream:
            if parse_protocol_line(record.data).kind:
                break
            self._records.skip_record_and_get_delay()
        return None

    def _match_input(self, recorded_line: ProtocolLine) -> ReplayStep | None:
        """A step if the awaited line has not come; None if the script can go on."""
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
            self._is_turn_running = self._is_turn_running or recorded_line.kind == "user"
            self._expected_line = None
            return None
        self._live_input.answer_pending_control_requests()
        if self._live_input.responses:
            return ReplayStep(
                "say",
                stream_code=self._records.output_streams[0],
                data=self._live_input.responses.popleft(),
            )
        return ReplayStep("wait", reason=recorded_line.kind)

    def _pair_lines(
        self, recorded_line: ProtocolLine, live_line: ProtocolLine
    ) -> ReplayStep | None:
        """Pair a recorded line with today's."""
        if recorded_line.kind == "user":
            self._is_turn_running = True
        if (
            recorded_line.kind in ANSWER_KINDS
            and recorded_line.decision
            and live_line.decision
            and recorded_line.decision != live_line.decision
        ):
            reason = f"the recording goes on with {recorded_line.decision}, and the answer is {live_line.decision} now"
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
        self._has_timed_out = self._has_timed_out or kind == "timeout"
        if self._waits_for_signals and kind == NOTE_SIGNAL and not self._has_timed_out:
            return ReplayStep("wait", reason="signal")
        self._records.skip_next_record()
        return None

    def _build_end_step(self, record: RecordingRecord | None) -> ReplayStep:
        """How it ended. A recorded program that ended with its input waits for the end of its
        input.
        """
        if self._uses_protocol and not self._is_turn_running and not self._live_input.is_closed:
            if self._live_input.has_message:
                return ReplayStep("fail", reason="the recording has no further message")
            self._live_input.answer_pending_control_requests()
            self._live_input.lines.clear()
            if self._live_input.responses:
                return ReplayStep(
                    "say",
                    stream_code=self._records.output_streams[0],
                    data=self._live_input.responses.popleft(),
                )
            return ReplayStep("wait", reason="the end of stdin")
        if record is None and self._records.output_streams[0] == "O":
            return ReplayStep("end", exit_code=int(self._is_error_result))
        if record is None:
            return ReplayStep("fail", reason=NO_END_REASON)
        pause_s = 0.0 if self._uses_protocol else max(record.time_s - self._records.time_s, 0.0)
        exit_code, signal_name = record.fields.get("code"), record.fields.get("signal")
        if isinstance(signal_name, str):
            return ReplayStep("end", pause_s, signal_name=signal_name)
        return ReplayStep("end", pause_s, exit_code=exit_code if isinstance(exit_code, int) else 0)
