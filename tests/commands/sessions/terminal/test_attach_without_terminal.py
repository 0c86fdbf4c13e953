"""`claude attach` without a terminal: lines of stdin are messages and answers; also `shim bridge
watch`.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial

import pytest
from box import SHIM, TIMEOUT_S, format_ndjson, run_shim, start_shim
from session_hosts import wait_for_frame
from terminal import on_terminal

from shim.story.terminal.totals import MIN_BAR_SECONDS
from tests.commands.sessions.terminal.test_attach import CTRL_Z, ENDED, QUESTION
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

SECOND = [["hear", "second"], ["out", format_ndjson(says("World."), result("World."))]]


@pytest.fixture
def shim(hosts):
    """Return a function that runs `shim ARGS` with some lines on stdin."""

    def run(*args, stdin_text="", stdin=subprocess.PIPE):
        pipes = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with start_shim(args, env=hosts.environment, cwd=hosts.cwd, text=True, **pipes) as process:
            try:
                stdout, stderr = process.communicate(stdin_text or None, timeout=2 * TIMEOUT_S)
            finally:
                process.kill()
        return subprocess.CompletedProcess(args, process.returncode, stdout, stderr)

    return run


@pytest.fixture
def run_program(hosts):
    """Return a function that starts `shim ARGS` with pipes. The process is killed when the test
    leaves the context.
    """

    @contextmanager
    def start(*args, command=()):
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        start_process = (
            partial(subprocess.Popen, [*command, *args]) if command else partial(start_shim, args)
        )
        process = start_process(env=hosts.environment, cwd=hosts.cwd, text=True, **pipes)
        try:
            yield process
        finally:
            process.kill()
            with process:  # closes the pipes
                pass

    return start


def read_to(process, text):
    """Return the output of a process up to the chunk with a text."""
    read, descriptor = "", process.stdout.fileno()
    while text not in read:
        ready = select.select([descriptor], [], [], TIMEOUT_S)[0]
        chunk = os.read(descriptor, 65536).decode() if ready else ""
        assert chunk, f"{text!r} did not come: {read}"
        read += chunk
    return read


def done(hosts, session):
    return hosts.wait_until(session, lambda now: now.metadata["state"] == "done")


def wait_for_question(hosts, session):
    return hosts.wait_until(session, lambda now: now.metadata["status"] == "waiting")


def next_question(hosts, session, before):
    """Return the next permission request that is not in `before`."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        with hosts.connect(session, role="watch", replay=False) as watcher:
            new = [question for question in watcher.welcome["questions"] if question not in before]
        if new:
            return new[0]
        assert time.monotonic() < deadline, "nothing is asked"
        time.sleep(0.01)


OUTCOMES = {
    "y": "allowed",
    "1": "allowed",
    "allow": "allowed",
    "n": "denied",
    "deny": "denied",
    "a": "allowed",
}


def test_stdin_line_answers_the_open_prompt_before_eof_detaches(start_session, hosts, shim, box):
    """The test uses each word that is an answer. "a" comes last, because later calls would not need
    permission.
    """
    steps, gates = [], {answer: box.create_gate() for answer in OUTCOMES}
    for answer in OUTCOMES:
        question = format_ndjson(calls(answer), asks(answer, question=f"q-{answer}"))
        steps += [["wait", gates[answer].path], ["out", question], ["hear", "control_response"]]
        steps.append(["out", format_ndjson(returns("done", call_id=answer))])
    session = start_session(
        ["hear", "go"],
        ["out", format_ndjson(INIT)],
        *steps,
        ["out", format_ndjson(says("After."), result("After."))],
    )
    answered = []
    for answer, how in OUTCOMES.items():
        gates[answer].open()
        answered.append(next_question(hosts, session, answered))
        ended = shim("claude", "attach", session.short_id, stdin_text=f"{answer}\n")
        assert (ended.returncode, ended.stderr) == (0, ""), answer
        _, prompt, answer_output = ended.stdout.rpartition("? Allow Bash touch x")
        assert prompt and f"→ {how} after" in answer_output, (answer, ended.stdout)
        assert "\x1b" not in ended.stdout
    done(hosts, session)


def test_open_call_is_not_reported_as_unanswered_when_a_client_leaves(start_session, hosts, shim):
    session = start_session(*QUESTION, *ENDED)
    wait_for_question(hosts, session)
    for args in (("attach", session.short_id), ("logs", session.short_id)):
        output = shim("claude", *args).stdout
        assert "● Bash  touch x" in output and "unanswered" not in output
    assert shim("claude", "stop", session.short_id).returncode == 0
    assert "● Bash  touch x" in shim("claude", "logs", session.short_id).stdout


