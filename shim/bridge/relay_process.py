"""Starts the relay of another machine, and explains why it ended.

A machine is reached with `ssh`, or through the fleet. Either way, a child process of this machine
has the stdin, the stdout, the stderr and the exit status of the relay.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Thread
from typing import IO

from shim.bridge.ssh import build_ssh_argv
from shim.core.errors import SystemResourceError
from shim.core.reading.head_and_tail import HeadTailBuffer
from shim.core.reading.values import escape_control_chars
from shim.state.machines import Machine, build_check_command

EXIT_TIMEOUT_S = 2.0  # for the process to exit after SIGTERM, or after its connection has ended
CHUNK_BYTES = 4 * 1024  # of stderr, which has few lines
MAX_STDERR_CHARS = 300  # how much of stderr an error message contains
MISSING_PROGRAM_STATUS = 127  # the exit status of a shell for an unknown command
# The exit statuses of a shell that cannot run the shim, and of `ssh` and `shim fleet dial` for their
# own errors.
UNAVAILABLE_STATUSES = (126, MISSING_PROGRAM_STATUS, 255)
# Starts the relay of a machine of the fleet, or lists the fleet if no name follows. The package of
# this process is used, because the working directory may contain another one.
FLEET_DIAL_ARGV = (sys.executable, "-I", "-m", "shim", "fleet", "dial")


class MachineUnavailableError(SystemResourceError):
    """Raised if a machine cannot be reached, or if its shim does not answer."""

    def __init__(self, machine: Machine, reason: str) -> None:
        super().__init__(
            f"the machine {machine.name} does not answer: {escape_control_chars(reason)}",
            hint=f"try `{build_check_command(machine)}`",
        )
        self.reason = escape_control_chars(reason)


class StderrReader:
    """Reads the stderr of a relay's process in a thread, and keeps its beginning and its end.
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
    """A socket that is connected to a relay on another machine. `close` ends the relay's process
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
            Thread(target=stop_relay_process, args=(self._process,), daemon=True).start()

    def explain_end(self) -> str:
        """Return why the connection ended, as the process or the remote shell reports it, or ""."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_TIMEOUT_S)
        return describe_relay_failure(self._process.returncode, self._stderr.read_to_end())


def open_relay(machine: Machine, environment: Mapping[str, str]) -> RelaySocket:
    """Start a relay on another machine. Return a socket that is connected to the relay's stdin and
    stdout. Raise MachineUnavailableError if its process cannot be started.
    """
    argv = _build_relay_argv(machine, environment)
    try:
        return open_process_socket(argv, environment)
    except OSError as error:
        raise MachineUnavailableError(machine, f"{argv[0]}: {error.strerror}") from None


def open_process_socket(argv: Sequence[str], environment: Mapping[str, str]) -> RelaySocket:
    """Start a process, and return a socket that is connected to its stdin and stdout. Raise OSError
    if the process cannot be started.
    """
    local_end, process_end = socket.socketpair()
    try:
        process = _start_process(argv, environment, process_end.fileno(), process_end.fileno())
    except BaseException:
        local_end.close()
        raise
    finally:
        process_end.close()
    return RelaySocket(local_end.detach(), process)


def start_relay_process(
    machine: Machine, environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    """Start a process that runs the relay on another machine, with pipes for stdin, stdout and
    stderr. Raise MachineUnavailableError if it cannot be started.
    """
    argv = _build_relay_argv(machine, environment)
    try:
        return _start_process(argv, environment, subprocess.PIPE, subprocess.PIPE)
    except OSError as error:
        raise MachineUnavailableError(machine, f"{argv[0]}: {error.strerror}") from None


def _start_process(
    argv: Sequence[str], environment: Mapping[str, str], stdin: int, stdout: int
) -> "subprocess.Popen[bytes]":
    """Start a process with a pipe as its stderr. Ctrl-C in the terminal does not reach it."""
    return subprocess.Popen(
        argv,
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=dict(environment),
        start_new_session=True,
    )


def _build_relay_argv(machine: Machine, environment: Mapping[str, str]) -> list[str]:
    if machine.is_in_fleet:
        return [*FLEET_DIAL_ARGV, machine.name]
    return build_ssh_argv(machine, environment)


def stop_relay_process(process: "subprocess.Popen[bytes]") -> None:
    """Stop the process of a relay. A connection that `ssh` shares stays open."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def check_relay_status(machine: Machine, status: int, stderr: str) -> None:
    """Raise MachineUnavailableError if the machine was not reached, or has no shim."""
    if status in UNAVAILABLE_STATUSES:
        raise MachineUnavailableError(machine, describe_relay_failure(status, stderr))


def describe_relay_failure(status: int | None, stderr: str) -> str:
    """Return why a relay's process failed, as text for an error message, or "" if unknown."""
    lines = stderr.strip().splitlines()
    text = ""
    if lines:
        text = escape_control_chars(lines[-1].strip())[:MAX_STDERR_CHARS]
    if status == MISSING_PROGRAM_STATUS:
        return f"the shim is not installed there, or is not on PATH ({text})"
    if status and text:
        return text
    if status:
        return f"the connection ended with the status {status}"
    return ""
