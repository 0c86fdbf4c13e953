"""Runs the drop-in in this process, with programs in memory and a clock that does not depend on the
machine.

`MemoryBox` has the methods of `Box` that a test of a conversation needs. The drop-in is the real
one, from its command line to its exit status, with real descriptors 0, 1 and 2. It runs in a
thread. Either the test or this thread runs, never both. The clock of the event loop stands still
while there is something to do. It moves to the next deadline only when the test waits
(`MemoryRunning.wait_for_condition`). So a silence of minutes takes no time, and on a busy machine
no vendor appears to be silent.

Tests of processes, of signals between them, of pipes or of real durations need a `Box`.
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
from box import TIMEOUT_S, VERSION_LINES, Box, Done
from fixture_cases import ROOT
from memory_child import MemoryChild
from planned_program import Plan, PlannedProgram
from stream_lines import Line

from shim import adapters
from shim.commands.claude import dropin
from shim.conversation.drivers import launcher, per_turn_driver, persistent_driver
from shim.io import signals as signal_handling
from shim.process import child, spawn
from shim.process.probe import ProgramProbe
from shim.process.spawn_error import create_spawn_error

NEVER = float("inf")
# The real time for one step of the drop-in. On a busy machine, much output takes long.
HANG_SECONDS = 4 * TIMEOUT_S
STDIN_PIPE_BYTES = 1024 * 1024
MAX_ABANDONED_STEPS = 100  # for the cleanup of the drop-in
MAX_READ_BYTES = 2**30  # more than any test writes
# The bundled program of the vendor demo is replaced by the program `demo`.
DEMO_MODULE = "shim.commands.turn.demo_child"


class AbandonedError(BaseException):
    """Raised in the thread of the drop-in if the test has ended before it."""


class Lockstep:
    """Runs either the test or the thread of the drop-in, never both. `now` is the time of the event
    loop.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.next_deadline = NEVER
        self.is_over = False
        self.is_abandoned = False
        self.failure: BaseException | None = None
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)

    def start_thread(self, work: Callable[[], None]) -> None:
        def run_work() -> None:
            self._go.acquire()
            try:
                work()
            except BaseException as error:
                self.failure = error
            finally:
                self.is_over = True
                self._back.release()

        threading.Thread(target=run_work, daemon=True).start()

    def run_until_idle(self) -> None:
        """Let the drop-in run until it has to wait."""
        if not self.is_over:
            self._go.release()
            assert self._back.acquire(timeout=HANG_SECONDS), (
                "the drop-in hangs outside of its event loop"
            )

    def on_idle(self, timeout: float | None) -> None:
        """Let the test run. The event loop calls this when it has nothing to do for `timeout`
        seconds.
        """
        self.next_deadline = NEVER if timeout is None else self.now + timeout
        self._back.release()
        self._go.acquire()
        if self.is_abandoned:
            self.is_abandoned = False  # its tasks may still clean up
            raise AbandonedError


class LockstepSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """A selector that lets the test run instead of waiting."""

    def __init__(self, lockstep: Lockstep) -> None:
        super().__init__()
        self._lockstep = lockstep

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        self._lockstep.on_idle(timeout)
        return super().select(0)


class LockstepLoop(asyncio.SelectorEventLoop):
    """An event loop with the clock of a `Lockstep`."""

    def __init__(self, lockstep: Lockstep) -> None:
        self._lockstep = lockstep
        super().__init__(LockstepSelector(lockstep))

    def time(self) -> float:
        return self._lockstep.now


