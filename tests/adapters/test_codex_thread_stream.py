"""codex's app-server as Claude's stream. A child's lines go in; the shim's lines and lines for the
child come out.
"""

import json

import pytest
from codex_agent import (
    COMMAND,
    CONFIG,
    COUNTS,
    GREETED,
    LISTED,
    OPENED,
    THREAD,
    TURN_RESPONSE,
    CodexConversation,
    build_approval_request,
    build_item_completed,
    build_item_started,
    build_notification,
    build_text_delta,
    build_turn_completed,
)
from stream_invariants import check_turns
from sweeps import loop_over_rows

from shim.adapters import codex_items
from shim.adapters.codex_thread_stream import CodexThreadTranslator
from shim.core.claude.messages import MessageBlock, UserMessage

ADDED = {"path": "/w/a", "kind": {"type": "add"}, "diff": "x\n"}
CHANGED = {
    "path": "/w/b",
    "kind": {"type": "update", "move_path": None},
    "diff": "@@\n-x\n+y\n@@\n-1\n+2\n",
}
PATCH = {"type": "fileChange", "id": "p1", "changes": [ADDED, CHANGED]}
MCP = {
    "type": "mcpToolCall",
    "id": "s1",
    "server": "srv",
    "tool": "get",
    "arguments": {"path": "x"},
}
APPROVAL_META = {
    "codex_approval_kind": "mcp_tool_call",
    "tool_name": "get",
    "tool_params": {"path": "x"},
}
COLORS = [
    {
        "id": "c",
        "header": "Color",
        "question": "Which?",
        "options": [{"label": "Red", "description": "warm"}],
    }
]
PERSON = "item/tool/requestUserInput"
ELICITATION = "mcpServer/elicitation/request"


def methods(talk):
    return [line.get("method") for line in talk.sent_messages]


# -- opening a thread ------------------------------------------------------------------------------


def test_prompt_is_sent_after_the_thread_starts():
    talk = CodexConversation().send_prompt()
    assert methods(talk) == ["initialize"]
    talk.feed_messages(GREETED, CONFIG, LISTED)
    assert methods(talk) == [
        "initialize",
        "initialized",
        "config/read",
        "hooks/list",
        "thread/start",
    ]
    talk.feed_messages(OPENED)
    assert talk.get_last_message()["method"] == "turn/start"
    assert talk.get_last_message()["params"]["input"] == [
        {"type": "text", "text": "hi", "text_elements": []}
    ]


def test_thread_config_requires_approval_of_each_call_and_mcp_tool():
    talk = (
        CodexConversation(servers={"own one": {"command": "x"}})
        .send_prompt()
        .feed_messages(GREETED, CONFIG, LISTED)
    )
    params = talk.get_last_message()["params"]
    config = params["config"]
    assert params["approvalPolicy"] == "untrusted"
    assert config["bypass_hook_trust"] is True
    prompting = {"default_tools_approval_mode": "prompt"}
    assert config["mcp_servers"] == {
        "own_one": {"command": "x", "args": [], "env": {}, **prompting},
        "srv": {**prompting, "tools": {"get": {"approval_mode": "prompt"}}},
    }
    ((handler,),) = (group["hooks"] for group in config["hooks"]["PreToolUse"])
    assert handler["command"].endswith("'own_one' 'srv'")
    talk.feed_messages(OPENED)
    assert talk.get_last_message()["params"]["approvalPolicy"] == "untrusted"


def test_mcp_server_configured_twice_is_merged_into_a_single_table():
    talk = (
        CodexConversation(servers={"srv": {"command": "x"}})
        .send_prompt()
        .feed_messages(GREETED, CONFIG, LISTED)
    )
    config = talk.get_last_message()["params"]["config"]
    assert not [key for key in config if "." in key]
    assert config["mcp_servers"]["srv"] == {
        **{"command": "x", "args": [], "env": {}, "default_tools_approval_mode": "prompt"},
        "tools": {"get": {"approval_mode": "prompt"}},
    }


