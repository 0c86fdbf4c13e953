"""A newcomer's first minutes with real vendors: each command prints the next one, and the last one
gets an answer.

The shim and the vendor's program are installed and on PATH, as after the two commands `pipx
install` and `npm install -g`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from anthropic_server import AnthropicServer
from clis import build_isolated_environment
from model_scripts import ERROR_MESSAGE, REPLY_TO_HIDDEN_REQUEST, ScriptedServer
from programs import install_program
from vendor_setups import (
    CLAUDE_ITSELF,
    CODEX,
    GEMINI,
    PI,
    PI_CUMULATIVE,
    QWEN,
    Vendor,
    prepare_claude,
)

from shim.adapters import get_adapter
from shim.process.probe import create_program_probe
from shim.state.config import VendorSettings

pytestmark = pytest.mark.e2e

SECONDS = 90.0
BOTH = [pytest.param(PI, id="pi"), pytest.param(QWEN, id="qwen", marks=pytest.mark.full)]
SHIM = os.path.dirname(sys.executable)
NEXT = "next: "


class Newcomer:
    """A fresh home, and a shell in it."""

    def __init__(
        self, vendor: Vendor | None, root: Path, url: str = "", *, ready: bool = True
    ) -> None:
        """Create the home. `vendor` is the one whose program is on PATH. With `ready` its login is
        set up.
        """
        program = install_program((vendor or QWEN).package)
        self.environment = build_isolated_environment(vendor or QWEN, program, url, root)
        self.home_folder = Path(self.environment["HOME"])
        if not ready:
            self.home_folder = root / "fresh"
            self.home_folder.mkdir()
            self.environment = {
                "HOME": str(self.home_folder),
                "TMPDIR": str(root / "tmp"),
                "LANG": "C.UTF-8",
            }
        folders = [str(program.executable.parent), program.path] if vendor else ["/usr/bin", "/bin"]
        self.environment["PATH"] = os.pathsep.join(
            [f"{self.home_folder}/.local/bin", SHIM, *folders]
        )

    def types(self, command: str) -> tuple[int, str, str]:
        """Return the exit status, stdout and stderr of a command line."""
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=self.home_folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr


def read_next_command(output: str) -> str:
    """Return the command in the last line."""
    last = output.splitlines()[-1]
    assert last.startswith(NEXT), output
    return last.removeprefix(NEXT)


@pytest.mark.parametrize("vendor", BOTH, indirect=True)
def test_suggested_commands_lead_to_the_first_answer(
    vendor: Vendor, model: ScriptedServer, tmp_path: Path
) -> None:
    newcomer = Newcomer(vendor, tmp_path, model.url)
    status, stdout, _ = newcomer.types("shim install")
    assert status == 0 and f"found on PATH: {vendor.name}" in stdout
    command = read_next_command(stdout)
    assert command == f"shim install --vendor {vendor.name}"
    status, stdout, _ = newcomer.types(command)
    assert status == 0 and "(tested: " in stdout and "✓ logged in" in stdout and "✗" not in stdout
    assert ("not in one-shot mode" in stdout) is vendor.unattended
    assert not model.requests, "nothing of this asks a model"
    command = read_next_command(stdout)
    assert command == 'claude -p "what is here?"'
    status, stdout, complaint = newcomer.types(command)
    assert (status, stdout) == (0, f"{REPLY_TO_HIDDEN_REQUEST}\n"), complaint
    assert newcomer.types(f"shim doctor {vendor.name}")[0] == 0


@pytest.mark.parametrize("vendor", BOTH)
def test_install_and_doctor_report_a_missing_login(vendor: Vendor, tmp_path: Path) -> None:
    newcomer = Newcomer(vendor, tmp_path, ready=False)
    status, stdout, _ = newcomer.types(f"shim install --vendor {vendor.name}")
    assert status == 0 and "✗ not logged in: “No " in stdout
    assert read_next_command(stdout).startswith(f"start `{vendor.name}` once and ")
    assert read_next_command(stdout).endswith(f"; then shim doctor {vendor.name}")
    status, stdout, _ = newcomer.types(f"shim doctor {vendor.name}")
    assert status == 1 and "✗ not logged in: “No " in stdout
    status, stdout, _ = newcomer.types("claude -p hi")
    assert status == 1 and stdout.startswith("Not logged in · Please run /login\n")
    assert re.search(f"{vendor.name}: (Warning: )?No ", stdout)


def test_install_suggests_a_vendor_if_no_program_is_on_path(tmp_path: Path) -> None:
    newcomer = Newcomer(None, tmp_path)
    status, stdout, _ = newcomer.types("shim install")
    assert status == 0 and "no vendor's program was found on PATH" in stdout
    assert "`npm install -g @qwen-code/qwen-code`" in stdout
    status, stdout, _ = newcomer.types(read_next_command(stdout))
    assert (
        status == 0
        and read_next_command(stdout)
        == "npm install -g @qwen-code/qwen-code, then shim doctor qwen"
    )
    status, stdout, complaint = newcomer.types("claude -p hi")
    assert (status, stdout) == (127, "") and "npm install -g @qwen-code/qwen-code" in complaint


def test_every_command_reports_an_unknown_config_key(tmp_path: Path) -> None:
    newcomer = Newcomer(None, tmp_path)
    file = newcomer.home_folder / ".config" / "shim" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text("# mine\n\nvendr = 'demo'\n")
    mistake = f"unknown key `vendr` in {file} line 3, did you mean `vendor`?"
    for command, status in (
        ("shim install", 0),
        ("shim doctor", 1),
        ("claude -p hi", 1),
        ("shim run hi", 1),
    ):
        actual, stdout, complaint = newcomer.types(command)
        assert actual == status and mistake in stdout + complaint, command


@pytest.mark.parametrize("ready", [True, False], ids=["with a login", "without"])
@pytest.mark.parametrize(
    "vendor", [GEMINI, PI_CUMULATIVE, CODEX, CLAUDE_ITSELF], ids=str, indirect=True
)
@pytest.mark.full
def test_login_probe_sends_no_model_request(
    vendor: Vendor, model: ScriptedServer, tmp_path: Path, ready: bool
) -> None:
    newcomer = Newcomer(vendor, tmp_path, model.url, ready=ready)
    newcomer.environment["SHIM_BIN"] = str(install_program(vendor.package).executable)
    adapter = get_adapter(vendor.name)
    probe = create_program_probe(
        adapter, VendorSettings(), newcomer.environment, str(newcomer.home_folder)
    )
    reason = probe.find_login_error(adapter.cli.login_probe)
    assert reason is not None and bool(reason) is not (
        ready and not adapter.cli.login_probe.login_exception
    )
    assert not model.requests


@pytest.mark.parametrize("vendor", BOTH, indirect=True)
def test_api_error_message_names_the_vendor(
    vendor: Vendor, model: ScriptedServer, tmp_path: Path
) -> None:
    newcomer = Newcomer(vendor, tmp_path, model.url)
    newcomer.types(f"shim install --vendor {vendor.name}")
    status, stdout, complaint = newcomer.types("claude -p '[[error]]'")
    assert status == 1 and ERROR_MESSAGE in stdout
    assert f"the error comes from {vendor.name} or its API" in complaint


@pytest.mark.full
@pytest.mark.parametrize(
    "config",
    [
        "/nonexistent",
        "{}",
        "[]",
        "3",
        '{"mcpServers":[]}',
        "bad.json",
        "/nonexistent' '{}' 'none.json",
    ],
)
def test_invalid_mcp_config_error_matches_claude(config: str, tmp_path: Path) -> None:
    newcomer = Newcomer(None, tmp_path)
    (newcomer.home_folder / "bad.json").write_text("{bad")
    flags = f"-p hi --mcp-config '{config}'"
    with AnthropicServer() as model:
        newcomer.environment |= prepare_claude(newcomer.home_folder, model.url)
        real = newcomer.types(f"{install_program(CLAUDE_ITSELF.package).executable} {flags}")
    assert newcomer.types(f"shim claude --shim-vendor demo {flags}") == real
    assert real[:2] == (1, "") and real[2].startswith("Error: Invalid MCP configuration:\n")
