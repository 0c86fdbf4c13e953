"""A nested agent: full lines with the id of the call that runs the agent (contract 5.14)."""

import pytest
from policy_builder import build_evaluator, build_policy
from stream_invariants import check_turns
from sweeps import loop_over_rows
from turn_stage import Stage

from shim.core.policy.evaluate import PolicyEvaluator
from shim.core.turn.subagents import MAX_SUBAGENT_CALLS
from shim.core.turn.tool_calls import UNANSWERED_TEXT

BOTH = pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])


def with_a_task(partial: bool = False) -> Stage:
    """Build a stage on which the call `task` runs a nested agent."""
    stage = Stage(partial=partial)
    stage.turn.add_tool_call("task", "Task", {"prompt": "look"})
    stage.take_lines()
    return stage


def finish(stage: Stage) -> list[str]:
    stage.turn.record_turn_end()
    summary = stage.finish_turn()
    check_turns(stage.bytes, stage.writer.writes_partial_messages)
    return summary


@BOTH
def test_subagent_lines_are_complete_and_reference_their_call(partial):
    stage = with_a_task(partial)
    child = stage.turn.get_subagent("task")
    child.add_user_text("look")
    child.write_thinking_message("hm")
    child.write_text_message("I look.")
    child.add_tool_call("n", "Read", {"file_path": "/a"})
    child.add_tool_result("n", "alpha")
    assert stage.take_summary() == [
        "task>user:look",
        "task>think:hm",
        "task>text:I look.",
        "task>call:n Read",
        "task>result:n alpha",
    ]
    finish(stage)


def test_empty_subagent_text_is_not_emitted():
    stage = with_a_task()
    stage.turn.get_subagent("task").write_text_message("")
    stage.turn.get_subagent("task").write_thinking_message("")
    assert stage.take_summary() == []


@BOTH
def test_subagent_text_does_not_close_a_main_block(partial):
    stage = Stage(partial=partial)
    stage.turn.add_tool_call("task", "Task", {})
    stage.turn.add_text("mean")
    stage.turn.get_subagent("task").write_text_message("inside")
    stage.turn.add_text("while")
    summary = finish(stage)
    assert "text:meanwhile" in summary


def test_subagent_text_is_not_the_result():
    stage = with_a_task()
    stage.turn.get_subagent("task").write_text_message("inside")
    stage.turn.add_tool_result("task", "done")
    stage.turn.add_block("outside")
    assert finish(stage)[-2] == "end:success outside"


def test_subagent_result_does_not_count_as_a_turn():
    """Contract 5.14: two tool results of the child and one of the parent are num_turns 2."""
    stage = with_a_task()
    child = stage.turn.get_subagent("task")
    child.add_tool_call("n", "Read", {})
    child.add_tool_result("n", "")
    stage.turn.add_tool_result("task", "done")
    stage.turn.record_turn_end()
    assert stage.finish_with_result()["num_turns"] == 2


@BOTH
def test_open_subagent_call_receives_an_interrupted_result(partial):
    stage = with_a_task(partial)
    stage.turn.get_subagent("task").add_tool_call("n", "Read", {})
    stage.turn.record_interrupt()
    summary = stage.finish_turn()
    check_turns(stage.bytes, partial)
    assert any(entry.startswith("task>failed:n Interrupted") for entry in summary)


def test_open_subagent_call_is_emitted_once():
    stage = with_a_task()
    child = stage.turn.get_subagent("task")
    child.add_tool_call("n", "Read", {})
    child.add_tool_call("n", "Read", {})
    assert stage.take_summary() == ["task>call:n Read"]


def test_reused_subagent_call_id_is_a_new_call():
    """Ids are unique in a session: clients key their cards by them."""
    stage = with_a_task()
    child = stage.turn.get_subagent("task")
    for text in ("one", "two"):
        child.add_tool_call("n", "Read", {})
        child.add_tool_result("n", text)
    stage.turn.add_tool_result("task", "done")
    finish(stage)


def test_subagent_call_id_used_by_the_main_agent_is_a_new_call():
    stage = with_a_task()
    stage.turn.add_tool_call("n", "Bash", {})
    stage.turn.add_tool_result("n", "")
    child = stage.turn.get_subagent("task")
    child.add_tool_call("n", "Read", {})
    child.add_tool_result("n", "")
    finish(stage)


