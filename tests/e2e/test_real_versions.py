"""The real programs say their versions, `shim doctor` reads them, and they are among those that were tested."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from clis import isolated_environment
from programs import install
from vendor_setups import CLAUDE_ITSELF, VENDORS, Vendor

pytestmark = pytest.mark.e2e
SLOW_SECONDS = 90  # for a program of megabytes of JavaScript, on a machine that does other things too
NOWHERE = "http://127.0.0.1:9"  # no program needs its model to say its version


@pytest.mark.parametrize("vendor", [*VENDORS, CLAUDE_ITSELF], ids=str)
def test_the_version_of_a_real_program_is_read_and_was_tested(vendor: Vendor, tmp_path: Path) -> None:
    program = install(vendor.package)
    environment = isolated_environment(vendor, program, NOWHERE, tmp_path)
    environment |= {"SHIM_BIN": str(program.executable), "SHIM_STATE": str(tmp_path / "state")}
    done = subprocess.run(
        [sys.executable, "-m", "shim", "doctor", vendor.name, "--json", "--wait", str(SLOW_SECONDS)],
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
    if vendor is not CLAUDE_ITSELF:  # whose package is an SDK with a version of its own
        assert report["version"] == program.version
