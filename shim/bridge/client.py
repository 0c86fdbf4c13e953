"""A client's connection to the host of a session, with an asynchronous and a blocking form.

    async with await connect_to_session(session_id, os.environ, client="page") as connection:
        connection.welcome                          # the host's first frame
        async for frame in connection: …            # a dict; the `raw` of a line has Claude's own
                                                    # bytes
        await connection.send_frame({"kind": "interrupt", "id": "1"})

The blocking form does not import anyio.
"""

import os
import select
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

from shim.bridge import registry, sockets
from shim.core.bridge.frames import (
    DRIVE,
    FULL_REASON,
    OPTIONAL_KINDS,
    PROTOCOL_VERSION,
    FrameError,
    LogCursor,
    encode_frame,
    extract_stream_json_line,
    parse_frame,
)
from shim.core.errors import FrontendError, SystemResourceError
from shim.core.reading import MAX_LINE_BYTES
from shim.core.reading.lines import LineSplitter
from shim.core.reading.values import as_dict, get_text, shorten_session_id, split_machine
from shim.io.ids import create_uuid

WELCOME_TIMEOUT_S = 30.0  # a host that starts on a busy machine needs this long
ANSWER_TIMEOUT_S = 10.0  # for each answer from a running host
# The time in which a host notices that its controller has disconnected.
# Until then the host refuses other controllers.
LEAVE_TIMEOUT_S = 1.0
NOT_ANSWERING = "does not respond"
MAX_FRAME_BYTES = 2 * MAX_LINE_BYTES  # a host's frame contains a line and other fields
READ_CHUNK_BYTES = 64 * 1024  # a few hundred frames, which are parsed in about 1 ms
# The kinds of frames that answer a client's frame. An answer has the same id as the client's frame.
ANSWER_KINDS = ("accepted", "refused", "response")


class HostUnavailableError(FrontendError):
    """The session has no running host, or the connection to the host was lost. `reason` is the
    host's reason, or "".

    `is_running` is True if the host has closed the connection but is still running. A respawn would
    stop that host.
    """

    def __init__(self, session_id: str, reason: str = "", *, is_running: bool = False) -> None:
        suffix = ""
        if reason:
            suffix = f" ({reason})"
        problem = "is not running in the background"
        hint = f"`claude respawn {shorten_session_id(session_id)}` restarts the session"
        if is_running:
            problem = "is unavailable because its host process closed the connection"
            hint = "`claude agents --json` shows whether the session is still running"
        super().__init__(f"the session {session_id} {problem}{suffix}", hint=hint)
        self.reason = reason


class HostNotAnsweringError(SystemResourceError):
    """The session is running, but its host does not answer. The session must not be started again,
    because that would stop the host.
    """

    def __init__(self, session_id: str, pid: int | None, reason: str = NOT_ANSWERING) -> None:
        stop_hint = f"`claude stop {shorten_session_id(session_id)}` stops the session"
        wait_hint = "the process is still starting"
        if pid:
            wait_hint = f"`kill -CONT {pid}` resumes a stopped process"
        if reason == NOT_ANSWERING:
            hint = f"{wait_hint}, {stop_hint}"
        else:
            hint = f"try again when a client has disconnected; {stop_hint}"
        super().__init__(
            f"the host process of session {session_id} {reason}" + (f" (pid {pid})" if pid else ""),
            hint=hint,
        )


