"""pi in a conversation: what it is told by its RPC, and what is read of it."""

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
from support import STABLE_ID_PREFIX, build_turn_config, check_turns
from sweeps import loop_over_rows

from shim.adapters import get_adapter
from shim.adapters.pi import PERMISSION_EXTENSION
from shim.core.adapter.adapter import LaunchRequest
from shim.core.adapter.commands import TurnStage
from shim.core.adapter.translation import StreamTranslation
from shim.core.claude.argv.flags import parse_argv
from shim.core.claude.messages import MessageBlock, UserMessage
from shim.core.claude.writer import StreamJsonWriter
from shim.core.errors import PermissionModeError
from shim.core.policy.evaluate import PolicyEvaluator
from shim.core.policy.policy import Policy
from shim.core.policy.rules import parse_permission_rules
from shim.core.policy.workspace import Workspace

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
    vendor = get_adapter("pi").cli.build_two_way()
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
def test_our_extension_is_loaded_in_every_mode_and_told_to_ask(mode):
    child = build_launch(mode)
    assert child.arguments[:2] == ("--mode", "rpc") and PERMISSION_EXTENSION in child.arguments
    assert json.loads(child.enforced_environment["PI_GATE"]) == {"asks": True}
    assert (child.stdin, child.needs_stdin_pipe) == (b"", True)


def test_a_pi_that_cannot_see_our_extension_is_started_only_where_everything_may_run():
    with pytest.raises(PermissionModeError, match="asks before each of its calls: far away"):
        build_launch("default", policy_bypass="far away")
    ruled = Policy(workspace=Workspace("/w", "/h"), deny=parse_permission_rules(("Bash(rm:*)",)))
    with pytest.raises(PermissionModeError):
        build_launch("bypassPermissions", policy_bypass="far away", policy=ruled)
    assert "-e" not in build_launch("bypassPermissions", policy_bypass="far away").arguments


# -- a message -------------------------------------------------------------------------------------


def test_a_message_waits_until_the_session_and_the_commands_are_known():
    talk = PiConversation()
    assert kinds(talk.send_prompt().sent_messages) == ["get_state", "get_commands"]
    assert "hi" in [
        message.get("message") for message in PiConversation().start_run().sent_messages
    ]


def test_a_turn_is_what_pi_says_until_it_has_settled():
    talk = start_conversation().feed_messages(build_message_end(build_text_block("Hello")), END)
    assert talk.stages[-1] is TurnStage.PAUSED
    talk.feed_messages(SETTLED)
    assert talk.stages[-1] is TurnStage.VENDOR_DONE
    talk.close_stream()
    check_turns(talk.lines, partial=False)
    assert [result["result"] for result in talk.results] == ["Hello"]


def test_nothing_is_said_to_a_pi_that_did_not_load_our_extension():
    talk = PiConversation().start_run(hello=False)
    assert "prompt" not in kinds(talk.sent_messages) and not talk.child_input.is_usable
    (result,) = talk.close_stream().results
    assert result["is_error"] and "did not load our extension" in json.dumps(result)


def test_a_pi_that_may_run_everything_need_not_ask_where_it_cannot_see_our_extension():
    talk = PiConversation(
        mode="bypassPermissions", policy_bypass="behind a launcher it might not see our file"
    ).start_run(hello=False)
    assert "prompt" in kinds(talk.sent_messages)
    assert talk.child_input.encode_mode_change("default") is None


def test_the_end_of_the_last_run_is_not_that_of_the_next():
    talk = (
        start_conversation()
        .feed_messages(build_message_end(build_text_block("one")), END, SETTLED)
        .finish_turn()
    )
    talk.send_prompt("two").feed_messages(SETTLED)
    assert talk.stages.count(TurnStage.VENDOR_DONE) == 1


def test_an_older_pi_has_no_word_for_its_end_and_a_retry_is_none():
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


def test_a_compaction_behind_the_last_reply_is_no_failure():
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


def test_a_message_that_an_extension_has_answered_begins_no_run_and_ends_its_turn():
    talk = PiConversation().start_run()
    talk.feed_messages(talk.answer_to("prompt"))
    assert kinds(talk.sent_messages)[-1] == "get_state"
    other = PiConversation().start_run()
    other.feed_messages(other.answer_to("prompt", {"disposition": "handled"}))
    assert other.stages[-1] is TurnStage.VENDOR_DONE


def test_an_older_pi_is_asked_whether_a_message_runs():
    talk = PiConversation().start_run()
    talk.feed_messages(talk.answer_to("prompt"))
    still = talk.answer_to("get_state", {"isStreaming": False})
    assert talk.feed_messages(still).stages[-1] is TurnStage.VENDOR_DONE


@pytest.mark.parametrize("events", [[], [build_message_end(build_tool_call(), stop="toolUse")]])
def test_a_pi_that_leaves_in_the_middle_of_its_run_has_failed_though_its_exit_says_nothing(events):
    (result,) = start_conversation().feed_messages(*events).close_stream().results
    assert result["is_error"]


