"""How a turn ended: cause, is_error, subtype and texts agree, whatever vendor and process say
(contract S9, S10).
"""

import pytest
from support import Stage, check_turns
from sweeps import loop_over_rows

from shim.core.claude.writer import NO_USAGE as NOTHING
from shim.core.turn.context import ConversationLimits
from shim.core.turn.outcome import STDERR_EXCERPT_CHARS, ChildExit

NO_USAGE = dict(NOTHING)

OK, ONE, INT, TERM = (
    ChildExit(code=0),
    ChildExit(code=1),
    ChildExit(code=130),
    ChildExit(signal="SIGTERM"),
)
EXITS = [OK, ONE, INT, TERM, None]


def outcome(stage: Stage, kind: str) -> None:
    """What the vendor says of its end."""
    if kind == "ended":
        stage.turn.record_end()
    elif kind == "failed":
        stage.turn.record_failure("it broke")
    elif kind == "api":
        stage.turn.record_failure("429 Too many requests")
    elif kind == "limit":
        stage.turn.record_failure("Reached max turns", kind="limit", subtype="error_max_turns")
    elif kind == "interrupted":
        stage.turn.record_interrupt()


def result(stage: Stage, child_exit: ChildExit | None, stderr: str = "") -> dict:
    """The result line of a turn that said something; the stream keeps the contract."""
    stage.turn.close(child_exit, stderr)
    lines = stage.take_lines()
    check_turns(stage.bytes, stage.writer.writes_partial_messages)
    return lines[-2]


