"""Other machines: real SSH servers on loopback, each with its own environment and state folder.

`sshd` comes from the distribution. If it is missing and this process is root on a machine with
apt-get, it is installed once. Otherwise the tests are skipped with a message.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sandbox import wait_until
from system_packages import install_system_packages

SSHD_PATHS = ("/usr/sbin/sshd", "/usr/local/sbin/sshd")
START_SECONDS = 30.0
STOP_SECONDS = 10.0
CHUNK_BYTES = 4096
SHIM_PROGRAM = f"{sys.executable} -I -m shim"


def require_sshd() -> str:
    """Return the path of `sshd`. Skip the test if there is none."""
    failure = install_system_packages(["openssh-server"], lambda: _find_sshd() is not None)
    path = _find_sshd()
    if path is None or shutil.which("ssh") is None:
        pytest.skip(f"no sshd: `apt-get install openssh-server`; {failure}")
    return path


def _find_sshd() -> str | None:
    return next((path for path in SSHD_PATHS if os.access(path, os.X_OK)), None)


@dataclass
class SshLab:
    """SSH servers, and the home folder of the user who connects to them."""

    folder: Path
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sshd = require_sshd()
        self.home = self.folder / "home"
        (self.home / ".ssh").mkdir(parents=True, mode=0o700)
        for name in ("host_key", "user_key"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)],
                check=True,
            )
        authorized_keys = self.folder / "authorized_keys"
        authorized_keys.write_text((self.folder / "user_key.pub").read_text())
        authorized_keys.chmod(0o600)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)

    def start_machine(self, name: str, environment: Mapping[str, str]) -> int:
        """Start a server whose commands run with an environment. Return its port."""
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port: int = probe.getsockname()[1]
        variables = " ".join(f'"{key}={value}"' for key, value in environment.items())
        config = self.folder / f"sshd_{name}"
        config.write_text(
            f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {self.folder}/host_key\n"
            f"PidFile none\nAuthorizedKeysFile {self.folder}/authorized_keys\nStrictModes no\n"
            f"PasswordAuthentication no\nUsePAM no\nMaxSessions 20\nSetEnv {variables}\n"
        )
        log = self.folder / f"sshd_{name}.log"
        server = subprocess.Popen([self.sshd, "-D", "-f", str(config), "-E", str(log)])
        self.servers.append(server)
        assert wait_until(lambda: _is_listening(port), START_SECONDS), log.read_text()
        self.add_host(name, port)
        return port

    def add_host(self, name: str, port: int) -> None:
        """Add a machine to the SSH configuration of the user."""
        host_key = (self.folder / "host_key.pub").read_text().split()
        with (self.folder / "known_hosts").open("a") as file:
            file.write(f"[127.0.0.1]:{port} {host_key[0]} {host_key[1]}\n")
        with (self.home / ".ssh" / "config").open("a") as file:
            file.write(
                f"Host {name}\n  HostName 127.0.0.1\n  Port {port}\n  User {getpass.getuser()}\n"
                f"  IdentityFile {self.folder}/user_key\n  IdentitiesOnly yes\n"
                f"  UserKnownHostsFile {self.folder}/known_hosts\n"
            )

    def build_environment(self, names: Sequence[str]) -> dict[str, str]:
        """Return the environment of the user, whose settings name the machines."""
        state = self.folder / "state"
        state.mkdir(mode=0o700, exist_ok=True)
        config = self.folder / "config.toml"
        entries = "".join(f'{name} = "ssh:{name} {SHIM_PROGRAM}"\n' for name in names)
        config.write_text(f"[machines]\n{entries}")
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "SHIM_STATE": str(state),
            "SHIM_CONFIG": str(config),
            # The folder of the shared connections, which must have a short path.
            "XDG_RUNTIME_DIR": str(self.folder),
        }

    def close(self) -> None:
        """Stop the servers, and the shared connections to them."""
        for server in self.servers:
            server.terminate()
            server.wait(STOP_SECONDS)
        for path in self.folder.glob("claude-ssh-*/*"):
            subprocess.run(
                ["ssh", "-O", "exit", "-o", f"ControlPath={path}", "any"],
                capture_output=True,
                timeout=STOP_SECONDS,
                check=False,
            )


def _is_listening(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


class CuttingProxy:
    """Forwards connections to a port. `cut_after` limits the bytes that it forwards to the client
    before it closes the connection; None forwards all bytes.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cut_after: int | None = None
        self.cut_count = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._target_port)) as server:
            upload = threading.Thread(target=_copy, args=(client, server), daemon=True)
            upload.start()
            self._copy_to_client(server, client)
            for connection in (client, server):
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            upload.join()

    def _copy_to_client(self, server: socket.socket, client: socket.socket) -> None:
        sent_bytes = 0
        with suppress(OSError):
            while chunk := server.recv(CHUNK_BYTES):
                limit = self.cut_after
                if limit is not None and sent_bytes + len(chunk) > limit:
                    client.sendall(chunk[: max(limit - sent_bytes, 0)])
                    self.cut_count += 1
                    return
                client.sendall(chunk)
                sent_bytes += len(chunk)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while chunk := source.recv(CHUNK_BYTES):
            target.sendall(chunk)
        target.shutdown(socket.SHUT_WR)
