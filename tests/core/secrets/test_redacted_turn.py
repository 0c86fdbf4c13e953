"""A turn without secrets: deltas, full lines, calls, results and errors, and the text that stays
unchanged.
"""

import itertools
import json
from typing import Any

import pytest
from fake_secrets import SECRETS, generate_secret
from fixture_cases import list_fixture_cases, translate_case
from hypothesis import given
from hypothesis import strategies as st
from stream_invariants import check_turns
from stream_lines import Line, parse_lines
from sweeps import choose_few_cases, limit_examples, loop_over_cases, loop_over_rows
from turn_stage import Stage

from shim.core.secrets.redacted_turn import RedactedTurn
from shim.core.turn.outcome import ChildExit

GITHUB = f"ghp_{generate_secret(36)}"
MARK = "[REDACTED:github-token]"
BOTH = pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])


def start_stage(partial: bool = False, **config_fields: Any) -> Stage:
    """Start a redacting stage after its init."""
    stage = Stage(partial=partial, redacts_secrets=True, **config_fields)
    stage.turn.record_vendor_session_info(session_id="s")
    stage.take_lines()
    return stage


def end_turn(stage: Stage) -> list[str]:
    """Return a summary of the rest of a stream. Check the contract."""
    stage.turn.record_turn_end()
    summary = stage.finish_turn()
    check_turns(stage.bytes, stage.writer.writes_partial_messages)
    return summary


def test_turn_redacts_only_if_configured():
    assert not isinstance(Stage().turn, RedactedTurn)
    assert isinstance(Stage(redacts_secrets=True).turn, RedactedTurn)
    assert isinstance(Stage(redacts_secrets=True).turn.create_next(), RedactedTurn)


# -- texts -----------------------------------------------------------------------------------------


def test_secret_split_over_two_deltas_is_redacted():
    stage = start_stage(True)
    stage.turn.add_text(f"use {GITHUB[:20]}")
    stage.turn.add_text(f"{GITHUB[20:]} now")
    assert stage.take_summary() == ["start", "open:text", "+use ", f"+{MARK} now"]
    assert end_turn(stage)[:2] == [f"text:use {MARK} now", "stop"]


def test_secret_split_over_many_deltas_is_redacted_in_text_and_result():
    stage = start_stage(True)
    for character in GITHUB:
        stage.turn.add_text(character)
    assert stage.take_summary() == ["start", "open:text", f"+{MARK}"]
    summary = end_turn(stage)
    assert (summary[0], summary[-2]) == (f"text:{MARK}", f"end:success {MARK}")


def test_buffered_text_is_written_before_the_block_is_closed():
    for close in (
        lambda turn: turn.end_block(),
        lambda turn: turn.add_block("next"),
        lambda turn: turn.add_thinking_block("next"),
        lambda turn: turn.add_tool_call("t", "Read", {}),
        lambda turn: turn.end_message(),
        lambda turn: turn.add_text("next", block_key=2),
        lambda turn: turn.add_thinking("next"),
        lambda turn: turn.finish(),
    ):
        for fragment in ("ghp_abc", "gh"):
            stage = start_stage(True)
            stage.turn.add_text("a ", block_key=1)
            stage.turn.add_text(fragment, block_key=1)
            close(stage.turn)
            summary = stage.take_summary()
            assert summary[2:4] == ["+a ", f"+{fragment}"]
            end_turn(stage)


@BOTH
def test_block_of_only_buffered_text_is_written(partial):
    stage = start_stage(partial)
    stage.turn.add_text("ghp_")
    stage.turn.add_block("next")
    assert [entry for entry in end_turn(stage) if entry.startswith("text")] == [
        "text:ghp_",
        "text:next",
    ]


@BOTH
def test_buffered_text_stays_in_its_block(partial):
    stage = start_stage(partial)
    stage.turn.add_thinking("think ghp_", key=0)
    stage.turn.add_text("text ghp_", block_key=1)
    stage.turn.add_thinking("x", key=0)
    summary = [entry for entry in end_turn(stage) if entry.startswith(("text:", "think:"))]
    assert summary == ["think:think ghp_", "text:text ghp_", "think:x"]


def test_secret_does_not_extend_into_the_next_block():
    stage = start_stage()
    stage.turn.add_text(f"{GITHUB}")
    stage.turn.end_block()
    stage.turn.add_text("abcdef")
    assert [entry for entry in end_turn(stage) if entry.startswith("text:")] == [
        f"text:{MARK}",
        "text:abcdef",
    ]


