"""Version 2 of the Agent Client Protocol, which the agent selects: a turn ends with a state, and
each message has an id.
"""

import base64
import json

import pytest
from acp_agent import AcpConversation, build_update, start_acp_session
from stream_invariants import check_turns

from shim.core.claude.messages import UserMessage
from shim.profiles.acp.blocks import list_accepted_block_kinds

GREETED = {"id": 1, "result": {"protocolVersion": 2, "info": {}, "capabilities": {"session": {}}}}
ANSWERS = (GREETED, {"id": 2, "result": {"sessionId": "s1"}})
TAKEN = {"id": 3, "result": {}}
OPTIONS = [{"optionId": "yes", "kind": "allow_once"}, {"optionId": "no", "kind": "reject_once"}]
RUNS = build_update("state_update", state="running")


def idle(**reason):
    return build_update("state_update", state="idle", **reason)


ENDED = idle(stopReason="end_turn")


def piece(text, message="m1"):
    return build_update(
        "agent_message_chunk", messageId=message, content={"type": "text", "text": text}
    )


def build_message(*texts, message="m1", kind="agent_message"):
    return build_update(
        kind, messageId=message, content=[{"type": "text", "text": text} for text in texts]
    )


def call(status=None, **fields):
    return build_update(
        "tool_call_update", toolCallId="c1", **({"status": status} if status else {}), **fields
    )


def start_conversation():
    return AcpConversation().feed_messages(*ANSWERS, TAKEN, RUNS)


def result_of(talk):
    (turn,) = check_turns(talk.close_stream().lines, partial=False)
    return turn[-2]


def results(talk):
    """Return the content of each tool result, and whether its call failed."""
    lines = [json.loads(line) for line in talk.lines.splitlines()]
    blocks = [
        block for line in lines if line["type"] == "user" for block in line["message"]["content"]
    ]
    return [
        (block["content"], block["is_error"]) for block in blocks if block["type"] == "tool_result"
    ]


# -- the end of a turn -----------------------------------------------------------------------------


def test_turn_ends_with_the_idle_state_and_not_with_the_prompt_response():
    talk = start_conversation().feed_messages(piece("Hel"), piece("lo"))
    assert b'"type":"result"' not in talk.lines
    talk.feed_messages(ENDED)
    assert talk.stream.turn.outcome_tracker.outcome is not None
    assert result_of(talk)["result"] == "Hello"


def test_idle_state_before_the_prompt_response_does_not_end_the_turn():
    talk = AcpConversation().feed_messages(
        *ANSWERS, RUNS, ENDED, idle(), TAKEN, RUNS, piece("Hello"), ENDED
    )
    assert result_of(talk)["result"] == "Hello"


def test_turn_ends_with_work_that_started_before_the_prompt_response():
    talk = AcpConversation().feed_messages(*ANSWERS, RUNS, TAKEN, piece("Hello"), ENDED)
    assert talk.stream.turn.outcome_tracker.outcome is not None
    assert result_of(talk)["result"] == "Hello"


def test_echoed_user_message_marks_the_prompt_as_accepted():
    echo = build_update("user_message", messageId="u1", content=[{"type": "text", "text": "hi"}])
    talk = AcpConversation().feed_messages(*ANSWERS, echo, RUNS, piece("Hello"), ENDED)
    assert talk.stream.turn.outcome_tracker.outcome is not None


@pytest.mark.parametrize("late", [(TAKEN, idle()), (RUNS, ENDED, TAKEN)])
def test_idle_agent_without_further_output_ends_the_turn(late):
    talk = AcpConversation().feed_messages(*ANSWERS, piece("Hello"), *late)
    assert talk.stream.turn.outcome_tracker.outcome is None
    talk.stream.on_idle()
    assert talk.stream.turn.outcome_tracker.outcome is not None
    assert result_of(talk)["result"] == "Hello"


