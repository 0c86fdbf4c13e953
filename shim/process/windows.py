"""What stands for a process group, and for `#!`, on Windows. Written by the documentation and never run: untested.

A job object holds a child and all that it starts, from before its first instruction; when its last handle is closed,
which the end of our process does too, whatever is in it is ended. So there is no guard and there are no strays.

npm installs a program as NAME.cmd, which cmd.exe runs, and cmd.exe reads its arguments a second time, by rules of its
own that no quoting is safe under ("BatBadBut"). So a prompt never is an argument of such a file, it goes by stdin; any
other argument that cmd.exe would act on is refused.

This much was asked for. The loop waits for pipes and signals as POSIX has them, so the drop-in does not run there yet.
"""

import ctypes
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from shim.core.errors import FrontendError

EXTENSIONS = (".com", ".exe", ".bat", ".cmd")  # what can be started; PATHEXT names more, which a shell opens for people
BATCH = (".bat", ".cmd")
ACTS_ON = frozenset('"%!^&|<>()\r\n\0')  # what means something to cmd.exe, quoted or not

CREATE_SUSPENDED, CREATE_NEW_PROCESS_GROUP, CREATE_NO_WINDOW = 0x4, 0x200, 0x08000000
EXTENDED_LIMITS, KILL_ON_JOB_CLOSE = 9, 0x2000  # JobObjectExtendedLimitInformation, JOB_OBJECT_LIMIT_…
ENDED_BY_US = 1  # the exit code of whoever is in a job that is terminated


# -- programs -----------------------------------------------------------------------------------------------------


def spellings(name: str, environment: Mapping[str, str]) -> list[str]:
    """The file names under which a program called `name` may be found, in PATHEXT's order."""
    if name.lower().endswith(EXTENSIONS):
        return [name]
    listed = (part.strip().lower() for part in environment.get("PATHEXT", ";".join(EXTENSIONS)).split(";"))
    return [name + extension for extension in dict.fromkeys(listed) if extension in EXTENSIONS]


def is_batch(program: str) -> bool:
    """Whether cmd.exe would run it."""
    return program.rstrip(". ").lower().endswith(BATCH)


def check(command: Sequence[str]) -> None:
    """FrontendError when cmd.exe would make something else of an argument."""
    if not is_batch(command[0]):
        return
    for word in command[1:]:
        if found := ACTS_ON.intersection(word):
            raise FrontendError(
                f"{command[0]} is run by cmd.exe, which would act on {min(found)!r} in the argument {word[:60]!r}",
                hint="name the program behind it with SHIM_BIN (npm: node's, with the script in `args`)",
            )


# -- a job --------------------------------------------------------------------------------------------------------


class _Basic(ctypes.Structure):
    _fields_ = (
        ("PerProcessUserTimeLimit", ctypes.c_int64),
        ("PerJobUserTimeLimit", ctypes.c_int64),
        ("LimitFlags", ctypes.c_uint32),
        ("MinimumWorkingSetSize", ctypes.c_size_t),
        ("MaximumWorkingSetSize", ctypes.c_size_t),
        ("ActiveProcessLimit", ctypes.c_uint32),
        ("Affinity", ctypes.c_size_t),
        ("PriorityClass", ctypes.c_uint32),
        ("SchedulingClass", ctypes.c_uint32),
    )


class _Extended(ctypes.Structure):
    _fields_ = (
        ("BasicLimitInformation", _Basic),
        ("IoInfo", ctypes.c_uint64 * 6),
        ("ProcessMemoryLimit", ctypes.c_size_t),
        ("JobMemoryLimit", ctypes.c_size_t),
        ("PeakProcessMemoryUsed", ctypes.c_size_t),
        ("PeakJobMemoryUsed", ctypes.c_size_t),
    )


class Job:
    """A child and all that it starts. OSError when the system refuses."""

    def __init__(self, libraries: Any = None) -> None:
        """`libraries` has `kernel32` and `ntdll`; the system's own unless a test brings others."""
        self._system = libraries or _System()
        create = self._system.kernel32.CreateJobObjectW
        create.restype = ctypes.c_void_p  # a handle is a pointer: as an int, half of it would be lost
        self._handle = ctypes.c_void_p(create(None, None))
        limits = _Extended()
        limits.BasicLimitInformation.LimitFlags = KILL_ON_JOB_CLOSE
        self._done(
            self._handle.value
            and self._system.kernel32.SetInformationJobObject(
                self._handle, EXTENDED_LIMITS, ctypes.byref(limits), ctypes.sizeof(limits)
            )
        )

    def hold(self, process: "subprocess.Popen[bytes]") -> None:
        """Take in a child that was started suspended, and let it go on."""
        handle = ctypes.c_void_p(int(process._handle))  # type: ignore[attr-defined]  # Popen's, on Windows
        self._done(self._system.kernel32.AssignProcessToJobObject(self._handle, handle))
        self._done(self._system.ntdll.NtResumeProcess(handle) == 0)

    def end(self) -> None:
        """End everything in it."""
        self._system.kernel32.TerminateJobObject(self._handle, ENDED_BY_US)

    def close(self) -> None:
        """Let go of it, which ends what is still in it."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle.value:
            self._system.kernel32.CloseHandle(handle)

    def _done(self, success: Any) -> None:
        if not success:
            raise OSError(self._system.last_error(), "the job object was refused")


class _System:
    """The libraries of Windows."""

    def __init__(self) -> None:
        library: Any = getattr(ctypes, "WinDLL")  # noqa: B009  # not there elsewhere
        self.kernel32 = library("kernel32", use_last_error=True)
        self.ntdll = library("ntdll")

    def last_error(self) -> int:
        """Why the last call failed."""
        return int(getattr(ctypes, "get_last_error")())  # noqa: B009


_jobs: dict[int, Job] = {}


def spawn(command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
    """Popen, in a job from the first instruction on."""
    check(command)
    job = Job()
    flags = CREATE_SUSPENDED | CREATE_NEW_PROCESS_GROUP | CREATE_NO_WINDOW
    process = subprocess.Popen(list(command), creationflags=flags, **options)
    try:
        job.hold(process)
    except OSError:
        process.kill()
        job.close()
        raise
    _jobs[process.pid] = job
    return process


def signal_job(process: "subprocess.Popen[bytes]", name: str) -> None:
    """An interrupt is Ctrl+Break, which a program may handle; anything else ends the job: there is no SIGTERM."""
    job = _jobs.get(process.pid)
    if name == "SIGINT":
        import signal

        process.send_signal(getattr(signal, "CTRL_BREAK_EVENT"))  # noqa: B009
    elif job is not None:
        job.end()


def forget(process: "subprocess.Popen[bytes]") -> None:
    """The child is gone: so is what it left."""
    job = _jobs.pop(process.pid, None)
    if job is not None:
        job.close()
