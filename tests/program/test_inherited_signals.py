"""Ignored and blocked signals that a parent passes on through `execve`. The real claude resets
them, and so does the shim.
"""

import os
import signal
import subprocess
import time

import pytest
from box import ANSWER, ASK, SHIM, TIMEOUT_S
from host_box import HostingBox

from tests.program.test_abnormal_exits import PARTIAL, TALKING

ENDING = {signal.SIGTERM: 143, signal.SIGINT: 0, signal.SIGHUP: 129}
RUNS = 200  # enough to find what happens rarely


def ignore_children():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def block_all():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def ignore_all():
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)


def ignore_and_block_all():
    ignore_all()
    block_all()


PARENTS = [ignore_children, block_all, ignore_all]
# A reset of both at once covers each alone. `make full` also tests each alone.
BOTH = [ignore_and_block_all, *(pytest.param(parent, marks=pytest.mark.full) for parent in PARENTS)]


@pytest.fixture
def background(box):
    made = HostingBox(box)
    made.environment["SHIM_VENDOR"] = "demo"
    made.environment["SHIM_BIN"] = box.create_demo_program()
    yield made
    made.stop_hosts()


def run(box, *args, parent=None, subcommand="claude", **environment):
    """Run `shim SUBCOMMAND ARGS` under such a parent until it ends."""
    command = [*SHIM, *([subcommand] if subcommand else []), *args]
    return subprocess.run(
        command,
        env=box.build_environment(**environment),
        cwd=box.cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        preexec_fn=parent,
        timeout=TIMEOUT_S,
        check=False,
    )


def processes_with(text):
    """Return the ids of the processes whose command line contains `text`."""
    pids = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if text.encode() in file.read():
                    pids.append(int(pid))
        except OSError:
            continue
    return pids


@pytest.mark.full
@pytest.mark.parametrize("parent", PARENTS)
def test_each_run_has_a_single_result_with_inherited_signals(box, parent):
    environment = {"SHIM_VENDOR": "demo", "SHIM_BIN": box.create_fake(["out", ANSWER])}
    for _ in range(RUNS):
        done = run(box, *ASK, parent=parent, **environment)
        assert (done.returncode, done.stderr, done.stdout.count('"type":"result"')) == (0, "", 1)
    nothing_is_left(box)


def nothing_is_left(box):
    deadline = time.monotonic() + TIMEOUT_S
    while pids := processes_with(str(box.path)):
        assert time.monotonic() < deadline, pids


@pytest.mark.parametrize("parent", PARENTS)
def test_vendor_exit_status_is_reported_with_inherited_signals(box, parent):
    """If the kernel reaps the shim's children, the exit status is lost, and a failed vendor looks
    successful.
    """
    vendor = box.write_program("vendor", f"cat {box.path}/answer\nexit 3\n")
    (box.path / "answer").write_text(ANSWER, encoding="utf-8")
    done = run(box, *ASK, parent=parent, SHIM_VENDOR="demo", SHIM_BIN=vendor)
    assert done.returncode == 1 and "exited with code 3" in done.stdout, done
    assert done.stdout.count('"type":"result"') == 1


@pytest.mark.parametrize(
    ("parent", "number"),
    [
        (block_all, signal.SIGHUP),  # `nohup` ignores it on purpose
        *((ignore_and_block_all, number) for number in (signal.SIGTERM, signal.SIGINT)),
        *(
            pytest.param(block_all, number, marks=pytest.mark.full)
            for number in (signal.SIGTERM, signal.SIGINT)
        ),
        *(
            pytest.param(ignore_all, number, marks=pytest.mark.full)
            for number in (signal.SIGTERM, signal.SIGINT)
        ),
    ],
)
def test_signal_ends_the_turn_despite_inherited_signals(box, parent, number):
    environment = {"SHIM_VENDOR": "demo", "SHIM_BIN": box.create_fake(["out", TALKING], ["hang"])}
    with box.start_claude(*PARTIAL, environment=environment, preexec_fn=parent) as running:
        running.read_until(b"I am ")
        running.send_signal(number)
        done = running.wait_for_end()
    assert (done.status, done.stderr) == (ENDING[number], "")
    assert [line["type"] for line in done.lines].count("result") == 1


@pytest.mark.parametrize("parent", PARENTS)
def test_vendor_has_default_handlers_and_no_blocked_signals(box, parent):
    script = (
        f"grep -E '^Sig(Blk|Ign)' /proc/self/status > {box.path}/signals\ncat {box.path}/answer\n"
    )
    (box.path / "answer").write_text(ANSWER, encoding="utf-8")
    vendor = box.write_program("vendor", script)
    done = run(box, *ASK, parent=parent, SHIM_VENDOR="demo", SHIM_BIN=vendor)
    assert (done.returncode, done.stderr, done.stdout.count('"type":"result"')) == (0, "", 1)
    sets = [int(line.split()[1], 16) for line in (box.path / "signals").read_text().splitlines()]
    real_time = (1 << 31) | (1 << 32)  # of the C library, which no program sets
    assert [signal_set & ~real_time for signal_set in sets] == [0, 0]
    nothing_is_left(box)


@pytest.mark.parametrize("parent", BOTH)
def test_background_session_runs_and_ends_with_inherited_signals(background, parent):
    done = run(background.box, "--bg", "hi", parent=parent, **background.environment)
    assert (done.returncode, done.stderr) == (0, "")
    session = background.wait_until(
        background.list_sessions()[0], lambda now: now.metadata["state"] == "done"
    )
    os.kill(session.metadata["pid"], signal.SIGTERM)
    background.wait_for_end(session)


@pytest.mark.parametrize("parent", BOTH)
def test_run_and_doctor_commands_work_with_inherited_signals(box, parent):
    environment = {"SHIM_VENDOR": "demo", "SHIM_BIN": box.create_fake(["out", ANSWER])}
    done = run(box, "run", "hi", parent=parent, subcommand="", **environment)
    assert (done.returncode, "Hello." in done.stdout) == (0, True), done
    done = run(box, "doctor", parent=parent, subcommand="", **environment)
    assert "Traceback" not in done.stderr and "failed" not in done.stderr, done
