"""A vendor's child process and its process group.

The process is started without anyio, so that it already runs while anyio is being imported. Its
pipes are read without blocking. Only the head and the tail of its stderr are kept. When the process
exits, the rest of its process group is also stopped.
"""

import contextlib
import os
from collections.abc import Callable, Sequence

import anyio

from shim.core.reading.head_and_tail import HeadTailBuffer
from shim.core.turn.outcome import ChildExit
from shim.process import descendants, watchdog
from shim.process.exit_status import format_signal_name
from shim.process.spawn import (
    KILL_TIMEOUT_S,
    POLL_INTERVAL_S,
    ChildSpawnResult,
    close_pipes,
    remove_files,
    running_pids,
    signal_process_group,
)

CHUNK_BYTES = 256 * 1024

# How long a child may take to exit after the interrupt signal, and after SIGTERM. With the time
# after SIGKILL (KILL_TIMEOUT_S), a child that ignores both signals is stopped within 2.5 s.
INTERRUPT_TIMEOUT_S = 1.4
TERMINATE_TIMEOUT_S = 0.6
# How long the rest of a process group may run after its leader has exited. Some programs, such as
# copilot, have a wrapper that exits first. They need this time to save their session.
GROUP_EXIT_TIMEOUT_S = 1.2
# How long an idle child may take to exit at the end of a conversation: after its stdin is closed,
# after SIGTERM and after SIGKILL. The TypeScript SDK kills the drop-in 2 s after it has closed the
# drop-in's stdin.
IDLE_EXIT_TIMEOUT_S = 0.8
IDLE_TERMINATE_TIMEOUT_S = 0.5
IDLE_KILL_TIMEOUT_S = 0.2


