"""Third-party programs that count tokens in the transcripts below a home, each run as its users do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from programs import install_program, install_python_package

NAMES = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
SECONDS = 90.0

Usage = dict[str, int]

# Sniffly's command is a web server. This program prints what it serves.
SNIFFLY = """
import json, sys
from sniffly.core.processor import ClaudeLogProcessor
_, found = ClaudeLogProcessor(sys.argv[1]).process_logs()
print(json.dumps(found["overview"]["total_tokens"]))
"""
CLAUDE_CODE_LOG = "from claude_code_log.cli import main; main()"
SUMMARY = {
    "Input": NAMES[0],
    "Cache Creation": NAMES[1],
    "Cache Read": NAMES[2],
    "Output": NAMES[3],
}


def read_ccusage_totals(home_folder: Path, *report: str) -> Usage:
    """Return the totals of a report, by default of the report about Claude's transcripts only."""
    program = install_program("ccusage")
    output = read_output(
        [str(program.executable), *(report or ("claude", "daily")), "--json", "--offline"],
        home_folder,
        {"HOME": str(home_folder), "PATH": program.path},
    )
    totals = json.loads(output)["totals"]
    keys = ("inputTokens", "cacheCreationTokens", "cacheReadTokens", "outputTokens")
    return {name: totals[key] for name, key in zip(NAMES, keys, strict=True)}


def read_claude_monitor_totals(home_folder: Path) -> Usage:
    output = _run_python(
        "claude-monitor",
        home_folder,
        ["-m", "claude_monitor", "--view", "daily", "--output", "json", "--once"],
    )
    tokens: dict[str, Any] = json.loads(output)["local"]["tokens"]
    return {name: tokens[name] for name in NAMES}


def read_sniffly_totals(home_folder: Path) -> Usage:
    total = dict.fromkeys(NAMES, 0)
    for folder in _list_project_folders(home_folder):
        tokens = json.loads(_run_python("sniffly", home_folder, ["-c", SNIFFLY, str(folder)]))
        for name, key in zip(
            NAMES, ("input", "cache_creation", "cache_read", "output"), strict=True
        ):
            total[name] += tokens.get(key, 0)
    return total


def read_claude_code_log_totals(home_folder: Path) -> Usage:
    total = dict.fromkeys(NAMES, 0)
    for folder in _list_project_folders(home_folder):
        made = home_folder / "log.json"
        _run_python(
            "claude-code-log",
            home_folder,
            ["-c", CLAUDE_CODE_LOG, "convert", str(folder), "-o", str(made), "--no-cache"],
        )
        for session in json.loads(made.read_text())["sessions"]:
            for name, number in re.findall(
                r"([A-Z][A-Za-z ]+): ([\d,]+)", session["token_summary"]
            ):
                total[SUMMARY[name]] += int(number.replace(",", ""))
    return total


COUNTERS: Mapping[str, Callable[[Path], Usage]] = {
    "ccusage": read_ccusage_totals,
    "claude-monitor": read_claude_monitor_totals,
    "sniffly": read_sniffly_totals,
    "claude-code-log": read_claude_code_log_totals,
}


def _list_project_folders(home_folder: Path) -> list[Path]:
    return sorted((home_folder / ".claude" / "projects").iterdir())


def _run_python(pin: str, home_folder: Path, args: Sequence[str]) -> str:
    return read_output(
        [sys.executable, *args],
        home_folder,
        {"HOME": str(home_folder), "PYTHONPATH": str(install_python_package(pin))},
    )


def read_output(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Return the output of a program that succeeds. It gets the current PATH and `environment`."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout
