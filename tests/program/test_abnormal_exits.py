"""Abnormal exits with real processes: of the frontend, the child and the shim, and a full disk.
Each turn has one result, and nothing is left behind.
"""

import compileall
import fcntl
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys

import pytest
from box import (
    ANSWER,
    ASK,
    CONVERSE,
    END,
    SHIM,
    START,
    STREAM,
    TIMEOUT_S,
    build_text_event,
    format_ndjson,
)
from fake_secrets import generate_secret
from fixture_cases import ROOT
from stream_invariants import check_turns

from tests.conversation.test_conversation import user
from tests.conversation.test_passthrough_loop import INIT, ODD, TURN

ENDED = ("--shim-terminator", "message_stop")
PARTIAL = (*ASK, "--include-partial-messages")
TALKING = format_ndjson(START, build_text_event("I am "))
CALL = {"type": "call", "id": "c1", "name": "Bash", "input": {"command": "make"}}


# With a full disk, Python would leave truncated modules in its cache.
NO_CACHE = {"PYTHONDONTWRITEBYTECODE": "1"}


def build_assistant_message(text):
    """Build a message of qwen."""
    message = {"content": [{"type": "text", "text": text}]}
    return {"type": "assistant", "message": message, "session_id": INIT["session_id"]}


def standin(box, how, *steps, output=None):
    """Create a child that has started to answer in one of the three drive modes. Return its
    environment and the shim's arguments.
    """
    if how == "one message":
        child = box.create_fake(*steps, ["out", output or TALKING], ["hang"])
        return {"SHIM_VENDOR": "demo", "SHIM_BIN": child}, PARTIAL
    if how == "one way":
        child = box.create_fake(*steps, ["out", output or TALKING], ["hang"])
        return {"SHIM_VENDOR": "demo", "SHIM_BIN": child}, (
            *CONVERSE,
            *ENDED,
            "--include-partial-messages",
        )
    if how == "two way":
        child_output = output or format_ndjson(INIT, build_assistant_message("I am "))
        child = box.create_fake(
            *steps, ["hear", "initialize"], ["hear", "go"], ["out", child_output], ["hang"]
        )
        return {"SHIM_VENDOR": "qwen", "SHIM_BIN": child}, (*CONVERSE, *ENDED)
    child = box.create_fake(
        *steps, ["hear", "go"], ["out", output or format_ndjson(INIT) + ODD], ["hang"]
    )
    return {"SHIM_VENDOR": "claude", "SHIM_BIN": child}, CONVERSE


RUN_MODES = ("one message", "one way", "two way", "relay")


def begin(running, how):
    """Send a message and wait for the first output."""
    if how != "one message":
        running.send_lines(user("go"))
    running.read_until(b"caf" if how == "relay" else b"I am ")


# -- signals to the shim ---------------------------------------------------------------------------


ENDS = {
    signal.SIGTERM: (143, "signal"),
    signal.SIGHUP: (129, "signal"),
    signal.SIGINT: (0, "interrupted"),
}


@pytest.mark.parametrize(
    ("how", "number"),
    [
        *((how, number) for how in RUN_MODES for number in (signal.SIGTERM, signal.SIGINT)),
        ("one message", signal.SIGHUP),
    ],
)
def test_signal_ends_the_turn_with_a_result_and_stops_the_process_tree(box, how, number):
    """P13, P17. Half of the processes of the tree have left its process group, and no process
    reacts to SIGTERM.
    """
    status, cause = ENDS[number]
    lifeline = box.create_lifeline()
    ignored = (
        ["ignore", "SIGINT", "SIGTERM", "SIGHUP"]
        if number == signal.SIGTERM
        else ["ignore", "SIGHUP"]
    )
    stubborn = (ignored, ["spawn", lifeline.path, True], ["say", lifeline.path, "child"])
    environment, args = standin(box, how, *stubborn)
    with box.start_claude(*args, stdin=subprocess.PIPE if how != "one message" else subprocess.DEVNULL,
                     environment=environment) as running:  # fmt: skip
        begin(running, how)
        lifeline.wait_for("child"), lifeline.wait_for("grandchild")
        running.send_signal(number)
        assert running.wait_for_status() == status
        done = running.wait_for_end()
    assert lifeline.wait_until_closed()
    if how != "relay":
        check_turns(done.stdout, "--include-partial-messages" in args)
    assert done.result["is_error"] is True
    if how != "relay" or number != signal.SIGINT:
        assert done.cause == cause
    assert done.stderr == ""


