"""Measure how long other streams of `shim bridge serve` wait while it does something large.

The command is `make bench`, or `python tests/bench/bench_gateway.py`. A child writes 400 lines per
second. One process reads their steps from the gateway, and another one reads the lines from the
host. Each row has the median and the maximum of the delay of the first process, in milliseconds:

    quiet      nothing else happens
    open       a page opens another session of 100,000 lines for the first time
    reconnect  pages of the same session reconnect with the id of their last event
    many       the gateway was restarted, and ten pages reconnect at once
    ended      a page opens a session of 100,000 lines whose host has ended, and reconnects to it
    stopped    pages open a session whose host is stopped (SIGSTOP), and send it messages

`relay` is the same maximum for a process that only forwards the lines. It shows how long the
machine delays a program that does nothing else. `loop` is the longest time for which one callback
blocked the gateway's loop, without the time in which the kernel ran other programs. The goal is a
maximum of 20 ms above that of the relay, as the median of the rounds. The exit status is 1 if a
number misses its goal.
"""

import argparse
import http.client
import json
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from bench import Table
from bench_bridge import BenchHosting, call_of, open_hosting

from shim.bridge.gateway.tokens import GatewayTokenFile
from shim.bridge.registry import SessionRecord
from shim.bridge.stop import stop_hosts

LINES = 100_000
RATE = 400  # lines per second of the measured stream
MAX_CALLS = RATE // 2 * 120  # two minutes of lines
SKIPPED_CALLS = 400  # two seconds, in which the host imports its modules
MIN_CALLS = 1400
PAGES = 10
GOAL_MS = 20.0
TIMEOUT_S = 300.0
EVENT_ID = re.compile(rb"^id: ([0-9-]+)$", re.MULTILINE)

PROCESSES = multiprocessing.get_context("fork")

# Runs `shim bridge serve`, and writes to the file which callbacks block the loop for more than 1
# ms.
SERVE = """
import os, sys, time
from asyncio import events
path, *sys.argv = sys.argv[1:]
report, run = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), events.Handle._run
statistics = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
def read_ns():
    waited_ns = int(os.pread(statistics, 100, 0).split()[1])
    return time.monotonic_ns() - waited_ns
def run_and_measure(handle):
    started_ns = read_ns()
    run(handle)
    if (held_ns := read_ns() - started_ns) > 1e6:
        os.write(report, b"%.2f\\n" % (held_ns / 1e6))
events.Handle._run = run_and_measure
from shim.__main__ import main
main()
"""


class Gateway:
    """A separate `shim bridge serve`."""

    def __init__(self, here: BenchHosting) -> None:
        self._callbacks_file = here.cwd / "callbacks"
        serve = (str(self._callbacks_file), "shim", "bridge", "serve", "--http=127.0.0.1:0")
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVE, *serve],
            env=here.environment,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        address = self._process.stdout.readline().decode().strip()
        self._port = int(address.rstrip("/").rpartition(":")[2])
        token = GatewayTokenFile(here.environment).load_tokens().drive
        self._headers = {"Authorization": f"Bearer {token}"}

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def read_longest_callback_ms(self) -> float:
        """Return the longest callback in milliseconds since the last call, or 1.0 if all were
        shorter.
        """
        durations_ms = self._callbacks_file.read_text(encoding="ascii").split()
        os.truncate(self._callbacks_file, 0)
        return max(1.0, *map(float, durations_ms), 1.0)

    def open_steps(self, session: SessionRecord, last_id: str = "") -> http.client.HTTPConnection:
        """Open a connection that has requested the steps of a session."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_S)
        headers = {**self._headers, **({"Last-Event-ID": last_id} if last_id else {})}
        connection.request("GET", f"/sessions/{session.short_id}/steps?last=500", headers=headers)
        return connection

    def read_until_synced(
        self, session: SessionRecord, last_id: str = ""
    ) -> tuple[str, int, float]:
        """Read a stream until it is in sync. Return its last id, the number of steps, and the
        seconds.
        """
        started_at = time.monotonic()
        connection = self.open_steps(session, last_id)
        response, data = connection.getresponse(), b""
        if response.status == 204:
            return last_id, 0, time.monotonic() - started_at
        while b"event: synced\n" not in data[-2000:]:
            data += response.read1(1_000_000)
        connection.close()
        ids = EVENT_ID.findall(data)
        last_id = ids[-1].decode() if ids else last_id
        return last_id, data.count(b"event: step\n"), time.monotonic() - started_at

    def send_message(self, session: SessionRecord) -> int:
        """Send a message. Return the status of the response."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_S)
        headers = {**self._headers, "Content-Type": "application/json"}
        body = json.dumps({"text": "go", "take": True})
        connection.request("POST", f"/sessions/{session.short_id}/messages", body, headers)
        return connection.getresponse().status