def hook_of(event, trust="trusted", **more):
    return {
        "key": f"{event} {trust}",
        "eventName": event,
        "trustStatus": trust,
        "isManaged": False,
        **more,
    }


def listing(*hooks):
    return {"id": 3, "result": {"data": [{"cwd": "/w", "hooks": list(hooks)}]}}


def test_decision_hooks_and_unreviewed_hooks_are_disabled():
    listed_hooks = (
        *(hook_of("preToolUse"), hook_of("permissionRequest"), hook_of("stop")),
        *(
            hook_of("stop", "untrusted"),
            hook_of("postToolUse", "modified"),
            hook_of("stop", "managed", isManaged=True),
        ),
    )
    hooks = (
        CodexConversation()
        .send_prompt()
        .feed_messages(GREETED, CONFIG, listing(*listed_hooks))
        .get_last_message()["params"]["config"]["hooks"]
    )
    off = (
        "preToolUse trusted",
        "permissionRequest trusted",
        "stop untrusted",
        "postToolUse modified",
    )
    assert hooks["state"] == {key: {"enabled": False} for key in off}
    assert "PreToolUse" in hooks


@loop_over_rows(
    ("answer", "expected"),
    [
        ({"id": 3, "error": {"code": -32601, "message": "no such method"}}, "no such method"),
        ({"id": 3, "result": {"data": []}}, "another version of codex"),
        ({"id": 3, "result": {"data": [{"cwd": "/w"}]}}, "another version of codex"),
        (listing({"eventName": "stop"}), "another version of codex"),
        (
            listing(hook_of("permissionRequest", "managed", isManaged=True, sourcePath="/etc/x")),
            "a managed hook (/etc/x)",
        ),
    ],
)
def test_thread_is_not_started_if_hooks_are_unreadable_or_managed(answer, expected):
    talk = CodexConversation().send_prompt().feed_messages(GREETED, CONFIG, answer)
    assert not talk.child_input.can_accept_prompts and "thread/start" not in methods(talk)
    (turn,) = check_turns(talk.close_stream().lines, partial=False)
    assert expected in turn[-2]["errors"][0]


@pytest.mark.parametrize(("flags", "way"), [((), "resume"), (("--fork-session",), "fork")])
def test_thread_is_resumed_or_forked(flags, way):
    talk = (
        CodexConversation(*flags, resume="old").send_prompt().feed_messages(GREETED, CONFIG, LISTED)
    )
    assert talk.get_last_message()["method"] == f"thread/{way}"
    assert talk.get_last_message()["params"]["threadId"] == "old"


def fork_at_turn(*turns):
    """Fork a thread at the turn `u7`. The fork has these turns."""
    thread = {"id": THREAD, "turns": [{"id": turn} for turn in turns]}
    talk = CodexConversation("--fork-session", resume="old", rewind_target="u7")
    return talk.send_prompt().feed_messages(
        GREETED, CONFIG, LISTED, {"id": 4, "result": {"thread": thread, "cwd": "/w"}}
    )


def test_fork_at_a_turn_names_the_last_turn():
    talk = fork_at_turn("u6", "u7")
    fork = next(line for line in talk.sent_messages if line.get("method") == "thread/fork")
    assert "turn/start" in methods(talk)
    assert (fork["params"]["lastTurnId"], fork["params"]["excludeTurns"]) == ("u7", False)


@pytest.mark.parametrize("turns", [("u6", "u7", "u8"), ("u6",), ()])
def test_prompt_is_not_sent_if_codex_has_not_dropped_the_later_turns(turns):
    talk = fork_at_turn(*turns)
    assert "turn/start" not in methods(talk)
    (turn,) = check_turns(talk.close_stream().lines, partial=False)
    assert "codex did not drop the later turns" in turn[-2]["errors"][0]


