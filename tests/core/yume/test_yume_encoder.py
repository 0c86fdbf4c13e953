"""Yume's encoder: its line shapes, and its rules R1 to R15, each by its number."""

import json

import pytest
from fixture_cases import find_case
from sweeps import loop_over_rows
from yume_stream import MOST_BYTES, FlatStage, check_flat, summarize_flat_lines, translate_flat

from shim.conversation.drivers.open_translation import (
    STABLE_ID_PREFIX,
    STABLE_SESSION_ID,
    create_output_writer,
    create_standalone_child_stream,
)
from shim.core.claude.permissions import PermissionRequest
from shim.core.claude.usage import NO_USAGE, create_usage
from shim.core.claude.writer import StreamJsonWriter
from shim.core.turn.outcome import ChildExit
from shim.core.yume.encoder import YumeEncoder
from shim.core.yume.protocol import (
    choose_yume_error_code,
    format_tool_result,
    parse_retry_delay_s,
    parse_yume_permission_mode,
)

U = "11111111-2222-4333-8444-555555555555"
V = "99999999-2222-4333-8444-555555555555"


@pytest.fixture
def stage():
    opened = FlatStage()
    opened.turn.record_vendor_session_info(
        session_id=U, model="m", cwd="/repo", tools=["Read", "Agent"]
    )
    return opened


def end_turn(stage, **options):
    stage.turn.record_turn_end()
    lines = stage.finish_turn(**options)
    check_flat(stage.bytes)
    return lines


# -- R1 to R8 --------------------------------------------------------------------------------------


def test_r1_init_is_the_first_line_and_is_not_repeated(stage):
    init, *_ = end_turn(stage)
    assert (
        init.items()
        >= {
            "type": "system",
            "subtype": "init",
            "session_id": U,
            "model": "m",
            "cwd": "/repo",
            "permissionMode": "default",
            "tools": ["Read", "Task"],
        }.items()
    )
    stage.turn = stage.turn.create_next()
    stage.turn.add_block("more")
    assert summarize_flat_lines(end_turn(stage)) == [
        "text more",
        "usage",
        "result success",
        "message_stop",
    ]


def test_r1_session_change_emits_session_id_instead_of_a_second_init(stage):
    """Each vendor of a fallback list has a session of its own."""
    stage.encoder.write_init_message(U, {})
    stage.encoder.write_init_message(V, {})
    assert [line["subtype"] for line in stage.take_lines()] == ["init", "session_id"]


def test_r1_failure_before_any_output_emits_init_first(stage):
    empty = FlatStage()
    empty.turn.record_failure("no")
    assert summarize_flat_lines(empty.finish_turn())[0] == "init"


def test_r2_each_text_fragment_is_a_numbered_line_without_repetition(stage):
    for fragment in ("Hel", "lo ", "you"):
        stage.turn.add_text(fragment)
    stage.turn.update_text("Hello you")
    stage.turn.end_block()
    texts = [line for line in end_turn(stage) if line["type"] == "text"]
    assert [line["content"] for line in texts] == ["Hel", "lo ", "you"]
    assert [line["id"] for line in texts] == ["chunk-1", "chunk-2", "chunk-3"]
    assert texts[0] == {"type": "text", "content": "Hel", "id": "chunk-1"}


def test_r3_parallel_calls_are_emitted_sequentially_with_their_results(stage):
    turn = stage.turn
    turn.add_tool_call("a", "Read", {"file_path": "/a"})
    turn.add_tool_call("b", "Bash", {"command": "ls"})
    turn.add_tool_call("c", "Bash", {"command": "pwd"})
    turn.add_text("meanwhile")
    assert summarize_flat_lines(stage.take_lines()) == ["init", "call a Read"]
    turn.add_tool_result("c", "third")
    turn.add_tool_result("b", "second", True)
    assert summarize_flat_lines(stage.take_lines()) == []
    turn.add_tool_result("a", "first")
    assert summarize_flat_lines(stage.take_lines()) == [
        "result a first",
        "call b Bash",
        "failed b second",
        "call c Bash",
        "result c third",
        "text meanwhile",
    ]
    end_turn(stage)


