"""Calls that share an id or have none: each is announced and decided, and results are paired in
order.
"""

from itertools import count
from typing import Any

import pytest
from policy_builder import build_evaluator
from sweeps import loop_over_rows
from turn_stage import Stage

from shim.core.turn.open_calls import normalize_call_id

LONG = "call_" + "x" * 300


def start_stage(**config_fields: Any) -> Stage:
    stage = Stage(partial=False, **config_fields)
    stage.turn.record_vendor_session_info(session_id="s")
    stage.take_lines()
    return stage


def blocks(stage: Stage) -> list[dict[str, Any]]:
    """Return the content blocks of the lines since the last call."""
    return [
        block
        for line in stage.take_lines()
        if "message" in line
        for block in line["message"]["content"]
    ]


def pairs(content_blocks: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
    """Return the arguments of each call with its result."""
    calls = {block["id"]: block["input"] for block in content_blocks if block["type"] == "tool_use"}
    assert len(calls) == sum(block["type"] == "tool_use" for block in content_blocks), (
        "every id is unique"
    )
    return [
        (calls[block["tool_use_id"]], block["content"])
        for block in content_blocks
        if block["type"] == "tool_result"
    ]


def read(path: str) -> tuple[str, dict[str, str]]:
    return "Read", {"file_path": path}


A, B = {"file_path": "/w/a"}, {"file_path": "/w/b"}
IDS = pytest.mark.parametrize(
    "call_id",
    ["same", "", None, 7, LONG, " ", "x~2"],
    ids=["text", "empty", "null", "number", "long", "space", "ours"],
)


@IDS
def test_two_open_calls_with_the_same_id_are_separate_calls(call_id):
    stage = start_stage()
    stage.turn.add_tool_call(call_id, *read("/w/a"))
    stage.turn.add_tool_call(call_id, *read("/w/b"))
    stage.turn.add_tool_result(call_id, "A")
    stage.turn.add_tool_result(call_id, "B")
    assert pairs(blocks(stage)) == [(A, "A"), (B, "B")]
    assert not stage.turn.open_calls


@IDS
def test_results_of_calls_with_the_same_id_are_paired_in_order(call_id):
    stage = start_stage()
    paths = [f"/w/{number}" for number in range(5)]
    for path in paths:
        stage.turn.add_tool_call(call_id, *read(path))
    for path in paths:
        stage.turn.add_tool_result(call_id, path)
    assert [(tool_input["file_path"], content) for tool_input, content in pairs(blocks(stage))] == [
        (each, each) for each in paths
    ]


def test_repeated_event_of_a_call_does_not_create_a_second_call():
    stage = start_stage()
    for _ in range(3):
        stage.turn.add_tool_call("t", *read("/w/a"))
    stage.turn.add_tool_result("t", "A")
    assert pairs(blocks(stage)) == [(A, "A")]


def test_result_with_another_tool_name_does_not_end_the_open_call():
    stage = start_stage()
    stage.turn.add_tool_call("t", *read("/w/a"))
    stage.turn.add_tool_result("t", "out", False, "Bash", {"command": "ls"})
    assert pairs(blocks(stage)) == []
    assert stage.diagnostics.repairs == {"second_tool_result": 1}
    assert [call[2] for call in stage.turn.open_calls.values()] == [A]


def test_call_completed_by_a_later_event_stays_a_single_call():
    stage = start_stage()
    stage.turn.add_tool_call("t", "Read", {})
    stage.turn.add_tool_call("t", *read("/w/a"))
    assert len(stage.turn.open_calls) == 1


def test_event_of_another_source_may_repeat_a_call_with_extended_arguments():
    stage = start_stage()
    stage.turn.add_tool_call("t", *read("/w/a"), source="said")
    stage.turn.add_tool_call("t", "Read", {"file_path": "/w/a", "limit": 2000}, source="started")
    stage.turn.add_tool_call("t", "Read", {"file_path": "/w/a", "limit": 2000}, source="started")
    assert len(stage.turn.open_calls) == 1
    stage.turn.add_tool_call("t", *read("/w/b"), source="started")
    assert len(stage.turn.open_calls) == 2


@pytest.mark.parametrize("call_id", ["same", ""])
def test_events_of_three_sources_describe_the_same_two_calls(call_id):
    stage = start_stage()
    for source in ("said", "whole", "started"):
        stage.turn.add_tool_call(call_id, *read("/w/a"), source=source)
        stage.turn.add_tool_call(call_id, *read("/w/b"), source=source)
    assert [call[2] for call in stage.turn.open_calls.values()] == [A, B]


def test_two_equal_calls_without_an_id_are_separate_calls():
    stage = start_stage()
    stage.turn.add_tool_call("", *read("/w/a"))
    stage.turn.add_tool_call("", *read("/w/a"))
    stage.turn.add_tool_result("", "1")
    stage.turn.add_tool_result(None, "2")
    assert [content for _, content in pairs(blocks(stage))] == ["1", "2"]


def test_results_with_tool_names_match_their_calls_in_any_order():
    stage = start_stage()
    stage.turn.add_tool_call("", *read("/w/a"))
    stage.turn.add_tool_call("", "Bash", {"command": "ls"})
    stage.turn.add_tool_result("", "listed", name="Bash")
    stage.turn.add_tool_result("", "read", name="Read")
    assert pairs(blocks(stage)) == [({"command": "ls"}, "listed"), (A, "read")]


def test_result_without_an_id_is_assigned_to_the_open_call():
    stage = start_stage()
    stage.turn.add_tool_call("t", *read("/w/a"))
    stage.turn.add_tool_result(None, "A")
    assert pairs(blocks(stage)) == [(A, "A")]


def test_result_with_an_id_is_assigned_to_the_open_call_without_an_id():
    stage = start_stage()
    stage.turn.add_tool_call(None, *read("/w/a"))
    stage.turn.add_tool_result("call_7", "A")
    assert pairs(blocks(stage)) == [(A, "A")]


def test_orphan_result_without_an_id_is_not_assigned_to_a_later_call():
    stage = start_stage()
    stage.turn.add_tool_result("", "nobody's")
    stage.turn.add_tool_call("", *read("/w/a"))
    stage.turn.add_tool_result("", "A")
    assert pairs(blocks(stage)) == [(A, "A")]


def test_early_results_with_the_same_id_are_paired_in_order():
    stage = start_stage()
    stage.turn.add_tool_result("t", "A")
    stage.turn.add_tool_result("t", "B")
    stage.turn.add_tool_call("t", *read("/w/a"))
    stage.turn.add_tool_call("t", *read("/w/b"))
    assert pairs(blocks(stage)) == [(A, "A"), (B, "B")]


def test_reused_call_id_gets_a_new_id():
    stage = start_stage()
    for path, text in (("/w/a", "A"), ("/w/b", "B"), ("/w/a", "C")):
        stage.turn.add_tool_call("t", *read(path))
        stage.turn.add_tool_result("t", text)
    assert pairs(blocks(stage)) == [(A, "A"), (B, "B"), (A, "C")]


def test_vendor_call_id_in_the_format_of_generated_ids_is_accepted():
    stage = start_stage()
    stage.turn.add_tool_call("t", *read("/w/a"))
    stage.turn.add_tool_call("t", *read("/w/b"))
    stage.turn.add_tool_call("t~2", *read("/w/c"))
    stage.turn.add_tool_result("t~2", "C")
    stage.turn.add_tool_result("t", "A")
    stage.turn.add_tool_result("t", "B")
    assert pairs(blocks(stage)) == [({"file_path": "/w/c"}, "C"), (A, "A"), (B, "B")]


def test_long_ids_that_differ_only_at_the_end_stay_distinct():
    first_id, other = normalize_call_id(f"{LONG}1"), normalize_call_id(f"{LONG}2")
    assert first_id != other and len(first_id) == len(other) == 200
    stage = start_stage()
    stage.turn.add_tool_call(f"{LONG}1", *read("/w/a"))
    stage.turn.add_tool_call(f"{LONG}2", *read("/w/b"))
    stage.turn.add_tool_result(f"{LONG}2", "B")
    stage.turn.add_tool_result(f"{LONG}1", "A")
    assert pairs(blocks(stage)) == [(B, "B"), (A, "A")]


def test_end_of_the_turn_adds_a_result_for_each_call_with_the_same_id():
    stage = start_stage()
    for path in ("/w/a", "/w/b", "/w/c"):
        stage.turn.add_tool_call("t", *read(path))
    stage.turn.record_interrupt()
    stage.turn.close(None, "")
    assert [tool_input for tool_input, _ in pairs(blocks(stage))] == [
        read(path)[1] for path in ("/w/a", "/w/b", "/w/c")
    ]


# -- rules, hooks and permission requests ----------------------------------------------------------


def denials(stage: Stage) -> list[tuple[str, str]]:
    return [
        (each["tool_use_id"], each["tool_name"])
        for each in stage.turn.tool_calls.denials.entries.values()
    ]


@IDS
def test_denied_second_call_with_the_same_id_stops_the_turn(call_id):
    stage = start_stage(evaluator=build_evaluator(deny=["Bash(rm:*)"]))
    stage.turn.add_tool_call(call_id, "Bash", {"command": "ls"})
    assert stage.turn.result is None
    stage.turn.add_tool_call(call_id, "Bash", {"command": "rm x"})
    assert stage.turn.end_cause == "denied"
    calls = [block for block in blocks(stage) if block["type"] == "tool_use"]
    assert denials(stage) == [(calls[1]["id"], "Bash")]


def test_denied_call_after_a_refused_call_with_the_same_id_stops_the_turn():
    """The refused call did not run; the other call did."""
    stage = start_stage(evaluator=build_evaluator(deny=["Bash(rm:*)"]))
    stage.turn.add_denial("t", "Bash", {"command": "rm a"})
    stage.turn.add_tool_call("t", "Bash", {"command": "rm a"})
    assert stage.turn.result is None
    stage.turn.add_tool_call("t", "Bash", {"command": "rm b"})
    assert stage.turn.end_cause == "denied"


def test_denied_call_with_the_id_of_a_hidden_call_stops_the_turn():
    stage = start_stage(evaluator=build_evaluator(deny=["Bash(rm:*)"]))
    stage.turn.add_tool_call("t", "todo", {}, is_hidden=True)
    stage.turn.add_tool_call("t", "Bash", {"command": "rm a"})
    assert stage.turn.end_cause == "denied"


@pytest.mark.parametrize("first", [{}, {"command": "ls"}])
def test_later_arguments_of_a_call_are_checked_against_the_rules(first):
    stage = start_stage(evaluator=build_evaluator(deny=["Bash(rm:*)"]))
    stage.turn.add_tool_call("t", "Bash", first, source="said")
    stage.turn.add_tool_call("t", "Bash", {"command": "rm a"}, source="started")
    assert stage.turn.end_cause == "denied"


def test_result_with_a_denied_tool_input_stops_the_turn():
    stage = start_stage(evaluator=build_evaluator(deny=["Bash(rm:*)"]))
    stage.turn.add_tool_call("t", "Bash", {"command": "ls"})
    stage.turn.add_tool_result("t", "", False, "Bash", {"command": "rm a"})
    assert stage.turn.end_cause == "denied"


RULES = {"deny": ["Bash(rm:*)"], "hidden": ["Bash"]}


def test_denied_call_of_a_hidden_tool_stops_the_turn():
    stage = start_stage(evaluator=build_evaluator(**RULES))
    stage.turn.add_tool_call("t", "Bash", {"command": "rm a"})
    assert stage.turn.end_cause == "denied"
    assert denials(stage) == [("t", "Bash")]


@IDS
def test_hidden_call_with_denied_later_arguments_stops_the_turn(call_id):
    stage = start_stage(evaluator=build_evaluator(**RULES))
    stage.turn.add_tool_call(call_id, "Bash", {"command": "ls"}, source="said")
    assert stage.turn.result is None and not blocks(stage)
    stage.turn.add_tool_call(call_id, "Bash", {"command": "rm a"}, source="started")
    assert stage.turn.end_cause == "denied" and len(denials(stage)) == 1


def test_result_with_a_denied_input_of_a_hidden_tool_stops_the_turn():
    stage = start_stage(evaluator=build_evaluator(**RULES))
    stage.turn.add_tool_call("t", "Bash", {"command": "ls"})
    stage.turn.add_tool_result("t", "", False, "Bash", {"command": "rm a"})
    assert stage.turn.end_cause == "denied"


def test_update_of_a_hidden_call_with_denied_input_stops_the_turn():
    stage = start_stage(evaluator=build_evaluator(**RULES))
    stage.turn.add_tool_call("t", "Bash", {"command": "ls"})
    stage.turn.replace_call_input("t", "Bash", {"command": "rm a"})
    assert stage.turn.end_cause == "denied"


def test_allowed_call_of_a_hidden_tool_stays_hidden():
    stage = start_stage(evaluator=build_evaluator(**RULES))
    stage.turn.add_tool_call("t", "Bash", {"command": "ls"}, source="said")
    stage.turn.add_tool_call("t", "Bash", {"command": "ls -l"}, source="started")
    stage.turn.add_tool_result("t", "listed", False, "Bash", {"command": "ls -l"})
    assert not blocks(stage) and stage.turn.result is None


def test_hooks_receive_both_calls_and_both_results():
    stage = start_stage()
    stage.turn.tool_calls.hook_events = []
    stage.turn.add_tool_call("t", *read("/w/a"))
    stage.turn.add_tool_call("t", *read("/w/b"))
    stage.turn.add_tool_result("t", "A")
    stage.turn.add_tool_result("t", "B")
    events = [
        (each.name, each.call_id, each.tool_input) for each in stage.turn.tool_calls.hook_events
    ]
    assert events == [
        ("PreToolUse", "t", A),
        ("PreToolUse", "t~2", B),
        ("PostToolUse", "t", A),
        ("PostToolUse", "t~2", B),
    ]


@pytest.mark.parametrize("first", [{}, A])
def test_hooks_receive_changed_arguments_of_a_call_once(first):
    stage = start_stage()
    stage.turn.tool_calls.hook_events = []
    stage.turn.add_tool_call("t", "Read", first, source="said")
    stage.turn.add_tool_call("t", "Read", A, source="started")
    stage.turn.add_tool_call("t", "Read", A, source="started")
    assert [(each.call_id, each.tool_input) for each in stage.turn.tool_calls.hook_events] == [
        ("t", first),
        *([("t", A)] * (not first)),
    ]


def test_hooks_receive_the_arguments_of_a_permission_request():
    stage = start_stage()
    stage.turn.tool_calls.hook_events = []
    stage.turn.add_tool_call("t", *read("/w/a"))
    assert ask(stage, "t", "/w/b").call_id == "t"
    assert [each.tool_input for each in stage.turn.tool_calls.hook_events] == [A, B]


REQUESTS = count()


def ask(stage: Stage, call_id: Any, path: str) -> Any:
    stage.turn.request_permission(f"r{next(REQUESTS)}", call_id, *read(path), ("read", {}))
    return stage.turn.permission_requests.pending[-1]


@loop_over_rows("announced", [True, False])
@loop_over_rows("call_id", ["same", "", None])
def test_permission_is_requested_for_each_call_with_the_same_id(call_id, announced):
    stage = start_stage()
    if announced:
        stage.turn.add_tool_call(call_id, *read("/w/a"))
        stage.turn.add_tool_call(call_id, *read("/w/b"))
    second, first = ask(stage, call_id, "/w/b"), ask(stage, call_id, "/w/a")
    calls = {block["id"]: block["input"] for block in blocks(stage)}
    assert not first.refusal and not second.refusal
    assert (calls[first.call_id], calls[second.call_id]) == (A, B)
    stage.turn.add_tool_call(call_id, *read("/w/a"))
    stage.turn.add_tool_call(call_id, *read("/w/b"))
    assert len(stage.turn.open_calls) == 2 or not call_id


def test_second_permission_request_for_the_same_call_is_refused():
    stage = start_stage()
    stage.turn.add_tool_call("t", *read("/w/a"))
    assert not ask(stage, "t", "/w/a").refusal
    assert ask(stage, "t", "/w/a").refusal == "Permission for this call was already requested."


def test_permission_is_requested_for_a_later_call_that_reuses_an_ended_id():
    stage = start_stage()
    assert not ask(stage, "t", "/w/a").refusal
    stage.turn.add_tool_result("t", "A")
    later = ask(stage, "t", "/w/b")
    assert not later.refusal and later.call_id == "t~2"


def test_refused_calls_are_listed_with_distinct_ids():
    stage = start_stage()
    stage.turn.add_tool_call("t", *read("/w/a"))
    permission = ask(stage, "t", "/w/b")
    stage.turn.add_tool_call("t", *read("/w/c"))
    stage.turn.record_permission_denial(permission, "no")
    stage.turn.add_denial("t", *read("/w/c"))
    assert denials(stage) == [("t", "Read"), ("t~2", "Read")]


# -- nested agents ---------------------------------------------------------------------------------


def test_two_subagents_may_use_the_same_call_id():
    stage = start_stage()
    stage.turn.add_tool_call("one", "Task", {})
    stage.turn.add_tool_call("two", "Task", {})
    for parent, path in (("one", "/w/a"), ("two", "/w/a"), ("two", "/w/b")):
        stage.turn.get_subagent(parent).add_tool_call("call_0", *read(path))
    stage.turn.get_subagent("two").add_tool_result("call_0", "2a")
    stage.turn.get_subagent("one").add_tool_result("call_0", "1a")
    stage.turn.get_subagent("two").add_tool_result("call_0", "2b")
    lines = [line for line in stage.take_lines() if line.get("parent_tool_use_id")]
    calls = {
        line["message"]["content"][0].get("id"): line["parent_tool_use_id"] for line in lines[:3]
    }
    assert len(calls) == 3
    results = [line["message"]["content"][0] for line in lines[3:]]
    assert [(calls[block["tool_use_id"]], block["content"]) for block in results] == [
        ("two", "2a"),
        ("one", "1a"),
        ("two", "2b"),
    ]
