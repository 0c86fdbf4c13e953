"""The gateway with real hosts. Their vendor is a stand-in that prints what qwen 0.24.4 prints."""

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import contextmanager

import pytest
import sweeps
from box import TIMEOUT_S, format_ndjson, start_shim
from gateway_harness import SESSION, GatewayEndpoint, StreamedEvent, Web, ask_at, stream_at
from host_box import HostingBox
from log_suite import build_records

from shim.bridge import launch, lock, registry
from shim.bridge.client import connect_to_session_blocking
from shim.bridge.ended_session import open_ended_log
from shim.bridge.gateway.hosts import LocalBackgroundSessionManager
from shim.bridge.gateway.tokens import GatewayTokenFile
from shim.bridge.launch import respawn_session
from shim.bridge.log import INDEX_INTERVAL_LINES, RecordedSessionLog, _LogFile
from shim.core.cast.format import parse_recording_line
from tests.bridge.test_host_connection import HEARS_LATE, RUNS
from tests.conversation.test_persistent_driver import (
    HELLO,
    INIT,
    asks,
    calls,
    result,
    returns,
    says,
)

STAYS = ["hear", "never"]
ASKS = (["hear", "go"], ["out", format_ndjson(INIT, calls(), asks())], ["hear", "control_response"])
OK = (["out", format_ndjson(returns("done"), says("Ok."), result("Ok."))], STAYS)


def turn(text):
    return ["out", format_ndjson(INIT, says(text), result(text))]


@pytest.fixture
def hosting_box(box):
    """Yield a box whose hosts end with the test. Its vendor asks about a call when it receives
    "go".
    """
    made = HostingBox(box)
    made.set_vendor_plan(HELLO, *ASKS, *OK)
    yield made
    made.stop_hosts()


def test_installed_vendors_are_listed_without_running_programs(tmp_path):
    program = tmp_path / "gemini"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\n")
    program.chmod(0o700)
    hosts = LocalBackgroundSessionManager({"PATH": str(tmp_path), "HOME": str(tmp_path)}, {})
    assert hosts.list_installed_vendors() == ["demo", "gemini"]
    assert not (tmp_path / "asked").exists()


def test_session_is_refused_if_the_vendor_program_is_missing(tmp_path, tokens):
    environment = {
        "PATH": str(tmp_path),
        "HOME": str(tmp_path),
        "SHIM_STATE": str(tmp_path / "state"),
    }
    web = Web(LocalBackgroundSessionManager(environment, {}), tokens, GatewayEndpoint(port=0))
    try:
        answered = web.send_post(
            "/sessions", {"vendor": "codex", "prompt": "go", "cwd": str(tmp_path)}
        )
        assert answered.status == 409
        assert "no program called codex was found" in answered.json["error"]
        assert "npm install" in answered.json["hint"]
        assert web.send_get("/sessions").json == {"sessions": []}
    finally:
        web.close()


@pytest.mark.parametrize(
    ("file_mode", "settings", "reason"),
    [
        (0o600, "", "qwen could not be started: Permission denied"),
        (0o700, 'launcher = ["/nowhere/docker"]', "/nowhere/docker"),
    ],
)
def test_session_is_refused_if_the_vendor_program_cannot_start(
    tmp_path, tokens, file_mode, settings, reason
):
    program = tmp_path / "qwen"
    program.write_text("#!/bin/sh\n")
    program.chmod(file_mode)
    config = tmp_path / "config.toml"
    config.write_text(f"[vendors.qwen]\n{settings}\n")
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "SHIM_STATE": str(tmp_path / "state"),
    }
    environment |= {"SHIM_BIN": str(program), "SHIM_CONFIG": str(config)}
    web = Web(LocalBackgroundSessionManager(environment, {}), tokens, GatewayEndpoint(port=0))
    try:
        answered = web.send_post(
            "/sessions", {"vendor": "qwen", "prompt": "go", "cwd": str(tmp_path)}
        )
        assert answered.status == 409 and reason in answered.json["error"], answered.json
        assert answered.json["hint"]
        assert web.send_get("/sessions").json == {"sessions": []}
    finally:
        web.close()


class Variables(Mapping[str, str]):
    """The environment of a gateway whose vendor changes later."""

    def __init__(self, living):
        self.living = living

    def __getitem__(self, name):
        return self.living.variables[name]

    def __iter__(self):
        return iter(self.living.variables)

    def __len__(self):
        return len(self.living.variables)


@pytest.fixture
def hosts(hosting_box):
    """Return the hosts of the box."""
    return LocalBackgroundSessionManager(Variables(hosting_box), {})


