"""Starting hosts: in parallel, twice, many, again, and if none can be started."""

import errno
import fcntl
import os
import select
import signal
import subprocess
import sys
import threading

import pytest
import sweeps
from session_hosts import TIMEOUT_S, read_until_result, wait_for_frame

from shim.bridge import launch, lock, registry
from shim.bridge.client import HostUnavailableError, send_frames_and_collect_answers
from shim.bridge.launch import SessionRunningError, SessionSpec, respawn_session
from shim.bridge.lock import FileLocksUnsupportedError
from shim.core.errors import FrontendError

SESSION = "0123abcd-0000-4000-8000-000000000001"
OTHER = "0123abcd-0000-4000-8000-000000000002"


def test_session_is_registered_before_its_host_has_started(hosts):
    session = hosts.start_session("make it so")
    assert (
        session.is_running
        and (session.metadata["state"], session.metadata["status"]) == ("working", "busy")
        and session.metadata["pid"]
    )
    assert hosts.load_session(session).is_running and session.metadata["name"] == "make it so"
    assert (session.short_id, len(session.session_id)) == (session.session_id[:8], 36)


def test_session_without_a_prompt_is_blocked(hosts):
    session = hosts.start_session()
    assert (session.metadata["state"], session.metadata["needs"]) == (
        "blocked",
        "send a prompt to start",
    )


def test_concurrent_starts_of_a_session_start_a_single_host(hosts, monkeypatch):
    monkeypatch.setattr(lock, "ACQUIRE_TIMEOUT_S", 0.2)
    take, barrier, outcomes = (
        lock.acquire_session_host_lock,
        threading.Barrier(8, timeout=TIMEOUT_S),
        [],
    )

    def take_together(folder):
        host_lock = take(folder)
        barrier.wait()
        return host_lock

    monkeypatch.setattr(lock, "acquire_session_host_lock", take_together)

    def begin():
        try:
            outcomes.append(hosts.start_session(session=SESSION).session_id)
        except SessionRunningError as error:
            outcomes.append(error.hint)

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (
        outcomes.count(SESSION) == 1
        and sum("claude attach 0123abcd" in outcome for outcome in outcomes) == 7
    )
    with hosts.connect(registry.find_session(SESSION, hosts.environment)) as connection:
        assert connection.welcome["generation"] == 1


def test_host_uses_the_working_directory_and_environment_of_the_caller(hosts, real_hosts):
    hosts.environment["SHIM_RECORD"] = str(hosts.cwd / "casts")
    os.mkdir(hosts.cwd / "casts")
    session = hosts.start_session("hi")
    with hosts.connect(session) as connection:
        read_until_result(connection)
        assert connection.welcome["cwd"] == str(hosts.cwd)
    assert len(os.listdir(hosts.cwd / "casts")) == 1


def test_host_inherits_no_file_descriptors_of_the_caller(hosts, real_hosts):
    """The caller's pipes end with the caller, even if it left them open for its children."""
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    session = hosts.start_session()
    os.close(writing)
    with hosts.connect(session):
        assert select.select([reading], [], [], TIMEOUT_S)[0] and os.read(reading, 1) == b"", (
            "its end is held"
        )
    os.close(reading)
    pid = hosts.load_session(session).metadata["pid"]
    with open(f"/proc/{pid}/cmdline") as file:
        assert "shim.bridge.host" in file.read()
    assert os.getsid(pid) == pid
    files = {number: os.readlink(f"/proc/{pid}/fd/{number}") for number in (0, 1, 2)}
    assert files[0] == os.devnull and files[1] == files[2] == os.path.join(
        session.folder, "stderr.log"
    )


