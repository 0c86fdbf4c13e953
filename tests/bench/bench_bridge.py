"""Measure the cost of background sessions: `make bench`, or `python tests/bench/bench_bridge.py`.

sync      seconds to attach to a session of 10,000 lines and be in sync, and to read and parse
          only the log
latency   milliseconds from the child's write to a socket client, and to the reader of a bare pipe
watchers  lines per second of a child that writes 1,000 per second, with 100 watchers and without
stopped   megabytes that a stopped (SIGSTOP) watcher costs the host
sessions  memory of each of 100 sessions, and of a bare Python
start     milliseconds until `claude --bg` returns, and a bare Python
left      what 1,000 attachments leave behind: descriptors, processes, files, memory

A goal in seconds is met by the smallest value, because other programs use the machine too. The exit
status is 1 if a number misses its goal (design page "bridge", Numbers).
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

import orjson
from bench import Table, format_spread
from bench_shutdown import read_usage
from session_hosts import Hosting, wait_for_frame

from shim.bridge.client import HostConnection
from shim.bridge.registry import SessionRecord
from shim.process.install import ENTRY_CODE

LINES = 10_000
RATE = 1000  # lines per second of the child
WATCHERS = 100
SESSIONS = 100
ATTACHMENTS = 1000
TIMEOUT_S = 120.0

# The prompt is a plan: the number of calls with results, the lines per second (0: as fast as
# possible), and the bytes of each result. A call contains the time at which it was written.
CHILD = """
import json, sys, time
plan = json.loads(sys.stdin.buffer.read())
def say(**event):
    sys.stdout.write(json.dumps(event) + "\\n")
    sys.stdout.flush()
say(type="start", session="", cwd="/repo", model="m1", tools=["Bash"])
began, output = time.monotonic(), "x" * plan["bytes"]
for number in range(plan["calls"]):
    for half in (0, 1):
        if plan["rate"]:
            time.sleep(max(0.0, began + (2 * number + half) / plan["rate"] - time.monotonic()))
        if half:
            say(type="result", id=f"c{number}", output=output)
        else:
            say(type="call", id=f"c{number}", name="Bash", input={"command": str(time.monotonic_ns())})
say(type="end")
"""

# Opens several connections, prints when all are in sync, then reads and counts until it is stopped.
WATCHER = """
import os, select, socket, sys
sys.path.insert(0, sys.argv[1])
from shim.bridge import registry, sockets
from shim.core.bridge.frames import encode_frame
links, synced = {}, 0
poll = select.epoll()
for number in range(int(sys.argv[3])):
    link = sockets.connect_to_host(registry.get_session_folder(sys.argv[2], os.environ))
    link.setblocking(False)
    link.send(encode_frame("hello", protocol=1, client="watcher", role="watch", replay=False))
    links[link.fileno()] = link
    poll.register(link.fileno(), select.EPOLLIN)
while True:
    for number, _ in poll.poll():
        data = links[number].recv(262144)
        if not data:
            sys.exit()
        if synced < len(links) and b'"kind":"synced"' in data:
            synced += 1
            if synced == len(links):
                os.write(1, b"ready\\n")
"""


class BenchHosting(Hosting):
    """Hosts whose vendor is a child that does what its prompt describes."""

    def __init__(self, folder: Path) -> None:
        child = folder / "child"
        child.write_text(f"#!{sys.executable} -IS\n{CHILD}", encoding="utf-8")
        child.chmod(0o700)
        super().__init__(folder, SHIM_BIN=str(child))

    def start_calls(self, calls: int, rate: int = 0, size: int = 100) -> SessionRecord:
        """Start a session whose first turn has this number of calls."""
        return self.start_session(json.dumps({"calls": calls, "rate": rate, "bytes": size}))

    def wait_until_done(self, session: SessionRecord) -> None:
        """Wait for the end of the session's turn."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.load_session(session).metadata["state"] != "done":
            assert time.monotonic() < deadline, self.load_session(session)
            time.sleep(0.05)

    @contextmanager
    def run_watchers(
        self, session: SessionRecord, count: int
    ) -> Iterator["subprocess.Popen[bytes]"]:
        """Start a process with this number of connections."""
        command = [
            sys.executable,
            "-c",
            WATCHER,
            str(Path(__file__).resolve().parents[2]),
            session.session_id,
            str(count),
        ]
        with subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None and process.stdout.readline() == b"ready\n"
                yield process
            finally:
                process.kill()