def test_model_effort_and_system_prompt_are_sent_to_codex():
    flags = ("--model", "m2", "--effort", "max", "--append-system-prompt", "Be brief.")
    talk = CodexConversation(*flags).send_prompt().feed_messages(GREETED, CONFIG, LISTED, OPENED)
    opened, _, turn = (line["params"] for line in talk.sent_messages[-3:])
    assert (opened["model"], opened["developerInstructions"], turn["effort"]) == (
        "m2",
        "Be brief.",
        "xhigh",
    )


def test_model_change_is_sent_with_the_next_prompt():
    talk = CodexConversation().start_turn().feed_messages(build_turn_completed()).close_stream()
    assert talk.child_input.encode_model_change("m2") == b""
    assert (
        json.loads(talk.child_input.encode_prompt(UserMessage("next")))["params"]["model"] == "m2"
    )
    assert talk.child_input.encode_model_change(None) == b""
    assert (
        json.loads(talk.child_input.encode_prompt(UserMessage("next")))["params"]["model"] == "m1"
    )


def test_default_model_cannot_be_restored_after_a_model_flag():
    assert (
        CodexConversation("--model", "m2").start_turn().child_input.encode_model_change(None)
        is None
    )


def test_image_is_sent_as_a_data_url():
    parts = (
        MessageBlock("image", media_type="image/png", data="AAAA"),
        MessageBlock("text", "look"),
    )
    talk = CodexConversation().start_turn().send_prompt(UserMessage("look", parts))
    assert talk.get_last_message()["params"]["input"][0] == {
        "type": "image",
        "url": "data:image/png;base64,AAAA",
    }


def test_failed_thread_resume_fails_the_turn_and_the_child():
    talk = (
        CodexConversation(resume="x")
        .send_prompt()
        .feed_messages(
            GREETED, CONFIG, LISTED, {"id": 4, "error": {"code": -32600, "message": "no rollout"}}
        )
    )
    assert not talk.child_input.can_accept_prompts
    assert "turn/start" not in methods(talk)
    (turn,) = check_turns(talk.close_stream().lines, partial=False)
    assert turn[-2]["errors"] == ["no rollout"]


# -- output ----------------------------------------------------------------------------------------


def test_text_is_emitted_once_and_its_usage_is_counted():
    item = {"type": "agentMessage", "id": "m1", "text": "Hello"}
    used = build_notification("thread/tokenUsage/updated", tokenUsage={"last": COUNTS})
    talk = (
        CodexConversation()
        .start_turn()
        .feed_messages(
            build_text_delta("Hel"),
            build_text_delta("lo"),
            build_item_completed(item),
            used,
            build_turn_completed(),
        )
        .close_stream()
    )
    (turn,) = check_turns(talk.lines, partial=False)
    assert turn[-2]["result"] == "Hello"
    assert turn[-2]["usage"]["input_tokens"] == 100
    assert turn[0]["model"] == "m1"


def test_usage_of_another_turn_is_not_counted():
    used = build_notification("thread/tokenUsage/updated", tokenUsage={"last": COUNTS})
    used["params"]["turnId"] = "earlier"
    (turn,) = check_turns(
        CodexConversation()
        .start_turn()
        .feed_messages(used, build_text_delta("x"), build_turn_completed())
        .close_stream()
        .lines,
        partial=False,
    )
    assert turn[-2]["usage"]["input_tokens"] == 0


def test_reasoning_is_emitted_once():
    thought = {"type": "reasoning", "id": "r1", "summary": ["One", "Two"]}
    parts = [
        build_notification(
            "item/reasoning/summaryTextDelta", itemId="r1", summaryIndex=index, delta=text
        )
        for index, text in enumerate(thought["summary"])
    ]
    talk = (
        CodexConversation()
        .start_turn()
        .feed_messages(*parts, build_item_completed(thought), build_turn_completed())
        .close_stream()
    )
    assert [block["thinking"] for block in talk.list_blocks("thinking")] == ["One", "Two"]


