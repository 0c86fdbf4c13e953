"""Records signals until the event loop handles them. A signal before a child exists aborts the
start. A later signal waits for the event loop.
"""

import signal
from types import FrameType

from shim.core.errors import ShimError
from shim.io import early_signals

IMPORT_FRAME_FILE = (
    "<frozen importlib._bootstrap>"  # the file name of stack frames that import a module
)


class StartInterruptedError(ShimError):
    """Raised when a signal arrives before a child exists."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name} before the turn started")
        self.signal_number = signal_number


class SignalRecorder:
    """Records signals in `pending_signals` for the event loop. After `is_started` is set, a signal
    no longer aborts the start.

    A signal during an import is kept until `raise_if_stopped` is called, because an exception in a
    C extension's import may crash it.
    """

    def __init__(self) -> None:
        self.pending_signals: list[int] = []
        self.is_started = False

    def start_recording_signals(self) -> None:
        """Start recording signals."""
        early_signals.install_signal_handler(self._on_signal)
        if early_signals.received_signals:
            self._on_signal(early_signals.received_signals.pop(0), None)

    def restart_recording_signals(self) -> None:
        """Clear the signals that the event loop has handled, and record new signals."""
        self.is_started = True
        self.pending_signals.clear()
        self.start_recording_signals()

    def is_terminating(self) -> bool:
        """Return whether a signal has asked the shim to exit. From now on, signals are only
        recorded.
        """
        self.is_started = True
        return bool(self.pending_signals)

    def raise_if_stopped(self) -> None:
        """Raise StartInterruptedError if a signal arrived while a module was imported."""
        if self.pending_signals and not self.is_started:
            self.is_started = True  # raise only once
            raise StartInterruptedError(self.pending_signals[0])

    def _on_signal(self, signal_number: int, frame: FrameType | None) -> None:
        self.pending_signals.append(signal_number)
        while frame is not None and frame.f_code.co_filename != IMPORT_FRAME_FILE:
            frame = frame.f_back
        if frame is None:
            self.raise_if_stopped()
