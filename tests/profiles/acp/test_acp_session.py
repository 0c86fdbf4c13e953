"""The requests to an agent of the Agent Client Protocol, and their order."""

import json

import pytest
from acp_agent import start_acp_session
from sweeps import loop_over_rows

from shim.core.adapter.adapter import LaunchRequest
from shim.core.claude.argv.flags import parse_argv
from shim.core.claude.messages import UserMessage
from shim.core.claude.permissions import PermissionDecision, PermissionRequest
from shim.profiles.acp.servers import resolve_mcp_tool_name
from shim.profiles.acp.session import MAX_REPLAY_PROBES, REPLAY_PROBE_METHOD

GREETED = {
    "protocolVersion": 1,
    "agentCapabilities": {"loadSession": True, "sessionCapabilities": {"resume": {}}},
}
LOADS = {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}
OPTIONS = [{"id": "m", "category": "model", "currentValue": "small"}]


def parse_lines(data):
    return [json.loads(line) for line in data.splitlines()]


def methods(data):
    return [line["method"] for line in parse_lines(data)]


def answer_request(session, request_id, result=None, **error):
    """Answer a request of the session. Return what the session then sends."""
    session.read_response(
        {"id": request_id, "error": error} if error else {"id": request_id, "result": result}
    )
    data, session.outbox[:] = b"".join(session.outbox), []
    return data


def answer_permission(session, request_key, allow, **fields):
    """Return the response to a permission request that the agent receives."""
    request = PermissionRequest(request_key, "c1", "Bash", {}, "bash", {})
    return session.encode_permission_response(request, PermissionDecision(allow, **fields))


def open_session(session=None, **opening):
    """Return an open session whose last request was number 2."""
    acp_session, _ = start_acp_session(**opening)
    answer_request(acp_session, 1, GREETED)
    answer_request(acp_session, 2, {"sessionId": "s1"} | (session or {}))
    return acp_session


def test_prompt_is_sent_after_the_session_is_created():
    session, first_request = start_acp_session()
    assert methods(first_request) == ["initialize"]
    assert session.encode_prompt(UserMessage("hi")) == b""
    (new,) = parse_lines(answer_request(session, 1, GREETED))
    assert (new["method"], new["params"]) == ("session/new", {"cwd": "/w", "mcpServers": []})
    (prompt,) = parse_lines(answer_request(session, 2, {"sessionId": "s1"}))
    assert prompt["params"] == {"sessionId": "s1", "prompt": [{"type": "text", "text": "hi"}]}


@pytest.mark.parametrize(
    ("fork", "agent", "method"),
    [
        (False, GREETED, "session/resume"),
        (False, LOADS, "session/load"),
        (True, GREETED, "session/fork"),
    ],
)
def test_session_resumes_with_the_method_that_the_agent_supports(fork, agent, method):
    flags = ("--fork-session",) if fork else ()
    session, _ = start_acp_session(resume="s0", flags=flags)
    (line,) = parse_lines(answer_request(session, 1, agent))
    assert (line["method"], line["params"]["sessionId"]) == (method, "s0")


def test_replay_ends_after_two_probe_responses_without_replayed_events():
    session, _ = start_acp_session(resume="s0")
    answer_request(session, 1, LOADS)
    session.encode_prompt(UserMessage("hi"))
    assert methods(answer_request(session, 2, {})) == [REPLAY_PROBE_METHOD]
    session.has_replayed = True
    assert methods(answer_request(session, 3, code=-32601)) == [REPLAY_PROBE_METHOD]
    assert session.is_loading
    assert methods(answer_request(session, 4, code=-32601)) == ["session/prompt"]
    assert not session.is_loading


def test_prompt_is_sent_after_max_replay_probes():
    session, _ = start_acp_session(resume="s0")
    answer_request(session, 1, LOADS)
    session.encode_prompt(UserMessage("hi"))
    data, number = answer_request(session, 2, {}), 3
    while methods(data) == [REPLAY_PROBE_METHOD]:
        session.has_replayed = True
        data, number = answer_request(session, number, code=-32601), number + 1
    assert methods(data) == ["session/prompt"]
    assert number <= MAX_REPLAY_PROBES + 3


def test_requested_model_is_set_before_the_prompt():
    session, _ = start_acp_session(flags=("--model", "large"))
    answer_request(session, 1, GREETED)
    session.encode_prompt(UserMessage("hi"))
    (line,) = parse_lines(answer_request(session, 2, {"sessionId": "s1", "configOptions": OPTIONS}))
    assert line["params"] == {"sessionId": "s1", "configId": "m", "value": "large"}
    assert methods(answer_request(session, 3, {})) == ["session/prompt"]


