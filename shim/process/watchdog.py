"""A watchdog that stops a child's process group if the shim dies without cleaning up, for example
after SIGKILL.

The watchdog is a shell that reads from a pipe. Only the shim holds the pipe's write end. If the
watchdog reads a line, the process group has ended normally. If the pipe is closed without a line,
the shim has died. The vendor might not notice the shim's death for hours, because it neither reads
nor writes while a tool is running.
"""

import contextlib
import subprocess

WATCHDOG_SCRIPT = (
    'read -r line || { kill -s TERM -- "-$1"; sleep 1; kill -s KILL -- "-$1"; } 2>/dev/null'
)
EXIT_TIMEOUT_S = 0.5  # for the shell to exit after it has read a line

_watchdogs: dict[int, "subprocess.Popen[bytes]"] = {}


def start_watchdog(group_id: int) -> None:
    """Start the watchdog for a process group. If no shell can be started, the group has no
    watchdog.
    """
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
    """Stop the watchdog for a process group that has ended."""
    watchdog = _watchdogs.pop(group_id, None)
    if watchdog is not None and watchdog.stdin is not None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            watchdog.stdin.write(b"\n")
            watchdog.stdin.close()
            watchdog.wait(EXIT_TIMEOUT_S)


def list_watchdog_pids(group_id: int) -> list[int]:
    """Return the process id of a group's watchdog as a list, which is empty if there is no
    watchdog. This process must reap the watchdog.
    """
    if group_id in _watchdogs:
        return [_watchdogs[group_id].pid]
    return []