def test_plan_becomes_a_todo_list():
    steps = [{"step": "look", "status": "completed"}, {"step": "act", "status": "inProgress"}]
    plan = build_notification("turn/plan/updated", plan=steps)
    talk = (
        CodexConversation()
        .start_turn()
        .feed_messages(plan, plan, build_turn_completed())
        .close_stream()
    )
    (call,) = talk.list_blocks("tool_use")
    assert [todo["status"] for todo in call["input"]["todos"]] == ["completed", "in_progress"]


def test_failed_turn_reports_the_api_status_and_the_retry():
    trouble = {
        "error": {"message": "Reconnecting... 1/5", "additionalDetails": "401"},
        "willRetry": True,
    }
    error = {
        "message": "no",
        "codexErrorInfo": {"responseTooManyFailedAttempts": {"httpStatusCode": 401}},
    }
    talk = (
        CodexConversation()
        .start_turn()
        .feed_messages(
            build_notification("error", **trouble), build_turn_completed("failed", error=error)
        )
        .close_stream()
    )
    (turn,) = check_turns(talk.lines, partial=False)
    assert [line["attempt"] for line in turn if line.get("subtype") == "api_retry"] == [1]
    assert (turn[-2]["is_error"], turn[-2]["api_error_status"]) == (True, 401)


def test_subagent_message_is_nested_in_the_spawning_call():
    spawn = {"type": "collabAgentToolCall", "id": "a1", "tool": "spawnAgent", "prompt": "do it"}
    item = {"type": "agentMessage", "id": "m9", "text": "done below"}
    ended = build_item_completed(spawn, receiverThreadIds=["t2"], agentsStates={})
    talk = (
        CodexConversation()
        .start_turn()
        .feed_messages(
            build_item_started(spawn),
            ended,
            build_text_delta("done", "m9", "t2"),
            build_item_completed(item, "t2"),
            build_turn_completed(),
        )
        .close_stream()
    )
    lines = [json.loads(line) for line in talk.lines.splitlines()]
    (nested,) = (line for line in lines if b"done below" in json.dumps(line).encode())
    assert nested["parent_tool_use_id"] == "a1"


def test_end_of_another_thread_or_turn_is_ignored():
    other = build_turn_completed()
    other["params"]["threadId"] = "t2"
    talk = CodexConversation().start_turn().feed_messages(other, build_turn_completed(turn="u0"))
    assert talk.child_stream.turn.outcome_tracker.outcome is None


# -- permission requests ---------------------------------------------------------------------------


def test_command_approval_contains_the_command_and_sends_accept():
    talk = (
        CodexConversation()
        .start_turn()
        .feed_messages(
            build_item_started(COMMAND),
            build_approval_request(availableDecisions=["accept", "cancel"]),
        )
    )
    (request,) = talk.pending_permissions
    assert (request.tool, request.tool_input, request.call_id) == ("Bash", {"command": "ls"}, "c1")
    assert talk.answer_permission(True).get_last_message() == {
        "id": 7,
        "result": {"decision": "accept"},
    }
    talk.feed_messages(
        build_item_completed(COMMAND, aggregatedOutput="a\n", exitCode=0), build_turn_completed()
    ).close_stream()
    assert [(block["content"], block["is_error"]) for block in talk.list_blocks("tool_result")] == [
        ("a", False)
    ]


def test_permission_request_contains_a_different_working_directory():
    assert CodexConversation().start_turn().feed_messages(
        build_approval_request(cwd="/etc")
    ).pending_permissions[0].tool_input == {
        "command": "ls",
        "directory": "/etc",
    }


@pytest.mark.parametrize(("stop", "decision"), [(False, "decline"), (True, "cancel")])
def test_denied_command_is_declined_or_cancels_the_turn(stop, decision):
    talk = (
        CodexConversation()
        .start_turn()
        .feed_messages(build_approval_request())
        .answer_permission(False, ends_turn=stop)
    )
    assert talk.get_last_message()["result"] == {"decision": decision}