def test_r3_call_without_a_result_gets_an_error_result_before_the_end(stage):
    stage.turn.add_tool_call("a", "Read", {})
    stage.turn.add_tool_call("b", "Read", {})
    assert summarize_flat_lines(end_turn(stage))[1:5] == [
        "call a Read",
        "failed a No result was reported for this call.",
        "call b Read",
        "failed b No result was reported for this call.",
    ]


def test_r4_reused_call_id_gets_a_new_id_and_a_retried_call_is_skipped(stage):
    stage.turn.add_tool_call("a", "Read", {})
    stage.turn.add_tool_call("a", "Read", {})
    stage.turn.add_tool_result("a", "x")
    stage.turn.add_tool_call("a", "Read", {})
    stage.turn.add_tool_result("a", "y")
    calls = [entry for entry in summarize_flat_lines(end_turn(stage)) if entry.startswith("call")]
    assert calls == ["call a Read", "call a~2 Read"]


def test_r5_arguments_that_are_not_an_object_are_wrapped_in_raw(stage):
    stage.turn.add_tool_call("a", "Bash", "rm")
    (call,) = (line for line in end_turn(stage) if line["type"] == "tool_use")
    assert call == {"type": "tool_use", "id": "a", "name": "Bash", "input": {"raw": "rm"}}


def test_r6_vendor_usage_is_emitted_without_an_estimated_flag(stage):
    numbers = {
        "input_tokens": 5,
        "output_tokens": 6,
        "cache_creation_input_tokens": 7,
        "cache_read_input_tokens": 8,
    }
    stage.turn.add_block("x")
    stage.turn.end_message(numbers)
    *_, usage, result, _ = end_turn(stage)
    assert usage == {"type": "usage", **numbers} and result["usage"] == numbers


def test_r6_missing_usage_is_estimated_at_four_characters_per_token(stage):
    from shim.core.claude.messages import UserMessage

    stage.turn.set_user_message(UserMessage("p" * 40), replays=False)
    stage.turn.add_text("é" * 10)
    stage.turn.add_text("b" * 7)
    *_, usage, _, _ = end_turn(stage)
    assert (usage["input_tokens"], usage["output_tokens"], usage["estimated"]) == (10, 5, True)


def test_r6_failure_without_a_reply_has_an_estimated_usage_of_zero(stage):
    from shim.core.claude.messages import UserMessage

    stage.turn.set_user_message(UserMessage("p" * 40), replays=False)
    stage.turn.record_failure("429 slow down")
    (usage,) = (line for line in stage.finish_turn() if line["type"] == "usage")
    assert (usage["input_tokens"], usage["estimated"]) == (0, True)


@pytest.mark.parametrize(
    "how", ["record_turn_end", "record_failure", "record_interrupt", "nothing"]
)
def test_r7_every_turn_ends_with_a_result_and_message_stop(stage, how):
    stage.turn.add_text("x")
    if how != "nothing":
        getattr(stage.turn, how)(*(["boom"] if how == "record_failure" else []))
    assert [line["type"] for line in stage.finish_turn()][-2:] == ["result", "message_stop"]
    check_flat(stage.bytes)


def test_r7_internal_error_closes_open_calls_with_an_internal_cause(stage):
    stage.turn.add_tool_call("a", "Read", {})
    stage.turn.add_tool_call("b", "Read", {})
    stage.turn.write_internal_error("a mistake")
    stage.take_lines()
    (turn,) = check_flat(stage.bytes)
    assert turn[-2]["shim"]["cause"] == "internal"


@pytest.mark.parametrize("chosen", ["dollar", "none", "message_stop"])
def test_r8_terminator_is_always_message_stop(chosen):
    writer = create_output_writer("yume", STABLE_ID_PREFIX, terminator=chosen)
    writer.write_init_message(U, {})
    writer.write_result({"is_error": False, "shim": {"cause": "clean"}})
    assert writer.take_bytes().endswith(b'}\n{"type":"message_stop"}\n')


