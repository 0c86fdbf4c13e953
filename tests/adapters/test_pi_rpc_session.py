"""pi in a conversation: the shim's requests to its RPC, and the parsed output."""

import json

import pytest
from pi_agent import (
    END,
    HELLO,
    MODEL,
    OLD_END,
    SETTLED,
    START,
    PiConversation,
    build_message_end,
    build_permission_dialog,
    build_text_block,
    build_tool_call,
)
from stream_invariants import check_turns
from sweeps import loop_over_rows
from turn_stage import build_turn_config

from shim.adapters import get_adapter
from shim.adapters.pi import PERMISSION_EXTENSION
from shim.conversation.drivers.open_translation import STABLE_ID_PREFIX
from shim.core.adapter.adapter import LaunchRequest
from shim.core.adapter.child_stream import ChildStream
from shim.core.adapter.commands import TurnStage
from shim.core.claude.argv.flags import parse_argv
from shim.core.claude.messages import MessageBlock, UserMessage
from shim.core.claude.writer import StreamJsonWriter
from shim.core.errors import UnsupportedPermissionModeError
from shim.core.policy.evaluate import PolicyEvaluator
from shim.core.policy.policy import Policy, Workspace, parse_permission_rules

ASKING = ("--permission-prompt-tool", "stdio")
STARTED = {"disposition": "started"}


def start_conversation():
    talk = PiConversation().start_run()
    return talk.feed_messages(talk.answer_to("prompt", STARTED), START)


def kinds(messages):
    return [message["type"] for message in messages]


def values(messages):
    return [
        json.loads(message["value"])
        for message in messages
        if message["type"] == "extension_ui_response"
    ]


# -- the start -------------------------------------------------------------------------------------


def build_launch(mode, **fields):
    vendor = get_adapter("pi").build_two_way()
    request = LaunchRequest(
        parse_argv(()),
        "hi",
        mode_arguments=vendor.modes[mode],
        permission_mode=mode,
        persistent=True,
        **fields,
    )
    return vendor.build_launch(request)


@loop_over_rows("mode", ["default", "acceptEdits", "dontAsk", "plan", "bypassPermissions"])
def test_permission_extension_is_loaded_and_enabled_in_every_mode(mode):
    child = build_launch(mode)
    assert child.arguments[:2] == ("--mode", "rpc") and PERMISSION_EXTENSION in child.arguments
    assert json.loads(child.enforced_environment["PI_GATE"]) == {"asks": True}
    assert (child.stdin, child.needs_stdin_pipe) == (b"", True)


def test_launch_without_the_extension_requires_unrestricted_bypass_mode():
    with pytest.raises(
        UnsupportedPermissionModeError, match="asks before each tool call: far away"
    ):
        build_launch("default", policy_bypass="far away")
    ruled = Policy(workspace=Workspace("/w", "/h"), deny=parse_permission_rules(("Bash(rm:*)",)))
    with pytest.raises(UnsupportedPermissionModeError):
        build_launch("bypassPermissions", policy_bypass="far away", policy=ruled)
    assert "-e" not in build_launch("bypassPermissions", policy_bypass="far away").arguments


# -- a message -------------------------------------------------------------------------------------


def test_prompt_is_sent_after_session_state_and_commands_arrive():
    talk = PiConversation()
    assert kinds(talk.send_prompt().sent_messages) == [
        "get_state",
        "get_commands",
        "get_available_models",
    ]
    assert "hi" in [
        message.get("message") for message in PiConversation().start_run().sent_messages
    ]


def test_turn_ends_when_pi_settles():
    talk = start_conversation().feed_messages(build_message_end(build_text_block("Hello")), END)
    assert talk.stages[-1] is TurnStage.PAUSED
    talk.feed_messages(SETTLED)
    assert talk.stages[-1] is TurnStage.VENDOR_DONE
    talk.close_stream()
    check_turns(talk.lines, partial=False)
    assert [result["result"] for result in talk.results] == ["Hello"]


