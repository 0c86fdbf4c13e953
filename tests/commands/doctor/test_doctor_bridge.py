"""The background sessions in the output of `shim doctor` and `shim sessions`."""

import json
import os
import resource
import signal

from session_hosts import TIMEOUT_S, read_until_result

from shim.bridge import registry
from shim.bridge.gateway.tokens import GatewayTokenFile
from shim.commands.doctor import installation_checks
from shim.commands.doctor.findings import NOTE, OK, PROBLEM, WARNING
from shim.commands.doctor.installation_checks import check_background_sessions, check_gateway_tokens
from shim.process.installation import build_install_hint


def test_start_hint_is_returned_without_sessions(desk):
    (finding,) = check_background_sessions(desk.environment)
    assert finding.level == NOTE and "`claude --bg PROMPT`" in finding.text


def test_sessions_that_cannot_be_listed_are_a_problem(desk):
    folder = registry.get_bridge_folder(desk.environment)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free_descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(free_descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free_descriptor, limits[1]))
    try:
        (finding,) = check_background_sessions(desk.environment)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (finding.level, "Too many open files" in finding.text) == (PROBLEM, True)


def test_running_sessions_are_counted_and_crashed_hosts_reported(desk, monkeypatch):
    monkeypatch.setattr(installation_checks, "WELCOME_TIMEOUT_S", TIMEOUT_S)
    ended, died, living = desk.start_session(), desk.start_session(), desk.start_session()
    desk.run_claude("stop", ended.short_id)
    pid = desk.wait_until(died, lambda now: now.metadata["pid"]).metadata["pid"]
    os.kill(pid, signal.SIGKILL)
    desk.wait_for_end(died)
    desk.wait_until(living, lambda now: now.metadata["pid"])
    findings = check_background_sessions(desk.environment)
    assert [finding.level for finding in findings] == [OK, WARNING]
    assert findings[0].text == "background sessions: 1 running, 2 ended"
    assert (
        findings[1].text == f"the host process of a session crashed: {died.short_id}"
        and "claude respawn" in findings[1].fix
    )


def test_unresponsive_host_and_other_host_version_are_reported(desk, monkeypatch):
    monkeypatch.setattr(installation_checks, "WELCOME_TIMEOUT_S", 0.2)
    record = desk.start_session()
    with desk.halt_host(record):
        registry.write_metadata(
            record.folder, {**desk.load_session(record).metadata, "version": "0.0.1"}
        )
        findings = check_background_sessions(desk.environment)
    assert [(each.level, each.text.rpartition(": ")[2]) for each in findings[1:]] == [
        (WARNING, record.short_id),
        (NOTE, record.short_id),
    ]


def test_gateway_check_reports_the_token_and_missing_packages(desk, monkeypatch):
    monkeypatch.setattr(installation_checks, "REQUIRED_PACKAGES", ("json",))
    (finding,) = check_gateway_tokens(desk.environment)
    assert (finding.level, "created on first use" in finding.text) == (OK, True)
    GatewayTokenFile(desk.environment).load_tokens()
    assert "a token exists" in check_gateway_tokens(desk.environment)[0].text
    monkeypatch.setattr(installation_checks, "REQUIRED_PACKAGES", ("json", "no_such_package"))
    (finding,) = check_gateway_tokens(desk.environment)
    assert (finding.level, finding.fix) == (WARNING, build_install_hint())
    assert "no_such_package" in finding.text


def test_world_readable_token_file_is_a_problem(desk):
    GatewayTokenFile(desk.environment).load_tokens()
    (path,) = (desk.box.path / "desk" / "state" / "gateway").iterdir()
    path.chmod(0o644)
    (finding,) = check_gateway_tokens(desk.environment)
    assert finding.level == PROBLEM and "shim bridge token --new" in finding.fix


def test_sessions_prints_attach_for_running_and_resume_for_ended(desk):
    record = desk.start_session("hi")
    with desk.connect(record) as connection:
        read_until_result(connection)
    assert (
        f"  claude attach {record.short_id}  (running)\n"
        in desk.run_shim("sessions").stdout.decode()
    )
    assert [row["alive"] for row in json.loads(desk.run_shim("sessions", "--json").stdout)] == [
        True
    ]
    desk.run_claude("stop", record.short_id)
    assert "shim run --resume" in desk.run_shim("sessions").stdout.decode()
    assert [row["alive"] for row in json.loads(desk.run_shim("sessions", "--json").stdout)] == [
        False
    ]
