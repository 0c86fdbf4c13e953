"""The sessions of the fleet's machines. A thread stands in for `shim fleet run`."""

import json
import threading

import pytest

from shim.bridge import sockets
from shim.bridge.listings import FleetSessionLister, iterate_machine_listings
from shim.core.bridge.frames import encode_frame
from shim.state.config import get_fleet_folder, has_fleet
from shim.state.machines import Machine, load_machines

BUILD = "77777777-0000-4000-8000-000000000000"
LAB = "88888888-0000-4000-8000-000000000000"
AWAY_MS = 1_700_000_000_000
MACHINES = [
    {
        "name": "build",
        "version": "9.9",
        "away": None,
        "sessions": [
            {"session": BUILD, "alive": True, "state": "working"},
            {"session": LAB, "alive": False, "state": "done"},
        ],
    },
    {
        "name": "lab",
        "version": "9.9",
        "away": AWAY_MS,
        "sessions": [{"session": LAB, "alive": True, "state": "working"}],
    },
    {"name": "a:b", "sessions": []},
]


@pytest.fixture
def environment(tmp_path):
    return {"SHIM_STATE": str(tmp_path), "SHIM_CONFIG": "/dev/null", "HOME": str(tmp_path)}


@pytest.fixture
def fleet(environment, tmp_path):
    """Answer the requests of one connection with MACHINES."""
    (tmp_path / "fleet").mkdir(mode=0o700)
    (tmp_path / "fleet" / "join.json").touch()
    listener = sockets.open_host_listener(get_fleet_folder(environment))

    def answer():
        connection, _ = listener.accept()
        listener.close()
        with connection, connection.makefile("rb") as requests:
            for request in requests:
                assert json.loads(request) == {"kind": "fleet"}
                connection.sendall(encode_frame("fleet", machines=MACHINES))

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    yield
    thread.join(10)
    assert not thread.is_alive()


def describe(listings):
    return [
        (
            listing.machine.name,
            bool(listing.problem),
            [(each.session_id, each.metadata.get("away")) for each in listing.sessions],
        )
        for listing in listings
    ]


LISTED = [
    ("build", False, [(f"build:{BUILD}", None), (f"build:{LAB}", None)]),
    ("lab", True, [(f"lab:{LAB}", AWAY_MS)]),
]


@pytest.mark.usefixtures("fleet")
def test_machines_of_the_fleet_are_listed_and_remembered(environment):
    with FleetSessionLister(None, environment) as lister:
        listings = lister.list_sessions(includes_ended=True)
        assert describe(listings) == LISTED
        assert (listings[0].version, listings[1].version) == ("9.9", "")
        assert describe(lister.list_sessions(includes_ended=False))[0][2] == LISTED[0][2][:1]
    assert load_machines(environment) == {"build": Machine("build"), "lab": Machine("lab")}


@pytest.mark.usefixtures("fleet")
def test_unavailable_fleet_has_the_sessions_of_the_last_listing(environment, monkeypatch):
    with FleetSessionLister(["build"], environment) as lister:
        lister.list_sessions(includes_ended=True)
    monkeypatch.setattr(
        "shim.bridge.listings.FLEET_DIAL_ARGV", ("sh", "-c", "echo off >&2; exit 255")
    )
    machines = [Machine("build"), Machine("other")]
    listings = list(iterate_machine_listings(machines, environment, includes_ended=True))
    assert [listing.problem for listing in listings] == ["off", "off"]
    assert [len(listing.sessions) for listing in listings] == [2, 0]
    assert listings[0].sessions[0].metadata["away"] > AWAY_MS


def test_machines_without_a_fleet_are_those_of_the_settings(environment):
    assert not has_fleet(environment)
    assert load_machines(environment) == {}