@BOTH
def test_retracted_message_is_written_once_after_a_retry(partial):
    stage = start_stage(partial)
    stage.turn.add_text(f"one {GITHUB} two")
    stage.turn.retract_message()
    for piece in ("one ", GITHUB[:10], GITHUB[10:], " two", " three"):
        stage.turn.add_text(piece)
    full_text = "".join(entry[5:] for entry in end_turn(stage) if entry.startswith("text:"))
    assert full_text == f"one {MARK} two three"


@BOTH
def test_snapshot_writes_only_new_redacted_text(partial):
    stage = start_stage(partial)
    full = f"use {GITHUB} now and sk"
    for end in (4, 10, 30, 45, len(full)):
        stage.turn.update_text(full[:end], 0)
    stage.turn.update_text(full, 0)
    stage.turn.add_text("in deep", 0)
    stage.turn.update_text(full + "in deep", 0)
    summary = end_turn(stage)
    assert f"text:use {MARK} now and skin deep" in summary
    assert stage.diagnostics.repairs == {}
    assert stage.diagnostics.redactions == {"github-token": 1}


def test_contradicting_snapshot_is_counted_and_not_written():
    stage = start_stage()
    stage.turn.update_text("one two", 0)
    stage.turn.update_text("three", 0)
    assert "text:one two" in end_turn(stage)
    assert stage.diagnostics.repairs == {"contradicted_block": 1}


@BOTH
@pytest.mark.parametrize("size", [1, 3, 40, 1000, 100_000])
def test_long_text_is_redacted_before_splitting_into_lines(partial, size):
    stage = start_stage(partial, max_bytes=700)
    text = f"{'word ' * 50}{GITHUB} " * 20
    for start in range(0, len(text), size):
        stage.turn.add_text(text[start : start + size])
    output_text = "".join(entry[5:] for entry in end_turn(stage) if entry.startswith("text:"))
    assert output_text == text.replace(GITHUB, MARK)
    assert stage.diagnostics.redactions == {"github-token": 20}


def test_surrogate_pair_around_buffered_text_is_joined():
    stage = start_stage(True)
    for piece in ("a \ud83d", "\ude00", " ghp_", "\ud83d", "\ude00"):
        stage.turn.add_text(piece)
    assert "text:a 😀 ghp_😀" in end_turn(stage)


PLANTED = st.sampled_from([(before, secret, suffix) for _, before, secret, suffix in SECRETS])


@limit_examples(150)
@given(
    partial=st.booleans(),
    planted=PLANTED,
    around=st.tuples(*[st.text(alphabet="abc sk-ghp:='\n", max_size=30)] * 2),
    at=st.lists(st.integers(0, 600), max_size=25),
    verb=st.sampled_from(["add_text", "add_thinking"]),
)
def test_planted_secret_is_in_no_line_for_any_split(partial, planted, around, at, verb):
    before, secret, suffix = planted
    text = f"{around[0]}\n{before}{secret}{suffix}\n{around[1]}"
    places = [0, *sorted({position % (len(text) + 1) for position in at}), len(text)]
    stage = start_stage(partial)
    for start, end in itertools.pairwise(places):
        getattr(stage.turn, verb)(text[start:end])
    end_turn(stage)
    dumped = json.dumps(secret)[1:-1].encode()
    assert dumped not in stage.bytes
    assert "[REDACTED:" in stage.bytes.decode()


@limit_examples(60)
@given(
    partial=st.booleans(),
    steps=st.lists(
        st.tuples(
            st.sampled_from(
                [
                    "add_text",
                    "add_thinking",
                    "add_block",
                    "add_thinking_block",
                    "update_text",
                    "end_block",
                    "end_message",
                    "retract_message",
                    "call",
                ]
            ),
            st.sampled_from(
                [
                    "a sk",
                    "-",
                    "ghp_",
                    "password",
                    "=",
                    "x ",
                    "hunter2 ",
                    "://a:",
                    "b@c",
                    GITHUB,
                    "-----BE",
                ]
            ),
            st.sampled_from([None, 0, 1]),
        ),
        max_size=25,
    ),
)
def test_any_verb_order_writes_a_valid_turn_without_the_token(partial, steps):
    stage = start_stage(partial)
    turn: Any = stage.turn
    for number, (verb, text, key) in enumerate(steps):
        if verb in ("end_block", "end_message", "retract_message"):
            getattr(turn, verb)()
        elif verb == "call":
            turn.add_tool_call(f"t{number}", "Bash", {"command": text})
            turn.add_tool_result(f"t{number}", text)
        elif verb in ("add_block", "add_thinking_block"):
            getattr(turn, verb)(text)
        else:
            getattr(turn, verb)(text, key)
    end_turn(stage)
    assert GITHUB.encode() not in stage.bytes


