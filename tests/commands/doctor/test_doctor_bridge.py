"""What `shim doctor` and `shim sessions` say of sessions that live on their own."""

import json
import os
import signal

from hosting import PATIENCE, read_until_result

from shim.bridge import registry
from shim.bridge.gateway.tokens import TokenFile
from shim.commands.doctor import machine
from shim.commands.doctor.findings import NOTE, OK, PROBLEM, WARNING
from shim.commands.doctor.machine import check_background_sessions, check_gateway


def test_without_sessions_it_says_how_one_begins(desk):
    (finding,) = check_background_sessions(desk.environment)
    assert finding.level == NOTE and "`claude --bg PROMPT`" in finding.text


def test_those_that_live_and_those_whose_host_died_are_told(desk, monkeypatch):
    monkeypatch.setattr(machine, "WELCOME_TIMEOUT_S", PATIENCE)
    ended, died, living = desk.start_session(), desk.start_session(), desk.start_session()
    desk.run_claude("stop", ended.short_id)
    pid = desk.wait_until(died, lambda now: now.metadata["pid"]).metadata["pid"]
    os.kill(pid, signal.SIGKILL)
    desk.wait_for_end(died)
    desk.wait_until(living, lambda now: now.metadata["pid"])
    findings = check_background_sessions(desk.environment)
    assert [finding.level for finding in findings] == [OK, WARNING]
    assert findings[0].text == "sessions on their own: 1 alive, 2 ended"
    assert (
        findings[1].text == f"the host of a session died: {died.short_id}"
        and "claude respawn" in findings[1].fix
    )


def test_a_host_that_is_stopped_or_of_another_version_is_told_of(desk, monkeypatch):
    monkeypatch.setattr(machine, "WELCOME_TIMEOUT_S", 0.2)
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


def test_the_gateway_can_be_served_with_its_extra_alone(desk, monkeypatch):
    monkeypatch.setattr(machine, "REQUIRED_PACKAGES", ("json",))
    (finding,) = check_gateway(desk.environment)
    assert (finding.level, "made when it is first asked for" in finding.text) == (OK, True)
    TokenFile(desk.environment).load_tokens()
    assert "its token is kept" in check_gateway(desk.environment)[0].text
    monkeypatch.setattr(machine, "REQUIRED_PACKAGES", ("json", "no_such_package"))
    (finding,) = check_gateway(desk.environment)
    assert (finding.level, finding.fix) == (WARNING, "pip install 'claude-shim[web]'")
    assert "no_such_package" in finding.text


def test_a_token_that_others_can_read_is_a_problem(desk):
    TokenFile(desk.environment).load_tokens()
    (path,) = (desk.box.path / "desk" / "state" / "gateway").iterdir()
    path.chmod(0o644)
    (finding,) = check_gateway(desk.environment)
    assert finding.level == PROBLEM and "shim bridge token --new" in finding.fix


def test_of_a_session_that_lives_the_line_attaches_to_it(desk):
    record = desk.start_session("hi")
    with desk.connect(record) as connection:
        read_until_result(connection)
    assert (
        f"  claude attach {record.short_id}  (it lives)\n"
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
