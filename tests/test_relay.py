"""Conversations with a real claude: bytes both ways, apart from what was asked of us."""

import json
import signal
import subprocess

import pytest
from box import ndjson
from test_conversation import CONVERSE, user

S = "851d713a-886d-4d24-bc21-276f94dd1653"
INIT = {"type": "system", "subtype": "init", "session_id": S, "cwd": "/repo", "tools": ["Bash"], "model": "m1"}
# Written as no JSON library would: bytes that a re-serialisation would change.
ODD = '{"type":"assistant", "message":{"id":"a","model":"m1","content":[{"type":"text","text":"caf\\u00e9"}]},'
ODD += f' "parent_tool_use_id":null, "session_id":"{S}", "uuid":"u"}}\n'
RESULT = {"type": "result", "subtype": "success", "is_error": False, "result": "hi", "session_id": S, "uuid": "r"}
ANSWER = {"type": "control_response", "response": {"subtype": "success", "request_id": "i", "response": {"x": 1}}}
TURN = ndjson(INIT) + ODD + ndjson(RESULT)


@pytest.fixture
def talk(box):
    def start(child, *flags, **environment):
        environment = {"SHIM_VENDOR": "claude", "SHIM_BIN": child} | environment
        return box.running(*CONVERSE, *flags, stdin=subprocess.PIPE, environment=environment)

    return start


def test_both_directions_pass_byte_for_byte(box, talk):
    state = ndjson({"type": "system", "subtype": "session_state_changed", "state": "idle", "session_id": S})
    child = box.fake(
        ["hear", "initialize"],
        ["out", ndjson(ANSWER)],
        ["hear", "one"],
        ["out", TURN + state],
        ["hear", "two"],
        ["out", TURN],
        ["record", str(box.recording)],
        ["leave", 0],
    )
    lines = ['{"type":"control_request",  "request_id":"i","request":{"subtype":"initialize"}}', "not json at all"]
    with talk(child) as running:
        running.say(*lines, user("one"), user("two"))
        done = running.hang_up()
    assert done.stdout.decode() == ndjson(ANSWER) + TURN + state + TURN
    assert done.status == 0
    heard = box.record()["stdin"].splitlines()
    assert heard == [*lines, json.dumps(user("one")), json.dumps(user("two"))]
    assert "-p" not in box.record()["arguments"]
    assert "stream-json" in box.record()["arguments"]


def test_the_second_result_of_background_work_passes(box, talk):
    """S20"""
    both = ndjson(INIT, INIT) + ODD + ndjson(RESULT, RESULT)
    with talk(box.fake(["hear", "one"], ["out", both])) as running:
        running.say(user("one"))
        done = running.hang_up()
    assert done.stdout.decode() == both


def test_the_exit_status_is_the_childs(box, talk):
    with talk(box.fake(["hear", "one"], ["out", TURN], ["leave", 3])) as running:
        running.say(user("one"))
        assert running.hang_up().status == 3


def test_a_turn_that_the_child_leaves_unfinished_gets_its_result(box, talk):
    """S1"""
    with talk(box.fake(["hear", "one"], ["out", ndjson(INIT) + ODD], ["die", "SIGKILL"])) as running:
        running.say(user("one"))
        done = running.hang_up()
    assert done.stdout.decode().startswith(ndjson(INIT) + ODD)
    assert done.result["is_error"] is True and done.cause == "signal"
    assert done.status == 1


def test_a_line_that_was_cut_is_not_passed(box, talk):
    """P10"""
    with talk(box.fake(["hear", "one"], ["out", ndjson(INIT) + ODD + '{"type":"assi'], ["leave", 1])) as running:
        running.say(user("one"))
        done = running.hang_up()
    assert done.result["is_error"] is True


def test_a_terminator_that_was_asked_for_comes_with_each_result(box, talk):
    child = box.fake(["hear", "one"], ["out", TURN], ["hear", "two"], ["out", TURN])
    with talk(child, "--shim-terminator", "message_stop") as running:
        running.say(user("one"))
        running.read_until(b'{"type":"message_stop"}\n')
        running.say(user("two"))
        done = running.hang_up()
    assert done.stdout.decode() == (TURN + '{"type":"message_stop"}\n') * 2


def test_what_the_child_says_on_stderr_is_passed_on(box, talk):
    child = box.program("claude-standin", "echo 'a word of warning' >&2; exec cat >/dev/null\n")
    with talk(child) as running:
        assert "a word of warning" in running.hang_up().stderr


def test_a_terminated_relay_ends_its_child(box, talk):
    """P18"""
    lifeline = box.lifeline()
    child = box.fake(["say", lifeline.path, "child"], ["hear", "one"], ["out", ndjson(INIT) + ODD], ["hang"])
    with talk(child) as running:
        running.say(user("one"))
        running.read_until(b"caf")
        running.signal(signal.SIGTERM)
        assert running.status() == 143
        done = running.finish()
        assert lifeline.gone()
    assert done.result["is_error"] is True


def test_a_frontend_that_crashes_takes_the_child_with_it(box, talk):
    """P18"""
    lifeline = box.lifeline()
    child = box.fake(["say", lifeline.path, "child"], ["hear", "one"], ["out", ndjson(INIT) + ODD], ["hang"])
    with talk(child) as running:
        running.say(user("one"))
        running.read_until(b"caf")
        running.process.stdin.close()
        running.process.stdin = None
        running.process.stdout.close()
        running.process.stdout = None
        assert lifeline.gone()
        assert running.status() == 0


def test_an_unfinished_turn_of_a_child_that_ends_well_fails_all_the_same(box, talk):
    """P13"""
    with talk(box.fake(["hear", "one"], ["out", ndjson(INIT) + ODD], ["leave", 0])) as running:
        running.say(user("one"))
        done = running.hang_up()
    assert done.result["is_error"] is True and done.status == 1


def test_a_later_turn_that_the_child_leaves_unfinished_gets_its_result(box, talk):
    """S1"""
    child = box.fake(["hear", "one"], ["out", TURN], ["hear", "two"], ["out", ndjson(INIT) + ODD], ["die", "SIGKILL"])
    with talk(child) as running:
        running.say(user("one"), user("two"))
        done = running.hang_up()
    assert [line["is_error"] for line in done.lines if line["type"] == "result"] == [False, True]
    assert done.status == 1
