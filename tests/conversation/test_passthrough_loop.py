"""Conversations with a real claude: bytes pass unchanged in both directions, except requests to the
shim itself.
"""

import json
import os
import signal
import subprocess
from functools import partial

import pytest
from box import ASK, CONVERSE, format_ndjson

from shim.core.turn.result import INTERRUPTED
from tests.conversation.test_conversation import user

S = "851d713a-886d-4d24-bc21-276f94dd1653"
INIT = {
    "type": "system",
    "subtype": "init",
    "session_id": S,
    "cwd": "/repo",
    "tools": ["Bash"],
    "model": "m1",
}
# No JSON library writes these bytes. A re-serialisation would change them.
ODD = '{"type":"assistant", "message":{"id":"a","model":"m1","content":[{"type":"text","text":"caf\\u00e9"}]},'
ODD += f' "parent_tool_use_id":null, "session_id":"{S}", "uuid":"u"}}\n'
RESULT = {
    "type": "result",
    "subtype": "success",
    "is_error": False,
    "result": "hi",
    "session_id": S,
    "uuid": "r",
}
RESULT |= {"duration_ms": 1, "duration_api_ms": 1, "num_turns": 1}
ANSWER = {
    "type": "control_response",
    "response": {"subtype": "success", "request_id": "i", "response": {"x": 1}},
}
TURN = format_ndjson(INIT) + ODD + format_ndjson(RESULT)
STOP = '{"type":"message_stop"}\n'


@pytest.fixture
def box(quick_box):
    return quick_box


@pytest.fixture
def talk(box):
    return partial(box.start_conversation, vendor="claude")


@pytest.fixture
def real_talk(real_box):
    """The same with real processes and pipes."""
    return partial(real_box.start_conversation, vendor="claude")


@pytest.fixture
def memory_talk(memory_box):
    """The same in memory, where time can pass (`pass_time`)."""
    return partial(memory_box.start_conversation, vendor="claude")


def test_lines_pass_unchanged_in_both_directions(box, talk):
    state = format_ndjson(
        {"type": "system", "subtype": "session_state_changed", "state": "idle", "session_id": S}
    )
    child = box.create_fake(
        ["hear", "initialize"],
        ["out", format_ndjson(ANSWER)],
        ["hear", "one"],
        ["out", TURN + state],
        ["hear", "two"],
        ["record", str(box.recording)],
        ["out", TURN],
        ["leave", 0],
    )
    lines = [
        '{"type":"control_request",  "request_id":"i","request":{"subtype":"initialize"}}',
        "not json at all",
    ]
    with talk(child) as running:
        running.send_lines(*lines, user("one"), user("two"))
        done = running.end_input()
    assert done.stdout.decode() == format_ndjson(ANSWER) + TURN + state + TURN
    assert done.status == 0
    received_lines = box.read_record()["stdin"].splitlines()
    assert received_lines == [*lines, json.dumps(user("one")), json.dumps(user("two"))]
    assert "-p" not in box.read_record()["arguments"]
    assert "stream-json" in box.read_record()["arguments"]


def test_second_result_of_background_work_is_passed_through(box, talk):
    """S20"""
    both = format_ndjson(INIT, INIT) + ODD + format_ndjson(RESULT, RESULT)
    with talk(box.create_fake(["hear", "one"], ["out", both])) as running:
        running.send_lines(user("one"))
        done = running.end_input()
    assert done.stdout.decode() == both


def test_exit_status_is_that_of_the_child(box, talk):
    with talk(box.create_fake(["hear", "one"], ["out", TURN], ["leave", 3])) as running:
        running.send_lines(user("one"))
        assert running.end_input().status == 3


def test_end_of_stdin_is_passed_to_the_child(box, talk):
    with talk(box.create_fake(["hear", "one"], ["out", TURN], ["read"], ["leave", 3])) as running:
        running.send_lines(user("one"))
        assert running.end_input().status == 3


def test_unfinished_turn_of_a_killed_child_gets_an_error_result(box, talk):
    """S1"""
    with talk(
        box.create_fake(["hear", "one"], ["out", format_ndjson(INIT) + ODD], ["die", "SIGKILL"])
    ) as running:
        running.send_lines(user("one"))
        done = running.end_input()
    assert done.stdout.decode().startswith(format_ndjson(INIT) + ODD)
    assert done.result["is_error"] is True and done.cause == "signal"
    assert done.status == 1


