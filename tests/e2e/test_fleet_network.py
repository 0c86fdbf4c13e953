"""A fleet of three network namespaces, which a bridge connects. It needs root, and Linux's `ip`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fleet_lab import SHIM
from sandbox import wait_until
from test_machines import COMMAND_SECONDS, LOOK_SECONDS, STARTED_PATTERN, TURN_SECONDS

from shim.core.fleet.join_file import parse_join_file
from shim.fleet import admin
from shim.fleet.folder import store_join_file
from shim.fleet.membership import load_process_status

pytestmark = pytest.mark.e2e

PORT = 4222
START_SECONDS = 30.0
STOP_SECONDS = 10.0
# A command to a machine that was cut off fails within 8 s, and the start of its processes.
MAX_REFUSAL_SECONDS = 15.0
PARTITION_SECONDS = [12.0, pytest.param(60.0, marks=pytest.mark.full)]


def run_ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True, timeout=STOP_SECONDS)


@dataclass
class NamespaceLab:
    """Namespaces with an address each, on one bridge. The server has a namespace of its own."""

    folder: Path
    tag: str
    environments: dict[str, dict[str, str]] = field(default_factory=dict)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.subnet = f"10.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 200}"
        self.bridge = f"br{self.tag}"
        run_ip("link", "add", self.bridge, "type", "bridge")
        run_ip("link", "set", self.bridge, "up")
        self.admin_folder = str(self.folder / "admin")
        self.add_namespace("server", 1)
        url = f"tls://{self.subnet}.1:{PORT}"
        admin.create_fleet(self.admin_folder, "home", url, "here")
        program = shutil.which("nats-server", path=f"{Path(SHIM[0]).parent}:{os.environ['PATH']}")
        assert program is not None, "nats-server is missing: pip install 'claude-shim[fleet]'"
        self.start("server", [program, "-c", f"{self.admin_folder}/{admin.CONFIG_FILE}"], {})

    def add_namespace(self, name: str, number: int) -> None:
        """Add a namespace with a cable to the bridge."""
        namespace, port, end = (
            self.get_namespace(name),
            f"p{self.tag}{number}",
            f"e{self.tag}{number}",
        )
        run_ip("netns", "add", namespace)
        run_ip("link", "add", port, "type", "veth", "peer", "name", end)
        run_ip("link", "set", port, "master", self.bridge, "up")
        run_ip("link", "set", end, "netns", namespace)
        for args in (
            ("addr", "add", f"{self.subnet}.{number}/24", "dev", end),
            ("link", "set", end, "up"),
        ):
            run_ip("-n", namespace, *args)
        run_ip("-n", namespace, "link", "set", "lo", "up")

    def get_namespace(self, name: str) -> str:
        """Return the name of a machine's namespace."""
        return f"shim{self.tag}{name}"

    def start(self, name: str, argv: Sequence[str], environment: dict[str, str]) -> None:
        """Start a program in a namespace."""
        log = (self.folder / f"{name}.log").open("ab")
        with log:
            self.processes.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", self.get_namespace(name), *argv],
                    env={"PATH": os.environ["PATH"], **environment},
                    stdin=subprocess.DEVNULL,
                    stderr=log,
                )
            )

    def add_machine(self, name: str, number: int, *, is_running: bool = True) -> None:
        """Add a machine in a namespace of its own, which joins the fleet."""
        self.add_namespace(name, number)
        state = self.folder / f"{name}-state"
        state.mkdir(mode=0o700)
        config = self.folder / f"{name}.toml"
        config.write_text("fleet_start = true\n")
        environment = {
            "SHIM_STATE": str(state),
            "SHIM_CONFIG": str(config),
            "HOME": str(self.folder),
        }
        self.environments[name] = environment
        path = Path(self.admin_folder, f"{name}.join")
        if not path.exists():
            admin.invite_member(self.admin_folder, name, "machine")
        store_join_file(parse_join_file(path.read_bytes(), str(path)), environment)
        if not is_running:
            return
        self.start(name, [*SHIM, "fleet", "run"], environment)

        def is_connected() -> bool:
            status = load_process_status(environment)
            return status is not None and not status.problem

        log = self.folder / f"{name}.log"
        assert wait_until(is_connected, START_SECONDS, LOOK_SECONDS), log.read_text()

    def run(self, name: str, *args: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the shim on a machine."""
        return subprocess.run(
            ["ip", "netns", "exec", self.get_namespace(name), *SHIM, *args],
            env={"PATH": os.environ["PATH"], **self.environments[name]},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )

    def list_sessions(self, name: str) -> list[dict[str, Any]]:
        """Return the sessions that a machine lists."""
        sessions: list[dict[str, Any]] = json.loads(
            self.run(name, "claude", "agents", "--json", "--all").stdout
        )
        return sessions

    def set_connected(self, number: int, *, is_connected: bool) -> None:
        """Connect the cable of a machine to the bridge, or take it off without a notice."""
        port = f"p{self.tag}{number}"
        if is_connected:
            run_ip("link", "set", port, "master", self.bridge)
        else:
            run_ip("link", "set", port, "nomaster")

    def close(self) -> None:
        """Stop all programs, and remove the namespaces and the bridge."""
        for name in self.environments:
            self.run(name, "claude", "daemon", "stop", "--any")
        for process in self.processes:
            process.terminate()
            process.wait(STOP_SECONDS)
        for name in ("server", *self.environments):
            subprocess.run(["ip", "netns", "del", self.get_namespace(name)], check=False)
        subprocess.run(["ip", "link", "del", self.bridge], check=False)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[NamespaceLab]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root, and `ip` of the package iproute2")
    tag = f"{os.getpid() % 100_000}"
    try:
        run_ip("netns", "add", f"shimtry{tag}")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces are not available: {error.stderr.decode()}")
    run_ip("netns", "del", f"shimtry{tag}")
    lab = NamespaceLab(tmp_path, tag)
    yield lab
    lab.close()


@pytest.mark.parametrize("partition_seconds", PARTITION_SECONDS)
def test_machine_that_is_cut_off_goes_on_and_comes_back(
    lab: NamespaceLab, partition_seconds: float
) -> None:
    lab.add_machine("build", 2)
    lab.add_machine("lab", 3)
    lab.add_machine("here", 4, is_running=False)
    start = ("claude", "--bg", "--shim-vendor", "demo", "--cwd", str(lab.folder), "--machine")
    for machine in ("build", "lab"):
        started = lab.run("here", *start, machine, "hello")
        assert started.returncode == 0, started.stderr
        session_id = STARTED_PATTERN.findall(started.stdout)[0]

    def is_done() -> bool:
        sessions = lab.list_sessions("here")
        return [each["state"] for each in sessions] == ["done", "done"]

    assert wait_until(is_done, TURN_SECONDS, LOOK_SECONDS)
    assert {each["machine"] for each in lab.list_sessions("here")} == {"build", "lab"}
    # The machines see each other, too.
    assert {each.get("machine") for each in lab.list_sessions("build")} == {None, "lab"}

    lab.set_connected(3, is_connected=False)
    cut_s = time.monotonic()
    refused = lab.run("here", "bridge", "say", f"lab:{session_id}", "SENT-ONCE")
    assert refused.returncode != 0
    assert time.monotonic() - cut_s < MAX_REFUSAL_SECONDS
    local = lab.run("lab", "bridge", "say", session_id, "said locally")
    assert local.returncode == 0, local.stderr

    def is_away() -> bool:
        return {each["machine"]: "away" in each for each in lab.list_sessions("here")}["lab"]

    assert wait_until(is_away, TURN_SECONDS, LOOK_SECONDS)
    time.sleep(max(0.0, partition_seconds - (time.monotonic() - cut_s)))

    lab.set_connected(3, is_connected=True)
    assert wait_until(lambda: not is_away(), TURN_SECONDS, LOOK_SECONDS)
    repeated = lab.run("here", "bridge", "say", f"lab:{session_id}", "SENT-ONCE")
    assert repeated.returncode == 0, repeated.stderr
    assert wait_until(is_done, TURN_SECONDS, LOOK_SECONDS)
    log = lab.run("lab", "claude", "logs", session_id).stdout
    assert log.count("> SENT-ONCE") == 1
    assert log.count("> said locally") == 1
