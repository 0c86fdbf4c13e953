"""Conversations through the drop-in: many messages and one process. The vendor gets a new child for
each message.

The contract's ids are in the docstrings; `test_contract` maps them.
"""

import json
import os
import select
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest
from box import ANSWER, CONVERSE, END, START, TIMEOUT_S, build_text_event, format_ndjson
from stream_invariants import check_turns

SESSION = "7f1c2f4e-0000-4000-8000-0000000000aa"
OTHER = "7f1c2f4e-0000-4000-8000-0000000000bb"
U = "11111111-1111-4111-8111-111111111111"
DRIVER_CONFIG = '[vendors.pi]\ndriver = "one-way"\n'
SESSION_START = START | {"session": SESSION}
TALKING = format_ndjson(SESSION_START, build_text_event("I am "))
IDLE = format_ndjson(SESSION_START, build_text_event("Hello."), END)
QWEN = format_ndjson(
    {"type": "system", "subtype": "init", "session_id": SESSION, "tools": [], "model": "m1"},
    {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "result": "Hello.",
        "session_id": SESSION,
    },
)
EMIT = {"CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS": "1"}


def user(content, **more):
    return {
        "type": "user",
        "message": {"role": "user", "content": content},
        "session_id": "",
        **more,
    }


def request(request_id, subtype, **more):
    return {
        "type": "control_request",
        "request_id": request_id,
        "request": {"subtype": subtype, **more},
    }


def stdin(*lines):
    return "".join(
        (line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines
    ).encode()


def responses(done):
    return {
        line["response"]["request_id"]: line["response"]
        for line in done.lines
        if line["type"] == "control_response"
    }


def results(done):
    return [line for line in done.lines if line["type"] == "result"]


def causes(done):
    return [line["shim"]["cause"] for line in results(done)]


def kinds(done):
    return [
        line.get("subtype") if line["type"] == "system" else line["type"] for line in done.lines
    ]


@pytest.fixture
def box(quick_box):
    return quick_box


def converse_in(box):
    """Return a function that runs a conversation in a box, from its lines to its end."""

    def run(child, *lines, flags=(), **environment):
        environment = {"SHIM_VENDOR": "demo", "SHIM_BIN": child} | environment
        return box.run_claude(*CONVERSE, *flags, stdin=stdin(*lines), **environment)

    return run


@pytest.fixture
def converse(box):
    return converse_in(box)


@pytest.fixture
def talk(box):
    return partial(box.start_conversation, vendor="demo")


@pytest.fixture
def real_converse(real_box):
    """The same with real processes."""
    return converse_in(real_box)


@pytest.fixture
def real_talk(real_box):
    """The same with real processes and pipes."""
    return partial(real_box.start_conversation, vendor="demo")


# -- messages --------------------------------------------------------------------------------------


def test_each_message_gets_an_init_and_a_result_in_order(box, converse):
    """C16, S1, S2"""
    child = box.create_fake(["read"], ["record", str(box.recording)], ["out", IDLE])
    done = converse(child, user("one"), user("two"), user("three"))
    assert done.status == 0
    assert kinds(done) == ["init", "assistant", "result"] * 3
    assert len({line["session_id"] for line in done.lines}) == 1
    assert len({line["uuid"] for line in done.lines}) == len(done.lines)
    assert box.read_record()["stdin"] == "three"


def test_second_message_resumes_the_vendor_session(box, converse):
    child = box.create_fake(["read"], ["record", str(box.recording)], ["out", IDLE])
    done = converse(child, user("one"), user("two"))
    assert box.read_record()["arguments"] == [SESSION]
    assert done.lines[0]["session_id"] != SESSION


def test_last_reported_vendor_session_is_resumed(box, converse):
    other = format_ndjson(START | {"session": OTHER}, build_text_event("Hello."), END)
    last = [["read"], ["record", str(box.recording)], ["out", other]]
    child = box.create_fake_sequence([["read"], ["out", IDLE]], [["read"], ["out", other]], last)
    converse(child, user("one"), user("two"), user("three"))
    assert box.read_record()["arguments"] == [OTHER]


def test_session_id_flag_sets_the_id_of_every_line(box, converse):
    """F5, S3"""
    done = converse(
        box.create_fake(["out", IDLE]), user("one"), user("two"), flags=("--session-id", U)
    )
    assert {line["session_id"] for line in done.lines if "session_id" in line} == {U}


def test_empty_stdin_prints_nothing_and_exits_with_status_0(box, converse):
    """P15"""
    done = converse(box.create_fake(["out", IDLE]))
    assert (done.status, done.stdout, done.stderr) == (0, b"", "")


def test_turn_completes_after_stdin_is_closed(real_box, real_talk):
    """P15"""
    gate = real_box.create_gate()
    child = real_box.create_fake(
        ["out", TALKING],
        ["wait", gate.path],
        ["out", format_ndjson(build_text_event("done."), END)],
    )
    with real_talk(child, "--include-partial-messages") as running:
        running.send_lines(user("go"))
        running.read_until(b"I am ")
        running.process.stdin.close()
        running.process.stdin = None
        gate.open()
        done = running.wait_for_end()
    assert done.status == 0
    assert done.result["result"] == "I am done."


def test_positional_prompt_is_ignored_in_a_conversation(box, converse):
    """P4, P7"""
    child = box.create_fake(["read"], ["record", str(box.recording)], ["out", IDLE])
    done = converse(child, user("one"), flags=("--replay-user-messages", ""))
    assert len(results(done)) == 1
    assert box.read_record()["stdin"] == "one"


def test_unsupported_content_block_is_omitted_with_a_notice(box, converse):
    """C14"""
    child = box.create_fake(["read"], ["record", str(box.recording)], ["out", IDLE])
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"},
    }
    note = {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": "a note"},
    }
    done = converse(child, user([{"type": "text", "text": "look"}, image, note]))
    assert box.read_record()["stdin"] == "look\na note"
    (notice,) = [
        line for line in done.lines if line.get("message", {}).get("model") == "<synthetic>"
    ]
    assert (
        notice["message"]["content"][0]["text"]
        == "[1 image left out of this message: demo only accepts text]"
    )
    assert done.result["result"] == "Hello."