def test_prompt_is_not_sent_if_the_permission_extension_is_missing():
    talk = PiConversation().start_run(hello=False)
    assert "prompt" not in kinds(talk.sent_messages) and not talk.child_input.can_accept_prompts
    (result,) = talk.close_stream().results
    assert result["is_error"] and "did not load the shim's extension" in json.dumps(result)


def test_bypass_mode_sends_prompts_without_the_permission_extension():
    talk = PiConversation(
        mode="bypassPermissions",
        policy_bypass="a program that a launcher starts might not see the shim's file",
    ).start_run(hello=False)
    assert "prompt" in kinds(talk.sent_messages)
    assert talk.child_input.encode_permission_mode_change("default") is None


def test_late_end_of_the_previous_run_does_not_end_the_next_turn():
    talk = (
        start_conversation()
        .feed_messages(build_message_end(build_text_block("one")), END, SETTLED)
        .finish_turn()
    )
    talk.send_prompt("two").feed_messages(SETTLED)
    assert talk.stages.count(TurnStage.VENDOR_DONE) == 1


def test_older_pi_ends_the_turn_after_its_retry_succeeds():
    talk = PiConversation().start_run()
    talk.feed_messages(
        talk.answer_to("prompt"),
        START,
        build_message_end(stop="error", errorMessage="500 oops"),
        OLD_END,
    )
    assert talk.stages[-1] is TurnStage.PAUSED
    talk.feed_messages(
        {
            "type": "auto_retry_start",
            "attempt": 1,
            "maxAttempts": 3,
            "delayMs": 9000,
            "errorMessage": "500 oops",
        }
    )
    assert talk.stages[-1] is TurnStage.RUNNING
    talk.feed_messages(START, build_message_end(build_text_block("Hello")), OLD_END)
    assert talk.stages[-1] is TurnStage.VENDOR_DONE
    assert [result["result"] for result in talk.close_stream().results] == ["Hello"]


def test_compaction_after_the_last_reply_is_not_a_failure():
    compacted = {
        "type": "compaction_end",
        "reason": "threshold",
        "result": {"tokensBefore": 9},
        "willRetry": False,
    }
    talk = start_conversation().feed_messages(
        build_message_end(build_text_block("Hello")),
        END,
        {"type": "compaction_start"},
        compacted,
        SETTLED,
    )
    (result,) = talk.finish_turn().results
    assert (result["is_error"], result.get("result")) == (False, "Hello")
    assert b'"compact_boundary"' in talk.lines


def test_prompt_handled_by_an_extension_ends_the_turn():
    talk = PiConversation().start_run()
    talk.feed_messages(talk.answer_to("prompt"))
    assert kinds(talk.sent_messages)[-1] == "get_state"
    other = PiConversation().start_run()
    other.feed_messages(other.answer_to("prompt", {"disposition": "handled"}))
    assert other.stages[-1] is TurnStage.VENDOR_DONE


def test_older_pi_ends_the_turn_if_its_state_is_not_streaming():
    talk = PiConversation().start_run()
    talk.feed_messages(talk.answer_to("prompt"))
    still = talk.answer_to("get_state", {"isStreaming": False})
    assert talk.feed_messages(still).stages[-1] is TurnStage.VENDOR_DONE


@pytest.mark.parametrize("events", [[], [build_message_end(build_tool_call(), stop="toolUse")]])
def test_pi_exit_during_a_run_is_an_error(events):
    (result,) = start_conversation().feed_messages(*events).close_stream().results
    assert result["is_error"]


def test_rejected_prompt_fails_the_turn():
    talk = PiConversation().start_run()
    talk.feed_messages(talk.answer_to("prompt", error="No API key found for mock."))
    (result,) = talk.close_stream().results
    assert result["is_error"] and "No API key" in json.dumps(result)


