"""MCP servers of type `sdk`, which run in the frontend's process and receive `mcp_message` requests
(contract 6.6).

The module does no I/O. The vendor's MCP client connects to such a server through a relay in the
shim. Each message from the client becomes a control request to the frontend. The frontend's
response is returned to the client with the client's own request id. Like the real claude, the shim
also initializes each server itself, so that `init` and `mcp_status` can list the server's tools.
"""

from collections.abc import Iterable, Iterator, Mapping

import orjson

from shim.core.policy.policy import MCP_PREFIX, normalize_mcp_name
from shim.core.reading.json_text import dump_json
from shim.core.reading.typed import Any, NamedTuple, Protocol
from shim.core.reading.values import as_dict, as_list, as_str, get_text, list_dicts

MAX_SERVERS = 100  # the limit for one frontend; an ACP session has the same limit
# The maximum number of requests that wait for the frontend. Vendors make only a few calls at once.
MAX_PENDING_REQUESTS = 200
MAX_TOOLS_PER_SERVER = 1000  # further tools are not listed in `init`
MAX_TOOL_PAGES = 20  # the limit for the pages of a server's tool list, which might never end
PROTOCOL_VERSION = "2025-11-25"  # the version that the real claude requests
CLIENT_INFO = {"name": "claude-code", "title": "Claude Code", "version": "1"}
CALL_METHOD = "tools/call"
INITIALIZE_METHOD = "initialize"
# gemini's client parses the first text as `structuredContent` if the text is JSON, and rejects any
# value that is not an object.
JSON_PARSING_CLIENTS = frozenset(("gemini-cli-mcp-client",))
# JSON-RPC error codes.
INVALID_REQUEST_CODE = -32600
INTERNAL_ERROR_CODE = -32603
CLOSED_TEXT = "the program that provides this MCP server no longer responds"
TOO_MANY_REQUESTS_TEXT = (
    f"more than {MAX_PENDING_REQUESTS} requests are waiting for the program that provides "
    "this MCP server"
)
TOO_LARGE_TEXT = (
    "the message of {size} bytes is too large for the program that provides this MCP "
    "server (limit {limit})"
)
TIMEOUT_TEXT = "the program that provides this MCP server did not answer within {seconds:g} s"

RpcMessage = Mapping[str, Any]


class McpConnection(Protocol):
    """A connection from a vendor's MCP client to the server `server_name`."""

    server_name: str

    def queue_line(self, line: bytes) -> None:
        """Queue a complete line, including its newline, for the client."""


class SdkMcpServer:
    """An MCP server and what it has reported about itself. `status` is one of Claude's status
    values.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.status = "pending"
        self.is_initialize_sent = False
        self.error = ""
        self.server_info: RpcMessage = {}
        self.tools: list[RpcMessage] = []
        self.page_count = 0

    @property
    def mcp_server_entry_in_init(self) -> dict[str, Any]:
        """The server's entry in the `init` line."""
        return {"name": self.name, "status": self.status, "source": "sdk"}

    @property
    def mcp_server_entry_in_status(self) -> dict[str, Any]:
        """The server's entry in the `mcp_status` response."""
        entry = self.mcp_server_entry_in_init | {"transport": "sdk", "scope": "dynamic"}
        if self.error:
            entry["error"] = self.error
        if self.status == "connected":
            entry |= {
                "serverInfo": self.server_info,
                "tools": [_describe_tool(tool) for tool in self.tools],
            }
        return entry


class PendingMcpRequest(NamedTuple):
    """An MCP request that waits for the frontend's response. `client_request_id` is the client's
    request id. For a request from the shim itself, `connection` is None.
    """

    connection: McpConnection | None
    server_name: str
    method: str
    client_request_id: object
    server_request_id: int


