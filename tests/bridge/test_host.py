"""The life of a background session, with a real host of the vendor demo."""

import os
import signal
import time

from session_hosts import read_until_result, wait_for_frame

from shim.bridge import registry
from shim.bridge.client import send_frames_and_collect_answers
from shim.state.store import find_session


def test_session_continues_to_run_after_its_first_prompt(hosts):
    session = hosts.start_session("hi")
    with hosts.connect(session, partial=False) as connection:
        lines = read_until_result(connection)
    assert next(line["type"] for line in lines if line["type"] in ("user", "assistant")) == "user"
    assert lines[-1]["session_id"] == session.session_id
    now = hosts.load_session(session)
    assert now.is_running and now.metadata["pid"] and now.metadata["generation"] == 1


def test_reconnecting_client_receives_identical_lines(hosts):
    session = hosts.start_session("hi")
    with hosts.connect(session, partial=False) as connection:
        first = [wait_for_frame(connection, "line", number=number)["raw"] for number in (1, 2, 3)]
        read_until_result(connection)
    with hosts.connect(session, partial=False) as connection:
        second = [wait_for_frame(connection, "line", number=number)["raw"] for number in (1, 2, 3)]
    assert second == first


def test_end_frame_stops_the_session_and_stores_its_state(hosts):
    session = hosts.start_session()
    received = send_frames_and_collect_answers(
        session.session_id, [{"kind": "end"}], hosts.environment
    )
    assert received[-1]["kind"] == "bye"
    now = hosts.wait_for_end(session)
    assert now.metadata["state"] == "stopped" and now.metadata["pid"] is None
    assert now.metadata["updated"] >= now.metadata["started"]


def test_busy_session_is_stopped_and_not_failed_after_sigterm(box, hosts):
    hosts.environment["SHIM_BIN"] = box.create_fake(["hang"])
    session = hosts.start_session("hi")
    pid = hosts.wait_until(session, lambda now: now.metadata["status"] == "busy").metadata["pid"]
    os.kill(pid, signal.SIGTERM)
    assert hosts.wait_for_end(session).metadata["state"] == "stopped"


def test_starting_a_session_removes_old_ended_sessions(hosts):
    old = hosts.start_session("hi")
    hosts.wait_until(old, lambda now: now.metadata["pid"])
    send_frames_and_collect_answers(old.session_id, [{"kind": "end"}], hosts.environment)
    hosts.wait_for_end(old)
    long_ago = time.time() - 31 * 86400
    os.utime(os.path.join(old.folder, registry.METADATA_FILE), (long_ago, long_ago))
    session = hosts.start_session("hi")
    hosts.wait_until(session, lambda now: not os.path.exists(old.folder))


def send_message(connection, text):
    """Send a message. Return the lines of its turn, up to the result."""
    connection.send_frame_blocking(
        {"kind": "message", "id": text, "message": {"role": "user", "content": text}}
    )
    return read_until_result(connection)


def test_clear_keeps_the_id_of_the_session_and_starts_a_new_session_of_the_vendor(hosts):
    session = hosts.start_session("hi")
    with hosts.connect(session, partial=False) as connection:
        read_until_result(connection)
        cleared = send_message(connection, "/clear")
        stored = load_stored_vendor_session(hosts, session)
        following = send_message(connection, "hi again")
    assert "conversation_reset" in [line["type"] for line in cleared]
    assert cleared[-1]["local_command"] == "clear" and stored == ""
    lines = [*cleared, *following]
    assert {line["session_id"] for line in lines} == {session.session_id}
    assert load_stored_vendor_session(hosts, session) == "demo-session"


def load_stored_vendor_session(hosts, session):
    """Return the vendor's session with which the session is resumed after its host has exited."""
    stored = find_session(session.session_id, hosts.environment)
    return stored.vendor_session