@contextmanager
def open_hosting() -> Iterator[BenchHosting]:
    """Yield hosts with a separate state folder and home. They end with the context."""
    folder = tempfile.mkdtemp(prefix="shim-bridge-")
    hosting = BenchHosting(Path(folder))
    try:
        yield hosting
    finally:
        hosting.stop_hosts()
        shutil.rmtree(folder)


def read_until_synced(connection: HostConnection) -> int:
    """Read until the connection is in sync. Return the number of full lines."""
    count = 0
    for came in connection.read_frames(TIMEOUT_S):
        count += came["kind"] == "line" and "number" in came
        if came["kind"] == "synced":
            return count
    raise AssertionError("never in sync")


def read_lines(connection: HostConnection) -> Iterator[tuple[float, dict[str, Any]]]:
    """Yield full lines with the time of their arrival, up to the result."""
    for came in connection.read_frames(TIMEOUT_S):
        if came["kind"] == "line" and "number" in came:
            yield time.monotonic(), came["line"]
            if came["line"]["type"] == "result":
                return


def call_of(line: dict[str, Any]) -> str:
    """Return the argument of a call, or "" for another line."""
    blocks = line["message"]["content"] if line["type"] == "assistant" else []
    return next(
        (block["input"].get("command", "") for block in blocks if block["type"] == "tool_use"), ""
    )


# ---- the parts


