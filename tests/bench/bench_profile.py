"""What rules cost beside a module written by hand: acai both ways over the events of its fixtures, and loading.

`python tests/bench/bench_profile.py [--quick]`: ratios inside one run, the two by turns on the same bytes.
It judges nothing.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from acai_by_hand import ACAI
from support import fixture_cases

from shim.conversation.drivers.open_translation import STABLE_IDENTITY, STABLE_SESSION
from shim.core.claude.pen import ClaudePen
from shim.core.turn.outcome import Exit
from shim.core.turn.terms import Terms
from shim.core.vendor.translation import Translation
from shim.core.vendor.vendor import Vendor
from shim.vendors import find

GOAL = 1.5  # times a module written by hand
LOADING_GOAL = 8.0  # ms of CPU in a turn
PAIRS, QUICK = 60, 10


def seconds(vendor: Vendor, streams: list[bytes], partial: bool) -> float:
    """CPU time for all streams, each a turn of its own."""
    began = time.process_time()
    for data in streams:
        pen = ClaudePen(STABLE_IDENTITY, partial=partial)
        terms = Terms(vendor=vendor.name, fresh_id=STABLE_SESSION, retracts=vendor.retracts)
        translation = Translation(vendor.translator, terms, pen)
        translation.feed(data)
        translation.close(Exit(code=0))
    return time.process_time() - began


def throughput(pairs: int, partial: bool) -> str:
    """How much longer the rules take: the median of pairs."""
    by_hand, rules = ACAI, find("acai")
    names = ("acai/", "cake/")
    cases = [case for case in fixture_cases("acai", "cake") if case.name.startswith(names)]
    streams = [case.data for case in cases if len(case.data) > 500]
    # One long stream for each fixture: its events again and again, the end once.
    streams = [b"".join(data.splitlines(keepends=True)[:-1]) * 20 + data for data in streams]
    lines = sum(data.count(b"\n") for data in streams)
    for vendor in (by_hand, rules):
        seconds(vendor, streams, partial)
    found = []
    for number in range(pairs):
        order = (by_hand, rules) if number % 2 else (rules, by_hand)
        took = {vendor.translator: seconds(vendor, streams, partial) for vendor in order}
        found.append((took[by_hand.translator], took[rules.translator]))
    ratio = statistics.median(two / one for one, two in found)
    best = [min(column) / lines * 1e6 for column in zip(*found, strict=True)]
    kind = "partial" if partial else "whole"
    line = f"{best[1]:.2f} and {best[0]:.2f} µs a line, {lines} lines"
    return f"acai {kind:8} rules {ratio:.2f} × by hand (goal {GOAL}); {line}"


LOAD = """
import sys, time
import shim.conversation.decide
from shim.state.own_vendors import learn
import os
learn(os.environ)
from shim.vendors import find
began = time.process_time()
find(sys.argv[1])
print((time.process_time() - began) * 1000)
"""


def loading(name: str, runs: int) -> str:
    """CPU time that a profile adds to a turn, in a process of its own: the first time, and once it is remembered."""
    with tempfile.TemporaryDirectory() as state:
        environment = {**os.environ, "SHIM_STATE": state}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed shim is compiled
        command = [sys.executable, "-P", "-c", LOAD, name]

        def once() -> float:
            return float(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)

        first = once()
        then = statistics.median(once() for _ in range(runs))
    return f"loading {name:9} {then:.1f} ms CPU (goal {LOADING_GOAL:.0f}), {first:.1f} ms the first time"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer pairs")
    pairs = QUICK if parser.parse_args().quick else PAIRS
    for partial in (False, True):
        sys.stdout.write(throughput(pairs, partial) + "\n")
    for name in ("opencode", "kilo", "codex", "acai"):
        sys.stdout.write(loading(name, 9) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
