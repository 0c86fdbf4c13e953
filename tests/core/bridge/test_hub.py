"""The hub of a session: the frames of each client, and the conversation's input."""

from hub_harness import (
    ALLOW,
    DENY,
    SESSION,
    MemoryLog,
    Play,
    build_user_message,
    list_kinds,
    list_line_numbers,
    select_frames,
)

from shim.core.bridge.commands import AppendLogRecordsCommand
from shim.core.bridge.conversation_lines import feed_conversation_stdout
from shim.core.bridge.handlers import MAX_BAD_FRAMES, on_client_frame
from shim.core.bridge.log import list_accepted_message_ids
from shim.core.bridge.subscribers import HELLO_TIMEOUT_S, MAX_CLIENTS

ASSISTANT_LINE = {
    "type": "assistant",
    "message": {"content": [{"type": "text", "text": "Hello"}]},
    "parent_tool_use_id": None,
}


def test_line_is_logged_before_clients_receive_the_line():
    play = Play()
    play.join_client(1)
    feed_conversation_stdout(play.hub, b'{"type":"assistant"}\n')
    assert play.hub.list_ready_clients() == []
    (append, _) = play.hub.take_commands()
    assert isinstance(append, AppendLogRecordsCommand)
    assert [(record.number, record.data) for record in append.records] == [
        (1, b'{"type":"assistant"}')
    ]
    assert select_frames(play.read_frames(1), "line") == [
        {"number": 1, "generation": 1, "at": 0, "line": {"type": "assistant"}}
    ]


def test_welcome_frame_describes_the_current_session():
    play = Play(vendor="demo", cwd="/w", model="m-1", pid=7, version="1.0", name="job")
    play.hub.send_initialize()
    play.run_commands()
    play.answer_request({"models": []})
    play.feed_stdout(
        {"type": "system", "subtype": "init", "model": "m-2", "permissionMode": "plan"}
    )
    (welcome,) = select_frames(play.join_client(1), "welcome")
    knows = welcome.pop("knows")
    assert {"accepted", "request", "response", "ask", "reply"} <= set(knows)
    assert welcome == {
        "protocol": 1, "client": "c1", "session": SESSION, "id": SESSION[:8], "name": "job", "vendor": "demo",
        "cwd": "/w", "model": "m-2", "mode": "plan", "bypass": False,
        "pid": 7, "version": "1.0", "generation": 1, "number": 1,
        "state": {"state": "working", "status": "busy", "waitingFor": None, "needs": None, "detail": None},
        "driver": "c1", "questions": [], "settled": None, "initialize": {"models": []},
        "init": {"type": "system", "subtype": "init", "model": "m-2", "permissionMode": "plan"},
    }  # fmt: skip


def test_unnamed_session_is_named_after_its_first_message():
    play = Play()
    play.join_client(1)
    for text in ("make the\ntests pass", "and now the docs"):
        play.send_frame(1, "message", id=text, message=build_user_message(text))
    assert play.status_fields["name"] == "make the tests pass"
    assert select_frames(play.join_client(2), "welcome")[0]["name"] == "make the tests pass"
    named_play = Play(name="job")
    named_play.join_client(1)
    named_play.send_frame(1, "message", id="1", message=build_user_message("hi"))
    assert named_play.status_fields["name"] == "job"


def test_client_receives_the_log_and_then_live_lines():
    play = Play()
    play.feed_stdout(*[ASSISTANT_LINE] * 3)
    frames = play.join_client(1, "watch")
    assert list_kinds(frames) == ["welcome", "line", "line", "line", "synced"]
    assert frames[-1]["number"] == 3
    play.feed_stdout(ASSISTANT_LINE)
    assert list_line_numbers(play.read_frames(1)) == [4]


def test_cursor_resumes_after_its_line():
    play = Play()
    play.feed_stdout(*[ASSISTANT_LINE] * 3)
    assert list_line_numbers(play.join_client(1, after={"generation": 1, "number": 2})) == [3]
    assert list_line_numbers(play.join_client(2, after={"generation": 1, "number": 3})) == []


def test_unknown_cursor_receives_a_gap_and_the_complete_log():
    play = Play()
    play.feed_stdout(ASSISTANT_LINE, ASSISTANT_LINE)
    for client, after, reason in (
        (1, (2, 1), "generation"),
        (2, (1, 3), "unknown"),
        (3, (1, -1), "unknown"),
    ):
        frames = play.join_client(client, after={"generation": after[0], "number": after[1]})
        assert list_kinds(frames) == ["welcome", "gap", "line", "line", "synced"]
        assert select_frames(frames, "gap") == [{"from": 1, "to": 2, "reason": reason}]
    assert select_frames(play.join_client(4, after="nonsense"), "gap")[0]["reason"] == "generation"


def test_cursor_of_a_previous_generation_resumes_after_its_line():
    log = MemoryLog()
    Play(log).feed_stdout(*[ASSISTANT_LINE] * 3)
    log.generation = 2
    play = Play(log)
    play.feed_stdout(ASSISTANT_LINE)
    frames = play.join_client(1, after={"generation": 1, "number": 2})
    assert list_line_numbers(frames) == [3, 4] and select_frames(frames, "gap") == []


def test_cursor_of_a_lost_line_of_a_previous_generation_receives_a_gap():
    log = MemoryLog()
    Play(log).feed_stdout(*[ASSISTANT_LINE] * 3)
    log.generation = 2
    play = Play(log)
    play.feed_stdout(ASSISTANT_LINE)
    frames = play.join_client(1, after={"generation": 1, "number": 4})
    assert (
        list_line_numbers(frames) == [1, 2, 3, 4]
        and select_frames(frames, "gap")[0]["reason"] == "generation"
    )