def test_subagent_result_without_a_call_is_dropped_and_counted():
    stage = with_a_task()
    stage.turn.get_subagent("task").add_tool_result("n", "orphan")
    assert stage.take_summary() == []
    assert stage.diagnostics.repairs == {"orphan_tool_result": 1}


def test_unknown_parent_is_null_and_counted():
    stage = Stage()
    stage.turn.get_subagent("nobody").write_text_message("inside")
    line = stage.take_lines()[-1]
    assert line["parent_tool_use_id"] is None
    assert stage.diagnostics.repairs == {"unknown_parent": 1}


def test_parent_with_a_result_still_accepts_subagent_text():
    """Background agents continue after their call has returned (contract 5.14)."""
    stage = with_a_task()
    stage.turn.add_tool_result("task", "launched")
    stage.take_lines()
    stage.turn.get_subagent("task").write_text_message("later")
    assert stage.take_summary() == ["task>text:later"]
    assert stage.diagnostics.repairs == {}


def test_subagent_lines_reference_the_renamed_parent_call():
    stage = Stage()
    stage.turn.add_tool_call("task", "Task", {})
    stage.turn.add_tool_result("task", "one")
    stage.turn.add_tool_call("task", "Task", {})
    call = stage.take_lines()[-1]["message"]["content"][0]["id"]
    stage.turn.get_subagent("task").write_text_message("inside")
    (line,) = stage.take_lines()
    assert line["parent_tool_use_id"] == call != "task"


@loop_over_rows(
    ("call_id", "name", "tool_input"),
    [(7, "Read", {}), ("", "Read", {}), ("n", None, {}), ("n", "Read", None), ("n", "Read", "x")],
)
def test_malformed_subagent_call_preserves_the_contract(call_id, name, tool_input):
    """Contract S6 also applies to nested lines."""
    stage = with_a_task()
    try:
        stage.turn.get_subagent("task").add_tool_call(call_id, name, tool_input)
    except Exception:  # the child stream counts it
        pass
    finish(stage)


def test_subagent_result_is_attributed_to_the_parent_of_its_call():
    stage = with_a_task()
    stage.turn.get_subagent("task").add_tool_call("n", "Read", {})
    stage.turn.add_tool_call("other", "Task", {})
    stage.turn.get_subagent("other").add_tool_result("n", "out")
    assert "task>result:n out" in stage.take_summary()
    finish(stage)


