"""MCP servers of type `sdk`: they live in the frontend's process and are reached by `mcp_message`
(contract 6.6).

Sans-IO. A vendor's MCP client reaches such a server through a relay of ours, which is a caller
here: what the client says becomes a control request of ours, and the frontend's answer goes back
under the client's own id. Each server is greeted by us too, as the real claude greets it, so that
`init` and `mcp_status` can say what it has.
"""

from collections.abc import Iterable, Iterator, Mapping

import orjson

from shim.core.policy.rules import MCP, plain_name
from shim.core.reading.json_text import dump
from shim.core.reading.typed import Any, NamedTuple, Protocol

SERVERS = 100  # of one frontend: as many as a session of an agent may have
IN_FLIGHT = 200  # requests that wait for the frontend; an agent makes a few calls at once
TOOLS = 1000  # of one server that `init` lists
PAGES = 20  # of such a list: a server that always has another one is not asked for ever
VERSION = "2025-11-25"  # of the protocol, as the real claude asks for it
CLIENT = {"name": "claude-code", "title": "Claude Code", "version": "1"}
CALL = "tools/call"
INITIALIZE = "initialize"
# gemini's client parses a first text that is JSON as `structuredContent`, and accepts nothing but
# an object there.
JSON_READERS = frozenset(("gemini-cli-mcp-client",))
# JSON-RPC's own codes.
INVALID, FAILED = -32600, -32603
CLOSED = "the program that has this MCP server does not answer any more"
FULL = f"more than {IN_FLIGHT} requests wait for the program that has this MCP server"
TOO_LARGE = "the message of {size} bytes is too large for the program that has this MCP server (limit {limit})"
LATE = "the program that has this MCP server has not answered within {seconds:g} s"

Message = Mapping[str, Any]


class Caller(Protocol):
    """One connection of an agent's client to the server `server`."""

    server: str

    def deliver(self, line: bytes) -> None:
        """Take a whole line for the client, its LF included."""