# -- a frontend that has exited --------------------------------------------------------------------

# A frontend in a separate process. It starts the shim, reads the first output, and then stops
# reading.
FRONTEND = """
import os, subprocess, sys
kind, asks, *command = sys.argv[1:]
if kind == "socket":
    import socket
    ours, theirs = socket.socketpair()
else:
    ours, theirs = os.pipe()
process = subprocess.Popen(command, stdin=subprocess.PIPE if asks else subprocess.DEVNULL, stdout=theirs)
if asks:
    process.stdin.write(asks.encode() + b"\\n")
    process.stdin.flush()
print(process.pid, flush=True)
read = ours.recv if kind == "socket" else lambda count: os.read(ours, count)
said = b""
while b'"type"' not in said:
    said += read(100)
print("reads no more", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("how", "kind", "full"),
    [
        ("one message", "pipe", False),
        ("one message", "pipe", True),
        ("one message", "socket", True),
        ("one way", "pipe", True),
        ("two way", "socket", False),
        ("two way", "socket", True),
        ("relay", "pipe", True),
    ],
)
def test_killed_frontend_leaves_no_running_process(box, how, kind, full):
    """P18, P19: the frontend could close nothing. With a full pipe the shim is in the middle of a
    write.
    """
    lifeline = box.create_lifeline()
    long = "x" * 90_000
    flood = {
        "two way": format_ndjson(INIT, *[build_assistant_message(long)] * 12),
        "relay": format_ndjson(INIT) + ODD.replace("caf", long) * 12,
    }
    output = flood.get(how, format_ndjson(START, *[build_text_event(long)] * 12)) if full else None
    environment, args = standin(box, how, ["say", lifeline.path, "child"], output=output)
    errors = box.path / "stderr"
    asks = "" if how == "one message" else json.dumps(user("go"))
    command = [sys.executable, "-I", "-c", FRONTEND, kind, asks, *SHIM, "claude", *args]
    with errors.open("wb") as file:
        frontend = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file,
            env=box.build_environment(**environment), cwd=box.cwd, start_new_session=True,
        )  # fmt: skip
    with frontend:
        pid = int(frontend.stdout.readline())
        try:
            assert frontend.stdout.readline() == b"reads no more\n"
            lifeline.wait_for("child")
            descriptor = os.pidfd_open(pid)
            frontend.kill()
            frontend.wait()
            assert select.select([descriptor], [], [], TIMEOUT_S)[0], "we are still there"
            os.close(descriptor)
        finally:
            for group in (frontend.pid, pid):
                try:
                    os.killpg(group, signal.SIGKILL)
                except OSError:
                    pass
    assert lifeline.wait_until_closed()
    assert errors.read_bytes() == b""


@pytest.mark.parametrize(
    "args",
    [("--version",), ("-p", "--version"), ("--help",), ("auth", "status"), ASK, ("-p", "hi")],
)
@pytest.mark.parametrize("kind", ["gone", "full", "closed"])
def test_unwritable_stdout_prints_no_traceback(box, args, kind):
    """SIGPIPE arrives as EPIPE and is silent, as with the real claude. A full disk is a failure
    with a one-line error.
    """
    reader, writer = os.pipe()
    os.close(reader)
    full = os.open("/dev/full", os.O_WRONLY)
    environment = {"SHIM_VENDOR": "demo", "SHIM_BIN": box.create_fake(["out", ANSWER])}
    options = (
        {"closed": [1]} if kind == "closed" else {"stdout": writer if kind == "gone" else full}
    )
    try:
        with box.start_claude(*args, environment=environment, **options) as running:
            status, complaint = running.wait_for_status(), running.process.stderr.read().decode()
    finally:
        os.close(writer)
        os.close(full)
    if kind == "full":
        assert status == 1
        assert complaint == (
            "stdout cannot be written: No space left on device\n"
            if args[:2] == ("-p", "hi")
            else ""
        )
    else:
        assert (status, complaint) == (0, "")


@pytest.mark.parametrize("args", [ASK, ("-p", "hi", "--output-format", "json")])
def test_stdout_file_size_limit_exits_with_status_1(box, args):
    """A frontend that writes the shim's stdout to a file on a full disk must not take the partial
    output for the full output.
    """
    environment = {"SHIM_VENDOR": "demo", "SHIM_BIN": box.create_fake(["out", ANSWER])} | NO_CACHE
    with (box.path / "stdout").open("wb") as file:
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))  # noqa: E731
        with box.start_claude(
            *args, environment=environment, stdout=file, preexec_fn=limit
        ) as running:
            assert running.wait_for_status() == 1
            assert b"stdout cannot be written: File too large\n" in running.process.stderr.read()


def test_full_stderr_pipe_does_not_block_a_turn(box):
    """The frontend passed a pipe for stderr and never reads it. Output to stderr is optional."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"\n" * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
    noisy = box.create_fake(["hear", "go"], ["fill", 200_000, 2], ["out", TURN], ["leave", 0])
    try:
        with box.start_claude(
            *CONVERSE,
            stdin=subprocess.PIPE,
            stderr=writer,
            environment={"SHIM_VENDOR": "claude", "SHIM_BIN": noisy},
        ) as running:
            running.send_lines(user("go"))
            done = running.end_input()
        assert done.stdout.decode() == TURN and done.status == 0
        with box.start_claude(*ASK, stderr=writer, environment={"SHIM_VENDOR": "qwen"}) as running:
            assert running.wait_for_end().cause == "not_found"
    finally:
        os.close(reader)
        os.close(writer)


