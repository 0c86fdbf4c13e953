"""Saves the state of a worker's process, and restores it after each command so that the next one
can run (`fork_worker.Worker`).

The state is saved before the first command. If a command leaves something else, such as a thread, a
child or an exit function, the process has to exit.
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

# The prefix of modules that are loaded from a user's folder of vendors.
USER_MODULE_PREFIX = "shim_own_vendors_"
LATE_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# The resource limits that the shim changes or reads.
RESOURCE_LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)
SYS_NAMES = (
    *("argv", "stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__"),
    *("excepthook", "unraisablehook", "dont_write_bytecode"),
)


class ProcessSnapshot:
    """The state of a process that a command may change. Created before the first command runs."""

    def __init__(self, control_fd: int, max_files: int) -> None:
        """Save the state. `control_fd` is the descriptor that is never closed; none has a number of
        `max_files` or more.
        """
        from shim.process import spawn

        self._control_fd, self._max_files = control_fd, max_files
        self._spawn_module = spawn
        self._prctl = ctypes.CDLL(None).prctl
        gc.freeze()
        # commands must not hide garbage from the collector
        self._freeze, gc.freeze = gc.freeze, lambda: None
        self._umask = os.umask(0)
        os.umask(self._umask)
        self._limits = {limit: resource.getrlimit(limit) for limit in RESOURCE_LIMITS}
        self._blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        numbers = sorted(map(int, signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}))
        self._handlers = [(number, _signal.getsignal(number)) for number in numbers]
        self._sys = {name: getattr(sys, name) for name in SYS_NAMES}
        self._path = tuple(sys.path)
        # the first finalizer of a process registers an exit function
        weakref.finalize(self, id).detach()
        self._at_exit = _count_exit_functions()
        self._modules = len(sys.modules)
        shim_globals = [
            vars(module) for name, module in sys.modules.items() if name.partition(".")[0] == "shim"
        ]
        self._variables = [
            (names, name, value)
            for names in shim_globals
            for name, value in names.items()
            if name.islower()
            and not name.startswith("__")
            and not isinstance(value, types.ModuleType | Callable)
        ]
        containers = {
            id(value): value
            for names in shim_globals
            for value in names.values()
            if type(value) in (dict, list, set)
        }
        self._containers = [(container, container.copy()) for container in containers.values()]

    def can_restore(self) -> bool:
        """Return whether the command has left nothing that only the end of the process removes."""
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            children = file.read(1)
        return (
            not children
            and threading.active_count() == 1
            and _count_exit_functions() == self._at_exit
        )

    def restore(self) -> None:
        """Restore the saved state, except the signal handlers (`restore_signals`)."""
        _close_standard_files()  # so that late output is lost, as after the end of a process
        for name, value in self._sys.items():
            setattr(sys, name, value)
        sys.path[:] = self._path
        self._ignore_signals()
        if self._spawn_module.is_subreaper:
            self._prctl(self._spawn_module.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        self._restore_modules()
        self._close_files()
        os.umask(self._umask)
        for limit, value in self._limits.items():
            resource.setrlimit(limit, value)

    def _ignore_signals(self) -> None:
        """Ignore signals that arrive after the command has ended, as if its process had exited."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.set_wakeup_fd(-1)
        for number in LATE_SIGNALS:
            _signal.signal(number, _signal.SIG_IGN)  # type: ignore[attr-defined]

    def restore_signals(self) -> None:
        """Restore the signal handlers and the signal mask for the next command."""
        for number, handler in self._handlers:
            if _signal.getsignal(number) is not handler:
                _signal.signal(number, handler)  # type: ignore[arg-type]
        _signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)

    def _restore_modules(self) -> None:
        """Restore the globals of the shim's modules, and the state of `tempfile` and structlog."""
        for names, name, value in self._variables:
            names[name] = value
        for container, before in self._containers:
            if container != before:
                _restore_items(container, before)
        if len(sys.modules) != self._modules:
            for name in [name for name in sys.modules if name.startswith(USER_MODULE_PREFIX)]:
                del sys.modules[name]
            self._modules = len(sys.modules)
        tempfile.tempdir = None
        structlog = sys.modules.get("structlog")
        if structlog is not None:
            structlog.reset_defaults()

    def _close_files(self) -> None:
        """Close all descriptors except the link.

        Garbage is collected first: a file object that is collected later would close a descriptor
        of the next command.
        """
        gc.enable()
        gc.collect()
        self._freeze()  # objects that survive are never collected later
        os.closerange(3, self._control_fd)
        os.closerange(self._control_fd + 1, self._max_files)


def _close_standard_files() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.close(null)


def _count_exit_functions() -> tuple[int, int]:
    return atexit._ncallbacks(), len(weakref.finalize._registry)  # type: ignore[attr-defined]


def _restore_items(container: Any, before: Any) -> None:
    """Restore the items of a dict, a set or a list."""
    if isinstance(container, list):
        container[:] = before
        return
    container.clear()
    container.update(before)