# -- R9 to R15 -------------------------------------------------------------------------------------


def test_r9_interrupt_emits_an_event_and_a_cancelled_result(stage):
    stage.turn.add_text("half")
    stage.turn.record_interrupt()
    *_, event, result, _ = stage.finish_turn()
    assert event == {"type": "interrupt"}
    assert (result["is_error"], result["subtype"]) == (True, "cancelled")


def test_r10_auth_failure_before_any_output_is_a_system_error(stage):
    stage.turn.record_failure("401 Incorrect API key provided", api=True)
    *_, error, result, _ = stage.finish_turn()
    assert (error["type"], error["subtype"], error["code"]) == ("system", "error", "AUTH")
    assert result["is_error"] and error["message"] in result["errors"]


def test_r10_auth_failure_after_output_is_an_error_line(stage):
    stage.turn.add_text("I was saying")
    stage.turn.record_failure("401 Incorrect API key provided", api=True)
    *_, error, result, _ = stage.finish_turn()
    assert (error["type"], error["code"], result["is_error"]) == ("error", "AUTH", True)


def test_r11_rate_limit_error_contains_retry_after(stage):
    stage.turn.record_failure("429 Too many requests, try again in 20s", api=True)
    *_, error, result, _ = stage.finish_turn()
    assert (
        error.items()
        >= {"code": "RATE_LIMIT", "status": 429, "retryable": True, "retry_after": 20.0}.items()
    )
    assert result.items() >= {"status": 429, "retryable": True, "retry_after": 20.0}.items()


@pytest.mark.parametrize("message", ["500 internal server error", "529 overloaded"])
def test_r11_server_error_is_retryable(stage, message):
    stage.turn.record_failure(message, api=True)
    *_, error, result, _ = stage.finish_turn()
    assert (error["code"], error["retryable"], result["retryable"]) == ("SERVER", True, True)


def test_r11_invalid_request_error_has_no_retryable_field(stage):
    stage.turn.record_failure("400 messages: field required", api=True)
    *_, error, result, _ = stage.finish_turn()
    assert "retryable" not in error and "retryable" not in result


CUT = "connection lost"


@loop_over_rows(
    ("done", "retried"),
    [
        ([], True),
        ([("add_text", "half")], True),
        ([("add_tool_call", "a", "Read", {})], False),
        ([("add_tool_call", "a", "Read", {}), ("add_tool_result", "a", "x")], False),
        ([("add_text", "one"), ("end_message",), ("add_text", "two")], False),
    ],
)
def test_r11_disconnected_stream_is_retried_unless_a_call_was_emitted(done, retried):
    translation = create_standalone_child_stream("demo", dialect="yume", stable_ids=True)
    translation.turn.record_vendor_session_info(session_id=U)
    for verb, *args in done:
        getattr(translation.turn, verb)(*args)
    assert translation.start_retry(ChildExit(code=1), CUT) is retried


@pytest.mark.parametrize(
    ("code", "stderr"),
    [(1, "Error: 401 unauthorized"), (2, "bad flag"), (1, "429 rate limit exceeded")],
)
def test_r11_other_failures_are_not_retried(code, stderr):
    translation = create_standalone_child_stream("demo", dialect="yume", stable_ids=True)
    translation.turn.record_vendor_session_info(session_id=U)
    translation.turn.add_text("half")
    assert not translation.start_retry(ChildExit(code=code), stderr)


def test_r11_disconnected_stream_is_not_retried_in_the_claude_dialect():
    translation = create_standalone_child_stream("demo", stable_ids=True)
    translation.turn.record_vendor_session_info(session_id=U)
    assert not translation.start_retry(ChildExit(code=1), CUT)


