"""Helpers for tests of processes: a box with its own home, stand-ins for vendors, and the drop-in."""

import atexit
import fcntl
import json
import os
import py_compile
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import sweeps
from fixture_cases import ROOT
from fork_worker import Forked, WorkerRun, can_run_in_worker, is_forkable
from stream_lines import Line, parse_lines

# Like -I, -P keeps the working directory out of sys.path. It keeps PYTHONPATH, which tests of seeded
# faults need.
SHIM = [sys.executable, "-P", "-m", "shim"]
OURS = tuple(SHIM)
TIMEOUT_S = 30.0  # seconds; even on a busy machine no test takes so long unless something hangs

STREAM = ("--output-format", "stream-json", "--verbose")
ASK = ("-p", "hi", *STREAM)

# Events of the demo vendor, which has the smallest vocabulary.
START = {"type": "start", "session": "", "cwd": "/repo", "model": "m1", "tools": ["Read", "Bash"]}
END = {"type": "end"}


@cache
def build_stand_in_command(name: str) -> list[str]:
    """Return the command that runs a program of this folder. It is compiled once, because it is
    started several hundred times.
    """
    folder = tempfile.TemporaryDirectory(prefix="shim-tests-")
    atexit.register(folder.cleanup)
    compiled = f"{folder.name}/{name}.pyc"
    py_compile.compile(str(Path(__file__).with_name(f"{name}.py")), compiled, doraise=True)
    return [sys.executable, "-I", "-S", compiled]


def start_shim(
    args: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    closed: Sequence[int] = (),
    reuse: bool = False,
    **options: Any,
) -> "subprocess.Popen[bytes]":
    """Start `shim ARGS`: as a fork (`fork_worker`), or as a new interpreter if the options or the
    environment require it.

    `closed` are descriptors that are closed in the process. The other `options` are those of Popen.
    With `reuse`, it may run in a worker, a process that has run other commands before.
    """
    env = os.environ if env is None else env
    python = {name: value for name, value in env.items() if name.startswith("PYTHON")}
    plain = (
        all(os.environ.get(name) == value for name, value in python.items()) and tuple(SHIM) == OURS
    )
    if plain and not sweeps.full and reuse and not closed and can_run_in_worker(options):
        return WorkerRun(args, env=env, **options)
    if plain and not sweeps.full and is_forkable(options):
        return Forked(args, closed=closed, env=env, **options)
    command = [*SHIM, *args]
    if closed:
        command = [
            "/bin/sh",
            "-c",
            f"exec {shlex.join(command)} " + " ".join(f"{descriptor}>&-" for descriptor in closed),
        ]
    return subprocess.Popen(command, env=env, **options)


