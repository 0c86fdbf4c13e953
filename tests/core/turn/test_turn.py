"""One turn: its identity, its replies, its system lines, and the next turn."""

import pytest
from policy_builder import build_evaluator
from stream_invariants import check_turns
from stream_lines import summarize_lines
from sweeps import loop_over_rows
from turn_stage import Stage

from shim.conversation.drivers.open_translation import STABLE_SESSION_ID
from shim.core.claude.usage import MAX_MODELS, NO_USAGE, OTHER_MODEL, create_usage
from shim.core.reading.diagnostics import Diagnostics
from shim.core.turn.outcome import ChildExit

UUID = "550e8400-e29b-41d4-a716-446655440000"
OTHER = "01a1f86f-fad9-70b4-9add-b6081579d0c6"
USAGE = {
    "input_tokens": 10,
    "cache_creation_input_tokens": 2,
    "cache_read_input_tokens": 3,
    "output_tokens": 5,
}
DOUBLE = {name: 2 * count for name, count in USAGE.items()}


def init_of(stage: Stage) -> dict:
    """Return the init line of a turn that writes its first block now."""
    stage.turn.add_block("x")
    return next(line for line in stage.take_lines() if line["type"] == "system")


# -- init ------------------------------------------------------------------------------------------


def test_vendor_session_start_writes_init():
    stage = Stage()
    stage.turn.record_vendor_session_info(
        session_id=UUID, model="m", cwd="/repo", tools=["Bash"], mode="plan"
    )
    (init,) = stage.take_lines()
    assert init["session_id"] == UUID
    assert (init["model"], init["cwd"], init["tools"], init["permissionMode"]) == (
        "m",
        "/repo",
        ["Bash"],
        "plan",
    )


def test_init_waits_for_a_session_id_and_merges_earlier_fields():
    stage = Stage()
    stage.turn.record_vendor_session_info(model="m")
    assert stage.take_lines() == []
    stage.turn.record_vendor_session_info(cwd="/repo", model=None)
    stage.turn.record_vendor_session_info(session_id=UUID)
    (init,) = stage.take_lines()
    assert (init["model"], init["cwd"]) == ("m", "/repo")


@loop_over_rows(
    "call_turn",
    [
        lambda turn: turn.add_text("x"),
        lambda turn: turn.add_tool_call("t", "Bash", {}),
        lambda turn: turn.write_system_event("note"),
        lambda turn: turn.get_subagent("t").write_text_message("x"),
        lambda turn: turn.close(ChildExit(code=0), ""),
    ],
)
def test_init_precedes_every_other_line(call_turn):
    stage = Stage()
    call_turn(stage.turn)
    assert stage.take_summary()[0] == "init"


def test_session_id_of_the_frontend_overrides_that_of_the_vendor():
    stage = Stage(requested_id=UUID)
    stage.turn.record_vendor_session_info(session_id=OTHER)
    (init,) = stage.take_lines()
    assert init["session_id"] == UUID
    assert stage.conversation.vendor_session_id == OTHER


@pytest.mark.parametrize("vendors", ["chat-1", "../../etc", "-rf"])
def test_vendor_session_id_that_is_not_a_uuid_is_replaced(vendors):
    """Threat: the id becomes a file name or a flag of another program."""
    stage = Stage()
    stage.turn.record_vendor_session_info(session_id=vendors)
    (init,) = stage.take_lines()
    assert init["session_id"] == STABLE_SESSION_ID


@loop_over_rows("vendors", [7, ["x"], {"id": "x"}, 1.5, True])
def test_non_string_session_id_does_not_stop_the_turn(vendors):
    stage = Stage()
    try:
        stage.turn.record_vendor_session_info(session_id=vendors)
    except Exception:
        # The child stream counts a handler's exception. The turn must be able to continue.
        pass
    stage.turn.add_block("hi")
    stage.turn.record_turn_end()
    summary = stage.finish_turn()
    assert summary[-2:] == ["end:success hi", "."]


def test_session_id_does_not_change_during_a_turn():
    """Claude's clients drop lines of another session (claude-code#58760)."""
    stage = Stage()
    stage.turn.record_vendor_session_info(session_id=UUID)
    stage.turn.add_block("a")
    stage.turn.record_vendor_session_info(session_id=OTHER)
    stage.turn.add_block("b")
    stage.turn.close(ChildExit(code=0), "")
    assert {line["session_id"] for line in stage.take_lines() if "session_id" in line} == {UUID}
    assert stage.diagnostics.repairs == {"session_id_changed": 1}
    assert stage.conversation.vendor_session_id == OTHER, "the store resumes with the newest"


