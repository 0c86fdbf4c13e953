"""MCP servers in the frontend's process: the requests of the vendors' clients and the frontend's
responses.
"""

import json

import pytest
from sweeps import loop_over_rows
from turn_stage import build_session_state

from shim.core.claude.control.session_reports import list_mcp_server_entries
from shim.core.claude.sdk_servers import (
    CLOSED_TEXT,
    MAX_PENDING_REQUESTS,
    MAX_SERVERS,
    MAX_TOOL_PAGES,
    SdkMcpServerRegistry,
    format_mcp_tool_name,
)

INIT = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "c", "version": "3"},
}
ADD = {"name": "add", "inputSchema": {}, "annotations": {"readOnlyHint": True}}


class Client:
    """A vendor's client that is connected by a relay."""

    def __init__(self, servers, server="calc"):
        self.server_name = server
        self.messages = []
        self._servers = servers
        servers.add_connection(self)

    def queue_line(self, line):
        assert line.endswith(b"\n") and line.count(b"\n") == 1
        self.messages.append(json.loads(line))

    def say(self, **message):
        return self._servers.forward_client_message(self, {"jsonrpc": "2.0", **message})


def servers(*names, line_bytes=100_000):
    made = SdkMcpServerRegistry(line_bytes)
    made.register_servers(names or ("calc",))
    return made


def take_requests(made):
    """Return the new requests to the frontend: the request id and the message of each."""
    lines = [json.loads(line) for line in made.take_control_request_lines()]
    assert all(
        line["type"] == "control_request" and line["request"]["subtype"] == "mcp_message"
        for line in lines
    )
    return [(line["request_id"], line["request"]["message"]) for line in lines]


def answer(made, request, **message_fields):
    response = {
        "subtype": "success",
        "request_id": request,
        "response": {"mcp_response": {"jsonrpc": "2.0", **message_fields}},
    }
    return made.accept_frontend_response(request, response)


def build_initialized_servers(**capabilities):
    """Build servers after their handshake."""
    made = servers()
    made.initialize_servers()
    ((request, _),) = take_requests(made)
    answer(made, request, id=1, result=INIT | capabilities)
    return made


def test_server_is_initialized_once_and_its_tools_are_listed():
    made = servers()
    made.initialize_servers()
    made.initialize_servers()
    ((request, hello),) = take_requests(made)
    assert (
        hello["method"] == "initialize" and hello["params"]["clientInfo"]["name"] == "claude-code"
    )
    (server,) = made
    assert server.mcp_server_entry_in_init == {"name": "calc", "status": "pending", "source": "sdk"}
    assert answer(made, request, id=hello["id"], result=INIT)
    (_, initialized), (listing, list_request) = take_requests(made)
    assert (
        initialized == {"jsonrpc": "2.0", "method": "notifications/initialized"}
        and list_request["method"] == "tools/list"
    )
    assert answer(made, listing, id=list_request["id"], result={"tools": [ADD]})
    assert made.tool_names == ["mcp__calc__add"]
    assert server.mcp_server_entry_in_status == {
        "name": "calc", "status": "connected", "source": "sdk", "transport": "sdk", "scope": "dynamic",
        "serverInfo": {"name": "c", "version": "3"},
        "tools": [{"name": "add", "annotations": {"readOnly": True}}],
    }  # fmt: skip


def test_tool_list_pages_are_read_up_to_the_limit():
    made = build_initialized_servers()
    for _ in range(MAX_TOOL_PAGES):
        *_, (request, _) = take_requests(made)
        assert next(iter(made)).status == "pending"
        answer(made, request, result={"tools": [ADD], "nextCursor": "more"})
    assert (
        take_requests(made) == []
        and next(iter(made)).status == "connected"
        and len(made.tool_names) == MAX_TOOL_PAGES
    )


def test_server_without_tools_is_connected_without_a_list_request():
    made = build_initialized_servers(capabilities={})
    assert [message["method"] for _, message in take_requests(made)] == [
        "notifications/initialized"
    ]
    assert next(iter(made)).status == "connected"


def test_refused_initialize_marks_the_server_failed_with_its_error():
    made = servers()
    made.initialize_servers()
    ((request, _),) = take_requests(made)
    made.accept_frontend_response(
        request, {"subtype": "error", "request_id": request, "error": "no such server"}
    )
    assert (
        next(iter(made)).mcp_server_entry_in_status["status"] == "failed"
        and next(iter(made)).mcp_server_entry_in_status["error"] == "no such server"
    )


