"""Tool calls: one result per call and one call per result, in any order (contract S7, S16c)."""

import pytest
from fake_secrets import generate_secret
from policy_builder import build_evaluator
from stream_invariants import check_turns
from sweeps import loop_over_rows
from turn_stage import Stage

from shim.core.policy.evaluate import PolicyEvaluator
from shim.core.turn.permission_requests import MAX_PERMISSION_REQUESTS
from shim.core.turn.tool_calls import MAX_EARLY_RESULTS

BOTH = pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])


def start_stage(partial: bool = False, **config_fields: object) -> Stage:
    """Start a stage after its init."""
    stage = Stage(partial=partial, **config_fields)
    stage.turn.record_vendor_session_info(session_id="s")
    stage.take_lines()
    return stage


def end_turn(stage: Stage) -> list[str]:
    """Return a summary of the rest of the stream after a successful end."""
    stage.turn.record_turn_end()
    summary = stage.finish_turn()
    check_turns(stage.bytes, stage.writer.writes_partial_messages)
    return summary


def test_call_becomes_an_assistant_event_and_its_result_a_user_event():
    stage = start_stage()
    stage.turn.add_tool_call("t", "Bash", {"command": "ls"})
    stage.turn.add_tool_result("t", "a.txt")
    call, result = stage.take_lines()
    assert call["message"]["content"] == [
        {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "ls"}}
    ]
    assert result["message"]["content"] == [
        {"tool_use_id": "t", "type": "tool_result", "content": "a.txt", "is_error": False}
    ]


def test_call_open_at_an_interrupt_gets_an_error_result():
    """6.4. gemini 0.61 and opencode 1.18 report a command that they stopped as completed."""
    stage = start_stage()
    stage.turn.add_tool_call("t", "Bash", {"command": "tail -f a.txt"})
    stage.turn.record_interrupt()
    stage.turn.add_tool_result("t", "Command cancelled by user.")
    _, result = stage.take_lines()
    assert result["message"]["content"][0]["is_error"] is True


def test_call_is_streamed_as_a_single_input_delta_with_partial_messages():
    """House: the input is one input_json_delta, in Claude's names."""
    stage = start_stage(True)
    stage.turn.add_tool_call("t", "Bash", {"command": "ls"})
    assert stage.take_summary() == [
        "start",
        "open:tool_use",
        '{"command":"ls"}',
        "call:t Bash",
        "stop",
    ]


@BOTH
def test_parallel_calls_get_results_in_completion_order(partial):
    """S7, contract 5.5: all calls of a reply first, results in completion order."""
    stage = start_stage(partial)
    stage.turn.add_tool_call("a", "Bash", {})
    stage.turn.add_tool_call("b", "Read", {})
    stage.turn.add_tool_result("b", "2")
    stage.turn.add_tool_result("a", "1")
    summary = [entry for entry in end_turn(stage) if entry.startswith(("call", "result"))]
    assert summary == ["call:a Bash", "call:b Read", "result:b 2", "result:a 1"]


@BOTH
def test_repeated_id_of_an_open_call_is_ignored(partial):
    """Vendors announce a call twice: in the message, and when it runs (pi)."""
    stage = start_stage(partial)
    stage.turn.add_tool_call("t", "Bash", {"command": "ls"})
    stage.take_lines()
    stage.turn.add_tool_call("t", "Bash", {"command": "ls"})
    assert stage.take_summary() == []
    assert stage.diagnostics.repairs == {}


@BOTH
def test_call_id_reused_after_its_result_gets_a_new_id(partial):
    stage = start_stage(partial)
    for number in range(3):
        stage.turn.add_tool_call("t", "Bash", {})
        stage.turn.add_tool_result("t", str(number))
    summary = [entry for entry in end_turn(stage) if entry.startswith(("call", "result"))]
    assert [entry.split()[0].split(":")[1] for entry in summary[::2]] == [
        entry.split()[0].split(":")[1] for entry in summary[1::2]
    ]
    assert summary[0] == "call:t Bash"
    assert len(set(summary[::2])) == 3, "minted ids"
    assert [entry[-1] for entry in summary[1::2]] == ["0", "1", "2"]
    assert stage.diagnostics.repairs == {"reused_tool_id": 2}


@BOTH
def test_generated_call_id_never_equals_a_vendor_call_id(partial):
    stage = start_stage(partial)
    for call_id in ("t~2", "t", "t", "t~2"):
        stage.turn.add_tool_call(call_id, "Bash", {})
        stage.turn.add_tool_result(call_id, "")
    end_turn(stage)  # check_turns: ids are used once