def test_respawned_session_resumes_the_vendor_session(hosts):
    session = hosts.start_session("hi")
    with hosts.connect(session) as connection:
        first = read_until_result(connection)
    send_frames_and_collect_answers(session.session_id, [{"kind": "end"}], hosts.environment)
    ended = hosts.wait_for_end(session)
    new_session = respawn_session(ended, hosts.environment, {"role": "user", "content": "and now?"})
    assert new_session.metadata["generation"] == 2 and new_session.session_id == session.session_id
    with hosts.connect(new_session, partial=False) as connection:
        assert connection.welcome["number"] >= len(first)
        both = read_until_result(connection) + read_until_result(connection)
    assert [line["type"] for line in both].count("result") == 2
    inits = [line for line in both if line.get("subtype") == "init"]
    assert {line["session_id"] for line in inits} == {session.session_id} and len(inits) == 2


def test_session_that_ended_before_its_first_turn_can_be_respawned(hosts):
    session = hosts.start_session()
    send_frames_and_collect_answers(session.session_id, [{"kind": "end"}], hosts.environment)
    new_session = respawn_session(
        hosts.wait_for_end(session), hosts.environment, {"role": "user", "content": "hi"}
    )
    with hosts.connect(new_session) as connection:
        assert read_until_result(connection)[-1]["subtype"] == "success"


def test_failed_host_start_is_reported_to_the_client_and_in_the_metadata(hosts):
    hosts.environment["SHIM_VENDOR"] = "qwen"
    hosts.environment["PATH"] = "/nowhere"
    del hosts.environment["SHIM_BIN"]
    session = hosts.start_session("hi")
    with pytest.raises(HostUnavailableError, match="qwen"):
        hosts.connect(session)
    assert not registry.find_session_trusting_metadata(
        session.session_id, hosts.environment
    ).is_running, "who is told may begin it again"
    now = hosts.wait_for_end(session)
    assert now.metadata["state"] == "failed" and "qwen" in now.metadata["detail"]
    with open(os.path.join(session.folder, "stderr.log")) as file:
        assert "qwen" in file.read()


def test_start_is_refused_if_the_working_directory_is_missing(hosts):
    with pytest.raises(FrontendError, match=r"its folder .*gone does not exist") as refused:
        hosts.start_session("hi", cwd=str(hosts.cwd / "gone"))
    assert "create the folder again" in refused.value.hint
    assert registry.list_sessions(hosts.environment) == []


def test_working_directory_removed_during_start_fails_the_session(hosts, monkeypatch):
    monkeypatch.setattr(launch.os.path, "isdir", lambda path: True)
    monkeypatch.setattr(launch.os, "access", lambda path, how: True)
    now = hosts.wait_for_end(hosts.start_session("hi", cwd=str(hosts.cwd / "gone")))
    assert now.metadata["state"] == "failed" and "gone" in now.metadata["detail"]


def test_start_reports_a_read_only_state_folder(hosts, monkeypatch):
    def read_only(path, *args, **options):
        raise OSError(errno.EROFS, "Read-only file system", path)

    monkeypatch.setattr(os, "makedirs", read_only)
    with pytest.raises(FrontendError, match="Read-only file system") as refused:
        hosts.start_session("hi")
    assert "SHIM_STATE" in refused.value.hint
    monkeypatch.undo()
    folder = registry.create_session_folder(SESSION, hosts.environment)
    monkeypatch.setattr(registry, "write_metadata", read_only)
    with pytest.raises(FrontendError, match="Read-only file system"):
        hosts.start_session("hi", session=SESSION)
    monkeypatch.undo()
    assert not os.path.exists(folder)
    hosts.start_session(session=SESSION)


