"""The story of a session: each text appears once, and each step has its outcome and its times."""

import re
from typing import Any

import pytest
from cast_builder import build_case_recording, build_recording, split_lines
from fixture_cases import Case, find_case, list_fixture_cases, translate_case
from story_builder import (
    INIT,
    STOP,
    Event,
    build_assistant_line,
    build_delta,
    build_message_start,
    build_permission_answer,
    build_permission_request,
    build_result_line,
    build_story,
    build_stream_event,
    build_text_block,
    build_tool_result_line,
    build_tool_use,
    build_user_line,
    read_story,
)
from sweeps import choose_few_cases, loop_over_cases, loop_over_rows

from shim.core.turn.outcome import ChildExit
from shim.story import model as stories
from shim.story.events import (
    SessionStep,
    SessionStepChange,
    StreamedContentBlock,
    find_failure_cause,
)
from shim.story.reader import parse_child_exit
from shim.story.timeline import ACTIVITIES, MAX_BUCKETS, ActivityTimeline

# Without partial messages, text that is never completed is missing.
ODD = re.compile("torture|/fuzz-")


def texts(steps: list[SessionStep], kind: str = "text") -> list[str]:
    return [step.text for step in steps if step.kind == kind]


# -- every fixture ---------------------------------------------------------------------------------


@loop_over_cases(list_fixture_cases(), quick=choose_few_cases)
def test_every_step_starts_and_ends_once(case: Case) -> None:
    story, changes = read_story(build_case_recording(case))
    for what in ("begin", "end"):
        numbers = [change.step.number for change in changes if change.phase == what]
        assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert all(
        change.step.until is not None and change.step.until >= change.step.at for change in changes
    )
    assert sum(story.totals.seconds.values()) == pytest.approx(story.totals.duration_s)


@loop_over_cases(list_fixture_cases("pi", "qwen", "cursor", "acai", "cake"), quick=choose_few_cases)
def test_frontend_and_vendor_output_produce_equal_totals(case: Case) -> None:
    frontend_story, _ = read_story(build_case_recording(case))
    vendor_story, _ = read_story(build_case_recording(case, dialect="yume"))
    assert (frontend_story.totals.calls, frontend_story.totals.tokens) == (
        vendor_story.totals.calls,
        vendor_story.totals.tokens,
    )


@loop_over_cases(
    (case for case in list_fixture_cases() if not ODD.search(case.name)), quick=choose_few_cases
)
def test_story_is_equal_with_and_without_partial_messages(case: Case) -> None:
    variants = []
    for partial in (False, True):
        lines, _ = translate_case(case, partial=partial)
        _, changes = read_story(
            build_recording((n / 10, "O", line) for n, line in enumerate(split_lines(lines)))
        )
        steps = [change.step for change in changes if change.phase == "end"]
        calls = [(step.name, step.input, step.output) for step in steps if step.kind == "call"]
        variants.append(
            ("".join(texts(steps)), "".join(texts(steps, "thinking")), texts(steps, "error"), calls)
        )
    assert variants[0] == variants[1]


# -- streams ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True])
def test_streamed_block_and_its_line_are_a_single_step(
    late: bool,
) -> None:
    line = build_assistant_line(build_text_block("Hello"))
    end = [STOP, line] if late else [line, STOP]
    _, steps = build_story(build_message_start(), build_delta("Hel"), build_delta("lo"), *end)
    assert texts(steps) == ["Hello"]


def test_unstreamed_block_of_a_streamed_message_is_included() -> None:
    _, steps = build_story(
        build_message_start(),
        build_delta("One."),
        build_assistant_line(build_text_block("One.")),
        STOP,
        build_assistant_line(build_text_block("Another thing.")),
    )
    assert texts(steps) == ["One.", "Another thing."]


def test_line_longer_than_its_stream_adds_only_the_remaining_text() -> None:
    _, open_steps = build_story(
        build_message_start(), build_delta("Hel"), build_assistant_line(build_text_block("Hello"))
    )
    _, closed_steps = build_story(
        build_message_start(),
        build_delta("Hel"),
        STOP,
        build_assistant_line(build_text_block("Hello")),
    )
    assert (texts(open_steps), texts(closed_steps)) == (["Hello"], ["Hel", "lo"])