class MemorySignals:
    """A replacement for `anyio.open_signal_receiver`, which needs the main thread."""

    def __init__(self) -> None:
        self.is_open = False
        self._numbers: list[int] = []
        self._news: list[anyio.Event] = []

    @contextmanager
    def open_receiver(self, *numbers: int) -> Iterator[AsyncIterator[signal.Signals]]:
        self.is_open = True
        yield self._iterate_signals()

    async def _iterate_signals(self) -> AsyncIterator[signal.Signals]:
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
    """The drop-in while it runs, with the methods of `box.Running`. It runs only while one of them
    waits.
    """

    def __init__(
        self,
        lockstep: Lockstep,
        signals: MemorySignals,
        stdin: int | None,
        stdout: int,
        stderr: int,
    ) -> None:
        self._lockstep = lockstep
        self._signals = signals
        self._stdin, self._stdout, self._stderr = stdin, stdout, stderr
        self._stdout_is_pipe = stat.S_ISFIFO(os.fstat(stdout).st_mode)
        self._stdout_bytes, self._consumed = b"", 0
        self.exit_status: int | None = None

    # -- waiting -----------------------------------------------------------------------------------

    def wait_for_condition(
        self, condition: Callable[[], bool], what: str, seconds: float = TIMEOUT_S
    ) -> None:
        """Let the drop-in run until a condition holds; at most `seconds` of its clock may pass."""
        last = self._lockstep.now + seconds
        while True:
            self._lockstep.run_until_idle()
            length = len(self._stdout_bytes)
            if condition():
                return
            if self._stdout_is_pipe and len(self._stdout_bytes) > length:
                continue  # the program can write more now
            assert not self._lockstep.is_over, (
                f"{what} did not come before the end: {self._read_output()!r}"
            )
            assert self._lockstep.next_deadline <= last, (
                f"{what} did not come: {self._read_output()!r}"
            )
            self._lockstep.now = self._lockstep.next_deadline

    def pass_time(self, seconds: float) -> None:
        """Let `seconds` pass on the clock of the drop-in, which must not end in this time."""
        last = self._lockstep.now + seconds
        while True:
            self._lockstep.run_until_idle()
            assert not self._lockstep.is_over, (
                f"it ended after {seconds - (last - self._lockstep.now):g} s"
            )
            if self._lockstep.next_deadline > last:
                break
            self._lockstep.now = self._lockstep.next_deadline
        self._lockstep.now = last
        self._lockstep.run_until_idle()
        assert not self._lockstep.is_over, f"it ended after {seconds:g} s"

    # -- stdout ------------------------------------------------------------------------------------

    def _read_output(self, at_once: int = MAX_READ_BYTES) -> bytes:
        if not self._stdout_is_pipe:
            self._stdout_bytes += os.pread(self._stdout, MAX_READ_BYTES, len(self._stdout_bytes))
            return self._stdout_bytes[self._consumed :]
        try:
            while chunk := os.read(self._stdout, at_once):
                self._stdout_bytes += chunk
                if at_once < MAX_READ_BYTES:
                    break
        except BlockingIOError:
            pass
        return self._stdout_bytes[self._consumed :]

    def read_until(self, expected: bytes, at_once: int = MAX_READ_BYTES) -> bytes:
        """Return its stdout once it contains `expected`. Read at most `at_once` bytes of a pipe
        whenever it has to wait.
        """
        if expected not in self._stdout_bytes[self._consumed :]:
            self.wait_for_condition(lambda: expected in self._read_output(at_once), repr(expected))
        return self._stdout_bytes[self._consumed :]

    def read_line_containing(self, expected: bytes) -> Line:
        """Return the only line of its stdout that contains `expected`."""
        (line,) = [line for line in self.read_until(expected).splitlines() if expected in line]
        event: Line = json.loads(line)
        return event

    def read_on(self) -> bytes:
        """Return the next lines of its stdout, and no longer count them as its output."""
        lines = self.read_until(b"\n")
        self._consumed += len(lines)
        return lines

    # -- stdin, signals and the end ----------------------------------------------------------------

    def send_lines(self, *events: Line | str) -> None:
        """Write lines to its stdin."""
        self.write_stdin(
            b"".join((e if isinstance(e, str) else json.dumps(e)).encode() + b"\n" for e in events)
        )

    def write_stdin(self, data: bytes) -> None:
        """Write bytes to its stdin."""
        assert self._stdin is not None
        while data:
            try:
                data = data[os.write(self._stdin, data) :]
            except BlockingIOError:
                self.wait_for_condition(lambda: self._count_unread() == 0, "the end of its stdin")

    def _count_unread(self) -> int:
        assert self._stdin is not None
        count: int = struct.unpack("i", fcntl.ioctl(self._stdin, termios.FIONREAD, bytes(4)))[0]
        return count

    def wait_until_read(self) -> None:
        """Wait until it has read all that was written to it."""
        self.wait_for_condition(lambda: self._count_unread() == 0, "a read of its stdin")

    def close_stdin(self) -> None:
        if self._stdin is not None:
            os.close(self._stdin)
            self._stdin = None

    def send_signal(self, number: int) -> None:
        """Deliver a signal to it."""
        self.wait_for_condition(lambda: self._signals.is_open, "the loop that receives signals")
        self._signals.send(number)

    def wait_for_status(self) -> int:
        """Return its exit status once it has ended."""
        self.wait_for_condition(lambda: self._lockstep.is_over, "its end")
        if self.exit_status is None:
            raise AssertionError("the drop-in has failed") from self._lockstep.failure
        return self.exit_status

    def wait_for_end(self) -> Done:
        """Read it to its end."""
        self.wait_for_condition(lambda: [self._read_output()] and self._lockstep.is_over, "its end")
        status = self.wait_for_status()
        return Done(
            status,
            self._read_output(),
            os.pread(self._stderr, os.fstat(self._stderr).st_size, 0).decode(),
        )

    def end_input(self) -> Done:
        """Close its stdin, and let it run to its end."""
        self.close_stdin()
        return self.wait_for_end()

    def abandon(self) -> None:
        """End the thread of the drop-in, if the test has ended before it."""
        self.close_stdin()
        for _ in range(MAX_ABANDONED_STEPS):
            if self._lockstep.is_over:
                return
            self._lockstep.is_abandoned = True
            self._lockstep.run_until_idle()
        raise AssertionError("the drop-in does not end although its event loop was abandoned")


