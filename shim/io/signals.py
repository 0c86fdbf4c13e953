"""Signals from our first moment to the loop: without a child they end the start, with one they wait
for the loop.
"""

import signal
from types import FrameType

from shim.core.errors import ShimError
from shim.io import early_signals

IMPORT_FRAME_FILE = "<frozen importlib._bootstrap>"  # the file of the frames that import a module


class StartInterruptedError(ShimError):
    """A signal came before there was a child."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name} before the turn began")
        self.signal_number = signal_number


class SignalRecorder:
    """`pending_signals` are the signals that wait for the loop; `is_started` is set when a signal
    must not end the start any more.

    A signal in the middle of an import waits for `raise_if_stopped`: modules written in C may crash
    when they are interrupted.
    """

    def __init__(self) -> None:
        self.pending_signals: list[int] = []
        self.is_started = False

    def start_recording_signals(self) -> None:
        """From now on they are ours."""
        early_signals.install_signal_handler(self._on_signal)
        if early_signals.received_signals:
            self._on_signal(early_signals.received_signals.pop(0), None)

    def restart_recording_signals(self) -> None:
        """The loop is over: forget the signals that it has handled, and note new ones."""
        self.is_started = True
        self.pending_signals.clear()
        self.start_recording_signals()

    def is_terminating(self) -> bool:
        """Whether we were told to end; from now on a signal only says so."""
        self.is_started = True
        return bool(self.pending_signals)

    def raise_if_stopped(self) -> None:
        """StartStoppedError for a signal that came while a module was imported."""
        if self.pending_signals and not self.is_started:
            self.is_started = True  # one error is enough
            raise StartInterruptedError(self.pending_signals[0])

    def _on_signal(self, signal_number: int, frame: FrameType | None) -> None:
        self.pending_signals.append(signal_number)
        while frame is not None and frame.f_code.co_filename != IMPORT_FRAME_FILE:
            frame = frame.f_back
        if frame is None:
            self.raise_if_stopped()
