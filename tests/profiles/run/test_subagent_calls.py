"""Tool calls of subagents in a profile: the rules apply to them in every form that a vendor reports."""

import json

import pytest
from memory_run import run_in_memory
from policy_builder import build_policy
from profile_builder import build_profile_adapter, find_result_line
from stream_lines import parse_lines, summarize_lines
from sweeps import loop_over_rows
from turn_stage import build_turn_config

from shim.conversation.drivers.open_translation import STABLE_ID_PREFIX, create_output_writer
from shim.core.adapter.child_stream import ChildStream
from shim.core.policy.evaluate import PolicyEvaluator

PROFILE = """
schema = 1
id = "own"
unknown_tools = "hide"
[stream]
parent = "by"
[[event]]
match = { type = "call" }
emit = "tool_use"
id = "n"
name = "tool"
input = "args"
[[event]]
match = { type = "piece" }
emit = "tool_input"
id = "n"
name = "tool"
input = "part"
done = "over"
[[event]]
match = { type = "ran" }
emit = "tool_result"
id = "n"
name = "tool"
input = "args"
content = "out"
[[event]]
match = { type = "out" }
emit = "tool_result"
id = "n"
content = "out"
is_error = "failed"
[tools]
task = { name = "Task" }
shell = { name = "Bash" }
"""
TASK = {"type": "call", "n": "c1", "tool": "task", "args": {}}
REMOVE = {"command": "rm x"}
OUTPUT = {"type": "out", "n": "c2", "out": "removed", "by": "c1"}


def build_call(tool="shell", arguments=REMOVE, **fields):
    return {"type": "call", "n": "c2", "tool": tool, "args": arguments, "by": "c1", **fields}


def build_fragments(tool="shell"):
    fragment = {"type": "piece", "n": "c2", "tool": tool, "by": "c1"}
    text = json.dumps(REMOVE)
    return [fragment | {"part": text[:5]}, fragment | {"part": text[5:], "over": True}]


def build_result_with_call(tool="shell", **fields):
    return build_call(tool) | {"type": "ran", "out": "removed"} | fields


def translate_denied_calls(*events, vendor_refuses=False):
    """Translate the events of a vendor whose tools `shell` and `private` are denied. Return the
    translation and Claude's lines.

    With `vendor_refuses`, the vendor knows the rules and should refuse the calls itself.
    """
    evaluator = PolicyEvaluator(
        build_policy(deny=["Bash", "private"]), is_sent_to_vendor=lambda rule: vendor_refuses
    )
    translation = ChildStream(
        build_profile_adapter(PROFILE).translator_class,
        build_turn_config("own", evaluator=evaluator),
        create_output_writer("claude", STABLE_ID_PREFIX),
    )
    data = "".join(json.dumps(event) + "\n" for event in (TASK, *events)).encode()
    return translation, parse_lines(translation.feed(data)[0])


@loop_over_rows(
    "events",
    [
        [build_call()],
        [build_call(n=None)],
        [build_call(n="c1")],
        build_fragments(),
        [build_result_with_call()],
        [build_call("private")],
        build_fragments("private"),
        [build_result_with_call("private")],
    ],
)
def test_report_of_a_forbidden_subagent_call_stops_the_turn(events):
    _, lines = translate_denied_calls(*events)
    result = find_result_line(lines)
    (denial,) = result["permission_denials"]
    assert (result["shim"]["cause"], denial["tool_input"]) == ("denied", REMOVE)


@loop_over_rows(
    "events",
    [
        [build_call(), OUTPUT],
        [build_call(n=None), OUTPUT | {"n": None}],
        [build_call(), OUTPUT | {"by": None}],
        [*build_fragments(), OUTPUT],
        [build_result_with_call()],
        [build_call("private"), OUTPUT],
        [*build_fragments("private"), OUTPUT],
        [build_result_with_call("private")],
        [build_result_with_call("private", by=None)],
    ],
)
def test_result_of_a_subagent_call_that_the_vendor_should_refuse_stops_the_turn(events):
    translation, lines = translate_denied_calls(*events, vendor_refuses=True)
    assert find_result_line(lines)["shim"]["cause"] == "denied"
    assert translation.turn.tool_calls.denials.tool_that_ran


def test_call_that_the_vendor_refuses_stays_a_call_of_its_subagent():
    refused = OUTPUT | {"out": "no", "failed": True}
    _, lines = translate_denied_calls(build_call(), refused, vendor_refuses=True)
    assert summarize_lines(lines)[-2:] == ["c1>call:c2 Bash", "c1>failed:c2 no"]


def test_hidden_subagent_call_that_no_rule_forbids_is_not_written():
    _, lines = translate_denied_calls(build_call("other"), OUTPUT, build_result_with_call("other"))
    assert summarize_lines(lines)[1:] == ["call:c1 Task"]


@pytest.mark.parametrize(
    ("call_id", "summary"),
    [("c2", "c1>result:c2 removed"), (["c2"], "result:c1 removed"), (None, "result:c1 removed")],
)
def test_result_without_a_parent_belongs_to_the_open_call_with_its_id(call_id, summary):
    """A result without a valid id belongs to an open call of the main agent."""
    _, lines = translate_denied_calls(build_call("task"), OUTPUT | {"n": call_id, "by": None})
    assert summarize_lines(lines)[-1] == summary


def test_result_without_a_parent_prefers_the_call_of_the_main_agent():
    main_call = build_call("task", {"prompt": "x"}, by=None)
    _, lines = translate_denied_calls(main_call, build_call("task"), OUTPUT | {"by": None})
    assert summarize_lines(lines)[-1] == "result:c2 removed"


class ForbiddenAmpSubagent:
    """amp, whose subagent runs a forbidden command before the turn ends."""

    waits = False

    def build_greeting(self):
        task = {"type": "tool_use", "id": "c1", "name": "Task", "input": {}}
        command = {"type": "tool_use", "id": "c2", "name": "Bash", "input": REMOVE}
        events = [
            {"type": "assistant", "message": {"content": [task]}},
            {"type": "assistant", "message": {"content": [command]}, "parent_tool_use_id": "c1"},
            {"type": "result", "is_error": False, "result": "Removed."},
        ]
        return "".join(json.dumps(event) + "\n" for event in events).encode()

    def answer_line(self, line):
        return b""


def test_program_whose_subagent_runs_a_forbidden_call_is_stopped(local_box, monkeypatch):
    local_box.write_program("amp", "exit 1\n")
    local_box.write_settings("[vendors.amp]\nlate_denials = true\n")
    arguments = ["-p", "hi", "--output-format", "stream-json", "--verbose"]
    arguments += ["--dangerously-skip-permissions", "--disallowedTools", "Bash(rm:*)"]
    data = run_in_memory(monkeypatch, arguments, "amp", lambda *start: ForbiddenAmpSubagent())
    result = find_result_line(parse_lines(data))
    assert (result["is_error"], result["shim"]["cause"]) == (True, "denied")
