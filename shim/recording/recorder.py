"""Records a run into its cast; the turn never waits for the recording, and does not fail with it.

A caller hands over bytes with the time at which they came. A thread encodes, cleans and writes them. If the disk is
full or hangs, the recording ends with one line on stderr; the turn goes on, unless the settings are strict.

Lines are cleaned before they are written, so that a process that is killed leaves no secret in the file. (Cleaning at
the end alone would cost less, some 10 µs a line, and would leave every secret.) The exception is a secret that is split
over lines: its parts are known when the last one comes, and are blanked in the whole file at the end (`sweep`). SIGKILL
before that leaves these parts in the file, which only its owner may read.
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from shim.channels.raw_output import tell
from shim.core.cast.clean import Cleaner
from shim.core.cast.encoder import Encoder
from shim.core.cast.records import STREAMS, CastError
from shim.core.reading.account import Account
from shim.core.secrets.redactor import redact_argv
from shim.core.turn.outcome import Exit
from shim.recording.rewrite import StoppedError, sweep

if TYPE_CHECKING:
    from shim.channels.tap import Piped

QUEUE_BYTES = 64 * 1024 * 1024  # that wait for the disk; no child prints more in a second
QUEUE_MOMENTS = 200_000  # that wait, if each has a few bytes only
BATCH_BYTES = 1024 * 1024  # that are encoded at most before they are written
# At our end the queue is written and the file swept: while that makes progress, and until we are told to end (the SDKs
# send SIGTERM 2 to 5 s after they closed our stdin).
CLOSE_SECONDS = 10.0
STUCK_SECONDS = 0.5
LEAVE_SECONDS = 0.5  # from the moment we are told to end
LOOK_SECONDS = 0.02
GIVE_UP_SECONDS = 0.2  # for a sweep to remove its unfinished file

LATE_BYTES = 1024 * 1024  # a pipe holds no more

Moment = tuple[float, str, Any]  # when, a letter, bytes or a fact
Write = Callable[[int, bytes], int]
_LAST, _END = "last", "end"  # letters of our own: the last note; the end of the recording


class Limits(NamedTuple):
    """`most` bytes may be recorded; with `strict` the turn ends when recording fails."""

    most: int
    strict: bool = False


class Recorder:
    """Records one run into a new file; `clean` blanks secrets. Called by one thread.

    `reason` says why recording stopped, `failure` why writing failed.
    """

    def __init__(
        self,
        file: int,
        path: str,
        header: Mapping[str, Any],
        *,
        limits: Limits,
        clean: bool,
        write: Write = os.write,
    ) -> None:
        self.path = path
        self.failure = self.reason = ""
        self.turn = 0
        self.strict = limits.strict
        self._most = limits.most
        self._file = file
        self._write = write
        self._cleaner = Cleaner() if clean else None
        self._encoder = Encoder(self._cleaner.clean if self._cleaner else None)
        self._began = time.monotonic()
        self._queue = SimpleQueue[Moment]()
        self._handed = self._taken = 0  # bytes; each number is set by one thread
        self._moments = self._steps = 0  # the same for moments
        self._written = 0
        self._off = False  # no more moments are accepted
        self._whole = False  # the last line was encoded
        self._written_out = False  # the last line was written
        self._advised = False
        self._hurry = False  # `close` no longer waits for the thread
        self._done = Event()
        self._children = 0
        self._vendor = header.get("vendor")
        self._track: Track | None = None
        self._alarm: tuple[int, int] | None = os.pipe() if limits.strict else None
        self._heard = False  # the turn ended because recording failed
        self._head = self._encoder.header(header if self._cleaner is None else self._cleaner.fact(header))
        Thread(target=self._run, name="recorder", daemon=True).start()

    # -- what happens -------------------------------------------------------------------------------------

    def stream(self, letter: str, data: bytes) -> None:
        """Bytes of one of STREAMS, as they came; no bytes where the stream ends or pauses within a line."""
        if self._off:
            return
        self._handed += len(data)
        self._moments += 1
        if self._handed - self._taken > QUEUE_BYTES or self._moments - self._steps > QUEUE_MOMENTS:
            self._stop("the disk is too slow", {"kind": "limit", "queued": QUEUE_BYTES})
            return
        self._queue.put((time.monotonic(), letter, data))

    def fact(self, letter: str, fact: Mapping[str, Any]) -> None:
        if not self._off:
            self._moments += 1
            self._queue.put((time.monotonic(), letter, fact))

    def note(self, kind: str, **facts: Any) -> None:
        self.fact("n", {"kind": kind, **facts})

    def child(self, argv: list[str], cwd: str, vendor: str = "") -> "Track":
        """A child was started; `vendor` is recorded if it is not the header's."""
        if self._track is not None:
            self._track.give_up()
        self._children += 1
        turn = max(self.turn, 1)  # the first child may start before the loop begins the turn
        fact = {"child": self._children, "turn": turn, "argv": redact_argv(argv), "cwd": cwd}
        self.fact("s", fact | ({"vendor": vendor} if vendor not in ("", self._vendor) else {}))
        self._track = Track(self, self._children)
        return self._track

    def account(self, account: Account) -> None:
        """Notes of what a turn's account counted, when the turn is over."""
        for kind, count in account.repairs.items():
            self.note("repair", repair=kind, count=count, turn=self.turn)
        for kind, count in account.unknown.items():
            self.note("unknown_event", event=kind, count=count, turn=self.turn)

    # -- ends ---------------------------------------------------------------------------------------------

    def close(self, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Write the rest, as far as the disk takes it in time; `stopped` says whether we were told to end.

        False if a strict recording failed after the last result, so that only stderr could say it.
        """
        if self._hurry:
            return True
        if self._track is not None:
            self._track.give_up()
        self._queue.put((time.monotonic(), _END, None))
        deadline = time.monotonic() + CLOSE_SECONDS
        steps, moved = -1, time.monotonic()
        while not self._done.wait(LOOK_SECONDS):
            now = time.monotonic()
            if steps != self._steps:
                steps, moved = self._steps, now
            if stopped():
                deadline = min(deadline, now + LEAVE_SECONDS)
            if now > deadline or now - moved > STUCK_SECONDS:
                self._hurry = True
                if not self._done.wait(GIVE_UP_SECONDS if self._whole else LOOK_SECONDS):
                    if not self._written_out:
                        self._fail("the disk is too slow")
                    if self._cleaner is not None and self._cleaner.edits:
                        self._advise("may still be", "there was no time to write it anew")
                break
        self._hurry = True
        if self._done.is_set():
            for descriptor in (self._file, *(self._alarm or ())):
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        if not self.strict or not self.reason or self._heard:
            return True
        tell(f"{self.reason}\n")
        return False

    async def failed(self) -> str:
        """Wait until a strict recording fails. Returns the reason."""
        import anyio

        assert self._alarm is not None
        await anyio.wait_readable(self._alarm[0])
        self._heard = True
        return self.reason

    def _stop(self, reason: str, note: Mapping[str, Any]) -> None:
        """Accept nothing more; the note becomes the last record."""
        self._off = True
        self._queue.put((time.monotonic(), _LAST, note))
        self._say(reason)

    def _fail(self, reason: str) -> None:
        """Stop writing after an error."""
        self.failure = self.failure or reason
        if not self._off:
            self._off = True
            self._say(reason)

    def _say(self, reason: str) -> None:
        """Say once that recording stopped: on stderr, or if it is strict in the result of the turn, which ends."""
        self.reason = f"the recording {self.path} stopped: {reason}"
        if self._alarm is None:
            tell(f"{self.reason}; the turn goes on without it\n")
            return
        with contextlib.suppress(OSError):
            os.write(self._alarm[1], b"!")

    # -- the thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._put(self._head)
            while self._batch():
                pass
            if not self.failure:
                self._written_out = True
                self._sweep()
        except OSError as error:
            self._fail(error.strerror or repr(error))
        except Exception as error:
            self._fail(f"the shim failed: {error!r}")
        if self.failure and self._cleaner is not None and self._cleaner.edits:
            self._advise("may still be", "it was not written to its end")
        self._done.set()

    def _batch(self) -> bool:
        """Write what is queued, one moment at least; False at the end."""
        moment: Moment | None = self._queue.get()
        lines, size, ended = list[bytes](), 0, False
        while moment is not None and not ended:
            at, letter, data = moment
            ended = letter == _END
            if not self._whole:
                lines.append(self._lines(at - self._began, letter, data, self._written + size))
                size += len(lines[-1])
            if letter in STREAMS:
                self._taken += len(data)
            self._steps += 1
            try:
                moment = self._queue.get_nowait() if size < BATCH_BYTES else None
            except Empty:
                moment = None
        self._put(b"".join(lines))
        return not (ended or self.failure)

    def _lines(self, at: float, letter: str, data: Any, written: int) -> bytes:
        """The lines for a moment; `written` bytes precede them."""
        if letter in (_END, _LAST):
            return self._ending(at, data)
        if letter not in STREAMS:
            return self._encoder.fact(letter, at, data if self._cleaner is None else self._cleaner.fact(data))
        if written + len(data) <= self._most:
            return self._encoder.stream(letter, at, data)
        self._off = True
        tell(f"the recording {self.path} is as large as record_max_bytes allows; the turn goes on without it\n")
        return self._ending(at, {"kind": "limit", "bytes": self._most})

    def _ending(self, at: float, note: Mapping[str, Any] | None) -> bytes:
        self._whole = True
        lines = [self._encoder.rests(at)]
        if note is not None:
            lines.append(self._encoder.fact("n", at, note))
        if self._cleaner is not None:
            self._cleaner.close()
            if self._cleaner.counts:
                fact = {"kind": "redaction", "counts": dict(self._cleaner.counts)}
                lines.append(self._encoder.fact("n", at, fact))
        return b"".join([*lines, self._encoder.end(at)])

    def _sweep(self) -> None:
        """Blank the secrets that were split over lines."""
        cleaner = self._cleaner
        if cleaner is None or not cleaner.edits:
            return
        try:
            sweep(self.path, cleaner.edits, os.fstat(self._file), self._given_up)
        except (CastError, StoppedError) as error:
            self._advise("is still", str(error) or "there was no time to write it anew")
        else:
            if cleaner.lost:
                self._advise("may still be", "there are more of them than are kept")

    def _advise(self, how: str, why: str) -> None:
        """Say once that a secret stayed in the file, and how to remove it."""
        if not self._advised:
            self._advised = True
            advice = f"`shim cast redact {self.path}` takes it out"
            tell(f"a secret that was split over lines {how} in {self.path}: {why}; {advice}\n")

    def _given_up(self) -> bool:
        self._steps += 1
        return self._hurry

    def _put(self, data: bytes) -> None:
        while data and not self.failure:
            count = self._write(self._file, data)
            self._written += count
            data = data[count:]


class Track:
    """Records one child: its output, its input, and its end."""

    def __init__(self, recorder: Recorder, number: int) -> None:
        self._recorder = recorder
        self._number = number
        self._open = {"o", "e"}
        self._exit: Exit | None = None
        self._over = False

    def told(self, data: bytes) -> None:
        """Bytes that its stdin took; no bytes when its stdin was closed."""
        if not self._over:
            self._recorder.stream("I", data)

    def said(self, letter: str, chunk: bytes) -> None:
        """Bytes of its stdout (`o`) or stderr (`e`); no bytes when that stream ended."""
        if chunk and not self._over:
            self._recorder.stream(letter, chunk)
        elif not chunk:
            self._open.discard(letter)
            self._end()

    def signalled(self, name: str) -> None:
        self._recorder.note("signal", child=self._number, signal=name)

    def ended(self, how: Exit) -> None:
        self._exit = how
        self._end()

    def close(self, process: "Piped") -> None:
        """Nobody reads the child any more: record what its pipes still hold."""
        for letter, pipe in (("o", process.stdout), ("e", process.stderr)):
            if letter in self._open and pipe is not None and not pipe.closed:
                with contextlib.suppress(OSError):
                    self.said(letter, os.read(pipe.fileno(), LATE_BYTES))
        self._open.clear()
        self._end()

    def give_up(self) -> None:
        """Record the end now, as unknown if it is not known yet."""
        self._open.clear()
        self._exit = self._exit or Exit()
        self._end()

    def _end(self) -> None:
        if self._over or self._open or self._exit is None:
            return
        self._over = True
        self._recorder.fact("x", {"child": self._number, "code": self._exit.code, "signal": self._exit.signal})