def test_cursor_of_a_line_lost_two_generations_ago_receives_a_gap():
    """The second generation has reused the number of the lost line."""
    log = MemoryLog()
    Play(log).feed_stdout(*[ASSISTANT_LINE] * 3)
    for generation in (2, 3):
        log.generation = generation
        play = Play(log)
        play.feed_stdout(*[ASSISTANT_LINE] * 2)
    for client, cursor, first in ((1, (1, 3), 4), (2, (1, 4), 1), (3, (2, 5), 6), (4, (2, 6), 1)):
        after = {"generation": cursor[0], "number": cursor[1]}
        frames = play.join_client(client, after=after)
        assert list_line_numbers(frames) == list(range(first, 8)), cursor
        gaps = [frame["reason"] for frame in select_frames(frames, "gap")]
        assert gaps == (["generation"] if first == 1 else []), cursor


def test_dropped_log_lines_are_reported_as_a_gap():
    log = MemoryLog()
    Play(log).feed_stdout(*[ASSISTANT_LINE] * 4)
    log.first, play = 3, Play(log)
    frames = play.join_client(1)
    assert list_kinds(frames) == ["welcome", "gap", "line", "line", "synced"]
    assert select_frames(frames, "gap") == [{"from": 1, "to": 2, "reason": "lost"}]
    log.first = 2
    assert select_frames(play.join_client(3), "gap") == [{"from": 1, "to": 1, "reason": "lost"}]
    log.first = 9
    assert list_kinds(play.join_client(2)) == ["welcome", "gap", "synced"]


def test_client_without_replay_is_synced_immediately():
    play = Play()
    play.feed_stdout(ASSISTANT_LINE)
    assert list_kinds(play.join_client(1, replay=False)) == ["welcome", "synced"]


def test_slow_client_receives_a_gap_and_resumes_from_the_log():
    play = Play()
    play.join_client(1)
    for _ in range(300):
        play.feed_stdout(ASSISTANT_LINE)
    frames = play.read_frames(1)
    assert select_frames(frames, "gap") == [{"from": 1, "to": 257, "reason": "slow"}]
    assert list_line_numbers(frames) == list(range(1, 301))
    play.feed_stdout(ASSISTANT_LINE)
    assert list_line_numbers(play.read_frames(1)) == [301]


def test_slightly_slow_client_is_served_without_reading_the_log():
    play = Play()
    play.join_client(1)
    for _ in range(300):
        play.feed_stdout(ASSISTANT_LINE)
    play.log.entries.clear()
    assert list_line_numbers(play.read_frames(1)) == list(range(1, 301))


def test_queue_of_a_slow_client_is_bounded():
    play = Play()
    play.join_client(1)
    play.ask_permission("q" * 36, content="x" * 900_000)
    for number in range(600):
        play.feed_stdout({"type": "assistant", "text": "x" * 10_000})
        if number % 100 == 0:
            play.ask_permission(f"q{number}", content="x" * 900_000)
    assert play.count_queued_bytes(1) < 4 * 1024 * 1024
    assert list_line_numbers(play.read_frames(1)) == list(range(1, 601))


def test_clients_with_the_same_name_get_unique_names():
    play = Play()
    names = [play.join_client(number, client="terminal")[0]["client"] for number in (1, 2, 3)]
    assert names == ["terminal", "terminal-2", "terminal-3"]
    play.remove_client(2)
    assert play.join_client(4, client="terminal")[0]["client"] == "terminal-2"


def test_name_of_a_client_that_answered_a_prompt_is_not_reused():
    play = Play()
    play.join_client(1, client="answer")
    play.ask_permission("q")
    play.send_frame(1, "answer", question="q", decision=ALLOW)
    play.remove_client(1)
    assert play.join_client(2, client="answer")[0]["client"] == "answer-2"
    assert (
        select_frames(play.exchange_frames(2, "answer", question="q", decision=DENY), "settled")[0][
            "by"
        ]
        == "answer"
    )


# -- control ---------------------------------------------------------------------------------------


def test_watch_only_client_cannot_control_the_session():
    play = Play(can_bypass=True)
    play.join_client(1, "watch")
    play.ask_permission("q")
    for kind, keys in (
        ("message", {"message": build_user_message()}), ("answer", {"question": "q", "decision": ALLOW}),
        ("interrupt", {}), ("model", {"model": "m"}), ("mode", {"mode": "plan"}), ("take", {}), ("release", {}),
        ("end", {}), ("request", {"request": {"subtype": "mcp_status"}}), ("reply", {"response": {}}),
    ):  # fmt: skip
        frames = play.exchange_frames(1, kind, id=kind, **keys)
        assert [(frame["id"], frame["reason"]) for frame in select_frames(frames, "refused")] == [
            (kind, "watch-only")
        ], kind
    assert play.stdin == [] and play.ended_by == []


