"""What a fleet stores of a machine, over a real NATS server: its sessions, and the copies of their logs."""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest
from fleet_lab import HERE, FleetLab, read_admin_join
from sandbox import wait_until
from test_fleet import UUID, Home, read_copied_lines, run_connected
from test_machines import LOOK_SECONDS, TURN_SECONDS, list_agents, read_lines, run_shim

from shim.core.fleet import subjects
from shim.core.fleet.subjects import LOG_STREAM
from shim.fleet import admin, log_stream
from shim.fleet.buckets import BucketError, request_json
from shim.fleet.connection import FleetConnection
from shim.fleet.folder import store_join_file
from shim.fleet.log_stream import create_log_stream, read_log_messages

pytestmark = pytest.mark.e2e

STANDARD_STREAMS = 3


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    folder = tmp_path / "lab"
    folder.mkdir()
    lab = FleetLab(folder)
    try:
        home = Home(lab, tmp_path)
        yield home
        run_shim(home.build, "claude", "daemon", "stop", "--any")
    finally:
        lab.close()


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


async def count_consumers(connection: FleetConnection) -> int:
    info = await request_json(connection.client, f"$JS.API.STREAM.INFO.{LOG_STREAM}", b"")
    count: int = info["state"]["consumer_count"]
    return count


async def skip_messages(messages: AsyncIterator[object], count: int) -> None:
    for _ in range(count):
        await anext(messages)


def test_log_without_its_end_is_not_complete(
    server: FleetLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server removes the consumer of a reader that pauses."""
    monkeypatch.setattr(log_stream, "CONSUMER_TTL_S", 1)
    count = 2 * log_stream.READ_BATCH_LINES

    async def read(connection: FleetConnection) -> None:
        messages = read_log_messages(connection.client, await store_messages(connection, count, 10))
        await skip_messages(messages, log_stream.READ_BATCH_LINES)
        with anyio.fail_after(TURN_SECONDS):
            while await count_consumers(connection):
                await asyncio.sleep(LOOK_SECONDS)
        with pytest.raises(BucketError, match="the log is not complete: status 503"):
            await skip_messages(messages, count)

    run_connected(read_admin_join(server), read)


def test_log_is_read_in_batches_of_few_bytes(
    server: FleetLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_stream, "READ_BATCH_BYTES", 2 * 1024**2)

    async def read(connection: FleetConnection) -> int:
        subject = await store_messages(connection, 11, 900 * 1024)
        sizes = [len(each.data) async for each in read_log_messages(connection.client, subject)]
        assert set(sizes) == {900 * 1024}
        return len(sizes)

    assert run_connected(read_admin_join(server), read) == 12


def read_machine_log(home: Home) -> str:
    """Return what `shim fleet run` of `build` has printed."""
    return (home.lab.folder / "build.log").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit")
def test_machine_that_cannot_read_its_sessions_removes_nothing(home: Home) -> None:
    """The process has no free descriptor, and cannot read the folder of its sessions."""
    session = home.start_session()
    uuid = session["sessionId"]
    run_shim(home.build, "claude", "stop", uuid[:8])
    expected = read_lines(home.here, f"build:{uuid}", None)
    assert wait_until(lambda: read_copied_lines(home, uuid) == expected, TURN_SECONDS, LOOK_SECONDS)
    (listed,) = list_agents(home.here, "--all")
    pid = home.lab.processes["build"].pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (STANDARD_STREAMS, limits[1]))
    assert wait_until(lambda: "cannot be listed" in read_machine_log(home), TURN_SECONDS)
    # A removal would be complete when a session that was started meanwhile is published.
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    other = run_shim(home.build, "claude", "--bg", "--shim-vendor", "demo", "hello")
    assert other.returncode == 0, other.stderr
    assert wait_until(lambda: len(list_agents(home.here, "--all")) == 2, TURN_SECONDS, LOOK_SECONDS)
    assert listed in list_agents(home.here, "--all")
    assert read_copied_lines(home, uuid) == expected
    assert read_machine_log(home).count("cannot be listed") == 1


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
