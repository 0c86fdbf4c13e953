"""Replies: blocks and calls are grouped by agent, and returned once they are complete."""

from cast_builder import build_case_recording, read_cast
from export_helpers import (
    build_assistant_line,
    build_delta_line,
    build_init_line,
    build_result_line,
    build_thinking_block,
    build_tool_result_line,
)
from fixture_cases import Case, list_fixture_cases
from story_builder import build_text_block, build_tool_use
from sweeps import choose_few_cases, loop_over_cases

from shim.story.model import SessionStepTracker
from shim.story.reader import RecordedSessionStepReader
from shim.story.replies import MAX_AGENTS, MAX_WAITING_ITEMS, ModelReply, SessionTrace

START = {
    "type": "stream_event",
    "event": {"type": "message_start", "message": {"id": "m1", "model": "m-1"}},
}
STOP = {"type": "stream_event", "event": {"type": "content_block_stop", "index": 0}}


def trace_events(*events):
    """Return the items that a trace yields for events one second apart, and the trace."""
    trace, items = SessionTrace(), []
    for number, event in enumerate(events):
        trace.add_claude_event(float(number), event)
        items += trace.replies.pop_finished_items()
    return items, trace


def replies(items, agent=""):
    return [item for name, item in items if isinstance(item, ModelReply) and name == agent]


def test_blocks_of_a_message_are_a_single_reply():
    items, _ = trace_events(
        build_init_line(),
        build_assistant_line("m1", build_thinking_block("hm")),
        build_assistant_line("m1", build_text_block("so")),
        build_assistant_line("m2", build_text_block("yes")),
    )
    (reply,) = replies(items)
    assert (reply.join_part_texts("thinking"), reply.join_part_texts()) == ("hm", "so")
    assert (reply.message_id, reply.model) == ("m1", "m-1")


def test_reply_waits_for_the_results_of_its_calls():
    items, trace = trace_events(
        build_init_line(),
        build_assistant_line("m1", build_tool_use("a"), build_tool_use("b")),
        build_tool_result_line("b"),
    )
    assert replies(items) == []
    trace.add_claude_event(7.0, build_tool_result_line("a", failed=True))
    trace.add_claude_event(8.0, build_assistant_line("m2", build_text_block("so")))
    (reply,) = replies(trace.replies.pop_finished_items())
    assert [(each.call, each.outcome) for each in reply.tool_calls] == [
        ("a", "failed"),
        ("b", "ok"),
    ]


def test_reply_waits_for_results_after_the_next_reply_starts():
    items, _ = trace_events(
        build_init_line(),
        build_assistant_line("m1", build_tool_use("a")),
        build_assistant_line("m2", build_text_block("so")),
    )
    assert replies(items) == []


def test_result_event_marks_open_calls_as_unanswered():
    items, _ = trace_events(
        build_init_line(), build_assistant_line("m1", build_tool_use("a")), build_result_line()
    )
    assert [each.outcome for each in replies(items)[0].tool_calls] == ["unanswered"]
    assert items[-1][1].kind == "result"


def test_reply_starts_at_its_prompt_or_the_last_tool_result():
    trace = SessionTrace()
    trace.add_user_prompt(1.0, "go")
    for at, event in (
        (3.0, build_assistant_line("m1", build_tool_use("a"))),
        (5.0, build_tool_result_line("a")),
        (9.0, build_assistant_line("m2", build_text_block("x"))),
    ):
        trace.add_claude_event(at, event)
    trace.end_open_steps(9.0)
    first, second = replies(trace.replies.pop_finished_items())
    assert (first.at, first.first_output_at, first.until) == (1.0, 3.0, 3.0)
    assert (second.at, second.first_output_at) == (5.0, 9.0)


def test_streamed_blocks_belong_to_the_streamed_reply():
    end = {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn"},
        "usage": {"output_tokens": 7},
    }
    items, _ = trace_events(
        build_init_line(),
        START,
        build_delta_line("so "),
        build_delta_line("it is"),
        STOP,
        {"type": "stream_event", "event": end},
        build_result_line(),
    )
    (reply,) = replies(items)
    assert (reply.join_part_texts(), reply.stop_reason, reply.usage, reply.has_final_usage) == (
        "so it is",
        "end_turn",
        {"output_tokens": 7},
        True,
    )


def test_usage_of_an_early_line_is_not_final():
    items, _ = trace_events(
        build_init_line(),
        build_assistant_line(
            "m1", build_text_block("x"), usage={"input_tokens": 9, "output_tokens": 1}
        ),
        build_result_line(),
    )
    (reply,) = replies(items)
    assert reply.usage["input_tokens"] == 9 and not reply.has_final_usage


def test_subagent_replies_are_separate_from_the_main_agent():
    items, _ = trace_events(
        build_init_line(),
        build_assistant_line("m1", build_tool_use("t", "Task")),
        build_assistant_line("n1", build_text_block("inside"), build_tool_use("u"), parent="t"),
        build_tool_result_line("u", parent="t"),
        build_tool_result_line("t"),
        build_result_line(),
    )
    assert [reply.join_part_texts() for reply in replies(items, "t")] == ["inside"]
    assert [reply.tool_calls[0].call for reply in replies(items)] == ["t"]


def test_synthetic_error_is_not_a_reply():
    line = build_assistant_line("m1", build_text_block("no key"), model="<synthetic>") | {
        "error": "authentication_failed"
    }
    items, _ = trace_events(build_init_line(), line, build_result_line(is_error=True))
    assert [item.kind for _, item in items] == ["start", "error", "result"]


def test_items_waiting_for_an_open_call_are_bounded():
    events = [
        build_assistant_line(f"m{number}", build_text_block("x"))
        for number in range(MAX_WAITING_ITEMS + 5)
    ]
    items, _ = trace_events(
        build_init_line(), build_assistant_line("m0", build_tool_use("a")), *events
    )
    assert replies(items)[0].tool_calls[0].call == "a"


def test_number_of_agents_is_bounded():
    trace = SessionTrace()
    for number in range(MAX_AGENTS + 50):
        trace.add_claude_event(
            0.0, build_assistant_line(f"m{number}", build_text_block("x"), parent=f"p{number}")
        )
    trace.end_open_steps(1.0)
    items = trace.replies.pop_finished_items()
    assert len({agent for agent, _ in items}) <= MAX_AGENTS + 2
    assert sum(isinstance(item, ModelReply) for _, item in items) == MAX_AGENTS + 50


@loop_over_cases(list_fixture_cases(), quick=choose_few_cases)
def test_every_call_and_text_of_a_story_is_in_its_trace(case: Case) -> None:
    reader, records = read_cast(build_case_recording(case))
    assert reader.header is not None
    stories: list[SessionStepTracker] = [SessionStepTracker(), SessionTrace()]
    for number, story in enumerate(stories):
        teller = RecordedSessionStepReader(reader.header)
        teller.story = story
        changes = [change for record in records for change in teller.feed(record)] + teller.close()
        if not number:
            expected_parts = sorted(
                (change.step.kind, change.step.call, change.step.text)
                for change in changes
                if change.phase == "end" and change.step.kind in ("call", "text", "thinking")
            )
    plain, trace = stories
    assert isinstance(trace, SessionTrace)
    model_replies = [
        item for _, item in trace.replies.pop_finished_items() if isinstance(item, ModelReply)
    ]
    assert (
        sorted((part.kind, part.call, part.text) for reply in model_replies for part in reply.parts)
        == expected_parts
    )
    assert trace.totals == plain.totals