@pytest.mark.parametrize("call_id", ["", None, 7])
def test_call_without_an_id_gets_a_generated_id(call_id):
    stage = start_stage()
    stage.turn.add_tool_call(call_id, "Bash", {})
    end_turn(stage)


@BOTH
def test_early_result_waits_for_its_call(partial):
    """acai's seed example and wayland-core#133."""
    stage = start_stage(partial)
    stage.turn.add_tool_result("t", "early", True)
    assert stage.take_summary() == []
    stage.turn.add_tool_call("t", "Bash", {})
    assert [entry for entry in stage.take_summary() if entry.startswith(("call", "failed"))] == [
        "call:t Bash",
        "failed:t early",
    ]
    end_turn(stage)


@BOTH
def test_second_result_of_a_call_is_counted_and_dropped(partial):
    stage = start_stage(partial)
    stage.turn.add_tool_call("t", "Bash", {})
    stage.turn.add_tool_result("t", "one")
    stage.take_lines()
    stage.turn.add_tool_result("t", "two")
    assert stage.take_summary() == []
    assert stage.diagnostics.repairs == {"second_tool_result": 1}
    end_turn(stage)


@BOTH
def test_result_without_a_call_is_counted_and_dropped(partial):
    stage = start_stage(partial)
    stage.turn.add_tool_result("t", "orphan")
    stage.turn.add_block("done")
    assert not any(entry.startswith("result") for entry in end_turn(stage))
    assert stage.diagnostics.repairs == {"orphan_tool_result": 1}


def test_early_results_are_bounded():
    """Threat: any number of results without a call."""
    stage = start_stage()
    for number in range(MAX_EARLY_RESULTS + 10):
        stage.turn.add_tool_result(f"t{number}", "x" * 10)
    assert stage.diagnostics.repairs == {"orphan_tool_result": 10}
    end_turn(stage)
    assert stage.diagnostics.repairs == {"orphan_tool_result": MAX_EARLY_RESULTS + 10}


def test_result_with_a_tool_name_creates_its_missing_call():
    """cursor: `completed` without `start_stage`."""
    stage = start_stage()
    stage.turn.add_tool_result("t", "out", False, "Bash", {"command": "ls"})
    call, result = stage.take_lines()
    assert call["message"]["content"][0]["input"] == {"command": "ls"}
    assert result["message"]["content"][0]["tool_use_id"] == "t"
    end_turn(stage)


def test_named_result_of_an_open_call_is_assigned_to_the_call():
    stage = start_stage()
    stage.turn.add_tool_call("t", "Bash", {"command": "ls"})
    stage.turn.add_tool_result("t", "out", False, "Bash", {"command": "ls"})
    assert stage.take_summary() == ["call:t Bash", "result:t out"]


@BOTH
def test_fill_results_adds_a_result_for_every_open_call(partial):
    """acai 0.1.0."""
    stage = start_stage(partial)
    stage.turn.add_tool_call("a", "Bash", {})
    stage.turn.add_tool_call("b", "Bash", {})
    stage.take_lines()
    stage.turn.fill_open_call_results()
    assert [entry for entry in stage.take_summary() if entry.startswith("result")] == [
        "result:a",
        "result:b",
    ]
    assert not stage.turn.open_calls
    end_turn(stage)


@BOTH
@pytest.mark.parametrize(
    ("how", "expected_text", "kind"),
    [
        ("record_turn_end", "No result was reported for this call.", "failed"),
        ("record_failure", "No result was reported for this call.", "failed"),
        (
            "record_interrupt",
            "Interrupted while this call was running; it may have run in part or in full.",
            "failed",
        ),
        ("nothing", "No result was reported for this call.", "failed"),
    ],
)
def test_open_calls_get_an_error_result_at_the_end_of_the_turn(partial, how, expected_text, kind):
    """Contract S16c: ACP fails the turn otherwise."""
    stage = start_stage(partial)
    stage.turn.add_tool_call("t", "Bash", {})
    if how == "record_failure":
        stage.turn.record_failure("boom")
    elif how != "nothing":
        getattr(stage.turn, how)()
    summary = stage.finish_turn()
    check_turns(stage.bytes, partial)
    assert f"{kind}:t {expected_text}" in summary