def test_replayed_user_message_follows_init_and_preserves_its_uuid(box, converse):
    """C15"""
    done = converse(
        box.create_fake(["out", IDLE]),
        user("one", uuid=U),
        user("two"),
        flags=("--replay-user-messages",),
    )
    assert kinds(done) == ["init", "user", "assistant", "result"] * 2
    first, second = [line for line in done.lines if line["type"] == "user"]
    assert first["uuid"] == U and first["isReplay"] is True
    assert (
        first["message"] == {"role": "user", "content": "one"}
        and first["parent_tool_use_id"] is None
    )
    assert second["uuid"] != U and second["timestamp"].endswith("Z")


def test_second_message_fails_if_the_vendor_has_no_sessions(box, converse):
    nameless = box.create_fake(["out", ANSWER])
    done = converse(nameless, user("one"), user("two"))
    first, second = results(done)
    assert first["is_error"] is False
    assert second["is_error"] is True and "one message" in second["errors"][0]
    assert done.status == 1


def test_turn_after_a_failed_turn_succeeds(box, converse):
    """P13"""
    child = box.create_fake_sequence([["out", TALKING], ["leave", 3]], [["out", IDLE]])
    done = converse(child, user("one"), user("two"))
    assert [line["is_error"] for line in results(done)] == [True, False]
    assert done.status == 0


def test_exit_status_is_that_of_the_last_result(box, converse):
    """P13, P14"""
    child = box.create_fake_sequence([["out", IDLE]], [["out", TALKING], ["leave", 3]])
    done = converse(child, user("one"), user("two"))
    assert [line["is_error"] for line in results(done)] == [False, True]
    assert done.status == 1


def test_missing_vendor_program_is_reported_on_initialize(box, converse):
    done = converse(str(box.path / "missing"), request("i", "initialize"))
    assert done.status == 1
    assert done.cause == "not_found"


# -- control ---------------------------------------------------------------------------------------


def test_initialize_response_is_sent_before_the_child_starts(box, talk):
    """C1, C2"""
    child = box.create_fake(["record", str(box.recording)], ["out", IDLE])
    with talk(child) as running:
        running.send_lines(request("i1", "initialize", hooks=None))
        running.read_until(b'"request_id":"i1"')
        assert not box.recording.exists()
        running.send_lines(user("hi"))
        running.read_until(b'"type":"result"')
        running.send_lines(request("i2", "initialize"))
        running.read_until(b'"request_id":"i2"')
        done = running.end_input()
    assert box.recording.exists()
    body = responses(done)["i1"]["response"]
    names = [command["name"] for command in body["commands"]]
    assert names == ["clear", "compact", "context", "usage"], "the commands of the shim itself"
    assert body["agents"] == [] and body["models"][0]["value"] == "default"
    assert isinstance(body["account"], dict)
    assert responses(done)["i2"]["subtype"] == "success"


def test_unknown_control_request_gets_an_error_response(box, converse):
    """C5, C4"""
    done = converse(
        box.create_fake(["out", IDLE]), request("x", "no_such_subtype"), request("y", "mcp_status")
    )
    assert responses(done)["x"] == {
        "subtype": "error",
        "request_id": "x",
        "error": "Unsupported control request subtype: no_such_subtype",
        "error_code": "unsupported_request",
    }
    assert responses(done)["y"]["response"] == {"mcpServers": []}