def test_denial_message_is_sent_to_the_model():
    talk = (
        CodexConversation()
        .start_turn()
        .feed_messages(build_approval_request())
        .answer_permission(False, message="use the other one")
    )
    answer, reason = talk.sent_messages[-2:]
    assert answer["result"] == {"decision": "decline"}
    assert (reason["method"], reason["params"]["expectedTurnId"]) == ("turn/steer", "u1")
    assert reason["params"]["input"][0]["text"] == "The call was denied: use the other one"
    assert talk.child_input.pop_undelivered_message_count() == 0


def test_patch_is_accepted_only_after_each_file_is_allowed():
    asking = build_approval_request(method="item/fileChange/requestApproval", itemId="p1")
    talk = CodexConversation().start_turn().feed_messages(build_item_started(PATCH), asking)
    assert [(request.tool, request.call_id) for request in talk.pending_permissions] == [
        ("Write", "p1"),
        ("MultiEdit", "p1:1"),
    ]
    before = len(talk.sent_messages)
    talk.answer_permission(True)
    assert len(talk.sent_messages) == before
    assert talk.answer_permission(True).get_last_message()["result"] == {"decision": "accept"}
    talk.feed_messages({**asking, "id": 8, "params": {**asking["params"], "itemId": "p2"}})
    assert talk.get_last_message()["result"] == {"decision": "decline"}


def test_patch_is_declined_once_when_a_single_file_is_denied():
    talk = (
        CodexConversation()
        .start_turn()
        .feed_messages(
            build_item_started(PATCH),
            build_approval_request(method="item/fileChange/requestApproval", itemId="p1"),
        )
    )
    assert talk.answer_permission(False, 1).get_last_message()["result"] == {"decision": "decline"}
    before = len(talk.sent_messages)
    assert len(talk.answer_permission(True).sent_messages) == before


def test_moved_file_gets_a_permission_request_for_both_paths():
    moved = {**CHANGED, "kind": {"type": "update", "move_path": "/etc/b"}}
    patch = {**PATCH, "changes": [moved]}
    talk = (
        CodexConversation()
        .start_turn()
        .feed_messages(
            build_item_started(patch),
            build_approval_request(method="item/fileChange/requestApproval", itemId="p1"),
        )
    )
    assert [request.tool_input["file_path"] for request in talk.pending_permissions] == [
        "/w/b",
        "/etc/b",
    ]


def test_permission_requests_are_answered_out_of_order():
    second = {**COMMAND, "id": "c2"}
    talk = (
        CodexConversation()
        .start_turn()
        .feed_messages(
            build_item_started(COMMAND),
            build_approval_request(),
            build_item_started(second),
            build_approval_request(8, itemId="c2"),
        )
    )
    assert talk.answer_permission(True, 1).get_last_message() == {
        "id": 8,
        "result": {"decision": "accept"},
    }
    assert talk.answer_permission(False).get_last_message() == {
        "id": 7,
        "result": {"decision": "decline"},
    }


def test_mcp_tool_approval_is_matched_to_its_open_call_once():
    asking = build_approval_request(method=ELICITATION, serverName="srv", _meta=APPROVAL_META)
    talk = CodexConversation().start_turn().feed_messages(build_item_started(MCP), asking)
    (request,) = talk.pending_permissions
    assert (request.tool, request.tool_input, request.call_id) == (
        "mcp__srv__get",
        {"path": "x"},
        "s1",
    )
    assert talk.answer_permission(True).get_last_message()["result"] == {
        "action": "accept",
        "content": {},
        "_meta": None,
    }
    assert (
        talk.feed_messages({**asking, "id": 8}).get_last_message()["result"]["action"] == "decline"
    )


