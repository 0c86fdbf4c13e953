"""A vendor's program in memory, and a `Child` for it: drivers use it without a process and pipes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import anyio

from shim.core.turn.outcome import ChildExit
from shim.process.child import CHUNK_BYTES, Child
from shim.process.spawn import Started

MAX_UNREAD_STDIN_BYTES = 64 * 1024  # as in a pipe

_pids = count(-1, -1)  # not the pids of processes


class MemoryProgram:
    """A program in memory. It runs whenever something has changed, until it has to wait
    (`_continue`).
    """

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
            self._continue()
        self.on_change()

    def _continue(self) -> None:
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

    def signal(self, name: str) -> None:
        """Obey a signal, and wake its child."""
        if self.exit is None:
            self._obey(name)
            self.on_change()

    def _obey(self, name: str) -> None:
        self._end(signal=name)

    def _end(self, code: int | None = None, signal: str | None = None) -> None:
        self.exit = self.exit or ChildExit(code=code, signal=signal)


class MemoryChild(Child):
    """A `Child` whose process is a `MemoryProgram`. It is stopped by the code of `Child`, with the
    same timeouts.
    """

    def __init__(self, started: Started) -> None:
        super().__init__(started)
        self._program: Any = started.process
        self._waiting: list[anyio.Event] = []
        self._program.on_change = self._wake

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            event.set()

    async def _wait(self) -> None:
        event = anyio.Event()
        self._waiting.append(event)
        await event.wait()

    async def read(self) -> bytes:
        program = self._program
        while not (program.output or program.stdout_closed or program.exit is not None):
            await self._wait()
        if self.first_output is None:
            self.first_output = anyio.current_time() - self.began
        return self.read_ready()

    def read_ready(self) -> bytes:
        chunk = bytes(self._program.output[:CHUNK_BYTES])
        del self._program.output[:CHUNK_BYTES]
        if chunk:
            self._program.run()  # the program may be waiting to write more
        return chunk

    async def say(self, data: bytes) -> None:
        async with self._saying:
            while data and self._program.exit is None and not self._program.stdin_closed:
                count = self._program.write_stdin(data)
                data = data[count:]
                if not count:
                    await self._wait()

    def hang_up(self) -> None:
        self._program.close_stdin()

    async def drain(self, copy: Callable[[bytes], None] = lambda chunk: None) -> None:
        try:
            while True:
                chunk = bytes(self._program.errors)
                self._program.errors.clear()
                if chunk:
                    self.tail.add(chunk)
                    copy(chunk)
                if self._program.exit is not None:
                    return
                await self._wait()
        finally:
            self.drained.set()

    async def ended(self) -> ChildExit:
        await self.gone()
        self.exit = self._program.exit
        self._program.returncode = 0
        assert self.exit is not None
        return self.exit

    async def gone(self) -> None:
        while self._program.exit is None:
            await self._wait()

    def signal(self, name: str) -> None:
        self._signalled = name != "SIGKILL"
        self._terminated = self._terminated or name == "SIGTERM"
        self._program.signal(name)

    @property
    def pids(self) -> set[int]:
        return set()

    def close(self) -> None:
        """Do nothing, because no descriptor is open."""
