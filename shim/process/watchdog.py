"""Stops a child's process group if the shim dies without a chance to stop it, as after SIGKILL.

A shell reads from a pipe whose writing end only the shim holds. A line means a normal end; the end
of the pipe means that the shim has died. The vendor itself would not notice, because it may read
and write nothing for hours while a tool runs.
"""

import contextlib
import subprocess

WATCHDOG_SCRIPT = (
    'read -r line || { kill -s TERM -- "-$1"; sleep 1; kill -s KILL -- "-$1"; } 2>/dev/null'
)
EXIT_TIMEOUT_S = 0.5  # for the shell to exit after the line

_watchdogs: dict[int, "subprocess.Popen[bytes]"] = {}


def start_watchdog(group_id: int) -> None:
    """Start the watchdog of a process group. If no shell can be started, there is none."""
    command = ["/bin/sh", "-c", WATCHDOG_SCRIPT, "sh", str(group_id)]
    null_device = subprocess.DEVNULL
    with contextlib.suppress(OSError):
        _watchdogs[group_id] = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=null_device,
            stderr=null_device,
            start_new_session=True,
        )


def stop_watchdog(group_id: int) -> None:
    """Stop the watchdog of a group that has ended."""
    watchdog = _watchdogs.pop(group_id, None)
    if watchdog is not None and watchdog.stdin is not None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            watchdog.stdin.write(b"\n")
            watchdog.stdin.close()
            watchdog.wait(EXIT_TIMEOUT_S)


def list_watchdog_pids(group_id: int) -> list[int]:
    """Return the process id of a group's watchdog, which this process must wait for."""
    if group_id in _watchdogs:
        return [_watchdogs[group_id].pid]
    return []