@pytest.fixture
def real(hosting_box, hosts):
    """Yield a gateway in this process with the hosts of the box."""
    running = Web(hosts, GatewayTokenFile(hosting_box.variables), GatewayEndpoint(port=0))
    yield running
    running.close()


TWO_TURNS = (HELLO, ["hear", "one"], turn("First."), ["hear", "two"], turn("Second."), STAYS)


def begin(web, box, prompt="go", **more):
    """Start a session over HTTP. Return the start of its paths."""
    answered = web.send_post(
        "/sessions", {"vendor": "qwen", "prompt": prompt, "cwd": str(box.cwd), **more}
    )
    assert answered.status == 201 and answered.json["session"].startswith(answered.json["id"]), (
        answered
    )
    return f"/sessions/{answered.json['id']}"


def begin_at(port, token, box):
    """Start a session through a gateway in a separate process."""
    body = {"vendor": "qwen", "prompt": "go", "cwd": str(box.cwd)}
    answered = ask_at(port, "POST", "/sessions", body, {"Authorization": f"Bearer {token}"})
    return f"/sessions/{answered.json['id']}"


def until(stream, kind, **keys) -> list[StreamedEvent]:
    """Return the events up to one of a kind with these values."""
    events = []
    for event in stream:
        events.append(event)
        if event.kind == kind and keys.items() <= event.json.items():
            return events
    raise AssertionError(f"no {kind} {keys} in {[each.kind for each in events]}")


def test_permission_prompt_is_answered_over_http(real, box):
    path = begin(real, box)
    with real.open_stream(f"{path}/steps") as stream:
        question = until(stream, "question")[-1].json
        assert (
            question["tool"] == "Bash"
            and question["main"] == "touch x"
            and dict(question["fields"]) == {"command": "touch x"}
        )
        assert (
            real.send_get(path).json["state"] == "blocked"
            and real.send_get(path).json["status"] == "waiting"
        )
        body = {"question": question["question"], "behavior": "allow"}
        assert real.send_post(f"{path}/answers", body).status == 200
        resolution = until(stream, "settled")[-1].json
        assert (resolution["question"], resolution["how"]) == (question["question"], "allow")
        events = until(stream, "totals", turns=1)
    assert [event.json["kind"] for event in events if event.kind == "step"][-2:] == [
        "text",
        "result",
    ]
    late = real.send_post(f"{path}/answers", {**body, "behavior": "deny"})
    assert (
        late.status == 409 and late.json["how"] == "allow" and late.json["by"] == resolution["by"]
    )


def test_late_stream_receives_the_same_prompt_and_steps(real, box):
    path = begin(real, box)
    with real.open_stream(f"{path}/steps") as stream:
        first = until(stream, "question")
    with real.open_stream(f"{path}/steps") as stream:
        late = until(stream, "question")
    steps = [
        {event.json["number"]: event.json for event in events if event.kind == "step"}
        for events in (first, late)
    ]
    assert steps[0] == steps[1] and first[-1].json == late[-1].json


def test_answer_to_a_prompt_of_another_session_returns_404(real, box):
    first_path, other = begin(real, box), begin(real, box)
    with (
        real.open_stream(f"{first_path}/steps") as stream,
        real.open_stream(f"{other}/steps") as another,
    ):
        question, other_question = (
            until(stream, "question")[-1].json,
            until(another, "question")[-1].json,
        )
        assert question["question"] != other_question["question"]
        body = {"question": question["question"], "behavior": "allow"}
        assert real.send_post(f"{other}/answers", body).status == 404
        assert real.send_post(f"{first_path}/answers", body).status == 200
        assert real.send_get(other).json["state"] == "blocked"


def test_switch_to_bypass_permissions_returns_403(real, box):
    path = begin(real, box)
    with real.open_stream(f"{path}/steps") as stream:
        question = until(stream, "question")[-1].json
    refused = real.send_post(f"{path}/mode", {"mode": "bypassPermissions"})
    assert refused.status == 403 and refused.json["reason"] == "bypass"
    assert (
        real.send_post(
            f"{path}/answers",
            {"question": question["question"], "behavior": "deny", "message": "no"},
        ).status
        == 200
    )


