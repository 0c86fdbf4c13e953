"""Yume's dialect over every fixture: its ten golden scenarios, and invariants for any vendor
output.
"""

import json

import sweeps
from fixture_cases import FIXTURES, SEEDS, list_fixture_cases, split_bytes, translate_case
from hypothesis import given
from hypothesis import strategies as st
from policy_builder import build_evaluator
from stream_lines import parse_lines
from sweeps import (
    choose_small_cases,
    iterate_rounds,
    limit_examples,
    loop_over_cases,
    loop_over_rows,
)
from yume_stream import SCENARIOS, FlatStage, check_flat, summarize_flat_lines, translate_flat

from shim.conversation.drivers.open_translation import create_standalone_child_stream
from shim.core.turn.outcome import ChildExit
from shim.core.yume import order
from tests.sweeps.test_properties import (
    CASES,
    EXITS,
    VERBS,
    flip_bytes,
    line_ends,
    perform,
    shuffle_lines,
)

GOLDEN = [case for case in CASES if "yume" in case.metadata]


# -- the ten scenarios -----------------------------------------------------------------------------


@loop_over_cases(GOLDEN)
def test_yume_output_matches_the_golden_file(case):
    output, _ = translate_flat(case)
    golden = case.folder / "yume.ndjson"
    assert golden.exists(), (
        f"{case.name} has no yume.ndjson: run `make accept` and read what it wrote"
    )
    assert parse_lines(output) == parse_lines(golden.read_bytes()), (
        f"{case.name} says something else"
    )
    assert output == golden.read_bytes()


@loop_over_rows("vendor", [*SEEDS, "claude"])
def test_every_seed_vendor_has_all_ten_scenarios(vendor):
    scenarios = [case.metadata["yume"] for case in GOLDEN if case.folder.parent.name == vendor]
    assert sorted(scenarios) == sorted(SCENARIOS)


@loop_over_cases(GOLDEN)
def test_scenario_contains_the_events_of_its_name(case):
    turns = check_flat(translate_flat(case)[0])
    lines = [line for turn in turns for line in turn]
    kinds = [line["type"] for line in lines]
    calls = kinds.count("tool_use")
    failures = [line for line in lines if line["type"] == "tool_result" and line["is_error"]]
    codes = [line["code"] for line in lines if "code" in line]
    checks = {
        "text-only": "text" in kinds and not calls,
        "single-tool": calls == 1 and not failures,
        "multi-tool": calls > 1,
        "parallel-tool": calls > 1,
        "tool-error": bool(failures) and not turns[-1][-2]["is_error"],
        "interrupt": "interrupt" in kinds,
        "auth-failure": codes == ["AUTH"],
        "rate-limit": codes == ["RATE_LIMIT"],
        "session-resume": "text" in kinds and not codes,
        "stream-disconnect": "text" in kinds and codes in ([], ["STREAM_DISCONNECT"]),
    }
    assert checks[case.metadata["yume"]], summarize_flat_lines(lines)


def test_every_golden_file_belongs_to_a_scenario():
    marked = {case.folder for case in GOLDEN}
    assert {path.parent for path in FIXTURES.glob("*/*/yume.ndjson")} == marked


# -- every fixture ---------------------------------------------------------------------------------


@loop_over_cases(CASES)
def test_every_fixture_follows_the_yume_rules(case):
    """R1, R3, R4, R5, R6, R7, R9, R10"""
    check_flat(translate_flat(case)[0])


# Without those that the tests interrupt in one dialect only.
UNCUT = [
    case for case in list_fixture_cases(*SEEDS, "demo") if case.metadata.get("yume") != "interrupt"
]


@loop_over_cases(UNCUT)
def test_yume_and_claude_dialects_have_the_same_content(case):
    """Both dialects have the same texts, calls and results."""
    claude = parse_lines(translate_case(case, True)[0])
    flat = parse_lines(translate_flat(case)[0])
    assert join_texts(flat) == join_claude_texts(claude)
    for kind, member in (("tool_use", "id"), ("tool_result", "tool_use_id")):
        mine = sorted(line[member] for line in flat if line["type"] == kind)
        blocks = [block for line in claude for block in content(line) if block["type"] == kind]
        assert mine == sorted(block[member] for block in blocks)


@loop_over_cases(
    case for case in list_fixture_cases("claude") if case.folder.parent.name == "claude"
)
def test_claude_output_is_complete_in_the_yume_dialect(case):
    lines = [line for line in case.parse_events() if isinstance(line, dict)]
    blocks = [(line, block) for line in lines for block in content(line)]
    flat = parse_lines(translate_flat(case)[0])
    for kind, member in (("tool_use", "id"), ("tool_result", "tool_use_id")):
        came = sorted(block[member] for _, block in blocks if block["type"] == kind)
        mine = [line[member] for line in flat if line["type"] == kind]
        assert not set(came) - set(mine), "but a call that it left open is answered by us"
    texts = [
        block["text"]
        for line, block in blocks
        if line["type"] == "assistant" and block["type"] == "text" and line["message"]["model"] != "<synthetic>"
        and not line["parent_tool_use_id"]
    ]  # fmt: skip
    assert not texts or join_texts(flat)[0] == "".join(texts)


def join_texts(flat):
    main_lines = [line for line in flat if "parent_tool_use_id" not in line]
    texts = "".join(line["content"] for line in main_lines if line["type"] == "text")
    return texts, "".join(line["thought"] for line in main_lines if line["type"] == "thinking")


def content(line):
    message = line.get("message")
    return (
        message["content"]
        if isinstance(message, dict) and isinstance(message.get("content"), list)
        else []
    )