class SdkMcpServerRegistry:
    """Holds the MCP servers in a frontend's process. Lines to the frontend are at most
    `max_line_bytes` long.
    """

    def __init__(self, max_line_bytes: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._servers: dict[str, SdkMcpServer] = {}
        self._pending_requests: dict[str, PendingMcpRequest] = {}
        self._connections: list[McpConnection] = []
        self._json_parsing_connections: list[
            McpConnection
        ] = []  # connections from JSON_PARSING_CLIENTS
        self._mcp_request_count = self._line_count = 0
        self._lines: list[bytes] = []
        self._is_closed = False

    def __bool__(self) -> bool:
        return bool(self._servers)

    def __iter__(self) -> Iterator[SdkMcpServer]:
        return iter(self._servers.values())

    def __contains__(self, name: str) -> bool:
        return name in self._servers

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._servers)

    @property
    def tool_names(self) -> list[str]:
        """Claude's names for all known tools."""
        return [
            format_mcp_tool_name(server.name, str(tool.get("name")))
            for server in self._servers.values()
            for tool in server.tools
        ]

    def register_servers(self, names: Iterable[object]) -> None:
        """Register MCP servers in the frontend's process. Servers that are already registered do
        not change.
        """
        for name in names:
            if isinstance(name, str) and name and len(self._servers) < MAX_SERVERS:
                self._servers.setdefault(name, SdkMcpServer(name))

    def unregister_servers(self, names: Iterable[str]) -> None:
        """Remove servers. A client that is still connected to a removed server receives the
        frontend's errors.
        """
        for name in names:
            self._servers.pop(name, None)

    def take_control_request_lines(self) -> list[bytes]:
        """Remove and return the lines to send to the frontend."""
        lines = self._lines
        self._lines = []
        return lines

    # -- requests from the shim --------------------------------------------------------------------

    def initialize_servers(self) -> None:
        """Send an `initialize` request to each new server."""
        for server in self._servers.values():
            if not server.is_initialize_sent:
                server.is_initialize_sent = True
                params = {
                    "protocolVersion": PROTOCOL_VERSION,
                    "capabilities": {},
                    "clientInfo": CLIENT_INFO,
                }
                self._send_request(server, "initialize", params=params)

    def _send_request(self, server: SdkMcpServer, method: str, **fields: Any) -> None:
        self._forward_request(
            None, server.name, {"jsonrpc": "2.0", "method": method, "id": 0, **fields}
        )

    def _apply_response(self, server: SdkMcpServer, method: str, response: RpcMessage) -> None:
        """Update a server with the response to one of the shim's own requests."""
        result = response.get("result")
        if not isinstance(result, dict):
            server.status, server.error = "failed", _format_error(response.get("error"))
        elif method == "initialize":
            server.server_info = _parse_server_info(result.get("serverInfo"))
            self._forward_notification(
                server.name, {"jsonrpc": "2.0", "method": "notifications/initialized"}
            )
            if isinstance(result.get("capabilities"), dict) and "tools" in result["capabilities"]:
                self._request_tools(server)
            else:
                server.status = "connected"
        else:
            tools = list_dicts(result.get("tools"))
            server.tools = [*server.tools, *tools][:MAX_TOOLS_PER_SERVER]
            server.page_count += 1
            cursor = result.get("nextCursor")
            if (
                isinstance(cursor, str)
                and server.page_count < MAX_TOOL_PAGES
                and len(server.tools) < MAX_TOOLS_PER_SERVER
            ):
                self._send_request(server, "tools/list", params={"cursor": cursor})
            else:
                server.status = "connected"

    def _request_tools(self, server: SdkMcpServer) -> None:
        server.tools = []
        server.page_count = 0
        self._send_request(server, "tools/list")

    # -- messages from the vendor's MCP clients ----------------------------------------------------

    def add_connection(self, connection: McpConnection) -> None:
        """Add a connection from an MCP client."""
        self._connections.append(connection)

    def remove_connection(self, connection: McpConnection) -> None:
        """Remove a client's connection and cancel the client's pending requests."""
        self._connections = [other for other in self._connections if other is not connection]
        self._json_parsing_connections = [
            other for other in self._json_parsing_connections if other is not connection
        ]
        for request_id, pending in list(self._pending_requests.items()):
            if pending.connection is connection:
                del self._pending_requests[request_id]
                self._notify_cancelled(pending, "the agent has exited")

    def _notify_cancelled(self, pending: PendingMcpRequest, reason: str) -> None:
        """Notify the server that a tool call was cancelled, so that no response is needed."""
        if pending.method == CALL_METHOD:
            params = {"requestId": pending.server_request_id, "reason": reason}
            self._forward_notification(
                pending.server_name,
                {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params},
            )

    def parse_tool_call(
        self, connection: McpConnection, message: object
    ) -> tuple[str, RpcMessage] | None:
        """Parse a `tools/call` message. Return Claude's name for the tool and the call's arguments,
        or None for any other message.
        """
        params = None
        if isinstance(message, dict) and message.get("method") == CALL_METHOD:
            params = message.get("params")
        if not isinstance(params, dict) or not isinstance(params.get("name"), str):
            return None
        tool_input = params.get("arguments")
        return format_mcp_tool_name(connection.server_name, params["name"]), as_dict(tool_input)

    def deny_tool_call(self, connection: McpConnection, message: RpcMessage, reason: str) -> None:
        """Answer a denied tool call with an error result, so that the model can read the reason."""
        result = {"content": [{"type": "text", "text": reason}], "isError": True}
        _answer_client(connection, message.get("id"), {"result": result})

    def forward_client_message(self, connection: McpConnection, message: object) -> str | None:
        """Forward a parsed message from a client to the frontend. Return the request's id if the
        message expects a response, otherwise None.
        """
        if not isinstance(message, dict) or not isinstance(message.get("method", ""), str):
            _answer_with_error(
                connection, None, INVALID_REQUEST_CODE, "the message is not a JSON-RPC object"
            )
        elif "method" not in message:
            # The message is a response to a request from the server.
            self._forward_notification(connection.server_name, message)
        elif message.get("id") is None:
            self._forward_notification(
                connection.server_name, self._translate_cancellation(connection, message)
            )
        elif message["method"] == CALL_METHOD and self.parse_tool_call(connection, message) is None:
            _answer_with_error(
                connection, message["id"], INVALID_REQUEST_CODE, "the call names no tool"
            )
        elif self._is_closed:
            _answer_with_error(connection, message["id"], INTERNAL_ERROR_CODE, CLOSED_TEXT)
        elif len(self._pending_requests) >= MAX_PENDING_REQUESTS:
            _answer_with_error(
                connection, message["id"], INTERNAL_ERROR_CODE, TOO_MANY_REQUESTS_TEXT
            )
        else:
            if (
                message["method"] == INITIALIZE_METHOD
                and _parse_client_name(message) in JSON_PARSING_CLIENTS
            ):
                self._json_parsing_connections.append(connection)
            return self._forward_request(connection, connection.server_name, message)
        return None

    def _translate_cancellation(self, connection: McpConnection, message: RpcMessage) -> RpcMessage:
        """Replace the client's request id in a cancellation with the id that the server
        received.
        """
        params = message.get("params")
        if message["method"] != "notifications/cancelled" or not isinstance(params, dict):
            return message
        matches = (
            pending
            for pending in self._pending_requests.values()
            if pending.connection is connection
            and pending.client_request_id == params.get("requestId")
        )
        server_request_id = next((pending.server_request_id for pending in matches), None)
        if server_request_id is None:
            return message
        return {**message, "params": {**params, "requestId": server_request_id}}

    def _forward_request(
        self, connection: McpConnection | None, server_name: str, message: RpcMessage
    ) -> str | None:
        """Send a request to the frontend under a new id, because two clients may use the
        same ids.
        """
        self._mcp_request_count += 1
        request_id, line = self._encode_control_request(
            server_name, {**message, "id": self._mcp_request_count}
        )
        if len(line) > self._max_line_bytes:
            if connection is not None:
                reason = TOO_LARGE_TEXT.format(size=len(line), limit=self._max_line_bytes)
                _answer_with_error(connection, message["id"], INTERNAL_ERROR_CODE, reason)
            return None
        self._pending_requests[request_id] = PendingMcpRequest(
            connection, server_name, message["method"], message["id"], self._mcp_request_count
        )
        self._lines.append(line)
        return request_id

    def _forward_notification(self, server_name: str, message: RpcMessage) -> None:
        """Send a notification to the frontend."""
        _, line = self._encode_control_request(server_name, message)
        if not self._is_closed and len(line) <= self._max_line_bytes:
            self._lines.append(line)

    def _encode_control_request(self, server_name: str, message: RpcMessage) -> tuple[str, bytes]:
        self._line_count += 1
        request_id = f"mcp-{self._line_count}"
        body = {"subtype": "mcp_message", "server_name": server_name, "message": message}
        return request_id, dump_json(
            {"type": "control_request", "request_id": request_id, "request": body}
        ) + b"\n"

    # -- messages from the frontend ----------------------------------------------------------------

    def accept_frontend_response(self, request_id: str, response: RpcMessage) -> bool:
        """Process a control response from the frontend. Return whether the registry had sent the
        request.
        """
        pending = self._pending_requests.pop(request_id, None)
        if pending is None:
            return False
        body = response.get("response")
        answer = as_dict(body).get("mcp_response")
        if response.get("subtype") == "error" or not isinstance(answer, dict):
            answer = _build_error(INTERNAL_ERROR_CODE, get_text(response, "error", "no answer"))
        self._deliver_response(pending, answer)
        return True

    def _deliver_response(self, pending: PendingMcpRequest, response: RpcMessage) -> None:
        if pending.connection is not None:
            outcome: RpcMessage = {
                key: response[key] for key in ("result", "error") if key in response
            }
            if not outcome:
                outcome = {"result": {}}
            if pending.method == CALL_METHOD and any(
                connection is pending.connection for connection in self._json_parsing_connections
            ):
                outcome = add_text_as_structured_content(outcome)
            _answer_client(pending.connection, pending.client_request_id, outcome)
        elif pending.server_name in self._servers:
            self._apply_response(self._servers[pending.server_name], pending.method, response)

    def deliver_server_message(self, server: object, message: object) -> bool:
        """Deliver a message from a server to its clients. Return whether the server is known.

        A request from the server is sent only to the client that connected last, because only one
        client may respond.
        """
        if (
            not isinstance(server, str)
            or server not in self._servers
            or not isinstance(message, dict)
        ):
            return False
        line = dump_json(message) + b"\n"
        connections = [
            connection for connection in self._connections if connection.server_name == server
        ]
        for connection in connections[-1:] if "id" in message else connections:
            connection.queue_line(line)
        if (
            message.get("method") == "notifications/tools/list_changed"
            and self._servers[server].status == "connected"
        ):
            self._request_tools(self._servers[server])
        return True

    def is_request_pending(self, request_id: str) -> bool:
        """Return whether a request is still waiting for its response."""
        return request_id in self._pending_requests

    def expire_request(self, request_id: str, timeout_s: float) -> None:
        """Fail a request that the frontend did not answer in time."""
        pending = self._pending_requests.pop(request_id, None)
        if pending is not None:
            self._notify_cancelled(pending, "the answer took too long")
            reason = TIMEOUT_TEXT.format(seconds=timeout_s)
            self._deliver_response(pending, _build_error(INTERNAL_ERROR_CODE, reason))

    def close(self) -> None:
        """Fail all pending requests, because the frontend can no longer answer."""
        self._is_closed = True
        pending_requests = self._pending_requests
        self._pending_requests = {}
        for pending in pending_requests.values():
            self._deliver_response(pending, _build_error(INTERNAL_ERROR_CODE, CLOSED_TEXT))


