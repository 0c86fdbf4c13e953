"""The thread that encodes, cleans and writes a recording, and what is said where it stops.

Lines are cleaned before they are written, so that a process that is killed leaves no secret in the
file. (Cleaning at the end alone would cost less, some 10 µs a line, and would leave every secret.)
The exception is a secret that is split over lines: its parts are known when the last one comes, and
are blanked in the whole file at the end (`sweep`). SIGKILL before that leaves these parts in the
file, which only its owner may read.
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from threading import Event, Thread
from typing import Any

from shim.core.cast.clean import CastRedactor
from shim.core.cast.encoder import CastEncoder
from shim.core.cast.records import STREAMS, CastError
from shim.io.raw_output import warn
from shim.recording.moment_queue import END, LAST, Moment, MomentQueue
from shim.recording.rewrite import StoppedError, sweep

BATCH_BYTES = 1024 * 1024  # that are encoded at most before they are written
# At our end the queue is written and the file swept: while that makes progress, and until we are
# told to end (the SDKs send SIGTERM 2 to 5 s after they closed our stdin).
CLOSE_SECONDS = 10.0
# without a step: so many looks, because on a busy machine nobody gets on meanwhile
STUCK_SECONDS = 0.5
# of the processor's time: whoever cleans a long text is not stuck, and our looks cost less
AT_WORK_SECONDS = 0.02
LEAVE_SECONDS = 0.5  # from the moment we are told to end
LOOK_SECONDS = 0.02
GIVE_UP_SECONDS = 0.2  # for a sweep to remove its unfinished file

Write = Callable[[int, bytes], int]


class StopNotice:
    """Says once why recording stopped: on stderr, or if it is strict in the result of the turn,
    which ends.

    `heard`: the turn ended because recording failed.
    """

    def __init__(self, path: str, *, strict: bool) -> None:
        self.reason = ""
        self.heard = False
        self._path = path
        self._alarm: tuple[int, int] | None = os.pipe() if strict else None

    def say(self, reason: str) -> None:
        self.reason = f"the recording {self._path} stopped: {reason}"
        if self._alarm is None:
            warn(f"{self.reason}; the turn goes on without it\n")
            return
        with contextlib.suppress(OSError):
            os.write(self._alarm[1], b"!")

    async def wait(self) -> str:
        """Wait until a strict recording stops. Returns the reason."""
        import anyio

        assert self._alarm is not None
        await anyio.wait_readable(self._alarm[0])
        self.heard = True
        return self.reason

    def close(self) -> None:
        for descriptor in self._alarm or ():
            with contextlib.suppress(OSError):
                os.close(descriptor)


class CastWriter:
    """Writes a queue's moments into a new file of at most `most` bytes; `clean` blanks secrets.

    With `done` nothing more is written; with `hurry` nobody waits for that any more.
    """

    def __init__(
        self,
        file: int,
        path: str,
        header: Mapping[str, Any],
        *,
        queue: MomentQueue,
        notice: StopNotice,
        most: int,
        clean: bool,
        write: Write,
    ) -> None:
        self.done = Event()
        self.hurry = False
        self._file = file
        self._path = path
        self._queue = queue
        self._notice = notice
        self._most = most
        self._write = write
        self._cleaner = CastRedactor() if clean else None
        self._encoder = CastEncoder(self._cleaner.redact_record if self._cleaner else None)
        self._head = self._encoder.encode_header(
            header if self._cleaner is None else self._cleaner.redact_fields(header)
        )
        self._written = 0  # bytes
        self._failed = False
        self._whole = False  # the last line was encoded
        self._written_out = False  # the last line was written
        self._advised = False
        Thread(target=self._run, name="recorder", daemon=True).start()

    # -- the end, for the thread of the turn -------------------------------------------------------

    def finish(self, stopped: Callable[[], bool]) -> None:
        """Wait for the rest, as far as the disk takes it in time; `stopped` says whether we were
        told to end.
        """
        deadline = time.monotonic() + CLOSE_SECONDS
        steps, worked, looks = -1, 0.0, 0
        while not self.done.wait(LOOK_SECONDS):
            now, looks = time.monotonic(), looks + 1
            if steps != self._queue.steps or time.process_time() - worked > AT_WORK_SECONDS:
                steps, worked, looks = self._queue.steps, time.process_time(), 0
            if stopped():
                deadline = min(deadline, now + LEAVE_SECONDS)
            if now > deadline or looks > STUCK_SECONDS / LOOK_SECONDS:
                self._give_up()
                break
        self.hurry = True
        if self.done.is_set():
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._notice.close()

    def _give_up(self) -> None:
        """Leave the thread behind, and say what stays undone."""
        self.hurry = True
        if self.done.wait(GIVE_UP_SECONDS if self._whole else LOOK_SECONDS):
            return
        if not self._written_out:
            self._fail("the disk is too slow")
        if self._cleaner is not None and self._cleaner.edits:
            self._advise("may still be", "there was no time to write it anew")

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._put(self._head)
            while self._batch():
                pass
            if not self._failed:
                self._written_out = True
                self._sweep()
        except OSError as error:
            self._fail(error.strerror or repr(error))
        except Exception as error:
            self._fail(f"the shim failed: {error!r}")
        if self._failed and self._cleaner is not None and self._cleaner.edits:
            self._advise("may still be", "it was not written to its end")
        self.done.set()

    def _batch(self) -> bool:
        """Write what is queued, one moment at least; False at the end."""
        moment: Moment | None = self._queue.next()
        lines, size, ended = list[bytes](), 0, False
        while moment is not None and not ended:
            ended = moment[1] == END
            if not self._whole:
                lines.append(self._lines(*moment, self._written + size))
                size += len(lines[-1])
            self._queue.taken(moment)
            moment = self._queue.next_now() if size < BATCH_BYTES else None
        self._put(b"".join(lines))
        return not (ended or self._failed)

    def _lines(self, at: float, letter: str, data: Any, written: int) -> bytes:
        """The lines for a moment; `written` bytes precede them."""
        if letter in (END, LAST):
            return self._ending(at, data)
        if letter not in STREAMS:
            return self._encoder.encode_event(
                letter, at, data if self._cleaner is None else self._cleaner.redact_fields(data)
            )
        if written + len(data) <= self._most:
            return self._encoder.encode_stream(letter, at, data)
        self._queue.closed = True
        warn(
            f"the recording {self._path} is as large as record_max_bytes allows; the turn goes on without it\n"
        )
        return self._ending(at, {"kind": "limit", "bytes": self._most})

    def _ending(self, at: float, note: Mapping[str, Any] | None) -> bytes:
        self._whole = True
        lines = [self._encoder.flush_all(at)]
        if note is not None:
            lines.append(self._encoder.encode_event("n", at, note))
        if self._cleaner is not None:
            self._cleaner.close()
            if self._cleaner.secret_counts:
                fact = {"kind": "redaction", "counts": dict(self._cleaner.secret_counts)}
                lines.append(self._encoder.encode_event("n", at, fact))
        return b"".join([*lines, self._encoder.encode_end(at)])

    def _sweep(self) -> None:
        """Blank the secrets that were split over lines."""
        cleaner = self._cleaner
        if cleaner is None or not cleaner.edits:
            return
        try:
            sweep(self._path, cleaner.edits, os.fstat(self._file), self._given_up)
        except (CastError, StoppedError) as error:
            self._advise("is still", str(error) or "there was no time to write it anew")
        else:
            if cleaner.has_lost_edits:
                self._advise("may still be", "there are more of them than are kept")

    def _advise(self, how: str, why: str) -> None:
        """Say once that a secret stayed in the file, and how to remove it."""
        if not self._advised:
            self._advised = True
            advice = f"`shim cast redact {self._path}` takes it out"
            warn(f"a secret that was split over lines {how} in {self._path}: {why}; {advice}\n")

    def _given_up(self) -> bool:
        self._queue.steps += 1
        return self.hurry

    def _fail(self, reason: str) -> None:
        """Stop writing after an error."""
        self._failed = True
        if not self._queue.closed:
            self._queue.closed = True
            self._notice.say(reason)

    def _put(self, data: bytes) -> None:
        while data and not self._failed:
            count = self._write(self._file, data)
            self._written += count
            data = data[count:]
