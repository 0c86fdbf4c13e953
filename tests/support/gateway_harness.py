"""A gateway in this process with real sockets, stand-ins for hosts, and an HTTP client."""

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import anyio
import orjson

from shim.bridge.gateway.hosts import NewSessionRequest
from shim.bridge.gateway.server import GatewayEndpoint, create_gateway_server, open_listening_socket
from shim.bridge.gateway.tokens import GatewayTokenFile
from shim.core.bridge.frames import (
    LogCursor,
    encode_frame,
    encode_line_frame,
    encode_partial_line_frame,
    extract_stream_json_line,
    parse_frame,
)

TIMEOUT_S = 30.0  # seconds; no test takes so long unless something hangs
MAX_STREAM_S = 60.0  # a test fails if its stream does not end in this time
SESSION = "1f0c2ab4-5d36-4e6f-8a7b-90c1d2e3f405"
OTHER = "2e1d3bc5-6e47-4f70-9b8c-a1d2e3f40516"
QUESTION = {
    "subtype": "can_use_tool",
    "tool_name": "Bash",
    "input": {"command": "rm -r build"},
    "tool_use_id": "t1",
    "permission_suggestions": [
        {"type": "addRules", "rules": [{"toolName": "Bash", "ruleContent": "rm:*"}]},
        {"type": "addDirectories", "directories": ["/etc"], "destination": "session"},
        {"type": "setMode", "mode": "acceptEdits", "destination": "session"},
    ],
}


class StandIn:
    """A stand-in for the host of one session, with a log, permission prompts and a controller.
    `received` has the frames of its clients.
    """

    def __init__(self, session: str = SESSION, **metadata: Any) -> None:
        usual = {
            "vendor": "demo",
            "name": "a test",
            "cwd": "/repo",
            "created": 1,
            "state": "working",
            "alive": True,
        }
        self.metadata = {"id": session[:8], "session": session, **usual, **metadata}
        self.lines: list[tuple[int, bytes]] = []
        self.questions: dict[str, dict[str, Any]] = {}
        self.resolved: dict[str, tuple[str, str]] = {}
        self.driver: str | None = None
        self.received: list[dict[str, Any]] = []
        self.clients: list[Client] = []

    def add_line(self, **line: Any) -> None:
        """Add a complete line to the conversation, and send it to all clients."""
        self.lines.append((1000 + len(self.lines), json.dumps(line).encode()))
        self.broadcast_frame(encode_line_frame(len(self.lines), 1, *self.lines[-1]))

    def send_partial(self, **event: Any) -> None:
        """Send a partial line to all clients."""
        self.broadcast_frame(
            encode_partial_line_frame(
                2000, json.dumps({"type": "stream_event", "event": event}).encode()
            )
        )

    def broadcast_frame(self, raw: bytes) -> None:
        for client in self.clients:
            client.deliver_frame(raw)

    def add_prompt(self, name: str = "q1", **request: Any) -> None:
        """Add a permission prompt, and send it to all clients."""
        self.questions[name] = {**QUESTION, **request}
        self.broadcast_frame(self.build_prompt_frame(name))

    def build_prompt_frame(self, name: str) -> bytes:
        return encode_frame("question", question=name, at=1, request=self.questions[name])


