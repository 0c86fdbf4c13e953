"""A sandbox to start programs in, and a program in it that prints lines of JSON.

Every wait has a limit. All processes of a sandbox have its mark in their environment, so that those
that are still running later can be found, and killed, by their ids.
"""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

# A turn takes one to ten seconds, or longer on a busy machine.
TURN_SECONDS = 90.0
EXIT_SECONDS = 30.0  # from the end of a program to the end of all processes that it started
# From the result of an interrupted turn to the end of the command that ran in it.
STOP_SECONDS = 3.0
POLL_SECONDS = 0.05

# In the environment of every process of a sandbox. The prefix is not SHIM_, because the drop-in does not
# pass such variables to its child.
MARK = "E2E_MARK"

Line = dict[str, Any]


@dataclass
class Sandbox:
    """A `claude`, a working directory and an environment without settings of this machine."""

    claude: Path
    folder: Path
    environment: Mapping[str, str]
    started: list[LineProcess] = field(default_factory=list)

    def list_processes(self) -> dict[int, str]:
        """Return the running processes with this sandbox's mark, by id, with their command lines
        (Linux only).
        """
        environment_entry = f"{MARK}={self.environment[MARK]}".encode()
        command_by_pid = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if environment_entry in (entry / "environ").read_bytes().split(b"\0"):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    command_by_pid[int(entry.name)] = command.decode(errors="replace")
            except OSError:
                continue  # it has exited, or belongs to another user
        return command_by_pid

    def wait_for_start(self, command: str, seconds: float = EXIT_SECONDS) -> bool:
        """Return whether a process with this command line starts in time. The command line of the
        drop-in contains the prompt.
        """
        return wait_until(lambda: self._is_running(command), seconds)

    def wait_for_end(self, command: str, seconds: float = EXIT_SECONDS) -> bool:
        """Return whether all processes with this command line exit in time."""
        return wait_until(lambda: not self._is_running(command), seconds)

    def _is_running(self, command: str) -> bool:
        return any(line.startswith(command) for line in self.list_processes().values())

    def list_remaining_processes(self) -> dict[int, str]:
        """Return the processes that are still running after the time for their exit."""
        wait_until(lambda: not self.list_processes(), EXIT_SECONDS)
        return self.list_processes()

    def close(self) -> None:
        """Kill the processes that a failed test has left, which are only processes of this sandbox."""
        for process in self.started:
            process.close()
        for number in self.list_processes():
            try:
                os.kill(number, signal.SIGKILL)
            except ProcessLookupError:
                continue


class LineProcess:
    """A running program that writes one JSON object per line."""

    def __init__(self, argv: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.name = Path(argv[0]).name
        self.folder = folder
        self.lines: list[Line] = []
        self._queue: queue.Queue[bytes | None] = queue.Queue()
        self._process = subprocess.Popen(
            argv,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._stderr: list[bytes] = []
        self._threads = [
            threading.Thread(target=self._read_stdout, daemon=True),
            threading.Thread(target=self._read_stderr, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def number(self) -> int:
        """The process id."""
        return self._process.pid

    def _read_stdout(self) -> None:
        for line in _require_pipe(self._process.stdout):
            self._queue.put(line)
        self._queue.put(None)

    def _read_stderr(self) -> None:
        for line in _require_pipe(self._process.stderr):
            self._stderr.append(line)

    def send(self, value: object) -> None:
        """Write one line to stdin."""
        stdin = _require_pipe(self._process.stdin)
        stdin.write(json.dumps(value).encode() + b"\n")
        stdin.flush()

    def close_stdin(self) -> None:
        """Close stdin. Calling this more than once is harmless."""
        try:
            _require_pipe(self._process.stdin).close()
        except BrokenPipeError:
            pass

    def read_until(
        self, is_expected: Callable[[Line], bool], seconds: float = TURN_SECONDS
    ) -> Line:
        """Read up to the first matching line."""
        deadline = time.monotonic() + seconds
        while True:
            line = self._read_line(deadline)
            assert line is not None, self.describe_failure("ended before the awaited line came")
            if is_expected(line):
                return line

    def interrupt(self) -> None:
        """Send SIGINT, as Ctrl-C or a frontend's stop button does."""
        self._process.send_signal(signal.SIGINT)

    def terminate(self) -> None:
        """Send SIGTERM, as a frontend does to end the process."""
        self._process.terminate()

    def read_to_end(self, seconds: float = TURN_SECONDS) -> int:
        """Read to the end of stdout, and wait for the process. Return its exit status."""
        deadline = time.monotonic() + seconds
        while self._read_line(deadline) is not None:
            pass
        try:
            code = self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise AssertionError(
                self.describe_failure("closed its stdout and did not end")
            ) from None
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return code

    def _read_line(self, deadline: float) -> Line | None:
        try:
            raw = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise AssertionError(self.describe_failure("is silent for too long")) from None
        if raw is None:
            return None
        line = json.loads(raw)
        self.check_line(raw, line)
        self.lines.append(line)
        return line

    def check_line(self, raw: bytes, line: object) -> None:
        """Assert the rules for every line, given its bytes and its parsed form."""
        assert isinstance(line, dict), raw
        assert raw.endswith(b"\n") and not raw.endswith(b"\r\n"), raw

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def stderr(self) -> str:
        """The stderr so far."""
        return b"".join(self._stderr).decode(errors="replace")

    def describe_failure(self, what: str) -> str:
        """Return a description of the failure, with the end of the output."""
        tail = "\n".join(json.dumps(line)[:300] for line in self.lines[-8:])
        return f"{self.name} {what}; its last lines:\n{tail}\nstderr:\n{self.stderr}"

    def close(self) -> None:
        """End the process if a failed test has left it running. It is signalled first, so that it
        ends its child.
        """
        self.close_stdin()
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(5)
        for thread in self._threads:
            thread.join(5)
        if not any(thread.is_alive() for thread in self._threads):
            _require_pipe(self._process.stdout).close()
            _require_pipe(self._process.stderr).close()


def _require_pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def scale_timeout(seconds: float) -> float:
    """Return the timeout for an action that takes at most `seconds` on an idle machine. A busy
    machine is slower.
    """
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def find_free_port() -> int:
    """Return a port of this machine for a server that starts later. The system does not assign such
    a low port to connections.
    """
    while True:
        with (
            suppress(OSError),
            socket.create_server(("127.0.0.1", random.randrange(15_000, 32_000))) as free,
        ):
            port: int = free.getsockname()[1]
            return port


def wait_until(
    condition: Callable[[], bool], seconds: float, interval: float = POLL_SECONDS
) -> bool:
    """Return whether the condition came true in time. Check it once in each interval."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            return False
        pause.wait(interval)
    return True
