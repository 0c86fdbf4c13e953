"""Failures of a host: killed at any moment, no disk, no locks, clocks that jump, clients that do
not read.

Nothing that was sent to a client is lost, the session's later state is correct, and the session can
be resumed.
"""

import errno
import fcntl
import os
import random
import resource
import select
import signal
import subprocess
import sys
import time
from itertools import count
from typing import Any

import pytest
import sweeps
from box import CONVERSE, STREAM, format_ndjson
from host_box import HostingBox
from session_hosts import TIMEOUT_S, read_until_result, wait_for_frame

from shim.bridge import launch, lock, registry, sockets
from shim.bridge.client import connect_to_session_blocking, send_frames_and_collect_answers
from shim.bridge.launch import respawn_session
from shim.bridge.lock import FileLocksUnsupportedError
from shim.bridge.log import RecordedSessionLog
from shim.core.errors import FrontendError
from tests.conversation.test_conversation import user
from tests.conversation.test_persistent_driver import HELLO, INIT, TURN, result, says

ROUNDS = 200 if sweeps.full else 4
LATEST = 0.3  # seconds after its start at which a host is killed: its turn is over by then
BRIDGE = {"SHIM_BRIDGE": "1"}
# Seconds after its start at which a frontend is killed: its message is answered by then.
ANSWERED = 0.25
SAYS = says("some words of a vendor that says a lot")


def read_log_lines(session):
    """Return the lines of the log by number."""
    log = RecordedSessionLog(os.path.join(session.folder, "log"), 10_000)
    lines, after = {}, log.first_line_number - 1
    while entries := log.read(after, 1000):
        lines |= {entry.number: entry.line for entry in entries}
        after = entries[-1].number
    return lines


@pytest.fixture
def chatty(box, hosts):
    """Return a function that starts a host whose vendor writes `count` lines in a turn, and the
    lifeline of its processes.
    """

    def begin(count, **spec_fields):
        lifeline = box.create_lifeline()
        child = box.create_fake(
            ["say", lifeline.path, "vendor"], HELLO, ["hear", "go"], ["out", format_ndjson(INIT)],
            ["repeat", format_ndjson(SAYS), count], ["out", format_ndjson(result())], ["hear", "again"],
            ["repeat", format_ndjson(SAYS), count], ["out", format_ndjson(result())], ["hear", "never"],
        )  # fmt: skip
        hosts.environment.update(SHIM_VENDOR="qwen", SHIM_BIN=child)
        return hosts.start_session("go", **spec_fields), lifeline

    return begin


@pytest.fixture
def hosting_box(box):
    """Yield the box, whose hosts end with the test."""
    made = HostingBox(box)
    yield made
    made.stop_hosts()


def kill(hosts, session):
    pid = hosts.wait_until(session, lambda now: now.metadata["pid"] is not None).metadata["pid"]
    os.kill(pid, signal.SIGKILL)
    return hosts.wait_for_end(session)


def test_log_contains_every_sent_line_after_the_host_is_killed(hosts, chatty):
    chance = random.Random(16)
    for _ in range(ROUNDS):
        session, lifeline = chatty(300)
        with hosts.connect(session, partial=False) as connection:
            frames = list(connection.read_frames(chance.uniform(0, LATEST)))
            now = kill(hosts, session)
            frames += connection.read_frames(TIMEOUT_S)
        sent_lines = {came["number"]: came["raw"] for came in frames if came["kind"] == "line"}
        log = read_log_lines(session)
        assert sent_lines.items() <= log.items() and list(log) == list(range(1, len(log) + 1))
        finished = any(b'"type":"result"' in line for line in log.values())
        assert now.metadata["state"] in (("done", "failed") if finished else ("failed",)), (
            now.metadata
        )
        assert (now.metadata["status"], now.metadata["pid"]) == (None, None)
        assert not os.path.lexists(os.path.join(session.folder, sockets.SOCKET_FILE))
        assert lifeline.wait_until_closed_or_unused(), "a process of the vendor's is left"


