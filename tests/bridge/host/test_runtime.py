"""The runtime of a session with a real host and stand-ins for vendors: permission requests,
signals, its idle end, a real claude.
"""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from types import SimpleNamespace

import anyio
import pytest
from box import format_ndjson
from session_hosts import TIMEOUT_S, read_until_result, select_claude_lines, wait_for_frame

from shim.bridge import launch, registry, sockets
from shim.bridge.client import (
    HostUnavailableError,
    connect_to_session,
    send_frames_and_collect_answers,
)
from shim.bridge.host import runtime
from shim.bridge.launch import respawn_session
from shim.core.claude.argv.flags import parse_argv
from shim.core.policy.serialize import parse_settings
from shim.core.policy.settings import ClaudeSettings
from tests.conversation.test_passthrough_loop import TURN as PASSED
from tests.conversation.test_persistent_driver import (
    HELLO,
    INIT,
    TURN,
    asking_child,
    asking_steps,
    asks,
    calls,
    returns,
)

ASKING = (HELLO, ["hear", "go"], ["out", format_ndjson(INIT, calls(), asks())], ["hang"])
SESSION = "0123abcd-0000-4000-8000-000000000001"
ALLOW = {"behavior": "allow", "updatedInput": {"command": "touch x"}}


@pytest.fixture
def start_qwen_session(box, hosts):
    """Return a function that starts a host of a qwen with a plan."""

    def begin(child, prompt="go", **spec_fields):
        hosts.environment.update(SHIM_VENDOR="qwen", SHIM_BIN=child)
        return hosts.start_session(prompt, **spec_fields)

    return begin


# A host checks the time twice in a twentieth of `permission_timeout`: every 25 ms instead of every
# second.
OFTEN = "permission_timeout = 0.5\n"
LOOKS_SECONDS = 0.5  # twenty of its checks


def settings(hosts, text):
    folder = hosts.cwd.parent / ".config" / "shim"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(text)
    hosts.environment["XDG_CONFIG_HOME"] = str(folder.parent)


def test_permission_prompt_waits_until_a_client_answers(box, hosts, start_qwen_session):
    session = start_qwen_session(asking_child(box, returns("done")))
    with (
        hosts.connect(session, client="first") as first,
        hosts.connect(session, client="second", role="watch") as watcher,
    ):
        question = wait_for_frame(first, "question")
        assert (
            question["request"]["tool_name"] == "Bash"
            and question["request"]["input"]["command"] == "touch x"
        )
        now = hosts.wait_until(session, lambda now: now.metadata["status"] == "waiting")
        assert (now.metadata["state"], now.metadata["waitingFor"]) == (
            "blocked",
            "permission prompt",
        )
        first.send_frame_blocking(
            {"kind": "answer", "id": "a", "question": question["question"], "decision": ALLOW}
        )
        resolution = wait_for_frame(watcher, "settled")
        assert (resolution["question"], resolution["by"], resolution["how"]) == (
            question["question"],
            "first",
            "allow",
        )
        assert read_until_result(first)[-1]["result"] == "After."
    assert (
        '"behavior": "allow"' in box.read_record()["stdin"]
        or '"behavior":"allow"' in box.read_record()["stdin"]
    )
    hosts.wait_until(
        session, lambda now: (now.metadata["state"], now.metadata["status"]) == ("done", "idle")
    )


def test_turn_completes_if_prompts_are_disabled(box, hosts, start_qwen_session):
    """A frontend's session asks only what the frontend would have been asked."""
    child = box.create_fake(HELLO, ["hear", "go"], TURN, ["hear", "never"])
    session = start_qwen_session(child, asks=False)
    with hosts.connect(session) as connection:
        assert read_until_result(connection)[-1]["result"] == "Hello."


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_a_waiting_session_with_its_child_and_socket(
    box, hosts, start_qwen_session, number
):
    lifeline = box.create_lifeline()
    child = box.create_fake(["say", lifeline.path, "vendor"], *ASKING)
    session = start_qwen_session(child)
    lifeline.wait_for("vendor")
    with hosts.connect(session) as connection:
        question = wait_for_frame(connection, "question")
        os.kill(hosts.load_session(session).metadata["pid"], number)
        assert wait_for_frame(connection, "settled")["question"] == question["question"]
        wait_for_frame(connection, "bye")
    now = hosts.wait_for_end(session)
    assert (now.metadata["state"], now.metadata["status"], now.metadata["pid"]) == (
        "stopped",
        None,
        None,
    )
    assert lifeline.wait_until_closed() and not os.path.lexists(
        os.path.join(session.folder, sockets.SOCKET_FILE)
    )