def test_subagent_mcp_result_has_claude_format():
    stage = with_a_task()
    child = stage.turn.get_subagent("task")
    child.add_tool_call("n", "mcp__srv__take", {})
    child.add_tool_result("n", {"content": []})
    child.add_tool_call("m", "mcp__srv__take", {})
    child.add_tool_result("m", [{"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}])
    empty, audio = [
        line["message"]["content"][0]["content"]
        for line in stage.take_lines()
        if line["type"] == "user"
    ]
    assert empty == "(mcp__srv__take completed with no output)"
    assert audio == [
        {"type": "text", "text": "[Audio from srv] Binary content (audio/wav, 3 bytes), not saved"}
    ]


def test_subagent_text_is_omitted_without_forward_subagent_text():
    """Measured with claude 2.1.332: texts and thoughts are written only with
    `--forward-subagent-text`.
    """
    stage = Stage(forwards_subagent_text=False)
    stage.turn.record_vendor_session_info(session_id="s")
    stage.turn.add_tool_call("task", "Task", {"prompt": "x"})
    child = stage.turn.get_subagent("task")
    child.write_thinking_message("hm")
    child.write_text_message("inside")
    child.add_tool_call("n", "Read", {})
    child.add_tool_result("n", "text")
    assert [entry for entry in stage.take_summary() if entry.startswith("task>")] == [
        "task>call:n Read",
        "task>result:n text",
    ]


# -- forbidden calls -------------------------------------------------------------------------------

RM, LS = {"command": "rm x"}, {"command": "ls"}


def judged_task(judges: PolicyEvaluator) -> Stage:
    stage = Stage(evaluator=judges)
    stage.turn.add_tool_call("task", "Task", {"prompt": "look"})
    stage.take_lines()
    return stage


@pytest.mark.parametrize("call_id", ["n", "task", "", None])
def test_denied_subagent_call_stops_the_turn(call_id):
    stage = judged_task(build_evaluator(deny=["Bash(rm:*)"]))
    child = stage.turn.get_subagent("task")
    child.add_tool_call(call_id, "Bash", LS)
    assert stage.turn.result is None
    child.add_tool_call(call_id, "Bash", RM)
    assert stage.turn.end_cause == "denied"
    calls = [
        block
        for line in stage.take_lines()
        if line["type"] == "assistant"
        for block in line["message"]["content"]
    ]
    assert [entry["tool_use_id"] for entry in stage.turn.tool_calls.denials.entries.values()] == [
        calls[-1]["id"]
    ]


def test_later_arguments_of_a_subagent_call_are_evaluated():
    stage = judged_task(build_evaluator(deny=["mcp__s__t(rm:*)"]))
    child = stage.turn.get_subagent("task")
    child.add_tool_call("n", "mcp__s__t", {"line": "ls"})
    child.add_tool_call("n", "mcp__s__t", {"line": "ls"})
    assert stage.turn.result is None
    child.add_tool_call("n", "mcp__s__t", {"line": "rm x"})
    assert stage.turn.end_cause == "denied"


def test_denied_subagent_call_above_the_limit_stops_the_turn():
    stage = judged_task(build_evaluator(deny=["Bash(rm:*)"]))
    child = stage.turn.get_subagent("task")
    for number in range(MAX_SUBAGENT_CALLS):
        child.add_tool_call(f"n{number}", "Bash", LS)
    assert stage.turn.result is None
    child.add_tool_call("m", "Bash", RM)
    assert stage.turn.end_cause == "denied"


def test_subagent_call_above_the_limit_ends_the_oldest_call():
    stage = with_a_task()
    child = stage.turn.get_subagent("task")
    for number in range(MAX_SUBAGENT_CALLS + 1):
        child.add_tool_call(f"n{number}", "Read", {})
    child.add_tool_result(f"n{MAX_SUBAGENT_CALLS}", "text")
    assert stage.take_summary()[-3:] == [
        f"task>failed:n0 {UNANSWERED_TEXT}",
        f"task>call:n{MAX_SUBAGENT_CALLS} Read",
        f"task>result:n{MAX_SUBAGENT_CALLS} text",
    ]
    assert stage.diagnostics.repairs == {"call_given_up": 1}
    finish(stage)


def test_refused_subagent_call_does_not_stop_the_turn():
    stage = judged_task(build_evaluator(deny=["Bash(rm:*)"]))
    stage.turn.add_denial("n", "Bash", RM)
    stage.turn.get_subagent("task").add_tool_call("n", "Bash", RM)
    assert stage.turn.result is None


@pytest.mark.parametrize("failed", [False, True])
def test_vendor_enforced_denial_stops_the_turn_only_if_the_call_ran(failed):
    stage = judged_task(
        PolicyEvaluator(build_policy(deny=["Bash"]), is_sent_to_vendor=lambda rule: True)
    )
    child = stage.turn.get_subagent("task")
    child.add_tool_call("n", "Bash", RM)
    assert stage.turn.result is None
    child.add_tool_result("n", "removed", failed)
    assert (stage.turn.end_cause == "denied") is not failed
    assert stage.turn.tool_calls.denials.tool_that_ran == ("" if failed else "Bash")


def test_agent_of_the_shim_is_nested_in_the_call_with_its_arguments():
    stage = Stage()
    for call_id, prompt in (("one", "first"), ("two", "second")):
        stage.turn.add_tool_call(call_id, "mcp__claudeagents__Task", {"prompt": prompt})
    stage.take_lines()
    stage.turn.write_agent_prompt({"prompt": "second"})
    blocks = [
        {"type": "text", "text": "hm"},
        {"type": "tool_use", "id": "n", "name": "Read", "input": {"file_path": "/a"}},
        {"type": "tool_result", "tool_use_id": "n", "content": "alpha"},
        {"type": "unknown"},
    ]
    stage.turn.write_agent_blocks({"prompt": "second"}, blocks)
    assert stage.take_summary() == [
        "two>user:second",
        "two>text:hm",
        "two>call:n Read",
        "two>result:n alpha",
    ]
    stage.turn.write_agent_blocks({"prompt": "third"}, blocks)
    assert stage.take_summary() == []
    finish(stage)
