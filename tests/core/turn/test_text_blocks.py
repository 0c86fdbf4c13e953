"""Text and thinking: fragments, full blocks, snapshots, lone surrogates, and repeated replies."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_invariants import check_turns
from turn_stage import Stage

from shim.core.reading.surrogates import replace_lone_surrogates

BOTH = pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])
HIGH, LOW = "\ud83d", "\ude00"


def start_stage(partial: bool) -> Stage:
    """Start a stage after its init."""
    stage = Stage(partial=partial)
    stage.turn.record_vendor_session_info(session_id="s")
    stage.take_lines()
    return stage


def texts(stage: Stage) -> list[str]:
    """Return the texts of all blocks in order, after a successful end of the turn."""
    stage.turn.record_turn_end()
    summary = stage.finish_turn()
    check_turns(stage.bytes, stage.writer.writes_partial_messages)
    return [entry for entry in summary if entry.startswith(("text:", "think:", "call:"))]


# -- fragments -------------------------------------------------------------------------------------


def test_fragments_are_deltas_with_partial_messages():
    """S11"""
    stage = start_stage(True)
    stage.turn.add_text("a")
    assert stage.take_summary() == ["start", "open:text", "+a"]
    stage.turn.add_text("b")
    assert stage.take_summary() == ["+b"]
    stage.turn.end_block()
    assert stage.take_summary() == ["text:ab", "stop"]


def test_fragments_are_merged_into_a_single_line_without_partial_messages():
    """S12"""
    stage = start_stage(False)
    stage.turn.add_text("a")
    stage.turn.add_text("b")
    assert stage.take_summary() == []
    stage.turn.end_block()
    assert stage.take_summary() == ["text:ab"]


def test_thinking_streams_like_text():
    stage = start_stage(True)
    stage.turn.add_thinking("h")
    stage.turn.add_text("t")
    assert stage.take_summary() == [
        "start",
        "open:thinking",
        "~h",
        "think:h",
        "stop",
        "open:text",
        "+t",
    ]


@BOTH
def test_empty_fragments_and_blocks_emit_no_lines(partial):
    stage = start_stage(partial)
    stage.turn.add_text("")
    stage.turn.add_thinking("")
    stage.turn.add_block("")
    stage.turn.add_thinking_block("")
    stage.turn.update_text("", 0)
    assert stage.take_summary() == []


@BOTH
def test_late_block_end_is_ignored(partial):
    stage = start_stage(partial)
    stage.turn.add_block("a")
    stage.take_lines()
    stage.turn.end_block()
    stage.turn.end_block()
    assert stage.take_summary() == []


@BOTH
def test_fragment_with_a_different_key_starts_a_new_block(partial):
    stage = start_stage(partial)
    stage.turn.add_text("a", 0)
    stage.turn.add_text("b", 0)
    stage.turn.add_text("c", 1)
    assert texts(stage) == ["text:ab", "text:c"]


@BOTH
def test_overlapping_blocks_are_emitted_sequentially(partial):
    """The deltas of pi's blocks interleave, and all blocks end at the end of the message."""
    stage = start_stage(partial)
    stage.turn.add_text("a", 0)
    stage.turn.add_thinking("h", 1)
    stage.turn.add_text("b", 0)
    assert texts(stage) == ["text:a", "think:h", "text:b"]


@BOTH
def test_complete_block_closes_the_open_block(partial):
    stage = start_stage(partial)
    stage.turn.add_text("a", 0)
    stage.turn.add_block("b")
    stage.turn.add_thinking_block("c")
    assert texts(stage) == ["text:a", "text:b", "think:c"]


def test_block_that_exceeds_the_limit_only_when_escaped_is_truncated():
    stage = Stage(limit=200_000)
    stage.turn.add_block("\u2028" * 50_000)
    assert max(map(len, stage.writer.take_bytes().splitlines())) <= 200_000


def test_complete_block_is_a_single_delta_with_partial_messages():
    """ACP shows deltas only: a block without a delta would be lost."""
    stage = start_stage(True)
    stage.turn.add_block("whole")
    stage.turn.add_thinking_block("idea")
    assert stage.take_summary() == [
        *("start", "open:text", "+whole", "text:whole", "stop"),
        *("open:thinking", "~idea", "think:idea", "stop"),
    ]


@BOTH
def test_many_fragments_are_joined_in_order_of_arrival(partial):
    stage = start_stage(partial)
    for number in range(1000):
        stage.turn.add_text(f"{number} ", 0)
    assert texts(stage) == [
        "text:" + "".join(f"{number} " for number in range(1000)).rstrip() + " "
    ]


