"""`claude attach` on a terminal of its own, at a real host over a stand-in for qwen."""

import json
import os
import re
import shlex
import shutil
import signal
import sys
import time
from threading import Thread

import pytest
from box import PATIENCE, format_ndjson
from hosting import wait_for_frame
from showing import SGR
from support import ROOT
from terminal import CTRL_C, CTRL_D, on_terminal

from shim.commands.sessions.terminal import seat
from tests.conversation.test_two_way import (
    CANCELLED,
    INIT,
    TURN,
    asks,
    calls,
    result,
    returns,
    says,
)

CTRL_Z, CTRL_T = "\x1a", "\x14"
KEYS = "y yes · n no · a always allow Bash(touch x) in this session"
QUESTION = [["hear", '"user"'], ["out", format_ndjson(INIT, says("I look."), calls(), asks())]]
ENDED = [
    ["hear", "control_response"],
    ["out", format_ndjson(returns("done"), says("After."), result("After."))],
]


def message(words):
    return {"kind": "message", "id": words, "message": {"role": "user", "content": words}}


def test_what_was_said_is_there_and_the_next_message_is_answered(
    start_session, attach_terminal, hosts
):
    one = start_session(
        ["hear", "go"],
        TURN,
        ["hear", "second"],
        ["out", format_ndjson(says("World."), result("World."))],
    )
    with attach_terminal(one) as terminal:
        terminal.until("> go")
        terminal.until("Hello.")
        terminal.until("✓ done")
        terminal.type("second\r")
        terminal.until("World.")
        terminal.until("✓ done")
        terminal.type(CTRL_D)
        terminal.until(f"the session goes on: claude attach {one.short_id}")
        assert terminal.end() == 0 and terminal.clean
    assert hosts.load_session(one).is_running


def test_ctrl_z_leaves_too_but_not_from_a_line_that_is_begun(start_session, attach_terminal, hosts):
    one = start_session(["hear", "go"], TURN)
    with attach_terminal(one) as terminal:
        terminal.until("✓ done")
        terminal.type("x" + CTRL_Z + CTRL_D)
        terminal.until("> x")
        terminal.type("\x7f" + CTRL_Z)
        assert terminal.end() == 0 and terminal.clean


def test_a_paste_without_its_end_mark_does_not_block_the_keys(
    start_session, attach_terminal, monkeypatch
):
    one = start_session(["hear", "go"], TURN)
    with attach_terminal(one) as terminal:
        terminal.until("✓ done")
        terminal.type("\x1b[200~lost")
        terminal.until("> lost")  # after PASTE_SECONDS of silence
        terminal.type(CTRL_C)
        terminal.type(CTRL_D)
        assert terminal.end() == 0 and terminal.clean


def test_four_lines_that_are_pasted_without_marks_are_one_message(
    start_session, attach_terminal, hosts
):
    one = start_session(["hear", "go"], TURN, ["hear", "one"], TURN)
    with hosts.connect(one, role="watch") as watcher, attach_terminal(one) as terminal:
        terminal.until("✓ done")
        terminal.type("one\rtwo\rthree\rfour\r")
        replayed = until_prompt(watcher, "one")
        assert replayed == "one\ntwo\nthree\nfour"
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_lines_that_are_pasted_without_marks_in_many_pieces_are_one_message(
    start_session, attach_terminal, hosts
):
    """A terminal delivers a long paste in pieces of a few kilobytes, and some pieces end at the end
    of a line.
    """
    one = start_session(["hear", "go"], TURN, ["hear", "begins"], TURN)
    lines = ["begins here", *["x" * 63] * 1000]
    with hosts.connect(one, role="watch") as watcher, attach_terminal(one) as terminal:
        terminal.until("✓ done")
        writer = Thread(target=lambda: [terminal.type(f"{line}\r") for line in lines])
        writer.start()
        terminal.when(lambda: not writer.is_alive(), "the whole paste is typed")
        terminal.until("next: begins here")
        assert until_prompt(watcher, "begins") == "\n".join(lines)
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_pieces_of_a_paste_without_marks_that_come_late_are_still_one_message(
    start_session, attach_terminal, hosts
):
    one = start_session(["hear", "go"], TURN, ["hear", "one"], TURN)
    with hosts.connect(one, role="watch") as watcher, attach_terminal(one) as terminal:
        terminal.until("✓ done")
        for piece in ("one", " more\rtwo\r", "three\r"):
            terminal.type(piece)
            time.sleep(seat.PASTE_BURST_TIMEOUT_S / 4)
        assert until_prompt(watcher, "one") == "one more\ntwo\nthree"
        terminal.type(CTRL_D)
        assert terminal.end() == 0


