"""Claude's writer: every line shape, compared key by key with contract section 5."""

import json
import re

import orjson
import pytest
from stream_lines import parse_lines, summarize_lines
from sweeps import loop_over_rows
from turn_stage import Stage

from shim.conversation.drivers.open_translation import STABLE_ID_PREFIX, STABLE_SESSION_ID
from shim.core.claude.writer import TERMINATORS, StreamJsonWriter, dump_json

USAGE = {
    "input_tokens": 1,
    "cache_creation_input_tokens": 2,
    "cache_read_input_tokens": 3,
    "output_tokens": 4,
}
NONE = dict.fromkeys(USAGE, 0)


def strip(line: dict) -> dict:
    """Return a line without the keys of every line. Check their order too."""
    assert next(iter(line)) == "type", "type comes first (S15)"
    line = dict(line)
    assert line.pop("session_id") == STABLE_SESSION_ID
    uuid = line.pop("uuid")
    assert uuid.startswith(STABLE_ID_PREFIX) and len(uuid) == 36
    return line


def build_lines(verbs, partial: bool = False) -> list[dict]:
    """Return the lines after init for some Turn methods."""
    stage = Stage(partial=partial)
    stage.turn.record_vendor_session_info(session_id="chat", model="m")
    stage.take_lines()
    verbs(stage.turn)
    return [strip(line) for line in stage.take_lines()]


def test_last_result_line_excludes_the_terminator():
    writer = StreamJsonWriter(STABLE_ID_PREFIX, terminator=TERMINATORS["dollar"])
    writer.set_session_id(STABLE_SESSION_ID)
    writer.write_result({"subtype": "success"})
    assert writer.take_bytes() == writer.last_result_line + b"$\n"


def test_init_line_above_the_size_limit_is_truncated():
    writer = StreamJsonWriter(STABLE_ID_PREFIX, max_line_bytes=20_000)
    writer.write_init_message(STABLE_SESSION_ID, {"cwd": "/" + "x" * 50_000})
    assert len(writer.take_bytes()) <= 20_000


def message(
    block: dict, message_id: str = "msg_00000000000040008000000001", usage: dict = NONE
) -> dict:
    return {
        "type": "assistant",
        "message": {
            "id": message_id,
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [block],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        },
        "parent_tool_use_id": None,
    }


def event(inner: dict) -> dict:
    return {"type": "stream_event", "event": inner, "parent_tool_use_id": None}


# -- the lines -------------------------------------------------------------------------------------


def test_init_has_every_key_of_claude_init():
    """Contract 5.1."""
    stage = Stage(cwd="/repo", tools=("Bash",))
    stage.turn.record_vendor_session_info(
        session_id="550e8400-e29b-41d4-a716-446655440000", model="m", slash_commands=["x"]
    )
    (init,) = stage.take_lines()
    assert list(init)[:4] == ["type", "subtype", "cwd", "session_id"]
    uuid = init.pop("uuid")
    assert uuid.startswith(STABLE_ID_PREFIX)
    version = init.pop("claude_code_version")
    assert int(version.split(".")[0]) >= 2, "clients warn about older ones"
    assert init == {
        "type": "system",
        "subtype": "init",
        "cwd": "/repo",
        "session_id": "550e8400-e29b-41d4-a716-446655440000",
        "tools": ["Bash"],
        "mcp_servers": [],
        "model": "m",
        "permissionMode": "default",
        "slash_commands": ["x"],
        "apiKeySource": "none",
        "output_style": "default",
        "agents": [],
        "skills": [],
        "plugins": [],
        "analytics_disabled": True,
        "product_feedback_disabled": True,
        "fast_mode_state": "off",
        "fast_mode_disabled_reason": "not_first_party",
        "view_mode": "default",
        "capabilities": ["interrupt_receipt_v1", "interrupt_cancel_queued_v1"],
        "shim": {"vendor": "demo", "unattended": False},
    }


def test_init_lists_only_capabilities_of_the_drop_in():
    """Contract 5.1: each string promises behaviour (`test_interrupt_can_drop_queued_messages`)."""
    stage = Stage()
    stage.turn.record_vendor_session_info(session_id="s")
    assert stage.take_lines()[0]["capabilities"] == [
        "interrupt_receipt_v1",
        "interrupt_cancel_queued_v1",
    ]


def test_text_block_is_written_as_an_assistant_line():
    """Contract 5.2."""
    assert build_lines(lambda turn: turn.add_block("hi")) == [
        message({"type": "text", "text": "hi"})
    ]


def test_thinking_block_has_a_signature():
    """Contract S6: Python fails without it."""
    assert build_lines(lambda turn: turn.add_thinking_block("hm")) == [
        message({"type": "thinking", "thinking": "hm", "signature": ""})
    ]