class MemoryGate:
    """A gate at which programs in memory wait, like `box.Gate`."""

    def __init__(self, path: str, box: MemoryBox) -> None:
        self.path = path
        self._box = box

    def open(self) -> None:
        """Let a program continue that waits here, or the next that would wait here."""
        self._box.gates[self.path] += 1
        for program in self._box.programs:
            program.run()


class MemoryLifeline:
    """A lifeline of programs in memory, like `box.Lifeline`: their words, and whether the programs
    have ended.
    """

    def __init__(self, path: str, box: MemoryBox) -> None:
        self.path = path
        self._box = box

    def wait_for(self, name: str) -> None:
        """Wait until a program writes `name`."""
        self._box.current.wait_for_condition(lambda: self._has_word(name), name)

    def _has_word(self, name: str) -> bool:
        return any((self.path, name) in program.lifeline_writes for program in self._box.programs)

    def wait_until_closed_or_unused(self) -> bool:
        """Return `wait_until_closed()`: in memory a program starts at once."""
        return self.wait_until_closed()

    def wait_until_closed(self) -> bool:
        """Return whether all programs that wrote a word here have ended."""

        def has_ended() -> bool:
            holders = [
                each
                for each in self._box.programs
                if any(path == self.path for path, _ in each.lifeline_writes)
            ]
            return bool(holders) and all(program.exit is not None for program in holders)

        if self._box.is_running and not has_ended():
            self._box.current.wait_for_condition(has_ended, "the end of a program")
        return has_ended()


