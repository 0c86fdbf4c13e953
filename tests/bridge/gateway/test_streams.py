"""The two streams of a session: its raw lines, and its steps as the page draws them."""

import gc
import http.client
import itertools
import json
import threading
from contextlib import ExitStack, asynccontextmanager, closing, nullcontext
from types import SimpleNamespace

import anyio
import pytest
from gateway_harness import SESSION, TIMEOUT_S, parse_events

from shim.bridge.gateway import drawings, streams
from shim.bridge.gateway.drawings import SessionDrawing, SessionDrawings
from shim.bridge.gateway.step_renderer import SessionStepRenderer
from shim.bridge.gateway.streams import (
    EventStreamResponse,
    HostFrame,
    SessionStepEventEncoder,
    encode_server_sent_event,
    parse_log_cursor,
)
from shim.core.bridge.frames import LogCursor, encode_frame
from shim.story.export.view_model import SessionStepView

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
    """Return the events up to and including the first of a kind."""
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
    """A client that reconnects with this id has received all steps of the line."""
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
    """The hub does the same: the numbered lines continue without a gap, and `synced` is not sent
    again.
    """
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


def build_frames(lines, first=1):
    """Return the frames of a host for numbered lines: a welcome, the lines, and `synced`."""
    last = first + len(lines) - 1
    return [
        HostFrame("welcome", {"generation": 1, "number": last}),
        *(
            HostFrame(
                "line",
                {
                    "number": number,
                    "generation": 1,
                    "at": number,
                    "raw": json.dumps(line).encode(),
                },
            )
            for number, line in enumerate(lines, first)
        ),
        HostFrame("synced", {"number": last}),
    ]


async def encode_all(encoder, frames):
    """Return what a reader sends for the frames, as kinds and JSON."""
    encoder.start()
    output = []
    for frame in frames:
        await encoder.prepare(frame)
        output += encoder.encode(frame)
    return list(parse_events(iter(b"".join(output).splitlines(keepends=True))))


def build_prompts(first, last):
    """Return lines that are one step each."""
    return [
        {**PROMPT, "message": {"role": "user", "content": f"number {number}"}}
        for number in range(first, last + 1)
    ]


def list_steps(events):
    return [server_event.json for server_event in events if server_event.kind == "step"]


@pytest.mark.anyio
async def test_reconnect_resends_all_steps_if_the_log_lost_its_first_lines():
    """Without the lost lines, the steps have other numbers. That is so for every page."""
    drawing = SessionDrawing()
    welcome, *lines, synced = build_frames(TURN)
    frames = [welcome, HostFrame("gap", {"from": 1, "to": 2, "reason": "lost"}), *lines[2:], synced]
    events = await encode_all(SessionStepEventEncoder(drawing, LogCursor(1, 4), 500), frames)
    assert [server_event.kind for server_event in events][:2] == ["welcome", "gap"]
    assert len(list_steps(events)) == 3
    other = await encode_all(
        SessionStepEventEncoder(drawing, LogCursor(1, 4), 500), [welcome, synced]
    )
    assert [server_event.kind for server_event in other][:2] == ["welcome", "gap"]
    assert list_steps(other) == list_steps(events)


@pytest.mark.anyio
async def test_reconnect_receives_at_most_200_steps():
    drawing = SessionDrawing()
    frames = build_frames(build_prompts(1, 500))
    await encode_all(SessionStepEventEncoder(drawing, None, 1000), frames)
    reconnect_frames = [frames[0], frames[-1]]
    for client_number, expected in ((500, []), (301, range(302, 501)), (300, range(301, 501))):
        events = await encode_all(
            SessionStepEventEncoder(drawing, LogCursor(1, client_number), 20_000), reconnect_frames
        )
        assert [step["number"] for step in list_steps(events)] == list(expected)
        assert "gap" not in [server_event.kind for server_event in events]
    events = await encode_all(
        SessionStepEventEncoder(drawing, LogCursor(1, 299), 20_000), reconnect_frames
    )
    assert [step["number"] for step in list_steps(events)] == list(range(301, 501))
    about = next(server_event.json for server_event in events if server_event.kind == "about")
    assert about["left_out"] == 300 and "gap" in [server_event.kind for server_event in events]