# -- calls, errors, and everything else ------------------------------------------------------------


@BOTH
def test_tool_inputs_and_results_are_redacted(partial):
    stage = start_stage(partial)
    stage.turn.add_tool_call(
        "t", "Bash", {"command": f"curl -H 'X: {GITHUB}'", "password": "hunter2"}
    )
    stage.turn.add_tool_result("t", f"got {GITHUB}")
    stage.turn.add_tool_call("u", "Read", {"file_path": "x"})
    stage.turn.add_tool_result("u", [{"type": "text", "text": GITHUB}])
    stage.turn.add_tool_call("v", "mcp", {})
    stage.turn.add_tool_result("v", {"token": "abc123def"})
    summary = end_turn(stage)
    assert (
        GITHUB.encode() not in stage.bytes
        and b"hunter2" not in stage.bytes
        and b"abc123def" not in stage.bytes
    )
    assert f"result:t got {MARK}" in summary
    assert stage.diagnostics.redactions == {"github-token": 3, "assigned-secret": 2}


def test_subagent_lines_are_redacted():
    stage = start_stage()
    stage.turn.add_tool_call("t", "Task", {})
    nested = stage.turn.get_subagent("t")
    nested.write_text_message(f"a {GITHUB}")
    nested.write_thinking_message(GITHUB)
    nested.add_tool_call("n", "Bash", {"command": GITHUB})
    nested.add_tool_result("n", GITHUB)
    nested.add_user_text(GITHUB)
    assert f"t>text:a {MARK}" in stage.take_summary()
    end_turn(stage)
    assert GITHUB.encode() not in stage.bytes


@BOTH
def test_call_line_that_serves_as_a_prompt_is_not_redacted(partial):
    asking = [True]
    stage = start_stage(partial, asks_by_line=lambda: asking[0])
    stage.turn.add_tool_call("t", "Bash", {"command": f"asked {GITHUB}"})
    nested = stage.turn.get_subagent("t")
    nested.add_tool_call("n", "Bash", {"command": f"nested {GITHUB}"})
    stage.take_lines()
    assert stage.bytes.count(f"asked {GITHUB}".encode()) == 1 + partial
    assert stage.bytes.count(f"nested {GITHUB}".encode()) == 1
    byte_count = len(stage.bytes)
    nested.add_tool_result("n", GITHUB)
    nested.write_text_message(GITHUB)
    stage.turn.add_tool_result("t", GITHUB)
    asking[0] = False
    stage.turn.add_tool_call("u", "Bash", {"command": GITHUB})
    stage.turn.add_text(GITHUB)
    end_turn(stage)
    assert GITHUB.encode() not in stage.bytes[byte_count:]


def test_subagent_result_reported_by_another_subagent_is_redacted():
    stage = start_stage()
    for call in ("t", "u"):
        stage.turn.add_tool_call(call, "Task", {})
    stage.turn.get_subagent("t").add_tool_call("n", "Bash", {})
    stage.turn.get_subagent("u").add_tool_result("n", f"got {GITHUB}")
    end_turn(stage)
    assert GITHUB.encode() not in stage.bytes and MARK.encode() in stage.bytes


@loop_over_rows(
    "end",
    [
        lambda turn: turn.record_failure(f"401 unauthorized: key {GITHUB}"),
        lambda turn: turn.record_failure(f"strange: {GITHUB}", api=False),
        lambda turn: turn.close(ChildExit(code=2), f"fatal: {GITHUB}"),
        lambda turn: turn.record_turn_end(result=f"done {GITHUB}", structured_output={"a": GITHUB}),
        lambda turn: turn.write_internal_error(GITHUB),
        lambda turn: turn.write_system_event("notification", text=GITHUB),
        lambda turn: turn.add_denial("t", "Bash", {"command": GITHUB}),
        lambda turn: turn.fill_open_call_results(GITHUB),
        lambda turn: turn.record_unknown_event(GITHUB, GITHUB),
        lambda turn: turn.add_tool_call("t", "Bash", {GITHUB: [GITHUB]}),
    ],
)
def test_errors_and_system_events_are_redacted(end):
    stage = start_stage()
    stage.turn.add_tool_call("open", "Bash", {"command": "x"})
    end(stage.turn)
    stage.turn.close(ChildExit(code=0), "")
    stage.take_lines()
    assert GITHUB.encode() not in stage.bytes
    assert b"REDACTED" in stage.bytes
    assert GITHUB not in stage.turn.final_text


