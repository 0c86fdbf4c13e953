"""The two streams of a session: its lines as they are, and its steps as the page draws them."""

import http.client
import itertools
import json
from contextlib import closing

import pytest
from gateway_harness import PATIENCE, SESSION

from shim.bridge.gateway import streams
from shim.bridge.gateway.streams import (
    HostFrame,
    SessionStepEventEncoder,
    encode_server_sent_event,
    parse_log_cursor,
)
from shim.core.bridge.frames import LogCursor, encode_frame

PROMPT = {"type": "user", "isReplay": True, "message": {"role": "user", "content": "clean up"}}
INIT = {
    "type": "system",
    "subtype": "init",
    "session_id": SESSION,
    "model": "m1",
    "cwd": "/repo",
    "tools": ["Bash"],
}
TEXT = {"type": "assistant", "message": {"content": [{"type": "text", "text": "I *remove* it."}]}}
CALL = {
    "type": "assistant",
    "message": {
        "content": [
            {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "rm -r build"}}
        ]
    },
}
DONE = {
    "type": "user",
    "message": {"content": [{"type": "tool_result", "tool_use_id": "t1", "content": "gone"}]},
}
RESULT = {
    "type": "result",
    "subtype": "success",
    "result": "I *remove* it.",
    "total_cost_usd": 0.5,
    "usage": {},
}
TURN = (PROMPT, INIT, TEXT, CALL, DONE, RESULT)


def until(stream, kind):
    """The events up to the first of a kind, that one included."""
    events = []
    for each in stream:
        events.append(each)
        if each.kind == kind:
            return events
    raise AssertionError(f"no {kind} in {[server_event.kind for server_event in events]}")


def say(web, host, *lines):
    for line in lines:
        web.call_in_thread(host.add_line, **line)


def test_events_stream_sends_log_lines_unchanged_with_ids(web, host):
    say(web, host, *TURN)
    with web.open_stream(f"/sessions/{SESSION}/events") as stream:
        events = until(stream, "synced")
    lines = [server_event for server_event in events if server_event.kind == "line"]
    assert [server_event.data for server_event in lines] == [line for _, line in host.lines]
    assert [server_event.id for server_event in lines] == [f"1-{number}" for number in range(1, 7)]
    assert all(not server_event.id for server_event in events if server_event.kind != "line")


def test_events_stream_sends_partials_lines_and_prompts_live(web, host):
    with web.open_stream(f"/sessions/{SESSION}/events") as stream:
        until(stream, "synced")
        web.call_in_thread(host.send_partial, type="message_start")
        say(web, host, TEXT)
        web.call_in_thread(host.add_prompt)
        assert [server_event.kind for server_event in itertools.islice(stream, 3)] == [
            "partial",
            "line",
            "question",
        ]


@pytest.mark.parametrize("name", ["events", "steps"])
def test_stream_resumes_after_the_last_event_id(web, host, name):
    say(web, host, *TURN)
    with web.open_stream(f"/sessions/{SESSION}/{name}") as stream:
        ids = [server_event.id for server_event in until(stream, "synced") if server_event.id]
    assert ids[-1] == "1-6"
    say(web, host, PROMPT)
    with web.open_stream(f"/sessions/{SESSION}/{name}", after=ids[-1]) as stream:
        assert [server_event.id for server_event in until(stream, "synced") if server_event.id] == [
            "1-7"
        ]
    with web.open_stream(f"/sessions/{SESSION}/{name}?after=1-4") as stream:
        back = [server_event.id for server_event in until(stream, "synced") if server_event.id]
    assert back == ["1-5", "1-6", "1-7"]


