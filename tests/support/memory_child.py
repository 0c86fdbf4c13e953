"""A vendor's program in memory, and a `Child` for it: drivers use it without a process and pipes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import anyio

from shim.core.turn.outcome import ChildExit
from shim.process.child import CHUNK_BYTES, Child
from shim.process.spawn import ChildSpawnResult

MAX_UNREAD_STDIN_BYTES = 64 * 1024  # as in a pipe

_pids = count(-1, -1)  # not the pids of processes


class MemoryProgram:
    """A program in memory. After each change it runs until it has to wait (`_run_until_wait`)."""

    stdin = stdout = stderr = None  # there are no pipes

    def __init__(self) -> None:
        self.pid = next(_pids)
        self.returncode: int | None = None
        self.exit: ChildExit | None = None
        self.on_change: Callable[[], None] = lambda: None
        self.output = bytearray()
        self.errors = bytearray()
        self.unread = bytearray()
        self.stdin_closed = self.stdout_closed = False

    def run(self) -> None:
        """Continue until the program has to wait."""
        if self.exit is None:
            self._run_until_wait()
        self.on_change()

    def _run_until_wait(self) -> None:
        raise NotImplementedError

    def write_stdin(self, data: bytes) -> int:
        """Write the bytes that fit into its stdin, and return their number."""
        fitting = data[: max(MAX_UNREAD_STDIN_BYTES - len(self.unread), 0)]
        self.unread += fitting
        self.run()
        return len(fitting)

    def close_stdin(self) -> None:
        self.stdin_closed = True
        self.run()

    def receive_signal(self, name: str) -> None:
        """Handle a signal, and wake the child."""
        if self.exit is None:
            self._react_to_signal(name)
            self.on_change()

    def _react_to_signal(self, name: str) -> None:
        self._set_exit(signal=name)

    def _set_exit(self, code: int | None = None, signal: str | None = None) -> None:
        self.exit = self.exit or ChildExit(code=code, signal=signal)


class MemoryChild(Child):
    """A `Child` whose process is a `MemoryProgram`. The code of `Child` stops it, with the same
    timeouts.
    """

    def __init__(self, started: ChildSpawnResult) -> None:
        super().__init__(started)
        self._program: Any = started.process
        self._waiting: list[anyio.Event] = []
        self._program.on_change = self._wake_waiters

    def _wake_waiters(self) -> None:
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            event.set()

    async def _wait_for_change(self) -> None:
        event = anyio.Event()
        self._waiting.append(event)
        await event.wait()

    async def read_stdout(self) -> bytes:
        program = self._program
        while not (program.output or program.stdout_closed or program.exit is not None):
            await self._wait_for_change()
        if self.first_output_delay_s is None:
            self.first_output_delay_s = anyio.current_time() - self.start_time_s
        return self.read_available_stdout()

    def read_available_stdout(self) -> bytes:
        chunk = bytes(self._program.output[:CHUNK_BYTES])
        del self._program.output[:CHUNK_BYTES]
        if chunk:
            self._program.run()  # the program may be waiting to write more
        return chunk

    async def write_stdin(self, data: bytes) -> None:
        async with self._write_lock:
            while data and self._program.exit is None and not self._program.stdin_closed:
                count = self._program.write_stdin(data)
                data = data[count:]
                if not count:
                    await self._wait_for_change()

    def close_stdin(self) -> None:
        self._program.close_stdin()

    async def drain_stderr(self, copy_chunk: Callable[[bytes], None] = lambda chunk: None) -> None:
        try:
            while True:
                chunk = bytes(self._program.errors)
                self._program.errors.clear()
                if chunk:
                    self.stderr_tail.add(chunk)
                    copy_chunk(chunk)
                if self._program.exit is not None:
                    return
                await self._wait_for_change()
        finally:
            self.stderr_drained.set()

    async def wait_for_exit(self) -> ChildExit:
        await self.wait_for_exit_without_reaping()
        self.child_exit = self._program.exit
        self._program.returncode = 0
        assert self.child_exit is not None
        return self.child_exit

    async def wait_for_exit_without_reaping(self) -> None:
        while self._program.exit is None:
            await self._wait_for_change()

    def send_signal(self, signal_name: str) -> None:
        self._was_signalled = signal_name != "SIGKILL"
        self._was_terminated = self._was_terminated or signal_name == "SIGTERM"
        self._program.receive_signal(signal_name)

    @property
    def pids(self) -> set[int]:
        return set()

    def close(self) -> None:
        """Do nothing, because no descriptor is open."""
