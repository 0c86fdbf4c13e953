"""Finds and stops a child's descendants that have left its process group. For example, a vendor's
shell often runs in a session of its own.

Descendants are recorded before the child is signalled, and stopped after the child has exited. A
process whose parent has exited can be found only if this process is a subreaper
(`spawn.become_subreaper`). Only Linux supports subreapers. On other systems, only the process group
is stopped.
"""

import contextlib
import os
import signal
from collections.abc import Collection, Mapping

from shim.process import spawn

MAX_DESCENDANTS = 1000  # the limit for one search, in case of a fork bomb


def kill_orphans(excluded_pids: Collection[int] = ()) -> None:
    """Kill all descendants, except the children in `excluded_pids` and their descendants."""
    if not spawn.is_subreaper:
        return
    kill_running_processes(find_descendant_start_times(os.getpid(), excluded_pids))
    reap_orphans(excluded_pids)


def reap_orphans(excluded_pids: Collection[int]) -> None:
    """Reap orphans that have exited. The children in `excluded_pids` are reaped by other code."""
    if not spawn.is_subreaper:
        return
    for pid in _list_child_pids(os.getpid()):
        if pid not in excluded_pids:
            with contextlib.suppress(OSError):
                os.waitpid(pid, os.WNOHANG)


def find_descendant_start_times(pid: int, excluded_pids: Collection[int] = ()) -> dict[int, bytes]:
    """Return the descendants of a process, as a dict from process id to start time. The start time
    distinguishes a descendant from a later process with the same id.

    The processes in `excluded_pids` and their descendants are left out.
    """
    start_times: dict[int, bytes] = {}
    pending_pids = _list_child_pids(pid)
    while pending_pids and len(start_times) < MAX_DESCENDANTS:
        child_pid = pending_pids.pop()
        if child_pid in excluded_pids:
            continue
        start_time = _read_start_time(child_pid)
        if start_time and child_pid not in start_times:
            start_times[child_pid] = start_time
            pending_pids += _list_child_pids(child_pid)
    return start_times


def count_running_processes(
    start_time_by_pid: Mapping[int, bytes], group_id: int | None = None
) -> int:
    """Return how many of these processes are still running, not counting zombies. With `group_id`,
    count only processes in that group.
    """
    count = 0
    for pid, start_time in start_time_by_pid.items():
        fields = _read_stat_fields(pid)
        if not fields or fields[_START_TIME_FIELD] != start_time:
            continue
        if fields[_STATE_FIELD] in (b"Z", b"X"):
            continue
        if group_id is None or fields[_GROUP_FIELD] == b"%d" % group_id:
            count += 1
    return count


def kill_running_processes(start_time_by_pid: Mapping[int, bytes]) -> None:
    """Kill those of the given processes that are still running."""
    for pid, start_time in start_time_by_pid.items():
        if _read_start_time(pid) == start_time:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _list_child_pids(pid: int) -> list[int]:
    child_pids: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{pid}/task/{thread}/children", "rb") as file,
            ):
                child_pids += map(int, file.read().split())
    return child_pids


def _read_start_time(pid: int) -> bytes:
    fields = _read_stat_fields(pid)
    if fields:
        return fields[_START_TIME_FIELD]
    return b""


# Field indexes in /proc/PID/stat, counted after the process name (proc(5)).
_STATE_FIELD = 0
_GROUP_FIELD = 2
_START_TIME_FIELD = 19


def _read_stat_fields(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
        if len(fields) > _START_TIME_FIELD:
            return fields
        return []
    return []