def test_start_is_refused_without_file_locks(hosts, monkeypatch):
    def refuse(descriptor, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(FileLocksUnsupportedError, match="No locks available") as refused:
        hosts.start_session("hi", session=SESSION)
    assert (
        registry.get_bridge_folder(hosts.environment) in str(refused.value)
        and "SHIM_STATE" in refused.value.hint
    )
    assert registry.list_sessions(hosts.environment) == []
    assert os.listdir(registry.get_bridge_folder(hosts.environment)) == []


def test_respawn_waits_for_the_lock_of_the_ended_host(hosts, monkeypatch):
    """The session is listed as ended, but its process is writing a recording, or is slow on a busy
    machine.
    """
    monkeypatch.setattr(lock, "ACQUIRE_TIMEOUT_S", 0.05)
    session = hosts.start_session(session=SESSION)
    send_frames_and_collect_answers(session.session_id, [{"kind": "end"}], hosts.environment)
    host_lock = lock.acquire_session_host_lock(hosts.wait_for_end(session).folder)
    timer = threading.Timer(0.2, os.close, (host_lock,))
    timer.start()
    assert not registry.find_session_trusting_metadata(SESSION, hosts.environment).is_running
    assert respawn_session(session, hosts.environment).metadata["generation"] == 2
    timer.join()


def test_concurrent_starts_in_a_process_do_not_share_locks(hosts):
    sessions = []
    threads = [
        threading.Thread(target=lambda: sessions.append(hosts.start_session())) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for session in sessions:
        with hosts.connect(session) as connection:
            wait_for_frame(connection, "synced")
    for session in sessions:
        send_frames_and_collect_answers(session.session_id, [{"kind": "end"}], hosts.environment)
        hosts.wait_for_end(session)


def test_host_ends_on_sighup_if_its_caller_ignores_sighup(hosts, real_hosts):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        session = hosts.start_session()
    finally:
        signal.signal(signal.SIGHUP, before)
    with hosts.connect(session) as connection:
        os.kill(hosts.load_session(session).metadata["pid"], signal.SIGHUP)
        wait_for_frame(connection, "bye")
    hosts.wait_for_end(session)


def test_concurrent_start_processes_create_separate_sessions(hosts):
    count = 50 if sweeps.full else 5
    script = (
        "import os, sys; from shim.bridge.launch import SessionSpec, start_host;"
        "print(start_host(SessionSpec(cwd=os.getcwd()), os.environ).session_id)"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", script],
            env=hosts.environment,
            cwd=hosts.cwd,
            stdout=subprocess.PIPE,
        )
        for _ in range(count)
    ]
    session_ids = {process.communicate()[0].decode().strip() for process in started}
    assert len(session_ids) == count == len(registry.list_sessions(hosts.environment))
    for session in registry.list_sessions(hosts.environment):
        assert session.is_running
        with hosts.connect(session) as connection:
            wait_for_frame(connection, "synced")


def test_launch_imports_no_heavy_modules():
    """`claude --bg` returns at once: it imports no event loop, no drawing code, and nothing of the
    conversation.
    """
    script = "import sys, shim.bridge.launch; print(*sorted(sys.modules))"
    ran = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, check=True, text=True
    )
    heavy = {
        "anyio",
        "asyncio",
        "typer",
        "rich",
        "structlog",
        "subprocess",
        "tempfile",
        "shim.conversation.startup",
    }
    assert not heavy & set(ran.stdout.split())


def test_respawn_is_refused_if_the_start_file_is_missing(hosts):
    session = hosts.start_session()
    send_frames_and_collect_answers(session.session_id, [{"kind": "end"}], hosts.environment)
    ended = hosts.wait_for_end(session)
    os.unlink(os.path.join(session.folder, registry.START_FILE))
    with pytest.raises(FrontendError, match="no longer available"):
        respawn_session(ended, hosts.environment)


def test_respawn_with_new_flags_preserves_the_fork_source(hosts):
    """Before its first turn nothing was copied yet. Without the original it would start empty."""
    session = hosts.start_session(
        session=SESSION, forked=OTHER, beginning=("--resume-session-at=x",)
    )
    hosts.wait_for_end(session)  # there is no original
    hosts.start_session(session=SESSION, resumes=True, arguments=("--model", "demo-2"))
    spec = launch.read_session_spec(session.folder)
    assert (spec.forked, spec.beginning) == (OTHER, ["--resume-session-at=x"])


def test_start_file_stores_the_session_spec(hosts):
    session = hosts.start_session(arguments=["--model", "demo-2"], name="mine")
    start_data = registry.load_session_start_data(session.folder)
    assert SessionSpec(**{key: start_data[key] for key in SessionSpec._fields}).arguments == [
        "--model",
        "demo-2",
    ]
    assert hosts.load_session(session).metadata["name"] == "mine"
    assert os.stat(os.path.join(session.folder, registry.START_FILE)).st_mode & 0o777 == 0o600
    assert registry.STDERR_FILE in os.listdir(session.folder)


