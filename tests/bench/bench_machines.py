"""Measure how long a machine that hangs delays the list of this machine's sessions: `make bench`, or
`python tests/bench/bench_machines.py`.

The command is `claude agents --json --all`, and the time is that until its first line. It is
measured without other machines, and with one whose SSH server accepts connections and never
answers. Both commands run once in every round. The last row is the median of the differences within
a round.
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from bench import Table

from shim.bridge import registry
from shim.process.install import ENTRY_CODE

GOAL_MS = 50.0
SESSION = "0123abcd-0000-4000-8000-000000000001"
COMMAND = [sys.executable, "-I", "-c", ENTRY_CODE, "claude", "agents", "--json", "--all"]


def time_first_line(environment: dict[str, str]) -> float:
    """Return the milliseconds until the command prints the start of its list."""
    started_at = time.perf_counter()
    with subprocess.Popen(
        COMMAND,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"[\n"
        duration_ms = 1000 * (time.perf_counter() - started_at)
        process.kill()
    return duration_ms


def build_environments(folder: str, port: int) -> tuple[dict[str, str], dict[str, str]]:
    """Return the environments without and with the machine that listens on `port`."""
    os.makedirs(os.path.join(folder, ".ssh"), mode=0o700)
    with open(os.path.join(folder, ".ssh", "config"), "w", encoding="utf-8") as file:
        file.write(f"Host silent\n  HostName 127.0.0.1\n  Port {port}\n")
    config = os.path.join(folder, "config.toml")
    with open(config, "w", encoding="utf-8") as file:
        file.write('[machines]\nsilent = "ssh:silent"\n')
    state = os.path.join(folder, "state")
    os.mkdir(state, 0o700)
    alone = {"PATH": os.environ["PATH"], "HOME": folder, "SHIM_STATE": state}
    registry.write_metadata(
        registry.create_session_folder(SESSION, alone), {"session": SESSION, "state": "done"}
    )
    return alone, {**alone, "SHIM_CONFIG": config}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.create_server(("127.0.0.1", 0)) as silent,
    ):
        alone, with_machine = build_environments(folder, silent.getsockname()[1])
        pairs = [(time_first_line(alone), time_first_line(with_machine)) for _ in range(rounds)]
    table = Table()
    table.print_heading("The first line of `claude agents --json`")
    alone_ms, with_machine_ms = (statistics.median(times) for times in zip(*pairs, strict=True))
    delay_ms = statistics.median(second - first for first, second in pairs)
    table.print_row("without other machines", f"{alone_ms:.0f} ms")
    table.print_row("with a machine that hangs", f"{with_machine_ms:.0f} ms")
    table.print_row("delay", f"{delay_ms:.0f} ms", f"<= {GOAL_MS:g} ms", delay_ms <= GOAL_MS)
    return table.print_summary()


if __name__ == "__main__":
    sys.exit(main())
