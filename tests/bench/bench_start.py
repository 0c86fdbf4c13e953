"""How soon a vendor's program runs after the drop-in was started: `make bench`, or `python
tests/bench/bench_start.py`.

Milliseconds from our start to the first words of a program that stands in for the vendor, less what
a bare Python needs that does nothing but become this program; medians, by turns. Then the same
where Python must not write bytecode, as a fraction of the time with it: what `make setup` compiled
is there all the same.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time

from bench import TURN_ARGUMENTS, Table

from shim.process.install import ENTRY_CODE

VENDORS = ("pi", "qwen", "codex", "gemini", "opencode")
GOAL_MS = 20.0
SLOWER = 1.1


class StartBench:
    """A folder with a program that says when it runs, and the commands that come to it."""

    def __init__(self, folder: str) -> None:
        self.program, self._fifo = os.path.join(folder, "vendor"), os.path.join(folder, "said")
        os.mkfifo(self._fifo)
        with open(self.program, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\necho >{self._fifo}\n")
        os.chmod(self.program, 0o700)
        self._fifo_descriptor = os.open(self._fifo, os.O_RDWR)
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
        """Milliseconds until the program runs, started by a bare Python."""
        code = f"import os; os.execv({self.program!r}, [{self.program!r}])"
        return self._time_until_running([sys.executable, "-I", "-c", code], {})

    def time_turn(self, vendor: str) -> float:
        """Milliseconds until the program runs, started by a turn of `vendor`."""
        command = [sys.executable, "-I", "-c", ENTRY_CODE, "claude", *TURN_ARGUMENTS]
        return self._time_until_running(command, {"SHIM_VENDOR": vendor})

    def time_turn_without_bytecode(self, vendor: str) -> float:
        """The same where Python must not write bytecode, which it hears only without `-I`."""
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


def format_median_ms(values: list[float]) -> str:
    """A median, with the least beside it."""
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
        # the first round warms up
        columns = [[run() for run in measurements.values()] for _ in range(1 + rounds)][1:]
        durations_ms = dict(
            zip(measurements, (list(column) for column in zip(*columns, strict=True)), strict=True)
        )
        bare = durations_ms.pop("bare")
        unwritten = durations_ms.pop("unwritten")
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
            f"<= {SLOWER:g} times",
            times <= SLOWER,
        )
    return table.print_summary()


if __name__ == "__main__":
    sys.exit(main())
