"""Handles signals until the event loop is running.

Launch daemons and thread pools block signals, some supervisors ignore SIGCHLD, and a shell without
job control ignores SIGINT in background jobs. The kernel keeps both states across `execve`. Like
the real claude, the shim resets them.

While modules are imported, signals are only collected, because Python's own SIGINT handler would
raise an exception during an import, which may crash a C extension. A collected signal is handled as
soon as a result can be written. A later signal before a child exists aborts the start. After that, a
signal waits for the event loop.
"""

import signal
from collections.abc import Callable
from types import FrameType

IMPORT_FRAME_FILE = (
    "<frozen importlib._bootstrap>"  # the file name of stack frames that import a module
)
# If SIGCHLD is ignored, the kernel reaps the shim's children, and their exit statuses are lost.
# SIGALRM limits the time of a hook.
RESET_TO_DEFAULT = (signal.SIGCHLD, signal.SIGTERM, signal.SIGALRM)


def reset_inherited_signals() -> None:
    """Restore the default handlers for the signals that the shim needs, and unblock all signals."""
    stop_ignoring_signals()
    unblock_signals()


def stop_ignoring_signals() -> None:
    """Restore the default handlers for the signals that the shim needs.

    An ignored SIGHUP stays ignored, because `nohup` relies on that.
    """
    for signal_number in RESET_TO_DEFAULT:
        if signal.getsignal(signal_number) is signal.SIG_IGN:
            signal.signal(signal_number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def unblock_signals() -> None:
    """Unblock all signals. A pending signal is delivered at once, so its handler must already be
    set.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


SIGNAL_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")

received_signals: list[int] = []


def install_signal_handler(handler: Callable[[int, FrameType | None], None]) -> None:
    """Install a handler for all signals in SIGNAL_NAMES. An ignored signal stays ignored."""
    for name in SIGNAL_NAMES:
        signal_number = getattr(signal, name)
        if signal.getsignal(signal_number) is not signal.SIG_IGN:
            signal.signal(signal_number, handler)


def start_collecting_signals() -> None:
    """Start collecting signals, including signals that the parent process ignored or blocked."""
    stop_ignoring_signals()
    install_signal_handler(_record_signal)
    unblock_signals()


def restore_default_signal_handlers() -> None:
    """Restore the default signal handlers. A signal that was already collected ends the process at
    once. Short commands that write no result use this.
    """
    for name in SIGNAL_NAMES:
        signal_number = getattr(signal, name)
        if signal.getsignal(signal_number) is _record_signal:
            signal.signal(signal_number, signal.SIG_DFL)
    if received_signals:
        signal.raise_signal(received_signals[0])


def _record_signal(signal_number: int, frame: FrameType | None) -> None:
    received_signals.append(signal_number)


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
        install_signal_handler(self._on_signal)
        if received_signals:
            self._on_signal(received_signals.pop(0), None)

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
            # `shim.__main__` imports this module before it imports `shim.core`. `shim.core.errors`
            # is already imported when the first signal is recorded.
            from shim.core.errors import StartInterruptedError

            received = signal.Signals(self.pending_signals[0])
            raise StartInterruptedError(received, received.name)

    def _on_signal(self, signal_number: int, frame: FrameType | None) -> None:
        self.pending_signals.append(signal_number)
        while frame is not None and frame.f_code.co_filename != IMPORT_FRAME_FILE:
            frame = frame.f_back
        if frame is None:
            self.raise_if_stopped()
