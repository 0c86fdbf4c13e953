"""A program on its own terminal: a pty whose session and foreground process group it leads."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from box import OURS, start_shim
from fork_worker import acquire_terminal

CTRL_C = "\x03"
CTRL_D = "\x04"
SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"
_STYLE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """The input of a person, and the output on the screen. Every wait ends after `timeout_s`
    seconds.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        descriptor: int,
        settings: list[Any],
        timeout_s: float,
    ) -> None:
        self.process = process
        self.drawn = ""
        self._descriptor = descriptor
        self._settings = settings
        self._match_end = 0  # the end of the last match in the output
        self._timeout_s = timeout_s

    @property
    def plain(self) -> str:
        """The output without colors and cursor movements."""
        return _STYLE.sub("", self.drawn)

    def type_keys(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def resize(self, columns: int) -> None:
        """Change the width of the window."""
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))

    def wait_for_text(self, text: str) -> str:
        """Read until a text is drawn after the previously awaited one."""
        before = self._match_end
        self._read_until(lambda: text in self.plain[before:], f"the text {text!r}")
        self._match_end = self.plain.index(text, before) + len(text)
        return self.plain

    def wait_for_condition(self, condition: Callable[[], bool], what: str) -> None:
        """Read until a condition holds. A program blocks if its output is not read."""
        self._read_until(condition, what)

    def wait_for_exit(self) -> int:
        """Read until the program exits. Return its exit status, negative for a signal."""
        self._read_until(lambda: self.process.poll() is not None, "its end")
        while select.select([self._descriptor], [], [], 0)[0] and self._read_chunk():
            pass
        return self.process.returncode

    @property
    def clean(self) -> bool:
        """Return whether the terminal has its original settings and a visible cursor."""
        cursor_visible = self.drawn.rfind(SHOW_CURSOR) >= self.drawn.rfind(HIDE_CURSOR)
        return cursor_visible and termios.tcgetattr(self._descriptor) == self._settings

    def _read_until(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self._timeout_s
        while True:
            # The exit is checked before `done`, because the program may exit between the two checks and
            # make `done` true.
            has_ended = (
                self.process.poll() is not None
                and not select.select([self._descriptor], [], [], 0)[0]
            )
            if done():
                return
            assert not has_ended and time.monotonic() < deadline, (
                f"{what} did not come; drawn:\n{self.plain}"
            )
            if select.select([self._descriptor], [], [], 0.02)[0]:
                self._read_chunk()

    def _read_chunk(self) -> bool:
        try:
            data = os.read(self._descriptor, 65536)
        except OSError:  # Linux: the last program has closed the terminal
            return False
        self.drawn += data.decode("utf-8", "replace")
        return bool(data)


@contextmanager
def on_terminal(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str,
    columns: int = 100,
    timeout_s: float = 30.0,
    echo: bool = True,
) -> Iterator[Terminal]:
    """Start a program on its own terminal. The rest of its process group is killed at the end."""
    master, slave = pty.openpty()
    if not echo:
        settings = termios.tcgetattr(slave)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, settings)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    settings = termios.tcgetattr(slave)  # before the program can change them

    ours = tuple(command[: len(OURS)]) == OURS
    start = (
        partial(start_shim, command[len(OURS) :]) if ours else partial(subprocess.Popen, command)
    )
    # of a runner of tests
    sized = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES")}
    process = start(
        env={"TERM": "xterm-256color"} | sized, cwd=cwd, stdin=slave, stdout=slave, stderr=slave,
        start_new_session=True, preexec_fn=acquire_terminal,
    )  # fmt: skip
    try:
        yield Terminal(process, master, settings, timeout_s)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except OSError:
            pass
        process.wait()
        os.close(slave)
        os.close(master)
