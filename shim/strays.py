"""The processes below a child that left its group: a vendor's shell often has a session of its own.

Known only while the child lives (afterwards their parent is forgotten), so they are noted when it is told to end and
ended when it is gone. Linux only: elsewhere nothing is found, and only the group is ended.
"""

import contextlib
import os
import signal

STRAYS = 1000  # a fork bomb is not ours to count


def descendants(pid: int) -> dict[int, bytes]:
    """Every process below this one, with its start time, which tells it from a later owner of its number."""
    found: dict[int, bytes] = {}
    below = _children(pid)
    while below and len(found) < STRAYS:
        child = below.pop()
        born = _born(child)
        if born and child not in found:
            found[child] = born
            below += _children(child)
    return found


def end(strays: dict[int, bytes]) -> None:
    """Kill those that are still there."""
    for pid, born in strays.items():
        if _born(pid) == born:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    return found


def _born(pid: int) -> bytes:
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[19]
    return b""