def test_session_of_a_killed_host_resumes_the_vendor_session(box, hosts):
    child = box.create_fake(
        HELLO,
        ["hear", "go"],
        ["out", format_ndjson(INIT)],
        ["repeat", format_ndjson(SAYS), 100],
        ["hang"],
    )
    hosts.environment.update(SHIM_VENDOR="qwen", SHIM_BIN=child)
    session = hosts.start_session("go")
    with hosts.connect(session, partial=False) as connection:
        wait_for_frame(connection, "line", number=20)
    killed = kill(hosts, session)
    assert killed.metadata["state"] == "failed"
    last = max(read_log_lines(session))
    child = box.create_fake(
        ["record", str(box.recording)], HELLO, ["hear", "and?"], TURN, ["hear", "never"]
    )
    hosts.environment["SHIM_BIN"] = child
    new_session = respawn_session(killed, hosts.environment, {"role": "user", "content": "and?"})
    with hosts.connect(new_session, partial=False) as connection:
        assert connection.welcome["generation"] == 2
        assert read_until_result(connection)[-1]["subtype"] == "success"
    args = box.read_record()["arguments"]
    assert INIT["session_id"] in " ".join(args), args
    now = read_log_lines(session)  # the log of a running session grows
    assert list(now) == list(range(1, max(now) + 1)) and max(now) > last


def test_session_fails_without_losing_sent_lines_if_its_log_is_unwritable(hosts, chatty):
    session, lifeline = chatty(2000)
    with hosts.connect(session, partial=False) as connection:
        read_until_result(connection)
        size = sum(
            entry.stat().st_size for entry in os.scandir(os.path.join(session.folder, "log"))
        )
        resource.prlimit(
            hosts.load_session(session).metadata["pid"],
            resource.RLIMIT_FSIZE,
            (size + 200_000, size + 200_000),
        )
        connection.send_frame_blocking(
            {"kind": "message", "id": "m", "message": {"role": "user", "content": "again"}}
        )
        frames = list(connection.read_frames(TIMEOUT_S))
    assert (
        frames[-1]["kind"] == "bye"
        and "log cannot be written: File too large" in frames[-1]["reason"]
    )
    now = hosts.wait_for_end(session)
    assert now.metadata["state"] == "failed" and "File too large" in now.metadata["detail"]
    log = read_log_lines(session)
    assert {
        came["number"]: came["raw"] for came in frames if came["kind"] == "line"
    }.items() <= log.items()
    assert list(log) == list(range(1, len(log) + 1)) and lifeline.wait_until_closed()


@pytest.mark.full
@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a filesystem")
def test_full_disk_fails_the_session(hosts, chatty, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", str(small)]
    )
    if mounted.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        hosts.environment["SHIM_STATE"] = str(small)
        session, lifeline = chatty(20_000)
        with hosts.connect(session, partial=False) as connection:
            frames = list(connection.read_frames(TIMEOUT_S))
        assert "No space left on device" in frames[-1]["reason"]
        sent_lines = {came["number"]: came["raw"] for came in frames if came["kind"] == "line"}
        assert (
            hosts.wait_for_end(session).metadata["state"] == "failed"
            and lifeline.wait_until_closed()
        )
        assert sent_lines.items() <= read_log_lines(session).items()
        for entry in os.scandir(os.path.join(session.folder, "log")):
            os.unlink(entry)
        assert registry.remove_session(hosts.load_session(session))
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


@pytest.fixture
def small_disk(tmp_path):
    """Mount a file system of 400 kB."""
    small = tmp_path / "disk"
    small.mkdir()
    if (
        os.getuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=400k,mode=700", "tmpfs", str(small)]
        ).returncode
    ):
        pytest.skip("only root can mount a file system")
    yield small
    subprocess.run(["umount", "-l", str(small)], check=True)


def fill(disk):
    """Fill a disk. Return the file that fills it."""
    path = disk / "filler"
    with path.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(1000))
    return path


def test_message_sent_on_a_full_disk_is_counted_as_unanswered(hosts, chatty, small_disk):
    """The host accepts the message but cannot store the answer: the session fails with one
    unanswered message.
    """
    hosts.environment["SHIM_STATE"] = str(small_disk)
    session, lifeline = chatty(5)
    with hosts.connect(session, partial=False) as connection:
        read_until_result(connection)
        hosts.wait_until(session, lambda now: now.metadata["status"] == "idle")
        filler = fill(small_disk)
        connection.send_frame_blocking(
            {"kind": "message", "id": "m", "message": {"role": "user", "content": "again"}}
        )
        assert "No space left on device" in list(connection.read_frames(TIMEOUT_S))[-1]["reason"]
    now = hosts.wait_for_end(session)
    assert (now.metadata["state"], now.metadata["unanswered"]) == (
        "failed",
        1,
    ) and lifeline.wait_until_closed()
    assert "No space left on device" in now.metadata["detail"] and now.metadata["cwd"] == str(
        hosts.cwd
    )
    with pytest.raises(FrontendError, match="No space left on device"):
        respawn_session(now, hosts.environment)
    with pytest.raises(FrontendError, match="No space left on device"):
        hosts.start_session("another")
    assert [each.session_id for each in registry.list_sessions(hosts.environment)] == [
        session.session_id
    ]
    filler.unlink()
    assert hosts.load_session(session).metadata["state"] == "failed" and registry.remove_session(
        hosts.load_session(session)
    )