def test_sigterm_exits_while_stdout_is_blocked(box):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"\n" * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
    try:
        with box.start_claude(*ASK, stdout=writer, environment={"SHIM_VENDOR": "qwen"}) as running:
            assert b"no program called qwen" in running.process.stderr.readline()
            with pytest.raises(subprocess.TimeoutExpired):
                running.process.wait(timeout=0.5)  # the write waits for a reader
            running.send_signal(signal.SIGTERM)
            assert running.wait_for_status() == 1
            assert b"Traceback" not in running.process.stderr.read()
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("sends_sigterm", [False, True], ids=["and then reads", "and never reads"])
def test_unread_control_responses_do_not_deadlock(box, sends_sigterm):
    """The frontend sends hundreds of requests before it reads. All are answered, and the shim can
    still be stopped.
    """
    ask = {"type": "control_request", "request": {"subtype": "initialize"}}
    lines = b"".join(
        json.dumps(ask | {"request_id": f"r{number}"}).encode() + b"\n" for number in range(400)
    )
    asking, stdin = os.pipe()
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.write(stdin, lines)  # before the shim has started, so that it reads everything at once
    try:
        environment = {"SHIM_VENDOR": "demo", "SHIM_BIN": "/bin/true"}
        with box.start_claude(
            *CONVERSE, stdin=asking, stdout=writer, environment=environment
        ) as running:
            os.close(writer)
            output = os.read(reader, 100)
            if sends_sigterm:
                running.send_signal(signal.SIGTERM)
                assert running.wait_for_status() == 143
            else:
                os.close(stdin)
                with os.fdopen(os.dup(reader), "rb") as file:
                    output += file.read()
                answers = [
                    json.loads(line)["response"]["request_id"] for line in output.splitlines()
                ]
                assert answers == [f"r{number}" for number in range(400)]
                assert running.wait_for_status() == 0
    finally:
        for descriptor in (asking, reader, *([stdin] if sends_sigterm else [])):
            os.close(descriptor)


# -- a child that dies or does not die -------------------------------------------------------------


