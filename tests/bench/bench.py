"""Measurements of the shim, as ratios inside one run: `make bench`, or `python tests/bench/bench.py
--quick`.

a  throughput of `shim translate` per vendor: as a fraction of the floor (`orjson.loads` +
   `orjson.dumps` of the same lines in the same process, in turn on slices of one stream), and
   beside `jq -c .`
b  CPU of `claude --version` and of a one-line turn, above a bare Python
c  peak memory on a 1 GB stream and on one 100 MB line
d  the cost of `redact = "all"` on streams of deltas, beside the same streams without redaction

The goals are printed beside the numbers, but no number fails the run. The exit status is 1 only if
something could not be run.
"""

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import orjson
from bench_streams import (
    BLOCK,
    ENGLISH,
    MEGABYTE,
    STREAMS,
    BenchStream,
    build_line,
    build_long_turn,
    build_reply,
    build_text_turn,
    write_blocks,
)

BARE = [sys.executable, "-I", "-c", "pass"]
SHIM = [sys.executable, "-I", "-m", "shim"]
TURN_ARGUMENTS = ["-p", "hi", "--output-format", "stream-json", "--verbose"]
DELTAS = 100_000
SLICE = 2 * MEGABYTE  # small, so that floor and translation run under the same load
MEMORY_GOAL = 60
# The streams for the measurements of memory and redaction: one vendor of each kind, because each
# takes minutes.
LONG = ["acai", "acai-2026", "codex", "cursor", "cursor-deltas", "pi", "qwen"]

# Starts a command from a process smaller than anything measured: the peak memory reported for a
# child is never below the size of the process that started it.
LAUNCHER = """
import json, os, sys
out, err, *argv = sys.argv[1:]
flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
actions = [(os.POSIX_SPAWN_OPEN, number, path, flags, 0o600) for number, path in ((1, out), (2, err))]
_, status, used = os.wait4(os.posix_spawnp(argv[0], argv, os.environ, file_actions=actions), 0)
print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss, os.waitstatus_to_exitcode(status)]))
"""


# ---- how the shim is started: only this part knows it


def build_translator(
    vendor: str, partial: bool, redact: bool = False
) -> tuple[Callable[[bytes], bytes], Callable[[], bytes]]:
    """Return the functions that `shim translate` uses: bytes in, bytes out; and the end of the
    child.
    """
    from shim.conversation.drivers.open_translation import create_standalone_child_stream
    from shim.core.turn.outcome import ChildExit

    translation = create_standalone_child_stream(
        vendor, include_partial_messages=partial, terminator="none", redact=redact
    )
    return lambda block: translation.feed(block)[0], lambda: translation.close(ChildExit(0))[0]


def translate_command(vendor: str, path: str | None = None, partial: bool = False) -> list[str]:
    """Return the command `shim translate` for a file or for stdin."""
    return [
        *SHIM,
        "translate",
        vendor,
        *(["--partial"] if partial else []),
        *([path] if path else []),
    ]


def install_shim(folder: str, env: dict[str, str]) -> None:
    """Install the drop-in as `claude` in this folder."""
    command = [*SHIM, "install", "--to", folder, "--vendor", "demo"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotRunError(find_error_line(done.stderr) or f"install: exit {done.returncode}")


# ---- running commands


class NotRunError(Exception):
    """Something to be measured could not be run."""


class Spent(NamedTuple):
    """The resources that one command used."""

    seconds: float
    kilobytes: int


def find_error_line(text: str) -> str:
    """Return the end of an error message, without the frame around it."""
    lines = [line.strip(" │|") for line in text.splitlines() if any(map(str.isalpha, line))]
    return lines[-1][:90] if lines else ""


def run_command(
    command: list[str],
    folder: str,
    env: dict[str, str] | None = None,
    blocks: Iterable[bytes] | None = None,
    out: str = os.devnull,
) -> Spent:
    """Run a command and return the resources that it used. `blocks` are its stdin; otherwise stdin
    is empty.
    """
    errors = os.path.join(folder, "stderr")
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", LAUNCHER, out, errors, *command],
        stdin=subprocess.DEVNULL if blocks is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=env,
    )
    try:
        for block in blocks or ():
            process.stdin.write(block)
    except BrokenPipeError:
        pass
    answer, _ = process.communicate()
    with open(errors, errors="replace") as file:
        reason = find_error_line(file.read())
    if process.returncode:
        raise NotRunError(f"{command[0]} could not be started")
    seconds, kilobytes, code = json.loads(answer)
    if code:
        raise NotRunError(reason or f"exit {code}")
    return Spent(seconds, kilobytes)