def test_truncated_last_line_is_dropped_and_the_turn_fails(box, talk):
    """P10"""
    with talk(
        box.create_fake(
            ["hear", "one"], ["out", format_ndjson(INIT) + ODD + '{"type":"assi'], ["leave", 1]
        )
    ) as running:
        running.send_lines(user("one"))
        done = running.end_input()
    assert done.result["is_error"] is True


def test_terminator_follows_each_result(box, talk):
    child = box.create_fake(["hear", "one"], ["out", TURN], ["hear", "two"], ["out", TURN])
    with talk(child, "--shim-terminator", "message_stop") as running:
        running.send_lines(user("one"))
        running.read_until(b'{"type":"message_stop"}\n')
        running.send_lines(user("two"))
        done = running.end_input()
    assert done.stdout.decode() == (TURN + '{"type":"message_stop"}\n') * 2


@pytest.mark.parametrize("single_write", [True, False])
def test_terminator_is_written_if_a_state_line_follows_the_result(box, talk, single_write):
    state = format_ndjson(
        {"type": "system", "subtype": "session_state_changed", "state": "idle", "session_id": S}
    )
    printed = [["out", TURN + state]] if single_write else [["out", TURN], ["out", state]]
    with talk(
        box.create_fake(["hear", "one"], *printed), "--shim-terminator", "message_stop"
    ) as running:
        running.send_lines(user("one"))
        done = running.end_input()
    assert done.stdout.decode() in (TURN + state + STOP, TURN + STOP)


def test_terminator_of_a_print_mode_turn_follows_the_state_line(box):
    state = format_ndjson(
        {"type": "system", "subtype": "session_state_changed", "state": "idle", "session_id": S}
    )
    child = box.create_fake(["read"], ["out", TURN + state], ["leave", 0])
    done = box.run_claude(*ASK, SHIM_VENDOR="claude", SHIM_BIN=child)
    assert done.stdout.decode() == TURN + state + STOP


def test_interrupt_during_startup_writes_a_single_interrupt_message(box, talk):
    """The child has no signal handler yet and writes nothing."""
    lifeline = box.create_lifeline()
    with talk(
        box.create_fake(["hear", "one"], ["say", lifeline.path, "child"], ["hang"])
    ) as running:
        running.send_lines(user("one"))
        lifeline.wait_for("child")
        running.send_signal(signal.SIGINT)
        done = running.wait_for_end()
    texts = [line["message"]["content"][0]["text"] for line in done.lines if line["type"] == "user"]
    assert texts == [INTERRUPTED]
    assert (done.result["errors"], done.result["num_turns"]) == ([INTERRUPTED], 2)
    assert done.status == 0


def test_stderr_of_the_child_is_passed_on(real_box, real_talk):
    child = real_box.write_program(
        "claude-standin", "echo 'a word of warning' >&2; exec cat >/dev/null\n"
    )
    with real_talk(child) as running:
        assert "a word of warning" in running.end_input().stderr


def test_sigterm_ends_the_child_and_exits_with_status_143(box, talk):
    """P18"""
    lifeline = box.create_lifeline()
    child = box.create_fake(
        ["say", lifeline.path, "child"],
        ["hear", "one"],
        ["out", format_ndjson(INIT) + ODD],
        ["hang"],
    )
    with talk(child) as running:
        running.send_lines(user("one"))
        running.read_until(b"caf")
        running.send_signal(signal.SIGTERM)
        assert running.wait_for_status() == 143
        done = running.wait_for_end()
        assert lifeline.wait_until_closed()
    assert done.result["is_error"] is True


def test_child_ends_when_the_frontend_closes_its_pipes(real_box, real_talk):
    """P18"""
    lifeline = real_box.create_lifeline()
    child = real_box.create_fake(
        ["say", lifeline.path, "child"],
        ["hear", "one"],
        ["out", format_ndjson(INIT) + ODD],
        ["hang"],
    )
    with real_talk(child) as running:
        running.send_lines(user("one"))
        running.read_until(b"caf")
        running.process.stdin.close()
        running.process.stdin = None
        running.process.stdout.close()
        running.process.stdout = None
        assert lifeline.wait_until_closed()
        assert running.wait_for_status() == 0


def test_unfinished_turn_fails_even_if_the_child_exits_with_status_0(box, talk):
    """P13"""
    with talk(
        box.create_fake(["hear", "one"], ["out", format_ndjson(INIT) + ODD], ["leave", 0])
    ) as running:
        running.send_lines(user("one"))
        done = running.end_input()
    assert done.result["is_error"] is True and done.status == 1


