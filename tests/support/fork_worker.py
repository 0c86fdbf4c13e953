"""Runs the drop-in without the time for a start, as a fork of a process that has already imported
everything.

Python and the imports take most of the time of a test of a process. A server, one for each pytest
process, imports the package and waits. For each start it forks, and the fork runs
`shim.__main__.main` with the arguments, the environment, the working directory and the descriptors
of the request. The fork is a child of pytest (CLONE_PARENT), so it is waited for and signalled like
any other child. A stand-in that is started several hundred times has its own server, which has not
imported the shim; its forks run that program.

Most runs (`box.run_shim`, `Box.start_claude`) need no fork of their own. A `Worker`, which is such
a fork, runs one command after the other. After each command it restores everything that the command
changed in the process (`process_snapshot`). If a command leaves something that only the end of a
process removes, such as a thread or a child, the worker exits, and the next run gets a new worker.

Tests of the start itself, or of the interpreter, use `subprocess` (`Box.exec`). `make full` does so
everywhere.

Hosts of background sessions are forked too (`use_forked_hosts`): by the server if a test starts the
host, and by the drop-in itself if a forked drop-in starts it. Tests of the start of a host use the
fixture `real_hosts`.
"""

import asyncio
import atexit
import contextvars
import ctypes
import fcntl
import gc
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import pkgutil
import platform
import runpy
import signal
import socket
import subprocess
import sys
import termios
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

MAX_FILES = 5  # descriptors of a fork: stdin, stdout, stderr, and the lock and the socket of a host
# A worker receives its runs from a socket, whose descriptor is above those of a command and below
# the usual limit.
MIN_LINK_FD = 900
OPEN_FILES = 4096  # descriptors that may be open when a fork starts its program
HOST_BLOCKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # until a host handles them
CLONE_PARENT = 0x8000
SYS_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
# How each standard stream of this interpreter handles encoding errors; a command may close or
# replace the streams.
STREAM_ERRORS = tuple(stream and stream.errors for stream in (sys.stdin, sys.stdout, sys.stderr))
possible = sys.platform == "linux" and SYS_CLONE is not None
# Modules that a command or a library only imports when it runs. Some versions of the libraries do not
# have all of them.
EXTRAS = (
    "anyio._backends._asyncio", "anyio._core._signals",
    "pydantic.plugin._loader", "typer._adapters", "typer._click.decorators", "typer.rich_utils",
    "rich._emoji_codes", "rich.console", "rich.live", "rich.markdown", "rich.table",
)  # fmt: skip


class ForkRequest(NamedTuple):
    """The program that a fork runs, with its arguments, environment and descriptors."""

    args: tuple[str, ...]
    environment: Mapping[str, str]
    cwd: str
    new_session: bool = False
    terminal: bool = False  # stdin is the terminal of the new session
    closed: tuple[int, ...] = ()  # descriptors that are closed
    module: str = ""  # the module to run instead of the drop-in, or the path of a program


