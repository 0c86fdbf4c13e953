"""Measure a fleet over a real NATS server on loopback: `make bench`, or
`python tests/bench/bench_fleet.py`.

Both ends of a tunnel run in this process, and `cat` or a Python program stands in for the relay. The
row before each figure is the bare cost of NATS for as many messages or bytes, in the same run.
"""

import asyncio
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from bench import Table
from fleet_lab import SHIM, FleetLab

from shim.bridge import registry
from shim.core.fleet.join_file import JoinFile, get_member_key_pair, get_read_key, parse_join_file
from shim.core.fleet.registry import MachineEntry
from shim.core.fleet.sealing import seal_fields
from shim.core.fleet.subjects import MACHINE_ENTRY, build_session_subject
from shim.core.fleet.tunnel import MessageKind
from shim.fleet import machine_tunnels
from shim.fleet.buckets import create_buckets, read_entries, store_message
from shim.fleet.connection import FleetConnection, connect_to_fleet
from shim.fleet.dial import open_tunnel
from shim.fleet.machine_tunnels import MachineTunnels
from shim.fleet.tunnels import Tunnel
from shim.fleet.view import FleetView

LINE = b"x" * 299 + b"\n"
ROUND_TRIPS = 500
LINES = 10_000
MACHINES, SESSIONS_PER_MACHINE = 50, 20
LOCAL_SESSIONS = 100
LINE_GOAL_MS, REPLAY_GOAL_S, LIST_GOAL_MS, FAILURE_GOAL_MS, MEMORY_GOAL_MB = (
    3.0,
    1.0,
    200.0,
    100.0,
    60.0,
)
ROUNDS = 7
PRINT_LINES = f"import sys; sys.stdout.buffer.write(({'x' * 299!r} + chr(10)).encode() * {LINES})"
BARE_SUBJECT = "shim.home.build.down.here.bench"
NONCE = bytes(24)


async def receive_bytes(tunnel: Tunnel, count: int) -> None:
    """Receive data until `count` bytes have arrived."""
    received = 0
    while received < count:
        message = await tunnel.receive()
        received += len(message.content)
        await tunnel.grant_written(message)


async def measure_line(table: Table, here: FleetConnection, build: FleetConnection) -> None:
    """Measure the time of a line to the other end of a tunnel."""
    machine_tunnels.RELAY_ARGV = ("sh", "-c", "exec cat")
    tunnel = await open_tunnel(here, "build")
    silence = asyncio.create_task(tunnel.check_silence())
    times, bare_times = [], []
    subject = BARE_SUBJECT
    arrived = asyncio.Event()

    async def set_arrived(_: object) -> None:
        arrived.set()

    await here.client.subscribe(subject, cb=set_arrived)
    publisher = build.client
    for _ in range(ROUND_TRIPS):
        start_s = time.perf_counter()
        await tunnel.send_data(MessageKind.STDIN, LINE)
        await receive_bytes(tunnel, len(LINE))
        times.append((time.perf_counter() - start_s) / 2)
        arrived.clear()
        start_s = time.perf_counter()
        await publisher.publish(subject, LINE)
        await arrived.wait()
        bare_times.append(time.perf_counter() - start_s)
    silence.cancel()
    line_ms, bare_ms = 1000 * statistics.median(times), 1000 * statistics.median(bare_times)
    table.print_row("a message of NATS", f"{bare_ms:.2f} ms")
    table.print_row(
        "a line through a tunnel",
        f"{line_ms:.2f} ms ({line_ms / bare_ms:.1f} x)",
        f"<= {LINE_GOAL_MS:g} ms",
        line_ms <= LINE_GOAL_MS,
    )


async def measure_replay(table: Table, here: FleetConnection, build: FleetConnection) -> None:
    """Measure the time of 10,000 lines that the other end prints at once."""
    machine_tunnels.RELAY_ARGV = (sys.executable, "-I", "-S", "-c", PRINT_LINES)
    times, bare_times = [], []
    for _ in range(ROUNDS):
        start_s = time.perf_counter()
        tunnel = await open_tunnel(here, "build")
        silence = asyncio.create_task(tunnel.check_silence())
        await receive_bytes(tunnel, LINES * len(LINE))
        times.append(time.perf_counter() - start_s)
        silence.cancel()
        bare_times.append(await time_bare_messages(here, build))
    replay_s, bare_s = statistics.median(times), statistics.median(bare_times)
    table.print_row(f"{LINES:,} messages of NATS", f"{bare_s:.2f} s")
    table.print_row(
        f"{LINES:,} lines through a tunnel",
        f"{replay_s:.2f} s ({replay_s / bare_s:.1f} x)",
        f"<= {REPLAY_GOAL_S:g} s",
        replay_s <= REPLAY_GOAL_S,
    )


async def time_bare_messages(here: FleetConnection, build: FleetConnection) -> float:
    """Return the seconds of LINES messages without a tunnel."""
    count = 0
    complete = asyncio.Event()

    async def count_message(_: object) -> None:
        nonlocal count
        count += 1
        if count == LINES:
            complete.set()

    subscription = await here.client.subscribe(BARE_SUBJECT, cb=count_message)
    await here.client.flush()
    start_s = time.perf_counter()
    for _ in range(LINES):
        await build.client.publish(BARE_SUBJECT, LINE)
    await complete.wait()
    duration_s = time.perf_counter() - start_s
    await subscription.unsubscribe()
    return duration_s


