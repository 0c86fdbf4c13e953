"""`shim bridge list|say|answer|stop`, with a vendor that asks about its call."""

import json
import os
import signal
import threading

import pytest
from box import format_ndjson
from session_hosts import read_until_result, wait_for_frame

from shim.bridge.session_lookup import NO_MATCH_WITH_HINT
from shim.commands.sessions import actions
from shim.commands.sessions.actions import summarize_permission_request
from tests.conversation.test_persistent_driver import (
    HELLO,
    INIT,
    asks,
    calls,
    result,
    returns,
    says,
)


@pytest.fixture
def waiting_session(desk):
    """Return a session that asks for permission to run `touch x`. The vendor's input is
    recorded.
    """
    plan = (
        HELLO,
        ["hear", "go"],
        ["out", format_ndjson(INIT, calls(), asks())],
        ["hear", "control_response"],
        ["record", str(desk.box.recording)],
        ["out", format_ndjson(returns("made"), says("After."), result("After."))],
        ["hear", "more"],
        ["out", format_ndjson(INIT, says("More."), result("More."))],
    )
    desk.environment |= {"SHIM_VENDOR": "qwen", "SHIM_BIN": desk.box.create_fake(*plan)}
    session = desk.start_session("go", vendor="qwen", name="asker")
    return desk.wait_until(session, lambda now: now.metadata["waitingFor"])


def read_answer(desk):
    """Return the answer that the vendor received."""
    (answer,) = [
        json.loads(line)["response"]["response"]
        for line in desk.box.read_record()["stdin"].splitlines()
        if '"control_response"' in line
    ]
    return answer


def list_sessions(desk, *args):
    done = desk.run_shim("bridge", "list", "--json", *args)
    assert done.status == 0, done.stderr
    return json.loads(done.stdout)


def test_pending_permission_request_is_listed_with_its_complete_input(desk, waiting_session):
    (session,) = list_sessions(desk)
    assert (session["id"], session["session"], session["vendor"]) == (
        waiting_session.short_id,
        waiting_session.session_id,
        "qwen",
    )
    assert (session["state"], session["status"], session["waitingFor"]) == (
        "blocked",
        "waiting",
        "permission prompt",
    )
    (question,) = session["questions"]
    assert question["request"]["tool_name"] == "Bash"
    assert question["request"]["input"] == {"command": "touch x"}
    (agent,) = json.loads(desk.run_claude("agents", "--json").stdout)
    assert (agent["status"], agent["waitingFor"], agent["state"]) == (
        "waiting",
        "permission prompt",
        "blocked",
    )
    table = desk.run_shim("bridge", "list").stdout.decode()
    assert waiting_session.short_id in table and "asker" in table and "approve" in table
    assert table.rstrip().endswith("`claude attach ID` for the full text"), (
        "the table cuts a long one"
    )


def test_long_permission_request_is_truncated_with_a_hint():
    assert (
        summarize_permission_request({"tool_name": "Bash", "input": {"command": "ls"}})
        == 'Bash {"command": "ls"}'
    )
    description = summarize_permission_request(
        {"tool_name": "Bash", "input": {"command": "ls " + "x" * 300 + "; rm -rf ~"}}
    )
    assert description.endswith("more characters: `shim bridge list --json` prints all of them)")


def test_allow_resolves_the_permission_prompt_and_the_turn_continues(desk, waiting_session):
    with desk.connect(waiting_session, role="watch") as watcher:
        done = desk.run_shim("bridge", "answer", "asker", "allow")
        assert (done.status, done.stdout, done.stderr) == (0, b"allowed\n", "")
        assert wait_for_frame(watcher, "settled")["how"] == "allow"
        assert read_until_result(watcher)[-1]["result"] == "After."
    assert read_answer(desk)["behavior"] == "allow"
    now = desk.wait_until(waiting_session, lambda now: now.metadata["state"] != "working")
    assert (now.metadata["state"], now.metadata["status"]) == ("done", "idle")


def test_denial_sends_its_message_to_the_vendor(desk, waiting_session):
    done = desk.run_shim(
        "bridge", "answer", waiting_session.short_id, "deny", "--message", "not here"
    )
    assert (done.status, done.stdout) == (0, b"denied\n")
    with desk.connect(waiting_session) as connection:
        read_until_result(connection)
    assert "not here" in json.dumps(read_answer(desk))


def test_input_option_replaces_the_tool_input(desk, waiting_session):
    assert (
        desk.run_shim(
            "bridge",
            "answer",
            waiting_session.short_id,
            "allow",
            "--input",
            '{"command": "touch y"}',
        ).status
        == 0
    )
    with desk.connect(waiting_session) as connection:
        read_until_result(connection)
    assert "touch y" in json.dumps(read_answer(desk))