def measure_delays(
    here: BenchHosting, gateway: Gateway, work: Callable[[], None]
) -> tuple[list[float], list[float]]:
    """Return the delays of each call from the gateway and from the relay in milliseconds, compared
    with the host, while `work` runs.

    Each client is a separate process, so that no client waits for the threads of `work`.
    """
    session = here.start_calls(MAX_CALLS, rate=RATE)
    is_warm, is_done = PROCESSES.Event(), PROCESSES.Event()
    relay_output, relay_input = PROCESSES.Pipe(duplex=False)
    clients = [
        start_process(read_from_host, here, session),
        start_process(read_from_gateway, gateway, session, is_warm, is_done),
        start_process(read_from_relay, relay_output),
    ]
    start_process(relay_calls, here, session, relay_input)
    is_warm.wait()
    work()
    is_done.set()
    gateway_times = clients[1].recv()
    stop_hosts([here.load_session(session)], here.environment)
    direct_times, relay_times = clients[0].recv(), clients[2].recv()
    calls = list(gateway_times)[SKIPPED_CALLS:]
    gateway_delays, relay_delays = (
        [max(0.0, times[call] - direct_times[call]) * 1000 for call in calls]
        for times in (gateway_times, relay_times)
    )
    return gateway_delays, relay_delays


def start_process(run: Callable[..., Any], *args: Any) -> Connection:
    """Run a function in a separate process. Return the connection that receives its result."""
    receiver, sender = PROCESSES.Pipe(duplex=False)
    PROCESSES.Process(target=lambda: sender.send(run(*args)), daemon=True).start()
    return receiver


def read_from_gateway(
    gateway: Gateway, session: SessionRecord, is_warm: Event, is_done: Event
) -> dict[str, float]:
    """Return the arrival time of each call from the gateway, until the work is done."""
    times = dict[str, float]()
    for line in iter(gateway.open_steps(session).getresponse().readline, b""):
        step = json.loads(line[6:]) if line.startswith(b'data: {"number"') else {}
        if step.get("kind") == "call" and "outcome" not in step:
            times[step["main"]] = time.monotonic()
        if len(times) == SKIPPED_CALLS:
            is_warm.set()
        if len(times) >= MIN_CALLS and is_done.is_set():
            break
    return times


def read_from_host(here: BenchHosting, session: SessionRecord) -> dict[str, float]:
    """Return the arrival time of each call from the host, until the host ends."""
    return {call: time.monotonic() for call in iterate_calls(here, session)}


def relay_calls(here: BenchHosting, session: SessionRecord, output: Connection) -> None:
    """Forward each call, and send b"" at the end."""
    for call in iterate_calls(here, session):
        output.send_bytes(call.encode())
    output.send_bytes(b"")


def read_from_relay(source: Connection) -> dict[str, float]:
    """Return the arrival time of each call from the relay."""
    return {call.decode(): time.monotonic() for call in iter(source.recv_bytes, b"")}


def iterate_calls(here: BenchHosting, session: SessionRecord) -> Iterator[str]:
    """Yield the calls of a session as they arrive from its host."""
    with here.connect(session, role="watch", partial=False) as connection:
        for frame in connection.read_frames(TIMEOUT_S):
            call = call_of(frame["line"]) if frame["kind"] == "line" else ""
            if call:
                yield call