# ---- the table


class Table:
    """Prints rows as they are measured: name, measured value, goal, and whether the goal was
    met.
    """

    def __init__(self) -> None:
        self.counts = {"ok": 0, "short": 0, "": 0, "not run": 0}

    def print_heading(self, text: str) -> None:
        self.print_text(f"\n{text}\n")

    def print_row(
        self, name: str, measured: str, goal: str = "", met: bool | str | None = None
    ) -> None:
        """Print one measurement. The goal is optional."""
        status = met if isinstance(met, str) else "" if met is None else "ok" if met else "short"
        self.counts[status] += 1
        self.print_text(f"  {name:<37} {measured:<62} {goal:<10} {status}".rstrip() + "\n")

    def print_measurement(self, name: str, measure: Callable[..., None], *args: Any) -> None:
        """Measure something, or print why that failed."""
        try:
            measure(self, name, *args)
        except (NotRunError, OSError) as error:
            self.print_row(name, str(error)[:90], "", "not run")

    def print_summary(self) -> int:
        """Print the last line. Return the exit status."""
        met, short, without_goal_count, broken = (
            self.counts[status] for status in ("ok", "short", "", "not run")
        )
        self.print_text(
            f"\n{met} ok, {short} short, {without_goal_count} without a goal, {broken} could not be run\n"
        )
        return 1 if broken else 0

    @staticmethod
    def print_text(text: str) -> None:
        """Print and flush, because a full run takes minutes."""
        sys.stdout.write(text)
        sys.stdout.flush()


def format_spread(values: list[float], form: str = ".2f") -> str:
    """Return the median with the lowest and the highest value."""
    return f"{statistics.median(values):{form}} ({min(values):{form}}–{max(values):{form}})"


# ---- a: throughput


