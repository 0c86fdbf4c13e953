"""The end of a turn: cause, is_error, subtype and texts agree, for any vendor and process (contract
S9, S10).
"""

import pytest
from stream_invariants import check_turns
from sweeps import loop_over_rows
from turn_stage import Stage

from shim.core.claude.writer import NO_USAGE as NOTHING
from shim.core.turn.context import ConversationLimits
from shim.core.turn.outcome import STDERR_EXCERPT_CHARS, ChildExit

NO_USAGE = dict(NOTHING)

OK, FAILED, INT, TERM = (
    ChildExit(code=0),
    ChildExit(code=1),
    ChildExit(code=130),
    ChildExit(signal="SIGTERM"),
)
EXITS = [OK, FAILED, INT, TERM, None]


def outcome(stage: Stage, kind: str) -> None:
    """Record the vendor's end of the turn."""
    if kind == "ended":
        stage.turn.record_turn_end()
    elif kind == "failed":
        stage.turn.record_failure("it broke")
    elif kind == "api":
        stage.turn.record_failure("429 Too many requests")
    elif kind == "limit":
        stage.turn.record_failure("Reached max turns", kind="limit", subtype="error_max_turns")
    elif kind == "interrupted":
        stage.turn.record_interrupt()


def result(stage: Stage, child_exit: ChildExit | None, stderr: str = "") -> dict:
    """Return the result line of a turn with output. Check the contract."""
    stage.turn.close(child_exit, stderr)
    lines = stage.take_lines()
    check_turns(stage.bytes, stage.writer.writes_partial_messages)
    return lines[-2]


AUTH = "Error: Invalid API key"
# Outcome, the child's exit, its stderr → cause, is_error, subtype, terminal_reason.
TABLE = [
    ("ended", OK, "", "clean", False, "success", "completed"),
    ("ended", OK, AUTH, "clean", False, "success", "completed"),
    ("ended", None, "", "clean", False, "success", "completed"),
    ("ended", FAILED, "", "exit_code", True, "error_during_execution", "model_error"),
    ("ended", FAILED, AUTH, "exit_code", True, "error_during_execution", "model_error"),
    ("ended", INT, "", "exit_code", True, "error_during_execution", "model_error"),
    ("ended", TERM, "", "signal", True, "error_during_execution", "model_error"),
    *(
        ("failed", end, "", "vendor_error", True, "error_during_execution", "model_error")
        for end in EXITS
    ),
    *(("api", end, "", "rate_limit", True, "success", "api_error") for end in EXITS),
    *(("limit", end, "", "limit", True, "error_max_turns", "max_turns") for end in EXITS),
    *(
        (
            "interrupted",
            end,
            err,
            "interrupted",
            True,
            "error_during_execution",
            "aborted_streaming",
        )
        for end in EXITS
        for err in ("", AUTH)
    ),
    ("nothing", OK, "", "truncated", True, "error_during_execution", "model_error"),
    ("nothing", None, "", "truncated", True, "error_during_execution", "model_error"),
    ("nothing", OK, "some warning", "truncated", True, "error_during_execution", "model_error"),
    ("nothing", FAILED, "", "exit_code", True, "error_during_execution", "model_error"),
    (
        "nothing",
        INT,
        "Operation cancelled.",
        "exit_code",
        True,
        "error_during_execution",
        "model_error",
    ),
    ("nothing", TERM, "", "signal", True, "error_during_execution", "model_error"),
    ("nothing", TERM, AUTH, "signal", True, "error_during_execution", "model_error"),
    ("nothing", FAILED, AUTH, "auth", True, "success", "api_error"),
    ("nothing", OK, AUTH, "auth", True, "success", "api_error"),
]


@loop_over_rows("partial", [False, True])
@loop_over_rows(("kind", "child_exit", "stderr", "cause", "is_error", "subtype", "reason"), TABLE)
def test_cause_error_subtype_and_reason_agree(
    kind, child_exit, stderr, cause, is_error, subtype, reason, partial
):
    stage = Stage(partial=partial)
    stage.turn.add_text("hi")
    outcome(stage, kind)
    line = result(stage, child_exit, stderr)
    assert (line["shim"]["cause"], line["is_error"], line["subtype"], line["terminal_reason"]) == (
        cause,
        is_error,
        subtype,
        reason,
    )
    assert (stage.turn.end_cause, stage.turn.is_error) == (cause, is_error)
    assert stage.turn.final_text == (line["result"] if "result" in line else line["errors"][0])
    assert ("result" in line) == (subtype == "success")


