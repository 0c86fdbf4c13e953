"""Wakes a drawing loop when a signal arrives or when the reader of stdout closes the pipe."""

import os
import signal
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console


@contextmanager
def open_signal_pipe(
    signals: Sequence[signal.Signals], received_signals: list[int]
) -> Iterator[int]:
    """Yield a descriptor that becomes readable when a signal arrives. The signal number is added to
    `received_signals`. Ignored signals stay ignored.
    """
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    old_handlers = {number: signal.getsignal(number) for number in signals}
    old_wakeup_fd = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    try:
        for number, handler in old_handlers.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, lambda number, _: received_signals.append(number))
        yield read_end
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(old_wakeup_fd)
        os.close(read_end)
        os.close(write_end)


def find_console_pipe_descriptor(console: Console) -> int | None:
    """Return the descriptor of the pipe that a console writes to, or None if the console does not
    write to a pipe. The reader may close the pipe at any time.
    """
    try:
        descriptor = console.file.fileno()
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return descriptor
        return None
    except (OSError, ValueError):
        return None
