"""The real programs print their versions, `shim doctor` reads them, and they are among the tested
ones.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from clis import NOWHERE, build_isolated_environment, remember_answers
from programs import install_program
from vendor_setups import CLAUDE_ITSELF, GEMINI, OPENCODE, PI_CUMULATIVE, VENDORS, Vendor

from shim.adapters import get_adapter
from shim.process.probe import find_cached_version
from shim.state.config import VendorSettings

pytestmark = pytest.mark.e2e
# For a program of megabytes of JavaScript on a busy machine.
SLOW_SECONDS = 90


# `shim doctor` starts a program several times. Each start of these takes a second of CPU or more.
SLOW = (PI_CUMULATIVE, GEMINI, OPENCODE)
DIAGNOSED = [
    pytest.param(vendor, marks=[pytest.mark.full] * (vendor in SLOW))
    for vendor in (*VENDORS, CLAUDE_ITSELF)
]


@pytest.mark.parametrize("vendor", SLOW, ids=str)
def test_slow_program_has_a_tested_version(vendor: Vendor, tmp_path: Path) -> None:
    """Its answer was stored before the first test that needs it (`remember_answers`)."""
    program, adapter = install_program(vendor.package), get_adapter(vendor.name)
    environment = build_isolated_environment(vendor, program, NOWHERE, tmp_path)
    environment |= {"SHIM_BIN": str(program.executable), "SHIM_STATE": str(tmp_path / "state")}
    remember_answers(vendor, tmp_path / "state")
    version = find_cached_version(adapter, VendorSettings(), environment, environment["HOME"])
    assert version == program.version
    assert adapter.version_probe.classify_version(version) == "tested"


@pytest.mark.parametrize("vendor", DIAGNOSED, ids=str)
def test_doctor_reports_a_tested_version(vendor: Vendor, tmp_path: Path) -> None:
    program = install_program(vendor.package)
    environment = build_isolated_environment(vendor, program, NOWHERE, tmp_path)
    environment |= {"SHIM_BIN": str(program.executable), "SHIM_STATE": str(tmp_path / "state")}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "shim",
            "doctor",
            vendor.name,
            "--json",
            "--wait",
            str(SLOW_SECONDS),
        ],
        env=environment,
        cwd=environment["HOME"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * SLOW_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (report,) = json.loads(done.stdout)["vendors"]
    assert report["place"] == "tested", report["findings"]
    if vendor is not CLAUDE_ITSELF:  # its package is an SDK with a separate version
        assert report["version"] == program.version