def test_end_frame_during_a_turn_marks_the_session_stopped(box, hosts, start_qwen_session):
    session = start_qwen_session(box.create_fake(*ASKING))
    with hosts.connect(session) as connection:
        wait_for_frame(connection, "question")
    received = send_frames_and_collect_answers(
        session.session_id, [{"kind": "end"}], hosts.environment
    )
    assert received[-1]["kind"] == "bye"
    assert hosts.wait_for_end(session).metadata["state"] == "stopped"


def test_repeated_end_frames_receive_a_bye_frame(box, hosts, start_qwen_session):
    session = start_qwen_session(box.create_fake(HELLO, ["hear", "go"], TURN, ["hear", "never"]))
    with hosts.connect(session, partial=False) as connection:
        read_until_result(connection)
        received, is_open = [], True
        while is_open:
            with suppress(HostUnavailableError):
                connection.send_frame_blocking({"kind": "end", "id": str(len(received))})
            came, is_open = connection.read_available_frames()
            received += came
    assert (received[-1]["kind"], received[-1]["reason"]) == ("bye", "stopped")
    assert hosts.wait_for_end(session).metadata["state"] == "done"


REPEATED = """
import os, signal, sys
from shim.bridge.host.runner import SessionHubRunner
close_clients = SessionHubRunner.close_clients
async def close_after_signal(self, reason):
    os.kill(os.getpid(), signal.SIGTERM)
    await close_clients(self, reason)
SessionHubRunner.close_clients = close_after_signal
from shim.bridge.host.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def test_signal_after_the_end_frame_does_not_lose_the_bye_frame(hosts, monkeypatch):
    """Two clients stop it at once: the second signal comes after the first one was handled."""
    monkeypatch.setattr(
        launch, "build_host_command", lambda: [sys.executable, "-P", "-c", REPEATED]
    )
    session = hosts.start_session()
    with hosts.connect(session) as connection:
        connection.send_frame_blocking({"kind": "end", "id": "1"})
        wait_for_frame(connection, "bye", reason="stopped")
    now = hosts.wait_for_end(session)
    assert (
        now.metadata["state"] == "stopped"
        and registry.read_metadata(session.folder) == now.metadata
    )


def test_killed_vendor_marks_the_session_failed(box, hosts, start_qwen_session):
    lifeline = box.create_lifeline()
    session = start_qwen_session(box.create_fake(["say", lifeline.path, "vendor"], *ASKING))
    with hosts.connect(session) as connection:
        wait_for_frame(connection, "question")
        os.kill(lifeline.wait_for("vendor"), signal.SIGKILL)
        assert read_until_result(connection)[-1]["shim"]["signal"] == "SIGKILL"
    now = hosts.wait_until(session, lambda now: now.metadata["status"] == "idle")
    assert now.metadata["state"] == "failed" and "was ended by SIGKILL" in now.metadata["detail"]


def test_idle_session_ends_after_its_client_disconnects(box, hosts, start_qwen_session):
    settings(hosts, f"bridge_idle = 0.1\n{OFTEN}")
    gate = box.create_gate()
    session = start_qwen_session(
        box.create_fake(HELLO, ["hear", "go"], ["wait", gate.path], TURN, ["hear", "never"])
    )
    with hosts.connect(session) as connection:
        gate.open()
        read_until_result(connection)
        # A client is connected.
        assert "bye" not in [came["kind"] for came in connection.read_frames(LOOKS_SECONDS)]
    now = hosts.wait_for_end(session)
    assert now.metadata["state"] == "done"


def test_connection_is_refused_while_an_idle_session_shuts_down(box, hosts, start_qwen_session):
    """Its agent may take seconds to exit. A message that arrives meanwhile would be lost."""
    settings(hosts, f"bridge_idle = 0.1\n{OFTEN}")
    session = start_qwen_session(box.create_fake(HELLO, ["hear", "go"], TURN, ["hang"]))
    now = hosts.wait_until(
        session, lambda now: (now.metadata["state"], now.metadata["status"]) == ("done", None)
    )
    with pytest.raises(HostUnavailableError) as error_info:
        hosts.connect(session)
    assert now.is_running and error_info.value.reason == runtime.REASON_IDLE


@pytest.mark.anyio
async def test_pending_prompt_prevents_the_idle_shutdown(host_runtime):
    looks, look = [], host_runtime._metadata.restore_file
    host_runtime._metadata.restore_file = lambda: (looks.append(1), look())
    question = {
        "subtype": "can_use_tool",
        "tool_name": "Bash",
        "input": {},
        "tool_use_id": "call_1",
    }

    def say(**line):
        host_runtime.runner.on_conversation_lines(format_ndjson(line).encode())
        assert not host_runtime.runner.has_failed

    with anyio.fail_after(TIMEOUT_S):
        async with host_runtime.serve_clients(lambda: None):
            *_, message = (await host_runtime.source.read()).splitlines()
            say(**json.loads(message), isReplay=True)
            say(type="control_request", request_id="q1", request=question)
            while len(looks) < 30:
                await anyio.sleep(0.001)
            assert host_runtime.end_reason == runtime.REASON_ENDED, "it ended"
            say(type="result", subtype="success", is_error=False, result="Done.")
            while host_runtime.end_reason != runtime.REASON_IDLE:
                await anyio.sleep(0.001)
            assert await host_runtime.source.read() == b""


@pytest.mark.anyio
async def test_client_ends_the_conversation_without_a_signal(host_runtime, hosts):
    stopped = anyio.Event()
    session_id = os.path.basename(host_runtime._folder)
    with anyio.fail_after(TIMEOUT_S):
        async with (
            host_runtime.serve_clients(stopped.set),
            await connect_to_session(session_id, hosts.environment) as connection,
        ):
            await connection.send_frame({"kind": "end", "id": "e"})
            await stopped.wait()
    assert host_runtime.end_reason == runtime.REASON_STOPPED


def test_claude_session_answers_a_second_message(box, hosts):
    child = box.create_fake(
        ["hear", "go"], ["out", PASSED], ["hear", "again"], ["out", PASSED], ["hear", "never"]
    )
    hosts.environment.update(SHIM_VENDOR="claude", SHIM_BIN=child)
    session = hosts.start_session("go")
    with hosts.connect(session) as connection:
        assert read_until_result(connection)[-1]["subtype"] == "success"
        connection.send_frame_blocking(
            {"kind": "message", "id": "m", "message": {"role": "user", "content": "again"}}
        )
        assert read_until_result(connection)[-1]["subtype"] == "success"
        assert connection.welcome["vendor"] == "claude"


@pytest.mark.parametrize(
    ("flags", "mode"), [((), "acceptEdits"), (("--permission-mode", "dontAsk"), "dontAsk")]
)
def test_claude_session_starts_in_the_configured_mode(box, hosts, flags, mode):
    """Before its first turn claude reports no mode, but a stricter frontend needs it."""
    hosts.environment.update(SHIM_VENDOR="claude", SHIM_BIN=box.create_fake(["hear", "never"]))
    folder = hosts.cwd.parent / ".claude"
    folder.mkdir()
    (folder / "settings.json").write_text('{"permissions": {"defaultMode": "acceptEdits"}}')
    with hosts.connect(hosts.start_session(arguments=flags)) as connection:
        assert connection.welcome["mode"] == mode


RELOAD = {"kind": "request", "id": "reload", "request": {"subtype": "reload_settings"}}


@pytest.mark.parametrize("vendor", ["claude", "qwen"])
def test_client_can_let_the_host_reload_settings(box, hosts, vendor):
    """A real claude reads them itself, so the host reads them for the client."""
    is_claude = vendor == "claude"
    child = box.create_fake(
        *([] if is_claude else [HELLO]),
        ["hear", "go"],
        ["out", PASSED] if is_claude else TURN,
        ["hear", "never"],
    )
    hosts.environment.update(SHIM_VENDOR=vendor, SHIM_BIN=child)
    session = hosts.start_session("go")
    with hosts.connect(session) as controller, hosts.connect(session) as connection:
        read_until_result(controller)
        folder = hosts.cwd / ".claude"
        folder.mkdir()
        (folder / "settings.json").write_text('{"permissions": {"deny": ["Bash"]}}')
        connection.send_frame_blocking(RELOAD)
        response = wait_for_frame(connection, "response")["response"]
    assert response["subtype"] == "success"
    (rule,) = parse_settings(response["response"]["settings"]).deny
    assert (rule.tool, rule.source) == ("Bash", str(folder / "settings.json"))


def test_host_ends_when_its_session_directory_is_moved(box, hosts, start_qwen_session):
    settings(hosts, OFTEN)
    session = start_qwen_session(box.create_fake(HELLO, ["hear", "go"], TURN, ["hear", "never"]))
    with hosts.connect(session) as connection:
        read_until_result(connection)
        os.rename(session.folder, session.folder + "-away")
        assert wait_for_frame(connection, "bye")["reason"] == runtime.REASON_REPLACED
    os.rename(session.folder + "-away", session.folder)
    hosts.wait_for_end(session)


def test_missing_or_damaged_metadata_is_restored_while_the_host_runs(hosts):
    settings(hosts, OFTEN)
    session = hosts.start_session()
    path = os.path.join(session.folder, registry.METADATA_FILE)
    with hosts.connect(session):
        for content in (None, b"", bytes(300)):
            if content is None:
                os.unlink(path)
            else:
                with open(path, "wb") as file:
                    file.write(content)
            deadline = time.monotonic() + TIMEOUT_S
            while (now := registry.find_session(session.session_id, hosts.environment)) is None:
                assert time.monotonic() < deadline, (
                    f"it lives on with {content} and nobody finds it"
                )
                time.sleep(0.01)
            assert now.is_running and now.metadata["pid"]


def test_disconnected_clients_leak_no_file_descriptors(hosts):
    session = hosts.start_session()
    with hosts.connect(session) as connection:
        wait_for_frame(connection, "synced")
    record = hosts.wait_until(
        session, lambda now: now.metadata["pid"] is not None and now.metadata["driver"] is None
    )
    descriptors = f"/proc/{record.metadata['pid']}/fd"
    before = len(os.listdir(descriptors))
    for _ in range(30):
        with hosts.connect(session) as connection:
            wait_for_frame(connection, "synced")
    hosts.wait_until(session, lambda now: len(os.listdir(descriptors)) <= before)


def test_stderr_log_is_truncated_above_its_limit(monkeypatch, tmp_path):
    monkeypatch.setattr(runtime, "MAX_STDERR_BYTES", 100)
    path = tmp_path / "stderr.log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, b"x" * 101)
    runtime.truncate_stderr(descriptor)
    assert path.stat().st_size == 0
    os.write(descriptor, b"y")
    runtime.truncate_stderr(descriptor)
    os.close(descriptor)
    assert path.read_text() == "y"


def test_session_metadata_changes_from_busy_to_idle_after_a_turn(box, hosts, start_qwen_session):
    gate = box.create_gate()
    session = start_qwen_session(
        box.create_fake(HELLO, ["hear", "go"], ["wait", gate.path], TURN, ["hear", "never"])
    )
    hosts.wait_until(
        session, lambda now: (now.metadata["state"], now.metadata["status"]) == ("working", "busy")
    )
    gate.open()
    now = hosts.wait_until(session, lambda now: now.metadata["state"] == "done")
    assert now.metadata["status"] == "idle" and now.metadata["detail"] == "Hello."
    assert (
        registry.list_sessions_by_id_prefix(session.short_id, hosts.environment)[0].metadata[
            "vendor"
        ]
        == "qwen"
    )


def test_replayed_lines_are_numbered_consecutively(box, hosts, start_qwen_session):
    session = start_qwen_session(box.create_fake(HELLO, ["hear", "go"], TURN, ["hear", "never"]))
    with hosts.connect(session, partial=False) as connection:
        read_until_result(connection)
    with hosts.connect(session, partial=False) as connection:
        frames = []
        for came in connection.read_frames(TIMEOUT_S):
            frames.append(came)
            if came["kind"] == "synced":
                break
    numbers = [came["number"] for came in frames if came["kind"] == "line"]
    assert numbers == list(range(1, frames[-1]["number"] + 1))
    assert [line["type"] for line in select_claude_lines(iter(frames))].count("result") == 1


def test_unanswered_prompt_is_denied_after_permission_timeout(box, hosts, start_qwen_session):
    """The host's timeout comes first, although the host checks other things only once a second."""
    settings(hosts, "permission_timeout = 0.3\n")
    gate, (hello, go, *later_steps) = (
        box.create_gate(),
        asking_steps(box, returns("no", failed=True)),
    )
    session = start_qwen_session(box.create_fake(hello, go, ["wait", gate.path], *later_steps))
    with hosts.connect(session) as connection:
        gate.open()
        question = wait_for_frame(connection, "question")
        resolution = wait_for_frame(connection, "settled")
        assert (resolution["question"], resolution["by"], resolution["how"]) == (
            question["question"],
            None,
            "timeout",
        )
        read_until_result(connection)
    assert '"deny"' in box.read_record()["stdin"]


