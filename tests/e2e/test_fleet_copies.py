"""What a fleet stores of a machine, over a real NATS server: its sessions, and the copies of their logs."""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from fleet_home import UUID, Home, home, read_copied_lines, run_connected, wait_for
from fleet_lab import HERE, FleetLab, read_admin_join
from sandbox import wait_until
from test_machines import LOOK_SECONDS, SHIM, TURN_SECONDS, list_agents, read_lines, run_shim

from shim.bridge.registry import SessionRecord, scan_sessions
from shim.core.bridge.frames import ClientHello, LogCursor
from shim.core.fleet import subjects
from shim.core.fleet.copied_line import POSITION_HEADER
from shim.core.fleet.join_file import JoinFile
from shim.core.fleet.subjects import LOG_STREAM
from shim.fleet import admin, buckets, log_copier, log_stream
from shim.fleet.buckets import BucketError, request_json
from shim.fleet.connection import FleetConnection
from shim.fleet.copied_log import iterate_copied_frames
from shim.fleet.folder import require_join_file, store_join_file
from shim.fleet.log_copier import FULL_STREAM_TEXT, LogCopier, LogCopy
from shim.fleet.log_stream import create_log_stream, list_stored_sessions, read_log_messages
from shim.fleet.membership import load_process_status
from shim.fleet.run import RELOAD_INTERVAL_S

pytestmark = pytest.mark.e2e

__all__ = ["home"]  # the fixture

STANDARD_STREAMS = 3
LATER_UUID = "fedc4321-0000-4000-8000-000000000002"
STREAM_BYTES = 64 * 1024  # of a small stream
HOUR_MS = 3_600_000
FULL_SECONDS = 12  # until a registry that is full accepts entries again
RECOVERY_SECONDS = 30.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FleetLab]:
    """Yield a fleet whose machine `here` does not run."""
    lab = FleetLab(tmp_path)
    try:
        yield lab
    finally:
        lab.close()


async def store_messages(connection: FleetConnection, count: int, size: int) -> str:
    """Store messages as the log of a session of `here`. Return their subject."""
    await create_log_stream(connection.client, "home")
    subject = subjects.build_log_subject("home", "here", UUID)
    for _ in range(count):
        await connection.client.publish(subject, bytes(size))
    await request_json(connection.client, subject, bytes(size))
    return subject


async def has_no_consumers(connection: FleetConnection) -> bool:
    info = await request_json(connection.client, f"$JS.API.STREAM.INFO.{LOG_STREAM}", b"")
    return info["state"]["consumer_count"] == 0


async def skip_messages(messages: AsyncIterator[object], count: int) -> None:
    for _ in range(count):
        await anext(messages)


