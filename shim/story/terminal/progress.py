"""Shows a progress message on stderr while a long command has no output yet."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

QUIET_SECONDS = 0.5  # nothing is shown for shorter commands


@contextmanager
def show_progress(
    message: str, total: int | None = None, *, prints_output: bool = False
) -> Iterator[Callable[[], None]]:
    """Show a progress message on a terminal. Yield a function that advances the counter toward
    `total`.

    The message is removed at the end. Nothing is shown if stderr is not a terminal. If
    `prints_output` is set, nothing is shown when stdout is a terminal either, because the command
    prints there.
    """
    console = Console(stderr=True)
    if not console.is_terminal or (prints_output and sys.stdout.isatty()):
        yield lambda: None
        return
    count_columns = (BarColumn(), MofNCompleteColumn()) if total is not None else ()
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        *count_columns,
        TimeElapsedColumn(),
    )
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task(message, total=total)
    timer = threading.Timer(QUIET_SECONDS, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda: bar.advance(task)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()