def test_extension_commands_are_escaped_and_prompt_templates_are_not():
    commands = [{"name": "deploy", "source": "extension"}, {"name": "review", "source": "prompt"}]
    commands += [{"name": "skill:tidy", "source": "skill"}, {"name": "deploy", "source": "prompt"}]
    talk = PiConversation().start_run(commands=commands)
    talk.clear_sent()
    prompts = ["/deploy now", "/review this", "/skill:tidy", "/else", "/deploy\nnow", "plain"]
    for prompt in prompts:
        talk.feed_messages(
            build_message_end(build_text_block("ok")), END, SETTLED
        ).finish_turn().send_prompt(prompt)
    sent_prompts = [
        message["message"] for message in talk.sent_messages if message["type"] == "prompt"
    ]
    assert sent_prompts == [
        "\\/deploy now",
        "/review this",
        "/skill:tidy",
        "\\/else",
        "\\/deploy\nnow",
        "plain",
    ]
    assert b'"slash_commands":["review","skill:tidy"]' in talk.lines


def test_images_are_sent_if_the_model_accepts_them():
    picture = UserMessage(
        "look",
        (MessageBlock("text", "look"), MessageBlock("image", media_type="image/png", data="aGk=")),
    )
    talk = (
        start_conversation()
        .feed_messages(build_message_end(build_text_block("ok")), SETTLED)
        .finish_turn()
        .send_prompt(picture)
    )
    assert talk.sent_messages[-1]["images"] == [
        {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    ]
    blind = PiConversation().start_run(model=MODEL | {"input": ["text"]})
    assert blind.child_input.accepted_block_kinds == frozenset()


# -- questions -------------------------------------------------------------------------------------


def test_permission_request_contains_the_input_and_the_call_is_emitted_once():
    talk = start_conversation().feed_messages(
        build_message_end(build_tool_call(), stop="toolUse"), build_permission_dialog()
    )
    (request,) = talk.pending_permissions
    assert (request.tool, request.tool_input, request.call_id) == ("Bash", {"command": "ls"}, "c1")
    talk.answer_permission()
    assert values(talk.sent_messages) == [{"allow": True}]
    assert talk.lines.count(b'"type":"tool_use"') == 1


def test_denial_reason_and_updated_input_are_sent_to_pi():
    talk = start_conversation().feed_messages(
        build_permission_dialog(), build_permission_dialog("q2", "c2", "read", path="a.txt")
    )
    talk.answer_permission(allow=False, message="rather not")
    assert talk.pending_permissions[0].tool_input == {"file_path": "/w/a.txt"}
    talk.answer_permission(updated_input={"file_path": "/w/b.txt"})
    assert values(talk.sent_messages) == [
        {"allow": False, "reason": "rather not"},
        {"allow": True, "input": {"path": "/w/b.txt"}},
    ]


@loop_over_rows("tool", ["Task", "TodoWrite", "Skill", "Grep", "read"])
def test_extension_tool_named_like_a_claude_tool_needs_permission(tool):
    talk = start_conversation().feed_messages(
        add_replaced_flag(build_permission_dialog(tool=tool, path="a.txt"))
    )
    (request,) = talk.pending_permissions
    assert (request.tool, request.tool_input) == (f"mcp__pi__{tool}", {"path": "a.txt"})
    evaluator = PolicyEvaluator(Policy(workspace=Workspace("/w")))
    for mode in ("default", "acceptEdits", "plan"):
        assert evaluator.evaluate_tool_call(request.tool, request.tool_input, mode).outcome == "ask"
    talk.clear_sent()
    assert values(talk.answer_permission(updated_input={"path": "b.txt"}).sent_messages) == [
        {"allow": True, "input": {"path": "b.txt"}}
    ]


def test_deny_rule_matches_an_extension_tool_by_its_claude_name():
    evaluator = PolicyEvaluator(
        Policy(workspace=Workspace("/w"), deny=parse_permission_rules(("Task", "Read(./secret)"))),
        prompted_tools=frozenset(("Task", "Read")),
    )
    talk = PiConversation(evaluator=evaluator).start_run()
    talk.feed_messages(talk.answer_to("prompt", STARTED), START)
    talk.feed_messages(
        add_replaced_flag(build_permission_dialog(tool="Task", path="x")),
        add_replaced_flag(build_permission_dialog("q2", "c2", "read", path="secret")),
    )
    talk.feed_messages(add_replaced_flag(build_permission_dialog("q3", "c3", "read", path="other")))
    assert [request.tool for request in talk.pending_permissions] == [
        "Task",
        "Read",
        "mcp__pi__read",
    ]


def add_replaced_flag(request):
    """Return a question about a tool that an extension has put in place of one of pi's tools."""
    call_data = json.loads(request["placeholder"])
    return request | {
        "placeholder": json.dumps(
            call_data | ({"replaced": True} if call_data["tool"] == "read" else {})
        )
    }


def test_untranslatable_updated_input_raises_an_error():
    talk = start_conversation().feed_messages(build_permission_dialog(tool="grep", pattern="x"))
    with pytest.raises(ValueError, match="does not support"):
        talk.answer_permission(updated_input={"pattern": "x", "output_mode": "count"})


def test_permission_request_is_answered_only_once():
    talk = start_conversation().feed_messages(build_permission_dialog())
    request = talk.pending_permissions[0]
    talk.answer_permission()
    talk.pending_permissions.append(request)
    talk.clear_sent()
    assert talk.answer_permission(allow=False).sent_messages == []


@loop_over_rows(
    "placeholder", ["no json", "[]", '{"call": "c1"}', '{"call": "c1", "tool": "bash"}', None]
)
def test_unreadable_permission_dialog_is_cancelled(placeholder):
    talk = start_conversation().feed_messages(
        build_permission_dialog() | {"placeholder": placeholder}
    )
    assert talk.pending_permissions == [] and talk.sent_messages[-1] == {
        "type": "extension_ui_response",
        "id": "q1",
        "cancelled": True,
    }


def test_other_extension_dialogs_are_cancelled_and_notifications_ignored():
    dialogs = [
        {"type": "extension_ui_request", "id": "d1", "method": kind}
        for kind in ("select", "notify", "confirm")
    ]
    talk = start_conversation()
    talk.clear_sent()
    assert kinds(talk.feed_messages(*dialogs).sent_messages) == ["extension_ui_response"] * 2


def dialog(method, **fields):
    return {
        "type": "extension_ui_request",
        "id": "d1",
        "method": method,
        "title": "Which?",
    } | fields


@loop_over_rows(
    ("event", "labels", "choice", "answer"),
    [
        (dialog("select", options=["red", "blue"]), ["red", "blue"], "blue", {"value": "blue"}),
        (dialog("confirm", message="Really?"), ["Yes", "No"], "No", {"confirmed": False}),
        (dialog("input", placeholder="a name"), [], "mine", {"value": "mine"}),
        (dialog("editor", prefill="old"), ["old"], "new", {"value": "new"}),
        (dialog("select", options=["red", "blue"]), ["red", "blue"], "green", {"cancelled": True}),
    ],
)
def test_other_extension_dialog_becomes_a_user_question(event, labels, choice, answer):
    talk = PiConversation(flags=ASKING).start_run().feed_messages(START, event)
    form_question = talk.pending_permissions[0].tool_input["questions"][0]
    assert (
        talk.pending_permissions[0].tool == "AskUserQuestion"
        and [option["label"] for option in form_question["options"]] == labels
    )
    talk.clear_sent()
    talk.answer_permission(updated_input={"answers": {form_question["question"]: choice}})
    assert talk.sent_messages == [{"type": "extension_ui_response", "id": "d1", **answer}]
    talk.feed_messages(build_message_end(build_text_block("ok")), END, SETTLED)
    assert (f'"{choice}' in talk.lines.decode().replace("\\", "")) == ("cancelled" not in answer)


def test_startup_dialog_is_cancelled_and_named_in_the_error():
    talk = PiConversation(flags=ASKING).send_prompt()
    talk.clear_sent()
    talk.feed_messages(dialog("confirm"))
    assert talk.pending_permissions == [] and [
        message["cancelled"] for message in talk.sent_messages
    ] == [True]
    (result,) = talk.close_stream().results
    assert "session_start" in json.dumps(result) and 'driver = \\"one-way' in json.dumps(
        result["errors"]
    )


def test_startup_dialog_does_not_fail_the_turn_if_pi_continues():
    talk = PiConversation(flags=ASKING).send_prompt().feed_messages(dialog("confirm")).start_run()
    talk.feed_messages(
        talk.answer_to("prompt", STARTED),
        START,
        build_message_end(build_text_block("Hello")),
        END,
        SETTLED,
    )
    assert [result.get("result") for result in talk.finish_turn().results] == ["Hello"]


def test_unanswered_extension_dialog_is_cancelled():
    talk = (
        PiConversation(flags=ASKING)
        .start_run()
        .feed_messages(START, dialog("confirm"), dialog("input", id="d2"))
    )
    talk.clear_sent()
    talk.answer_permission(allow=False).answer_permission()
    assert [message["cancelled"] for message in talk.sent_messages] == [True, True]


def test_permission_dialog_in_a_repaired_line_is_cancelled():
    talk = start_conversation()
    torn = b"noise " + json.dumps(build_permission_dialog()).encode() + b"\n"
    talk.add_output(*talk.child_stream.feed(torn))
    assert talk.pending_permissions == [] and talk.sent_messages[-1].get("cancelled") is True


def test_permission_dialog_between_turns_is_refused():
    talk = start_conversation().feed_messages(
        build_message_end(build_text_block("one")), END, SETTLED
    )
    talk.add_output(*talk.child_stream.finish())
    (ask,) = talk.child_stream.skip_output_between_turns(
        json.dumps(build_permission_dialog()).encode() + b"\n"
    )
    assert ask.permission.refusal


# -- changes in the middle of a session ------------------------------------------------------------


def test_abort_before_the_run_is_repeated_when_the_run_starts():
    talk = PiConversation().start_run()
    talk.record_sent(talk.child_input.encode_interrupt())
    talk.feed_messages(talk.answer_to("prompt"), talk.answer_to("abort"))
    assert TurnStage.VENDOR_DONE not in talk.stages
    assert kinds(talk.feed_messages(START).sent_messages)[-1] == "abort"


def test_aborted_run_ends_with_an_error_result():
    talk = start_conversation()
    talk.record_sent(talk.child_input.encode_interrupt()).child_stream.turn.record_interrupt()
    talk.feed_messages(
        build_message_end(stop="aborted", errorMessage="Request was aborted."),
        OLD_END,
        talk.answer_to("abort"),
    )
    assert talk.stages[-1] is TurnStage.VENDOR_DONE
    assert talk.close_stream().results[0]["subtype"] == "error_during_execution"


def test_queued_prompt_is_not_sent_after_an_interrupt():
    talk = PiConversation().send_prompt()
    talk.record_sent(talk.child_input.encode_interrupt())
    talk.feed_messages(HELLO, talk.answer_to("get_state", {"sessionId": "s1", "model": MODEL}))
    talk.feed_messages(
        {"type": "response", "id": "shim-2", "success": True}, talk.answer_to("abort")
    )
    assert "prompt" not in kinds(talk.sent_messages) and talk.stages[-1] is TurnStage.VENDOR_DONE


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mock/m2", [{"type": "set_model", "provider": "mock", "modelId": "m2"}]),
        ("mock/a:b", [{"type": "set_model", "provider": "mock", "modelId": "a:b"}]),
        (
            "mock/m2:high",
            [
                {"type": "set_model", "provider": "mock", "modelId": "m2"},
                {"type": "set_thinking_level", "level": "high"},
            ],
        ),
    ],
)
def test_model_is_set_by_provider_and_id(name, expected):
    talk = start_conversation()
    talk.clear_sent()
    assert [
        {key: message[key] for key in message if key != "id"}
        for message in talk.record_sent(talk.child_input.encode_model_change(name)).sent_messages
    ] == expected


