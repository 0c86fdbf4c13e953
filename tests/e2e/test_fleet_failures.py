"""What the parts of a fleet do when its server is killed or stalls, over a real NATS server with TLS."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fleet_home import run_connected, wait_for
from fleet_lab import FleetLab, read_admin_join
from sandbox import wait_until
from test_fleet_tunnels import PROGRAM, TunnelLab, is_running

from shim.bridge.listings import FleetSessionLister
from shim.core.fleet.join_file import get_member_key_pair, get_read_key
from shim.core.fleet.roles import DRIVE, MACHINE
from shim.core.fleet.subjects import build_lease_subject
from shim.core.fleet.tunnel import (
    TO_MEMBER,
    WINDOW_BYTES,
    MessageKind,
    TunnelEndpoint,
    TunnelError,
    TunnelKeys,
    decode_exit,
)
from shim.fleet import machine_tunnels, publisher
from shim.fleet.buckets import (
    BucketError,
    StoredEntry,
    create_buckets,
    read_entries,
    read_entry,
    store_message,
)
from shim.fleet.connection import FleetConnection, FleetUnavailableError, connect_to_fleet
from shim.fleet.dial import open_tunnel
from shim.fleet.folder import store_join_file
from shim.fleet.log_stream import create_log_stream, read_log_messages
from shim.fleet.machine_tunnels import MachineTunnels
from shim.fleet.membership import load_process_status
from shim.fleet.publisher import MachinePublisher
from shim.fleet.tasks import cancel_tasks, run_until_first_end
from shim.fleet.tunnels import Tunnel
from shim.fleet.view import FleetView

pytestmark = pytest.mark.e2e

WAIT_SECONDS = 30.0
LOOK_SECONDS = 0.05
# Their data does not fit the 2 MiB that the client library buffers, and the buffers of the sockets.
STALLED_TUNNELS = 30
MACHINE_TUNNELS = 12
# Writes its id to a file, and another line at the end of its stdin. Only SIGKILL ends it.
STUBBORN_PROGRAM = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(sys.argv[1], "a") as file:
    file.write(f"{os.getpid()}\\n")
    file.flush()
    sys.stdin.read()
    file.write("end of stdin\\n")
while True:
    time.sleep(1)
"""


@pytest.fixture(name="lab")
def create_lab(tmp_path: Path) -> Iterator[FleetLab]:
    folder = tmp_path / "lab"
    folder.mkdir()
    lab = FleetLab(folder)
    yield lab
    continue_server(lab)
    lab.close()


@pytest.fixture(name="tunnels")
def create_tunnels(lab: FleetLab, tmp_path: Path) -> Iterator[TunnelLab]:
    tunnels = TunnelLab(lab, tmp_path)
    yield tunnels
    if tunnels.machine is not None:
        tunnels.machine.kill()
        tunnels.machine.communicate()


def create_tunnel(connection: FleetConnection, number: int) -> Tunnel:
    """Return an end of a tunnel whose other end does not exist."""
    join = connection.join
    key_pair, key = get_member_key_pair(join), get_read_key(join)
    keys = TunnelKeys(key_pair, key_pair.public_key, key, key)
    subject = f"shim.home.{join.name}.down.{join.name}.{number}"
    return Tunnel(connection.client, subject, TunnelEndpoint(keys, f"{number}", "x", TO_MEMBER))