def test_init_falls_back_to_the_configured_values():
    stage = Stage(model="asked", cwd="/here", tools=("Bash",), mode="acceptEdits", version="1.2.3")
    init = init_of(stage)
    assert (init["model"], init["cwd"], init["permissionMode"]) == ("asked", "/here", "acceptEdits")
    assert init["tools"] == ["Bash"]
    assert init["shim"] == {"vendor": "demo", "unattended": False, "vendor_version": "1.2.3"}


def test_init_reports_an_unattended_vendor():
    """Threat: a user does not know that the vendor never asks for permission."""
    assert init_of(Stage(is_unattended=True))["shim"]["unattended"] is True


def test_init_omits_denied_and_hidden_tools():
    stage = Stage(evaluator=build_evaluator(deny=["Bash"], hidden=["Grep"]))
    stage.turn.record_vendor_session_info(session_id=UUID, tools=["Bash", "Grep", "Read"])
    (init,) = stage.take_lines()
    assert init["tools"] == ["Read"]


# -- replies ---------------------------------------------------------------------------------------


def messages(stage: Stage) -> list[tuple[str, str]]:
    """Return (message id, text) of every assistant line."""
    lines = [line for line in stage.take_lines() if line["type"] == "assistant"]
    return [
        (line["message"]["id"], line["message"]["content"][0].get("text", "-")) for line in lines
    ]


def test_blocks_of_a_message_share_its_id_and_messages_do_not():
    """Contract S4."""
    stage = Stage()
    stage.turn.add_block("a")
    stage.turn.add_block("b")
    stage.turn.start_message()
    stage.turn.add_block("c")
    (a, _), (b, _), (c, _) = messages(stage)
    assert a == b != c


def test_new_message_starts_after_a_tool_result():
    stage = Stage()
    stage.turn.add_block("a")
    stage.turn.add_tool_call("t", "Bash", {})
    stage.turn.add_tool_result("t", "out")
    stage.turn.add_block("b")
    (a, _), (call, _), (b, _) = messages(stage)
    assert a == call != b


def test_no_line_is_written_before_the_first_block_of_a_message():
    stage = Stage(partial=True)
    stage.turn.record_vendor_session_info(session_id=UUID)
    stage.take_lines()
    stage.turn.start_message(model="m")
    assert stage.take_lines() == []
    stage.turn.end_message(USAGE)
    assert stage.take_lines() == []


def test_assistant_lines_carry_the_model_of_their_message():
    stage = Stage(partial=True)
    stage.turn.start_message(model="m1")
    stage.turn.add_block("a")
    stage.turn.start_message(model="m2")
    stage.turn.add_block("b")
    lines = stage.take_lines()
    assert [line["message"]["model"] for line in lines if line["type"] == "assistant"] == [
        "m1",
        "m2",
    ]
    starts = [
        line["event"]["message"]
        for line in lines
        if line.get("event", {}).get("type") == "message_start"
    ]
    assert [start["model"] for start in starts] == ["m1", "m2"]


def test_missing_model_is_reported_as_unknown():
    """Contract S5: an assistant line without `model` kills the Python SDK."""
    stage = Stage()
    stage.turn.add_block("a")
    init, line = stage.take_lines()
    assert init["model"] == line["message"]["model"] == "unknown"


def test_usage_of_messages_is_summed():
    stage = Stage()
    for text in ("a", "b"):
        stage.turn.start_message(model="m")
        stage.turn.add_block(text)
        stage.turn.end_message(USAGE, cost=0.25)
    stage.turn.record_turn_end()
    result = stage.finish_with_result()
    assert result["usage"] == DOUBLE
    assert result["total_cost_usd"] == 0.5
    assert result["modelUsage"]["m"]["inputTokens"] == 20
    assert result["modelUsage"]["m"]["cacheReadInputTokens"] == 6
    assert result["modelUsage"]["m"]["costUSD"] == 0.5