def test_tool_call_and_result_are_written_as_separate_lines():
    """Contract 5.4."""

    def verbs(turn):
        turn.add_tool_call("toolu_1", "Bash", {"command": "ls"})
        turn.add_tool_result("toolu_1", "a\nb")

    assert build_lines(verbs) == [
        message({"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}}),
        {
            "type": "user",
            "message": {
                "role": "user",
                "content": [
                    {
                        "tool_use_id": "toolu_1",
                        "type": "tool_result",
                        "content": "a\nb",
                        "is_error": False,
                    },
                ],
            },
            "parent_tool_use_id": None,
            "tool_use_result": {
                "stdout": "a\nb",
                "stderr": "",
                "interrupted": False,
                "isImage": False,
            },
        },
    ]


def test_streamed_text_is_written_as_stream_events_and_a_line():
    """Contract 5.6: start, deltas, the line, its stop, message_delta, message_stop."""

    def verbs(turn):
        turn.start_message(usage=USAGE)
        turn.add_text("a")
        turn.add_text("b")
        turn.end_message(USAGE)

    message_id = "msg_00000000000040008000000001"
    assert build_lines(verbs, partial=True) == [
        event(
            {
                "type": "message_start",
                "message": {
                    "id": message_id,
                    "type": "message",
                    "role": "assistant",
                    "model": "m",
                    "content": [],
                    "stop_reason": None,
                    "stop_sequence": None,
                    "usage": USAGE,
                },
            }
        ),
        event(
            {
                "type": "content_block_start",
                "index": 0,
                "content_block": {"type": "text", "text": ""},
            }
        ),
        event(
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": "a"},
            }
        ),
        event(
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": "b"},
            }
        ),
        message({"type": "text", "text": "ab"}, usage=USAGE),
        event({"type": "content_block_stop", "index": 0}),
        event(
            {
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn", "stop_sequence": None},
                "usage": USAGE,
            }
        ),
        event({"type": "message_stop"}),
    ]


def test_streamed_thinking_and_call_have_ascending_block_indices():
    """Contract 5.6 and 5.7: indices count up within the reply."""

    def verbs(turn):
        turn.add_thinking("hm")
        turn.add_tool_call("t", "Bash", {"command": "ls"})

    lines = build_lines(verbs, partial=True)[1:]
    assert [line["event"] for line in lines if line["type"] == "stream_event"] == [
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "thinking", "thinking": "", "signature": ""},
        },
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "thinking_delta", "thinking": "hm"},
        },
        {"type": "content_block_stop", "index": 0},
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "tool_use", "id": "t", "name": "Bash", "input": {}},
        },
        {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "input_json_delta", "partial_json": '{"command":"ls"}'},
        },
        {"type": "content_block_stop", "index": 1},
    ]


def test_block_indices_restart_with_every_message():
    def verbs(turn):
        turn.add_block("a")
        turn.add_block("b")
        turn.start_message()
        turn.add_block("c")

    starts = [line["event"] for line in build_lines(verbs, partial=True) if "event" in line]
    assert [start["index"] for start in starts if start["type"] == "content_block_start"] == [
        0,
        1,
        0,
    ]


def test_system_event_fields_are_written_at_top_level():
    lines = build_lines(
        lambda turn: turn.write_system_event("task_started", task_id="1", description="look")
    )
    assert lines == [
        {"type": "system", "subtype": "task_started", "task_id": "1", "description": "look"}
    ]


def test_result_has_every_key_required_by_clients():
    """Contract S9 and 5.3."""

    def verbs(turn):
        turn.add_block("hi")
        turn.record_turn_end(usage=USAGE, duration_ms=7)
        turn.finish()

    *_, result = build_lines_with_end(verbs)
    assert result == {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "api_error_status": None,
        "fast_mode_state": "off",
        "duration_ms": 7,
        "duration_api_ms": 0,
        "num_turns": 1,
        "result": "hi",
        "stop_reason": "end_turn",
        "total_cost_usd": 0.0,
        "usage": USAGE,
        "modelUsage": {
            "m": {
                "inputTokens": 1,
                "outputTokens": 4,
                "cacheReadInputTokens": 3,
                "cacheCreationInputTokens": 2,
                "webSearchRequests": 0,
                "costUSD": 0.0,
                "contextWindow": 200_000,
                "maxOutputTokens": 32_000,
            }
        },
        "permission_denials": [],
        "terminal_reason": "completed",
        "shim": {"vendor": "demo", "cause": "clean", "repairs": {}, "unknown_events": {}},
    }


def build_lines_with_end(verbs) -> list[dict]:
    stage = Stage(terminator="none")
    stage.turn.record_vendor_session_info(session_id="chat", model="m")
    stage.take_lines()
    verbs(stage.turn)
    return [strip(line) for line in stage.take_lines()]


@pytest.mark.parametrize(
    ("terminator", "last"),
    [("message_stop", b'{"type":"message_stop"}\n'), ("dollar", b"$\n"), ("none", b"")],
)
def test_terminator_follows_the_result(terminator, last):
    """Contract S16b and the yume page."""
    stage = Stage(terminator=terminator)
    stage.turn.record_turn_end()
    stage.turn.finish()
    data = stage.writer.take_bytes()
    assert TERMINATORS[terminator] == last
    assert data.endswith(last)
    body = data[: len(data) - len(last)]
    assert summarize_lines(parse_lines(body))[-1] == "end:success"
    assert body.endswith(b"}\n")


