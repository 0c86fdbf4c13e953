"""Measures when the model's first text arrives with a two-way driver and with a one-way driver:
`make bench`.

Real vendors that support both drivers run alternately with a model server on loopback, each in a
conversation of two messages. The time is measured from the line of each message on stdin. The first
message includes the start of the drop-in and of the vendor. The output has medians, and medians of
the differences. CPU time is that of the drop-in and all its children for both messages. No limit is
checked.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from bench_real_vendors import FIRST, PROMPT, print_line, start_with_pipes
from clis import build_isolated_environment
from programs import install_program
from vendor_setups import CODEX, COPILOT, GEMINI, KIMI, OPENCODE, PI, Vendor

VENDORS = (GEMINI, OPENCODE, PI, COPILOT, KIMI, CODEX)
DRIVERS = ("one-way", "two-way")
TALK = (
    "--verbose",
    "--input-format",
    "stream-json",
    "--output-format",
    "stream-json",
    "--include-partial-messages",
)
MESSAGE = (
    json.dumps({"type": "user", "message": {"role": "user", "content": PROMPT}}).encode() + b"\n"
)


class Times(NamedTuple):
    """Times in milliseconds: to the first text of each message, and CPU time for both."""

    first: float
    second: float
    cpu: float


def time_conversation(command: list[str], environment: Mapping[str, str], folder: Path) -> Times:
    start_time = time.monotonic()
    process, stdin, stdout = start_with_pipes(command, environment, folder)
    latencies_ms = []
    for _ in range(2):
        stdin.write(MESSAGE)
        stdin.flush()
        latency_s = 0.0
        for line in stdout:
            if FIRST in line and not latency_s:
                latency_s = time.monotonic() - start_time
            if b'"type":"result"' in line:
                break
        if not latency_s:
            raise SystemExit(f"{' '.join(command[-2:])} said nothing")
        latencies_ms.append(latency_s * 1000)
        start_time = time.monotonic()
    stdin.close()
    stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    stdout.close()
    return Times(*latencies_ms, (used.ru_utime + used.ru_stime) * 1000)


def measure_vendor(vendor: Vendor, pairs: int) -> None:
    """Print the measurements of both drivers for one vendor."""
    program = install_program(vendor.package)
    with vendor.server() as model, tempfile.TemporaryDirectory() as root_path:
        root = Path(root_path)
        folder = root / "work"
        folder.mkdir()
        environment = build_isolated_environment(vendor, program, model.url, root)
        environment |= {"SHIM_BIN": str(program.executable), "SHIM_STATE": str(root / "state")}
        shim = [sys.executable, "-m", "shim", "install", "--vendor", vendor.name, "--to", root_path]
        subprocess.run(shim, env=environment, check=True, stdout=subprocess.DEVNULL)
        command = [str(root / "claude"), *TALK, *vendor.claude_flags]
        config_file = root / "home" / ".config" / "shim" / "config.toml"
        config_text = (
            config_file.read_text() if config_file.exists() else f"[vendors.{vendor.name}]\n"
        )
        times_by_driver: dict[str, list[Times]] = {way: [] for way in DRIVERS}
        for way in DRIVERS:
            (root / f"{way}.toml").write_text(f'{config_text}driver = "{way}"\n')
        for pair in range(pairs + 1):
            for way in DRIVERS if pair % 2 else reversed(DRIVERS):
                times = time_conversation(
                    command, environment | {"SHIM_CONFIG": str(root / f"{way}.toml")}, folder
                )
                if pair:  # the first round warms the caches
                    times_by_driver[way].append(times)
        for name in Times._fields:
            baseline_times, two = (
                [getattr(times, name) for times in times_by_driver[way]] for way in DRIVERS
            )
            later = statistics.median(b - a for a, b in zip(baseline_times, two, strict=True))
            label = {
                "first": "first text",
                "second": "first text of the second message",
                "cpu": "CPU",
            }[name]
            print_line(
                f"{vendor}: {label} {statistics.median(baseline_times):.0f} ms one-way, {later:+.0f} ms two-way"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("vendors", nargs="*", default=[vendor.name for vendor in VENDORS])
    options = parser.parse_args()
    os.environ.pop("CLAUDE_CODE_ENTRYPOINT", None)
    for each in VENDORS:
        if each.name in options.vendors and each.two_way:
            measure_vendor(each, options.pairs)
