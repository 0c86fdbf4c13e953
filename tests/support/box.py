"""What the tests of the shell share: a box with a home of its own, stand-ins for vendors, and the
drop-in in it.
"""

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
from fork_worker import Forked, WorkerRun, can_run_in_worker, is_forkable
from support import ROOT, Line, parse_lines

# -P keeps the working directory off sys.path, as -I does, and leaves PYTHONPATH to whoever breaks a
# copy of the code.
SHIM = [sys.executable, "-P", "-m", "shim"]
OURS = tuple(SHIM)
PATIENCE = 30.0  # no test takes so long unless something hangs, however busy the machine is

STREAM = ("--output-format", "stream-json", "--verbose")
ASK = ("-p", "hi", *STREAM)

# A session of the demo vendor, the smallest vocabulary there is.
START = {"type": "start", "session": "", "cwd": "/repo", "model": "m1", "tools": ["Read", "Bash"]}
END = {"type": "end"}


@cache
def build_stand_in_command(name: str) -> list[str]:
    """The command that runs a program of this folder, compiled once: it is started some hundred
    times.
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
    """`shim WORDS` as a process: a fork (`fork_worker`), or a real start where the interpreter is given
    something too.

    `closed` are descriptors that it does not have; it has all others from `options`, which are
    Popen's. With `reuse` it may run in a worker, a process that has run other commands before.
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
    timeout_s: float = PATIENCE,
    reuse: bool = True,
    **options: Any,
) -> "Done":
    """Run `shim WORDS` to its end, with options of `start_shim`. Without `reuse` it has its own
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
    """A piece of the reply."""
    return {"type": "text", "text": text}


def format_ndjson(*events: Line) -> str:
    """Events as a child prints them."""
    return "".join(json.dumps(event) + "\n" for event in events)


CONVERSE = ("--output-format", "stream-json", "--verbose", "--input-format", "stream-json")

# What the stand-ins print for `--version`: the line of each vendor's tested version, so that its
# promises hold.
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
    """A FIFO held open by a child and its children: their words come through it, its end is their
    end.
    """

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._buffer = b""
        self.pids: dict[str, int] = {}

    def close(self) -> None:
        """Let go of it; whoever is left is ended."""
        if not self._wait_for_close(0):
            for pid in self.pids.values():
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass
        os.close(self._descriptor)

    def wait_for(self, name: str) -> int:
        """The pid of the process that says `name`."""
        while name not in self.pids:
            assert self._read_more(PATIENCE), f"nobody said {name}"
        return self.pids[name]

    def wait_until_closed(self) -> bool:
        """Whether all who held it end, without being given up on."""
        return self._wait_for_close(PATIENCE)

    def wait_until_closed_or_unused(self) -> bool:
        """The same for a child that may have been ended before it said a word."""
        with open(self.path, "wb", buffering=0):  # so that there is an end to come
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
    """A program that ended."""

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
    """A FIFO that a fake child waits at; opening it never blocks, whether or not somebody is there."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def open(self) -> None:
        """Let the fake child go on."""
        os.write(self._descriptor, b".")

    def close(self) -> None:
        """Take it away."""
        os.close(self._descriptor)


class Running:
    """The drop-in while it runs; its group ends with the test."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self._read = b""

    def read_until(self, expected: bytes, at_once: int = 65536) -> bytes:
        """Its stdout up to the chunk that has `expected`; `at_once` are the most bytes of a chunk."""
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        while expected not in self._read:
            assert select.select([descriptor], [], [], PATIENCE)[0], (
                f"{expected!r} did not come: {self._read!r}"
            )
            chunk = os.read(descriptor, at_once)
            assert chunk, f"{expected!r} did not come before the end: {self._read!r}"
            self._read += chunk
        return self._read

    def read_line_containing(self, expected: bytes) -> Line:
        """The one line of its stdout that has `expected`, once it is whole."""
        output = self.read_until(expected)
        while not output.endswith(b"\n"):
            output = self.read_until(b"\n" + output.rpartition(b"\n")[2])
        (line,) = [line for line in output.splitlines() if expected in line]
        event: Line = json.loads(line)
        return event

    def read_on(self) -> bytes:
        """The next lines of its stdout, which are then forgotten."""
        output, self._read = self.read_until(b"\n"), b""
        return output

    def send_lines(self, *events: Line | str) -> None:
        """Lines on its stdin."""
        assert self.process.stdin is not None
        for event in events:
            line = event if isinstance(event, str) else json.dumps(event)
            self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def wait_until_read(self) -> None:
        """Until it has read all that was said to it."""
        assert self.process.stdin is not None
        waiting = bytearray(4)
        for _ in range(int(PATIENCE / 0.01)):
            fcntl.ioctl(self.process.stdin.fileno(), termios.FIONREAD, waiting)
            if not any(waiting):
                return
            select.select([], [], [], 0.01)
        raise AssertionError("it does not read its stdin")

    def end_input(self) -> Done:
        """Close its stdin and read it to its end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None
        return self.wait_for_end()

    def send_signal(self, number: int) -> None:
        """Send it a signal, to it alone."""
        self.process.send_signal(number)

    def wait_for_status(self) -> int:
        """Its exit status, while nobody reads its stdout."""
        return self.process.wait(timeout=PATIENCE)

    def wait_for_end(self) -> Done:
        """Read it to its end."""
        stdout, stderr = self.process.communicate(timeout=PATIENCE)
        return Done(self.process.returncode, self._read + (stdout or b""), (stderr or b"").decode())