def test_mcp_elicitation_form_becomes_a_user_question():
    schema = {"properties": {"size": {"type": "string", "enum": ["s", "m"]}}, "required": ["size"]}
    asking = build_approval_request(
        method=ELICITATION,
        serverName="srv",
        mode="form",
        message="Which size?",
        requestedSchema=schema,
    )
    talk = CodexConversation().start_turn().feed_messages(asking)
    (request,) = talk.pending_permissions
    assert request.tool == "AskUserQuestion"
    text = request.tool_input["questions"][0]["question"]
    talk.answer_permission(True, updated_input={**request.tool_input, "answers": {text: "m"}})
    assert talk.get_last_message()["result"] == {
        "action": "accept",
        "content": {"size": "m"},
        "_meta": None,
    }
    talk.feed_messages(build_text_delta("ok"), build_turn_completed()).close_stream()
    assert "m" in talk.list_blocks("tool_result")[0]["content"]


def test_mcp_url_elicitation_is_declined():
    talk = (
        CodexConversation()
        .start_turn()
        .feed_messages(
            build_approval_request(
                method=ELICITATION, serverName="srv", mode="url", url="https://x"
            )
        )
    )
    assert (talk.pending_permissions, talk.get_last_message()["result"]["action"]) == (
        [],
        "decline",
    )


def test_user_input_request_is_answered_by_question_id():
    talk = (
        CodexConversation()
        .start_turn()
        .feed_messages(build_approval_request(method=PERSON, itemId="q1", questions=COLORS))
    )
    (request,) = talk.pending_permissions
    assert request.tool == "AskUserQuestion"
    talk.answer_permission(True, updated_input={**request.tool_input, "answers": {"Which?": "Red"}})
    assert talk.get_last_message()["result"] == {"answers": {"c": {"answers": ["Red"]}}}
    talk.feed_messages(build_text_delta("Red it is"), build_turn_completed()).close_stream()
    assert [block["is_error"] for block in talk.list_blocks("tool_result")] == [False]


def test_updated_command_input_raises_an_error():
    talk = CodexConversation().start_turn().feed_messages(build_approval_request())
    with pytest.raises(ValueError, match="only with a different input"):
        talk.answer_permission(True, updated_input={"command": "pwd"})


@pytest.mark.parametrize("kind", ["writeStdin", "humanCommand"])
def test_approval_request_of_a_non_command_kind_is_declined(kind):
    talk = CodexConversation().start_turn().feed_messages(build_approval_request(kind=kind))
    assert (talk.pending_permissions, talk.get_last_message()["result"]) == (
        [],
        {"decision": "decline"},
    )


def test_extra_permissions_are_denied_and_unknown_requests_get_an_error():
    asking = build_approval_request(
        method="item/permissions/requestApproval", permissions={"network": True}
    )
    assert CodexConversation().start_turn().feed_messages(asking).get_last_message()["result"] == {
        "permissions": {},
        "scope": "turn",
    }
    assert (
        CodexConversation()
        .start_turn()
        .feed_messages(build_approval_request(method="item/tool/call"))
        .get_last_message()["error"]["code"]
        == -32601
    )


def test_approval_request_in_a_malformed_line_is_ignored():
    talk = CodexConversation().start_turn()
    output, _ = talk.child_stream.feed(b"x" + json.dumps(build_approval_request()).encode() + b"\n")
    assert (output, talk.pending_permissions) == (b"", [])


def test_only_requests_and_responses_are_accepted_between_turns():
    heeds = CodexThreadTranslator.accepts_line_between_turns
    assert heeds(json.dumps(build_approval_request()).encode())
    assert heeds(b'{"id":4,"result":{}}')
    assert not heeds(json.dumps(build_text_delta("x"), separators=(",", ":")).encode())


# -- stopping and steering a turn ------------------------------------------------------------------


