"""The responses to requests about the context, the usage and the cost (contract 6.1)."""

from turn_stage import build_session_state

from shim.core.claude.control.usage_reports import (
    GRID_COLUMNS,
    GRID_ROWS,
    build_context_report,
    build_cost_report,
    build_usage_report,
)
from shim.core.claude.session_state import SessionUsage
from shim.core.claude.usage import CONTEXT_WINDOW_TOKENS, create_usage

LAST_REQUEST = create_usage(100, 20, 0, 30)
SESSION_USAGE = create_usage(900, 40, 10, 50)


def build_state(usage=None):
    state = build_session_state(
        display_name="pi", session_id="S", mode="default", elapsed_ms=lambda: 2600
    )
    if usage is not None:
        state.usage = usage
    return state


def test_context_before_the_first_turn_is_empty():
    report = build_context_report(build_state())
    assert (report["totalTokens"], report["percentage"], report["apiUsage"]) == (0, 0, None)
    assert report["maxTokens"] == report["rawMaxTokens"] == CONTEXT_WINDOW_TOKENS
    assert {square["categoryName"] for row in report["gridRows"] for square in row} == {
        "Free space"
    }


def test_context_has_the_tokens_of_the_last_request_and_the_reported_window():
    report = build_context_report(
        build_state(SessionUsage(last_request=LAST_REQUEST, context_window_tokens=1000))
    )
    assert (report["totalTokens"], report["maxTokens"], report["percentage"]) == (150, 1000, 15)
    assert report["apiUsage"] == LAST_REQUEST
    assert report["messageBreakdown"]["unattributedTokens"] == 150
    assert [(row["kind"], row["tokens"]) for row in report["categories"]] == [
        ("used", 150),
        ("free", 850),
    ]
    squares = [square["categoryName"] for row in report["gridRows"] for square in row]
    assert len(report["gridRows"]) == GRID_ROWS
    assert {len(row) for row in report["gridRows"]} == {GRID_COLUMNS}
    assert squares.count("Messages") == 30


def test_tokens_that_the_vendor_counts_take_precedence():
    usage = SessionUsage(last_request=LAST_REQUEST, context_tokens=700, context_window_tokens=1000)
    assert build_context_report(build_state(usage))["totalTokens"] == 700


def test_context_larger_than_the_window_leaves_no_free_space():
    usage = SessionUsage(last_request=LAST_REQUEST, context_window_tokens=100)
    report = build_context_report(build_state(usage))
    assert (report["totalTokens"], report["percentage"]) == (150, 100)
    assert report["categories"][1]["tokens"] == 0


def test_usage_of_the_session_is_reported_by_model():
    usage = SessionUsage(
        0.5, 1200, LAST_REQUEST, {"m-1": SESSION_USAGE}, context_window_by_model={"m-1": 128_000}
    )
    session = build_usage_report(build_state(usage))["session"]
    assert (session["total_cost_usd"], session["total_api_duration_ms"]) == (0.5, 1200)
    assert session["total_duration_ms"] == 2600
    assert session["model_usage"]["m-1"]["contextWindow"] == 128_000
    assert session["model_usage"]["m-1"]["inputTokens"] == 900


def test_cost_text_lists_the_models():
    usage = SessionUsage(0.5, 1200, LAST_REQUEST, {"m-1": SESSION_USAGE})
    assert build_cost_report(build_state(usage))["text"].splitlines() == [
        "Estimated cost:        $0.5000",
        "Total duration (API):  1s",
        "Total duration (wall): 3s",
        "Usage by model:",
        "     m-1:  900 input, 50 output, 40 cache read, 10 cache write",
    ]
    assert "0 input, 0 output" in build_cost_report(build_state())["text"]


def test_cost_that_the_vendor_does_not_report_is_not_zero():
    usage = SessionUsage(by_model={"m-1": SESSION_USAGE})
    first_line = build_cost_report(build_state(usage))["text"].splitlines()[0]
    assert first_line == "Estimated cost:        not reported by pi"
    assert "$0.0000" in build_cost_report(build_state())["text"]