def kill_process(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


async def read_log(connection: FleetConnection) -> None:
    async for _ in read_log_messages(connection.client, "shim.home.here.log.x"):
        pass


def list_operations(connection: FleetConnection) -> dict[str, Coroutine[Any, Any, Any]]:
    """Return an operation for each kind of request, by its name."""
    client, view = connection.client, FleetView(connection.join)
    return {
        "read entries": read_entries(client, "$KV.shim_sessions.>"),
        "write an entry": store_message(client, "$KV.shim_sessions.here.x", b"x"),
        "load the view": view.load(connection),
        "watch the view": view.watch(connection),
        "read a log": read_log(connection),
        "open a tunnel": open_tunnel(connection, "build"),
        "accept tunnels": MachineTunnels(connection, os.environ).serve(),
        "check a tunnel": create_tunnel(connection, 1).check_silence(),
    }


def test_operations_report_a_server_that_was_killed(lab: FleetLab) -> None:
    async def check_connection(connection: FleetConnection) -> None:
        await create_buckets(connection.client)
        await create_log_stream(connection.client, "home")
        await FleetView(connection.join).load(connection)
        lab.kill_server()
        await wait_for(lambda: connection.client.is_closed)
        results = list_operations(connection)
        for name, operation in results.items():
            with pytest.raises(FleetUnavailableError, match="the server of the fleet is not"):
                await operation
                pytest.fail(f"no error: {name}")

    run_connected(read_admin_join(lab), check_connection)


def stall_server(lab: FleetLab) -> None:
    """Stop the server. Its sockets stay open."""
    assert lab.server is not None
    lab.server.send_signal(signal.SIGSTOP)


def continue_server(lab: FleetLab) -> None:
    assert lab.server is not None
    lab.server.send_signal(signal.SIGCONT)


async def fill_window(tunnel: Tunnel) -> None:
    """Send as much data as the other side accepts, and wait until it accepts more, which is never."""
    await tunnel.send_data(MessageKind.STDOUT, bytes(WINDOW_BYTES))
    pytest.fail("the data was accepted")


async def wait_for_blocked_tasks(connection: FleetConnection) -> None:
    """Wait until tasks wait for the client library to send their messages."""
    flush_queue = connection.client._flush_queue
    assert flush_queue is not None
    await wait_for(lambda: flush_queue.qsize() > 1)


def test_tunnels_end_when_the_server_stalls(lab: FleetLab) -> None:
    async def check_connection(connection: FleetConnection) -> None:
        stall_server(lab)
        tunnels = [create_tunnel(connection, number) for number in range(STALLED_TUNNELS)]
        tasks = [
            asyncio.create_task(run_until_first_end(fill_window(tunnel), tunnel.check_silence()))
            for tunnel in tunnels
        ]
        await wait_for_blocked_tasks(connection)
        _, pending = await asyncio.wait(tasks, timeout=WAIT_SECONDS)
        assert not pending
        for task in tasks:
            assert isinstance(task.exception(), FleetUnavailableError | TunnelError)

    run_connected(read_admin_join(lab), check_connection)


def test_cancelled_tasks_end_when_the_server_stalls(lab: FleetLab) -> None:
    async def check_connection(connection: FleetConnection) -> None:
        stall_server(lab)
        tasks = [
            asyncio.create_task(fill_window(create_tunnel(connection, number)))
            for number in range(STALLED_TUNNELS)
        ]
        await wait_for_blocked_tasks(connection)
        for task in tasks:
            task.cancel()
        _, pending = await asyncio.wait(tasks, timeout=WAIT_SECONDS)
        assert not pending
        assert all(task.cancelled() for task in tasks)

    run_connected(read_admin_join(lab), check_connection)


def test_closed_connection_leaves_no_task_when_the_server_stalls(lab: FleetLab) -> None:
    """The client library waits forever until its messages are sent."""

    async def run_check() -> None:
        async with connect_to_fleet(read_admin_join(lab)) as connection:
            stall_server(lab)
            tasks = [
                asyncio.create_task(fill_window(create_tunnel(connection, number)))
                for number in range(STALLED_TUNNELS)
            ]
            await wait_for_blocked_tasks(connection)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await wait_for(lambda: connection.client.is_closed)
        await wait_for(lambda: len(asyncio.all_tasks()) == 1)

    asyncio.run(run_check())


def test_lost_connection_is_reported_before_its_socket_is_closed(lab: FleetLab) -> None:
    async def check_connection(connection: FleetConnection) -> None:
        stall_server(lab)
        with pytest.raises(FleetUnavailableError, match="stale connection"):
            async with asyncio.timeout(WAIT_SECONDS):
                await connection.wait_until_lost()
        # The client library closes the socket later.
        assert not connection._closed.is_set()

    run_connected(read_admin_join(lab), check_connection)


async def start_publisher(connection: FleetConnection, holder: str) -> MachinePublisher:
    machine = MachinePublisher(connection, os.environ, holder)
    await machine.start()
    return machine


async def read_lease(connection: FleetConnection) -> StoredEntry:
    subject = build_lease_subject(connection.join.name)
    return await read_entry(connection.client, subject)


@pytest.fixture(name="fast_renewals")
def make_renewals_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "LEASE_INTERVAL_S", 0.1)
    monkeypatch.setattr(publisher, "RENEWAL_TIMEOUT_S", 0.5)
    monkeypatch.setattr(publisher, "RENEWAL_RETRY_S", 0.1)


