"""How long a vendor may be silent, and what becomes of one that is silent for longer."""

import subprocess

import pytest
from box import ASK, END, START, ndjson, text
from test_conversation import CONVERSE, results, user
from test_two_way import ASKING, HELLO, INIT, answer, asks, calls, question, result, returns, says

CALL = {"type": "call", "id": "c1", "name": "Bash", "input": {"command": "make"}}


@pytest.mark.parametrize(
    ("said", "name", "words"),
    [
        ("", "first_byte_timeout", ""),
        (ndjson(START, text("I am ")), "idle_timeout", ""),
        (ndjson(START, CALL), "tool_timeout", " while these calls were open: Bash"),
    ],
)
def test_a_silence_that_is_too_long_ends_the_turn_and_the_child(box, said, name, words):
    lifeline = box.lifeline()
    box.settings(f"{name} = 0.3\n")
    child = box.fake(["say", lifeline.path, "child"], ["ignore", "SIGINT"], ["out", said], ["hang"])
    done = box.claude(*ASK, SHIM_VENDOR="demo", SHIM_BIN=child)
    assert lifeline.gone()
    assert (done.status, done.cause) == (1, "stall")
    assert done.result["errors"] == [f"demo said nothing for 0.3 s ({name}){words}"]
    if words:
        (told,) = [line for line in done.lines if line["type"] == "user"]
        assert told["message"]["content"][0]["is_error"] is True


def test_each_silence_has_its_own_length(box):
    gate = box.gate()
    box.settings("idle_timeout = 0.1\n[vendors.demo.timeouts]\nfirst_byte = 10\ntool = 30\n")
    steps = [["out", ndjson(START, CALL)], ["wait", gate.path]]
    steps += [["out", ndjson({"type": "result", "id": "c1", "output": "ok"}, text("Done."), END)]]
    environment = {"SHIM_VENDOR": "demo", "SHIM_BIN": box.fake(*steps)}
    with box.running(*ASK, environment=environment) as running:
        running.read_until(b"tool_use")
        gate.open()
        assert running.finish().result["result"] == "Done."


def test_the_environment_is_heard_before_the_settings(box):
    box.settings("idle_timeout = 500\n")
    child = box.fake(["out", ndjson(START, text("I am "))], ["hang"])
    done = box.claude(*ASK, SHIM_VENDOR="demo", SHIM_BIN=child, SHIM_IDLE_TIMEOUT="0.2")
    assert "0.2 s (idle_timeout)" in done.result["errors"][0]
    assert "SHIM_IDLE_TIMEOUT is 'soon'" in box.claude(*ASK, SHIM_VENDOR="demo", SHIM_IDLE_TIMEOUT="soon").stderr


def test_a_person_may_think_for_longer_than_a_vendor(box):
    box.settings("idle_timeout = 0.2\ntool_timeout = 0.2\n")
    child = box.fake(
        HELLO,
        ["hear", "go"],
        ["out", ndjson(INIT, calls(), asks())],
        ["hear", "control_response"],
        ["out", ndjson(returns("done"), says("After."), result("After."))],
    )
    environment = {"SHIM_VENDOR": "qwen", "SHIM_BIN": child}
    with box.running(*CONVERSE, *ASKING, stdin=subprocess.PIPE, environment=environment) as running:
        running.say(user("go"))
        asked = question(running)
        with pytest.raises(subprocess.TimeoutExpired):
            running.process.wait(timeout=0.6)
        running.say(answer(asked["request_id"], behavior="allow"))
        done = running.hang_up()
    assert [line["result"] for line in results(done)] == ["After."]
