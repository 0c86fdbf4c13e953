"""Tests of the workers of the test suite (`fork_worker.Worker`): one process runs many commands,
each as if in a new process.
"""

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import sweeps
from box import ASK, TIMEOUT_S, Box, run_shim
from fork_worker import WorkerRun, possible

pytestmark = pytest.mark.skipif(not possible or sweeps.full, reason="no process is used twice")

# Prints everything that a command may change in its process.
LOOK = """
import atexit, gc, json, os, resource, signal, sys, tempfile, threading, types, warnings, _signal
import logging
from shim.process import descendants
import ctypes

def identify(value):
    # Returns a value that differs if a container has other items, or if the object is another one.
    if type(value) is dict:
        return {str(key): id(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return [id(item) for item in value]
    if type(value) in (set, frozenset):
        return sorted(map(repr, value))
    return id(value)

def is_hidden(name, value):  # Python adds these when a module or a class is used
    return name.startswith("__") or isinstance(value, types.ModuleType)

facts = {"pid": os.getpid()}
for module_name, module in sorted(sys.modules.items()):
    if module_name.partition(".")[0] != "shim":
        continue
    for name, value in vars(module).items():
        if not is_hidden(name, value):
            facts[f"{module_name}.{name}"] = identify(value)
        if isinstance(value, type) and value.__module__ == module_name:
            kept = {key: identify(item) for key, item in vars(value).items() if not is_hidden(key, item)}
            facts[f"attributes of {module_name}.{name}"] = kept
subreaper = ctypes.c_int()
ctypes.CDLL(None).prctl(37, ctypes.byref(subreaper), 0, 0, 0)
wakeup = signal.set_wakeup_fd(-1)
if wakeup >= 0:
    signal.set_wakeup_fd(wakeup)
import structlog

facts |= {
    "environment": dict(os.environ),
    "working directory": os.getcwd(),
    "arguments": sys.argv[1:],
    "descriptors": sorted(os.listdir("/proc/self/fd"), key=int),
    "standard files": [(s.name, s.errors, s.encoding, s.closed) for s in (sys.stdin, sys.stdout, sys.stderr)],
    "handlers": {n: repr(_signal.getsignal(n)).partition(" at ")[0] for n in map(int, signal.valid_signals())},
    "blocked signals": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "wakeup descriptor": wakeup,
    "timer": signal.getitimer(signal.ITIMER_REAL),
    "file mode mask": [line for line in open("/proc/self/status") if line.startswith("Umask")],
    "limits": [resource.getrlimit(limit) for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)],
    "garbage collection": gc.isenabled(),
    "subreaper": subreaper.value,
    "threads": threading.active_count(),
    "children": open(f"/proc/self/task/{os.getpid()}/children").read(),
    "functions at the end": atexit._ncallbacks(),
    "import path": sys.path,
    "modules of a user": [name for name in sys.modules if name.startswith("shim_own")],
    "hooks": [id(sys.excepthook), id(sys.unraisablehook), id(threading.excepthook)],
    "temporary folder": tempfile.tempdir,
    "warnings": list(map(repr, warnings.filters)),
    "log": [repr(logging.root.handlers), logging.root.level, structlog.is_configured()],
    "group and session": (os.getpgid(0), os.getsid(0)),
}
json.dump(facts, sys.stdout)
"""