def test_usage_in_the_end_event_replaces_the_sum():
    """House: `ended(usage=)` replaces sums."""
    stage = Stage()
    stage.turn.start_message(model="m")
    stage.turn.add_block("a")
    stage.turn.end_message(USAGE, cost=0.25)
    stage.turn.record_turn_end(usage=DOUBLE, cost=1.5)
    result = stage.finish_with_result()
    assert result["usage"] == DOUBLE
    assert result["total_cost_usd"] == 1.5


def test_usage_only_in_the_end_event_is_counted_for_the_model():
    stage = Stage()
    stage.turn.start_message(model="m")
    stage.turn.add_block("a")
    stage.turn.record_turn_end(usage=USAGE)
    assert stage.finish_with_result()["modelUsage"]["m"]["outputTokens"] == 5


def test_message_delta_contains_the_usage_of_the_message():
    """Contract S13: ACP reads `event.usage.output_tokens`."""
    stage = Stage(partial=True)
    stage.turn.start_message(usage={**USAGE, "output_tokens": 1})
    stage.turn.add_text("a")
    stage.turn.end_message(USAGE, "max_tokens")
    events = {
        line["event"]["type"]: line["event"]
        for line in stage.take_lines()
        if line["type"] == "stream_event"
    }
    assert events["message_start"]["message"]["usage"]["output_tokens"] == 1
    assert events["message_delta"] == {
        "type": "message_delta",
        "delta": {"stop_reason": "max_tokens", "stop_sequence": None},
        "usage": USAGE,
    }


def test_usage_of_a_message_is_not_carried_into_the_next():
    stage = Stage(partial=True)
    stage.turn.start_message(usage=USAGE)
    stage.turn.add_block("a")
    stage.turn.end_message(USAGE)
    stage.turn.add_block("b")
    stage.turn.record_turn_end()
    last = [line for line in stage.take_lines() if line["type"] == "assistant"][-1]
    assert last["message"]["usage"]["output_tokens"] == 0


@pytest.mark.parametrize(
    ("stop_reason", "expected"), [(None, "end_turn"), ("max_tokens", "max_tokens")]
)
def test_result_reports_the_stop_reason_of_the_last_message(stop_reason, expected):
    stage = Stage()
    stage.turn.add_block("a")
    stage.turn.end_message(None, stop_reason)
    stage.turn.record_turn_end()
    assert stage.finish_with_result()["stop_reason"] == expected


def test_message_with_tool_calls_stops_with_tool_use():
    stage = Stage(partial=True)
    stage.turn.add_tool_call("t", "Bash", {})
    stage.turn.add_tool_result("t", "")
    assert "done:tool_use" in stage.take_summary()


def test_result_is_the_text_of_the_last_block():
    """Contract 5.3: the last text block only."""
    stage = Stage()
    stage.turn.add_block("First part. ")
    stage.turn.add_block("Second part.")
    stage.turn.record_turn_end()
    assert stage.finish_with_result()["result"] == "Second part."


def test_turn_without_blocks_has_an_empty_result():
    stage = Stage()
    stage.turn.record_vendor_session_info(session_id=UUID)
    stage.turn.record_turn_end()
    assert stage.finish_with_result()["result"] == ""


def test_text_only_in_the_end_event_is_the_result():
    stage = Stage()
    stage.turn.record_vendor_session_info(session_id=UUID)
    stage.turn.record_turn_end(result="told")
    assert stage.finish_with_result()["result"] == "told"


@pytest.mark.parametrize(("calls", "expected"), [(0, 1), (1, 2), (2, 3)])
def test_num_turns_is_1_plus_the_number_of_tool_results(calls, expected):
    """Contract 5.3."""
    stage = Stage()
    for number in range(calls):
        stage.turn.add_tool_call(f"t{number}", "Bash", {})
    for number in range(calls):
        stage.turn.add_tool_result(f"t{number}", "")
    stage.turn.add_block("done")
    stage.turn.record_turn_end()
    assert stage.finish_with_result()["num_turns"] == expected


# -- system lines ----------------------------------------------------------------------------------


def test_request_is_reported_before_a_reply_and_after_the_last_result_with_partial_messages():
    """S19"""
    stage = Stage(partial=True)
    stage.turn.start_message()
    stage.turn.add_tool_call("a", "Bash", {})
    stage.turn.add_tool_call("b", "Bash", {})
    assert stage.take_summary()[:3] == ["init", "system:status", "start"]
    stage.turn.add_tool_result("a", "x", False)
    assert "system:status" not in stage.take_summary()
    stage.turn.add_tool_result("b", "x", False)
    line = stage.take_lines()[-1]
    assert (line["subtype"], line["status"]) == ("status", "requesting")

    stage = Stage()
    stage.turn.add_text("a")
    assert stage.take_summary() == ["init"]