@pytest.mark.parametrize(
    ("content", "written"),
    [
        ("text", "text"),
        ("", ""),
        ([{"type": "text", "text": "x"}], [{"type": "text", "text": "x"}]),
        ("half \ud83d", "half \ufffd"),
    ],
)
def test_result_content_may_be_text_or_blocks(content, written):
    stage = start_stage()
    stage.turn.add_tool_call("t", "Bash", {})
    stage.take_lines()
    stage.turn.add_tool_result("t", content)
    (line,) = stage.take_lines()
    assert line["message"]["content"][0]["content"] == written


@pytest.mark.parametrize("content", [None, 7, {"output": "x"}, True])
def test_result_content_of_another_type_is_converted(content):
    """Contract S7: `content` is a string or blocks; vibe-kanban's serde refuses anything else."""
    stage = start_stage()
    stage.turn.add_tool_call("t", "Bash", {})
    stage.turn.add_tool_result("t", content)
    end_turn(stage)


@loop_over_rows("name", [None, 7, ["x"], {"a": 1}, ""])
def test_call_name_is_always_a_string(name):
    """Contract S6: a call without `name` kills the Python SDK."""
    stage = start_stage()
    try:
        stage.turn.add_tool_call("t", name, {})
    except Exception:  # the child stream counts it
        pass
    end_turn(stage)


@pytest.mark.parametrize("tool_input", [None, "ls", ["ls"], 7])
def test_call_input_is_always_an_object(tool_input):
    """Contract S6."""
    stage = start_stage(True)
    stage.turn.add_tool_call("t", "Bash", tool_input)
    end_turn(stage)


# -- denials, hidden and forbidden calls -----------------------------------------------------------


def test_denial_is_listed_in_the_result_and_the_turn_succeeds():
    """Contract 5.3."""
    stage = start_stage()
    stage.turn.add_tool_call("t", "Bash", {"command": "rm"})
    stage.turn.add_denial("t", "Bash", {"command": "rm"})
    stage.turn.add_tool_result("t", "refused", True)
    stage.turn.add_block("ok")
    stage.turn.record_turn_end()
    result = stage.finish_with_result()
    assert result["permission_denials"] == [
        {"tool_name": "Bash", "tool_use_id": "t", "tool_input": {"command": "rm"}}
    ]
    assert not result["is_error"]


def test_repeated_denial_of_a_call_is_listed_once():
    stage = start_stage()
    for _ in range(3):
        stage.turn.add_denial("t", "Bash", {})
    stage.turn.add_denial("u", "Bash", {})
    stage.turn.record_turn_end()
    assert [
        denial["tool_use_id"] for denial in stage.finish_with_result()["permission_denials"]
    ] == ["t", "u"]


@BOTH
def test_hidden_call_is_omitted_with_its_result(partial):
    """Contract S16c: filtering drops both halves."""
    stage = start_stage(partial, evaluator=build_evaluator(hidden=["Grep"]))
    stage.turn.add_tool_call("g", "Grep", {})
    stage.turn.add_tool_call("b", "Bash", {})
    stage.turn.add_tool_result("g", "hidden")
    stage.turn.add_tool_result("b", "shown")
    summary = end_turn(stage)
    assert not any("Grep" in entry or "hidden" in entry for entry in summary)
    assert "result:b shown" in summary
    assert stage.diagnostics.repairs == {}


def test_hidden_call_without_a_result_gets_no_result_at_the_end():
    stage = start_stage(evaluator=build_evaluator(hidden=["Grep"]))
    stage.turn.add_tool_call("g", "Grep", {})
    assert end_turn(stage) == ["end:success", "."]


def test_hidden_call_created_by_its_result_stays_hidden():
    stage = start_stage(evaluator=build_evaluator(hidden=["Grep"]))
    stage.turn.add_tool_result("g", "hidden", False, "Grep", {})
    stage.turn.add_tool_result("g", "hidden", False, "Grep", {})
    assert end_turn(stage) == ["end:success", "."]


@BOTH
def test_denied_call_stops_the_turn_and_is_listed_as_a_denial(partial):
    """The second line of defence: a call that is visible here may already be running, and the text
    says so.
    """
    stage = start_stage(partial, evaluator=build_evaluator(deny=["Bash"]))
    stage.turn.add_block("I will clean up.")
    stage.turn.add_tool_call("t", "Bash", {"command": "rm -rf /"})
    stage.turn.add_tool_result("t", "done")
    stage.turn.add_block("late")
    stage.turn.close(None, "")
    lines = stage.take_lines()
    check_turns(stage.bytes, partial)
    result = next(line for line in lines if line["type"] == "result")
    assert result["is_error"] and result["subtype"] == "error_during_execution"
    assert result["shim"]["cause"] == "denied"
    assert "Bash" in result["errors"][0] and "may have started" in result["errors"][0]
    assert result["permission_denials"][0]["tool_input"] == {"command": "rm -rf /"}
    (tool_result,) = (line["message"]["content"][0] for line in lines if line["type"] == "user")
    assert tool_result["is_error"] and "may have started" in tool_result["content"]
    assert stage.turn.machine.state == "closed"


