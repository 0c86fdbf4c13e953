"""Clients that answer no permission request: other clients may answer it; without any, the request
is denied.
"""

from hub_harness import Play, select_frames

ASKS = {
    "subtype": "can_use_tool",
    "tool_name": "Bash",
    "tool_use_id": "t",
    "input": {"command": "ls"},
}
QUESTION = {"type": "control_request", "request_id": "q", "request": ASKS}
DENIED = [{"question": "q", "by": None, "how": "deny"}]


def build_play(*others):
    """Build a hub whose controller, client 1, cannot answer. `others` are the roles of the other
    clients.
    """
    play = Play()
    play.join_client(1)
    for number, role in enumerate(others, 2):
        play.join_client(number, role)
    play.send_frame(1, "deaf", id="d")
    play.read_frames(1)
    return play


def test_permission_prompt_is_denied_if_no_client_can_answer():
    play = build_play("watch")
    play.feed_stdout(QUESTION)
    assert (
        select_frames(play.read_frames(1), "settled")
        == select_frames(play.read_frames(2), "settled")
        == DENIED
    )
    response = play.stdin[-1]["response"]["response"]
    assert response["behavior"] == "deny" and "cannot be requested here" in response["message"]


def test_permission_prompt_is_denied_when_the_only_answering_client_leaves():
    play = build_play("drive")
    play.feed_stdout(QUESTION)
    assert select_frames(play.read_frames(1), "settled") == []
    play.remove_client(2)
    assert select_frames(play.read_frames(1), "settled") == DENIED


def test_open_permission_prompt_is_denied_if_the_only_client_stops_answering():
    play = Play()
    play.join_client(1)
    play.feed_stdout(QUESTION)
    assert select_frames(play.exchange_frames(1, "deaf"), "settled") == DENIED


def test_permission_prompt_of_a_departed_clients_turn_waits():
    """The client that started the turn has left. A client that cannot answer connects and sends a
    message.
    """
    play, turn = Play(), "11111111-1111-4111-8111-111111111111"
    play.hub.send_first_message({"role": "user", "content": "hi"}, turn)
    play.feed_stdout({"type": "user", "uuid": turn, "isReplay": True}, QUESTION)
    play.join_client(1)
    message = {"role": "user", "content": "hello"}
    frames = play.exchange_frames(1, "deaf", id="d") + play.exchange_frames(
        1, "message", id="m", message=message
    )
    play.feed_stdout({"type": "user", "uuid": play.stdin[-1]["uuid"], "isReplay": True})
    assert select_frames(frames + play.read_frames(1), "settled") == []
    play.feed_stdout({"type": "result", "subtype": "success"})
    message_frames = play.exchange_frames(1, "message", id="n", message=message)
    play.feed_stdout(
        {"type": "user", "uuid": play.stdin[-1]["uuid"], "isReplay": True},
        {**QUESTION, "request_id": "q2"},
    )
    assert [
        frame["question"]
        for frame in select_frames(message_frames + play.read_frames(1), "settled")
        if frame["how"] == "deny"
    ] == ["q2"]


def test_permission_prompt_waits_in_a_session_without_a_controller():
    play = build_play()
    play.send_frame(1, "release")
    play.feed_stdout(QUESTION)
    assert select_frames(play.read_frames(1), "settled") == []
    play.remove_client(1)
    assert select_frames(play.join_client(2), "question") != []