class HostConnection:
    """A connection to a host that has sent its `welcome` frame."""

    def __init__(
        self,
        session_id: str,
        host_socket: socket.socket,
        hello: Mapping[str, Any],
        pid: int | None = None,
    ) -> None:
        self.session_id = session_id
        self.pid = pid  # None while the host is being started
        self.welcome: Mapping[str, Any] = {}
        self._hello = hello
        self.host_socket = host_socket
        self._splitter = LineSplitter(MAX_FRAME_BYTES)
        self._received_frames = deque[dict[str, Any]]()
        self.is_closed = False  # the host has closed the connection

    @property
    def welcome_timeout_s(self) -> float:
        """The time to wait for the host's `welcome` frame, in seconds."""
        if self.pid is None:
            return WELCOME_TIMEOUT_S
        return ANSWER_TIMEOUT_S

    # -- asynchronous form -------------------------------------------------------------------------

    async def send_frame(self, frame: Mapping[str, Any]) -> None:
        """Send one frame, such as `{"kind": "end"}`. Raise HostUnavailableError if the host has
        disconnected.
        """
        import anyio

        data = memoryview(_encode_frame(frame))
        while data:
            try:
                data = data[self.host_socket.send(data) :]
            except BlockingIOError:
                await anyio.wait_writable(self.host_socket)
            except OSError:
                raise HostUnavailableError(self.session_id) from None

    async def wait_for_host_answer(
        self, host_answer: Awaitable[Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        """Return the host's answer. Raise HostNotAnsweringError if no answer arrives within
        WELCOME_TIMEOUT_S, for example because the host process was suspended after its welcome.
        """
        import anyio

        with anyio.move_on_after(WELCOME_TIMEOUT_S):
            return await host_answer
        raise HostNotAnsweringError(self.session_id, self.pid)

    def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        return self

    async def __anext__(self) -> dict[str, Any]:
        """Return the next frame. Raise StopAsyncIteration if the host has closed the connection."""
        import anyio

        while not self._received_frames:
            await anyio.wait_readable(self.host_socket)
            if not self._receive_chunk():
                raise StopAsyncIteration
        return self._received_frames.popleft()

    async def _exchange_hello(self, timeout_s: float) -> None:
        import anyio

        self.host_socket.setblocking(False)
        with suppress(HostUnavailableError):  # a host sends `bye` before it disconnects
            await self.send_frame(self._hello)
        with anyio.move_on_after(timeout_s):
            self._accept_welcome(await anext(self, None))
            return
        raise HostNotAnsweringError(self.session_id, self.pid)

    async def __aenter__(self) -> "HostConnection":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        import anyio

        try:
            with anyio.move_on_after(LEAVE_TIMEOUT_S):
                if self._shut_down_sending():
                    async for _ in self:
                        pass
        finally:
            self.close()

    # -- blocking form -----------------------------------------------------------------------------

    def send_frame_blocking(self, frame: Mapping[str, Any]) -> None:
        """Send one frame. Wait up to ANSWER_TIMEOUT_S until the host reads it.

        Raise HostNotAnsweringError if the host does not read the frame in time, and
        HostUnavailableError if the host has disconnected.
        """
        data = memoryview(_encode_frame(frame))
        while data:
            try:
                data = data[self.host_socket.send(data) :]
            except BlockingIOError:
                if not select.select([], [self.host_socket], [], ANSWER_TIMEOUT_S)[1]:
                    raise HostNotAnsweringError(self.session_id, self.pid) from None
            except OSError:
                raise HostUnavailableError(self.session_id) from None

    def read_frames(
        self, timeout_s: float | None = None, *, stop_descriptor: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield the frames that arrive within `timeout_s`. Stop early if the host closes the
        connection or `stop_descriptor` becomes readable.
        """
        deadline = None
        if timeout_s is not None:
            deadline = time.monotonic() + timeout_s
        if stop_descriptor is None:
            sources = [self.fileno()]
        else:
            sources = [self.fileno(), stop_descriptor]
        while True:
            while self._received_frames:
                yield self._received_frames.popleft()
            remaining_s = None
            if deadline is not None:
                remaining_s = deadline - time.monotonic()
            ready = []
            if not (remaining_s is not None and remaining_s <= 0):
                ready = select.select(sources, [], [], remaining_s)[0]
            if not ready or stop_descriptor in ready or not self._receive_chunk():
                return

    def read_available_frames(self) -> tuple[list[dict[str, Any]], bool]:
        """Return the frames that have already arrived, and whether more may arrive. This method
        does not block. Callers wait on `fileno` for new frames.
        """
        is_open = self._receive_chunk()
        frames = list(self._received_frames)
        self._received_frames.clear()
        return frames, is_open

    def _exchange_hello_blocking(self, timeout_s: float) -> None:
        self.host_socket.setblocking(False)
        with suppress(HostUnavailableError):
            self.send_frame_blocking(self._hello)
        self._accept_welcome(next(self.read_frames(timeout_s), None))

    # -- both forms --------------------------------------------------------------------------------

    def close(self) -> None:
        """Disconnect from the host. The session continues."""
        self.host_socket.close()

    def __enter__(self) -> "HostConnection":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        try:
            for _ in self.read_frames(LEAVE_TIMEOUT_S) if self._shut_down_sending() else ():
                pass
        finally:
            self.close()

    def _shut_down_sending(self) -> bool:
        """Tell the host that this client sends no more frames. Return whether to wait until the
        host closes the connection.

        Only a controller waits. The host can then accept another controller immediately.
        """
        try:
            self.host_socket.shutdown(socket.SHUT_WR)
        except OSError:
            return False
        return bool(self._hello["role"] == DRIVE)

    def fileno(self) -> int:
        """Return the file descriptor, for callers that wait for frames and for other events."""
        return self.host_socket.fileno()

    def _receive_chunk(self) -> bool:
        """Receive the available bytes. Return False at the end of the stream."""
        try:
            chunk = self.host_socket.recv(READ_CHUNK_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            chunk = b""
        self.is_closed = not chunk
        for raw in self._splitter.feed(chunk):
            try:
                frame = parse_frame(raw)
            except FrameError:
                continue  # a host of another version sends frames that this client does not need
            if frame["kind"] == "line":
                frame["raw"] = extract_stream_json_line(raw)
            self._received_frames.append(frame)
        return bool(chunk)

    def _accept_welcome(self, first_frame: Mapping[str, Any] | None) -> None:
        if first_frame is None and not self.is_closed:
            raise HostNotAnsweringError(self.session_id, self.pid)
        if first_frame is None or first_frame["kind"] != "welcome":
            frame = as_dict(first_frame)
            reason = get_text(frame, "reason", get_text(frame, "text"))
            if reason.endswith(FULL_REASON):
                raise HostNotAnsweringError(self.session_id, self.pid, f"is full: {reason}")
            raise HostUnavailableError(self.session_id, reason)
        self.welcome = first_frame


async def connect_to_session(
    session_id: str,
    environment: Mapping[str, str],
    *,
    role: str = DRIVE,
    after: LogCursor | None = None,
    **hello_fields: Any,
) -> HostConnection:
    """Connect to a session's host. Return the connection after the host has sent its `welcome`
    frame.

    Raise HostUnavailableError if the session has no host. Raise HostNotAnsweringError if the host
    does not answer or accepts no more clients. `hello_fields` are further keys of the client's
    first frame: client, replay, partial, knows.
    """
    import anyio.to_thread

    # The session lookup locks a file, and `connect` may block if the backlog is full.
    connection = await anyio.to_thread.run_sync(
        _open_connection, session_id, environment, role, after, hello_fields
    )
    with _close_on_error(connection, environment):
        await connection._exchange_hello(connection.welcome_timeout_s)
    return connection


def connect_to_session_blocking(
    session_id: str,
    environment: Mapping[str, str],
    *,
    role: str = DRIVE,
    after: LogCursor | None = None,
    timeout_s: float | None = None,
    **hello_fields: Any,
) -> HostConnection:
    """Connect to a session's host with blocking calls. `timeout_s` replaces the default timeout for
    the `welcome` frame.
    """
    connection = _open_connection(session_id, environment, role, after, hello_fields)
    with _close_on_error(connection, environment):
        connection._exchange_hello_blocking(
            connection.welcome_timeout_s if timeout_s is None else timeout_s
        )
    return connection


def send_frames_and_collect_answers(
    session_id: str,
    frames: Sequence[Mapping[str, Any]],
    environment: Mapping[str, str],
    **hello_fields: Any,
) -> list[dict[str, Any]]:
    """Send frames, and wait until every frame is answered. Return the `welcome` frame and all
    frames that arrive meanwhile.

    The timeout is ANSWER_TIMEOUT_S. Frames without an id get an id. The answer to an `answer` frame
    is `settled`, and the answer to `end` is `bye`.
    """
    requests = [{"id": create_uuid(), **request} for request in frames]
    pending_ids = {request["id"] for request in requests}
    received = list[dict[str, Any]]()
    with connect_to_session_blocking(
        session_id, environment, **{"replay": False, "partial": False, **hello_fields}
    ) as connection:
        received.append(dict(connection.welcome))
        for request in requests:
            connection.send_frame_blocking(request)
        ids_by_question = {
            request.get("question"): request["id"]
            for request in requests
            if request["kind"] == "answer"
        }
        if "accepted" not in connection.welcome.get("knows", ()):
            # Hosts of older versions answer only these kinds of frames.
            pending_ids = {
                request["id"] for request in requests if request["kind"] in ("answer", "end")
            }
        for frame in connection.read_frames(ANSWER_TIMEOUT_S) if pending_ids else ():
            received.append(frame)
            if frame["kind"] in ANSWER_KINDS:
                pending_ids.discard(frame.get("id"))
            elif frame["kind"] == "settled":
                pending_ids.discard(ids_by_question.get(frame.get("question")))
            if not pending_ids or frame["kind"] == "bye":
                break
    return received


def _open_connection(
    session_id: str,
    environment: Mapping[str, str],
    role: str,
    after: LogCursor | None,
    hello: Mapping[str, Any],
) -> HostConnection:
    """Connect to a host's socket. Return a connection that has not received the `welcome` frame
    yet.

    Raise the same errors as `connect_to_session`.
    """
    machine, _ = split_machine(session_id)
    if machine:
        from shim.bridge.remote import open_host_socket

        pid = None
        host_socket: socket.socket = open_host_socket(session_id, environment)
    else:
        host_socket, pid = _open_local_socket(session_id, environment)
    cursor = None
    if after is not None:
        cursor = after._asdict()
    hello_frame = {
        "kind": "hello",
        "protocol": PROTOCOL_VERSION,
        "client": f"shim {os.getpid()}",
        "role": role,
        "after": cursor,
    }
    return HostConnection(
        session_id, host_socket, {**hello_frame, "knows": OPTIONAL_KINDS, **hello}, pid
    )


def _open_local_socket(
    session_id: str, environment: Mapping[str, str]
) -> tuple[socket.socket, int | None]:
    """Connect to the socket of a host on this machine. Return the connection, and the host's pid if
    it is known.
    """
    session = registry.find_session(session_id, environment)
    pid = None
    if session is not None:
        pid = session.metadata["pid"]
    try:
        host_socket = sockets.connect_to_host(registry.get_session_folder(session_id, environment))
    except BlockingIOError:  # the backlog is full, so the host does not accept connections
        raise HostNotAnsweringError(session_id, pid) from None
    except (OSError, ValueError) as error:
        reason = ""
        # If the socket is missing or refuses the connection, no process is listening.
        if not isinstance(error, FileNotFoundError | ConnectionRefusedError):
            reason = getattr(error, "strerror", "") or ""
        unavailable_error = HostUnavailableError(session_id, reason)
        raise _add_failure_reason(unavailable_error, session_id, environment) from None
    return host_socket, pid


@contextmanager
def _close_on_error(connection: HostConnection, environment: Mapping[str, str]) -> Iterator[None]:
    """Close a connection if the host sends no `welcome` frame, and raise an error with the host's
    reason.
    """
    try:
        yield
    except BaseException as error:
        error = _add_ssh_failure(error, connection, environment)
        connection.close()
        raise _add_failure_reason(error, connection.session_id, environment) from None


def _add_ssh_failure(
    error: BaseException, connection: HostConnection, environment: Mapping[str, str]
) -> BaseException:
    """Return the error of `ssh` if it is the reason why another machine's session is unavailable.
    Return all other errors unchanged.
    """
    machine, _ = split_machine(connection.session_id)
    if not machine or not isinstance(error, HostUnavailableError) or error.reason:
        return error
    from shim.bridge.relay_process import MachineUnavailableError, RelaySocket
    from shim.bridge.remote import get_machine

    relay = connection.host_socket
    if isinstance(relay, RelaySocket) and (reason := relay.explain_end()):
        return MachineUnavailableError(get_machine(connection.session_id, environment), reason)
    return error


def _add_failure_reason(
    error: BaseException, session_id: str, environment: Mapping[str, str]
) -> BaseException:
    """Return the error with the failure reason from `host.json`. Return a different error if the
    host failed to start or is still running.
    """
    if not isinstance(error, HostUnavailableError):
        return error
    session = registry.find_session(session_id, environment)
    # A host that has recorded the session's end is about to exit.
    if (
        session is not None
        and session.is_running
        and not registry.has_session_ended(session.metadata)
    ):
        return HostUnavailableError(session_id, error.reason, is_running=True)
    if session is None or session.metadata["state"] != "failed":
        return error
    reason = session.metadata.get("detail") or error.reason
    return HostUnavailableError(session_id, reason)


def _encode_frame(fields: Mapping[str, Any]) -> bytes:
    return encode_frame(
        str(fields["kind"]), **{key: value for key, value in fields.items() if key != "kind"}
    )