def test_only_the_controller_sends_messages_until_another_client_takes_over():
    play = Play()
    play.join_client(1)
    play.join_client(2)
    (refused,) = select_frames(
        play.exchange_frames(2, "message", id="m", message=build_user_message()), "refused"
    )
    assert (refused["reason"], refused["driver"]) == ("not-driver", "c1")
    for kind, keys in (("model", {"model": "m"}), ("mode", {"mode": "plan"}), ("end", {})):
        assert (
            select_frames(play.exchange_frames(2, kind, id=kind, **keys), "refused")[0]["reason"]
            == "not-driver"
        )
    assert play.stdin == []
    frames = play.exchange_frames(2, "take", id="t")
    assert select_frames(frames, "accepted") == [{"id": "t"}] and select_frames(
        frames, "driver"
    ) == [{"client": "c2"}]
    assert select_frames(play.read_frames(1), "driver") == [{"client": "c2"}]
    assert play.status_fields["driver"] == "c2"
    assert select_frames(
        play.exchange_frames(2, "message", id="m", message=build_user_message()), "accepted"
    ) == [{"id": "m"}]
    assert [line["message"] for line in play.stdin] == [build_user_message()]


def test_message_makes_its_sender_controller_if_the_session_has_none():
    play = Play()
    play.join_client(1)
    play.join_client(2)
    play.send_frame(1, "release")
    assert play.hub.roles.controller_name is None
    play.send_frame(2, "message", message=build_user_message())
    assert play.hub.roles.controller_name == "c2"
    play.remove_client(2)
    assert play.hub.roles.controller_name is None


# -- messages --------------------------------------------------------------------------------------


def test_repeated_message_id_is_accepted_and_sent_once():
    play = Play(message_ids=["22222222-0000-4000-8000-000000000000"])
    play.join_client(1, client="phone")
    uuid = "11111111-0000-4000-8000-000000000000"
    for message_id in (uuid, "m", uuid, "m"):
        assert select_frames(
            play.exchange_frames(1, "message", id=message_id, message=build_user_message()),
            "accepted",
        ) == [{"id": message_id}]
    play.remove_client(1)
    play.join_client(2, client="phone")
    for message_id in (uuid, "m", "22222222-0000-4000-8000-000000000000"):
        assert select_frames(
            play.exchange_frames(2, "message", id=message_id, message=build_user_message()),
            "accepted",
        ) == [{"id": message_id}]
    assert len(play.stdin) == 2 and play.stdin[0]["uuid"] == uuid


def test_message_id_accepted_by_a_previous_generation_is_not_resent():
    log, uuid = MemoryLog(), "11111111-0000-4000-8000-000000000000"
    first = Play(log)
    first.join_client(1)
    first.send_frame(1, "message", id=uuid, message=build_user_message())
    assert list(list_accepted_message_ids(log.entries)) == []
    first.finish_turn()
    second = Play(log, message_ids=list_accepted_message_ids(log.entries))
    second.join_client(1)
    assert select_frames(
        second.exchange_frames(1, "message", id=uuid, message=build_user_message()), "accepted"
    ) == [{"id": uuid}]
    second.hub.send_first_message(build_user_message(), uuid)
    second.run_commands()
    assert second.stdin == []


def test_first_message_of_a_session_is_sent_only_once():
    play, uuid = Play(), "11111111-0000-4000-8000-000000000000"
    play.hub.send_first_message(build_user_message(), uuid)
    play.join_client(1)
    assert select_frames(
        play.exchange_frames(1, "message", id=uuid, message=build_user_message()), "accepted"
    ) == [{"id": uuid}]
    assert [line["uuid"] for line in play.stdin] == [uuid]


def test_message_is_logged_and_sent_with_its_priority():
    play = Play()
    play.join_client(1)
    play.send_frame(1, "message", message=build_user_message("hi"), priority="now")
    assert [
        (record.letter, record.number) for record in play.log.records if record.letter == "i"
    ] == [("i", 0)]
    assert play.stdin[0]["priority"] == "now"


def test_pending_messages_are_refused_and_logged_when_the_session_ends():
    play = Play()
    play.join_client(1)
    play.join_client(2, "watch")
    play.send_frame(1, "message", id="taken", message=build_user_message("one"))
    play.finish_turn()
    play.send_frame(1, "message", id="a", message=build_user_message("two"))
    play.send_frame(1, "message", id="b", message=build_user_message("three"))
    play.read_frames(1), play.read_frames(2)
    play.hub.close("stopped")
    frames = play.read_frames(1)
    assert [(frame["id"], frame["reason"]) for frame in select_frames(frames, "refused")] == [
        ("a", "ended"),
        ("b", "ended"),
    ]
    assert list_kinds(frames)[-1] == "bye" and select_frames(play.read_frames(2), "refused") == []
    assert sum(b'"unanswered"' in record.data for record in play.log.records) == 2
    assert (play.status_fields["unanswered"], play.status_fields["state"]) == (2, "stopped")


def test_messages_are_refused_while_too_many_bytes_are_pending():
    play = Play(max_frame_bytes=100_000)
    play.join_client(1)
    play.send_frame(1, "message", id="first", message=build_user_message("x" * 60_000))
    refused = select_frames(
        play.exchange_frames(1, "message", id="second", message=build_user_message("x" * 60_000)),
        "refused",
    )
    assert refused[0]["reason"] == "too-many"
    play.finish_turn()
    assert select_frames(
        play.exchange_frames(1, "message", id="second", message=build_user_message("x" * 60_000)),
        "accepted",
    )


# -- permission requests ---------------------------------------------------------------------------


