"""The process `shim fleet run`, while the server of the fleet is not available."""

import asyncio
from pathlib import Path

from shim.bridge import sockets
from shim.core.bridge.frames import encode_frame, parse_frame
from shim.core.fleet.join_file import parse_join_file
from shim.fleet import admin
from shim.fleet import run as run_module
from shim.fleet.buckets import BucketError
from shim.fleet.folder import store_join_file
from shim.fleet.run import COPIED_LOGS, PUBLISHED_SESSIONS, FleetProcess
from shim.fleet.tasks import run_until_first_end
from shim.state.config import get_fleet_folder

WAIT_SECONDS = 5
MAX_FRAME_BYTES = 64 * 1024
EXPECTED_SCANS = 5  # although the other loop fails


def join_fleet(folder):
    """Create a fleet whose server does not run. Return the join file and the environment of its first
    machine.
    """
    path = admin.create_fleet(str(folder / "admin"), "home", "tls://127.0.0.1:1", "build")
    join = parse_join_file(Path(path).read_bytes(), path)
    state = folder / "state"
    state.mkdir(mode=0o700)
    environment = {"SHIM_STATE": str(state), "HOME": str(folder)}
    store_join_file(join, environment)
    return join, environment


def test_process_that_ends_disconnects_its_clients(tmp_path):
    """Since Python 3.12.1, a server waits for its clients, and the page stays connected."""
    join, environment = join_fleet(tmp_path)

    async def check_end():
        running = asyncio.create_task(FleetProcess(join, environment).run())
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        with sockets.connect_to_host(get_fleet_folder(environment)) as client:
            client.setblocking(False)
            async with asyncio.timeout(WAIT_SECONDS):
                await loop.sock_sendall(client, encode_frame("status"))
                frame = parse_frame(await loop.sock_recv(client, MAX_FRAME_BYTES))
                assert frame["kind"] == "status"
                running.cancel()
                await asyncio.wait([running])
                assert await loop.sock_recv(client, MAX_FRAME_BYTES) == b""

    asyncio.run(check_end())


def test_sessions_are_published_while_the_copies_of_logs_fail(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "scan_sessions", lambda environment: ())
    monkeypatch.setattr(run_module, "SCAN_INTERVAL_S", 0.001)
    process = FleetProcess(*join_fleet(tmp_path))
    published = []

    async def fail(sessions):
        raise BucketError("full")

    async def publish(sessions):
        published.append(sessions)

    async def wait_for_scans():
        async with asyncio.timeout(WAIT_SECONDS):
            while len(published) < EXPECTED_SCANS:
                await asyncio.sleep(0.001)

    asyncio.run(
        run_until_first_end(
            wait_for_scans(),
            process._run_after_scans(COPIED_LOGS, fail),
            process._run_after_scans(PUBLISHED_SESSIONS, publish),
            process._scan_local_sessions(),
        )
    )
    assert process._describe_problems().endswith(f"{COPIED_LOGS}: the server of the fleet: full")


def test_scan_that_ends_while_sessions_are_published_is_not_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "scan_sessions", lambda environment: ())
    process = FleetProcess(*join_fleet(tmp_path))
    published = []

    async def publish_slowly(sessions):
        published.append(sessions)
        if len(published) == 1:
            await process._scan_once()

    async def wait_for_second_publication():
        async with asyncio.timeout(WAIT_SECONDS):
            while not published:
                await process._scan_once()
                await asyncio.sleep(0.001)
            while len(published) < 2:
                await asyncio.sleep(0.001)

    asyncio.run(
        run_until_first_end(
            wait_for_second_publication(),
            process._run_after_scans(PUBLISHED_SESSIONS, publish_slowly),
        )
    )
