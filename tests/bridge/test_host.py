"""The life of a session that lives on its own, with a real host of the vendor demo."""

import os
import signal
import time

from hosting import read_until_result, wait_for_frame

from shim.bridge import registry
from shim.bridge.link import exchange_frames


def test_a_session_answers_its_first_prompt_and_lives_on(hosts):
    one = hosts.start_session("hi")
    with hosts.connect(one, partial=False) as link:
        lines = read_until_result(link)
    assert next(line["type"] for line in lines if line["type"] in ("user", "assistant")) == "user"
    assert lines[-1]["session_id"] == one.session_id
    now = hosts.load_session(one)
    assert now.is_running and now.metadata["pid"] and now.metadata["generation"] == 1


def test_who_comes_back_hears_the_same_bytes_again(hosts):
    one = hosts.start_session("hi")
    with hosts.connect(one, partial=False) as link:
        first = [wait_for_frame(link, "line", number=number)["raw"] for number in (1, 2, 3)]
        read_until_result(link)
    with hosts.connect(one, partial=False) as link:
        again = [wait_for_frame(link, "line", number=number)["raw"] for number in (1, 2, 3)]
    assert again == first


def test_the_end_that_a_client_asks_for_is_told_and_kept(hosts):
    one = hosts.start_session()
    heard = exchange_frames(one.session_id, [{"kind": "end"}], hosts.environment)
    assert heard[-1]["kind"] == "bye"
    now = hosts.wait_for_end(one)
    assert now.metadata["state"] == "stopped" and now.metadata["pid"] is None


def test_a_session_that_is_stopped_at_work_is_stopped_and_has_not_failed(box, hosts):
    hosts.environment["SHIM_BIN"] = box.create_fake(["hang"])
    one = hosts.start_session("hi")
    pid = hosts.wait_until(one, lambda now: now.metadata["status"] == "busy").metadata["pid"]
    os.kill(pid, signal.SIGTERM)
    assert hosts.wait_for_end(one).metadata["state"] == "stopped"


def test_a_session_that_begins_removes_what_ended_long_ago(hosts):
    old = hosts.start_session("hi")
    hosts.wait_until(old, lambda now: now.metadata["pid"])
    exchange_frames(old.session_id, [{"kind": "end"}], hosts.environment)
    hosts.wait_for_end(old)
    long_ago = time.time() - 31 * 86400
    os.utime(os.path.join(old.folder, registry.METADATA_FILE), (long_ago, long_ago))
    one = hosts.start_session("hi")
    hosts.wait_until(one, lambda now: not os.path.exists(old.folder))