@pytest.mark.parametrize("value", [5, 1.5, None, ["x"], {"text": "x"}, True])
@pytest.mark.parametrize(
    "verb",
    [
        "add_text",
        "add_thinking",
        "add_block",
        "add_thinking_block",
        "update_text",
        "update_thinking",
    ],
)
@BOTH
def test_fragment_that_is_not_a_string_does_not_stop_the_turn(partial, verb, value):
    """A wrong type may lose the vendor's event, but never the result."""
    stage = start_stage(partial)
    stage.turn.add_text("before ")
    try:
        getattr(stage.turn, verb)(value)
    except Exception:  # the child stream counts it
        pass
    stage.turn.add_text("after")
    stage.turn.record_turn_end()
    summary = stage.finish_turn()
    assert summary[-1] == "."
    assert "before " in "".join(summary) and "after" in "".join(summary)
    check_turns(stage.bytes, partial)


# -- lone surrogates -------------------------------------------------------------------------------


def test_split_surrogate_pair_is_joined_in_the_next_delta():
    """pi splits emoji over two deltas (eliza#30904)."""
    stage = start_stage(True)
    stage.turn.add_text("smile " + HIGH)
    stage.turn.add_text(LOW + " ok")
    assert stage.take_summary() == ["start", "open:text", "+smile ", "+😀 ok"]
    stage.turn.end_block()
    assert stage.take_summary() == ["text:smile 😀 ok", "stop"]
    assert list(stage.diagnostics.repairs) == ["surrogate"]


def test_split_surrogate_pair_is_joined_without_partial_messages():
    stage = start_stage(False)
    stage.turn.add_text("smile " + HIGH)
    stage.turn.add_text(LOW + " ok")
    stage.turn.end_block()
    assert stage.take_summary() == ["text:smile 😀 ok"]


def test_lone_high_surrogate_emits_no_delta_until_its_low_surrogate_arrives():
    stage = start_stage(True)
    stage.turn.add_text(HIGH)
    assert stage.take_summary() == ["start", "open:text"]
    stage.turn.add_text(LOW)
    assert stage.take_summary() == ["+😀"]


@BOTH
def test_unpaired_high_surrogate_is_replaced(partial):
    stage = start_stage(partial)
    stage.turn.add_text("a" + HIGH)
    stage.turn.add_text("b")
    stage.turn.add_text("c" + HIGH)
    assert texts(stage) == ["text:a\ufffdbc\ufffd"]


@BOTH
@pytest.mark.parametrize("text", [LOW, LOW + HIGH, "a" + LOW + "b"])
def test_surrogates_in_the_wrong_order_are_replaced(partial, text):
    stage = start_stage(partial)
    stage.turn.add_text(text)
    assert texts(stage) == ["text:" + replace_lone_surrogates(text)]


@BOTH
def test_surrogates_in_different_blocks_are_not_joined(partial):
    stage = start_stage(partial)
    stage.turn.add_text("a" + HIGH, 0)
    stage.turn.add_text(LOW + "b", 1)
    assert texts(stage) == ["text:a\ufffd", "text:\ufffdb"]


@BOTH
def test_lone_surrogate_in_a_complete_block_is_replaced_and_counted(partial):
    stage = start_stage(partial)
    stage.turn.add_block("x" + HIGH)
    assert texts(stage) == ["text:x\ufffd"]
    assert stage.diagnostics.repairs == {"surrogate": 1}


@BOTH
@settings(derandomize=True, deadline=None, database=None, max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["text", "thinking"]),
            st.text(alphabet=["a", "é", HIGH, LOW, "\u2028", "\x00", "😀"], max_size=4),
        )
    )
)
def test_all_text_and_thinking_fragments_are_emitted_exactly_once(partial, fragments):
    """S14"""
    stage = start_stage(partial)
    for block_type, fragment in fragments:
        getattr(stage.turn, f"add_{block_type}")(fragment)
    text_by_type = {"text": "", "thinking": ""}
    stage.turn.record_turn_end()
    stage.turn.finish()
    for line in stage.take_lines():
        if line["type"] == "assistant":
            (block,) = line["message"]["content"]
            text_by_type[block["type"]] += block[block["type"]]
    expected = {"text": "", "thinking": ""}
    nonempty_fragments = (pair for pair in fragments if pair[1])
    for block_type, block in itertools.groupby(nonempty_fragments, key=lambda pair: pair[0]):
        expected[block_type] += replace_lone_surrogates("".join(fragment for _, fragment in block))
    assert text_by_type == expected
    check_turns(stage.bytes, partial)


# -- snapshots -------------------------------------------------------------------------------------


def test_snapshot_emits_only_new_text():
    stage = start_stage(True)
    stage.turn.update_text("Hel", 0)
    stage.turn.update_text("Hello", 0)
    stage.turn.update_text("Hello", 0)
    assert stage.take_summary() == ["start", "open:text", "+Hel", "+lo"]