def test_interrupt_ends_the_turn_and_the_next_message_succeeds(box, talk):
    """C6"""
    lifeline = box.create_lifeline()
    child = box.create_fake_sequence(
        [["say", lifeline.path, "child"], ["out", TALKING], ["hang"]], [["out", IDLE]]
    )
    with talk(child, "--include-partial-messages") as running:
        running.send_lines(user("go"))
        running.read_until(b"I am ")
        running.send_lines(request("stop", "interrupt"))
        running.read_until(b'"type":"result"')
        assert lifeline.wait_until_closed()
        running.send_lines(user("again"))
        done = running.end_input()
    assert done.status == 0
    interrupted, answered = results(done)
    assert interrupted["subtype"] == "error_during_execution" and interrupted["is_error"] is True
    assert interrupted["terminal_reason"] == "aborted_streaming"
    assert answered["is_error"] is False
    assert responses(done)["stop"]["response"] == {"still_queued": []}
    (user_line,) = [line for line in done.lines if line["type"] == "user"]
    assert user_line["message"]["content"] == [
        {"type": "text", "text": "[Request interrupted by user]"}
    ]


def test_vendor_session_of_an_interrupted_first_reply_is_not_resumed(box, talk):
    """C6; pi stores no session of an unfinished reply, so the next message starts another
    session.
    """
    box.write_settings(DRIVER_CONFIG)
    model = {"role": "assistant", "model": "m1"}
    text_delta = {"type": "text_delta", "contentIndex": 0, "delta": "I am "}
    full_message = model | {"content": [{"type": "text", "text": "Hello."}], "stopReason": "stop"}
    start_events = (
        {"type": "session", "id": SESSION},
        {"type": "message_start", "message": model | {"content": []}},
    )
    cut = format_ndjson(
        *start_events, {"type": "message_update", "assistantMessageEvent": text_delta}
    )
    answer = format_ndjson(
        *start_events, {"type": "message_end", "message": full_message}, {"type": "agent_settled"}
    )
    child = box.create_fake_sequence(
        [["out", cut], ["hang"]], [["record", str(box.recording)], ["out", answer]]
    )
    with talk(child, "--include-partial-messages", SHIM_VENDOR="pi") as running:
        running.send_lines(user("go"))
        running.read_until(b"I am ")
        running.send_lines(request("stop", "interrupt"))
        running.read_until(b'"type":"result"')
        running.send_lines(user("again"))
        done = running.end_input()
    interrupted, answered = results(done)
    assert interrupted["subtype"] == "error_during_execution"
    assert answered["subtype"] == "success" and answered["result"] == "Hello."
    assert "--session" not in box.read_record()["arguments"]


def test_interrupt_response_lists_the_queued_messages(box, talk):
    child = box.create_fake_sequence([["out", TALKING], ["hang"]], [["out", IDLE]])
    with talk(child, "--include-partial-messages") as running:
        running.send_lines(user("go"))
        running.read_until(b"I am ")
        running.send_lines(user("later", uuid=U), request("stop", "interrupt"))
        done = running.end_input()
    assert responses(done)["stop"]["response"] == {"still_queued": [U]}
    assert [line["is_error"] for line in results(done)] == [True, False]


def test_cancelled_queued_message_is_not_sent_to_the_vendor(box, talk):
    """C8"""
    gate = box.create_gate()
    child = box.create_fake_sequence(
        [
            ["out", TALKING],
            ["wait", gate.path],
            ["out", format_ndjson(build_text_event("done."), END)],
        ],
        [["out", IDLE]],
    )
    with talk(child, "--include-partial-messages") as running:
        running.send_lines(user("go"))
        running.read_until(b"I am ")
        running.send_lines(
            user("never", uuid=U),
            user("next"),
            request("back", "cancel_async_message", message_uuid=U),
        )
        running.read_until(b'"back"')
        gate.open()
        done = running.end_input()
    assert responses(done)["back"]["response"] == {"cancelled": True, "message_uuid": U}
    assert [line["result"] for line in results(done)] == ["I am done.", "Hello."]


def test_interrupt_while_idle_emits_only_a_control_response(box, converse):
    """C6"""
    done = converse(box.create_fake(["out", IDLE]), request("stop", "interrupt"))
    assert done.status == 0
    assert [line["type"] for line in done.lines] == ["control_response"]


