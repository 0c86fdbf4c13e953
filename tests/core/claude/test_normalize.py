"""Passed-through lines: missing keys are added, unreadable values are omitted, long values are
truncated.
"""

import itertools
import json

import pytest

from shim.core.claude.normalize import ClaudeEventNormalizer
from shim.core.reading.diagnostics import Diagnostics
from shim.core.reading.json_text import dump_json

S = "851d713a-886d-4d24-bc21-276f94dd1653"
MAX_BYTES = 2000
TEXT = {"type": "text", "text": "hi"}
DELTA = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}}
RESULT = {"type": "result", "subtype": "success", "is_error": False, "session_id": S, "uuid": "u"}
TIMES = {"duration_ms": 1, "duration_api_ms": 1, "num_turns": 1}


@pytest.fixture
def stored_texts():
    return []


@pytest.fixture
def normalizer(stored_texts):
    numbers = itertools.count()

    def keep(text):
        stored_texts.append(text)
        return "/spill/1.txt"

    return ClaudeEventNormalizer(Diagnostics(), lambda: f"u{next(numbers)}", MAX_BYTES, keep)


def assistant(*content, **message):
    return {"type": "assistant", "message": {"model": "m", "content": list(content)} | message}


@pytest.mark.parametrize(
    "event",
    [
        assistant(TEXT, {"type": "unheard-of", "x": 1}),
        {"type": "user", "message": {"role": "user", "content": "hi"}},
        {"type": "stream_event", "event": DELTA, "session_id": S, "uuid": "u"},
        {"type": "system", "subtype": "init"},
        RESULT | TIMES,
        {"type": "unheard-of"},
    ],
)
def test_complete_event_is_returned_unchanged(normalizer, event):
    assert normalizer.normalize_event(event, S, "m") is event


@pytest.mark.parametrize(
    ("event", "completed"),
    [
        (assistant(TEXT, model=None), {"message": {"model": "opus", "content": [TEXT]}}),
        (
            assistant(TEXT, {"type": "text"}, 7, {"no": "type"}),
            {"message": {"model": "m", "content": [TEXT]}},
        ),
        (
            assistant({"type": "thinking", "thinking": "hm"}),
            {
                "message": {
                    "model": "m",
                    "content": [{"type": "thinking", "thinking": "hm", "signature": ""}],
                }
            },
        ),
        ({"type": "stream_event", "event": DELTA}, {"session_id": S, "uuid": "u0"}),
        (
            RESULT,
            {"duration_ms": 0, "duration_api_ms": 0, "num_turns": 1, "permission_denials": []},
        ),
        (RESULT | TIMES | {"is_error": True, "subtype": "error_during_execution"}, {"errors": []}),
        ({"type": "result"}, {"subtype": "success", "is_error": False, "session_id": S}),
        (
            {"type": "system", "subtype": "task_notification", "summary": "x"},
            {
                "task_id": "",
                "status": "completed",
                "output_file": "",
                "summary": "x",
                "session_id": S,
            },
        ),
    ],
)
def test_missing_fields_are_added(normalizer, event, completed):
    normalized_line = normalizer.normalize_event(event, S, "opus")
    assert normalized_line | completed == normalized_line
    assert normalizer.normalize_event(normalized_line, S, "opus") is normalized_line


@pytest.mark.parametrize(
    "event",
    [
        {"type": "rate_limit_event", "x": 1},
        {"type": "system"},
        {"type": "assistant"},
        {"type": "user", "message": 7},
        {"type": "stream_event", "event": "x"},
        assistant({"type": "text"}, None),
    ],
)
def test_malformed_event_is_dropped_and_counted(normalizer, event):
    assert normalizer.normalize_event(event, S, "m") is None
    assert normalizer._diagnostics.repairs == {"malformed_event": 1}


@pytest.mark.parametrize("kind", ["assistant", "stream_event"])
def test_long_text_is_split_into_several_lines(normalizer, kind):
    text = "héllo\n" * 3000
    event = assistant({"type": "text", "text": text})
    if kind == "stream_event":
        event = {
            "type": kind,
            "event": DELTA | {"delta": {"type": "text_delta", "text": text}},
            "session_id": S,
        }
    lines = list(normalizer.split_long_event(event))
    assert len(lines) > 1 and len({line["uuid"] for line in lines}) == len(lines)
    assert all(len(dump_json(line)) <= MAX_BYTES for line in lines)
    texts = [json.loads(dump_json(line)) for line in lines]
    if kind == "assistant":
        assert "".join(line["message"]["content"][0]["text"] for line in texts) == text
    else:
        assert "".join(line["event"]["delta"]["text"] for line in texts) == text


def test_long_tool_result_is_truncated_and_stored(normalizer, stored_texts):
    block = {"type": "tool_result", "tool_use_id": "c1", "content": "x" * 5000}
    (line,) = normalizer.split_long_event(
        {"type": "user", "message": {"role": "user", "content": [block]}}
    )
    assert len(dump_json(line)) <= MAX_BYTES
    assert "/spill/1.txt" in line["message"]["content"][0]["content"]
    assert stored_texts == ["x" * 5000]
