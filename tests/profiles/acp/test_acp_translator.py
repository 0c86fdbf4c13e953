"""The Agent Client Protocol as Claude's stream: the lines of a child become lines for the frontend
and lines for the child.
"""

import json

import pytest
from acp_agent import (
    ANSWERS,
    DONE,
    MODEL,
    AcpConversation,
    build_permission_request,
    build_text_update,
    build_update,
    start_acp_session,
)
from hypothesis import given
from hypothesis import strategies as st
from stream_invariants import check_turns
from sweeps import loop_over_rows

from shim.core.adapter.commands import AskPermissionCommand, SendToChildCommand
from shim.core.claude.messages import ALL_KINDS, UserMessage, parse_user_message
from shim.core.claude.permissions import PermissionDecision
from shim.profiles.acp.blocks import build_prompt_blocks
from shim.profiles.acp.translator import MAX_DENIAL_PROMPTS


def start_conversation(vendor="opencode"):
    return AcpConversation(vendor).feed_messages(*ANSWERS)


def test_agent_chunks_become_a_complete_turn():
    talk = (
        start_conversation()
        .feed_messages(
            build_text_update("Let me", "agent_thought_chunk"),
            build_text_update("Hel"),
            build_text_update("lo"),
            DONE,
        )
        .close_stream()
    )
    (turn,) = check_turns(talk.lines, partial=False)
    assert [line["type"] for line in turn if line["type"] != "message_stop"] == [
        "system",
        "assistant",
        "assistant",
        "result",
    ]
    assert turn[-2]["result"] == "Hello"


def test_user_message_is_replayed_after_the_init_of_its_turn():
    """C15. The session exists before the message of a later turn."""
    talk = AcpConversation("opencode")
    talk.stream.set_user_message(read("one"), replays_message=True, has_hooks=False)
    talk.feed_messages(*ANSWERS, build_text_update("Hello"), DONE).finish_stream()
    talk.stream.start_turn()
    talk.stream.set_user_message(read("two"), replays_message=True, has_hooks=False)
    talk.feed_messages(build_text_update("Hello"))
    lines = [json.loads(line) for line in talk.lines.splitlines()]
    entries = [
        line["message"]["content"] if line["type"] == "user" else line.get("subtype")
        for line in lines
    ]
    assert [entry for entry in entries if entry not in (None, "success")] == [
        "init",
        "one",
        "init",
        "two",
    ]


def read(text):
    message = {"role": "user", "content": text}
    return parse_user_message({"type": "user", "message": message}, "2026-11-20T10:00:00.000Z")


def test_tool_call_with_a_permission_request_is_emitted_once():
    talk = start_conversation().feed_messages(
        build_update(
            "tool_call",
            toolCallId="c1",
            title="bash",
            kind="execute",
            status="pending",
            rawInput={},
        ),
        build_update(
            "tool_call_update", toolCallId="c1", status="in_progress", rawInput={"command": "ls"}
        ),
        build_permission_request(),
    )
    (request,) = talk.pending_permissions
    assert (request.tool, request.tool_input, request.call_id) == ("Bash", {"command": "ls"}, "c1")
    talk.answer_permission(True)
    assert talk.get_last_message() == {
        "jsonrpc": "2.0",
        "id": 7,
        "result": {"outcome": {"outcome": "selected", "optionId": "yes"}},
    }
    talk.feed_messages(
        build_update(
            "tool_call_update", toolCallId="c1", status="completed", rawOutput={"output": "a\n"}
        ),
        DONE,
    ).close_stream()
    check_turns(talk.lines, partial=False)
    assert talk.lines.count(b'"type":"tool_use"') == 1
    assert b'"content":"a"' in talk.lines


def test_second_request_for_an_allowed_call_is_answered_automatically():
    talk = start_conversation().feed_messages(build_permission_request())
    talk.answer_permission(True)
    talk.feed_messages(build_permission_request(request_id=8, title="external_directory"))
    assert talk.pending_permissions == []
    assert talk.get_last_message()["id"] == 8


def test_history_of_a_loaded_session_is_not_emitted():
    talk = AcpConversation(resume="s1").feed_messages(
        {"id": 1, "result": {"protocolVersion": 1}}, build_text_update("old words")
    )
    talk.feed_messages(
        {"id": 2, "result": {}},
        build_text_update("more old words"),
        {"id": 3, "error": {"code": -32601}},
    )
    talk.feed_messages(
        {"id": 4, "error": {"code": -32601}},
        build_text_update("new"),
        {"id": 5, "result": {"stopReason": "end_turn"}},
    ).close_stream()
    (turn,) = check_turns(talk.lines, partial=False)
    assert turn[-2]["result"] == "new"


