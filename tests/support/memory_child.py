"""A vendor's program in memory: the real loop and the real drivers use it without a process and pipes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import anyio
import anyio.lowlevel
import pytest

from shim.channels.signals import Signals
from shim.conversation.decide import Start
from shim.conversation.drivers import child_per_conversation, child_per_turn, launcher
from shim.conversation.drivers.launcher import Launcher
from shim.core.claude.argv.parse import parse
from shim.core.reading.head_and_tail import Tail
from shim.core.turn.outcome import Exit
from shim.process.spawn import Started


class Program(Protocol):
    """A program in memory."""

    def start(self) -> bytes:
        """Return what it prints before it reads anything."""

    def receive(self, line: bytes) -> bytes:
        """Return what it prints after it has received one line on its stdin."""

    @property
    def waits(self) -> bool:
        """Return whether it reads its stdin, and does not exit after its first output."""


Starts = Callable[[Sequence[str], Mapping[str, str], str], Program]  # from command, environment and folder


class MemoryChild:
    """A `Child` whose process is a `Program`."""

    def __init__(self, started: Started) -> None:
        self._program: Any = started.process
        self._stdin = started.stdin
        self._output = b""
        self._partial_line = b""
        self._news = anyio.Event()
        self._exited = anyio.Event()
        self.tail = Tail()
        self.exit: Exit | None = None
        self.began = anyio.current_time()
        self.first_output: float | None = None
        self.drained = anyio.Event()
        self.pids: set[int] = set()
        self._print(self._program.start())
        if not self._program.waits:
            self._end()

    async def read(self) -> bytes:
        while not self._output and self.exit is None:
            self._news = anyio.Event()
            await self._news.wait()
        await anyio.lowlevel.checkpoint()
        return self.read_ready()

    def read_ready(self) -> bytes:
        chunk, self._output = self._output, b""
        return chunk

    async def feed(self) -> None:
        await self.say(self._stdin)
        self.hang_up()

    async def say(self, data: bytes) -> None:
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        for line in lines:
            self._print(self._program.receive(line))
        await anyio.lowlevel.checkpoint()

    def hang_up(self) -> None:
        self._end()

    async def drain(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.drained.set()

    async def ended(self) -> Exit:
        await self._exited.wait()
        assert self.exit is not None
        return self.exit

    async def gone(self) -> None:
        await self._exited.wait()

    def signal(self, name: str) -> None:
        self._end()

    async def stop(self, first: str = "SIGTERM") -> None:
        self._end()

    async def dismiss(self) -> None:
        self._end()

    def close(self) -> None:
        """Nothing is open."""

    def _print(self, data: bytes) -> None:
        self._output += data
        self._news.set()

    def _end(self) -> None:
        self.exit = self.exit or Exit(code=0)
        self._exited.set()
        self._news.set()


class MemoryOutput:
    """The frontend of a conversation in memory: `data` is all that it received."""

    broken = False

    def __init__(self) -> None:
        self.data = b""

    async def gone(self) -> None:
        await anyio.sleep_forever()

    async def write(self, data: bytes) -> None:
        self.data += data
        await anyio.lowlevel.checkpoint()


class MemoryEnds:
    """Replaces file descriptors 0 and 1. There is no stdin."""

    source: Any = None

    def __init__(self) -> None:
        self.stdout = MemoryOutput()

    @asynccontextmanager
    async def serving(self):
        yield


class MemoryLauncher(Launcher):
    """A launcher that does not start a program for its help."""

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self.program.remembered = True


def run_in_memory(monkeypatch: pytest.MonkeyPatch, words: Sequence[str], vendor: str, starts: Starts) -> bytes:
    """Run `claude WORDS` over a vendor whose program is what `starts` returns; return what the frontend received.

    Raise ShimError if the turn is refused before a child is started.
    """

    def spawn(command: Sequence[str], environment: Mapping[str, str], cwd: str, **options: Any) -> Program:
        return starts(command, environment, cwd)

    with monkeypatch.context() as patch:
        patch.setattr(launcher, "spawn", spawn)
        patch.setattr(launcher.strays, "adopt", lambda: None)
        for driver in (child_per_turn, child_per_conversation):
            patch.setattr(driver, "Child", MemoryChild)
        ends = MemoryEnds()
        Start(parse(words), {"vendor": vendor}, launches=MemoryLauncher).run(Signals(), ends)
    return ends.stdout.data