def join_claude_texts(lines):
    """Return the model's text. If a turn has no text, its result may be the only text."""
    texts = {"text": "", "thinking": ""}
    spoke = False
    for line in lines:
        if line["type"] == "assistant" and not line["parent_tool_use_id"]:
            for block in content(line):
                if block["type"] in texts and line["message"]["model"] != "<synthetic>":
                    texts[block["type"]] += block[block["type"]]
                    spoke = spoke or block["type"] == "text"
        if line["type"] == "result":
            if not spoke and not line["is_error"] and "structured_output" not in line:
                texts["text"] += line["result"]
            spoke = False
    return texts["text"], texts["thinking"]


@loop_over_cases(case for case in GOLDEN if len(case.data) < 20_000)
def test_byte_by_byte_input_produces_the_same_output(case):
    assert translate_flat(case, chunks=split_bytes(case.data))[0] == translate_flat(case)[0]


@loop_over_cases(CASES, quick=choose_small_cases)
def test_stream_truncated_after_any_line_follows_the_yume_rules(case):
    for number, cut in enumerate(line_ends(case.data, 4 if sweeps.full else 2)):
        check_flat(translate_flat(case, EXITS[number % len(EXITS)], case.data[:cut])[0])


@loop_over_cases((case for case in CASES if case.data), quick=choose_small_cases)
def test_corrupted_and_shuffled_lines_follow_the_yume_rules(case):
    for chance in iterate_rounds(1, case):
        lines = shuffle_lines(chance, case.data.split(b"\n"))
        check_flat(
            translate_flat(case, data=flip_bytes(chance, b"\n".join(lines), chance.randint(0, 6)))[
                0
            ]
        )


# -- Turn methods in any order ---------------------------------------------------------------------

EXPOSED = st.tuples(st.just("expose"), st.sampled_from(["t1", "t2", "t3", "t1~2"]))


@limit_examples(50, full_count=400, shrink=True)
@given(
    verbs=st.lists(st.one_of(VERBS, EXPOSED), max_size=30),
    judged=st.sampled_from([None, build_evaluator(deny=["Denied"], hidden=["Hidden"])]),
    code=st.sampled_from([0, 1, None]),
)
def test_any_order_of_turn_calls_follows_the_yume_rules(verbs, judged, code):
    stage = FlatStage(evaluator=judged)
    for verb, kwargs in verbs:
        if verb == "expose":
            stage.encoder.write_buffered_call(kwargs)
        else:
            perform(stage, verb, kwargs)
    stage.finish_turn(code)
    check_flat(stage.bytes, exposed=True)


@limit_examples(80, full_count=200, shrink=True)
@given(verbs=st.lists(VERBS, max_size=30), limit=st.sampled_from([0, 60, 400]))
def test_output_beyond_the_buffer_limit_follows_the_yume_rules(verbs, limit):
    """The buffer is bounded. The output for a call that exceeds it follows the rules."""
    before, order.MAX_BUFFERED_BYTES = order.MAX_BUFFERED_BYTES, limit
    try:
        stage = FlatStage()
        for verb, kwargs in verbs:
            perform(stage, verb, kwargs)
        stage.turn.close(ChildExit(code=0), "")
        stage.take_lines()
    finally:
        order.MAX_BUFFERED_BYTES = before
    check_flat(stage.bytes)
    assert all(json.loads(line) for line in stage.bytes.splitlines())


def test_repeated_reply_after_a_retry_is_written_once():
    inner = [
        {"type": "message_start", "message": {"model": "m"}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    ]
    events = [{"type": "stream_event", "event": inner_event} for inner_event in inner]
    deltas = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
        for text in ("Hel", "Hello.")
    ]
    cut, full_delta = ({"type": "stream_event", "event": inner_event} for inner_event in deltas)
    retry = {"type": "system", "subtype": "api_retry", "attempt": 1}
    result = {"type": "result", "subtype": "success", "is_error": False, "result": "Hello."}
    translation = create_standalone_child_stream("claude", dialect="yume", stable_ids=True)
    output = b""
    for event in (*events, cut, retry, *events, full_delta, result):
        output += translation.feed(json.dumps(event).encode() + b"\n")[0]
    flat = parse_lines(output + translation.close(ChildExit(code=0))[0])
    assert "".join(line["content"] for line in flat if line["type"] == "text") == "Hello."


UNSTREAMED_MESSAGE = {
    "type": "assistant",
    "message": {"model": "m", "content": [{"type": "text", "text": "Hello."}]},
}
DONE = {"type": "result", "subtype": "success", "is_error": False}


def real_claude(*events):
    """Return Yume's output for events of a real claude, and the turn."""
    translation = create_standalone_child_stream("claude", dialect="yume", stable_ids=True)
    output = b"".join(translation.feed(json.dumps(event).encode() + b"\n")[0] for event in events)
    return parse_lines(output + translation.close(ChildExit(code=0))[0]), translation.turn


def test_unstreamed_text_is_the_last_text():
    flat, turn = real_claude(UNSTREAMED_MESSAGE, DONE)
    assert [line["content"] for line in flat if line["type"] == "text"] == ["Hello."]
    assert turn.assistant_message.last_text == turn.final_text == "Hello."


def test_repeated_complete_message_after_a_retry_is_written_once():
    retry = {"type": "system", "subtype": "api_retry", "attempt": 1}
    flat, _ = real_claude(UNSTREAMED_MESSAGE, retry, UNSTREAMED_MESSAGE, DONE)
    assert [line["content"] for line in flat if line["type"] == "text"] == ["Hello."]
