"""Conversations with a child of the Qwen RFC. The child is a stand-in that prints the page's lines,
because no program speaks the RFC.
"""

import json
from functools import partial

import pytest
from box import ASK, CONVERSE, format_ndjson

from tests.conversation.test_conversation import causes, responses, results, stdin, user
from tests.conversation.test_conversation import request as control
from tests.conversation.test_persistent_driver import (
    ASKING,
    answer,
    question,
    read_child_stdin,
    user_texts,
)

VENDOR_SESSION = "session-7"
HELLO = {
    "object": "chat.completion",
    "id": f"chatcmpl-{VENDOR_SESSION}",
    "model": "qwen-coder",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "stop"}
    ],
    "metadata": {
        "protocol_version": 1,
        "session_id": VENDOR_SESSION,
        "cwd": "/repo",
        "tools": ["run_shell_command"],
    },
}
USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
FINISHED = {"type": "x-qwen-session-event", "event": "Finished", "message": "Finished"}
BEAT = {"type": "result/heartbeat", "session_id": VENDOR_SESSION, "status": "ok", "ts": 1739430123}


def reply(message, finish="stop", usage=None):
    line = {"object": "chat.completion", "id": f"chatcmpl-{VENDOR_SESSION}", "model": "qwen-coder"}
    line["choices"] = [
        {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    ]
    return line | ({"usage": usage} if usage else {})


def says(text, usage=USAGE):
    return reply({"content": text}, usage=usage)


def calls(call_id="tool-1", command="touch x"):
    function = {"name": "run_shell_command", "arguments": json.dumps({"command": command})}
    return reply(
        {"tool_calls": [{"id": call_id, "type": "function", "function": function}]}, "tool_calls"
    )


def asks(command="touch x", question="req-1"):
    tool = {"name": "run_shell_command", "arguments": {"command": command}}
    request = {
        "type": "control_request",
        "request_id": question,
        "subtype": "can_use_tool",
        "session_id": VENDOR_SESSION,
    }
    return request | {"tool": tool}


def shows(text, status="success", call_id="call_tool-1"):
    display = {"kind": "string", "text": text}
    return {
        "type": "x-qwen-tool-display",
        "tool_call_id": call_id,
        "status": status,
        "result_display": display,
    }


@pytest.fixture
def box(quick_box):
    return quick_box


@pytest.fixture
def talk(box):
    return partial(box.start_conversation, vendor="qwen-rfc")


@pytest.fixture
def real_talk(real_box):
    """The same with real processes."""
    return partial(real_box.start_conversation, vendor="qwen-rfc")


def texts(done):
    return [line["result"] for line in results(done)]


def without_heartbeats(lines):
    return [line for line in lines if line.get("type") != "heartbeat_request"]


def test_two_messages_are_sent_as_two_requests_of_the_same_session(box, talk):
    child = box.create_fake(
        ["hear", "one"],
        ["out", format_ndjson(HELLO, says("First."), FINISHED)],
        ["hear", "two"],
        ["record", str(box.recording)],
        ["out", format_ndjson(says("Second."), FINISHED)],
        ["hear", "never"],
    )
    with talk(child) as running:
        running.send_lines(user("one"))
        running.read_until(b'"type":"result"')
        running.send_lines(user("two"))
        done = running.end_input()
    assert (done.status, texts(done)) == (0, ["First.", "Second."])
    first, second = without_heartbeats(read_child_stdin(box))
    assert (first["session_id"], first["input"]["parts"]) == (
        "_new",
        [{"type": "text", "text": "one"}],
    )
    assert (second["session_id"], second["prompt_id"]) == (
        VENDOR_SESSION,
        f"{VENDOR_SESSION}########2",
    )
    assert [line["usage"]["input_tokens"] for line in results(done)] == [100, 100]


def test_turn_ends_after_the_end_grace_if_no_output_follows_a_stopped_reply(box, talk):
    """The RFC has no end of a turn. An intermediate reply stops too, with its usage."""
    box.write_settings("end_grace = 0.2\n")
    child = box.create_fake(
        ["hear", "one"],
        ["out", format_ndjson(HELLO, says("Looking."), says("There."))],
        ["hear", "never"],
    )
    with talk(child) as running:
        running.send_lines(user("one"))
        running.read_until(b'"type":"result"')
        done = running.end_input()
    assert (done.status, texts(done)) == (0, ["There."])


def test_output_after_a_stopped_reply_belongs_to_the_same_turn(box, talk):
    box.write_settings("end_grace = 30\n")
    gate = box.create_gate()
    steps = [
        ["hear", "one"],
        ["out", format_ndjson(HELLO, says("Looking."), BEAT)],
        ["wait", gate.path],
    ]
    steps += [
        ["out", format_ndjson(calls(), shows("a.txt"), says("There."), FINISHED)],
        ["hear", "never"],
    ]
    with talk(box.create_fake(*steps)) as running:
        running.send_lines(user("one"))
        running.read_until(b"Looking.")
        gate.open()
        running.read_until(b'"type":"result"')
        done = running.end_input()
    assert (done.status, texts(done)) == (0, ["There."])
    assert user_texts(done) == ["a.txt"]


def test_allowed_call_is_approved_and_its_result_is_reported(box, talk):
    child = box.create_fake(
        ["hear", "go"],
        ["out", format_ndjson(HELLO, calls(), asks())],
        ["hear", "control_response"],
        ["record", str(box.recording)],
        ["out", format_ndjson(shows("done"), says("After."), FINISHED)],
        ["hear", "never"],
    )
    with talk(child, *ASKING) as running:
        running.send_lines(user("go"))
        request = question(running)
        running.send_lines(
            answer(
                request["request_id"], behavior="allow", updatedInput=request["request"]["input"]
            )
        )
        running.read_until(b'"type":"result"')
        done = running.end_input()
    assert (request["request"]["tool_name"], request["request"]["tool_use_id"]) == (
        "Bash",
        "tool-1",
    )
    approved = {"subtype": "success", "result": {"behavior": "approve", "message": ""}}
    assert without_heartbeats(read_child_stdin(box))[-1] == {
        "type": "control_response",
        "request_id": "req-1",
        "response": approved,
    }
    assert (done.status, user_texts(done), done.result["permission_denials"]) == (0, ["done"], [])


def test_denied_call_reports_the_message_of_the_user(box, talk):
    child = box.create_fake(
        ["hear", "go"],
        ["out", format_ndjson(HELLO, calls(), asks())],
        ["hear", '"deny"'],
        ["out", format_ndjson(shows("Canceled.", "Canceled"), says("Then not."), FINISHED)],
        ["hear", "never"],
    )
    with talk(child, *ASKING) as running:
        running.send_lines(user("go"))
        running.send_lines(
            answer(question(running)["request_id"], behavior="deny", message="no way")
        )
        running.read_until(b'"type":"result"')
        done = running.end_input()
    assert (texts(done), user_texts(done)) == (["Then not."], ["no way"])
    assert [denial["tool_use_id"] for denial in done.result["permission_denials"]] == ["tool-1"]


def test_call_is_denied_if_the_frontend_cannot_answer_permission_prompts(box, talk):
    """This is the RFC's own default. A mode does not replace an answer."""
    child = box.create_fake(
        ["hear", "go"],
        ["out", format_ndjson(HELLO, calls(), asks())],
        ["hear", '"deny"'],
        ["out", format_ndjson(says("Then not."), FINISHED)],
        ["hear", "never"],
    )
    with talk(child) as running:
        running.send_lines(user("go"))
        running.read_until(b'"type":"result"')
        done = running.end_input()
    (user_line,) = [line for line in done.lines if line["type"] == "user"]
    assert user_line["message"]["content"][0]["is_error"] is True
    assert len(done.result["permission_denials"]) == 1


def test_interrupt_sends_a_cancel_and_the_child_process_continues(box, talk):
    box.write_settings("end_grace = 30\n")
    cancelled = {
        "type": "result/cancel",
        "session_id": VENDOR_SESSION,
        "status": "ok",
        "message": "Request cancelled.",
    }
    child = box.create_fake(
        ["hear", "go"],
        ["out", format_ndjson(HELLO, says("I am", None))],
        ["hear", "control/cancel"],
        ["record", str(box.recording)],
        ["out", format_ndjson(cancelled)],
        ["hear", "again"],
        ["out", format_ndjson(says("Hello."), FINISHED)],
        ["hear", "never"],
    )
    with talk(child) as running:
        running.send_lines(user("go"))
        running.read_until(b"I am")
        running.send_lines(control("i1", "interrupt"))
        running.read_until(b'"type":"result"')
        running.send_lines(user("again"))
        running.read_until(b"Hello.")
        done = running.end_input()
    first, second = results(done)
    assert (first["shim"]["cause"], second["result"]) == ("interrupted", "Hello.")
    assert responses(done)["i1"]["subtype"] == "success"
    assert without_heartbeats(read_child_stdin(box))[-1] == {
        "type": "control/cancel",
        "session_id": VENDOR_SESSION,
        "reason": "escape",
    }


def test_slash_command_is_sent_as_a_path_and_its_message_is_the_result(box, talk):
    info_message = {"type": "message", "level": "info", "content": "There are 3 records."}
    child = box.create_fake(
        ["hear", '"path":["chat","list"]'],
        [
            "out",
            format_ndjson(
                HELLO,
                {"type": "result/command", "session_id": VENDOR_SESSION, "result": info_message},
            ),
        ],
        ["hear", "never"],
    )
    with talk(child) as running:
        running.send_lines(user("/chat list"))
        running.read_until(b'"type":"result"')
        done = running.end_input()
    (result,) = results(done)
    assert (result["result"], result["num_turns"], done.status) == ("There are 3 records.", 0, 0)


def test_heartbeat_timeout_reports_a_stall_without_restarting_the_child(box):
    box.write_settings("idle_timeout = 300\n[vendors.qwen-rfc.timeouts]\nheartbeat = 0.3\n")
    lifeline = box.create_lifeline()
    child = box.create_fake_sequence(
        [
            ["say", lifeline.path, "child"],
            ["hear", "go"],
            ["out", format_ndjson(HELLO, says("Hm.", None), BEAT)],
            ["hang"],
        ],
        [["out", format_ndjson(HELLO, says("Once more."), FINISHED)]],
    )
    done = box.run_claude(
        *CONVERSE, stdin=stdin(user("go")), SHIM_VENDOR="qwen-rfc", SHIM_BIN=child
    )
    assert lifeline.wait_until_closed()
    (line,) = results(done)
    assert (done.status, line["shim"]["cause"]) == (1, "stall")
    assert line["errors"] == ["qwen-rfc printed nothing for 0.3 s (heartbeat_timeout)"]
    assert b"Once more." not in done.stdout


def test_heartbeat_timeout_in_print_mode_reports_the_open_calls(box):
    box.write_settings("[vendors.qwen-rfc.timeouts]\nheartbeat = 0.3\n")
    child = box.create_fake(["out", format_ndjson(HELLO, calls(), BEAT)], ["hang"])
    done = box.run_claude(*ASK, SHIM_VENDOR="qwen-rfc", SHIM_BIN=child)
    assert (done.status, done.cause) == (1, "stall")
    assert done.result["errors"] == [
        "qwen-rfc printed nothing for 0.3 s (heartbeat_timeout) while these calls were running: Bash"
    ]


def test_answered_heartbeats_prevent_a_stall_during_a_long_call(box, talk):
    """Several heartbeats are sent within each limit. The fourth answer comes well after the first
    limit.
    """
    box.write_settings("[vendors.qwen-rfc.timeouts]\nheartbeat = 3\n")
    beats = [
        step
        for _ in range(4)
        for step in (["hear", "heartbeat_request"], ["out", format_ndjson(BEAT)])
    ]
    child = box.create_fake(
        ["hear", "go"],
        ["out", format_ndjson(HELLO, calls())],
        *beats,
        ["record", str(box.recording)],
        ["out", format_ndjson(shows("done"), says("After."), FINISHED)],
        ["hear", "never"],
    )
    with talk(child) as running:
        running.send_lines(user("go"))
        running.read_until(b'"type":"result"')
        done = running.end_input()
    assert texts(done) == ["After."]
    heartbeats = [line for line in read_child_stdin(box) if line.get("type") == "heartbeat_request"]
    assert len(heartbeats) >= 4 and heartbeats[0]["session_id"] == VENDOR_SESSION


def test_mode_change_starts_a_new_child_that_resumes_the_session(box, talk):
    child = box.create_fake_sequence(
        [
            ["hear", "one"],
            ["out", format_ndjson(HELLO, says("First."), FINISHED)],
            ["hear", "never"],
        ],
        [
            ["hear", "two"],
            ["record", str(box.recording)],
            ["out", format_ndjson(HELLO, says("Second."), FINISHED)],
            ["hear", "never"],
        ],
    )
    with talk(child) as running:
        running.send_lines(user("one"))
        running.read_until(b'"type":"result"')
        running.send_lines(control("m1", "set_permission_mode", mode="plan"), user("two"))
        running.read_until(b"Second.")
        done = running.end_input()
    assert texts(done) == ["First.", "Second."]
    args = box.read_record()["arguments"]
    assert args[args.index("--approval-mode") + 1] == "plan"
    assert without_heartbeats(read_child_stdin(box))[0]["session_id"] == VENDOR_SESSION


def test_system_prompt_is_prepended_to_the_first_message_only(box, talk):
    child = box.create_fake(
        ["hear", "one"],
        ["out", format_ndjson(HELLO, says("First."), FINISHED)],
        ["hear", "two"],
        ["record", str(box.recording)],
        ["out", format_ndjson(says("Second."), FINISHED)],
        ["hear", "never"],
    )
    with talk(child, "--append-system-prompt", "Be brief.") as running:
        running.send_lines(user("one"))
        running.read_until(b'"type":"result"')
        running.send_lines(user("two"))
        running.read_until(b"Second.")
        running.end_input()
    prompts = [
        line["input"]["parts"][0]["text"] for line in without_heartbeats(read_child_stdin(box))
    ]
    assert prompts == ["Be brief.\n\none", "two"]


def test_print_mode_sends_a_single_request_and_returns_the_last_reply(box):
    child = box.create_fake(
        ["read"],
        ["record", str(box.recording)],
        ["out", format_ndjson(HELLO, says("Looking."), says("There."))],
    )
    done = box.run_claude(*ASK, SHIM_VENDOR="qwen-rfc", SHIM_BIN=child)
    assert (done.status, done.result["result"], done.init["tools"]) == (0, "There.", ["Bash"])
    (request,) = read_child_stdin(box)
    assert request["input"] == {
        "origin": "user",
        "parts": [{"type": "text", "text": "hi"}],
        "command": None,
    }


def test_vendors_list_notes_that_no_released_program_supports_qwen_rfc(real_box):
    real_box.write_program("qwen", "echo 0.24.4\n")
    rows = {
        row["name"]: row
        for row in json.loads(
            real_box.run_shim("vendors", "--json", environment=real_box.build_environment()).stdout
        )
    }
    assert rows["qwen-rfc"]["program"] is None and rows["qwen"]["program"]
    assert "no released program uses this protocol" in rows["qwen-rfc"]["note"]
    assert not rows["qwen"]["note"]
    assert (
        b"no released program uses this protocol"
        in real_box.run_shim("vendors", "--all", environment=real_box.build_environment()).stdout
    )


def test_replay_reproduces_a_recorded_conversation_with_heartbeats(real_box, real_talk):
    """Its messages have no type, and heartbeats are sent by the clock: nothing waits for them."""
    cast = str(real_box.path / "talk.cast")
    recorded = real_box.create_fake(
        ["hear", "one"],
        ["out", format_ndjson(HELLO, calls(), asks())],
        ["hear", "control_response"],
        ["hear", "heartbeat_request"],
        ["out", format_ndjson(BEAT, shows("done"), says("First."), FINISHED)],
        ["hear", "two"],
        ["out", format_ndjson(says("Second."), FINISHED)],
        ["hear", "never"],
    )
    real_box.write_settings("[vendors.qwen-rfc.timeouts]\nheartbeat = 3\n")
    for environment in ({"SHIM_RECORD": cast}, {"SHIM_VENDOR": f"replay:{cast}"}):
        with real_talk(recorded, *ASKING, **environment) as running:
            running.send_lines(user("one"))
            request = question(running)
            running.send_lines(
                answer(
                    request["request_id"],
                    behavior="allow",
                    updatedInput=request["request"]["input"],
                )
            )
            running.read_until(b'"type":"result"')
            running.send_lines(user("two"))
            running.read_until(b"Second.")
            assert texts(running.end_input()) == ["First.", "Second."]


def test_end_grace_of_a_turn_does_not_end_the_next_turn(box, talk):
    """A silence ends the first turn. The second turn has a silence of its own."""
    box.write_settings("end_grace = 0.05\n")
    gate, lifeline = box.create_gate(), box.create_lifeline()
    child = box.create_fake(
        ["hear", "one"],
        ["out", format_ndjson(HELLO, says("First."))],
        ["hear", "two"],
        ["say", lifeline.path, "heard"],
        ["wait", gate.path],
        ["out", format_ndjson(says("Second."), FINISHED)],
        ["hear", "never"],
    )
    with talk(child) as running:
        running.send_lines(user("one"))
        running.read_until(b'"type":"result"')
        running.send_lines(user("two"), control("r", "mcp_status"))
        lifeline.wait_for("heard")
        running.read_until(b'"request_id":"r"')
        gate.open()
        done = running.end_input()
    assert texts(done) == ["First.", "Second."]


def test_interrupt_is_handled_while_a_mode_change_stops_the_old_child(box, talk):
    first = [
        ["ignore", "SIGTERM"],
        ["hear", "one"],
        ["out", format_ndjson(HELLO, says("First."), FINISHED)],
        ["hang"],
    ]
    second = [["hear", "two"], ["out", format_ndjson(says("Second."), FINISHED)], ["hear", "never"]]
    with talk(box.create_fake_sequence(first, second)) as running:
        running.send_lines(user("one"))
        running.read_until(b'"type":"result"')
        running.send_lines(control("p", "set_permission_mode", mode="plan"))
        running.read_until(b'"status":null')
        running.send_lines(user("two"), control("stop", "interrupt"))
        done = running.end_input()
    assert causes(done) == ["clean", "interrupted"]


def test_model_set_without_a_running_child_is_used_by_the_next_child(box, talk):
    first = [
        ["hear", "one"],
        ["out", format_ndjson(HELLO, says("First."), FINISHED)],
        ["hear", "two"],
        ["out", format_ndjson(says("Sec", None))],
        ["die", "SIGKILL"],
    ]
    second = [
        ["hear", "three"],
        ["record", str(box.recording)],
        ["out", format_ndjson(HELLO, says("Third."), FINISHED)],
    ]
    with talk(box.create_fake_sequence(first, [*second, ["hear", "never"]])) as running:
        running.send_lines(user("one"))
        running.read_until(b'"type":"result"')
        running.send_lines(control("a", "set_model", model="model-a"), user("two"))
        running.read_until(b'"is_error":true')
        running.send_lines(control("b", "set_model", model="model-b"))
        running.read_until(b'"request_id":"b"')
        running.send_lines(user("three"))
        running.end_input()
    (prompt,) = [line for line in read_child_stdin(box) if "three" in json.dumps(line)]
    assert prompt["model"] == "model-b"


def test_system_prompt_is_resent_if_the_first_child_started_no_session(box, talk):
    lifeline = box.create_lifeline()
    answering = [
        ["hear", "two"],
        ["record", str(box.recording)],
        ["out", format_ndjson(HELLO, says("Hi."), FINISHED)],
    ]
    child = box.create_fake_sequence(
        [["say", lifeline.path, "child"], ["hang"]], [*answering, ["hear", "never"]]
    )
    with talk(child, "--append-system-prompt", "Be brief.") as running:
        running.send_lines(user("one"))
        lifeline.wait_for("child")
        running.send_lines(control("stop", "interrupt"))
        running.read_until(b'"type":"result"')
        running.send_lines(user("two"))
        running.end_input()
    assert "Be brief." in box.read_record()["stdin"]
