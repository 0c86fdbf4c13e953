"""MCP servers in the frontend's process, through the whole drop-in. A fake vendor starts the relay
and calls a tool.
"""

import json
import os

import pytest
from box import format_ndjson

from tests.conversation.test_conversation import user
from tests.conversation.test_persistent_driver import (
    ASKING,
    HELLO,
    INIT,
    answer,
    assistant,
    question,
    result,
    returns,
    says,
    talk,
)

__all__ = ["talk"]  # a fixture
ADD = "mcp__calc__add"
SERVER = ("--mcp-config", json.dumps({"mcpServers": {"calc": {"type": "sdk", "name": "calc"}}}))
NUMBERS = {"a": 2, "b": 3}


def build_tool_call(**tool_input):
    use = {"type": "tool_use", "id": "call_1", "name": ADD, "input": tool_input or NUMBERS}
    return assistant(use, "tool_use")


def asks(**tool_input):
    request = {
        "subtype": "can_use_tool",
        "tool_name": ADD,
        "tool_use_id": "call_1",
        "input": tool_input,
    }
    return {
        "type": "control_request",
        "request_id": "q1",
        "request": {**request, "permission_suggestions": []},
    }


def vendor(box, *events, tool_input=NUMBERS, has_question=False):
    """Create a vendor whose model calls the tool, with or without a permission request."""
    answer_steps = [["hear", "control_response"]] if has_question else []
    return box.create_fake(
        HELLO,
        ["hear", "go"],
        ["out", format_ndjson({**INIT, "tools": []}, *events)],
        *answer_steps,
        ["call_tool", "calc", "add", tool_input, str(box.recording)],
        ["out", format_ndjson(returns("seen"), says("After."), result("After."))],
        ["hear", "never"],
    )


class Program:
    """The frontend. It has a server with one tool and answers the drop-in's requests."""

    def __init__(self, running):
        self.running = running
        self.ran = []

    def message(self, method):
        """Return the next message of this method for the server."""
        line = self.running.read_line_containing(f'"method":"{method}"'.encode())
        return line["request_id"], line["request"]["message"]

    def give(self, request, message_id, body):
        self.running.send_lines(
            answer(request, mcp_response={"jsonrpc": "2.0", "id": message_id, "result": body})
        )

    def greet(self):
        request, hello = self.message("initialize")
        server_fields = {
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "calc", "version": "1"},
        }
        self.give(
            request,
            hello["id"],
            {"protocolVersion": hello["params"]["protocolVersion"], **server_fields},
        )
        request, list_message = self.message("tools/list")
        self.give(request, list_message["id"], {"tools": [{"name": "add", "inputSchema": {}}]})

    def run(self):
        request, call = self.message("tools/call")
        self.ran.append(call["params"])
        self.give(request, call["id"], {"content": [{"type": "text", "text": "the sum"}]})


@pytest.fixture
def program(talk):
    def start(child, *flags, **environment):
        return talk(child, *SERVER, *flags, **environment)

    return start


def read_client_answer(box):
    """Return the answer that the vendor's client received."""
    return json.loads(box.recording.read_bytes())


def test_mcp_call_without_a_vendor_prompt_is_prompted_by_the_shim(box, program):
    with program(vendor(box, build_tool_call()), *ASKING) as running:
        frontend = Program(running)
        running.send_lines(user("go"))
        frontend.greet()
        permission_request = question(running)
        request_body = permission_request["request"]
        assert (request_body["tool_name"], request_body["input"], request_body["tool_use_id"]) == (
            ADD,
            NUMBERS,
            "call_1",
        )
        running.send_lines(
            answer(
                permission_request["request_id"], behavior="allow", updatedInput={"a": 5, "b": 6}
            )
        )
        frontend.run()
        running.read_line_containing(b'"type":"result"')
        done = running.end_input()
    assert frontend.ran == [{"name": "add", "arguments": {"a": 5, "b": 6}}]
    assert read_client_answer(box)["result"]["content"][0]["text"] == "the sum" and done.status == 0


def test_denied_mcp_call_does_not_run_and_is_listed_as_a_denial(box, program):
    with program(vendor(box, build_tool_call()), *ASKING) as running:
        running.send_lines(user("go"))
        Program(running).greet()
        permission_request = question(running)
        running.send_lines(
            answer(permission_request["request_id"], behavior="deny", message="rather not")
        )
        running.read_line_containing(b'"type":"result"')
        done = running.end_input()
    assert read_client_answer(box)["result"] == {
        "content": [{"type": "text", "text": "rather not"}],
        "isError": True,
    }
    assert [denial["tool_name"] for denial in done.result["permission_denials"]] == [ADD]
    assert not [line for line in done.lines if b"tools/call" in json.dumps(line).encode()]


