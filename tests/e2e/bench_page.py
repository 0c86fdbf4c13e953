"""Measures how soon a line is on the page of background sessions in a real Chromium, and how long a
long session takes to load: `make bench`.

line   milliseconds from the child's write until its step is on the page, and until a client of the
       host's socket has it, which is the lower limit for any page
open   seconds from the address until the end of a session of 10,000 lines is drawn, and until a plain
       reader has the complete stream of the server

Both clocks are the machine's monotonic one: Chromium reports the tick at which a page started. The
exit status is 1 if a number misses its goal.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import sys
import time
from pathlib import Path

import pytest
from browser import Browser

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "bench")]

from bench import Table, format_spread  # noqa: E402 - after their folders are known
from bench_bridge import BenchHosting, call_of, open_hosting, read_lines  # noqa: E402
from session_hosts import wait_for_frame  # noqa: E402
from session_page import Page, Served  # noqa: E402

from shim.bridge.registry import SessionRecord  # noqa: E402

CALLS, RATE = 100, 50  # lines, and how many of them a second
GOAL_MS = 10.0
LINES = 10_000
# The argument of a call is the time of its write in nanoseconds. It follows the name of the call's step.
WATCH = """
window.seen = {};
new MutationObserver((changes) => {
  const now = performance.now();
  for (const { addedNodes } of changes) for (const node of addedNodes) {
    const main = node.nodeType === 1 && node.querySelector('summary .main');
    if (main && /^[0-9]{6,}$/.test(main.textContent) && !(main.textContent in seen)) seen[main.textContent] = now;
  }
}).observe(document.getElementById('steps'), { childList: true, subtree: true });
"""

OPEN = """
const [id, done] = arguments, began = performance.now();
const there = () => [performance.now() - began, find('steps').querySelectorAll('*').length];
const look = () => currentSession.id === id && currentSession.synced ? done(there()) : setTimeout(look, 1);
location.hash = `s/${id}`;
look();
"""


def measure_lines(page: Page, here: BenchHosting, table: Table) -> None:
    """Measure the part `line`."""
    table.print_heading(f"line  milliseconds from the child's write, median and 95th of {CALLS}")
    session = here.start_session()
    page.browser.run_script("location.hash = arguments[0]", f"s/{session.short_id}")
    page.browser.wait_until(lambda: page.browser.run_script("return currentSession.synced"))
    page.browser.run_script(WATCH)
    with here.connect(session, partial=False) as connection:
        wait_for_frame(connection, "synced")
        plan = json.dumps({"calls": CALLS, "rate": RATE, "bytes": 100})
        connection.send_frame_blocking(
            {"kind": "message", "message": {"role": "user", "content": plan}}
        )
        direct = [
            at * 1000 - int(sent_ns) / 1e6
            for at, line in read_lines(connection)
            if (sent_ns := call_of(line))
        ]
    page.browser.wait_until(
        lambda: page.browser.run_script("return Object.keys(seen).length") >= CALLS
    )
    page_start_ms = read_page_start_ms(page.browser)
    drawn = [
        page_start_ms + at - int(sent_ns) / 1e6
        for sent_ns, at in page.browser.run_script("return Object.entries(seen)")
    ]
    add_measurement(table, "a socket client", direct, None)
    add_measurement(table, "a step in the page", drawn, GOAL_MS)


def read_page_start_ms(browser: Browser) -> float:
    """Return the machine's monotonic time, in milliseconds, at which the page's own clock started."""
    browser.call_devtools("Performance.enable")
    metrics = {
        metric["name"]: metric["value"]
        for metric in browser.call_devtools("Performance.getMetrics")["metrics"]
    }
    return 1000 * float(metrics["NavigationStart"])


def add_measurement(table: Table, name: str, samples_ms: list[float], goal: float | None) -> None:
    """Add a row with one measurement."""
    late = sorted(samples_ms)[len(samples_ms) * 95 // 100]
    met = None if goal is None else statistics.median(samples_ms) <= goal
    measured = f"{statistics.median(samples_ms):.2f} ms, {late:.2f} ms"
    table.print_row(name, measured, "" if goal is None else f"<= {goal:g} ms", met)


def measure_opening(page: Page, here: BenchHosting, table: Table, rounds: int) -> None:
    """Measure the part `open`."""
    table.print_heading(
        f"open  seconds until a session of {LINES:,} lines is there, medians of {rounds}"
    )
    session = here.start_calls(LINES // 2)
    here.wait_until_done(session)
    drawn, bare, size = list[float](), list[float](), 0
    for _ in range(rounds):
        page.browser.run_script("location.hash = ''")
        page.browser.wait_until(lambda: page.read_view() == "none")
        milliseconds, size = page.browser.driver.execute_async_script(OPEN, session.short_id)
        drawn.append(milliseconds / 1000)
        bare.append(time_stream_read(page, session))
    table.print_row("drawn by the page", f"{format_spread(drawn)} s; {size:,} elements")
    table.print_row("bare: read by a client", f"{format_spread(bare)} s")


def time_stream_read(page: Page, session: SessionRecord) -> float:
    """Return the seconds until a client has read the stream up to `synced`."""
    start_time = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", page.web.port, timeout=60)
    token = page.web.tokens.load_tokens().watch
    connection.request(
        "GET", f"/sessions/{session.short_id}/steps", headers={"Authorization": f"Bearer {token}"}
    )
    answer = connection.getresponse()
    while b"synced" not in answer.readline():
        pass
    elapsed_s = time.perf_counter() - start_time
    connection.close()
    return elapsed_s


def main() -> int:
    """Measure both parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    table = Table()
    try:
        browser = Browser("127.0.0.1")
    except pytest.skip.Exception as reason:
        table.print_row("the page in a browser", str(reason)[:90], "", "not run")
        return table.print_summary()
    try:
        with open_hosting() as here:
            served = Served(here.environment)
            try:
                page = Page(browser, served)
                page.open_page()
                measure_lines(page, here, table)
                measure_opening(page, here, table, options.rounds)
            finally:
                served.kill()
    finally:
        browser.close()
    return int(table.print_summary() != 0 or table.counts["short"] > 0)


if __name__ == "__main__":
    sys.exit(main())