def test_model_and_mode_changes_apply_to_the_next_turn(box, talk):
    """C7"""
    silent = format_ndjson(
        {name: fact for name, fact in SESSION_START.items() if name != "model"},
        build_text_event("Hello."),
        END,
    )
    with talk(box.create_fake_sequence([["out", IDLE]], [["out", silent]])) as running:
        running.send_lines(user("one"))
        running.read_until(b'"type":"result"')
        running.send_lines(
            request("m", "set_model", model="other"),
            request("p", "set_permission_mode", mode="plan"),
        )
        running.read_until(b'"status":null')
        running.send_lines(user("two"))
        done = running.end_input()
    first, second = [line for line in done.lines if line.get("subtype") == "init"]
    assert (first["permissionMode"], second["permissionMode"]) == ("default", "plan")
    assert second["model"] == "other"
    assert responses(done)["m"]["response"] == {"model": "other"}
    assert responses(done)["p"]["response"] == {"mode": "plan"}
    (status,) = [line for line in done.lines if line.get("subtype") == "status"]
    assert status["permissionMode"] == "plan" and status["session_id"] == first["session_id"]


@pytest.mark.parametrize("vendor", ["pi", "cursor", "acai", "codex", "gemini", "vibe", "kimi"])
def test_unsupported_permission_mode_is_refused_by_the_first_turn(box, converse, vendor):
    """claude-agent-acp starts so: with `--permission-mode=auto`, and then it asks what each model
    supports.
    """
    # The version query tells which of two programs is kimi.
    answer = "[ $# = 1 ] && [ $1 = --version ] && { echo unknown; exit 0; }\n"
    trap = box.write_program("trap", f"{answer}touch {box.path}/started\n")
    done = converse(
        trap,
        request("i", "initialize"),
        user("hi"),
        flags=["--permission-mode=auto"],
        SHIM_VENDOR=vendor,
    )
    opened = responses(done)["i"]["response"]
    assert [model["supportsAutoMode"] for model in opened["models"]] == [False] * len(
        opened["models"]
    )
    assert opened["current_permission_mode"] == "auto"
    assert kinds(done) == ["control_response", "init", "result"] and done.status == 1
    assert causes(done) == ["refused"]
    assert f"{vendor} does not support the permission mode auto" in results(done)[0]["errors"][0]
    assert not (box.path / "started").exists()


def test_unsupported_mode_can_be_replaced_before_the_first_message(box, converse):
    child = box.create_fixture_printer("standin", "acai/2026-04-text")
    changed = request("p", "set_permission_mode", mode="default")
    lines = request("i", "initialize"), changed, user("hi")
    done = converse(child, *lines, flags=["--permission-mode=auto"], SHIM_VENDOR="acai")
    assert (done.status, causes(done)) == (0, ["clean"])
    assert [line["permissionMode"] for line in done.lines if line.get("subtype") == "init"] == [
        "default"
    ]


def test_unsupported_mode_can_be_replaced_after_a_refusal(box, talk):
    child = box.create_fixture_printer("standin", "acai/2026-04-text")
    with talk(child, "--permission-mode=auto", SHIM_VENDOR="acai") as running:
        running.send_lines(user("one"))
        running.read_until(b'"type":"result"')
        running.send_lines(request("p", "set_permission_mode", mode="default"), user("two"))
        done = running.end_input()
    assert causes(done) == ["refused", "clean"]


def test_models_report_auto_mode_support_if_the_vendor_has_auto_mode(box, converse):
    done = converse(
        box.create_fake(["out", IDLE]), request("i", "initialize"), request("l", "list_models")
    )
    for answer in responses(done).values():
        assert all(model["supportsAutoMode"] is True for model in answer["response"]["models"])


def test_permission_mode_change_does_not_affect_an_earlier_message(box, converse):
    done = converse(
        box.create_fake(["out", IDLE]),
        user("one"),
        request("p", "set_permission_mode", mode="plan"),
        user("two"),
    )
    inits = [line["permissionMode"] for line in done.lines if line.get("subtype") == "init"]
    assert inits == ["default", "plan"]


def test_session_state_events_are_emitted_if_enabled(box, converse):
    """S18"""
    done = converse(box.create_fake(["out", IDLE]), user("one"), **EMIT)
    assert kinds(done) == [
        "session_state_changed",
        "init",
        "assistant",
        "result",
        "session_state_changed",
    ]
    assert [line["state"] for line in done.lines if "state" in line] == ["running", "idle"]
    silent = converse(box.create_fake(["out", IDLE]), user("one"))
    assert kinds(silent) == ["init", "assistant", "result"]


