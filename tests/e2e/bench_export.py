"""Measures how fast Chromium opens and scrolls the page of a session of 2,000 events: `make bench`.

The output has medians of several loads, each of a new document. Each frame scrolls a quarter of a
screen, faster than a finger. The cost of the page is the CPU time of its own thread per frame,
which other programs on the machine do not change; a smooth page has 16 ms. The goals are printed
but not checked.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import pytest
from browser import DESKTOP, PHONE, Browser

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from session_builder import build_long_session

from shim.story.export.html import write_recording_export

FRAMES = 400  # a hundred screens
SCROLL = """
const [most, done] = arguments, frames = [];
let last = performance.now();
scrollTo(0, 0);
requestAnimationFrame(function step(now) {
  frames.push(now - last); last = now;
  const before = scrollY;
  scrollBy(0, innerHeight / 4);
  if (scrollY > before && frames.length < most) requestAnimationFrame(step); else done(frames.slice(2));
});
"""
LOADED = """
const [page] = performance.getEntriesByType("navigation");
const [paint] = performance.getEntriesByName("first-contentful-paint");
return [page.loadEventEnd, paint ? paint.startTime : 0];
"""
ACTIONS = {
    "a search": 'look("compute(7")',
    "unfolding all": "foldAll(false)",
    "a place in the replay": "showAt(replay.end / 2)",
    "leaving the replay": "leaveReplay()",
}
TIMED = "const begin = performance.now(); {0}; document.body.offsetHeight; return performance.now() - begin"


def export_page(folder: Path, calls: int) -> Path:
    """Export the page of a session with this number of calls, of four events each."""
    cast, file = folder / "long.cast", folder / "long.html"
    cast.write_bytes(build_long_session(calls).build_recording())
    start_time = time.monotonic()
    with file.open("wb") as out:
        write_recording_export(str(cast), out.write, redact=True)
    seconds = time.monotonic() - start_time
    print_line(
        f"{4 * calls} events, a cast of {cast.stat().st_size / 1e6:.1f} MB, exported in {seconds:.2f} s"
    )
    print_line(f"the page has {file.stat().st_size / 1e6:.2f} MB (goal: under 5)")
    return file


def measure_loads(browser: Browser, file: Path, times: int) -> None:
    """Open the page several times."""
    ready, painted = [], []
    for _ in range(times):
        browser.open_file(file)
        browser.wait_until(lambda: browser.run_script(LOADED)[0] and browser.run_script(LOADED)[1])
        load, paint = browser.run_script(LOADED)
        ready.append(load)
        painted.append(paint)
    spread = f"{min(ready):.0f} to {max(ready):.0f}"
    print_line(
        f"loaded and drawn in {statistics.median(ready):.0f} ms ({spread}; goal: under 1500)"
    )
    print_line(f"first paint after {statistics.median(painted):.0f} ms")


def measure_scrolling(browser: Browser, what: str) -> None:
    """Scroll from the top to the bottom."""
    browser.call_devtools("Performance.disable")
    browser.call_devtools("Performance.enable", timeDomain="threadTicks")
    browser.driver.set_script_timeout(100)
    before = read_metrics(browser)
    frames = sorted(browser.driver.execute_async_script(SCROLL, FRAMES))
    after = read_metrics(browser)
    work = 1000 * (after["TaskDuration"] - before["TaskDuration"]) / len(frames)
    layout = sum(
        1000 * (after[name] - before[name]) for name in ("LayoutDuration", "RecalcStyleDuration")
    ) / len(frames)
    print_line(
        f"scrolled {what}: {len(frames)} frames of {statistics.median(frames):.1f} ms (99 % within "
        f"{frames[len(frames) * 99 // 100]:.0f} ms), {work:.1f} ms of CPU each, of these {layout:.1f} for layout"
    )


def read_metrics(browser: Browser) -> dict[str, float]:
    """Return the CPU time that the page's thread has used."""
    return {
        entry["name"]: entry["value"]
        for entry in browser.call_devtools("Performance.getMetrics")["metrics"]
    }


def print_line(line: str) -> None:
    """Print one line for a person."""
    sys.stdout.write(f"  {line}\n")
    sys.stdout.flush()


def main() -> int:
    """Run all measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=500, help="four events each")
    parser.add_argument("--times", type=int, default=7, help="loads")
    options = parser.parse_args()
    sys.stdout.write("the HTML export in Chromium\n")
    try:
        browser = Browser()
    except pytest.skip.Exception as missing:
        print_line(f"not measured: {missing}")
        return 0
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = export_page(Path(folder), options.calls)
            measure_loads(browser, file, options.times)
            for size, name in ((DESKTOP, "a desktop"), (PHONE, "a phone")):
                browser.open_file(file, size=size)
                measure_scrolling(browser, f"on {name}")
            for what, script in ACTIONS.items():
                print_line(f"{what}: {browser.run_script(TIMED.format(script)):.0f} ms")
            measure_scrolling(browser, "with all unfolded")
    finally:
        browser.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