def test_mcp_call_allowed_by_a_vendor_prompt_is_not_prompted_twice(box, program):
    with program(
        vendor(box, build_tool_call(), asks(**NUMBERS), has_question=True), *ASKING
    ) as running:
        frontend = Program(running)
        running.send_lines(user("go"))
        frontend.greet()
        permission_request = question(running)
        running.send_lines(answer(permission_request["request_id"], behavior="allow"))
        frontend.run()
        running.read_line_containing(b'"type":"result"')
        done = running.end_input()
    assert frontend.ran == [{"name": "add", "arguments": NUMBERS}]
    assert [line["type"] for line in done.lines].count("control_request") == 5 and done.status == 0


def test_mcp_call_that_differs_from_the_allowed_call_is_prompted(box, program):
    child = vendor(
        box, build_tool_call(), asks(a=2, b=3), tool_input={"a": 2, "b": 4}, has_question=True
    )
    with program(child, *ASKING) as running:
        running.send_lines(user("go"))
        Program(running).greet()
        running.send_lines(answer(question(running)["request_id"], behavior="allow"))
        second_request = running.read_line_containing(b'"input":{"a":2,"b":4}')
        running.send_lines(
            answer(second_request["request_id"], behavior="deny", message="not this one")
        )
        running.read_line_containing(b'"type":"result"')
        running.end_input()
    assert read_client_answer(box)["result"]["isError"] is True


@pytest.mark.parametrize(
    ("flags", "runs"), [(("--allowedTools", ADD), True), (("--disallowedTools", ADD), False)]
)
def test_allow_and_deny_rules_decide_mcp_calls_without_a_prompt(box, program, flags, runs):
    with program(vendor(box, build_tool_call()), *ASKING, *flags) as running:
        frontend = Program(running)
        running.send_lines(user("go"))
        frontend.greet()
        if runs:
            frontend.run()
        running.read_line_containing(b'"type":"result"')
        running.end_input()
    assert ("isError" in read_client_answer(box)["result"]) is not runs


def test_frontend_that_closes_stdin_during_an_mcp_call_fails_the_call(box, program):
    with program(vendor(box, build_tool_call()), "--dangerously-skip-permissions") as running:
        frontend = Program(running)
        running.send_lines(user("go"))
        frontend.greet()
        frontend.message("tools/call")
        done = running.end_input()
    assert "no longer responds" in read_client_answer(box)["error"]["message"]
    assert done.result["result"] == "After."


def test_mcp_call_fails_after_the_tool_timeout_if_the_frontend_is_silent(box, program):
    box.write_settings("tool_timeout = 1\n")
    with program(vendor(box, build_tool_call()), "--dangerously-skip-permissions") as running:
        frontend = Program(running)
        running.send_lines(user("go"))
        frontend.greet()
        frontend.message("tools/call")
        running.read_line_containing(b'"type":"result"')
        running.end_input()
    assert "did not answer within 1 s" in read_client_answer(box)["error"]["message"]


def test_relay_ticket_is_not_in_argv_or_environment_and_socket_is_removed(box, program):
    child = box.create_fake(
        HELLO,
        ["hear", "go"],
        ["record", str(box.recording)],
        ["out", format_ndjson(INIT, result("x"))],
        ["hear", "never"],
    )
    with program(child, *ASKING) as running:
        running.send_lines(user("go"))
        running.read_line_containing(b'"type":"result"')
        server = json.loads(box.read_record()["stdin"].splitlines()[0])["request"]["mcpServers"][
            "calc"
        ]
        socket, ticket = server["env"].values()
        assert os.stat(os.path.dirname(socket)).st_mode & 0o777 == 0o700
        assert ticket not in " ".join(box.read_record()["arguments"]) + str(
            box.read_record()["environment"]
        )
        running.end_input()
    assert not os.path.exists(os.path.dirname(socket))


def test_sdk_mcp_servers_are_reported_as_failed_if_a_launcher_is_set(box, program):
    box.write_settings('[vendors.qwen]\nlauncher = ["/usr/bin/env"]\n')
    child = box.create_fake(
        HELLO, ["hear", "go"], ["out", format_ndjson(INIT, result("x"))], ["hear", "never"]
    )
    with program(child) as running:
        running.send_lines(user("go"))
        running.read_line_containing(b'"type":"result"')
        done = running.end_input()
    assert (
        "these MCP servers of type sdk have no effect: calc" in done.stderr
        and "/usr/bin/env" in done.stderr
    )
    (init,) = (line for line in done.lines if line.get("subtype") == "init")
    assert [(server["name"], server["status"]) for server in init["mcp_servers"]] == [
        ("calc", "failed")
    ]
    assert ADD not in init["tools"]