def test_equal_blocks_of_a_message_are_both_included() -> None:
    _, steps = build_story(
        build_assistant_line(build_text_block("Again.")),
        build_assistant_line(build_text_block("Again.")),
    )
    assert texts(steps) == ["Again.", "Again."]


def test_retried_message_with_another_id_is_included_once() -> None:
    stop = build_stream_event("message_stop")
    _, steps = build_story(
        build_message_start("a"),
        build_delta("partial"),
        STOP,
        stop,
        build_assistant_line(build_text_block("partial"), message_id="b"),
    )
    assert texts(steps) == ["partial"]


def test_truncated_line_matches_its_streamed_block() -> None:
    long_text = "word " * 100
    _, steps = build_story(
        build_message_start(),
        build_delta(long_text),
        build_assistant_line(build_text_block(long_text[:400] + "… cut, the rest is in a file")),
        STOP,
    )
    assert texts(steps) == [long_text]


def test_deltas_of_different_agents_and_kinds_are_not_mixed() -> None:
    events = (
        build_delta("a"),
        build_delta("b", parent="t"),
        build_delta("a"),
        build_delta("b", parent="t"),
        build_delta("hm", "thinking"),
    )
    _, steps = build_story(
        build_assistant_line(build_tool_use("t", "Agent")), build_message_start(), *events
    )
    assert [(step.kind, step.text, step.parent) for step in steps[1:]] == [
        ("text", "aa", ""),
        ("text", "bb", "t"),
        ("thinking", "hm", ""),
    ]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "redacted_thinking", "data": "x"},
        {"type": "thinking", "thinking": "", "signature": "x"},
    ],
)
def test_hidden_thinking_is_a_step_without_text(block: Event) -> None:
    _, steps = build_story(build_assistant_line(block))
    assert [(step.kind, step.text) for step in steps] == [("thinking", "")]


def test_streamed_text_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shim.story.events.MAX_STREAMED_CHARS", 10)
    _, steps = build_story(
        build_message_start(), build_delta("12345678"), build_delta("9abcdef"), STOP
    )
    assert texts(steps) == ["123456789a\n… 5 more characters"]
    block = StreamedContentBlock(steps[0])
    block.add_fragment("x" * 100)
    assert sum(map(len, block.fragments)) == 10


# -- calls -----------------------------------------------------------------------------------------


def test_tool_call_step_has_output_patch_outcome_and_time() -> None:
    story, steps = build_story(
        build_assistant_line(build_tool_use("a", "Edit", file_path="x")),
        build_tool_result_line("a", "done", extra={"structuredPatch": []}),
    )
    step = steps[0]
    assert (step.name, step.input, step.output, step.extra) == (
        "Edit",
        {"file_path": "x"},
        "done",
        {"structuredPatch": []},
    )
    assert (step.outcome, step.at, step.until) == ("ok", 1, 2)
    assert (story.totals.calls, story.totals.failed_calls) == (1, 0)


def test_patch_is_dropped_if_a_line_has_two_tool_results() -> None:
    blocks = [{"type": "tool_result", "tool_use_id": key, "content": key} for key in "ab"]
    _, steps = build_story(
        build_assistant_line(build_tool_use("a"), build_tool_use("b")),
        {"type": "user", "message": {"content": blocks}, "tool_use_result": {"x": 1}},
    )
    assert [(step.output, step.extra) for step in steps] == [("a", None), ("b", None)]


def test_reused_call_id_is_a_new_call_only_after_its_result() -> None:
    _, steps = build_story(
        build_assistant_line(build_tool_use("a")),
        build_assistant_line(build_tool_use("a")),
        build_tool_result_line("a"),
        build_assistant_line(build_tool_use("a")),
        build_tool_result_line("a"),
    )
    assert [(step.kind, step.outcome) for step in steps] == [("call", "ok"), ("call", "ok")]