def test_configured_clean_exit_code_is_not_an_error():
    stage = Stage(clean_exit_codes=frozenset({0, 7}))
    stage.turn.add_block("hi")
    stage.turn.record_turn_end()
    assert not result(stage, ChildExit(code=7))["is_error"]


def test_clean_exit_code_without_an_end_event_is_an_error():
    stage = Stage(clean_exit_codes=frozenset({0, 7}))
    stage.turn.add_block("hi")
    assert result(stage, ChildExit(code=7))["is_error"]


@pytest.mark.parametrize("order", [("ended", "failed"), ("failed", "ended")])
def test_failure_overrides_the_end_event_in_any_order(order):
    stage = Stage()
    for kind in order:
        outcome(stage, kind)
    assert result(stage, OK)["errors"] == ["it broke"]


@loop_over_rows("other", ["ended", "failed", "api", "limit"])
@loop_over_rows("first", [True, False])
def test_interrupt_overrides_any_other_outcome_in_any_order(other, first):
    stage = Stage()
    for kind in ("interrupted", other) if first else (other, "interrupted"):
        outcome(stage, kind)
    assert result(stage, FAILED)["shim"]["cause"] == "interrupted"


def test_last_end_event_sets_the_result():
    """pi's `agent_end` comes several times."""
    stage = Stage()
    stage.turn.record_turn_end(result="one")
    stage.turn.record_turn_end(result="two")
    assert result(stage, OK)["result"] == "two"


# -- the texts -------------------------------------------------------------------------------------


@loop_over_rows(
    ("kind", "child_exit", "stderr", "text"),
    [
        ("nothing", OK, "", "demo exited with code 0 before it finished"),
        (
            "nothing",
            FAILED,
            "  the reason\n",
            "demo exited with code 1 before it finished: the reason",
        ),
        ("nothing", TERM, "", "demo was ended by SIGTERM before it finished"),
        ("nothing", None, "", "demo was ended before it finished"),
        ("ended", FAILED, "", "demo reported success, but exited with code 1"),
        ("ended", TERM, "why", "demo reported success, but was ended by SIGTERM: why"),
        ("failed", FAILED, "not this", "it broke"),
        ("interrupted", INT, "not this", "[Request interrupted by user]"),
    ],
)
def test_error_text_describes_outcome_and_exit(kind, child_exit, stderr, text):
    stage = Stage()
    stage.turn.add_block("hi")
    outcome(stage, kind)
    assert result(stage, child_exit, stderr)["errors"] == [text]


def test_long_stderr_is_shortened_to_head_and_tail_in_the_error():
    """Usage texts put the reason first, stack traces last."""
    stage = Stage()
    line = result(stage, FAILED, "FIRST" + "x" * 100_000 + "LAST")
    (text,) = line["errors"]
    assert "FIRST" in text and text.endswith("LAST") and "…" in text
    assert len(text) < STDERR_EXCERPT_CHARS + 200


def test_control_characters_of_stderr_are_escaped():
    """Threat: escape sequences for a terminal in errors."""
    stage = Stage()
    (text,) = result(stage, FAILED, "\x1b[33mWarning\x1b[0m \x07")["errors"]
    assert text.endswith("Warning \\x07")  # colours have no meaning


def test_api_failure_writes_a_synthetic_message_and_a_success_result():
    """Contract S10, 5.8."""
    stage = Stage()
    stage.turn.record_vendor_session_info(session_id="s")
    stage.turn.record_failure("401 Incorrect API key provided: dummy.")
    stage.turn.close(FAILED, "")
    init, error, line, _ = stage.take_lines()
    assert init["type"] == "system"
    assert error["message"]["model"] == "<synthetic>"
    assert error["message"]["content"] == [
        {
            "type": "text",
            "text": "Invalid API key · Fix external API key · 401 Incorrect API key provided: dummy.",
        }
    ]
    assert error["message"]["stop_reason"] == "stop_sequence"
    assert (error["error"], error["is_api_error_message"]) == ("authentication_failed", True)
    assert line["result"] == error["message"]["content"][0]["text"]
    assert (line["subtype"], line["is_error"]) == ("success", True)
    for message in (error, line):
        assert (message["api_error_status"], message["api_error_type"]) == (
            401,
            "authentication_error",
        )
    assert (line["stop_reason"], line["terminal_reason"]) == ("stop_sequence", "api_error")