def test_permission_prompt_is_sent_to_new_clients_and_resolved_once():
    play = Play()
    play.join_client(1)
    play.ask_permission("q", file_path="/w/a")
    (question,) = select_frames(play.read_frames(1), "question")
    assert question["question"] == "q" and question["request"]["input"] == {"file_path": "/w/a"}
    frames = play.join_client(2)
    assert select_frames(frames, "welcome")[0]["questions"] == ["q"] and select_frames(
        frames, "question"
    ) == [question]
    frames = play.exchange_frames(2, "answer", id="a", question="q", decision=ALLOW)
    assert select_frames(frames, "accepted") == [{"id": "a"}]
    expected = [{"question": "q", "by": "c2", "how": "allow"}]
    assert (
        select_frames(frames, "settled")
        == expected
        == select_frames(play.read_frames(1), "settled")
    )
    (response,) = play.take_responses()
    allowed = {"behavior": "allow", "updatedInput": {"file_path": "/w/a"}, "toolUseID": "call-q"}
    assert response == {"subtype": "success", "request_id": "q", "response": allowed}
    assert (
        select_frames(
            play.exchange_frames(1, "answer", id="b", question="q", decision=DENY), "settled"
        )
        == expected
    )
    assert select_frames(
        play.exchange_frames(2, "answer", id="a", question="q", decision=ALLOW), "accepted"
    ) == [{"id": "a"}]
    assert play.take_responses() == []
    assert select_frames(play.join_client(3), "question") == []


def test_answer_may_change_the_input_but_not_the_tool_call():
    play = Play()
    play.join_client(1)
    changes = [{"type": "setMode", "mode": "acceptEdits", "destination": "session"}]
    play.ask_permission("q", file_path="/w/a")
    for key, other in (
        ("toolUseID", "call-x"),
        ("tool_name", "Bash"),
        ("request_id", "x"),
        ("tool_use_id", "y"),
    ):
        decision = {**ALLOW, key: other}
        refused = select_frames(
            play.exchange_frames(1, "answer", question="q", decision=decision), "refused"
        )
        assert refused[0]["reason"] == "bad-decision"
    decision = {
        **ALLOW,
        "updatedInput": {"file_path": "/w/b"},
        "updatedPermissions": changes,
        "odd": 1,
    }
    play.send_frame(1, "answer", question="q", decision=decision)
    (response,) = play.take_responses()
    assert response["response"] == {
        "behavior": "allow", "updatedInput": {"file_path": "/w/b"}, "updatedPermissions": changes,
        "toolUseID": "call-q",
    }  # fmt: skip


def test_only_the_controller_changes_the_mode_with_an_answer():
    """An answer with a mode has the same check as the `mode` frame."""
    play = Play()
    play.join_client(1)
    play.join_client(2)
    play.ask_permission("q")
    for change in ({"type": "setMode", "mode": "acceptEdits"}, {"type": "later", "mode": "plan"}):
        decision = {**ALLOW, "updatedPermissions": [change]}
        (refused,) = select_frames(
            play.exchange_frames(2, "answer", id="a", question="q", decision=decision), "refused"
        )
        assert (refused["reason"], refused["driver"]) == ("not-driver", "c1")
        assert play.take_responses() == [] and play.status_fields["status"] == "waiting"
    play.send_frame(2, "answer", question="q", decision=ALLOW)
    assert len(play.take_responses()) == 1
    play.ask_permission("r")
    play.send_frame(1, "answer", question="r", decision=decision)
    assert len(play.take_responses()) == 1
    play.ask_permission("s")
    play.send_frame(1, "release")
    play.send_frame(2, "answer", question="s", decision=decision)
    assert len(play.take_responses()) == 1


def test_invalid_answer_leaves_the_prompt_open():
    play = Play()
    play.join_client(1)
    play.ask_permission("q")
    wide = [{"type": "setMode", "mode": "bypassPermissions", "destination": "session"}]
    for decision, reason in (
        (None, "bad-decision"), ([], "bad-decision"), ({}, "bad-decision"), ({"behavior": "maybe"}, "bad-decision"),
        ({**ALLOW, "updatedInput": "x"}, "bad-decision"), ({**DENY, "message": 1}, "bad-decision"),
        ({**ALLOW, "updatedPermissions": wide}, "bypass"), ({**ALLOW, "updatedPermissions": "x"}, "bypass"),
    ):  # fmt: skip
        frames = play.exchange_frames(1, "answer", question="q", decision=decision)
        assert select_frames(frames, "refused")[0]["reason"] == reason, decision
    assert select_frames(
        play.exchange_frames(1, "answer", question="other", decision=ALLOW), "refused"
    )[0]["reason"] == ("unknown-question")
    assert play.take_responses() == [] and play.status_fields["status"] == "waiting"


def test_only_the_owner_answers_prompts_under_the_owner_policy():
    play = Play(answer_policy="owner")
    play.join_client(1)
    play.join_client(2)
    play.ask_permission("q")
    (refused,) = select_frames(
        play.exchange_frames(2, "answer", question="q", decision=ALLOW), "refused"
    )
    assert (refused["reason"], refused["driver"]) == ("not-owner", "c1")
    play.send_frame(1, "release")
    assert (
        select_frames(play.exchange_frames(2, "answer", question="q", decision=ALLOW), "refused")[
            0
        ]["reason"]
        == "not-owner"
    )
    play.send_frame(1, "answer", question="q", decision=ALLOW)
    assert len(play.take_responses()) == 1


def test_permission_prompt_is_denied_after_its_timeout():
    play = Play(prompt_timeout_s=60)
    play.join_client(1)
    play.ask_permission("q")
    play.seconds = 59
    play.hub.apply_timeouts_and_report_changes()
    assert play.status_fields["status"] == "waiting"
    play.seconds = 60
    play.hub.apply_timeouts_and_report_changes()
    assert select_frames(play.read_frames(1), "settled") == [
        {"question": "q", "by": None, "how": "timeout"}
    ]
    (response,) = play.take_responses()
    assert (
        response["response"]["behavior"] == "deny" and "in time" in response["response"]["message"]
    )


