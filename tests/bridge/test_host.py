"""The life of a session that lives on its own, with a real host of the vendor demo."""

import os
import signal
import time

from hosting import until, until_result

from shim.bridge import registry
from shim.bridge.link import exchange_frames


def test_a_session_answers_its_first_prompt_and_lives_on(hosts):
    one = hosts.start("hi")
    with hosts.link(one, partial=False) as link:
        lines = until_result(link)
    assert next(line["type"] for line in lines if line["type"] in ("user", "assistant")) == "user"
    assert lines[-1]["session_id"] == one.session_id
    now = hosts.now(one)
    assert now.is_running and now.metadata["pid"] and now.metadata["generation"] == 1


def test_who_comes_back_hears_the_same_bytes_again(hosts):
    one = hosts.start("hi")
    with hosts.link(one, partial=False) as link:
        first = [until(link, "line", number=number)["raw"] for number in (1, 2, 3)]
        until_result(link)
    with hosts.link(one, partial=False) as link:
        again = [until(link, "line", number=number)["raw"] for number in (1, 2, 3)]
    assert again == first


def test_the_end_that_a_client_asks_for_is_told_and_kept(hosts):
    one = hosts.start()
    heard = exchange_frames(one.session_id, [{"kind": "end"}], hosts.environment)
    assert heard[-1]["kind"] == "bye"
    now = hosts.ended(one)
    assert now.metadata["state"] == "stopped" and now.metadata["pid"] is None


def test_a_session_that_is_stopped_at_work_is_stopped_and_has_not_failed(box, hosts):
    hosts.environment["SHIM_BIN"] = box.create_fake(["hang"])
    one = hosts.start("hi")
    pid = hosts.wait_until(one, lambda now: now.metadata["status"] == "busy").metadata["pid"]
    os.kill(pid, signal.SIGTERM)
    assert hosts.ended(one).metadata["state"] == "stopped"


def test_a_session_that_begins_removes_what_ended_long_ago(hosts):
    old = hosts.start("hi")
    hosts.wait_until(old, lambda now: now.metadata["pid"])
    exchange_frames(old.session_id, [{"kind": "end"}], hosts.environment)
    hosts.ended(old)
    long_ago = time.time() - 31 * 86400
    os.utime(os.path.join(old.folder, registry.METADATA_FILE), (long_ago, long_ago))
    one = hosts.start("hi")
    hosts.wait_until(one, lambda now: not os.path.exists(old.folder))
