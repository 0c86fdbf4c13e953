"""Connects to the sessions of other machines, and runs commands there."""

import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import Thread
from typing import IO

from shim.bridge.listings import list_machine_sessions
from shim.bridge.registry import SessionRecord
from shim.bridge.relay_process import (
    MachineUnavailableError,
    RelaySocket,
    StderrReader,
    check_relay_status,
    open_relay,
    start_relay_process,
    stop_relay_process,
)
from shim.core.bridge.frames import FrameError, parse_frame
from shim.core.bridge.relay import RelayedArgv, encode_command_request, encode_connect_request
from shim.core.errors import FrontendError
from shim.core.reading.typed import NamedTuple
from shim.core.reading.values import escape_control_chars, get_text, split_machine
from shim.io.stderr import warn
from shim.state.machines import Machine, find_machine

# The timeout for a command. The slowest command stops a host and starts it again.
COMMAND_TIMEOUT_S = 120.0
# The maximum size of a command's stdout, which is kept in memory. `claude logs` prints the most.
MAX_OUTPUT_BYTES = 64 * 1024 * 1024
CHUNK_BYTES = 64 * 1024
REFUSAL_PREFIX = b'{"kind":"bye"'  # the beginning of a relay's answer to a refused request


def find_remote_session(session_id: str, environment: Mapping[str, str]) -> SessionRecord | None:
    """Return the session with the id MACHINE:UUID, or None if the machine has no such session.
    Raise MachineUnavailableError if the machine does not answer.
    """
    sessions = list_all_sessions(get_machine(session_id, environment), environment)
    return next((session for session in sessions if session.session_id == session_id), None)


def list_all_sessions(machine: Machine, environment: Mapping[str, str]) -> Sequence[SessionRecord]:
    """Return the running and ended sessions of a machine. Raise MachineUnavailableError if it does
    not answer, and the fleet has no copies of its sessions.
    """
    listing = list_machine_sessions(machine, environment, includes_ended=True)
    if not listing.has_readable_sessions:
        raise MachineUnavailableError(machine, listing.problem)
    return listing.sessions


def open_host_socket(session_id: str, environment: Mapping[str, str]) -> RelaySocket:
    """Connect to the host of the session MACHINE:UUID on its machine. Raise MachineUnavailableError
    if the process of its relay cannot be started.
    """
    relay = open_relay(get_machine(session_id, environment), environment)
    with suppress(OSError):  # the reason is in the output of the process
        relay.sendall(encode_connect_request(split_machine(session_id)[1]))
    return relay


def get_machine(session_id: str, environment: Mapping[str, str]) -> Machine:
    """Return the machine of the session MACHINE:UUID. Raise FrontendError if the settings have no
    such machine.
    """
    return find_machine(split_machine(session_id)[0], environment)


# -- commands --------------------------------------------------------------------------------------


class RemoteOutput(NamedTuple):
    """The stdout and the exit status of a command on another machine. The text has no control
    characters that a terminal would execute.
    """

    text: str
    status: int


def run_session_command(
    session_id: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    args: Sequence[str] = (),
) -> RemoteOutput:
    """Run a command for the session MACHINE:UUID on its machine: the command, the UUID, and further
    arguments. Return its output.
    """
    machine = get_machine(session_id, environment)
    uuid = split_machine(session_id)[1]
    return run_command_on_machine(machine, (*command, uuid, *args), environment)


def run_command_on_machine(
    machine: Machine,
    argv: RelayedArgv,
    environment: Mapping[str, str],
    *,
    cwd: str = "",
    input_text: str = "",
) -> RemoteOutput:
    """Run a command of the shim on another machine. Return its output, and print its stderr.

    Raise MachineUnavailableError if the machine cannot be reached, or if the command does not end
    within COMMAND_TIMEOUT_S. Raise FrontendError if the relay refuses the command, or if its output
    exceeds MAX_OUTPUT_BYTES.
    """
    request = encode_command_request(argv, cwd, environment)
    process = start_relay_process(machine, environment)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    stderr = StderrReader(process.stderr)
    stdin_args = (process.stdin, request + input_text.encode())
    Thread(target=_write_stdin, args=stdin_args, daemon=True).start()
    deadline_s = time.monotonic() + COMMAND_TIMEOUT_S
    try:
        output = _read_output(process.stdout, deadline_s)
        process.wait(max(0.0, deadline_s - time.monotonic()))
    except (TimeoutError, subprocess.TimeoutExpired):
        reason = f"`{argv[1]}` did not end within {COMMAND_TIMEOUT_S:g} s"
        raise MachineUnavailableError(machine, reason) from None
    finally:
        stop_relay_process(process)
        process.stdout.close()
    stderr_text = stderr.read_to_end()
    check_relay_status(machine, process.returncode, stderr_text)
    check_relay_refusal(machine, output)
    warn(escape_control_chars(stderr_text))
    text = escape_control_chars(output.decode("utf-8", "replace"))
    return RemoteOutput(text, process.returncode)


def _write_stdin(stdin: IO[bytes], data: bytes) -> None:
    """Write data, and close the pipe. A process that ends before it has read them is ignored."""
    with suppress(OSError), stdin:
        stdin.write(data)


def _read_output(stdout: IO[bytes], deadline_s: float) -> bytes:
    """Return all bytes of a pipe. Raise TimeoutError if it does not end before a time on the monotonic
    clock, and FrontendError if there are more than MAX_OUTPUT_BYTES.
    """
    output = bytearray()
    poll = select.poll()
    poll.register(stdout.fileno(), select.POLLIN)
    while poll.poll(1000 * max(0.0, deadline_s - time.monotonic())):
        chunk = os.read(stdout.fileno(), CHUNK_BYTES)
        if not chunk:
            return bytes(output)
        output += chunk
        if len(output) > MAX_OUTPUT_BYTES:
            raise FrontendError(
                f"the output of the command is larger than {MAX_OUTPUT_BYTES // 1024**2} MiB",
                hint="run the command on its machine",
            )
    raise TimeoutError


def check_relay_refusal(machine: Machine, output: bytes) -> None:
    """Raise FrontendError if the first line of the output is the refusal of a relay."""
    first_line = output.partition(b"\n")[0]
    if not first_line.startswith(REFUSAL_PREFIX):
        return
    hint = "`shim doctor` shows whether the machine has another version of the shim"
    if machine.is_in_fleet:
        hint = "`shim fleet status` shows your role in the fleet"
    with suppress(FrameError):
        reason = get_text(parse_frame(first_line), "reason")
        raise FrontendError(
            f"the machine {machine.name} refused the command: {escape_control_chars(reason)}",
            hint=hint,
        )
