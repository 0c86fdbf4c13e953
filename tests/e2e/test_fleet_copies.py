"""What a fleet stores of a machine, over a real NATS server: its sessions, and the copies of their logs."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet_lab import FleetLab
from sandbox import wait_until
from test_fleet import Home, read_copied_lines
from test_machines import LOOK_SECONDS, TURN_SECONDS, list_agents, read_lines, run_shim

pytestmark = pytest.mark.e2e

STANDARD_STREAMS = 3


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    folder = tmp_path / "lab"
    folder.mkdir()
    lab = FleetLab(folder)
    try:
        home = Home(lab, tmp_path)
        yield home
        run_shim(home.build, "claude", "daemon", "stop", "--any")
    finally:
        lab.close()


def read_machine_log(home: Home) -> str:
    """Return what `shim fleet run` of `build` has printed."""
    return (home.lab.folder / "build.log").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit")
def test_machine_that_cannot_read_its_sessions_removes_nothing(home: Home) -> None:
    """The process has no free descriptor, and cannot read the folder of its sessions."""
    session = home.start_session()
    uuid = session["sessionId"]
    run_shim(home.build, "claude", "stop", uuid[:8])
    expected = read_lines(home.here, f"build:{uuid}", None)
    assert wait_until(lambda: read_copied_lines(home, uuid) == expected, TURN_SECONDS, LOOK_SECONDS)
    (listed,) = list_agents(home.here, "--all")
    pid = home.lab.processes["build"].pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (STANDARD_STREAMS, limits[1]))
    assert wait_until(lambda: "cannot be listed" in read_machine_log(home), TURN_SECONDS)
    # A removal would be complete when a session that was started meanwhile is published.
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    other = run_shim(home.build, "claude", "--bg", "--shim-vendor", "demo", "hello")
    assert other.returncode == 0, other.stderr
    assert wait_until(lambda: len(list_agents(home.here, "--all")) == 2, TURN_SECONDS, LOOK_SECONDS)
    assert listed in list_agents(home.here, "--all")
    assert read_copied_lines(home, uuid) == expected
    assert read_machine_log(home).count("cannot be listed") == 1
