"""Writes a service of the user's service manager for `shim fleet run`.

A member of the fleet may start a session, whose host is then a child of the service. It must survive
the end of the service, as no session depends on it.
"""

import os
import plistlib
import sys
from collections.abc import Mapping
from functools import partial

from shim.state.files import replace_file, write_all

SYSTEMD_PATH = ".config/systemd/user/shim-fleet.service"
# KillMode and OOMPolicy spare the hosts of sessions. `shim fleet run --service` exits with the status 0
# if a restart does not help.
SYSTEMD_TEXT = """\
[Unit]
Description=claude-shim: connects this machine to its fleet

[Service]
ExecStart={command}
{environment}Restart=on-failure
RestartSec=15
KillMode=process
OOMPolicy=continue

[Install]
WantedBy=default.target
"""
SYSTEMD_COMMANDS = (
    "systemctl --user enable --now shim-fleet",
    "loginctl enable-linger      # keeps it running after you have logged out",
)
LAUNCHD_LABEL = "claude-shim.fleet"
LAUNCHD_PATH = f"Library/LaunchAgents/{LAUNCHD_LABEL}.plist"
RESTART_S = 15
RUN_ARGV = (sys.executable, "-I", "-m", "shim", "fleet", "run", "--service")
# A service manager has other values of these variables than the user's shell, or none. Variables with
# secrets, such as API keys, are not stored.
STORED_VARIABLES = ("PATH", "SHIM_STATE", "SHIM_CONFIG", "XDG_CONFIG_HOME")


def write_service(home: str, environment: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Write the service below the home folder. Return its path, and the commands that start it.
    Raise OSError if the file cannot be written.
    """
    if sys.platform == "darwin":
        path = os.path.join(home, LAUNCHD_PATH)
        data = format_launchd_agent(environment)
        commands: tuple[str, ...] = (f"launchctl load {path}",)
    else:
        path = os.path.join(home, SYSTEMD_PATH)
        data = format_systemd_unit(environment)
        commands = SYSTEMD_COMMANDS
    os.makedirs(os.path.dirname(path), exist_ok=True)
    replace_file(path, partial(write_all, data=data))
    return path, commands


def format_systemd_unit(environment: Mapping[str, str]) -> bytes:
    """Return the unit for systemd."""
    command = " ".join(_quote_systemd(argument).replace("$", "$$") for argument in RUN_ARGV)
    assignments = [
        f"Environment={_quote_systemd(f'{name}={value}')}\n"
        for name, value in _select_variables(environment).items()
    ]
    return SYSTEMD_TEXT.format(command=command, environment="".join(assignments)).encode()


def format_launchd_agent(environment: Mapping[str, str]) -> bytes:
    """Return the agent for launchd."""
    return plistlib.dumps(
        {
            "Label": LAUNCHD_LABEL,
            "ProgramArguments": list(RUN_ARGV),
            "EnvironmentVariables": _select_variables(environment),
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": RESTART_S,
            "AbandonProcessGroup": True,
        }
    )


def _select_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the user that the service needs. A value that a line of text cannot hold
    is left out.
    """
    return {
        name: environment[name]
        for name in STORED_VARIABLES
        if name in environment and environment[name].isprintable()
    }


def _quote_systemd(text: str) -> str:
    """Quote a text: systemd replaces %, and splits at spaces."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'
