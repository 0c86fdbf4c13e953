"""A first argument that the real claude reads as a subcommand starts no vendor. One that it reads
as a prompt does.

The real claude runs beside the drop-in, which proves that the list of subcommands is right.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

import pytest
from frontend import DropInFrontend
from model_scripts import ScriptedServer
from programs import install_program
from vendor_setups import CLAUDE_ITSELF, Vendor

pytestmark = pytest.mark.e2e

WORD_SECONDS = 60.0
# Each with what the real claude answers at once, without a terminal and with a closed stdin.
# Commands that wait there for ever, or use the network, are left out: `daemon`, `setup-token`,
# `auth login`, `update`.
REFUSED = (
    *(
        "attach",
        "logs",
        "stop",
        "kill",
        "rm",
        "respawn",
        "attach x",
        "logs x",
        "stop x",
        "rm x",
        "respawn x",
    ),
    *(
        "auto-mode",
        "project",
        "gateway",
        "import",
        "purge",
        "project purge",
        "ultrareview",
        "remote-control",
        "rc",
    ),
    *(
        "remote",
        "bridge",
        "sync",
        "self-hosted-runner",
        "code",
        "daemon status",
        "--model sonnet gateway",
        "--bg -p x",
    ),
)
SERVED = (
    "mcp list",
    "plugin list",
    "plugins list",
    "agents --json",
    "auth status",
    "--model sonnet mcp list",
)
PROMPTS = ("config", "version", "help", "login", "ps", "-p stop", "-p mcp", "--model sonnet stop")
SHORT = ("attach x", "rc", "plugins list", "-p stop")
# Commands whose first output line a program may parse. It equals the real claude's line.
SAME_LINE = ("attach", "logs", "stop", "kill", "attach x", "logs x", "stop x", "rm x", "respawn", "respawn x",
             "daemon status", "agents --json")  # fmt: skip


@dataclass
class CommandResult:
    status: int
    line: str
    requests: int


@pytest.fixture
def ask(frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor):
    """Return a function that runs a claude. `real` selects the one that the drop-in replaces."""

    def run_claude(command_line: str, *, real: bool) -> CommandResult:
        before = len(model.requests)
        program = install_program(vendor.package).executable if real else frontend.claude
        done = subprocess.run([str(program), *command_line.split()], cwd=frontend.folder, env=frontend.environment,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=WORD_SECONDS,
                              text=True, check=False)  # fmt: skip
        line = (done.stdout + done.stderr).partition("\n")[0]
        return CommandResult(done.returncode, line, len(model.requests) - before)

    return run_claude


def build_params(command_lines: tuple[str, ...]):
    return [
        pytest.param(command_line, marks=() if command_line in SHORT else pytest.mark.full)
        for command_line in command_lines
    ]


@pytest.mark.parametrize("vendor", [CLAUDE_ITSELF], ids=str, indirect=True)
@pytest.mark.parametrize("command_line", build_params((*REFUSED, *SERVED)))
def test_subcommand_does_not_start_a_vendor(ask, command_line: str) -> None:
    real, ours = ask(command_line, real=True), ask(command_line, real=False)
    assert (real.requests, ours.requests) == (0, 0)
    assert (real.status == 0) == (ours.status == 0) == (command_line in SERVED)
    if command_line in SAME_LINE:
        assert ours.line.partition(" [")[0] == real.line.partition(" [")[0]


@pytest.mark.parametrize("vendor", [CLAUDE_ITSELF], ids=str, indirect=True)
@pytest.mark.parametrize("command_line", build_params(PROMPTS))
def test_first_argument_that_is_not_a_subcommand_is_a_prompt(ask, command_line: str) -> None:
    real, ours = ask(command_line, real=True), ask(command_line, real=False)
    assert real.requests and ours.requests