def test_a_message_that_pi_refuses_is_a_failed_turn():
    talk = PiConversation().start_run()
    talk.feed_messages(talk.answer_to("prompt", error="No API key found for mock."))
    (result,) = talk.close_stream().results
    assert result["is_error"] and "No API key" in json.dumps(result)


def test_a_command_of_an_extension_is_a_text_and_a_template_is_a_command():
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


def test_images_go_with_the_message_where_the_model_reads_them():
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
    assert blind.child_input.accepted_kinds == frozenset()


# -- questions -------------------------------------------------------------------------------------


def test_a_call_is_asked_about_with_its_input_and_said_once():
    talk = start_conversation().feed_messages(
        build_message_end(build_tool_call(), stop="toolUse"), build_permission_dialog()
    )
    (request,) = talk.pending_permissions
    assert (request.tool, request.tool_input, request.call_id) == ("Bash", {"command": "ls"}, "c1")
    talk.answer_permission()
    assert values(talk.sent_messages) == [{"allow": True}]
    assert talk.lines.count(b'"type":"tool_use"') == 1


def test_a_denial_has_its_words_and_a_change_is_said_as_pi_says_it():
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
def test_a_tool_of_an_extension_is_not_allowed_as_the_one_of_claudes_that_it_is_called_like(tool):
    talk = start_conversation().feed_messages(
        add_replaced_flag(build_permission_dialog(tool=tool, path="a.txt"))
    )
    (request,) = talk.pending_permissions
    assert (request.tool, request.tool_input) == (f"mcp__pi__{tool}", {"path": "a.txt"})
    evaluator = PolicyEvaluator(Policy(workspace=Workspace("/w")))
    for mode in ("default", "acceptEdits", "plan"):
        assert evaluator.evaluate(request.tool, request.tool_input, mode).outcome == "ask"
    talk.clear_sent()
    assert values(talk.answer_permission(updated_input={"path": "b.txt"}).sent_messages) == [
        {"allow": True, "input": {"path": "b.txt"}}
    ]


def test_a_rule_that_narrows_holds_for_a_tool_of_an_extension_by_its_own_name():
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
    """A question about a tool that an extension has put in the place of one of pi's."""
    call_data = json.loads(request["placeholder"])
    return request | {
        "placeholder": json.dumps(
            call_data | ({"replaced": True} if call_data["tool"] == "read" else {})
        )
    }


def test_a_change_that_pi_has_no_words_for_does_not_run():
    talk = start_conversation().feed_messages(build_permission_dialog(tool="grep", pattern="x"))
    with pytest.raises(ValueError, match="no words for"):
        talk.answer_permission(updated_input={"pattern": "x", "output_mode": "count"})


def test_a_question_is_answered_once():
    talk = start_conversation().feed_messages(build_permission_dialog())
    request = talk.pending_permissions[0]
    talk.answer_permission()
    talk.pending_permissions.append(request)
    talk.clear_sent()
    assert talk.answer_permission(allow=False).sent_messages == []


@loop_over_rows(
    "placeholder", ["no json", "[]", '{"call": "c1"}', '{"call": "c1", "tool": "bash"}', None]
)
def test_a_question_that_cannot_be_read_is_refused(placeholder):
    talk = start_conversation().feed_messages(
        build_permission_dialog() | {"placeholder": placeholder}
    )
    assert talk.pending_permissions == [] and talk.sent_messages[-1] == {
        "type": "extension_ui_response",
        "id": "q1",
        "cancelled": True,
    }


def test_a_dialog_of_another_extension_is_closed_and_what_asks_nothing_is_not():
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
def test_a_dialog_of_another_extension_is_a_question_to_the_person(event, labels, choice, answer):
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


def test_a_dialog_at_the_start_is_put_to_nobody_and_named_where_pi_ends_by_it():
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


def test_a_dialog_at_the_start_that_pi_goes_on_from_is_no_failure():
    talk = PiConversation(flags=ASKING).send_prompt().feed_messages(dialog("confirm")).start_run()
    talk.feed_messages(
        talk.answer_to("prompt", STARTED),
        START,
        build_message_end(build_text_block("Hello")),
        END,
        SETTLED,
    )
    assert [result.get("result") for result in talk.finish_turn().results] == ["Hello"]


def test_a_dialog_that_the_person_does_not_answer_is_closed():
    talk = (
        PiConversation(flags=ASKING)
        .start_run()
        .feed_messages(START, dialog("confirm"), dialog("input", id="d2"))
    )
    talk.clear_sent()
    talk.answer_permission(allow=False).answer_permission()
    assert [message["cancelled"] for message in talk.sent_messages] == [True, True]


def test_a_question_in_a_line_that_had_to_be_mended_is_not_believed():
    talk = start_conversation()
    torn = b"noise " + json.dumps(build_permission_dialog()).encode() + b"\n"
    talk.add_output(*talk.child_stream.feed(torn))
    assert talk.pending_permissions == [] and talk.sent_messages[-1].get("cancelled") is True


