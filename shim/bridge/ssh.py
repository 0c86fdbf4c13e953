"""Builds the `ssh` command that starts the shim's relay on another machine.

The user's SSH configuration takes precedence over the defaults below. The first connection to a
machine stays open for a while, so that later connections need no new login (OpenSSH's
ControlMaster).
"""

import os
import tempfile
from collections.abc import Mapping
from threading import Lock

from shim.state.config import get_home_dir, get_state_dir
from shim.state.files import ensure_private_dir, is_private_dir, replace_file, write_all
from shim.state.machines import Machine

CONNECT_TIMEOUT_S = 5  # a machine that needs longer counts as unavailable
# After this many seconds without data, `ssh` sends a request that the other machine must answer.
# After ALIVE_COUNT unanswered requests, the connection is lost.
ALIVE_INTERVAL_S = 5
ALIVE_COUNT = 2
PERSIST_S = 60  # how long an unused connection stays open
CONFIG_FILE = "ssh_config"
# The settings of the user and of the system come first, because the first value of an option counts.
CONFIG_TEXT = """\
Include {user_config}
Include /etc/ssh/ssh_config
Host *
  ConnectTimeout {CONNECT_TIMEOUT_S}
  ServerAliveInterval {ALIVE_INTERVAL_S}
  ServerAliveCountMax {ALIVE_COUNT}
"""
SHARING_TEXT = """\
  ControlMaster auto
  ControlPath "{folder}/%C"
  ControlPersist {PERSIST_S}
"""
# The path of a Unix socket has at most 103 bytes.
# `ssh` adds 40 characters for %C, and 17 while it creates the socket.
MAX_SOCKET_FOLDER_BYTES = 103 - 1 - 40 - 17
# No terminal, no forwarding of the agent or of X11, and none of the user's port forwardings and remote
# commands, which belong to the user's own sessions. `ssh` never asks for a password.
FIXED_OPTIONS = (
    *("-T", "-a", "-x", "-o", "BatchMode=yes"),
    *("-o", "ClearAllForwardings=yes", "-o", "RemoteCommand=none"),
)
_CONFIG_LOCK = Lock()  # machines are asked in several threads


def build_ssh_argv(machine: Machine, environment: Mapping[str, str]) -> list[str]:
    """Return the command that starts the relay on a machine."""
    options = [*FIXED_OPTIONS]
    with _CONFIG_LOCK:
        config_path = _write_config(environment)
    if config_path:
        options += ["-F", config_path]
    return ["ssh", *options, "--", machine.destination, f"{machine.program} bridge relay"]


def _write_config(environment: Mapping[str, str]) -> str:
    """Write the configuration file for `ssh`, and return its path. Return "" if the shim's state
    folder cannot be used, so that only the user's own configuration applies.
    """
    folder = os.path.join(get_state_dir(environment), "machines")
    path = os.path.join(folder, CONFIG_FILE)
    text = CONFIG_TEXT.format(
        user_config=f'"{get_home_dir(environment)}/.ssh/config"',
        CONNECT_TIMEOUT_S=CONNECT_TIMEOUT_S,
        ALIVE_INTERVAL_S=ALIVE_INTERVAL_S,
        ALIVE_COUNT=ALIVE_COUNT,
    )
    if socket_folder := _create_socket_folder(environment):
        text += SHARING_TEXT.format(folder=socket_folder, PERSIST_S=PERSIST_S)
    try:
        if not ensure_private_dir(folder):
            return ""
        if not _has_content(path, text):
            replace_file(path, lambda descriptor: write_all(descriptor, text.encode()))
    except OSError:
        return ""
    return path


def _has_content(path: str, text: str) -> bool:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read() == text
    except (OSError, ValueError):
        return False


def _create_socket_folder(environment: Mapping[str, str]) -> str:
    """Return a private folder for the sockets of shared connections. Return "" if no folder can be
    created; every relay then has its own connection.
    """
    parent = environment.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = os.path.join(parent, f"claude-ssh-{os.getuid()}")
    if len(os.fsencode(folder)) > MAX_SOCKET_FOLDER_BYTES:
        return ""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if is_private_dir(folder):
            return folder
    except OSError:
        pass
    return ""