def test_reused_id_of_an_allowed_call_requires_a_new_decision():
    talk = start_conversation().feed_messages(build_permission_request())
    talk.answer_permission(True)
    talk.feed_messages(build_permission_request(request_id=8, rawInput={"command": "touch two"}))
    assert talk.pending_permissions[0].refusal or talk.pending_permissions[0].arguments == {
        "command": "touch two"
    }
    talk.pending_permissions.clear()
    talk.feed_messages(
        build_update("tool_call_update", toolCallId="c1", status="completed"),
        build_permission_request(request_id=9),
    )
    assert len(talk.pending_permissions) == 1


def test_permission_request_input_is_not_merged_into_the_call_input():
    first = build_update(
        "tool_call",
        toolCallId="c1",
        title="apply_patch",
        kind="edit",
        status="pending",
        rawInput={},
    )
    talk = start_conversation().feed_messages(
        first,
        build_permission_request(
            title="external_directory", kind="other", rawInput={"filepath": "/etc/x"}
        ),
    )
    assert talk.pending_permissions[0].tool == "Edit"
    talk.feed_messages(
        build_update(
            "tool_call_update",
            toolCallId="c1",
            status="in_progress",
            rawInput={"patchText": "all of it"},
        )
    )
    assert talk.stream.diagnostics.build_report()["repairs"] == {}


def test_permission_request_without_a_call_is_cancelled():
    talk = start_conversation().feed_messages(
        {"id": 5, "method": "session/request_permission", "params": {"sessionId": "s1"}}
    )
    assert talk.get_last_message()["result"] == {"outcome": {"outcome": "cancelled"}}


def test_ask_user_question_permission_request_is_cancelled():
    """kimi-code sends this request if the client does not answer forms. Allowing it would select
    the first option.
    """
    call = build_update("tool_call", toolCallId="c1", title="AskUserQuestion", status="pending")
    talk = start_conversation("kimi-code").feed_messages(
        call, build_permission_request(title="AskUserQuestion", kind=None, rawInput=None)
    )
    assert talk.pending_permissions == []
    assert talk.get_last_message()["result"] == {"outcome": {"outcome": "cancelled"}}


def test_mode_response_between_turns_is_processed():
    session = {"id": 2, "result": {"sessionId": "s1", "modes": {"currentModeId": "build"}}}
    talk = AcpConversation().feed_messages(ANSWERS[0], session, DONE).close_stream()
    talk.sent_bytes += talk.child_input.encode_permission_mode_change("plan")
    talk.stream.skip_output_between_turns(b'{"jsonrpc":"2.0","id":4,"result":{}}\n')
    assert (
        json.loads(talk.child_input.encode_prompt(UserMessage("next")))["method"]
        == "session/prompt"
    )


def test_rejected_model_makes_the_child_unusable():
    session = {"id": 2, "result": {"sessionId": "s1", "configOptions": [MODEL]}}
    talk = AcpConversation(model="nobody's").feed_messages(
        ANSWERS[0], session, {"id": 3, "error": {"code": -32602, "message": "no such"}}
    )
    assert not talk.child_input.can_accept_prompts
    assert b"session/prompt" not in talk.sent_bytes


def test_init_reports_the_requested_model():
    session = {"id": 2, "result": {"sessionId": "s1", "configOptions": [MODEL]}}
    talk = (
        AcpConversation(model="theirs")
        .feed_messages(ANSWERS[0], session, {"id": 3, "result": {}})
        .close_stream()
    )
    assert json.loads(talk.lines.splitlines()[0])["model"] == "theirs"


@pytest.mark.parametrize("prompt_text", ["/init", " /init", "$x"])
def test_prompt_that_looks_like_a_command_is_escaped(prompt_text):
    talk = start_conversation().feed_messages(DONE).close_stream()
    prompt = json.loads(talk.child_input.encode_prompt(UserMessage(prompt_text)))["params"][
        "prompt"
    ]
    assert prompt == [{"type": "text", "text": f"\\{prompt_text}"}]