def test_a_question_between_two_turns_is_put_to_nobody():
    talk = start_conversation().feed_messages(
        build_message_end(build_text_block("one")), END, SETTLED
    )
    talk.add_output(*talk.child_stream.finish())
    (ask,) = talk.child_stream.skip_late_output(
        json.dumps(build_permission_dialog()).encode() + b"\n"
    )
    assert ask.permission.refusal


# -- what is changed in the middle -----------------------------------------------------------------


def test_an_abort_that_came_before_the_run_is_said_again_when_it_begins():
    talk = PiConversation().start_run()
    talk.record_sent(talk.child_input.encode_interrupt())
    talk.feed_messages(talk.answer_to("prompt"), talk.answer_to("abort"))
    assert TurnStage.VENDOR_DONE not in talk.stages
    assert kinds(talk.feed_messages(START).sent_messages)[-1] == "abort"


def test_a_run_that_was_aborted_is_over_when_pi_says_so():
    talk = start_conversation()
    talk.record_sent(talk.child_input.encode_interrupt()).child_stream.interrupt()
    talk.feed_messages(
        build_message_end(stop="aborted", errorMessage="Request was aborted."),
        OLD_END,
        talk.answer_to("abort"),
    )
    assert talk.stages[-1] is TurnStage.VENDOR_DONE
    assert talk.close_stream().results[0]["subtype"] == "error_during_execution"


def test_a_message_that_waits_is_never_said_once_it_was_interrupted():
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
def test_a_model_is_told_by_its_provider_and_its_id(name, expected):
    talk = start_conversation()
    talk.clear_sent()
    assert [
        {key: message[key] for key in message if key != "id"}
        for message in talk.record_sent(talk.child_input.encode_model_change(name)).sent_messages
    ] == expected


def test_a_model_that_pi_would_have_to_look_for_is_told_to_another_child():
    assert PiConversation().start_run().child_input.encode_model_change("m2") is None


def test_its_own_model_is_told_where_pi_chose_one():
    assert (
        PiConversation()
        .start_run()
        .child_input.encode_model_change(None)
        .count(b'"provider":"mock","modelId":"m1"')
        == 1
    )
    assert PiConversation(model="mock/m2").start_run().child_input.encode_model_change(None) is None


def test_a_message_waits_for_the_model_and_fails_where_there_is_none():
    talk = (
        start_conversation()
        .feed_messages(build_message_end(build_text_block("one")), END, SETTLED)
        .finish_turn()
    )
    talk.record_sent(talk.child_input.encode_model_change("mock/m9")).send_prompt("two")
    talk.feed_messages(talk.answer_to("set_model", error="Model not found: mock/m9"))
    assert [message.get("message") for message in talk.sent_messages].count(
        "two"
    ) == 0 and not talk.child_input.is_usable
    assert "Model not found" in json.dumps(talk.close_stream().results[-1])


@pytest.mark.parametrize(
    ("before", "name", "expected"),
    [("default", "acceptEdits", b""), ("default", "plan", None), ("plan", "default", None)],
)
def test_a_mode_need_not_be_told_unless_it_has_other_tools(before, name, expected):
    assert PiConversation(mode=before).child_input.encode_mode_change(name) == expected


def test_a_message_goes_into_the_run_and_its_answer_is_waited_for():
    talk = start_conversation()
    talk.record_sent(talk.child_input.encode_steering(UserMessage("also this")))
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


def test_a_message_that_pi_did_not_take_into_its_run_is_counted():
    talk = start_conversation()
    talk.record_sent(talk.child_input.encode_steering(UserMessage("also this")))
    talk.feed_messages(
        talk.answer_to("prompt", error="Cannot submit a prompt while compaction is in progress.")
    )
    assert (talk.child_input.pop_undelivered_count(), talk.child_input.pop_undelivered_count()) == (
        1,
        0,
    )


def test_what_was_said_into_a_run_that_is_stopped_is_asked_back():
    talk = start_conversation()
    talk.record_sent(talk.child_input.encode_steering(UserMessage("also this")))
    talk.feed_messages(talk.answer_to("prompt", {"disposition": "queued"}))
    talk.record_sent(talk.child_input.encode_interrupt())
    talk.feed_messages(talk.answer_to("clear_queue", {"steering": ["also this"], "followUp": []}))
    assert talk.child_input.pop_undelivered_count() == 1


@pytest.mark.parametrize(("level", "expected"), [("low", "low"), ("max", "xhigh")])
def test_how_hard_the_model_is_to_try_is_told_in_pis_words(level, expected):
    talk = start_conversation()
    assert (
        talk.record_sent(talk.child_input.encode_effort_change(level)).sent_messages[-1]["level"]
        == expected
    )
    assert talk.child_input.encode_effort_change(None) is None


def test_there_is_no_way_into_a_run_that_is_over():
    assert (
        start_conversation()
        .feed_messages(build_message_end(build_text_block("one")), END, SETTLED)
        .child_input.encode_steering(UserMessage("late"))
        is None
    )


# -- recordings ------------------------------------------------------------------------------------


def test_a_recording_of_two_turns_is_read_as_two():

    translation = StreamTranslation(
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
    )
    output += translation.close(None)
    assert output.count(b'"type":"result"') == 2
