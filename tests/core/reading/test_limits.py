"""No line is longer than its limit, and no text is lost (contract P12)."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as some
from stream_invariants import check_turns
from sweeps import loop_over_rows
from turn_stage import Stage

from shim.core.reading.json_text import dump_json
from shim.core.reading.limits import (
    omit_large_images,
    omit_middle,
    shorten_line_to_fit,
    shorten_strings,
    split_text,
)

TEXTS = some.text(
    some.characters(codec="utf-8") | some.sampled_from(' \u2028\u0085\0\n\\"é漢😀'), max_size=400
)


@given(TEXTS, some.integers(20, 300))
def test_split_parts_fit_and_join_to_the_text(text, max_bytes):
    parts = list(split_text(text, max_bytes))
    assert "".join(parts) == text
    assert all(len(dump_json(piece)) <= max_bytes for piece in parts)


@given(TEXTS.map(lambda text: text * 40), some.integers(1000, 5000))
def test_omit_middle_preserves_head_and_tail(text, max_bytes):
    short = omit_middle(text, max_bytes)
    assert len(dump_json(short)) <= max_bytes
    if short != text:
        head, _, remainder = short.partition("\n[… ")
        tail = remainder.partition(" …]\n")[2]
        assert text.startswith(head) and text.endswith(tail) and head and tail
        count = int(remainder.partition(" characters")[0].replace(",", ""))
        assert len(head) + len(tail) + count == len(text)


def test_omitted_text_names_its_spill_file():
    assert "; the full text is in /spill/1.txt" in omit_middle(
        "x" * 5000, 2000, lambda text: "/spill/1.txt"
    )
    assert "whole" not in omit_middle("x" * 5000, 2000, lambda text: None)


VALUES = some.recursive(
    some.none()
    | some.booleans()
    | some.integers(-(2**60), 2**60)
    | TEXTS.map(lambda text: text * 10),
    lambda inner: (
        some.lists(inner, max_size=4) | some.dictionaries(some.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(VALUES, some.integers(3000, 9000))
def test_shorten_strings_fits_any_value(value, max_bytes):
    fitted = shorten_strings(value, max_bytes)
    assert len(dump_json(fitted)) <= max_bytes
    if len(dump_json(value)) <= max_bytes:
        assert fitted is value


@pytest.mark.parametrize("length", [2600, 4990, 4998])
def test_text_at_the_limit_is_not_shortened(length):
    text = "x" * length
    assert shorten_strings(text, 5000) is text
    assert shorten_strings(text + "xxx", length + 2) is not text


def test_large_image_is_replaced_by_a_text_block():
    small, large = (
        {"type": "image", "source": {"type": "base64", "data": "A" * size}} for size in (400, 4000)
    )
    text = {"type": "text", "text": "x" * 4000}
    assert (
        omit_large_images([small, text], 1000) == [small, text]
        and omit_large_images("text", 1) == "text"
    )
    first_block, left_out, last_block = omit_large_images([small, large, text], 1000)
    assert (first_block, last_block) == (small, text)
    assert left_out["type"] == "text" and "an image of 4,053 bytes is left out" in left_out["text"]
    assert [block["type"] for block in omit_large_images([small] * 4, 1000)] == [
        "image",
        "image",
        "text",
        "text",
    ]


def test_tool_result_replaces_a_large_image_completely():
    stage = Stage(max_bytes=20_000)
    block = {
        "type": "image",
        "source": {"type": "base64", "data": "A" * 30_000, "media_type": "image/png"},
    }
    stage.turn.add_tool_call("c1", "Read", {})
    stage.turn.add_tool_result("c1", [block])
    (line,) = (line for line in stage.take_lines() if line["type"] == "user")
    (content_block,) = line["message"]["content"][0]["content"]
    assert content_block["type"] == "text" and "is left out" in content_block["text"]


def test_only_long_strings_are_shortened():
    fitted = shorten_strings({"path": "/a/b", "content": "x" * 50_000, "old": "y" * 400}, 9000)
    assert (fitted["path"], fitted["old"]) == ("/a/b", "y" * 400)
    assert "characters left out" in fitted["content"]


@pytest.mark.parametrize("value", [list(range(20_000)), {str(number): 1 for number in range(5000)}])
def test_large_value_without_long_strings_becomes_text(value):
    assert isinstance(shorten_strings(value, 4000), str)


@pytest.mark.parametrize(
    "line",
    [
        {"type": "system", "tools": [f"tool {number}" for number in range(5000)], "model": "m"},
        {
            "type": "result",
            "permission_denials": [{"tool_input": {"a": number}} for number in range(5000)],
        },
        {"type": "x", "content": [{"deep": [list(range(9000)), "y" * 9000]}], "end": 1},
        {f"key {number}": number for number in range(5000)},
    ],
)
def test_fit_line_returns_an_object_for_large_lists(line):
    """A frontend that receives a text in place of a line exits."""
    fitted = shorten_line_to_fit(line, 4000)
    assert isinstance(fitted, dict) and len(dump_json(fitted)) <= 4000
    assert fitted and all(
        fitted[key] == line[key] for key in {"type", "model", "end"} & line.keys()
    )


LIMIT = 10_000
FRAGMENTS = some.lists(
    some.tuples(TEXTS.map(lambda text: text * 20), some.sampled_from([None, 0, 1])), max_size=12
)


@pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])
@given(FRAGMENTS, some.booleans())
@example([("some words " * 40, None)] * 60, False)
@example([("漢字 " * 100, 0), ("é" * 30_000, 0), ("tail", 0)], False)
@example([("x" * 25_000, 1), ("y", 1), ("z" * 9000, 0)], True)
def test_long_message_is_complete_in_lines_within_the_limit(partial, fragments, thinking):
    stage = Stage(partial=partial, terminator="none", limit=LIMIT)
    stage.turn.record_vendor_session_info(session_id="s")
    for text, key in fragments:
        (stage.turn.add_thinking if thinking else stage.turn.add_text)(text, key)
    stage.turn.record_turn_end()
    stage.turn.close(None, "")
    data = stage.writer.take_bytes()
    assert all(len(line) <= LIMIT for line in data.split(b"\n"))
    lines = [json.loads(line) for line in data.splitlines()]
    kind = "thinking" if thinking else "text"
    blocks = [
        block
        for line in lines
        if line["type"] == "assistant"
        for block in line["message"]["content"]
    ]
    full_text = "".join(text for text, _ in fragments)
    assert "".join(block[kind] for block in blocks) == full_text
    if partial:
        deltas = [
            line["event"].get("delta", {}) for line in lines if line["type"] == "stream_event"
        ]
        assert "".join(delta.get(kind, "") for delta in deltas) == full_text
    assert data + b'{"type":"message_stop"}\n' and check_turns(
        data + b'{"type":"message_stop"}\n', partial
    )


def build_limited_stage(partial):
    """Build a stage whose lines have a limit."""
    stage = Stage(partial=partial, terminator="none", limit=LIMIT)
    stage.turn.record_vendor_session_info(session_id="s")
    return stage


@loop_over_rows("partial", [False, True])
@loop_over_rows(
    "fragments",
    [["x" * 30_000 + "\ud83d", "\ude00 end"], ["\ud83d", "\ude00"] * 6000, ["a\udc00"] * 8000],
)
def test_surrogate_halves_do_not_exceed_the_line_limit(partial, fragments):
    stage = build_limited_stage(partial)
    for fragment in fragments:
        stage.turn.add_text(fragment)
    stage.turn.record_turn_end()
    stage.turn.close(None, "")
    data = stage.writer.take_bytes()
    assert max(map(len, data.split(b"\n"))) <= LIMIT
    lines = [json.loads(line) for line in data.splitlines()]
    blocks = [
        block
        for line in lines
        if line["type"] == "assistant"
        for block in line["message"]["content"]
    ]
    full_text = "".join(block["text"] for block in blocks)
    assert full_text == "".join(fragments).encode("utf-16", "surrogatepass").decode(
        "utf-16", "replace"
    )
    check_turns(data + b'{"type":"message_stop"}\n', partial)


@pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])
def test_long_names_and_ids_do_not_exceed_the_line_limit(partial):
    stage, endless = build_limited_stage(partial), "n" * 50_000
    stage.turn.start_message(model=endless)
    stage.turn.add_text("Hello.")
    stage.turn.add_tool_call(endless, endless, {"command": "ls"})
    stage.turn.add_tool_result(endless, "out")
    stage.turn.record_turn_end()
    stage.turn.close(None, "")
    data = stage.writer.take_bytes()
    assert max(map(len, data.split(b"\n"))) <= LIMIT
    (result,) = [line for line in map(json.loads, data.splitlines()) if line["type"] == "user"]
    assert result["message"]["content"][0]["content"] == "out"
    check_turns(data + b'{"type":"message_stop"}\n', partial)


def test_init_with_many_tools_stays_an_object():
    stage = Stage(limit=LIMIT)
    stage.turn.record_vendor_session_info(
        session_id="s", model="m", tools=[f"tool{number}" for number in range(50_000)]
    )
    (init,) = stage.take_lines()
    assert (init["subtype"], init["model"]) == ("init", "m") and len(init["tools"]) < 50_000
