"""Lists the sessions of other machines, connects to them, and runs commands there."""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread

import orjson

from shim.bridge.registry import SessionRecord, parse_metadata
from shim.bridge.ssh import (
    MachineUnavailableError,
    RelaySocket,
    check_ssh_status,
    open_relay,
    start_ssh,
    stop_ssh,
)
from shim.core.bridge.frames import FrameError, parse_frame
from shim.core.bridge.relay import (
    RelayedArgv,
    encode_command_request,
    encode_connect_request,
    encode_sessions_request,
)
from shim.core.errors import FrontendError, explain_os_error
from shim.core.reading.diagnostics import escape_control_chars
from shim.core.reading.json_text import dump_json
from shim.core.reading.lines import LineSplitter
from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import as_dict, as_list, canonicalize_uuid, get_text, split_machine
from shim.io.stderr import warn
from shim.state.config import get_state_dir
from shim.state.files import read_state_file, write_state_file
from shim.state.machines import Machine, find_machine, load_machines

LIST_TIMEOUT_S = 5.0  # a machine that needs longer counts as unavailable
# The timeout for a command. The slowest command stops a host and starts it again.
COMMAND_TIMEOUT_S = 120.0
CHUNK_BYTES = 64 * 1024
REFUSAL_PREFIX = b'{"kind":"bye"'  # the beginning of a relay's answer to a refused request
# The maximum size of an answer. An answer contains up to 500 ended sessions, and all running ones.
MAX_ANSWER_BYTES = 4 * 1024 * 1024


class MachineListing(NamedTuple):
    """The sessions of another machine.

    problem  "" if the machine answers; otherwise the reason why it does not. The sessions are then
             those of its last answer, and their metadata has the time of that answer as `away`, in
             milliseconds since 1970
    version  the version of the shim on the machine, or "" if it does not answer
    """

    machine: Machine
    sessions: Sequence[SessionRecord]
    problem: str = ""
    version: str = ""


def list_other_machines(
    machines: Sequence[Machine], environment: Mapping[str, str], *, includes_ended: bool
) -> Iterator[MachineListing]:
    """Yield the sessions of machines. Print a warning for each machine that does not answer."""
    for listing in iterate_machine_listings(machines, environment, includes_ended=includes_ended):
        if listing.problem:
            warn(f"the machine {listing.machine.name} does not answer: {listing.problem}\n")
        yield listing


def iterate_machine_listings(
    machines: Sequence[Machine], environment: Mapping[str, str], *, includes_ended: bool
) -> Iterator[MachineListing]:
    """Request the sessions of all machines at the same time. Yield the answers in order of arrival.
    The last one is yielded after at most LIST_TIMEOUT_S, and the time until `ssh` has exited.
    """
    listings = SimpleQueue[MachineListing]()

    def add_listing(machine: Machine) -> None:
        listings.put(list_machine_sessions(machine, environment, includes_ended=includes_ended))

    for machine in machines:
        Thread(target=add_listing, args=(machine,), daemon=True).start()
    for _ in machines:
        yield listings.get()


def list_machine_sessions(
    machine: Machine, environment: Mapping[str, str], *, includes_ended: bool
) -> MachineListing:
    """Return the sessions of a machine. If the machine does not answer, return the sessions of its
    last answer.
    """
    with SessionLister(machine, environment) as lister:
        return lister.list_sessions(includes_ended=includes_ended)


