"""Starts the shim's relay on another machine with the user's own `ssh`.

The user's SSH configuration takes precedence over the defaults below. The first connection to a
machine stays open for a while, so that later connections need no new login (OpenSSH's
ControlMaster).
"""

import os
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Lock, Thread
from typing import IO

from shim.core.errors import SystemResourceError
from shim.core.reading.diagnostics import escape_control_chars
from shim.core.reading.head_and_tail import HeadTailBuffer
from shim.state.config import get_home_dir, get_state_dir
from shim.state.files import ensure_private_dir, is_private_dir, replace_file, write_all
from shim.state.machines import Machine

CONNECT_TIMEOUT_S = 5  # a machine that needs longer counts as unavailable
# After this many seconds without data, `ssh` sends a request that the other machine must answer.
# After ALIVE_COUNT unanswered requests, the connection is lost.
ALIVE_INTERVAL_S = 5
ALIVE_COUNT = 2
PERSIST_S = 60  # how long an unused connection stays open
EXIT_TIMEOUT_S = 2.0  # for `ssh` to exit after SIGTERM, or after its connection has ended
CHUNK_BYTES = 4 * 1024  # of stderr, which has few lines
CONFIG_FILE = "ssh_config"
# The settings of the user and of the system come first, because the first value of an option counts.
CONFIG_TEXT = """\
Include {user_config}
Include /etc/ssh/ssh_config
Host *
  ConnectTimeout {CONNECT_TIMEOUT_S}
  ServerAliveInterval {ALIVE_INTERVAL_S}
  ServerAliveCountMax {ALIVE_COUNT}
"""
SHARING_TEXT = """\
  ControlMaster auto
  ControlPath "{folder}/%C"
  ControlPersist {PERSIST_S}
"""
# The path of a Unix socket has at most 103 bytes.
# `ssh` adds 40 characters for %C, and 17 while it creates the socket.
MAX_SOCKET_FOLDER_BYTES = 103 - 1 - 40 - 17
# No terminal, no forwarding of the agent or of X11, and none of the user's port forwardings and remote
# commands, which belong to the user's own sessions. `ssh` never asks for a password.
FIXED_OPTIONS = (
    *("-T", "-a", "-x", "-o", "BatchMode=yes"),
    *("-o", "ClearAllForwardings=yes", "-o", "RemoteCommand=none"),
)
_CONFIG_LOCK = Lock()  # machines are asked in several threads
MAX_STDERR_CHARS = 300  # how much output of `ssh` and of the remote shell an error message contains
MISSING_PROGRAM_STATUS = 127  # the exit status of a shell for an unknown command
# The exit statuses of a shell that cannot run the shim, and of `ssh` for its own errors.
UNAVAILABLE_STATUSES = (126, MISSING_PROGRAM_STATUS, 255)


class MachineUnavailableError(SystemResourceError):
    """Raised if a machine cannot be reached, or if its shim does not answer."""

    def __init__(self, machine: Machine, reason: str) -> None:
        super().__init__(
            f"the machine {machine.name} does not answer: {escape_control_chars(reason)}",
            hint=f"try `ssh {machine.destination} {machine.program} --version`",
        )
        self.reason = escape_control_chars(reason)


class StderrReader:
    """Reads the stderr of an `ssh` process in a thread, and keeps its beginning and its end.
    `copy_chunk` gets every chunk.
    """

    def __init__(
        self, stderr: IO[bytes], copy_chunk: Callable[[bytes], None] = lambda chunk: None
    ) -> None:
        self._stderr = stderr
        self._copy_chunk = copy_chunk
        self._buffer = HeadTailBuffer()
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()

    def read_to_end(self) -> str:
        """Wait up to EXIT_TIMEOUT_S for the end of stderr. Return the text that was kept."""
        self._thread.join(EXIT_TIMEOUT_S)
        return self._buffer.to_text()

    def _read(self) -> None:
        with self._stderr:
            while chunk := os.read(self._stderr.fileno(), CHUNK_BYTES):
                self._buffer.add(chunk)
                self._copy_chunk(chunk)