def test_session_is_blocked_after_a_prompt_timeout():
    play = Play(prompt_timeout_s=60)
    play.join_client(1)
    play.ask_permission("q")
    (question,) = select_frames(play.read_frames(1), "question")
    assert question["until"] - question["at"] == 60_000
    play.seconds = 60
    play.hub.apply_timeouts_and_report_changes()
    play.feed_stdout(
        {"type": "result", "subtype": "success", "is_error": False, "result": "I could not."}
    )
    assert (
        play.status_fields["state"],
        play.status_fields["status"],
        play.status_fields["detail"],
    ) == (
        "blocked",
        "idle",
        "I could not.",
    )
    assert (
        "no answer in time" in play.status_fields["needs"]
        and "approve" in play.status_fields["needs"]
    )
    play.feed_stdout(
        ASSISTANT_LINE,
        {"type": "result", "subtype": "success", "is_error": False, "result": "Done."},
    )
    assert (play.status_fields["state"], play.status_fields["needs"]) == ("done", None)


def test_prompt_without_a_timeout_has_no_deadline():
    play = Play()
    play.join_client(1)
    play.ask_permission("q")
    assert "until" not in select_frames(play.read_frames(1), "question")[0]


def test_interrupt_resolves_every_open_prompt():
    play = Play()
    play.join_client(1)
    play.join_client(2)
    play.ask_permission("q")
    play.ask_permission("r")
    play.send_frame(2, "interrupt", id="i")
    assert [line["request"] for line in play.take_requests()] == [{"subtype": "interrupt"}]
    expected = [{"question": question, "by": "c2", "how": "interrupt"} for question in ("q", "r")]
    assert select_frames(play.read_frames(1), "settled") == expected
    play.feed_stdout({"type": "control_cancel_request", "request_id": "q"})
    assert play.take_responses() == [] and select_frames(play.read_frames(1), "settled") == []


def test_prompt_is_resolved_when_the_request_is_cancelled_or_the_turn_ends():
    play = Play()
    play.join_client(1)
    play.ask_permission("q")
    play.feed_stdout({"type": "control_cancel_request", "request_id": "q"})
    play.ask_permission("r")
    play.finish_turn()
    frames = play.read_frames(1)
    assert [(each["question"], each["how"]) for each in select_frames(frames, "settled")] == [
        ("q", "cancelled"),
        ("r", "ended"),
    ]
    assert play.take_responses() == []


def test_closing_the_session_denies_open_prompts_and_sends_bye():
    play = Play()
    play.join_client(1)
    play.ask_permission("q")
    play.hub.close("stopped")
    frames = play.read_frames(1)
    assert select_frames(frames, "settled") == [{"question": "q", "by": None, "how": "ended"}]
    assert frames[-1] == {"kind": "bye", "reason": "stopped"}
    assert play.take_responses()[0]["response"]["behavior"] == "deny"
    assert play.dropped == {1: "stopped"} and play.status_fields["state"] == "stopped"


def test_client_that_joins_an_ended_session_receives_bye():
    play = Play()
    play.hub.close("idle")
    assert play.join_client(1) == [{"kind": "bye", "reason": "idle"}]
    play.send_frame(1, "message", id="m", message=build_user_message("hi"))
    assert play.stdin == [] and play.dropped == {1: "idle"}


def test_slow_client_receives_open_prompts_and_missed_resolutions():
    play = Play()
    play.join_client(1)
    play.ask_permission("old")
    play.read_frames(1)
    play.send_frame(1, "answer", question="old", decision=ALLOW)
    play.ask_permission("brief")
    for _ in range(300):
        play.feed_stdout(ASSISTANT_LINE)
    play.send_frame(1, "answer", question="brief", decision=ALLOW)
    play.ask_permission("new")
    frames = play.read_frames(1)
    assert [each["question"] for each in select_frames(frames, "settled")] == ["old"]
    assert [each["question"] for each in select_frames(frames, "question")] == ["new"]
    assert select_frames(frames, "state")[-1]["status"] == "waiting"


# -- control requests and hook requests ------------------------------------------------------------


def test_mode_change_is_accepted_after_the_conversation_confirms():
    play = Play()
    play.join_client(1)
    assert play.exchange_frames(1, "mode", id="a", mode="plan") == []
    play.answer_request({"mode": "plan"})
    assert select_frames(play.read_frames(1), "accepted") == [{"id": "a"}]
    play.send_frame(1, "model", id="b", model="odd")
    play.answer_request(subtype="error", error="no such model")
    assert select_frames(play.read_frames(1), "refused") == [
        {"id": "b", "reason": "failed", "text": "no such model"}
    ]
    assert select_frames(play.join_client(2), "welcome")[0]["mode"] == "plan"


def test_empty_permission_mode_is_refused():
    play = Play()
    play.join_client(1)
    empty = {"subtype": "set_permission_mode", "mode": ""}
    for frames in (
        play.exchange_frames(1, "mode", mode=""),
        play.exchange_frames(1, "request", id="r", request=empty),
    ):
        assert select_frames(frames, "refused")[0]["reason"] == "bad-frame"
    play.feed_stdout({"type": "system", "subtype": "init", "permissionMode": ""})
    assert (
        play.stdin == [] and select_frames(play.join_client(2), "welcome")[0]["mode"] == "default"
    )


