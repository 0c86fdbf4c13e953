"""The stored mapping from a session id of Claude to the session of a vendor."""

import json
import os
import subprocess
import sys

import pytest
from fixture_cases import ROOT

from shim.core.claude.usage import NO_USAGE, create_usage
from shim.state import store
from shim.state.store import (
    StoredSession,
    find_last_session,
    find_session,
    remove_old_sessions,
    store_session,
)

U = "11111111-2222-4333-8444-55555555abcd"


@pytest.fixture
def environment(box):
    return box.build_environment()


def test_stored_session_is_returned_by_find_session(environment):
    session = StoredSession("cake", "own-id", "/repo", "m1", 12.5)
    assert store_session(U, session, environment)
    assert (
        stored_session := find_session(U, environment)
    ) is not None and stored_session.updated > 0
    assert stored_session._replace(updated=0.0) == session


def test_usage_is_stored_with_the_session(environment):
    session = StoredSession("cake", "own-id", created=1.0, used=create_usage(100, 20, 0, 30))
    assert store_session(U, session, environment)
    assert (
        stored_session := find_session(U, environment)
    ) is not None and stored_session.updated > 0
    assert stored_session._replace(updated=0.0) == session


@pytest.mark.parametrize("used", [None, "many", [1], {"input_tokens": "x", "output_tokens": -3}])
def test_invalid_usage_is_loaded_as_no_usage(box, environment, used):
    store_session(U, StoredSession("cake", "own-id"), environment)
    file = box.state / "sessions" / f"{U}.json"
    file.write_text(
        json.dumps(json.loads(file.read_text(encoding="utf-8")) | {"used": used}), encoding="utf-8"
    )
    assert find_session(U, environment).used == NO_USAGE


def test_session_id_is_case_insensitive(environment):
    assert store_session(U.upper(), StoredSession("cake", "own-id"), environment)
    assert find_session(U, environment).vendor_session == "own-id"
    assert find_session(U.upper(), environment).vendor_session == "own-id"


def test_creation_time_is_preserved_and_update_time_changes(box, environment, monkeypatch):
    monkeypatch.setattr(store.time, "time", lambda: 100.0)
    store_session(U, StoredSession("cake", "own-id"), environment)
    monkeypatch.setattr(store.time, "time", lambda: 200.0)
    store_session(U, find_session(U, environment), environment)
    record = json.loads((box.state / "sessions" / f"{U}.json").read_text(encoding="utf-8"))
    assert (record["created"], record["updated"]) == (100.0, 200.0)


def test_creation_time_is_preserved_if_the_caller_omits_the_value(environment, monkeypatch):
    monkeypatch.setattr(store.time, "time", lambda: 100.0)
    store_session(U, StoredSession("cake", "own-id"), environment)
    monkeypatch.setattr(store.time, "time", lambda: 200.0)
    store_session(U, StoredSession("cake", "own-id"), environment)
    assert find_session(U, environment).created == 100.0


@pytest.mark.parametrize("session_id", ["", "../../x", "nonsense", U[:-1], U + "\n"])
def test_invalid_session_id_is_never_used_as_a_file_name(box, environment, session_id):
    assert find_session(session_id, environment) is None
    assert not store_session(session_id, StoredSession("cake", "own-id"), environment)
    assert not box.state.exists() or not os.listdir(box.state / "sessions")


@pytest.mark.parametrize("vendor_session", ["--yolo", "../x", "a b", "a\n", "x" * 129])
def test_vendor_session_id_that_is_unsafe_as_an_argument_is_not_stored(environment, vendor_session):
    assert not store_session(U, StoredSession("cake", vendor_session), environment)
    assert find_session(U, environment) is None


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"7", b"{}", b'{"vendor":"cake"}', b'{"vendor":"../x","vendor_session":"a"}',
     b'{"vendor":"cake","vendor_session":"--yolo"}', b'{"vendor":"cake","vendor_session":"a","created":"x"}',
     b'{"vendor":"cake","vendor_session":"a","created":null}', b"\xff" * 70_000],
)  # fmt: skip
def test_corrupt_session_file_is_ignored(box, environment, data):
    store_session(U, StoredSession("cake", "own-id"), environment)
    (box.state / "sessions" / f"{U}.json").write_bytes(data)
    assert find_session(U, environment) is None


def test_oldest_sessions_above_the_limit_are_removed(box, environment, monkeypatch):
    monkeypatch.setattr(store, "MAX_SESSIONS", 3)
    ids = [f"{number:08d}{U[8:]}" for number in range(5)]
    for age, session_id in enumerate(ids):
        store_session(session_id, StoredSession("cake", "own-id"), environment)
        os.utime(box.state / "sessions" / f"{session_id}.json", (age, age))
    remove_old_sessions(str(box.state / "sessions"))
    assert [find_session(session_id, environment) is not None for session_id in ids] == [
        False,
        False,
        True,
        True,
        True,
    ]
    remove_old_sessions(str(box.path / "nowhere"))