def test_child_resets_an_inherited_ignored_sigint(box):
    """A shell's background job ignores SIGINT, and so do the processes that it starts. A vendor
    would never receive an interrupt.
    """
    lifeline = box.create_lifeline()
    child = box.write_program(
        "vendor", f"exec {sys.executable} -I -S -c '{ASKS}' {lifeline.path}\n"
    )
    ignore = lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)  # noqa: E731
    environment = {"SHIM_VENDOR": "demo", "SHIM_BIN": child}
    with box.start_claude(*ASK, environment=environment, preexec_fn=ignore) as running:
        assert lifeline.wait_for("default")
        running.wait_for_end()


ASKS = """
import os, signal, sys
with open(sys.argv[1], "w") as file:
    print("default" if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN else "ignored", os.getpid(), file=file)
"""


@pytest.mark.parametrize("how", RUN_MODES)
def test_killed_child_is_reported_with_its_signal(box, how):
    lifeline = box.create_lifeline()
    environment, args = standin(box, how, ["say", lifeline.path, "child"])
    with box.start_claude(*args, stdin=subprocess.PIPE, environment=environment) as running:
        if how == "one message":
            running.process.stdin.close()
            running.process.stdin = None
        begin(running, how)
        os.kill(lifeline.wait_for("child"), signal.SIGKILL)
        done = running.wait_for_end() if how == "one message" else running.end_input()
    if how != "relay":
        check_turns(done.stdout, "--include-partial-messages" in args)
    assert (done.status, done.cause) == (1, "signal")
    assert "SIGKILL" in done.result["errors"][0]


@pytest.mark.parametrize("how", ["one message", "one way"])
@pytest.mark.parametrize("call", [False, True], ids=["with no call open", "with a call open"])
def test_daemon_of_a_stopped_child_is_stopped(box, how, call):
    """After two forks and in a new session, only the shim as its subreaper is its parent."""
    lifeline = box.create_lifeline()
    output = format_ndjson(START, build_text_event("I am "), *([CALL] if call else []))
    environment, args = standin(box, how, ["daemon", lifeline.path], output=output)
    with box.start_claude(*args, stdin=subprocess.PIPE, environment=environment) as running:
        if how == "one message":
            running.process.stdin.close()
            running.process.stdin = None
        begin(running, how)
        lifeline.wait_for("daemon")
        running.send_signal(signal.SIGTERM)
        assert running.wait_for_status() == 143
    assert lifeline.wait_until_closed()


def test_daemon_started_immediately_by_the_child_is_stopped(box):
    """A shell starts one within a few milliseconds. By then no other process may have become the
    parent of its orphans.
    """
    lifeline = box.create_lifeline()
    server = f"exec 9>{lifeline.path}; echo daemon $$ >&9; exec sleep 60 0<&- 1>&- 2>&-"
    child = box.write_program("vendor", f"(setsid sh -c '{server}' &)\nexec sleep 60\n")
    with box.start_claude(*ASK, environment={"SHIM_VENDOR": "demo", "SHIM_BIN": child}) as running:
        lifeline.wait_for("daemon")
        running.send_signal(signal.SIGTERM)
        assert running.wait_for_status() == 143
    assert lifeline.wait_until_closed()


@pytest.mark.parametrize("new_session", [False, True])
@pytest.mark.parametrize(
    ("output", "cause"),
    [(ANSWER, "clean"), (TALKING, "truncated")],
    ids=["after its result", "cut"],
)
def test_grandchild_that_holds_stdout_does_not_block_after_the_end_grace(
    box, new_session, output, cause
):
    lifeline = box.create_lifeline()
    box.write_settings("end_grace = 0.2\n")
    plan = (["spawn", lifeline.path, new_session], ["out", output], ["leave", 0])
    done = box.run_claude(*ASK, SHIM_VENDOR="demo", SHIM_BIN=box.create_fake(*plan))
    assert (done.cause, done.status) == (cause, int(cause != "clean"))
    check_turns(done.stdout, False)
    lifeline.wait_for("grandchild")


