"""A child and its process group: input, output, and the end of the whole group. The processes are
real, because these are properties of the OS.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from box import TIMEOUT_S

from shim.core.turn.outcome import ChildExit
from shim.process import child as children
from shim.process.child import Child
from shim.process.spawn import STDOUT_PIPE_BYTES, ChildSpawnResult, kill_child, spawn_child

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def in_its_folder(box, monkeypatch):
    """Change to the child's folder, as in a turn."""
    monkeypatch.chdir(box.cwd)


@pytest.fixture
def start(box):
    """Return a function that starts a fake child with these steps. After the test, its process
    group is killed.
    """
    started = []

    def begin(*steps, stdin=b""):
        process = spawn_child(
            [box.create_fake(*steps)],
            box.build_environment(),
            str(box.cwd),
            opens_stdin=bool(stdin),
        )
        child = Child(ChildSpawnResult(process, stdin))
        started.append((process, child))
        return child

    yield begin
    for process, child in started:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        child.close()


@pytest.fixture
def impatient(monkeypatch):
    """Shorten the timeouts of the signals, for children that ignore them."""
    monkeypatch.setattr(children, "INTERRUPT_TIMEOUT_S", 0.05)
    monkeypatch.setattr(children, "TERMINATE_TIMEOUT_S", 0.05)


