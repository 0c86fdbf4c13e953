"""Ends a child's group after our own death: SIGKILL leaves us no time for it.

A shell holds the reading end of a pipe, and only we hold its writing end. A line on it means that
all is well; its end means that we are gone. A vendor that waits for a tool reads and writes nothing
for hours, and would not notice.
"""

import contextlib
import subprocess

WATCHDOG_SCRIPT = (
    'read -r line || { kill -s TERM -- "-$1"; sleep 1; kill -s KILL -- "-$1"; } 2>/dev/null'
)
EXIT_TIMEOUT_S = 0.5  # for the shell to exit after the line

_watchdogs: dict[int, "subprocess.Popen[bytes]"] = {}


def start_watchdog(group_id: int) -> None:
    """Guard a process group. If no shell can be started, the group has no guard."""
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
    """Dismiss the guard of a group that is gone."""
    watchdog = _watchdogs.pop(group_id, None)
    if watchdog is not None and watchdog.stdin is not None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            watchdog.stdin.write(b"\n")
            watchdog.stdin.close()
            watchdog.wait(EXIT_TIMEOUT_S)


def list_watchdog_pids(group_id: int) -> list[int]:
    """The process of a group's guard, which we have to wait for."""
    return [_watchdogs[group_id].pid] if group_id in _watchdogs else []
