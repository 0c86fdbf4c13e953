"""The translation: a child's bytes in, Claude's bytes out. It is pure: drivers and `shim translate`
feed it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

import orjson

from shim.core.adapter.translator import Translator
from shim.core.errors import FailedVendorAttempt
from shim.core.reading.diagnostics import MAX_SAMPLE_CHARS, Diagnostics
from shim.core.reading.json_repair import PADDING, JsonRepairer
from shim.core.reading.lines import MAX_LINE_BYTES, LineSplitter, OpenSpillFile
from shim.core.turn.context import ConversationState, TurnConfig
from shim.core.turn.machine import CLOSED
from shim.core.turn.outcome import ChildExit
from shim.core.turn.turn import Turn

if TYPE_CHECKING:
    from shim.core.turn.context import OutputWriter

# Events that make a person or a program act. They are never believed from a repaired line (threats:
# forged lines).
_CONTROL_TYPES = ("control_request", "control_response", "control_cancel_request")


def wrap_turn_with_redaction(turn: Turn) -> Turn:
    """The turn, or where no secret may be said an object in its place that leaves them out."""
    if not turn.config.redacts_secrets:
        return turn
    from shim.core.secrets.redacted_turn import RedactedTurn

    return cast("Turn", RedactedTurn(turn))


class StreamTranslation:
    """One child's output on its way to the frontend.

    `feed` takes chunks of any size, `close` takes how the child ended; both give back whole lines
    to write.
    """

    def __init__(
        self,
        translator: Callable[..., Translator],
        config: TurnConfig,
        writer: "OutputWriter",
        previous_turn: Turn | None = None,
        *,
        max_line_bytes: int = MAX_LINE_BYTES,
        open_aside_file: OpenSpillFile | None = None,
    ) -> None:
        """`previous_turn` is the last turn of another child of the same conversation.

        A line of more than `max_line_bytes` bytes is skipped. A long line waits for its end in a
        file that `open_aside_file` opens.
        """
        self.writer = writer
        self.diagnostics = Diagnostics()
        self._line_limits = max_line_bytes, open_aside_file
        self._splitter = LineSplitter(max_line_bytes, open_aside_file)
        self._decoder = JsonRepairer(self.diagnostics)
        self._remaining_stderr: str | None = None
        self._skipped_count, self._first_skipped_line = 0, b""  # lines between two turns
        if previous_turn is None:
            turn = Turn(
                writer, config, ConversationState(config.session.thread_usage), self.diagnostics
            )
        else:
            turn = previous_turn.unredacted_turn.create_next(config, self.diagnostics)
        self._set_translator(
            translator(wrap_turn_with_redaction(turn), partial=writer.writes_partial_messages)
        )

    @property
    def turn(self) -> Turn:
        return self._translator.turn

    @property
    def is_finished(self) -> bool:
        """Whether the result is said: nothing that the child prints from now on is."""
        return self.turn.state is CLOSED

    def _set_translator(self, translator: Translator) -> None:
        self._translator = translator
        self._overrides_feed = type(translator).feed is not Translator.feed

    def feed(self, chunk: bytes) -> bytes:
        """Claude's lines for a chunk of the child's stdout."""
        # no name for the lines: a large one is gone before what it said is joined
        self._translate(self.split_lines(chunk))
        return self.writer.take_bytes()

    def split_lines(self, chunk: bytes) -> list[bytes]:
        """The lines that a chunk of the child's stdout completes; lines that were too long are
        counted.
        """
        lines = self._splitter.feed(chunk)
        if self._splitter.skipped_lines:
            self._record_long_lines()
        return lines

    def translate_lines(self, lines: list[bytes]) -> bytes:
        """Claude's lines for lines of the child's."""
        self._translate(lines)
        return self.writer.take_bytes()

    def _record_long_lines(self) -> None:
        for _ in range(self._splitter.skipped_lines):
            self.diagnostics.record("line_too_long", self._splitter.skipped_line_head)
        self._splitter.skipped_lines = 0

    def drain(self) -> bytes:
        """What the end of the child's stdout adds: a last line without its end."""
        self._translate_rest()
        return self.writer.take_bytes()

    def close(self, child_exit: ChildExit | None, stderr: str = "") -> bytes:
        """The last lines, now that stdout is at its end. `child_exit` is None when we ended the
        child.
        """
        return self._end_turn(child_exit, self._read_to_end(child_exit, stderr))

    def start_retry(self, child_exit: ChildExit | None, stderr: str | None) -> bool:
        """Make ready for the same message once more, if the stream of its answer was cut (Yume's
        R11).

        `stderr` is None for a child that stays. Where this gives back False, `close` may follow.
        """
        reason = "" if stderr is None else self._read_to_end(child_exit, stderr)
        turn = self.turn
        if not turn.can_retry(child_exit, reason):
            return False
        turn.prepare_retry()
        if stderr is None:
            self._translator.start_turn(turn)
        else:
            self.reset_line_buffers()
            self._remaining_stderr = None
            self._set_translator(self._translator.create_retry_translator(turn))
        return True

    def find_failed_attempt(
        self, child_exit: ChildExit | None, stderr: str | None, *, accepts_any_cause: bool = False
    ) -> FailedVendorAttempt | None:
        """Why the child did not answer, where another vendor may be asked; `close` may follow where
        this is None.

        `stderr` is None for a child that stays; otherwise its stdout is read to the end first.
        `any_cause` the cause is.
        """
        error_text = "" if stderr is None else self._read_to_end(child_exit, stderr)
        return self.turn.find_failed_attempt(child_exit, error_text, any_cause=accepts_any_cause)

    def _translate_rest(self) -> None:
        self._translate(self._splitter.close())
        self._decoder.close()
        self._record_long_lines()

    def _read_to_end(self, child_exit: ChildExit | None, stderr: str) -> str:
        """Read what is left of stdout, once; gives back the part of stderr that may be the reason
        for a failure.
        """
        if self._remaining_stderr is not None:
            return self._remaining_stderr
        self._translate_rest()
        try:
            self._translator.feed_eof(child_exit, stderr)
        except Exception as error:
            self.diagnostics.record("malformed_end", repr(error))
        if noise := self._translator.noise:
            stderr = "\n".join(line for line in stderr.splitlines() if not line.startswith(noise))
        if not stderr.strip() and self._decoder.noise_lines:
            stderr = "\n".join(self._decoder.noise_lines)
        self._remaining_stderr = stderr
        return stderr

    def on_idle(self) -> None:
        """A child that stays has been silent since the turn was paused: the turn settles."""
        try:
            self._translator.feed_eof(None, "")
        except Exception as error:
            self.diagnostics.record("malformed_end", repr(error))
        self.turn.finalize()

    def set_vendor_run_report(self, report: Mapping[str, Any]) -> None:
        """What the child wrote about its run into a file (`RunReportSpec`); before `close` and
        `start_retry`.
        """
        self._translator.report = dict(report)

    def finish_turn(self) -> bytes:
        """The last lines now, for a child that stays for the next turn."""
        return self._end_turn(None, "")

    def start_turn(self, config: TurnConfig | None = None) -> None:
        """The next turn of the same child; its account counts the lines that were skipped since the
        last turn.
        """
        self.diagnostics.clear()
        if self._skipped_count:
            self.diagnostics.record("late_event", self._first_skipped_line, self._skipped_count)
            self._skipped_count = 0
        self._translator.start_turn(self.turn.create_next(config))

    def reset_line_buffers(self) -> None:
        """Another child continues the turn: what the last child left unfinished is not joined to
        its first line.
        """
        self._splitter, self._decoder = (
            LineSplitter(*self._line_limits),
            JsonRepairer(self.diagnostics),
        )

    def skip_output_between_turns(self, chunk: bytes) -> None:
        """Bytes behind a turn that is over: their lines are counted. Only questions are read, to be
        refused.
        """
        late_lines = [raw for raw in self.split_lines(chunk) if raw.strip(PADDING)]
        if late_lines and not self._skipped_count:
            self._first_skipped_line = late_lines[0]
        self._skipped_count += len(late_lines)
        self._translate(
            raw for raw in late_lines if self._translator.accepts_line_between_turns(raw)
        )

    def set_has_sent_message(self, has_message: bool) -> None:
        """Whether the frontend has sent the child a message by now."""
        self._translator.has_message = has_message

    def take_child_stdin_lines(self) -> list[bytes]:
        """Lines for the child's stdin, since the last call: each is whole."""
        lines, self._translator.outbox = self._translator.outbox, []
        return lines

    def take_withdrawn_permission_requests(self) -> list[str]:
        """Questions whose answers the child does not want any more, since the last call."""
        return self._translator.take_withdrawn_permission_requests()

    def _end_turn(self, child_exit: ChildExit | None, stderr: str) -> bytes:
        try:
            self.turn.close(child_exit, stderr)
        except Exception as error:
            self.turn.write_internal_error(repr(error))
        self.turn.write_turn_end_line()
        return self.writer.take_bytes()

    def interrupt(self) -> None:
        self.turn.record_interrupt()

    def _translate(self, lines: Iterable[bytes]) -> None:
        translator, parse_json, needs_repair = (
            self._translator,
            orjson.loads,
            self._decoder.has_unfinished_object,
        )
        handlers, filter_line, feed = translator.handlers, translator.filter_line, translator.feed
        overrides_feed, diagnostics = self._overrides_feed, self.diagnostics
        lines = iter(lines)
        for raw in lines:
            if filter_line is not None:
                filtered = filter_line(raw)
                if filtered is None:
                    continue
                raw = filtered
            diagnostics.line = raw
            if not needs_repair:
                try:
                    event = parse_json(raw)
                except orjson.JSONDecodeError:
                    if not raw:
                        continue
                    needs_repair = True
            if needs_repair:
                needs_repair = self._repair_line(raw)
                if translator is not self._translator:
                    self._translate(lines)
                    return
                continue
            try:
                handler = feed if overrides_feed else handlers[event["type"]]
            except (KeyError, TypeError):
                self._translate_untyped(event)
                if translator is not self._translator:
                    self._translate(lines)
                    return
                continue
            try:
                handler(event)
            except Exception as error:
                self._record_malformed(error)
        diagnostics.line = b""

    def _repair_line(self, raw: bytes) -> bool:
        """Read a line that is not one JSON value; True while an unfinished value waits for the next
        line.

        What a repair yields is believed only where it may be the vendor's.
        """
        for value, is_torn in self._decoder.parse_malformed_line(raw):
            if not isinstance(value, dict) and not is_torn:
                self._translate_untyped(value)
            elif self._is_trustworthy(value):
                self._feed_repaired(value)
            elif is_torn or self._can_translate(value):
                self.diagnostics.record("doubtful_event", raw)
            else:
                self._translate_unknown(value)
        return self._decoder.has_unfinished_object

    def _feed_repaired(self, event: object) -> None:
        if not isinstance(event, dict):
            self._translate_untyped(event)
            return
        try:
            self._translator.feed_repaired_event(event)
        except Exception as error:
            self._record_malformed(error)

    def _translate_untyped(self, event: object) -> None:
        """A value without a known type. A list of events (the `json` format of some vendors) is
        read event by event.
        """
        is_untyped, candidates = self._translator.untyped, event if isinstance(event, list) else []
        items = [
            item for item in candidates if isinstance(item, dict) and (is_untyped or "type" in item)
        ]
        if items and (is_untyped or len(items) == len(candidates)):
            for item in items:
                if self._is_trustworthy(item) or not self._can_translate(item):
                    self._feed_repaired(item)
                else:
                    self.diagnostics.record("doubtful_event")
        elif isinstance(event, dict):
            self._translate_unknown(event)
        else:
            self.diagnostics.record("not_an_event")

    def _translate_unknown(self, event: dict[str, Any]) -> None:
        """An object that the translator has no handler for; another translator may read on from it."""
        try:
            successor = self._translator.choose_translator_for_unknown_event(event)
        except Exception as error:
            self._record_malformed(error)
            return
        if successor is not self._translator:
            successor.outbox[:0] = self._translator.outbox
            self._set_translator(successor)
            self._feed_repaired(event)

    def _record_malformed(self, error: Exception) -> None:
        line = self.diagnostics.line[: 4 * MAX_SAMPLE_CHARS].decode("utf-8", "replace")
        self.diagnostics.record("malformed_event", f"{error!r}: {line}")

    def _can_translate(self, event: object) -> bool:
        """Whether the translator knows the type of an event, or it is a control message."""
        kind = event.get("type") if isinstance(event, dict) else None
        if kind is None:
            return self._translator.untyped and isinstance(event, dict)
        return isinstance(kind, str) and (
            self._overrides_feed or kind in self._translator.handlers or kind in _CONTROL_TYPES
        )

    def _is_trustworthy(self, event: object) -> bool:
        """Whether an object out of a broken line may be an event of this session: never a control
        message.
        """
        if (
            not isinstance(event, dict)
            or not self._can_translate(event)
            or event.get("type") in _CONTROL_TYPES
        ):
            return False
        session_id = event.get("session_id")
        vendor_session = self.turn.conversation.vendor_session_id
        return session_id is None or vendor_session is None or session_id == vendor_session