def run_in_threads(count: int, work: Callable[[], object]) -> None:
    """Run `work` in `count` parallel threads."""
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure_rows(table: Table, here: BenchHosting, rounds: int, lines: int) -> None:
    """Print all rows."""
    long_session, stopped = here.start_calls(lines // 2), here.start_session()
    here.wait_until_done(long_session)
    notes = dict[str, str]()
    last_id = ""

    def open_first() -> None:
        nonlocal last_id
        last_id, steps, seconds = gateway.read_until_synced(long_session)
        notes["open"] = f"{steps} steps in {seconds:.1f} s"

    def reconnect() -> None:
        for _ in range(5):
            _, steps, seconds = gateway.read_until_synced(long_session, last_id)
            notes["reconnect"] = f"{steps} steps in {seconds:.2f} s"

    def reconnect_many() -> None:
        started_at = time.monotonic()
        run_in_threads(PAGES, lambda: gateway.read_until_synced(long_session, last_id))
        notes["many"] = f"in {time.monotonic() - started_at:.1f} s"

    def open_ended() -> None:
        ended_id, steps, seconds = gateway.read_until_synced(long_session)
        for _ in range(5):
            back_s = gateway.read_until_synced(long_session, ended_id)[2]
        notes["ended"] = f"{steps} steps in {seconds:.1f} s; again {back_s:.2f} s"

    def reach_stopped() -> None:
        with here.halt_host(stopped):
            streams = [gateway.open_steps(stopped) for _ in range(PAGES)]
            started_at = time.monotonic()
            run_in_threads(PAGES, lambda: gateway.send_message(stopped))
            notes["stopped"] = f"refused after {time.monotonic() - started_at:.1f} s"
        for stream in streams:
            stream.close()

    def measure(name: str, work: Callable[[], None], *, restart: bool = False) -> None:
        nonlocal gateway
        medians, maxima, relay_maxima, loop_maxima = ([], [], [], [])
        for _ in range(rounds):
            if restart:
                gateway.close()
                gateway = Gateway(here)
            gateway.read_longest_callback_ms()
            delays_ms, relay_delays_ms = measure_delays(here, gateway, work)
            medians.append(statistics.median(delays_ms))
            maxima.append(max(delays_ms))
            relay_maxima.append(max(relay_delays_ms))
            loop_maxima.append(gateway.read_longest_callback_ms())
        excesses = [maximum - relay for maximum, relay in zip(maxima, relay_maxima, strict=True)]
        typical = [statistics.median(v) for v in (medians, maxima, relay_maxima, loop_maxima)]
        measured = "{:.2f} ms, {:.1f} ms; relay {:.1f} ms; loop {:.1f} ms".format(*typical)
        note = f"; {notes[name]}" if name in notes else ""
        is_met = statistics.median(excesses) <= GOAL_MS
        table.print_row(name, measured + note, f"+{GOAL_MS:g} ms", is_met)

    gateway = Gateway(here)
    try:
        measure("quiet", lambda: None)
        measure("open", open_first, restart=True)
        measure("reconnect", reconnect)
        measure("many", reconnect_many, restart=True)
        measure("stopped", reach_stopped)
        with here.connect(long_session) as controller:
            controller.send_frame_blocking({"kind": "end", "id": "1"})
        here.wait_for_end(long_session)
        measure("ended", open_ended, restart=True)
    finally:
        gateway.close()


def main() -> int:
    """Measure all rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lines", type=int, default=LINES, help="of the long session")
    options = parser.parse_args()
    table = Table()
    table.print_heading(
        "gateway  milliseconds that another stream is later than its host, median and maximum"
    )
    with open_hosting() as here:
        measure_rows(table, here, options.rounds, options.lines)
    return int(table.print_summary() != 0 or table.counts["short"] > 0)


if __name__ == "__main__":
    sys.exit(main())
