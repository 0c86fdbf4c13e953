"""A client's connection to the host of a session: for a loop, and for a command that blocks.

    async with await connect(session, os.environ, client="page") as link:
        link.welcome                                # the host's first frame
        async for frame in link: …                  # a dict; of a line, `raw` has Claude's own
                                                    bytes
        await link.send({"kind": "interrupt", "id": "1"})

Nothing of an event loop is imported for the blocking form.
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
    Cursor,
    FrameError,
    encode_frame,
    extract_line,
    parse_frame,
)
from shim.core.errors import FrontendError, MachineError
from shim.core.reading.ids import shorten_session_id
from shim.core.reading.lines import MAX_LINE_BYTES, LineSplitter
from shim.io.stamps import create_uuid

WELCOME_TIMEOUT_S = 30.0  # for a host that is only being started on a busy machine
ANSWER_TIMEOUT_S = 10.0  # for a host that is up, whatever it is asked
# for a host to hear that who drove has left, or it would refuse who speaks next
LEAVE_TIMEOUT_S = 1.0
NOT_ANSWERING = "does not answer"
MAX_FRAME_BYTES = 2 * MAX_LINE_BYTES  # of a host's frame: a line, and what stands around it
READ_CHUNK_BYTES = 256 * 1024
# The frames that answer one of ours, by its id; and a question that was answered, by its own id.
ANSWER_KINDS = ("accepted", "refused", "response")


class HostGoneError(FrontendError):
    """The session has no living host, or lost it. `reason` is the host's own word, "" where it said
    none.

    `alive`: the host has not gone yet. It has closed the connection, and a respawn would stop it.
    """

    def __init__(self, session: str, reason: str = "", *, is_running: bool = False) -> None:
        why = f" ({reason})" if reason else ""
        gone, again = (
            "does not live on its own",
            f"`claude respawn {shorten_session_id(session)}` begins it again",
        )
        if is_running:
            gone, again = (
                "has a host that closed the connection",
                "`claude agents --json` shows whether it goes on",
            )
        super().__init__(f"the session {session} {gone}{why}", hint=again)
        self.reason = reason


class NoAnswerError(MachineError):
    """The session lives, and nobody is let in, or heard. Nothing is begun again: that would stop
    it.
    """

    def __init__(self, session: str, pid: int | None, why: str = NOT_ANSWERING) -> None:
        ends = f"`claude stop {shorten_session_id(session)}` ends the session"
        stopped = (
            f"`kill -CONT {pid}` lets a process go on that was halted"
            if pid
            else "it is being started"
        )
        hint = (
            f"{stopped}, {ends}"
            if why == NOT_ANSWERING
            else f"try again once one of them has left; {ends}"
        )
        super().__init__(
            f"the session {session} has a host that {why}" + (f" (pid {pid})" if pid else ""),
            hint=hint,
        )


class HostConnection:
    """One connection, once the host has said welcome."""

    def __init__(
        self, session: str, socket_: socket.socket, hello: Mapping[str, Any], pid: int | None = None
    ) -> None:
        self.session_id = session
        self.pid = pid  # None while the host is being started
        self.welcome: Mapping[str, Any] = {}
        self._hello = hello
        self._socket = socket_
        self._splitter = LineSplitter(MAX_FRAME_BYTES)
        self._received_frames = deque[dict[str, Any]]()
        self.is_closed = False  # the host has closed the connection

    @property
    def welcome_timeout_s(self) -> float:
        """The seconds for a welcome."""
        return WELCOME_TIMEOUT_S if self.pid is None else ANSWER_TIMEOUT_S

    # -- for a loop --------------------------------------------------------------------------------

    async def send_frame(self, said: Mapping[str, Any]) -> None:
        """Say one frame, `{"kind": …}`. HostGoneError if nobody hears it."""
        import anyio

        data = memoryview(_encode_frame(said))
        while data:
            try:
                data = data[self._socket.send(data) :]
            except BlockingIOError:
                await anyio.wait_writable(self._socket)
            except OSError:
                raise HostGoneError(self.session_id) from None

    async def wait_for_answer(self, answered: Awaitable[str]) -> str:
        """What the host answers. NoAnswerError for one that was halted behind its welcome."""
        import anyio

        with anyio.move_on_after(WELCOME_TIMEOUT_S):
            return await answered
        raise NoAnswerError(self.session_id, self.pid)

    def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        return self

    async def __anext__(self) -> dict[str, Any]:
        """The next frame; the end, where the host has closed the connection."""
        import anyio

        while not self._received_frames:
            await anyio.wait_readable(self._socket)
            if not self._receive_chunk():
                raise StopAsyncIteration
        return self._received_frames.popleft()

    async def _exchange_hello(self, seconds: float) -> None:
        import anyio

        self._socket.setblocking(False)
        with suppress(HostGoneError):  # a host that has closed already has said why
            await self.send_frame(self._hello)
        with anyio.move_on_after(seconds):
            self._accept_welcome(await anext(self, None))
            return
        raise NoAnswerError(self.session_id, self.pid)

    async def __aenter__(self) -> "HostConnection":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: object, trace: TracebackType | None
    ) -> None:
        import anyio

        try:
            with anyio.move_on_after(LEAVE_TIMEOUT_S):
                if self._shut_down_sending():
                    async for _ in self:
                        pass
        finally:
            self.close()

    # -- for a command -----------------------------------------------------------------------------

    def send_frame_blocking(self, said: Mapping[str, Any]) -> None:
        """Say one frame, and wait until the host has room for it."""
        data = memoryview(_encode_frame(said))
        while data:
            try:
                data = data[self._socket.send(data) :]
            except BlockingIOError:
                if not select.select([], [self._socket], [], ANSWER_TIMEOUT_S)[1]:
                    raise NoAnswerError(self.session_id, self.pid) from None
            except OSError:
                raise HostGoneError(self.session_id) from None

    def read_frames(
        self, seconds: float | None = None, *, stop_descriptor: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """The frames that come within `seconds`, until the host closes the connection or `unless`
        can be read.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        sources = [self.fileno()] if stop_descriptor is None else [self.fileno(), stop_descriptor]
        while True:
            while self._received_frames:
                yield self._received_frames.popleft()
            left = None if deadline is None else deadline - time.monotonic()
            ready = (
                [] if left is not None and left <= 0 else select.select(sources, [], [], left)[0]
            )
            if not ready or stop_descriptor in ready or not self._receive_chunk():
                return

    def read_available_frames(self) -> tuple[list[dict[str, Any]], bool]:
        """The frames that have come, without waiting, and whether more may come: for whoever waits
        on `fileno`.
        """
        going = self._receive_chunk()
        frames = list(self._received_frames)
        self._received_frames.clear()
        return frames, going

    def _exchange_hello_blocking(self, seconds: float) -> None:
        self._socket.setblocking(False)
        with suppress(HostGoneError):
            self.send_frame_blocking(self._hello)
        self._accept_welcome(next(self.read_frames(seconds), None))

    # -- both --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave; the session goes on."""
        self._socket.close()

    def __enter__(self) -> "HostConnection":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: object, trace: TracebackType | None
    ) -> None:
        try:
            for _ in self.read_frames(LEAVE_TIMEOUT_S) if self._shut_down_sending() else ():
                pass
        finally:
            self.close()

    def _shut_down_sending(self) -> bool:
        """Say that nothing more comes; whether the host closes the connection for that, and it
        matters when.
        """
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return False
        return bool(self._hello["role"] == DRIVE)

    def fileno(self) -> int:
        """The descriptor, to wait for frames beside other things."""
        return self._socket.fileno()

    def _receive_chunk(self) -> bool:
        """Take what has come; False at the end."""
        try:
            chunk = self._socket.recv(READ_CHUNK_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            chunk = b""
        self.is_closed = not chunk
        for raw in self._splitter.feed(chunk):
            try:
                said = parse_frame(raw)
            except FrameError:
                continue  # a host of another version; what cannot be read cannot be meant for us
            if said["kind"] == "line":
                said["raw"] = extract_line(raw)
            self._received_frames.append(said)
        return bool(chunk)

    def _accept_welcome(self, first: Mapping[str, Any] | None) -> None:
        if first is None and not self.is_closed:
            raise NoAnswerError(self.session_id, self.pid)
        if first is None or first["kind"] != "welcome":
            reason = str((first or {}).get("reason") or (first or {}).get("text") or "")
            if reason.endswith(FULL_REASON):
                raise NoAnswerError(self.session_id, self.pid, f"is full: {reason}")
            raise HostGoneError(self.session_id, reason)
        self.welcome = first


async def connect_to_session(
    session: str,
    environment: Mapping[str, str],
    *,
    role: str = DRIVE,
    after: Cursor | None = None,
    **hello: Any,
) -> HostConnection:
    """A connection to a session's host, which has said welcome.

    HostGoneError where there is none, NoAnswerError for one that lets us not in.
    `hello` are other keys of the first frame: client, replay, partial, knows.
    """
    with _open_connection(session, environment, role, after, hello) as link:
        await link._exchange_hello(link.welcome_timeout_s)
    return link


def connect_to_session_blocking(
    session: str,
    environment: Mapping[str, str],
    *,
    role: str = DRIVE,
    after: Cursor | None = None,
    timeout_s: float | None = None,
    **hello: Any,
) -> HostConnection:
    """The same for a command, which may have less patience."""
    with _open_connection(session, environment, role, after, hello) as link:
        link._exchange_hello_blocking(link.welcome_timeout_s if timeout_s is None else timeout_s)
    return link


def exchange_frames(
    session: str,
    frames: Sequence[Mapping[str, Any]],
    environment: Mapping[str, str],
    *,
    seconds: float = ANSWER_TIMEOUT_S,
    **hello: Any,
) -> list[dict[str, Any]]:
    """Say some frames, and give back the welcome and all that came until each was answered, or
    `seconds` were over.

    A frame without an id gets one. The answer to `answer` is `settled`, the one to `end` is `bye`.
    """
    said = [{"id": create_uuid(), **one} for one in frames]
    waiting = {one["id"] for one in said}
    heard = list[dict[str, Any]]()
    with connect_to_session_blocking(
        session, environment, **{"replay": False, "partial": False, **hello}
    ) as link:
        heard.append(dict(link.welcome))
        for one in said:
            link.send_frame_blocking(one)
        settles = {one.get("question"): one["id"] for one in said if one["kind"] == "answer"}
        if "accepted" not in link.welcome.get("knows", ()):  # a host that answers these kinds alone
            waiting = {one["id"] for one in said if one["kind"] in ("answer", "end")}
        for came in link.read_frames(seconds) if waiting else ():
            heard.append(came)
            if came["kind"] in ANSWER_KINDS:
                waiting.discard(came.get("id"))
            elif came["kind"] == "settled":
                waiting.discard(settles.get(came.get("question")))
            if not waiting or came["kind"] == "bye":
                break
    return heard


@contextmanager
def _open_connection(
    session: str,
    environment: Mapping[str, str],
    role: str,
    after: Cursor | None,
    hello: Mapping[str, Any],
) -> Iterator[HostConnection]:
    """A connection, in whose context the host is greeted; what goes wrong with that is said with
    its reason.
    """
    one = registry.find_session(session, environment)
    pid = None if one is None else one.metadata["pid"]
    try:
        socket_ = sockets.connect_to_host(registry.get_session_folder(session, environment))
    except BlockingIOError:  # so many wait for a place that it cannot be listening to them
        raise NoAnswerError(session, pid) from None
    except (FileNotFoundError, ConnectionRefusedError):  # nobody listens, and that is all
        raise _add_failure_reason(HostGoneError(session), session, environment) from None
    except (OSError, ValueError) as error:
        raise _add_failure_reason(
            HostGoneError(session, getattr(error, "strerror", "") or ""), session, environment
        ) from None
    cursor = None if after is None else after._asdict()
    first = {
        "kind": "hello",
        "protocol": PROTOCOL_VERSION,
        "client": f"shim {os.getpid()}",
        "role": role,
        "after": cursor,
    }
    link = HostConnection(session, socket_, {**first, "knows": OPTIONAL_KINDS, **hello}, pid)
    try:
        yield link
    except BaseException as error:
        link.close()
        raise _add_failure_reason(error, session, environment) from None


def _add_failure_reason(
    error: BaseException, session: str, environment: Mapping[str, str]
) -> BaseException:
    """The same error, with what the facts say of a host that could not begin, or that still lives."""
    if not isinstance(error, HostGoneError):
        return error
    one = registry.find_session(session, environment)
    # one that said its end is about to go
    if one is not None and one.is_running and not registry.has_ended(one.metadata):
        return HostGoneError(session, error.reason, is_running=True)
    if one is None or one.metadata["state"] != "failed":
        return error
    return HostGoneError(session, one.metadata.get("detail") or error.reason)


def _encode_frame(said: Mapping[str, Any]) -> bytes:
    return encode_frame(
        str(said["kind"]), **{key: value for key, value in said.items() if key != "kind"}
    )