def test_print_mode_emits_session_state_events_if_enabled(box):
    """S18, in the same form as the real claude 2.1 with text output"""
    args = (
        "-p",
        "one",
        "--output-format",
        "stream-json",
        "--verbose",
        "--include-partial-messages",
    )
    child = box.create_fake(["read"], ["out", IDLE])
    done = box.run_claude(*args, SHIM_VENDOR="demo", SHIM_BIN=child, **EMIT)
    assert [line["state"] for line in done.lines if "state" in line] == ["running", "idle"]
    assert (done.lines[0]["state"], done.lines[-1]["state"]) == ("running", "idle")
    assert {line["session_id"] for line in done.lines if "session_id" in line} == {
        done.init["session_id"]
    }
    silent = box.run_claude(*args, SHIM_VENDOR="demo", SHIM_BIN=child)
    assert len(silent.lines) == len(done.lines) - 2


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("not json", "Error parsing streaming input line (type=unknown, 8 chars)"),
        ('{"type":"user"}', "Expected message role 'user', got 'undefined'"),
        ('{"type":"control_request","request_id":"x"}', "Missing request on control_request"),
        ("[1]", "Error parsing streaming input line"),
    ],
)
def test_malformed_stdin_line_is_skipped_with_a_warning(box, converse, line, complaint):
    """C13"""
    done = converse(box.create_fake(["out", IDLE]), line, user("one"))
    assert done.status == 0
    assert done.result["is_error"] is False
    assert complaint in done.stderr


def test_irrelevant_stdin_lines_are_ignored(box, converse):
    """C13"""
    done = converse(
        box.create_fake(["out", IDLE]),
        {"type": "keep_alive"},
        {"type": "control_cancel_request", "request_id": "x"},
        {"type": "update_environment_variables", "variables": {}},
        {"type": "something_new"},
        "",
        user("one"),
    )
    assert (done.status, done.stderr) == (0, "")
    assert kinds(done) == ["init", "assistant", "result"]


def test_last_stdin_line_without_a_newline_is_processed(box):
    """C13"""
    child = box.create_fake(["out", IDLE])
    done = box.run_claude(
        *CONVERSE, stdin=stdin(user("one"))[:-1], SHIM_VENDOR="demo", SHIM_BIN=child
    )
    assert done.result["is_error"] is False


# -- the end of a conversation ---------------------------------------------------------------------


def test_sigterm_while_idle_emits_no_result(box, talk):
    """P13"""
    with talk(box.create_fake(["out", IDLE])) as running:
        running.send_lines(user("one"))
        running.read_until(b'"type":"result"')
        running.send_signal(signal.SIGTERM)
        assert running.wait_for_status() == 143
        done = running.wait_for_end()
    assert len(results(done)) == 1


def test_sigterm_ends_the_turn_with_a_result_and_stops_the_child(box, talk):
    """P18, S18"""
    lifeline = box.create_lifeline()
    child = box.create_fake(["say", lifeline.path, "child"], ["out", TALKING], ["hang"])
    with talk(child, "--include-partial-messages", **EMIT) as running:
        running.send_lines(user("go"))
        running.read_until(b"I am ")
        running.send_signal(signal.SIGTERM)
        done = running.wait_for_end()
        assert lifeline.wait_until_closed()
    assert done.status == 143
    assert done.result["is_error"] is True and done.cause == "signal"
    assert done.lines[-1]["state"] == "idle"


def test_sigint_ends_the_turn_and_exits_with_status_0(box, talk):
    """P17"""
    child = box.create_fake(["out", TALKING], ["hang"])
    with talk(child, "--include-partial-messages") as running:
        running.send_lines(user("go"), user("never"))
        running.read_until(b"I am ")
        running.send_signal(signal.SIGINT)
        done = running.wait_for_end()
    assert done.status == 0
    assert done.result["subtype"] == "error_during_execution"


def test_silent_child_is_stopped_when_the_frontend_crashes(real_box, real_talk):
    """P18, P19"""
    lifeline = real_box.create_lifeline()
    child = real_box.create_fake(["say", lifeline.path, "child"], ["out", TALKING], ["hang"])
    with real_talk(child, "--include-partial-messages") as running:
        running.send_lines(user("go"))
        running.read_until(b"I am ")
        running.process.stdin.close()
        running.process.stdin = None
        os.close(os.dup(running.process.stdout.fileno()))
        running.process.stdout.close()
        running.process.stdout = None
        assert lifeline.wait_until_closed()
        assert running.wait_for_status() == 0


def test_silent_child_is_stopped_when_stdout_closes_in_print_mode(real_box):
    lifeline = real_box.create_lifeline()
    child = real_box.create_fake(["say", lifeline.path, "child"], ["out", TALKING], ["hang"])
    flags = ("-p", "go", "--output-format", "stream-json", "--include-partial-messages")
    with real_box.start_claude(
        *flags, environment={"SHIM_VENDOR": "demo", "SHIM_BIN": child}
    ) as running:
        running.read_until(b"I am ")
        running.process.stdout.close()
        running.process.stdout = None
        assert lifeline.wait_until_closed()
        assert running.wait_for_status() == 0


def test_conversation_output_satisfies_the_stream_invariants(box, talk):
    """S1, S3, S5, S6, S9, S11"""
    child = box.create_fake_sequence(
        [["out", IDLE]], [["out", TALKING], ["leave", 3]], [["out", IDLE]]
    )
    with talk(child, "--include-partial-messages", "--shim-terminator", "message_stop") as running:
        running.send_lines(user("one"), user("two"), user("three"))
        done = running.end_input()
    turns = check_turns(done.stdout, True)
    assert len(turns) == 3


