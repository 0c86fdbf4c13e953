"""The thread that encodes, redacts and writes a recording.

Lines are redacted before they are written, so that a killed process leaves no secret in the file.
Redaction costs about 10 µs a line. A secret that is split over several lines is recognized only
when its last part arrives. Such a secret is redacted when the recording ends, by rewriting the file
(`redact_split_secrets`). If the process is killed before that, the parts of the secret stay in the
file, which only the file's owner can read.
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from threading import Event, Thread
from typing import Any, NamedTuple

from shim.core.cast.encoder import RecordingEncoder
from shim.core.cast.format import STREAMS, RecordingError
from shim.core.cast.secrets import RecordingRedactor
from shim.io.stderr import warn
from shim.recording.event_queue import END_CODE, LAST_NOTE_CODE, RecordEvent, RecordingEventQueue
from shim.recording.rewrite import CastRewriteStoppedError, redact_split_secrets

MAX_BATCH_BYTES = 1024 * 1024  # the maximum number of encoded bytes in one write
# Before the shim exits, the writer empties the queue and rewrites the file if necessary.
# The shim waits while the writer makes progress and no signal arrives.
# The SDKs send SIGTERM 2 to 5 s after they close stdin.
CLOSE_TIMEOUT_S = 10.0
# The longest wait without progress.
# The time is counted in polls, because on a busy machine the polling thread does not run either.
STUCK_TIMEOUT_S = 0.5
# CPU time counts as progress, because a thread that redacts a long text is not stuck.
# The polls themselves use less CPU time than this.
MIN_PROGRESS_CPU_S = 0.02
TERMINATE_TIMEOUT_S = 0.5  # the longest wait after a termination signal
POLL_INTERVAL_S = 0.02
ABANDON_TIMEOUT_S = 0.2  # the time in which a rewrite can remove its unfinished file

WriteFunction = Callable[[int, bytes], int]


class RecordingLimits(NamedTuple):
    """The limits of a recording.

    max_bytes  the maximum size of the recording
    strict     whether the turn ends if recording fails
    """

    max_bytes: int
    strict: bool = False


class RecordingFailureReporter:
    """Reports once why recording stopped. A strict recording ends the turn, and the result contains
    the reason. Otherwise the reason is printed on stderr.

    `ended_turn` is true if the turn was ended because recording failed.
    """

    def __init__(self, path: str, *, strict: bool) -> None:
        self.reason = ""
        self.ended_turn = False
        self._path = path
        if strict:
            self._alarm_pipe: tuple[int, int] | None = os.pipe()
        else:
            self._alarm_pipe = None

    def report_stop(self, reason: str) -> None:
        self.reason = f"the recording {self._path} stopped: {reason}"
        if self._alarm_pipe is None:
            warn(f"{self.reason}; the turn continues without a recording\n")
            return
        with contextlib.suppress(OSError):
            os.write(self._alarm_pipe[1], b"!")

    async def wait_for_stop_reason(self) -> str:
        """Wait until a strict recording stops, and return the reason."""
        import anyio

        assert self._alarm_pipe is not None
        await anyio.wait_readable(self._alarm_pipe[0])
        self.ended_turn = True
        return self.reason

    def close(self) -> None:
        for descriptor in self._alarm_pipe or ():
            with contextlib.suppress(OSError):
                os.close(descriptor)


class RecordingWriter:
    """Writes queued events to a new file, up to the recording limits. If `redact` is set, secrets
    are redacted.

    `done` is set when the thread has written everything. `abandoned` is true if the shim has
    stopped waiting for the thread.
    """

    def __init__(
        self,
        file_descriptor: int,
        path: str,
        header: Mapping[str, Any],
        *,
        queue: RecordingEventQueue,
        limits: RecordingLimits,
        redact: bool,
        write: WriteFunction,
    ) -> None:
        self.done = Event()
        self.abandoned = False
        self._file_descriptor = file_descriptor
        self._path = path
        self._queue = queue
        self.stop_notice = RecordingFailureReporter(path, strict=limits.strict)
        self._max_bytes = limits.max_bytes
        self._write = write
        self._redactor = RecordingRedactor() if redact else None
        self._encoder = RecordingEncoder(self._redactor.redact_record if self._redactor else None)
        self._header_line = self._encoder.encode_header(
            header if self._redactor is None else self._redactor.redact_json_fields(header)
        )
        self._written_bytes = 0
        self._failed = False
        self._is_encoded = False  # the last line was encoded
        self._is_written = False  # the last line was written
        self._has_warned = False
        Thread(target=self._run, name="recorder", daemon=True).start()

    # -- shutdown, in the turn's thread ------------------------------------------------------------

    def finish(self, is_terminating: Callable[[], bool]) -> None:
        """Wait until all events are written or the time limit is reached. `is_terminating` returns
        whether a signal has told the shim to exit.
        """
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        last_steps = -1
        last_cpu_time_s = 0.0
        poll_count = 0
        while not self.done.wait(POLL_INTERVAL_S):
            now = time.monotonic()
            poll_count += 1
            if (
                last_steps != self._queue.steps
                or time.process_time() - last_cpu_time_s > MIN_PROGRESS_CPU_S
            ):
                last_steps = self._queue.steps
                last_cpu_time_s = time.process_time()
                poll_count = 0
            if is_terminating():
                deadline = min(deadline, now + TERMINATE_TIMEOUT_S)
            if now > deadline or poll_count > STUCK_TIMEOUT_S / POLL_INTERVAL_S:
                self._abandon()
                break
        self.abandoned = True
        if self.done.is_set():
            with contextlib.suppress(OSError):
                os.close(self._file_descriptor)
            self.stop_notice.close()

    def _abandon(self) -> None:
        """Stop waiting for the writer thread, and report which part of the recording is missing."""
        self.abandoned = True
        if self.done.wait(ABANDON_TIMEOUT_S if self._is_encoded else POLL_INTERVAL_S):
            return
        if not self._is_written:
            self._stop_writing("the disk is too slow")
        if self._redactor is not None and self._redactor.edits:
            self._warn_secret_left("may still be", "there was no time to rewrite the file")

    # -- the writer's thread -----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._write_all(self._header_line)
            while self._write_batch():
                pass
            if not self._failed:
                self._is_written = True
                self._redact_split_secrets()
        except OSError as error:
            reason = error.strerror or repr(error)
            self._stop_writing(reason)
        except Exception as error:
            self._stop_writing(f"internal error: {error!r}")
        if self._failed and self._redactor is not None and self._redactor.edits:
            self._warn_secret_left("may still be", "the recording was not written completely")
        self.done.set()

    def _write_batch(self) -> bool:
        """Wait for at least one event, then write all queued events. Return False at the end of the
        recording.
        """
        event: RecordEvent | None = self._queue.wait_for_event()
        lines: list[bytes] = []
        size_bytes = 0
        is_end = False
        while event is not None and not is_end:
            is_end = event[1] == END_CODE
            if not self._is_encoded:
                lines.append(self._encode_event(*event, self._written_bytes + size_bytes))
                size_bytes += len(lines[-1])
            self._queue.release_space_of_written_event(event)
            event = None
            if size_bytes < MAX_BATCH_BYTES:
                event = self._queue.take_queued_event()
        self._write_all(b"".join(lines))
        return not (is_end or self._failed)

    def _encode_event(self, time_s: float, code: str, data: Any, written_bytes: int) -> bytes:
        """Return the encoded lines of an event. `written_bytes` is the file size before these
        lines.
        """
        if code in (END_CODE, LAST_NOTE_CODE):
            return self._encode_end(time_s, data)
        if code not in STREAMS:
            return self._encoder.encode_event_record(
                code,
                time_s,
                data if self._redactor is None else self._redactor.redact_json_fields(data),
            )
        if written_bytes + len(data) <= self._max_bytes:
            return self._encoder.encode_stream_chunk(code, time_s, data)
        self._queue.closed = True
        warn(
            f"the recording {self._path} has reached record_max_bytes; the turn continues "
            "without a recording\n"
        )
        return self._encode_end(time_s, {"kind": "limit", "bytes": self._max_bytes})

    def _encode_end(self, time_s: float, note: Mapping[str, Any] | None) -> bytes:
        self._is_encoded = True
        lines = [self._encoder.flush_all_streams(time_s)]
        if note is not None:
            lines.append(self._encoder.encode_event_record("n", time_s, note))
        if self._redactor is not None:
            self._redactor.close()
            if self._redactor.secret_counts:
                fields = {"kind": "redaction", "counts": dict(self._redactor.secret_counts)}
                lines.append(self._encoder.encode_event_record("n", time_s, fields))
        return b"".join([*lines, self._encoder.encode_recording_end(time_s)])

    def _redact_split_secrets(self) -> None:
        """Redact the secrets that are split over several lines."""
        redactor = self._redactor
        if redactor is None or not redactor.edits:
            return
        try:
            redact_split_secrets(
                self._path, redactor.edits, os.fstat(self._file_descriptor), self._check_abandoned
            )
        except (RecordingError, CastRewriteStoppedError) as error:
            self._warn_secret_left(
                "is still", str(error) or "there was no time to rewrite the file"
            )
        else:
            if redactor.has_lost_edits:
                self._warn_secret_left(
                    "may still be", "there are more such secrets than can be tracked"
                )

    def _warn_secret_left(self, certainty: str, reason: str) -> None:
        """Warn once that a secret is still in the file, and explain how to remove the secret."""
        if not self._has_warned:
            self._has_warned = True
            advice = f"`shim cast redact {self._path}` removes the secret"
            warn(
                f"a secret that was split over lines {certainty} in {self._path}: {reason}; {advice}\n"
            )

    def _check_abandoned(self) -> bool:
        self._queue.steps += 1
        return self.abandoned

    def _stop_writing(self, reason: str) -> None:
        """Stop the recording after a write error."""
        self._failed = True
        if not self._queue.closed:
            self._queue.closed = True
            self.stop_notice.report_stop(reason)

    def _write_all(self, data: bytes) -> None:
        while data and not self._failed:
            count = self._write(self._file_descriptor, data)
            self._written_bytes += count
            data = data[count:]
