"""Signals that come while our modules are loaded are noted, and obeyed once a result can be
written.

Left to Python, a SIGINT would raise in the middle of an import: a traceback, or a crash in a module
written in C.
"""

import signal
from collections.abc import Callable
from types import FrameType

from shim.io.inherited_signals import stop_ignoring_signals, unblock_signals

SIGNAL_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")

received_signals: list[int] = []


def install_signal_handler(handler: Callable[[int, FrameType | None], None]) -> None:
    """Handle signals from now on. A signal that is ignored stays ignored (see `inherited_signals`)."""
    for name in SIGNAL_NAMES:
        signal_number = getattr(signal, name)
        if signal.getsignal(signal_number) is not signal.SIG_IGN:
            signal.signal(signal_number, handler)


def start_collecting_signals() -> None:
    """Record signals from now on, also signals that our parent has ignored or blocked."""
    stop_ignoring_signals()
    install_signal_handler(_record_signal)
    unblock_signals()


def restore_default_signal_handlers() -> None:
    """Let signals end the process as usual, a noted one at once: what follows is short and writes
    no result.
    """
    for name in SIGNAL_NAMES:
        signal_number = getattr(signal, name)
        if signal.getsignal(signal_number) is _record_signal:
            signal.signal(signal_number, signal.SIG_DFL)
    if received_signals:
        signal.raise_signal(received_signals[0])


def _record_signal(signal_number: int, frame: FrameType | None) -> None:
    received_signals.append(signal_number)