@pytest.mark.usefixtures("fast_renewals")
def test_lease_is_renewed_after_a_confirmation_was_lost(lab: FleetLab) -> None:
    """The server stores two renewals at once, after the first was not confirmed in time."""

    async def check_connection(connection: FleetConnection) -> None:
        machine = await start_publisher(connection, "one")
        first_sequence = (await read_lease(connection)).sequence
        stall_server(lab)
        sent_count = connection.client.stats["out_msgs"]
        task = asyncio.create_task(machine.renew_lease())
        await wait_for(lambda: connection.client.stats["out_msgs"] >= sent_count + 2)
        continue_server(lab)

        async def is_renewed() -> bool:
            assert not task.done()
            return (await read_lease(connection)).sequence >= first_sequence + 4

        await wait_for(is_renewed)
        await cancel_tasks([task])

    run_connected(read_admin_join(lab), check_connection)


@pytest.mark.usefixtures("fast_renewals")
def test_lease_that_is_not_renewed_ends_the_connection(
    lab: FleetLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "LEASE_FAILURE_LIMIT_S", 1.0)

    async def check_connection(connection: FleetConnection) -> None:
        machine = await start_publisher(connection, "one")
        stall_server(lab)
        with pytest.raises(FleetUnavailableError, match="not renewed: no answer within"):
            async with asyncio.timeout(WAIT_SECONDS):
                await machine.renew_lease()

    run_connected(read_admin_join(lab), check_connection)


@pytest.mark.usefixtures("fast_renewals")
def test_lease_of_another_process_is_neither_replaced_nor_removed(lab: FleetLab) -> None:
    async def check_connection(connection: FleetConnection) -> None:
        machine = await start_publisher(connection, "one")
        other = MachinePublisher(connection, os.environ, "two")
        other._lease_sequence = machine._lease_sequence
        await other._put_lease()
        stored = await read_lease(connection)
        with pytest.raises(FleetUnavailableError, match="another process has replaced the lease"):
            await machine.renew_lease()
        with pytest.raises(BucketError, match="wrong last sequence"):
            await machine.stop()
        assert await read_lease(connection) == stored
        await other.stop()
        assert (await read_lease(connection)).data == b""

    run_connected(read_admin_join(lab), check_connection)


def test_machine_ends_its_relays_when_the_server_stalls(tunnels: TunnelLab) -> None:
    tunnels.start_machine("count")
    assert tunnels.machine is not None
    dials = [tunnels.dial(stdout=subprocess.DEVNULL) for _ in range(MACHINE_TUNNELS)]
    assert wait_until(
        lambda: len(tunnels.list_started()) == MACHINE_TUNNELS, WAIT_SECONDS, LOOK_SECONDS
    )
    stall_server(tunnels.lab)
    pids = [int(line.split()[0]) for line in tunnels.list_started()]
    for dial in dials:
        _, stderr = dial.communicate(timeout=WAIT_SECONDS)
        assert dial.returncode == 255, stderr
    assert tunnels.machine.wait(WAIT_SECONDS) == 1
    assert not any(is_running(pid) for pid in pids)


def test_relay_ends_before_a_machine_that_stops(tunnels: TunnelLab) -> None:
    """The machine stops while it waits for a relay that ignores all but SIGKILL."""
    path = tunnels.folder / "started"
    tunnels.start_machine("", sys.executable, "-c", STUBBORN_PROGRAM, str(path))
    assert tunnels.machine is not None
    with tunnels.dial() as dial:
        pid = tunnels.wait_for_relay()
        dial.terminate()
    assert wait_until(lambda: len(tunnels.list_started()) == 2, WAIT_SECONDS, LOOK_SECONDS)
    tunnels.machine.terminate()
    try:
        assert tunnels.machine.wait(WAIT_SECONDS) == 0
        assert not is_running(pid)
    finally:
        kill_process(pid)


