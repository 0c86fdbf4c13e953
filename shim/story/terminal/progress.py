"""Shows the activity on a terminal's stderr while a long command has nothing to print yet."""

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

QUIET_SECONDS = 0.5  # a shorter activity is not shown


@contextmanager
def show_progress(
    message: str, total: int | None = None, *, prints_output: bool = False
) -> Iterator[Callable[[], None]]:
    """Show the activity until it is done. Yield a function that counts one more of `total`.

    It is shown only on a terminal, and leaves no trace there. `prints_output`: the command prints
    while it runs, so nothing is shown if stdout is a terminal, too.
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