@pytest.mark.skipif(shutil.which("bash") is None, reason="job control needs a shell that has it")
def test_a_terminal_that_is_attached_in_the_background_continues_in_the_foreground(
    start_session, hosts
):
    one = start_session(["hear", "go"], TURN)
    command = shlex.join([sys.executable, "-m", "shim", "claude", "attach", one.short_id])
    env = hosts.environment | {"PS1": "ready> ", "PYTHONPATH": str(ROOT)}
    shell = ["bash", "--norc", "--noprofile", "-i"]
    with on_terminal(shell, env=env, cwd=str(hosts.cwd), patience=2 * PATIENCE) as terminal:
        terminal.until("ready> ")
        terminal.type(f"{command} &\n")
        terminal.type("until jobs | grep Stopped; do sleep 0.1; done; echo it is $((40 + 2))\n")
        terminal.until("it is 42")
        assert "Traceback" not in terminal.plain
        terminal.type("fg\n")
        terminal.until("Hello.")
        terminal.until("Ctrl-D leaves")
        terminal.type(CTRL_D)
        terminal.until("the session goes on")
        terminal.until("ready> ")
        assert "Traceback" not in terminal.plain
        terminal.type("exit\n")
        terminal.end()


def until_prompt(link, beginning):
    """Return the first message of a person that begins so, as the session repeats it."""
    while True:
        line = wait_for_frame(link, "line")["line"]
        content = line.get("message", {}).get("content")
        if (
            line.get("type") == "user"
            and line.get("isReplay")
            and str(content).startswith(beginning)
        ):
            return content


def test_a_question_is_answered_with_a_key(start_session, attach_terminal, box):
    """The key "a" comes last, because later calls would not be asked about."""
    behaviours = {"y": "allow", "n": "deny", "a": "allow"}
    steps = []
    for key in behaviours:
        question = format_ndjson(calls(key), asks(key, question=f"q-{key}"))
        steps += [
            ["out", question],
            ["hear", "control_response"],
            ["out", format_ndjson(returns("done", call_id=key))],
        ]
    end = (["record", str(box.recording)], ["out", format_ndjson(says("After."), result("After."))])
    one = start_session(["hear", '"user"'], ["out", format_ndjson(INIT)], *steps, *end)
    with attach_terminal(one) as terminal:
        for key, behaviour in behaviours.items():
            terminal.until("? may it run Bash touch x")
            terminal.until(KEYS)
            terminal.type(key)
            terminal.until("→ allowed after" if behaviour == "allow" else "→ denied after")
        terminal.until("After.")
    said = [json.loads(line) for line in box.read_record()["stdin"].splitlines()]
    answers = [line["response"]["response"] for line in said if line["type"] == "control_response"]
    assert [answer["behavior"] for answer in answers] == list(behaviours.values())


def test_who_comes_late_is_asked_and_sees_when_somebody_else_answers(
    start_session, attach_terminal, hosts
):
    one = start_session(*QUESTION, *ENDED)
    with hosts.connect(one, client="the page") as page, attach_terminal(one) as terminal:
        question = wait_for_frame(page, "question")["question"]
        terminal.until(KEYS)
        page.send_frame_blocking(
            {"kind": "answer", "id": "1", "question": question, "decision": {"behavior": "allow"}}
        )
        terminal.until("→ allowed by the page after")
        terminal.until("After.")
        assert KEYS not in terminal.plain[terminal.plain.index("→ allowed") :]