# Changes each of these values that can be restored.
CHANGE = """
import gc, os, resource, signal, sys, tempfile, types, warnings
import structlog
from shim import adapters
from shim.bridge import launch
from shim.io import signals, stderr
from shim.process import watchdog, spawn
from shim.state import files, profile_files

os.environ["LEFT"] = "over"
os.chdir("/")
sys.argv.append("more")
opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
cycle = [open("/dev/null")]  # only the collector closes this file
cycle.append(cycle)
signals.start_collecting_signals()
signals.received_signals.append(15)
for number in (signal.SIGCHLD, signal.SIGALRM, signal.SIGUSR1, signal.SIGWINCH):
    signal.signal(number, lambda *_: None)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR2])
reading, writing = os.pipe2(os.O_NONBLOCK)
signal.set_wakeup_fd(writing)
signal.setitimer(signal.ITIMER_REAL, 3600)
os.umask(0o077)
resource.setrlimit(resource.RLIMIT_NOFILE, (500, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
gc.disable()
gc.freeze()
spawn.become_subreaper()
sys.path.append("/nowhere")
sys.modules["shim_own_vendors_left"] = types.ModuleType("left")
sys.excepthook = sys.unraisablehook = print
tempfile.gettempdir()
structlog.configure(processors=[])
stderr._is_stderr_unread = True
spawn.running_pids.add(7)
watchdog._watchdogs[7] = None
files._warned_dirs.add("/state")
profile_files._bundled_profiles["pi.toml"] = None
launch._started_pids.append(7)
adapters.VENDORS["pi"] = "/other.toml"
adapters.VENDORS["left"] = "/left.toml"
adapters.profile_loaders.append(print)
sys.stdin.reconfigure(errors="replace")
"""
CLOSE = "sys.stdout.flush(); sys.stdin.close(); sys.stdout = sys.stderr = None"
NOT_CHANGED = {
    "pid",
    "threads",
    "children",
    "functions at the end",
    "warnings",
    "group and session",
}


class ProgramRunner:
    """Runs programs in a worker in the same way as the shim."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._variables = box.build_environment()
        self._count = 0

    def start(self, program: str, *args: str, **options: Any) -> WorkerRun:
        """Start a program from its source text."""
        self._count += 1
        path = self._box.path / f"program{self._count}.py"
        path.write_text(program, encoding="utf-8")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        options = {"env": self._variables, "cwd": self._box.cwd} | pipes | options
        return WorkerRun(args, module=str(path), **options)

    def run(self, program: str, *args: str, stdin: bytes = b"") -> tuple[int, bytes, str]:
        """Run a program to its end. Return its exit status, stdout and stderr."""
        with self.start(program, *args) as process:
            stdout, stderr = process.communicate(stdin, timeout=TIMEOUT_S)
        return process.returncode, stdout, stderr.decode()

    def pid(self) -> int:
        """The process id of the next run. It stays the same while the process can be restored."""
        return int(self.run("import os; print(os.getpid())")[1])

    def look(self) -> Mapping[str, Any]:
        """Return the state of the process that the next run finds."""
        status, stdout, stderr = self.run(LOOK)
        assert (status, stderr) == (0, "")
        state: dict[str, Any] = json.loads(stdout)
        return state


@pytest.fixture
def runner(box: Box) -> ProgramRunner:
    return ProgramRunner(box)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the values that differ. Names that exist only in `after` are ignored, such as those of
    new modules.
    """
    return {
        name: (value, after.get(name)) for name, value in before.items() if after.get(name) != value
    }


def test_next_run_is_not_affected_by_the_previous_run(runner: ProgramRunner) -> None:
    before = runner.look()
    status, stdout, stderr = runner.run(CHANGE + LOOK + CLOSE)
    assert (status, stderr) == (0, "")
    changed = differences(before, json.loads(stdout))
    assert {name for name in before if "shim." not in name} - set(changed) <= NOT_CHANGED
    assert differences(before, runner.look()) == {}


def test_commands_leave_no_state_for_the_next_run(
    runner: ProgramRunner, box: Box, tmp_path: Path
) -> None:
    vendors_folder = box.config.parent / "vendors"
    vendors_folder.mkdir(parents=True)
    (vendors_folder / "mine.toml").write_text('extends = "pi"\n', encoding="utf-8")
    box.create_fixture_printer("qwen", "qwen/0.24.4-text")
    box.write_program("pi", "exit 3\n")
    cast = str(tmp_path / "a.cast")
    before = runner.look()
    for args, status in {
        ("claude", *ASK, "--shim-vendor", "qwen", "--shim-record", cast): 0,
        ("claude", *ASK, "--shim-vendor", "pi", "--shim-log", "debug"): 1,
        ("claude", *ASK, "--shim-vendor", "mine"): 1,
        ("claude", *ASK, "--shim-vendor", "nobody"): 1,
        ("claude", "--version"): 0,
        ("claude", "mcp", "list"): 0,
        ("show", cast): 0,
        ("export", cast, "--to", "html"): 0,
        ("vendors",): 0,
        ("explain", "--", "-p", "hi"): 0,
        ("nothing",): 2,
    }.items():
        done = run_shim(args, env=box.build_environment(SHIM_VENDOR="qwen"), cwd=box.cwd)
        assert done.status == status, (args, done)
    assert differences(before, runner.look()) == {}