def measure_slices(vendor: str, path: str, partial: bool, rounds: int) -> dict[str, Any]:
    """Measure floor and translation in turn on slices of a file, with sums per round. One
    translation reads the whole file.
    """
    feed, close = build_translator(vendor, partial)
    share = -(-os.path.getsize(path) // rounds)
    floors, costs, lines_in, lines_out, last = [0.0] * rounds, [0.0] * rounds, 0, 0, b""
    with open(path, "rb") as file:
        while data := file.read(min(SLICE, share // 2)) + file.readline():
            turn = (file.tell() - len(data)) // share
            lines = data.split(b"\n")[:-1]
            lines_in += len(lines)
            start = time.process_time()
            for line in lines:
                orjson.dumps(orjson.loads(line))
            floors[turn] += time.process_time() - start
            blocks = [data[at : at + BLOCK] for at in range(0, len(data), BLOCK)]
            start = time.process_time()
            for block in blocks:
                if out := feed(block):
                    last = out
                    lines_out += out.count(b"\n")
            costs[turn] += time.process_time() - start
    start = time.process_time()
    last += close()
    costs[-1] += time.process_time() - start
    result = orjson.loads(last.splitlines()[-1])
    ending = {
        "subtype": result.get("subtype"),
        "repairs": list(result.get("shim", {}).get("repairs", ())),
    }
    return {
        "floors": floors,
        "costs": costs,
        "lines_in": lines_in,
        "lines_out": lines_out,
        "ending": ending,
    }


def measure_inside(stream: BenchStream, path: str, partial: bool, rounds: int) -> dict[str, Any]:
    """Measure in a separate process, so that nothing of one vendor affects the next."""
    command = [
        sys.executable,
        os.path.abspath(__file__),
        "--inside",
        stream.vendor,
        path,
        str(int(partial)),
    ]
    done = subprocess.run([*command, str(rounds)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotRunError(find_error_line(done.stderr))
    result: dict[str, Any] = json.loads(done.stdout)
    if result["ending"]["subtype"] != "success":
        raise NotRunError("the translation of this stream did not end in a success")
    return result


def measure_fraction(
    table: Table, name: str, stream: BenchStream, path: str, partial: bool, rounds: int
) -> None:
    """Print one row: the fraction of the floor, and lines per CPU second."""
    result = measure_inside(stream, path, partial, rounds)
    ratios = [floor / cost for floor, cost in zip(result["floors"], result["costs"], strict=True)]
    goal = stream.partial_goal if partial else stream.goal
    lines, speed = result["lines_in"], result["lines_in"] / sum(result["costs"])
    repairs = "".join(f"; {kind}!" for kind in result["ending"]["repairs"])
    measured = f"{format_spread(ratios, '.3f')}; {speed:,.0f} lines/s, {result['lines_out'] / lines:.2f} lines out each"
    table.print_row(
        name + (" --partial" if partial else "") + ", of the floor",
        measured + repairs,
        f">= {goal:.2f}" if goal else "",
        statistics.median(ratios) >= goal if goal else None,
    )


def compare_with_jq(
    table: Table, name: str, stream: BenchStream, path: str, rounds: int, folder: str
) -> None:
    """Print one row: the command's CPU, and jq's on the same bytes, in turn."""
    with open(path, "rb") as file:
        lines = sum(block.count(b"\n") for block in iter(lambda: file.read(BLOCK), b""))
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(run_command(translate_command(stream.vendor, path), folder).seconds)
        if shutil.which("jq"):
            theirs.append(run_command(["jq", "-c", ".", path], folder).seconds)
    speed = lines / statistics.median(ours)
    if not theirs:
        table.print_row(name + ", the command", f"{speed:,.0f} lines/s; jq is missing here", "> jq")
        return
    ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
    measured = (
        f"{format_spread(ratios, '.1f')} times; "
        f"{speed:,.0f} lines/s, jq {lines / statistics.median(theirs):,.0f}"
    )
    met = statistics.median(ratios) > 1 if rounds > 1 else None  # a short stream measures the start
    table.print_row(name + ", the command", measured, "> jq", met)


def measure_stream(
    table: Table, name: str, options: argparse.Namespace, path: str, folder: str
) -> None:
    """Print the rows of one stream."""
    stream = STREAMS[name]
    write_blocks(build_long_turn(stream, options.size * MEGABYTE), path)
    for partial in (False, True):
        measure_fraction(table, name, stream, path, partial, options.rounds)
    compare_with_jq(table, name, stream, path, options.command_rounds, folder)


def measure_deltas(
    table: Table, name: str, partial: bool, rounds: int, path: str, folder: str
) -> None:
    """Measure one long reply: the cost must not grow with the text written so far."""
    stream = STREAMS["pi"]
    write_blocks(build_reply(stream, DELTAS), path)
    costs = [sum(measure_inside(stream, path, partial, 1)["costs"]) for _ in range(rounds)]
    table.print_row(name, f"{format_spread(costs)} s", "< 0.50 s", statistics.median(costs) < 0.5)
    command_s = run_command(translate_command(stream.vendor, path, partial), folder).seconds
    table.print_row("  the command, start and all", f"{command_s:.2f} s")


def measure_throughput(table: Table, options: argparse.Namespace, folder: str) -> None:
    table.print_heading(
        f"a  throughput, {options.size} MB of each vendor's real event mix; CPU, median (lowest–highest)"
    )
    path = os.path.join(folder, "stream.ndjson")
    for name in options.streams:
        table.print_measurement(name, measure_stream, options, path, folder)
    for name, partial in (("2 MB reply in 100,000 deltas", False), ("the same --partial", True)):
        table.print_measurement(name, measure_deltas, partial, options.rounds, path, folder)
    os.unlink(path)


# ---- b: start-up


def measure_commands_ms(
    commands: list[list[str]], times: int, folder: str, env: dict[str, str]
) -> list[list[float]]:
    """Return the CPU milliseconds of each command. All run once per round; the first round only
    warms the caches.
    """
    out = os.path.join(folder, "said")
    rounds = [
        [run_command(command, folder, env, out=out).seconds for command in commands]
        for _ in range(1 + times)
    ]
    return [[seconds * 1000 for seconds in column] for column in zip(*rounds[1:], strict=True)]


def print_difference(
    table: Table, name: str, goal: int | None, totals_ms: list[float], *parts: list[float]
) -> None:
    """Print one row: the cost of a command above the others in the same round."""
    differences = [
        total_ms - sum(others) for total_ms, *others in zip(totals_ms, *parts, strict=True)
    ]
    least = min(totals_ms) - sum(map(min, parts))
    median = statistics.median(differences)
    measured = f"{median:.1f} ms, minimum against minimum {least:.1f} ms"
    table.print_row(
        name, measured, f"<= {goal} ms" if goal else "", median <= goal if goal else None
    )


def measure_version_cost(
    table: Table, name: str, claude: str, times: int, folder: str, env: dict[str, str]
) -> None:
    """Install the drop-in and measure a frontend's version probe."""
    install_shim(os.path.dirname(claude), env)
    bare, version = measure_commands_ms([BARE, [claude, "--version"]], times, folder, env)
    table.print_row("bare python -I -c pass", f"{format_spread(bare, '.1f')} ms")
    print_difference(table, name, 15, version, bare)


def measure_turn_cost(
    table: Table, name: str, claude: str, times: int, folder: str, env: dict[str, str]
) -> None:
    """Measure a one-line turn whose vendor is `cat`."""
    vendor = env["SHIM_VENDOR"]
    stream_path, output_path = (
        os.path.join(folder, f"{vendor}.ndjson"),
        os.path.join(folder, "said"),
    )
    write_blocks(iter([build_text_turn(STREAMS[vendor])]), stream_path)
    write_blocks(
        iter([f"#!/bin/sh\nexec cat {shlex.quote(stream_path)}\n".encode()]), env["SHIM_BIN"]
    )
    os.chmod(env["SHIM_BIN"], 0o700)
    run_command([claude, *TURN_ARGUMENTS], folder, env, out=output_path)
    with open(output_path, "rb") as file:
        if b'"subtype":"success"' not in file.read():
            raise NotRunError("the turn did not end in a success")
    commands = [BARE, [env["SHIM_BIN"]], [claude, *TURN_ARGUMENTS]]
    bare, alone, totals_ms = measure_commands_ms(commands, times, folder, env)
    table.print_row(f"the stand-in for {vendor} alone", f"{format_spread(alone, '.1f')} ms")
    print_difference(table, name, None, totals_ms, bare)
    print_difference(table, "  without the stand-in's own CPU", 80, totals_ms, bare, alone)


def start_up(table: Table, options: argparse.Namespace, folder: str) -> None:
    table.print_heading(f"b  CPU, median difference of {options.starts} runs each, by turns")
    env = {
        key: value for key, value in os.environ.items() if not key.startswith(("SHIM_", "CLAUDE"))
    }
    env |= {"HOME": folder, "SHIM_STATE": os.path.join(folder, "state"), "XDG_CONFIG_HOME": folder}
    claude = os.path.join(folder, "bin", "claude")
    table.print_measurement(
        "claude --version, above bare Python",
        measure_version_cost,
        claude,
        options.starts,
        folder,
        env,
    )
    for vendor in ("acai", "qwen"):
        vendor_env = env | {
            "SHIM_VENDOR": vendor,
            "SHIM_BIN": os.path.join(folder, f"{vendor}-cli"),
        }
        name = f"a turn ({vendor}), above bare Python"
        table.print_measurement(name, measure_turn_cost, claude, options.starts, folder, vendor_env)


# ---- c: memory


def measure_peak_memory(
    table: Table, name: str, vendor: str, blocks: Iterator[bytes], goal: int, folder: str
) -> None:
    """Print one row: the peak memory of a translation. Goal 0 means no goal."""
    used = run_command(translate_command(vendor), folder, blocks=blocks)
    megabytes = used.kilobytes / 1024
    met = megabytes <= goal if goal else None
    table.print_row(
        name, f"{megabytes:.1f} MB, {used.seconds:.1f} s", f"<= {goal} MB" if goal else "", met
    )


def measure_memory(table: Table, options: argparse.Namespace, folder: str) -> None:
    table.print_heading("c  peak memory of `shim translate` reading a pipe")
    table.print_row(
        "bare python -I -c pass", f"{run_command(BARE, folder).kilobytes / 1024:.1f} MB"
    )
    for key in options.long_streams:
        turn = build_long_turn(STREAMS[key], options.memory_size * MEGABYTE)
        name = f"{key}, {options.memory_size} MB stream"
        table.print_measurement(
            name, measure_peak_memory, STREAMS[key].vendor, turn, MEMORY_GOAL, folder
        )
    for key in ("acai", "qwen"):
        line = build_line(STREAMS[key], 100 * MEGABYTE)
        table.print_measurement(
            f"{key}, one line of 100 MB", measure_peak_memory, key, line, 0, folder
        )


# ---- d: redaction


def measure_redaction_slices(
    vendor: str, path: str, partial: bool, rounds: int
) -> dict[str, list[float]]:
    """Return the CPU of three translations of one file, slice by slice and in turn: two without
    redaction and one with it.
    """
    feeds = [build_translator(vendor, partial, redact)[0] for redact in (False, True, False)]
    share = -(-os.path.getsize(path) // rounds)
    costs = [[0.0] * rounds for _ in feeds]
    with open(path, "rb") as file:
        while data := file.read(min(SLICE // 4, share // 4)) + file.readline():
            turn = (file.tell() - len(data)) // share
            for feed, spent in zip(feeds, costs, strict=True):
                start = time.process_time()
                feed(data)
                spent[turn] += time.process_time() - start
    return dict(zip(("off", "all", "again"), costs, strict=True))


def measure_redaction_cost(
    table: Table, name: str, stream: BenchStream, partial: bool, blocks: Iterator[bytes], path: str
) -> None:
    """Print one row: the CPU with redaction, divided by the CPU without it. The goal is that of a
    stream of deltas.
    """
    write_blocks(blocks, path)
    command = [
        sys.executable,
        os.path.abspath(__file__),
        "--redacting",
        stream.vendor,
        path,
        str(int(partial)),
        "5",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotRunError(find_error_line(done.stderr))
    costs = json.loads(done.stdout)
    ratios = [clean / off for clean, off in zip(costs["all"], costs["off"], strict=True)]
    baseline_ratios = [
        baseline / off for baseline, off in zip(costs["again"], costs["off"], strict=True)
    ]
    measured = (
        f"{format_spread(ratios)} times; without it once more {format_spread(baseline_ratios)}"
    )
    goal = 1.5 if "deltas" in name else 0
    met = statistics.median(ratios) <= goal if goal else None
    table.print_row(
        name + (" --partial" if partial else ""), measured, f"<= {goal:.2f}" if goal else "", met
    )


def measure_redaction(table: Table, options: argparse.Namespace, folder: str) -> None:
    size = min(options.size, 50)
    table.print_heading(
        f"d  redaction: CPU with `redact = all`, times without; {size} MB of each stream, by turns"
    )
    path = os.path.join(folder, "stream.ndjson")
    for name in options.long_streams:
        for partial in (False, True):
            blocks = build_long_turn(STREAMS[name], size * MEGABYTE)
            table.print_measurement(
                name, measure_redaction_cost, STREAMS[name], partial, blocks, path
            )
    for label, fragments in (("words", ENGLISH), ("20 characters", None)):
        for partial in (False, True):
            blocks = build_reply(STREAMS["pi"], DELTAS, fragments)
            table.print_measurement(
                f"100,000 deltas of {label}",
                measure_redaction_cost,
                STREAMS["pi"],
                partial,
                blocks,
                path,
            )


def main() -> int:
    """Measure the requested parts."""
    if sys.argv[1:2] == ["--redacting"]:
        vendor, path, partial, rounds = sys.argv[2:]
        sys.stdout.write(
            json.dumps(measure_redaction_slices(vendor, path, partial == "1", int(rounds)))
        )
        return 0
    if sys.argv[1:2] == ["--inside"]:
        vendor, path, partial, rounds = sys.argv[2:]
        sys.stdout.write(json.dumps(measure_slices(vendor, path, partial == "1", int(rounds))))
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="a,b,c,d", help="parts, as in --only a,c")
    parser.add_argument(
        "--streams",
        help="streams, as in --streams pi,qwen; without it all, and LONG in the parts c and d",
    )
    parser.add_argument("--size", type=int, default=200, help="MB of each stream (part a)")
    parser.add_argument(
        "--quick", action="store_true", help="10 MB, fewer rounds: while developing"
    )
    options = parser.parse_args()
    options.long_streams = options.streams.split(",") if options.streams else LONG
    options.streams = options.streams.split(",") if options.streams else list(STREAMS)
    options.rounds, options.command_rounds, options.starts, options.memory_size = 5, 3, 25, 1000
    if options.quick:
        options.size = min(options.size, 10)
        options.rounds, options.command_rounds, options.starts, options.memory_size = 3, 1, 7, 100
    table = Table()
    table.print_text(
        f"Python {sys.version.split()[0]}, orjson {orjson.__version__}, {os.cpu_count()} CPUs\n"
    )
    parts = {"a": measure_throughput, "b": start_up, "c": measure_memory, "d": measure_redaction}
    with tempfile.TemporaryDirectory(prefix="shim-bench-") as folder:
        for part in options.only.split(","):
            parts[part](table, options, folder)
    return table.print_summary()


if __name__ == "__main__":
    sys.exit(main())
