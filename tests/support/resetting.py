"""Restores what a command of ours has changed in its process, so that the next one can run in it (`forking.Worker`).

Each value is saved before the first command. A process that has more left of a command than values has to end: a
thread, a child, or a function that runs at the end.
"""

import _signal
import atexit
import ctypes
import gc
import os
import resource
import signal
import sys
import tempfile
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

OPEN_FILES = 4096  # as in `forking`
OWN_MODULES = "shim_own_vendors_"  # modules of a user, each from the folder of its home
LATE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)  # that code of ours changes or reads
SYS_NAMES = (
    *("argv", "stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__"),
    *("excepthook", "unraisablehook", "dont_write_bytecode"),
)


class Reset:
    """What a command may change in its process, as it was before. Made before the first command runs."""

    def __init__(self, link: int) -> None:
        from shim.process import strays

        self._link = link
        self._strays = strays
        self._prctl = ctypes.CDLL(None).prctl
        gc.freeze()
        self._freeze, gc.freeze = gc.freeze, lambda: None  # garbage of a command must stay where it is found
        self._umask = os.umask(0)
        os.umask(self._umask)
        self._limits = {limit: resource.getrlimit(limit) for limit in LIMITS}
        self._blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        numbers = sorted(map(int, signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}))
        self._handlers = [(number, _signal.getsignal(number)) for number in numbers]
        self._sys = {name: getattr(sys, name) for name in SYS_NAMES}
        self._path = tuple(sys.path)
        weakref.finalize(self, id).detach()  # the first one of a process registers a function for its end
        self._at_exit = _functions_at_exit()
        self._modules = len(sys.modules)
        globals_of_ours = [vars(module) for name, module in sys.modules.items() if name.partition(".")[0] == "shim"]
        self._variables = [
            (names, name, value)
            for names in globals_of_ours
            for name, value in names.items()
            if name.islower() and not name.startswith("__") and not isinstance(value, types.ModuleType | Callable)
        ]
        containers = {
            id(value): value
            for names in globals_of_ours
            for value in names.values()
            if type(value) in (dict, list, set)
        }
        self._containers = [(container, container.copy()) for container in containers.values()]

    def is_possible(self) -> bool:
        """Return whether nothing is left that only the end of the process takes away."""
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            children = file.read(1)
        return not children and threading.active_count() == 1 and _functions_at_exit() == self._at_exit

    def restore(self) -> None:
        """Make everything as it was."""
        _close_standard_files()  # what is flushed late goes nowhere, as at the end of a process
        for name, value in self._sys.items():
            setattr(sys, name, value)
        sys.path[:] = self._path
        self._ignore_signals()
        if self._strays._adopting:
            self._prctl(self._strays.SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        self._restore_modules()
        self._close_files()
        os.umask(self._umask)
        for limit, value in self._limits.items():
            resource.setrlimit(limit, value)

    def _ignore_signals(self) -> None:
        """Ignore the signals that come too late for the command, as they do where its process is gone."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.set_wakeup_fd(-1)
        for number in LATE:
            _signal.signal(number, _signal.SIG_IGN)  # type: ignore[attr-defined]

    def use_signals(self) -> None:
        """Restore how signals are handled, for the next command."""
        for number, handler in self._handlers:
            if _signal.getsignal(number) is not handler:
                _signal.signal(number, handler)  # type: ignore[arg-type]
        _signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)

    def _restore_modules(self) -> None:
        """Restore the globals of our modules, and what other modules keep for us."""
        for names, name, value in self._variables:
            names[name] = value
        for container, before in self._containers:
            if container != before:
                _refill(container, before)
        if len(sys.modules) != self._modules:
            for name in [name for name in sys.modules if name.startswith(OWN_MODULES)]:
                del sys.modules[name]
            self._modules = len(sys.modules)
        tempfile.tempdir = None
        structlog = sys.modules.get("structlog")
        if structlog is not None:
            structlog.reset_defaults()

    def _close_files(self) -> None:
        """Close everything but the link. What is garbage closes its own files first, and later no other ones."""
        gc.enable()
        gc.collect()
        self._freeze()  # what stays is no garbage later
        os.closerange(3, self._link)
        os.closerange(self._link + 1, OPEN_FILES)


def _close_standard_files() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.close(null)


def _functions_at_exit() -> tuple[int, int]:
    return atexit._ncallbacks(), len(weakref.finalize._registry)  # type: ignore[attr-defined]


def _refill(container: Any, before: Any) -> None:
    """Give a dict, a set or a list its former items."""
    if isinstance(container, list):
        container[:] = before
        return
    container.clear()
    container.update(before)
