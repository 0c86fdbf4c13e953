"""The examples of the Claude Agent SDK for Python, unchanged, from its source distribution.

Each example runs over a vendor and over the real claude. Both runs must end in the same way.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from clis import build_isolated_environment, install_drop_in
from instructed_server import create_instructed_server
from programs import install_program, install_python_package, unpack_python_source
from vendor_setups import CLAUDE_ITSELF, CODEX, GEMINI, OPENCODE, PI, QWEN, Vendor

pytestmark = [pytest.mark.e2e, pytest.mark.full]

EXAMPLES = (
    "agents",
    "filesystem_agents",
    "hooks",
    "include_partial_messages",
    "max_budget_usd",
    "mcp_calculator",
    "plugin_example",
    "quick_start",
    "setting_sources",
    "stderr_callback_example",
    "streaming_mode",
    "system_prompt",
    "tool_permission_callback",
    "tools_option",
)
EXAMPLE_SECONDS = 240.0  # "all" runs up to ten conversations
# The vendors that report no cost cannot enforce a budget. The session names this on stderr.
WITHOUT_COST = (QWEN, CODEX, GEMINI)


class ExampleRun(NamedTuple):
    """The exit status of an example, and what it printed."""

    exit_status: int
    output: str

    def list_kinds(self) -> set[str]:
        """Return the kinds of lines that the SDK's user sees, such as "Claude" and "Tool Use"."""
        return set(
            re.findall(r"^(Claude|User|Tool Use|Tool Result|Result ended)\b", self.output, re.M)
        )


@functools.cache
def run_with_real_claude(name: str) -> ExampleRun:
    with tempfile.TemporaryDirectory() as folder:
        return run_example(name, CLAUDE_ITSELF, Path(folder))


def run_example(name: str, vendor: Vendor, root: Path) -> ExampleRun:
    """Run all parts of an example in a copy of the SDK's source."""
    source = unpack_python_source("newest")
    with create_instructed_server(vendor.server) as server:
        program = install_program(vendor.package)
        environment = build_isolated_environment(vendor, program, server.url, root)
        claude = program.executable
        if vendor is not CLAUDE_ITSELF:
            claude = install_drop_in(vendor, environment, root)
        work = root / "work"
        shutil.copytree(source, work, dirs_exist_ok=True)
        environment |= {
            "PATH": f"{claude.parent}{os.pathsep}{environment['PATH']}",
            # the source has no program of its own, so the SDK starts the one on PATH
            "PYTHONPATH": f"{source / 'src'}{os.pathsep}{install_python_package('newest')}",
            "ANTHROPIC_API_KEY": "sk-dummy",
        }
        process = subprocess.run(
            [sys.executable, str(work / "examples" / f"{name}.py"), "all"],
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=EXAMPLE_SECONDS,
            check=False,
        )
    return ExampleRun(process.returncode, process.stdout.decode(errors="replace"))


@pytest.mark.parametrize("vendor", [QWEN, PI, CODEX, GEMINI, OPENCODE], ids=str)
@pytest.mark.parametrize("name", EXAMPLES)
def test_example_ends_as_with_the_real_claude(name: str, vendor: Vendor, tmp_path: Path) -> None:
    expected = run_with_real_claude(name)
    run = run_example(name, vendor, tmp_path)
    if name == "max_budget_usd" and vendor in WITHOUT_COST:
        assert run.exit_status == 0, run.output
        return
    assert run.exit_status == expected.exit_status, run.output
    assert run.list_kinds() >= expected.list_kinds(), run.output
