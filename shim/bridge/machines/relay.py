"""The relay, which SSH or the fleet starts as `shim bridge relay` for another machine. It lists the
sessions of its user, connects the other machine to a session's host, and runs a few commands.

Without options, the relay trusts its stdin, because anyone who can log in as the user can do the same
without the relay. The fleet limits it to what the member may do.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from select import select
from socket import SHUT_WR, socket
from threading import Thread
from typing import Any

from shim import __version__
from shim.bridge import registry, sockets
from shim.bridge.ended_session import iterate_ended_session_frames, open_ended_log
from shim.bridge.registry import SessionRecord
from shim.core.bridge.frames import (
    FrameError,
    encode_frame,
    encode_line_frame,
    parse_frame,
    parse_hello,
)
from shim.core.bridge.relay import (
    FULL_ACCESS,
    MAX_REQUEST_BYTES,
    RESUME_COMMAND,
    START_REFUSAL,
    FileArgument,
    RelayAccess,
    RelayedArgv,
    RelayRequest,
    check_relay_access,
    parse_relay_request,
)
from shim.core.errors import ShimError
from shim.process.install import load_installed_dropin_options
from shim.state.files import write_all, write_new_file

CHUNK_BYTES = 64 * 1024
# SSH notices a lost connection only when it has something to send.
KEEPALIVE_INTERVAL_S = 30.0
# The number of ended sessions in an answer. Sessions that ended earlier can only be found on their
# own machine.
MAX_ENDED_SESSIONS = 500


def run_relay(access: RelayAccess = FULL_ACCESS) -> int:
    """Answer requests from stdin until stdin ends. Return the exit status."""
    try:
        while (line := _read_line()) is not None:
            request = parse_relay_request(line)
            check_relay_access(request, access)
            if request.kind == "connect":
                return _relay_host_frames(request.session_id, access)
            if request.kind == "command":
                _check_resumed_session(request, access)
                return _run_command(request)
            records = registry.scan_sessions(os.environ)
            sessions = select_relayed_sessions(records, includes_ended=request.includes_ended)
            if access.session_id:
                sessions = [each for each in sessions if each["session"] == access.session_id]
            write_all(1, encode_frame("sessions", version=__version__, sessions=sessions))
    except (FrameError, ShimError, ValueError) as error:
        write_all(1, encode_frame("bye", reason=str(error)))
        return 1
    except BrokenPipeError:
        pass
    return 0


def _read_line() -> bytes | None:
    """Read a line from stdin byte by byte, because all further bytes may belong to a command. Return
    None at the end of stdin. Raise FrameError if the line is longer than MAX_REQUEST_BYTES.
    """
    line = bytearray()
    while (byte := os.read(0, 1)) != b"\n":
        if not byte:
            return None
        line += byte
        if len(line) > MAX_REQUEST_BYTES:
            raise FrameError(f"a request must have at most {MAX_REQUEST_BYTES} bytes")
    return bytes(line)


def select_relayed_sessions(
    records: Iterable[SessionRecord], *, includes_ended: bool
) -> list[dict[str, Any]]:
    """Return the metadata of all running sessions, and of up to MAX_ENDED_SESSIONS ended sessions."""
    sessions = list[dict[str, Any]]()
    ended_count = 0
    for session in records:
        if not session.is_running:
            ended_count += 1
            if not includes_ended or ended_count > MAX_ENDED_SESSIONS:
                continue
        sessions.append(
            {
                **session.metadata,
                "session": session.session_id,
                "alive": session.is_running,
            }
        )
    return sessions


def _check_resumed_session(request: RelayRequest, access: RelayAccess) -> None:
    """Raise FrameError if the command would resume an ended session with flags of its own, but may
    not start sessions. A frontend that joins a running session cannot change its permissions.
    """
    if access.may_start or tuple(request.argv[:2]) != RESUME_COMMAND:
        return
    if not registry.is_session_running(str(request.argv[2]), os.environ):
        raise FrameError(START_REFUSAL)


def _relay_host_frames(session_id: str, access: RelayAccess) -> int:
    """Copy bytes between the host of a session and the other machine until the host closes the
    connection.
    """
    hello_line = b""
    if access.is_read_only:
        hello_line = (_read_line() or b"") + b"\n"
        if parse_hello(parse_frame(hello_line)).can_control:
            raise FrameError("you may only watch sessions here")
    session = registry.find_session(session_id, os.environ)
    if session is None:
        raise FrameError(f"there is no session {session_id[:60]}")
    if not session.is_running:
        return _send_ended_session(session, hello_line or _read_line() or b"")
    try:
        host_socket = sockets.connect_to_host(session.folder)
    except OSError as error:
        raise FrameError(f"the session does not run: {error.strerror}") from None
    with host_socket:
        host_socket.sendall(hello_line)
        # Each direction has its own thread, so that neither can block the other.
        Thread(target=_copy_stdin, args=(host_socket,), daemon=True).start()
        _copy_to_stdout(host_socket)
    return 0


def _send_ended_session(session: SessionRecord, hello_line: bytes) -> int:
    """Send the log of an ended session."""
    hello = parse_hello(parse_frame(hello_line))
    log = open_ended_log(session)
    for frame in iterate_ended_session_frames(session, log, hello.cursor):
        if frame["kind"] != "line":
            write_all(1, encode_frame(**frame))
        elif hello.wants_history:
            line = encode_line_frame(
                frame["number"], frame["generation"], frame["at"], frame["raw"]
            )
            write_all(1, line)
    return 0


def _copy_stdin(host_socket: socket) -> None:
    """Send stdin to the host, and then tell the host that the client sends no more frames."""
    with suppress(OSError):
        while chunk := os.read(0, CHUNK_BYTES):
            host_socket.sendall(chunk)
        host_socket.shutdown(SHUT_WR)


def _copy_to_stdout(host_socket: socket) -> None:
    """Write the host's frames to stdout until the host closes the connection. While the host is
    silent, write empty lines, which clients ignore. Without them, a client that has vanished would
    only be noticed when the session continues.
    """
    is_line_complete = True
    while True:
        if select([host_socket], [], [], KEEPALIVE_INTERVAL_S)[0]:
            chunk = _receive(host_socket)
            if not chunk:
                return
            write_all(1, chunk)
            is_line_complete = chunk.endswith(b"\n")
        elif is_line_complete:
            write_all(1, b"\n")


def _receive(host_socket: socket) -> bytes:
    try:
        return host_socket.recv(CHUNK_BYTES)
    except OSError:
        return b""


def _run_command(request: RelayRequest) -> int:
    """Run a command of this package with the rest of stdin. Return its exit status."""
    cwd = os.path.expanduser(request.cwd or "~")
    argv = [sys.executable, "-I", "-m", "shim"]
    for name, value in load_installed_dropin_options().items():
        argv += ["--installed", f"{name}={value}"]
    with tempfile.TemporaryDirectory() as folder:
        try:
            argv += _write_file_arguments(request.argv, folder)
            environment = {**os.environ, **request.environment}
            process = subprocess.run(argv, cwd=cwd, env=environment, check=False)
        except (OSError, ValueError) as error:
            sys.stderr.write(f"error: the command cannot be started in {cwd}: {error}\n")
            return 1
    return process.returncode


def _write_file_arguments(argv: RelayedArgv, folder: str) -> list[str]:
    """Return the arguments with the paths of new private files instead of contents."""
    args = list[str]()
    for argument in argv:
        if isinstance(argument, FileArgument):
            content = argument.content.encode()
            path = os.path.join(folder, str(len(args)))
            write_new_file(path, partial(write_all, data=content))
            args.append(path)
        else:
            args.append(argument)
    return args