def test_unfinished_second_turn_gets_an_error_result(box, talk):
    """S1"""
    child = box.create_fake(
        ["hear", "one"],
        ["out", TURN],
        ["hear", "two"],
        ["out", format_ndjson(INIT) + ODD],
        ["die", "SIGKILL"],
    )
    with talk(child) as running:
        running.send_lines(user("one"), user("two"))
        done = running.end_input()
    assert [line["is_error"] for line in done.lines if line["type"] == "result"] == [False, True]
    assert done.status == 1


# -- a silent child --------------------------------------------------------------------------------

CALL = {"type": "tool_use", "id": "c1", "name": "Bash", "input": {"command": "make"}}
CALLING = {
    "type": "assistant",
    "message": {"id": "a", "model": "m1", "content": [CALL]},
    "session_id": S,
    "uuid": "u",
}


@pytest.mark.parametrize(
    ("output", "results", "reason"),
    [
        ("", [True], "claude printed nothing for 2 s (idle_timeout)"),
        (format_ndjson(INIT) + ODD, [True], "claude printed nothing for 2 s (idle_timeout)"),
        (TURN, [False, True], "claude printed nothing for 2 s (idle_timeout)"),
        (
            format_ndjson(INIT, CALLING),
            [True],
            "claude printed nothing for 2 s (tool_timeout) while these calls were running: Bash",
        ),
    ],
    ids=["nothing at all", "in a turn", "in the next turn", "with a call open"],
)
def test_silent_child_times_out_during_a_turn(box, talk, output, results, reason):
    lifeline = box.create_lifeline()
    box.write_settings("idle_timeout = 2\ntool_timeout = 2\n")
    with talk(
        box.create_fake(["say", lifeline.path, "child"], ["hear", "one"], ["out", output], ["hang"])
    ) as running:
        lifeline.wait_for("child")
        running.send_lines(user("one"))
        if output == TURN:
            running.read_until(b'"type": "result"')
            running.send_lines(user("two"))
        assert running.wait_for_status() == 1  # stdin is still open
        done = running.wait_for_end()
    assert lifeline.wait_until_closed()
    ends = [line for line in done.lines if line["type"] == "result"]
    assert [line["is_error"] for line in ends] == results
    assert (ends[-1]["shim"]["cause"], ends[-1]["errors"]) == ("stall", [reason])


@pytest.mark.parametrize("cancelled", [False, True], ids=["answered", "taken back"])
def test_timeout_stays_paused_while_a_second_permission_prompt_is_open(
    memory_box, memory_talk, cancelled
):
    memory_box.write_settings("idle_timeout = 2\ntool_timeout = 2\n")
    questions = "".join(
        f'{{"type":"control_request","request_id":"{request_id}","request":{{"subtype":"can_use_tool"}}}}\n'
        for request_id in ("q1", "q2")
    )
    cancel = '{"type":"control_cancel_request","request_id":"q1"}\n'
    first = format_ndjson(INIT, CALLING) + questions + (cancel if cancelled else "")
    lifeline = memory_box.create_lifeline()
    child = memory_box.create_fake(
        ["say", lifeline.path, "child"],
        ["hear", "one"],
        ["out", first],
        ["hear", '"q2"'],
        ["out", TURN],
        ["leave", 0],
    )
    with memory_talk(child) as running:
        lifeline.wait_for("child")
        running.send_lines(user("one"))
        running.read_until(b'"q2"')
        if not cancelled:
            running.send_lines({"type": "control_response", "response": {"request_id": "q1"}})
        running.pass_time(1000)
        running.send_lines({"type": "control_response", "response": {"request_id": "q2"}})
        done = running.end_input()
    assert {line["is_error"] for line in done.lines if line["type"] == "result"} == {False}


