"""Replays a recording in place of the vendor or of `claude`: `python -m shim.recording.player CAST
…`.

The drop-in starts this program as its child, so the module imports little. It writes the recorded
bytes with the recorded pauses. It waits for input at the points where the recorded program received
input, and exits in the same way.
"""

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

from shim.core.cast.format import RecordingError, RecordingRecord
from shim.core.cast.protocol_lines import (
    NOTE_REPORT,
    select_child_records,
    select_frontend_records,
    skip_to_first_message,
)
from shim.core.cast.replayer import RecordingReplayer, ReplayStep
from shim.core.reading.lines import LineSplitter
from shim.core.reading.values import as_list, escape_control_chars
from shim.io.signals import install_signal_handler
from shim.recording.recording_file import CHUNK_BYTES, Recording
from shim.recording.replay_request import ReplayRequest, parse_replay_args

# The longest wait for an input line. A user may answer a permission prompt up to a day later.
LINE_TIMEOUT_S = 24 * 60 * 60.0
# The longest wait for a recorded interrupt. A user who only watches a replay does not interrupt.
SIGNAL_TIMEOUT_S = 60.0
MAX_PAUSE_S = 24 * 60 * 60.0  # longer recorded pauses are shortened
MAX_QUEUED_CHUNKS = 64  # chunks of stdin; a full queue makes the sender wait

InputEvent = tuple[str, bytes]  # ("line", bytes), ("end", b"") or ("signal", name)