@pytest.mark.parametrize(
    "program",
    [
        "import threading, time; threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()",
        "import subprocess as s; s.left = s.Popen(['cat'], stdin=s.PIPE)",
        "import atexit; atexit.register(print, 'the end')",
        "import tempfile; tempfile.left = tempfile.TemporaryDirectory()",
    ],
)
def test_process_that_cannot_be_restored_ends(runner: ProgramRunner, program: str) -> None:
    before = runner.pid()
    status, stdout, _ = runner.run(program)
    assert (status, stdout) == (0, b"the end\n" if "atexit" in program else b"")
    assert runner.pid() != before
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)


@pytest.mark.parametrize(
    ("program", "status", "stderr"),
    [
        ("raise SystemExit", 0, ""),
        ("raise SystemExit(7)", 7, ""),
        ("raise SystemExit('no such thing')", 1, "no such thing\n"),
        ("raise ValueError('wrong')", 1, "ValueError: wrong\n"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt\n"),
        ("import os; os._exit(9)", 9, ""),
        ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM, ""),
        ("import os, sys; os.close(1); print('lost')", 120, ""),
    ],
)
def test_run_reports_the_exit_status_and_stderr_of_a_process(
    runner: ProgramRunner, program: str, status: int, stderr: str
) -> None:
    ended, stdout, actual_stderr = runner.run(program)
    assert (ended, stdout) == (status, b"")
    assert actual_stderr.endswith(stderr) and bool(actual_stderr) == bool(stderr)
    if "wrong" in stderr:
        assert actual_stderr.startswith("Traceback ")


def test_run_reads_and_writes_more_than_a_pipe_holds(runner: ProgramRunner) -> None:
    data = bytes(range(256)) * 20_000
    copy = (
        "import sys; data = sys.stdin.buffer.read(); "
        "sys.stdout.buffer.write(data); sys.stderr.write('x' * len(data))"
    )
    assert runner.run(copy, stdin=data) == (0, data, "x" * len(data))


def test_run_can_ignore_its_stdin(runner: ProgramRunner) -> None:
    before = runner.pid()
    assert runner.run("print('done')", stdin=b"x" * 10_000_000) == (0, b"done\n", "")
    assert runner.pid() == before


def test_hanging_run_can_be_killed(runner: ProgramRunner) -> None:
    before = runner.pid()
    with runner.start("import signal; signal.pause()") as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.communicate(timeout=0.1)
        assert process.poll() is None
        process.kill()
    assert (process.pid, process.returncode) == (before, -signal.SIGKILL)
    assert runner.pid() != before


def test_concurrent_runs_use_separate_processes(runner: ProgramRunner) -> None:
    with runner.start("print(input())") as first:
        assert runner.run("print('second')") == (0, b"second\n", "")
        assert first.communicate(b"first\n", timeout=TIMEOUT_S)[0] == b"first\n"


def test_killing_an_ended_run_does_not_affect_the_next_run(runner: ProgramRunner) -> None:
    with runner.start("pass", start_new_session=True) as first:
        first.communicate(timeout=TIMEOUT_S)
    with runner.start("print(input())", start_new_session=True) as second:
        assert second.pid == first.pid
        first.kill_group()
        assert second.communicate(b"alive\n", timeout=TIMEOUT_S)[0] == b"alive\n"


def test_killed_worker_is_replaced(runner: ProgramRunner) -> None:
    before = runner.pid()
    os.kill(before, signal.SIGKILL)
    assert runner.pid() != before


def test_turn_runs_in_a_worker_unless_reuse_is_off(runner: ProgramRunner, box: Box) -> None:
    box.write_program("pi", f"echo $PPID > {box.path}/parent\nexit 3\n")
    before = runner.pid()
    for reuse in (True, False):
        run_shim(
            ["claude", *ASK], env=box.build_environment(SHIM_VENDOR="pi"), cwd=box.cwd, reuse=reuse
        )
        assert (int((box.path / "parent").read_text()) == before) == reuse