class Child:
    """A child process and its pipes. `child_exit` tells how the process exited.

    Call `wait_for_exit` or `stop`, because an exited process must be reaped.
    """

    def __init__(self, spawned_child: ChildSpawnResult) -> None:
        (
            self._process,
            self._stdin,
            stderr_tail,
            self._recorder,
            self._temporary_paths,
            self._interrupt_timeout_s,
        ) = spawned_child
        self._write_lock = anyio.Lock()
        self.stderr_tail = stderr_tail or HeadTailBuffer()
        self.child_exit: ChildExit | None = None
        self.start_time_s = anyio.current_time()
        # The seconds from the start to the first output on stdout.
        self.first_output_delay_s: float | None = None
        self._was_signalled = self._was_terminated = False
        self._descendants: dict[int, bytes] = {}
        self.stderr_drained = anyio.Event()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)

    async def read_stdout(self) -> bytes:
        """Return the next bytes of the child's stdout, or b"" at the end."""
        assert self._process.stdout is not None
        chunk = await _read_chunk(self._process.stdout.fileno())
        if self.first_output_delay_s is None:
            self.first_output_delay_s = anyio.current_time() - self.start_time_s
        if self._recorder is not None:
            self._recorder.record_output("o", chunk)
        return chunk

    def read_available_stdout(self) -> bytes:
        """Return the bytes of the child's stdout that are available without waiting, or b""."""
        assert self._process.stdout is not None
        try:
            chunk = os.read(self._process.stdout.fileno(), CHUNK_BYTES)
        except OSError:
            return b""
        if self._recorder is not None:
            self._recorder.record_output("o", chunk)
        return chunk

    async def write_initial_stdin_and_close(self) -> None:
        """Write the initial input to the child's stdin, and close stdin. A child that does not read
        its stdin causes no error.
        """
        try:
            await self.write_stdin(self._stdin)
        finally:
            self.close_stdin()

    async def write_stdin(self, data: bytes) -> None:
        """Write to the child's stdin and keep it open. A child that has closed its stdin causes no
        error.
        """
        pipe = self._process.stdin
        async with self._write_lock:
            view = memoryview(data)
            try:
                while view and pipe is not None and not pipe.closed:
                    try:
                        count = os.write(pipe.fileno(), view)
                        if self._recorder is not None:
                            self._recorder.record_stdin(bytes(view[:count]))
                        view = view[count:]
                    except BlockingIOError:
                        await anyio.wait_writable(pipe.fileno())
            except OSError:
                return

    def close_stdin(self) -> None:
        if self._process.stdin is not None:
            if self._recorder is not None:
                self._recorder.record_stdin(b"")
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    async def drain_stderr(self, copy_chunk: Callable[[bytes], None] = lambda chunk: None) -> None:
        """Read the child's stderr until it ends, so that the child never blocks on a full pipe.
        `copy_chunk` is called with each chunk.
        """
        assert self._process.stderr is not None
        try:
            while chunk := await _read_chunk(self._process.stderr.fileno()):
                if self._recorder is not None:
                    self._recorder.record_output("e", chunk)
                self.stderr_tail.add(chunk)
                copy_chunk(chunk)
            if self._recorder is not None:
                self._recorder.record_output("e", b"")
        finally:
            self.stderr_drained.set()

    async def wait_for_exit(self) -> ChildExit:
        """Wait until the child exits, and stop the rest of its process group. Return how the child
        exited.
        """
        if self.child_exit is None:
            await self.wait_for_exit_without_reaping()
            if self._was_signalled:
                with anyio.move_on_after(GROUP_EXIT_TIMEOUT_S):
                    while descendants.count_running_processes(self._descendants, self._process.pid):
                        await anyio.sleep(POLL_INTERVAL_S)
            signal_process_group(self._process, "SIGKILL")  # not reaped yet
            code = self._process.wait()
            descendants.kill_running_processes(self._descendants)
            running_pids.discard(self._process.pid)
            watchdog.stop_watchdog(self._process.pid)
            if code >= 0:
                self.child_exit = ChildExit(code=code)
            else:
                self.child_exit = ChildExit(signal=format_signal_name(-code))
            if self._recorder is not None:
                self._recorder.record_exit(self.child_exit)
        return self.child_exit

    async def wait_for_exit_without_reaping(self) -> None:
        """Wait until the child exits, and leave the rest of its process group running."""
        with contextlib.suppress(AttributeError, OSError):
            descriptor = os.pidfd_open(self._process.pid)
            try:
                await anyio.wait_readable(descriptor)
            finally:
                os.close(descriptor)
            return
        # ChildProcessError means that other code in this process has already reaped the child.
        with contextlib.suppress(ChildProcessError):
            while (
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
            ):
                await anyio.sleep(POLL_INTERVAL_S)

    def send_signal(self, signal_name: str) -> None:
        """Send a signal to the child's process group. The child's current descendants are recorded,
        so that they can be stopped later.
        """
        if self._process.returncode is None:
            self._was_signalled = signal_name != "SIGKILL"
            self._was_terminated |= signal_name == "SIGTERM"
            self._descendants.update(descendants.find_descendant_start_times(self._process.pid))
            if self._recorder is not None:
                self._recorder.record_signal(signal_name)
            signal_process_group(self._process, signal_name)

    async def stop(self, first_signal: str = "SIGTERM") -> None:
        """Send `first_signal`, SIGTERM and SIGKILL, one after the other, until the child exits. The
        waits between the signals cannot be cancelled.

        If the child has already received SIGTERM, `first_signal` is skipped.
        """
        steps = []
        if not (first_signal == "SIGTERM" or self._was_terminated):
            steps = [(first_signal, self._interrupt_timeout_s or INTERRUPT_TIMEOUT_S)]
        await self._escalate_signals(
            [*steps, ("SIGTERM", TERMINATE_TIMEOUT_S), ("SIGKILL", KILL_TIMEOUT_S)]
        )

    async def shut_down_idle_process(self) -> None:
        """Stop an idle child: close its stdin, and send SIGTERM and SIGKILL if it does not exit.
        This takes at most 1.5 s.
        """
        self._descendants.update(descendants.find_descendant_start_times(self._process.pid))
        self.close_stdin()
        with anyio.CancelScope(shield=True), anyio.move_on_after(IDLE_EXIT_TIMEOUT_S):
            await self.wait_for_exit()
        await self._escalate_signals(
            [("SIGTERM", IDLE_TERMINATE_TIMEOUT_S), ("SIGKILL", IDLE_KILL_TIMEOUT_S)]
        )

    async def _escalate_signals(self, steps: Sequence[tuple[str, float]]) -> None:
        with anyio.CancelScope(shield=True):
            for signal_name, timeout_s in steps:
                if self.child_exit is not None:
                    break
                self.send_signal(signal_name)
                with anyio.move_on_after(timeout_s):
                    await self.wait_for_exit()
            descendants.kill_orphans(
                {
                    pid
                    for running_pid in running_pids
                    for pid in (running_pid, *watchdog.list_watchdog_pids(running_pid))
                }
            )

    @property
    def pids(self) -> set[int]:
        """The process ids of the child and of its watchdog. This process must reap both."""
        return {self._process.pid, *watchdog.list_watchdog_pids(self._process.pid)}

    def close(self) -> None:
        """Close the child's pipes, and remove its temporary files."""
        watchdog.stop_watchdog(self._process.pid)
        if self._recorder is not None:
            self._recorder.record_remaining_output(self._process)
        close_pipes(self._process)
        remove_files(self._temporary_paths)


async def _read_chunk(descriptor: int) -> bytes:
    while True:
        try:
            return os.read(descriptor, CHUNK_BYTES)
        except BlockingIOError:
            await anyio.wait_readable(descriptor)
        except OSError:
            return b""