# -- processes that left the group -----------------------------------------------------------------

USING = format_ndjson(
    SESSION_START, {"type": "call", "id": "c", "name": "Bash", "input": {"command": "serve &"}}
)


@pytest.mark.parametrize("end", ["interrupt", "SIGTERM", "EOF", "crash"])
def test_daemon_started_by_the_child_is_stopped_when_the_turn_is_aborted(real_box, real_talk, end):
    """P18"""
    lifeline = real_box.create_lifeline()
    child = real_box.create_fake(
        ["read"],
        ["out", USING],
        ["daemon", lifeline.path],
        ["out", format_ndjson(build_text_event("done"))],
        ["hang"],
    )
    with real_talk(child, "--include-partial-messages") as running:
        running.send_lines(user("go"))
        running.read_until(b"done")
        if end == "interrupt":
            running.send_lines(request("stop", "interrupt"))
        elif end == "SIGTERM":
            running.send_signal(signal.SIGTERM)
        else:
            running.process.stdin.close()
            running.process.stdin = None
            if end == "crash":
                running.process.stdout.close()
                running.process.stdout = None
            else:
                running.send_signal(signal.SIGINT)
        assert lifeline.wait_until_closed()


def test_daemon_is_stopped_after_the_conversation_ends(real_box, real_converse):
    lifeline = real_box.create_lifeline()
    child = real_box.create_fake(
        ["out", USING],
        ["daemon", lifeline.path],
        ["out", format_ndjson(build_text_event("done"), END)],
    )
    assert real_converse(child, user("go")).status == 0
    assert lifeline.wait_until_closed()


def test_daemon_survives_a_print_mode_run(real_box):
    lifeline = real_box.create_lifeline()
    child = real_box.create_fake(
        ["out", USING],
        ["daemon", lifeline.path],
        ["out", format_ndjson(build_text_event("done"), END)],
    )
    assert real_box.run_claude("-p", "go", SHIM_VENDOR="demo", SHIM_BIN=child).status == 0
    os.kill(lifeline.wait_for("daemon"), 0)


def test_child_that_ignores_signals_is_killed_after_stdin_closes(box, talk):
    """P16"""
    lifeline = box.create_lifeline()
    deaf = [["say", lifeline.path, "child"], ["ignore", "SIGTERM", "SIGINT"]]
    child = box.create_fake(*deaf, ["hear", "initialize"], ["hear", "go"], ["out", QWEN], ["hang"])
    with talk(child, SHIM_VENDOR="qwen") as running:
        running.send_lines(user("go"))
        running.read_until(b'"type":"result"')
        assert running.end_input().status == 0  # `test_process` measures how long it may take.
    assert lifeline.wait_until_closed()


def test_child_that_writes_output_exits_when_the_shim_is_killed(real_box, real_talk):
    """P18"""
    lifeline = real_box.create_lifeline()
    child = real_box.create_fake(
        ["say", lifeline.path, "child"], ["out", TALKING], ["fill", 100_000_000]
    )
    with real_talk(child, "--include-partial-messages") as running:
        running.send_lines(user("go"))
        running.read_until(b"I am ")
        running.send_signal(signal.SIGKILL)
        assert lifeline.wait_until_closed()


def test_hook_denial_stops_the_turn_of_a_vendor_without_permission_requests(box, talk):
    """C11"""
    lifeline = box.create_lifeline()
    child = box.create_fake(["say", lifeline.path, "child"], ["out", USING], ["hang"])
    hooks = {"PreToolUse": [{"hookCallbackIds": ["h0"]}]}
    with talk(child) as running:
        running.send_lines(request("i", "initialize", hooks=hooks), user("go"))
        line = running.read_line_containing(b'"hook_callback"')
        response = {
            "subtype": "success",
            "request_id": line["request_id"],
            "response": {"decision": "block"},
        }
        running.send_lines({"type": "control_response", "response": response})
        running.read_until(b'"type":"result"')
        assert lifeline.wait_until_closed()
        done = running.end_input()
    assert done.cause == "denied" and done.status == 1
    assert done.result["permission_denials"][0]["tool_name"] == "Bash"