def test_always_option_adds_a_permission_rule(desk, waiting_session):
    with desk.connect(waiting_session, role="watch") as watcher:
        assert (
            desk.run_shim("bridge", "answer", waiting_session.short_id, "allow", "--always").status
            == 0
        )
        wait_for_frame(watcher, "settled")
    log = next(
        (desk.box.path / "desk" / "state" / "bridge" / waiting_session.session_id / "log").iterdir()
    ).read_text()
    log = log.replace("\\", "")  # a line of the log is a JSON text
    assert (
        '"updatedPermissions":[{"type":"addRules","rules":[{"toolName":"Bash","ruleContent":"touch x"}]'
        in log
    )


def test_concurrent_second_answer_is_rejected_with_the_first_decision(desk, waiting_session):
    """Two clients answer at once: one resolves the request, and the other receives the first
    client's decision.
    """
    (question,) = [each["question"] for each in list_sessions(desk)[0]["questions"]]
    done = []
    both = [
        threading.Thread(
            target=lambda how=how: done.append(
                desk.run_shim("bridge", "answer", waiting_session.short_id, question, how)
            )
        )
        for how in ("allow", "deny")
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    first, second = sorted(done, key=lambda each: each.status)
    assert (first.status, second.status, second.stdout) == (0, 1, b"")
    how = "allow" if first.stdout == b"allowed\n" else "deny"
    assert f"the prompt was already answered: {how}, by shim bridge answer" in second.stderr


def test_load_of_open_permission_requests_waits_for_a_slow_host(desk, waiting_session, monkeypatch):
    monkeypatch.setattr(actions, "LIST_TIMEOUT_S", 0.0)
    monkeypatch.setattr(os, "environ", desk.environment)
    with desk.halt_host(waiting_session) as pid:
        goes_on = threading.Timer(0.5, os.kill, (pid, signal.SIGCONT))
        goes_on.start()
        assert len(actions.load_open_permission_requests(waiting_session)) == 1
        goes_on.join()


def test_answer_to_a_resolved_permission_prompt_is_rejected(desk, waiting_session):
    (question,) = [each["question"] for each in list_sessions(desk)[0]["questions"]]
    assert (
        desk.run_shim("bridge", "answer", waiting_session.short_id, question, "allow").status == 0
    )
    late = desk.run_shim("bridge", "answer", waiting_session.short_id, question, "allow")
    assert (
        late.status == 1
        and "the prompt was already answered: allow, by shim bridge answer" in late.stderr
    )


def test_repeated_answer_without_question_id_names_the_first_client(desk, waiting_session):
    assert desk.run_shim("bridge", "answer", waiting_session.short_id, "deny").status == 0
    late = desk.run_shim("bridge", "answer", waiting_session.short_id, "allow")
    assert late.status == 1 and "was already answered: deny, by shim bridge answer" in late.stderr


def test_answer_fails_if_the_session_has_no_open_permission_prompt(desk):
    session = desk.start_session()
    desk.wait_until(session, lambda now: now.metadata["pid"])
    done = desk.run_shim("bridge", "answer", session.short_id, "allow")
    assert done.status == 1 and f"session {session.short_id} has no open prompt" in done.stderr
    unknown = desk.run_shim("bridge", "answer", session.short_id, "nonsense", "allow")
    assert (
        unknown.status == 1
        and "this session has no permission prompt with this id" in unknown.stderr
    )
    desk.run_claude("stop", session.short_id)
    assert (
        f"session {session.short_id} has ended"
        in desk.run_shim("bridge", "answer", session.short_id, "allow").stderr
    )


@pytest.mark.parametrize(
    "args",
    [
        ("answer", "x", "perhaps"),
        ("answer", "x", "q", "q", "allow"),
        ("answer", "x", "deny", "--always"),
        ("answer", "x", "deny", "--input", "{}"),
        ("answer", "x", "allow", "--message", "but quickly"),
        ("say", "x"),
        ("stop",),
    ],
)
def test_invalid_arguments_exit_with_status_2(desk, args):
    done = desk.run_shim("bridge", *args)
    assert done.status == 2
    assert all(f"error: {arg} can only be used" in done.stderr for arg in args if arg[:2] == "--")


@pytest.mark.parametrize("args", [("answer", "x", "allow"), ("say", "x", "hi"), ("stop", "x")])
def test_unknown_session_is_reported_by_name(desk, args):
    done = desk.run_shim("bridge", *args)
    assert done.status == 1 and NO_MATCH_WITH_HINT.format(word="x") in done.stderr


def test_say_sends_the_next_message(desk, waiting_session):
    assert desk.run_shim("bridge", "answer", waiting_session.short_id, "allow").status == 0
    with desk.connect(waiting_session, role="watch") as watcher:
        read_until_result(watcher)
        assert (
            desk.run_shim("bridge", "say", waiting_session.short_id, "and more").stdout.decode()
            == f"sent to {waiting_session.short_id}\n"
        )
        assert read_until_result(watcher)[-1]["result"] == "More."


def test_stop_reports_unanswered_messages(desk, waiting_session):
    for text in ("more", "and more"):
        assert desk.run_shim("bridge", "say", waiting_session.short_id, text).status == 0
    stopped = desk.run_shim("bridge", "stop", waiting_session.short_id).stdout.decode()
    assert stopped == f"stopped {waiting_session.short_id}; 2 messages were not answered\n"
    assert b"2 messages were not answered" in desk.run_shim("bridge", "list", "--all").stdout
    assert [each["unanswered"] for each in list_sessions(desk, "--all")] == [2]
    assert (
        desk.run_claude("logs", waiting_session.short_id).stdout.count(
            b"a message was not answered"
        )
        == 2
    )


def test_say_names_the_controller_and_hints_at_take_when_refused(desk):
    session = desk.start_session()
    with desk.connect(session, client="somebody") as driver:
        refused = desk.run_shim("bridge", "say", session.short_id, "hi")
        assert (
            refused.status == 1
            and "(somebody has control)" in refused.stderr
            and "--take" in refused.stderr
        )
        assert desk.run_shim("bridge", "say", session.short_id, "hi", "--take").status == 0
        assert wait_for_frame(driver, "driver")["client"] != "somebody"


def test_say_restarts_an_ended_session(desk):
    session = desk.start_session("hi")
    with desk.connect(session) as connection:
        read_until_result(connection)
    assert (
        desk.run_shim("bridge", "stop", session.short_id).stdout.decode()
        == f"stopped {session.short_id}\n"
    )
    assert list_sessions(desk) == [] and [
        each["alive"] for each in list_sessions(desk, "--all")
    ] == [False]
    assert (
        desk.run_shim("bridge", "say", session.short_id, "again").stdout.decode()
        == f"restarted {session.short_id}\n"
    )
    with desk.connect(session, after=None) as connection:
        results = [
            line
            for line in read_until_result(connection) + read_until_result(connection)
            if line["type"] == "result"
        ]
    assert [line["result"] for line in results] == ["Hello.", "Hello."]
    assert desk.load_session(session).metadata["generation"] == 2


def test_say_fails_if_an_ended_session_cannot_restart(desk):
    folder = desk.cwd / "folder"
    folder.mkdir()
    session = desk.start_session("hi", cwd=str(folder))
    with desk.connect(session) as connection:
        read_until_result(connection)
    assert desk.run_shim("bridge", "stop", session.short_id).status == 0
    desk.environment |= {"SHIM_VENDOR": "qwen", "SHIM_BIN": "/nowhere/qwen"}
    refused = desk.run_shim("bridge", "say", session.short_id, "again")
    assert (refused.status, refused.stdout) == (1, b"")
    assert (
        f"could not restart session {session.short_id}" in refused.stderr
        and "/nowhere/qwen" in refused.stderr
    )
    folder.rmdir()
    refused = desk.run_shim("bridge", "say", session.short_id, "again")
    assert (refused.status, refused.stdout) == (1, b"") and "does not exist" in refused.stderr


def test_empty_list_explains_how_to_start_a_session(desk):
    assert b"start one with `claude --bg PROMPT`" in desk.run_shim("bridge", "list").stdout
    assert list_sessions(desk) == []


def test_session_without_start_json_is_resumed_with_bg_resume(desk):
    """Without `start.json` the flags are unknown: `respawn` cannot work, but a new session can
    resume it.
    """
    session = desk.start_session("hi")
    with desk.connect(session) as connection:
        read_until_result(connection)
    desk.run_claude("stop", session.short_id)
    assert (
        f"`claude attach {session.short_id}` resumes"
        in desk.run_shim("bridge", "watch", session.short_id).stdout.decode()
    )
    os.unlink(os.path.join(session.folder, "start.json"))
    done = desk.run_shim("bridge", "watch", session.short_id)
    assert "Hello." in done.stdout.decode()
    assert f"`claude --bg --resume {session.session_id}` resumes" in done.stdout.decode()
    assert f"--resume {session.session_id}" in desk.run_claude("respawn", session.short_id).stderr