def test_r11_text_emitted_before_a_retry_is_not_repeated():
    translation = create_standalone_child_stream("demo", dialect="yume", stable_ids=True)
    translation.turn.record_vendor_session_info(session_id=U)
    translation.turn.add_text("one two")
    assert translation.start_retry(ChildExit(code=0), "")
    translation.turn.record_vendor_session_info(session_id=U)
    for fragment in ("one ", "two", " three"):
        translation.turn.add_text(fragment)
    translation.turn.record_turn_end()
    lines = [json.loads(line) for line in translation.close(ChildExit(code=0))[0].splitlines()]
    assert summarize_flat_lines(lines) == [
        "init",
        "text one two",
        "text  three",
        "usage",
        "result success",
        "message_stop",
    ]


def test_r11_message_longer_than_the_buffer_limit_is_not_retried(monkeypatch):
    monkeypatch.setattr("shim.core.turn.assistant_message.MAX_MESSAGE_CHARS", 10)
    translation = create_standalone_child_stream("demo", dialect="yume", stable_ids=True)
    translation.turn.record_vendor_session_info(session_id=U)
    translation.turn.add_block("more than ten characters")
    assert not translation.start_retry(ChildExit(code=1), CUT)


def test_r12_new_vendor_session_emits_session_id_and_is_in_the_result(stage):
    stage.turn.record_vendor_session_info(session_id=V)
    stage.turn.add_block("x")
    init, changed, *_, result, _ = end_turn(stage)
    assert changed == {"type": "system", "subtype": "session_id", "session_id": V}
    assert (init["session_id"], result["session_id"]) == (U, V)


def test_r12_requested_session_id_is_not_replaced_by_the_vendor_session():
    stage = FlatStage(requested_id=STABLE_SESSION_ID)
    stage.turn.record_vendor_session_info(session_id=U)
    stage.turn.record_vendor_session_info(session_id=V)
    assert [line.get("subtype") for line in end_turn(stage)].count("session_id") == 0


@pytest.mark.parametrize("trigger", ["manual", "auto", "threshold"])
def test_r12_compaction_emits_a_compact_boundary(stage, trigger):
    stage.turn.write_compaction(trigger, 50000)
    (line,) = (line for line in end_turn(stage) if line.get("subtype") == "compact_boundary")
    assert line["compact_metadata"] == {
        "trigger": "manual" if trigger == "manual" else "auto",
        "pre_tokens": 50000,
    }


def test_r12_other_system_events_are_not_emitted(stage):
    stage.turn.write_retry(1, 3, 500, "503")
    stage.turn.write_system_event("task_started", task_id="x", description="y")
    assert summarize_flat_lines(end_turn(stage)) == [
        "init",
        "usage",
        "result success",
        "message_stop",
    ]


def test_r13_each_thinking_fragment_is_a_flat_line(stage):
    stage.turn.add_thinking("Hm")
    stage.turn.add_thinking("m.")
    thinking_lines = [line for line in end_turn(stage) if line["type"] == "thinking"]
    assert thinking_lines == [
        {"type": "thinking", "is_thinking": True, "thought": "Hm"},
        {"type": "thinking", "is_thinking": True, "thought": "m."},
    ]


def test_r14_denied_call_has_an_error_result_with_the_denial_message(stage):
    permission = PermissionRequest("r1", "a", "Bash", {}, "shell", {})
    stage.turn.request_permission("r1", "a", "Bash", {}, ("shell", {}))
    stage.turn.record_permission_denial(permission, "Not today.")
    stage.turn.add_tool_result("a", "vendor's own words", True)
    assert "failed a Not today." in summarize_flat_lines(end_turn(stage))


@loop_over_rows("name", ["yolo", "", None, 7, "bypassPermissions"])
def test_r15_unknown_mode_falls_back_to_default(name):
    assert parse_yume_permission_mode(name) == ("default", False, False)