def test_api_error_prefix_is_not_repeated():
    stage = Stage()
    stage.turn.record_failure("API Error: 500 oops", api=True)
    assert result(stage, FAILED)["result"] == "API Error: 500 oops"


@pytest.mark.parametrize("api", [True, False])
def test_api_argument_overrides_api_error_detection(api):
    stage = Stage()
    stage.turn.record_failure("429 Too many requests" if not api else "who knows", api=api)
    assert (result(stage, FAILED)["subtype"] == "success") is api


def test_failure_without_text_still_has_an_error_text():
    """The TypeScript SDK reads `errors[0]`."""
    stage = Stage()
    stage.turn.record_failure("")
    (text,) = result(stage, FAILED)["errors"]
    assert text


# -- an end in the middle of the work --------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({}, "truncated"),
        ({"result": "Done."}, "clean"),
        ({"structured_output": {"answer": 42}}, "clean"),
    ],
)
def test_end_event_during_tool_use_is_clean_only_with_a_result(fields, cause):
    stage = Stage()
    stage.turn.add_tool_call("t", "Bash", {})
    stage.turn.end_message(None, "tool_use")
    stage.turn.record_turn_end(**fields)
    line = result(stage, OK)
    assert line["shim"]["cause"] == cause
    assert line["is_error"] is (not fields)


@pytest.mark.parametrize("acted", [False, True])
def test_cut_stream_is_retried_only_before_a_tool_call(acted):
    """Yume's R11."""
    stage = Stage(can_retry=True)
    if acted:
        stage.turn.add_tool_call("t", "Bash", {})
        stage.turn.add_tool_result("t", "done")
    else:
        stage.turn.add_text("half")
    assert stage.turn.can_retry(OK, "") is not acted


def run_hidden_call(turn):
    turn.add_tool_call("g", "Grep", {}, is_hidden=True)
    turn.add_tool_result("g", "hidden")


def report_result_without_call(turn):
    turn.add_tool_result("t", "done")


def run_call_of_subagent_without_parent(turn):
    """The call that runs the subagent was never announced."""
    turn.get_subagent("unknown").add_tool_call("n", "Read", {})
    turn.get_subagent("unknown").add_tool_result("n", "alpha")


def run_call_of_earlier_subagent(turn):
    """The call that runs the subagent has ended in an earlier turn."""
    turn.conversation.reserve_call_id("task", turn.diagnostics)
    turn.get_subagent("task").add_tool_call("n", "Read", {})
    turn.get_subagent("task").add_tool_result("n", "alpha")


def run_call_of_subagent(turn):
    turn.add_tool_call("task", "Task", {})
    turn.get_subagent("task").add_tool_call("n", "Read", {})
    turn.get_subagent("task").add_tool_result("n", "alpha")


@pytest.mark.parametrize(
    "run_call",
    [
        run_hidden_call,
        report_result_without_call,
        run_call_of_subagent_without_parent,
        run_call_of_earlier_subagent,
        run_call_of_subagent,
    ],
)
def test_turn_is_not_repeated_after_any_ended_tool_call(run_call):
    """Yume's R11. No other vendor may run the call again either."""
    stage = Stage(can_retry=True)
    stage.turn.record_vendor_session_info(session_id="s")
    assert stage.turn.can_retry(OK, "")
    assert stage.turn.find_failed_attempt(FAILED, "429 Too many requests") is not None
    run_call(stage.turn)
    assert stage.turn.has_output
    assert not stage.turn.can_retry(OK, "")
    assert stage.turn.find_failed_attempt(FAILED, "429 Too many requests") is None


# -- the numbers -----------------------------------------------------------------------------------


def test_session_that_did_not_start_has_zero_turns():
    """Contract 5.10."""
    assert result(Stage(), FAILED, "no such session")["num_turns"] == 0