def test_tool_list_change_triggers_a_new_list_request():
    made = build_initialized_servers(capabilities={})
    take_requests(made)
    assert made.deliver_server_message(
        "calc", {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
    )
    assert [message["method"] for _, message in take_requests(made)] == ["tools/list"]


def test_response_is_returned_under_the_request_id_of_its_client():
    made = servers()
    first_client, other = Client(made), Client(made)
    first = first_client.say(id="x", method="tools/call", params={"name": "add"})
    second = other.say(id="x", method="tools/call", params={"name": "add"})
    (_, to_first), (_, to_second) = take_requests(made)
    assert to_first["id"] != to_second["id"] and to_first["params"] == {"name": "add"}
    assert answer(made, second, id=to_second["id"], result={"content": [2]})
    assert answer(made, first, id=to_first["id"], result={"content": [1]})
    assert first_client.messages == [{"jsonrpc": "2.0", "id": "x", "result": {"content": [1]}}]
    assert other.messages == [{"jsonrpc": "2.0", "id": "x", "result": {"content": [2]}}]
    assert not answer(made, first, id=1, result={})  # only once


@pytest.mark.parametrize(
    "response",
    [
        {"subtype": "error", "error": "it broke"},
        {"subtype": "success"},
        {"subtype": "success", "response": {"mcp_response": "x"}},
        {"subtype": "success", "response": []},
    ],
)
def test_error_or_malformed_response_is_an_error_for_the_client(response):
    made = servers()
    client = Client(made)
    assert made.accept_frontend_response(
        client.say(id=1, method="tools/call", params={"name": "add"}), response
    )
    assert client.messages[0]["id"] == 1 and client.messages[0]["error"]["message"] in (
        "it broke",
        "no answer",
    )


def test_cancellation_is_sent_with_the_request_id_of_the_server():
    made = servers()
    client = Client(made)
    client.say(id="mine", method="tools/call", params={"name": "add"})
    ((_, call),) = take_requests(made)
    client.say(method="notifications/cancelled", params={"requestId": "mine", "reason": "r"})
    ((_, cancellation),) = take_requests(made)
    assert cancellation["params"] == {"requestId": call["id"], "reason": "r"}


def test_pending_call_of_a_disconnected_client_is_cancelled():
    made = servers()
    client = Client(made)
    call, other = (
        client.say(id=1, method="tools/call", params={"name": "add"}),
        client.say(id=2, method="tools/list"),
    )
    ((_, call_request), _) = take_requests(made)
    made.remove_connection(client)
    ((_, cancellation),) = take_requests(made)
    assert (
        cancellation["method"] == "notifications/cancelled"
        and cancellation["params"]["requestId"] == call_request["id"]
    )
    assert (
        not answer(made, call, result={})
        and not answer(made, other, result={})
        and client.messages == []
    )


def test_expired_request_returns_a_timeout_error_to_the_client():
    made = servers()
    client = Client(made)
    request = client.say(id=1, method="tools/call", params={"name": "add"})
    take_requests(made)
    assert made.is_request_pending(request)
    made.expire_request(request, 5.0)
    made.expire_request(request, 5.0)
    assert [response["error"]["message"] for response in client.messages] == [
        "the program that provides this MCP server did not answer within 5 s"
    ]
    assert [message["method"] for _, message in take_requests(made)] == ["notifications/cancelled"]
    assert not made.is_request_pending(request) and not answer(made, request, result={})


def test_requests_get_an_error_response_after_the_frontend_closes():
    made = servers()
    client = Client(made)
    client.say(id=1, method="tools/call", params={"name": "add"})
    made.close()
    client.say(id=2, method="tools/call", params={"name": "add"})
    client.say(method="notifications/cancelled", params={"requestId": 1})
    assert [(response["id"], response["error"]["message"]) for response in client.messages] == [
        (1, CLOSED_TEXT),
        (2, CLOSED_TEXT),
    ]
    assert len(take_requests(made)) == 1


def test_requests_beyond_the_pending_limit_are_refused():
    made = servers()
    client = Client(made)
    waiting = [
        client.say(id=number, method="tools/call", params={"name": "add"})
        for number in range(MAX_PENDING_REQUESTS)
    ]
    assert (
        all(waiting)
        and client.say(id="one more", method="tools/call", params={"name": "add"}) is None
    )
    assert client.messages[0]["id"] == "one more" and "error" in client.messages[0]
    assert answer(made, waiting[0], result={}) and client.say(
        id=7, method="tools/call", params={"name": "add"}
    )


def test_oversized_message_is_refused():
    made = servers(line_bytes=500)
    client = Client(made)
    assert client.say(id=1, method="tools/call", params={"name": "y" * 1000}) is None
    assert (
        "too large" in client.messages[0]["error"]["message"]
        and made.take_control_request_lines() == []
    )


def test_tool_call_without_a_tool_name_is_refused():
    made = servers()
    client = Client(made)
    for params in (None, {}, {"name": 7}, []):
        assert client.say(id=1, method="tools/call", params=params) is None
    assert [response["error"]["code"] for response in client.messages] == [
        -32600
    ] * 4 and made.take_control_request_lines() == []


@loop_over_rows("message", [None, [], "x", 7, {"method": 7}, [{"method": "x"}]])
def test_invalid_jsonrpc_message_is_refused(message):
    made = servers()
    client = Client(made)
    assert made.forward_client_message(client, message) is None
    assert (
        client.messages[0]["error"]["code"] == -32600
        and client.messages[0]["id"] is None
        and made.take_control_request_lines() == []
    )


def test_server_notification_reaches_all_clients_and_a_request_only_the_last():
    made = servers("calc", "other")
    first, second, stranger = Client(made), Client(made), Client(made, "other")
    assert made.deliver_server_message(
        "calc", {"jsonrpc": "2.0", "method": "notifications/message"}
    )
    assert made.deliver_server_message(
        "calc", {"jsonrpc": "2.0", "method": "sampling/createMessage", "id": 9}
    )
    assert [len(client.messages) for client in (first, second, stranger)] == [1, 2, 0]
    second.say(id=9, result={"role": "assistant"})
    ((_, response),) = take_requests(made)
    assert response == {"jsonrpc": "2.0", "id": 9, "result": {"role": "assistant"}}
    assert (
        not made.deliver_server_message("nobody", {})
        and not made.deliver_server_message("calc", [])
        and not made.deliver_server_message(None, {})
    )


def test_server_count_is_limited_and_invalid_names_are_dropped():
    made = servers(*(f"s{number}" for number in range(MAX_SERVERS + 5)), 7, "", None)
    assert len(made.names) == MAX_SERVERS


def test_mcp_tool_name_replaces_special_characters():
    assert format_mcp_tool_name("my server.x", "add/it") == "mcp__my_server_x__add_it"
    assert format_mcp_tool_name("M-é9", "_") == "mcp__M-_9___"


def test_unreachable_sdk_servers_are_failed_and_list_no_tools():
    """The vendor accepts servers with an address, but not the shim's relays, which are commands."""
    session_state = build_session_state(
        session_id="s", display_name="other", accepts_mcp_servers=True
    )
    session_state.sdk_servers, session_state.configured_servers = (
        build_initialized_servers(),
        {"far": {"url": "http://far"}},
    )
    (_, (listing, _)) = take_requests(session_state.sdk_servers)
    answer(session_state.sdk_servers, listing, id=2, result={"tools": [ADD]})
    assert session_state.list_sdk_mcp_tools() == ["mcp__calc__add"]
    session_state.sdk_servers_error = (
        "other does not support MCP servers that run as a command (stdio)"
    )
    assert [
        (server["name"], server["status"]) for server in list_mcp_server_entries(session_state)
    ] == [
        ("calc", "failed"),
        ("far", "pending"),
    ]
    assert session_state.list_sdk_mcp_tools() == []


def call_tool(name, text, **result):
    """Return the answer that a client with this name gets to a call that returned a text."""
    made = build_initialized_servers()
    take_requests(made)
    client = Client(made)
    client.say(
        id=1,
        method="initialize",
        params={"protocolVersion": "1", "clientInfo": {"name": name, "version": "1"}},
    )
    client.say(id=2, method="tools/call", params={"name": "add", "arguments": {}})
    (_, _), (request, _) = take_requests(made)
    answer(made, request, id=9, result={"content": [{"type": "text", "text": text}], **result})
    return client.messages[-1]["result"]


@loop_over_rows("text", ["42", " 42 ", "true", "null", '"x"', "[1]", "-1.5e3"])
def test_gemini_json_text_result_gets_structured_content(text):
    """gemini's client rejects an answer whose first text is JSON but not an object."""
    got = call_tool("gemini-cli-mcp-client", text)
    assert got["content"] == [{"type": "text", "text": text}] and isinstance(
        got["structuredContent"], dict
    )
    assert call_tool("another-client", text) == {"content": [{"type": "text", "text": text}]}


@loop_over_rows("text", ["the sum is 42", "", "{}", '{"a": 1}', "42 and more"])
def test_gemini_plain_text_or_json_object_result_is_unchanged(text):
    assert call_tool("gemini-cli-mcp-client", text) == {"content": [{"type": "text", "text": text}]}
    result_fields = {"structuredContent": {"sum": 42}}
    assert call_tool("gemini-cli-mcp-client", "42", **result_fields) == {
        "content": [{"type": "text", "text": "42"}],
        **result_fields,
    }
