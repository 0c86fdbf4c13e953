"""What a loop that draws for a person waits for beside its own news: signals, and a reader that
leaves.
"""

import os
import signal
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console


@contextmanager
def watch_signals(signals: Sequence[signal.Signals], heard: list[int]) -> Iterator[int]:
    """A descriptor that can be read when a signal came, which is then in `heard`. An ignored one
    stays ignored.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = {number: signal.getsignal(number) for number in signals}
    woken = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, lambda number, _: heard.append(number))
        yield reading
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(woken)
        os.close(reading)
        os.close(writing)


def find_output_pipe(console: Console) -> int | None:
    """The pipe that a console writes to, whose reader may leave while there is nothing to draw;
    None for no pipe.
    """
    try:
        descriptor = console.file.fileno()
        return descriptor if stat.S_ISFIFO(os.fstat(descriptor).st_mode) else None
    except (OSError, ValueError):
        return None