def test_message_needs_take_while_a_terminal_is_the_controller(real, hosting_box, box):
    hosting_box.set_vendor_plan(*TWO_TURNS)
    path = begin(real, box, "one")
    (session,) = hosting_box.list_sessions()
    with real.open_stream(f"{path}/steps") as stream:
        until(stream, "totals", turns=1)
        with connect_to_session_blocking(
            session.session_id, hosting_box.variables, client="terminal"
        ) as terminal:
            until(stream, "driver", client="terminal")
            refused = real.send_post(f"{path}/messages", {"text": "two"})
            assert (refused.status, refused.json["driver"]) == (409, "terminal")
            assert real.send_post(f"{path}/messages", {"text": "two", "take": True}).status == 200
            assert hosting_box.wait_for_frame(terminal, "driver")["client"].startswith("web")
            until(stream, "totals", turns=2)


def test_message_posted_twice_with_the_same_id_is_sent_once(real, hosting_box, box):
    hosting_box.set_vendor_plan(*TWO_TURNS)
    path = begin(real, box, "one")
    message_id = "0a1b2c3d-0000-4000-8000-000000000001"
    for _ in range(3):
        assert real.send_post(f"{path}/messages", {"text": "two", "id": message_id}).status == 200
    with real.open_stream(f"{path}/steps") as stream:
        events = until(stream, "totals", turns=2)
    assert [
        event.json.get("text")
        for event in events
        if event.kind == "step" and event.json["kind"] == "prompt"
    ] == [
        "one",
        "two",
    ]


def test_second_message_is_accepted_right_after_the_first(real, hosting_box, box, monkeypatch):
    monkeypatch.setattr(
        launch, "build_host_command", lambda: [sys.executable, "-P", "-c", HEARS_LATE + RUNS]
    )
    hosting_box.set_vendor_plan(*TWO_TURNS)
    path = begin(real, box, "one")
    assert real.send_post(f"{path}/answers", {"question": "none", "behavior": "deny"}).status == 404
    assert [real.send_post(f"{path}/messages", {"text": "two"}).status for _ in range(2)] == [
        200,
        200,
    ]


def test_repeated_wake_message_does_not_restart_an_ended_session(real, hosting_box, box):
    hosting_box.set_vendor_plan(*TWO_TURNS)
    path = begin(real, box, "one")
    (session,) = hosting_box.list_sessions()
    woken = {"text": "one", "id": "0a1b2c3d-0000-4000-8000-000000000001", "wake": True}
    with real.open_stream(f"{path}/steps") as stream:
        until(stream, "totals", turns=1)
    end(real, hosting_box, path, session)
    assert real.send_post(f"{path}/messages", woken).json == {"woken": True}
    # while it is running
    assert real.send_post(f"{path}/messages", woken).json == {"id": woken["id"]}
    with real.open_stream(f"{path}/steps") as stream:
        until(stream, "totals", turns=2)
    hosting_box.wait_until_idle(session)
    before = end(real, hosting_box, path, session)
    assert real.send_post(f"{path}/messages", woken).json == {"id": woken["id"]}
    assert (
        hosting_box.load_session(session) == before
        and before.metadata["state"] == "done"
        and not before.is_running
    )


def end(web, living, path, session):
    """Stop a session. Return its record afterwards."""
    assert web.send_post(f"{path}/stop").status == 200
    return living.wait_for_end(session)


def test_wake_message_goes_to_a_concurrently_restarted_host(
    real, hosts, hosting_box, box, monkeypatch
):
    hosting_box.set_vendor_plan(*TWO_TURNS)
    path = begin(real, box, "one")
    (session,) = hosting_box.list_sessions()
    with real.open_stream(f"{path}/steps") as stream:
        until(stream, "totals", turns=1)
    end(real, hosting_box, path, session)
    look = hosts.find_sessions

    def late(id_prefix):
        record = look(id_prefix)
        monkeypatch.setattr(hosts, "find_sessions", look)
        respawn_session(session, hosting_box.variables)
        return record

    monkeypatch.setattr(hosts, "find_sessions", late)
    assert real.send_post(f"{path}/messages", {"text": "one", "wake": True}).json.keys() == {"id"}
    with real.open_stream(f"{path}/steps") as stream:
        until(stream, "totals", turns=2)


