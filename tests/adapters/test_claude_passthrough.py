"""Pass-through: a real claude's lines are written unchanged, and the shim completes the stream when
claude dies.
"""

import json

import pytest
from fixture_cases import list_fixture_cases
from stream_invariants import check_frames
from stream_lines import parse_lines, summarize_lines

from shim.conversation.drivers.open_translation import create_standalone_child_stream
from shim.core.adapter.commands import SendToChildCommand, TurnStage
from shim.core.turn.assistant_message import MAX_MESSAGE_CHARS
from shim.core.turn.outcome import ChildExit
from shim.core.turn.result import INTERRUPTED, INTERRUPTED_IN_TOOL

SESSION = "851d713a-886d-4d24-bc21-276f94dd1653"
_numbers = iter(range(10**9))


def line(kind: str, **fields: object) -> str:
    """Return one line of a real claude, with its key order and a new uuid."""
    uuid = f"aaaaaaaa-0000-4000-8000-{next(_numbers):012x}"
    return json.dumps(
        {"type": kind, **fields, "session_id": SESSION, "uuid": uuid}, separators=(",", ":")
    )


INIT = line(
    "system",
    subtype="init",
    cwd="/repo",
    tools=["Bash"],
    model="opus",
    claude_code_version="2.1.327",
)


def assistant(*blocks: dict, message_id: str = "msg_1", parent: str | None = None) -> str:
    message = {
        "id": message_id,
        "role": "assistant",
        "model": "opus",
        "content": list(blocks),
        "usage": {},
    }
    return line("assistant", message=message, parent_tool_use_id=parent)


def text(content: str, **more: str) -> str:
    return assistant({"type": "text", "text": content}, **more)


def call(call_id: str, **more: str) -> str:
    return assistant(
        {"type": "tool_use", "id": call_id, "name": "Bash", "input": {"command": "ls"}}, **more
    )


def build_tool_result(call_id: str, parent: str | None = None) -> str:
    block = {"type": "tool_result", "tool_use_id": call_id, "content": "out"}
    return line("user", message={"role": "user", "content": [block]}, parent_tool_use_id=parent)


def stream(**event: object) -> str:
    return line("stream_event", event=event, parent_tool_use_id=None)


def result(message: str = "hi", *, is_error: bool = False, **fields: object) -> str:
    fields |= {"errors": [message]} if is_error else {"result": message}
    subtype = "error_during_execution" if is_error else "success"
    times = {"duration_ms": 1, "duration_api_ms": 1, "num_turns": 1}
    return line("result", subtype=subtype, is_error=is_error, **times, **fields)


def run(*lines: str, code: int | None = 0, partial: bool = False, stderr: str = "") -> list[str]:
    """Return the raw output lines for a claude that prints `lines` and exits."""
    translation = create_standalone_child_stream(
        "claude", include_partial_messages=partial, stable_ids=True
    )
    output = translation.feed("".join(raw_line + "\n" for raw_line in lines).encode())[0]
    output += translation.close(None if code is None else ChildExit(code=code), stderr)[0]
    check_frames(output)
    return output.decode().splitlines()


END = '{"type":"message_stop"}'


def test_complete_turn_is_passed_through_byte_for_byte():
    lines = [
        INIT,
        text("hi"),
        call("t"),
        build_tool_result("t"),
        text("done", message_id="msg_2"),
        result("done"),
    ]
    assert run(*lines) == [*lines, END]


@pytest.mark.parametrize("call_id", ["t", ""])
@pytest.mark.parametrize("parent", [None, "task"])
def test_calls_that_share_an_id_are_passed_through_unchanged(call_id, parent):
    """A proxy between claude and the model gives every call one id. The lines still pass
    unchanged.
    """
    other = {"type": "tool_use", "id": call_id, "name": "Bash", "input": {"command": "pwd"}}
    calls = [call(call_id, parent=parent), assistant(other, parent=parent)]
    lines = [
        INIT,
        *calls,
        build_tool_result(call_id, parent),
        build_tool_result(call_id, parent),
        text("done"),
        result("done"),
    ]
    assert run(*lines) == [*lines, END]