def test_mode_and_model_changes_are_sent_to_other_clients():
    play = Play()
    play.join_client(1)
    play.join_client(2)
    play.send_frame(1, "mode", id="a", mode="plan")
    play.answer_request({"mode": "plan"})
    assert select_frames(play.read_frames(2), "state")[-1]["mode"] == "plan"
    play.send_frame(1, "model", id="b", model="another")
    play.answer_request({"model": "another"})
    (state,) = select_frames(play.read_frames(2), "state")
    assert (state["model"], state["mode"]) == ("another", "plan")


def test_bypass_mode_is_refused_unless_the_session_allows_bypass():
    play = Play()
    play.join_client(1)
    wide = {"subtype": "set_permission_mode", "mode": "bypassPermissions"}
    for frames in (
        play.exchange_frames(1, "mode", mode="bypassPermissions"),
        play.exchange_frames(1, "request", id="r", request=wide),
    ):
        assert select_frames(frames, "refused")[0]["reason"] == "bypass"
    assert play.stdin == []
    wider = Play(can_bypass=True)
    wider.join_client(1)
    wider.send_frame(1, "mode", mode="bypassPermissions")
    assert len(wider.take_requests()) == 1


def test_repeated_request_is_sent_once_and_returns_the_response():
    play = Play()
    play.join_client(1)
    play.send_frame(1, "request", id="r", request={"subtype": "mcp_status"})
    play.send_frame(1, "request", id="r", request={"subtype": "mcp_status"})
    assert len([line for line in play.stdin if line["type"] == "control_request"]) == 1
    play.answer_request({"mcpServers": []})
    response = {"subtype": "success", "request_id": "r", "response": {"mcpServers": []}}
    assert select_frames(play.read_frames(1), "response") == [{"id": "r", "response": response}]
    assert (
        select_frames(
            play.exchange_frames(1, "request", id="r", request={"subtype": "mcp_status"}),
            "response",
        )
        != []
    )
    assert play.stdin == []


def hook(event: str = "PreToolUse", client: int = 1) -> dict[str, object]:
    return {
        "subtype": "hook_callback",
        "callback_id": f"{client}/hook_0",
        "input": {"hook_event_name": event},
    }


def ask(play: Play, request_id: str, request: dict[str, object]) -> None:
    play.feed_stdout({"type": "control_request", "request_id": request_id, "request": request})


HOOKS = {
    "subtype": "initialize",
    "hooks": {"PreToolUse": [{"hookCallbackIds": ["hook_0"]}]},
    "sdkMcpServers": ["calc"],
}


def test_hook_request_is_sent_to_the_client_that_registered_the_hook():
    play = Play()
    play.join_client(1)
    play.join_client(2)
    play.send_frame(1, "request", id="i", request=HOOKS)
    play.send_frame(2, "take")
    ask(play, "h", hook())
    ask(play, "m", {"subtype": "mcp_message", "server_name": "calc", "message": {}})
    assert [each["id"] for each in select_frames(play.read_frames(1), "ask")] == [
        "h",
        "m",
    ] and select_frames(play.read_frames(2), "ask") == []
    play.send_frame(2, "reply", id="h", response={"subtype": "success", "response": {}})
    assert play.take_responses() == []
    play.send_frame(
        1,
        "reply",
        id="h",
        response={"subtype": "success", "request_id": "odd", "response": {"ok": 1}},
    )
    play.send_frame(1, "reply", id="h", response={"subtype": "success", "response": {}})
    assert play.take_responses() == [
        {"subtype": "success", "request_id": "h", "response": {"ok": 1}}
    ]


def test_tool_calls_are_denied_after_the_client_with_the_hook_disconnects():
    play = Play()
    play.join_client(1)
    play.send_frame(1, "request", id="i", request=HOOKS)
    ask(play, "open", hook())
    play.remove_client(1)
    ask(play, "later", hook())
    ask(play, "m", {"subtype": "mcp_message", "server_name": "calc", "message": {}})
    ask(play, "stop", hook("Stop"))
    opened, later, server, stop = play.take_responses()
    for response in (opened, later):
        assert response["response"]["hookSpecificOutput"]["permissionDecision"] == "deny"
    assert server["subtype"] == "error" and stop["response"] == {}
    play.join_client(2)
    play.send_frame(2, "request", id="i", request={"subtype": "initialize"})
    play.send_frame(
        2, "request", id="s", request={"subtype": "initialize", "sdkMcpServers": ["other"]}
    )
    ask(play, "still", hook())
    assert (
        play.take_responses()[-1]["response"]["hookSpecificOutput"]["permissionDecision"] == "deny"
    )
    assert all("1/hook_0" in str(line["request"]["hooks"]) for line in play.take_requests())
    play.send_frame(2, "request", id="h", request=HOOKS)
    (line,) = play.take_requests()
    assert line["request"]["hooks"] == {"PreToolUse": [{"hookCallbackIds": ["2/hook_0"]}]}


def build_hook_request(*matchers: str) -> dict[str, object]:
    groups = [{"hookCallbackIds": ["h"], "matcher": name} for name in matchers]
    return {"subtype": "initialize", "hooks": {"PreToolUse": groups}}