def run_shim(
    args: Sequence[str],
    *,
    stdin: bytes = b"",
    timeout_s: float = TIMEOUT_S,
    reuse: bool = True,
    **options: Any,
) -> "Done":
    """Run `shim ARGS` to its end, with the options of `start_shim`. Without `reuse` it has its own
    process.
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start_shim(args, reuse=reuse, **(pipes | options)) as process:
        try:
            stdout, stderr = process.communicate(stdin, timeout=timeout_s)
        finally:
            process.kill()
    return Done(process.returncode, stdout or b"", (stderr or b"").decode())


def build_text_event(text: str) -> Line:
    """Build an event with a fragment of the reply."""
    return {"type": "text", "text": text}


def format_ndjson(*events: Line) -> str:
    """Format events as a child prints them."""
    return "".join(json.dumps(event) + "\n" for event in events)


CONVERSE = ("--output-format", "stream-json", "--verbose", "--input-format", "stream-json")

# The stand-ins print these lines for `--version`: a tested version of each vendor, so that the promises
# of its profile hold.
VERSION_LINES = (
    *(
        "2.1.327 (Claude Code)",
        "codex-cli 0.169.0",
        "GitHub Copilot CLI 1.0.102.",
        "kimi, version 1.49.0",
    ),
    *(
        "acai 0.1.0",
        "amp 0.0.1790142911",
        "cake 0.1.0",
        "cline 3.0.65",
        "cursor-agent 2026.09.10",
        "droid 0.225.2",
    ),
    *("gemini 0.61.0", "kilo 7.7.9", "opencode 1.18.33", "pi 1.5.2", "qwen 0.24.4", "vibe 3.0.2"),
)
TELL_VERSION = (
    f"""if [ "$*" = --version ]; then printf '%s\\n' {shlex.join(VERSION_LINES)}; exit; fi\n"""
)


ANSWER = format_ndjson(START, build_text_event("Hello."), END)


class Lifeline:
    """A FIFO that a child and its descendants hold open. They write names to it, and it ends when
    the last of them has exited.
    """

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._buffer = b""
        self.pids: dict[str, int] = {}

    def close(self) -> None:
        """Close the FIFO, and kill the processes that still hold it."""
        if not self._wait_for_close(0):
            for pid in self.pids.values():
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass
        os.close(self._descriptor)

    def wait_for(self, name: str) -> int:
        """Wait until a process writes `name`. Return its process id."""
        while name not in self.pids:
            assert self._read_more(TIMEOUT_S), f"nobody said {name}"
        return self.pids[name]

    def wait_until_closed(self) -> bool:
        """Return whether all processes that hold the FIFO exit in time."""
        return self._wait_for_close(TIMEOUT_S)

    def wait_until_closed_or_unused(self) -> bool:
        """Do the same for a child that may have been stopped before it wrote anything."""
        with open(self.path, "wb", buffering=0):  # so that the FIFO has an end
            pass
        return self.wait_until_closed()

    def _wait_for_close(self, timeout_s: float) -> bool:
        while select.select([self._descriptor], [], [], timeout_s)[0]:
            if not self._read_more(0):
                return True
        return False

    def _read_more(self, timeout_s: float) -> bool:
        if not select.select([self._descriptor], [], [], timeout_s)[0]:
            return False
        chunk = os.read(self._descriptor, 4096)
        self._buffer += chunk
        for line in self._buffer.decode().splitlines():
            name, _, pid = line.partition(" ")
            self.pids[name] = int(pid or 0)
        return bool(chunk)


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    if isinstance(process, WorkerRun):
        process.kill_group()
    else:
        os.killpg(process.pid, signal.SIGKILL)


@dataclass(frozen=True)
class Done:
    """The result of a program that has exited."""

    status: int
    stdout: bytes
    stderr: str

    @property
    def lines(self) -> list[Line]:
        return parse_lines(self.stdout)

    @property
    def init(self) -> Line:
        (init_line,) = (line for line in self.lines if line.get("subtype") == "init")
        return init_line

    @property
    def result(self) -> Line:
        (result_line,) = (line for line in self.lines if line["type"] == "result")
        return result_line

    @property
    def cause(self) -> str:
        return str(self.result["shim"]["cause"])

    @property
    def terminator(self) -> Line | None:
        last = self.lines[-1]
        return None if last["type"] == "result" else last


class Gate:
    """A FIFO at which a fake child waits. `open` never blocks."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def open(self) -> None:
        """Let the fake child continue."""
        os.write(self._descriptor, b".")

    def close(self) -> None:
        os.close(self._descriptor)