def test_ended_session_is_readable_and_can_be_restarted(real, hosting_box, box):
    path = begin(real, box)
    (session,) = hosting_box.list_sessions()
    with real.open_stream(f"{path}/events") as stream:
        before = until(stream, "question")
        assert real.send_post(f"{path}/stop").status == 200
        assert until(stream, "bye")
    hosting_box.wait_for_end(session)
    assert (
        real.send_get(path).json["alive"] is False
        and real.send_get(path).json["state"] == "stopped"
    )
    with real.open_stream(f"{path}/events") as stream:
        replayed_events = until(stream, "bye")
    lines = [
        [(event.id, event.data) for event in events if event.kind == "line"]
        for events in (before, replayed_events)
    ]
    assert lines[1][: len(lines[0])] == lines[0] and lines[0]
    last = lines[1][-1][0]
    assert real.send_get(f"{path}/events", headers={"Last-Event-ID": last}).status == 204
    generation, _, number = last.partition("-")
    for unknown in (f"{int(generation) + 8}-{number}", f"{generation}-{int(number) + 1}"):
        with real.open_stream(f"{path}/events", after=unknown) as stream:
            events = until(stream, "bye")
        assert [event.kind for event in events][:2] == ["welcome", "gap"], unknown
        assert [event.id for event in events if event.kind == "line"] == [
            line for line, _ in lines[1]
        ]
    assert real.send_post(f"{path}/messages", {"text": "go"}).status == 409
    assert real.send_post(f"{path}/messages", {"text": "go", "wake": True}).json == {"woken": True}
    with real.open_stream(f"{path}/events", after=last) as stream:
        events = until(stream, "question")
    assert "gap" not in [event.kind for event in events]
    # Earlier events are not sent again.
    assert lines[1][0] not in [(event.id, event.data) for event in events]
    assert real.send_get(path).json["alive"] is True


@pytest.fixture
def ended(tmp_path, tokens, monkeypatch):
    """Yield a gateway with one ended session of 3,000 lines."""
    log = RecordedSessionLog(str(tmp_path / "log"), 1)
    log.append(build_records(*range(1, 3001)))
    log.close()
    metadata = {"session": SESSION, "generation": 1, "state": "done", "created": 1}
    record = registry.SessionRecord(SESSION, str(tmp_path), False, metadata)
    monkeypatch.setattr(registry, "find_session_trusting_metadata", lambda *_: record)
    monkeypatch.setattr(registry, "list_sessions_by_id_prefix", lambda *_: [record])
    web = Web(LocalBackgroundSessionManager({}, {}), tokens, GatewayEndpoint(port=0))
    yield web
    web.close()


def test_log_of_an_ended_session_is_read_in_threads(ended, monkeypatch):
    """A coroutine that reads a log would block all other streams."""
    read_entries, threads = _LogFile.read_entries, set[int | None]()

    def read_entries_and_record(self, after_number):
        threads.add(threading.get_ident())
        return read_entries(self, after_number)

    def open_log_and_record(session):
        threads.add(threading.get_ident())
        return open_ended_log(session)

    monkeypatch.setattr(_LogFile, "read_entries", read_entries_and_record)
    monkeypatch.setattr("shim.bridge.gateway.hosts.open_ended_log", open_log_and_record)
    path = f"/sessions/{SESSION}/events"
    with ended.open_stream(path, after="1-2990") as stream:
        assert until(stream, "bye")[-1].id == "1-3000"
    assert ended.send_get(path, headers={"Last-Event-ID": "1-3000"}).status == 204
    assert threads and ended._thread.ident not in threads


def test_lines_of_an_ended_log_are_counted_once(ended, monkeypatch):
    """A page that reconnects each minute does not cause a reading of the whole log."""
    parsed = [0]

    def parse_and_count(raw):
        parsed[0] += 1
        return parse_recording_line(raw)

    monkeypatch.setattr("shim.bridge.log.parse_recording_line", parse_and_count)
    for _ in range(20):
        assert (
            ended.send_get(
                f"/sessions/{SESSION}/events", headers={"Last-Event-ID": "1-3000"}
            ).status
            == 204
        )
    assert parsed[0] < 3100 + 20 * 2 * INDEX_INTERVAL_LINES


def test_repeated_wake_message_is_sent_once(real, hosting_box, box):
    hosting_box.set_vendor_plan(*TWO_TURNS)
    path, message_id = begin(real, box, "one"), "0a1b2c3d-0000-4000-8000-000000000001"
    with real.open_stream(f"{path}/steps") as stream:
        until(stream, "totals", turns=1)
        assert real.send_post(f"{path}/stop").status == 200
        until(stream, "bye")
    hosting_box.wait_for_end(hosting_box.list_sessions()[0])
    for _ in range(3):
        assert (
            real.send_post(
                f"{path}/messages", {"text": "one", "id": message_id, "wake": True}
            ).status
            == 200
        )
    assert real.send_post(f"{path}/messages", {"text": "two"}).status == 200
    with real.open_stream(f"{path}/steps") as stream:
        events = until(stream, "totals", turns=3)
    prompts = [
        event.json["text"]
        for event in events
        if event.kind == "step" and event.json["kind"] == "prompt"
    ]
    assert prompts == ["one", "one", "two"]