@pytest.mark.parametrize("converses", [True, False], ids=["conversation", "one-message"])
def test_silent_child_and_its_process_group_exit_when_the_shim_is_killed(real_box, converses):
    """P18: a vendor that waits for a tool reads and writes nothing."""
    lifeline = real_box.create_lifeline()
    child = real_box.create_fake(["spawn", lifeline.path, False], ["out", TALKING], ["hang"])
    flags = CONVERSE if converses else ("-p", "go", "--output-format", "stream-json")
    flags = (*flags, "--include-partial-messages")
    environment = {"SHIM_VENDOR": "demo", "SHIM_BIN": child}
    with real_box.start_claude(*flags, stdin=subprocess.PIPE, environment=environment) as running:
        if converses:
            running.send_lines(user("go"))
        else:
            running.process.stdin.close()
            running.process.stdin = None
        running.read_until(b"I am ")
        running.send_signal(signal.SIGKILL)
        assert lifeline.wait_until_closed()


def test_watchdog_exits_after_the_child_exits(real_box, real_talk):
    """The child's process id may belong to another process by now."""
    with real_talk(real_box.create_fake(["out", IDLE])) as running:
        running.send_lines(user("one"))
        running.read_until(b'"type":"result"')
        running.send_lines(request("r", "mcp_status"))
        running.read_until(b'"request_id":"r"')
        children_file = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children")
        # The wait is short, but on a busy machine it may take longer.
        for _ in range(int(TIMEOUT_S / 0.01)):
            if not any(map(runs, children_file.read_text(encoding="ascii").split())):
                break
            select.select([], [], [], 0.01)
        else:
            raise AssertionError("it has a guard still")


def runs(pid):
    """Return whether a process exists and is not a zombie."""
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
            not in "ZX"
        )
    except OSError:
        return False


PI = format_ndjson(
    {"type": "session", "id": "01a1f9bc-0000-7000-8000-000000000001", "cwd": "/repo"}
)
HELP = [["out", "--session-id"]]  # the single request for its options
PI_SAYS = {
    "role": "assistant",
    "content": [{"type": "text", "text": "Hi."}],
    "stopReason": "stop",
    "model": "m",
}
PI_ANSWER = format_ndjson(
    {"type": "message_start", "message": PI_SAYS},
    {"type": "message_end", "message": PI_SAYS | {"usage": {"input": 1, "output": 1}}},
    {"type": "agent_settled"},
)


def test_interrupted_vendor_session_that_was_not_stored_is_replaced(box, talk):
    """pi writes its session with its first complete reply. It does not find an earlier id."""
    box.write_settings(DRIVER_CONFIG)
    cut = [["out", PI + format_ndjson({"type": "message_start", "message": PI_SAYS})], ["hang"]]
    fresh = [["record", str(box.recording)], ["out", PI + PI_ANSWER]]
    with talk(
        box.create_fake_sequence(HELP, cut, fresh), "--session-id", U, SHIM_VENDOR="pi"
    ) as running:
        running.send_lines(user("one"))
        running.read_until(b'"init"')
        running.send_lines(request("stop", "interrupt"))
        running.read_until(b'"type":"result"')
        stored = json.loads((box.state / "sessions" / f"{U}.json").read_text(encoding="utf-8"))
        assert stored["vendor_session"] == ""
        running.send_lines(user("two"))
        done = running.end_input()
    assert [line["is_error"] for line in results(done)] == [True, False]
    assert results(done)[1]["shim"]["repairs"] == {}
    assert {line["session_id"] for line in done.lines if "session_id" in line} == {U}
    assert "--session" not in box.read_record()["arguments"]
    stored = json.loads((box.state / "sessions" / f"{U}.json").read_text(encoding="utf-8"))
    assert stored["vendor_session"] == "01a1f9bc-0000-7000-8000-000000000001"


def test_session_without_a_reply_can_be_resumed(box):
    cut = [
        ["out", PI + format_ndjson({"type": "message_start", "message": PI_SAYS})],
        ["die", "SIGKILL"],
    ]
    fresh = [["record", str(box.recording)], ["out", PI + PI_ANSWER]]
    child = box.create_fake_sequence(HELP, cut, fresh)
    flags = ("-p", "hi there", "--output-format", "stream-json")
    first = box.run_claude(*flags, "--session-id", U, SHIM_VENDOR="pi", SHIM_BIN=child)
    assert first.status == 1
    resumed_run = box.run_claude(*flags, "--resume", U, SHIM_VENDOR="pi", SHIM_BIN=child)
    assert (resumed_run.status, resumed_run.result["session_id"]) == (0, U)
    assert "--session" not in box.read_record()["arguments"]


# -- events between turns --------------------------------------------------------------------------


def test_message_uses_the_permission_mode_set_before_the_message(box, converse):
    """C7: a mode that is set after a message applies to the next one."""
    lines = user("one"), request("p", "set_permission_mode", mode="plan"), user("two")
    done = converse(box.create_fake(["out", IDLE]), *lines, **EMIT)
    assert [line["permissionMode"] for line in done.lines if line.get("subtype") == "init"] == [
        "default",
        "plan",
    ]