def test_repeated_idle_state_does_not_reopen_a_cancelled_turn():
    talk = start_conversation().feed_messages(piece("Hel"))
    talk.stream.turn.record_interrupt()
    talk.feed_messages(idle(stopReason="cancelled"), idle(stopReason="cancelled"))
    assert talk.stream.turn.outcome_tracker.is_finalized


def test_running_state_after_idle_leaves_the_turn_open():
    talk = AcpConversation().feed_messages(
        *ANSWERS, TAKEN, idle(stopReason="end_turn"), RUNS, piece("Hello")
    )
    assert talk.stream.turn.outcome_tracker.outcome is None
    assert result_of(talk.feed_messages(ENDED))["result"] == "Hello"


def test_error_state_reports_the_error_message():
    error = {"code": -32603, "message": "the model is gone"}
    talk = start_conversation().feed_messages(idle(stopReason="error", error=error))
    assert "the model is gone" in json.dumps(result_of(talk))


def test_compaction_update_becomes_a_compact_boundary():
    used = build_update("usage_update", used=1234, size=9999)
    talk = start_conversation().feed_messages(
        used, build_update("compaction_update", compactionId="k", status="completed"), ENDED
    )
    result_of(talk)
    assert b'"compact_boundary"' in talk.lines
    assert b'"pre_tokens":1234' in talk.lines


def test_turn_with_a_second_prompt_ends_after_the_run_of_that_prompt():
    session, _ = start_acp_session()
    for line in ANSWERS:
        session.read_response(line)
    session.encode_prompt(UserMessage("go on"))
    session.read_response(TAKEN)
    session.encode_prompt(UserMessage("and look there"))
    states = ({"state": "running"}, {"state": "idle"}, {"state": "running"})
    assert [session.convert_state_to_prompt_response(state).request_label for state in states] == [
        "taken"
    ] * 3
    session.read_response({"id": 4, "result": {"messageId": "u2"}})
    assert (
        session.convert_state_to_prompt_response(
            {"state": "idle", "stopReason": "end_turn"}
        ).request_label
        == "prompt"
    )


@pytest.mark.parametrize(
    ("reason", "subtype"),
    [
        ("end_turn", "success"),
        ("max_turn_requests", "error_max_turns"),
        ("cancelled", "error_during_execution"),
    ],
)
def test_result_subtype_follows_the_stop_reason_of_the_idle_state(reason, subtype):
    assert (
        result_of(start_conversation().feed_messages(piece("x"), idle(stopReason=reason)))[
            "subtype"
        ]
        == subtype
    )


def test_rejected_prompt_fails_the_turn():
    talk = AcpConversation().feed_messages(
        *ANSWERS, {"id": 3, "error": {"code": -32603, "message": "no room"}}
    )
    assert "no room" in json.dumps(result_of(talk))


# -- messages and calls with ids -------------------------------------------------------------------


def test_full_message_update_emits_only_the_new_text():
    talk = start_conversation().feed_messages(
        piece("Hel"),
        build_message("Hello"),
        piece(" there"),
        build_message("Hello", " there"),
        ENDED,
    )
    assert result_of(talk)["result"] == "Hello there"


def test_repeated_message_after_a_call_is_emitted_once():
    talk = start_conversation().feed_messages(
        build_message("Look"),
        call("completed", title="x"),
        build_message("Look"),
        piece("Done", "m2"),
        ENDED,
    )
    result_of(talk)
    assert talk.lines.count(b"Look") == 1


def test_emitted_text_is_not_retracted_by_later_updates():
    talk = start_conversation().feed_messages(
        build_message("Hello"),
        build_message("Bye"),
        build_message(),
        build_update("agent_message", messageId="m1"),
        ENDED,
    )
    assert result_of(talk)["result"] == "Hello"
    assert talk.stream.diagnostics.build_report()["repairs"]["contradicted_block"]["count"] == 2