def test_keys_that_are_typed_when_a_question_comes_are_a_message(
    start_session, attach_terminal, box, hosts
):
    gate = box.create_gate()
    steps = [
        ["hear", "go"],
        ["out", format_ndjson(INIT, says("I look."))],
        ["wait", gate.path],
        ["out", format_ndjson(calls(), asks())],
    ]
    one = start_session(*steps)
    with attach_terminal(one) as terminal:
        terminal.until("I look.")
        terminal.type("ye")
        terminal.until("> ye")
        gate.open()
        terminal.until("empty the line, or press Tab, to answer")
        terminal.type("y")
        terminal.until("> yey")
        terminal.type("\x7f\x7f\x7f")
        terminal.until(KEYS)
        assert hosts.load_session(one).metadata["waitingFor"] == "permission prompt"


def test_one_drives_and_another_takes_over(start_session, attach_terminal, hosts):
    one = start_session(["hear", "go"], TURN, ["hear", "mine"], TURN)
    with hosts.connect(one, client="the page") as page, attach_terminal(one) as terminal:
        terminal.until("the page drives · Ctrl-T takes over")
        terminal.type("mine\r")
        terminal.until("✗ the page drives")
        terminal.type(CTRL_T)
        terminal.until("you drive now")
        wait_for_frame(page, "driver")
        terminal.type("\r")  # the message is still there
        terminal.until("> mine")
        page.send_frame_blocking({"kind": "take", "id": "1"})
        terminal.until("the page drives now")
        page.send_frame_blocking(message("again"))
        assert wait_for_frame(page, "driver", client="the page")


def test_ctrl_c_interrupts_the_turn_and_the_next_message_is_answered(
    start_session, attach_terminal, hosts
):
    one = start_session(["hear", "go"], ["out", format_ndjson(INIT, says("I look."))], ["hear", "interrupt"], ["out", CANCELLED],
                  ["hear", "second"], ["out", format_ndjson(says("World."), result("World."))])  # fmt: skip
    with attach_terminal(one) as terminal:
        terminal.until("I look.")
        terminal.until("Ctrl-C interrupts")
        terminal.type(CTRL_C)
        terminal.until("interrupting; Ctrl-C once more leaves")
        terminal.until("■ interrupted")
        terminal.type("second\r")
        terminal.until("World.")
        assert hosts.load_session(one).is_running


def test_ctrl_c_twice_leaves_and_the_session_goes_on(start_session, attach_terminal, hosts):
    one = start_session(["hear", "go"], ["out", format_ndjson(INIT, says("I look."))])
    with attach_terminal(one) as terminal:
        terminal.until("I look.")
        terminal.type(CTRL_C + CTRL_C)
        assert terminal.end() == 0 and terminal.clean
    assert hosts.load_session(one).is_running


def test_a_session_that_is_stopped_elsewhere_says_how_to_come_back(
    start_session, attach_terminal, hosts
):
    one = start_session(["hear", "go"], TURN)
    with attach_terminal(one) as terminal:
        terminal.until("✓ done")
        os.kill(hosts.load_session(one).metadata["pid"], signal.SIGTERM)
        terminal.until(
            f"Session {one.short_id} has exited — run `claude attach {one.short_id}` to resume it."
        )
        assert terminal.end() == 0 and terminal.clean


def test_a_session_that_has_ended_is_woken(start_session, attach_terminal, hosts):
    one = start_session(["hear", "go"], TURN)
    hosts.wait_until(one, lambda now: now.metadata["state"] == "done")
    os.kill(hosts.load_session(one).metadata["pid"], signal.SIGTERM)
    hosts.wait_for_end(one)
    with attach_terminal(one, "bridge", "attach") as terminal:
        terminal.until(f"Waking session {one.short_id}…")
        terminal.until("Hello.")
        terminal.type("go\r")
        terminal.until("Hello.")
        terminal.type(CTRL_D)
        terminal.until(f"the session goes on: shim bridge attach {one.short_id}")
    assert hosts.load_session(one).metadata["generation"] == 2