def used(box, session_id, session, age):
    """Store a session as if it had been used at the time `age`."""
    assert store_session(session_id, session, box.build_environment())
    os.utime(box.state / "sessions" / f"{session_id}.json", (age, age))


def build_id(number):
    return f"{number:08d}{U[8:]}"


def test_last_session_of_a_folder_is_the_most_recently_used(box, environment):
    used(box, build_id(1), StoredSession("cake", "first", "/repo"), 30)
    used(box, build_id(2), StoredSession("cake", "second", "/repo"), 10)
    used(box, build_id(3), StoredSession("cake", "third", "/other"), 40)
    session_id, session = find_last_session("/repo", environment)
    assert (session_id, session.vendor_session) == (build_id(1), "first")
    assert find_last_session("/", environment) is None


def test_undecodable_names_can_be_stored(environment):
    folder = os.fsdecode(b"/d\xff")
    assert store_session(U, StoredSession("cake", "own-id", folder, "m\ud83d"), environment)
    assert find_last_session(folder, environment) == (U, find_session(U, environment))
    assert find_last_session(os.fsdecode(b"/d\xfe"), environment) is None


def test_last_session_can_be_filtered_by_vendor(box, environment):
    used(box, build_id(1), StoredSession("cake", "first", "/repo"), 30)
    used(box, build_id(2), StoredSession("pi", "second", "/repo"), 10)
    assert find_last_session("/repo", environment)[0] == build_id(1)
    assert find_last_session("/repo", environment, "pi")[0] == build_id(2)
    assert find_last_session("/repo", environment, "qwen") is None


def test_last_session_is_none_without_stored_sessions(box, environment):
    assert find_last_session("/repo", environment) is None


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"vendor":"cake","cwd":"/repo"}', b"\xff" * 70_000]
)
def test_corrupt_session_file_does_not_hide_the_last_session(box, environment, data):
    used(box, build_id(1), StoredSession("cake", "first", "/repo"), 10)
    broken = box.state / "sessions" / f"{build_id(2)}.json"
    broken.write_bytes(data)
    os.utime(broken, (20, 20))
    assert find_last_session("/repo", environment)[0] == build_id(1)


def test_file_with_an_invalid_name_is_not_a_session(box, environment):
    used(box, U, StoredSession("cake", "own", "/repo"), 10)
    folder = box.state / "sessions"
    for name in ("x.json", f"{U.upper()}.json", f"{U}.json.17.tmp"):
        (folder / name).write_bytes((folder / f"{U}.json").read_bytes())
    (folder / f"{U}.json").unlink()
    assert find_last_session("/repo", environment) is None


def test_last_session_search_reads_only_max_sessions_files(box, environment, monkeypatch):
    monkeypatch.setattr(store, "MAX_SESSIONS", 2)
    for number in range(3):
        used(box, build_id(number), StoredSession("cake", "own", f"/{number}"), number)
    assert find_last_session("/0", environment) is None
    assert find_last_session("/1", environment)[0] == build_id(1)


def test_last_session_is_none_if_the_folder_is_accessible_to_others(box, environment):
    store_session(U, StoredSession("cake", "own", "/repo"), environment)
    os.chmod(box.state / "sessions", 0o755)
    assert find_last_session("/repo", environment) is None


WRITER = """
import sys
from shim.state.store import StoredSession, find_last_session, find_session, store_session
state, number, *session_ids = sys.argv[1:]
environment = {"SHIM_STATE": state}
print("ready", flush=True)
sys.stdin.readline()
for turn in range(200):
    for session_id in session_ids:
        assert store_session(session_id, StoredSession("cake", f"own-{number}-{turn}", "/repo"), environment)
        assert find_session(session_id, environment).vendor == "cake"
    assert find_last_session("/repo", environment) is not None
"""


@pytest.mark.parametrize(
    "ids", [([U], [U]), ([build_id(1)], [build_id(2)]), ([U, build_id(1)], [U, build_id(2)])]
)
def test_concurrent_writers_lose_and_corrupt_no_session(box, environment, ids):
    command = [sys.executable, "-c", WRITER, str(box.state)]
    writers = [
        subprocess.Popen(
            [*command, str(number), *writer_ids],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number, writer_ids in enumerate(ids)
    ]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=60)
    assert [writer.returncode for writer in writers] == [0, 0]
    all_ids = {session_id for writer_ids in ids for session_id in writer_ids}
    assert {
        find_session(session_id, environment).vendor_session[-4:] for session_id in all_ids
    } == {"-199"}
    assert sorted(os.listdir(box.state / "sessions")) == sorted(
        f"{session_id}.json" for session_id in all_ids
    )