class ReplacedStart(subprocess.Popen[bytes]):
    """A `Popen` that does not start its command itself. A subclass implements `_start_command`."""

    def _execute_child(self, args: Sequence[str], *remaining_args: Any) -> None:
        names = (
            inspect.signature(subprocess.Popen._execute_child)
            .bind(self, args, *remaining_args)
            .arguments
        )  # type: ignore[attr-defined]
        request = ForkRequest(
            args=tuple(args),
            environment=dict(os.environ if names["env"] is None else names["env"]),
            cwd=os.fspath(names["cwd"] or os.getcwd()),
            new_session=bool(names["start_new_session"]),
            terminal=names["preexec_fn"] is acquire_terminal,
        )
        files = [names[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        self.pid = self._start_command(
            request, [number if file == -1 else file for number, file in enumerate(files)]
        )
        self._child_created = True
        pipes = [
            names[name]
            for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        ]
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _start_command(self, request: ForkRequest, files: Sequence[int]) -> int:
        """Start the command with these standard files, and return its pid."""
        raise NotImplementedError


class Forked(ReplacedStart):
    """`shim ARGS` as a child of this process, with the options of `Popen`. Descriptors in `closed`
    are closed.

    `program` is a compiled stand-in (`box.build_stand_in_command`) that is run instead of the shim.
    """

    def __init__(
        self, args: Sequence[str], *, program: str = "", closed: Sequence[int] = (), **options: Any
    ) -> None:
        self._program = program
        self._closed = tuple(closed)
        super().__init__(args, **options)

    def _start_command(self, request: ForkRequest, files: Sequence[int]) -> int:
        return get_server(self._program).fork_process(request._replace(closed=self._closed), files)


def _send_request(channel: socket.socket, request: ForkRequest, files: Sequence[int]) -> None:
    data = repr(tuple(request)).encode()
    socket.send_fds(channel, [len(data).to_bytes(8, "big")], files)
    channel.sendall(data)


def _receive_request(channel: socket.socket) -> tuple[ForkRequest, list[int]] | None:
    """Return the next request and its descriptors, or None after the last request."""
    header, files, *_ = socket.recv_fds(channel, 8, MAX_FILES)
    if not header:
        return None
    size = int.from_bytes(header, "big")
    data = b""
    while len(data) < size:
        data += channel.recv(size - len(data))
    return ForkRequest(*eval(data)), files


class Server:
    """The process that forks. Its forks run `program`, or the shim without a `program`."""

    def __init__(self, program: str) -> None:
        ours, theirs = socket.socketpair()
        self._socket = ours
        self._asking = threading.Lock()  # some tests start several runs from their threads
        self.process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno()), program],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env={**os.environ, "LANG": "C.UTF-8"},
        )  # fmt: skip
        theirs.close()

    def fork_process(self, request: ForkRequest, files: Sequence[int]) -> int:
        """Start a fork. Return its process id."""
        with self._asking:
            _send_request(self._socket, request, files)
            pid_bytes = self._socket.recv(8)
        assert pid_bytes, "the server of forks has ended"
        return int.from_bytes(pid_bytes, "big")


# -- workers ---------------------------------------------------------------------------------------


