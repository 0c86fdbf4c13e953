"""The programs that a client can use as its `claude`: the real one, and the drop-in for each
vendor.
"""

from __future__ import annotations

import functools
import os
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from programs import Program, compile_cache, install_program
from sandbox import MARK
from vendor_setups import (
    CLAUDE_ITSELF,
    CODEX,
    COPILOT,
    GEMINI,
    KIMI,
    KIMI_CODE,
    OPENCODE,
    PI,
    PI_CUMULATIVE,
    QWEN,
    Vendor,
)

from shim.adapters import get_adapter
from shim.process.install import install_drop_in_script as put
from shim.process.probe import create_program_probe
from shim.state.config import VendorSettings

INSTALL_SECONDS = 60.0
NOWHERE = "http://127.0.0.1:9"  # no program needs its model to print its version


@dataclass(frozen=True)
class Cli:
    """A `claude`: the drop-in with a vendor's program, or the real claude without the drop-in."""

    vendor: Vendor
    bare: bool = False
    # only one client of a kind is tested with it, because the kinds behave the same
    brief: bool = False
    # it is only tested in scenarios about messages between a frontend and a vendor
    is_dialog_only: bool = False

    @property
    def has_newer_version(self) -> bool:
        """Return whether a newer version of the same program is tested too."""
        return self.vendor is PI_CUMULATIVE

    def __str__(self) -> str:
        return f"{self.vendor}-itself" if self.bare else str(self.vendor)


# It validates the tests: the others are compared with its behavior.
BARE = Cli(CLAUDE_ITSELF, bare=True)
CLIS = (
    BARE,
    Cli(CLAUDE_ITSELF),
    Cli(QWEN),
    Cli(PI),
    Cli(PI_CUMULATIVE),
    Cli(GEMINI, brief=True),
    Cli(OPENCODE, brief=True),
    Cli(CODEX, brief=True),
    Cli(COPILOT, is_dialog_only=True),
    Cli(KIMI, is_dialog_only=True),
    Cli(KIMI_CODE, is_dialog_only=True),
)


def build_isolated_environment(
    vendor: Vendor, program: Program, url: str, root: Path
) -> dict[str, str]:
    """Build an environment with an empty home and the setup of the vendor's users, without settings
    of this machine.
    """
    home_folder, temporary = root / "home", root / "tmp"
    for folder in (home_folder, temporary):
        folder.mkdir()
    return {
        "PATH": program.path,
        "HOME": str(home_folder),
        "TMPDIR": str(temporary),
        "LANG": "C.UTF-8",
        "NODE_COMPILE_CACHE": str(compile_cache()),
        MARK: str(uuid.uuid4()),
        **vendor.prepare(home_folder, url),
    }


def install_drop_in(vendor: Vendor, environment: dict[str, str], root: Path) -> Path:
    """Install the drop-in for the vendor. Its program and state are added to the environment."""
    environment["SHIM_BIN"] = str(install_program(vendor.package).executable)
    environment["SHIM_STATE"] = str(root / "state")
    remember_answers(vendor, root / "state")
    binaries = root / "bin"
    # The command checks the vendor, which takes seconds.
    put(str(binaries), "claude", {"vendor": vendor.name}, force=False)
    claude = binaries / "claude"
    assert os.access(claude, os.X_OK)
    return claude


def remember_answers(vendor: Vendor, state: Path) -> None:
    """Store the answers of the vendor's program to probes in a new state folder, like a user's
    first turn.
    """
    for name, answers in _probe_answers(vendor).items():
        file = state / name
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.write_bytes(answers)
    state.chmod(0o700)


@functools.cache
def _probe_answers(vendor: Vendor) -> Mapping[Path, bytes]:
    """Ask the vendor's program for its version, and pi for its help. The question for the version
    is repeated once if the program failed.
    """
    adapter = get_adapter(vendor.name)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        program = install_program(vendor.package)
        environment = build_isolated_environment(vendor, program, NOWHERE, root)
        environment |= {"SHIM_BIN": str(program.executable), "SHIM_STATE": str(root / "state")}
        probe = create_program_probe(
            adapter, VendorSettings(), environment, environment["HOME"], INSTALL_SECONDS
        )
        probe.ask_version(adapter.version_probe)
        if not probe.has_succeeded:  # kimi-code failed once in about a thousand starts
            probe.ask_version(adapter.version_probe)
        assert probe.has_succeeded, probe.describe_version_failure(adapter.version_probe)
        if vendor in (PI, PI_CUMULATIVE):
            assert probe.accepts_flag("--session-id") is (vendor is PI)
        files = [path for path in (root / "state").rglob("*") if path.is_file()]
        return {path.relative_to(root / "state"): path.read_bytes() for path in files}