def test_late_result_of_an_unanswered_call_is_a_note() -> None:
    _, steps = build_story(
        build_assistant_line(build_tool_use("a")),
        build_result_line(),
        build_tool_result_line("a", "late"),
    )
    assert steps[0].outcome == "unanswered"
    assert (steps[2].kind, steps[2].name, steps[2].call, steps[2].output) == (
        "note",
        "late_result",
        "a",
        "late",
    )


def test_call_denied_without_a_prompt_has_outcome_denied() -> None:
    refused = {
        "type": "system",
        "subtype": "permission_denied",
        "tool_use_id": "a",
        "tool_name": "Bash",
    }
    _, steps = build_story(
        build_assistant_line(build_tool_use("a")),
        refused,
        build_tool_result_line("a", "no", failed=True),
    )
    assert [(step.kind, step.outcome) for step in steps] == [("call", "denied")]


def test_subagent_calls_name_their_parent_call() -> None:
    story, steps = build_story(
        build_assistant_line(build_tool_use("t", "Agent")),
        build_assistant_line(build_tool_use("b"), parent="t"),
        build_tool_result_line("b", parent_tool_use_id="t"),
        build_tool_result_line("t"),
    )
    assert [(step.call, step.parent, step.outcome) for step in steps] == [
        ("t", "", "ok"),
        ("b", "t", "ok"),
    ]
    assert story.totals.seconds == {"idle": 1, "tool": 3, "model": 1}


def test_calls_beyond_the_open_call_limit_end_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stories, "MAX_OPEN_CALLS", 2)
    _, steps = build_story(
        build_assistant_line(build_tool_use("a"), build_tool_use("b"), build_tool_use("c")),
        build_tool_result_line("a"),
    )
    assert [step.outcome for step in steps] == ["ok", "unanswered", "unanswered"]


def test_server_tool_use_is_a_call() -> None:
    block = {
        "type": "web_search_tool_result",
        "tool_use_id": "w",
        "content": [{"type": "text", "text": "found"}],
    }
    _, steps = build_story(
        build_assistant_line(
            {"type": "server_tool_use", "id": "w", "name": "web_search", "input": {"query": "q"}},
            block,
        )
    )
    assert [(step.name, step.outcome) for step in steps] == [("web_search", "ok")]


# -- questions, prompts, turns ---------------------------------------------------------------------


@pytest.mark.parametrize(("behavior", "outcome"), [("allow", "ok"), ("deny", "denied")])
def test_permission_prompt_waits_for_a_person_and_sets_the_outcome(
    behavior: str, outcome: str
) -> None:
    story, steps = build_story(
        build_assistant_line(build_tool_use("a")),
        build_permission_request("q", "a", command="rm x"),
        INIT,
        build_tool_result_line("a", failed=behavior == "deny"),
        sent=[(2.5, build_permission_answer("q", behavior))],
    )
    assert [step.kind for step in steps] == ["call", "question", "answer", "start"]
    assert (steps[1].input, steps[2].text, steps[0].outcome) == (
        {"command": "rm x"},
        behavior,
        outcome,
    )
    assert story.totals.seconds == {"idle": 1, "tool": 1 + 1.5, "person": 0.5, "model": 1}
    assert (steps[0].prompt_wait_s, steps[0].run_time_s) == (0.5, 2.5)


def test_person_time_counts_while_any_prompt_is_open() -> None:
    story, _ = build_story(
        build_assistant_line(build_tool_use("a"), build_tool_use("b")),
        build_permission_request("p", "a"),
        build_permission_request("q", "b"),
        build_tool_result_line("a"),
        build_tool_result_line("b"),
        sent=[(3.5, build_permission_answer("p", "allow"))],
    )
    assert story.totals.seconds["person"] == 3


@pytest.mark.parametrize("end", [build_tool_result_line("a"), build_result_line()])
def test_unanswered_prompt_counts_as_wait_until_its_call_ends(end: Event) -> None:
    _, steps = build_story(
        build_assistant_line(build_tool_use("a")), build_permission_request("q", "a"), INIT, end
    )
    assert (steps[0].prompt_wait_s, steps[0].run_time_s) == (2, 1)


