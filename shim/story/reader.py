"""Reads recordings from files and converts them to session steps. The steps come from the
frontend's recorded output or from the child's.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from shim.adapters import get_adapter
from shim.conversation.drivers.open_translation import create_standalone_child_stream
from shim.core.adapter.child_stream import ChildStream
from shim.core.cast.format import STREAMS, RecordingHeader, RecordingRecord
from shim.core.cast.protocol_lines import NOTE_RESULT, NOTE_SIGNAL
from shim.core.dialects import resolve_dialect
from shim.core.errors import ShimError
from shim.core.reading.head_and_tail import HeadTailBuffer
from shim.core.reading.json_text import parse_json_object
from shim.core.reading.lines import LineSplitter
from shim.core.reading.values import as_dict, as_str
from shim.core.turn.outcome import ChildExit
from shim.recording.recorded_run import parse_recorded_invocation
from shim.recording.recording_file import Recording
from shim.story.model import SessionStepChange, SessionStepTracker

MAX_PROMPT_BYTES = 1024 * 1024  # per prompt from stdin; a person does not read more
# The limit for a line that was recorded in several pieces.
# It is 16 times the longest line that the drop-in sends to an SDK.
MAX_LINE_BYTES = 16 * 1024 * 1024
TOO_LONG_PHRASE = "could not be read because of excessive length"
_SIGNAL_NAME = re.compile(r"SIG[A-Z0-9]{1,16}\Z|signal \d{1,4}\Z")  # a recorded signal name
CAUGHT_SIGINT = {"kind": "caught", "signal": "SIGINT"}  # the recorder note of an interrupt
MAX_TRANSLATED_LINE_BYTES = 1_000_000  # per translated line, as for an SDK


class RecordedSessionStepReader:
    """Converts the records of a recording to session step changes.

    If the frontend received Claude's stream, the changes come from the recorded stream. Otherwise
    the changes come from a new translation of the child's output. If no vendor on this machine can
    translate it, the frontend's output is read as text.
    """

    def __init__(self, header: RecordingHeader) -> None:
        self.story = SessionStepTracker()
        self._header = header
        self._invocation = parse_recorded_invocation(header)
        is_claude_stream = False
        if self._invocation.output_format == "stream-json":
            is_claude_stream = header.dialect == "claude"
        if is_claude_stream:
            self._source_letter = "O"
        else:
            self._source_letter = "o"
        self._takes_messages = self._invocation.input_format == "stream-json"
        self._prompt_added = self._takes_messages
        self._stdin = bytearray()
        self._prompt_time_s = 0.0
        self._splitters = {letter: LineSplitter(MAX_LINE_BYTES) for letter in STREAMS}
        self._child_stream: ChildStream | None = None
        self._is_translatable = False  # a child's output can be translated
        self._stderr = HeadTailBuffer()
        self._time_s = 0.0
        self._signalled_child: object = None  # the child that received a signal from the shim
        # The time and the event of a translated result whose `result` note is not read yet.
        self._pending_result: tuple[float, Mapping[str, Any]] | None = None
        self._has_unnoted_result = False  # a result was added without its note

    @property
    def skipped_line_count(self) -> int:
        """Return the number of lines that were too long to be read."""
        return sum(splitter.skipped_lines for splitter in self._splitters.values())

    def read_step_changes(self, recording: Recording) -> Iterator[tuple[float, SessionStepChange]]:
        """Yield all step changes, each with its time in seconds since the start of the recording."""
        for record in recording.read_records():
            yield from ((record.time_s, change) for change in self.feed(record))
        yield from ((self._time_s, change) for change in self.close())

    def feed(self, record: RecordingRecord) -> list[SessionStepChange]:
        self._time_s = record.time_s
        letter = record.code
        if letter == "i":
            return self._flush_pending_result() + self._add_sent_record(record)
        if letter == "e":
            self._stderr.add(record.data)
            return []
        changes = []
        if not self._prompt_added:
            changes = self._add_prompt()
        if letter == "n":
            changes += self._add_note(record.fields)
        elif letter == self._source_letter == "O":
            changes += self._add_events(self._complete_line(record))
        elif self._source_letter == "o" and letter in "osx":
            changes += self._add_child_record(record)
        elif letter == "O" and not self._is_translatable:
            changes += self._add_plain_output(record)
        return changes

    def close(self) -> list[SessionStepChange]:
        changes = []
        if not self._prompt_added:
            changes = self._add_prompt()
        for splitter in self._splitters.values():
            splitter.close()
        if self._child_stream is not None and not self._child_stream.is_turn_finished:
            lines, _ = self._child_stream.close(None, self._stderr.to_text())
            changes += self._add_translated_lines(lines)
        return changes + self._flush_pending_result() + self.story.end_open_steps(self._time_s)

    def _add_prompt(self) -> list[SessionStepChange]:
        """Add the prompt from the command line and from stdin. This is done once stdin is complete,
        before the first record of the output is added.
        """
        self._prompt_added = True
        texts = [as_str(self._invocation.prompt), self._stdin.decode("utf-8", "replace").strip()]
        text = "\n".join(filter(None, texts))
        if text:
            return self.story.add_user_prompt(self._prompt_time_s, text)
        return []

    def _add_sent_record(self, record: RecordingRecord) -> list[SessionStepChange]:
        if not self._takes_messages:
            self._prompt_time_s = record.time_s
            self._stdin += record.data[: max(MAX_PROMPT_BYTES - len(self._stdin), 0)]
            return []
        return [
            change
            for event in parse_json_objects(self._complete_line(record))
            for change in self.story.add_frontend_message(self._time_s, event)
        ]

    def _add_events(self, lines: bytes) -> list[SessionStepChange]:
        return [
            change
            for event in parse_json_objects(lines)
            for change in self.story.add_claude_event(self._time_s, event)
        ]

    def _add_note(self, note: Mapping[str, Any]) -> list[SessionStepChange]:
        """Add a recorder note as a step. A `result` note is not a step; it completes the turn's
        result.
        """
        kind = note.get("kind")
        if kind == NOTE_RESULT:
            return self._add_result_note(note.get("result"))
        if kind == NOTE_SIGNAL:
            self._signalled_child = note.get("child")
        elif (
            note == CAUGHT_SIGINT
            and self._child_stream is not None
            and not self._child_stream.is_turn_finished
        ):
            self._child_stream.turn.record_interrupt()
        return self.story.add_recorder_note(self._time_s, note)

    def _add_child_record(self, record: RecordingRecord) -> list[SessionStepChange]:
        """Translate a record of the child's output or exit. A translated result is stored until the
        following `result` note arrives.
        """
        changes = []
        if record.code != "x":
            changes = self._flush_pending_result()
        return changes + self._add_translated_lines(self._translate_record(record))

    def _add_translated_lines(self, lines: bytes) -> list[SessionStepChange]:
        changes = list[SessionStepChange]()
        for event in parse_json_objects(lines):
            if event.get("type") == "result":
                self._pending_result = self._time_s, event
            else:
                changes += self.story.add_claude_event(self._time_s, event)
        return changes

    def _add_result_note(self, note: object) -> list[SessionStepChange]:
        """Add the turn's result from a `result` note. The note's fields override the fields of the
        translated result. For text output that cannot be translated, the note is the only result.
        """
        fields = as_dict(note)
        if self._pending_result is not None:
            (time_s, event), self._pending_result = self._pending_result, None
            return self.story.add_claude_event(time_s, {**event, **fields, "type": "result"})
        had_result = self._has_unnoted_result
        self._has_unnoted_result = False
        if (
            self._source_letter == "o"
            and self._invocation.output_format == "text"
            and not self._is_translatable
            and not had_result
        ):
            return self.story.add_claude_event(self._time_s, {**fields, "type": "result"})
        return []

    def _flush_pending_result(self) -> list[SessionStepChange]:
        """Add the stored result, because no `result` note follows. Earlier versions of the shim did
        not record this note.
        """
        if self._pending_result is None:
            return []
        (time_s, event), self._pending_result, self._has_unnoted_result = (
            self._pending_result,
            None,
            True,
        )
        return self.story.add_claude_event(time_s, event)

    def _add_plain_output(self, record: RecordingRecord) -> list[SessionStepChange]:
        """Add the frontend's output if it is not Claude's stream: a single JSON result, Yume's
        lines, or text.
        """
        if resolve_dialect(self._header.dialect).is_flat:
            return [
                change
                for event in parse_json_objects(self._complete_line(record))
                for change in self._add_yume_event(event)
            ]
        if self._invocation.output_format == "json":
            return self._add_events(self._complete_line(record))
        return self._add_text(record.data.decode("utf-8", "replace"))

    def _add_yume_event(self, event: Mapping[str, Any]) -> list[SessionStepChange]:
        """Add a line of Yume's stream. Text lines have their own form; other lines have the form of
        Claude's stream.
        """
        if event.get("type") == "text":
            return self._add_text(event.get("content"))
        return self.story.add_claude_event(self._time_s, event)

    def _add_text(self, text: object) -> list[SessionStepChange]:
        delta = {"type": "content_block_delta", "delta": {"text": text}}
        return self.story.add_claude_event(self._time_s, {"type": "stream_event", "event": delta})

    def _complete_line(self, record: RecordingRecord) -> bytes:
        """Return the lines that a record completes, or b""."""
        return b"\n".join(self._splitters[record.code].feed(record.data))

    def _translate_record(self, record: RecordingRecord) -> bytes:
        if record.code == "s":
            self._child_stream = self._open_child_stream(record.fields.get("vendor"))
            if self._child_stream is not None:
                self._is_translatable = True
            self._stderr = HeadTailBuffer()
            return b""
        child_stream = self._child_stream
        if child_stream is None:
            return b""
        if record.code == "x":
            is_our_signal = False
            if self._signalled_child is not None:
                is_our_signal = self._signalled_child == record.fields.get("child")
            reported_exit = None
            if not is_our_signal:
                reported_exit = parse_child_exit(record.fields)
            if child_stream.is_turn_finished:
                return b""
            lines, _ = child_stream.close(reported_exit, self._stderr.to_text())
            return lines
        if child_stream.is_turn_finished and self._takes_messages:
            child_stream.start_turn()
        lines, _ = child_stream.feed(record.data)
        if (
            child_stream.turn.outcome_tracker.is_finalized
            and not child_stream.is_turn_finished
            and self._takes_messages
        ):
            lines += child_stream.finish()[0]
        return lines

    def _open_child_stream(self, child_vendor: object) -> ChildStream | None:
        """Create a translation for the output of the next child, which continues the same
        conversation.

        `child_vendor` is the child's vendor if it differs from the header's. In a fallback list, a
        later vendor may answer.
        """
        if isinstance(child_vendor, str):
            vendor = child_vendor
        else:
            vendor = self._header.vendor
        try:
            child_stream = create_standalone_child_stream(
                vendor,
                include_partial_messages=True,
                terminator="none",
                stable_ids=True,
                max_line_bytes=MAX_TRANSLATED_LINE_BYTES,
            )
            if (previous_stream := self._child_stream) is not None:
                if vendor != previous_stream.turn.config.vendor.name:
                    # the new vendor starts its own session
                    previous_stream.turn.conversation.vendor_session_id = None
                return ChildStream(
                    get_adapter(vendor).translator_class,
                    child_stream.turn.config,
                    previous_stream.writer,
                    previous_stream,
                )
            return child_stream
        except ShimError:
            return None  # the vendor is unknown on this machine


def parse_json_objects(lines: bytes) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON objects among NDJSON lines. Other lines are skipped."""
    for line in lines.split(b"\n"):
        if event := parse_json_object(line):
            yield event


def parse_child_exit(fields: Mapping[str, Any]) -> ChildExit | None:
    """Return how a child exited, from the fields of its `x` record, or None if that is unknown."""
    code = fields.get("code")
    signal = fields.get("signal")
    if isinstance(signal, str) and _SIGNAL_NAME.match(signal):
        return ChildExit(signal=signal)
    if signal is None and code.__class__ is int:
        return ChildExit(code=code)
    return None