def test_result_counts_redactions_only_if_there_are_any():
    stage = start_stage()
    stage.turn.add_block("nothing")
    stage.turn.record_turn_end()
    assert "redacted" not in stage.finish_with_result()["shim"]
    stage = start_stage()
    stage.turn.add_block(f"{GITHUB} {GITHUB} Bearer {generate_secret(30)}")
    stage.turn.record_turn_end()
    assert stage.finish_with_result()["shim"]["redacted"] == {"github-token": 2, "bearer-token": 1}
    assert stage.diagnostics.build_report()["redacted"] == {"github-token": 2, "bearer-token": 1}


def test_stored_large_result_is_redacted():
    stored_texts = []
    stage = start_stage(
        store_text=lambda text: stored_texts.append(text) or "/path", max_bytes=3000
    )
    stage.turn.add_tool_call("t", "Bash", {"command": "x"})
    stage.turn.add_tool_result("t", "line\n" * 2000 + GITHUB)
    assert stored_texts and GITHUB not in stored_texts[0] and MARK in stored_texts[0]


# -- unchanged text --------------------------------------------------------------------------------


def test_permission_request_contains_the_original_input():
    stage = start_stage()
    tool_input = {"command": f"echo {GITHUB}", "password": "hunter2"}
    stage.turn.request_permission("r", "t", "Bash", tool_input, ("shell", tool_input))
    (permission,) = stage.turn.permission_requests.pending
    assert permission.tool_input is tool_input and permission.vendor_input is tool_input
    assert GITHUB.encode() not in stage.writer.take_bytes(), "the call's own line is redacted"


def test_hook_receives_the_original_input():
    stage = start_stage()
    stage.turn.tool_calls.hook_events = []
    tool_input = {"command": f"echo {GITHUB}"}
    stage.turn.add_tool_call("t", "Bash", tool_input)
    stage.turn.add_tool_result("t", GITHUB)
    call_event, result_event = stage.turn.tool_calls.hook_events
    assert call_event.tool_input is tool_input
    assert result_event.tool_response["stdout"] == MARK


# -- all vendors -----------------------------------------------------------------------------------


def join_fragments(output: bytes) -> list[Any]:
    """Return the lines without ids, with the fragments of a block joined: a delayed text is still
    the same text.
    """
    joined_lines: list[Any] = []
    for line in parse_lines(output):
        fragment = _fragment(line)
        if (
            fragment
            and joined_lines
            and isinstance(joined_lines[-1], list)
            and joined_lines[-1][0] == fragment[0]
        ):
            joined_lines[-1][1] += fragment[1]
        elif fragment:
            joined_lines.append(list(fragment))
        else:
            joined_lines.append({**line, "uuid": "", "message": _without_id(line)})
    return joined_lines


def _fragment(line: Line) -> tuple[str, str] | None:
    delta = line.get("event", {}).get("delta", {}) if line["type"] == "stream_event" else {}
    return next(
        ((name, delta[name]) for name in ("text", "thinking", "partial_json") if name in delta),
        None,
    )


def _without_id(line: Line) -> Any:
    message = line.get("message")
    synthetic = isinstance(message, dict) and message.get("model") == "<synthetic>"
    return {**message, "id": ""} if synthetic else message


@loop_over_cases(list_fixture_cases(), quick=choose_few_cases)
def test_fixtures_without_secrets_are_written_unchanged(case):
    plain, _ = translate_case(case, partial=False)
    redacted, translation = translate_case(case, partial=False, redact=True)
    # A dropped line may use a number.
    assert redacted == plain or (
        case.passthrough and join_fragments(redacted) == join_fragments(plain)
    )
    assert translation.diagnostics.redactions == {}
    plain, _ = translate_case(case, partial=True)
    redacted, _ = translate_case(case, partial=True, redact=True)
    check_turns(redacted, True, passthrough=case.passthrough)
    assert join_fragments(redacted) == join_fragments(plain)