def test_cancelled_prompt_stops_counting_person_time() -> None:
    cancel = {"type": "control_cancel_request", "request_id": "q"}
    story, steps = build_story(
        build_assistant_line(build_tool_use("a")),
        build_permission_request("q", "a"),
        cancel,
        build_tool_result_line("a"),
    )
    assert (steps[2].kind, steps[2].text) == ("answer", "withdrawn")
    assert story.totals.seconds["person"] == 1


def test_prompt_during_a_running_turn_does_not_start_a_turn() -> None:
    story, steps = build_story(
        INIT,
        build_assistant_line(build_text_block("one")),
        build_result_line(),
        INIT,
        build_assistant_line(build_text_block("two")),
        build_result_line(),
        build_assistant_line(build_text_block("by itself")),
        build_result_line(),
        sent=[(0.5, build_user_line("first")), (1.5, build_user_line("second"))],
    )
    kinds = [(step.kind, step.turn) for step in steps if step.kind in ("prompt", "text", "result")]
    assert kinds == [
        ("prompt", 1),
        ("prompt", 1),
        ("text", 1),
        ("result", 1),
        ("text", 2),
        ("result", 2),
        ("text", 3),
        ("result", 3),
    ]
    assert texts(steps, "start") == ["m"]
    assert story.totals.seconds == {"idle": 0.5 + 1 + 1 + 1, "model": 2.5 + 2 + 1}


def test_frontend_interrupt_is_a_note() -> None:
    requests = [
        {"type": "control_request", "request": {"subtype": kind}}
        for kind in ("interrupt", "initialize")
    ]
    _, steps = build_story(
        build_assistant_line(build_text_block("a")), sent=[(0.5, request) for request in requests]
    )
    assert [step.name for step in steps if step.kind == "note"] == ["interrupt"]


def test_replayed_prompt_is_included_once() -> None:
    _, steps = build_story(
        INIT, build_user_line("hi") | {"isReplay": True}, sent=[(0.5, build_user_line("hi"))]
    )
    assert texts(steps, "prompt") == ["hi"] and len(steps) == 2


# -- other events, and malformed lines -------------------------------------------------------------


def test_failures_are_included_and_routine_events_are_omitted() -> None:
    retry = {"type": "system", "subtype": "api_retry", "attempt": 1}
    compact = {"type": "system", "subtype": "compact_boundary"}
    quiet = [
        {"type": "system", "subtype": kind}
        for kind in ("status", "thinking_tokens", "session_state_changed")
    ]
    wrong = build_assistant_line(build_text_block("API Error: 529"), error="server_error")
    wrong["message"]["model"] = "<synthetic>"
    _, steps = build_story(INIT, *quiet, retry, compact, wrong, {"type": "nobody knows"})
    assert [(step.kind, step.name) for step in steps] == [
        ("start", ""),
        ("note", "api_retry"),
        ("note", "compact_boundary"),
        ("error", ""),
    ]


def test_malformed_lines_are_read_as_far_as_possible() -> None:
    odd = [
        {
            "type": "assistant",
            "message": {"content": [build_text_block("read"), 7, None, {"type": "tool_use"}]},
        },
        {"type": "assistant", "message": None},
        {"type": "user", "message": {"content": 5}},
        {"type": "stream_event", "event": 3},
        {"type": "control_request", "request": []},
        {"type": "result", "usage": [], "shim": {"repairs": {"a": "x"}}, "total_cost_usd": "much"},
        {"type": ["list"]},
    ]
    story, steps = build_story(*odd)
    assert [step.kind for step in steps] == ["text", "call", "result"]
    assert (story.totals.turns, story.totals.repairs, story.totals.tokens) == (1, {}, {})


# -- sums and times --------------------------------------------------------------------------------


def test_tokens_are_summed_and_cost_is_cumulative_per_session() -> None:
    other = {"session_id": "other"}
    repair_fields = {"shim": {"repairs": {"not_json": 2}}}
    story, _ = build_story(
        build_result_line(0.1),
        build_result_line(0.3, **repair_fields),
        build_result_line(0.0, is_error=True),
        build_result_line(0.05, **other, **repair_fields),
    )
    totals = story.totals
    assert totals.cost_usd == pytest.approx(0.35)
    assert (totals.turns, totals.errors, totals.repairs) == (4, 1, {"not_json": 4})
    assert totals.tokens == {"input_tokens": 40, "output_tokens": 20}


