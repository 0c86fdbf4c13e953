"""The sessions of other machines on the page. The machines are stand-ins."""

import threading
import time

import pytest
from box import TIMEOUT_S
from gateway_harness import SESSION, StandIn, StandIns

from shim.bridge.gateway import machines
from shim.bridge.gateway.hosts import LocalBackgroundSessionManager
from shim.bridge.gateway.machines import AllMachinesSessionManager
from shim.bridge.listings import MachineListing, SshSessionLister
from shim.bridge.registry import SessionRecord
from shim.bridge.remote import RemoteOutput
from shim.state.machines import Machine

BUILD = Machine("build", "build01")
THERE = "77777777-0000-4000-8000-000000000000"


def build_record(uuid):
    return SessionRecord(f"build:{uuid}", "", True, {"state": "working", "cwd": "/srv"})


class Lister(SshSessionLister):
    """Answers like a machine, when `may_answer` is set."""

    may_answer = threading.Event()
    listing = MachineListing(BUILD, [build_record(THERE)])

    def list_sessions(self, *, includes_ended):
        assert includes_ended
        self.may_answer.wait(TIMEOUT_S)
        return [self.listing]


@pytest.fixture
def manager(monkeypatch, tmp_path):
    monkeypatch.setattr(machines, "SshSessionLister", Lister)
    monkeypatch.setattr(machines, "IDLE_TIMEOUT_S", 0.0)
    monkeypatch.setattr(machines, "REFRESH_INTERVAL_S", 0.01)
    monkeypatch.setattr(Lister, "may_answer", threading.Event())
    stand_ins = StandIns(StandIn())
    for name in ("list_sessions", "find_sessions", "respawn_session"):
        method = getattr(stand_ins, name)
        monkeypatch.setattr(
            LocalBackgroundSessionManager, name, lambda self, *args, run=method: run(*args)
        )
    yield AllMachinesSessionManager({"SHIM_STATE": str(tmp_path)}, {}, {"build": BUILD})
    Lister.may_answer.set()


def wait_for(condition):
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def list_ids(manager):
    return [session["session"] for session in manager.list_sessions()]


def test_list_does_not_wait_for_a_machine(manager):
    assert list_ids(manager) == [SESSION]
    Lister.may_answer.set()
    assert wait_for(lambda: list_ids(manager) == [SESSION, THERE])
    (_, remote) = manager.list_sessions()
    assert (remote["machine"], remote["id"], remote.get("away")) == ("build", "77777777", None)
    assert manager.find_sessions("7777") == [remote]


def test_session_on_both_machines_is_listed_once(manager, monkeypatch):
    sessions = [build_record(SESSION), build_record(THERE)]
    monkeypatch.setattr(Lister, "listing", MachineListing(BUILD, sessions))
    Lister.may_answer.set()
    assert wait_for(lambda: list_ids(manager) == [SESSION, THERE])
    assert "machine" not in manager.list_sessions()[0]


def test_sessions_of_a_machine_that_is_away_have_the_time_of_its_last_answer(manager, monkeypatch):
    record = build_record(THERE)
    record = record._replace(metadata={**record.metadata, "away": 5})
    away = MachineListing(BUILD, [record], problem="off")
    monkeypatch.setattr(Lister, "listing", away)
    Lister.may_answer.set()
    assert wait_for(lambda: len(manager.list_sessions()) == 2)
    assert manager.list_sessions()[1]["away"] == 5


def test_ended_session_of_another_machine_is_resumed_there(manager, monkeypatch):
    commands = []

    def run(session_id, command, environment, args):
        commands.append((session_id, command, args))
        return RemoteOutput("restarted\n", 0)

    monkeypatch.setattr(machines, "run_session_command", run)
    Lister.may_answer.set()
    assert wait_for(lambda: len(manager.list_sessions()) == 2)
    assert manager.respawn_session(THERE, "-x", "some-id")
    assert commands == [
        (f"build:{THERE}", ("bridge", "say"), ["--id", "some-id", "--", "-x"]),
    ]
    assert manager.respawn_session(SESSION, "here", "")
    assert len(commands) == 1