class ReplayInputReader:
    """Reads stdin lines and signals, and queues them in order of arrival."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        # SimpleQueue.put is safe in a signal handler.
        self._events: queue.SimpleQueue[InputEvent] = queue.SimpleQueue()
        self._free_slots = threading.BoundedSemaphore(MAX_QUEUED_CHUNKS)
        self._lines = LineSplitter()

    def start(self) -> None:
        """Start reading. If stdin is a terminal, treat stdin as closed, because nobody types
        protocol lines.
        """
        install_signal_handler(
            lambda signal_number, frame: self._events.put(
                ("signal", signal.Signals(signal_number).name.encode())
            )
        )
        if os.isatty(self._descriptor):
            self._events.put(("end", b""))
        else:
            threading.Thread(target=self._read_stdin, daemon=True).start()

    def _read_stdin(self) -> None:
        """Read stdin in a thread, because a thread is the only way to wait for a pipe that works on
        every system.
        """
        chunk = b"."
        while chunk:
            try:
                chunk = os.read(self._descriptor, CHUNK_BYTES)
            except OSError:
                chunk = b""
            self._free_slots.acquire()
            self._events.put(("chunk", chunk))

    def wait_for_events(self, timeout_s: float) -> list[InputEvent] | None:
        """Return the next input events, or None if nothing arrives within `timeout_s` seconds."""
        try:
            if timeout_s > 0:
                kind, data = self._events.get(timeout=timeout_s)
            else:
                kind, data = self._events.get_nowait()
        except queue.Empty:
            return None
        if kind != "chunk":
            return [(kind, data)]
        self._free_slots.release()
        if data:
            lines = self._lines.feed(data)
        else:
            lines = self._lines.close()
        return [("line", line) for line in lines] + ([] if data else [("end", b"")])


class ReplayPlayer:
    """Plays the steps of a replay with the recorded pauses.

    `wait_for_events` waits a number of seconds for input events. `write` writes bytes to a stream.
    """

    def __init__(
        self,
        replayer: RecordingReplayer,
        *,
        wait_for_events: Callable[[float], list[InputEvent] | None],
        write: Callable[[str, bytes], None],
        speed: float = 1.0,
        max_gap_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._replayer = replayer
        self._wait_for_events = wait_for_events
        self._write = write
        self._speed = speed
        if max_gap_s is None:
            self._max_pause_s = MAX_PAUSE_S
        else:
            self._max_pause_s = max_gap_s
        self._clock = clock
        self._due_time_s = clock()

    def play(self) -> ReplayStep:
        """Play all steps, and return the last one."""
        replayer = self._replayer
        while True:
            step = replayer.take_next_step()
            jump_count = replayer.jump_count
            if step.kind == "wait":
                self._wait_for_input(
                    SIGNAL_TIMEOUT_S if step.reason == "signal" else LINE_TIMEOUT_S
                )
                continue
            self._pause_output(step.pause_s)
            if replayer.jump_count != jump_count and step.kind != "fail":
                continue  # the input has moved the replay to another record
            if step.kind != "say":
                return step
            self._write(step.stream_code, step.data)

    def _wait_for_input(self, timeout_s: float) -> None:
        if not self._feed_events(timeout_s):
            self._replayer.skip_awaited_event()
        self._due_time_s = self._clock()

    def _pause_output(self, pause_s: float) -> None:
        replayer = self._replayer
        jump_count = self._replayer.jump_count
        if self._speed:
            self._due_time_s = self._due_time_s + min(pause_s / self._speed, self._max_pause_s)
        else:
            self._due_time_s = self._clock()
        while replayer.jump_count == jump_count:
            remaining_s = self._due_time_s - self._clock()
            if not self._feed_events(max(remaining_s, 0.0)) and remaining_s <= 0:
                return
        self._due_time_s = self._clock()

    def _feed_events(self, timeout_s: float) -> bool:
        events = self._wait_for_events(timeout_s)
        for kind, data in as_list(events):
            if kind == "line":
                self._replayer.feed_line(data)
            elif kind == "signal":
                self._replayer.feed_signal(data.decode())
            else:
                self._replayer.close_input()
        return events is not None


# -- the file --------------------------------------------------------------------------------------


def create_recording_replayer(request: ReplayRequest) -> RecordingReplayer:
    """Return a replayer for one side of a recording. Raise RecordingError if the recording has no
    such child.
    """
    records = Recording(request.path).read_records()
    if request.side == "claude":
        return RecordingReplayer(
            select_frontend_records(records), output_streams="O", input_stream="i"
        )
    child = select_child_records(records, request.child)
    first_record = next(child, None)
    if first_record is None:
        raise RecordingError(
            f"this recording has no child with the number {request.child}",
            hint="`shim show CAST` prints the recording",
        )
    select_records = (
        (lambda line: _find_records_by_message(line, request)) if request.folder else None
    )
    child_records = chain((first_record,), child)
    return RecordingReplayer(
        child_records,
        output_streams="oe",
        input_stream="I",
        waits_for_signals=request.signals,
        session_id=request.session,
        select_records=select_records,
    )


def _find_records_by_message(
    line: bytes, request: ReplayRequest
) -> Iterator[RecordingRecord] | None:
    """Find the recording that starts with this message. Return its records from the message on, or
    None if no recording matches.
    """
    from shim.recording.selection import find_recorded_child_by_message

    child = find_recorded_child_by_message(line, request.path, request.folder)
    if child is None:
        return None
    return skip_to_first_message(
        select_child_records(Recording(child.path).read_records(), child.number), "I"
    )


# -- the program -----------------------------------------------------------------------------------


def play_recording(request: ReplayRequest) -> int:
    """Replay a recording on this process's stdin, stdout and stderr. Return the exit status.

    If a signal ended the recorded program, this process ends by the same signal, so the function
    does not return.
    """
    try:
        replayer = create_recording_replayer(request)
    except RecordingError as error:
        return _print_error(str(error))
    event_reader = ReplayInputReader()
    event_reader.start()
    write = partial(_write_stream, report_path=request.report)
    player = ReplayPlayer(
        replayer,
        wait_for_events=event_reader.wait_for_events,
        write=write,
        speed=request.speed,
        max_gap_s=request.max_gap,
    )
    try:
        step = player.play()
    except RecordingError as error:
        return _print_error(str(error))
    except BrokenPipeError:
        return 0  # a closed stdout is not a failure
    except OSError as error:
        return _print_error(f"the output cannot be written: {error.strerror}")
    if step.kind == "fail":
        return _print_error(step.reason)
    if step.signal_name:
        exit_by_signal(step.signal_name)
    return step.exit_code or 0


def exit_by_signal(signal_name: str) -> None:
    """End this process with a signal. If the system has no signal with this name, exit with status
    1.
    """
    signal_number = None
    if signal_name.startswith("SIG") and not signal_name.startswith("SIG_"):
        signal_number = getattr(signal, signal_name, None)
    if signal_number is None:
        os._exit(1)
    try:
        import resource

        hard_limit = resource.getrlimit(resource.RLIMIT_CORE)[1]
        # The program has not crashed, so no core dump is needed.
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard_limit))
    except (ImportError, OSError, ValueError):
        pass
    if signal_number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(signal_number, signal.SIG_DFL)
    os.kill(os.getpid(), signal_number)
    os._exit(1)  # the signal did not end this process


def _write_stream(stream_code: str, data: bytes, report_path: str = "") -> None:
    if stream_code == NOTE_REPORT:
        if report_path:
            with open(report_path, "xb") as file:
                file.write(data)
        return
    descriptor = 1
    if stream_code == "e":
        descriptor = 2
    if os.isatty(descriptor):  # control characters must not reach a terminal
        data = escape_control_chars(data.decode("utf-8", "replace")).encode()
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except OSError:
            if descriptor == 2:
                return  # a closed stderr is not a failure
            raise


def _print_error(text: str) -> int:
    try:
        os.write(2, escape_control_chars(f"replay: {text}\n").encode())
    except OSError:
        pass
    return 1


if __name__ == "__main__":
    sys.exit(play_recording(parse_replay_args(sys.argv[1:])))
