"""Processes below a child that have left its group: a vendor's shell often has a session of its
own.

Noted when the child is told to end, and ended when it is gone. One whose parent has ended already
belongs to nobody above it, unless we are its subreaper: `adopt` makes us that. Linux only:
elsewhere only the group is ended.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Collection, Mapping

STRAYS = 1000  # bounds the walk over a fork bomb
SET_CHILD_SUBREAPER = 36  # prctl(2)

_adopting = False


def adopt() -> None:
    """Become the parent of all orphans below us, so that they can be found: before a child can
    leave one.
    """
    global _adopting
    if _adopting or not sys.platform.startswith("linux"):
        return
    _adopting = True
    with contextlib.suppress(ImportError, OSError, AttributeError, TypeError, ValueError):
        # what is below `ctypes`, which is imported five times as slowly, and a child waits for it
        import _ctypes

        prctl = _ctypes.dlsym(_ctypes.dlopen(None, os.RTLD_NOW), "prctl")  # type: ignore[arg-type]
        _ctypes.call_cdeclfunction(prctl, (SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def end_orphans(keep: Collection[int] = ()) -> None:
    """End every process below us, except the children `keep` and the processes below them."""
    if not _adopting:
        return
    end(descendants(os.getpid(), keep))
    reap(keep)


def reap(keep: Collection[int]) -> None:
    """Wait for orphans that have ended. Other code waits for `keep`."""
    if not _adopting:
        return
    for pid in _children(os.getpid()):
        if pid not in keep:
            with contextlib.suppress(OSError):
                os.waitpid(pid, os.WNOHANG)


def descendants(pid: int, keep: Collection[int] = ()) -> dict[int, bytes]:
    """Every process below this one with its start time, which tells it from a later process of the
    same number.

    Processes of `keep` are left out, with all processes below them.
    """
    found: dict[int, bytes] = {}
    below = _children(pid)
    while below and len(found) < STRAYS:
        child = below.pop()
        if child in keep:
            continue
        born = _born(child)
        if born and child not in found:
            found[child] = born
            below += _children(child)
    return found


def alive(strays: Mapping[int, bytes], group: int | None = None) -> int:
    """How many of these processes still run, without zombies; with `group` only those that are in
    it.
    """
    count = 0
    for pid, born in strays.items():
        facts = _facts(pid)
        if facts and facts[_STARTED] == born and facts[_STATE] not in (b"Z", b"X"):
            count += group is None or facts[_GROUP] == b"%d" % group
    return count


def end(strays: Mapping[int, bytes]) -> None:
    """Kill those processes that still run."""
    for pid, born in strays.items():
        if _born(pid) == born:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{pid}/task/{thread}/children", "rb") as file,
            ):
                found += map(int, file.read().split())
    return found


def _born(pid: int) -> bytes:
    facts = _facts(pid)
    return facts[_STARTED] if facts else b""


_STATE, _GROUP, _STARTED = 0, 2, 19  # of the facts behind a process's name (proc(5))


def _facts(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        facts = file.read().rpartition(b")")[2].split()
        return facts if len(facts) > _STARTED else []
    return []
