"""Ends a child's group when we cannot any more: killed by SIGKILL, we have no last word.

A shell holds the reading end of a pipe whose writing end is ours alone. A line on it says that all is well, its end
that we are gone. A vendor that waits for a tool reads and writes nothing for hours, and would not notice.
"""

import contextlib
import subprocess

SCRIPT = 'read -r line || { kill -s TERM -- "-$1"; sleep 1; kill -s KILL -- "-$1"; } 2>/dev/null'
LEAVE_SECONDS = 0.5  # for a shell that was told that all is well

_guards: dict[int, "subprocess.Popen[bytes]"] = {}


def set_for(group: int) -> None:
    """Guard a process group; where no shell can be started it goes without."""
    command = ["/bin/sh", "-c", SCRIPT, "sh", str(group)]
    quiet = subprocess.DEVNULL
    with contextlib.suppress(OSError):
        _guards[group] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True
        )


def dismiss(group: int) -> None:
    """The group is gone: so is its guard."""
    guard = _guards.pop(group, None)
    if guard is not None and guard.stdin is not None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            guard.stdin.write(b"\n")
            guard.stdin.close()
            guard.wait(LEAVE_SECONDS)


def pids(group: int) -> list[int]:
    """The guard of a group, which is ours to wait for."""
    return [_guards[group].pid] if group in _guards else []