class RelaySocket(socket.socket):
    """A socket that is connected to a relay on another machine. `close` ends its `ssh` process
    without waiting for it.
    """

    def __init__(self, descriptor: int, process: "subprocess.Popen[bytes]") -> None:
        super().__init__(fileno=descriptor)
        assert process.stderr is not None
        self._process = process
        self._stderr = StderrReader(process.stderr)

    def close(self) -> None:
        super().close()
        if self._process.poll() is None:
            self._process.terminate()
            Thread(target=stop_ssh, args=(self._process,), daemon=True).start()

    def explain_end(self) -> str:
        """Return why the connection ended, as `ssh` or the remote shell reports it, or ""."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_TIMEOUT_S)
        return describe_ssh_failure(self._process.returncode, self._stderr.read_to_end())


def open_relay(machine: Machine, environment: Mapping[str, str]) -> RelaySocket:
    """Start a relay on another machine. Return a socket that is connected to the relay's stdin and
    stdout. Raise MachineUnavailableError if `ssh` cannot be started.
    """
    local_end, ssh_end = socket.socketpair()
    try:
        process = start_ssh(machine, environment, ssh_end.fileno(), ssh_end.fileno())
    except BaseException:
        local_end.close()
        raise
    finally:
        ssh_end.close()
    return RelaySocket(local_end.detach(), process)


def start_ssh(
    machine: Machine, environment: Mapping[str, str], stdin: int, stdout: int
) -> "subprocess.Popen[bytes]":
    """Start `ssh` with the relay as its command, and a pipe as its stderr. Ctrl-C in the terminal
    does not reach `ssh`. Raise MachineUnavailableError if `ssh` cannot be started.
    """
    try:
        return subprocess.Popen(
            build_ssh_argv(machine, environment),
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
        )
    except OSError as error:
        raise MachineUnavailableError(machine, f"ssh: {error.strerror}") from None


def stop_ssh(process: "subprocess.Popen[bytes]") -> None:
    """Stop an `ssh` process. The shared connection to the machine stays open."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def check_ssh_status(machine: Machine, status: int, stderr: str) -> None:
    """Raise MachineUnavailableError if `ssh` has failed, or if the shim was not found."""
    if status in UNAVAILABLE_STATUSES:
        raise MachineUnavailableError(machine, describe_ssh_failure(status, stderr))


def describe_ssh_failure(status: int | None, stderr: str) -> str:
    """Return why an `ssh` command failed, as text for an error message, or "" if unknown."""
    lines = stderr.strip().splitlines()
    text = ""
    if lines:
        text = escape_control_chars(lines[-1].strip())[:MAX_STDERR_CHARS]
    if status == MISSING_PROGRAM_STATUS:
        return f"the shim is not installed there, or is not on PATH ({text})"
    if status and text:
        return text
    if status:
        return f"ssh exited with the status {status}"
    return ""


def build_ssh_argv(machine: Machine, environment: Mapping[str, str]) -> list[str]:
    """Return the command that starts the relay on a machine."""
    options = [*FIXED_OPTIONS]
    with _CONFIG_LOCK:
        config_path = _write_config(environment)
    if config_path:
        options += ["-F", config_path]
    return ["ssh", *options, "--", machine.destination, f"{machine.program} bridge relay"]


def _write_config(environment: Mapping[str, str]) -> str:
    """Write the configuration file for `ssh`, and return its path. Return "" if the shim's state
    folder cannot be used, so that only the user's own configuration applies.
    """
    folder = os.path.join(get_state_dir(environment), "machines")
    path = os.path.join(folder, CONFIG_FILE)
    text = CONFIG_TEXT.format(
        user_config=f'"{get_home_dir(environment)}/.ssh/config"',
        CONNECT_TIMEOUT_S=CONNECT_TIMEOUT_S,
        ALIVE_INTERVAL_S=ALIVE_INTERVAL_S,
        ALIVE_COUNT=ALIVE_COUNT,
    )
    if socket_folder := _create_socket_folder(environment):
        text += SHARING_TEXT.format(folder=socket_folder, PERSIST_S=PERSIST_S)
    try:
        if not ensure_private_dir(folder):
            return ""
        if not _has_content(path, text):
            replace_file(path, lambda descriptor: write_all(descriptor, text.encode()))
    except OSError:
        return ""
    return path


def _has_content(path: str, text: str) -> bool:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read() == text
    except (OSError, ValueError):
        return False


def _create_socket_folder(environment: Mapping[str, str]) -> str:
    """Return a private folder for the sockets of shared connections. Return "" if no folder can be
    created; every relay then has its own connection.
    """
    parent = environment.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = os.path.join(parent, f"claude-ssh-{os.getuid()}")
    if len(os.fsencode(folder)) > MAX_SOCKET_FOLDER_BYTES:
        return ""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if is_private_dir(folder):
            return folder
    except OSError:
        pass
    return ""