AUTH = "Error: Invalid API key"
# outcome, how the child ended, its stderr → cause, is_error, subtype, terminal_reason
TABLE = [
    ("ended", OK, "", "clean", False, "success", "completed"),
    ("ended", OK, AUTH, "clean", False, "success", "completed"),
    ("ended", None, "", "clean", False, "success", "completed"),
    ("ended", ONE, "", "exit_code", True, "error_during_execution", "model_error"),
    ("ended", ONE, AUTH, "exit_code", True, "error_during_execution", "model_error"),
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
    ("nothing", ONE, "", "exit_code", True, "error_during_execution", "model_error"),
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
    ("nothing", ONE, AUTH, "auth", True, "success", "api_error"),
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
    assert (stage.turn.cause, stage.turn.is_error) == (cause, is_error)
    assert stage.turn.final_text == (line["result"] if "result" in line else line["errors"][0])
    assert ("result" in line) == (subtype == "success")


def test_an_exit_code_that_the_vendors_page_calls_clean_is_no_error():
    stage = Stage(clean_exit_codes=frozenset({0, 7}))
    stage.turn.add_block("hi")
    stage.turn.record_end()
    assert not result(stage, ChildExit(code=7))["is_error"]


def test_a_code_that_is_clean_does_not_make_up_for_a_missing_end():
    stage = Stage(clean_exit_codes=frozenset({0, 7}))
    stage.turn.add_block("hi")
    assert result(stage, ChildExit(code=7))["is_error"]


@pytest.mark.parametrize("order", [("ended", "failed"), ("failed", "ended")])
def test_failed_beats_ended_in_any_order(order):
    stage = Stage()
    for kind in order:
        outcome(stage, kind)
    assert result(stage, OK)["errors"] == ["it broke"]


@loop_over_rows("other", ["ended", "failed", "api", "limit"])
@loop_over_rows("first", [True, False])
def test_interrupted_beats_everything_in_any_order(other, first):
    stage = Stage()
    for kind in ("interrupted", other) if first else (other, "interrupted"):
        outcome(stage, kind)
    assert result(stage, ONE)["shim"]["cause"] == "interrupted"


def test_the_last_end_is_the_end():
    """pi's `agent_end` comes several times."""
    stage = Stage()
    stage.turn.record_end(result="one")
    stage.turn.record_end(result="two")
    assert result(stage, OK)["result"] == "two"


# -- the texts -------------------------------------------------------------------------------------


@loop_over_rows(
    ("kind", "child_exit", "stderr", "text"),
    [
        ("nothing", OK, "", "demo exited with code 0 before it finished"),
        (
            "nothing",
            ONE,
            "  the reason\n",
            "demo exited with code 1 before it finished: the reason",
        ),
        ("nothing", TERM, "", "demo was ended by SIGTERM before it finished"),
        ("nothing", None, "", "demo was ended before it finished"),
        ("ended", ONE, "", "demo said that it was done, but exited with code 1"),
        ("ended", TERM, "why", "demo said that it was done, but was ended by SIGTERM: why"),
        ("failed", ONE, "not this", "it broke"),
        ("interrupted", INT, "not this", "[Request interrupted by user]"),
    ],
)
def test_the_error_says_what_happened(kind, child_exit, stderr, text):
    stage = Stage()
    stage.turn.add_block("hi")
    outcome(stage, kind)
    assert result(stage, child_exit, stderr)["errors"] == [text]


def test_of_a_long_stderr_the_beginning_and_the_end_are_told():
    """Usage texts put the reason first, stack traces last."""
    stage = Stage()
    line = result(stage, ONE, "FIRST" + "x" * 100_000 + "LAST")
    (text,) = line["errors"]
    assert "FIRST" in text and text.endswith("LAST") and "…" in text
    assert len(text) < STDERR_EXCERPT_CHARS + 200


def test_control_characters_of_stderr_are_made_visible():
    """Threats: terminal escapes in errors."""
    stage = Stage()
    (text,) = result(stage, ONE, "\x1b[33mWarning\x1b[0m \x07")["errors"]
    assert text.endswith("Warning \\x07")  # colours say nothing


def test_an_api_failure_is_a_synthetic_line_and_a_result_that_is_called_success():
    """Contract S10, 5.8."""
    stage = Stage()
    stage.turn.start_session(session_id="s")
    stage.turn.record_failure("401 Incorrect API key provided: dummy.")
    stage.turn.close(ONE, "")
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


def test_a_text_that_names_an_api_error_is_not_prefixed_twice():
    stage = Stage()
    stage.turn.record_failure("API Error: 500 oops", api=True)
    assert result(stage, ONE)["result"] == "API Error: 500 oops"


@pytest.mark.parametrize("api", [True, False])
def test_a_translator_may_say_whether_the_api_failed(api):
    stage = Stage()
    stage.turn.record_failure("429 Too many requests" if not api else "who knows", api=api)
    assert (result(stage, ONE)["subtype"] == "success") is api


def test_an_error_without_words_still_has_a_text():
    """The TypeScript SDK reads `errors[0]`."""
    stage = Stage()
    stage.turn.record_failure("")
    (text,) = result(stage, ONE)["errors"]
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
def test_a_good_end_in_the_middle_of_the_work_is_one_only_where_it_has_a_result(fields, cause):
    stage = Stage()
    stage.turn.add_tool_call("t", "Bash", {})
    stage.turn.end_message(None, "tool_use")
    stage.turn.record_end(**fields)
    line = result(stage, OK)
    assert line["shim"]["cause"] == cause
    assert line["is_error"] is (not fields)


@pytest.mark.parametrize("acted", [False, True])
def test_a_stream_that_was_cut_is_asked_for_again_only_before_anything_was_done(acted):
    """Yume's R11."""
    stage = Stage(can_retry=True)
    if acted:
        stage.turn.add_tool_call("t", "Bash", {})
        stage.turn.add_tool_result("t", "done")
    else:
        stage.turn.add_text("half")
    assert stage.turn.can_retry(OK, "") is not acted


# -- the numbers -----------------------------------------------------------------------------------


def test_a_session_that_never_began_had_no_turns():
    """Contract 5.10."""
    assert result(Stage(), ONE, "no such session")["num_turns"] == 0


def test_a_session_that_failed_at_the_api_had_one_turn():
    """Contract 5.8."""
    stage = Stage()
    stage.turn.record_failure("401 Unauthorized")
    assert result(stage, ONE)["num_turns"] == 1


def test_an_interrupt_is_a_turn_more():
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
def test_durations_are_the_vendors_or_else_the_clocks(fields, expected):
    stage = Stage(elapsed_ms=lambda: 42)
    stage.turn.record_end(**fields)
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
def test_facts_of_another_type_do_not_take_the_result_away(fields):
    stage = Stage()
    stage.turn.record_end(**fields)
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
def test_usage_of_another_type_does_not_take_the_result_away(usage, partial):
    stage = Stage(partial=partial)
    stage.turn.start_message()
    for verb in (stage.turn.update_message, stage.turn.end_message):
        try:
            verb(usage=usage)
        except Exception:  # the pump counts it
            pass
        stage.turn.add_block("hi")
    stage.turn.record_end()
    result(stage, OK)


def test_a_structured_output_is_passed_on():
    """F11, contract 5.11."""
    stage = Stage()
    stage.turn.record_end(structured_output={"answer": "42"}, result='{"answer":"42"}')
    line = result(stage, OK)
    assert (line["structured_output"], line["result"]) == ({"answer": "42"}, '{"answer":"42"}')


def test_the_model_of_the_usage_has_what_clients_divide_by():
    """Contract 5.3: ACP reads contextWindow."""
    stage = Stage()
    stage.turn.start_message(model="m")
    stage.turn.add_block("hi")
    stage.turn.record_end(
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


def test_an_interrupt_in_text_closes_it_and_says_who_stopped():
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
def test_what_an_interrupt_cut_off_is_marked_and_what_was_complete_is_not(partial):
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
    stage.turn.record_end()
    stage.turn.close(None, "")
    (answer,) = (line for line in stage.take_lines() if line["type"] == "assistant")
    assert "aborted" not in answer


def test_the_stop_reason_of_an_interrupt_is_null():
    """Contract 6.4: `message_delta` and `result` say null while text streams."""
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


def test_an_interrupt_in_a_call_answers_it_and_says_so():
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
def test_an_exit_says_itself(child_exit, text):
    assert str(child_exit) == text


def test_a_usage_that_was_told_in_full_is_in_the_result_of_a_failure_too():
    stage = Stage()
    usage = {
        "input_tokens": 1,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 4,
    }
    stage.turn.record_failure("it broke", usage=usage, duration_ms=9)
    line = result(stage, ONE)
    assert (line["usage"], line["duration_ms"]) == (usage, 9)


def test_a_long_text_of_an_api_failure_is_the_same_in_its_line_and_in_the_result():
    stage = Stage(limit=10_000)
    stage.turn.record_failure("429 " + "too many requests " * 3000)
    stage.turn.close(None, "")
    _, error, result, _ = stage.take_lines()
    assert error["message"]["content"][0]["text"] == result["result"]


def test_a_kind_of_error_that_claude_does_not_have_is_a_failed_turn():
    stage = Stage()
    stage.turn.record_failure("no", subtype="error")
    assert result(stage, OK)["subtype"] == "error_during_execution"


@loop_over_rows("is_reported", [False, True])
@loop_over_rows(
    ("budget", "subtype"), [(0.01, "error_max_budget_usd"), (0.05, "success"), (None, "success")]
)
def test_a_session_that_cost_more_than_its_budget_ends_in_an_error(is_reported, budget, subtype):
    """F10: also if the turn is already over. A vendor may report the cost with its replies or at
    the end.
    """
    stage = Stage(limits=ConversationLimits(max_budget_usd=budget))
    stage.turn.add_text("Hello.")
    stage.turn.end_message(None, "end_turn", 0.0 if is_reported else 0.02)
    stage.turn.record_end(**({"cost": 0.02} if is_reported else {}))
    line = result(stage, OK)
    assert (line["subtype"], line["is_error"]) == (subtype, subtype != "success")
    assert line["total_cost_usd"] == 0.02
    if line["is_error"]:
        assert (line["errors"], line["terminal_reason"]) == (
            ["Reached maximum budget ($0.01)"],
            "budget_exhausted",
        )
