"""The service of `shim fleet run`, as systemd and launchd read it."""

import configparser
import plistlib
import shlex
import shutil
import stat
import subprocess
import sys

import pytest
from box import TIMEOUT_S

from shim.fleet import service

ENVIRONMENT = {
    "PATH": '/opt/my "tools"/100%$HOME:/bin',
    "SHIM_STATE": "/state",
    "SHIM_CONFIG": "/two\nlines",
    "ANTHROPIC_API_KEY": "secret",
}


def read_unit(data):
    """Return the lines of the section [Service], by their names. A name may be there several times."""
    lines = data.decode().partition("[Service]\n")[2].partition("\n\n")[0].splitlines()
    fields = {}
    for line in lines:
        name, _, value = line.partition("=")
        fields.setdefault(name, []).append(value)
    return fields


def test_end_of_the_unit_does_not_end_sessions():
    """A session that a member has started is in the control group of the service."""
    fields = read_unit(service.format_systemd_unit({}))
    assert (fields["KillMode"], fields["OOMPolicy"]) == (["process"], ["continue"])
    assert fields["Restart"] == ["on-failure"]
    assert shlex.split(fields["ExecStart"][0]) == [*service.RUN_ARGV]


def test_unit_has_the_variables_of_the_user_without_secrets():
    data = service.format_systemd_unit(ENVIRONMENT)
    assignments = read_unit(data)["Environment"]
    unquoted = [shlex.split(each)[0] for each in assignments]
    path = ENVIRONMENT["PATH"].replace("%", "%%")
    assert unquoted == [f"PATH={path}", "SHIM_STATE=/state"]
    parser = configparser.RawConfigParser(strict=False)
    parser.read_string(data.decode())
    assert parser.sections() == ["Unit", "Service", "Install"]


def test_agent_ends_for_good_after_a_success():
    agent = plistlib.loads(service.format_launchd_agent(ENVIRONMENT))
    assert agent["KeepAlive"] == {"SuccessfulExit": False}
    assert agent["ProgramArguments"][-3:] == ["fleet", "run", "--service"]
    assert agent["EnvironmentVariables"] == {
        "PATH": ENVIRONMENT["PATH"],
        "SHIM_STATE": "/state",
    }
    assert agent["AbandonProcessGroup"] is True


@pytest.mark.parametrize(
    ("platform", "name", "command"),
    [
        ("linux", "shim-fleet.service", "systemctl"),
        ("darwin", "claude-shim.fleet.plist", "launchctl"),
    ],
)
def test_service_is_written_for_the_service_manager(tmp_path, monkeypatch, platform, name, command):
    monkeypatch.setattr(sys, "platform", platform)
    path, commands = service.write_service(str(tmp_path), ENVIRONMENT)
    assert path.endswith(f"/{name}")
    assert commands[0].startswith(command)
    (written,) = tmp_path.rglob(name)
    assert stat.S_IMODE(written.stat().st_mode) == 0o600


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path):
    path = tmp_path / "shim-fleet.service"
    path.write_bytes(service.format_systemd_unit(ENVIRONMENT))
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", "--man=no", path],
        env={"XDG_RUNTIME_DIR": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
