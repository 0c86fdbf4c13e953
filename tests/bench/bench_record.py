"""Measure the cost of recording: `make bench`, or `python tests/bench/bench_record.py --quick`.

cpu    a dense turn of the drop-in, whose child is `cat`: recorded unchanged (`redact = "none"`)
       and with redaction (`redact = "casts"`), divided by the same turn without a recording; in
       turn, without the child's own CPU
wall   the demo session with its pauses: seconds with a recording, divided by those without

The goals are printed beside the numbers; no number fails the run.
"""

import argparse
import os
import shlex
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench import DELTAS, SHIM, TURN_ARGUMENTS, NotRunError, Table, format_spread, run_command
from bench_streams import (
    ENGLISH,
    MEGABYTE,
    STREAMS,
    BenchStream,
    build_long_turn,
    build_reply,
    write_blocks,
)

CPU_GOAL, WALL_GOAL = 1.4, 1.05
KINDS = ("", "none", "casts")  # of recording; "" means no recording


def build_environment(folder: str, kind: str, **more: str) -> dict[str, str]:
    """Return the environment of a run. Each recording is a new file in a folder that is emptied
    after the run.
    """
    variables = {
        key: value for key, value in os.environ.items() if not key.startswith(("SHIM_", "CLAUDE"))
    }
    variables |= {
        "HOME": folder,
        "SHIM_STATE": os.path.join(folder, "state"),
        "XDG_CONFIG_HOME": folder,
        **more,
    }
    return variables | (
        {"SHIM_RECORD": os.path.join(folder, "casts") + "/", "SHIM_REDACT": kind} if kind else {}
    )


def remove_recordings(folder: str, kind: str, *, size: int = 1) -> int:
    """Remove the recording of a run. Return its bytes."""
    casts = list(Path(folder, "casts").glob("*.cast")) if kind else []
    total = sum(path.stat().st_size for path in casts)
    if bool(kind) is not (total >= size):
        raise NotRunError(f"{len(casts)} casts of {total} bytes were left")
    for path in casts:
        path.unlink()
    return total


def measure_cpu(
    table: Table, name: str, stream: BenchStream, partial: bool, rounds: int, folder: str
) -> None:
    """Measure one stream."""
    stream_path, program = os.path.join(folder, "stream.ndjson"), os.path.join(folder, "vendor")
    size = os.path.getsize(stream_path)
    write_blocks(iter([f"#!/bin/sh\nexec cat {shlex.quote(stream_path)}\n".encode()]), program)
    os.chmod(program, 0o700)
    command = [*SHIM, "claude", *TURN_ARGUMENTS, *(["--include-partial-messages"] * partial)]
    spent: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(1 + rounds):
        alone = run_command([program], folder).seconds
        for kind in KINDS:
            env = build_environment(folder, kind, SHIM_VENDOR=stream.vendor, SHIM_BIN=program)
            seconds = run_command(command, folder, env).seconds - alone
            remove_recordings(folder, kind, size=size)
            if number:
                spent[kind].append(seconds)
    for kind in KINDS[1:]:
        ratios = [
            recorded_s / other for recorded_s, other in zip(spent[kind], spent[""], strict=True)
        ]
        median = statistics.median(ratios)
        goal = f"<= {CPU_GOAL}" if kind == "none" else ""
        row = f"{name}{' with partial messages' * partial}, {kind}"
        table.print_row(row, f"{format_spread(ratios)} times {statistics.median(spent['']):.2f} s", goal,
                  median <= CPU_GOAL if goal else None)  # fmt: skip


def measure_wall_time(table: Table, name: str, rounds: int, folder: str) -> None:
    """Measure the demo session."""
    took: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        for kind in KINDS:
            started_at = time.monotonic()
            run_command(
                [*SHIM, "claude", *TURN_ARGUMENTS],
                folder,
                build_environment(folder, kind, SHIM_VENDOR="demo"),
            )
            took[kind].append(time.monotonic() - started_at)
            remove_recordings(folder, kind)
    for kind in KINDS[1:]:
        ratios = [
            recorded_s / other for recorded_s, other in zip(took[kind], took[""], strict=True)
        ]
        table.print_row(f"{name}, {kind}", f"{format_spread(ratios, '.3f')} times", f"<= {WALL_GOAL}",
                  statistics.median(ratios) <= WALL_GOAL)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", default="pi,qwen,cursor,acai", help="as in --streams pi,qwen")
    parser.add_argument("--size", type=int, default=50, help="MB of each stream")
    parser.add_argument(
        "--quick", action="store_true", help="10 MB, fewer rounds: while developing"
    )
    options = parser.parse_args()
    size, rounds = (10, 3) if options.quick else (options.size, 5)
    table = Table()
    with tempfile.TemporaryDirectory(prefix="shim-bench-") as folder:
        path = os.path.join(folder, "stream.ndjson")
        table.print_heading(
            f"cpu   a recorded turn, times one that is not recorded; {size} MB, by turns"
        )
        for name in options.streams.split(","):
            write_blocks(build_long_turn(STREAMS[name], size * MEGABYTE), path)
            for partial in (False, True):
                table.print_measurement(name, measure_cpu, STREAMS[name], partial, rounds, folder)
        write_blocks(build_reply(STREAMS["pi"], DELTAS, ENGLISH), path)
        table.print_measurement(
            "100,000 deltas of words", measure_cpu, STREAMS["pi"], True, rounds, folder
        )
        table.print_heading(
            "wall  a session that takes its time, times the same without a recording"
        )
        table.print_measurement("the demo session", measure_wall_time, rounds, folder)
    return table.print_summary()


if __name__ == "__main__":
    sys.exit(main())