def test_model_without_a_provider_needs_a_new_child():
    assert PiConversation().start_run().child_input.encode_model_change("m2") is None


def test_default_model_is_restored_only_without_a_configured_model():
    assert (
        PiConversation()
        .start_run()
        .child_input.encode_model_change(None)
        .count(b'"provider":"mock","modelId":"m1"')
        == 1
    )
    assert PiConversation(model="mock/m2").start_run().child_input.encode_model_change(None) is None


def test_prompt_is_not_sent_if_the_model_change_fails():
    talk = (
        start_conversation()
        .feed_messages(build_message_end(build_text_block("one")), END, SETTLED)
        .finish_turn()
    )
    talk.record_sent(talk.child_input.encode_model_change("mock/m9")).send_prompt("two")
    talk.feed_messages(talk.answer_to("set_model", error="Model not found: mock/m9"))
    assert [message.get("message") for message in talk.sent_messages].count(
        "two"
    ) == 0 and not talk.child_input.can_accept_prompts
    assert "Model not found" in json.dumps(talk.close_stream().results[-1])


@pytest.mark.parametrize(
    ("before", "name", "expected"),
    [("default", "acceptEdits", b""), ("default", "plan", None), ("plan", "default", None)],
)
def test_mode_change_needs_a_new_child_only_if_the_tools_differ(before, name, expected):
    assert PiConversation(mode=before).child_input.encode_permission_mode_change(name) == expected