def test_agent_thought_becomes_a_thinking_block():
    talk = start_conversation().feed_messages(
        build_message("Hm", kind="agent_thought"), piece("Yes"), ENDED
    )
    assert result_of(talk)["result"] == "Yes"
    assert b'"thinking":"Hm"' in talk.lines


def test_tool_call_content_chunks_are_joined():
    content = [
        {"type": "content", "content": {"type": "text", "text": text}} for text in ("a", "b")
    ]
    pieces = (
        build_update("tool_call_content_chunk", toolCallId="c1", content=block) for block in content
    )
    talk = start_conversation().feed_messages(
        call("in_progress", title="look", rawInput={"a": 1}), *pieces, call("completed"), ENDED
    )
    result_of(talk)
    assert results(talk) == [("a\nb", False)]


def test_terminal_output_is_the_result_of_its_call():
    def encode_output(text):
        return {"terminalId": "t", "data": base64.b64encode(text).decode()}

    tool_call = call(
        "in_progress", title="ls", kind="execute", content=[{"type": "terminal", "terminalId": "t"}]
    )
    talk = start_conversation().feed_messages(
        tool_call,
        build_update("terminal_output_chunk", **encode_output("caf\u00e9".encode()[:-1])),
        build_update("terminal_output_chunk", **encode_output("caf\u00e9".encode()[-1:])),
        build_update("terminal_update", terminalId="t", exitStatus={"exitCode": 2}),
        call("completed"),
        ENDED,
    )
    result_of(talk)
    assert results(talk) == [("caf\u00e9", True)]


def test_null_raw_input_clears_the_previous_input():
    talk = start_conversation().feed_messages(
        call(title="run", kind="execute", rawInput={"command": "ls"}),
        call(rawInput=None, title="rm all"),
        build_permission_request({"type": "tool_call", "toolCall": {"toolCallId": "c1"}}),
    )
    assert talk.pending_permissions[0].tool_input == {"command": "rm all"}


def test_cancelled_call_has_an_error_result():
    talk = start_conversation().feed_messages(
        call("in_progress", title="x", rawInput={"a": 1}), call("cancelled"), ENDED
    )
    result_of(talk)
    assert results(talk) == [("", True)]


def test_plan_update_becomes_a_todo_list():
    plan = {
        "type": "items",
        "planId": "p",
        "entries": [{"content": "look", "status": "pending", "priority": "high"}],
    }
    talk = start_conversation().feed_messages(build_update("plan_update", plan=plan), ENDED)
    result_of(talk)
    assert b'"todos":[{"content":"look"' in talk.lines


# -- questions -------------------------------------------------------------------------------------


def build_permission_request(subject, request_id=7):
    params = {"sessionId": "s1", "title": "May I?", "subject": subject, "options": OPTIONS}
    return {"id": request_id, "method": "session/request_permission", "params": params}


def test_permission_request_contains_its_tool_call():
    tool_call = {
        "toolCallId": "c1",
        "title": "bash",
        "kind": "execute",
        "rawInput": {"command": "ls"},
    }
    talk = start_conversation().feed_messages(
        build_permission_request({"type": "tool_call", "toolCall": tool_call})
    )
    assert (talk.pending_permissions[0].tool, talk.pending_permissions[0].tool_input) == (
        "Bash",
        {"command": "ls"},
    )
    talk.answer_permission(True)
    assert talk.get_last_message()["result"] == {
        "outcome": {"outcome": "selected", "optionId": "yes"}
    }


def test_command_permission_request_overrides_the_input_of_its_call():
    talk = start_conversation().feed_messages(
        call(title="bash", kind="execute", rawInput={"cmd": "ls"}),
        build_permission_request(
            {"type": "command", "command": "rm all", "cwd": "/w", "toolCallId": "c1"}
        ),
    )
    assert (
        talk.pending_permissions[0].tool,
        talk.pending_permissions[0].tool_input["command"],
    ) == ("Bash", "rm all")
    assert talk.pending_permissions[0].call_id == "c1"