class Box:
    """A home, a state folder, a working directory and a folder of programs, all in one temporary
    directory.
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
        """End what is left."""
        for opened in (*self._lifelines, *self._gates):
            opened.close()

    def build_environment(self, **extra: str | None) -> dict[str, str]:
        """An environment that leads nowhere outside of the box; None takes a name out."""
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
        """An executable shell script on the box's PATH; its path."""
        path = (folder or self.bin) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n" + script, encoding="utf-8")
        path.chmod(0o755)
        return str(path)

    def create_fixture_printer(self, name: str, case: str) -> str:
        """A program that prints a fixture's bytes, whatever it is asked; its path."""
        return self.write_program(
            name, f"{TELL_VERSION}exec cat {ROOT / 'fixtures' / case / 'vendor.ndjson'}\n"
        )

    def create_fake(self, *steps: Sequence[Any], name: str | None = None) -> str:
        """A program that does `steps` (fake_child.py), under a name on PATH or its own; its path."""
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
        """A program that does another plan each time it is started, the last one from then on; its
        path.
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
        """The program of the demo vendor, whose pauses, three seconds in all, are `pace` of what
        they are; its path.
        """
        play = "from shim.commands.turn import demo_child as it"
        code = f"{play}; it.TOKEN_PAUSE_S *= {pace}; it.REPLY_PAUSE_S *= {pace}; it.main()"
        return self.write_program("demo-child", f'exec {sys.executable} -P -c "{code}" "$@"\n')

    def create_gate(self) -> Gate:
        """A new gate."""
        self._gates.append(Gate(self.path / f"gate{len(self._gates)}"))
        return self._gates[-1]

    def create_lifeline(self) -> Lifeline:
        """A new FIFO."""
        self._lifelines.append(Lifeline(self.path / f"lifeline{len(self._lifelines)}"))
        return self._lifelines[-1]

    def read_record(self) -> dict[str, Any]:
        """What a fake child recorded under `recording`."""
        record: dict[str, Any] = json.loads(self.recording.read_text(encoding="utf-8"))
        return record

    @property
    def recording(self) -> Path:
        return self.path / "recording.json"

    def run_shim(
        self, *args: str, environment: Mapping[str, str] | None = None, stdin: bytes = b""
    ) -> Done:
        """`shim ARGUMENTS`, to its end."""
        environment = self.build_environment() if environment is None else environment
        return run_shim(args, stdin=stdin, env=environment, cwd=self.cwd)

    def run_claude(self, *args: str, stdin: bytes = b"", **environment: str | None) -> Done:
        """`shim claude ARGUMENTS`, to its end."""
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
        """Start a conversation with a vendor's program. Without `stdout` all output of the drop-in
        can be read.
        """
        environment = {"SHIM_VENDOR": vendor, "SHIM_BIN": child} | environment
        options = {} if stdout is None else {"stdout": stdout}
        return self.start_claude(
            *CONVERSE, *flags, stdin=subprocess.PIPE, environment=environment, **options
        )

    @contextmanager
    def start_claude(self, *args: str, **options: Any) -> Iterator[Running]:
        """`shim claude ARGUMENTS` while it runs; options of Popen, `build_environment`, and another
        `door` than claude.

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