class MemoryBox(Box):
    """A box whose programs (`create_fake`, `create_fake_sequence`) and whose drop-in
    (`start_claude`, `run_claude`) are in this process.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._plans: dict[str, list[Plan]] = {}
        self.programs: list[PlannedProgram] = []
        self.gates = Counter[str]()
        self.current: MemoryRunning
        self.is_running = False

    def create_fake(self, *steps: Sequence[Any], name: str | None = None) -> str:
        return self.create_fake_sequence(steps, name=name)

    def create_fake_sequence(self, *plans: Sequence[Sequence[Any]], name: str | None = None) -> str:
        """Create a program that follows the next plan at each start, finally always the last one.
        Return its path.
        """
        self._count += 1
        path = self.write_program(
            name or f"fake{self._count}", "echo 'this program is in memory' >&2; exit 1\n"
        )
        self._plans[path] = list(plans)
        return path

    def create_fixture_printer(self, name: str, case: str) -> str:
        return self.create_fake(["cat", str(ROOT / "fixtures" / case / "vendor.ndjson")], name=name)

    def create_gate(self) -> Any:
        self._count += 1
        return MemoryGate(f"gate{self._count}", self)

    def create_lifeline(self) -> Any:
        self._count += 1
        return MemoryLifeline(f"lifeline{self._count}", self)

    def run_claude(self, *args: str, stdin: bytes = b"", **environment: str | None) -> Done:
        with self.start_claude(*args, stdin=subprocess.PIPE, environment=environment) as running:
            running.write_stdin(stdin)
            return running.end_input()

    @contextmanager
    def start_claude(self, *args: str, **options: Any) -> Iterator[Any]:
        """Run `claude ARGUMENTS`. The options are `build_environment`, and PIPE for `stdin` and
        `stdout`.

        Without PIPE its stdin is empty, and its stdout accepts any amount of output.
        """
        environment = self.build_environment(**options.pop("environment", {}))
        stdin = _open_stdin(options.pop("stdin", None))
        stdout = _open_stdout(options.pop("stdout", None))
        stderr = os.memfd_create("stderr")
        assert not options, f"MemoryBox does not know the options {options}"
        files = stdin[0], stdout[0], stderr
        lockstep, signals = Lockstep(), MemorySignals()
        self.current = running = MemoryRunning(lockstep, signals, stdin[1], stdout[1], stderr)

        def run_dropin() -> None:
            running.exit_status = dropin.main(list(args), {})

        lockstep.start_thread(run_dropin)
        self.is_running = True
        original_vendors = dict(adapters.VENDORS)
        try:
            with pytest.MonkeyPatch.context() as patch, _replace_standard_files(files):
                self._install_patches(patch, lockstep, signals, environment)
                try:
                    yield running
                finally:
                    running.abandon()
        finally:
            self.is_running = False
            adapters.VENDORS.clear()  # removes the vendors of this home
            adapters.VENDORS.update(original_vendors)
            for file in {*files, stdout[1]}:
                os.close(file)

    def _install_patches(
        self,
        patch: pytest.MonkeyPatch,
        lockstep: Lockstep,
        signals: MemorySignals,
        environment: Mapping[str, str],
    ) -> None:
        for name in list(os.environ):
            patch.delenv(name)
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.chdir(self.cwd)
        run = functools.partial(
            anyio.run, backend_options={"loop_factory": lambda: LockstepLoop(lockstep)}
        )
        patch.setattr(anyio, "run", run)
        patch.setattr(anyio, "open_signal_receiver", signals.open_receiver)
        patch.setattr(signal_handling, "install_signal_handler", lambda handler: None)
        patch.setattr(gc, "freeze", lambda: None)  # so that objects of a test can be collected
        patch.setattr(spawn, "is_subreaper", False)
        patch.setattr(launcher, "become_subreaper", lambda: None)
        patch.setattr(launcher, "spawn_child", self._spawn_program)
        patch.setattr(ProgramProbe, "_run_program", functools.partialmethod(_answer_probe, self))
        for module in (child, per_turn_driver, persistent_driver):
            patch.setattr(module, "Child", MemoryChild)
        patch.setattr(launcher, "kill_child", lambda program: program.receive_signal("SIGKILL"))
        patch.setattr(adapters, "profile_loaders", list(adapters.profile_loaders))

    def _spawn_program(
        self, command: Sequence[str], environment: Mapping[str, str], cwd: str, **options: Any
    ) -> Any:
        if DEMO_MODULE in command:
            command = [str(self.bin / "demo")]
        if not os.path.exists(command[0]):
            raise create_spawn_error(
                command, environment, cwd, FileNotFoundError(2, "No such file or directory")
            )
        program = self.start_program(command[0], command[1:], environment, cwd)
        program.stdin_closed = not options["opens_stdin"]
        program.run()
        return program

    def start_program(
        self, path: str, args: Sequence[str], environment: Mapping[str, str], cwd: str
    ) -> PlannedProgram:
        """Create the program of a path, with its next plan."""
        assert path in self._plans, f"{path} is not in memory: use Box instead of MemoryBox"
        plans = self._plans[path]
        plan = plans.pop(0) if len(plans) > 1 else plans[0]
        self.programs.append(PlannedProgram(plan, args, environment, cwd, self.gates))
        return self.programs[-1]


def _answer_probe(
    probe: ProgramProbe, box: MemoryBox, args: Sequence[str], environment: Mapping[str, str] = {}
) -> bytes:
    """Answer a probe of a program in memory for its version or its help."""
    probe.failure, probe.cannot_run, probe.has_timed_out, probe.has_succeeded = (
        "",
        False,
        False,
        True,
    )
    if list(args) == ["--version"]:
        return "".join(f"{line}\n" for line in VERSION_LINES).encode()
    program = box.start_program(probe.program, args, environment, str(box.cwd))
    program.stdin_closed = True
    program.run()
    assert program.exit is not None, "the program does not end when it is asked for its help"
    probe.has_succeeded = program.exit.code == 0
    return b"\n".join(bytes(data) for data in (program.output, program.errors) if data)


def _open_stdin(kind: int | None) -> tuple[int, int | None]:
    """Return the descriptor that the drop-in reads, and the one that the test writes to."""
    if kind is None:
        return os.open(os.devnull, os.O_RDONLY), None
    theirs, ours = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(ours, False)
    fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, STDIN_PIPE_BYTES)
    return theirs, ours


def _open_stdout(kind: int | None) -> tuple[int, int]:
    """Return the descriptor that the drop-in writes to, and the one that the test reads."""
    if kind is None:
        file = os.memfd_create("stdout")
        return file, file
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(ours, False)
    return theirs, ours


@contextmanager
def _replace_standard_files(files: Sequence[int]) -> Iterator[None]:
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
