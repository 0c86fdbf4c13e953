"""A vendor's process and its whole group: started, fed, drained, and ended for certain.

It is started without anyio, so that it is already working while anyio is imported. Its pipes are
read without blocking; its stderr is kept as head and tail. Whatever is left of its group when it
ends, ends with it.
"""

import contextlib
import os
from collections.abc import Callable, Sequence

import anyio

from shim.core.reading.head_and_tail import HeadTailBuffer
from shim.core.turn.outcome import ChildExit
from shim.process import guard, strays
from shim.process.exit_status import signal_name
from shim.process.spawn import (
    KILL_SECONDS,
    POLL_SECONDS,
    Started,
    close_pipes,
    remove,
    running,
    signal_group,
)

CHUNK_BYTES = 256 * 1024

# The ladder: what a vendor gets to end its turn by itself, to obey SIGTERM, and to be gone after
# SIGKILL, which takes no time unless the kernel is stuck. A tree that ignores the first two is gone
# within 2.5 s of whatever ended it.
INTERRUPT_SECONDS = 1.4
# For the rest of a group whose leader we told to end. The program behind a wrapper that does not
# wait for it, such as copilot's, saves its session in this time.
FOLLOW_SECONDS = 1.2
TERMINATE_SECONDS = 0.6
# The same for an idle child at the end of a conversation: the TypeScript SDK kills us 2 s after it
# closed stdin.
DISMISS_SECONDS = 0.8
DISMISS_TERMINATE_SECONDS = 0.5
DISMISS_KILL_SECONDS = 0.2


