"""The lines of a running session that a frontend receives."""

import itertools

import orjson
import pytest

from shim.bridge.attach.turn_filter import FrontendOutputOptions, FrontendTurnFilter, TurnOwner

PLAIN = FrontendOutputOptions()
SESSION = "0b5ca2c8-6f4e-4b9a-8f5e-0d9a3b1f2c3d"
MINE, THEIRS = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"


def line(kind, **fields):
    return orjson.dumps({"type": kind, **fields})


INIT = line("system", subtype="init", session_id=SESSION)
DELTA = line("stream_event", event={})
TEXT = line("assistant", message={"content": []})
RESULT = line("result", subtype="success", is_error=False, result="done")
STATE = line("system", subtype="session_state_changed", state="running")
STATUS = line("system", subtype="status", permissionMode="plan")


def echo(uuid):
    return line("user", message={}, uuid=uuid, isReplay=True)


def view(wants=PLAIN, *, driving=True, sent=(MINE,)):
    counter = itertools.count()
    turns = FrontendTurnFilter(wants, SESSION, lambda: f"id-{next(counter)}")
    turns.is_controller = driving
    for message_id in sent:
        turns.add_unanswered_message_id(message_id)
    return turns


def filter_lines(turns, *lines):
    return [output_line for raw in lines for output_line in turns.filter_line(raw)]


def test_turn_of_the_frontends_message_is_passed_on_without_deltas_and_echoes():
    turns = view()
    assert filter_lines(turns, INIT, echo(MINE), DELTA, TEXT, RESULT) == [INIT, TEXT, RESULT]
    assert turns.is_idle and turns.result["result"] == "done"


def test_deltas_and_message_echoes_are_passed_on_if_requested():
    turns = view(FrontendOutputOptions(wants_partial=True, replays_messages=True))
    assert filter_lines(turns, INIT, echo(MINE), DELTA, TEXT, RESULT) == [
        INIT,
        echo(MINE),
        DELTA,
        TEXT,
        RESULT,
    ]


def test_turn_of_another_clients_message_is_dropped():
    turns = view()
    assert filter_lines(turns, INIT, echo(THEIRS), DELTA, TEXT, RESULT) == []
    assert not turns.is_idle
    assert filter_lines(turns, INIT, echo(MINE), TEXT, RESULT) == [INIT, TEXT, RESULT]


def test_rest_of_a_turn_that_was_running_before_the_join_is_dropped():
    turns = view()
    turns.record_joined_session(INIT, is_running=True)
    assert filter_lines(turns, DELTA, TEXT, RESULT, STATUS) == [STATUS]
    assert not turns.is_idle


def test_message_sent_during_a_running_turn_is_answered_by_the_rest_of_the_turn():
    turns = view()
    turns.record_joined_session(INIT, is_running=True)
    assert filter_lines(turns, TEXT, echo(MINE), TEXT, RESULT) == [INIT, TEXT, RESULT]
    assert turns.is_idle


def test_single_result_answers_every_message_that_its_turn_echoed():
    turns = view(sent=(MINE, THEIRS))
    filter_lines(turns, INIT, echo(MINE), TEXT, echo(THEIRS), RESULT)
    assert turns.is_idle
    turns = view(sent=(MINE, THEIRS))
    filter_lines(turns, INIT, echo(MINE), TEXT, RESULT)
    assert list(turns.waiting_ids) == [THEIRS]


@pytest.mark.parametrize("driving", [True, False])
def test_turn_without_a_message_id_is_passed_only_to_the_controller(driving):
    turns = view(FrontendOutputOptions(wants_partial=True), driving=driving, sent=())
    assert filter_lines(turns, INIT, STATUS, DELTA, TEXT, RESULT) == (
        [INIT, STATUS, DELTA, TEXT, RESULT] if driving else []
    )


def test_message_without_an_echo_is_answered_by_the_next_result():
    turns = view()
    assert filter_lines(turns, RESULT) == [RESULT]
    assert turns.is_idle


def test_state_events_and_terminator_follow_the_output_options_of_the_frontend():
    turns = view(
        FrontendOutputOptions(state_events="host", terminator=b'{"type":"message_stop"}\n')
    )
    lines = filter_lines(turns, STATE, INIT, echo(MINE), TEXT, RESULT, line("message_stop"))
    running, *messages, idle = map(orjson.loads, lines)
    assert (running["state"], idle["state"]) == ("running", "idle") and running[
        "sdk_host_only"
    ] is True
    assert [message["type"] for message in messages] == [
        "system",
        "assistant",
        "result",
        "message_stop",
    ]
    assert filter_lines(view(), STATE) == []


def test_line_above_the_size_limit_of_the_frontend_is_truncated():
    turns = view(FrontendOutputOptions(max_line_bytes=2000))
    long = line("assistant", message={"content": [{"type": "text", "text": "x" * 9000}]})
    (cut,) = filter_lines(turns, INIT, echo(MINE), long)[1:]
    assert len(cut) <= 2000 and orjson.loads(cut)["type"] == "assistant"


def test_generated_result_follows_the_init_event_of_its_turn():
    turns = view()
    turns.filter_line(INIT)
    assert turns.owner is TurnOwner.UNKNOWN
    assert turns.end_turn_with_result({"type": "result", "is_error": True}) == [
        INIT,
        b'{"type":"result","is_error":true}',
    ]
    assert turns.is_idle


def test_generated_result_closes_the_partial_message_and_drops_later_lines():
    turns = view(FrontendOutputOptions(wants_partial=True))

    def event(kind, **fields):
        return line("stream_event", event={"type": kind, **fields}, parent_tool_use_id=None)

    delta = event("content_block_delta", index=3, delta={"type": "text_delta", "text": "One, t"})
    filter_lines(
        turns,
        INIT,
        echo(MINE),
        event("message_start", message={"id": "m"}),
        event("content_block_start", index=3),
        delta,
    )
    messages = [
        orjson.loads(raw)
        for raw in turns.end_turn_with_result({"type": "result", "is_error": True})
    ]
    kinds = [message.get("event", message)["type"] for message in messages]
    assert kinds == ["assistant", "content_block_stop", "message_delta", "message_stop", "result"]
    assert messages[0]["message"] == {"id": "m", "content": [{"type": "text", "text": "One, t"}]}
    assert messages[1]["event"]["index"] == 3
    assert filter_lines(turns, DELTA, TEXT, RESULT) == [], (
        "the rest of the turn is not its own any more"
    )
    turns.add_unanswered_message_id(THEIRS)
    assert filter_lines(turns, INIT, echo(THEIRS), TEXT, RESULT) == [INIT, TEXT, RESULT], (
        "the next one is"
    )
