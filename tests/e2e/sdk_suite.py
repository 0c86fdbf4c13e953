"""Runs the end-to-end tests of the Claude Agent SDK for Python over vendors, and prints a table.

The tests are only in the SDK's public repository, so the path of a checkout is an argument. Each
test asks its model in plain words to run a command, call a tool or reply with a word, and a scripted
model follows these instructions. The real claude runs first: its tests must pass.

    python tests/e2e/sdk_suite.py CHECKOUT [VENDOR ...] [-- PYTEST-ARGUMENTS]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from clis import build_isolated_environment, install_drop_in
from instructed_server import create_instructed_server
from programs import install_program, install_python_package
from vendor_setups import (
    CLAUDE_ITSELF,
    CODEX,
    COPILOT,
    GEMINI,
    KIMI_CODE,
    OPENCODE,
    PI,
    QWEN,
    Vendor,
)

VENDORS = (CLAUDE_ITSELF, QWEN, PI, CODEX, GEMINI, OPENCODE, COPILOT, KIMI_CODE)
SUITE_SECONDS = 1800.0  # for all tests of one vendor


def run_suite(vendor: Vendor, checkout: Path, pytest_arguments: Sequence[str]) -> Mapping[str, str]:
    """Run the tests over one vendor. Return "passed" or the failure's text by the test's name."""
    with (
        tempfile.TemporaryDirectory() as folder,
        create_instructed_server(vendor.server) as server,
    ):
        root = Path(folder)
        program = install_program(vendor.package)
        environment = build_isolated_environment(vendor, program, server.url, root)
        claude = program.executable
        if vendor is not CLAUDE_ITSELF:
            claude = install_drop_in(vendor, environment, root)
        environment |= {
            "PATH": f"{claude.parent}{os.pathsep}{environment['PATH']}",
            "PYTHONPATH": f"{checkout / 'src'}{os.pathsep}{install_python_package('newest')}",
            "ANTHROPIC_API_KEY": "sk-dummy",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        report = root / "report.xml"
        work = root / "work"
        work.mkdir(exist_ok=True)
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"),
            *("-c", "/dev/null", "--rootdir", str(checkout), f"--junitxml={report}"),
            *(str(checkout / "e2e-tests"), *pytest_arguments),
        ]
        process = subprocess.run(
            command,
            cwd=work,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SUITE_SECONDS,
            check=False,
        )
        if not report.exists():
            raise SystemExit(process.stdout.decode(errors="replace"))
        return dict(_read_report(report))


def _read_report(report: Path) -> Iterator[tuple[str, str]]:
    for case in ElementTree.parse(report).iter("testcase"):
        failure = case.find("failure")
        if failure is None:
            failure = case.find("error")
        outcome = "passed" if failure is None else failure.get("message") or "failed"
        yield str(case.get("name")), outcome


def print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def print_table(outcomes: Mapping[str, Mapping[str, str]]) -> None:
    """Print a table of tests and vendors, the failures, and the number of passed tests."""
    names = list(dict.fromkeys(name for column in outcomes.values() for name in column))
    print_line(f"| test | {' | '.join(outcomes)} |")
    print_line("|---|" + "---|" * len(outcomes))
    for name in names:
        cells = [
            "✓" if column.get(name) == "passed" else "–" if name not in column else "✗"
            for column in outcomes.values()
        ]
        print_line(f"| {name} | {' | '.join(cells)} |")
    for vendor, column in outcomes.items():
        print_line(f"\n{vendor}: {list(column.values()).count('passed')} of {len(column)} passed")
        for name, outcome in column.items():
            if outcome != "passed":
                print_line(f"  {name}: {outcome[:300]}")


def main(arguments: Sequence[str]) -> None:
    """Run the suite over the named vendors, or over all of them."""
    suite_arguments, pytest_arguments = list(arguments), []
    if "--" in suite_arguments:
        position = suite_arguments.index("--")
        pytest_arguments = suite_arguments[position + 1 :]
        del suite_arguments[position:]
    checkout, *names = suite_arguments
    chosen = [vendor for vendor in VENDORS if not names or vendor.name in names]
    outcomes = {}
    for vendor in chosen:
        outcomes[vendor.name] = run_suite(vendor, Path(checkout).resolve(), pytest_arguments)
    print_table(outcomes)


if __name__ == "__main__":
    main(sys.argv[1:])