def test_stdin_line_is_sent_as_a_message_before_eof_detaches(start_session, hosts, shim):
    session = start_session(["hear", "go"], TURN, *SECOND)
    done(hosts, session)
    ended = shim("claude", "attach", session.short_id, stdin_text="second")
    assert ended.returncode == 0 and "> go" in ended.stdout and "Hello." in ended.stdout
    with hosts.connect(session) as connection:
        while wait_for_frame(connection, "line")["line"].get("result") != "World.":
            pass


def test_empty_stdin_prints_the_session_and_exits(start_session, hosts, shim):
    session = start_session(["hear", "go"], TURN)
    done(hosts, session)
    ended = shim("claude", "attach", session.short_id)
    assert (ended.returncode, ended.stderr) == (0, "") and "Hello." in ended.stdout
    assert hosts.load_session(session).is_running


def test_stdin_accepts_a_file_or_dev_null(start_session, hosts, shim, tmp_path):
    session = start_session(["hear", "go"], TURN, *SECOND, *SECOND)
    done(hosts, session)
    path = tmp_path / "lines"
    path.write_text("second\n")
    for number, args in enumerate((("claude", "attach"), ("bridge", "attach"))):
        for file in (os.devnull, path):
            with open(file) as lines:
                ended = shim(*args, session.short_id, stdin=lines)
            assert (ended.returncode, ended.stderr) == (0, "") and "Hello." in ended.stdout, (
                args,
                file,
            )
        with hosts.connect(session) as connection:
            for _ in range(number + 1):
                while wait_for_frame(connection, "line")["line"].get("result") != "World.":
                    pass


def test_script_without_control_fails_and_names_the_controller(start_session, hosts, shim):
    session = start_session(["hear", "go"], TURN, *SECOND)
    with hosts.connect(session, client="the page"):
        ended = shim("claude", "attach", session.short_id, stdin_text="second\n")
        assert ended.returncode == 1 and "✗ the page has control" in ended.stdout
        ended = shim("claude", "attach", session.short_id, stdin_text="/take\nsecond\n")
        assert ended.returncode == 0


def test_closed_stdin_exits_with_an_error(start_session, hosts):
    session = start_session(["hear", "go"], TURN)
    done(hosts, session)
    ended = run_shim(
        ("claude", "attach", session.short_id),
        env=hosts.environment,
        cwd=hosts.cwd,
        stdin=b"",
        closed=(0,),
    )
    assert (
        ended.status == 1 and "stdin is closed" in ended.stderr and "Traceback" not in ended.stderr
    )


def test_script_times_out_if_the_host_hangs(start_session, hosts, run_program):
    session = start_session(["hear", "go"], TURN)
    done(hosts, session)
    code = (
        "import os, sys; from shim.commands.sessions.terminal import attach, terminal_loop; "
        "from shim.bridge import registry\n"
        "terminal_loop.ANSWER_TIMEOUT_S = 0.1; record = registry.find_session(sys.argv[1], os.environ)\n"
        "sys.exit(attach.attach_terminal_to_session(record, os.environ))"
    )
    with run_program(session.session_id, command=(sys.executable, "-c", code)) as process:
        read_to(process, "done")
        os.kill(hosts.load_session(session).metadata["pid"], signal.SIGSTOP)
        try:
            _, complaint = process.communicate("second\n", timeout=TIMEOUT_S)
        finally:
            os.kill(hosts.load_session(session).metadata["pid"], signal.SIGCONT)
    assert (
        process.returncode == 1
        and f"the host of session {session.short_id} did not respond" in complaint
    )


def test_sigint_interrupts_the_turn_of_a_script(start_session, hosts, run_program):
    session = start_session(
        ["hear", "go"],
        ["out", format_ndjson(INIT, says("I look."))],
        ["hear", "interrupt"],
        ["out", CANCELLED],
    )
    with run_program("claude", "attach", session.short_id) as process:
        read_to(process, "I look.")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0 and "Interrupting" in output
    hosts.wait_until(session, lambda now: now.metadata["status"] == "idle")


def test_dumb_terminal_is_served_line_by_line(start_session, hosts):
    session = start_session(*QUESTION, *ENDED)
    with on_terminal(
        [*SHIM, "claude", "attach", session.short_id],
        env=hosts.environment | {"TERM": "dumb"},
        cwd=str(hosts.cwd),
    ) as terminal:
        terminal.wait_for_text("? Allow Bash touch x")
        terminal.type_keys("y\n")
        terminal.wait_for_text("→ allowed after")
        terminal.wait_for_text("✓ done")
        terminal.type_keys(CTRL_Z)
        assert terminal.wait_for_exit() == 0 and terminal.clean and "\x1b" not in terminal.drawn


# -- watching --------------------------------------------------------------------------------------


def test_watch_prints_the_session_and_ignores_stdin(start_session, hosts, run_program):
    session = start_session(*QUESTION, *ENDED)
    wait_for_question(hosts, session)
    with run_program("bridge", "watch", session.short_id) as process:
        process.stdin.write("y\n")
        process.stdin.flush()
        read_to(process, "? Allow Bash touch x")
        assert hosts.load_session(session).metadata["status"] == "waiting"
        with hosts.connect(session, client="the page") as page:
            question = wait_for_frame(page, "question")
            # A shorter session has no summary.
            while time.time() < question["at"] / 1000 + 2 * MIN_BAR_SECONDS:
                time.sleep(MIN_BAR_SECONDS / 10)
            answer = {
                "kind": "answer",
                "question": question["question"],
                "decision": {"behavior": "deny"},
            }
            page.send_frame_blocking({"id": "1", **answer})
        assert "→ denied by the page after" in read_to(process, "⊘ ended with 1 denied call")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0 and "a person" in output  # the summary, as for a recording
    assert hosts.load_session(session).is_running


def test_watch_json_prints_the_frames(start_session, hosts, run_program):
    session = start_session(["hear", "go"], TURN)
    done(hosts, session)
    with run_program("bridge", "watch", "--json", session.short_id) as process:
        frames = [json.loads(line) for line in read_to(process, '"kind":"synced"').splitlines()]
        assert frames[0]["kind"] == "welcome" and frames[0]["session"] == session.session_id
        assert "result" in [frame["line"]["type"] for frame in frames if frame["kind"] == "line"]
        os.kill(hosts.load_session(session).metadata["pid"], signal.SIGTERM)
        output, _ = process.communicate(timeout=TIMEOUT_S)
    assert json.loads(output.splitlines()[-1])["kind"] == "bye" and process.returncode == 0


def test_watch_reads_an_ended_session_from_its_log(start_session, hosts, shim):
    session = start_session(["hear", "go"], TURN)
    done(hosts, session)
    os.kill(hosts.load_session(session).metadata["pid"], signal.SIGTERM)
    hosts.wait_for_end(session)
    ended = shim("bridge", "watch", session.short_id)
    assert ended.returncode == 0 and "> go" in ended.stdout and "Hello." in ended.stdout
    assert (
        f"session {session.short_id} has ended: `claude attach {session.short_id}` resumes it"
        in ended.stdout
    )
    frames = shim("bridge", "watch", session.short_id, "--json")
    assert (
        frames.returncode == 1
        and f"{session.session_id} is not running in the background\n" in frames.stderr
    )
    assert not hosts.load_session(session).is_running


def test_watch_reports_a_killed_session_as_cut_off(start_session, hosts, shim):
    session = start_session(*QUESTION, *ENDED)
    wait_for_question(hosts, session)
    os.kill(hosts.load_session(session).metadata["pid"], signal.SIGKILL)
    hosts.wait_for_end(session)
    output = shim("bridge", "watch", session.short_id).stdout
    assert "Bash touch x · unanswered" in output and "the recording was cut off here" in output


def test_watch_reports_an_open_call_as_unanswered_if_the_host_is_killed(
    start_session, hosts, run_program
):
    session = start_session(*QUESTION, *ENDED)
    wait_for_question(hosts, session)
    with run_program("bridge", "watch", session.short_id) as process:
        read_to(process, "? Allow Bash touch x")
        os.kill(hosts.load_session(session).metadata["pid"], signal.SIGKILL)
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert "Bash touch x · unanswered" in stdout and "was killed" in stderr


def test_closed_stdout_ends_watch_and_attach_without_an_error(start_session, hosts, run_program):
    session = start_session(["hear", "go"], TURN)
    done(hosts, session)
    for args in (("bridge", "watch"), ("bridge", "watch", "--json"), ("claude", "attach")):
        with run_program(*args, session.short_id) as process:
            assert os.read(process.stdout.fileno(), 10)
            process.stdout.close()
            assert process.wait(TIMEOUT_S) == 0, args
            assert process.stderr.read() == ""