def test_interrupt_names_the_running_turn_and_ends_in_an_error_result():
    talk = CodexConversation().start_turn().feed_messages(build_text_delta("Hel"))
    talk.sent_bytes += talk.child_input.encode_interrupt()
    assert talk.get_last_message()["params"] == {"threadId": "t1", "turnId": "u1"}
    talk.child_stream.turn.record_interrupt()
    (turn,) = check_turns(
        talk.feed_messages(build_turn_completed("interrupted")).close_stream().lines, partial=False
    )
    assert turn[-2]["errors"] == ["[Request interrupted by user]"]


def test_interrupt_is_delayed_until_the_turn_id_arrives():
    talk = CodexConversation().send_prompt().feed_messages(GREETED, CONFIG, LISTED, OPENED)
    assert talk.child_input.encode_interrupt() == b""
    assert talk.feed_messages(TURN_RESPONSE).get_last_message()["method"] == "turn/interrupt"


def test_steering_message_is_sent_only_while_a_turn_is_running():
    talk = CodexConversation().send_prompt().feed_messages(GREETED, CONFIG, LISTED, OPENED)
    assert talk.child_input.encode_steering_message(UserMessage("more")) is None
    talk.feed_messages(TURN_RESPONSE)
    talk.sent_bytes += talk.child_input.encode_steering_message(UserMessage("more"))
    assert talk.get_last_message()["params"]["expectedTurnId"] == "u1"
    talk.sent_bytes += talk.child_input.encode_steering_message(UserMessage("even more"))
    talk.feed_messages(
        {"id": 6, "result": {"turnId": "u1"}},
        {"id": 7, "error": {"code": -32600, "message": "no active turn"}},
    )
    item = {"type": "userMessage", "id": "m2", "content": [{"type": "text", "text": "more"}]}
    talk.feed_messages(
        *(
            {"method": "item/completed", "params": {"threadId": thread, "item": item}}
            for thread in ("t1", "t9")
        )
    )
    assert (
        talk.child_input.pop_undelivered_message_count(),
        talk.child_input.pop_undelivered_message_count(),
    ) == (
        1,
        0,
    )
    talk.feed_messages(build_turn_completed())
    assert talk.child_input.encode_steering_message(UserMessage("late")) is None


@pytest.mark.parametrize(
    ("flags", "mode", "keeps_child"),
    [
        (("--permission-prompt-tool", "stdio"), "acceptEdits", True),
        (("--permission-prompt-tool", "stdio"), "plan", False),
        ((), "acceptEdits", False),
        ((), "dontAsk", True),
    ],
)
def test_mode_change_needs_a_new_child_if_the_sandbox_changes(flags, mode, keeps_child):
    assert CodexConversation(*flags).start_turn().child_input.encode_permission_mode_change(
        mode
    ) == (b"" if keeps_child else None)


# -- repeated items, and how they ended ------------------------------------------------------------


def ran(item_id="c1", command="ls"):
    ended = {"status": "completed", "exitCode": 0, "aggregatedOutput": ""}
    return {"type": "commandExecution", "id": item_id, "command": command, "cwd": "/w", **ended}


def test_repeated_item_produces_a_single_call():
    talk = (
        CodexConversation()
        .start_turn()
        .feed_messages(
            *[build_item_started(ran()), build_item_completed(ran())] * 2, build_turn_completed()
        )
        .close_stream()
    )
    assert len(talk.list_blocks("tool_use")) == 1


def test_reused_item_id_with_another_command_is_a_new_call():
    talk = (
        CodexConversation()
        .start_turn()
        .feed_messages(
            build_item_completed(ran()),
            build_item_completed(ran(command="pwd")),
            build_turn_completed(),
        )
        .close_stream()
    )
    assert [call["input"]["command"] for call in talk.list_blocks("tool_use")] == ["ls", "pwd"]