class Client:
    """A connection to a stand-in."""

    def __init__(self, host: StandIn, as_controller: bool, after: int) -> None:
        self._host = host
        self._as_controller = as_controller
        self._into, self._out_of = anyio.create_memory_object_stream[dict[str, Any]](100_000)
        about = {
            "session": host.metadata["session"],
            "generation": 1,
            "number": len(host.lines),
            "driver": host.driver,
        }
        about |= {"client": "web", "cwd": host.metadata["cwd"]}
        about |= {
            "questions": list(host.questions),
            "name": host.metadata["name"],
            "state": {"state": "working"},
        }
        about |= {
            key: host.metadata[key] for key in ("model", "mode", "bypass") if key in host.metadata
        }
        initialize = {"secret": 1, "models": host.metadata.get("models", [])}
        self.deliver_frame(encode_frame("welcome", **about, initialize=initialize))
        for number, (at, line) in enumerate(() if as_controller else host.lines[after:], after + 1):
            self.deliver_frame(encode_line_frame(number, 1, at, line))
        self.deliver_frame(encode_frame("synced", number=len(host.lines)))
        for name in host.questions:
            self.deliver_frame(host.build_prompt_frame(name))

    def deliver_frame(self, raw: bytes) -> None:
        """Deliver a frame, parsed as `HostConnection` does it."""
        fields = parse_frame(raw)
        more = (
            {"raw": extract_stream_json_line(raw.rstrip(b"\n"))} if fields["kind"] == "line" else {}
        )
        self._into.send_nowait({**fields, **more})

    def close(self) -> None:
        """Close the connection from the side of the host."""
        self._into.close()

    def disconnect(self) -> None:
        """Close the connection from the side of the gateway."""
        self._into.close()
        self._out_of.close()

    def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        return aiter(self._out_of)

    async def send_frame(self, frame: Mapping[str, Any]) -> None:
        """Handle a frame like a host, as far as the gateway can observe it."""
        host = self._host
        host.received.append(dict(frame))
        request_id, kind = frame.get("id"), frame["kind"]
        if kind == "take":
            host.driver = "web"
        elif kind == "message" and host.driver not in (None, "web"):
            text = f"{host.driver} drives this session"
            self.deliver_frame(
                encode_frame(
                    "refused", id=request_id, reason="not-driver", text=text, driver=host.driver
                )
            )
            return
        elif kind == "answer":
            name = frame["question"]
            if name in host.questions:
                del host.questions[name]
                host.resolved[name] = "web", frame["decision"].get("behavior", "allow")
            elif name not in host.resolved:
                self.deliver_frame(
                    encode_frame(
                        "refused",
                        id=request_id,
                        reason="unknown-question",
                        text=f"there is no question {name}",
                    )
                )
                return
            by, how = host.resolved[name]
            host.broadcast_frame(encode_frame("settled", question=name, by=by, how=how))
        elif kind == "end":
            host.metadata["alive"] = False
            host.broadcast_frame(encode_frame("bye", reason="ended"))
            return
        self.deliver_frame(encode_frame("accepted", id=request_id))


class StandIns:
    """Implements the gateway's access to hosts with stand-ins."""

    def __init__(self, *hosts: StandIn) -> None:
        self.hosts = {host.metadata["session"]: host for host in hosts}
        self.started_sessions: list[NewSessionRequest] = []
        self.woken: list[tuple[str, str]] = []

    def list_sessions(self) -> list[dict[str, Any]]:
        return [host.metadata for host in self.hosts.values()]

    def find_sessions(self, id_prefix: str) -> list[dict[str, Any]]:
        return [
            host.metadata for session, host in self.hosts.items() if session.startswith(id_prefix)
        ]

    def list_installed_vendors(self) -> list[str]:
        return ["qwen", "demo"]

    def start_session(self, new_session: NewSessionRequest) -> str:
        self.started_sessions.append(new_session)
        return OTHER

    def respawn_session(self, session_id: str, prompt: str, prompt_id: str) -> bool:
        self.woken.append((session_id, prompt, prompt_id))
        return True

    def has_message(self, session_id: str, prompt_id: str) -> bool:
        return False

    def is_cursor_at_log_end(self, session_id: str, cursor: LogCursor) -> bool:
        return cursor.number >= len(self.hosts[session_id].lines)

    @asynccontextmanager
    async def connect_to_session(
        self,
        session_id: str,
        *,
        as_controller: bool,
        after: LogCursor | None = None,
    ) -> AsyncIterator[Client]:
        host = self.hosts[session_id]
        client = Client(host, as_controller, after.number if after else 0)
        host.clients.append(client)
        try:
            yield client
        finally:
            host.clients.remove(client)
            client.disconnect()