@pytest.mark.anyio
async def test_reader_receives_each_step_with_its_line():
    """Another reader has drawn the line. The streamed text of this reader must end in order."""
    drawing = SessionDrawing()
    welcome, *lines, _ = build_frames(TURN)
    start = [welcome, HostFrame("synced", {"number": 0})]
    first, second = (SessionStepEventEncoder(drawing, None, 500) for _ in range(2))
    await encode_all(first, start)
    await encode_all(second, start)
    events = await encode_all(first, lines)
    for frame in lines[:3]:
        assert len(list_steps(await encode_all(second, [frame]))) == 1
    # The call and its result are one step, which is sent in its last state.
    assert list_steps(await encode_all(second, lines[3:4])) == []
    (call,) = list_steps(await encode_all(second, lines[4:5]))
    assert call["outcome"] == "ok"
    assert list_steps(await encode_all(second, lines[5:])) == list_steps(events)[-1:]


@pytest.mark.anyio
async def test_slow_reader_restarts_after_steps_were_dropped():
    drawing = SessionDrawing(100)
    first, second = (SessionStepEventEncoder(drawing, None, 100) for _ in range(2))
    welcome, *lines, _ = build_frames(build_prompts(1, 300))
    for reader in (first, second):
        await encode_all(reader, [welcome, HostFrame("synced", {"number": 0})])
    assert len(list_steps(await encode_all(first, lines))) == 300
    events = await encode_all(second, lines[:250])
    assert [server_event.kind for server_event in events][:2] == ["gap", "about"]
    assert [step["number"] for step in list_steps(events)][-1] == 250
    assert len(list_steps(await encode_all(second, lines[250:]))) == 50


@pytest.mark.anyio
async def test_other_streams_get_the_loop_while_a_past_is_sent(monkeypatch):
    monkeypatch.setattr(streams, "MAX_SLICE_S", 0.0)
    encoder = SessionStepEventEncoder(SessionDrawing(), None, 500)
    response = EventStreamResponse(None, SESSION, encoder, lambda: True, nullcontext())
    frames = build_frames(build_prompts(1, 20))
    sender, receiver = anyio.create_memory_object_stream(len(frames))
    with sender, receiver:
        for frame in frames:
            sender.send_nowait(frame)
        sender.close()
        chunks = [chunk async for chunk in response._encode_chunks(receiver)]
    assert b"".join(chunks).count(b"event: step") == 20
    assert max(chunk.count(b"event: ") for chunk in chunks) == 1


def build_response(frames):
    """Build a response with the steps of a session whose host sends these frames."""

    async def feed():
        for frame in frames:
            yield {"kind": frame.kind, **frame.fields}

    @asynccontextmanager
    async def connect_to_session(session_id, **hello):
        yield feed()

    hosts = SimpleNamespace(connect_to_session=connect_to_session)
    encoder = SessionStepEventEncoder(SessionDrawing(), None, 500)
    return EventStreamResponse(hosts, SESSION, encoder, lambda: True, nullcontext())


@pytest.mark.anyio
async def test_browser_may_leave_while_frames_come():
    sender, receiver = anyio.create_memory_object_stream(1)
    sender.close()
    receiver.close()
    await build_response(build_frames(build_prompts(1, 3)))._read_frames(sender)


@pytest.mark.anyio
async def test_frames_pass_a_stream_in_batches(monkeypatch):
    """A stream that passes only one frame per round of a busy loop is too slow for its session."""
    monkeypatch.setattr(streams, "MAX_SLICE_S", TIMEOUT_S)
    rounds = 0

    async def count_rounds():
        nonlocal rounds
        while True:
            rounds += 1
            await anyio.sleep(0)

    response = build_response(build_frames(build_prompts(1, 1000)))
    sender, receiver = anyio.create_memory_object_stream(streams.MAX_WAITING_FRAMES)
    with anyio.fail_after(TIMEOUT_S), sender, receiver:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(response._read_frames, sender)
            tasks.start_soon(count_rounds)
            data = b"".join([chunk async for chunk in response._encode_chunks(receiver)])
            tasks.cancel_scope.cancel()
    assert data.count(b"event: step") == 500
    assert rounds < 200


@pytest.mark.anyio
async def test_encoded_step_keeps_only_its_json():
    """With many kept steps, a garbage collection would block all streams."""
    drawing = SessionDrawing()
    await drawing.draw_line(LogCursor(1, 1), 0, json.dumps(PROMPT).encode())
    (step,) = drawing.list_steps(0, 1)
    data = step.encode()
    assert step.encode() == data and json.loads(data)["kind"] == "prompt"
    assert not any(isinstance(value, SessionStepView) for value in gc.get_referents(step))