def _answer_client(connection: McpConnection, request_id: object, outcome: RpcMessage) -> None:
    """Send the response to a client's request. `outcome` is its result or its error."""
    connection.queue_line(dump_json({"jsonrpc": "2.0", "id": request_id, **outcome}) + b"\n")


def _answer_with_error(
    connection: McpConnection, request_id: object, code: int, reason: str
) -> None:
    _answer_client(connection, request_id, _build_error(code, reason))


def _build_error(code: int, reason: str) -> RpcMessage:
    return {"error": {"code": code, "message": reason}}


def format_mcp_tool_name(server: str, tool: str) -> str:
    """Return Claude's name for an MCP server's tool."""
    return f"{MCP_PREFIX}{normalize_mcp_name(server)}__{normalize_mcp_name(tool)}"


def _describe_tool(tool: RpcMessage) -> dict[str, Any]:
    """Return a tool's entry in the `mcp_status` response."""
    hints = as_dict(tool.get("annotations"))
    status_annotations = {
        key: hints[f"{key}Hint"]
        for key in ("readOnly", "destructive", "openWorld")
        if f"{key}Hint" in hints
    }
    return {"name": str(tool.get("name")), "annotations": status_annotations}


def _parse_server_info(value: object) -> dict[str, str]:
    fields = as_dict(value)
    return {key: get_text(fields, key) for key in ("name", "version")}


def _format_error(error: object) -> str:
    if isinstance(error, dict):
        return get_text(error, "message")
    return "no answer"


def add_text_as_structured_content(response: RpcMessage) -> RpcMessage:
    """Add structured content to a tool call's response, for the clients in JSON_PARSING_CLIENTS.

    These clients would otherwise parse the response's text as JSON. If the response has structured
    content, they pass the text to the model unchanged.
    """
    result = as_dict(response.get("result"))
    first = as_dict(next(iter(as_list(result.get("content"))), None))
    text = as_str(first.get("text"))
    if first.get("type") != "text" or result.get("structuredContent"):
        return response
    if text.lstrip().startswith("{"):
        return response
    try:
        orjson.loads(text)
    except ValueError:
        return response
    return {"result": {**result, "structuredContent": {"result": text}}}


def _parse_client_name(message: RpcMessage) -> str:
    """Return the client's name from an `initialize` request, or ""."""
    client = as_dict(as_dict(message.get("params")).get("clientInfo"))
    if client:
        return str(client.get("name"))
    return ""