class Running:
    """A running drop-in. Its process group is killed at the end of the test."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self._read = b""

    def read_until(self, expected: bytes, at_once: int = 65536) -> bytes:
        """Return stdout up to the chunk that contains `expected`. A chunk has at most `at_once`
        bytes.
        """
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        while expected not in self._read:
            assert select.select([descriptor], [], [], TIMEOUT_S)[0], (
                f"{expected!r} did not come: {self._read!r}"
            )
            chunk = os.read(descriptor, at_once)
            assert chunk, f"{expected!r} did not come before the end: {self._read!r}"
            self._read += chunk
        return self._read

    def read_line_containing(self, expected: bytes) -> Line:
        """Return the only line of stdout that contains `expected`, once it is complete."""
        output = self.read_until(expected)
        while not output.endswith(b"\n"):
            output = self.read_until(b"\n" + output.rpartition(b"\n")[2])
        (line,) = [line for line in output.splitlines() if expected in line]
        event: Line = json.loads(line)
        return event

    def read_on(self) -> bytes:
        """Return the next lines of stdout, and remove them from the collected output."""
        output, self._read = self.read_until(b"\n"), b""
        return output

    def send_lines(self, *events: Line | str) -> None:
        """Write lines to stdin."""
        assert self.process.stdin is not None
        for event in events:
            line = event if isinstance(event, str) else json.dumps(event)
            self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def wait_until_read(self) -> None:
        """Wait until the drop-in has read everything that was written to its stdin."""
        assert self.process.stdin is not None
        waiting = bytearray(4)
        for _ in range(int(TIMEOUT_S / 0.01)):
            fcntl.ioctl(self.process.stdin.fileno(), termios.FIONREAD, waiting)
            if not any(waiting):
                return
            select.select([], [], [], 0.01)
        raise AssertionError("it does not read its stdin")

    def end_input(self) -> Done:
        """Close stdin, and read the output to its end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None
        return self.wait_for_end()

    def send_signal(self, number: int) -> None:
        """Send a signal to the drop-in alone."""
        self.process.send_signal(number)

    def wait_for_status(self) -> int:
        """Return the exit status without reading stdout."""
        return self.process.wait(timeout=TIMEOUT_S)

    def wait_for_end(self) -> Done:
        """Read the output to its end, and return the result."""
        stdout, stderr = self.process.communicate(timeout=TIMEOUT_S)
        return Done(self.process.returncode, self._read + (stdout or b""), (stderr or b"").decode())