def test_steps_stream_sends_steps_title_totals_and_welcome(web, host):
    say(web, host, *TURN)
    with web.open_stream(f"/sessions/{SESSION}/steps") as stream:
        events = until(stream, "synced")
    steps = [server_event.json for server_event in events if server_event.kind == "step"]
    assert [step["kind"] for step in steps] == ["prompt", "start", "text", "call", "result"]
    text, call = steps[2], steps[3]
    assert text["trees"] == [["p", "I ", ["em", "remove"], " it."]]
    assert (call["name"], call["main"], call["outcome"], call["output"]) == (
        "Bash",
        "rm -r build",
        "ok",
        "gone",
    )
    (about,) = [server_event.json for server_event in events if server_event.kind == "about"]
    assert about == {"title": "clean up", "began": 1000, "left_out": 0}
    (totals,) = [server_event.json for server_event in events if server_event.kind == "totals"]
    assert (totals["turns"], totals["calls"], totals["cost"]) == (1, 1, 0.5)
    (welcome,) = [server_event.json for server_event in events if server_event.kind == "welcome"]
    assert "initialize" not in welcome and welcome["name"] == "a test"


def test_event_id_is_on_the_last_step_of_a_line(web, host):
    """Who comes back with it has seen all of them."""
    both = {
        "type": "assistant",
        "message": {"content": TEXT["message"]["content"] + CALL["message"]["content"]},
    }
    say(web, host, both, INIT)
    with web.open_stream(f"/sessions/{SESSION}/steps") as stream:
        past = [
            (server_event.json["kind"], server_event.id)
            for server_event in until(stream, "synced")
            if server_event.kind == "step"
        ]
        both["message"]["content"][1] = {**both["message"]["content"][1], "id": "t2"}
        say(web, host, both)
        now = [
            (server_event.json["kind"], server_event.id)
            for server_event in itertools.islice(stream, 2)
        ]
    assert past == [("text", ""), ("call", "1-1"), ("start", "1-2")]
    assert now == [("text", ""), ("call", "1-3")]


def test_step_is_resent_when_its_result_arrives(web, host):
    with web.open_stream(f"/sessions/{SESSION}/steps") as stream:
        until(stream, "synced")
        say(web, host, PROMPT, CALL)
        first_events = until(stream, "step") + until(stream, "step")
        say(web, host, DONE)
        ended = until(stream, "step")
    (call, finished_call) = first_events[-1].json, ended[-1].json
    assert "outcome" not in call and call["fields"] == [["command", "rm -r build"]]
    assert finished_call["outcome"] == "ok" and finished_call["number"] == call["number"]


def test_denied_call_is_resent_as_denied_after_the_result(web, host):
    wrong = {**DONE, "message": {"content": [{**DONE["message"]["content"][0], "is_error": True}]}}
    denied = {**RESULT, "permission_denials": [{"tool_name": "Bash", "tool_use_id": "t1"}]}
    with web.open_stream(f"/sessions/{SESSION}/steps") as stream:
        until(stream, "synced")
        say(web, host, PROMPT, CALL, wrong, denied)
        events = [
            server_event.json
            for server_event in until(stream, "totals")
            if server_event.kind == "step"
        ]
    assert [(step["kind"], step.get("outcome")) for step in events if step["kind"] == "call"] == [
        ("call", None),
        ("call", "failed"),
        ("call", "denied"),
    ]


def test_steps_stream_sends_a_changed_permission_mode(web, host):
    with web.open_stream(f"/sessions/{SESSION}/steps") as stream:
        until(stream, "synced")
        say(
            web,
            host,
            {
                "type": "system",
                "subtype": "status",
                "status": None,
                "permissionMode": "acceptEdits",
            },
            RESULT,
        )
        assert next(stream).json == {"mode": "acceptEdits"}


def test_partial_text_is_sent_live_before_its_step(web, host):
    with web.open_stream(f"/sessions/{SESSION}/steps") as stream:
        until(stream, "synced")
        web.call_in_thread(
            host.send_partial,
            type="content_block_start",
            content_block={"type": "text", "text": ""},
        )
        web.call_in_thread(
            host.send_partial,
            type="content_block_delta",
            delta={"type": "text_delta", "text": "I *rem\x1b"},
        )
        say(web, host, TEXT)
        events = until(stream, "step")
    assert [server_event.kind for server_event in events] == ["live", "live", "step"]
    assert events[0].json == {"above": 0, "kind": "text", "name": "", "begin": True, "text": ""}
    assert events[1].json["text"] == "I *rem\\x1b"