def test_no_request_is_reported_after_the_result_of_an_interrupted_call():
    stage = Stage(partial=True)
    stage.turn.add_tool_call("a", "Bash", {})
    stage.take_summary()
    stage.turn.record_interrupt()
    stage.turn.add_tool_result("a", "x", False)
    assert "system:status" not in stage.take_summary()


def test_request_of_a_turn_that_a_hook_continues_is_reported():
    stage = Stage(partial=True)
    stage.turn.add_text("a")
    stage.turn.record_turn_end()
    stage.take_summary()
    stage.turn.continue_after_hook(["run the tests"])
    line = stage.take_lines()[-1]
    assert (line["subtype"], line["status"]) == ("status", "requesting")


def test_turn_ended_by_a_hook_keeps_its_reason_when_the_vendor_completes_it():
    stage = Stage()
    stage.turn.record_vendor_session_info(session_id=UUID)
    stage.turn.outcome_tracker.stop_by_hook()
    stage.turn.add_text("an answer that was already on its way")
    stage.turn.record_turn_end()
    result = stage.finish_with_result()
    assert (result["terminal_reason"], result["result"]) == ("hook_stopped", "")


def test_system_line_does_not_close_the_open_block():
    stage = Stage(partial=True)
    stage.turn.add_text("a")
    stage.turn.write_system_event("note", x=1)
    stage.turn.add_text("b")
    assert stage.take_summary()[-5:] == ["start", "open:text", "+a", "system:note", "+b"]
    assert stage.finish_turn()[0] == "text:ab"


def test_retry_is_written_with_the_fields_of_claude():
    """Contract 5.8."""
    stage = Stage()
    stage.turn.write_retry(1, 3, 300, "429: Rate limit reached for requests")
    line = stage.take_lines()[-1]
    assert {
        key: line[key]
        for key in ("attempt", "max_retries", "retry_delay_ms", "error_status", "error")
    } == {
        "attempt": 1,
        "max_retries": 3,
        "retry_delay_ms": 300,
        "error_status": 429,
        "error": "rate_limit",
    }


def test_compaction_writes_a_boundary_and_its_cost_is_counted():
    stage = Stage()
    stage.turn.write_compaction("auto", 3121)
    stage.turn.add_usage(NO_USAGE, 0.5)
    stage.turn.add_block("going on")
    line = next(line for line in stage.take_lines() if line.get("subtype") == "compact_boundary")
    assert line["compact_metadata"] == {"trigger": "auto", "pre_tokens": 3121}
    stage.turn.record_turn_end()
    assert stage.finish_with_result()["total_cost_usd"] == 0.5


def test_unknown_event_is_counted_in_the_result():
    stage = Stage()
    stage.turn.record_unknown_event("brand_new", {"a": 1})
    stage.turn.add_block("hi")
    stage.turn.record_turn_end()
    assert stage.finish_with_result()["shim"]["unknown_events"] == {"brand_new": 1}


# -- the next turn ---------------------------------------------------------------------------------


def two_turns(**config_fields: object) -> Stage:
    stage = Stage(**config_fields)
    stage.turn.record_vendor_session_info(session_id=UUID, model="m", cwd="/repo", tools=["Bash"])
    stage.turn.add_block("one")
    stage.turn.end_message(USAGE, cost=1.0)
    stage.turn.record_turn_end()
    stage.turn.finish()
    stage.turn = stage.turn.create_next()
    stage.turn.add_block("two")
    stage.turn.end_message(USAGE, cost=1.0)
    stage.turn.record_turn_end()
    stage.turn.finish()
    return stage


def test_each_turn_writes_its_init_and_result_in_the_same_session():
    """Contract S2."""
    stage = two_turns()
    lines = stage.take_lines()
    assert summarize_lines(lines) == [
        "init",
        "text:one",
        "end:success one",
        ".",
        "init",
        "text:two",
        "end:success two",
        ".",
    ]
    first, second = (line for line in lines if line["type"] == "system")
    shared_keys = ("session_id", "model", "cwd", "tools")
    assert [first[key] for key in shared_keys] == [second[key] for key in shared_keys]
    check_turns(stage.bytes, partial=False)