@BOTH
def test_snapshot_of_a_streamed_block_emits_the_missing_text(partial):
    """pi: `message_end` is authoritative, deltas may be missing."""
    stage = start_stage(partial)
    stage.turn.add_text("Hel", 0)
    stage.turn.add_thinking("hm", 1)
    stage.turn.update_text("Hello", 0)
    stage.turn.update_thinking("hmm", 1)
    assert "".join(entry[5:] for entry in texts(stage) if entry.startswith("text:")) == "Hello"


@BOTH
def test_snapshot_that_contradicts_emitted_text_is_counted_and_ignored(partial):
    stage = start_stage(partial)
    stage.turn.add_text("Hello", 0)
    stage.turn.update_text("Goodbye", 0)
    assert texts(stage) == ["text:Hello"]
    assert stage.diagnostics.repairs == {"contradicted_block": 1}


@BOTH
def test_snapshots_of_two_blocks_are_tracked_separately(partial):
    stage = start_stage(partial)
    stage.turn.update_text("a", 0)
    stage.turn.update_text("b", 1)
    stage.turn.update_text("ab", 0)
    stage.turn.update_text("b", 1)
    assert texts(stage) == ["text:a", "text:b", "text:b"]
    assert stage.diagnostics.repairs == {}


@BOTH
def test_text_and_thinking_snapshots_with_the_same_key_are_two_blocks(partial):
    stage = start_stage(partial)
    stage.turn.update_text("same", 0)
    stage.turn.update_thinking("same", 0)
    assert texts(stage) == ["text:same", "think:same"]


@BOTH
def test_snapshot_of_a_new_message_is_emitted_in_full(partial):
    stage = start_stage(partial)
    stage.turn.update_text("Hello", 0)
    stage.turn.start_message()
    stage.turn.update_text("Hello", 0)
    assert texts(stage) == ["text:Hello", "text:Hello"]


@BOTH
def test_snapshot_matches_text_streamed_with_a_split_surrogate_pair(partial):
    stage = start_stage(partial)
    stage.turn.add_text("x" + HIGH, 0)
    stage.turn.add_text(LOW, 0)
    stage.turn.update_text("x😀 y", 0)
    assert texts(stage) == ["text:x😀 y"]
    assert "contradicted_block" not in stage.diagnostics.repairs


# -- repeated replies ------------------------------------------------------------------------------


def test_buffered_text_of_a_retracted_message_is_discarded():
    stage = start_stage(False)
    stage.turn.add_text("Hel")
    stage.turn.retract_message()
    stage.turn.add_text("Hello")
    assert texts(stage) == ["text:Hello"]


def test_streamed_text_of_a_retracted_message_is_not_emitted_twice():
    stage = start_stage(True)
    stage.turn.add_text("Hel")
    stage.turn.retract_message()
    assert stage.take_summary() == ["start", "open:text", "+Hel", "text:Hel", "stop", "done:None"]
    stage.turn.add_text("H")
    stage.turn.add_text("el")
    assert stage.take_summary() == []
    stage.turn.add_text("lo")
    assert stage.take_summary() == ["start", "open:text", "+lo"]
    stage.turn.record_turn_end()
    assert stage.finish_turn()[-2] == "end:success Hello", "the result is the whole reply"


@BOTH
def test_message_retracted_twice_emits_its_text_and_thinking_once(partial):
    stage = start_stage(partial)
    for thought, text in (("hm", "Hel"), ("hm", "Hello"), ("hm", "Hello there")):
        stage.turn.add_thinking(thought, 0)
        stage.turn.add_text(text, 1)
        stage.turn.end_block()
        if text != "Hello there":
            stage.turn.retract_message()
    entries = texts(stage)
    assert (
        "".join(text.removeprefix("text:") for text in entries if text.startswith("text:"))
        == "Hello there"
    )
    assert (
        "".join(text.removeprefix("think:") for text in entries if text.startswith("think:"))
        == "hm"
    )
    assert "contradicted_reply" not in stage.diagnostics.repairs


def test_longer_repeated_fragment_emits_only_its_new_suffix():
    stage = start_stage(True)
    stage.turn.add_text("Hel")
    stage.turn.retract_message()
    stage.take_lines()
    stage.turn.add_text("Hello")
    assert stage.take_summary() == ["start", "open:text", "+lo"]


@BOTH
def test_repeated_complete_block_of_a_retracted_message_is_skipped(partial):
    stage = start_stage(partial)
    stage.turn.add_block("Hello")
    stage.turn.retract_message()
    stage.take_lines()
    stage.turn.add_block("Hello")
    assert stage.take_summary() == []
    stage.turn.add_block(" there")
    assert texts(stage) == ["text: there"]
    assert stage.diagnostics.repairs == {"repeated_reply": 1}