# -- ids -------------------------------------------------------------------------------------------


def test_uuids_are_unique_and_ascending():
    """The counter is written in parts. A lost carry would repeat an id."""
    stage = Stage(partial=True)
    for _ in range(70_000):
        stage.turn.add_text("x")
    stage.turn.write_system_event("note")
    stage.turn.end_block()
    stage.turn.add_tool_call("t", "Bash", {})
    stage.turn.add_tool_result("t", "")
    stage.turn.add_block("y")
    stage.turn.record_turn_end()
    stage.turn.finish()
    uuids = re.findall(r'"uuid":"([^"]*)"', stage.writer.take_bytes().decode())
    numbers = [int(uuid.removeprefix(STABLE_ID_PREFIX), 16) for uuid in uuids]
    assert len(numbers) > 70_000
    assert numbers == sorted(set(numbers)), "each once, counting up"
    assert all(len(uuid) == 36 for uuid in uuids)


def test_message_ids_differ_between_conversations():
    """Each conversation has an identity: message ids are never the vendor's, and the shim's ids
    must not collide.
    """
    ids = set()
    for uuid_prefix in (STABLE_ID_PREFIX, "11111111-1111-4111-8111-"):
        writer = StreamJsonWriter(uuid_prefix)
        writer.write_init_message(STABLE_SESSION_ID, {})
        writer.start_message("m", NONE)
        writer.write_block("text", b'"x"')
        ids.add(parse_lines(writer.take_bytes())[-1]["message"]["id"])
    assert len(ids) == 2


def test_taken_bytes_are_not_returned_twice():
    stage = Stage()
    stage.turn.add_block("a")
    assert stage.writer.take_bytes()
    assert stage.writer.take_bytes() == b""


# -- any string, key and number --------------------------------------------------------------------

DEEP: object = "bottom"
for _ in range(600):
    DEEP = [DEEP]


@loop_over_rows(
    ("value", "written"),
    [
        ("half \ud83d", "half \ufffd"),
        ("\ud83d\ude00", "😀"),
        ({"\ud83d": 1}, {"\ufffd": 1}),
        ({1: "a", None: "b"}, {"1": "a", "None": "b"}),
        (2**64, str(2**64)),
        (-(2**63) - 1, str(-(2**63) - 1)),
        (2**64 - 1, 2**64 - 1),
        (float("nan"), None),
        (float("inf"), None),
        ([True, None, 1.5], [True, None, 1.5]),
        ((1, 2), [1, 2]),
        ({"a": ["\ud83d", 10**40]}, {"a": ["\ufffd", str(10**40)]}),
        ({1, 2}.__class__(), "set()"),
    ],
)
def test_any_value_is_dumped_as_valid_json(value, written):
    """Hostile-input, section 2: lone surrogates, NaN, integers over 64 bits."""
    dumped = dump_json(value)
    dumped.decode("utf-8")
    assert orjson.loads(dumped) == written


@pytest.mark.parametrize(
    "inside", [DEEP, {"a": DEEP}, [DEEP, "\ud83d"]], ids=["list", "object", "with a half"]
)
def test_nesting_beyond_200_levels_is_written_as_text(inside):
    """Threat: a value that is nested more deeply than readers accept. orjson refuses more than 254
    levels.
    """
    dumped = dump_json(inside)
    value, depth = json.loads(dumped), 0
    while isinstance(value, dict | list):
        value, depth = (value["a"] if isinstance(value, dict) else value[0]), depth + 1
    assert depth <= 200
    assert isinstance(value, str) and "bottom" in value


def test_very_deep_value_is_written_completely():
    value: object = 1
    for _ in range(100_000):
        value = [value]
    loaded_value = json.loads(dump_json(value))
    depth = 0
    while isinstance(loaded_value, list):
        (loaded_value,), depth = loaded_value, depth + 1
    assert loaded_value == "[" * (100_000 - depth) + "1" + "]" * (100_000 - depth)


@loop_over_rows("separator", ["\u2028", "\u2029", "\x85"])
@loop_over_rows("partial", [False, True])
def test_unicode_line_separators_are_escaped(separator, partial):
    """Hostile-input, section 2: Node 24 loses the line without an error."""
    stage = Stage(partial=partial)
    text = f"a{separator}b"
    stage.turn.record_vendor_session_info(session_id="s", model=text, cwd=text, tools=[text])
    stage.turn.add_text(text)
    stage.turn.add_thinking_block(text)
    stage.turn.add_tool_call(text, text, {text: text})
    stage.turn.add_tool_result(text, text)
    stage.turn.add_tool_call("w", "Write", {"file_path": text, "content": text})
    stage.turn.add_tool_result("w", text)
    stage.turn.get_subagent(text).write_text_message(text)
    stage.turn.write_system_event("note", text=text)
    stage.turn.add_denial(text, text, {text: text})
    stage.turn.record_failure(text)
    stage.turn.finish()
    data = stage.writer.take_bytes()
    assert separator.encode() not in data
    texts = json.dumps(parse_lines(data), ensure_ascii=False)
    assert texts.count(separator) > 15, "and nothing is lost"