class Answered(NamedTuple):
    """A response of the gateway."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class StreamedEvent(NamedTuple):
    """One event of an event stream."""

    kind: str
    data: bytes
    id: str = ""

    @property
    def json(self) -> Any:
        return orjson.loads(self.data)


class Web:
    """A running gateway."""

    def __init__(self, hosts: Any, tokens: GatewayTokenFile, endpoint: GatewayEndpoint) -> None:
        self.hosts = hosts
        self.tokens = tokens
        self._opened = open_listening_socket(endpoint)
        self.port: int = self._opened.getsockname()[1]
        self.host = f"127.0.0.1:{self.port}"
        self.server = create_gateway_server(endpoint, hosts, tokens, self._opened)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_event: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run_loop, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + TIMEOUT_S
        while not self.server.started:
            assert time.monotonic() < deadline and self._thread.is_alive()
            time.sleep(0.001)

    def _run_loop(self) -> None:
        asyncio.run(self._serve_until_closed())

    async def _serve_until_closed(self) -> None:
        """Serve like uvicorn, but without its polling, which takes 0.1 s per test."""
        self._loop, self._stop_event = asyncio.get_running_loop(), asyncio.Event()
        self.server.config.load()
        self.server.lifespan = self.server.config.lifespan_class(self.server.config)
        await self.server.startup(sockets=[self._opened])
        await self._stop_event.wait()
        for server in self.server.servers:
            server.close()
        for connection in list(self.server.server_state.connections):
            connection.transport.abort()
        while self.server.server_state.tasks:
            await asyncio.sleep(0)

    def close(self) -> None:
        """Stop the gateway."""
        assert self._loop is not None and self._stop_event is not None
        self._loop.call_soon_threadsafe(self._stop_event.set)
        self._thread.join(TIMEOUT_S)
        self._opened.close()
        assert not self._thread.is_alive()

    def call_in_thread(self, do: Any, *args: Any, **keywords: Any) -> Any:
        """Call a function in the thread of the gateway. Return its result."""
        assert self._loop is not None
        done = asyncio.run_coroutine_threadsafe(_call_function(do, args, keywords), self._loop)
        return done.result(TIMEOUT_S)

    def build_headers(self, role: str | None = "drive") -> dict[str, str]:
        token = getattr(self.tokens.load_tokens(), role) if role else ""
        return {"Authorization": f"Bearer {token}"} if role else {}

    def send_request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        role: str | None = "drive",
        headers: Mapping[str, str] = {},
    ) -> Answered:
        """Send one request on its own connection. `body` is JSON, or bytes that are sent unchanged."""
        return ask_at(self.port, method, path, body, {**self.build_headers(role), **headers})

    def send_get(self, path: str, **options: Any) -> Answered:
        return self.send_request("GET", path, **options)

    def send_post(self, path: str, body: Any = None, **options: Any) -> Answered:
        return self.send_request("POST", path, {} if body is None else body, **options)

    def open_stream(
        self, path: str, *, role: str = "drive", after: str = ""
    ) -> AbstractContextManager[Iterator[StreamedEvent]]:
        """Yield the events of a stream as they come."""
        return stream_at(self.port, path, getattr(self.tokens.load_tokens(), role), after)

    def open_connection(self) -> socket.socket:
        """Open a plain TCP connection."""
        return socket.create_connection(("127.0.0.1", self.port), TIMEOUT_S)


def ask_at(port: int, method: str, path: str, body: Any, headers: Mapping[str, str]) -> Answered:
    """Send a request to the gateway at a port. Return its response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    kind = {"Content-Type": "application/json"} if data is not None else {}
    try:
        connection.request(method, path, data, {**kind, **headers})
        answer = connection.getresponse()
        return Answered(
            answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        )
    finally:
        connection.close()


@contextmanager
def stream_at(
    port: int, path: str, token: str, after: str = "", timeout_s: float = TIMEOUT_S
) -> Iterator[Iterator[StreamedEvent]]:
    """Yield the events of a stream of the gateway at a port."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    more = {"Last-Event-ID": after} if after else {}
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}", **more})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield parse_events(_read_lines(answer))
    finally:
        if connection.sock is not None:
            connection.sock.close()
        connection.close()


def _read_lines(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield the lines of a stream until it ends. Comments that keep the stream open do not extend
    the time.
    """
    deadline = time.monotonic() + MAX_STREAM_S
    while line := answer.readline():
        assert time.monotonic() < deadline, "the stream did not end in time"
        yield line


async def _call_function(do: Any, args: Any, keywords: Any) -> Any:
    return do(*args, **keywords)


def parse_events(lines: Iterator[bytes]) -> Iterator[StreamedEvent]:
    """Yield the events in the lines of a stream, without comments."""
    kind, data, event_id = "", list[bytes](), ""
    for line in lines:
        name, _, value = line.rstrip(b"\n").partition(b": ")
        if name == b"event":
            kind = value.decode()
        elif name == b"id":
            event_id = value.decode()
        elif name == b"data":
            data.append(value)
        elif not name and data:
            yield StreamedEvent(kind, b"\n".join(data), event_id)
            kind, data, event_id = "", [], ""
