"""The relay, which SSH starts on another machine as `shim bridge relay`. It lists the sessions of
its user, connects the other machine to a session's host, and runs a few commands.

The relay trusts its stdin: whoever can log in as the user can do everything that the relay does.
"""

import os
import subprocess
import sys
from contextlib import suppress
from socket import SHUT_WR, socket
from threading import Thread

from shim.bridge import registry, sockets
from shim.core.bridge.frames import FrameError, encode_frame
from shim.core.bridge.relay import MAX_REQUEST_BYTES, RelayRequest, parse_relay_request
from shim.core.errors import ShimError
from shim.core.reading.typed import Any
from shim.state.files import write_all

CHUNK_BYTES = 64 * 1024
# The number of ended sessions in an answer. Older ones are found on their own machine.
MAX_ENDED_SESSIONS = 500


def run_relay(installed_options: "dict[str, str]") -> int:
    """Answer requests from stdin until stdin ends. Return the exit status."""
    received = bytearray()
    while (line := _read_line(received)) is not None:
        try:
            request = parse_relay_request(line)
            if request.kind == "sessions":
                sessions = _list_sessions(includes_ended=request.includes_ended)
                write_all(1, encode_frame("sessions", sessions=sessions))
            elif request.kind == "connect":
                return _relay_host_frames(request.session_id, bytes(received))
            else:
                return _run_command(request, installed_options)
        except (FrameError, ShimError, ValueError) as error:
            write_all(1, encode_frame("bye", reason=str(error)))
            return 1
        except BrokenPipeError:
            return 0
    return 0


def _read_line(received: bytearray) -> bytes | None:
    """Remove the next line from `received`, and read from stdin until there is one. Return None at
    the end of stdin. Raise FrameError if a line is longer than MAX_REQUEST_BYTES.
    """
    while (end := received.find(b"\n")) < 0:
        if len(received) > MAX_REQUEST_BYTES:
            raise FrameError(f"a request must have at most {MAX_REQUEST_BYTES} bytes")
        chunk = os.read(0, CHUNK_BYTES)
        if not chunk:
            return None
        received += chunk
    line = bytes(received[:end])
    del received[: end + 1]
    return line


def _list_sessions(*, includes_ended: bool) -> list[dict[str, Any]]:
    """Return the metadata of the running sessions, and of up to MAX_ENDED_SESSIONS ended ones."""
    sessions = list[dict[str, Any]]()
    ended_count = 0
    for session in registry.list_sessions(os.environ):
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


def _relay_host_frames(session_id: str, received: bytes) -> int:
    """Copy bytes between the host of a session and the other machine until the host closes the
    connection. `received` are the bytes after the request.
    """
    session = registry.find_session(session_id, os.environ)
    if session is None:
        raise FrameError(f"there is no session {session_id[:60]}")
    try:
        host_socket = sockets.connect_to_host(session.folder)
    except OSError as error:
        raise FrameError(f"the session does not run: {error.strerror}") from None
    with host_socket:
        host_socket.sendall(received)
        # A thread of its own, so that neither direction can block the other one.
        Thread(target=_copy_stdin, args=(host_socket,), daemon=True).start()
        while chunk := _receive(host_socket):
            write_all(1, chunk)
    return 0


def _copy_stdin(host_socket: socket) -> None:
    """Send stdin to the host, and then tell the host that the client sends no more frames."""
    with suppress(OSError):
        while chunk := os.read(0, CHUNK_BYTES):
            host_socket.sendall(chunk)
        host_socket.shutdown(SHUT_WR)


def _receive(host_socket: socket) -> bytes:
    try:
        return host_socket.recv(CHUNK_BYTES)
    except OSError:
        return b""


def _run_command(request: RelayRequest, installed_options: "dict[str, str]") -> int:
    """Run a command of this package with the request's stdin. Return its exit status."""
    cwd = os.path.expanduser(request.cwd or "~")
    argv = [sys.executable, "-I", "-m", "shim"]
    for name, value in installed_options.items():
        argv += ["--installed", f"{name}={value}"]
    try:
        process = subprocess.run(
            [*argv, *request.argv], input=request.input_text.encode(), cwd=cwd, check=False
        )
    except OSError as error:
        sys.stderr.write(f"error: {cwd}: {error.strerror}\n")
        return 1
    return process.returncode