@pytest.mark.parametrize(
    "has_question", [False, True], ids=["between two turns", "while a person is asked"]
)
def test_silent_child_does_not_time_out_between_turns_or_during_a_prompt(
    memory_box, memory_talk, has_question
):
    memory_box.write_settings("idle_timeout = 2\ntool_timeout = 2\n")
    question = '{"type":"control_request","request_id":"q","request":{"subtype":"can_use_tool"}}\n'
    first = format_ndjson(INIT, CALLING) + question if has_question else TURN
    awaited_text = "control_response" if has_question else "two"
    lifeline = memory_box.create_lifeline()
    child_steps = [
        ["say", lifeline.path, "child"],
        ["hear", "one"],
        ["out", first],
        ["hear", awaited_text],
        ["out", TURN],
        ["leave", 0],
    ]
    with memory_talk(memory_box.create_fake(*child_steps)) as running:
        lifeline.wait_for("child")
        running.send_lines(user("one"))
        running.read_until(b'"control_request"' if has_question else b'"type": "result"')
        running.pass_time(1000)
        running.send_lines(
            {"type": "control_response", "response": {"request_id": "q"}}
            if has_question
            else user("two")
        )
        done = running.end_input()
    assert done.status == 0
    assert {line["is_error"] for line in done.lines if line["type"] == "result"} == {False}


@pytest.mark.parametrize("name", ["read", "hear"])
def test_internal_error_writes_a_single_result_and_ends_the_child(
    real_box, local_box, capfd, monkeypatch, name
):
    from shim.commands.claude import dropin
    from shim.core.adapter.child_stream import ChildStream
    from shim.process.child import Child

    def bug(*_):
        raise ZeroDivisionError("a bug of ours")

    lifeline = real_box.create_lifeline()
    monkeypatch.setattr(
        *((ChildStream, "translate_lines") if name == "read" else (Child, "write_stdin")), bug
    )
    monkeypatch.setenv("SHIM_VENDOR", "claude")
    monkeypatch.setenv(
        "SHIM_BIN",
        real_box.create_fake(
            ["say", lifeline.path, "child"], ["hear", "one"], ["out", TURN], ["hang"]
        ),
    )
    reader, writer = os.pipe()
    saved = os.dup(0)
    try:
        os.dup2(reader, 0)
        os.write(writer, json.dumps(user("one")).encode() + b"\n")
        assert dropin.main(list(CONVERSE), {}) == 1
    finally:
        os.dup2(saved, 0)
        for descriptor in (reader, writer, saved):
            os.close(descriptor)
    stdout, complaint = capfd.readouterr()
    assert lifeline.wait_until_closed_or_unused()
    assert len([line for line in stdout.splitlines() if '"type":"result"' in line]) == 1
    assert complaint == "internal error: ZeroDivisionError('a bug of ours')\n"


# -- unexpected output of a real claude ------------------------------------------------------------

LATE = {
    "type": "assistant",
    "message": {"model": "m1", "content": [{"type": "text", "text": "LATE"}]},
    "session_id": S,
}
FAILED = RESULT | {"subtype": "error_during_execution", "is_error": True, "errors": ["late"]}


def test_message_and_result_after_the_result_are_dropped(box, talk):
    with talk(
        box.create_fake(["hear", "one"], ["out", TURN + format_ndjson(LATE, FAILED)])
    ) as running:
        running.send_lines(user("one"))
        done = running.end_input()
    assert (done.stdout.decode(), done.status) == (TURN, 0)


def test_malformed_lines_are_repaired_or_dropped(box, talk):
    text = {
        "type": "assistant",
        "message": {"model": "m1", "content": [{"type": "text", "text": "a RAW b"}]},
    }
    broken = (
        format_ndjson(text | {"session_id": S}).encode().replace(b"RAW", b"\xff\n\x1b\xe2\x80\xa8")
    )
    noise = (
        b"not json\n" + format_ndjson({"type": "rate_limit_event"}).encode() + b'{"no":"type"}\n'
    )
    file = box.path / "broken"
    file.write_bytes(
        format_ndjson(INIT).encode() + noise + broken + format_ndjson(RESULT).encode()[:-1]
    )
    with talk(box.create_fake(["hear", "one"], ["cat", str(file)])) as running:
        running.send_lines(user("one"))
        done = running.end_input()
    assert done.stdout.isascii() or b"\xe2\x80\xa8" not in done.stdout
    init, message, result = done.lines
    assert (init, result) == (INIT, RESULT)
    assert message["message"]["content"] == [{"type": "text", "text": "a \ufffd\n\x1b\u2028 b"}]


def test_oversized_line_is_split_into_several(box, talk):
    long_text = "word " * 60_000
    text = {
        "type": "assistant",
        "message": {"model": "m1", "content": [{"type": "text", "text": long_text}]},
    }
    with talk(
        box.create_fake(
            ["hear", "one"], ["out", format_ndjson(INIT, text | {"session_id": S}, RESULT)]
        )
    ) as running:
        running.send_lines(user("one"))
        done = running.end_input()
    assert max(map(len, done.stdout.splitlines())) <= 100_000
    texts = [
        line["message"]["content"][0]["text"] for line in done.lines if line["type"] == "assistant"
    ]
    assert "".join(texts) == long_text