@pytest.mark.parametrize(
    ("output", "cause"),
    [(ANSWER, "clean"), (TALKING, "truncated")],
    ids=["after its result", "cut"],
)
def test_child_that_closes_stdout_and_continues_is_stopped(box, output, cause):
    lifeline = box.create_lifeline()
    box.write_settings("end_grace = 0.2\n")
    plan = (["say", lifeline.path, "child"], ["out", output], ["close", 1], ["hang"])
    done = box.run_claude(*ASK, SHIM_VENDOR="demo", SHIM_BIN=box.create_fake(*plan))
    assert (done.cause, done.status) == (cause, int(cause != "clean"))
    assert lifeline.wait_until_closed()


# -- a full disk -----------------------------------------------------------------------------------


def small_files(size):
    """Return the function that limits the size of a child's files."""
    # Otherwise Python stores truncated modules in its own cache.
    compileall.compile_dir(ROOT / "shim", quiet=1)
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.parametrize("size", [0, 100, 50_000])
def test_full_disk_loses_stored_state_but_not_the_turn(box, size):
    """Sessions, spilled results and the transcript are written while the turn runs, but the turn
    does not depend on them.
    """
    back = {"type": "result", "id": "c1", "output": "x" * 300_000}
    path = box.path / "said"
    path.write_text(
        format_ndjson(START, CALL, back, build_text_event("Hello."), END), encoding="utf-8"
    )
    environment = {
        "SHIM_VENDOR": "demo",
        "SHIM_BIN": box.write_program("standin", f"exec cat {path}\n"),
    } | NO_CACHE
    with box.start_claude(*ASK, environment=environment, preexec_fn=small_files(size)) as running:
        done = running.wait_for_end()
    check_turns(done.stdout, False)
    assert (done.status, done.result["result"]) == (0, "Hello.")
    assert done.result["shim"]["repairs"] == {"result_cut": 1}
    stored_files = [file for file in box.state.rglob("*") if file.is_file() and file.stat().st_size]
    assert not [file for file in stored_files if "spill" in file.parts], (
        "half a file is worse than none"
    )
    assert not list(box.state.rglob("*.tmp"))
    assert len(done.stderr.splitlines()) <= 2 and "Traceback" not in done.stderr
    assert "File too large" in done.stderr


@pytest.mark.parametrize(
    "kind", ["a file", "somebody else's", "read-only", "a link", "missing and not to be made"]
)
def test_unusable_state_folder_does_not_fail_the_turn(box, kind):
    back = {"type": "result", "id": "c1", "output": "x" * 300_000}
    path = box.path / "said"
    path.write_text(
        format_ndjson(START | {"session": "own"}, CALL, back, build_text_event("Hello."), END),
        encoding="utf-8",
    )
    environment = {
        "SHIM_VENDOR": "demo",
        "SHIM_BIN": box.write_program("standin", f"exec cat {path}\n"),
    }
    box.state.parent.mkdir(parents=True)
    if kind == "a file":
        box.state.write_text("", encoding="utf-8")
    elif kind == "somebody else's":
        if os.getuid():
            pytest.skip("only root can give a folder away")
        box.state.mkdir(mode=0o700)
        os.chown(box.state, 12345, 12345)
    elif kind == "read-only":
        # Even root cannot create a folder there.
        environment["SHIM_STATE"] = "/proc/self/shim"
    elif kind == "a link":
        (box.path / "elsewhere").mkdir(mode=0o700)
        box.state.symlink_to(box.path / "elsewhere")
    else:
        environment["SHIM_STATE"] = "/dev/null/shim"
    done = box.run_claude(*ASK, **environment)
    check_turns(done.stdout, False)
    assert (done.status, done.result["result"]) == (0, "Hello.")
    assert len(done.stderr.splitlines()) == 1 and "state is not stored" in done.stderr
    if kind == "a link":
        assert list((box.path / "elsewhere").iterdir()) == []


# -- the shim's stdin ------------------------------------------------------------------------------


def test_conversation_with_closed_stdin_exits_immediately(box):
    with box.start_claude(*CONVERSE, environment={"SHIM_VENDOR": "demo"}, closed=[0]) as running:
        done = running.wait_for_end()
    assert (done.status, done.stdout, done.stderr) == (0, b"", "")