def test_next_turn_uses_the_model_of_the_last_message():
    stage = Stage()
    stage.turn.record_vendor_session_info(session_id=UUID)
    stage.turn.start_message(model="late")
    stage.turn.add_block("one")
    stage.turn.record_turn_end()
    stage.turn.finish()
    stage.take_lines()
    stage.turn = stage.turn.create_next()
    stage.turn.add_block("two")
    init, line = stage.take_lines()
    assert line["message"]["model"] == "late"
    assert init["model"] == "late"


def test_usage_is_per_turn_and_cost_is_per_session():
    """Contract 5.3: `usage` = this turn; `total_cost_usd` and `modelUsage` = session so far."""
    _, second = (line for line in two_turns().take_lines() if line["type"] == "result")
    assert second["usage"] == USAGE
    assert second["total_cost_usd"] == 2.0
    assert second["modelUsage"]["m"]["inputTokens"] == 20


def test_failure_of_a_turn_does_not_affect_the_next():
    stage = Stage()
    stage.turn.record_failure("boom")
    stage.turn.finish()
    assert stage.take_lines()[-2]["is_error"]
    stage.turn = stage.turn.create_next()
    stage.turn.add_block("fine")
    stage.turn.record_turn_end()
    assert not stage.finish_with_result()["is_error"]


def test_old_call_id_is_not_reused_after_cleanup():
    conversation = Stage().turn.conversation
    assert conversation.reserve_call_id("t", Diagnostics()) == "t"
    conversation.clear_old_call_ids()
    assert conversation.reserve_call_id("t", Diagnostics()) == "t~2"


def test_session_id_is_stable_if_the_vendor_session_id_changes():
    stage = Stage()
    stage.turn.record_vendor_session_info(session_id=UUID)
    stage.turn.record_turn_end()
    stage.turn.finish()
    stage.take_lines()
    stage.turn = stage.turn.create_next()
    stage.turn.record_vendor_session_info(session_id=OTHER)
    assert init_of(stage)["session_id"] == UUID


def test_call_id_repeated_in_a_later_turn_produces_valid_output():
    stage = Stage()
    stage.turn.add_tool_call("t", "Bash", {})
    stage.turn.add_tool_result("t", "a")
    stage.turn.record_turn_end()
    stage.turn.finish()
    stage.turn = stage.turn.create_next()
    stage.turn.add_tool_call("t", "Bash", {})
    stage.turn.add_tool_result("t", "b")
    stage.turn.record_turn_end()
    stage.turn.finish()
    stage.take_lines()
    check_turns(stage.bytes, partial=False)


def test_model_usage_is_limited_to_a_maximum_number_of_models():
    stage = Stage()
    for number in range(3 * MAX_MODELS):
        stage.turn.start_message(f"model {number}")
        stage.turn.add_block("hi")
        # a number that no client can hold is not counted
        stage.turn.end_message(create_usage(1, 0, 0, 2**62))
    stage.turn.record_turn_end()
    usage_by_model = stage.finish_with_result()["modelUsage"]
    assert len(usage_by_model) == MAX_MODELS + 1
    assert (
        usage_by_model[OTHER_MODEL]["inputTokens"],
        usage_by_model[OTHER_MODEL]["outputTokens"],
    ) == (
        2 * MAX_MODELS,
        0,
    )


def test_synthetic_model_name_of_a_vendor_produces_valid_output():
    stage = Stage()
    stage.turn.record_vendor_session_info(session_id="s", model="<synthetic>")
    stage.turn.start_message("<synthetic>")
    stage.turn.add_block("hi")
    stage.turn.record_turn_end()
    stage.finish_turn()
    check_turns(stage.bytes, partial=False)


@pytest.mark.parametrize("fact", ["tools", "slash_commands", "agents", "mcp_servers"])
def test_non_string_names_in_init_lists_are_dropped(fact):
    stage = Stage()
    stage.turn.record_vendor_session_info(session_id="s", **{fact: [None, 7, ["x"]]})
    stage.turn.record_turn_end()
    stage.finish_turn()
    (turn,) = check_turns(stage.bytes, partial=False)
    assert turn[0][fact] == []
