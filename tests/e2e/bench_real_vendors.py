"""Measures how much later the model's first text arrives through the shim than from the vendor
alone: `make bench`.

Real pi and real qwen run with a model server on loopback, alternately alone, with the installed
drop-in, and with a drop-in that has stored nothing about the vendor. The output has medians of the
differences, and the CPU time that the drop-in has used when `initialize` is answered. No limit is
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
from typing import IO

from model_scripts import REPLY
from model_server import ModelServer
from programs import install_program
from vendor_setups import PI, QWEN, Vendor

PROMPT = "[[text]] hi"
# The first word of the reply, which is in the first fragment of every vendor.
FIRST = REPLY.split()[0].encode()
ALONE = {
    "pi": ["--mode", "json"],
    "qwen": [
        "--output-format",
        "stream-json",
        "--include-partial-messages",
        "--approval-mode",
        "default",
    ],
}
SHIM = ["-p", PROMPT, "--output-format", "stream-json", "--verbose", "--include-partial-messages"]
GOAL_MS, UNKNOWN_GOAL_MS = 30, 60  # delays; the second one without stored answers
INITIALIZE = (
    json.dumps({"type": "control_request", "request_id": "i", "request": {"subtype": "initialize"}})
    + "\n"
)


def start_with_pipes(
    command: list[str], environment: Mapping[str, str], folder: Path
) -> tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]:
    """Start a command in its own session. Yield its stdin and its stdout."""
    process = subprocess.Popen(
        command,
        env=dict(environment),
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    return process, process.stdin, process.stdout


def time_first_text(
    command: list[str], environment: Mapping[str, str], folder: Path, stdin: bytes
) -> float:
    """Return the seconds from the start of a command to the line with the model's first word."""
    start_time = time.monotonic()
    process, child_stdin, child_stdout = start_with_pipes(command, environment, folder)
    child_stdin.write(stdin)
    child_stdin.close()
    seconds = 0.0
    for line in child_stdout:
        if FIRST in line and not seconds:
            seconds = time.monotonic() - start_time
    child_stdout.close()
    if process.wait() or not seconds:
        raise SystemExit(f"{command[0]} said nothing (exit {process.returncode})")
    return seconds


def initialize_cpu(command: list[str], environment: Mapping[str, str]) -> float:
    """Return the milliseconds of CPU time that a command has used when it has answered `initialize`
    (Linux).
    """
    process = subprocess.Popen(
        command, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(INITIALIZE.encode())
    process.stdin.flush()
    process.stdout.readline()
    used = Path(f"/proc/{process.pid}/schedstat").read_text().split()[0]
    process.stdin.close()
    process.stdout.read()
    process.stdout.close()
    process.wait()
    return int(used) / 1e6


def print_line(line: str) -> None:
    """Print one line of the report."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def measure_vendor(vendor: Vendor, pairs: int) -> None:
    """Print the delay that the drop-in adds for one vendor."""
    program = install_program(vendor.package)
    with ModelServer() as model, tempfile.TemporaryDirectory() as temporary_path:
        home_folder = Path(temporary_path)
        environment = {
            "PATH": program.path,
            "HOME": temporary_path,
            "LANG": "C.UTF-8",
            **vendor.prepare(home_folder, model.url),
        }
        dropped = environment | {
            "SHIM_BIN": str(program.executable),
            "SHIM_STATE": str(home_folder / "state"),
        }
        shim = [
            sys.executable,
            "-m",
            "shim",
            "install",
            "--vendor",
            vendor.name,
            "--to",
            temporary_path,
        ]
        subprocess.run(shim, env=dropped, check=True, stdout=subprocess.DEVNULL)
        claude = str(home_folder / "claude")
        alone_command = [str(program.executable), *ALONE[vendor.name], *vendor.claude_flags]
        shim_command = [claude, *SHIM, *vendor.claude_flags]
        alone, shim_samples, unknown = [], [], []
        for pair in range(pairs + 1):
            forgetful = dropped | {"SHIM_STATE": str(home_folder / f"state-{pair}")}
            runs = [
                (alone, alone_command, environment, PROMPT.encode()),
                (shim_samples, shim_command, dropped, b""),
                (unknown, shim_command, forgetful, b""),
            ]
            for samples, command, env, stdin in runs if pair % 2 else reversed(runs):
                seconds = time_first_text(command, env, home_folder, stdin)
                if pair:  # the first round warms the caches
                    samples.append(seconds)
        print_line(f"{vendor}: first text {statistics.median(alone) * 1000:.0f} ms alone")
        for name, samples, goal in (
            ("under the shim", shim_samples, GOAL_MS),
            ("never asked before", unknown, UNKNOWN_GOAL_MS),
        ):
            later = statistics.median(b - a for a, b in zip(alone, samples, strict=True)) * 1000
            print_line(f"{vendor}: {later:+.0f} ms later {name}   (goal {goal} ms)")
        if sys.platform == "linux":
            command = [
                claude,
                "--output-format",
                "stream-json",
                "--verbose",
                "--input-format",
                "stream-json",
            ]
            used = [initialize_cpu(command, dropped) for _ in range(pairs)]
            print_line(
                f"{vendor}: initialize answered after {statistics.median(used):.0f} ms of CPU"
                f" (at best {min(used):.0f})   (goal 120 ms)"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=11)
    options = parser.parse_args()
    os.environ.pop("CLAUDE_CODE_ENTRYPOINT", None)
    for each in (PI, QWEN):
        measure_vendor(each, options.pairs)
