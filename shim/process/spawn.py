"""Starts a vendor's child process, and kills child processes.

A turn waits for its vendor, so as little as possible is imported before the child starts.
`os.posix_spawn` starts a child several milliseconds faster than `subprocess`. `subprocess` is used
for a different working directory, and on systems whose `posix_spawn` cannot create a session.
"""

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from io import FileIO

import shim
from shim.core.reading.typed import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import subprocess

    from shim.core.reading.head_and_tail import HeadTailBuffer
    from shim.io.record_sinks import ChildRecordSink

# When gemini exits (Node's `process.exit`), it loses output that does not fit into the pipe. On
# Linux, every user may set this pipe size.
STDOUT_PIPE_BYTES = 1024 * 1024
# The time for a killed process to exit. A killed process exits at once unless the kernel is stuck.
KILL_TIMEOUT_S = 0.5
POLL_INTERVAL_S = 0.01
# A child inherits the signals that Python ignores (SIGPIPE and SIGXFSZ) and those that the shim's
# parent ignores. A vendor that ignores SIGINT could not be interrupted. SIGKILL and SIGSTOP cannot
# be changed.
DEFAULT_SIGNALS = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
MAX_DESCRIPTORS = 256  # the range to check if the system cannot list open descriptors

# The children that run at the moment. There can be two, because the next message's child may be
# started while the last message's child is still being stopped.
running_pids: set[int] = set()
# Whether this process is the parent of all orphaned descendants.
is_subreaper = False
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)