def test_session_with_an_api_failure_has_a_single_turn():
    """Contract 5.8."""
    stage = Stage()
    stage.turn.record_failure("401 Unauthorized")
    assert result(stage, FAILED)["num_turns"] == 1


def test_interrupt_adds_a_turn():
    """Contract 5.3 and 6.4."""
    stage = Stage()
    stage.turn.add_text("hi")
    stage.turn.record_interrupt()
    assert result(stage, INT)["num_turns"] == 2


@loop_over_rows(
    ("fields", "expected"),
    [
        ({"duration_ms": 12, "api_ms": 7}, (12, 7)),
        ({"duration_ms": 12.7}, (12, 0)),
        ({"duration_ms": None}, (42, 0)),
        ({}, (42, 0)),
        ({"duration_ms": -1, "api_ms": -1}, (42, 0)),
        ({"duration_ms": "12", "api_ms": [1]}, (42, 0)),
    ],
)
def test_durations_default_to_the_clock(fields, expected):
    stage = Stage(elapsed_ms=lambda: 42)
    stage.turn.record_turn_end(**fields)
    line = result(stage, OK)
    assert (line["duration_ms"], line["duration_api_ms"]) == expected


@loop_over_rows(
    "fields",
    [
        {"duration_ms": float("inf")},
        {"duration_ms": float("nan")},
        {"usage": "many"},
        {"usage": [1]},
        {"usage": NO_USAGE | {"input_tokens": "5"}},
        {"usage": NO_USAGE | {"output_tokens": None}},
        {"cost": "free"},
        {"cost": None, "result": 7},
        {"result": {"a": 1}},
    ],
)
def test_invalid_result_fields_still_write_a_result(fields):
    stage = Stage()
    stage.turn.record_turn_end(**fields)
    result(stage, OK)


@loop_over_rows(
    "usage",
    [
        NO_USAGE | odd
        for odd in ({"input_tokens": "5"}, {"output_tokens": None}, {"output_tokens": [1]})
    ]
    + ["many", 7],
)
@loop_over_rows("partial", [False, True])
def test_invalid_usage_still_writes_a_result(usage, partial):
    stage = Stage(partial=partial)
    stage.turn.start_message()
    for verb in (stage.turn.update_message, stage.turn.end_message):
        try:
            verb(usage=usage)
        except Exception:  # the child stream counts it
            pass
        stage.turn.add_block("hi")
    stage.turn.record_turn_end()
    result(stage, OK)


def test_structured_output_is_in_the_result():
    """F11, contract 5.11."""
    stage = Stage()
    stage.turn.record_turn_end(structured_output={"answer": "42"}, result='{"answer":"42"}')
    line = result(stage, OK)
    assert (line["structured_output"], line["result"]) == ({"answer": "42"}, '{"answer":"42"}')


def test_model_usage_contains_context_window_and_max_output_tokens():
    """Contract 5.3: ACP reads contextWindow."""
    stage = Stage()
    stage.turn.start_message(model="m")
    stage.turn.add_block("hi")
    stage.turn.record_turn_end(
        usage={
            "input_tokens": 1,
            "cache_creation_input_tokens": 2,
            "cache_read_input_tokens": 3,
            "output_tokens": 4,
        },
        cost=0.5,
    )
    assert result(stage, OK)["modelUsage"] == {
        "m": {
            "inputTokens": 1,
            "outputTokens": 4,
            "cacheReadInputTokens": 3,
            "cacheCreationInputTokens": 2,
            "webSearchRequests": 0,
            "costUSD": 0.5,
            "contextWindow": 200_000,
            "maxOutputTokens": 32_000,
        }
    }


# -- interrupts ------------------------------------------------------------------------------------


def test_interrupt_in_text_closes_the_block_and_adds_a_user_line():
    """Contract 6.4."""
    stage = Stage(partial=True)
    stage.turn.add_text("w0 w1 ")
    stage.take_lines()
    stage.turn.record_interrupt()
    summary = stage.finish_turn(130)
    check_turns(stage.bytes, partial=True)
    assert summary[0] == "text:w0 w1 "
    assert "user:[Request interrupted by user]" in summary
    assert summary[-2].startswith("end:error_during_execution!")


@pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])
def test_only_the_interrupted_block_is_marked_as_aborted(partial):
    """Contract 5.2 and 6.4, `aborted`."""
    stage = Stage(partial=partial)
    stage.turn.add_thinking("so")
    stage.turn.add_text("w0 w1 ")
    stage.turn.record_interrupt()
    stage.turn.close(INT, "")
    thought, text = (line for line in stage.take_lines() if line["type"] == "assistant")
    assert "aborted" not in thought
    assert (
        text["aborted"] is True and text["parent_tool_use_id"] is None and len(text["uuid"]) == 36
    )
    stage.turn = stage.turn.create_next()
    stage.turn.add_text("Hello.")
    stage.turn.record_turn_end()
    stage.turn.close(None, "")
    (answer,) = (line for line in stage.take_lines() if line["type"] == "assistant")
    assert "aborted" not in answer


def test_stop_reason_of_an_interrupt_is_null():
    """Contract 6.4: `message_delta` and `result` have null while text streams."""
    stage = Stage(partial=True)
    stage.turn.add_text("w0 w1 ")
    stage.turn.record_interrupt()
    stage.turn.close(INT, "")
    lines = stage.take_lines()
    (delta,) = (
        line["event"] for line in lines if line.get("event", {}).get("type") == "message_delta"
    )
    assert lines[-2]["stop_reason"] is None
    assert delta["delta"]["stop_reason"] is None


def test_interrupt_in_a_call_writes_a_failed_tool_result_and_a_user_line():
    """Contract 6.4: the failed result first, then the user line; terminal_reason aborted_tools."""
    stage = Stage()
    stage.turn.add_tool_call("t", "Bash", {})
    stage.take_lines()
    stage.turn.record_interrupt()
    stage.turn.close(INT, "")
    result_line, user, line, _ = stage.take_lines()
    assert result_line["message"]["content"][0]["is_error"]
    assert user["message"]["content"] == [
        {"type": "text", "text": "[Request interrupted by user for tool use]"}
    ]
    assert line["terminal_reason"] == "aborted_tools"


@pytest.mark.parametrize(
    ("child_exit", "text"),
    [
        (ChildExit(code=3), "exited with code 3"),
        (ChildExit(signal="SIGKILL"), "was ended by SIGKILL"),
        (ChildExit(code=0), "exited with code 0"),
    ],
)
def test_child_exit_is_formatted_as_text(child_exit, text):
    assert str(child_exit) == text


def test_failed_turn_reports_complete_usage():
    stage = Stage()
    usage = {
        "input_tokens": 1,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 4,
    }
    stage.turn.record_failure("it broke", usage=usage, duration_ms=9)
    line = result(stage, FAILED)
    assert (line["usage"], line["duration_ms"]) == (usage, 9)


def test_long_api_failure_text_is_equal_in_message_and_result():
    stage = Stage(limit=10_000)
    stage.turn.record_failure("429 " + "too many requests " * 3000)
    stage.turn.close(None, "")
    _, error, result, _ = stage.take_lines()
    assert error["message"]["content"][0]["text"] == result["result"]


def test_unsupported_error_subtype_becomes_error_during_execution():
    stage = Stage()
    stage.turn.record_failure("no", subtype="error")
    assert result(stage, OK)["subtype"] == "error_during_execution"


@loop_over_rows("is_reported", [False, True])
@loop_over_rows(
    ("budget", "subtype"), [(0.01, "error_max_budget_usd"), (0.05, "success"), (None, "success")]
)
def test_cost_above_the_budget_is_an_error(is_reported, budget, subtype):
    """F10: this applies even if the turn is already over. A vendor may report the cost with its
    replies or at the end.
    """
    stage = Stage(limits=ConversationLimits(max_budget_usd=budget))
    stage.turn.add_text("Hello.")
    stage.turn.end_message(None, "end_turn", 0.0 if is_reported else 0.02)
    stage.turn.record_turn_end(**({"cost": 0.02} if is_reported else {}))
    line = result(stage, OK)
    assert (line["subtype"], line["is_error"]) == (subtype, subtype != "success")
    assert line["total_cost_usd"] == 0.02
    if line["is_error"]:
        assert (line["errors"], line["terminal_reason"]) == (
            ["Reached maximum budget ($0.01)"],
            "budget_exhausted",
        )
