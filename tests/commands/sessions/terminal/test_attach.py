"""`claude attach` on a separate terminal, with a real host and a stand-in for qwen."""

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
from box import TIMEOUT_S, format_ndjson
from fixture_cases import ROOT
from recording_renderer import SGR
from session_hosts import wait_for_frame
from terminal import CTRL_C, CTRL_D, on_terminal

from shim.commands.sessions.terminal import terminal_loop
from tests.conversation.test_persistent_driver import (
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


def message(text):
    return {"kind": "message", "id": text, "message": {"role": "user", "content": text}}


def test_attach_prints_the_history_and_sends_the_next_message(
    start_session, attach_terminal, hosts
):
    session = start_session(
        ["hear", "go"],
        TURN,
        ["hear", "second"],
        ["out", format_ndjson(says("World."), result("World."))],
    )
    with attach_terminal(session) as terminal:
        terminal.wait_for_text("> go")
        terminal.wait_for_text("Hello.")
        terminal.wait_for_text("✓ done")
        terminal.type_keys("second\r")
        terminal.wait_for_text("World.")
        terminal.wait_for_text("✓ done")
        terminal.type_keys(CTRL_D)
        terminal.wait_for_text(f"the session keeps running: claude attach {session.short_id}")
        assert terminal.wait_for_exit() == 0 and terminal.clean
    assert hosts.load_session(session).is_running


def test_ctrl_z_detaches_only_if_the_line_is_empty(start_session, attach_terminal, hosts):
    session = start_session(["hear", "go"], TURN)
    with attach_terminal(session) as terminal:
        terminal.wait_for_text("✓ done")
        terminal.type_keys("x" + CTRL_Z + CTRL_D)
        terminal.wait_for_text("> x")
        terminal.type_keys("\x7f" + CTRL_Z)
        assert terminal.wait_for_exit() == 0 and terminal.clean


def test_unterminated_paste_does_not_block_keys(start_session, attach_terminal, monkeypatch):
    session = start_session(["hear", "go"], TURN)
    with attach_terminal(session) as terminal:
        terminal.wait_for_text("✓ done")
        terminal.type_keys("\x1b[200~lost")
        terminal.wait_for_text("> lost")  # after PASTE_SECONDS of silence
        terminal.type_keys(CTRL_C)
        terminal.type_keys(CTRL_D)
        assert terminal.wait_for_exit() == 0 and terminal.clean


def test_unbracketed_paste_of_four_lines_is_a_single_message(start_session, attach_terminal, hosts):
    session = start_session(["hear", "go"], TURN, ["hear", "one"], TURN)
    with hosts.connect(session, role="watch") as watcher, attach_terminal(session) as terminal:
        terminal.wait_for_text("✓ done")
        terminal.type_keys("one\rtwo\rthree\rfour\r")
        replayed = until_prompt(watcher, "one")
        assert replayed == "one\ntwo\nthree\nfour"
        terminal.type_keys(CTRL_D)
        assert terminal.wait_for_exit() == 0


def test_large_unbracketed_paste_is_a_single_message(start_session, attach_terminal, hosts):
    """A terminal delivers a long paste in chunks of a few kilobytes, and some chunks end at the end
    of a line.
    """
    session = start_session(["hear", "go"], TURN, ["hear", "begins"], TURN)
    lines = ["begins here", *["x" * 63] * 1000]
    with hosts.connect(session, role="watch") as watcher, attach_terminal(session) as terminal:
        terminal.wait_for_text("✓ done")
        writer = Thread(target=lambda: [terminal.type_keys(f"{line}\r") for line in lines])
        writer.start()
        terminal.wait_for_condition(lambda: not writer.is_alive(), "the whole paste is typed")
        terminal.wait_for_text("next: begins here")
        assert until_prompt(watcher, "begins") == "\n".join(lines)
        terminal.type_keys(CTRL_D)
        assert terminal.wait_for_exit() == 0


def test_delayed_unbracketed_paste_is_a_single_message(start_session, attach_terminal, hosts):
    session = start_session(["hear", "go"], TURN, ["hear", "one"], TURN)
    with hosts.connect(session, role="watch") as watcher, attach_terminal(session) as terminal:
        terminal.wait_for_text("✓ done")
        for piece in ("one", " more\rtwo\r", "three\r"):
            terminal.type_keys(piece)
            time.sleep(terminal_loop.PASTE_BURST_TIMEOUT_S / 4)
        assert until_prompt(watcher, "one") == "one more\ntwo\nthree"
        terminal.type_keys(CTRL_D)
        assert terminal.wait_for_exit() == 0


@pytest.mark.skipif(shutil.which("bash") is None, reason="job control needs a shell that has it")
def test_background_attach_continues_in_the_foreground(start_session, hosts):
    session = start_session(["hear", "go"], TURN)
    command = shlex.join([sys.executable, "-m", "shim", "claude", "attach", session.short_id])
    env = hosts.environment | {"PS1": "ready> ", "PYTHONPATH": str(ROOT)}
    shell = ["bash", "--norc", "--noprofile", "-i"]
    with on_terminal(shell, env=env, cwd=str(hosts.cwd), timeout_s=2 * TIMEOUT_S) as terminal:
        terminal.wait_for_text("ready> ")
        terminal.type_keys(f"{command} &\n")
        terminal.type_keys(
            "until jobs | grep Stopped; do sleep 0.1; done; echo it is $((40 + 2))\n"
        )
        terminal.wait_for_text("it is 42")
        assert "Traceback" not in terminal.plain
        terminal.type_keys("fg\n")
        terminal.wait_for_text("Hello.")
        terminal.wait_for_text("Ctrl-D leaves")
        terminal.type_keys(CTRL_D)
        terminal.wait_for_text("the session keeps running")
        terminal.wait_for_text("ready> ")
        assert "Traceback" not in terminal.plain
        terminal.type_keys("exit\n")
        terminal.wait_for_exit()


def until_prompt(connection, beginning):
    """Return the first message of a person with this start, as the session repeats it."""
    while True:
        line = wait_for_frame(connection, "line")["line"]
        content = line.get("message", {}).get("content")
        if (
            line.get("type") == "user"
            and line.get("isReplay")
            and str(content).startswith(beginning)
        ):
            return content


def test_permission_prompt_is_answered_with_a_key(start_session, attach_terminal, box):
    """The key "a" comes last, because later calls would not need permission."""
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
    session = start_session(["hear", '"user"'], ["out", format_ndjson(INIT)], *steps, *end)
    with attach_terminal(session) as terminal:
        for key, behaviour in behaviours.items():
            terminal.wait_for_text("? Allow Bash touch x")
            terminal.wait_for_text(KEYS)
            terminal.type_keys(key)
            terminal.wait_for_text("→ allowed after" if behaviour == "allow" else "→ denied after")
        terminal.wait_for_text("After.")
    sent_lines = [json.loads(line) for line in box.read_record()["stdin"].splitlines()]
    answers = [
        line["response"]["response"] for line in sent_lines if line["type"] == "control_response"
    ]
    assert [answer["behavior"] for answer in answers] == list(behaviours.values())


def test_late_terminal_prints_the_prompt_and_the_answer_of_another_client(
    start_session, attach_terminal, hosts
):
    session = start_session(*QUESTION, *ENDED)
    with hosts.connect(session, client="the page") as page, attach_terminal(session) as terminal:
        question = wait_for_frame(page, "question")["question"]
        terminal.wait_for_text(KEYS)
        page.send_frame_blocking(
            {"kind": "answer", "id": "1", "question": question, "decision": {"behavior": "allow"}}
        )
        terminal.wait_for_text("→ allowed by the page after")
        terminal.wait_for_text("After.")
        assert KEYS not in terminal.plain[terminal.plain.index("→ allowed") :]


def test_keys_typed_when_a_prompt_arrives_stay_in_the_line(
    start_session, attach_terminal, box, hosts
):
    gate = box.create_gate()
    steps = [
        ["hear", "go"],
        ["out", format_ndjson(INIT, says("I look."))],
        ["wait", gate.path],
        ["out", format_ndjson(calls(), asks())],
    ]
    session = start_session(*steps)
    with attach_terminal(session) as terminal:
        terminal.wait_for_text("I look.")
        terminal.type_keys("ye")
        terminal.wait_for_text("> ye")
        gate.open()
        terminal.wait_for_text("clear the line or press Tab to answer")
        terminal.type_keys("y")
        terminal.wait_for_text("> yey")
        terminal.type_keys("\x7f\x7f\x7f")
        terminal.wait_for_text(KEYS)
        assert hosts.load_session(session).metadata["waitingFor"] == "permission prompt"


def test_control_moves_between_terminal_and_page(start_session, attach_terminal, hosts):
    session = start_session(["hear", "go"], TURN, ["hear", "mine"], TURN)
    with hosts.connect(session, client="the page") as page, attach_terminal(session) as terminal:
        terminal.wait_for_text("the page has control · Ctrl-T takes control")
        terminal.type_keys("mine\r")
        terminal.wait_for_text("✗ the page has control")
        terminal.type_keys(CTRL_T)
        terminal.wait_for_text("you have control now")
        wait_for_frame(page, "driver")
        terminal.type_keys("\r")  # the message is still there
        terminal.wait_for_text("> mine")
        page.send_frame_blocking({"kind": "take", "id": "1"})
        terminal.wait_for_text("the page has control now")
        page.send_frame_blocking(message("again"))
        assert wait_for_frame(page, "driver", client="the page")


def test_ctrl_c_interrupts_the_turn_and_the_next_message_is_answered(
    start_session, attach_terminal, hosts
):
    session = start_session(
        ["hear", "go"], ["out", format_ndjson(INIT, says("I look."))], ["hear", "interrupt"], ["out", CANCELLED],
        ["hear", "second"], ["out", format_ndjson(says("World."), result("World."))],
    )  # fmt: skip
    with attach_terminal(session) as terminal:
        terminal.wait_for_text("I look.")
        terminal.wait_for_text("Ctrl-C interrupts")
        terminal.type_keys(CTRL_C)
        terminal.wait_for_text("Interrupting… press Ctrl-C again to detach")
        terminal.wait_for_text("■ interrupted")
        terminal.type_keys("second\r")
        terminal.wait_for_text("World.")
        assert hosts.load_session(session).is_running


def test_double_ctrl_c_detaches_and_leaves_the_session_running(
    start_session, attach_terminal, hosts
):
    session = start_session(["hear", "go"], ["out", format_ndjson(INIT, says("I look."))])
    with attach_terminal(session) as terminal:
        terminal.wait_for_text("I look.")
        terminal.type_keys(CTRL_C + CTRL_C)
        assert terminal.wait_for_exit() == 0 and terminal.clean
    assert hosts.load_session(session).is_running


def test_stopped_session_prints_how_to_resume(start_session, attach_terminal, hosts):
    session = start_session(["hear", "go"], TURN)
    with attach_terminal(session) as terminal:
        terminal.wait_for_text("✓ done")
        os.kill(hosts.load_session(session).metadata["pid"], signal.SIGTERM)
        terminal.wait_for_text(
            f"Session {session.short_id} has exited — run `claude attach {session.short_id}` to resume it."
        )
        assert terminal.wait_for_exit() == 0 and terminal.clean


def test_attach_restarts_an_ended_session(start_session, attach_terminal, hosts):
    session = start_session(["hear", "go"], TURN)
    hosts.wait_until(session, lambda now: now.metadata["state"] == "done")
    os.kill(hosts.load_session(session).metadata["pid"], signal.SIGTERM)
    hosts.wait_for_end(session)
    with attach_terminal(session, "bridge", "attach") as terminal:
        terminal.wait_for_text(f"Waking session {session.short_id}…")
        terminal.wait_for_text("Hello.")
        terminal.type_keys("go\r")
        terminal.wait_for_text("Hello.")
        terminal.type_keys(CTRL_D)
        terminal.wait_for_text(f"the session keeps running: shim bridge attach {session.short_id}")
    assert hosts.load_session(session).metadata["generation"] == 2


def test_attach_reports_a_killed_host(start_session, attach_terminal, hosts):
    session = start_session(["hear", "go"], ["out", format_ndjson(INIT, says("I look."))])
    with attach_terminal(session) as terminal:
        terminal.wait_for_text("I look.")
        os.kill(hosts.load_session(session).metadata["pid"], signal.SIGKILL)
        terminal.wait_for_text(
            f"the host of session {session.short_id} was killed: the output up to this point is kept"
        )
        assert terminal.wait_for_exit() == 1 and terminal.clean


def test_killed_terminal_leaves_the_session_usable(start_session, attach_terminal, hosts):
    session = start_session(
        ["hear", "go"],
        ["out", format_ndjson(INIT, says("I look."))],
        ["hear", "interrupt"],
        ["out", CANCELLED],
    )
    with attach_terminal(session) as terminal:
        terminal.wait_for_text("I look.")
        terminal.process.kill()
        terminal.process.wait()
    with attach_terminal(session) as terminal:
        terminal.wait_for_text("I look.")
        terminal.type_keys(CTRL_C)
        terminal.wait_for_text("■ interrupted")
    assert hosts.load_session(session).metadata["generation"] == 1


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_signal_restores_the_terminal_and_leaves_the_session_running(
    start_session, attach_terminal, hosts, name, status
):
    session = start_session(["hear", "go"], TURN)
    with attach_terminal(session) as terminal:
        terminal.wait_for_text("✓ done")
        terminal.process.send_signal(getattr(signal, name))
        assert terminal.wait_for_exit() == status and terminal.clean
    assert hosts.load_session(session).is_running


def test_narrowed_window_is_redrawn(start_session, attach_terminal, hosts):
    session = start_session(["hear", "go"], TURN)
    with attach_terminal(session) as terminal:
        terminal.wait_for_text("✓ done")
        terminal.type_keys("a line that is longer than the window becomes")
        terminal.wait_for_text("becomes")
        terminal.wait_for_text("Ctrl-D leaves")
        before = len(terminal.drawn)
        terminal.resize(30)
        terminal.wait_for_text("Ctrl-D leaves")
        rows = SGR.sub("", terminal.drawn[before:]).split("\r\n")
        assert rows[1:] and all(len(row) <= 30 for row in rows[1:-1])
        terminal.type_keys(CTRL_C + CTRL_D)
        assert terminal.wait_for_exit() == 0 and terminal.clean


def test_no_color_disables_colors(start_session, attach_terminal):
    session = start_session(*QUESTION)
    with attach_terminal(session, NO_COLOR="1") as terminal:
        terminal.wait_for_text(KEYS)
        assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", terminal.drawn)


def test_suspended_terminal_catches_up_after_sigcont(start_session, attach_terminal, hosts, box):
    """The host drops its queue, so the terminal reads the log instead."""
    gate = box.create_gate()
    lines = []
    for number in range(200):
        lines += [
            calls(f"c{number}", f"echo {number}"),
            returns("x" * 20_000, call_id=f"c{number}"),
        ]
    session = start_session(["hear", "go"], ["out", format_ndjson(INIT, says("I look."))], ["wait", gate.path],
                  ["out", format_ndjson(*lines, says("The end."), result("The end."))])  # fmt: skip
    with attach_terminal(session) as terminal:
        terminal.wait_for_text("I look.")
        terminal.process.send_signal(signal.SIGSTOP)
        gate.open()
        hosts.wait_until(session, lambda now: now.metadata["state"] == "done")
        terminal.process.send_signal(signal.SIGCONT)
        terminal.wait_for_text("The end.")
        terminal.wait_for_text("✓ done")
        assert all(f"● Bash  echo {number}\r" in terminal.plain for number in range(200))
        terminal.type_keys(CTRL_D)
        assert terminal.wait_for_exit() == 0 and terminal.clean
