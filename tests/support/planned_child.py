"""A program in memory that follows a plan like those of `fake_child`, and a `Child` for it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio

from shim.core.turn.outcome import Exit
from shim.process.child import CHUNK_BYTES, Child
from shim.process.spawn import PIPE_BYTES, Started

MAX_UNREAD_STDIN_BYTES = 64 * 1024  # as in a pipe

Plan = Sequence[Sequence[Any]]


class PlannedProgram:
    """A program in memory. It follows its plan until a step has to wait, and continues when something has changed.

    Its steps have the names and meanings of those in `fake_child`. Steps that need a process, and some others, are
    missing.
    """

    stdin = stdout = stderr = None  # there are no pipes
    _count = 0

    def __init__(
        self,
        plan: Plan,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        cwd: str,
        gates: Counter[str],
    ) -> None:
        """Create the program; `gates` counts for each gate how many programs may still pass."""
        PlannedProgram._count += 1
        self.pid = -PlannedProgram._count  # not the pid of a process
        self.returncode: int | None = None
        self.exit: Exit | None = None
        self.on_change: Callable[[], None] = lambda: None
        self.output = bytearray()
        self.errors = bytearray()
        self.unread = bytearray()
        self.stdin_closed = self.stdout_closed = False
        self.words: set[tuple[str, str]] = set()  # (lifeline, word) for each word that it wrote to a lifeline
        self._gates = gates
        self._arguments, self._environment, self._cwd = list(arguments), dict(environment), cwd
        self._stdin_bytes = b""
        self._on_signal: dict[str, Callable[[], None]] = {}
        self._steps = self._follow(plan)

    def run(self) -> None:
        """Continue until a step has to wait."""
        if self.exit is None:
            next(self._steps, None)
        self.on_change()

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
        """Do what the plan has for a signal, or end."""
        if self.exit is None:
            self._on_signal.get(name, lambda: self._end(signal=name))()
            self.on_change()

    def _end(self, code: int | None = None, signal: str | None = None) -> None:
        self.exit = self.exit or Exit(code=code, signal=signal)

    def _follow(self, plan: Plan) -> Iterator[None]:
        for name, *values in plan:
            step = getattr(self, f"_do_{name}", None)
            assert step is not None, f"the step {name!r} needs a real process: use Box instead of MemoryBox"
            yield from step(*values) or ()
            if self.exit is not None:
                return
        self._end(code=0)

    # -- the steps; those that may wait are generators ---------------------------------------------------------------

    def _next_line(self) -> Iterator[None]:
        while b"\n" not in self.unread and not self.stdin_closed:
            yield
        line, newline, rest = self.unread.partition(b"\n")
        self.unread, self._line = rest, bytes(line + newline)
        self._stdin_bytes += self._line

    def _do_hear(self, mark: str) -> Iterator[None]:
        while True:
            yield from self._next_line()
            if not self._line:
                self._end(code=0)
            if not self._line or mark in self._line.decode():
                return

    def _do_read(self) -> Iterator[None]:
        while not self.stdin_closed:
            self._take_unread()
            yield
        self._take_unread()

    def _do_serve(self) -> Iterator[None]:
        if "--input-format" not in self._arguments:
            yield from self._do_read()
            return
        while True:
            yield from self._next_line()
            event = json.loads(self._line or "null")
            if event is None or event["type"] == "user":
                return
            if event["type"] == "control_request":
                answer = {"subtype": "success", "request_id": event["request_id"], "response": {"commands": []}}
                yield from self._do_out(json.dumps({"type": "control_response", "response": answer}) + "\n")

    def _take_unread(self) -> None:
        self._stdin_bytes += self.unread
        self.unread.clear()

    def _do_wait(self, gate: str) -> Iterator[None]:
        while not self._gates[gate]:
            yield
        self._gates[gate] -= 1

    def _do_hang(self) -> Iterator[None]:
        while True:
            yield

    def _do_record(self, path: str) -> None:
        facts = {"arguments": self._arguments, "environment": self._environment, "cwd": self._cwd}
        facts["stdin"] = self._stdin_bytes.decode("utf-8", "replace")
        Path(path).write_text(json.dumps(facts), encoding="utf-8")

    def _do_out(self, text: str) -> Iterator[None]:
        yield from self._write(text.encode(errors="surrogateescape"))

    def _do_complain(self, text: str) -> None:
        self.errors += text.encode()

    def _do_repeat(self, text: str, count: int) -> Iterator[None]:
        yield from self._write(text.encode() * count)

    def _do_fill(self, count: int) -> Iterator[None]:
        yield from self._write((b"n" * 99 + b"\n") * (count // 100))

    def _do_cat(self, path: str) -> Iterator[None]:
        yield from self._write(Path(path).read_bytes())

    def _do_say(self, fifo: str, word: str) -> None:
        self.words.add((fifo, word))

    def _do_ignore(self, *names: str) -> None:
        self._on_signal |= dict.fromkeys(names, lambda: None)

    def _do_out_on(self, name: str, text: str, code: int) -> None:
        def obey() -> None:
            self.output += text.encode()
            self._end(code=code)

        self._on_signal[name] = obey

    def _do_close(self, *descriptors: int) -> None:
        assert descriptors == (1,), "only stdout can be closed in memory"
        self.stdout_closed = True

    def _do_die(self, name: str) -> None:
        self._end(signal=name)

    def _do_leave(self, code: int) -> None:
        self._end(code=code)

    def _write(self, data: bytes) -> Iterator[None]:
        while data:
            count = max(PIPE_BYTES - len(self.output), 0)
            self.output += data[:count]
            data = data[count:]
            if data:
                yield


class PlannedChild(Child):
    """A `Child` whose process is a `PlannedProgram`. It is stopped by the code of `Child`, with the same timeouts."""

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

    async def ended(self) -> Exit:
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