@BOTH
def test_retried_message_with_different_text_is_emitted(partial):
    stage = start_stage(partial)
    stage.turn.add_block("Hello")
    stage.turn.retract_message()
    stage.take_lines()
    stage.turn.add_block("Goodbye")
    stage.turn.record_turn_end()
    summary = stage.finish_turn()
    assert "text:Goodbye" in summary
    assert summary[-2] == "end:success Goodbye"
    assert stage.diagnostics.repairs == {"contradicted_reply": 1}


def test_retried_message_that_diverges_is_emitted_from_its_start():
    """The withheld text belongs to the new reply. Without it the sentence would have no start."""
    stage = start_stage(True)
    stage.turn.add_text("abc")
    stage.turn.retract_message()
    stage.take_lines()
    stage.turn.add_text("ab")
    stage.turn.add_text("zz")
    assert stage.take_summary() == ["start", "open:text", "+abzz"]
    stage.turn.record_turn_end()
    assert stage.finish_turn()[-2] == "end:success abzz"


def test_shorter_retried_message_becomes_the_result():
    stage = start_stage(True)
    stage.turn.add_text("Hello")
    stage.turn.retract_message()
    stage.turn.add_text("Hel")
    stage.turn.end_message()
    stage.turn.record_turn_end()
    assert stage.finish_turn()[-2] == "end:success Hel"


@BOTH
def test_empty_retried_message_leaves_an_empty_result(partial):
    stage = start_stage(partial)
    stage.turn.add_block("Hello")
    stage.turn.retract_message()
    stage.turn.record_turn_end()
    assert stage.finish_turn()[-2] == "end:success"


@BOTH
def test_block_retried_several_times_is_emitted_once(partial):
    """qwen's empty replies: eight retries in a row."""
    stage = start_stage(partial)
    stage.turn.add_block("Hel")
    for _ in range(3):
        stage.turn.retract_message()
        stage.turn.add_block("Hel")
    stage.turn.add_block("lo")
    assert texts(stage) == ["text:Hel", "text:lo"]


@BOTH
def test_repeated_thinking_of_a_retracted_message_is_skipped(partial):
    stage = start_stage(partial)
    stage.turn.add_thinking_block("hm")
    stage.turn.add_block("Hello")
    stage.turn.retract_message()
    stage.turn.add_thinking_block("hm")
    stage.turn.add_block("Hello")
    assert texts(stage) == ["think:hm", "text:Hello"]


@BOTH
def test_new_tool_call_in_a_retried_message_is_emitted(partial):
    stage = start_stage(partial)
    stage.turn.add_block("Hello")
    stage.turn.retract_message()
    stage.turn.add_block("Hello")
    stage.turn.add_tool_call("t", "Bash", {})
    stage.turn.add_tool_result("t", "")
    assert texts(stage) == ["text:Hello", "call:t Bash"]


@BOTH
def test_text_repeated_after_a_tool_result_is_emitted(partial):
    """The reply before the result is over. A retry repeats the reply after it."""
    stage = start_stage(partial)
    stage.turn.add_block("Hello")
    stage.turn.add_tool_call("t", "Bash", {})
    stage.turn.add_tool_result("t", "")
    stage.turn.retract_message()
    stage.turn.add_block("Hello")
    assert texts(stage) == ["text:Hello", "call:t Bash", "text:Hello"]


def test_retraction_before_any_output_has_no_effect():
    stage = Stage()
    stage.turn.retract_message()
    assert stage.take_summary() == []
    stage.turn.add_block("Hello")
    assert stage.take_summary() == ["init", "text:Hello"]


@BOTH
def test_snapshot_of_a_retried_block_emits_only_new_text(partial):
    """pi streams deltas of the retried reply, then sends the full message."""
    stage = start_stage(partial)
    stage.turn.add_block("Hel")
    stage.turn.retract_message()
    stage.turn.add_text("Hel", 0)
    stage.turn.add_text("lo", 0)
    stage.turn.update_text("Hello", 0)
    assert texts(stage) == ["text:Hel", "text:lo"]


@BOTH
def test_pending_surrogate_of_a_retracted_message_is_discarded(partial):
    stage = start_stage(partial)
    stage.turn.add_text("a" + HIGH)
    stage.turn.retract_message()
    stage.turn.add_text("b")
    assert "\ufffd" not in "".join(texts(stage)) or partial, "said deltas cannot be taken back"


def test_block_type_parsed_from_json_is_accepted():
    stage = Stage()
    stage.turn.add_block("hello", json.loads('"text"'))
    stage.turn.add_block("hm", json.loads('"thinking"'))
    assert stage.take_summary() == ["init", "text:hello", "think:hm"]
    assert stage.turn.assistant_message.last_text == "hello"