def test_oversized_prompt_is_refused_and_the_start_file_is_unchanged(hosts, monkeypatch):
    record = hosts.start_session(arguments=("--permission-mode", "plan"))
    send_frames_and_collect_answers(record.session_id, [{"kind": "end"}], hosts.environment)
    ended = hosts.wait_for_end(record)
    before = registry.load_session_start_data(record.folder)
    monkeypatch.setattr(registry, "MAX_FILE_BYTES", 2000)
    for session in (record.session_id, SESSION):
        with pytest.raises(
            FrontendError, match=r"at most 2,000 bytes; this prompt and its flags have 2,\d\d\d"
        ):
            hosts.start_session("x" * 2000, session)
    assert (
        registry.load_session_start_data(record.folder) == before
        and not hosts.load_session(ended).is_running
    )
    assert not os.path.exists(registry.get_session_folder(SESSION, hosts.environment))


@pytest.mark.parametrize(
    "start_content", [b"", b"{}", b'{"arguments":["--permission-mode","plan"],"cwd":"/']
)
def test_respawn_is_refused_if_the_start_file_is_invalid(hosts, start_content):
    session = hosts.start_session(arguments=("--permission-mode", "plan"))
    send_frames_and_collect_answers(session.session_id, [{"kind": "end"}], hosts.environment)
    ended = hosts.wait_for_end(session)
    with open(os.path.join(session.folder, registry.START_FILE), "wb") as file:
        file.write(start_content)
    with pytest.raises(FrontendError, match="are no longer available"):
        respawn_session(ended, hosts.environment)
    with pytest.raises(FrontendError, match="are no longer available") as refused:
        launch.read_session_spec(session.folder)
    assert session.session_id in refused.value.hint


def test_host_fails_if_the_start_file_is_missing(hosts, monkeypatch):
    monkeypatch.setattr(registry, "write_session_start_data", lambda folder, spec: None)
    now = hosts.wait_for_end(hosts.start_session("hi"))
    assert now.metadata["state"] == "failed" and "no longer available" in now.metadata["detail"]


@pytest.mark.parametrize("flag", ["--settings", "--mcp-config", "--system-prompt-file"])
def test_respawn_is_refused_if_a_file_of_its_flags_is_missing(hosts, flag):
    file = hosts.cwd / "file.json"
    file.write_text('{"mcpServers": {}}')
    session = hosts.start_session(arguments=(flag, "file.json"))
    send_frames_and_collect_answers(session.session_id, [{"kind": "end"}], hosts.environment)
    ended = hosts.wait_for_end(session)
    file.unlink()
    with pytest.raises(
        FrontendError, match=f"was started with {flag}, whose file {file} no longer exists"
    ) as refused:
        respawn_session(ended, hosts.environment)
    assert "restore the file" in refused.value.hint and not hosts.load_session(session).is_running
    file.write_text('{"mcpServers": {}}')
    assert respawn_session(ended, hosts.environment).is_running


@pytest.mark.parametrize("args", [(), ("--add-dir=caf\udce9",)], ids=["folder", "argument"])
def test_non_utf8_paths_and_arguments_are_refused(hosts, args):
    """A session is stored as JSON: the changed name would mean another folder, or no folder."""
    folder = str(hosts.cwd) if args else f"{hosts.cwd}/caf\udce9"
    os.makedirs(folder, exist_ok=True)
    with pytest.raises(FrontendError, match=r"caf. is not UTF-8"):
        hosts.start_session("hi", cwd=folder, arguments=args)
    assert registry.list_sessions(hosts.environment) == []
    os.mkdir(f"{hosts.cwd}/caf\u00e9")
    assert hosts.start_session("hi", cwd=f"{hosts.cwd}/caf\u00e9").is_running
