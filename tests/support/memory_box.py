"""The drop-in in this process, over programs in memory and with a clock that no machine can slow down.

`MemoryBox` has the methods of `Box` that a test of a conversation needs. The drop-in is the real one, from its command
line to its exit status, with real descriptors 0, 1 and 2. It runs in a thread; the test and this thread take turns, so
that nothing happens at the same time. The clock of the event loop stands still while there is something to do. It moves
to the next deadline only when the test waits (`MemoryRunning.wait`), so a silence of minutes takes no time, and a busy
machine is never a silent vendor.

What is about processes, signals between them, pipes or the time that something takes needs a `Box`.
"""

from __future__ import annotations

import asyncio
import fcntl
import functools
import gc
import json
import os
import selectors
import signal
import stat
import struct
import subprocess
import termios
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from box import PATIENCE, VERSION_LINES, Box, Done
from planned_child import MemoryChild, Plan, PlannedProgram
from support import ROOT, Line

from shim import vendors
from shim.channels import early_signals
from shim.commands.claude import dropin
from shim.conversation import wire
from shim.conversation.drivers import child_per_conversation, child_per_turn, launcher
from shim.process import child, strays
from shim.process.probe import Probe
from shim.process.spawn_error import unstartable

NEVER = float("inf")
HANG_SECONDS = 4 * PATIENCE  # real ones, without a look at the event loop: a flood takes long on a busy machine
STDIN_PIPE_BYTES = 1024 * 1024
ALL = 2**30  # bytes
DEMO = "shim.commands.turn.demo_child"  # the bundled program of the vendor demo; here it is the program `demo`


class AbandonedError(BaseException):
    """The test has ended before the drop-in."""


