"""Measure what the fleet costs sessions and their machine, over a real NATS server on loopback:
`make bench`, or `python tests/bench/bench_fleet_sessions.py`.

throughput  lines per second of a child that writes 1,000 per second: without a fleet, with `shim fleet
            run`, which copies the lines, and with a reader on another machine of the fleet, too
memory      megabytes of `shim fleet run` while lines are copied and read; `--lines` sets their number

The exit status is 1 if a number misses its goal (design page "fleet", Numbers).
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from bench import Table
from bench_bridge import RATE, TIMEOUT_S, BenchHosting, call_of, open_hosting, read_lines
from bench_fleet import read_memory_mb
from fleet_lab import SHIM, FleetLab, read_admin_join
from session_hosts import wait_for_frame

from shim.bridge.client import HostConnection
from shim.bridge.registry import SessionRecord
from shim.core.fleet.copied_line import parse_position
from shim.core.fleet.subjects import LOG_STREAM, build_log_subject
from shim.fleet.buckets import read_last_message
from shim.fleet.connection import connect_to_fleet
from shim.fleet.listing import load_fleet

MACHINE = "build"
FALL_GOAL = 0.05
GROWTH_GOAL_MB = 5.0  # of the memory between the first tenth of the lines and the end
ROUNDS = 3
THROUGHPUT_CALLS = 2 * RATE
MEMORY_LINES = 50_000
MEMORY_LOOKS = 10
LOOK_SECONDS = 0.2


@contextmanager
def run_fleet(hosting: BenchHosting) -> Iterator[FleetLab]:
    """Run a server, and `shim fleet run` on the machine of the hosts."""
    with tempfile.TemporaryDirectory() as folder:
        lab = FleetLab(Path(folder))
        try:
            lab.start_machine(MACHINE, hosting.environment)
            yield lab
        finally:
            lab.close()


def wait_until_true(happened: Callable[[], bool], complaint: str) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not happened():
        assert time.monotonic() < deadline_s, complaint
        time.sleep(LOOK_SECONDS)


def is_published(environment: Mapping[str, str], session: SessionRecord) -> bool:
    """Return whether other machines see a session."""
    machines = asyncio.run(load_fleet(environment))
    return any(
        fields["session"] == session.session_id
        for machine in machines
        for fields in machine.sessions
    )


@contextmanager
def run_reader(lab: FleetLab, session: SessionRecord) -> Iterator[None]:
    """Read a session from another machine of the fleet, after the reader has received a frame."""
    command = [*SHIM, "bridge", "watch", "--json", f"{MACHINE}:{session.session_id}"]
    environment = lab.build_environment([MACHINE])
    wait_until_true(lambda: is_published(environment, session), "the session is not published")
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()
            with subprocess.Popen(["cat"], stdin=process.stdout, stdout=subprocess.DEVNULL):
                process.stdout.close()
                yield
                process.kill()
        finally:
            process.kill()


def send_plan(connection: HostConnection, calls: int, rate: int) -> None:
    """Start a turn with this number of calls, each of which has two lines."""
    plan = json.dumps({"calls": calls, "rate": rate, "bytes": 100})
    message = {"role": "user", "content": plan}
    connection.send_frame_blocking({"kind": "message", "message": message})


def run_turn(hosting: BenchHosting, session: SessionRecord, calls: int, rate: int) -> float:
    """Run a turn with this number of calls. Return the lines per second that a local client gets."""
    with hosting.connect(session, partial=False) as connection:
        wait_for_frame(connection, "synced")
        send_plan(connection, calls, rate)
        started_s = end_s = 0.0
        for received_s, line in read_lines(connection):
            started_s = started_s or (received_s if call_of(line) else 0.0)
            end_s = received_s
    return 2 * calls / (end_s - started_s)


def measure_throughput(with_fleet: bool, with_reader: bool) -> float:
    """Return the lines per second of a new session on a new machine."""
    with open_hosting() as hosting, ExitStack() as stack:
        session = hosting.start_session()
        if with_fleet:
            lab = stack.enter_context(run_fleet(hosting))
            if with_reader:
                stack.enter_context(run_reader(lab, session))
        return run_turn(hosting, session, THROUGHPUT_CALLS, RATE)


def print_throughput(table: Table, rounds: int) -> None:
    """Measure the three cases in turn, so that each round has all of them."""
    table.print_heading(f"throughput  lines/s of a child with {RATE:,}, medians of {rounds}")
    cases = ((False, False), (True, False), (True, True))
    measured = [[measure_throughput(*case) for case in cases] for _ in range(rounds)]
    alone, copied, read = (statistics.median(values) for values in zip(*measured, strict=True))
    table.print_row("without a fleet", f"{alone:,.0f}/s", "", None)
    for name, lines_per_s in (("copied to the server", copied), ("read elsewhere, too", read)):
        fall = 1 - lines_per_s / alone
        goal = f"<= {FALL_GOAL:.0%} less"
        table.print_row(name, f"{lines_per_s:,.0f}/s ({fall:.1%} less)", goal, fall <= FALL_GOAL)


async def load_copied_number(lab: FleetLab, session: SessionRecord) -> int:
    """Return the number of the last line that the server has stored."""
    join = read_admin_join(lab)
    subject = build_log_subject(join.fleet, MACHINE, session.session_id)
    async with connect_to_fleet(join) as connection:
        message = await read_last_message(connection.client, LOG_STREAM, subject)
    position = parse_position(message.headers) if message else None
    return position.number if position else 0


def wait_for_copied(lab: FleetLab, session: SessionRecord, count: int) -> None:
    """Wait until this number of lines is copied. Fail after TIMEOUT_S seconds without progress."""
    last_number, deadline_s = 0, 0.0
    while (number := asyncio.run(load_copied_number(lab, session))) < count:
        if number > last_number or not deadline_s:
            last_number, deadline_s = number, time.monotonic() + TIMEOUT_S
        assert time.monotonic() < deadline_s, f"only {number} lines are copied"
        time.sleep(LOOK_SECONDS)


def print_memory(table: Table, lines: int) -> None:
    """Measure the memory whenever another tenth of the lines is copied."""
    table.print_heading(f"memory  of `shim fleet run`, while {lines:,} lines are copied and read")
    with open_hosting() as hosting, run_fleet(hosting) as lab:
        session = hosting.start_session()
        pid = lab.processes[MACHINE].pid
        sizes_mb = []
        with run_reader(lab, session), hosting.connect(session, partial=False) as connection:
            send_plan(connection, lines // 2, 0)
            for look in range(1, MEMORY_LOOKS + 1):
                wait_for_copied(lab, session, lines * look // MEMORY_LOOKS)
                sizes_mb.append(read_memory_mb(pid))
    growth_mb = sizes_mb[-1] - sizes_mb[0]
    measured = f"{sizes_mb[0]:.0f} -> {sizes_mb[-1]:.0f} MB, {max(sizes_mb):.0f} at most"
    goal = f"<= {GROWTH_GOAL_MB:.0f} MB more"
    table.print_row("after a tenth, and at the end", measured, goal, growth_mb <= GROWTH_GOAL_MB)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--lines", type=int, default=MEMORY_LINES)
    options = parser.parse_args()
    table = Table()
    print_throughput(table, options.rounds)
    print_memory(table, options.lines)
    return table.print_summary()


if __name__ == "__main__":
    sys.exit(main())