def test_live_and_late_clients_receive_the_same_steps(web, host):
    with web.open_stream(f"/sessions/{SESSION}/steps") as stream:
        until(stream, "synced")
        for line in TURN:
            web.call_in_thread(
                host.send_partial,
                type="content_block_delta",
                delta={"type": "text_delta", "text": "some"},
            )
            say(web, host, line)
        watched = {
            server_event.json["number"]: server_event.json
            for server_event in until(stream, "totals")
            if server_event.kind == "step"
        }
    with web.open_stream(f"/sessions/{SESSION}/steps") as stream:
        late = {
            server_event.json["number"]: server_event.json
            for server_event in until(stream, "synced")
            if server_event.kind == "step"
        }
    assert watched == late


def test_last_parameter_limits_the_steps_of_the_history(web, host):
    for number in range(50):
        say(web, host, {**PROMPT, "message": {"role": "user", "content": f"number {number}"}})
    with web.open_stream(f"/sessions/{SESSION}/steps?last=3") as stream:
        events = until(stream, "synced")
    assert [
        server_event.json["text"] for server_event in events if server_event.kind == "step"
    ] == [
        "number 47",
        "number 48",
        "number 49",
    ]
    assert [
        server_event.json["left_out"] for server_event in events if server_event.kind == "about"
    ] == [47]
    assert web.send_get(f"/sessions/{SESSION}/steps?last=99999999").status == 400


def gap(reason):
    return encode_frame("gap", **{"from": 1, "to": 6, "reason": reason})


def test_slow_client_receives_a_gap_and_the_next_step(web, host):
    """As the hub has it: the numbered lines go on without a hole, and nothing is synced once more."""
    say(web, host, *TURN)
    with web.open_stream(f"/sessions/{SESSION}/steps") as stream:
        until(stream, "synced")
        web.call_in_thread(host.broadcast_frame, gap("slow"))
        say(web, host, PROMPT)
        events = until(stream, "step")
    assert [server_event.kind for server_event in events] == ["gap", "step"]
    assert (events[0].json["reason"], events[1].json["number"]) == ("slow", 6)


def test_reconnect_sends_a_gap_if_more_steps_are_missing_than_requested(web, host):
    for number in range(50):
        say(web, host, {**PROMPT, "message": {"role": "user", "content": f"number {number}"}})
    with web.open_stream(f"/sessions/{SESSION}/steps?last=3", after="1-46") as stream:
        events = until(stream, "synced")
    assert [
        server_event.kind
        for server_event in events
        if server_event.kind in ("gap", "about", "step")
    ] == [
        "gap",
        "about",
        *3 * ["step"],
    ]
    assert [
        server_event.json["left_out"] for server_event in events if server_event.kind == "about"
    ] == [47]
    with web.open_stream(f"/sessions/{SESSION}/steps?last=3", after="1-47") as stream:
        assert [
            server_event.json["text"]
            for server_event in until(stream, "synced")
            if server_event.kind == "step"
        ] == [
            "number 47",
            "number 48",
            "number 49",
        ]


def test_reconnect_resends_all_steps_if_the_log_lost_its_first_lines():
    lines = [(number, json.dumps(line).encode()) for number, line in enumerate(TURN, 1)]
    frames = [
        HostFrame("line", {"number": number, "generation": 1, "at": number, "raw": raw})
        for number, raw in lines
    ]
    drawn = SessionStepEventEncoder(LogCursor(1, 4), 500)
    log_frames = [
        HostFrame("gap", {"from": 1, "to": 2, "reason": "lost"}),
        *frames[2:],
        HostFrame("synced", {"number": 6}),
    ]
    output = b"".join(each for log_frame in log_frames for each in drawn.encode(log_frame))
    assert output.startswith(b"event: gap\n") and output.count(b"event: step\n") == 3


def test_unknown_cursor_receives_a_gap_and_the_complete_log(web, host):
    say(web, host, *TURN)
    with web.open_stream(f"/sessions/{SESSION}/steps", after="1-99") as stream:
        events = until(stream, "synced")
    assert (
        events[0].kind == "gap"
        and len([server_event for server_event in events if server_event.kind == "step"]) == 5
    )


