"""Which session of a vendor stands behind an id of Claude's."""

import json
import os

import pytest

from shim import store
from shim.store import Session, look_up, prune, remember

U = "11111111-2222-4333-8444-55555555abcd"


@pytest.fixture
def environment(box):
    return box.environment()


def test_what_was_remembered_is_looked_up(environment):
    session = Session("cake", "own-id", "/repo", "m1", 12.5)
    assert remember(U, session, environment)
    assert look_up(U, environment) == session


def test_an_id_is_the_same_however_it_is_spelled(environment):
    assert remember(U.upper(), Session("cake", "own-id"), environment)
    assert look_up(U, environment).vendor_session == "own-id"
    assert look_up(U.upper(), environment).vendor_session == "own-id"


def test_when_it_was_made_stays_and_when_it_was_used_moves(box, environment, monkeypatch):
    monkeypatch.setattr(store.time, "time", lambda: 100.0)
    remember(U, Session("cake", "own-id"), environment)
    monkeypatch.setattr(store.time, "time", lambda: 200.0)
    remember(U, look_up(U, environment), environment)
    record = json.loads((box.state / "sessions" / f"{U}.json").read_text(encoding="utf-8"))
    assert (record["created"], record["updated"]) == (100.0, 200.0)


@pytest.mark.parametrize("identity", ["", "../../x", "nonsense", U[:-1], U + "\n"])
def test_what_is_no_uuid_is_never_a_file_name(box, environment, identity):
    assert look_up(identity, environment) is None
    assert not remember(identity, Session("cake", "own-id"), environment)
    assert not box.state.exists() or not os.listdir(box.state / "sessions")


@pytest.mark.parametrize("own", ["", "--yolo", "../x", "a b", "a\n", "x" * 129])
def test_an_id_of_a_vendor_that_may_be_no_argument_is_not_kept(environment, own):
    assert not remember(U, Session("cake", own), environment)
    assert look_up(U, environment) is None


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"7", b"{}", b'{"vendor":"cake"}', b'{"vendor":"../x","vendor_session":"a"}',
     b'{"vendor":"cake","vendor_session":"--yolo"}', b'{"vendor":"cake","vendor_session":"a","created":"x"}',
     b'{"vendor":"cake","vendor_session":"a","created":null}', b"\xff" * 70_000],
)  # fmt: skip
def test_a_file_that_is_broken_is_no_session(box, environment, data):
    remember(U, Session("cake", "own-id"), environment)
    (box.state / "sessions" / f"{U}.json").write_bytes(data)
    assert look_up(U, environment) is None


def test_the_oldest_beyond_the_bound_are_forgotten(box, environment, monkeypatch):
    monkeypatch.setattr(store, "SESSIONS_KEPT", 3)
    ids = [f"{number:08d}{U[8:]}" for number in range(5)]
    for age, identity in enumerate(ids):
        remember(identity, Session("cake", "own-id"), environment)
        os.utime(box.state / "sessions" / f"{identity}.json", (age, age))
    prune(str(box.state / "sessions"))
    assert [look_up(identity, environment) is not None for identity in ids] == [False, False, True, True, True]
    prune(str(box.path / "nowhere"))
