"""A fleet on loopback: a real NATS server, and `shim fleet run` for each machine. Each machine has its
own environment and state folder.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from sandbox import find_free_port, wait_until

from shim.core.fleet.join_file import JoinFile, encode_join_file, parse_join_file
from shim.core.fleet.jwt import MemberClaims, build_member_jwt
from shim.core.fleet.keys import parse_key_pair
from shim.core.fleet.roles import Permissions, build_permissions
from shim.fleet import admin
from shim.fleet.folder import store_join_file
from shim.fleet.membership import load_process_status

SHIM = (sys.executable, "-I", "-m", "shim")
RUN_ARGV = (*SHIM, "fleet", "run")
START_SECONDS = 30.0
STOP_SECONDS = 10.0
LOOK_SECONDS = 0.05
HERE = "here"  # the machine of the user who runs the commands


@dataclass
class FleetLab:
    """A fleet, its server, and its machines. `listen_port` is the port of the server; `url_port` is
    the port that members use, such as that of a proxy.
    """

    folder: Path
    listen_port: int = 0
    url_port: int = 0
    server: subprocess.Popen[bytes] | None = None
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.listen_port = self.listen_port or find_free_port()
        self.admin_folder = str(self.folder / "admin")
        url = f"tls://127.0.0.1:{self.url_port or self.listen_port}"
        admin.create_fleet(self.admin_folder, "home", url, HERE)
        self.start_server()

    def start_server(self) -> None:
        """Start the server on its stored data."""
        config = Path(self.admin_folder, admin.CONFIG_FILE)
        text = config.read_text().replace(
            f'listen: "127.0.0.1:{self.url_port}"', f'listen: "127.0.0.1:{self.listen_port}"'
        )
        server_config = Path(self.admin_folder, "own.conf")
        server_config.write_text(text)
        log = self.folder / "server.log"
        program = Path(sys.executable).parent / "nats-server"
        path = str(program) if program.exists() else shutil.which("nats-server")
        assert path is not None, "nats-server is missing: pip install 'claude-shim[fleet]'"
        with log.open("ab") as file:
            start = file.tell()
            self.server = subprocess.Popen([path, "-c", str(server_config)], stderr=file)

        def is_ready() -> bool:
            return b"Server is ready" in log.read_bytes()[start:]

        assert wait_until(is_ready, START_SECONDS, LOOK_SECONDS), log.read_text()

    def kill_server(self) -> None:
        """Kill the server without a chance to write anything."""
        assert self.server is not None
        self.server.kill()
        self.server.wait(STOP_SECONDS)

    def reload_server(self) -> None:
        """Let the server read its configuration again."""
        assert self.server is not None
        text = Path(self.admin_folder, admin.CONFIG_FILE).read_text()
        Path(self.admin_folder, "own.conf").write_text(text)
        self.server.send_signal(signal.SIGHUP)

    def remove_server_data(self) -> None:
        """Remove the stored data of the server."""
        shutil.rmtree(Path(self.admin_folder, "jetstream"))

    def invite(self, name: str, role: str, session: str = "") -> JoinFile:
        """Return the join file of a new member."""
        path = admin.invite_member(self.admin_folder, name, role, session)
        return parse_join_file(Path(path).read_bytes(), path)

    def forge_member(
        self, join: JoinFile, *, expires_s: int = 0, allows_all: bool = False
    ) -> JoinFile:
        """Return a join file with a JWT that the fleet would not create: with another end, or with
        all permissions of the server but the role of `join`.
        """
        fleet = admin.load_fleet(self.admin_folder)
        issuer = parse_key_pair(fleet.issuer_seed)
        key_pair = parse_key_pair(join.seed)
        claims = MemberClaims(
            join.fleet, join.name, join.role, join.session, key_pair.public_key, expires_s
        )
        permissions = build_permissions(join.fleet, join.name, join.role, join.session)
        if allows_all:
            permissions = Permissions((">",), (">",))
        with patch("shim.core.fleet.jwt.build_permissions", lambda *member: permissions):
            return join._replace(jwt=build_member_jwt(issuer, claims, int(time.time())))

    def start_machine(self, name: str, environment: Mapping[str, str]) -> None:
        """Let a machine join the fleet, and run its process."""
        store_join_file(self.invite(name, "machine"), environment)
        self.run_machine(name, environment)

    def run_machine(
        self, name: str, environment: Mapping[str, str], argv: Sequence[str] = RUN_ARGV
    ) -> None:
        """Run the process of a machine that has joined the fleet, until it is connected."""
        config = self.folder / "fleet-start.toml"
        config.write_text("fleet_start = true\n")
        log = self.folder / f"{name}.log"
        with log.open("ab") as file:
            self.processes[name] = subprocess.Popen(
                argv,
                env={**environment, "SHIM_CONFIG": str(config)},
                stdin=subprocess.DEVNULL,
                stderr=file,
            )

        def is_connected() -> bool:
            status = load_process_status(environment)
            return status is not None and not status.problem

        assert wait_until(is_connected, START_SECONDS, LOOK_SECONDS), log.read_text()

    def stop_machine(self, name: str, signal_number: signal.Signals = signal.SIGTERM) -> int:
        """Stop the process of a machine. Its sessions continue. Return its exit status."""
        process = self.processes.pop(name)
        process.send_signal(signal_number)
        return process.wait(STOP_SECONDS)

    def build_environment(self, names: object) -> dict[str, str]:
        """Return the environment of the user, who has joined the fleet, but runs no process."""
        state = self.folder / "state"
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "SHIM_STATE": str(state),
            "SHIM_CONFIG": os.devnull,
        }
        if not state.exists():
            state.mkdir(mode=0o700)
            path = Path(self.admin_folder, f"{HERE}.join")
            store_join_file(parse_join_file(path.read_bytes(), str(path)), environment)
        return environment

    def close(self) -> None:
        """Stop the processes of the machines, and the server."""
        for process in self.processes.values():
            process.terminate()
            process.wait(STOP_SECONDS)
        self.processes.clear()
        if self.server is not None:
            self.server.terminate()
            self.server.wait(STOP_SECONDS)


def write_join_file(join: JoinFile, path: Path) -> str:
    """Write a join file, and return its path."""
    path.write_bytes(encode_join_file(join))
    return str(path)


def create_stranger(join: JoinFile) -> JoinFile:
    """Return a member's join file with another key of the fleet."""
    return join._replace(key=base64.b64decode("A" * 43 + "="))


def read_admin_join(lab: FleetLab) -> JoinFile:
    """Return the join file of the first machine of a fleet."""
    path = Path(lab.admin_folder, f"{HERE}.join")
    return parse_join_file(path.read_bytes(), str(path))
