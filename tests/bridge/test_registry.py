"""Running sessions, ended sessions, and their stored data: only files, without a host."""

import os
import resource
import time
from contextlib import nullcontext

import pytest

from shim.bridge import lock, registry, sockets
from shim.core.errors import FrontendError

SESSION = "0123abcd-0000-4000-8000-000000000001"
OTHER = "0123ffff-0000-4000-8000-000000000002"
METADATA = {"protocol": 1, "created": 5, "started": 6, "pid": 7, "generation": 1, "state": "working", "status": "busy",
         "vendor": "demo", "cwd": "/repo", "name": "x", "waitingFor": None, "needs": None}  # fmt: skip


@pytest.fixture
def environment(tmp_path):
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    return {"SHIM_STATE": str(state)}


def keep(environment, session=SESSION, **metadata):
    """Create a session without a host."""
    folder = registry.create_session_folder(session, environment)
    registry.write_metadata(folder, {**METADATA, **metadata, "session": session, "id": session[:8]})
    return folder


def test_sessions_are_listed_by_uuid_or_id_prefix(environment):
    keep(environment)
    keep(environment, OTHER, created=9)
    assert [record.session_id for record in registry.list_sessions(environment)] == [OTHER, SESSION]
    for query, expected in (
        (SESSION, [SESSION]), (SESSION.upper(), [SESSION]), ("0123a", [SESSION]), ("0123", [OTHER, SESSION]),
        ("9", []), ("", []), ("../0123abcd", []), (OTHER.replace("2", "3"), []),
    ):  # fmt: skip
        assert [
            record.session_id for record in registry.list_sessions_by_id_prefix(query, environment)
        ] == expected, query


def test_session_with_a_dead_host_is_failed_if_work_was_in_progress(environment):
    for state, expected_state in (
        ("working", "failed"),
        ("blocked", "failed"),
        ("done", "done"),
        ("stopped", "stopped"),
    ):
        folder = keep(environment, state=state)
        with sockets.open_host_listener(folder):
            pass
        record = registry.find_session(SESSION, environment)
        assert record is not None and not record.is_running
        assert (record.metadata["state"], record.metadata["status"], record.metadata["pid"]) == (
            expected_state,
            None,
            None,
        )
        assert not os.path.lexists(os.path.join(folder, sockets.SOCKET_FILE))
        assert registry.read_metadata(folder) == record.metadata


def test_session_is_running_while_the_host_holds_the_lock(environment):
    folder = keep(environment, pid=2**22 + 1)
    host_lock = lock.acquire_session_host_lock(folder)
    with sockets.open_host_listener(folder):
        record = registry.find_session(SESSION, environment)
        assert record is not None and record.is_running and record.metadata["state"] == "working"
        assert os.path.lexists(os.path.join(folder, sockets.SOCKET_FILE))
    os.close(host_lock)


def test_reused_process_id_does_not_make_a_session_running(environment):
    keep(environment, pid=os.getpid())
    record = registry.find_session(SESSION, environment)
    assert record is not None and not record.is_running and record.metadata["state"] == "failed"


def test_malformed_metadata_is_read_as_a_failed_session(environment):
    folder = keep(environment)
    for text in (b"", b"[]", b"{", b'{"pid":"x","state":7,"created":null}', b"\xff"):
        with open(os.path.join(folder, registry.METADATA_FILE), "wb") as file:
            file.write(text)
        record = registry.find_session(SESSION, environment)
        assert (record.metadata["state"], record.metadata["pid"], record.is_running) == (
            "failed",
            None,
            False,
        )


def test_ended_session_is_listed_without_probing_its_lock(environment, monkeypatch):
    """A user interface requests the list each second, and it contains the sessions of a month."""
    looked = []
    monkeypatch.setattr(
        lock, "probe_session_host_lock", lambda folder: looked.append(folder) or nullcontext(True)
    )
    ended_id, dead = (f"{number:08}-0000-4000-8000-000000000000" for number in range(2))
    keep(environment, ended_id, state="done", status=None, pid=None)
    keep(environment, dead, state="working", status=None, pid=None)
    assert {
        record.session_id: record.metadata["state"]
        for record in registry.list_sessions(environment)
    } == {
        ended_id: "done",
        dead: "failed",
    }
    assert looked == [registry.get_session_folder(dead, environment)]


def test_entries_that_are_not_sessions_are_ignored(environment):
    keep(environment)
    top = registry.get_bridge_folder(environment)
    os.mkdir(os.path.join(top, "web"))
    os.mkdir(os.path.join(top, OTHER))
    open(os.path.join(top, SESSION + ".tmp"), "w").close()
    assert [record.session_id for record in registry.list_sessions(environment)] == [SESSION]


