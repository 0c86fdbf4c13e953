"""The lock that prevents two complete test runs of one user at the same time.

Two runs on two cores slow each other down until tests reach their limits. `make test` and `make
e2e` take the lock (`pytest --alone`), even in different checkouts. A run of single files does not
take it.
"""

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

MAX_WAIT_SECONDS = 3600.0  # longer than `make test` and `make e2e` together on a slow machine
POLL_SECONDS = 1.0


class SuiteBusyError(Exception):
    """Another run has held the lock for MAX_WAIT_SECONDS."""


def lock_path() -> Path:
    """Return the path of the locked file. Each user has one."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "claude-shim" / "tests.lock"


def take_suite_lock(
    path: Path,
    report: Callable[[str], None],
    *,
    max_wait_s: float = MAX_WAIT_SECONDS,
    poll_s: float = POLL_SECONDS,
) -> IO[str]:
    """Return the locked file. The process releases the lock when it exits. Raise SuiteBusyError
    after `max_wait_s`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+", encoding="utf-8")
    deadline = time.monotonic() + max_wait_s
    reported = False
    while not _try_lock(file):
        holder = _read_holder(file)
        if time.monotonic() >= deadline:
            file.close()
            raise SuiteBusyError(
                f"{holder} has held {path} for {max_wait_s:.0f} s; end it, or run pytest without --alone"
            )
        if not reported:
            report(f"waiting for {holder}, at most {max_wait_s / 60:.0f} minutes ({path})")
            reported = True
        time.sleep(poll_s)
    file.seek(0)
    file.truncate()
    file.write(f"the test run of process {os.getpid()} in {os.getcwd()}")
    file.flush()
    return file


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_holder(file: IO[str]) -> str:
    file.seek(0)
    return file.read() or "another test run"