@pytest.mark.anyio
async def test_long_line_is_drawn_in_a_thread(monkeypatch):
    threads = []
    draw = SessionDrawing._draw_line

    def draw_and_record(self, cursor, at_ms, line):
        threads.append(threading.get_ident())
        draw(self, cursor, at_ms, line)

    monkeypatch.setattr(SessionDrawing, "_draw_line", draw_and_record)
    drawing = SessionDrawing()
    for number, size in enumerate((10, drawings.MAX_INLINE_LINE_BYTES), 1):
        await drawing.draw_line(LogCursor(1, number), 0, json.dumps("x" * size).encode())
    assert threads[0] == threading.get_ident() != threads[1]


def test_reconnecting_pages_share_a_drawing(web, host, monkeypatch):
    """The host is asked only for the lines after the last drawn line."""
    drawn_lines, update_steps = [], SessionStepRenderer.update_steps_from_line
    monkeypatch.setattr(
        SessionStepRenderer,
        "update_steps_from_line",
        lambda self, at_ms, line: drawn_lines.append(line) or update_steps(self, at_ms, line),
    )
    say(web, host, *build_prompts(1, 300))
    path = f"/sessions/{SESSION}/steps"
    with web.open_stream(path) as first, web.open_stream(path) as second:
        assert len(list_steps(until(first, "synced"))) == 300
        assert len(list_steps(until(second, "synced"))) == 300
        say(web, host, *build_prompts(301, 302))
        for stream in (first, second):
            assert [next(stream).json["number"] for _ in range(2)] == [301, 302]
    assert len(drawn_lines) == 302
    host.lines[:300] = [(0, b"none of these is read again")] * 300
    say(web, host, *build_prompts(303, 303))
    with web.open_stream(path, after="1-301") as stream:
        events = until(stream, "synced")
    assert [step["number"] for step in list_steps(events)] == [302, 303]
    assert len(drawn_lines) == 303


def test_pages_that_open_together_read_the_log_once(web, host, monkeypatch):
    """After a restart of the gateway all pages reconnect at once."""
    say(web, host, *build_prompts(1, 2000))
    positions, start = [], SessionStepEventEncoder.start

    def start_and_record(self):
        positions.append(start(self))
        return positions[-1]

    monkeypatch.setattr(SessionStepEventEncoder, "start", start_and_record)
    path = f"/sessions/{SESSION}/steps"
    with ExitStack() as stack:
        streams = [stack.enter_context(web.open_stream(path, after="1-1990")) for _ in range(5)]
        for stream in streams:
            assert len(list_steps(until(stream, "synced"))) == 10
    assert positions == [None, *4 * [LogCursor(1, 2000)]]


def test_page_can_ask_for_a_longer_past(web, host):
    say(web, host, *build_prompts(1, drawings.MAX_STORED_STEPS + 100))
    path = f"/sessions/{SESSION}/steps"
    for last, count in (("1000", 1000), ("20000", drawings.MAX_STORED_STEPS + 100)):
        with web.open_stream(f"{path}?last={last}") as stream:
            assert len(list_steps(until(stream, "synced"))) == count


def test_drawings_are_dropped_by_number_and_by_time(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(drawings.time, "monotonic", lambda: now[0])
    session_drawings = SessionDrawings()
    first = session_drawings.get_drawing("first")
    for number in range(drawings.MAX_STORED_DRAWINGS - 1):
        now[0] += 1
        session_drawings.get_drawing(str(number))
    assert session_drawings.get_drawing("first") is first
    first.list_steps(0, 0)
    now[0] += 1
    last = session_drawings.get_drawing("one more")
    assert session_drawings.get_drawing("first") is first
    assert session_drawings.get_drawing("one more") is last
    now[0] += drawings.UNUSED_DRAWING_TTL_S + 1
    session_drawings.get_drawing("2")
    assert session_drawings.get_drawing("first") is not first


def test_drawing_keeps_a_bounded_number_of_characters():
    drawing = SessionDrawing(10)
    for frame in build_frames(
        [{**PROMPT, "message": {"role": "user", "content": "x" * 15_000}}] * 9
    )[1:-1]:
        drawing._draw_line(frame.cursor, 0, frame.line)
    assert len(drawing.list_steps(0, 9)) == 2 and drawing.count_dropped_steps() == 7


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
    """The id of `bye` is the end of the log, also if the last line has no step or there is no
    line.
    """
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
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=TIMEOUT_S)
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

    deadline = time.monotonic() + TIMEOUT_S
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