def test_invalid_session_id_is_not_resolved_to_a_path(environment):
    for session_id in ("..", "../..", "/etc", "a" * 36, SESSION + "/"):
        with pytest.raises(ValueError, match="is not a UUID"):
            registry.get_session_folder(session_id, environment)
        assert registry.find_session(session_id, environment) is None


def test_only_old_ended_sessions_are_removed(environment):
    old, fresh, living = (f"{number:08}-0000-4000-8000-000000000000" for number in range(3))
    long_ago = time.time() - 31 * 86400
    for session in (old, fresh, living):
        folder = keep(environment, session, state="done", status=None, pid=None)
        os.makedirs(os.path.join(folder, "log"))
        if session != fresh:
            os.utime(os.path.join(folder, registry.METADATA_FILE), (long_ago, long_ago))
    host_lock = lock.acquire_session_host_lock(registry.get_session_folder(living, environment))
    assert registry.remove_old_sessions(environment, days=30) == 1
    assert sorted(record.session_id for record in registry.list_sessions(environment)) == [
        fresh,
        living,
    ]
    os.close(host_lock)


def test_running_session_is_not_removed(environment, monkeypatch):
    monkeypatch.setattr(lock, "ACQUIRE_TIMEOUT_S", 0.05)
    folder = keep(environment)
    host_lock = lock.acquire_session_host_lock(folder)
    assert not registry.remove_session(registry.find_session(SESSION, environment))
    os.close(host_lock)
    assert registry.remove_session(
        registry.find_session(SESSION, environment)
    ) and not os.path.exists(folder)


def test_removing_a_removed_session_succeeds(environment):
    keep(environment)
    record = registry.find_session(SESSION, environment)
    assert registry.remove_session(record) and registry.remove_session(record)


def test_concurrent_removal_of_a_session_leaves_no_folder(environment, monkeypatch):
    """The second process opens the lock, and so creates it again, while the first one empties the
    folder.
    """
    folder, remove, disturbed = keep(environment), registry.shutil.rmtree, []

    def late(path, **how):
        remove(path, **how)
        if not disturbed:
            disturbed.append(path)
            os.mkdir(path, 0o700)
            open(os.path.join(path, lock.LOCK_FILE), "w").close()

    monkeypatch.setattr(registry.shutil, "rmtree", late)
    assert registry.remove_session(
        registry.find_session(SESSION, environment)
    ) and not os.path.lexists(folder)


def many(environment, count, **metadata):
    """Create sessions that ended one minute apart, the oldest first."""
    names = [f"{number:08}-0000-4000-8000-000000000000" for number in range(count)]
    for number, session in enumerate(names):
        folder = keep(
            environment, session, state="done", status=None, pid=None, created=number, **metadata
        )
        for path in (os.path.join(folder, registry.METADATA_FILE), folder):
            os.utime(path, (time.time() - 60 * (count - number),) * 2)
    return names


def test_running_session_is_listed_beyond_the_ended_session_limit(environment, monkeypatch):
    monkeypatch.setattr(registry, "MAX_ENDED_SESSIONS", 3)
    names = many(environment, 12)
    living = registry.get_session_folder(names[0], environment)
    registry.write_metadata(living, {**METADATA, "session": names[0], "created": 0})
    host_lock = lock.acquire_session_host_lock(living)
    with sockets.open_host_listener(living):
        os.utime(living, (1, 1))
        sessions = registry.list_sessions(environment)
        assert [(record.session_id, record.is_running) for record in sessions] == [
            *((name, False) for name in names[:-4:-1]),
            (names[0], True),
        ]
    os.close(host_lock)


def test_oldest_ended_sessions_over_the_limit_are_removed(environment, monkeypatch):
    monkeypatch.setattr(registry, "MAX_ENDED_SESSIONS", 3)
    names = many(environment, 12)
    host_lock = lock.acquire_session_host_lock(
        living := registry.get_session_folder(names[0], environment)
    )
    registry.write_metadata(living, {**METADATA, "session": names[0], "created": 0})
    with sockets.open_host_listener(living):
        assert registry.remove_old_sessions(environment, days=30) == 8
        assert sorted(os.listdir(registry.get_bridge_folder(environment))) == [
            names[0],
            *names[-3:],
        ]
    os.close(host_lock)


@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_state_folder_accessible_to_other_users_is_rejected(environment, mode):
    os.chmod(environment["SHIM_STATE"], mode)
    with pytest.raises(FrontendError, match="background sessions are unavailable") as refused:
        registry.create_session_folder(SESSION, environment)
    assert "SHIM_STATE" in refused.value.hint