def test_denied_call_refused_before_execution_does_not_stop_the_turn():
    stage = start_stage(evaluator=build_evaluator(deny=["Bash"]))
    stage.turn.add_denial("t", "Bash", {"command": "rm"})
    stage.turn.add_tool_call("t", "Bash", {"command": "rm"})
    stage.turn.add_tool_result("t", "blocked", True)
    assert "call:t Bash" in stage.take_summary() and stage.turn.machine.state != "closed"
    assert end_turn(stage)[-2] == "end:success"


def build_informed_evaluator(**rules):
    """Build the evaluator of a vendor that received every rule for a whole tool at its start."""
    return PolicyEvaluator(build_evaluator(**rules).policy, is_sent_to_vendor=lambda rule: True)


def test_failed_call_of_a_tool_denied_to_the_vendor_does_not_stop_the_turn():
    stage = start_stage(evaluator=build_informed_evaluator(deny=["Bash"], only=["Bash", "Read"]))
    for call_id, name in (("t", "Bash"), ("u", "Grep")):
        stage.turn.add_tool_call(call_id, name, {})
        stage.turn.add_tool_result(call_id, "no such tool", True)
    assert end_turn(stage)[-2] == "end:success"


def test_successful_call_of_a_tool_denied_to_the_vendor_stops_the_turn():
    stage = start_stage(evaluator=build_informed_evaluator(deny=["Bash"]))
    stage.turn.add_tool_call("t", "Bash", {"command": "ls"})
    stage.turn.add_tool_result("t", "a.txt")
    assert stage.turn.end_cause == "denied"
    stage.take_lines()
    check_turns(stage.bytes, stage.writer.writes_partial_messages)


def test_call_denied_by_an_argument_rule_stops_the_turn_immediately():
    stage = start_stage(evaluator=build_informed_evaluator(deny=["Bash(ls:*)"]))
    stage.turn.add_tool_call("t", "Bash", {"command": "ls"})
    assert stage.turn.end_cause == "denied"


def test_denied_call_that_is_hidden_stops_the_turn():
    stage = start_stage(evaluator=build_evaluator(deny=["Bash"]))
    stage.turn.add_tool_call("t", "Bash", {}, is_hidden=True)
    assert stage.turn.machine.state == "closed" and "call:t Bash" in stage.take_summary()


def test_call_without_a_matching_rule_is_allowed():
    stage = start_stage(evaluator=build_evaluator(deny=["Bash(rm *)"]))
    stage.turn.add_tool_call("t", "Bash", {"command": "ls"})
    stage.turn.add_tool_result("t", "a")
    assert end_turn(stage)[-2] == "end:success"


def test_denied_call_created_by_its_result_stops_the_turn():
    stage = start_stage(evaluator=build_evaluator(deny=["Bash"]))
    stage.turn.add_tool_result("t", "done", False, "Bash", {})
    summary = stage.take_summary()
    assert summary[-1] == "."
    check_turns(stage.bytes, partial=False)


# -- max turns -------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("calls", [1, 2])
def test_turn_stops_at_the_max_turns_limit(partial, calls):
    """Contract 5.9: error_max_turns, its text, terminal_reason max_turns."""
    stage = start_stage(partial, max_turns=2)
    for message_index in range(3):
        for call in range(calls):
            stage.turn.add_tool_call(f"t{message_index}{call}", "Bash", {})
        for call in range(calls):
            stage.turn.add_tool_result(f"t{message_index}{call}", "its own")
    stage.turn.close(None, "")
    lines = stage.take_lines()
    check_turns(stage.bytes, partial)
    result = next(line for line in lines if line["type"] == "result")
    assert (result["subtype"], result["errors"]) == (
        "error_max_turns",
        ["Reached maximum number of turns (2)"],
    )
    assert (result["terminal_reason"], result["shim"]["cause"]) == ("max_turns", "limit")
    results = [line["message"]["content"][0]["content"] for line in lines if line["type"] == "user"]
    assert results == ["its own"] * 2 * calls, "the results of the last reply are all awaited"