def test_backward_timestamps_produce_no_negative_durations() -> None:
    story = stories.SessionStepTracker()
    story.add_user_prompt(5, "hi")
    story.add_claude_event(3, build_assistant_line(build_tool_use("a")))
    story.add_claude_event(1, build_tool_result_line("a"))
    story.end_open_steps(0)
    assert story.totals.seconds == {"idle": 5}
    assert story.totals.duration_s == 5


def shares(timeline: ActivityTimeline, count: int) -> dict[str, float]:
    """Return the share of each activity, summed over all columns."""
    columns = timeline.compute_activity_shares_by_column(count)
    assert len(columns) == count and all(sum(column) == pytest.approx(1) for column in columns)
    return {
        spent: sum(column[index] for column in columns) / count
        for index, spent in enumerate(ACTIVITIES)
    }


@loop_over_rows("changes", [1, 3, 200, 2_000, 20_000])
@loop_over_rows("count", [1, 78, 368])
def test_timeline_columns_preserve_the_activity_shares(changes: int, count: int) -> None:
    timeline = ActivityTimeline()
    at = 0.0
    for number in range(changes):
        for spent, seconds in (("model", 0.7), ("tool", 0.2), ("person", 0.1 * (number % 2))):
            timeline.switch_activity(at, spent)
            at += seconds
    timeline.switch_activity(at, "idle")
    assert len(timeline._buckets) <= MAX_BUCKETS + 1
    assert sum(timeline.seconds.values()) == pytest.approx(at)
    column_shares = shares(timeline, count)
    for spent in ACTIVITIES:
        assert column_shares[spent] == pytest.approx(
            timeline.seconds.get(spent, 0.0) / at, abs=1e-6
        )
    if changes > 2 * count:
        assert max(column[0] for column in timeline.compute_activity_shares_by_column(count)) < 0.9


def test_timeline_column_has_the_activity_of_its_time() -> None:
    timeline = ActivityTimeline()
    for at, on in ((0, "model"), (10, "tool"), (15, "idle"), (40, "idle")):
        timeline.switch_activity(at, on)
    columns = timeline.compute_activity_shares_by_column(8)
    assert [ACTIVITIES[column.index(max(column))] for column in columns] == ["model"] * 2 + [
        "tool"
    ] + ["idle"] * 5
    assert ActivityTimeline().compute_activity_shares_by_column(8) == []


# -- casts -----------------------------------------------------------------------------------------


def test_prompt_combines_command_line_and_stdin() -> None:
    _, changes = read_story(build_recording([(0.1, "i", b"and this\n"), (0.2, "s", {"child": 1})]))
    prompt = changes[0].step
    assert (prompt.kind, prompt.text, prompt.at) == ("prompt", "say hello\nand this", 0.1)


@pytest.mark.parametrize("output_format", ["text", "json"])
def test_child_output_is_used_if_the_frontend_received_no_stream(output_format: str) -> None:
    argv = ["-p", "--output-format", output_format, "say hello"]
    expected_story, _ = read_story(build_case_recording(find_case("pi/1.5.2-bash")))
    story, changes = read_story(build_case_recording(find_case("pi/1.5.2-bash"), argv=argv))
    assert (story.totals.calls, story.totals.tokens) == (
        expected_story.totals.calls,
        expected_story.totals.tokens,
    )
    assert story.totals.turns == 1 and "prompt" in {change.step.kind for change in changes}


SIGNALLED = {"kind": "signal", "child": 1, "signal": "SIGINT"}
ENDED_BY_US = {"child": 1, "code": None, "signal": "SIGINT"}
DECIDED = {
    "is_error": False,
    "duration_ms": 2300,
    "shim": {"vendor": "pi", "cause": "clean"},
    "permission_denials": [],
}
FAILED = {"is_error": True, "subtype": "error_during_execution", "shim": {"cause": "stall"}}