def test_permission_request_without_a_subject_uses_its_title():
    talk = start_conversation().feed_messages(build_permission_request(None))
    assert talk.pending_permissions[0].tool == "May I?"


def test_permission_request_with_an_unknown_subject_is_cancelled():
    talk = start_conversation().feed_messages(build_permission_request({"type": "_everything"}))
    assert not talk.pending_permissions
    assert talk.get_last_message()["result"] == {"outcome": {"outcome": "cancelled"}}


def test_file_change_permission_request_contains_the_path():
    changes = [{"operation": "modify", "path": "/w/a"}]
    diff = {"type": "diff", "changes": changes, "patch": {"format": "git_patch", "text": "+x"}}
    tool_call = {"toolCallId": "c1", "title": "Edit a", "kind": "edit", "content": [diff]}
    talk = start_conversation().feed_messages(
        build_permission_request({"type": "tool_call", "toolCall": tool_call})
    )
    assert (talk.pending_permissions[0].tool, talk.pending_permissions[0].tool_input) == (
        "Edit",
        {"file_path": "/w/a", "patch": "+x"},
    )


def test_moved_file_permission_request_contains_both_paths():
    diff = {"type": "diff", "changes": [{"operation": "move", "oldPath": "/w/a", "path": "/etc/a"}]}
    tool_call = {"toolCallId": "c1", "title": "Move a", "kind": "edit", "content": [diff]}
    talk = start_conversation().feed_messages(
        build_permission_request({"type": "tool_call", "toolCall": tool_call})
    )
    assert talk.pending_permissions[0].tool_input == {"files": ["/w/a", "/etc/a"]}


# -- requests to the agent -------------------------------------------------------------------------


def collect_lines(*answers, **opening):
    """Return the lines for an agent that gives these responses."""
    session, data = start_acp_session(offers_draft=True, **opening)
    for answer in answers:
        session.read_response(answer)
    return [json.loads(line) for line in [*data.splitlines(), *session.outbox]]


def test_initialize_request_has_the_fields_of_both_protocol_versions():
    (line,) = collect_lines()
    assert line["params"]["protocolVersion"] == 2
    assert {"info", "capabilities", "clientInfo", "clientCapabilities"} <= set(line["params"])


def test_accepted_block_kinds_follow_the_prompt_capabilities():
    assert list_accepted_block_kinds(
        {"capabilities": {"session": {"prompt": {"image": {}, "embeddedContext": None}}}}
    ) == {"image"}


def test_resumed_session_is_opened_with_session_resume():
    line = collect_lines(GREETED, resume="s0")[-1]
    assert line["method"] == "session/resume"
    assert line["params"] == {"sessionId": "s0", "cwd": "/w", "mcpServers": []}


def test_stdio_servers_get_a_type_and_sse_servers_are_omitted():
    servers = {"a": {"command": "/a"}, "b": {"type": "sse", "url": "http://b"}}
    line = collect_lines(GREETED, servers=servers)[-1]
    program = {"name": "a", "command": "/a", "args": [], "env": []}
    assert line["params"]["mcpServers"] == [{"type": "stdio", **program}]


def test_permission_mode_is_set_as_a_config_option():
    option = {"configId": "agent-mode", "category": "mode", "currentValue": "code"}
    session = {"id": 2, "result": {"sessionId": "s1", "configOptions": [option]}}
    line = collect_lines(GREETED, session, mode="plan", modes={"plan": "plan"})[-1]
    assert line["method"] == "session/set_config_option"
    assert line["params"] == {
        "sessionId": "s1",
        "configId": "agent-mode",
        "value": "plan",
        "type": "id",
    }


def test_messages_in_a_json_array_are_read_individually():
    talk = start_conversation()
    data = json.dumps(
        [{"jsonrpc": "2.0"} | message for message in (piece("Hel"), {"id": []}, piece("lo"), ENDED)]
    )
    talk.lines += talk.stream.feed(data.encode() + b"\n")[0]
    assert result_of(talk)["result"] == "Hello"