def test_message_without_tool_calls_does_not_count_toward_max_turns():
    stage = start_stage(max_turns=1)
    stage.turn.add_block("a")
    stage.turn.start_message()
    stage.turn.add_block("b")
    assert end_turn(stage)[-2] == "end:success b"


# -- permissions -----------------------------------------------------------------------------------

SHELL = ("shell", {"command": "ls"})


def ask(stage: Stage, request: str = "q1", call: str = "t", name: str = "Bash"):
    """Return the outcome of a vendor's permission request."""
    stage.turn.request_permission(request, call, name, {"command": "ls"}, SHELL)
    return stage.turn.permission_requests.pending[-1]


def test_permission_request_emits_its_unannounced_call():
    stage = start_stage()
    permission = ask(stage)
    assert (
        permission.request_id,
        permission.call_id,
        permission.tool,
        permission.vendor_tool,
        permission.refusal,
    ) == (
        "q1",
        "t",
        "Bash",
        "shell",
        "",
    )
    assert stage.take_summary() == ["call:t Bash"]


def test_permission_request_for_an_open_call_emits_no_event():
    stage = start_stage()
    stage.turn.add_tool_call("t", "Bash", {"command": "ls"})
    stage.take_lines()
    assert ask(stage).refusal == "" and stage.take_summary() == []


def test_duplicate_permission_request_id_or_call_id_is_refused():
    """Threat: an open permission request is replaced by a second one with the same request id or
    call id.
    """
    stage = start_stage()
    ask(stage)
    assert ask(stage, "q1", "other").refusal and ask(stage, "q2", "t").refusal


def test_duplicate_permission_request_is_refused_after_the_first_was_taken():
    stage = start_stage()
    assert not ask(stage).refusal
    stage.turn.permission_requests.pending.clear()
    assert ask(stage, "q1", "other").refusal and ask(stage, "q2", "t").refusal
    assert not ask(stage, "q3", "third").refusal


def test_stored_permission_request_ids_are_bounded():
    """Threat: any number of permission requests. The requests beyond the limit are counted."""
    stage = start_stage()
    for number in range(MAX_PERMISSION_REQUESTS + 500):
        ask(stage, f"q{number}", f"t{number}")
    questions = stage.turn.permission_requests
    assert len(questions.pending) == MAX_PERMISSION_REQUESTS
    assert stage.diagnostics.repairs["question_left_out"] == 500
    assert len(questions._request_ids) <= MAX_PERMISSION_REQUESTS


def test_permission_request_after_the_end_of_the_turn_is_refused():
    stage = start_stage()
    end_turn(stage)
    assert ask(stage).refusal == "The turn is over."


def test_open_permission_request_is_refused_when_the_turn_ends():
    stage = start_stage()
    ask(stage)
    end_turn(stage)
    assert [permission.refusal for permission in stage.turn.permission_requests.pending] == [
        "The turn is over."
    ]


def test_permission_request_for_a_hidden_or_denied_tool_is_refused():
    hidden = start_stage(evaluator=build_evaluator(hidden=["Bash"]))
    assert "not available" in ask(hidden).refusal and hidden.take_summary() == []
    forbidden = start_stage(evaluator=build_evaluator(deny=["Bash"]))
    assert ask(forbidden).refusal and forbidden.turn.end_cause == "denied"


def test_refused_call_has_the_users_message_in_its_result_and_is_counted_once():
    stage = start_stage()
    permission = ask(stage)
    stage.turn.record_permission_denial(permission, "no way")
    stage.turn.record_permission_denial(permission, "no way")
    stage.turn.add_tool_result("t", "[Operation Cancelled]", True)
    (result,) = [line for line in stage.take_lines() if line["type"] == "user"]
    assert result["message"]["content"][0]["content"] == "no way"
    assert [*stage.turn.tool_calls.denials.entries] == ["t"]


def test_refused_call_without_a_result_reports_the_users_message():
    stage = start_stage()
    stage.turn.record_permission_denial(ask(stage), "no way")
    stage.take_lines()
    assert any(
        "no way" in entry
        for entry in map(str, [stage.turn.record_turn_end(), *stage.finish_turn()])
    )