def test_prompt_contains_only_supported_content_blocks():
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    paper = {"type": "document", "source": source | {"media_type": "application/pdf"}}
    content = [{"type": "image", "source": source}, {"type": "text", "text": "/what"}, paper]
    message = parse_user_message({"message": {"role": "user", "content": content}}, "")
    image = {"type": "image", "mimeType": "image/png", "data": "AAAA"}
    text = {"type": "text", "text": "\\/what"}
    file = {"uri": "attachment:///3.pdf", "mimeType": "application/pdf", "blob": "AAAA"}
    inline = {"type": "image", "mimeType": "application/pdf", "data": "AAAA"}
    assert build_prompt_blocks(message, ALL_KINDS, "image") == [image, text, inline]
    for able, expected in (
        ({}, [text]),
        ({"image": True, "embeddedContext": False}, [image, text]),
        (
            {"image": True, "embeddedContext": True},
            [image, text, {"type": "resource", "resource": file}],
        ),
    ):
        agent = {"protocolVersion": 1, "agentCapabilities": {"promptCapabilities": able}}
        session, _ = start_acp_session()
        session.read_response({"id": 1, "result": agent})
        session.read_response({"id": 2, "result": {"sessionId": "s1"}})
        assert json.loads(session.encode_prompt(message))["params"]["prompt"] == expected


def test_image_result_is_converted_to_a_claude_block():
    data = {"type": "image", "mimeType": "image/png", "data": "AAAA"}
    content = [
        {"type": "content", "content": block}
        for block in ({"type": "text", "text": "read"}, data, {"type": "image"})
    ]
    call = build_update(
        "tool_call", toolCallId="c9", title="read", kind="read", rawInput={"filePath": "/a.png"}
    )
    completion = build_update(
        "tool_call_update", toolCallId="c9", status="completed", content=content
    )
    talk = start_conversation().feed_messages(call, completion, DONE).close_stream()
    (result,) = (json.loads(line) for line in talk.lines.splitlines() if b'"tool_result"' in line)
    source = {"type": "base64", "data": "AAAA", "media_type": "image/png"}
    expected = [{"type": "text", "text": "read"}, {"type": "image", "source": source}]
    assert result["message"]["content"][0]["content"] == expected


def test_permission_requests_can_be_answered_in_any_order():
    talk = start_conversation().feed_messages(
        build_permission_request(), build_permission_request(request_id="q", call="c2")
    )
    talk.pending_permissions.reverse()
    talk.answer_permission(False)
    talk.answer_permission(True)
    answers = [json.loads(line) for line in talk.sent_bytes.splitlines()[-2:]]
    assert [(answer["id"], answer["result"]["outcome"]["optionId"]) for answer in answers] == [
        ("q", "no"),
        (7, "yes"),
    ]


def test_denied_call_gets_a_result_before_the_next_text():
    talk = start_conversation("gemini").feed_messages(
        build_permission_request(call="run_shell_command__1", title="ls", rawInput=None)
    )
    talk.stream.turn.record_permission_denial(talk.pending_permissions[0], "no thanks")
    talk.stream.take_output()
    talk.answer_permission(False)
    talk.feed_messages(build_text_update("Then not."), DONE).close_stream()
    (turn,) = check_turns(talk.lines, partial=False)
    kinds = [line["type"] for line in turn]
    assert kinds.index("user") < len(kinds) - 1 - kinds[::-1].index("assistant")
    assert b"no thanks" in talk.lines


def test_unsupported_agent_request_gets_an_error_response():
    talk = start_conversation().feed_messages(
        {"id": 5, "method": "fs/write_text_file", "params": {"path": "/etc/passwd", "content": ""}}
    )
    assert talk.get_last_message()["error"]["code"] == -32601


def test_update_of_another_session_is_ignored():
    talk = (
        start_conversation()
        .feed_messages(
            build_update(
                "agent_message_chunk", session="s2", content={"type": "text", "text": "psst"}
            ),
            DONE,
        )
        .close_stream()
    )
    assert b"psst" not in talk.lines


def test_plan_becomes_a_single_todo_write_call():
    entries = [{"content": "look", "status": "pending", "priority": "high"}]
    talk = (
        start_conversation()
        .feed_messages(
            build_update("plan", entries=entries), build_update("plan", entries=entries), DONE
        )
        .close_stream()
    )
    assert talk.lines.count(b'"TodoWrite"') == 1
    assert b'{"content":"look","status":"pending","activeForm":"look"}' in talk.lines


def test_missing_login_is_reported_in_the_result():
    talk = (
        AcpConversation()
        .feed_messages(
            ANSWERS[0], {"id": 2, "error": {"code": -32000, "message": "Authentication required"}}
        )
        .close_stream()
    )
    (turn,) = check_turns(talk.lines, partial=False)
    assert turn[-2]["is_error"]
    assert "Authentication required" in json.dumps(turn[-2])