class Box:
    """A temporary directory with a home, a state folder, a working directory and a folder of
    programs.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.home, self.cwd, self.bin = path / "home", path / "work", path / "bin"
        self.state = self.home / ".local" / "state" / "shim"
        self.config = self.home / ".config" / "shim" / "config.toml"
        for folder in (self.home, self.cwd, self.bin):
            folder.mkdir()
        self._lifelines: list[Lifeline] = []
        self._gates: list[Gate] = []
        self._count = 0

    def close(self) -> None:
        """Close all lifelines and gates."""
        for opened in (*self._lifelines, *self._gates):
            opened.close()

    def build_environment(self, **extra: str | None) -> dict[str, str]:
        """Return an environment whose paths are inside the box. A value of None removes a variable."""
        base = {
            "HOME": str(self.home),
            "XDG_CONFIG_HOME": str(self.home / ".config"),
            "SHIM_STATE": str(self.state),
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "LANG": "C.UTF-8",
        }
        if "PYTHONPATH" in os.environ:
            base["PYTHONPATH"] = os.environ["PYTHONPATH"]
        return {name: value for name, value in (base | extra).items() if value is not None}

    def write_settings(self, toml: str) -> None:
        """Write config.toml."""
        self.config.parent.mkdir(parents=True, exist_ok=True)
        self.config.write_text(toml, encoding="utf-8")

    def write_program(self, name: str, script: str, *, folder: Path | None = None) -> str:
        """Write an executable shell script into the box's PATH. Return its path."""
        path = (folder or self.bin) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n" + script, encoding="utf-8")
        path.chmod(0o755)
        return str(path)

    def create_fixture_printer(self, name: str, case: str) -> str:
        """Create a program that prints the bytes of a fixture for any input. Return its path."""
        return self.write_program(
            name, f"{TELL_VERSION}exec cat {ROOT / 'fixtures' / case / 'vendor.ndjson'}\n"
        )

    def create_fake(self, *steps: Sequence[Any], name: str | None = None) -> str:
        """Create a program that runs `steps` (see fake_child.py), with a given name or its own.
        Return its path.
        """
        self._count += 1
        plan = self.path / f"plan{self._count}"
        plan.write_text(
            repr(json.loads(json.dumps(steps))), encoding="ascii", errors="backslashreplace"
        )
        script = (
            f'{TELL_VERSION}exec {" ".join(build_stand_in_command("fake_child"))} {plan} "$@"\n'
        )
        return self.write_program(name or f"fake{self._count}", script)

    def create_fake_sequence(self, *plans: Sequence[Sequence[Any]], name: str | None = None) -> str:
        """Create a program that runs the next plan at each start, finally always the last one.
        Return its path.
        """
        self._count += 1
        counter = self.path / f"started{self._count}"
        counter.mkdir()
        paths = " ".join(self.create_fake(*steps) for steps in plans)
        script = f"""{TELL_VERSION}
            set -- {paths} -- "$@"
            for was in {counter}/*; do [ -e "$was" ] && [ "$2" != -- ] && shift; done
            touch {counter}/$$
            program=$1
            while [ "$1" != -- ]; do shift; done
            shift
            exec "$program" "$@"
        """
        return self.write_program(name or f"fakes{self._count}", script)

    def create_demo_program(self, pace: float = 0.0) -> str:
        """Create the program of the demo vendor, and return its path. Its pauses, three seconds in
        total, are multiplied by `pace`.
        """
        play = "from shim.commands.turn import demo_child as it"
        code = f"{play}; it.TOKEN_PAUSE_S *= {pace}; it.REPLY_PAUSE_S *= {pace}; it.main()"
        return self.write_program("demo-child", f'exec {sys.executable} -P -c "{code}" "$@"\n')

    def create_gate(self) -> Gate:
        self._gates.append(Gate(self.path / f"gate{len(self._gates)}"))
        return self._gates[-1]

    def create_lifeline(self) -> Lifeline:
        self._lifelines.append(Lifeline(self.path / f"lifeline{len(self._lifelines)}"))
        return self._lifelines[-1]

    def read_record(self) -> dict[str, Any]:
        """Return what a fake child has recorded in the file `recording`."""
        record: dict[str, Any] = json.loads(self.recording.read_text(encoding="utf-8"))
        return record

    @property
    def recording(self) -> Path:
        return self.path / "recording.json"

    def run_shim(
        self, *args: str, environment: Mapping[str, str] | None = None, stdin: bytes = b""
    ) -> Done:
        """Run `shim ARGS` to its end."""
        environment = self.build_environment() if environment is None else environment
        return run_shim(args, stdin=stdin, env=environment, cwd=self.cwd)

    def run_claude(self, *args: str, stdin: bytes = b"", **environment: str | None) -> Done:
        """Run `shim claude ARGS` to its end."""
        return self.run_shim(
            "claude", *args, environment=self.build_environment(**environment), stdin=stdin
        )

    def start_conversation(
        self,
        child: str,
        *flags: str,
        vendor: str,
        stdout: int | None = None,
        **environment: str | None,
    ) -> AbstractContextManager[Any]:
        """Start a conversation with a vendor's program. Without `stdout`, all output of the drop-in
        can be read.
        """
        environment = {"SHIM_VENDOR": vendor, "SHIM_BIN": child} | environment
        options = {} if stdout is None else {"stdout": stdout}
        return self.start_claude(
            *CONVERSE, *flags, stdin=subprocess.PIPE, environment=environment, **options
        )

    @contextmanager
    def start_claude(self, *args: str, **options: Any) -> Iterator[Running]:
        """Run `shim claude ARGS` as a context. The options are those of Popen and
        `build_environment`; `door` is another entry point than `claude`.

        With `reuse=False` it has its own process.
        """
        environment = self.build_environment(**options.pop("environment", {}))
        command = options.pop("door", "claude")
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        options = {"cwd": self.cwd, "start_new_session": True, "reuse": True} | pipes | options
        process = start_shim([command, *args], env=environment, **options)
        try:
            yield Running(process)
        finally:
            with suppress(OSError):
                _kill_group(process)
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