def test_message_accepted_before_a_respawn_is_not_sent_twice(box, hosts, start_qwen_session):
    message = {"kind": "message", "id": "0a0a0a0a-0000-4000-8000-000000000000"}
    message |= {"message": {"role": "user", "content": "go"}}
    child = box.create_fake(HELLO, ["hear", "go"], TURN, ["hear", "never"])
    session = start_qwen_session(child, prompt=None)
    with hosts.connect(session) as connection:
        connection.send_frame_blocking(message)
        read_until_result(connection)
    send_frames_and_collect_answers(session.session_id, [{"kind": "end"}], hosts.environment)
    new_session = respawn_session(hosts.wait_for_end(session), hosts.environment)
    with hosts.connect(new_session) as connection:
        number = connection.welcome["number"]
        connection.send_frame_blocking(message)
        assert wait_for_frame(connection, "accepted")["id"] == message["id"]
    assert (
        send_frames_and_collect_answers(session.session_id, [], hosts.environment)[0]["number"]
        == number
    )


def test_log_path_that_is_a_file_is_reported_in_the_metadata(box, hosts, start_qwen_session):
    session = start_qwen_session(
        box.create_fake(HELLO, ["hear", "go"], TURN, ["hear", "never"]), session=SESSION
    )
    send_frames_and_collect_answers(session.session_id, [{"kind": "end"}], hosts.environment)
    folder = os.path.join(hosts.wait_for_end(session).folder, "log")
    os.rename(folder, folder + "-away")
    open(folder, "w").close()
    new_session = respawn_session(hosts.load_session(session), hosts.environment)
    assert "log" in hosts.wait_for_end(new_session).metadata["detail"]


