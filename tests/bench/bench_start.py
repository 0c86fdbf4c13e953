"""Measure how soon a vendor's program runs after the start of the drop-in, and the cost of a
one-line turn: `make bench`, or `python tests/bench/bench_start.py`.

The start is the time from the shim's start until a stand-in for the vendor's program runs, minus
the time of a bare Python that only executes this program. The cost is the CPU time of a turn whose
vendor prints one reply, minus that of a bare Python that runs the same program. All commands run
once in every round. The rows are medians of the differences within a round. The last row starts the
program while Python must not write bytecode: it uses what `make setup` compiled.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time

from bench import TURN_ARGUMENTS, Table
from bench_streams import STREAMS, build_text_turn

from shim.process.install import ENTRY_CODE

VENDORS = ("pi", "qwen", "codex", "gemini", "opencode")
GOAL_MS = 20.0
CPU_GOAL_MS = 90.0
MAX_BYTECODE_RATIO = 1.1


class StartBench:
    """A folder with stand-ins for vendors, and the commands that start them.

    `program` writes to a FIFO when it runs. `reply_program` prints one reply of qwen. Both answer
    `--version` at once, because the shim asks for the version beside the turn.
    """

    def __init__(self, folder: str) -> None:
        self._fifo = os.path.join(folder, "started")
        os.mkfifo(self._fifo)
        self._fifo_descriptor = os.open(self._fifo, os.O_RDWR)
        self.program = os.path.join(folder, "vendor")
        write_script(self.program, f"echo >{self._fifo}")
        stream_path = os.path.join(folder, "reply.ndjson")
        with open(stream_path, "wb") as file:
            file.write(build_text_turn(STREAMS["qwen"]))
        self.reply_program = os.path.join(folder, "reply")
        write_script(self.reply_program, f"exec cat {stream_path}")
        inherited_env = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("SHIM_", "CLAUDE", "PYTHON"))
        }
        self._env = inherited_env | {
            "HOME": folder,
            "XDG_CONFIG_HOME": folder,
            "SHIM_BIN": self.program,
        }

    def time_bare_python(self) -> float:
        """Return the milliseconds until the program runs, started by a bare Python."""
        code = f"import os; os.execv({self.program!r}, [{self.program!r}])"
        return self._time_until_running([sys.executable, "-I", "-c", code], {})

    def time_turn(self, vendor: str) -> float:
        """Return the milliseconds until the program runs, started by a turn of `vendor`."""
        command = [sys.executable, "-I", "-c", ENTRY_CODE, "claude", *TURN_ARGUMENTS]
        return self._time_until_running(command, {"SHIM_VENDOR": vendor})

    def time_turn_without_bytecode(self, vendor: str) -> float:
        """Return the same while Python must not write bytecode. Python reads that variable only
        without `-I`.
        """
        command = [sys.executable, "-P", "-c", ENTRY_CODE, "claude", *TURN_ARGUMENTS]
        return self._time_until_running(
            command, {"SHIM_VENDOR": vendor, "PYTHONDONTWRITEBYTECODE": "1"}
        )

    def _time_until_running(self, command: list[str], environment: dict[str, str]) -> float:
        actions = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
        started_at = time.perf_counter()
        pid = os.posix_spawn(command[0], command, self._env | environment, file_actions=actions)
        os.read(self._fifo_descriptor, 1)
        took = time.perf_counter() - started_at
        os.waitpid(pid, 0)
        return took * 1000

    def measure_bare_python_cpu(self) -> float:
        """Return the CPU milliseconds of a bare Python that runs the program with one reply."""
        code = f"import os; os.waitpid(os.posix_spawn({self.reply_program!r}, ['reply'], os.environ), 0)"
        return self._measure_cpu([sys.executable, "-I", "-c", code])

    def measure_turn_cpu(self) -> float:
        """Return the CPU milliseconds of a turn of qwen with one reply."""
        return self._measure_cpu(
            [sys.executable, "-I", "-c", ENTRY_CODE, "claude", *TURN_ARGUMENTS]
        )

    def _measure_cpu(self, command: list[str]) -> float:
        environment = self._env | {"SHIM_VENDOR": "qwen", "SHIM_BIN": self.reply_program}
        actions = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
        pid = os.posix_spawn(command[0], command, environment, file_actions=actions)
        _, status, usage = os.wait4(pid, 0)
        if status:
            raise RuntimeError(f"{command} ended with the wait status {status}")
        return (usage.ru_utime + usage.ru_stime) * 1000


def write_script(path: str, command: str) -> None:
    """Write a program that runs `command`, or prints a version for `--version`."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'#!/bin/sh\n[ "$*" = --version ] && {{ echo 99.0.0; exit; }}\n{command}\n')
    os.chmod(path, 0o700)


def format_median_ms(values: list[float]) -> str:
    """Return the median and the minimum as text."""
    return f"{statistics.median(values):.1f} ms, minimum {min(values):.1f} ms"


def main() -> int:
    """Measure the start of each vendor."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    table = Table()
    with tempfile.TemporaryDirectory(prefix="shim-start-") as folder:
        start_bench = StartBench(folder)
        table.print_heading(
            f"the start of the vendor's program after ours, medians of {rounds} runs, by turns"
        )
        measurements = {"bare": start_bench.time_bare_python} | {
            name: lambda name=name: start_bench.time_turn(name) for name in VENDORS
        }
        measurements["unwritten"] = lambda: start_bench.time_turn_without_bytecode("pi")
        measurements["bare CPU"] = start_bench.measure_bare_python_cpu
        measurements["turn CPU"] = start_bench.measure_turn_cpu
        # The first round warms the caches.
        columns = [[run() for run in measurements.values()] for _ in range(1 + rounds)][1:]
        durations_ms = dict(
            zip(measurements, (list(column) for column in zip(*columns, strict=True)), strict=True)
        )
        bare = durations_ms.pop("bare")
        unwritten = durations_ms.pop("unwritten")
        bare_cpu = durations_ms.pop("bare CPU")
        turn_cpu = durations_ms.pop("turn CPU")
        table.print_row("bare Python, then the program", format_median_ms(bare))
        for name, values in durations_ms.items():
            later = [duration_ms - other for duration_ms, other in zip(values, bare, strict=True)]
            met = statistics.median(later) <= GOAL_MS
            table.print_row(
                f"{name}, above that", format_median_ms(later), f"<= {GOAL_MS:g} ms", met
            )
        times = statistics.median(
            duration_ms / other
            for duration_ms, other in zip(unwritten, durations_ms["pi"], strict=True)
        )
        table.print_row(
            "pi, no bytecode may be written",
            f"{times:.2f} times",
            f"<= {MAX_BYTECODE_RATIO:g} times",
            times <= MAX_BYTECODE_RATIO,
        )
        table.print_row("CPU of a bare Python", format_median_ms(bare_cpu))
        above = [turn_ms - bare_ms for turn_ms, bare_ms in zip(turn_cpu, bare_cpu, strict=True)]
        table.print_row(
            "CPU of a turn of qwen, above that",
            format_median_ms(above),
            f"<= {CPU_GOAL_MS:g} ms",
            statistics.median(above) <= CPU_GOAL_MS,
        )
    return table.print_summary()


if __name__ == "__main__":
    sys.exit(main())