def test_hooks_for_other_tools_do_not_lift_denials_of_a_disconnected_client():
    play = Play()
    play.join_client(1)
    play.send_frame(1, "request", id="i", request=build_hook_request("Bash", "Edit|Write"))
    play.remove_client(1)
    remaining_matchers = []
    for client, matchers in ((2, ["Read"]), (3, ["Bash", "Read"]), (4, ["*"])):
        play.join_client(client)
        play.send_frame(client, "request", id="i", request=build_hook_request(*matchers))
        hooks = play.take_requests()[-1]["request"]["hooks"]["PreToolUse"]
        remaining_matchers.append(
            [group["matcher"] for group in hooks if group["hookCallbackIds"] == ["1/h"]]
        )
        play.remove_client(client)
    assert remaining_matchers == [["Bash", "Edit|Write"], ["Edit|Write"], []]


def test_rejected_hooks_do_not_lift_denials_of_a_disconnected_client():
    play = Play()
    play.join_client(1)
    play.send_frame(1, "request", id="i", request=build_hook_request("Bash", "Write"))
    (first_request,) = play.take_requests()
    play.remove_client(1)
    play.join_client(2)
    for matcher in ("Bash", "*"):
        play.send_frame(2, "request", id=matcher, request=build_hook_request(matcher))
        play.answer_request(subtype="error", error="busy")
        play.send_frame(
            2,
            "request",
            id=f"{matcher}s",
            request={"subtype": "initialize", "sdkMcpServers": ["other"]},
        )
        assert play.take_requests()[-1]["request"]["hooks"] == first_request["request"]["hooks"], (
            matcher
        )


def test_hooks_of_two_clients_are_both_registered():
    play = Play()
    play.join_client(1)
    play.join_client(2)
    play.send_frame(1, "request", id="i", request=HOOKS)
    play.send_frame(2, "take")
    play.send_frame(
        2, "request", id="i", request={**HOOKS, "hooks": {"Stop": [{"hookCallbackIds": ["s"]}]}}
    )
    assert play.take_requests()[-1]["request"]["hooks"] == {
        "PreToolUse": [{"hookCallbackIds": ["1/hook_0"]}],
        "Stop": [{"hookCallbackIds": ["2/s"]}],
    }
    ask(play, "h", hook())
    (hook_request,) = select_frames(play.read_frames(1), "ask")
    assert (
        hook_request["request"]["callback_id"] == "hook_0"
        and select_frames(play.read_frames(2), "ask") == []
    )


def test_hooks_of_two_connected_clients_for_the_same_calls_are_both_registered():
    play = Play()
    play.join_client(1)
    play.join_client(2)
    play.send_frame(1, "request", id="i", request=HOOKS)
    play.send_frame(2, "take")
    play.send_frame(2, "request", id="i", request=HOOKS)
    assert play.take_requests()[-1]["request"]["hooks"]["PreToolUse"] == [
        {"hookCallbackIds": ["1/hook_0"]},
        {"hookCallbackIds": ["2/hook_0"]},
    ]


def test_initialize_without_hooks_does_not_remove_hooks_of_another_client():
    play = Play()
    play.join_client(1)
    play.send_frame(1, "request", id="i", request=HOOKS)
    play.join_client(2)
    play.send_frame(2, "take")
    play.send_frame(2, "request", id="i", request={"subtype": "initialize"})
    play.remove_client(1)
    ask(play, "h", hook())
    assert (
        play.take_responses()[-1]["response"]["hookSpecificOutput"]["permissionDecision"] == "deny"
    )


def test_unknown_request_of_the_session_returns_an_error():
    play = Play()
    ask(play, "odd", {"subtype": "odd"})
    assert play.take_responses()[0]["subtype"] == "error"


# -- partial lines ---------------------------------------------------------------------------------


def event(kind: str, **keys: object) -> dict[str, object]:
    return {"type": "stream_event", "event": {"type": kind, **keys}, "parent_tool_use_id": None}


def partials(frames: list[dict[str, object]]) -> list[object]:
    return [
        frame["line"]["event"]["type"]
        for frame in frames
        if frame["kind"] == "line" and "number" not in frame
    ]  # type: ignore[index]


def test_new_client_receives_the_start_of_the_current_block():
    play = Play()
    play.join_client(1)
    play.feed_stdout(
        event("message_start"), event("content_block_start"), event("content_block_stop")
    )
    play.feed_stdout(event("content_block_start"), event("content_block_delta"))
    assert partials(play.join_client(2)) == [
        "message_start",
        "content_block_start",
        "content_block_delta",
    ]
    assert partials(play.join_client(3, partial=False)) == []
    play.feed_stdout(event("content_block_delta"))
    assert [partials(play.read_frames(client))[-1:] for client in (1, 2, 3)] == [
        ["content_block_delta"]
    ] * 2 + [[]]
    play.feed_stdout(ASSISTANT_LINE)
    assert partials(play.join_client(4)) == ["message_start"]
    play.feed_stdout(event("content_block_stop"), event("content_block_start"))
    assert partials(play.read_frames(4)) == ["content_block_start"]
    assert list_line_numbers(play.read_frames(3)) == [1]


def test_long_block_is_not_stored_for_new_clients():
    play = Play()
    play.feed_stdout(event("message_start"), event("content_block_start"))
    for _ in range(30):
        play.feed_stdout(event("content_block_delta", text="x" * 50_000))
    assert partials(play.join_client(1)) == ["message_start"]
    play.feed_stdout(
        event("content_block_delta"), event("content_block_stop"), event("message_delta")
    )
    assert partials(play.read_frames(1)) == ["message_delta"]


# -- hostile clients -------------------------------------------------------------------------------


