"""Installs Debian packages that tests need, if this process is root on a machine with apt-get."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence

from programs import locate_cache_folder

INSTALL_SECONDS = 600.0  # about 100 MB over a slow connection
# apt-get waits this long for other programs that install packages.
WAIT_OPTION = "DPkg::Lock::Timeout=300"


def install_system_packages(packages: Sequence[str], is_installed: Callable[[], bool]) -> str:
    """Install packages, unless `is_installed` returns True. Return why this failed, or "".

    Tests run in several processes. The first one installs the packages, and the others wait.
    """
    if is_installed():
        return ""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return "apt-get cannot be used"
    cache = locate_cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "apt-get.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_installed():
            return ""
        return _run_apt_get(["update", "-q"]) or _run_apt_get(
            ["install", "-q", "-y", "--no-install-recommends", *packages]
        )


def _run_apt_get(arguments: Sequence[str]) -> str:
    """Run apt-get. Return why it failed, or ""."""
    completed = subprocess.run(
        ["apt-get", "-o", WAIT_OPTION, *arguments],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
        check=False,
    )
    if completed.returncode == 0:
        return ""
    return f"apt-get {arguments[0]} failed: {completed.stderr[-300:]}"