def test_metadata_and_folders_are_accessible_only_to_the_owner(environment):
    folder = keep(environment)
    assert os.stat(folder).st_mode & 0o777 == 0o700
    assert os.stat(os.path.join(folder, registry.METADATA_FILE)).st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("mode", "is_visible"), [(0o755, True), (0o775, False), (0o757, False)])
def test_sessions_in_a_folder_writable_by_others_are_ignored(environment, mode, is_visible, capfd):
    keep(environment)
    os.chmod(registry.get_bridge_folder(environment), mode)
    assert (
        bool(registry.list_sessions(environment))
        == bool(registry.find_session(SESSION, environment))
        == is_visible
    )
    assert capfd.readouterr().err.count("must be owned by you and private") == (not is_visible)


def test_folder_that_cannot_be_read_is_not_an_empty_list(environment):
    """The process has no free descriptor. With an empty list, the fleet would remove all sessions."""
    folder = keep(environment, state="done", status=None, pid=None)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free_descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(free_descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free_descriptor, limits[1]))
    try:
        with pytest.raises(registry.SessionScanError, match="Too many open files"):
            registry.list_sessions(environment)
        assert registry.is_session_unreadable(SESSION, environment)
        assert registry.remove_old_sessions(environment, 0) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not registry.is_session_unreadable(SESSION, environment)
    os.chmod(registry.get_bridge_folder(environment), 0o777)
    with pytest.raises(registry.SessionScanError, match="must be owned by you"):
        registry.scan_sessions(environment)
    assert os.path.exists(folder)


def test_removed_session_is_not_unreadable(environment):
    assert registry.scan_sessions(environment) == []
    assert not registry.is_session_unreadable(SESSION, environment)
    assert not registry.is_session_unreadable("..", environment)


def damage(folder, how):
    """Damage `host.json` of a session like a crash of the machine, a full disk or a person."""
    path = os.path.join(folder, registry.METADATA_FILE)
    if how == "missing":
        os.unlink(path)
    elif how == "a folder":
        os.unlink(path)
        os.mkdir(path)
    else:
        size = os.path.getsize(path)
        data = {
            "empty": b"",
            "zeroed": bytes(size),
            "cut": b'{"protocol": 1, "cre',
            "a list": b"[]",
        }[how]
        with open(path, "wb") as file:
            file.write(data)


DAMAGES = ["empty", "zeroed", "missing", "cut", "a list", "a folder"]


@pytest.mark.parametrize("how", DAMAGES)
def test_session_with_damaged_metadata_is_listed_and_removable(environment, how):
    folder = keep(environment, state="done", status=None, pid=None)
    registry.write_session_start_data(
        folder, {"cwd": "/repo", "vendor": "qwen", "name": 7, "generation": 3, "arguments": []}
    )
    damage(folder, how)
    (record,) = registry.list_sessions(environment)
    assert [
        each.session_id for each in registry.list_sessions_by_id_prefix(SESSION[:8], environment)
    ] == [SESSION]
    assert (
        registry.is_metadata_damaged(record.metadata)
        and "host.json" in record.metadata["detail"]
        and not record.is_running
    )
    summary = (
        record.short_id,
        record.metadata["state"],
        record.metadata["cwd"],
        record.metadata["vendor"],
        record.metadata["name"],
        record.metadata["pid"],
    )
    assert (
        summary == (SESSION[:8], "failed", "/repo", "qwen", None, None)
        and record.metadata["generation"] == 3
    )
    assert registry.remove_session(record) and not os.path.exists(folder)


@pytest.mark.parametrize("how", DAMAGES)
def test_old_damaged_sessions_are_removed(environment, how):
    folders = {
        session: keep(environment, session, state="done", status=None, pid=None)
        for session in (SESSION, OTHER)
    }
    for session, folder in folders.items():
        os.makedirs(os.path.join(folder, registry.LOG_FOLDER))
        damage(folder, how)
        days = 31 if session == SESSION else 29
        for path in (os.path.join(folder, registry.METADATA_FILE), folder):
            if os.path.exists(path):
                os.utime(path, (time.time() - days * 86400,) * 2)
    assert registry.remove_old_sessions(environment, days=30) == 1
    assert [record.session_id for record in registry.list_sessions(environment)] == [OTHER]


def test_starting_session_is_not_reported_as_damaged(environment):
    folder = registry.create_session_folder(SESSION, environment)
    assert registry.list_sessions(environment) == []
    host_lock = lock.acquire_session_host_lock(folder)
    registry.write_session_start_data(folder, {"cwd": "/repo"})
    assert (
        registry.list_sessions(environment) == []
        and registry.find_session(SESSION, environment) is None
    )
    os.close(host_lock)
    assert [
        registry.is_metadata_damaged(record.metadata)
        for record in registry.list_sessions(environment)
    ] == [True]