def test_interrupt_sends_session_cancel_and_ends_the_turn():
    talk = start_conversation().feed_messages(build_text_update("Hel"))
    talk.stream.turn.record_interrupt()
    talk.sent_bytes += talk.child_input.encode_interrupt()
    assert talk.get_last_message() == {
        "jsonrpc": "2.0",
        "method": "session/cancel",
        "params": {"sessionId": "s1"},
    }
    talk.feed_messages({"id": 3, "result": {"stopReason": "cancelled"}}).close_stream()
    (turn,) = check_turns(talk.lines, partial=False)
    assert turn[-2]["subtype"] == "error_during_execution"


@pytest.mark.parametrize("broken", [b"log: %s", b"%s tail"])
def test_permission_request_from_a_malformed_line_is_cancelled(broken):
    talk = start_conversation()
    line = json.dumps({"jsonrpc": "2.0"} | build_permission_request()).encode()
    _, commands = talk.stream.feed(broken % line + b"\n")
    (answer,) = (
        json.loads(command.line) for command in commands if isinstance(command, SendToChildCommand)
    )
    assert not [command for command in commands if isinstance(command, AskPermissionCommand)]
    assert answer == {"jsonrpc": "2.0", "id": 7, "result": {"outcome": {"outcome": "cancelled"}}}


def test_decision_with_changed_input_raises_value_error():
    talk = start_conversation().feed_messages(build_permission_request())
    try:
        talk.child_input.encode_permission_response(
            talk.pending_permissions[0], PermissionDecision(True, updated_input={"command": "pwd"})
        )
    except ValueError as error:
        assert "cannot change the input of a call" in str(error)
    else:
        raise AssertionError("the call would run as it was")


def test_allowed_call_requires_a_new_decision_after_the_turn():
    talk = start_conversation().feed_messages(build_permission_request())
    talk.answer_permission(True)
    talk.feed_messages(DONE).close_stream()
    commands = talk.stream.skip_output_between_turns(
        json.dumps({"jsonrpc": "2.0"} | build_permission_request(request_id=8)).encode() + b"\n"
    )
    assert [
        command.permission.call_id
        for command in commands
        if isinstance(command, AskPermissionCommand)
    ] == ["c1"]


def test_allowed_call_requires_a_new_decision_after_an_interrupt():
    talk = start_conversation().feed_messages(build_permission_request())
    talk.answer_permission(True)
    talk.child_input.encode_interrupt()
    talk.feed_messages(build_permission_request(request_id=8))
    assert len(talk.pending_permissions) == 1


def test_malformed_permission_request_is_cancelled():
    torn = {"type": "diff", "changes": [{"path": ["no", "path"]}]}
    talk = start_conversation().feed_messages(
        build_permission_request(kind="edit", rawInput=None, title="?", content=[torn])
    )
    assert talk.get_last_message()["result"] == {"outcome": {"outcome": "cancelled"}}


# -- arbitrary output of an agent ------------------------------------------------------------------