async def read_all(child):
    """Return the complete stdout and the exit of a child. Meanwhile its stdin is written and its
    stderr is drained.
    """
    chunks = []
    with anyio.fail_after(TIMEOUT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(child.write_initial_stdin_and_close)
            tasks.start_soon(child.drain_stderr)
            while chunk := await child.read_stdout():
                chunks.append(chunk)
            ended = await child.wait_for_exit()
    return b"".join(chunks), ended


async def test_interrupt_timeout_can_be_extended(box, monkeypatch):
    monkeypatch.setattr(children, "INTERRUPT_TIMEOUT_S", 0.0)
    started = box.create_fake(
        ["ignore", "SIGTERM"], ["out_on", "SIGINT", "late\n", 0], ["out", "ready\n"], ["hang"]
    )
    process = spawn_child([started], box.build_environment(), str(box.cwd), opens_stdin=False)
    child = Child(ChildSpawnResult(process, b"", interrupt_timeout_s=TIMEOUT_S))
    with anyio.fail_after(TIMEOUT_S):
        assert await child.read_stdout() == b"ready\n"
        await child.stop("SIGINT")
    assert child.child_exit == ChildExit(code=0), "it had the time to leave by itself"
    child.close()


async def test_stdout_and_exit_status_are_collected(start):
    stdout, ended = await read_all(start(["out", "one\n"], ["out", "two\n"], ["leave", 3]))
    assert (stdout, ended) == (b"one\ntwo\n", ChildExit(code=3))


async def test_exit_reports_the_name_of_the_fatal_signal(start):
    _, ended = await read_all(start(["die", "SIGKILL"]))
    assert ended == ChildExit(signal="SIGKILL")


async def test_wrapped_program_can_save_its_session_after_an_interrupt(
    start, tmp_path, monkeypatch
):
    """The npm launcher of copilot exits at once. The rest of its group must not be killed at the
    same time.
    """
    monkeypatch.setattr(children, "INTERRUPT_TIMEOUT_S", TIMEOUT_S)
    monkeypatch.setattr(children, "GROUP_EXIT_TIMEOUT_S", TIMEOUT_S)
    file = tmp_path / "session"
    child = start(["wrap", str(file)], ["out", "begun\n"], ["hang"])
    with anyio.fail_after(TIMEOUT_S):
        assert await child.read_stdout() == b"begun\n"
        await child.stop("SIGINT")
    assert child.child_exit == ChildExit(signal="SIGINT")
    assert file.read_text() == "saved"


async def test_megabyte_of_stderr_before_stdout_does_not_deadlock(start):
    child = start(["fill", 1_000_000, 2], ["out", "after\n"])
    stdout, ended = await read_all(child)
    assert (stdout, ended) == (b"after\n", ChildExit(code=0))
    assert "bytes left out" in child.stderr_tail.to_text()


async def test_long_prompt_does_not_deadlock_if_the_child_writes_first(start, box):
    prompt = b"p" * 300_000
    child = start(["fill", 300_000], ["read"], ["record", str(box.recording)], stdin=prompt)
    stdout, ended = await read_all(child)
    assert (len(stdout), ended) == (300_000, ChildExit(code=0))
    assert box.read_record()["stdin"].encode() == prompt


async def test_child_that_never_reads_stdin_is_not_an_error(start):
    stdout, ended = await read_all(start(["out", "done\n"], stdin=b"p" * 300_000))
    assert (stdout, ended) == (b"done\n", ChildExit(code=0))


async def test_child_that_closes_stdin_is_not_an_error(start):
    stdout, ended = await read_all(start(["close", 0], ["out", "done\n"], stdin=b"p" * 300_000))
    assert (stdout, ended) == (b"done\n", ChildExit(code=0))


async def test_stdin_is_at_end_of_file_without_a_prompt(start):
    stdout, _ = await read_all(start(["read"], ["out", "not waiting\n"]))
    assert stdout == b"not waiting\n"


PIPE_LIMIT = Path("/proc/sys/fs/pipe-max-size")
# Waits for a byte, then writes without blocking: output that the pipe does not accept is lost.
IMPATIENT = f"import os; os.read(0, 1); os.set_blocking(1, False); os.write(1, b'x' * {STDOUT_PIPE_BYTES - 1})"


@pytest.mark.skipif(
    not PIPE_LIMIT.exists() or int(PIPE_LIMIT.read_text()) < STDOUT_PIPE_BYTES,
    reason="this system's pipes stay small",
)
async def test_stdout_written_before_exit_is_read_after_exit(box):
    process = spawn_child(
        [sys.executable, "-c", IMPATIENT], box.build_environment(), str(box.cwd), opens_stdin=True
    )
    child = Child(ChildSpawnResult(process, b"go"))
    await child.write_initial_stdin_and_close()
    status = process.wait()
    stdout = b""
    while chunk := await child.read_stdout():
        stdout += chunk
    child.close()
    assert (status, len(stdout)) == (0, STDOUT_PIPE_BYTES - 1)


async def test_child_leads_a_process_group_in_the_working_directory(start, box):
    await read_all(start(["record", str(box.recording)]))
    record = box.read_record()
    assert record["cwd"] == str(box.cwd)
    assert record["pid"] == record["group"] != os.getpgrp()


async def test_process_group_is_killed_after_the_child_exits(start, box):
    lifeline = box.create_lifeline()
    child = start(["say", lifeline.path, "child"], ["spawn", lifeline.path, False], ["leave", 0])
    with anyio.fail_after(TIMEOUT_S):
        assert await child.wait_for_exit() == ChildExit(code=0)
    assert lifeline.wait_until_closed()


async def test_child_that_handles_sigint_exits_without_escalation(start, box):
    lifeline = box.create_lifeline()
    child = start(["exit_on", "SIGINT", 130], ["say", lifeline.path, "child"], ["hang"])
    lifeline.wait_for("child")
    with anyio.fail_after(TIMEOUT_S):
        await child.stop("SIGINT")
    assert child.child_exit == ChildExit(code=130)
    assert lifeline.wait_until_closed()


async def test_child_that_ignores_sigint_is_terminated(start, box, monkeypatch):
    monkeypatch.setattr(children, "INTERRUPT_TIMEOUT_S", 0.05)
    lifeline = box.create_lifeline()
    child = start(["ignore", "SIGINT"], ["say", lifeline.path, "child"], ["hang"])
    lifeline.wait_for("child")
    with anyio.fail_after(TIMEOUT_S):
        await child.stop("SIGINT")
    assert child.child_exit == ChildExit(signal="SIGTERM")


async def test_child_that_ignores_signals_is_killed_with_its_process_group(start, box, impatient):
    lifeline = box.create_lifeline()
    child = start(
        ["ignore", "SIGINT", "SIGTERM"],
        ["spawn", lifeline.path, False],
        ["say", lifeline.path, "child"],
        ["hang"],
    )
    lifeline.wait_for("child")
    lifeline.wait_for("grandchild")
    with anyio.fail_after(TIMEOUT_S):
        await child.stop("SIGINT")
    assert child.child_exit == ChildExit(signal="SIGKILL")
    assert lifeline.wait_until_closed()


async def test_stop_ends_a_grandchild_outside_the_process_group(start, box):
    lifeline = box.create_lifeline()
    child = start(["spawn", lifeline.path, True], ["say", lifeline.path, "child"], ["hang"])
    lifeline.wait_for("child")
    assert os.getpgid(lifeline.wait_for("grandchild")) != lifeline.pids["child"]
    with anyio.fail_after(TIMEOUT_S):
        await child.stop()
    assert lifeline.wait_until_closed()


async def test_kill_child_ends_the_process_group_of_an_exited_child(box):
    lifeline = box.create_lifeline()
    steps = (["spawn", lifeline.path, False], ["say", lifeline.path, "child"], ["leave", 0])
    process = spawn_child(
        [box.create_fake(*steps)], box.build_environment(), str(box.cwd), opens_stdin=False
    )
    lifeline.wait_for("grandchild")
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    kill_child(process)
    assert process.returncode == 0
    assert lifeline.wait_until_closed()


async def test_stop_completes_despite_cancellation(start, box, impatient):
    lifeline = box.create_lifeline()
    child = start(["ignore", "SIGTERM"], ["say", lifeline.path, "child"], ["hang"])
    lifeline.wait_for("child")
    with anyio.fail_after(TIMEOUT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(child.stop)
            await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
    assert child.child_exit == ChildExit(signal="SIGKILL")


async def test_concurrent_waiters_receive_the_same_exit(start):
    child = start(["leave", 7])
    ends = []

    async def wait():
        ends.append(await child.wait_for_exit())

    with anyio.fail_after(TIMEOUT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            tasks.start_soon(wait)
    assert ends == [ChildExit(code=7)] * 2


async def test_exit_is_polled_without_pidfd(start, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    child = start(["leave", 4])
    with anyio.fail_after(TIMEOUT_S):
        assert await child.wait_for_exit() == ChildExit(code=4)


async def test_exited_process_group_is_not_signalled(start, monkeypatch):
    child = start(["leave", 0])
    with anyio.fail_after(TIMEOUT_S):
        await child.wait_for_exit()
    monkeypatch.setattr(
        os, "killpg", lambda *_: pytest.fail("its number may be somebody else's by now")
    )
    child.send_signal("SIGKILL")
    await child.stop()


def test_watchdog_kills_the_child_if_the_parent_is_killed_early(box):
    """The shim may be killed while anyio is imported. A silent child would not notice this."""
    lifeline = box.create_lifeline()
    program = box.create_fake(["say", lifeline.path, "child"], ["out", "here"], ["hang"])
    code = f"""
import os, signal
from shim.process.spawn import spawn_child
process = spawn_child([{program!r}], dict(os.environ), os.getcwd(), opens_stdin=False)
process.stdout.read(1)
os.kill(os.getpid(), signal.SIGKILL)
"""
    command = [sys.executable, "-P", "-c", code]
    subprocess.run(
        command, env=box.build_environment(), cwd=box.cwd, timeout=TIMEOUT_S, check=False
    )
    assert lifeline.wait_for("child") and lifeline.wait_until_closed()


async def test_watchdog_exits_with_its_child(start):
    child = start(["leave", 0])
    guards = child.pids
    assert len(guards) == 2
    with anyio.fail_after(TIMEOUT_S):
        await child.wait_for_exit()
    assert len(child.pids) == 1
    (watchdog_pid,) = guards - child.pids
    with pytest.raises(ProcessLookupError):
        os.kill(watchdog_pid, 0)


# Runs in a separate process, because all descendants of a subreaper are ended here.
STOP_FIRST_CHILD = """
import sys
import anyio
from shim.process import spawn
from shim.process.child import Child
from shim.process.spawn import ChildSpawnResult, spawn_child

async def stop_one():
    spawn.become_subreaper()
    first, second = (
        Child(ChildSpawnResult(spawn_child([program], {}, "/", opens_stdin=False), b"")) for program in sys.argv[1:]
    )
    assert await first.read_stdout() == await second.read_stdout() == b"here"
    await first.stop()
    assert first.child_exit is not None and second.child_exit is None
    with anyio.move_on_after(0.3) as waiting:
        await second.wait_for_exit()
    print("lives" if waiting.cancelled_caught else second.child_exit)
    await second.stop()

anyio.run(stop_one)
"""


def test_stopping_a_child_does_not_stop_another_child(box):
    plans = [box.create_fake(["out", "here"], ["hang"]) for _ in range(2)]
    done = subprocess.run(
        [sys.executable, "-c", STOP_FIRST_CHILD, *plans],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.stdout == "lives\n", done.stderr