async def read_tunnel(tunnel: Tunnel) -> None:
    """Read the output of a relay until the connection is lost."""
    await tunnel.send(MessageKind.PING)
    while True:
        await tunnel.grant_written(await tunnel.receive())


def test_relay_ends_when_its_output_cannot_be_sent(
    tunnels: TunnelLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tunnels.folder / "started"
    argv = (sys.executable, "-c", PROGRAM, str(path), "count")
    monkeypatch.setattr(machine_tunnels, "RELAY_ARGV", argv)

    async def check_connection(connection: FleetConnection) -> None:
        machine = MachineTunnels(connection, os.environ)
        serving = asyncio.create_task(machine.serve())
        await connection.client.flush()
        tunnel = await open_tunnel(connection, connection.join.name)
        reading = asyncio.create_task(read_tunnel(tunnel))
        await wait_for(lambda: (tunnels.folder / "started.sent").exists())
        tunnels.lab.kill_server()
        try:
            await wait_for(lambda: not machine._served)
            assert not is_running(tunnels.wait_for_relay())
        finally:
            kill_process(tunnels.wait_for_relay())
            await cancel_tasks([serving, reading])

    run_connected(read_admin_join(tunnels.lab), check_connection)


def test_member_gets_the_reason_of_an_unexpected_error(
    lab: FleetLab, capfd: pytest.CaptureFixture[str]
) -> None:
    """A tunnel that fails does not affect others."""

    async def receive_exit(connection: FleetConnection) -> tuple[int, str]:
        tunnel = await open_tunnel(connection, connection.join.name)
        await tunnel.send(MessageKind.PING)
        async with asyncio.timeout(WAIT_SECONDS):
            message = await tunnel.receive()
        assert message.kind is MessageKind.EXIT
        return decode_exit(message.content)

    async def check_connection(connection: FleetConnection) -> None:
        machine = MachineTunnels(connection, {"SHIM_STATE": str(lab.folder), "INVALID\0": ""})
        serving = asyncio.create_task(machine.serve())
        await connection.client.flush()
        for _ in range(2):
            status, reason = await receive_exit(connection)
            assert (status, reason) == (
                255,
                "the tunnel has failed: ValueError: embedded null byte",
            )
        await wait_for(lambda: not machine._served)
        assert not serving.done()
        await cancel_tasks([serving])

    run_connected(read_admin_join(lab), check_connection)
    assert "ValueError: embedded null byte" in capfd.readouterr().err


def test_listing_has_the_reason_if_the_server_stalls(lab: FleetLab) -> None:
    stall_server(lab)
    with FleetSessionLister(["build"], lab.build_environment([])) as lister:
        (listing,) = lister.list_sessions(includes_ended=True)
    url = read_admin_join(lab).url
    assert listing.problem == (
        f"the server of the fleet is not available: no answer from {url} within 3 s"
    )


@pytest.mark.parametrize("role", [DRIVE, MACHINE])
def test_process_reconnects_after_the_server_has_stalled(
    lab: FleetLab, tmp_path: Path, role: str
) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    environment = lab.build_environment([]) | {"SHIM_STATE": str(state)}
    store_join_file(lab.invite("laptop", role), environment)
    lab.run_machine("laptop", environment)

    def get_problem() -> str:
        status = load_process_status(environment)
        assert status is not None
        return status.problem

    stall_server(lab)
    # A service may report before that its request was not answered.
    assert wait_until(lambda: "stale connection" in get_problem(), WAIT_SECONDS, LOOK_SECONDS)
    continue_server(lab)
    assert wait_until(lambda: not get_problem(), WAIT_SECONDS, LOOK_SECONDS)


def test_log_whose_reading_is_interrupted_is_reported_as_incomplete(lab: FleetLab) -> None:
    async def check_connection(connection: FleetConnection) -> None:
        client, subject = connection.client, "shim.home.here.log.x"
        await create_log_stream(client, "home")
        for line in (b"first", b"second"):
            await store_message(client, subject, line)
        messages = read_log_messages(client, subject)
        assert (await anext(messages)).data == b"first"
        lab.kill_server()
        await wait_for(lambda: client.is_closed)
        with pytest.raises(BucketError, match="the log is not complete"):
            await anext(messages)

    run_connected(read_admin_join(lab), check_connection)
