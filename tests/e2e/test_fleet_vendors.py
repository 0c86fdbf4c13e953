"""Real vendor programs on a machine of a fleet, over a real NATS server: a session is started, watched
and answered from another machine, and its log is read while its machine is off.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fleet_home import read_copied_lines
from fleet_lab import FleetLab
from frontend import DropInFrontend
from model_scripts import REPLY_AFTER_TOOL
from sandbox import wait_until
from test_machines import (
    COMMAND_SECONDS,
    LOOK_SECONDS,
    SHIM,
    STARTED_PATTERN,
    TURN_SECONDS,
    list_agents,
    read_lines,
    run_shim,
    wait_for_state,
)
from vendor_setups import PI, QWEN, Vendor

pytestmark = pytest.mark.e2e


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[FleetLab]:
    folder = tmp_path / "lab"
    folder.mkdir()
    lab = FleetLab(folder)
    yield lab
    lab.close()


@pytest.mark.parametrize(
    "vendor", [PI, pytest.param(QWEN, marks=pytest.mark.full)], ids=str, indirect=True
)
def test_session_of_a_vendor_is_started_watched_answered_and_read_while_off(
    lab: FleetLab, frontend: DropInFrontend, vendor: Vendor
) -> None:
    lab.start_machine("build", frontend.environment)
    here = lab.build_environment(["build"])
    there = dict(frontend.environment)
    start = ("claude", "--bg", "--machine", "build", "--cwd", str(frontend.folder))
    started = run_shim(
        here, *start, "--shim-vendor", vendor.name, *frontend.extra_args, "[[shell]] touch made"
    )
    assert started.returncode == 0, started.stderr
    reference = f"build:{STARTED_PATTERN.findall(started.stdout)[0]}"
    watcher = subprocess.Popen(
        [*SHIM, "bridge", "watch", reference],
        env=here,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with watcher:
        waiting = wait_for_state(here, "blocked")
        assert not (frontend.folder / "made").exists()
        answered = run_shim(here, "bridge", "answer", reference, "allow")
        assert (answered.returncode, answered.stdout) == (0, "allowed\n"), answered.stderr
        wait_for_state(here, "done")
        assert (frontend.folder / "made").exists()
        assert run_shim(here, "claude", "stop", reference).returncode == 0
        stdout, stderr = watcher.communicate(timeout=COMMAND_SECONDS)
    assert (watcher.returncode, stderr) == (0, "")
    assert "touch made" in stdout
    assert REPLY_AFTER_TOOL in stdout

    uuid = waiting["sessionId"]
    expected = read_lines(here, f"build:{uuid}", None)
    assert any(REPLY_AFTER_TOOL.encode() in line for _, line in expected)
    home: Any = SimpleNamespace(here=here)
    assert wait_until(lambda: read_copied_lines(home, uuid) == expected, TURN_SECONDS, LOOK_SECONDS)
    run_shim(there, "claude", "daemon", "stop", "--any")
    process = lab.processes.pop("build")
    process.terminate()
    process.wait(TURN_SECONDS)
    assert wait_until(lambda: "away" in list_agents(here, "--all")[0], TURN_SECONDS, LOOK_SECONDS)
    assert read_lines(here, f"build:{uuid}", None) == expected
    read = run_shim(here, "claude", "logs", reference)
    assert REPLY_AFTER_TOOL in read.stdout
    assert read.returncode == 0
    lab.close()
    assert frontend.list_remaining_processes() == {}