def test_prompt_argument_works_with_closed_stdin(box):
    environment = {"SHIM_VENDOR": "demo", "SHIM_BIN": box.create_fake(["read"], ["out", ANSWER])}
    with box.start_claude(*ASK, environment=environment, closed=[0]) as running:
        assert running.wait_for_end().result["result"] == "Hello."


def test_sigterm_ends_a_conversation_that_waits_for_stdin(box):
    with box.start_claude(
        *CONVERSE, stdin=subprocess.PIPE, environment={"SHIM_VENDOR": "demo"}
    ) as running:
        running.send_lines(
            {"type": "control_request", "request_id": "i", "request": {"subtype": "initialize"}}
        )
        running.read_until(b'"request_id":"i"')
        running.send_signal(signal.SIGTERM)
        assert running.wait_for_status() == 143


def test_stdin_may_be_a_socket(box):
    """Node's pipes are sockets."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        environment = {
            "SHIM_VENDOR": "demo",
            "SHIM_BIN": box.create_fake(["read"], ["out", ANSWER]),
        }
        with box.start_claude(*CONVERSE, stdin=theirs.fileno(), environment=environment) as running:
            theirs.close()
            ours.sendall(json.dumps(user("go")).encode() + b"\n")
            running.read_until(b'"type":"result"')
            ours.close()
            assert running.wait_for_status() == 0


# -- many turns ------------------------------------------------------------------------------------


def test_repeated_turns_leak_no_resources():
    """The test runs in a separate process, which becomes the parent of everything that a run leaves
    behind. `make bench` runs 500 turns.
    """
    command = [
        sys.executable,
        str(ROOT / "tests" / "bench" / "bench_shutdown.py"),
        "--only",
        "left",
        "--turns",
        "10",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 ok, 0 short" in done.stdout


def test_spill_error_does_not_fail_the_turn(local_box, capfd, monkeypatch):
    from shim.commands.claude import dropin
    from shim.state import spill

    def full(*_):
        raise EOFError("marshal data too short")

    back = {"type": "result", "id": "c1", "output": "x" * 300_000}
    path = local_box.path / "said"
    path.write_text(
        format_ndjson(START, CALL, back, build_text_event("Hello."), END), encoding="utf-8"
    )
    monkeypatch.setattr(spill.LargeTextFolder, "store_text", full)
    monkeypatch.setenv("SHIM_VENDOR", "demo")
    monkeypatch.setenv("SHIM_BIN", local_box.write_program("standin", f"exec cat {path}\n"))
    assert dropin.main(list(ASK), {}) == 0
    check_turns(capfd.readouterr().out.encode(), False)


TOKEN = f"ghp_{generate_secret(36)}"
BUG = "internal error: ZeroDivisionError('a bug of ours')"
WITH_A_BUG_IN_THE_LAST_CALL = """
import os
import sys
from shim.conversation.message_loop import MessageLoop
from shim.core.claude.session_state import SessionState

class_name, _, name = sys.argv.pop(1).partition(".")
patched_class = {"MessageLoop": MessageLoop, "SessionState": SessionState}[class_name]
method = getattr(patched_class, name)
remaining = [int(sys.argv.pop(1))]

def fail_in_the_last_call(self, *args):
    remaining[0] -= 1
    if not remaining[0]:
        raise ZeroDivisionError(os.environ.get("BUG_TEXT", "a bug of ours"))
    return method(self, *args)

setattr(patched_class, name, fail_in_the_last_call)
from shim.__main__ import main