ORIGINAL = "0123abcd-0000-4000-8000-000000000002"
AT = "--resume-session-at=0123abcd-0000-4000-8000-000000000003"


def lives_of_a_real_claude(box, hosts, *, says, **spec_fields):
    """Return the child's arguments in two generations of a session. In the first one the child
    writes a turn if `says` is set, or nothing.
    """
    record_step, turn = ["record", str(box.recording)], [["out", PASSED]] if says else []
    hosts.environment.update(
        SHIM_VENDOR="claude",
        SHIM_BIN=box.create_fake(record_step, ["hear", "go"], *turn, ["hear", "never"]),
    )
    session, args_by_run = (
        hosts.start_session("go", SESSION, beginning=(AT,), **spec_fields),
        list[list[str]](),
    )
    for _ in range(2):
        with hosts.connect(session) as connection:
            # A repeated result may come from a former life.
            hosts.wait_until(session, lambda now: box.recording.exists())
            if says:
                read_until_result(connection)
            connection.send_frame_blocking({"kind": "end", "id": "e"})
            wait_for_frame(connection, "bye")
        ended = hosts.wait_for_end(session)
        args_by_run.append(box.read_record()["arguments"])
        box.recording.unlink()
        session = (
            respawn_session(ended, hosts.environment, {"role": "user", "content": "go"})
            if len(args_by_run) == 1
            else session
        )
    return args_by_run