class SdkServer:
    """One server, as far as it has said what it is. `status` is one of Claude's words."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.status = "pending"
        self.greeted = False
        self.error = ""
        self.info: Message = {}
        self.tools: list[Message] = []
        self.pages = 0

    @property
    def fact(self) -> dict[str, Any]:
        """What `init` says of it."""
        return {"name": self.name, "status": self.status, "source": "sdk"}

    @property
    def facts(self) -> dict[str, Any]:
        """What `mcp_status` says of it."""
        said = self.fact | {"transport": "sdk", "scope": "dynamic"}
        if self.error:
            said["error"] = self.error
        if self.status == "connected":
            said |= {"serverInfo": self.info, "tools": [_described(tool) for tool in self.tools]}
        return said


class Waiting(NamedTuple):
    """A request that waits for the frontend. `caller` is None for one of ours; `identity` is the
    caller's own id.
    """

    caller: Caller | None
    server: str
    method: str
    identity: object
    number: int


class SdkServers:
    """The servers of one frontend. No line of ours is longer than `line_bytes`."""

    def __init__(self, line_bytes: int) -> None:
        self._line_bytes = line_bytes
        self._servers: dict[str, SdkServer] = {}
        self._waiting: dict[str, Waiting] = {}
        self._callers: list[Caller] = []
        self._json_readers: list[Caller] = []  # clients of JSON_READERS
        self._number = self._said = 0
        self._lines: list[bytes] = []
        self._closed = False

    def __bool__(self) -> bool:
        return bool(self._servers)

    def __iter__(self) -> Iterator[SdkServer]:
        return iter(self._servers.values())

    def __contains__(self, name: str) -> bool:
        return name in self._servers

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._servers)

    @property
    def tool_names(self) -> list[str]:
        """Claude's names of all tools that are known."""
        return [
            tool_name(it.name, str(tool.get("name")))
            for it in self._servers.values()
            for tool in it.tools
        ]

    def add(self, names: Iterable[object]) -> None:
        """Servers that the frontend has; one that is known stays as it is."""
        for name in names:
            if isinstance(name, str) and name and len(self._servers) < SERVERS:
                self._servers.setdefault(name, SdkServer(name))

    def take_lines(self) -> list[bytes]:
        """The lines for the frontend since the last call."""
        lines, self._lines = self._lines, []
        return lines

    # -- our own questions -------------------------------------------------------------------------

    def initialize_servers(self) -> None:
        """Ask each new server what it has."""
        for server in self._servers.values():
            if not server.greeted:
                server.greeted = True
                params = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": CLIENT}
                self._ask(server, "initialize", params=params)

    def _ask(self, server: SdkServer, method: str, **fields: Any) -> None:
        self._forward(None, server.name, {"jsonrpc": "2.0", "method": method, "id": 0, **fields})

    def _learn(self, server: SdkServer, method: str, answer: Message) -> None:
        """An answer to us."""
        result = answer.get("result")
        if not isinstance(result, dict):
            server.status, server.error = "failed", _words(answer.get("error"))
        elif method == "initialize":
            server.info = _info(result.get("serverInfo"))
            self._notify(server.name, {"jsonrpc": "2.0", "method": "notifications/initialized"})
            if isinstance(result.get("capabilities"), dict) and "tools" in result["capabilities"]:
                self._list(server)
            else:
                server.status = "connected"
        else:
            listed = result.get("tools")
            found = (
                [tool for tool in listed if isinstance(tool, dict)]
                if isinstance(listed, list)
                else []
            )
            server.tools = [*server.tools, *found][:TOOLS]
            server.pages += 1
            cursor = result.get("nextCursor")
            if isinstance(cursor, str) and server.pages < PAGES and len(server.tools) < TOOLS:
                self._ask(server, "tools/list", params={"cursor": cursor})
            else:
                server.status = "connected"

    def _list(self, server: SdkServer) -> None:
        server.tools, server.pages = [], 0
        self._ask(server, "tools/list")

    # -- what an agent's client says ---------------------------------------------------------------

    def join(self, caller: Caller) -> None:
        """A client has connected."""
        self._callers.append(caller)

    def leave(self, caller: Caller) -> None:
        """A client has gone: nobody waits for its answers, and what it called need not go on."""
        self._callers = [other for other in self._callers if other is not caller]
        self._json_readers = [other for other in self._json_readers if other is not caller]
        for identity, waiting in list(self._waiting.items()):
            if waiting.caller is caller:
                del self._waiting[identity]
                self._cancel(waiting, "the agent has gone")

    def _cancel(self, waiting: Waiting, reason: str) -> None:
        """Tell the frontend that the answer to a call is not waited for any more."""
        if waiting.method == CALL:
            params = {"requestId": waiting.number, "reason": reason}
            self._notify(
                waiting.server,
                {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params},
            )

    def called(self, caller: Caller, message: object) -> tuple[str, Message] | None:
        """The tool that a message calls, in Claude's words, and its arguments; None for any other
        message.
        """
        params = (
            message.get("params")
            if isinstance(message, dict) and message.get("method") == CALL
            else None
        )
        if not isinstance(params, dict) or not isinstance(params.get("name"), str):
            return None
        arguments = params.get("arguments")
        return tool_name(caller.server, params["name"]), arguments if isinstance(
            arguments, dict
        ) else {}

    def deny(self, caller: Caller, message: Message, reason: str) -> None:
        """A call may not run: its result says why, as a tool's own failure does, so that the model
        reads it.
        """
        result = {"content": [{"type": "text", "text": reason}], "isError": True}
        caller.deliver(dump({"jsonrpc": "2.0", "id": message.get("id"), "result": result}) + b"\n")

    def hear(self, caller: Caller, message: object) -> str | None:
        """One message of a client's, parsed. The name of the request that now waits; None if
        nothing waits.
        """
        if not isinstance(message, dict) or not isinstance(message.get("method", ""), str):
            self._refuse(caller, None, INVALID, "the message is no JSON-RPC object")
        elif "method" not in message:
            self._notify(caller.server, message)  # an answer to a question of the server's
        elif message.get("id") is None:
            self._notify(caller.server, self._renumbered(caller, message))
        elif message["method"] == CALL and self.called(caller, message) is None:
            self._refuse(caller, message["id"], INVALID, "the call names no tool")
        elif self._closed:
            self._refuse(caller, message["id"], FAILED, CLOSED)
        elif len(self._waiting) >= IN_FLIGHT:
            self._refuse(caller, message["id"], FAILED, FULL)
        else:
            if message["method"] == INITIALIZE and _read_client_name(message) in JSON_READERS:
                self._json_readers.append(caller)
            return self._forward(caller, caller.server, message)
        return None

    def _renumbered(self, caller: Caller, message: Message) -> Message:
        """A cancellation names the request by the id that the server knows."""
        params = message.get("params")
        if message["method"] != "notifications/cancelled" or not isinstance(params, dict):
            return message
        meant = (
            it
            for it in self._waiting.values()
            if it.caller is caller and it.identity == params.get("requestId")
        )
        number = next((it.number for it in meant), None)
        return message if number is None else {**message, "params": {**params, "requestId": number}}

    def _forward(self, caller: Caller | None, server: str, message: Message) -> str | None:
        """Put a request to the frontend under a number of ours: two clients may use the same ids."""
        self._number += 1
        request, line = self._line(server, {**message, "id": self._number})
        if len(line) > self._line_bytes:
            if caller is not None:
                reason = TOO_LARGE.format(size=len(line), limit=self._line_bytes)
                self._refuse(caller, message["id"], FAILED, reason)
            return None
        self._waiting[request] = Waiting(
            caller, server, message["method"], message["id"], self._number
        )
        self._lines.append(line)
        return request

    def _notify(self, server: str, message: Message) -> None:
        """Tell the frontend something that has no answer."""
        _, line = self._line(server, message)
        if not self._closed and len(line) <= self._line_bytes:
            self._lines.append(line)

    def _line(self, server: str, message: Message) -> tuple[str, bytes]:
        self._said += 1
        request = f"mcp-{self._said}"
        body = {"subtype": "mcp_message", "server_name": server, "message": message}
        return request, dump(
            {"type": "control_request", "request_id": request, "request": body}
        ) + b"\n"

    def _refuse(self, caller: Caller, identity: object, code: int, reason: str) -> None:
        error = {"code": code, "message": reason}
        caller.deliver(dump({"jsonrpc": "2.0", "id": identity, "error": error}) + b"\n")

    # -- what the frontend says --------------------------------------------------------------------

    def accept_response(self, identity: str, response: Message) -> bool:
        """An answer of the frontend's; whether it was one to a request that is kept here."""
        waiting = self._waiting.pop(identity, None)
        if waiting is None:
            return False
        said = response.get("response")
        answer = said.get("mcp_response") if isinstance(said, dict) else None
        if response.get("subtype") == "error" or not isinstance(answer, dict):
            answer = {
                "error": {
                    "code": FAILED,
                    "message": str(response.get("error") or "it gave no answer"),
                }
            }
        self._give(waiting, answer)
        return True

    def _give(self, waiting: Waiting, answer: Message) -> None:
        if waiting.caller is not None:
            outcome: Message = {
                key: answer[key] for key in ("result", "error") if key in answer
            } or {"result": {}}
            if waiting.method == CALL and any(
                reader is waiting.caller for reader in self._json_readers
            ):
                outcome = protect_json_text(outcome)
            waiting.caller.deliver(
                dump({"jsonrpc": "2.0", "id": waiting.identity, **outcome}) + b"\n"
            )
        elif waiting.server in self._servers:
            self._learn(self._servers[waiting.server], waiting.method, answer)

    def deliver_server_message(self, server: object, message: object) -> bool:
        """A message of a server's own; whether the server is known.

        A question of a server's goes to the client that came last, since only one may answer.
        """
        if (
            not isinstance(server, str)
            or server not in self._servers
            or not isinstance(message, dict)
        ):
            return False
        line = dump(message) + b"\n"
        callers = [caller for caller in self._callers if caller.server == server]
        for caller in callers[-1:] if "id" in message else callers:
            caller.deliver(line)
        if (
            message.get("method") == "notifications/tools/list_changed"
            and self._servers[server].status == "connected"
        ):
            self._list(self._servers[server])
        return True

    def awaits(self, request: str) -> bool:
        """Whether a request of a client's still waits."""
        return request in self._waiting

    def expire(self, request: str, seconds: float) -> None:
        """The frontend has not answered a request in time."""
        waiting = self._waiting.pop(request, None)
        if waiting is not None:
            self._cancel(waiting, "it took too long")
            self._give(
                waiting, {"error": {"code": FAILED, "message": LATE.format(seconds=seconds)}}
            )

    def close(self) -> None:
        """The frontend will answer nothing more."""
        self._closed = True
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            self._give(one, {"error": {"code": FAILED, "message": CLOSED}})