def test_calls_that_share_an_id_get_results_if_claude_dies():
    other = {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "pwd"}}
    output = run(INIT, call("t"), assistant(other), build_tool_result("t"), code=1)
    results = [
        block
        for event in map(json.loads, output)
        if event["type"] == "user"
        for block in event["message"]["content"]
    ]
    assert [(block["tool_use_id"], block["is_error"]) for block in results[1:]] == [("t", True)]


def test_unknown_event_types_and_keys_are_passed_through():
    lines = [INIT, line("brand_new", a={"b": [1, 2.50, "\\u00e9"]}), result()]
    assert run(*lines) == [*lines, END]


def test_whitespace_and_escapes_are_passed_through_unchanged():
    odd = '{ "type" : "assistant",  "message":{"model":"m", "content":[{"type":"text","text":"\\u0068\\u00e9"}]}}'
    assert odd in run(INIT, odd, result())


def test_carriage_returns_are_stripped():
    assert run(INIT + "\r", text("hi") + "\r", result() + "\r")[0] == INIT


def test_lines_before_init_and_after_the_result_are_passed_through():
    """Control responses come before init, session states after the result (contract S2, S16b)."""
    response = '{"type":"control_response","response":{"subtype":"success","request_id":"1","response":{}}}'
    idle = line("system", subtype="session_state_changed", state="idle")
    assert run(response, INIT, result(), idle)[:2] == [response, INIT]
    assert idle in run(INIT, result(), idle)


def test_stream_events_are_passed_through_only_with_partial_messages():
    """Contract S12."""
    events = [
        stream(type="message_start", message={"id": "msg_1", "model": "opus", "usage": {}}),
        stream(type="content_block_start", index=0, content_block={"type": "text", "text": ""}),
        stream(type="content_block_delta", index=0, delta={"type": "text_delta", "text": "hi"}),
        text("hi"),
        stream(type="content_block_stop", index=0),
        stream(type="message_delta", delta={"stop_reason": "end_turn"}, usage={}),
        stream(type="message_stop"),
    ]
    end = result()
    assert run(INIT, *events, end, partial=True) == [INIT, *events, end, END]
    assert run(INIT, *events, end) == [INIT, events[3], end, END]


def test_second_result_and_second_init_of_a_turn_are_dropped():
    """Contract S20: claude prints them for background work."""
    first, second = result("one"), result("two")
    output = run(INIT, text("one"), first, second)
    assert (output.count(first), output.count(second)) == (1, 0)
    another = INIT.replace("opus", "opus ")
    assert another not in run(INIT, another, text("hi"), result())


def test_init_after_a_result_starts_a_new_turn():
    """Contract S2: init is repeated before every turn."""
    lines = [
        INIT,
        text("one"),
        result("one"),
        INIT.replace("aaaaaaaa", "bbbbbbbb"),
        text("two"),
        result("two"),
    ]
    assert run(*lines) == [*lines[:3], END, *lines[3:], END]


def test_tool_result_without_its_call_is_dropped():
    orphan = build_tool_result("nobody")
    assert orphan not in run(INIT, orphan, result())


def test_replayed_user_message_is_passed_through():
    replay = line(
        "user", message={"role": "user", "content": "one"}, parent_tool_use_id=None, isReplay=True
    )
    assert replay in run(INIT, replay, result())


def test_subagent_lines_are_passed_through():
    lines = [
        INIT,
        call("task"),
        call("n", parent="task"),
        build_tool_result("n", parent="task"),
        build_tool_result("task"),
        result(),
    ]
    assert run(*lines) == [*lines, END]


# -- a frontend that reads to no terminator: a real claude's lines pass through unchanged ----------