def test_child_that_hangs_after_its_result_is_killed(box, talk):
    lifeline = box.create_lifeline()
    box.write_settings("end_grace = 0.2\n")
    child_steps = [
        ["say", lifeline.path, "child"],
        ["ignore", "SIGTERM"],
        ["hear", "one"],
        ["out", TURN],
        ["hang"],
    ]
    with talk(box.create_fake(*child_steps)) as running:
        running.send_lines(user("one"))
        running.read_until(b'"type": "result"')
        done = running.end_input()
    assert lifeline.wait_until_closed()
    assert (done.stdout.decode(), done.status) == (TURN, 0)


def test_message_without_a_reply_gets_an_error_result(box, talk):
    with talk(box.create_fake(["hear", "one"], ["leave", 0])) as running:
        running.send_lines(user("one"))
        done = running.end_input()
    assert (done.cause, done.status) == ("truncated", 1)


def test_unknown_line_types_are_dropped_before_initialize_is_answered(real_box, real_talk):
    """The Python SDK reads at most a hundred lines before `initialize` is answered."""
    new = format_ndjson({"type": "unheard-of", "x": 1})
    lifeline = real_box.create_lifeline()
    child_steps = [
        ["out", new],
        ["drained"],
        ["say", lifeline.path, "read"],
        ["hear", "initialize"],
        ["out", format_ndjson(ANSWER)],
    ]
    with real_talk(
        real_box.create_fake(*child_steps, ["hear", "one"], ["out", new + TURN])
    ) as running:
        lifeline.wait_for("read")
        running.send_lines(
            '{"type":"control_request","request_id":"i","request":{"subtype":"initialize"}}',
            user("one"),
        )
        done = running.end_input()
    assert done.stdout.decode() == format_ndjson(ANSWER) + new + TURN


def test_output_is_complete_if_the_frontend_reads_after_the_child_exits(memory_box, memory_talk):
    lifeline = memory_box.create_lifeline()
    memory_box.write_settings("end_grace = 0.1\n")
    # More than two pipes can hold.
    many = format_ndjson(*[LATE | {"uuid": f"u{number}"} for number in range(1500)])
    child_steps = [
        ["say", lifeline.path, "child"],
        ["hear", "one"],
        ["out", format_ndjson(INIT) + many + format_ndjson(RESULT)],
    ]
    with memory_talk(memory_box.create_fake(*child_steps), stdout=subprocess.PIPE) as running:
        running.send_lines(user("one"))
        running.close_stdin()
        assert lifeline.wait_until_closed()
        running.pass_time(1000)
        done = running.wait_for_end()
    assert done.stdout.decode() == format_ndjson(INIT) + many + format_ndjson(RESULT)


def test_unread_stderr_flood_does_not_block_the_result(real_box, real_talk):
    with real_talk(
        real_box.create_fake(["fill", 8_000_000, 2], ["hear", "one"], ["out", TURN])
    ) as running:
        running.send_lines(user("one"))
        # its stderr is a pipe, which has been full for a long time
        running.read_until(b'"type": "result"')
        done = running.end_input()
    assert (done.stdout.decode(), done.status) == (TURN, 0)


def test_oversized_permission_request_is_denied_and_not_forwarded(box, talk):
    request = {"subtype": "can_use_tool", "tool_name": "Write", "input": {"content": "x" * 20_000}}
    question = format_ndjson({"type": "control_request", "request_id": "q", "request": request})
    child = box.create_fake(
        ["hear", "one"],
        ["out", format_ndjson(INIT) + question],
        ["hear", "too large"],
        ["record", str(box.recording)],
        ["out", ODD + format_ndjson(RESULT)],
        ["leave", 0],
    )
    with talk(child, SHIM_MAX_LINE_BYTES="10000") as running:
        running.send_lines(user("one"))
        running.read_until(b'"type": "result"')
        done = running.end_input()
    assert b"control_request" not in done.stdout
    answer = json.loads(box.read_record()["stdin"].splitlines()[1])["response"]
    assert (answer["request_id"], answer["response"]["behavior"]) == ("q", "deny")
