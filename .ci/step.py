"""Run one step of the Makefile: print its title, its progress and its duration in one line.

Usage: `python step.py TITLE COMMAND ARG…`. On a terminal the line shows the seconds and the last
line of the command's output. The output itself is printed only if the command fails. The exit
status is the command's.
"""

import os
import re
import selectors
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator

REDRAW_INTERVAL_S = 1.0
MAX_OUTPUT_LINES = 200  # of the output, for a failed step
MAX_READ_BYTES = 65536
CLEAR_LINE = "\r\x1b[K"
CONTROL_CHARS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x1f]")


def run_step(title: str, command: list[str]) -> int:
    """Run `command`. Return its exit status."""
    start = time.monotonic()
    columns = find_terminal_width()
    write(f"{title} ...")
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as error:
        write(f" failed\n{command[0]}: {error.strerror}\n")
        return 127
    lines: deque[str] = deque([""], MAX_OUTPUT_LINES)
    for text in read_output(process):
        first, *rest = text.split("\n")
        lines[-1] += first
        lines.extend(rest)
        if columns:
            last_line = next((line for line in reversed(lines) if line.strip()), "")
            progress = f"{title} ... {time.monotonic() - start:.0f} s  {last_line.strip()}"
            write(CLEAR_LINE + CONTROL_CHARS.sub("", progress)[: columns - 1])
    status = process.wait()
    seconds = f"{time.monotonic() - start:.0f} s"
    prefix = f"{CLEAR_LINE}{title} ..." if columns else ""
    if status == 0:
        write(f"{prefix} {seconds}\n")
        return 0
    write(f"{prefix} failed after {seconds}\n")
    write("\n".join(lines).strip() + "\n")
    return status if status > 0 else 128 - status  # a shell's status for a signal


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def find_terminal_width() -> int:
    """Return the columns of the terminal, or 0 if stdout is not a terminal."""
    if not sys.stdout.isatty():
        return 0
    return os.get_terminal_size(sys.stdout.fileno()).columns or 80


def read_output(process: "subprocess.Popen[bytes]") -> Iterator[str]:
    """Yield the output as it arrives, and "" after each second without output."""
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            if not selector.select(REDRAW_INTERVAL_S):
                yield ""
                continue
            data = os.read(descriptor, MAX_READ_BYTES)
            if not data:
                return
            yield data.decode("utf-8", "replace")


if __name__ == "__main__":
    try:
        sys.exit(run_step(sys.argv[1], sys.argv[2:]))
    except KeyboardInterrupt:
        write("\n")
        sys.exit(130)