def test_refused_call_that_ran_preserves_its_result_and_is_reported():
    stage = start_stage()
    stage.turn.record_permission_denial(ask(stage), "no way")
    stage.turn.add_tool_result("t", "it ran")
    (result,) = [line for line in stage.take_lines() if line["type"] == "user"]
    assert result["message"]["content"][0]["content"] == "it ran"
    assert stage.turn.tool_calls.denials.tool_that_ran == "Bash"
    assert stage.turn.diagnostics.build_report()["repairs"].keys() == {"denied_call_ran"}


def test_failed_result_of_a_refused_call_is_not_reported_as_executed():
    stage = start_stage()
    stage.turn.record_permission_denial(ask(stage), "no way")
    stage.turn.add_tool_result("t", "not allowed", True)
    assert stage.turn.tool_calls.denials.tool_that_ran == "" and stage.turn.end_cause == ""


def test_successful_result_is_accepted_if_the_vendor_did_not_receive_the_denial():
    """A call to the frontend's own process is denied there, and its vendor may report any
    result.
    """
    stage = start_stage()
    stage.turn.record_permission_denial(ask(stage), "no way", vendor_knows=False)
    stage.turn.add_tool_result("t", "it was refused")
    assert stage.turn.tool_calls.denials.tool_that_ran == "" and stage.turn.end_cause == ""


def test_forbid_call_stops_the_turn_with_its_reason():
    stage = start_stage()
    stage.turn.add_tool_call("t", "Bash", {"command": "ls"})
    stage.turn.stop_for_forbidden_call("other", "not today")
    assert stage.turn.end_cause == ""
    stage.turn.stop_for_forbidden_call("t", "not today")
    assert stage.turn.end_cause == "denied" and "not today" in stage.turn.final_text


MCP_IMAGE = {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}
CLAUDE_IMAGE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
}


@loop_over_rows("redact", [False, True])
@loop_over_rows("is_early", [False, True])
@loop_over_rows("content", [[MCP_IMAGE], {"content": [MCP_IMAGE]}])
def test_mcp_image_result_is_converted_to_claude_format(content, is_early, redact):
    """Claude's frontends cannot show MCP blocks."""
    stage = start_stage(redacts_secrets=redact)
    if is_early:
        stage.turn.add_tool_result("t", content)
    stage.turn.add_tool_call("t", "mcp__srv__take", {})
    if not is_early:
        stage.turn.add_tool_result("t", content)
    _, result = stage.take_lines()
    assert result["message"]["content"][0]["content"] == [CLAUDE_IMAGE]


def test_an_mcp_result_with_is_error_is_an_error():
    stage = start_stage()
    stage.turn.add_tool_call("t", "mcp__srv__take", {})
    stage.turn.add_tool_result("t", {"content": [{"type": "text", "text": "no"}], "isError": True})
    _, result = stage.take_lines()
    assert result["message"]["content"][0] | {"tool_use_id": ""} == {
        "tool_use_id": "", "type": "tool_result", "content": "no", "is_error": True,
    }  # fmt: skip


def test_secret_in_structured_content_is_redacted():
    stage = start_stage(redacts_secrets=True)
    secret = f"ghp_{generate_secret(36)}"
    stage.turn.add_tool_call("t", "mcp__srv__take", {})
    stage.turn.add_tool_result("t", {"content": [], "structuredContent": {"token": secret}})
    assert secret not in stage.take_lines()[1]["message"]["content"][0]["content"]


def test_mcp_tool_name_is_written_in_claude_format():
    """The real claude replaces every character that the API does not accept in a tool's name."""
    stage = start_stage()
    name, plain = "mcp__my srv.x__do it/ü", "mcp__my_srv_x__do_it__"
    stage.turn.add_denial("t", name, {})
    stage.turn.add_tool_call("t", name, {})
    stage.turn.add_tool_result("t", "no", True)
    stage.turn.get_subagent("t").add_tool_call("n", name, {})
    assert stage.take_lines()[0]["message"]["content"][0]["name"] == plain
    end_turn(stage)
    assert stage.turn.tool_calls.denials.entries["t"]["tool_name"] == plain


def test_permission_request_uses_the_claude_name_of_an_mcp_tool():
    stage = start_stage()
    stage.turn.request_permission("q", "t", "mcp__s.x__do it", {}, ("do it", {}))
    assert stage.turn.permission_requests.pending[0].tool == "mcp__s_x__do_it"


def test_init_lists_mcp_tools_with_claude_names():
    stage = Stage()
    stage.turn.record_vendor_session_info(session_id="s", tools=["Bash", "mcp__s.x__do it"])
    assert stage.take_lines()[0]["tools"] == ["Bash", "mcp__s_x__do_it"]