class WorkerRun(ReplacedStart):
    """A run of `shim ARGS` in a worker, used like a `Popen`: the end of the run looks like the end
    of a process.
    """

    _worker: "Worker"

    def __init__(self, args: Sequence[str], *, module: str = "", **options: Any) -> None:
        """Start the run; `module` is the path of a program to run instead of the shim."""
        self._module = module
        super().__init__(args, **options)

    def _start_command(self, request: ForkRequest, files: Sequence[int]) -> int:
        self._worker = start_in_worker(request._replace(module=self._module), files)
        return self._worker.pid

    def kill_group(self) -> None:
        """Kill the run and its process group, unless the run has ended and its worker serves other
        runs.
        """
        if self.poll() is None or self._worker.has_exited:
            os.killpg(self.pid, signal.SIGKILL)

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None:
            self.returncode = self._worker.wait_for_status(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            self.returncode = self._worker.wait_for_status(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode


class Worker:
    """A fork of the server that runs one command after the other; with `new_session` it has its own
    session.
    """

    def __init__(self, new_session: bool) -> None:
        self._new_session = new_session
        self.has_exited = False
        self._channel, theirs = socket.socketpair()
        null = os.open(os.devnull, os.O_RDWR)
        try:
            request = ForkRequest((), {}, "/", new_session=new_session, module=WORKER)
            self.pid = get_server("").fork_process(request, [null, null, null, theirs.fileno()])
        finally:
            os.close(null)
            theirs.close()
        _protect_pid(self.pid)

    def start_run(self, request: ForkRequest, files: Sequence[int]) -> bool:
        """Start a run. Return False if the worker has exited, for example because a signal arrived
        late.
        """
        try:
            _send_request(self._channel, request, files)
            if self._channel.recv(1):
                return True
        except OSError:
            pass
        self._wait_for_exit()
        return False

    def wait_for_status(self, timeout: float | None) -> int | None:
        """Return the exit status of the run, or None if the run has not ended after `timeout`
        seconds.
        """
        self._channel.settimeout(timeout)
        try:
            status = self._channel.recv(1)
        except (BlockingIOError, TimeoutError):
            return None
        except ConnectionError:
            status = b""
        finally:
            self._channel.settimeout(None)
        if not status:
            return self._wait_for_exit()
        idle_workers[self._new_session].append(self)
        return status[0]

    def _wait_for_exit(self) -> int:
        """Wait for the exit of the worker, and return its exit status."""
        self.has_exited = True
        self._channel.close()
        protected_pids.discard(self.pid)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def start_in_worker(request: ForkRequest, files: Sequence[int]) -> Worker:
    """Start a run in an idle worker, or in a new one, and return the worker."""
    idle = idle_workers[request.new_session]
    while idle:
        worker = idle.pop()
        if worker.start_run(request, files):
            return worker
    worker = Worker(request.new_session)
    assert worker.start_run(request, files), "a new worker has ended"
    return worker


# key: whether the workers have their own session
idle_workers: dict[bool, list[Worker]] = {False: [], True: []}
_servers: dict[str, Server] = {}
_starting = threading.Lock()
protected_pids: set[int] = set()  # servers and workers


def get_server(program: str) -> Server:
    """Return the server of this process for a program. A new one is started if the old one has
    exited.
    """
    with _starting:
        if program not in _servers or _servers[program].process.poll() is not None:
            _servers[program] = Server(program)
            _protect_pid(_servers[program].process.pid)
        return _servers[program]


def _protect_pid(pid: int) -> None:
    """Protect a server or a worker from tests that kill all descendants of this process."""
    from shim.process import descendants

    if not protected_pids:
        find_all = descendants.find_descendant_start_times
        descendants.find_descendant_start_times = lambda root, excluded_pids=(): find_all(
            root, {*excluded_pids, *protected_pids}
        )
    protected_pids.add(pid)


def is_forkable(options: Mapping[str, Any]) -> bool:
    """Return whether a process with these options of `Popen` can be a fork."""
    supported_options = {
        "env",
        "cwd",
        "stdin",
        "stdout",
        "stderr",
        "start_new_session",
        "preexec_fn",
        "text",
    }
    return (
        possible
        and supported_options.issuperset(options)
        and options.get("preexec_fn") in (None, acquire_terminal)
    )


def can_run_in_worker(options: Mapping[str, Any]) -> bool:
    """Return whether a run with these options of `Popen` can use a worker."""
    return possible and {"env", "cwd", "stdin", "stdout", "stderr", "start_new_session"}.issuperset(
        options
    )


def acquire_terminal() -> None:
    """Make the terminal on stdin the controlling terminal of the new session. This is a
    `preexec_fn` of `Popen`.
    """
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


# -- hosts of background sessions ------------------------------------------------------------------

# Starts a host with these descriptors, and returns its process id.
Fork = Callable[[ForkRequest, Sequence[int]], int]


def use_forked_hosts(fork: Fork | None = None) -> None:
    """Make `shim.bridge.launch` fork hosts instead of starting them: with `fork`, or with the
    server if it is None.
    """
    from shim.bridge import launch, registry

    def spawn_host(
        folder: str,
        host_lock: Any,
        listening: socket.socket,
        environment: Mapping[str, str],
        stdin: int,
    ) -> int:
        can_fork = _can_fork_host(environment) and launch.build_host_command is command
        if not can_fork or (fork and threading.active_count() > 1):
            return spawn_really(folder, host_lock, listening, environment, stdin)
        log = launch._open_stderr_file(os.path.join(folder, registry.STDERR_FILE))
        request = ForkRequest(
            (folder, "3", "4"), dict(environment), os.getcwd(), new_session=True, module=HOST
        )
        try:
            return (fork or get_server("").fork_process)(
                request, [stdin, log, log, host_lock, listening.fileno()]
            )
        finally:
            os.close(log)

    command = launch.build_host_command  # a test that replaces it starts another program
    spawn_really, launch._spawn_host = launch._spawn_host, spawn_host
    spawn_host.really = spawn_really  # type: ignore[attr-defined]


def _can_fork_host(environment: Mapping[str, str]) -> bool:
    """Return whether a fork can replace this host: with the same interpreter, and without a running
    event loop.
    """
    python = {name: value for name, value in environment.items() if name.startswith("PYTHON")}
    is_same_python = all(os.environ.get(name) == value for name, value in python.items())
    return is_same_python and possible and asyncio._get_running_loop() is None


def _fork_here(request: ForkRequest, files: Sequence[int]) -> int:
    """Fork this process, which is a fork itself, so that the host has the same parent as if it were
    started.
    """
    from shim.io import signals

    every = signal.valid_signals()
    before = signal.pthread_sigmask(signal.SIG_SETMASK, every)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return pid
    status = 1
    try:
        atexit._clear()
        signals.received_signals.clear()
        signal.set_wakeup_fd(-1)
        for number in every:
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        become = _apply_request(request, files)
        signal.pthread_sigmask(signal.SIG_SETMASK, HOST_BLOCKED if request.module == HOST else ())
        status = contextvars.Context().run(_run_request, become)
    finally:
        _exit_process(status)
    raise AssertionError


# -- programs of the shim that a fork starts -------------------------------------------------------

# Modules that the drop-in starts with `python -m MODULE`: `shim run` and `shim replay --check` start the
# drop-in, which starts the programs of the vendor demo and of a recording.
HOST = "shim.bridge.host"
WORKER = "worker"  # not a module: the fork becomes a worker
RUNNABLE = ("shim", "shim.commands.turn.demo_child", "shim.recording.player")


class ForkedHere(ReplacedStart):
    """A child that is a fork of this process, which is a fork itself. Other programs are started as
    usual.
    """

    def __init__(self, args: Sequence[str], **options: Any) -> None:
        environment = options.get("env")
        self._is_fork = _is_runnable(args, os.environ if environment is None else environment)
        super().__init__(args, **options)

    def _execute_child(self, args: Sequence[str], *remaining_args: Any) -> None:
        if self._is_fork:
            super()._execute_child(args, *remaining_args)
        else:
            subprocess.Popen._execute_child(self, args, *remaining_args)  # type: ignore[attr-defined]

    def _start_command(self, request: ForkRequest, files: Sequence[int]) -> int:
        return _fork_here(request._replace(args=request.args[4:], module=request.args[3]), files)


def _is_runnable(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return whether a command starts a program of the shim in this Python that a fork of this
    process can replace.

    Only the main thread forks. The other threads are waiting then, and hold no lock that the fork
    needs.
    """
    ours = (
        len(command) > 3
        and command[0] == sys.executable
        and command[1:3] == ["-I", "-m"]
        and command[3] in RUNNABLE
    )
    python = {name: value for name, value in environment.items() if name.startswith("PYTHON")}
    is_same_python = all(os.environ.get(name) == value for name, value in python.items())
    return ours and is_same_python and threading.current_thread() is threading.main_thread()


def _use_forks_here() -> None:
    """Fork the shim's programs that this process starts."""
    from shim.commands.cast import check
    from shim.commands.turn import live_turn
    from shim.process import spawn

    substitute = types.SimpleNamespace(**{**vars(subprocess), "Popen": ForkedHere})
    for module in (check, live_turn):
        module.subprocess = substitute  # type: ignore[attr-defined, assignment]
    for name in ("_start_by_posix_spawn", "_start_by_subprocess"):
        setattr(spawn, name, _wrap_start(getattr(spawn, name)))


def _wrap_start(start: Callable[..., Any]) -> Callable[..., Any]:
    """Return a start function of `spawn_host` that forks the shim's programs."""

    def start_forked(
        command: Sequence[str], environment: Mapping[str, str], cwd: str, *, opens_stdin: bool
    ) -> Any:
        if not _is_runnable(command, environment):
            return start(command, environment, cwd, opens_stdin=opens_stdin)
        return ForkedHere(
            list(command),
            stdin=subprocess.PIPE if opens_stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            cwd=cwd,
            start_new_session=True,
        )

    return start_forked


# -- the server ------------------------------------------------------------------------------------


def serve_forks(descriptor: int, prepare: Callable[[], None]) -> ForkRequest:
    """Fork for each request. Return the request in each fork."""
    prepare()
    gc.collect()
    gc.freeze()
    # asyncio calls this function six times per turn, which takes 1 ms.
    signal.valid_signals = cache(signal.valid_signals)
    channel = socket.socket(fileno=descriptor)
    while received := _receive_request(channel):
        request, files = received
        before = signal.pthread_sigmask(
            signal.SIG_BLOCK, HOST_BLOCKED if request.module == HOST else ()
        )
        pid = _clone_process()
        if not pid:
            channel.close()
            return _apply_request(request, files)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        channel.sendall(pid.to_bytes(8, "big"))
        for file in files:
            os.close(file)
    os._exit(0)


def _prepare_shim() -> None:
    """Import everything that a command may import, so that no fork has to."""
    import _posixsubprocess  # noqa: F401 - the first child of each fork would import it

    import shim

    for module in pkgutil.walk_packages(shim.__path__, "shim."):
        _import_module(module.name)
    for name in EXTRAS:
        _import_module(name)
    from shim.core.api_errors import classify_api_error

    classify_api_error("")  # so that no fork compiles its patterns
    _preload_host_modules()
    import typer

    from shim.commands.cli import app

    made = typer.main.get_command(app)
    typer.main.get_command = lambda typer_app: made  # nor builds the parser of all commands
    use_forked_hosts(_fork_here)
    _use_forks_here()


def _preload_host_modules() -> None:
    """Import and parse what each host loads at its start. This is most of the time that a forked
    host needs.
    """
    from shim import adapters
    from shim.conversation.preload import LAZY_MODULES
    from shim.profiles.load import profile_file
    from shim.state import profile_files

    for name in LAZY_MODULES:
        _import_module(name)
    profile_file.parse_profile_toml = profile_files.parse_profile_toml = cache(
        profile_file.parse_profile_toml
    )
    for file_name in map(adapters.VENDORS.__getitem__, adapters.BUNDLED_PROFILES):
        path = os.path.join(os.path.dirname(str(adapters.__file__)), file_name)
        profile_files.parse_profile_toml(profile_files._read_profile(path), path)


def _prepare_stand_in() -> None:
    import json  # noqa: F401 - takes most of the start of a stand-in
    import select  # noqa: F401


def _import_module(name: str) -> None:
    try:
        importlib.import_module(name)
    except ImportError:  # a module of an extra that is not installed
        pass


def _clone_process() -> int:
    """Fork this process so that the new process is its sibling. Return the process id, 0 in the new
    process.
    """
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    pid: int = ctypes.PyDLL(None).syscall(SYS_CLONE, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    (python.PyOS_AfterFork_Parent if pid else python.PyOS_AfterFork_Child)()
    return pid


def _apply_request(
    request: ForkRequest, files: Sequence[int], channel_fd: int = OPEN_FILES
) -> ForkRequest:
    """Set up a fork for its request. All other descriptors are closed, except `channel_fd`."""
    # Duplicate the descriptors first, so that none overwrites another one.
    duplicates = [fcntl.fcntl(file, fcntl.F_DUPFD, MAX_FILES) for file in files]
    for number, file in enumerate(duplicates):
        os.dup2(file, number)
    os.closerange(len(files), channel_fd)
    os.closerange(channel_fd + 1, OPEN_FILES)
    if request.new_session:
        os.setsid()
    if request.terminal:
        acquire_terminal()
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.environment)
    for descriptor in request.closed:
        os.close(descriptor)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        stream = None
        if number not in request.closed:
            stream = open(  # noqa: SIM115
                number, mode, encoding="utf-8", errors=STREAM_ERRORS[number], closefd=False
            )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    return request


def _run_shim() -> None:
    """Run `python -m shim`."""
    from shim.__main__ import main

    main()


def _run_host() -> None:
    """Run `python -m shim.bridge.host`."""
    from shim.bridge.host.__main__ import main

    sys.exit(main(sys.argv[1:]))


def _run_program(main: Callable[[], None], program: str, args: Sequence[str]) -> int:
    """Run a program as the interpreter does. Return its exit status."""
    sys.argv = [program, *args]
    try:
        main()
    except SystemExit as system_exit:
        if system_exit.code is None or isinstance(system_exit.code, int):
            return system_exit.code or 0
        sys.stderr.write(f"{system_exit.code}\n")
        return 1
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


def _exit_process(status: int) -> None:
    """Exit as the interpreter does, but without destroying all objects."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    os._exit(_flush_output(status))


def _flush_output(status: int) -> int:
    """Flush stdout and stderr. Return `status`, or 120 if this fails, as the interpreter does."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            status = 120
    return status


def _run_request(request: ForkRequest) -> int:
    """Run the drop-in, a host or another program of the shim. Return its exit status."""
    if request.module == WORKER:
        return _serve_runs()
    if request.module == HOST:
        return _run_program(_run_host, str(sys.modules[f"{HOST}.__main__"].__file__), request.args)
    if request.module in ("", "shim"):
        return _run_program(_run_shim, str(sys.modules["shim.__main__"].__file__), request.args)
    if request.module.endswith(".py"):
        return _run_program(
            lambda: runpy.run_path(request.module, run_name="__main__"),
            request.module,
            request.args,
        )
    specification = importlib.util.find_spec(request.module)
    assert specification is not None and isinstance(
        specification.loader, importlib.machinery.SourceFileLoader
    )
    program = str(specification.origin)
    code = specification.loader.get_code(request.module)
    assert code is not None
    return _run_program(
        lambda: exec(code, {"__name__": "__main__", "__file__": program}),
        program,
        request.args,
    )


def _serve_runs() -> int:
    """Run one command after the other. Return the exit status of the last one if this process
    cannot be restored.
    """
    sys.path.insert(0, os.path.dirname(__file__))
    from process_snapshot import ProcessSnapshot

    del sys.path[0]
    channel = socket.socket(fileno=fcntl.fcntl(3, fcntl.F_DUPFD_CLOEXEC, MIN_LINK_FD))
    snapshot = ProcessSnapshot(channel.fileno(), OPEN_FILES)
    while received := _receive_request(channel):
        channel.sendall(b"+")
        request = received[0]._replace(new_session=False)  # the worker has its session already
        _apply_request(request, received[1], channel.fileno())
        snapshot.restore_signals()
        status = contextvars.Context().run(_run_request, request)
        if not snapshot.can_restore():
            return status
        status = _flush_output(status)
        snapshot.restore()
        channel.sendall(bytes([status & 255]))
    return 0


def _run_server(descriptor: int, program: str) -> int:
    """Serve forks of a program. Return the exit status in each fork."""
    if not program:
        return _run_request(serve_forks(descriptor, _prepare_shim))
    loader = importlib.machinery.SourcelessFileLoader("__main__", program)
    code = loader.get_code("__main__")
    assert code is not None
    request = serve_forks(descriptor, _prepare_stand_in)
    return _run_program(
        lambda: exec(code, {"__name__": "__main__", "__file__": program}),
        program,
        request.args,
    )


if __name__ == "__main__":
    _exit_process(_run_server(int(sys.argv[1]), sys.argv[2]))
