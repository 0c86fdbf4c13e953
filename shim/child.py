"""A vendor's process and its whole group: started, fed, drained, and ended for certain.

It is started without anyio, so that it is already working while anyio is imported. Its pipes are read without
blocking; its stderr is kept as head and tail. Whatever is left of its group when it ends, ends with it.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

import anyio

from shim import strays
from shim.ending import Exit
from shim.errors import VendorError
from shim.tail import Tail
from shim.translate import signal_name

CHUNK_BYTES = 256 * 1024

# The ladder: what a vendor gets to end its turn by itself, to obey SIGTERM, and to be gone after SIGKILL.
# Together they stay under the 5 s after which the SDKs kill us.
INTERRUPT_SECONDS = 2.0
TERMINATE_SECONDS = 1.0
KILL_SECONDS = 0.5
# The same for a child that is idle when the conversation ends: the TypeScript SDK kills us 2 s after it closed stdin.
DISMISS_SECONDS = 0.8
DISMISS_TERMINATE_SECONDS = 0.5
DISMISS_KILL_SECONDS = 0.2
POLL_SECONDS = 0.01  # where the kernel has no pidfd


def spawn(command: Sequence[str], environment: Mapping[str, str], cwd: str, *, feed: bool) -> "subprocess.Popen[bytes]":
    """Start a child in a session and process group of its own. VendorError when it cannot be started."""
    try:
        return subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE if feed else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            cwd=cwd,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise VendorError(
            f"{command[0]} could not be started: {reason}",
            hint="check that it is a program that this machine can run",
        ) from None


def abandon(process: "subprocess.Popen[bytes]") -> None:
    """End a child that nobody will serve: something of ours failed between its start and the loop."""
    if process.returncode is None:  # not reaped: the group's number is still its own
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    _close_pipes(process)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILL_SECONDS)


# Ends a group when we cannot any more: killed by SIGKILL, we leave it the end of a pipe that nobody else holds. A line
# on that pipe says that all is well. A vendor that waits for a tool reads and writes nothing for hours.
GUARD = 'read -r line || { kill -s TERM -- "-$1"; sleep 1; kill -s KILL -- "-$1"; } 2>/dev/null'


def _guard(group: int) -> "subprocess.Popen[bytes] | None":
    command = ["/bin/sh", "-c", GUARD, "sh", str(group)]
    quiet = subprocess.DEVNULL
    try:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True)
    except OSError:
        return None


class Child:
    """A running child. `read` gives its stdout, `tail` its stderr; `ended` and `stop` make sure of its end."""

    def __init__(self, process: "subprocess.Popen[bytes]", stdin: bytes, tail: Tail | None = None) -> None:
        self._process = process
        self._stdin = stdin
        self._saying = anyio.Lock()
        self._guard = _guard(process.pid)
        self.tail = tail or Tail()
        self.exit: Exit | None = None
        self._strays: dict[int, bytes] = {}
        self.drained = anyio.Event()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)

    async def read(self) -> bytes:
        """The next bytes of its stdout, b"" at the end."""
        assert self._process.stdout is not None
        return await _read(self._process.stdout.fileno())

    def read_ready(self) -> bytes:
        """What of its stdout is there already, b"" when nothing is."""
        assert self._process.stdout is not None
        try:
            return os.read(self._process.stdout.fileno(), CHUNK_BYTES)
        except OSError:
            return b""

    async def feed(self) -> None:
        """Write its stdin and close it; a child that does not want it is no error."""
        try:
            await self.say(self._stdin)
        finally:
            self.hang_up()

    async def say(self, data: bytes) -> None:
        """Write to its stdin, and leave it open; a child that does not listen any more is no error."""
        pipe = self._process.stdin
        async with self._saying:
            view = memoryview(data)
            try:
                while view and pipe is not None and not pipe.closed:
                    try:
                        view = view[os.write(pipe.fileno(), view) :]
                    except BlockingIOError:
                        await anyio.wait_writable(pipe.fileno())
            except OSError:
                return

    def hang_up(self) -> None:
        """Close its stdin: nothing more will be said."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    async def drain(self, copy: Callable[[bytes], None] = lambda chunk: None) -> None:
        """Read its stderr until the end, so that it never waits for a reader; `copy` gets it too."""
        assert self._process.stderr is not None
        try:
            while chunk := await _read(self._process.stderr.fileno()):
                self.tail.add(chunk)
                copy(chunk)
        finally:
            self.drained.set()

    async def ended(self) -> Exit:
        """Wait for its end, then end what is left of its group; how it ended."""
        if self.exit is None:
            await self._gone()
            # Not reaped yet, so the group's number cannot have been given to anybody else.
            self._signal("SIGKILL")
            code = self._process.wait()
            strays.end(self._strays)
            self._dismiss_guard()
            self.exit = Exit(code=code) if code >= 0 else Exit(signal=signal_name(-code))
        return self.exit

    def _dismiss_guard(self) -> None:
        guard, self._guard = self._guard, None
        if guard is not None and guard.stdin is not None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                guard.stdin.write(b"\n")
                guard.stdin.close()
                guard.wait(KILL_SECONDS)

    async def _gone(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            descriptor = os.pidfd_open(self._process.pid)
            try:
                await anyio.wait_readable(descriptor)
            finally:
                os.close(descriptor)
            return
        while os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            await anyio.sleep(POLL_SECONDS)

    def signal(self, name: str) -> None:
        """Send a signal to the whole group. Whoever is below it now will not outlive it."""
        if self._process.returncode is None:
            self._strays.update(strays.descendants(self._process.pid))
            self._signal(name)

    def _signal(self, name: str) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, getattr(signal, name))

    async def stop(self, first: str = "SIGTERM") -> None:
        """The ladder: `first`, then SIGTERM, then SIGKILL, each with its wait. Cannot be cancelled half-way."""
        steps = [(first, INTERRUPT_SECONDS)] if first != "SIGTERM" else []
        await self._descend([*steps, ("SIGTERM", TERMINATE_SECONDS), ("SIGKILL", KILL_SECONDS)])

    async def dismiss(self) -> None:
        """The end of a child that waits for us: its stdin is closed, then the ladder: 1.5 s altogether."""
        self._strays.update(strays.descendants(self._process.pid))
        self.hang_up()
        with anyio.CancelScope(shield=True), anyio.move_on_after(DISMISS_SECONDS):
            await self.ended()
        await self._descend([("SIGTERM", DISMISS_TERMINATE_SECONDS), ("SIGKILL", DISMISS_KILL_SECONDS)])

    async def _descend(self, steps: Sequence[tuple[str, float]]) -> None:
        with anyio.CancelScope(shield=True):
            for name, seconds in steps:
                if self.exit is not None:
                    break
                self.signal(name)
                with anyio.move_on_after(seconds):
                    await self.ended()
            strays.end_orphans()

    def close(self) -> None:
        """Let go of its pipes."""
        self._dismiss_guard()
        _close_pipes(self._process)


def _close_pipes(process: "subprocess.Popen[bytes]") -> None:
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


async def _read(descriptor: int) -> bytes:
    while True:
        try:
            return os.read(descriptor, CHUNK_BYTES)
        except BlockingIOError:
            await anyio.wait_readable(descriptor)
        except OSError:
            return b""