def test_steering_message_extends_the_turn_until_its_run_ends():
    talk = start_conversation()
    talk.record_sent(talk.child_input.encode_steering_message(UserMessage("also this")))
    assert (talk._sent_messages[-1]["message"], talk._sent_messages[-1]["streamingBehavior"]) == (
        "also this",
        "steer",
    )
    late = talk.answer_to("prompt")
    talk.feed_messages(build_message_end(build_text_block("one")), END, SETTLED)
    assert TurnStage.VENDOR_DONE not in talk.stages
    talk.feed_messages(late)
    assert kinds(talk._sent_messages)[-1] == "get_state"
    talk.feed_messages(
        START,
        talk.answer_to("get_state", {"isStreaming": True}),
        build_message_end(build_text_block("two")),
        END,
        SETTLED,
    )
    assert talk.stages[-1] is TurnStage.VENDOR_DONE


def test_rejected_steering_message_is_counted_as_undelivered():
    talk = start_conversation()
    talk.record_sent(talk.child_input.encode_steering_message(UserMessage("also this")))
    talk.feed_messages(
        talk.answer_to("prompt", error="Cannot submit a prompt while compaction is in progress.")
    )
    assert (
        talk.child_input.pop_undelivered_message_count(),
        talk.child_input.pop_undelivered_message_count(),
    ) == (
        1,
        0,
    )