def test_sigint_before_the_child_starts_interrupts_the_turn(real_box, real_talk):
    """P17; a hook request that is not read delays the message."""
    hooks = {"UserPromptSubmit": [{"matcher": None, "hookCallbackIds": ["h"]}]}
    with real_talk(real_box.create_fake(["hang"])) as running:
        running.send_lines(request("i", "initialize", hooks=hooks), user("x" * 200_000))
        running.read_until(b'"hook_callback"', at_once=4096)
        running.send_signal(signal.SIGINT)
        done = running.wait_for_end()
    assert done.status == 0
    assert causes(done) == ["interrupted"]


PI_CALL = {
    "role": "assistant",
    "model": "m",
    "stopReason": "toolUse",
    "usage": {"input": 1, "output": 1},
}
PI_CALL |= {
    "content": [{"type": "toolCall", "id": "c1", "name": "bash", "arguments": {"command": "ls"}}]
}
PI_CALLING = format_ndjson(
    {"type": "message_start", "message": PI_CALL},
    {"type": "message_end", "message": PI_CALL},
    {
        "type": "tool_execution_start",
        "toolCallId": "c1",
        "toolName": "bash",
        "args": {"command": "ls"},
    },
)


def test_session_with_a_reply_is_resumed_after_a_hook_denial(box, talk):
    box.write_settings(DRIVER_CONFIG)
    gate = box.create_gate()
    calling = [["out", PI], ["wait", gate.path], ["out", PI_CALLING], ["hang"]]
    next_turn = [["record", str(box.recording)], ["out", PI + PI_ANSWER]]
    hooks = {"PreToolUse": [{"matcher": None, "hookCallbackIds": ["h"]}]}
    with talk(
        box.create_fake_sequence(HELP, calling, next_turn), "--session-id", U, SHIM_VENDOR="pi"
    ) as running:
        running.send_lines(request("i", "initialize", hooks=hooks), user("one"))
        running.read_until(b'"init"')
        gate.open()
        hook_request = running.read_line_containing(b'"hook_callback"')
        body = {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "deny"}}
        answer = {"subtype": "success", "request_id": hook_request["request_id"], "response": body}
        running.send_lines({"type": "control_response", "response": answer})
        running.read_until(b'"type":"result"')
        running.send_lines(user("two"))
        running.end_input()
    assert "--session" in box.read_record()["arguments"]


def test_session_with_a_reply_is_stored_after_sigterm(box, talk):
    box.write_settings(DRIVER_CONFIG)
    gate = box.create_gate()
    calling = [["out", PI], ["wait", gate.path], ["out", PI_CALLING], ["hang"]]
    with talk(
        box.create_fake_sequence(HELP, calling), "--session-id", U, SHIM_VENDOR="pi"
    ) as running:
        running.send_lines(user("one"))
        running.read_until(b'"init"')
        gate.open()
        running.read_until(b'"tool_use"')
        running.send_signal(signal.SIGTERM)
        assert running.wait_for_end().status == 143
    stored = json.loads((box.state / "sessions" / f"{U}.json").read_text(encoding="utf-8"))
    assert stored["vendor_session"] == "01a1f9bc-0000-7000-8000-000000000001"


def test_interrupted_session_with_an_assigned_id_is_not_resumed(box, talk):
    """copilot reports no id itself. The second child did not receive the shim's id either."""
    box.write_settings('[vendors.copilot]\ndriver = "one-way"\n')
    delta = {"type": "assistant.message_delta", "data": {"messageId": "m", "deltaContent": "I am "}}
    lifeline = box.create_lifeline()
    silent, cut = (
        [["say", lifeline.path, "child"], ["hang"]],
        [["out", format_ndjson(delta)], ["hang"]],
    )
    child = box.create_fake_sequence(
        silent, cut, [["record", str(box.recording)], ["out", format_ndjson(delta)]]
    )
    with talk(
        child, "--include-partial-messages", "--session-id", U, SHIM_VENDOR="copilot"
    ) as running:
        running.send_lines(user("the one"))
        lifeline.wait_for("child")
        running.send_lines(request("stop", "interrupt"))
        running.send_lines(user("the two"))
        running.read_until(b"I am ")
        running.send_lines(request("stop", "interrupt"), user("the three"))
        running.end_input()
    assert not any("--resume" in arg for arg in box.read_record()["arguments"])


@pytest.mark.parametrize("several", [True, False])
def test_spill_files_are_removed_if_the_child_cannot_start(box, talk, several):
    broken = box.write_program("broken", "")
    Path(broken).write_text("#!/nowhere/interpreter\n", encoding="utf-8")
    if several:
        with talk(broken, SHIM_VENDOR="copilot") as running:
            running.send_lines(user("one"), user("two"))
            running.end_input()
    else:
        box.run_claude("-p", "one", SHIM_VENDOR="copilot", SHIM_BIN=broken)
    assert list((box.state / "spill").rglob("*")) == []
