"""Records a run to a file. The turn does not wait for the recording.

The caller passes bytes when they arrive. A separate thread encodes, redacts and writes them. If the
disk is full or does not respond, recording stops and prints one line on stderr. The turn continues
unless the recording is strict.
"""

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from shim.core.cast.protocol_lines import NOTE_RESULT, NOTE_SIGNAL
from shim.core.reading.diagnostics import Diagnostics
from shim.core.secrets.redactor import redact_argv
from shim.core.turn.outcome import ChildExit
from shim.io.stderr import warn
from shim.recording.event_queue import MAX_QUEUED_BYTES, RecordingEventQueue
from shim.recording.writer import RecordingLimits, RecordingWriter, WriteFunction

if TYPE_CHECKING:
    from shim.io.record_sinks import PipedProcess

FINAL_READ_BYTES = 1024 * 1024  # the capacity of a pipe
ANSWER_FIELDS = (
    "result",
    "structured_output",
)  # fields that are not repeated in a note, because the recorded streams contain them


class RunRecorder:
    """Records one run to a new file. If `redact` is set, secrets are redacted. All methods must be
    called from the same thread.
    """

    def __init__(
        self,
        file_descriptor: int,
        path: str,
        header: Mapping[str, Any],
        *,
        limits: RecordingLimits,
        redact: bool,
        write: WriteFunction = os.write,
    ) -> None:
        self.turn_number = 0
        self.strict = limits.strict
        self._child_count = 0
        self._header_vendor = header.get("vendor")
        self._child_recorder: ChildRecorder | None = None
        self._queue = queue = RecordingEventQueue()
        self._writer = RecordingWriter(
            file_descriptor,
            path,
            header,
            queue=queue,
            limits=limits,
            redact=redact,
            write=write,
        )
        self._stop_notice = self._writer.stop_notice

    # -- events ------------------------------------------------------------------------------------

    def record_stream(self, stream_code: str, data: bytes) -> None:
        """Record bytes of one of STREAMS, unchanged. Empty bytes mean that the stream has ended, or
        has paused in the middle of a line.
        """
        if not self._queue.closed and not self._queue.put_bytes(stream_code, data):
            self._queue.close_with_last_note({"kind": "limit", "queued": MAX_QUEUED_BYTES})
            self._stop_notice.report_stop("the disk is too slow")

    def record_event(self, event_code: str, fields: Mapping[str, Any]) -> None:
        self._queue.put_event(event_code, fields)

    def record_run_event(self, kind: str, **fields: Any) -> None:
        self.record_event("n", {"kind": kind, **fields})

    def record_child_start(self, argv: list[str], cwd: str, vendor: str = "") -> "ChildRecorder":
        """Record the start of a child process, and return its recorder. `vendor` is recorded only
        if it differs from the vendor in the header.
        """
        if self._child_recorder is not None:
            self._child_recorder.finish()
        self._child_count += 1
        # The first child can be started before the conversation loop starts the turn.
        turn_number = max(self.turn_number, 1)
        fields = {
            "child": self._child_count,
            "turn": turn_number,
            "argv": redact_argv(argv),
            "cwd": cwd,
        }
        self.record_event(
            "s", fields | ({"vendor": vendor} if vendor not in ("", self._header_vendor) else {})
        )
        self._child_recorder = ChildRecorder(self, self._child_count)
        return self._child_recorder

    def record_diagnostics(self, diagnostics: Diagnostics) -> None:
        """Record the diagnostics of a finished turn as notes."""
        for kind, count in diagnostics.repairs.items():
            self.record_run_event("repair", repair=kind, count=count, turn=self.turn_number)
        for kind, count in diagnostics.unknown_events.items():
            self.record_run_event("unknown_event", event=kind, count=count, turn=self.turn_number)

    def record_turn_result(self, result_line: Mapping[str, Any]) -> None:
        """Record the outcome of a turn, without the text of the answer. The outcome is recorded
        even if the frontend has received another result.
        """
        self.record_run_event(
            NOTE_RESULT,
            turn=self.turn_number,
            result={name: result_line[name] for name in result_line if name not in ANSWER_FIELDS},
        )

    # -- end ---------------------------------------------------------------------------------------

    def close(self, is_terminating: Callable[[], bool] = lambda: False) -> bool:
        """Write the remaining events, within the writer's time limits. `is_terminating` returns
        whether a signal has told the shim to exit.

        Return False if a strict recording failed after the last result. In that case the failure is
        only reported on stderr.
        """
        if self._writer.abandoned:
            return True
        if self._child_recorder is not None:
            self._child_recorder.finish()
        self._queue.put_end_of_recording()
        self._writer.finish(is_terminating)
        if not self.strict or not self._stop_notice.reason or self._stop_notice.ended_turn:
            return True
        warn(f"{self._stop_notice.reason}\n")
        return False

    async def wait_for_recording_failure(self) -> str:
        """Wait until a strict recording fails, and return the reason."""
        return await self._stop_notice.wait_for_stop_reason()


class ChildRecorder:
    """Records one child process: its output, its input and its exit."""

    def __init__(self, run_recorder: RunRecorder, child_number: int) -> None:
        self._run_recorder = run_recorder
        self._child_number = child_number
        self._open_streams = {"o", "e"}
        self._exit: ChildExit | None = None
        self._exit_recorded = False

    def record_stdin(self, data: bytes) -> None:
        """Record bytes that were written to the child's stdin. Empty bytes mean that stdin was
        closed.
        """
        if not self._exit_recorded:
            self._run_recorder.record_stream("I", data)

    def record_output(self, stream_code: str, chunk: bytes) -> None:
        """Record bytes from the child's stdout (`o`) or stderr (`e`). Empty bytes mean the end of
        the stream.
        """
        if chunk and not self._exit_recorded:
            self._run_recorder.record_stream(stream_code, chunk)
        elif not chunk:
            self._open_streams.discard(stream_code)
            self._record_exit_if_complete()

    def record_signal(self, signal_name: str) -> None:
        self._run_recorder.record_run_event(
            NOTE_SIGNAL, child=self._child_number, signal=signal_name
        )

    def record_exit(self, child_exit: ChildExit) -> None:
        self._exit = child_exit
        self._record_exit_if_complete()

    def record_remaining_output(self, process: "PipedProcess") -> None:
        """Record the bytes that are still in the child's pipes, because nothing else reads them."""
        for stream_code, pipe in (("o", process.stdout), ("e", process.stderr)):
            if stream_code in self._open_streams and pipe is not None and not pipe.closed:
                with contextlib.suppress(OSError):
                    self.record_output(stream_code, os.read(pipe.fileno(), FINAL_READ_BYTES))
        self._open_streams.clear()
        self._record_exit_if_complete()

    def finish(self) -> None:
        """Record that the child has ended. If no exit was reported, record the exit as unknown."""
        self._open_streams.clear()
        if self._exit is None:
            self._exit = ChildExit()
        self._record_exit_if_complete()

    def _record_exit_if_complete(self) -> None:
        if self._exit_recorded or self._open_streams or self._exit is None:
            return
        self._exit_recorded = True
        self._run_recorder.record_event(
            "x", {"child": self._child_number, "code": self._exit.code, "signal": self._exit.signal}
        )