def become_subreaper() -> None:
    """Make this process the parent of all orphaned descendants, so that they can be found. Call
    this before any child is started.
    """
    global is_subreaper
    if is_subreaper or not sys.platform.startswith("linux"):
        return
    is_subreaper = True
    try:
        # `_ctypes` is imported five times as fast as `ctypes`. The start of a child waits for this
        # import.
        import _ctypes

        prctl = _ctypes.dlsym(_ctypes.dlopen(None, os.RTLD_NOW), "prctl")  # type: ignore[arg-type]
        _ctypes.call_cdeclfunction(prctl, (PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
    except (ImportError, OSError, AttributeError, TypeError, ValueError):
        return  # orphans cannot be found


class SpawnedProcess:
    """A started process: its id, the shim's ends of its pipes, and its exit code.

    The class has those members of `subprocess.Popen` that `Child` uses. The exit code is None until
    it is known, and the negative signal number if a signal ended the process.
    """

    __slots__ = ("pid", "returncode", "stderr", "stdin", "stdout")

    def __init__(self, pid: int, stdin: FileIO | None, stdout: FileIO, stderr: FileIO) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None if the process is still running."""
        return self._reap(os.WNOHANG)

    def wait(self) -> int:
        """Wait until the process exits, and return the exit code."""
        return self._reap(0) or 0

    def _reap(self, options: int) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:
                # Other code in this process has already reaped the child, so the exit code is lost.
                self.returncode = 0
            else:
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
                else:
                    self.returncode = None
        return self.returncode


if TYPE_CHECKING:
    AnyProcess = SpawnedProcess | subprocess.Popen[bytes]


class ChildSpawnResult(NamedTuple):
    """A started process, with the data that `Child` needs.

    process              the process, with the shim's ends of its pipes
    stdin_bytes          the initial input for stdin
    stderr_tail          the buffer for stderr; by default, head and tail are kept unredacted
    recorder             records the child's input and output, if recording is on
    temporary_paths      the files to remove after the process has exited
    interrupt_timeout_s  the time limit for an interrupt in seconds; 0 for the default
    """

    process: "AnyProcess"
    stdin_bytes: bytes
    stderr_tail: "HeadTailBuffer | None" = None
    recorder: "ChildRecordSink | None" = None
    temporary_paths: tuple[str, ...] = ()
    interrupt_timeout_s: float = 0.0


def spawn_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    cwd: str,
    *,
    opens_stdin: bool,
    temporary_paths: Sequence[str] = (),
) -> "AnyProcess":
    """Start a child in a new session and process group. Raise ShimError if the child cannot be
    started.

    With `opens_stdin`, the child's stdin is a pipe instead of the null device. If the child cannot
    be started, the files in `temporary_paths` are removed.
    """
    if not os.path.exists(shim.__file__):
        from shim.process.package import require_package_files_for_child

        require_package_files_for_child(command, environment.values())
    try:
        if cwd == os.getcwd():
            start_process = _start_by_posix_spawn
        else:
            start_process = _start_by_subprocess
        process = start_process(command, environment, cwd, opens_stdin=opens_stdin)
    except (OSError, ValueError) as error:
        remove_files(temporary_paths)
        from shim.process.spawn_error import create_spawn_error

        raise create_spawn_error(command, environment, cwd, error) from None
    running_pids.add(process.pid)
    from shim.process import watchdog

    watchdog.start_watchdog(process.pid)
    _enlarge_stdout_pipe(process)
    return process


def _start_by_posix_spawn(
    command: Sequence[str], environment: Mapping[str, str], cwd: str, *, opens_stdin: bool
) -> "AnyProcess":
    """Start the process with `os.posix_spawn`. Raise OSError if the system refuses, and ValueError
    if an argument cannot be passed.
    """
    disable_descriptor_inheritance()
    descriptors: list[int] = []
    try:
        for _ in range(3 if opens_stdin else 2):
            descriptors += os.pipe()
        stdout, child_stdout, stderr, child_stderr, *stdin_ends = descriptors
        stdin_action = (
            (os.POSIX_SPAWN_DUP2, stdin_ends[0], 0)
            if opens_stdin
            else (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
        )
        pid = os.posix_spawn(
            command[0],
            list(command),
            environment,
            file_actions=[
                stdin_action,
                (os.POSIX_SPAWN_DUP2, child_stdout, 1),
                (os.POSIX_SPAWN_DUP2, child_stderr, 2),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=DEFAULT_SIGNALS,
        )
    except BaseException as error:
        for descriptor in descriptors:
            os.close(descriptor)
        if not isinstance(error, NotImplementedError):
            raise
        return _start_by_subprocess(command, environment, cwd, opens_stdin=opens_stdin)
    for descriptor in (child_stdout, child_stderr, *stdin_ends[:1]):
        os.close(descriptor)
    stdin = None
    if opens_stdin:
        stdin = FileIO(stdin_ends[1], "w")
    return SpawnedProcess(pid, stdin, FileIO(stdout), FileIO(stderr))


def _start_by_subprocess(
    command: Sequence[str], environment: Mapping[str, str], cwd: str, *, opens_stdin: bool
) -> "subprocess.Popen[bytes]":
    """Start the process with `subprocess`. It supports any working directory, and systems with a
    glibc before 2.26, whose `posix_spawn` cannot create a session.
    """
    from shim.process.popen import spawn_with_subprocess

    return spawn_with_subprocess(
        command, environment, cwd, DEFAULT_SIGNALS, opens_stdin=opens_stdin
    )


def disable_descriptor_inheritance() -> None:
    """Prevent children from inheriting file descriptors that the shim inherited from its own
    parent. Descriptors that Python opened are never inherited.
    """
    try:
        names = os.listdir("/dev/fd")
    except OSError:
        names = list(map(str, range(MAX_DESCRIPTORS)))
    for name in names:
        if int(name) > 2:
            try:
                os.set_inheritable(int(name), False)
            except OSError:
                continue  # this descriptor belonged to the listing itself


def _enlarge_stdout_pipe(process: "AnyProcess") -> None:
    """Enlarge the pipe for the child's stdout, if the system allows it. The child then does not
    have to wait for the shim to read, even when it exits.
    """
    try:
        import fcntl

        assert process.stdout is not None
        fcntl.fcntl(process.stdout.fileno(), fcntl.F_SETPIPE_SZ, STDOUT_PIPE_BYTES)
    except (ImportError, AttributeError, OSError):
        return  # not Linux, or the user's limit is reached


def kill_child(process: "AnyProcess") -> None:
    """Kill a child that is no longer needed because an error occurred before the loop started."""
    from shim.process import watchdog

    signal_process_group(process, "SIGKILL")
    close_pipes(process)
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL_S)
    running_pids.discard(process.pid)
    watchdog.stop_watchdog(process.pid)


def signal_process_group(process: "AnyProcess", signal_name: str) -> None:
    """Send a signal to a child's process group. Nothing is sent if the child has been reaped,
    because a new process may have the same id.
    """
    if process.returncode is not None:
        return
    try:
        os.killpg(process.pid, getattr(signal, signal_name))
    except OSError:
        return  # the process group has exited


def close_pipes(process: "AnyProcess") -> None:
    """Close the shim's ends of the child's pipes."""
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                continue  # unwritten data is lost


def remove_files(paths: Sequence[str]) -> None:
    for path in paths:
        try:
            os.unlink(path)
        except OSError:
            continue  # the file was never written, or is already removed
