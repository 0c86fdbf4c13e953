"""Writes a service of the user's service manager for `shim fleet run`."""

import os
import sys
from functools import partial
from xml.sax.saxutils import escape

from shim.state.files import replace_file, write_all

SYSTEMD_PATH = ".config/systemd/user/shim-fleet.service"
SYSTEMD_TEXT = """\
[Unit]
Description=claude-shim: connects this machine to its fleet

[Service]
ExecStart={command}
Restart=on-failure
RestartSec=15

[Install]
WantedBy=default.target
"""
SYSTEMD_COMMAND = "systemctl --user enable --now shim-fleet"
LAUNCHD_PATH = "Library/LaunchAgents/claude-shim.fleet.plist"
LAUNCHD_TEXT = """\
<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN"
  "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
  <key>Label</key><string>claude-shim.fleet</string>
  <key>ProgramArguments</key>
  <array>{arguments}</array>
  <key>RunAtLoad</key><true/>
  <key>KeepAlive</key><true/>
</dict>
</plist>
"""
RUN_ARGV = (sys.executable, "-I", "-m", "shim", "fleet", "run")


def write_service(home: str) -> tuple[str, str]:
    """Write the service below the home folder. Return its path, and the command that starts it.
    Raise OSError if the file cannot be written.
    """
    if sys.platform == "darwin":
        path = os.path.join(home, LAUNCHD_PATH)
        arguments = "".join(f"<string>{escape(argument)}</string>" for argument in RUN_ARGV)
        text = LAUNCHD_TEXT.format(arguments=arguments)
        command = f"launchctl load {path}"
    else:
        path = os.path.join(home, SYSTEMD_PATH)
        text = SYSTEMD_TEXT.format(command=" ".join(map(_quote_systemd, RUN_ARGV)))
        command = SYSTEMD_COMMAND
    os.makedirs(os.path.dirname(path), exist_ok=True)
    replace_file(path, partial(write_all, data=text.encode()))
    return path, command


def _quote_systemd(argument: str) -> str:
    """Quote an argument: systemd replaces % and $, and splits at spaces."""
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return '"' + escaped.replace("$", "$$") + '"'