def test_sessions_are_listed_but_not_started_or_removed_without_file_locks(
    hosts, chatty, monkeypatch
):
    def refuse(descriptor, how):
        raise OSError(errno.ENOLCK, "No locks available")

    session, lifeline = chatty(5)
    with hosts.connect(session) as link:
        read_until_result(link)
        monkeypatch.setattr(fcntl, "flock", refuse)
        assert hosts.load_session(session).is_running
    killed = kill(hosts, session)
    assert [each.session_id for each in registry.list_sessions(hosts.environment)] == [
        session.session_id
    ] and lifeline.wait_until_closed()
    assert killed.metadata["pid"] is None and killed.metadata["state"] not in registry.ACTIVE_STATES
    with pytest.raises(FileLocksUnsupportedError):
        respawn_session(killed, hosts.environment)
    with pytest.raises(FileLocksUnsupportedError):
        registry.remove_session(killed)
    assert registry.remove_old_sessions(hosts.environment, days=0) == 0 and os.path.exists(
        session.folder
    )
    monkeypatch.undo()
    assert registry.remove_session(killed)


JUMPS = """
import itertools, sys, time
real, jumps = time.time, itertools.cycle((0, 86400, -86400, 1e9))
time.time = lambda: real() + next(jumps)
from shim.bridge.host.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def test_clock_jumps_do_not_disorder_line_timestamps(hosts, chatty, monkeypatch):
    monkeypatch.setattr(launch, "build_host_command", lambda: [sys.executable, "-P", "-c", JUMPS])
    session, _ = chatty(50)
    with hosts.connect(session, partial=False) as connection:
        first = list(_up_to_result(connection))
    with hosts.connect(session, partial=False) as connection:
        second_lines = list(_up_to_result(connection))
    times = [came["at"] for came in first]
    assert times == sorted(times) and times[-1] - times[0] < TIMEOUT_S * 1000
    assert [(came["number"], came["at"], came["raw"]) for came in first] == [
        (came["number"], came["at"], came["raw"]) for came in second_lines
    ]


def _up_to_result(connection):
    for came in connection.read_frames(TIMEOUT_S):
        if came["kind"] == "line":
            yield came
            if came["line"]["type"] == "result":
                return


def test_session_resumes_despite_the_leftover_socket_of_a_killed_host(hosts, chatty):
    session, _ = chatty(5)
    pid = hosts.wait_until(session, lambda now: now.metadata["pid"] is not None).metadata["pid"]
    os.kill(pid, signal.SIGKILL)
    descriptor = os.pidfd_open(pid)
    assert select.select([descriptor], [], [], TIMEOUT_S)[0]
    os.close(descriptor)
    assert os.path.lexists(os.path.join(session.folder, sockets.SOCKET_FILE))
    # The process id is in use again.
    registry.write_metadata(session.folder, {**session.metadata, "pid": os.getpid()})
    new_session = hosts.start_session(session=session.session_id, resumes=True)
    with hosts.connect(new_session) as connection:
        assert connection.welcome["generation"] == 2


def test_stalled_watcher_receives_a_gap_frame_and_every_line(hosts, chatty):
    session, _ = chatty(8000)
    with hosts.connect(session, partial=False, role="watch", client="still") as still:
        with hosts.connect(session, partial=False) as other:
            read_until_result(other)
        numbers, gaps = [], 0
        for came in still.read_frames(TIMEOUT_S):
            gaps += came["kind"] == "gap"
            if came["kind"] == "line":
                numbers.append(came["number"])
                if came["line"]["type"] == "result":
                    break
    assert gaps and numbers == list(range(1, len(numbers) + 1)) and len(numbers) > 8000


WATCHER = """
import os, sys
from shim.bridge.client import connect_to_session_blocking
numbers = []
with connect_to_session_blocking(sys.argv[1], os.environ, partial=False, role="watch") as connection:
    print("here", flush=True)
    for frame in connection.read_frames(120):
        if frame["kind"] == "line":
            numbers.append(frame["number"])
            if frame["line"]["type"] == "result" and len(numbers) > 20000:
                break
