"""Lists the sessions of other machines.

An SSH machine is asked by its own relay. The machines of the fleet are listed together, from the
fleet's registry.
"""

import os
import socket
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread

from shim.bridge import sockets
from shim.bridge.registry import SessionRecord, parse_metadata
from shim.bridge.relay_process import (
    FLEET_DIAL_ARGV,
    MachineUnavailableError,
    RelaySocket,
    open_process_socket,
    open_relay,
)
from shim.core.bridge.frames import FrameError, encode_frame, parse_frame
from shim.core.bridge.relay import encode_sessions_request
from shim.core.errors import explain_os_error
from shim.core.reading.json_text import dump_json, parse_json_object
from shim.core.reading.lines import LineSplitter
from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import (
    as_dict,
    as_list,
    canonicalize_uuid,
    escape_control_chars,
    get_text,
)
from shim.io.stderr import warn
from shim.state.config import get_fleet_folder, get_state_dir
from shim.state.files import read_state_file, write_state_file
from shim.state.machines import (
    ALL_FLEET_MACHINES,
    FLEET_LISTING_FILE,
    MAX_FLEET_LISTING_BYTES,
    NAME_PATTERN,
    Machine,
)

LIST_TIMEOUT_S = 5.0  # a machine that needs longer counts as unavailable
CHUNK_BYTES = 64 * 1024
# The maximum size of an answer. An answer contains up to 500 ended sessions of a machine, and all
# running ones.
MAX_ANSWER_BYTES = 4 * 1024 * 1024
MAX_TIME_MS = 253_402_300_799_000  # the end of the year 9999; later times cannot be formatted
# Raised if the answer of another machine has values that nobody expects.
INVALID_ANSWER_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


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

    @property
    def has_readable_sessions(self) -> bool:
        """Whether the sessions can be read: the machine answers, or the fleet has copies of them."""
        if not self.problem:
            return True
        return self.machine.is_in_fleet and bool(self.sessions)


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
    The last one is yielded after at most LIST_TIMEOUT_S, and the time until the process of its relay
    has exited.
    """
    queue = SimpleQueue[Sequence[MachineListing]]()

    def add_listings(lister: SessionLister) -> None:
        listings: Sequence[MachineListing] = ()
        try:
            with lister:
                listings = lister.list_sessions(includes_ended=includes_ended)
        finally:
            queue.put(listings)  # the command must not wait for a thread that has failed

    listers = create_session_listers(machines, environment)
    for lister in listers:
        Thread(target=add_listings, args=(lister,), daemon=True).start()
    for _ in listers:
        yield from queue.get()


def create_session_listers(
    machines: Sequence[Machine], environment: Mapping[str, str]
) -> "list[SessionLister]":
    """Return a lister for each machine that SSH reaches, and one for all machines of the fleet."""
    fleet_names: list[str] | None = [machine.name for machine in machines if machine.is_in_fleet]
    if ALL_FLEET_MACHINES in machines:
        fleet_names = None
    listers: list[SessionLister] = [
        SshSessionLister(machine, environment) for machine in machines if not machine.is_in_fleet
    ]
    if fleet_names or fleet_names is None:
        listers.append(FleetSessionLister(fleet_names, environment))
    return listers


def list_machine_sessions(
    machine: Machine, environment: Mapping[str, str], *, includes_ended: bool
) -> MachineListing:
    """Return the sessions of a machine. If the machine does not answer, return the sessions of its
    last answer.
    """
    (listing,) = iterate_machine_listings([machine], environment, includes_ended=includes_ended)
    return listing


class NoAnswerError(Exception):
    """Raised if a request is not answered. The text is the reason."""


class SessionLister:
    """Requests the sessions of machines. The connection stays open for further requests until
    `close` is called.
    """

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def __enter__(self) -> "SessionLister":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. The next request opens another one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def list_sessions(self, *, includes_ended: bool) -> Sequence[MachineListing]:
        """Return the sessions of the machines. If there is no answer, return the sessions in the last
        answer.
        """
        try:
            listings = self._request_listings(includes_ended=includes_ended)
        except (MachineUnavailableError, NoAnswerError, OSError) as error:
            self.close()
            listings = self.load_last_listings(_explain_failure(error))
        except INVALID_ANSWER_ERRORS as error:
            self.close()
            problem = f"its answer is not valid: {escape_control_chars(str(error))}"
            listings = self.load_last_listings(problem)
        if includes_ended:
            return listings
        return [_remove_ended_sessions(listing) for listing in listings]

    def load_last_listings(self, problem: str) -> Sequence[MachineListing]:
        """Return the last answer of machines that do not answer now, because of a problem."""
        raise NotImplementedError

    def _connect(self) -> socket.socket:
        raise NotImplementedError

    def _request_listings(self, *, includes_ended: bool) -> Sequence[MachineListing]:
        """Return the answer. Raise NoAnswerError, MachineUnavailableError or OSError if there is
        none.
        """
        raise NotImplementedError

    def _request(self, request: bytes, kind: str) -> Mapping[str, Any]:
        """Send a request, and return the answer, a frame of this kind. Raise NoAnswerError if there
        is none within LIST_TIMEOUT_S.
        """
        deadline = time.monotonic() + LIST_TIMEOUT_S
        if self._socket is None:
            self._socket = self._connect()
        self._socket.settimeout(LIST_TIMEOUT_S)
        with suppress(OSError):  # the reason is in the output of the process
            self._socket.sendall(request)
        splitter = LineSplitter(MAX_FLEET_LISTING_BYTES)
        while (remaining_s := deadline - time.monotonic()) > 0:
            self._socket.settimeout(remaining_s)
            try:
                chunk = self._socket.recv(CHUNK_BYTES)
            except TimeoutError:
                break
            except OSError:
                chunk = b""
            for line in splitter.feed(chunk):
                if answer := _parse_answer(line, kind):
                    return answer
            if splitter.skipped_line_head:
                size = MAX_FLEET_LISTING_BYTES // 1024**2
                raise NoAnswerError(f"its answer is larger than {size} MiB")
            if not chunk:
                raise NoAnswerError(_explain_end(self._socket))
        raise NoAnswerError(f"no answer within {LIST_TIMEOUT_S:g} s")


def _parse_answer(line: bytes, kind: str) -> Mapping[str, Any]:
    """Return the answer in a line. Return {} for a line that the start files of the remote shell
    print. Raise NoAnswerError if the request is refused.
    """
    try:
        frame = parse_frame(line)
    except FrameError:
        return {}
    if frame["kind"] != kind:
        raise NoAnswerError(get_text(frame, "reason"))
    return frame


def _explain_end(connection: socket.socket) -> str:
    reason = ""
    if isinstance(connection, RelaySocket):
        reason = connection.explain_end()
    if reason:
        return reason
    return "the connection ended without an answer"


def _remove_ended_sessions(listing: MachineListing) -> MachineListing:
    running = [session for session in listing.sessions if session.is_running]
    return listing._replace(sessions=running)


def _explain_failure(error: MachineUnavailableError | NoAnswerError | OSError) -> str:
    """Return why a request failed. An OSError is from this machine, such as a full disk."""
    if isinstance(error, MachineUnavailableError):
        return error.reason
    if isinstance(error, NoAnswerError):
        return escape_control_chars(str(error))
    return explain_os_error(error)


# -- over SSH --------------------------------------------------------------------------------------


class SshSessionLister(SessionLister):
    """Requests the sessions of one machine from its relay, which SSH starts."""

    def __init__(self, machine: Machine, environment: Mapping[str, str]) -> None:
        super().__init__()
        self._machine = machine
        self._environment = environment

    def _connect(self) -> socket.socket:
        return open_relay(self._machine, self._environment)

    def _request_listings(self, *, includes_ended: bool) -> Sequence[MachineListing]:
        request = encode_sessions_request(includes_ended=includes_ended)
        answer = self._request(request, "sessions")
        sessions = _parse_sessions(self._machine, answer)
        self._store_answer(as_list(answer.get("sessions")), is_complete=includes_ended)
        return [MachineListing(self._machine, sessions, version=get_text(answer, "version"))]

    def _store_answer(self, sessions: Sequence[Any], *, is_complete: bool) -> None:
        """Store the answer of the machine. An answer without ended sessions does not remove those of
        earlier answers.
        """
        if not is_complete:
            ids = {str(as_dict(fields).get("session")) for fields in sessions}
            (earlier_listing,) = self.load_last_listings("")
            earlier_sessions = [
                {**record.metadata, "alive": False}
                for record in earlier_listing.sessions
                if not record.is_running and record.metadata["session"] not in ids
            ]
            sessions = [*sessions, *earlier_sessions]
        answer = {"answered_ms": round(1000 * time.time()), "sessions": sessions}
        write_state_file(self._get_folder(), f"{self._machine.name}.json", dump_json(answer))

    def load_last_listings(self, problem: str) -> Sequence[MachineListing]:
        """Return the last answer of the machine."""
        answer = _load_answer(self._get_folder(), f"{self._machine.name}.json", MAX_ANSWER_BYTES)
        sessions = _parse_sessions(self._machine, answer, answer.get("answered_ms"))
        return [MachineListing(self._machine, sessions, problem)]

    def _get_folder(self) -> str:
        return os.path.join(get_state_dir(self._environment), "machines")


# -- in the fleet ----------------------------------------------------------------------------------


class FleetSessionLister(SessionLister):
    """Requests the sessions of machines of the fleet from its registry: from `shim fleet run` of this
    user, or from a process that reads the registry itself. `names` are the machines, or None for
    all.
    """

    def __init__(self, names: Collection[str] | None, environment: Mapping[str, str]) -> None:
        super().__init__()
        self._names = names
        self._environment = environment

    def _connect(self) -> socket.socket:
        with suppress(OSError, ValueError):
            return sockets.connect_to_host(get_fleet_folder(self._environment))
        return open_process_socket(FLEET_DIAL_ARGV, self._environment)

    def _request_listings(self, *, includes_ended: bool) -> Sequence[MachineListing]:
        machines = as_list(self._request(encode_frame("fleet"), "fleet").get("machines"))
        listings = [
            _parse_fleet_machine(machine, fields) for machine, fields in self._select(machines)
        ]
        answer = {"answered_ms": round(1000 * time.time()), "machines": machines}
        write_state_file(get_fleet_folder(self._environment), FLEET_LISTING_FILE, dump_json(answer))
        return listings

    def load_last_listings(self, problem: str) -> Sequence[MachineListing]:
        """Return the last answer for the machines."""
        folder = get_fleet_folder(self._environment)
        answer = _load_answer(folder, FLEET_LISTING_FILE, MAX_FLEET_LISTING_BYTES)
        answered_ms = answer.get("answered_ms")
        return [
            MachineListing(machine, _parse_sessions(machine, fields, answered_ms), problem)
            for machine, fields in self._select(as_list(answer.get("machines")))
        ]

    def _select(self, machines: Sequence[Any]) -> list[tuple[Machine, Mapping[str, Any]]]:
        """Return the requested machines of an answer, with their fields. A machine that the answer
        does not contain has no fields.
        """
        by_name = {get_text(fields, "name"): fields for fields in map(as_dict, machines)}
        names = self._names
        if names is None:
            names = list(by_name)
        return [
            (Machine(name), by_name.get(name, {})) for name in names if NAME_PATTERN.match(name)
        ]


def _parse_fleet_machine(machine: Machine, fields: Mapping[str, Any]) -> MachineListing:
    if not fields:
        return MachineListing(machine, (), "it is not in the fleet")
    away = fields.get("away")
    if isinstance(away, int):
        away = min(max(away, 0), MAX_TIME_MS)
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(away / 1000))
        problem = f"it has not been connected since {since}"
        return MachineListing(machine, _parse_sessions(machine, fields, away), problem)
    sessions = _parse_sessions(machine, fields)
    return MachineListing(machine, sessions, version=get_text(fields, "version"))


# -- answers ---------------------------------------------------------------------------------------


def _parse_sessions(
    machine: Machine, answer: Mapping[str, Any], away_ms: Any = None
) -> list[SessionRecord]:
    """Return the sessions in the answer of a machine. `away_ms` is the time of the answer, if the
    machine does not answer now.
    """
    records = list[SessionRecord]()
    for fields in map(as_dict, as_list(answer.get("sessions"))):
        uuid = canonicalize_uuid(str(fields.get("session")))
        if uuid:
            metadata = {
                key: escape_control_chars(value) if isinstance(value, str) else value
                for key, value in parse_metadata(fields, uuid).items()
            }
            if away_ms is not None:
                metadata["away"] = away_ms
            session_id = f"{machine.name}:{uuid}"
            records.append(SessionRecord(session_id, "", fields.get("alive") is True, metadata))
    return records


def _load_answer(folder: str, name: str, max_bytes: int) -> Mapping[str, Any]:
    """Return a stored answer, or {} if there is none."""
    return parse_json_object(read_state_file(folder, name, max_bytes) or b"")