def run_passthrough(*lines: str, terminator: str = "none") -> list[str]:
    """Return a frontend's lines in a conversation. Each result is written at once, and the child
    stays.
    """
    child_stream = create_standalone_child_stream(
        "claude", terminator=terminator, include_partial_messages=True, stable_ids=True
    )
    output = b""
    for raw_line in lines:
        data, commands = child_stream.feed(raw_line.encode() + b"\n")
        output += data + (child_stream.finish()[0] if TurnStage.VENDOR_DONE in commands else b"")
    return output.decode().splitlines()


RECORDED = [case for case in list_fixture_cases("claude") if case.folder.name.startswith("2.")]


def test_recorded_claude_output_is_passed_through_byte_for_byte():
    assert len(RECORDED) > 50
    for case in RECORDED:
        lines = case.data.decode("utf-8", "surrogateescape").splitlines()
        sound = [raw_line for raw_line in lines if raw_line.startswith("{") and raw_line.isascii()]
        if len(sound) == len(lines):
            assert run_passthrough(*lines) == lines, case.folder.name


def test_results_of_background_work_are_passed_through_after_the_first():
    """Contract S20: each of them has its own `init`, and they come together at the end."""
    another = INIT.replace("opus", "opus ")
    lines = [INIT, another, text("one"), result("one"), text("two"), result("two")]
    assert run_passthrough(*lines) == lines
    late = [text("late"), result("late")]
    assert run_passthrough(*lines, *late) == lines, "a result that no `init` stands for"
    assert run_passthrough(*lines, terminator="message_stop") == [INIT, *lines[2:4], END], (
        "it ends the turn"
    )


def test_unpaired_calls_and_tool_results_are_passed_through():
    lines = [INIT, build_tool_result("nobody"), call("t"), result()]
    assert run_passthrough(*lines) == lines


def test_replayed_message_before_the_next_init_is_passed_through():
    replay = line(
        "user", message={"role": "user", "content": "two"}, parent_tool_use_id=None, isReplay=True
    )
    lines = [
        INIT,
        text("one"),
        result("one"),
        replay,
        INIT.replace("aaaaaaaa", "bbbbbbbb"),
        text("two"),
        result("two"),
    ]
    assert run_passthrough(*lines) == lines


# -- the output of a dying claude ------------------------------------------------------------------


def ends(*lines: str, **how: object) -> list[str]:
    return summarize_lines(parse_lines("\n".join(run(*lines, **how)).encode()))


@pytest.mark.parametrize("code", [0, 1, 143, None])
def test_claude_exit_without_a_result_is_an_error(code):
    summary = ends(INIT, text("hi"), code=code)
    assert summary[:2] == ["init", "text:hi"]
    assert summary[2].startswith("end:error_during_execution! claude")
    assert summary[3:] == ["."]


def test_silent_claude_exit_produces_init_and_an_error():
    summary = ends(code=1, stderr="error: unknown option '--nope'")
    assert summary[0] == "init"
    assert "unknown option" in summary[1]


def test_plain_text_output_becomes_the_error_message():
    """`claude` answers in plain text if it was started with wrong arguments (contract 11)."""
    assert "not logged in, sorry" in ends("not logged in, sorry", code=1)[1]


def test_open_call_gets_a_failed_result_when_claude_dies():
    summary = ends(INIT, call("t"), code=137)
    assert summary[2].startswith("failed:t ")


def test_open_subagent_call_gets_a_failed_result_when_claude_dies():
    """Contract S16c: every tool_use."""
    summary = ends(INIT, call("task"), call("n", parent="task"), code=137)
    answered = [entry for entry in summary if "failed:" in entry]
    assert len(answered) == 2