def text_cast(*after: Any, output_format: str = "text", vendor: str = "pi") -> bytes:
    """Build a recording of a run whose child has sent its result. `after` are the records that
    follow.
    """
    child_events: list[Any] = [
        (0.1, "s", {"child": 1}),
        (0.5, "o", find_case("pi/1.5.2-plain").data),
    ]
    argv = ["-p", "--output-format", output_format, "say hello"]
    return build_recording(
        [*child_events, *after, (3.0, "O", b"Hello\n")], argv=argv, vendor=vendor
    )


def results(changes: list[SessionStepChange]) -> list[SessionStep]:
    return [
        change.step for change in changes if change.phase == "end" and change.step.kind == "result"
    ]


@pytest.mark.parametrize(
    "noted", [[], [(2.6, "n", {"kind": "result", "turn": 1, "result": DECIDED})]]
)
@pytest.mark.parametrize("output_format", ["text", "json"])
def test_turn_is_not_a_failure_if_the_shim_ended_the_child(
    output_format: str, noted: list[Any]
) -> None:
    """This also holds for recordings of earlier versions, which have no note of the result."""
    moments = [(2.5, "n", SIGNALLED), (2.5, "x", ENDED_BY_US), *noted]
    _, changes = read_story(text_cast(*moments, output_format=output_format))
    (step,) = results(changes)
    assert (find_failure_cause(step.facts), bool(step.text), step.at) == ("", True, 2.5)
    assert step.duration_s == pytest.approx(2.5)
    assert step.facts["duration_ms"] == (2300 if noted else 0)


def test_child_ended_by_a_foreign_signal_is_a_failure() -> None:
    _, changes = read_story(text_cast((2.5, "x", ENDED_BY_US)))
    assert [find_failure_cause(step.facts) for step in results(changes)] == ["signal"]


def test_recorded_result_overrides_the_retranslated_result() -> None:
    _, changes = read_story(
        text_cast(
            (2.5, "x", {"child": 1, "code": 0}), (2.6, "n", {"kind": "result", "result": FAILED})
        )
    )
    (step,) = results(changes)
    assert find_failure_cause(step.facts) == "stall" and step.at == 2.5


def test_interrupted_turn_is_reported_without_a_result_note() -> None:
    caught = {"kind": "caught", "signal": "SIGINT"}
    moments = [
        (0.1, "s", {"child": 1}),
        (1.0, "n", caught),
        (1.0, "n", SIGNALLED),
        (1.2, "x", ENDED_BY_US),
    ]
    _, changes = read_story(build_recording(moments, argv=["-p", "say hello"]))
    assert [find_failure_cause(step.facts) for step in results(changes)] == ["interrupted"]


@pytest.mark.parametrize(
    ("moments", "causes"),
    [
        ([(0.2, "n", {"kind": "result", "result": FAILED})], ["stall"]),  # no child was started
        ([(0.2, "n", {"kind": "result", "result": 7})], [""]),
        (
            [(0.2, "n", {"kind": "result"}), (0.3, "n", {"kind": "result", "result": FAILED})],
            ["", "stall"],
        ),
    ],
)
def test_result_without_a_child_comes_from_the_note(moments: list[Any], causes: list[str]) -> None:
    _, changes = read_story(build_recording(moments, argv=["-p", "hi"]))
    assert [find_failure_cause(step.facts) for step in results(changes)] == causes


@pytest.mark.parametrize("output_format", ["text", "json", "stream-json"])
def test_result_is_included_once_for_every_source(output_format: str) -> None:
    note = (2.6, "n", {"kind": "result", "turn": 1, "result": DECIDED})
    line = (
        b'{"type":"result","is_error":false,"result":"hello"}\n'
        if output_format != "text"
        else b"hello\n"
    )
    for vendor in ("pi", "of-somebody-else"):
        moments = [(2.5, "x", {"child": 1, "code": 0}), note, (2.7, "O", line)]
        _, changes = read_story(text_cast(*moments, output_format=output_format, vendor=vendor))
        assert len(results(changes)) == 1