def test_log_without_its_end_is_not_complete(
    server: FleetLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server removes the consumer of a reader that pauses."""
    monkeypatch.setattr(log_stream, "CONSUMER_TTL_S", 1)
    count = 2 * log_stream.READ_BATCH_LINES

    async def pause_reader(connection: FleetConnection) -> None:
        messages = read_log_messages(connection.client, await store_messages(connection, count, 10))
        await skip_messages(messages, log_stream.READ_BATCH_LINES)
        await wait_for(lambda: has_no_consumers(connection))
        with pytest.raises(BucketError, match="the log is not complete: status 503"):
            await skip_messages(messages, count)

    run_connected(read_admin_join(server), pause_reader)


def test_log_is_read_in_batches_of_few_bytes(
    server: FleetLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_stream, "READ_BATCH_BYTES", 2 * 1024**2)

    async def count_messages(connection: FleetConnection) -> int:
        subject = await store_messages(connection, 11, 900 * 1024)
        sizes = [len(each.data) async for each in read_log_messages(connection.client, subject)]
        assert set(sizes) == {900 * 1024}
        return len(sizes)

    assert run_connected(read_admin_join(server), count_messages) == 12


def start_local_session(home: Home) -> str:
    """Start a session on `build`, and return its UUID."""
    before = {each["sessionId"] for each in list_agents(home.build, "--all")}
    done = run_shim(home.build, "claude", "--bg", "--shim-vendor", "demo", "hello")
    assert done.returncode == 0, done.stderr
    (uuid,) = {each["sessionId"] for each in list_agents(home.build, "--all")} - before
    return str(uuid)


def read_machine_log(home: Home) -> str:
    """Return what `shim fleet run` of `build` has printed."""
    return (home.lab.folder / "build.log").read_text()


def read_problem(environment: dict[str, str]) -> str:
    """Return the problem that `shim fleet run` reports."""
    status = load_process_status(environment)
    assert status is not None
    return status.problem


@pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit")
def test_machine_that_cannot_read_its_sessions_removes_nothing(home: Home) -> None:
    """The process has no free descriptor, and cannot read the folder of its sessions."""
    session = home.start_session()
    uuid = session["sessionId"]
    run_shim(home.build, "claude", "stop", uuid[:8])
    expected = read_lines(home.here, f"build:{uuid}", None)
    assert wait_until(lambda: read_copied_lines(home, uuid) == expected, TURN_SECONDS, LOOK_SECONDS)
    (entry,) = list_agents(home.here, "--all")
    pid = home.lab.processes["build"].pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (STANDARD_STREAMS, limits[1]))
    assert wait_until(lambda: "cannot be listed" in read_machine_log(home), TURN_SECONDS)
    # A removal would be complete when a session that was started meanwhile is published.
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    start_local_session(home)
    assert wait_until(lambda: len(list_agents(home.here, "--all")) == 2, TURN_SECONDS, LOOK_SECONDS)
    assert entry in list_agents(home.here, "--all")
    assert read_copied_lines(home, uuid) == expected
    assert read_machine_log(home).count("cannot be listed") == 1
    assert "the sessions of this machine are not shared: " in read_machine_log(home)
    assert wait_until(lambda: read_problem(home.build) == "", TURN_SECONDS, LOOK_SECONDS)


@pytest.mark.parametrize("damage", ["expired", "damaged"])
def test_machine_leaves_after_the_end_of_its_membership(server: FleetLab, damage: str) -> None:
    environment = server.build_environment([])
    join_file = Path(environment["SHIM_STATE"], "fleet", "join.json")
    if damage == "expired":
        store_join_file(read_admin_join(server)._replace(expires=1), environment)
        server.kill_server()
    else:
        join_file.write_text("{")
    join = ("fleet", "join", str(Path(server.admin_folder, f"{HERE}.join")))
    assert "already joined a fleet" in run_shim(environment, *join).stderr
    done = run_shim(environment, "fleet", "leave")
    assert (done.returncode, done.stdout) == (0, "left the fleet\n"), done.stderr
    assert "stay in the registry" in done.stderr
    assert not join_file.exists()
    if damage == "expired":
        server.start_server()
    assert run_shim(environment, *join).returncode == 0


def test_key_of_a_machine_stays_until_its_entries_are_removed(server: FleetLab) -> None:
    environment = server.build_environment([])
    folder = Path(environment["SHIM_STATE"], "fleet")
    server.kill_server()
    refused = run_shim(environment, "fleet", "leave")
    assert (refused.returncode, "--force" in refused.stderr) == (1, True)
    assert folder.exists()
    assert run_shim(environment, "fleet", "leave", "--force").stdout == "left the fleet\n"
    assert not folder.exists()
    # A removed member can never remove its entries.
    store_join_file(server.invite("old", "machine"), environment)
    admin.revoke_member(server.admin_folder, "old")
    server.start_server()
    left = run_shim(environment, "fleet", "leave")
    assert (left.stdout, "the server refuses" in left.stderr) == ("left the fleet\n", True), (
        left.stderr
    )
    assert not folder.exists()


def test_damaged_log_does_not_stop_the_copies_of_other_sessions(home: Home) -> None:
    uuid = home.start_session()["sessionId"]
    run_shim(home.build, "claude", "stop", uuid[:8])
    assert wait_until(lambda: bool(read_copied_lines(home, uuid)), TURN_SECONDS, LOOK_SECONDS)
    home.lab.stop_machine("build")
    (recording,) = Path(home.build["SHIM_STATE"], "bridge", uuid, "log").glob("*.cast")
    header = recording.read_bytes().partition(b"\n")[0]
    recording.write_bytes(header + b'\n[1e300, "O", "line\\n"]\n')  # a time that no integer holds
    other_uuid = start_local_session(home)
    home.lab.run_machine("build", home.build)
    assert wait_until(lambda: bool(read_copied_lines(home, other_uuid)), TURN_SECONDS, LOOK_SECONDS)
    problem = f"the log of the session {uuid} is not copied"
    assert wait_until(lambda: problem in read_machine_log(home), TURN_SECONDS)
    status = run_shim(home.build, "fleet", "status")
    assert (status.returncode, "connected\n" in status.stdout) == (0, True), status.stdout
    assert "copies    1 of 2 logs are complete\n" in status.stdout
    (line,) = [line for line in status.stdout.splitlines() if uuid[:8] in line]
    assert " is copied up to line " in line
    assert line.endswith(f": {read_machine_log(home).partition(f'{problem}: ')[2].splitlines()[0]}")
    assert home.lab.processes["build"].poll() is None
    assert read_machine_log(home).count("connected to") == 2


async def store_small_stream(connection: FleetConnection, session: SessionRecord) -> LogCopy:
    """Copy a session to a small stream, which then removes the copy for newer messages. Return the
    copy.
    """
    client = connection.client
    environment = {"SHIM_STATE": session.folder.partition("/bridge/")[0]}
    copy = LogCopy(connection, session.session_id, environment)
    await copy.run(session)
    assert await list_stored_sessions(client, "home", "build") == {session.session_id}
    old_subject = subjects.build_log_subject("home", "build", UUID)
    for _ in range(STREAM_BYTES // 1000):
        await request_json(client, old_subject, bytes(1000))
    assert await list_stored_sessions(client, "home", "build") == {UUID}
    return copy


def test_evicted_copy_of_an_ended_session_is_not_repeated(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_stream, "MAX_STREAM_BYTES", STREAM_BYTES)
    home.start_session()
    home.lab.stop_machine("build")
    run_shim(home.build, "claude", "daemon", "stop", "--any")
    home.lab.kill_server()
    home.lab.remove_server_data()
    home.lab.start_server()
    (session,) = scan_sessions(home.build)
    assert not session.is_running
    now_ms = round(1000 * time.time())
    old_session = session._replace(metadata={**session.metadata, "updated": now_ms - HOUR_MS})
    new_session = session._replace(metadata={**session.metadata, "updated": now_ms + HOUR_MS})

    async def copy_sessions(connection: FleetConnection) -> None:
        await create_log_stream(connection.client, "home")
        copy = await store_small_stream(connection, old_session)
        copy.start(old_session)
        assert copy.task is not None
        await copy.task
        assert (copy.is_complete, copy.problem) == (False, FULL_STREAM_TEXT)
        assert await list_stored_sessions(connection.client, "home", "build") == {UUID}
        await copy.run(new_session)
        stored = await list_stored_sessions(connection.client, "home", "build")
        assert stored == {UUID, session.session_id}

    run_connected(require_join_file(home.build), copy_sessions)


def test_sessions_take_turns_if_too_many_run(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_copier, "MAX_RUNNING_COPIES", 1)
    monkeypatch.setattr(log_copier, "COPY_TURN_S", 0.0)
    home.lab.stop_machine("build")
    expected = {start_local_session(home) for _ in range(3)}
    assert all(session.is_running for session in scan_sessions(home.build))

    async def copy_running_sessions(connection: FleetConnection) -> None:
        copier = LogCopier(connection, home.build)

        async def are_all_copied() -> bool:
            await copier.update(scan_sessions(home.build))
            return await list_stored_sessions(connection.client, "home", "build") == expected

        await wait_for(are_all_copied)
        await copier.stop()

    run_connected(require_join_file(home.build), copy_running_sessions)


def test_problem_is_reported_until_the_next_success(
    server: FleetLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry is full for some seconds."""
    monkeypatch.setattr(buckets, "MAX_BUCKET_BYTES", STREAM_BYTES)
    run_connected(read_admin_join(server), lambda each: buckets.create_buckets(each.client))
    environment = server.build_environment([])
    server.run_machine(HERE, environment)
    busy = server.invite("busy", "machine")

    async def fill_registry(connection: FleetConnection) -> None:
        with pytest.raises(BucketError, match="maximum bytes exceeded"):
            for number in range(STREAM_BYTES // 1000):
                subject = subjects.build_session_subject("busy", f"{number}")
                await request_json(
                    connection.client, subject, bytes(1000), {"Nats-TTL": f"{FULL_SECONDS}s"}
                )

    run_connected(busy, fill_registry)
    done = run_shim(environment, "claude", "--bg", "--shim-vendor", "demo", "hello")
    assert done.returncode == 0, done.stderr
    assert wait_until(lambda: read_problem(environment) != "", FULL_SECONDS, LOOK_SECONDS)
    assert read_problem(environment) == (
        "the sessions of this machine are not published: the server of the fleet: "
        "maximum bytes exceeded"
    )
    # The other machines are not listed again before that.
    assert FULL_SECONDS + RECOVERY_SECONDS < RELOAD_INTERVAL_S
    wait_s = FULL_SECONDS + RECOVERY_SECONDS
    assert wait_until(lambda: read_problem(environment) == "", wait_s, LOOK_SECONDS)
    run_shim(environment, "claude", "daemon", "stop", "--any")


def test_process_without_a_server_does_not_hide_the_last_list(home: Home) -> None:
    """The process `shim fleet run` of `here` starts while the server is off."""
    session = home.start_session()
    (entry,) = list_agents(home.here, "--all")
    assert (entry["sessionId"], "away" in entry) == (session["sessionId"], False)
    home.lab.kill_server()
    process = subprocess.Popen([*SHIM, "fleet", "run"], env=home.here, stderr=subprocess.DEVNULL)
    try:
        assert wait_until(lambda: load_process_status(home.here) is not None, TURN_SECONDS)
        (entry,) = list_agents(home.here, "--all")
        assert (entry["sessionId"], "away" in entry) == (session["sessionId"], True)
    finally:
        process.terminate()
        process.wait(TURN_SECONDS)
    home.lab.start_server()


def test_service_ends_with_success_after_the_end_of_the_membership(server: FleetLab) -> None:
    """A service manager must not start it forever."""
    environment = server.build_environment([])
    store_join_file(read_admin_join(server)._replace(expires=1), environment)
    for options, status in (((), 1), (("--service",), 0)):
        done = run_shim(environment, "fleet", "run", *options)
        assert (done.returncode, "in the fleet home ended at" in done.stderr) == (status, True)
    run_shim(environment, "fleet", "leave")
    assert run_shim(environment, "fleet", "run", "--service").returncode == 0


def read_copied_frames(
    home: Home, join: JoinFile, cursor: LogCursor | None
) -> list[dict[str, object]]:
    """Return the frames of the only session of `build`, which is away."""

    async def collect_frames(connection: FleetConnection) -> list[dict[str, object]]:
        hello = ClientHello(1, "test", can_control=False, cursor=cursor)
        (session,) = scan_sessions(home.build)
        frames = iterate_copied_frames(connection, "build", session.session_id, hello)
        return [json.loads(frame) async for frame in frames]

    return run_connected(join, collect_frames)


def list_numbers(frames: list[dict[str, object]]) -> list[object]:
    return [frame["number"] for frame in frames if frame["kind"] == "line"]


def test_copy_is_read_after_a_cursor_of_the_same_log_only(home: Home) -> None:
    """After a system crash, a later generation uses the numbers of lost lines again."""
    uuid = home.start_session()["sessionId"]
    run_shim(home.build, "claude", "stop", uuid[:8])
    expected = [number for number, _ in read_lines(home.here, f"build:{uuid}", None)]

    def is_copied() -> bool:
        return [number for number, _ in read_copied_lines(home, uuid)] == expected

    assert wait_until(is_copied, TURN_SECONDS, LOOK_SECONDS)
    home.lab.stop_machine("build")
    join = home.lab.invite("reader", "watch")
    last = expected[-1]
    for cursor in (None, LogCursor(1, 0), LogCursor(1, 5), LogCursor(1, last), LogCursor(1, 99)):
        frames = read_copied_frames(home, join, cursor)
        after = cursor.number if cursor else 0
        assert list_numbers(frames) == [each for each in expected if each > after], cursor
        assert (frames[0]["number"], "gap" in [each["kind"] for each in frames]) == (last, False)
    for cursor in (LogCursor(2, 5), LogCursor(0, 5), LogCursor(2, last)):
        frames = read_copied_frames(home, join, cursor)
        assert frames[1] == {"kind": "gap", "from": 0, "to": last, "reason": "unknown"}
        assert list_numbers(frames) == expected


def test_number_without_a_signature_is_not_sent(home: Home) -> None:
    uuid = home.start_session()["sessionId"]
    assert wait_until(lambda: bool(read_copied_lines(home, uuid)), TURN_SECONDS, LOOK_SECONDS)
    run_shim(home.build, "claude", "daemon", "stop", "--any")
    home.lab.stop_machine("build")
    mallory = home.lab.forge_member(home.lab.invite("mallory", "watch"), allows_all=True)
    subject = subjects.build_log_subject("home", "build", uuid)

    async def forge_line(connection: FleetConnection) -> None:
        headers = {POSITION_HEADER: "1 999"}
        await request_json(connection.client, subject, b"forged", headers)

    run_connected(mallory, forge_line)
    frames = read_copied_frames(home, home.lab.invite("reader", "watch"), None)
    assert frames[0]["number"] == 0
    assert 999 not in list_numbers(frames)
    assert len(list_numbers(frames)) > 5


def test_refused_removal_of_a_copy_does_not_affect_the_others(
    server: FleetLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = []

    async def refuse_first_session(copy: LogCopy) -> None:
        if copy.session_id == UUID:
            raise BucketError("it refuses the request", 1)
        removed.append(copy.session_id)

    async def remove_copies(connection: FleetConnection) -> None:
        copier = LogCopier(connection, server.build_environment([]))
        for session_id in (UUID, LATER_UUID):
            copier._get_copy(session_id)
        monkeypatch.setattr(LogCopy, "remove", refuse_first_session)
        with pytest.raises(BucketError, match="it refuses the request"):
            await copier.update([])
        await copier.update([])
        assert removed == [LATER_UUID]

    run_connected(read_admin_join(server), remove_copies)


def test_copy_that_ignores_a_cancellation_is_ended(server: FleetLab) -> None:
    """The client library ignores a cancellation while it sends."""

    async def ignore_cancellation() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    async def stop_copier(connection: FleetConnection) -> None:
        copier = LogCopier(connection, {})
        task = asyncio.create_task(ignore_cancellation())
        await asyncio.sleep(0)
        copier._get_copy(UUID).task = task
        with anyio.fail_after(TURN_SECONDS):
            await copier.stop()
        assert task.cancelled()

    run_connected(read_admin_join(server), stop_copier)