KINDS = (
    "agent_message_chunk",
    "agent_thought_chunk",
    "tool_call",
    "tool_call_update",
    "plan",
    "usage_update",
    "new",
)
VALUES = st.one_of(
    st.none(),
    st.integers(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
    st.just({"type": "text", "text": "x"}),
)
NAMES = (
    *(
        "content",
        "toolCallId",
        "title",
        "status",
        "rawInput",
        "rawOutput",
        "locations",
        "entries",
        "cost",
    ),
    *("messageId", "_meta"),
)
FIELDS = st.dictionaries(st.sampled_from(NAMES), VALUES)
MESSAGES = st.one_of(
    st.builds(lambda kind, fields: build_update(kind, **fields), st.sampled_from(KINDS), FIELDS),
    st.builds(
        lambda fields, request_id: build_permission_request(request_id, **fields), FIELDS, VALUES
    ),
    st.builds(lambda request_id, result: {"id": request_id, "result": result}, VALUES, VALUES),
    st.builds(lambda request_id, code: {"id": request_id, "error": {"code": code}}, VALUES, VALUES),
    st.sampled_from((*ANSWERS, DONE, build_text_update("x"), build_permission_request())),
)


@given(st.lists(MESSAGES, max_size=20))
def test_arbitrary_agent_messages_yield_a_single_result(messages):
    talk = AcpConversation().feed_messages(*messages).close_stream()
    assert len(check_turns(talk.lines, partial=False)) == 1


def build_kimi_update(name, command, state="in_progress", call_id="t/c1"):
    content = [{"type": "content", "content": {"type": "text", "text": command}}]
    return build_update(name, toolCallId=call_id, title="Shell", status=state, content=content)


def kimis_question(request_id=7):
    return build_permission_request(request_id, "t/c1", title="Shell: ls", kind=None, rawInput=None)


def deny_call(talk, number, message, **decision_fields):
    """Let the agent ask for a call, and deny it."""
    call_id = f"call{number}"
    talk.feed_messages(
        build_update("tool_call", toolCallId=call_id, title="bash", kind="execute"),
        build_permission_request(100 + number, call_id),
    )
    talk.sent_bytes += talk.child_input.encode_permission_response(
        talk.pending_permissions.pop(),
        PermissionDecision(False, message=message, **decision_fields),
    )


def test_message_of_a_person_is_sent_to_an_agent_that_continues_after_a_denial():
    talk = start_conversation("opencode")
    deny_call(talk, 1, "rather not", is_message_for_model=True)
    talk.feed_messages(build_text_update("Canceled."), DONE)
    prompt = talk.get_last_message()
    assert prompt["method"] == "session/prompt"
    assert "A tool call was not allowed: rather not\n" in prompt["params"]["prompt"][0]["text"]
    talk.feed_messages(
        build_text_update("Then not."), {"id": prompt["id"], "result": {"stopReason": "end_turn"}}
    ).close_stream()
    (turn,) = check_turns(talk.lines, partial=False)
    assert turn[-2]["result"] == "Then not."


@pytest.mark.parametrize("decision_fields", [{}, {"is_message_for_model": True, "ends_turn": True}])
def test_reason_of_a_rule_or_of_an_interrupt_is_not_sent(decision_fields):
    talk = start_conversation("opencode")
    deny_call(talk, 1, "the rule Bash", **decision_fields)
    talk.feed_messages(DONE)
    assert "method" not in talk.get_last_message()


def test_number_of_prompts_with_denial_reasons_is_limited():
    talk = start_conversation("opencode")
    response = DONE
    for number in range(MAX_DENIAL_PROMPTS):
        deny_call(talk, number, "no", is_message_for_model=True)
        prompt = talk.feed_messages(response).get_last_message()
        assert prompt["method"] == "session/prompt"
        response = {"id": prompt["id"], "result": {"stopReason": "end_turn"}}
    deny_call(talk, MAX_DENIAL_PROMPTS, "no", is_message_for_model=True)
    talk.feed_messages(response)
    assert "method" not in talk.get_last_message()
    talk.close_stream()
    assert len(check_turns(talk.lines, partial=False)) == 1


def test_denial_reason_is_sent_as_a_second_prompt():
    talk = start_conversation("kimi").feed_messages(
        build_kimi_update("tool_call", '{"command": "ls"}'), kimis_question()
    )
    (request,) = talk.pending_permissions
    assert (request.tool, request.tool_input) == ("Bash", {"command": "ls"})
    talk.sent_bytes += talk.child_input.encode_permission_response(
        talk.pending_permissions.pop(), PermissionDecision(False, message="rather not")
    )
    talk.feed_messages(build_kimi_update("tool_call_update", "rejected", "failed"), DONE)
    prompt = talk.get_last_message()
    assert prompt["method"] == "session/prompt"
    assert (
        prompt["params"]["prompt"][0]["text"]
        == "A tool call was not allowed: rather not\nContinue without this call."
    )
    talk.feed_messages(
        build_text_update("Then not."), {"id": prompt["id"], "result": {"stopReason": "end_turn"}}
    ).close_stream()
    (turn,) = check_turns(talk.lines, partial=False)
    assert turn[-2]["result"] == "Then not."


def test_denial_that_ends_the_turn_sends_no_second_prompt():
    talk = start_conversation("kimi").feed_messages(
        build_kimi_update("tool_call", '{"command": "ls"}'), kimis_question()
    )
    talk.sent_bytes += talk.child_input.encode_permission_response(
        talk.pending_permissions.pop(), PermissionDecision(False, message="stop", ends_turn=True)
    )
    sent_output = talk.sent_bytes
    talk.feed_messages(
        build_kimi_update("tool_call_update", "rejected", "failed"), DONE
    ).close_stream()
    assert talk.sent_bytes == sent_output


def test_permission_request_for_an_ambiguous_call_id_is_cancelled():
    calls = [
        build_kimi_update("tool_call", '{"command": "rm x"}'),
        build_kimi_update("tool_call", '{"command": "ls"}'),
    ]
    talk = start_conversation("kimi").feed_messages(*calls, kimis_question())
    assert talk.pending_permissions == []
    assert talk.get_last_message()["result"] == {"outcome": {"outcome": "cancelled"}}


def test_copilot_info_text_is_dropped_and_exit_code_marks_an_error():
    call = {"toolCallId": "c1", "title": "Try", "kind": "execute", "rawInput": {"command": "false"}}
    output = {"content": "no", "contents": [{"type": "shell_exit", "exitCode": 1}]}
    content = [
        {
            "type": "content",
            "content": {"type": "text", "text": "no\n<shellId: 0 completed with exit code 1>"},
        }
    ]
    talk = start_conversation("copilot").feed_messages(
        build_update("tool_call", **call), build_text_update("Info: /w/new.txt")
    )
    talk.feed_messages(
        build_update(
            "tool_call_update",
            toolCallId="c1",
            status="completed",
            content=content,
            rawOutput=output,
        )
    )
    talk.feed_messages(build_text_update("Info: so"), DONE).close_stream()
    (turn,) = check_turns(talk.lines, partial=False)
    assert turn[-2]["result"] == "Info: so"
    (returned,) = [line["message"]["content"][0] for line in turn if line["type"] == "user"]
    assert (returned["content"], returned["is_error"]) == ("no", True)


# -- an agent that does not name the tool of a call ------------------------------------------------

FRONTEND_TOOLS = (
    "mcp__calc__add",
    "mcp__calc__now",
    "mcp__calc__to_day",
    "mcp__claudeagents__Task",
)


def build_unnamed_call(call_id, title, **tool_input):
    fields = {"title": title, "kind": "other", "status": "pending", "rawInput": tool_input}
    return build_update("tool_call", toolCallId=call_id, **fields)


def end_call(call_id, status="completed"):
    return build_update("tool_call_update", toolCallId=call_id, status=status, rawOutput="r")


def start_with_frontend_tools():
    conversation = AcpConversation("copilot", frontend_tools=FRONTEND_TOOLS)
    return conversation.feed_messages(*ANSWERS)


def list_calls(conversation):
    (turn,) = check_turns(conversation.feed_messages(DONE).close_stream().lines, partial=False)
    blocks = [
        block
        for line in turn
        if line["type"] == "assistant"
        for block in line["message"]["content"]
    ]
    return [(block["id"], block["name"], block["input"]) for block in blocks]


@pytest.mark.parametrize("is_early", [False, True])
def test_call_of_a_frontend_tool_is_named_when_the_server_receives_the_call(is_early):
    """copilot shows the model's description as the title. The name arrives with the call."""
    tool_input = {"prompt": "p", "subagent_type": "x", "description": "say hi"}
    conversation = start_with_frontend_tools()
    if is_early:
        conversation.receive_call("Task", tool_input)
    conversation.feed_messages(build_unnamed_call("c1", "say hi", **tool_input))
    assert (b'"Task"' in conversation.lines) is is_early
    if not is_early:
        conversation.receive_call("Task", tool_input)
        assert b'"Task"' in conversation.lines
    conversation.feed_messages(end_call("c1"))
    assert list_calls(conversation) == [("c1", "Task", tool_input)]


@pytest.mark.parametrize("is_early", [False, True])
def test_calls_with_equal_inputs_are_distinguished_by_their_titles(is_early):
    conversation = start_with_frontend_tools()
    updates = [build_unnamed_call("c1", "calc-now"), build_unnamed_call("c2", "calc-to-day")]
    if not is_early:
        conversation.feed_messages(*updates)
    conversation.receive_call("mcp__calc__to_day", {})
    conversation.receive_call("mcp__calc__now", {})
    if is_early:
        conversation.feed_messages(*updates)
    conversation.feed_messages(end_call("c1"), end_call("c2"))
    assert sorted(list_calls(conversation)) == [
        ("c1", "mcp__calc__now", {}),
        ("c2", "mcp__calc__to_day", {}),
    ]


@loop_over_rows(
    ("title", "tool_input", "expected"),
    [
        ("calc-add", {"a": 1}, ("c1", "mcp__calc__add", {"a": 1})),
        ("calc-sub", {"a": 1}, ("c1", "unknown", {"title": "calc-sub", "a": 1})),
        (
            "calc-add",
            {"description": "calc-add"},
            ("c1", "unknown", {"title": "calc-add", "description": "calc-add"}),
        ),
    ],
)
def test_title_names_a_call_that_never_reached_its_server(title, tool_input, expected):
    """A rule has refused the call. A title that the model wrote is not a name."""
    conversation = start_with_frontend_tools()
    conversation.feed_messages(
        build_unnamed_call("c1", title, **tool_input), end_call("c1", "failed")
    )
    assert list_calls(conversation) == [expected]


def test_title_does_not_name_the_tool_of_a_permission_request():
    """The request is about the server of somebody else."""
    conversation = start_with_frontend_tools()
    conversation.feed_messages(build_unnamed_call("c1", "calc-add", a=1))
    fields = {"title": "calc-add", "kind": "other", "rawInput": {"a": 1}}
    conversation.feed_messages(build_permission_request(call="c1", **fields))
    assert [request.tool for request in conversation.pending_permissions] == ["unknown"]
    conversation.receive_call("mcp__calc__add", {"a": 1})
    conversation.answer_permission(False)
    assert [call[:2] for call in list_calls(conversation)] == [("c1", "unknown")]


# -- an agent that asks twice about a change outside its folders -----------------------------------

CREATED = {"path": "../out.txt", "file_text": "x"}


def build_creation(call_id="c1", **tool_input):
    fields = {"title": "Creating", "kind": "edit", "rawInput": CREATED | tool_input}
    return build_update("tool_call", toolCallId=call_id, status="pending", **fields)


def ask_for_path(path, request_id=7):
    fields = {"title": "Access paths", "kind": "read", "rawInput": {"path": path}}
    return build_permission_request(request_id, **fields)


def ask_for_change(path, request_id=8):
    fields = {"title": "Create file", "kind": "edit", "rawInput": {"fileName": path, "diff": "d"}}
    return build_permission_request(request_id, **fields)


def list_pending_calls(conversation):
    return [(request.tool, request.tool_input) for request in conversation.pending_permissions]


def test_both_questions_about_a_change_get_the_answer_to_the_complete_call():
    conversation = start_conversation("copilot").feed_messages(
        build_creation(), ask_for_path("/out.txt")
    )
    assert list_pending_calls(conversation) == [
        ("Write", {"file_path": "../out.txt", "content": "x"})
    ]
    conversation.answer_permission(True)
    conversation.feed_messages(ask_for_change("/out.txt"))
    assert conversation.pending_permissions == []
    outcome = {"outcome": "selected", "optionId": "yes"}
    assert conversation.get_last_message() == {
        "jsonrpc": "2.0",
        "id": 8,
        "result": {"outcome": outcome},
    }


def test_denied_access_is_a_denied_change():
    conversation = start_conversation("copilot").feed_messages(
        build_creation(), ask_for_path("/out.txt")
    )
    conversation.answer_permission(False)
    outcome = {"outcome": "selected", "optionId": "no"}
    assert conversation.get_last_message()["result"] == {"outcome": outcome}
    conversation.feed_messages(ask_for_change("/out.txt"))
    assert [request.refusal != "" for request in conversation.pending_permissions] == [True]


@loop_over_rows(
    ("updates", "path", "tool"),
    [
        ([build_creation()], "/other.txt", "Read"),
        ([build_creation(), build_creation()], "/out.txt", "Read"),
        ([build_creation(path="out.txt")], "/out.txt", "Read"),
        ([], "/out.txt", "unknown"),
    ],
)
def test_question_about_another_path_is_not_about_the_change(updates, path, tool):
    conversation = start_conversation("copilot").feed_messages(*updates, ask_for_path(path))
    assert [name for name, _ in list_pending_calls(conversation)] == [tool]


def test_second_question_about_another_file_is_not_answered_by_the_first_answer():
    conversation = start_conversation("copilot").feed_messages(
        build_creation(), ask_for_path("/out.txt")
    )
    conversation.answer_permission(True)
    conversation.feed_messages(ask_for_change("/other.txt"))
    assert [request.refusal != "" for request in conversation.pending_permissions] == [True]


# -- an agent that reports its failures as texts ---------------------------------------------------

RETRYING = "Info: Request failed due to a transient API error. Retrying..."
NO_KEY = "Error: Authentication failed with provider at http://127.0.0.1:1/v1 (HTTP 401).\n  Check your key."
BROKEN = "Error: Failed to get response from the AI model; retried 5 times Last error: 500 The server had an error."


def copilot(*updates, done=DONE):
    talk = AcpConversation("copilot").feed_messages(*ANSWERS, *updates, done).close_stream()
    lines = [json.loads(line) for line in talk.lines.splitlines()]
    (result,) = (line for line in lines if line["type"] == "result")
    blocks = [
        block
        for line in lines
        if line["type"] == "assistant"
        for block in line["message"]["content"]
    ]
    return result, [block["text"] for block in blocks if block["type"] == "text"], lines


def used(output):
    return {
        "id": 3,
        "result": {"stopReason": "end_turn", "usage": {"inputTokens": 1, "outputTokens": output}},
    }


@loop_over_rows(
    ("text", "cause"),
    [(NO_KEY, "auth"), (BROKEN, "vendor_error"), ("Error: Odd.", "vendor_error")],
)
@loop_over_rows("done", [DONE, used(0)])
@loop_over_rows("before", [[], [build_text_update(RETRYING), build_text_update(RETRYING)]])
def test_copilot_error_text_is_reported_as_an_error(text, cause, done, before):
    result, texts, lines = copilot(
        *before, build_text_update(text), build_update("usage_update", used=5, size=9), done=done
    )
    assert result["is_error"] and result["shim"]["cause"] == cause
    assert text.removeprefix("Error: ")[:20] in json.dumps(result)
    assert not any("Retrying" in reply_text for reply_text in texts)
    assert [line["attempt"] for line in lines if line.get("subtype") == "api_retry"] == [
        *range(1, len(before) + 1)
    ]


def test_turn_with_a_successful_retry_is_not_an_error():
    result, texts, _ = copilot(
        build_text_update(RETRYING), build_text_update("Hel"), build_text_update("lo"), done=used(3)
    )
    assert (result["is_error"], result["result"], texts) == (False, "Hello", ["Hello"])


@pytest.mark.parametrize(
    "updates",
    [
        [build_text_update("Error: this is"), build_text_update(" how it looks")],
        [build_text_update("Error: 42")],
        [build_text_update("Fine. "), build_text_update("Error: 42")],
    ],
)
def test_model_text_that_starts_with_error_is_not_an_error(updates):
    result, texts, _ = copilot(*updates, done=used(3))
    full_text = "".join(message["params"]["update"]["content"]["text"] for message in updates)
    assert (result["is_error"], result["result"], texts) == (False, full_text, [full_text])
    if len(updates) > 1:  # also without usage
        assert copilot(*updates)[0]["result"] == full_text


def test_a_turn_continues_if_the_model_calls_a_tool_after_the_word_error():
    call = build_update(
        "tool_call", toolCallId="c1", kind="execute", title="x", rawInput={"command": "ls"}
    )
    completion = build_update(
        "tool_call_update", toolCallId="c1", status="completed", rawOutput="a"
    )
    result, _, lines = copilot(
        build_text_update("Error: let me look"), call, completion, build_text_update("Done.")
    )
    kinds = [
        block["type"]
        for line in lines
        if line["type"] == "assistant"
        for block in line["message"]["content"]
    ]
    assert kinds == ["text", "tool_use", "text"] and result["result"] == "Done."


@pytest.mark.parametrize("session", ["s1", "s2"])
def test_history_of_a_forked_session_is_not_emitted(session):
    """opencode sends the history of a session that it forks. Other agents send it when they load a
    session.
    """
    call = {"toolCallId": "c1", "title": "ls", "kind": "execute", "rawInput": {"command": "ls"}}
    old = (
        build_update(
            "agent_message_chunk", session=session, content={"type": "text", "text": "old words"}
        ),
        build_update("tool_call", session=session, **call, status="completed"),
    )
    talk = AcpConversation(resume="s1", flags=("--fork-session",)).feed_messages(
        {"id": 1, "result": {"protocolVersion": 1}}, *old
    )
    talk.feed_messages(
        {"id": 2, "result": {"sessionId": "s2"}}, *old, {"id": 3, "error": {"code": -32601}}
    )
    talk.feed_messages({"id": 4, "error": {"code": -32601}})
    talk.feed_messages(
        build_update("agent_message_chunk", session="s2", content={"type": "text", "text": "new"})
    )
    talk.feed_messages({"id": 5, "result": {"stopReason": "end_turn"}}).close_stream()
    (turn,) = check_turns(talk.lines, partial=False)
    assert (
        turn[-2]["result"] == "new"
        and b'"type":"tool_use"' not in talk.lines
        and b"old words" not in talk.lines
    )
    assert b'"session/fork"' in talk.sent_bytes