@pytest.mark.parametrize(
    ("name", "mode", "asks"),
    [
        ("default", "default", False),
        ("interactive", "default", True),
        ("auto", "acceptEdits", False),
        ("deny", "plan", False),
    ],
)
def test_r15_yume_modes_map_to_claude_permission_modes(name, mode, asks):
    assert parse_yume_permission_mode(name) == (mode, asks, True)


# -- line shapes -----------------------------------------------------------------------------------


def test_result_contains_only_yume_fields_and_no_text(stage):
    stage.turn.add_block("done")
    *_, result, _ = end_turn(stage)
    assert set(result) == {
        "type", "is_error", "subtype", "usage", "duration_ms", "duration_api_ms", "total_cost_usd", "modelUsage",
        "shim", "uuid", "session_id",
    }  # fmt: skip


def test_text_that_is_only_in_the_end_event_is_emitted(stage):
    stage.turn.record_turn_end(result="only here")
    assert "text only here" in summarize_flat_lines(stage.finish_turn())


def test_streamed_text_is_not_repeated_from_the_end_event(stage):
    stage.turn.add_text("only here")
    stage.turn.record_turn_end(result="only here")
    assert summarize_flat_lines(stage.finish_turn()).count("text only here") == 1


def test_notice_is_written_as_a_text_line(stage):
    stage.encoder.write_synthetic_message("[1 image left out]")
    assert stage.take_lines()[-1] == {
        "type": "text",
        "content": "[1 image left out]",
        "id": "chunk-1",
    }


def test_frontend_session_id_replaces_the_vendor_session_id():
    encoder = YumeEncoder(STABLE_ID_PREFIX, frontend_session_id="sess-123")
    encoder.write_init_message(U, {})
    encoder.write_result({"is_error": False, "shim": {"cause": "clean"}})
    ids = [json.loads(line).get("session_id") for line in encoder.take_bytes().splitlines()]
    assert ids == ["sess-123", None, "sess-123", None]


def test_transcript_has_the_messages_of_the_turn_in_claudes_lines():
    plain_writer = StreamJsonWriter(STABLE_ID_PREFIX)
    transcript_writer = StreamJsonWriter(STABLE_ID_PREFIX)
    encoder = YumeEncoder(STABLE_ID_PREFIX, transcript_writer=transcript_writer)
    for writer in (plain_writer, encoder):
        writer.write_init_message(U, {"cwd": "/repo"})
        writer.start_message("m", NO_USAGE)
        writer.set_message_usage(create_usage(3, 2, 1, 4))
        writer.write_block("thinking", b'"hm"')
        writer.write_complete_block("text", b'"one"')
        writer.write_tool_call("a", "Read", {"file_path": "a.txt"})
        writer.write_tool_result("a", "Read", {"file_path": "a.txt"}, "content", False)
        writer.write_user_text("[Request interrupted by user]")
        writer.write_synthetic_message("[1 image left out]")
        writer.write_api_error("API Error: 529 overloaded", "server_error", 529)
    lines = transcript_writer.take_bytes()
    assert lines == plain_writer.take_bytes()
    assert len(lines.splitlines()) == 8


def test_tool_result_blocks_are_joined_into_a_single_text(stage):
    picture = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "A" * 400},
    }
    stage.turn.add_tool_call("a", "Read", {})
    stage.turn.add_tool_result("a", [{"type": "text", "text": "see"}, picture])
    (result,) = (line for line in end_turn(stage) if line["type"] == "tool_result")
    assert result["content"] == "see\n[image: image/png]"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("x", "x"),
        (None, ""),
        ({"a": 1}, '{"a":1}'),
        (["x", {"type": "odd", "n": 1}], 'x\n{"type":"odd","n":1}'),
    ],
)
def test_tool_result_content_of_any_type_is_formatted_as_text(content, text):
    assert format_tool_result(content) == text


HUGE = "0123456789é\u2028" * 40_000