class Turns:
    """Lets the test and the thread of the drop-in take turns. `now` is the time of the event loop."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.next_deadline = NEVER
        self.is_over = False
        self.is_abandoned = False
        self.failure: BaseException | None = None
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)

    def start(self, work: Callable[[], None]) -> None:
        def run() -> None:
            self._go.acquire()
            try:
                work()
            except BaseException as error:
                self.failure = error
            finally:
                self.is_over = True
                self._back.release()

        threading.Thread(target=run, daemon=True).start()

    def step(self) -> None:
        """Let the drop-in do what it can do now."""
        if not self.is_over:
            self._go.release()
            assert self._back.acquire(timeout=HANG_SECONDS), "the drop-in hangs outside of its event loop"

    def idle(self, timeout: float | None) -> None:
        """Called by the event loop when it has nothing to do before `timeout` seconds have passed."""
        self.next_deadline = NEVER if timeout is None else self.now + timeout
        self._back.release()
        self._go.acquire()
        if self.is_abandoned:
            self.is_abandoned = False  # its tasks may still clean up
            raise AbandonedError


class TurnsSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Waits for the test instead of for time to pass."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._turns = turns

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        self._turns.idle(timeout)
        return super().select(0)


class TurnsLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is that of `Turns`."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        super().__init__(TurnsSelector(turns))

    def time(self) -> float:
        return self._turns.now


class MemorySignals:
    """Replaces `anyio.open_signal_receiver`, which needs the main thread."""

    def __init__(self) -> None:
        self.is_open = False
        self._numbers: list[int] = []
        self._news: list[anyio.Event] = []

    @contextmanager
    def open(self, *numbers: int) -> Iterator[AsyncIterator[signal.Signals]]:
        self.is_open = True
        yield self._receive()

    async def _receive(self) -> AsyncIterator[signal.Signals]:
        while True:
            while self._numbers:
                yield signal.Signals(self._numbers.pop(0))
            self._news.append(anyio.Event())
            await self._news[-1].wait()

    def send(self, number: int) -> None:
        self._numbers.append(number)
        for event in self._news:
            event.set()
        self._news.clear()


class MemoryRunning:
    """The drop-in while it runs, with the methods of `box.Running`. It runs only while one of them waits."""

    def __init__(self, turns: Turns, signals: MemorySignals, stdin: int | None, stdout: int, stderr: int) -> None:
        self._turns = turns
        self._signals = signals
        self._stdin, self._stdout, self._stderr = stdin, stdout, stderr
        self._stdout_is_pipe = stat.S_ISFIFO(os.fstat(stdout).st_mode)
        self._read, self._forgotten = b"", 0
        self.exit_status: int | None = None

    # -- waiting -----------------------------------------------------------------------------------------------------

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
        """Let the drop-in run until a condition holds; at most `seconds` of its own time may pass."""
        last = self._turns.now + seconds
        while True:
            self._turns.step()
            known = len(self._read)
            if condition():
                return
            if self._stdout_is_pipe and len(self._read) > known:
                continue  # now it can write more
            assert not self._turns.is_over, f"{what} did not come before the end: {self._output()!r}"
            assert self._turns.next_deadline <= last, f"{what} did not come: {self._output()!r}"
            self._turns.now = self._turns.next_deadline

    def pass_time(self, seconds: float) -> None:
        """Let so much of the drop-in's own time pass; it must not end in it."""
        last = self._turns.now + seconds
        while True:
            self._turns.step()
            assert not self._turns.is_over, f"it ended after {seconds - (last - self._turns.now):g} s"
            if self._turns.next_deadline > last:
                break
            self._turns.now = self._turns.next_deadline
        self._turns.now = last
        self._turns.step()
        assert not self._turns.is_over, f"it ended after {seconds:g} s"

    # -- stdout ------------------------------------------------------------------------------------------------------

    def _output(self, at_once: int = ALL) -> bytes:
        if not self._stdout_is_pipe:
            self._read += os.pread(self._stdout, ALL, len(self._read))
            return self._read[self._forgotten :]
        try:
            while chunk := os.read(self._stdout, at_once):
                self._read += chunk
                if at_once < ALL:
                    break
        except BlockingIOError:
            pass
        return self._read[self._forgotten :]

    def read_until(self, mark: bytes, at_once: int = ALL) -> bytes:
        """Return its stdout once it has `mark`; from a pipe, read at most `at_once` bytes whenever it has to wait."""
        known = self._read[self._forgotten :]
        if mark not in known:
            self.wait(lambda: mark in self._output(at_once), repr(mark))
        return self._read[self._forgotten :]

    def line_with(self, mark: bytes) -> Line:
        """Return the one line of its stdout that has `mark`."""
        (line,) = [line for line in self.read_until(mark).splitlines() if mark in line]
        found: Line = json.loads(line)
        return found

    def read_on(self) -> bytes:
        """Return the next lines of its stdout, which are then forgotten."""
        lines = self.read_until(b"\n")
        self._forgotten += len(lines)
        return lines

    # -- stdin, signals and the end ----------------------------------------------------------------------------------

    def say(self, *events: Line | str) -> None:
        """Write lines to its stdin."""
        self.write(b"".join((e if isinstance(e, str) else json.dumps(e)).encode() + b"\n" for e in events))

    def write(self, data: bytes) -> None:
        """Write bytes to its stdin."""
        assert self._stdin is not None
        while data:
            try:
                data = data[os.write(self._stdin, data) :]
            except BlockingIOError:
                self.wait(lambda: self._unread() == 0, "the end of its stdin")

    def _unread(self) -> int:
        assert self._stdin is not None
        count: int = struct.unpack("i", fcntl.ioctl(self._stdin, termios.FIONREAD, bytes(4)))[0]
        return count

    def wait_until_read(self) -> None:
        """Wait until it has read all that was written to it."""
        self.wait(lambda: self._unread() == 0, "a read of its stdin")

    def close_stdin(self) -> None:
        if self._stdin is not None:
            os.close(self._stdin)
            self._stdin = None

    def signal(self, number: int) -> None:
        """Let it receive a signal."""
        self.wait(lambda: self._signals.is_open, "the loop that receives signals")
        self._signals.send(number)

    def status(self) -> int:
        """Return its exit status once it has ended."""
        self.wait(lambda: self._turns.is_over, "its end")
        if self.exit_status is None:
            raise AssertionError("the drop-in has failed") from self._turns.failure
        return self.exit_status

    def finish(self) -> Done:
        """Read it to its end."""
        self.wait(lambda: [self._output()] and self._turns.is_over, "its end")
        status = self.status()
        return Done(status, self._output(), os.pread(self._stderr, os.fstat(self._stderr).st_size, 0).decode())

    def hang_up(self) -> Done:
        """Close its stdin, and let it run to its end."""
        self.close_stdin()
        return self.finish()

    def abandon(self) -> None:
        """End the thread of the drop-in, if the test has ended before it."""
        self.close_stdin()
        for _ in range(100):
            if self._turns.is_over:
                return
            self._turns.is_abandoned = True
            self._turns.step()