def test_queued_steering_message_is_undelivered_after_an_interrupt():
    talk = start_conversation()
    talk.record_sent(talk.child_input.encode_steering_message(UserMessage("also this")))
    talk.feed_messages(talk.answer_to("prompt", {"disposition": "queued"}))
    talk.record_sent(talk.child_input.encode_interrupt())
    talk.feed_messages(talk.answer_to("clear_queue", {"steering": ["also this"], "followUp": []}))
    assert talk.child_input.pop_undelivered_message_count() == 1


@pytest.mark.parametrize(("level", "expected"), [("low", "low"), ("max", "xhigh")])
def test_effort_is_sent_as_a_thinking_level(level, expected):
    talk = start_conversation()
    assert (
        talk.record_sent(talk.child_input.encode_effort_change(level)).sent_messages[-1]["level"]
        == expected
    )
    assert talk.child_input.encode_effort_change(None) is None


def test_steering_is_refused_after_the_run_ends():
    assert (
        start_conversation()
        .feed_messages(build_message_end(build_text_block("one")), END, SETTLED)
        .child_input.encode_steering_message(UserMessage("late"))
        is None
    )


# -- recordings ------------------------------------------------------------------------------------


def test_recording_of_two_turns_produces_two_results():

    translation = ChildStream(
        get_adapter("pi").translator_class,
        build_turn_config("pi"),
        StreamJsonWriter(STABLE_ID_PREFIX),
    )
    state = {
        "id": "x",
        "type": "response",
        "command": "get_state",
        "success": True,
        "data": {"sessionId": "s1"},
    }
    turn = [
        START,
        build_message_end(build_tool_call(), stop="toolUse"),
        build_permission_dialog(),
        build_message_end(build_text_block("Done")),
        END,
        SETTLED,
    ]
    lines = [HELLO, state, *turn, *turn]
    output = translation.feed(
        b"".join(json.dumps(event, separators=(",", ":")).encode() + b"\n" for event in lines)
    )[0]
    output += translation.close(None)[0]
    assert output.count(b'"type":"result"') == 2