@pytest.mark.parametrize("kind", ["text", "thinking"])
def test_open_text_or_thinking_block_is_closed_when_claude_dies(kind):
    opened = {"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {})
    summary = ends(
        INIT,
        stream(type="message_start", message={"id": "msg_1", "model": "opus", "usage": {}}),
        stream(type="content_block_start", index=0, content_block=opened),
        stream(
            type="content_block_delta", index=0, delta={"type": f"{kind}_delta", kind: "half of"}
        ),
        code=143,
        partial=True,
    )
    assert summary[:4] == [
        "init",
        "start",
        f"open:{kind}",
        ("+" if kind == "text" else "~") + "half of",
    ]
    assert summary[4:6] == [("text:" if kind == "text" else "think:") + "half of", "stop"]
    assert summary[6].startswith("done:")
    assert summary[7].startswith("end:error_during_execution!")


def test_open_tool_use_block_is_closed_when_claude_dies():
    summary = ends(
        INIT,
        stream(type="message_start", message={"id": "msg_1", "model": "opus", "usage": {}}),
        stream(
            type="content_block_start",
            index=0,
            content_block={"type": "tool_use", "id": "t", "name": "Bash"},
        ),
        stream(
            type="content_block_delta",
            index=0,
            delta={"type": "input_json_delta", "partial_json": "{"},
        ),
        code=143,
        partial=True,
    )
    assert summary[2] == "open:tool_use"
    assert "stop" in summary[3:] and summary[-3].startswith("done:")


def test_nonzero_exit_after_a_success_result_is_an_error():
    """House: a non-zero exit after a successful result is an error. The result waits for the
    exit.
    """
    summary = ends(INIT, text("hi"), result("hi"), code=1)
    assert summary[-2].startswith(
        "end:error_during_execution! claude reported success, but exited with code 1"
    )


def test_error_result_is_passed_through_with_any_exit_status():
    """claude itself exits with 1 after an error result (contract 5.8)."""
    failed = result("boom", is_error=True)
    for code in (0, 1):
        assert failed in run(INIT, text("hi"), failed, code=code)


def test_init_is_added_before_a_result_without_init():
    """Contract 5.10: a session that cannot start prints only a result. The shim guarantees one
    init.
    """
    failed = result("No conversation found with session ID: x", is_error=True)
    output = run(failed, code=1)
    assert output[1:] == [failed, END]
    assert json.loads(output[0])["session_id"] == SESSION


def test_frontend_interrupt_ends_the_turn_with_an_error_result():
    translation = create_standalone_child_stream("claude", stable_ids=True)
    output = translation.feed((INIT + "\n" + text("hi") + "\n").encode())[0]
    translation.turn.record_interrupt()
    output += translation.close(None)[0]
    check_frames(output)
    assert summarize_lines(parse_lines(output))[-2].startswith("end:error_during_execution!")


def interrupt_line(content: str = INTERRUPTED, **more: object) -> str:
    message = {"role": "user", "content": [{"type": "text", "text": content}]}
    return line("user", message=message, parent_tool_use_id=None, **more)


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize(
    ("interrupt_text", "reason"),
    [(INTERRUPTED, "aborted_streaming"), (INTERRUPTED_IN_TOOL, "aborted_tools")],
)
def test_interrupt_message_without_a_result_ends_the_turn_as_interrupted(
    interrupt_text, reason, partial
):
    """This happens while it starts. Its own line reports the interrupt and is written once."""
    lines = (INIT, text("hi"), interrupt_line(interrupt_text))
    events = [json.loads(entry) for entry in run(*lines, partial=partial)]
    assert [entry for entry in events if entry["type"] == "user"] == [json.loads(lines[-1])]
    (end,) = [entry for entry in events if entry["type"] == "result"]
    assert (end["subtype"], end["num_turns"], end["errors"]) == (
        "error_during_execution",
        2,
        [INTERRUPTED],
    )
    assert (end["terminal_reason"], end["shim"]["cause"]) == (reason, "interrupted")


@pytest.mark.parametrize("partial", [False, True])
def test_result_after_an_interrupt_message_is_passed_through(partial):
    lines = [INIT, text("hi"), interrupt_line(), result("[ede_diagnostic]", is_error=True)]
    assert run(*lines, partial=partial) == [*lines, END]


def test_replayed_interrupt_message_does_not_interrupt_the_turn():
    output = run(INIT, interrupt_line(isReplay=True), code=1)
    assert "exited with code 1" in output[-2]


def test_terminator_is_written_after_lines_that_follow_the_result():
    state = line("system", subtype="session_state_changed", state="idle")
    lines = [INIT, text("hi"), result(), state]
    assert run(*lines) == [*lines, END]
    child_stream = create_standalone_child_stream("claude", stable_ids=True)
    _, commands = child_stream.feed("".join(raw_line + "\n" for raw_line in lines).encode())
    assert TurnStage.FINISHED not in commands and TurnStage.VENDOR_DONE in commands
    assert child_stream.close(ChildExit(code=0))[0] == END.encode() + b"\n"


def test_line_with_invalid_utf8_is_reencoded():
    odd = text("x").encode().replace(b'"x"', b'"caf\xe9"')
    translation = create_standalone_child_stream("claude", stable_ids=True)
    output = translation.feed(INIT.encode() + b"\n" + odd + b"\n" + result().encode() + b"\n")[0]
    output += translation.close(ChildExit(code=0))[0]
    assert "text:caf\ufffd" in summarize_lines(parse_lines(output))


# -- output that no real claude prints -------------------------------------------------------------


def test_oversized_permission_request_is_denied_by_the_shim():
    translation = create_standalone_child_stream("claude", stable_ids=True)
    request = {
        "subtype": "can_use_tool",
        "tool_name": "Write",
        "input": {"content": "x" * translation.writer.max_bytes},
    }
    output, commands = translation.feed(
        f"{INIT}\n{line('control_request', request_id='q', request=request)}\n".encode()
    )
    assert b"control_request" not in output
    (answer,) = [json.loads(each.line) for each in commands if isinstance(each, SendToChildCommand)]
    assert answer["response"]["request_id"] == "q"
    assert answer["response"]["response"]["behavior"] == "deny"


def test_lines_after_the_terminator_are_dropped():
    """If the shim ends the turn (here: the frontend stopped it), the terminator follows at once."""
    translation = create_standalone_child_stream("claude", stable_ids=True)
    output = translation.feed((INIT + "\n" + result() + "\n").encode())[0]
    translation.turn.record_interrupt()
    output += translation.feed((line("brand_new") + "\n").encode())[0] + translation.close(None)[0]
    (turn,) = check_frames(output)
    assert turn[-2]["type"] == "result"
    assert translation.diagnostics.repairs["late_event"] == 1


def test_unfinished_streamed_block_is_stored_up_to_a_limit():
    translation = create_standalone_child_stream("claude", stable_ids=True)
    opening = [
        stream(type="message_start", message={"id": "msg_1", "model": "opus", "usage": {}}),
        stream(type="content_block_start", index=0, content_block={"type": "text", "text": ""}),
    ]
    delta = stream(
        type="content_block_delta", index=0, delta={"type": "text_delta", "text": "x" * 100_000}
    )
    translation.feed(("\n".join([INIT, *opening, *[delta] * 60]) + "\n").encode())
    assert 0 < sum(map(len, translation.turn.text_blocks.fragments)) <= MAX_MESSAGE_CHARS
    assert translation.close(ChildExit(code=1))[0].endswith(END.encode() + b"\n")


@pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])
def test_open_block_outside_a_message_ends_in_an_error_result(partial):
    events = [
        stream(type="content_block_stop", index=0),
        stream(type="content_block_start", index=0, content_block={"type": "text", "text": ""}),
        stream(type="content_block_delta", index=0, delta={"type": "text_delta", "text": "half a"}),
    ]
    *_, error, end = ends(INIT, *events, code=1, partial=partial)
    assert (error, end) == (
        "end:error_during_execution! claude exited with code 1 before it finished",
        ".",
    )