class MemoryGate:
    """What a program in memory waits at."""

    def __init__(self, path: str, box: MemoryBox) -> None:
        self.path = path
        self._box = box

    def open(self) -> None:
        """Let the program continue that waits here, or that comes here next."""
        self._box.gates[self.path] += 1
        for program in self._box.programs:
            program.run()


class MemoryLifeline:
    """What programs in memory say beside their output, and whether those that spoke have ended."""

    def __init__(self, path: str, box: MemoryBox) -> None:
        self.path = path
        self._box = box

    def wait_for(self, word: str) -> None:
        """Wait until a program says `word`."""
        self._box.current.wait(lambda: self._said(word), word)

    def _said(self, word: str) -> bool:
        return any((self.path, word) in program.words for program in self._box.programs)

    def never_or_gone(self) -> bool:
        """Return the same; in memory a program starts at once."""
        return self.gone()

    def gone(self) -> bool:
        """Return whether all programs have ended that said something here."""

        def ended() -> bool:
            holders = [one for one in self._box.programs if any(path == self.path for path, _ in one.words)]
            return bool(holders) and all(program.exit is not None for program in holders)

        if self._box.is_running and not ended():
            self._box.current.wait(ended, "the end of a program")
        return ended()


class MemoryBox(Box):
    """A box whose programs (`fake`, `fakes`) and whose drop-in (`running`, `claude`) are in this process."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._plans: dict[str, list[Plan]] = {}
        self.programs: list[PlannedProgram] = []
        self.gates = Counter[str]()
        self.current: MemoryRunning
        self.is_running = False

    def fake(self, *steps: Sequence[Any], name: str | None = None) -> str:
        return self.fakes(steps, name=name)

    def fakes(self, *plans: Sequence[Sequence[Any]], name: str | None = None) -> str:
        """A program that follows another plan each time it is started, the last one from then on; its path."""
        self._count += 1
        path = self.program(name or f"fake{self._count}", "echo 'this program is in memory' >&2; exit 1\n")
        self._plans[path] = list(plans)
        return path

    def prints(self, name: str, case: str) -> str:
        return self.fake(["cat", str(ROOT / "fixtures" / case / "vendor.ndjson")], name=name)

    def gate(self) -> Any:
        self._count += 1
        return MemoryGate(f"gate{self._count}", self)

    def lifeline(self) -> Any:
        self._count += 1
        return MemoryLifeline(f"lifeline{self._count}", self)

    def claude(self, *arguments: str, stdin: bytes = b"", **environment: str | None) -> Done:
        with self.running(*arguments, stdin=subprocess.PIPE, environment=environment) as running:
            running.write(stdin)
            return running.hang_up()

    @contextmanager
    def running(self, *arguments: str, **options: Any) -> Iterator[Any]:
        """`claude ARGUMENTS` while it runs; `environment`, and PIPE for `stdin` and `stdout`.

        Without PIPE its stdin is empty, and its stdout takes everything at once.
        """
        environment = self.environment(**options.pop("environment", {}))
        stdin = _open_stdin(options.pop("stdin", None))
        stdout = _open_stdout(options.pop("stdout", None))
        stderr = os.memfd_create("stderr")
        assert not options, f"MemoryBox does not know the options {options}"
        files = stdin[0], stdout[0], stderr
        turns, signals = Turns(), MemorySignals()
        self.current = running = MemoryRunning(turns, signals, stdin[1], stdout[1], stderr)

        def work() -> None:
            running.exit_status = dropin.main(list(arguments), {})

        turns.start(work)
        self.is_running = True
        known_vendors = dict(vendors.VENDORS)
        try:
            with pytest.MonkeyPatch.context() as patch, _standard_files(files):
                self._install(patch, turns, signals, environment)
                try:
                    yield running
                finally:
                    running.abandon()
        finally:
            self.is_running = False
            vendors.VENDORS.clear()  # without the vendors of this home
            vendors.VENDORS.update(known_vendors)
            for file in {*files, stdout[1]}:
                os.close(file)

    def _install(
        self, patch: pytest.MonkeyPatch, turns: Turns, signals: MemorySignals, environment: Mapping[str, str]
    ) -> None:
        for name in list(os.environ):
            patch.delenv(name)
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.chdir(self.cwd)
        run = functools.partial(anyio.run, backend_options={"loop_factory": lambda: TurnsLoop(turns)})
        patch.setattr(anyio, "run", run)
        patch.setattr(anyio, "open_signal_receiver", signals.open)
        patch.setattr(early_signals, "handle", lambda handler: None)
        patch.setattr(gc, "freeze", lambda: None)  # what a test leaves is garbage
        patch.setattr(strays, "_adopting", False)
        patch.setattr(strays, "adopt", lambda: None)
        patch.setattr(launcher, "spawn", self._spawn)
        patch.setattr(Probe, "_ask", functools.partialmethod(_answer_probe, self))
        for module in (child, child_per_turn, child_per_conversation):
            patch.setattr(module, "Child", MemoryChild)
        for module in (wire, child_per_turn):
            patch.setattr(module, "abandon", lambda program: program.signal("SIGKILL"))
        patch.setattr(vendors, "described", list(vendors.described))

    def _spawn(self, command: Sequence[str], environment: Mapping[str, str], cwd: str, **options: Any) -> Any:
        if DEMO in command:
            command = [str(self.bin / "demo")]
        if not os.path.exists(command[0]):
            raise unstartable(command, environment, cwd, FileNotFoundError(2, "No such file or directory"))
        program = self.start_program(command[0], command[1:], environment, cwd)
        program.stdin_closed = not options["feed"]
        program.run()
        return program

    def start_program(
        self, path: str, arguments: Sequence[str], environment: Mapping[str, str], cwd: str
    ) -> PlannedProgram:
        """Return a program that is at the beginning of its next plan."""
        assert path in self._plans, f"{path} is not in memory: use Box instead of MemoryBox"
        plans = self._plans[path]
        plan = plans.pop(0) if len(plans) > 1 else plans[0]
        self.programs.append(PlannedProgram(plan, arguments, environment, cwd, self.gates))
        return self.programs[-1]


def _answer_probe(probe: Probe, box: MemoryBox, args: Sequence[str], environment: Mapping[str, str] = {}) -> bytes:
    """Answer as a program in memory when it is asked for its version or its help."""
    probe.failure, probe.broken, probe.late, probe.ended_well = "", False, False, True
    if list(args) == ["--version"]:
        return "".join(f"{line}\n" for line in VERSION_LINES).encode()
    program = box.start_program(probe.program, args, environment, str(box.cwd))
    program.stdin_closed = True
    program.run()
    assert program.exit is not None, "the program does not end when it is asked for its help"
    probe.ended_well = program.exit.code == 0
    return b"\n".join(bytes(data) for data in (program.output, program.errors) if data)


def _open_stdin(kind: int | None) -> tuple[int, int | None]:
    """Return what the drop-in reads, and what the test writes to."""
    if kind is None:
        return os.open(os.devnull, os.O_RDONLY), None
    theirs, ours = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(ours, False)
    fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, STDIN_PIPE_BYTES)
    return theirs, ours


def _open_stdout(kind: int | None) -> tuple[int, int]:
    """Return what the drop-in writes to, and what the test reads."""
    if kind is None:
        file = os.memfd_create("stdout")
        return file, file
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(ours, False)
    return theirs, ours


@contextmanager
def _standard_files(files: Sequence[int]) -> Iterator[None]:
    """Replace descriptors 0, 1 and 2."""
    saved = [os.dup(number) for number in range(3)]
    for number, file in enumerate(files):
        os.dup2(file, number)
    try:
        yield
    finally:
        for number, file in enumerate(saved):
            os.dup2(file, number)
            os.close(file)