def test_session_is_readable_while_its_exiting_host_holds_the_lock(real, hosting_box, box):
    """The host has sent its end and closed its socket, and holds its lock a moment longer."""
    path = begin(real, box)
    (session,) = hosting_box.list_sessions()
    with real.open_stream(f"{path}/events") as stream:
        assert real.send_post(f"{path}/stop").status == 200
        assert until(stream, "bye")
    hosting_box.wait_for_end(session)
    folder_lock = lock.acquire_session_host_lock(session.folder)
    try:
        with real.open_stream(f"{path}/events") as stream:
            assert until(stream, "bye")
    finally:
        os.close(folder_lock)


def test_output_of_a_killed_host_is_readable(real, hosting_box, box):
    path = begin(real, box)
    with real.open_stream(f"{path}/events") as stream:
        before = until(stream, "question")
        os.kill(hosting_box.list_sessions()[0].metadata["pid"], signal.SIGKILL)
        list(stream)
    hosting_box.wait_for_end(hosting_box.list_sessions()[0])
    assert real.send_get(path).json["state"] == "failed"
    with real.open_stream(f"{path}/events") as stream:
        after = until(stream, "bye")
    lines = [
        [(event.id, event.data) for event in events if event.kind == "line"]
        for events in (before, after)
    ]
    assert lines[0] == lines[1][: len(lines[0])]


def test_closed_streams_leak_no_descriptors(real, hosting_box, box):
    path = begin(real, box)
    with real.open_stream(f"{path}/events") as stream:
        until(stream, "question")
    before = None
    for number in range(210 if sweeps.full else 50):
        with real.open_stream(f"{path}/{('events', 'steps')[number % 2]}") as stream:
            list(itertools.islice(stream, number % 5))
        if number == 9:
            before = count_idle_descriptors(real)
    assert count_idle_descriptors(real) <= before + 1


def count_idle_descriptors(web):
    """Return this process's number of descriptors when no stream is open."""
    deadline = time.monotonic() + TIMEOUT_S
    while web.server.server_state.tasks:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return len(os.listdir("/proc/self/fd"))


MANY = 300
CHATTY = tuple(
    itertools.chain.from_iterable(
        (["out", format_ndjson(says(f"line {number}"))],) for number in range(MANY)
    )
)


@pytest.mark.parametrize("kills", [3, pytest.param(200, marks=pytest.mark.full)])
def test_stream_resumes_without_loss_after_the_gateway_is_killed(hosting_box, box, kills):
    """After kill -9 the browser reconnects with the last id that it saw. Every line is received
    once and in order.
    """
    hosting_box.set_vendor_plan(
        HELLO,
        ["hear", "go"],
        ["out", format_ndjson(INIT)],
        *CHATTY,
        ["out", format_ndjson(result("Over."))],
        STAYS,
    )
    chance, token = random.Random(7), GatewayTokenFile(hosting_box.variables).load_tokens().drive
    events, last, path = list[StreamedEvent](), "", ""
    for kill in range(kills + 1):
        with run_gateway(hosting_box, box) as (process, port):
            if not path:
                path = begin_at(port, token, box)
            enough = len(events) + chance.randrange(1 + MANY // kills) if kill < kills else 10**9
            with stream_at(port, f"{path}/events", token, last) as stream:
                for event in stream:
                    if event.kind == "line":
                        events.append(event)
                        last = event.id
                        if b'"type":"result"' in event.data or len(events) >= enough:
                            break
            process.kill()
    (session,) = hosting_box.list_sessions()
    assert session.is_running
    with connect_to_session_blocking(
        session.session_id, hosting_box.variables, role="watch", partial=False
    ) as connection:
        frames = itertools.takewhile(
            lambda event: event["kind"] != "synced", connection.read_frames(TIMEOUT_S)
        )
        lines = [event["raw"] for event in frames if event["kind"] == "line"]
    assert [event.data for event in events] == lines[: len(events)] and len(events) > MANY


@contextmanager
def run_gateway(living, box):
    """Start `shim bridge serve` in a separate process. Yield the process and its port."""
    process = start_shim(
        ("bridge", "serve", "--http", "127.0.0.1:0"), env=living.variables, cwd=box.cwd,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with process:
        try:
            yield process, int(process.stdout.readline().decode().rstrip("/\n").rpartition(":")[2])
        finally:
            process.kill()