@pytest.mark.parametrize("limit", [0, 10_000, 1_000_000])
def test_every_line_is_shorter_than_the_line_limit(limit):
    stage = FlatStage(limit=limit)
    turn = stage.turn
    turn.record_vendor_session_info(session_id=U, model=HUGE, cwd=HUGE, tools=[HUGE])
    turn.add_text(HUGE)
    turn.add_thinking_block(HUGE)
    turn.add_tool_call(HUGE, HUGE, {"content": HUGE})
    turn.get_subagent(HUGE).write_text_message(HUGE)
    nested = turn.get_subagent(HUGE)
    nested.write_thinking_message(HUGE)
    nested.add_tool_call(HUGE + "2", HUGE, {"content": HUGE})
    nested.add_tool_result(HUGE + "2", HUGE)
    turn.add_tool_result(HUGE, [{"type": "text", "text": HUGE}])
    turn.record_failure(HUGE)
    stage.finish_turn()
    check_flat(stage.bytes)
    assert max(map(len, stage.bytes.splitlines())) < min(limit or MOST_BYTES, MOST_BYTES)
    lines = [json.loads(line) for line in stage.bytes.splitlines()]
    main_lines = [line for line in lines if "parent_tool_use_id" not in line]
    assert "".join(line["content"] for line in main_lines if line["type"] == "text") == HUGE
    assert "".join(line["thought"] for line in main_lines if line["type"] == "thinking") == HUGE


def test_long_tool_list_in_init_is_truncated():
    stage = FlatStage()
    stage.turn.record_vendor_session_info(
        session_id=U, model="m", tools=[f"tool{number}" for number in range(50_000)]
    )
    stage.turn.record_turn_end()
    init, *_ = stage.finish_turn()
    check_flat(stage.bytes)
    assert (init["session_id"], init["model"]) == (U, "m") and len(init["tools"]) < 50_000


def test_write_tool_call_returns_truncated_arguments(stage):
    cut = stage.encoder.write_tool_call("a", "Write", {"content": HUGE})
    assert cut is not None and "characters left out" in cut["content"]
    assert stage.encoder.write_tool_call("b", "Write", {"content": "short"}) is None


# -- nested agents ---------------------------------------------------------------------------------


def test_subagent_steps_are_flat_lines_with_the_parent_call_id(stage):
    turn = stage.turn
    turn.add_tool_call("task", "Agent", {"description": "look"})
    nested = turn.get_subagent("task")
    nested.write_thinking_message("hm")
    nested.add_tool_call("n1", "Read", {"file_path": "/a"})
    nested.add_tool_call("n2", "Read", {"file_path": "/b"})
    nested.add_tool_result("n2", "two")
    nested.add_tool_result("n1", "one", True)
    nested.write_text_message("found")
    nested.add_user_text("what it was told")
    turn.add_tool_result("task", "found it")
    summary = summarize_flat_lines(end_turn(stage))
    assert summary[1:10] == [
        "call task Task",
        "task>think hm",
        "task>call n1 Read",
        "task>failed n1 one",
        "task>call n2 Read",
        "task>result n2 two",
        "task>text found",
        "result task found it",
        "usage",
    ]


def test_subagent_output_is_buffered_with_its_parent_call(stage):
    turn = stage.turn
    turn.add_tool_call("one", "Task", {})
    turn.add_tool_call("two", "Task", {})
    turn.get_subagent("two").write_text_message("from two")
    turn.get_subagent("one").write_text_message("from one")
    turn.add_tool_result("two", "2")
    turn.add_tool_result("one", "1")
    assert summarize_flat_lines(end_turn(stage))[1:7] == [
        "call one Task",
        "one>text from one",
        "result one 1",
        "call two Task",
        "two>text from two",
        "result two 2",
    ]


def test_deeply_nested_subagents_do_not_exhaust_the_stack(stage):
    turn = stage.turn
    turn.add_tool_call("first", "Task", {})
    turn.add_tool_call("n0", "Task", {})
    for number in range(900):
        turn.get_subagent(f"n{number}").add_tool_call(f"n{number + 1}", "Task", {})
    turn.add_tool_result("first", "")
    assert (
        sum(
            entry.startswith("n") and ">call" in entry
            for entry in summarize_flat_lines(end_turn(stage))
        )
        == 900
    )


