"""Records a run into its cast; the turn never waits for the recording, and does not fail with it.

A caller hands over bytes with the time at which they came. A thread encodes, cleans and writes
them. If the disk is full or hangs, the recording ends with one line on stderr; the turn goes on,
unless the settings are strict.
"""

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from shim.core.cast.words import NOTE_RESULT, NOTE_SIGNAL
from shim.core.reading.account import Diagnostics
from shim.core.secrets.redactor import redact_argv
from shim.core.turn.outcome import ChildExit
from shim.io.raw_output import warn
from shim.recording.cast_writer import RecordingWriter, StopNotice, WriteFunction
from shim.recording.moment_queue import MAX_QUEUED_BYTES, RecordEventQueue

if TYPE_CHECKING:
    from shim.io.tap import PipedProcess

LATE_BYTES = 1024 * 1024  # a pipe holds no more
ANSWERS = ("result", "structured_output")  # of a result: the streams have them


class Limits(NamedTuple):
    """`most` bytes may be recorded; with `strict` the turn ends when recording fails."""

    most: int
    strict: bool = False


class Recorder:
    """Records one run into a new file; `clean` blanks secrets. Called by one thread."""

    def __init__(
        self,
        file: int,
        path: str,
        header: Mapping[str, Any],
        *,
        limits: Limits,
        clean: bool,
        write: WriteFunction = os.write,
    ) -> None:
        self.turn = 0
        self.strict = limits.strict
        self._children = 0
        self._vendor = header.get("vendor")
        self._track: Track | None = None
        self._queue = queue = RecordEventQueue()
        self._notice = notice = StopNotice(path, strict=limits.strict)
        self._writer = RecordingWriter(
            file,
            path,
            header,
            queue=queue,
            stop_notice=notice,
            max_bytes=limits.most,
            redact=clean,
            write=write,
        )

    # -- what happens ------------------------------------------------------------------------------

    def record_stream(self, stream_code: str, data: bytes) -> None:
        """Bytes of one of STREAMS, as they came; no bytes where the stream ends or pauses within a
        line.
        """
        if not self._queue.closed and not self._queue.put_bytes(stream_code, data):
            self._queue.stop({"kind": "limit", "queued": MAX_QUEUED_BYTES})
            self._notice.report("the disk is too slow")

    def fact(self, letter: str, fact: Mapping[str, Any]) -> None:
        self._queue.put_event(letter, fact)

    def record_note(self, kind: str, **fields: Any) -> None:
        self.fact("n", {"kind": kind, **fields})

    def child(self, argv: list[str], cwd: str, vendor: str = "") -> "Track":
        """A child was started; `vendor` is recorded if it is not the header's."""
        if self._track is not None:
            self._track.finish()
        self._children += 1
        turn = max(self.turn, 1)  # the first child may start before the loop begins the turn
        fact = {"child": self._children, "turn": turn, "argv": redact_argv(argv), "cwd": cwd}
        self.fact("s", fact | ({"vendor": vendor} if vendor not in ("", self._vendor) else {}))
        self._track = Track(self, self._children)
        return self._track

    def account(self, account: Diagnostics) -> None:
        """Notes of what a turn's account counted, when the turn is over."""
        for kind, count in account.repairs.items():
            self.record_note("repair", repair=kind, count=count, turn=self.turn)
        for kind, count in account.unknown_events.items():
            self.record_note("unknown_event", event=kind, count=count, turn=self.turn)

    def result(self, line: Mapping[str, Any]) -> None:
        """What was decided at the end of a turn, whatever the frontend was told of it; not the
        answer itself.
        """
        self.record_note(
            NOTE_RESULT,
            turn=self.turn,
            result={name: line[name] for name in line if name not in ANSWERS},
        )

    # -- ends --------------------------------------------------------------------------------------

    def close(self, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Write the rest, as far as the disk takes it in time; `stopped` says whether we were told
        to end.

        False if a strict recording failed after the last result, so that only stderr could say it.
        """
        if self._writer.abandoned:
            return True
        if self._track is not None:
            self._track.finish()
        self._queue.put_end()
        self._writer.finish(stopped)
        if not self.strict or not self._notice.reason or self._notice.ended_turn:
            return True
        warn(f"{self._notice.reason}\n")
        return False

    async def failed(self) -> str:
        """Wait until a strict recording fails. Returns the reason."""
        return await self._notice.wait()


class Track:
    """Records one child: its output, its input, and its end."""

    def __init__(self, recorder: Recorder, number: int) -> None:
        self._recorder = recorder
        self._number = number
        self._open = {"o", "e"}
        self._exit: ChildExit | None = None
        self._over = False

    def record_stdin(self, data: bytes) -> None:
        """Bytes that its stdin took; no bytes when its stdin was closed."""
        if not self._over:
            self._recorder.record_stream("I", data)

    def record_output(self, stream_code: str, chunk: bytes) -> None:
        """Bytes of its stdout (`o`) or stderr (`e`); no bytes when that stream ended."""
        if chunk and not self._over:
            self._recorder.record_stream(stream_code, chunk)
        elif not chunk:
            self._open.discard(stream_code)
            self._end()

    def record_signal(self, signal_name: str) -> None:
        self._recorder.record_note(NOTE_SIGNAL, child=self._number, signal=signal_name)

    def record_exit(self, child_exit: ChildExit) -> None:
        self._exit = child_exit
        self._end()

    def drain_pipes(self, process: "PipedProcess") -> None:
        """Nobody reads the child any more: record what its pipes still hold."""
        for letter, pipe in (("o", process.stdout), ("e", process.stderr)):
            if letter in self._open and pipe is not None and not pipe.closed:
                with contextlib.suppress(OSError):
                    self.record_output(letter, os.read(pipe.fileno(), LATE_BYTES))
        self._open.clear()
        self._end()

    def finish(self) -> None:
        """Record the end now, as unknown if it is not known yet."""
        self._open.clear()
        self._exit = self._exit or ChildExit()
        self._end()

    def _end(self) -> None:
        if self._over or self._open or self._exit is None:
            return
        self._over = True
        self._recorder.fact(
            "x", {"child": self._number, "code": self._exit.code, "signal": self._exit.signal}
        )
