"""Handles signals before the event loop is running: resets inherited signal handlers, and collects
signals while modules are imported.

Launch daemons and thread pools block signals, some supervisors ignore SIGCHLD, and a shell without
job control ignores SIGINT in background jobs. The kernel keeps both states across `execve`. Like
the real claude, the shim resets them. A collected signal is handled as soon as a result can be
written. Python's own SIGINT handler would raise an exception during an import, which may crash a C
extension.
"""

import signal
from collections.abc import Callable
from types import FrameType

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