def test_subagent_of_an_unknown_call_has_no_parent_id(stage):
    stage.turn.get_subagent("never").write_text_message("hello")
    (line,) = (line for line in end_turn(stage) if line["type"] == "text")
    assert line["parent_tool_use_id"] is None


# -- requests --------------------------------------------------------------------------------------


def test_call_with_a_permission_prompt_is_emitted_while_another_call_runs(stage):
    turn = stage.turn
    turn.add_tool_call("a", "Bash", {})
    turn.add_tool_call("b", "Bash", {})
    turn.add_text("then")
    stage.encoder.write_buffered_call("b")
    stage.encoder.write_buffered_call("b")
    assert summarize_flat_lines(stage.take_lines())[1:] == ["call a Bash", "call b Bash"]
    turn.add_tool_result("b", "2")
    turn.add_tool_result("a", "1")
    turn.record_turn_end()
    summary = summarize_flat_lines(stage.finish_turn())
    assert summary[:3] == ["result b 2", "result a 1", "text then"]
    check_flat(stage.bytes, exposed=True)


def test_nested_call_with_a_permission_prompt_follows_its_parent_call(stage):
    turn = stage.turn
    turn.add_tool_call("a", "Bash", {})
    turn.add_tool_call("task", "Task", {})
    turn.get_subagent("task").add_tool_call("n", "Read", {})
    stage.encoder.write_buffered_call("n")
    assert summarize_flat_lines(stage.take_lines())[1:] == [
        "call a Bash",
        "call task Task",
        "task>call n Read",
    ]
    turn.record_turn_end()
    stage.finish_turn()
    check_flat(stage.bytes, exposed=True)


def test_call_is_closed_as_late_if_the_buffer_limit_is_exceeded(stage, monkeypatch):
    monkeypatch.setattr("shim.core.yume.order.MAX_BUFFERED_BYTES", 100)
    turn = stage.turn
    turn.add_tool_call("a", "Bash", {})
    turn.add_text("x" * 200)
    turn.add_tool_result("a", "late")
    summary = summarize_flat_lines(lines := end_turn(stage))
    assert (
        summary[2].startswith("result a [The result of this call arrived too late")
        and summary[3] == "text " + "x" * 200
    )
    assert lines[-2]["shim"]["repairs"] == {"late_tool_result": 1}


# -- texts -----------------------------------------------------------------------------------------


@loop_over_rows(
    ("text", "seconds"),
    [
        ("Please try again in 20s", 20.0),
        ("retry-after: 7", 7.0),
        ("Retry after 2 minutes", 120.0),
        ("quota resets in 1.5 h", 5400.0),
        ("please retry in 250ms", 0.25),
        ("slow down", None),
        ("limit of 20 per minute", None),
    ],
)
def test_retry_delay_is_parsed_from_the_error_text(text, seconds):
    assert parse_retry_delay_s(text) == seconds


@loop_over_rows(
    ("error", "cause", "message", "code"),
    [
        ("rate_limit", "rate_limit", "", "RATE_LIMIT"),
        ("billing_error", "rate_limit", "", "BILLING"),
        ("", "stall", "", "STALL"),
        ("", "auth", "", "AUTH"),
        ("server_error", "vendor_error", "stream disconnected", "STREAM_DISCONNECT"),
        ("unknown", "vendor_error", "", "VENDOR_ERROR"),
    ],
)
def test_failure_maps_to_a_yume_error_code(error, cause, message, code):
    assert choose_yume_error_code(error, cause, message) == code


def test_error_text_of_real_claude_is_preserved():
    output = translate_flat(find_case("claude/2.1.327-api-err429"))[0].decode()
    assert "API Error: Request rejected (429) · rate limited" in output
    assert output.count("Request rejected") == 2  # the error and the result