def test_a_host_that_is_killed_is_said_to_be(start_session, attach_terminal, hosts):
    one = start_session(["hear", "go"], ["out", format_ndjson(INIT, says("I look."))])
    with attach_terminal(one) as terminal:
        terminal.until("I look.")
        os.kill(hosts.load_session(one).metadata["pid"], signal.SIGKILL)
        terminal.until(
            f"the host of session {one.short_id} was killed: what was said up to here is kept"
        )
        assert terminal.end() == 1 and terminal.clean


def test_a_terminal_that_is_killed_does_no_harm(start_session, attach_terminal, hosts):
    one = start_session(
        ["hear", "go"],
        ["out", format_ndjson(INIT, says("I look."))],
        ["hear", "interrupt"],
        ["out", CANCELLED],
    )
    with attach_terminal(one) as terminal:
        terminal.until("I look.")
        terminal.process.kill()
        terminal.process.wait()
    with attach_terminal(one) as terminal:
        terminal.until("I look.")
        terminal.type(CTRL_C)
        terminal.until("■ interrupted")
    assert hosts.load_session(one).metadata["generation"] == 1


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_that_ends_the_terminal_leaves_it_clean_and_the_session_alive(
    start_session, attach_terminal, hosts, name, status
):
    one = start_session(["hear", "go"], TURN)
    with attach_terminal(one) as terminal:
        terminal.until("✓ done")
        terminal.process.send_signal(getattr(signal, name))
        assert terminal.end() == status and terminal.clean
    assert hosts.load_session(one).is_running


def test_a_window_that_becomes_narrower_is_drawn_anew(start_session, attach_terminal, hosts):
    one = start_session(["hear", "go"], TURN)
    with attach_terminal(one) as terminal:
        terminal.until("✓ done")
        terminal.type("a line that is longer than the window becomes")
        terminal.until("becomes")
        terminal.until("Ctrl-D leaves")
        before = len(terminal.drawn)
        terminal.resize(30)
        terminal.until("Ctrl-D leaves")
        rows = SGR.sub("", terminal.drawn[before:]).split("\r\n")
        assert rows[1:] and all(len(row) <= 30 for row in rows[1:-1])
        terminal.type(CTRL_C + CTRL_D)
        assert terminal.end() == 0 and terminal.clean


def test_a_terminal_without_colours_gets_none(start_session, attach_terminal):
    one = start_session(*QUESTION)
    with attach_terminal(one, NO_COLOR="1") as terminal:
        terminal.until(KEYS)
        assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", terminal.drawn)


def test_a_terminal_that_stands_still_goes_on_where_it_was(
    start_session, attach_terminal, hosts, box
):
    """It is dropped from what the host holds for it, and reads the log instead."""
    gate = box.create_gate()
    words = []
    for number in range(200):
        words += [
            calls(f"c{number}", f"echo {number}"),
            returns("x" * 20_000, call_id=f"c{number}"),
        ]
    one = start_session(["hear", "go"], ["out", format_ndjson(INIT, says("I look."))], ["wait", gate.path],
                  ["out", format_ndjson(*words, says("The end."), result("The end."))])  # fmt: skip
    with attach_terminal(one) as terminal:
        terminal.until("I look.")
        terminal.process.send_signal(signal.SIGSTOP)
        gate.open()
        hosts.wait_until(one, lambda now: now.metadata["state"] == "done")
        terminal.process.send_signal(signal.SIGCONT)
        terminal.until("The end.")
        terminal.until("✓ done")
        assert all(f"● Bash  echo {number}\r" in terminal.plain for number in range(200))
        terminal.type(CTRL_D)
        assert terminal.end() == 0 and terminal.clean