def test_malformed_frames_are_refused_and_too_many_disconnect_the_client():
    play = Play(max_frame_bytes=1000)
    play.join_client(1)
    for raw in (
        b"x",
        b"[]",
        b"{}",
        b'{"kind":1}',
        b'{"kind":"message","id":5}',
        b'{"kind":"hello"}',
        b"[" * 900,
    ):
        on_client_frame(play.hub, 1, raw)
        (refused,) = select_frames(play.read_frames(1), "refused")
        assert refused["reason"] == "bad-frame", raw
    long = b'{"kind":"take","id":"%b"}' % (b"x" * 300)
    on_client_frame(play.hub, 1, long)
    assert select_frames(play.read_frames(1), "refused")[0]["id"] is None
    on_client_frame(play.hub, 1, b'{"kind":"take","odd":"%b"}' % (b"x" * 1000))
    assert "max_inbound_bytes" in select_frames(play.read_frames(1), "refused")[0]["text"]
    for _ in range(MAX_BAD_FRAMES):
        on_client_frame(play.hub, 1, b"x")
    assert select_frames(play.read_frames(1), "bye") and 1 in play.dropped
    play.send_frame(1, "message", message=build_user_message())
    assert play.stdin == []


def test_unknown_kinds_without_an_id_and_unknown_keys_are_ignored():
    play = Play()
    play.join_client(1, odd="x")
    assert play.exchange_frames(1, "odd") == []
    assert (
        select_frames(play.exchange_frames(1, "odd", id="o"), "refused")[0]["reason"]
        == "unknown-kind"
    )
    assert select_frames(play.exchange_frames(1, "take", id="t", odd={"x": 1}), "accepted") == [
        {"id": "t"}
    ]


def test_client_is_disconnected_unless_its_first_frame_is_hello():
    play = Play()
    for client, raw in (
        (1, b'{"kind":"take"}'),
        (2, b"GET / HTTP/1.1"),
        (3, b'{"kind":"hello","protocol":1}'),
    ):
        play.hub.add_client(client)
        on_client_frame(play.hub, client, raw)
        assert list_kinds(play.read_frames(client)) == ["refused", "bye"]
    play.hub.add_client(4)
    play.seconds = HELLO_TIMEOUT_S
    play.hub.apply_timeouts_and_report_changes()
    assert list_kinds(play.read_frames(4)) == ["bye"] and set(play.dropped) == {1, 2, 3, 4}


def test_client_beyond_the_client_limit_is_disconnected():
    play = Play()
    for client in range(MAX_CLIENTS):
        play.hub.add_client(client)
    play.join_client(MAX_CLIENTS)
    assert list(play.dropped) == [MAX_CLIENTS]


def test_client_that_does_not_read_responses_is_disconnected():
    play = Play()
    play.join_client(1)
    for number in range(5000):
        play.send_frame(1, "take", id=f"t{number}")
    assert 1 in play.dropped and play.count_queued_bytes(1) < 5 * 1024 * 1024


def test_requests_beyond_the_pending_limit_are_refused():
    play = Play()
    play.join_client(1)
    for number in range(101):
        play.send_frame(1, "interrupt", id=f"i{number}")
    assert [each["id"] for each in select_frames(play.read_frames(1), "refused")] == ["i100"]


def test_client_name_is_truncated_and_has_no_control_characters():
    play = Play()
    name = play.join_client(1, client="\x1b[31m" + "x" * 100)[0]["client"]
    assert "\x1b" not in name and len(name) <= 64


def test_welcome_reports_a_protocol_version_difference():
    play = Play()
    for client, protocol in ((1, 2), (2, 7)):
        (welcome,) = select_frames(
            play.join_client(client, protocol=protocol, knows=["later"]), "welcome"
        )
        assert welcome["protocol"] == 1 and str(protocol) in welcome["differs"]
    play.send_frame(1, "take", id="t")
    assert (
        play.hub.roles.controller_name == "c1"
        and select_frames(play.read_frames(1), "accepted") == []
    )


def test_line_that_is_not_json_is_sent_as_text():
    play = Play()
    play.join_client(1)
    feed_conversation_stdout(play.hub, b'oops \xff\n5\n\n{"type":"keep_alive"}\n')
    play.run_commands()
    assert [frame["line"] for frame in play.read_frames(1) if frame["kind"] == "line"] == [
        "oops \ufffd",
        5,
    ]


def test_line_numbers_continue_in_the_next_generation():
    log = MemoryLog()
    first = Play(log)
    first.feed_stdout(ASSISTANT_LINE, ASSISTANT_LINE)
    log.generation = 2
    second = Play(log)
    second.feed_stdout(ASSISTANT_LINE)
    frames = second.join_client(1)
    assert [(each["generation"], each["number"]) for each in select_frames(frames, "line")] == [
        (1, 1),
        (1, 2),
        (2, 3),
    ]


def test_detail_changes_are_sent_at_most_once_per_second():
    play = Play()
    play.join_client(1)
    play.send_frame(1, "message", message=build_user_message())
    play.feed_stdout({"type": "system", "subtype": "init"})
    play.read_frames(1)
    for number in range(3):
        call = {"type": "tool_use", "name": "Bash", "input": {"command": f"ls {number}"}}
        play.feed_stdout(
            {"type": "assistant", "message": {"content": [call]}, "parent_tool_use_id": None}
        )
    assert (
        select_frames(play.read_frames(1), "state") == []
        and play.status_fields["detail"] == "starting…"
    )
    play.hub.apply_timeouts_and_report_changes()
    (state,) = select_frames(play.read_frames(1), "state")
    assert state["detail"] == "Bash: ls 2" == play.status_fields["detail"]