@pytest.mark.parametrize(("flags", "runs"), [(("--allowedTools", ADD), True), ((), False)])
def test_rules_decide_mcp_calls_of_a_per_turn_vendor_after_a_fallback(box, program, flags, runs):
    """The driver of the failed vendor would ask the frontend."""
    box.write_settings('vendor = ["gemini", "qwen"]\n[vendors.qwen]\ndriver = "one-way"\n')
    greeting = {"id": 1, "result": {"protocolVersion": 1}}
    no_login = {"id": 2, "error": {"code": -32000, "message": "Authentication required"}}
    box.create_fake(
        ["hear", '"initialize"'], acp(greeting, no_login), ["hear", "never"], name="gemini"
    )
    box.create_fake(
        ["out", format_ndjson(INIT, build_tool_call())],
        ["call_tool", "calc", "add", NUMBERS, str(box.recording)],
        ["out", format_ndjson(returns("seen"), says("After."), result("After."))],
        name="qwen",
    )
    with program(None, *flags, SHIM_VENDOR=None) as running:
        frontend = Program(running)
        running.send_lines(user("go"))
        frontend.greet()
        if runs:
            frontend.run()
        running.read_line_containing(b'"type":"result"')
        done = running.end_input()
    assert (done.result["result"], done.result["shim"]["vendor"]) == ("After.", "qwen")
    assert frontend.ran == [{"name": "add", "arguments": NUMBERS}] * runs
    assert not [line for line in done.lines if "can_use_tool" in str(line)]
    assert read_client_answer(box)["result"].get("isError", False) is not runs
    assert "trying qwen" in done.stderr


# -- agents that announce a call without its arguments ---------------------------------------------

OPTIONS = [{"optionId": "yes", "kind": "allow_once"}, {"optionId": "no", "kind": "reject_once"}]
TEXT_BLOCK = {"type": "text", "text": "the sum"}
AGENTS = {"gemini": ("mcp_calc_add__call_1", "mcp_calc_add"), "opencode": ("call_1", "calc_add")}


def acp(*messages):
    return ["out", format_ndjson(*({"jsonrpc": "2.0"} | message for message in messages))]


def acp_update(name, call_id, /, **fields):
    update = {"sessionUpdate": name, "toolCallId": call_id, **fields}
    return {"method": "session/update", "params": {"sessionId": "s1", "update": update}}


def agent(box, name, *, asks=True, late_input=False, early=False):
    """Create an agent that calls the tool. With `late_input` it sends the input after its question,
    as opencode does.

    With `early` the call arrives at its server before the agent has announced it.
    """
    call_id, title = AGENTS[name]
    call = {
        "toolCallId": call_id,
        "title": title,
        "kind": "other",
        "status": "pending",
        "rawInput": {},
    }
    params = {"sessionId": "s1", "toolCall": call, "options": OPTIONS}
    question_steps = (
        acp({"id": 7, "method": "session/request_permission", "params": params}),
        ["hear", '"outcome"'],
    )
    start_step = acp(
        acp_update(
            "tool_call",
            call_id,
            **{key: call[key] for key in ("title", "kind")},
            status="in_progress",
        )
    )
    run = ["call_tool", "calc", "add", NUMBERS, str(box.recording)]
    input_step = acp(
        acp_update(
            "tool_call_update",
            call_id,
            **{key: call[key] for key in ("title", "kind")},
            status="in_progress",
            rawInput=NUMBERS,
        )
    )
    content = [{"type": "content", "content": TEXT_BLOCK}]
    done = acp(
        acp_update("tool_call_update", call_id, status="completed", content=content),
        {"id": 3, "result": {"stopReason": "end_turn"}},
    )
    opening = (
        ["hear", '"initialize"'],
        acp({"id": 1, "result": {"protocolVersion": 1}}),
        ["hear", '"session/new"'],
        acp({"id": 2, "result": {"sessionId": "s1"}}),
        ["hear", '"session/prompt"'],
    )
    first_steps = question_steps if asks else () if early else (start_step,)
    return box.create_fake(
        *opening,
        *first_steps,
        *([input_step] * late_input),
        run,
        *([start_step] * early),
        done,
        ["hear", "never"],
    )


HOOKS = {
    "hooks": {
        event: [{"matcher": None, "hookCallbackIds": [event]}]
        for event in ("PreToolUse", "PostToolUse")
    }
}