main()
"""


@pytest.fixture
def plant_bug(box, monkeypatch):
    """Return a function that lets one call of a method fail, for example the second call. The
    function returns the environment of a run.
    """

    def plant(method, call_number):
        args = [method, str(call_number)]
        program = [sys.executable, "-P", "-c", WITH_A_BUG_IN_THE_LAST_CALL, *args]
        monkeypatch.setattr("box.SHIM", program)
        return {"SHIM_VENDOR": "demo", "SHIM_BIN": box.create_fake(["out", ANSWER])}

    return plant


def find_results(done):
    return [line for line in done.lines if line["type"] == "result"]


@pytest.mark.parametrize(
    ("method", "turns"),
    [
        ("MessageLoop._run_turn", 1),
        ("MessageLoop._run_turn", 2),
        ("SessionState.parse_local_command", 2),
    ],
)
def test_internal_error_before_the_stream_of_a_turn_ends_in_a_result(box, plant_bug, method, turns):
    environment = plant_bug(method, turns)
    messages = format_ndjson(*[user("hi")] * turns).encode()
    flags = (*CONVERSE, "--permission-mode", "plan")
    done = box.run_claude("-p", *flags, stdin=messages, **environment)
    results = find_results(done)
    assert (done.status, len(results)) == (1, turns), done.stderr
    assert results[-1]["errors"] == [BUG]
    init = next(line for line in done.lines if line.get("subtype") == "init")
    assert init["permissionMode"] == "plan"
    assert {line["session_id"] for line in [init, *results]} == {init["session_id"]}
    assert done.lines[-1] == results[-1]


def test_init_line_of_a_failed_turn_reports_an_unattended_vendor(box, plant_bug):
    environment = plant_bug("MessageLoop._run_turn", 1) | {"SHIM_VENDOR": "droid"}
    done = box.run_claude(*ASK, **environment)
    assert done.result["errors"] == [BUG]
    assert done.init["shim"]["unattended"] is True


def test_init_line_of_a_failed_turn_reports_an_untrusted_version(box, plant_bug):
    environment = plant_bug("MessageLoop._run_turn", 1)
    child = box.write_program("pi", "echo 2.0.0")
    done = box.run_claude(*ASK, **environment | {"SHIM_VENDOR": "pi", "SHIM_BIN": child})
    assert done.result["errors"] == [BUG]
    assert done.init["shim"]["unattended"] is True
    assert "2.0.0 of pi" in done.init["shim"]["unattended_reason"]


@pytest.mark.parametrize("flags", [("--output-format", "text"), STREAM])
def test_secret_in_an_internal_error_before_the_stream_is_redacted(box, plant_bug, flags):
    environment = plant_bug("MessageLoop._run_turn", 1)
    log, recordings = box.path / "shim.log", box.path / "recordings"
    environment |= {"SHIM_LOG": f"debug:{log}", "SHIM_RECORD": f"{recordings}/"}
    environment |= {"SHIM_REDACT": "all", "BUG_TEXT": f"token {TOKEN}"}
    done = box.run_claude("-p", "hi", *flags, **environment)
    assert done.status == 1
    assert b"[REDACTED:github-token]" in done.stdout
    (recording,) = recordings.glob("*.cast")
    files = [log, recording, *(box.home / ".claude").rglob("*.jsonl")]
    for output in (done.stdout, done.stderr.encode(), *(file.read_bytes() for file in files)):
        assert TOKEN[4:].encode() not in output


@pytest.mark.parametrize("output_format", ["text", "json"])
def test_internal_error_before_the_stream_is_reported_in_each_format(box, plant_bug, output_format):
    environment = plant_bug("MessageLoop._run_turn", 1)
    done = box.run_claude("-p", "hi", "--output-format", output_format, **environment)
    assert done.status == 1
    assert BUG in done.stdout.decode()


@pytest.mark.parametrize(
    ("method", "flags"),
    [
        ("MessageLoop._call_session_hooks", ("--output-format", "text")),
        ("MessageLoop._call_session_hooks", ("--output-format", "json")),
        ("MessageLoop._call_session_hooks", ("--output-format", "json", "--verbose")),
        ("MessageLoop._call_session_hooks", STREAM),
        ("MessageLoop._wait_for_message", ("--output-format", "json")),
    ],
)
def test_internal_error_before_the_only_turn_ends_in_a_result(box, plant_bug, method, flags):
    done = box.run_claude("-p", "hi", *flags, **plant_bug(method, 1))
    assert (done.status, done.stderr) == (1, BUG + "\n")
    if "text" in flags:
        assert done.stdout.decode() == BUG + "\n"
        return
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if "--verbose" in flags and flags != STREAM:
        (lines,) = lines
    assert [line["errors"] for line in lines if line["type"] == "result"] == [[BUG]]


@pytest.mark.parametrize(
    ("method", "call_number", "output_format"),
    [
        ("MessageLoop._record_result", 1, "json"),
        ("MessageLoop._warn_about_late_context", 1, "json"),
        ("MessageLoop._warn_about_late_context", 1, "stream-json"),
        ("MessageLoop._call_session_hooks", 2, "json"),  # at the end of the session
        ("MessageLoop._call_session_hooks", 2, "stream-json"),
    ],
)
def test_internal_error_after_the_result_does_not_lose_the_result(
    box, plant_bug, method, call_number, output_format
):
    environment = plant_bug(method, call_number)
    done = box.run_claude("-p", "hi", "--verbose", "--output-format", output_format, **environment)
    assert (done.status, done.stderr) == (1, BUG + "\n")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if output_format == "json":
        (lines,) = lines
    assert [line["result"] for line in lines if line["type"] == "result"] == ["Hello."]


def test_internal_error_before_the_first_message_of_a_conversation_is_reported(box, plant_bug):
    done = box.run_claude("-p", *CONVERSE, **plant_bug("MessageLoop._call_session_hooks", 1))
    assert (done.status, done.stdout, done.stderr) == (1, b"", BUG + "\n")


def test_secret_in_an_internal_error_without_a_turn_is_redacted_on_stderr(box, plant_bug):
    """The stderr of a background session is stored in a file."""
    environment = plant_bug("MessageLoop._call_session_hooks", 1)
    done = box.run_claude("-p", *CONVERSE, BUG_TEXT=f"token {TOKEN}", **environment)
    assert "[REDACTED:github-token]" in done.stderr
    assert TOKEN[4:] not in done.stderr


def test_internal_error_between_two_turns_is_reported_without_a_second_result(box, plant_bug):
    environment = plant_bug("MessageLoop._apply_line", 2)
    with box.start_claude(*CONVERSE, stdin=subprocess.PIPE, environment=environment) as running:
        running.send_lines(user("hi"))
        running.read_line_containing(b'"type":"result"')
        running.send_lines(user("hi"))
        done = running.wait_for_end()
    assert (done.status, done.stderr) == (1, BUG + "\n")
    assert done.result["is_error"] is False


@pytest.mark.parametrize("vendor, flags", [("demo", []), ("gemini", ["--disallowedTools", "Bash"])])
def test_child_is_discarded_if_its_stream_cannot_be_created(
    vendor, flags, local_box, capfd, monkeypatch
):
    """The test fails with a warning about a running child if it is not stopped. The rules of gemini
    are in a file, which is removed.
    """
    from shim.commands.claude import dropin
    from shim.conversation.drivers import turn_lifecycle

    def fail(*args, **options):
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(turn_lifecycle, "TurnLifecycle", fail)
    monkeypatch.setenv("SHIM_VENDOR", vendor)
    monkeypatch.setenv("SHIM_BIN", local_box.create_fake(["out", ANSWER]))
    assert dropin.main([*ASK, *flags], {}) == 1
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [line["type"] for line in lines] == ["system", "result", "message_stop"]
    assert lines[1]["errors"] == [BUG]
    assert list(local_box.state.glob("spill/*/*")) == []


# -- the shim's log --------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["stderr", "/dev/full"])
def test_unwritable_log_does_not_fail_the_turn(box, target):
    reader, writer = os.pipe()
    os.close(reader)
    log = "info" if target == "stderr" else f"info:{target}"
    environment = {
        "SHIM_VENDOR": "demo",
        "SHIM_BIN": box.create_fake(["out", ANSWER]),
        "SHIM_LOG": log,
    }
    try:
        with box.start_claude(*ASK, environment=environment, stderr=writer) as running:
            done = running.wait_for_end()
    finally:
        os.close(writer)
    assert (done.status, done.result["result"]) == (0, "Hello.")