def measure_sync(table: Table, rounds: int) -> None:
    table.print_heading(
        f"sync  seconds to be in sync with a session of {LINES:,} lines, medians of {rounds}"
    )
    for size in (100, 2000):
        with open_hosting() as here:
            session = here.start_calls(LINES // 2, size=size)
            here.wait_until_done(session)
            durations_s, costs, bare, written = list[float](), list[float](), list[float](), 0
            pid = here.load_session(session).metadata["pid"]
            for _ in range(rounds):
                started_at, used = time.perf_counter(), read_cpu_seconds(pid) + time.process_time()
                with here.connect(session, role="watch", client="bench") as connection:
                    count = read_until_synced(connection)
                durations_s.append(time.perf_counter() - started_at)
                costs.append(read_cpu_seconds(pid) + time.process_time() - used)
                assert count >= LINES, count
                started_at, written = time.perf_counter(), 0
                for path in sorted(Path(session.folder, "log").glob("*.cast")):
                    data = path.read_bytes()
                    written += len(data)
                    for line in data.split(b"\n")[:-1]:
                        orjson.loads(line)
                bare.append(time.perf_counter() - started_at)
        cost = f"{statistics.median(costs):.2f} s of CPU"
        measured = (
            f"{format_spread(durations_s)} s, {cost}; "
            f"the log ({written / 1e6:.0f} MB) bare {format_spread(bare)} s"
        )
        table.print_row(f"results of {size:,} bytes", measured, "<= 0.3 s", min(durations_s) <= 0.3)


def measure_latency(table: Table, rounds: int) -> None:
    table.print_heading(
        "latency  milliseconds from the child's write to who reads it, median and 95th of 100"
    )
    for watchers in (0, 20):
        with open_hosting() as here:
            session = here.start_session()
            with (
                here.run_watchers(session, watchers) if watchers else _run_no_watchers(),
                here.connect(session, partial=False) as connection,
            ):
                wait_for_frame(connection, "synced")
                plan = json.dumps({"calls": 100, "rate": 50, "bytes": 100})
                connection.send_frame_blocking(
                    {"kind": "message", "message": {"role": "user", "content": plan}}
                )
                delays_ms = [
                    at * 1000 - int(written_ns) / 1e6
                    for at, line in read_lines(connection)
                    if (written_ns := call_of(line))
                ]
        name = "a socket client" + (f", beside {watchers} watchers" if watchers else "")
        _print_latencies(table, name, delays_ms, 2.0)
    with subprocess.Popen(
        [sys.executable, "-IS", "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(plan.encode())
        process.stdin.close()
        calls = ((time.monotonic_ns(), orjson.loads(line)) for line in process.stdout)
        delays_ms = [
            (at - int(line["input"]["command"])) / 1e6
            for at, line in calls
            if line["type"] == "call"
        ]
    _print_latencies(table, "bare: the reader of its pipe", delays_ms, None)


@contextmanager
def _run_no_watchers() -> Iterator[None]:
    yield


def _print_latencies(table: Table, name: str, delays_ms: list[float], goal: float | None) -> None:
    late = sorted(delays_ms)[len(delays_ms) * 95 // 100]
    measured = f"{statistics.median(delays_ms):.2f} ms, {late:.2f} ms"
    met = None if goal is None else statistics.median(delays_ms) <= goal
    table.print_row(name, measured, "" if goal is None else f"<= {goal:g} ms", met)


def read_cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_throughput(watchers: int, calls: int, rate: int) -> tuple[float, float]:
    """Return the child's lines per second, and the host's CPU seconds per 1,000 lines."""
    with open_hosting() as here:
        session = here.start_session()
        with (
            here.run_watchers(session, watchers) if watchers else _run_no_watchers(),
            here.connect(session, partial=False) as connection,
        ):
            wait_for_frame(connection, "synced")
            pid = here.load_session(session).metadata["pid"]
            used, started_at = read_cpu_seconds(pid), 0.0
            plan = json.dumps({"calls": calls, "rate": rate, "bytes": 100})
            connection.send_frame_blocking(
                {"kind": "message", "message": {"role": "user", "content": plan}}
            )
            for at, line in read_lines(connection):
                started_at = started_at or (at if call_of(line) else 0.0)
            return 2 * calls / (at - started_at), (read_cpu_seconds(pid) - used) / (
                2 * calls
            ) * 1000


def measure_watchers(table: Table, rounds: int) -> None:
    table.print_heading(
        f"watchers  a child's lines a second, with {WATCHERS} watchers and without, medians of {rounds}"
    )
    for name, calls, rate in (
        (f"a child of {RATE:,} lines/s", 2 * RATE, RATE),
        ("as fast as it can", 2 * RATE, 0),
    ):
        alone, with_watchers = zip(
            *(
                (measure_throughput(0, calls, rate), measure_throughput(WATCHERS, calls, rate))
                for _ in range(rounds)
            ),
            strict=True,
        )
        rates = [statistics.median(each[0] for each in values) for values in (alone, with_watchers)]
        costs = [statistics.median(each[1] for each in values) for values in (alone, with_watchers)]
        fall = 1 - rates[1] / rates[0]
        measured = (
            f"{rates[0]:,.0f} -> {rates[1]:,.0f}/s ({fall:.0%} less); "
            f"{costs[0]:.2f} -> {costs[1]:.2f} s CPU/1,000"
        )
        table.print_row(name, measured, "<= 20 %" if rate else "", fall <= 0.2 if rate else None)


def measure_stopped_watcher(table: Table, rounds: int) -> None:
    table.print_heading(
        "stopped  megabytes of a host after a turn, with a stopped watcher and without"
    )
    grown = dict[int, list[float]]()
    for count in (0, 1) * rounds:
        with open_hosting() as here:
            session = here.start_session()
            with here.run_watchers(session, count) if count else _run_no_watchers() as process:
                pid = (
                    wait_for_frame(here.connect(session, partial=False), "synced")
                    and here.load_session(session).metadata["pid"]
                )
                if process is not None:
                    process.send_signal(signal.SIGSTOP)
                with here.connect(session, partial=False) as connection:
                    wait_for_frame(connection, "synced")
                    plan = json.dumps({"calls": LINES // 2, "rate": 0, "bytes": 1000})
                    connection.send_frame_blocking(
                        {"kind": "message", "message": {"role": "user", "content": plan}}
                    )
                    for _ in read_lines(connection):
                        pass
                grown.setdefault(count, []).append(read_usage(pid).kilobytes / 1024)
                if process is not None:
                    process.send_signal(signal.SIGCONT)
    without, with_watcher = (statistics.median(grown[count]) for count in (0, 1))
    measured = f"{without:.1f} -> {with_watcher:.1f} MB after {LINES:,} lines of 1,000 bytes"
    table.print_row("a stopped watcher", measured, "<= 4 MB", with_watcher - without <= 4)


def read_memory_mb(pid: int) -> tuple[float, float]:
    """Return the megabytes of a process: its proportional share of memory, and its full memory."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        sizes = {
            line.split(":")[0]: int(line.split()[1]) / 1024
            for line in file
            if line.endswith("kB\n")
        }
    return sizes["Pss"], sizes["Rss"]


def measure_sessions(table: Table, count: int) -> None:
    table.print_heading(
        f"sessions  megabytes of each of {count} that have answered a prompt: its share (PSS), all of it (RSS)"
    )
    with open_hosting() as here, ThreadPoolExecutor(2) as pool:
        started_at = time.perf_counter()
        hosts = list(pool.map(lambda _: here.start_calls(2), range(count)))
        for session in hosts:
            here.wait_until_done(session)
        seconds = time.perf_counter() - started_at
        sizes_mb = [read_memory_mb(here.load_session(session).metadata["pid"]) for session in hosts]
        shares, wholes = ([each[kind] for each in sizes_mb] for kind in (0, 1))
        measured = f"{format_spread(shares, '.1f')} MB, {format_spread(wholes, '.1f')} MB; up in {seconds:.0f} s"
        table.print_row("a session", measured, "<= 40 MB", max(wholes) <= 40)
    with subprocess.Popen(
        [sys.executable, "-IS", "-c", "input()"], stdin=subprocess.PIPE
    ) as process:
        time.sleep(0.5)
        share, rss_mb = read_memory_mb(process.pid)
        process.kill()
    table.print_row("bare: a Python that does nothing", f"{share:.1f} MB, {rss_mb:.1f} MB")


def measure_start(table: Table, rounds: int) -> None:
    table.print_heading(
        f"start  milliseconds until a command is back, medians of {rounds} by turns"
    )
    with open_hosting() as here:
        command = [sys.executable, "-I", "-c", ENTRY_CODE, "claude"]
        plan = json.dumps({"calls": 1, "rate": 0, "bytes": 1})
        commands = {
            "bare: a Python that does nothing": [sys.executable, "-I", "-c", ""],
            "claude --version": [*command, "--version"],
            "claude --bg PROMPT": [*command, "--bg", plan],
        }
        durations_ms: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(rounds + 1):
            for name, argv in commands.items():
                started_at = time.perf_counter()
                subprocess.run(
                    argv,
                    env=here.environment,
                    cwd=here.cwd,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    check=True,
                )
                durations_ms[name].append((time.perf_counter() - started_at) * 1000)
                for session in list_running_sessions(here):
                    here.wait_until_done(session)
        for name, values in durations_ms.items():
            goal = "--bg" in name
            met = min(values[1:]) <= 150 if goal else None
            table.print_row(
                name, f"{format_spread(values[1:], '.0f')} ms", "<= 150 ms" if goal else "", met
            )


def list_running_sessions(here: BenchHosting) -> list[SessionRecord]:
    from shim.bridge import registry

    return [session for session in registry.list_sessions(here.environment) if session.is_running]


def measure_leaks(table: Table, count: int) -> None:
    table.print_heading(f"left  what {count:,} attachments leave of a host")
    with open_hosting() as here:
        session = here.start_calls(50)
        here.wait_until_done(session)
        pid = here.load_session(session).metadata["pid"]
        for number in range(20):
            _attach_client(here, session, number)
        early, files = read_usage(pid), _list_files(here)
        started_at = time.perf_counter()
        for number in range(count):
            _attach_client(here, session, number)
        seconds = time.perf_counter() - started_at
        # the host has noticed that all clients disconnected
        with here.connect(session, partial=False) as connection:
            wait_for_frame(connection, "synced")
        time.sleep(0.2)
        late, new_files = read_usage(pid), _list_files(here) - files
        grown = (late.kilobytes - early.kilobytes) / 1024
        measured = (
            f"descriptors {early.descriptors} -> {late.descriptors}, processes {early.processes} -> {late.processes}, "
            f"{len(new_files)} files, {grown:+.1f} MB; {seconds / count * 1000:.1f} ms each"
        )
        is_unchanged = (
            late.descriptors <= early.descriptors
            and late.processes <= early.processes
            and not new_files
        )
        table.print_row("a session", measured, "the same", is_unchanged and grown <= 2)


def _attach_client(here: BenchHosting, session: SessionRecord, number: int) -> None:
    with here.connect(session, role="drive" if number % 2 else "watch") as connection:
        if number % 3:
            read_until_synced(connection)
        elif number % 2:
            connection.send_frame_blocking({"kind": "take", "id": str(number)})


def _list_files(here: BenchHosting) -> set[str]:
    return {str(path) for path in here.cwd.parent.rglob("*")}


PARTS: dict[str, tuple[Callable[[Table, int], None], int]] = {
    "sync": (measure_sync, 5),
    "latency": (measure_latency, 1),
    "watchers": (measure_watchers, 3),
    "stopped": (measure_stopped_watcher, 1),
    "sessions": (measure_sessions, SESSIONS),
    "start": (measure_start, 15),
    "left": (measure_leaks, ATTACHMENTS),
}


def main() -> int:
    """Measure the requested parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(PARTS), help="parts, as in --only sync,left")
    options = parser.parse_args()
    table = Table()
    for name in options.only.split(","):
        measure, rounds = PARTS[name]
        measure(table, rounds)
    return int(table.print_summary() != 0 or table.counts["short"] > 0)


if __name__ == "__main__":
    sys.exit(main())
