"""The sessions of the fleet's machines. A thread stands in for `shim fleet run`."""

import json
import threading
from contextlib import suppress

import pytest
from box import TIMEOUT_S

from shim.bridge import sockets
from shim.bridge.listings import (
    FleetSessionLister,
    SshSessionLister,
    iterate_machine_listings,
)
from shim.core.bridge.frames import encode_frame
from shim.state.config import get_fleet_folder, has_fleet
from shim.state.machines import ALL_FLEET_MACHINES, Machine, load_machines

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
def machines():
    """Return the machines in the answer of the fleet."""
    return MACHINES


@pytest.fixture
def fleet(environment, tmp_path, machines):
    """Answer the requests of one connection with machines."""
    (tmp_path / "fleet").mkdir(mode=0o700)
    (tmp_path / "fleet" / "join.json").touch()
    listener = sockets.open_host_listener(get_fleet_folder(environment))

    def answer():
        connection, _ = listener.accept()
        listener.close()
        with connection, connection.makefile("rb") as requests:
            for request in requests:
                assert json.loads(request) == {"kind": "fleet"}
                with suppress(OSError):  # the command does not read an answer that is too large
                    connection.sendall(encode_frame("fleet", machines=machines))

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


def list_in_thread(machines, environment):
    """Return the listings. They must not wait forever."""
    listings = []

    def add_listings():
        listings.extend(iterate_machine_listings(machines, environment, includes_ended=False))

    thread = threading.Thread(target=add_listings, daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    return listings


@pytest.mark.parametrize("machines", [[{"name": "x", "away": 2**60, "sessions": [["a"], 5]}, "b"]])
@pytest.mark.usefixtures("fleet", "machines")
def test_unexpected_answer_of_the_fleet_is_listed(environment):
    listings = list_in_thread([ALL_FLEET_MACHINES], environment)
    assert [listing.machine.name for listing in listings if listing.problem] == ["x"]


@pytest.mark.parametrize("error", [TypeError, KeyError, OverflowError, RuntimeError])
def test_failed_request_does_not_stop_the_list(environment, monkeypatch, error):
    """An error that is not expected ends the thread of its machine, but not the list."""

    def fail_request(lister, request, kind):
        raise error("damaged")

    monkeypatch.setattr(SshSessionLister, "_request", fail_request)
    monkeypatch.setattr(threading, "excepthook", lambda failure: None)
    listings = list_in_thread([Machine("x", "host")], environment)
    problems = [listing.problem.partition(":")[0] for listing in listings]
    assert problems == ([] if error is RuntimeError else ["its answer is not valid"])


def test_id_of_an_unexpected_type_is_ignored(environment, monkeypatch):
    answer = {"sessions": [{"session": ["x"]}, {"session": LAB, "alive": True}]}
    monkeypatch.setattr(SshSessionLister, "_request", lambda lister, request, kind: answer)
    (listing,) = list_in_thread([Machine("x", "host")], environment)
    assert describe([listing]) == [("x", False, [(f"x:{LAB}", None)])]


@pytest.mark.parametrize("machines", [[{"name": "x" * 10_000}]])
@pytest.mark.usefixtures("fleet", "machines")
def test_answer_that_is_too_large_is_reported(environment, monkeypatch):
    monkeypatch.setattr("shim.bridge.listings.MAX_FLEET_LISTING_BYTES", 1000)
    (listing,) = list_in_thread([Machine("x")], environment)
    assert "its answer is larger than" in listing.problem