def test_fork_passes_resume_session_at_only_to_its_first_run(box, hosts):
    first, second = lives_of_a_real_claude(box, hosts, says=True, forked=ORIGINAL)
    assert f"--resume={ORIGINAL}" in first and "--fork-session" in first and AT in first
    assert f"--resume={SESSION}" in second and "--fork-session" not in second and AT not in second


def test_fork_without_output_is_repeated_from_the_same_message(box, hosts):
    for args in lives_of_a_real_claude(box, hosts, says=False, forked=ORIGINAL):
        assert f"--resume={ORIGINAL}" in args and "--fork-session" in args and AT in args


def test_resume_passes_resume_session_at_only_to_the_first_run(box, hosts):
    first, second = lives_of_a_real_claude(box, hosts, says=True, resumes=True)
    assert f"--resume={SESSION}" in first and AT in first
    assert f"--resume={SESSION}" in second and AT not in second


def test_inline_settings_are_passed_to_claude_as_a_private_file(box, hosts):
    """Other users can see a child's arguments, and an argument has at most 128 KiB."""
    child = box.create_fake(["record", str(box.recording)], ["hear", "never"])
    hosts.environment.update(SHIM_VENDOR="claude", SHIM_BIN=child)
    settings_json = '{"env": {"KEY": "' + "x" * 200_000 + '"}}'
    session = hosts.start_session("go", arguments=("--settings", settings_json))
    hosts.wait_until(session, lambda now: box.recording.exists())
    file = os.path.join(session.folder, registry.FLAG_SETTINGS_FILE)
    assert f"--settings={file}" in box.read_record()["arguments"]
    with open(file, encoding="utf-8") as settings_file:
        assert settings_file.read() == settings_json
    assert os.stat(file).st_mode & 0o777 == 0o600


def build_claude_startup(cwd, *flags, **environment):
    """Return the startup data that a host of a real claude needs to read settings files."""
    return SimpleNamespace(
        adapter=SimpleNamespace(passthrough=True),
        vendor_list=SimpleNamespace(has_several=False),
        invocation=parse_argv(flags),
        environment=environment,
        cwd=str(cwd),
    )


def test_removed_working_directory_loads_empty_settings(tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    startup = build_claude_startup(folder, "--settings", "s.json")
    assert runtime._load_conversation_settings(startup) == ClaudeSettings()
    settings = ClaudeSettings(bypass_forbidden_by="/f")
    assert parse_settings(runtime._reload_settings(startup, settings)) == settings


def test_new_mode_of_a_settings_file_is_not_a_mode_of_the_session(tmp_path):
    (tmp_path / "settings.json").write_text('{"permissions": {"defaultMode": "plan"}}')
    startup = build_claude_startup(tmp_path, CLAUDE_CONFIG_DIR=str(tmp_path))
    assert runtime._load_conversation_settings(startup).mode == "plan"
    settings = ClaudeSettings(mode="acceptEdits")
    assert parse_settings(runtime._reload_settings(startup, settings)).mode == "acceptEdits"