@loop_over_rows(
    ("status", "code", "failed"),
    [
        ("completed", 0, False),
        ("completed", 7, True),
        ("completed", None, False),
        ("inProgress", None, True),
        (None, None, True),
        (None, 0, False),
        ("declined", None, True),
        ("failed", 0, True),
    ],
)
def test_command_succeeds_only_with_exit_code_0_or_status_completed(status, code, failed):
    talk = (
        CodexConversation()
        .start_turn()
        .feed_messages(
            build_item_completed(ran(), status=status, exitCode=code), build_turn_completed()
        )
        .close_stream()
    )
    assert [block["is_error"] for block in talk.list_blocks("tool_result")] == [failed]


# -- an error of the service, and the state after an interrupt -------------------------------------


@loop_over_rows(
    ("info", "status"),
    [
        ("modelNotFound", 404),
        ("unauthorized", 401),
        ("rateLimitExceeded", 429),
        ("serverOverloaded", 529),
        ({"modelNotFound": {}}, 404),
        ({"httpConnectionFailed": {"httpStatusCode": 502}}, 502),
        ({"httpConnectionFailed": {"httpStatusCode": None}}, None),
        ("sandboxError", None),
        (None, None),
    ],
)
def test_error_kind_maps_to_an_http_status(info, status):
    error = {"message": "it failed", "codexErrorInfo": info}
    (turn,) = check_turns(
        CodexConversation()
        .start_turn()
        .feed_messages(build_turn_completed("failed", error=error))
        .close_stream()
        .lines,
        partial=False,
    )
    assert (turn[-2]["is_error"], turn[-2].get("api_error_status")) == (True, status)


def test_error_without_a_message_reports_its_kind():
    error = {"message": "", "codexErrorInfo": "modelNotFound"}
    (turn,) = check_turns(
        CodexConversation()
        .start_turn()
        .feed_messages(build_turn_completed("failed", error=error))
        .close_stream()
        .lines,
        partial=False,
    )
    assert "modelNotFound" in turn[-2]["result"]


def test_interrupt_ends_background_commands_of_every_thread():
    spawn = {"type": "collabAgentToolCall", "id": "a1", "tool": "spawnAgent", "prompt": "do it"}
    ended = build_item_completed(spawn, receiverThreadIds=["t2"], agentsStates={})
    talk = (
        CodexConversation().start_turn().feed_messages(ended, build_turn_completed("interrupted"))
    )
    cleaned = [
        line["params"]["threadId"]
        for line in talk.sent_messages
        if "Terminals/clean" in str(line.get("method"))
    ]
    assert cleaned == [THREAD, "t2"]


def test_background_commands_are_not_cleaned_after_a_completed_turn():
    assert "thread/backgroundTerminals/clean" not in methods(
        CodexConversation().start_turn().feed_messages(build_turn_completed())
    )


def test_partial_answer_phase_is_emitted_as_text():
    """The phase of an item is new in codex 0.171."""
    item = {"type": "agentMessage", "id": "m1", "text": "First.", "phase": "partial_answer"}
    (turn,) = check_turns(
        CodexConversation()
        .start_turn()
        .feed_messages(build_item_completed(item), build_turn_completed())
        .close_stream()
        .lines,
        partial=False,
    )
    assert (turn[-2]["result"], turn[-2]["shim"]["unknown_events"]) == ("First.", {})


def test_subagent_call_has_a_type_and_a_readable_result():
    spawn = {"type": "collabAgentToolCall", "id": "a1", "tool": "spawnAgent", "prompt": "do it"}
    states = {
        "t2": {"status": "completed", "message": "found it"},
        "t3": {"status": "pendingInit", "message": None},
    }
    assert codex_items.list_item_tool_calls(spawn, ()) == [
        (
            "Task",
            {"description": "spawnAgent", "prompt": "do it", "subagent_type": "general-purpose"},
        )
    ]
    assert codex_items.read_item_tool_result(spawn | {"agentsStates": states}) == (
        "completed: found it\npendingInit",
        False,
    )
