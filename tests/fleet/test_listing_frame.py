"""The size of the list of a fleet."""

import json

import pytest

from shim.fleet import listing_frame
from shim.fleet.listing_frame import encode_listing
from shim.fleet.view import FleetMachine


def create_machine(running_count, ended_count):
    sessions = {
        f"{number}": {
            "session": f"{number}",
            "alive": number < running_count,
            "updated": 1_000_000 + number,
        }
        for number in range(running_count + ended_count)
    }
    return FleetMachine("build", "1", "", 0, sessions)


def list_ids(frame):
    return [each["session"] for each in json.loads(frame)["machines"][0]["sessions"]]


def test_small_list_has_all_sessions():
    assert list_ids(encode_listing([create_machine(2, 30)])) == [str(each) for each in range(32)]


@pytest.mark.parametrize(("max_bytes", "expected"), [(15_000, 100), (3000, 20), (500, 0)])
def test_large_list_has_the_newest_ended_sessions(monkeypatch, max_bytes, expected):
    monkeypatch.setattr(listing_frame, "MAX_FRAME_BYTES", max_bytes)
    frame = encode_listing([create_machine(2, 400)])
    assert len(frame) <= max_bytes
    newest = [str(each) for each in range(401, 401 - expected, -1)]
    assert list_ids(frame) == ["0", "1", *newest]


def test_list_with_too_many_running_sessions_is_refused(monkeypatch):
    monkeypatch.setattr(listing_frame, "MAX_FRAME_BYTES", 100)
    assert "exceed 16 MiB" in json.loads(encode_listing([create_machine(2, 0)]))["reason"]