print(numbers == list(range(1, len(numbers) + 1)), len(numbers))
"""


@pytest.mark.full
def test_stopped_watcher_costs_little_memory_and_receives_every_line(hosts, chatty):
    session, _ = chatty(20_000)
    with hosts.connect(session, partial=False) as connection:
        read_until_result(connection)
        argv = [sys.executable, "-P", "-c", WATCHER, session.session_id]
        watcher = subprocess.Popen(argv, env=hosts.environment, stdout=subprocess.PIPE, text=True)
        assert watcher.stdout.readline() == "here\n"
        os.kill(watcher.pid, signal.SIGSTOP)
        pid = hosts.load_session(session).metadata["pid"]
        before = _resident(pid)
        connection.send_frame_blocking(
            {"kind": "message", "id": "m", "message": {"role": "user", "content": "again"}}
        )
        read_until_result(connection)
        list(connection.read_frames(60.0))
        assert _resident(pid) - before < 8 * 1024 * 1024  # including what the turn itself left
        os.kill(watcher.pid, signal.SIGCONT)
        output, _ = watcher.communicate(timeout=TIMEOUT_S)
    assert output.startswith("True ") and int(output.split()[1]) > 20_000


def _resident(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_connecting_and_disconnecting_clients_do_not_disturb_others(hosts, chatty):
    chance, numbers = random.Random(16), count()
    session, _ = chatty(1000)
    with hosts.connect(session, partial=False) as other_connection:
        links = []
        while next(numbers) < (60 if sweeps.full else 25):
            links.append(hosts.connect(session, client=f"client {len(links)}"))
            if chance.random() < 0.7:
                links.pop(chance.randrange(len(links))).close()
        received_numbers = [came["number"] for came in _up_to_result(other_connection)]
        for connection in links:
            connection.close()
    assert (
        received_numbers == list(range(1, len(received_numbers) + 1))
        and len(received_numbers) > 1000
    )
    hosts.wait_until(session, lambda now: now.metadata["driver"] is None)
    received = send_frames_and_collect_answers(
        session.session_id, [{"kind": "end"}], hosts.environment
    )
    assert received[-1]["kind"] == "bye" and hosts.wait_for_end(session).metadata["state"] == "done"
    with lock.probe_session_host_lock(session.folder) as dead:
        assert dead


@pytest.mark.parametrize("kills", [3, pytest.param(200, marks=pytest.mark.full)])
def test_killed_frontends_lose_no_messages_and_leak_no_resources(hosting_box, kills):
    chance = random.Random(16)
    turn = ["out", format_ndjson(INIT, says("Done."), result("Done."))]
    hosting_box.set_vendor_plan(HELLO, *(kills + 2) * (["hear", "go"], turn), ["hear", "never"])
    with hosting_box.box.start_claude(
        *CONVERSE, stdin=subprocess.PIPE, environment={**hosting_box.environment, **BRIDGE}
    ) as first:
        first.send_lines(user("go"))
        first.end_input()
    session = hosting_box.wait_until_uncontrolled(hosting_box.list_sessions()[0])
    args = ("-p", "go", "--resume", session.session_id, *STREAM)
    before, opened = hosting_box.list_children(session), _descriptors(session)
    with connect_to_session_blocking(
        session.session_id, hosting_box.variables, role="watch", partial=False
    ) as watcher:
        frames = list[Any]()
        for _ in range(kills):
            with hosting_box.box.start_claude(
                *args, environment=hosting_box.environment
            ) as running:
                frames += watcher.read_frames(chance.uniform(0, ANSWERED))
                running.send_signal(signal.SIGKILL)
                running.wait_for_status()
        done, deadline = hosting_box.run_claude(*args), time.monotonic() + TIMEOUT_S
        # A message of a killed frontend is being answered.
        while "is running in the background" in done.stderr:
            assert time.monotonic() < deadline, done
            done = hosting_box.run_claude(*args)
        assert (done.status, done.result["result"]) == (0, "Done.")
        line_frames = [came for came in frames if came["kind"] == "line"]
        log = read_log_lines(hosting_box.wait_until_idle(session))
        lines = (came for came in watcher.read_frames(TIMEOUT_S) if came["kind"] == "line")
        while len(line_frames) < len(log):
            line_frames.append(next(lines))
    assert {came["number"]: came["raw"] for came in line_frames} == log
    kinds = [came["line"]["type"] for came in line_frames]
    assert kinds.count("result") == kinds.count("user") > 1, (
        "each message that was taken was answered"
    )
    deadline = time.monotonic() + TIMEOUT_S
    while hosting_box.list_children(session) != before or _descriptors(session) > opened:
        assert time.monotonic() < deadline, "something of a frontend that was killed is left"


def _descriptors(session):
    return len(os.listdir(f"/proc/{session.metadata['pid']}/fd"))