def tool_name(server: str, tool: str) -> str:
    """Claude's name of a server's tool."""
    return f"{MCP}{plain_name(server)}__{plain_name(tool)}"


def _described(tool: Message) -> dict[str, Any]:
    """A tool as `mcp_status` has it."""
    given = tool.get("annotations")
    hints = given if isinstance(given, dict) else {}
    said = {
        key: hints[f"{key}Hint"]
        for key in ("readOnly", "destructive", "openWorld")
        if f"{key}Hint" in hints
    }
    return {"name": str(tool.get("name")), "annotations": said}


def _info(said: object) -> dict[str, str]:
    known = said if isinstance(said, dict) else {}
    return {key: str(known.get(key) or "") for key in ("name", "version")}


def _words(error: object) -> str:
    return str(error.get("message") or "") if isinstance(error, dict) else "it gave no answer"


def protect_json_text(outcome: Message) -> Message:
    """Return the answer to a call, changed so that a client of JSON_READERS does not parse its text
    as JSON.

    These clients do not parse the texts of an answer that has structured content, and show the
    texts to their model.
    """
    result = outcome.get("result")
    content = result.get("content") if isinstance(result, dict) else None
    first = content[0] if isinstance(content, list) and content else None
    text = first.get("text") if isinstance(first, dict) and first.get("type") == "text" else None
    if not isinstance(result, dict) or not isinstance(text, str) or result.get("structuredContent"):
        return outcome
    if text.lstrip().startswith("{"):
        return outcome
    try:
        orjson.loads(text)
    except ValueError:
        return outcome
    return {"result": {**result, "structuredContent": {"result": text}}}


def _read_client_name(message: Message) -> str:
    """Return the client's name in an `initialize` request, or ""."""
    params = message.get("params")
    client = params.get("clientInfo") if isinstance(params, dict) else None
    return str(client.get("name")) if isinstance(client, dict) else ""