class Child:
    """A running child. `read` gives its stdout, `tail` its stderr; `ended` and `stop` make sure of
    its end.
    """

    def __init__(self, started: Started) -> None:
        self._process, self._stdin, tail, self._track, self._files, self._grace = started
        self._saying = anyio.Lock()
        self.tail = tail or HeadTailBuffer()
        self.exit: ChildExit | None = None
        self.began = anyio.current_time()
        self.first_output: float | None = None  # seconds until it said something on its stdout
        self._signalled = self._terminated = False
        self._strays: dict[int, bytes] = {}
        self.drained = anyio.Event()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)

    async def read(self) -> bytes:
        """The next bytes of its stdout, b"" at the end."""
        assert self._process.stdout is not None
        chunk = await _read(self._process.stdout.fileno())
        if self.first_output is None:
            self.first_output = anyio.current_time() - self.began
        if self._track is not None:
            self._track.record_output("o", chunk)
        return chunk

    def read_ready(self) -> bytes:
        """The bytes of its stdout that are there already; b"" when there are none."""
        assert self._process.stdout is not None
        try:
            chunk = os.read(self._process.stdout.fileno(), CHUNK_BYTES)
        except OSError:
            return b""
        if self._track is not None:
            self._track.record_output("o", chunk)
        return chunk

    async def feed(self) -> None:
        """Write its stdin and close it. A child that does not read its stdin is not an error."""
        try:
            await self.say(self._stdin)
        finally:
            self.hang_up()

    async def say(self, data: bytes) -> None:
        """Write to its stdin, and leave it open. A child that has closed its stdin is not an error."""
        pipe = self._process.stdin
        async with self._saying:
            view = memoryview(data)
            try:
                while view and pipe is not None and not pipe.closed:
                    try:
                        count = os.write(pipe.fileno(), view)
                        if self._track is not None:
                            self._track.record_stdin(bytes(view[:count]))
                        view = view[count:]
                    except BlockingIOError:
                        await anyio.wait_writable(pipe.fileno())
            except OSError:
                return

    def hang_up(self) -> None:
        """Close its stdin."""
        if self._process.stdin is not None:
            if self._track is not None:
                self._track.record_stdin(b"")
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    async def drain(self, copy: Callable[[bytes], None] = lambda chunk: None) -> None:
        """Read its stderr until the end, so that the child never waits for a reader. `copy` gets
        each chunk.
        """
        assert self._process.stderr is not None
        try:
            while chunk := await _read(self._process.stderr.fileno()):
                if self._track is not None:
                    self._track.record_output("e", chunk)
                self.tail.add(chunk)
                copy(chunk)
            if self._track is not None:
                self._track.record_output("e", b"")
        finally:
            self.drained.set()

    async def ended(self) -> ChildExit:
        """How the child ended, once it has. What is left of its group is ended too."""
        if self.exit is None:
            await self.gone()
            if self._signalled:
                with anyio.move_on_after(FOLLOW_SECONDS):
                    while strays.alive(self._strays, self._process.pid):
                        await anyio.sleep(POLL_SECONDS)
            signal_group(self._process, "SIGKILL")  # not reaped yet
            code = self._process.wait()
            strays.end(self._strays)
            running.discard(self._process.pid)
            guard.dismiss(self._process.pid)
            self.exit = ChildExit(code=code) if code >= 0 else ChildExit(signal=signal_name(-code))
            if self._track is not None:
                self._track.record_exit(self.exit)
        return self.exit

    async def gone(self) -> None:
        """Wait for the end of the child, and leave the rest of its group running."""
        with contextlib.suppress(AttributeError, OSError):
            descriptor = os.pidfd_open(self._process.pid)
            try:
                await anyio.wait_readable(descriptor)
            finally:
                os.close(descriptor)
            return
        # other code of this process has waited for the child
        with contextlib.suppress(ChildProcessError):
            while (
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
            ):
                await anyio.sleep(POLL_SECONDS)

    def signal(self, name: str) -> None:
        """Send a signal to the whole group. The processes that are below the child now will not
        outlive it.
        """
        if self._process.returncode is None:
            self._signalled = name != "SIGKILL"
            self._terminated = self._terminated or name == "SIGTERM"
            self._strays.update(strays.descendants(self._process.pid))
            if self._track is not None:
                self._track.record_signal(name)
            signal_group(self._process, name)

    async def stop(self, first: str = "SIGTERM") -> None:
        """The ladder: `first`, then SIGTERM, then SIGKILL, each with its wait. Cannot be cancelled
        half-way.

        Who was terminated already is not interrupted any more.
        """
        steps = (
            []
            if first == "SIGTERM" or self._terminated
            else [(first, self._grace or INTERRUPT_SECONDS)]
        )
        await self._descend([*steps, ("SIGTERM", TERMINATE_SECONDS), ("SIGKILL", KILL_SECONDS)])

    async def dismiss(self) -> None:
        """End an idle child: its stdin is closed, then comes the ladder. All of it takes at most
        1.5 s.
        """
        self._strays.update(strays.descendants(self._process.pid))
        self.hang_up()
        with anyio.CancelScope(shield=True), anyio.move_on_after(DISMISS_SECONDS):
            await self.ended()
        await self._descend(
            [("SIGTERM", DISMISS_TERMINATE_SECONDS), ("SIGKILL", DISMISS_KILL_SECONDS)]
        )

    async def _descend(self, steps: Sequence[tuple[str, float]]) -> None:
        with anyio.CancelScope(shield=True):
            for name, seconds in steps:
                if self.exit is not None:
                    break
                self.signal(name)
                with anyio.move_on_after(seconds):
                    await self.ended()
            strays.end_orphans({pid for child in running for pid in (child, *guard.pids(child))})

    @property
    def pids(self) -> set[int]:
        """The processes that we have to wait for: the child and its guard."""
        return {self._process.pid, *guard.pids(self._process.pid)}

    def close(self) -> None:
        """Close its pipes, and remove the files that were for this child alone."""
        guard.dismiss(self._process.pid)
        if self._track is not None:
            self._track.drain_pipes(self._process)
        close_pipes(self._process)
        remove(self._files)


async def _read(descriptor: int) -> bytes:
    while True:
        try:
            return os.read(descriptor, CHUNK_BYTES)
        except BlockingIOError:
            await anyio.wait_readable(descriptor)
        except OSError:
            return b""