def test_late_result_note_does_not_add_a_second_result() -> None:
    data = find_case("pi/1.5.2-plain").data
    note = {"kind": "result", "turn": 1, "result": DECIDED}
    moments = [
        (0.1, "i", b""),
        (0.1, "s", {"child": 1}),
        (0.2, "o", data),
        (0.3, "x", {"child": 1, "code": 0}),
    ]
    _, changes = read_story(
        build_recording([*moments, (0.4, "i", b"more\n"), (0.5, "n", note)], argv=["-p", "hi"])
    )
    assert [step.at for step in results(changes)] == [pytest.approx(0.3)]


def test_consecutive_children_are_a_single_session() -> None:
    data = find_case("pi/1.5.2-plain").data
    moments = [
        (n, letter, data if letter == "o" else {"child": n, "code": 0})
        for n in (1, 2)
        for letter in "sox"
    ]
    story, changes = read_story(build_recording(moments, dialect="yume"))
    assert story.totals.turns == 2
    assert [change.step.kind for change in changes if change.phase == "begin"].count("start") == 1


def test_output_of_an_unknown_vendor_is_read_from_the_frontend_text() -> None:
    moments = [
        (0.0, "s", {}),
        (0.5, "o", b"gibberish\n"),
        (1.0, "O", b"Hello\n"),
        (1.2, "O", b"you\n"),
    ]
    _, changes = read_story(build_recording(moments, vendor="of-somebody-else", argv=["-p", "hi"]))
    steps = [change.step for change in changes if change.phase == "end"]
    assert [(step.kind, step.text) for step in steps] == [
        ("prompt", "hi"),
        ("text", "Hello\nyou\n"),
    ]


def test_split_line_is_a_single_event_and_too_long_line_is_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shim.story.reader.MAX_LINE_BYTES", 3_000_000)
    lines = [
        b'{"type":"result","result":"' + b"x" * size + b'"}\n'
        for size in (2_500_000, 5_000_000, 10)
    ]
    story, changes = read_story(build_recording([(n, "O", line) for n, line in enumerate(lines)]))
    assert story.totals.turns == 2
    assert [len(change.step.text) for change in changes if change.step.kind == "result"][::2] == [
        2_500_000,
        10,
    ]


def test_prompt_precedes_the_refusal_note() -> None:
    _, changes = read_story(
        build_recording([(0.1, "n", {"kind": "refused", "text": "no program"})])
    )
    assert [change.step.kind for change in changes if change.phase == "end"] == ["prompt", "note"]


def test_prompt_of_a_yume_session_is_included():
    moments = [
        (0.1, "s", {"child": 1, "turn": 1, "argv": ["pi"], "cwd": "/"}),
        (0.2, "O", b'{"type":"text"}\n'),
    ]
    _, changes = read_story(
        build_recording(moments, dialect="yume", argv=["start", "--prompt", "Hello there."])
    )
    assert changes[0].step.kind == "prompt" and changes[0].step.text == "Hello there."


# -- how a child ended -----------------------------------------------------------------------------


@loop_over_rows(
    ("fact", "expected"),
    [
        ({"code": 0, "signal": None}, ChildExit(code=0)),
        ({"code": None, "signal": "SIGTERM"}, ChildExit(signal="SIGTERM")),
        ({"code": None, "signal": "signal 40"}, ChildExit(signal="signal 40")),
        ({"code": None, "signal": None}, None),
        ({"code": True}, None),
        ({"code": "0"}, None),
        ({"code": 0, "signal": "\x1b[2J"}, None),
        ({}, None),
    ],
)
def test_child_exit_is_a_code_a_signal_or_none(fact, expected):
    assert parse_child_exit(fact) == expected


def test_cleared_conversation_is_a_note_and_output_of_a_command_is_no_prompt() -> None:
    output = build_user_line("<local-command-stdout>Compacted </local-command-stdout>")
    reset = {"type": "conversation_reset", "session_id": "S", "new_conversation_id": "n"}
    tracker = stories.SessionStepTracker()
    lines = (INIT, output | {"isReplay": True}, reset)
    changes = [change for line in lines for change in tracker.add_session_line(1.0, line)]
    steps = {(change.step.kind, change.step.name) for change in changes}
    assert ("note", "conversation_reset") in steps
    assert "prompt" not in {kind for kind, _ in steps}