def run(running, decision=None):
    """Answer hooks, the server's requests and the question about the call. Return what each of them
    received, and the results.
    """
    running.send_lines(
        {
            "type": "control_request",
            "request_id": "i",
            "request": {"subtype": "initialize", **HOOKS},
        }
    )
    had, data, listed = {}, b"", False
    while True:
        data += running.read_on()
        *complete_lines, data = data.split(b"\n")
        for line in map(json.loads, complete_lines):
            if line["type"] == "result":
                return had, line
            for block in (
                line.get("message", {}).get("content", ())
                if line["type"] in ("assistant", "user")
                else ()
            ):
                if block["type"] in ("tool_use", "tool_result"):
                    had.setdefault(block["type"], []).append(
                        block.get("input", block.get("content"))
                    )
            if line["type"] == "control_request":
                running.send_lines(
                    answer(line["request_id"], **respond(line["request"], had, decision))
                )
                if not listed and line["request"].get("message", {}).get("method") == "tools/list":
                    listed = True  # as for a real vendor, which gets its tools from there
                    running.send_lines(user("go"))


def respond(request, had, decision):
    """Return the frontend's answer to a request."""
    kind = request["subtype"]
    if kind == "hook_callback":
        had.setdefault(request["callback_id"], []).append(request["input"]["tool_input"])
        return {}
    if kind == "can_use_tool":
        had.setdefault(kind, []).append(request["input"])
        return decision or {"behavior": "allow", "updatedInput": request["input"]}
    message = request["message"]
    body = {}
    if message["method"] == "initialize":
        server_fields = {
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "calc", "version": "1"},
        }
        body = {"protocolVersion": message["params"]["protocolVersion"], **server_fields}
    elif message["method"] == "tools/list":
        body = {"tools": [{"name": "add", "inputSchema": {}}]}
    elif message["method"] == "tools/call":
        had.setdefault("ran", []).append(message["params"]["arguments"])
        body = {"content": [TEXT_BLOCK]}
    return {"mcp_response": {"jsonrpc": "2.0", "id": message.get("id"), "result": body}}


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.parametrize("late_input", [False, True])
@pytest.mark.parametrize("flags", [(), ("--allowedTools", ADD)])
def test_mcp_call_announced_without_arguments_is_written_with_arguments(
    box, program, name, late_input, flags
):
    with program(
        agent(box, name, late_input=late_input), *ASKING, *flags, SHIM_VENDOR=name
    ) as running:
        had, result = run(running)
        running.end_input()
    expected_question = {} if flags else {"can_use_tool": [NUMBERS]}
    everywhere = {key: [NUMBERS] for key in ("tool_use", "PreToolUse", "PostToolUse", "ran")}
    assert (
        had == {**everywhere, **expected_question, "tool_result": [[TEXT_BLOCK]]}
        and not result["is_error"]
    )


@pytest.mark.parametrize("early", [False, True])
def test_mcp_call_without_a_permission_request_is_written_with_arguments(box, program, early):
    child = agent(box, "opencode", asks=False, early=early)
    with program(child, *ASKING, "--allowedTools", ADD, SHIM_VENDOR="opencode") as running:
        had, _ = run(running)
        running.end_input()
    assert had["tool_use"] == had["PreToolUse"] == had["PostToolUse"] == [NUMBERS]


def test_denied_mcp_call_with_arguments_does_not_run(box, program):
    with program(agent(box, "gemini"), *ASKING, SHIM_VENDOR="gemini") as running:
        had, result = run(running, {"behavior": "deny", "message": "rather not"})
        running.end_input()
    assert had["tool_use"] == had["can_use_tool"] == [NUMBERS] and "ran" not in had
    assert [denial["tool_input"] for denial in result["permission_denials"]] == [NUMBERS]
    assert read_client_answer(box)["result"]["isError"] is True


def test_mcp_call_denied_by_the_mode_is_written_without_arguments(box, program):
    """The arguments stay unknown, because the call never arrives at its server."""
    call_id, title = AGENTS["opencode"]
    call = {
        "toolCallId": call_id,
        "title": title,
        "kind": "other",
        "status": "pending",
        "rawInput": {},
    }
    params = {"sessionId": "s1", "toolCall": call, "options": OPTIONS}
    child = box.create_fake(
        ["hear", '"initialize"'],
        acp({"id": 1, "result": {"protocolVersion": 1}}),
        ["hear", '"session/new"'],
        acp({"id": 2, "result": {"sessionId": "s1"}}),
        ["hear", '"session/prompt"'],
        acp({"id": 7, "method": "session/request_permission", "params": params}),
        ["hear", '"outcome"'],
        acp(
            acp_update("tool_call_update", call_id, status="failed"),
            {"id": 3, "result": {"stopReason": "end_turn"}},
        ),
        ["hear", "never"],
    )
    with program(child, *ASKING, "--permission-mode", "dontAsk", SHIM_VENDOR="opencode") as running:
        had, result = run(running)
        running.end_input()
    assert len(had["tool_use"]) == len(had["tool_result"]) == 1 and "ran" not in had
    assert [denial["tool_name"] for denial in result["permission_denials"]] == [ADD]
