"""Starts a child with `subprocess`, for cases that `posix_spawn` does not support: another working
directory, or a glibc older than 2.26.
"""

import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager


def spawn_with_subprocess(
    command: Sequence[str],
    environment: Mapping[str, str],
    cwd: str,
    default_signals: Sequence[int],
    *,
    opens_stdin: bool,
) -> "subprocess.Popen[bytes]":
    """Start a child in a session of its own. The child gets default handlers for `default_signals`,
    and no blocked signals.
    """
    with _reset_signals(default_signals):
        if opens_stdin:
            stdin = subprocess.PIPE
        else:
            stdin = subprocess.DEVNULL
        return subprocess.Popen(
            list(command),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            cwd=cwd,
            start_new_session=True,
        )


@contextmanager
def _reset_signals(signals: Sequence[int]) -> Iterator[None]:
    """Reset ignored and blocked signals in this context, so that a child started here does not
    inherit them.

    A child inherits SIG_IGN but no handlers. `Popen` itself resets SIGPIPE and SIGXFSZ. Only the
    main thread can set signal handlers.
    """
    ignored_signals = [
        signal_number
        for signal_number in signals
        if signal.getsignal(signal_number) is signal.SIG_IGN
    ]
    if threading.current_thread() is not threading.main_thread():
        ignored_signals = []
    blocked_signals = signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        for signal_number in ignored_signals:
            signal.signal(signal_number, lambda *_: None)
        yield
    finally:
        for signal_number in ignored_signals:
            signal.signal(signal_number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked_signals)