def test_permission_prompt_event_contains_the_complete_input(web, host):
    web.call_in_thread(
        host.add_prompt,
        input={"command": "rm \u202e-r /", "deep": [[[[[["x"]]]]]], "long": "y" * 50_000},
    )
    with web.open_stream(f"/sessions/{SESSION}/steps") as stream:
        question = until(stream, "question")[-1].json
    assert (question["kind"], question["tool"], question["question"]) == (
        "permission",
        "Bash",
        "q1",
    )
    fields = dict(question["fields"])
    assert (
        "\u202e" not in fields["command"]
        and "-r /" in fields["command"]
        and question["main"] == fields["command"]
    )
    assert '"x"' in fields["deep"] and len(fields["long"]) == 50_000
    assert question["always"] == ["Bash(rm \\u202e-r /)"]


def test_ended_session_returns_204_if_all_events_were_received(web, host):
    say(web, host, *TURN)
    host.metadata["alive"] = False
    assert (
        web.send_get(f"/sessions/{SESSION}/steps", headers={"Last-Event-ID": "1-6"}).status == 204
    )
    with web.open_stream(f"/sessions/{SESSION}/steps", after="1-5") as stream:
        assert until(stream, "synced")


@pytest.mark.parametrize("name", ["events", "steps"])
@pytest.mark.parametrize(
    "lines", [(), TURN, (*TURN, {"type": "system", "subtype": "session_state_changed"})]
)
def test_reconnect_after_bye_returns_204_for_an_ended_session(web, host, name, lines):
    """The id of `bye` is the end of the log, also if the last line has no step or there is no line."""
    say(web, host, *lines)
    with web.open_stream(f"/sessions/{SESSION}/{name}") as stream:
        until(stream, "synced")
        web.call_in_thread(host.broadcast_frame, encode_frame("bye", reason="done"))
        last = until(stream, "bye")[-1].id
    assert last == f"1-{len(lines)}"
    host.metadata["alive"] = False
    assert (
        web.send_get(f"/sessions/{SESSION}/{name}", headers={"Last-Event-ID": last}).status == 204
    )


def test_stream_ends_when_the_host_connection_closes(web, host):
    with web.open_stream(f"/sessions/{SESSION}/events") as stream:
        until(stream, "synced")
        web.call_in_thread(host.clients[0].close)
        assert list(stream) == []


@pytest.mark.parametrize("name", ["events", "steps"])
def test_stream_headers_forbid_proxy_buffering_and_compression(web, host, name):
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=PATIENCE)
    connection.request("GET", f"/sessions/{SESSION}/{name}", headers=web.build_headers())
    with closing(connection), connection.getresponse() as answer:
        assert answer.headers.get_all("cache-control") == ["no-store, no-transform"]
        assert answer.headers["x-accel-buffering"] == "no"


def test_idle_stream_sends_heartbeat_comments(web, host, monkeypatch):
    monkeypatch.setattr(streams, "HEARTBEAT_INTERVAL_S", 0.01)
    connection = web.open_connection()
    token = web.tokens.load_tokens().watch
    connection.sendall(
        f"GET /sessions/{SESSION}/events HTTP/1.1\r\nHost: {web.host}\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    )
    data = b""
    while data.count(b": still here") < 2:
        data += connection.recv(65536)
    connection.close()
    assert b"retry: 1000" in data


def test_host_connection_closes_when_the_stream_closes(web, host):
    with web.open_stream(f"/sessions/{SESSION}/events") as stream:
        until(stream, "synced")
        assert len(host.clients) == 1
    _wait(web, lambda: not host.clients)


def _wait(web, condition):
    import time

    deadline = time.monotonic() + PATIENCE
    while not web.call_in_thread(condition):
        assert time.monotonic() < deadline


@pytest.mark.parametrize(
    "text", ["", "1", "-", "1-", "-1", "1-2-3", "a-b", "1-2\n", "9" * 40 + "-1", "1 - 2"]
)
def test_parse_cursor_returns_none_for_a_malformed_event_id(text):
    assert parse_log_cursor(text) is None


def test_line_breaks_in_data_do_not_end_a_server_sent_event():
    assert (
        encode_server_sent_event("line", b'{"a":\r\n1,\r"b":\n2}')
        == b'event: line\ndata: {"a":\ndata: 1,\ndata: "b":\ndata: 2}\n\n'
    )