class SessionLister:
    """Requests the sessions of a machine. The relay keeps running for further requests until
    `close` is called.
    """

    def __init__(self, machine: Machine, environment: Mapping[str, str]) -> None:
        self._machine = machine
        self._environment = environment
        self._relay: RelaySocket | None = None

    def __enter__(self) -> "SessionLister":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the relay. The next request starts another one."""
        if self._relay is not None:
            self._relay.close()
            self._relay = None

    def list_sessions(self, *, includes_ended: bool) -> MachineListing:
        """Return the machine's sessions. If the machine does not answer, return the sessions in its
        last answer.
        """
        try:
            answer = self._request_sessions(includes_ended=includes_ended)
        except (MachineUnavailableError, OSError) as error:
            self.close()
            listing = load_last_listing(self._machine, self._environment, _explain_failure(error))
            if includes_ended:
                return listing
            running = [session for session in listing.sessions if session.is_running]
            return listing._replace(sessions=running)
        fields = as_list(answer.get("sessions"))
        _store_listing(self._machine, self._environment, fields, is_complete=includes_ended)
        sessions = _parse_sessions(self._machine, fields)
        return MachineListing(self._machine, sessions, version=get_text(answer, "version"))

    def _request_sessions(self, *, includes_ended: bool) -> Mapping[str, Any]:
        """Return the machine's answer. Raise MachineUnavailableError if there is none within
        LIST_TIMEOUT_S.
        """
        deadline = time.monotonic() + LIST_TIMEOUT_S
        if self._relay is None:
            self._relay = open_relay(self._machine, self._environment)
        relay = self._relay
        relay.settimeout(LIST_TIMEOUT_S)
        with suppress(OSError):  # the reason is in the output of `ssh`
            relay.sendall(encode_sessions_request(includes_ended=includes_ended))
        splitter = LineSplitter(MAX_ANSWER_BYTES)
        while (remaining_s := deadline - time.monotonic()) > 0:
            relay.settimeout(remaining_s)
            try:
                chunk = relay.recv(CHUNK_BYTES)
            except TimeoutError:
                break
            except OSError:
                chunk = b""
            for line in splitter.feed(chunk):
                if answer := self._parse_answer(line):
                    return answer
            if not chunk:
                reason = relay.explain_end() or "its relay ended without an answer"
                raise MachineUnavailableError(self._machine, reason)
        raise MachineUnavailableError(self._machine, f"no answer within {LIST_TIMEOUT_S:g} s")

    def _parse_answer(self, line: bytes) -> Mapping[str, Any]:
        """Return the answer in a line of the relay. Return {} for a line that the start files of the
        remote shell print. Raise MachineUnavailableError if the relay refuses the request.
        """
        try:
            frame = parse_frame(line)
        except FrameError:
            return {}
        if frame["kind"] != "sessions":
            raise MachineUnavailableError(self._machine, get_text(frame, "reason"))
        return frame


def _explain_failure(error: MachineUnavailableError | OSError) -> str:
    """Return why a request failed. An OSError is from this machine, such as a full disk."""
    if isinstance(error, MachineUnavailableError):
        return error.reason
    return explain_os_error(error)


def _parse_sessions(machine: Machine, sessions: Sequence[Any]) -> list[SessionRecord]:
    records = list[SessionRecord]()
    for fields in map(as_dict, sessions):
        uuid = canonicalize_uuid(str(fields.get("session")))
        if uuid:
            metadata = {
                key: escape_control_chars(value) if isinstance(value, str) else value
                for key, value in parse_metadata(fields, uuid).items()
            }
            session_id = f"{machine.name}:{uuid}"
            records.append(SessionRecord(session_id, "", fields.get("alive") is True, metadata))
    return records


# -- the last answer of a machine ------------------------------------------------------------------


def _store_listing(
    machine: Machine,
    environment: Mapping[str, str],
    sessions: Sequence[Any],
    *,
    is_complete: bool,
) -> None:
    """Store the answer of a machine. An answer without ended sessions does not remove those of
    earlier answers.
    """
    if not is_complete:
        ids = {as_dict(fields).get("session") for fields in sessions}
        earlier_sessions = [
            {**record.metadata, "alive": False}
            for record in load_last_listing(machine, environment, "").sessions
            if not record.is_running and record.metadata["session"] not in ids
        ]
        sessions = [*sessions, *earlier_sessions]
    listing = {"answered_ms": round(1000 * time.time()), "sessions": sessions}
    write_state_file(_get_folder(environment), f"{machine.name}.json", dump_json(listing))


def load_last_listing(
    machine: Machine, environment: Mapping[str, str], problem: str
) -> MachineListing:
    """Return the stored answer of a machine that does not answer now, because of a problem."""
    data = read_state_file(_get_folder(environment), f"{machine.name}.json", MAX_ANSWER_BYTES)
    listing = {}
    with suppress(orjson.JSONDecodeError):
        listing = as_dict(orjson.loads(data or b"{}"))
    sessions = [
        session._replace(metadata={**session.metadata, "away": listing.get("answered_ms")})
        for session in _parse_sessions(machine, as_list(listing.get("sessions")))
    ]
    return MachineListing(machine, sessions, problem)


def _get_folder(environment: Mapping[str, str]) -> str:
    return os.path.join(get_state_dir(environment), "machines")


# -- one session -----------------------------------------------------------------------------------


def find_remote_session(session_id: str, environment: Mapping[str, str]) -> SessionRecord | None:
    """Return the session with the id MACHINE:UUID, or None if the machine has no such session.
    Raise MachineUnavailableError if the machine does not answer.
    """
    sessions = list_all_sessions(get_machine(session_id, environment), environment)
    return next((session for session in sessions if session.session_id == session_id), None)


def list_all_sessions(machine: Machine, environment: Mapping[str, str]) -> Sequence[SessionRecord]:
    """Return the running and ended sessions of a machine. Raise MachineUnavailableError if it does
    not answer.
    """
    listing = list_machine_sessions(machine, environment, includes_ended=True)
    if listing.problem:
        raise MachineUnavailableError(machine, listing.problem)
    return listing.sessions


def open_host_socket(session_id: str, environment: Mapping[str, str]) -> RelaySocket:
    """Connect to the host of the session MACHINE:UUID on its machine. Raise MachineUnavailableError
    if `ssh` cannot be started.
    """
    relay = open_relay(get_machine(session_id, environment), environment)
    with suppress(OSError):  # the reason is in the output of `ssh`
        relay.sendall(encode_connect_request(split_machine(session_id)[1]))
    return relay


def get_machine(session_id: str, environment: Mapping[str, str]) -> Machine:
    """Return the machine of the session MACHINE:UUID. Raise FrontendError if the settings have no
    such machine.
    """
    return find_machine(split_machine(session_id)[0], load_machines(environment))


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
    within COMMAND_TIMEOUT_S. Raise FrontendError if the relay refuses the command.
    """
    request = encode_command_request(argv, cwd, environment)
    process = start_ssh(machine, environment, subprocess.PIPE, subprocess.PIPE)
    try:
        output, stderr = process.communicate(request + input_text.encode(), COMMAND_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        reason = f"`{argv[1]}` did not end within {COMMAND_TIMEOUT_S:g} s"
        raise MachineUnavailableError(machine, reason) from None
    finally:
        stop_ssh(process)
    stderr_text = stderr.decode("utf-8", "replace")
    check_ssh_status(machine, process.returncode, stderr_text)
    check_relay_refusal(machine, output)
    warn(escape_control_chars(stderr_text))
    text = escape_control_chars(output.decode("utf-8", "replace"))
    return RemoteOutput(text, process.returncode)


def check_relay_refusal(machine: Machine, output: bytes) -> None:
    """Raise FrontendError if the first line of the output is the refusal of a relay."""
    first_line = output.partition(b"\n")[0]
    if not first_line.startswith(REFUSAL_PREFIX):
        return
    with suppress(FrameError):
        reason = get_text(parse_frame(first_line), "reason")
        raise FrontendError(
            f"the machine {machine.name} refused the command: {escape_control_chars(reason)}",
            hint="`shim doctor` shows whether the machine has another version of the shim",
        )