EFFORT = {"id": "e", "category": "thought_level", "currentValue": "medium"}
EFFORT["options"] = [{"value": value} for value in ("low", "medium", "high")]


@pytest.mark.parametrize(
    ("effort", "expected"), [("low", "low"), ("high", "high"), ("max", "high")]
)
def test_effort_is_set_to_the_nearest_supported_level_before_the_prompt(effort, expected):
    session, _ = start_acp_session(flags=("--effort", effort))
    answer_request(session, 1, GREETED)
    (line,) = parse_lines(
        answer_request(session, 2, {"sessionId": "s1", "configOptions": [EFFORT]})
    )
    assert (line["method"], line["params"]["configId"], line["params"]["value"]) == (
        "session/set_config_option",
        "e",
        expected,
    )
    assert session.encode_prompt(UserMessage("hi")) == b"", "the prompt waits for it"
    assert methods(answer_request(session, 3, code=-32602, message="no")) == ["session/prompt"], (
        "the turn goes on without"
    )


def test_initial_effort_is_restored_if_no_effort_is_set():
    session = open_session({"configOptions": [EFFORT]})
    assert parse_lines(session.encode_effort_change("low"))[0]["params"]["value"] == "low"
    assert parse_lines(session.encode_effort_change(None))[0]["params"]["value"] == "medium"
    assert open_session().encode_effort_change("low") == b"", (
        "an agent without the option is told nothing"
    )


def test_initial_model_is_not_set():
    assert open_session({"configOptions": OPTIONS}, flags=("--model", "small")).outbox == []


def test_mode_change_is_sent_before_the_next_prompt():
    session = open_session({"modes": {"currentModeId": "default"}}, modes={"plan": "plan"})
    (line,) = parse_lines(session.encode_permission_mode_change("plan"))
    assert (line["method"], line["params"]) == (
        "session/set_mode",
        {"sessionId": "s1", "modeId": "plan"},
    )
    assert session.encode_prompt(UserMessage("hi")) == b""
    assert methods(answer_request(session, 3, {})) == ["session/prompt"]


def test_initial_model_is_restored_if_no_model_is_set():
    session = open_session({"models": {"currentModelId": "small"}})
    assert parse_lines(session.encode_model_change(None))[0]["params"]["modelId"] == "small"
    assert open_session().encode_model_change(None) is None


@pytest.mark.parametrize(
    ("allow", "stop", "outcome"),
    [
        (True, False, {"outcome": "selected", "optionId": "yes"}),
        (False, False, {"outcome": "selected", "optionId": "no"}),
        (False, True, {"outcome": "cancelled"}),
    ],
)
def test_decision_selects_a_matching_permission_option(allow, stop, outcome):
    session = open_session()
    options = [
        {"optionId": "ever", "kind": "allow_always"},
        {"optionId": "yes", "kind": "allow_once"},
        {"optionId": "no", "kind": "reject_once"},
    ]
    request = session.register_permission_request(7, "c1", options)
    (line,) = parse_lines(answer_permission(session, request, allow, ends_turn=stop))
    assert (line["id"], line["result"]) == (7, {"outcome": outcome})
    assert answer_permission(session, request, allow, ends_turn=stop) == b""


def test_call_is_cancelled_if_the_only_option_is_allow_always():
    session = open_session()
    request = session.register_permission_request(
        "q", "c1", [{"optionId": "ever", "kind": "allow_always"}]
    )
    (line,) = parse_lines(answer_permission(session, request, allow=True))
    assert line["result"] == {"outcome": {"outcome": "cancelled"}}


@pytest.mark.parametrize("allow", [True, False])
def test_second_permission_request_is_answered_only_for_an_allowed_call(allow):
    session = open_session()
    options = [{"optionId": "yes", "kind": "allow_once"}, {"optionId": "no", "kind": "reject_once"}]
    answer_permission(session, session.register_permission_request(7, "c1", options), allow)
    assert (session.register_permission_request(8, "c1", options) is None) is allow
    assert len(session.outbox) == int(allow)