async def measure_failure(table: Table, here: FleetConnection) -> None:
    """Measure the time until a request to a machine that is not connected fails."""
    times = []
    for _ in range(ROUNDS):
        start_s = time.perf_counter()
        try:
            await open_tunnel(here, "nobody")
        except machine_tunnels.TunnelError:
            times.append(1000 * (time.perf_counter() - start_s))
    failure_ms = statistics.median(times)
    table.print_row(
        "a command to a machine that is off",
        f"{failure_ms:.1f} ms",
        f"<= {FAILURE_GOAL_MS:g} ms",
        failure_ms <= FAILURE_GOAL_MS,
    )


async def publish_machines(lab: FleetLab) -> None:
    """Publish 1,000 sessions on 50 machines."""
    for number in range(MACHINES):
        join = lab.invite(f"machine{number}", "machine")
        async with connect_to_fleet(join) as connection:
            await _publish_sessions(connection, join)


async def _publish_sessions(connection: FleetConnection, join: JoinFile) -> None:
    key, key_pair = get_read_key(join), get_member_key_pair(join)
    entry = MachineEntry(join.name, join.jwt, "0.1", 0)
    await create_buckets(connection.client)
    subject = build_session_subject(join.name, MACHINE_ENTRY)
    await store_message(
        connection.client, subject, seal_fields(key, NONCE, entry._asdict(), subject, key_pair)
    )
    for number in range(SESSIONS_PER_MACHINE):
        session = f"{number:08x}-0000-4000-8000-{abs(hash(join.name)) % 10**12:012d}"
        fields = {
            "session": session,
            "alive": True,
            "state": "working",
            "name": "x" * 40,
            "cwd": "/srv",
        }
        subject = build_session_subject(join.name, session)
        await store_message(
            connection.client, subject, seal_fields(key, NONCE, fields, subject, key_pair)
        )


async def measure_list(table: Table, here: FleetConnection) -> None:
    """Measure the time to read and check all entries of the registry."""
    times, bare_times = [], []
    for _ in range(ROUNDS):
        start_s = time.perf_counter()
        view = FleetView(here.join)
        await view.load(here)
        times.append(time.perf_counter() - start_s)
        start_s = time.perf_counter()
        for number in range(MACHINES):
            await read_entries(here.client, build_session_subject(f"machine{number}", "*"))
        bare_times.append(time.perf_counter() - start_s)
    count = sum(len(machine.sessions) for machine in view.list_machines())
    assert count == MACHINES * SESSIONS_PER_MACHINE
    list_ms, bare_ms = 1000 * statistics.median(times), 1000 * statistics.median(bare_times)
    table.print_row(f"{count:,} entries of NATS", f"{bare_ms:.0f} ms")
    table.print_row(
        f"{count:,} sessions on {MACHINES} machines",
        f"{list_ms:.0f} ms ({list_ms / bare_ms:.1f} x)",
        f"<= {LIST_GOAL_MS:g} ms",
        list_ms <= LIST_GOAL_MS,
    )


def measure_listing_command(table: Table, lab: FleetLab, environment: Mapping[str, str]) -> None:
    """Measure `claude agents --json` with `shim fleet run` beside the command without a fleet, and
    the memory of `shim fleet run`.
    """
    lab.run_machine("here", environment)
    with tempfile.TemporaryDirectory() as empty:
        alone = {**environment, "SHIM_STATE": empty}
        pairs = [(time_command(alone), time_command(environment)) for _ in range(ROUNDS)]
    alone_ms, listed_ms = (1000 * statistics.median(times) for times in zip(*pairs, strict=True))
    table.print_row("`claude agents --json` without a fleet", f"{alone_ms:.0f} ms")
    table.print_row(
        "the same with 1,000 sessions",
        f"{listed_ms:.0f} ms",
        f"<= {LIST_GOAL_MS:g} ms more",
        listed_ms - alone_ms <= LIST_GOAL_MS,
    )
    memory_mb = read_memory_mb(lab.processes["here"].pid)
    table.print_row(
        f"memory of `shim fleet run` with {LOCAL_SESSIONS} sessions",
        f"{memory_mb:.0f} MB",
        f"<= {MEMORY_GOAL_MB:g} MB",
        memory_mb <= MEMORY_GOAL_MB,
    )


def time_command(environment: Mapping[str, str]) -> float:
    """Return the seconds of `claude agents --json`."""
    start_s = time.perf_counter()
    subprocess.run(
        [*SHIM, "claude", "agents", "--json", "--all"],
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - start_s


def read_memory_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def create_local_sessions(environment: Mapping[str, str]) -> None:
    """Create ended sessions in the registry of this machine."""
    for number in range(LOCAL_SESSIONS):
        session = f"{number:08x}-0000-4000-8000-000000000001"
        folder = registry.create_session_folder(session, environment)
        registry.write_metadata(folder, {"session": session, "state": "done"})


async def measure_connected(table: Table, lab: FleetLab, join: JoinFile) -> None:
    """Measure everything that needs a connection."""
    build = lab.invite("build", "machine")
    async with connect_to_fleet(build) as machine, connect_to_fleet(join) as here:
        tunnels = asyncio.create_task(MachineTunnels(machine, dict(os.environ)).serve())
        await asyncio.sleep(0.2)
        await measure_line(table, here, machine)
        await measure_replay(table, here, machine)
        await measure_failure(table, here)
        tunnels.cancel()
        await publish_machines(lab)
        await measure_list(table, here)


def main() -> int:
    table = Table()
    table.print_heading("A fleet over a NATS server")
    with tempfile.TemporaryDirectory() as folder:
        lab = FleetLab(Path(folder))
        try:
            environment = lab.build_environment([])
            path = Path(lab.admin_folder, "here.join")
            join = parse_join_file(path.read_bytes(), str(path))
            asyncio.run(measure_connected(table, lab, join))
            create_local_sessions(environment)
            measure_listing_command(table, lab, environment)
        finally:
            lab.close()
    return table.print_summary()


if __name__ == "__main__":
    sys.exit(main())
