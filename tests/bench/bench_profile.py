"""Compare the cost of rules with a hand-written module, and measure how long it takes to load a
profile.

acai and codex run both ways over the events of fixtures, in turn on the same bytes of one run. Both
must write the same bytes. `python tests/bench/bench_profile.py [--quick]` prints the goals beside
the numbers; no number fails the run.
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

from fixture_cases import list_fixture_cases
from handwritten_acai import ACAI
from handwritten_codex import CODEX
from turn_stage import build_turn_config

from shim.adapters import get_adapter
from shim.conversation.drivers.open_translation import STABLE_ID_PREFIX
from shim.core.adapter.adapter import Adapter
from shim.core.adapter.child_stream import ChildStream
from shim.core.claude.writer import StreamJsonWriter
from shim.core.turn.outcome import ChildExit

GOAL = 1.1  # times a hand-written module
LOADING_GOAL = 4.0  # ms of CPU per turn
PAIRS, QUICK = 60, 10
BY_HAND = {"acai": (ACAI, ("acai", "cake")), "codex": (CODEX, ("codex",))}
CODEX_RUNS = ("text", "reasoning", "shell", "failtool", "applypatch", "mcp", "plan", "parallel")


def measure_seconds(vendor: Adapter, streams: list[bytes], partial: bool) -> tuple[float, bytes]:
    """Return the CPU time for all streams, each of them one turn, and the output for the last
    one.
    """
    started_at, output = time.process_time(), b""
    for data in streams:
        writer = StreamJsonWriter(STABLE_ID_PREFIX, writes_partial_messages=partial)
        turn_config = build_turn_config(
            vendor.name, tools=vendor.listed_tools, can_retract=vendor.abilities.can_repeat_reply
        )
        translation = ChildStream(vendor.translator_class, turn_config, writer)
        output = translation.feed(data)[0] + translation.close(ChildExit(code=0))[0]
    return time.process_time() - started_at, output


def build_streams(name: str) -> list[bytes]:
    """Return one long stream per fixture: its repeated events, and its end once."""
    folders = BY_HAND[name][1]
    cases = [
        case for case in list_fixture_cases(*folders) if case.name.partition("/")[0] in folders
    ]
    if name == "codex":
        cases = [case for case in cases if case.name.partition("0.169.0-")[2] in CODEX_RUNS]
    lines = [case.data.splitlines(keepends=True) for case in cases if len(case.data) > 500]
    return [b"".join([*case_lines[:-1] * 20, *case_lines]) for case_lines in lines]


def measure_throughput(name: str, pairs: int, partial: bool) -> str:
    """Return how much longer the rules take, as the median of pairs."""
    by_hand, rules = (
        BY_HAND[name][0].copy_with(abilities=get_adapter(name).abilities),
        get_adapter(name),
    )
    streams = build_streams(name)
    lines = sum(data.count(b"\n") for data in streams)
    for data in streams:
        assert (
            measure_seconds(by_hand, [data], partial)[1]
            == measure_seconds(rules, [data], partial)[1]
        ), "both say the same"
    durations_s = []
    for number in range(pairs):
        order = (by_hand, rules) if number % 2 else (rules, by_hand)
        took = {
            vendor.translator_class: measure_seconds(vendor, streams, partial)[0]
            for vendor in order
        }
        durations_s.append((took[by_hand.translator_class], took[rules.translator_class]))
    ratio = statistics.median(two / by_hand_s for by_hand_s, two in durations_s)
    best = [min(column) / lines * 1e6 for column in zip(*durations_s, strict=True)]
    kind = "partial" if partial else "whole"
    line = f"{best[1]:.2f} and {best[0]:.2f} µs a line, {lines} lines"
    return f"{name:6} {kind:8} rules {ratio:.2f} × by hand (goal {GOAL}); {line}"


LOAD = """
import gc, os, sys, time
gc.disable()  # as `shim.__main__` does
import shim.conversation.startup
from shim.state.own_profiles import register_user_profiles
register_user_profiles(os.environ)
from shim.adapters import get_adapter
began = time.process_time()
vendor = get_adapter(sys.argv[1])
before = time.process_time() - began
import shim.core.adapter.child_stream
began = time.process_time()
translator = vendor.translator_class
for kind in translator.rules.types:
    translator.rules.find_event_handler(kind)
print(before * 1000, (time.process_time() - began) * 1000)
"""


def measure_loading(name: str, runs: int) -> str:
    """Measure the CPU time that a profile adds to a turn, in a separate process: before its child
    is started, and after that.

    After the start all rules are compiled, although a turn needs only some of them.
    """
    with tempfile.TemporaryDirectory() as state:
        environment = {**os.environ, "SHIM_STATE": state}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed shim is compiled
        command = [sys.executable, "-P", "-c", LOAD, name]

        def run_load() -> tuple[float, float]:
            before, after_ms = subprocess.run(
                command, env=environment, capture_output=True, check=True
            ).stdout.split()
            return float(before), float(after_ms)

        first = sum(run_load())
        costs_ms = [run_load() for _ in range(runs)]
    before, after_ms = (statistics.median(column) for column in zip(*costs_ms, strict=True))
    parts = f"{before:.1f} before the child starts, {after_ms:.1f} while it runs; {first:.1f} the first time"
    return f"loading {name:9} {before + after_ms:.1f} ms CPU (goal {LOADING_GOAL:.0f}): {parts}"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer pairs")
    pairs = QUICK if parser.parse_args().quick else PAIRS
    for name in BY_HAND:
        for partial in (False, True):
            sys.stdout.write(measure_throughput(name, pairs, partial) + "\n")
    for name in ("acai", "codex", "gemini", "kilo", "kimi", "opencode"):
        sys.stdout.write(measure_loading(name, 9) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