@pytest.mark.parametrize("waits", [True, False])
def test_allowed_call_requires_permission_in_the_next_turn(waits):
    session = open_session()
    options = [{"optionId": "yes", "kind": "allow_once"}]
    answer_permission(session, session.register_permission_request(7, "c1", options), allow=True)
    if waits:
        session.encode_model_change("large")
    assert (session.encode_prompt(UserMessage("next")) == b"") is waits
    answer_request(session, 3, {})
    assert session.register_permission_request(8, "c1", []) is not None


def test_response_with_an_unknown_request_id_is_ignored():
    session = open_session()
    assert session.read_response({"id": 99, "result": {"stopReason": "end_turn"}}) is None
    assert session.read_response({"id": "1", "result": {}}) is None
    assert session.read_response({"id": True, "result": {}}) is None


def test_unsupported_protocol_version_is_an_error():
    session, _ = start_acp_session()
    response = session.read_response({"id": 1, "result": {"protocolVersion": 3}})
    assert "version 3" in response.error["message"]
    assert session.outbox == []


def test_session_id_is_reset_when_a_new_child_is_initialized():
    session = open_session()
    session.encode_handshake(LaunchRequest(parse_argv(()), "", resume_id="s1"))
    assert session.session_id == ""
    assert session.encode_prompt(UserMessage("hi")) == b""


@pytest.mark.parametrize(
    ("can", "expected"),
    [
        ({}, ["a"]),
        ({"http": True}, ["a", "b"]),
        ({"sse": True, "http": True}, ["a", "b", "c"]),
        ({"sse": "yes"}, ["a"]),
    ],
)
def test_mcp_server_with_an_unsupported_transport_is_left_out(can, expected):
    server_configs = {
        "a": {"command": "/a"},
        "b": {"url": "http://b"},
        "c": {"url": "http://c", "type": "sse"},
    }
    session, _ = start_acp_session(servers=server_configs)
    (new,) = parse_lines(
        answer_request(
            session, 1, {"protocolVersion": 1, "agentCapabilities": {"mcpCapabilities": can}}
        )
    )
    assert [server["name"] for server in new["params"]["mcpServers"]] == expected
    assert sorted(expected + session.unreachable_servers) == ["a", "b", "c"]


def test_stdio_mcp_server_is_left_out_if_the_agent_accepts_only_urls():
    """copilot 1.0.102 rejects a server that is a command, and reports this only in its log."""
    server_configs = {"a": {"command": "/a"}, "b": {"url": "http://b"}}
    session, _ = start_acp_session(servers=server_configs, only_urls=True)
    agent = {"protocolVersion": 1, "agentCapabilities": {"mcpCapabilities": {"http": True}}}
    (new,) = parse_lines(answer_request(session, 1, agent))
    assert [server["name"] for server in new["params"]["mcpServers"]] == ["b"]
    assert session.unreachable_servers == ["a"]


def test_stdio_mcp_server_is_reachable_if_an_argument_names_the_server():
    server_configs = {"a": {"command": "/a"}, "b": {"url": "http://b"}}
    session, _ = start_acp_session(
        servers=server_configs, only_urls=True, has_server_arguments=True
    )
    agent = {"protocolVersion": 1, "agentCapabilities": {"mcpCapabilities": {"http": True}}}
    (new,) = parse_lines(answer_request(session, 1, agent))
    assert [server["name"] for server in new["params"]["mcpServers"]] == ["b"]
    assert session.unreachable_servers == []


@loop_over_rows(
    ("template", "vendor_name", "name"),
    [
        ("mcp_{server}_{tool}", "mcp_my_srv_make", "mcp__my_srv__make"),
        ("{server}_{tool}", "my_srv_make", "mcp__my_srv__make"),
        ("{server}_{tool}", "my_make", "mcp__my__make"),
        ("{server}_{tool}", "a_b_make", "mcp__a_b__make"),
        ("{server}_{tool}", "my_srv_", "mcp__my__srv_"),
        ("{server}_{tool}", "bash", ""),
        ("", "my_srv_make", ""),
    ],
)
def test_mcp_tool_name_of_the_agent_is_converted_to_the_claude_name(template, vendor_name, name):
    assert resolve_mcp_tool_name(template, ("my", "my_srv", "a.b"), vendor_name) == name


@pytest.mark.parametrize("before", ["", " ", "\ufeff", "\n\ufeff \u2003"])
def test_prompt_that_starts_with_a_slash_is_escaped(before):
    """`before` has characters that JavaScript removes from the start of a text."""
    (line,) = parse_lines(open_session().encode_prompt(UserMessage(f"{before}/init")))
    assert line["params"]["prompt"] == [{"type": "text", "text": f"\\{before}/init"}]
