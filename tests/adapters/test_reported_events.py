"""Vendor events from people's reports: denials, reasoning, finish reasons, and nested agents."""

import pytest
from policy_builder import build_evaluator
from profile_builder import build_profile_adapter, find_result_line, translate_events
from stream_lines import parse_lines
from sweeps import loop_over_rows
from turn_stage import build_turn_config

from shim.adapters import get_adapter
from shim.conversation.drivers.open_translation import STABLE_ID_PREFIX, create_output_writer
from shim.core.adapter.child_stream import ChildStream
from shim.core.turn.outcome import ChildExit


def vendor(name):
    return get_adapter(name)


def blocks(lines, kind):
    """Return the content blocks of one type, each with the parent of its line."""
    matches = []
    for line in lines:
        content = line.get("message", {}).get("content", ())
        matches += [
            (line["parent_tool_use_id"], block) for block in content if block["type"] == kind
        ]
    return matches


def results(lines):
    return [
        (block["tool_use_id"], block["content"], block["is_error"])
        for _, block in blocks(lines, "tool_result")
    ]


# -- cline -----------------------------------------------------------------------------------------

UNAPPROVED = 'Tool "x" requires approval in a TTY session -- NOT a tool or system failure.'


def cline(kind, **fields):
    return {"type": "agent_event", "event": {"type": kind, **fields}}


def cline_call(name, tool_input, output, **fields):
    call = {"contentType": "tool", "toolName": name, "toolCallId": "c1"}
    return [
        cline("content_start", **call, input=tool_input),
        cline("content_end", **call, output=output, **fields),
    ]


CLINE_END = {"type": "run_result", "finishReason": "completed", "text": "ok"}


@pytest.mark.parametrize(
    ("name", "tool_input", "call"),
    [
        ("run_commands", {"commands": ["touch a"]}, ("Bash", "c1", {"command": "touch a"})),
        (
            "editor",
            {"path": "a", "new_text": "x"},
            ("Write", "c1", {"file_path": "a", "content": "x"}),
        ),
        ("server__tool", {"n": 1}, ("server__tool", "c1", {"n": 1})),
        ("read_files", {"files": [{"path": "a"}]}, ("Read", "c1:0", {"file_path": "a"})),
    ],
)
def test_unapproved_cline_call_is_an_error_and_a_permission_denial(name, tool_input, call):
    lines = translate_events(
        vendor("cline"), *cline_call(name, tool_input, {"error": UNAPPROVED}), CLINE_END
    )
    denials = find_result_line(lines)["permission_denials"]
    assert [
        (denial["tool_name"], denial["tool_use_id"], denial["tool_input"]) for denial in denials
    ] == [call]
    assert results(lines) == [(call[1], UNAPPROVED, True)]


def test_failed_cline_call_is_an_error_without_a_permission_denial():
    failed = cline_call("run_commands", {"commands": ["x"]}, {"error": "EACCES: permission denied"})
    lines = translate_events(vendor("cline"), *failed, CLINE_END)
    assert results(lines) == [("c1", "EACCES: permission denied", True)]
    assert find_result_line(lines)["permission_denials"] == []
    lines = translate_events(
        vendor("cline"), *cline_call("fetch", {}, None, error="gone"), CLINE_END
    )
    assert results(lines) == [("c1", "gone", True)]


@pytest.mark.parametrize("streamed", [True, False])
def test_cline_reasoning_becomes_a_thinking_block(streamed):
    start = {"contentType": "reasoning", "redacted": False}
    thinking = (
        [cline("content_start", **start, reasoning=part) for part in ("I ", "think. ")]
        if streamed
        else []
    )
    text = {"contentType": "text", "text": "Hello"}
    ends = [
        cline("content_end", **text),
        cline("content_end", contentType="reasoning", reasoning="I think. "),
    ]
    if not streamed:
        ends.reverse()
    lines = translate_events(
        vendor("cline"), *thinking, cline("content_start", **text), *ends, CLINE_END
    )
    all_blocks = [
        block
        for line in lines
        if line["type"] == "assistant"
        for block in line["message"]["content"]
    ]
    assert [block["thinking"] for _, block in blocks(lines, "thinking")] == ["I think. "]
    assert [block["text"] for _, block in blocks(lines, "text")] == ["Hello"]
    assert not streamed or all_blocks[0]["type"] == "thinking"
    assert find_result_line(lines)["shim"]["repairs"] == {}


# -- opencode: the reason of the last step ---------------------------------------------------------


def step(reason, text=""):
    part = {"messageID": "m", "tokens": {}} | ({} if reason is ... else {"reason": reason})
    text_events = [{"type": "text", "sessionID": "ses_1", "part": {"text": text}}] if text else []
    thought = {"type": "reasoning", "sessionID": "ses_1", "part": {"text": "hm"}}
    return [thought, *text_events, {"type": "step_finish", "sessionID": "ses_1", "part": part}]


@loop_over_rows("name", ["opencode", "kilo"])
@loop_over_rows("reason", ["unknown", "tool-calls", None, "", ...])
@loop_over_rows("text", ["", "so far"])
def test_run_without_a_final_finish_reason_is_truncated(name, reason, text):
    result = find_result_line(translate_events(vendor(name), *step(reason, text)))
    assert result["is_error"] and result["shim"]["cause"] == "truncated"
    result = find_result_line(translate_events(vendor(name), *step(reason), *step("stop", "Done.")))
    assert (result["is_error"], result["result"], result["stop_reason"]) == (
        False,
        "Done.",
        "end_turn",
    )


@pytest.mark.parametrize(
    ("reason", "stop"), [("stop", "end_turn"), ("other", "end_turn"), ("length", "max_tokens")]
)
def test_final_opencode_step_sets_the_stop_reason(reason, stop):
    result = find_result_line(translate_events(vendor("opencode"), *step(reason, "Done.")))
    assert (result["is_error"], result["result"], result["stop_reason"]) == (False, "Done.", stop)


def test_opencode_finish_reason_error_is_a_vendor_error():
    result = find_result_line(translate_events(vendor("opencode"), *step("error")))
    assert (result["is_error"], result["shim"]["cause"]) == (True, "vendor_error")
    assert "finish reason error" in result["errors"][0]
    event = {
        "type": "error",
        "sessionID": "ses_1",
        "error": {"name": "APIError", "data": {"message": "too hot"}},
    }
    for events in ([event, *step("error")], [*step("error"), event]):
        assert find_result_line(translate_events(vendor("opencode"), *events))["errors"] == [
            "too hot"
        ]


def test_opencode_content_filter_is_reported_as_a_refusal():
    result = find_result_line(translate_events(vendor("opencode"), *step("content-filter", "half")))
    assert (result["is_error"], result["shim"]["cause"], result["stop_reason"]) == (
        True,
        "refused",
        "refusal",
    )


# -- nested agents ---------------------------------------------------------------------------------


def copilot(kind, parent=None, **data):
    return {"type": kind, "data": data | ({"parentToolCallId": parent} if parent else {})}


def copilot_reply(message_id, text, *calls, parent=None, deltas=True):
    """Return a reply as copilot prints it: fragments, the full text, and the start of its calls."""
    halves = (text[:3], text[3:]) if deltas else ()
    fragments = [
        copilot("assistant.message_delta", parent, messageId=message_id, deltaContent=half)
        for half in halves
    ]
    tool_requests = [
        {"toolCallId": call, "name": name, "arguments": tool_input}
        for call, name, tool_input in calls
    ]
    start_events = [
        copilot(
            "tool.execution_start", parent, toolCallId=call, toolName=name, arguments=tool_input
        )
        for call, name, tool_input in calls
    ]
    message = copilot(
        "assistant.message", parent, messageId=message_id, content=text, toolRequests=tool_requests
    )
    return [*fragments, message, *start_events]


def copilot_result(call, content, parent=None, **fields):
    return copilot(
        "tool.execution_complete",
        parent,
        **{"toolCallId": call, "success": True, "result": {"content": content}} | fields,
    )


TASK = ("call_2", "task", {"prompt": "find it"})
VIEW = ("call_4", "view", {"path": "/a.txt"})
COPILOT_END = {"type": "result", "sessionId": "s", "exitCode": 0}


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("deltas", [False, True])
def test_copilot_subagent_lines_carry_the_parent_tool_call_id(partial, deltas):
    def nested(*args):
        return copilot_reply(*args, parent="call_2", deltas=deltas)

    events = [
        *copilot_reply("m1", "Delegating.", TASK),
        *nested("m2", "child looks", VIEW),
        copilot_result("call_4", "AAA", "call_2"),
        *nested("m3", "child answer"),
        copilot_result("call_2", "child answer"),
        *copilot_reply("m4", "Main answer."),
        COPILOT_END,
    ]
    lines = translate_events(vendor("copilot"), *events, partial=partial)
    assert [(parent, block["text"]) for parent, block in blocks(lines, "text")] == [
        (None, "Delegating."),
        ("call_2", "child looks"),
        ("call_2", "child answer"),
        (None, "Main answer."),
    ]
    assert [(parent, block["name"]) for parent, block in blocks(lines, "tool_use")] == [
        (None, "Task"),
        ("call_2", "Read"),
    ]
    assert [parent for parent, _ in blocks(lines, "tool_result")] == ["call_2", None]
    result = find_result_line(lines)
    assert result["result"] == "Main answer." and result["shim"]["repairs"] == {}
    ids = {
        line["message"]["id"]
        for line in lines
        if line["type"] == "assistant" and line["parent_tool_use_id"]
    }
    assert not ids & {
        line["message"]["id"]
        for line in lines
        if line["type"] == "assistant" and not line["parent_tool_use_id"]
    }


def test_late_subagent_text_does_not_replace_the_result():
    events = [
        *copilot_reply("m1", "Delegating.", TASK),
        *copilot_reply("m2", "child answer", parent="call_2"),
        copilot_result("call_2", "x"),
        *copilot_reply("m3", "Main."),
        *copilot_reply("m4", "late child", parent="call_2"),
        COPILOT_END,
    ]
    assert find_result_line(translate_events(vendor("copilot"), *events))["result"] == "Main."


def test_interleaved_deltas_of_two_subagents_are_joined_per_subagent():
    other = ("call_3", "task", {"prompt": "b"})
    first, second = (
        [
            copilot(
                "assistant.message_delta", parent, messageId=parent, deltaContent=f"{parent} {n} "
            )
            for n in range(3)
        ]
        for parent in ("call_2", "call_3")
    )
    mixed = [event for pair in zip(first, second, strict=True) for event in pair]
    events = [
        *copilot_reply("m1", "Go", TASK, other),
        *mixed,
        copilot_result("call_2", "x"),
        copilot_result("call_3", "y"),
    ]
    lines = translate_events(vendor("copilot"), *events, *copilot_reply("m2", "Done"), COPILOT_END)
    nested = [(parent, block["text"]) for parent, block in blocks(lines, "text") if parent]
    assert nested == [
        (parent, f"{parent} 0 {parent} 1 {parent} 2 ") for parent in ("call_2", "call_3")
    ]


def test_nested_subagent_lines_carry_the_inner_call_id():
    inner = ("call_5", "task", {"prompt": "deeper"})
    events = [
        *copilot_reply("m1", "Go", TASK),
        *copilot_reply("m2", "deeper", inner, parent="call_2"),
        *copilot_reply("m3", "deepest", parent="call_5"),
        copilot_result("call_5", "deepest", "call_2"),
        copilot_result("call_2", "x"),
        *copilot_reply("m4", "Done"),
        COPILOT_END,
    ]
    lines = translate_events(vendor("copilot"), *events)
    assert [parent for parent, _ in blocks(lines, "text")] == [None, "call_2", "call_5", None]
    assert find_result_line(lines)["shim"]["repairs"] == {}


def test_subagent_error_or_denial_does_not_end_the_turn():
    denied = {"success": False, "error": {"message": "No.", "code": "denied"}}
    events = [
        *copilot_reply("m1", "Go", TASK),
        *copilot_reply("m2", "look", VIEW, parent="call_2"),
        copilot_result("call_4", None, "call_2", **denied),
        copilot("session.error", "call_2", message="child broke", statusCode=500),
        copilot_result("call_2", "x"),
        *copilot_reply("m4", "Done"),
        COPILOT_END,
    ]
    result = find_result_line(translate_events(vendor("copilot"), *events))
    assert (result["is_error"], result["result"]) == (False, "Done")
    (denial,) = result["permission_denials"]
    assert denial["tool_name"] == "Read" and denial["tool_input"] == {"file_path": "/a.txt"}


def test_denied_subagent_call_ends_the_turn():
    """The rules of the turn apply to a subagent, even if its vendor reports something else
    before.
    """
    translation = ChildStream(
        vendor("copilot").translator_class,
        build_turn_config("copilot", evaluator=build_evaluator(deny=["Read"])),
        create_output_writer("claude", STABLE_ID_PREFIX),
        None,
    )
    events = [*copilot_reply("m1", "Go", TASK), *copilot_reply("m2", "look", VIEW, parent="call_2")]
    data = b"".join(encode_event(event) for event in events)
    lines = parse_lines(translation.feed(data)[0] + translation.close(ChildExit(code=0), "")[0])
    result = find_result_line(lines)
    assert result["is_error"] and result["shim"]["cause"] == "denied"


def encode_event(event):
    import json

    return json.dumps(event).encode() + b"\n"


def amp(role, *content, parent=None):
    return {
        "type": role,
        "message": {"model": "m", "content": list(content)},
        "parent_tool_use_id": parent,
    }


def test_amp_subagent_lines_carry_the_parent_tool_call_id():
    use = {"type": "tool_use", "id": "t1", "name": "Task", "input": {"prompt": "p"}}
    read = {"type": "tool_use", "id": "t2", "name": "Read", "input": {"path": "a"}}
    events = [
        {"type": "system", "subtype": "init", "session_id": "T-1"},
        amp("assistant", {"type": "text", "text": "Go"}, use),
        amp(
            "assistant",
            {"type": "thinking", "thinking": "hm"},
            {"type": "text", "text": "look"},
            read,
            parent="t1",
        ),
        amp("user", {"type": "tool_result", "tool_use_id": "t2", "content": "A"}, parent="t1"),
        amp("assistant", {"type": "text", "text": "found"}, parent="t1"),
        amp("user", {"type": "tool_result", "tool_use_id": "t1", "content": "found"}),
        amp("assistant", {"type": "text", "text": "Main."}),
        {"type": "result", "is_error": False, "result": "Main."},
    ]
    lines = translate_events(vendor("amp"), *events)
    assert [parent for parent, _ in blocks(lines, "text")] == [None, "t1", "t1", None]
    assert [parent for parent, _ in blocks(lines, "thinking")] == ["t1"]
    assert [parent for parent, _ in blocks(lines, "tool_use")] == [None, "t1"]
    assert [parent for parent, _ in blocks(lines, "tool_result")] == ["t1", None]
    assert find_result_line(lines)["result"] == "Main."


PIECES = """
[stream]
parent = "by"
[[event]]
match = { type = "call" }
emit = "tool_use"
id = "n"
name = "tool"
[[event]]
match = { type = "piece" }
emit = "tool_input"
id = "n"
name = "tool"
input = "part"
done = "over"
[[event]]
match = { type = "end" }
emit = "result"
"""


def test_streamed_subagent_call_has_the_parent_tool_call_id():
    pieces = [
        {"type": "piece", "n": "c2", "tool": "T", "part": part, "by": "c1"}
        for part in ('{"a', '": 1}')
    ]
    pieces[-1]["over"] = True
    lines = translate_events(
        build_profile_adapter(PIECES),
        {"type": "call", "n": "c1", "tool": "Task"},
        *pieces,
        {"type": "end", "by": "c1"},
    )
    assert [
        (parent, block["name"], block["input"]) for parent, block in blocks(lines, "tool_use")
    ] == [
        (None, "Task", {}),
        ("c1", "T", {"a": 1}),
    ]
    assert find_result_line(lines)["is_error"], "the end of a subagent is no end of the turn"


# -- copilot ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", ["hm. ", "hm.\n", "\nhm.", "hm."])
def test_trimmed_copilot_reasoning_does_not_contradict_its_deltas(streamed):
    message = copilot(
        "assistant.message", messageId="m", content="Hi", reasoningText="hm.", toolRequests=[]
    )
    events = [
        copilot("assistant.reasoning_delta", reasoningId="r", deltaContent=streamed),
        copilot("assistant.message_delta", messageId="m", deltaContent="Hi "),
        message,
        copilot("assistant.reasoning", reasoningId="r", content="hm."),
        COPILOT_END,
    ]
    lines = translate_events(vendor("copilot"), *events)
    assert find_result_line(lines)["shim"]["repairs"] == {}
    assert [block["thinking"] for _, block in blocks(lines, "thinking")] == [streamed]


@loop_over_rows(
    ("reason", "cause", "subtype"),
    [
        ("user_initiated", "interrupted", "error_during_execution"),
        ("remote_command", "interrupted", "error_during_execution"),
        ("autopilot_credit_limit", "limit", "error_max_budget_usd"),
    ],
)
@loop_over_rows("end", [COPILOT_END, COPILOT_END | {"exitCode": 1}])
def test_aborted_copilot_turn_is_an_error(reason, cause, subtype, end):
    interrupted = {"type": "agent.interrupted", "data": {"activity": "tool"}, "ephemeral": True}
    events = [*copilot_reply("m", "Half"), interrupted, copilot("abort", reason=reason), end]
    result = find_result_line(translate_events(vendor("copilot"), *events))
    assert (result["is_error"], result["shim"]["cause"], result["subtype"]) == (
        True,
        cause,
        subtype,
    )
    assert result["shim"]["unknown_events"] == {}


def test_aborted_subagent_does_not_end_the_turn():
    aborted = copilot("abort", reason="user_initiated") | {"agentId": "a1"}
    result = find_result_line(
        translate_events(vendor("copilot"), aborted, *copilot_reply("m", "Done"), COPILOT_END)
    )
    assert (result["is_error"], result["result"], result["shim"]["unknown_events"]) == (
        False,
        "Done",
        {},
    )


def test_reasoning_that_contradicts_its_deltas_is_counted_as_a_repair():
    events = [
        copilot("assistant.reasoning_delta", reasoningId="r", deltaContent="hm."),
        copilot("assistant.reasoning", reasoningId="r", content="no."),
        *copilot_reply("m", "Hi"),
        COPILOT_END,
    ]
    assert find_result_line(translate_events(vendor("copilot"), *events))["shim"]["repairs"] == {
        "contradicted_block": 1
    }


# -- gemini ----------------------------------------------------------------------------------------


def gemini_call(name, status="success", **fields):
    return [
        {"type": "tool_use", "tool_id": "c1", "tool_name": name, "parameters": {}},
        {"type": "tool_result", "tool_id": "c1", "status": status, "output": "out", **fields},
        {"type": "message", "role": "assistant", "content": "Done.", "delta": True},
    ]


@pytest.mark.parametrize(
    ("status", "failed"), [("success", False), ("cancelled", True), ("error", True)]
)
def test_gemini_call_succeeds_only_with_status_success(status, failed):
    lines = translate_events(
        vendor("gemini"), *gemini_call("glob", status), {"type": "result", "status": "success"}
    )
    assert results(lines) == [("c1", "out", failed)]


def test_cancelled_gemini_run_is_an_interrupted_turn():
    result = find_result_line(
        translate_events(
            vendor("gemini"), *gemini_call("glob"), {"type": "result", "status": "cancelled"}
        )
    )
    assert result["is_error"] and result["shim"]["cause"] == "interrupted"


@loop_over_rows(
    ("name", "vendor_tool", "servers", "claude"),
    [
        ("gemini", "mcp_my_server_x", ["my", "my_server"], "mcp__my_server__x"),
        ("gemini", "mcp_my_server_x", ["my"], "mcp__my__server_x"),
        ("gemini", "mcp_my_server_x", [], "mcp__my__server_x"),
        ("opencode", "my_server_x", ["my", "my_server"], "mcp__my_server__x"),
        ("opencode", "my_server_x", [], "my_server_x"),
        ("opencode", "todowrite", ["todowrite"], "TodoWrite"),
    ],
)
def test_mcp_tool_is_assigned_to_the_longest_matching_server_name(
    name, vendor_tool, servers, claude
):
    event = {
        "type": "tool_use",
        "sessionID": "ses_1",
        "part": {"tool": vendor_tool, "callID": "c1", "state": {"output": "o"}},
    }
    events = gemini_call(vendor_tool) if name == "gemini" else [event]
    config = build_turn_config(name, list_server_names=lambda: servers)
    translation = ChildStream(
        vendor(name).translator_class,
        config,
        create_output_writer("claude", STABLE_ID_PREFIX),
        None,
    )
    lines = parse_lines(
        translation.feed(b"".join(map(encode_event, events)))[0]
        + translation.close(ChildExit(code=0), "")[0]
    )
    assert [block["name"] for _, block in blocks(lines, "tool_use")] == [claude]


@pytest.mark.parametrize(
    ("name", "vendor_tool", "deny", "stopped"),
    [
        ("gemini", "mcp_s_x_make", ["mcp__s", "mcp__s_x__other"], True),
        ("gemini", "mcp_s_x_make", ["mcp__s_x"], True),
        ("gemini", "mcp_s_x_make", ["mcp__s__make"], False),
        ("opencode", "s_x_make", ["mcp__s__x_make", "mcp__s_x__other"], True),
    ],
)
def test_deny_rule_matches_any_server_of_an_ambiguous_mcp_tool(name, vendor_tool, deny, stopped):
    event = {
        "type": "tool_use",
        "sessionID": "ses_1",
        "part": {"tool": vendor_tool, "callID": "c1", "state": {"output": "o"}},
    }
    events = gemini_call(vendor_tool) if name == "gemini" else [event]
    config = build_turn_config(name, list_server_names=lambda: ["s", "s_x"])._replace(
        evaluator=build_evaluator(deny=deny)
    )
    translation = ChildStream(
        vendor(name).translator_class,
        config,
        create_output_writer("claude", STABLE_ID_PREFIX),
        None,
    )
    lines = parse_lines(
        translation.feed(b"".join(map(encode_event, events)))[0]
        + translation.close(ChildExit(code=0), "")[0]
    )
    assert (lines[-1].get("shim", {}).get("cause") == "denied") is stopped, lines[-1]


# -- cursor ----------------------------------------------------------------------------------------


def cursor_text(text, *, model_call=None, final=False):
    event = {
        "type": "assistant",
        "message": {"role": "assistant", "content": [{"type": "text", "text": text}]},
    }
    event |= {} if final else {"timestamp_ms": 1}
    return event | ({"model_call_id": model_call} if model_call else {})


def cursor_call(subtype, result=None, kind="shellToolCall"):
    body = {"args": {"command": "ls"}} | ({} if result is None else {"result": {"success": result}})
    return {"type": "tool_call", "subtype": subtype, "call_id": "c1", "tool_call": {kind: body}}


def cursor(*events):
    init = {
        "type": "system",
        "subtype": "init",
        "session_id": "237764e2-5276-4eae-972f-78828805f961",
    }
    end = {"type": "result", "subtype": "success", "is_error": False, "result": "x"}
    return translate_events(vendor("cursor"), init, *events, end)


STARTED, COMPLETED = (
    cursor_call("started"),
    cursor_call("completed", {"stdout": "a\n", "exitCode": 0}),
)
QUERY = {"type": "interaction_query", "query": {}}
REPLAY = cursor_text("Hi all", model_call="m1")


@loop_over_rows(
    ("events", "texts"),
    [
        # A repetition before the call, after its start, after its end, and after the next text has
        # started.
        ([REPLAY, STARTED, COMPLETED], ["Hi all", "done"]),
        ([STARTED, REPLAY, COMPLETED], ["Hi all", "done"]),
        ([STARTED, COMPLETED, REPLAY], ["Hi all", "done"]),
        ([QUERY, REPLAY, STARTED, COMPLETED], ["Hi all", "done"]),
        # More than was streamed.
        ([STARTED, cursor_text("Hi all!", model_call="m1"), COMPLETED], ["Hi all", "!", "done"]),
        # Another text is not a repetition, and a repetition counts once.
        ([STARTED, COMPLETED, cursor_text("Other", model_call="m2")], ["Hi all", "Other", "done"]),
        (
            [STARTED, REPLAY, COMPLETED, cursor_text("Hi all", model_call="m2")],
            ["Hi all", "Hi all", "done"],
        ),
        # Repeated at the end of the turn.
        ([STARTED, COMPLETED, cursor_text("Hi all", final=True)], ["Hi all", "done"]),
    ],
)
def test_repeated_cursor_segment_is_written_once(events, texts):
    deltas = [cursor_text("Hi "), cursor_text("all")]
    lines = cursor(*deltas, *events, cursor_text("done"), cursor_text("done", final=True))
    joined = [block["text"] for _, block in blocks(lines, "text")]
    assert "".join(joined) == "".join(texts)
    assert len(joined) <= len(texts) and find_result_line(lines)["shim"]["repairs"] == {}


def test_repeated_cursor_segment_between_deltas_is_dropped():
    deltas = [
        cursor_text("Hi "),
        cursor_text("all"),
        STARTED,
        COMPLETED,
        cursor_text("do"),
        REPLAY,
        cursor_text("ne"),
    ]
    lines = cursor(*deltas, cursor_text("done", final=True))
    assert [block["text"] for _, block in blocks(lines, "text")] == ["Hi all", "done"]


def test_two_identical_cursor_messages_are_both_written():
    """Without fragments each line is a separate segment."""
    lines = cursor(
        cursor_text("Hi", model_call="m1"), STARTED, COMPLETED, cursor_text("Hi", final=True)
    )
    assert [block["text"] for _, block in blocks(lines, "text")] == ["Hi", "Hi"]


PNG = "iVBORw0KGgo="
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}


@loop_over_rows(
    ("kind", "result", "content"),
    [
        (
            "mcpToolCall",
            {"content": [{"text": {"text": "a"}}, {"text": {"text": "b"}}]},
            [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        ),
        (
            "mcpToolCall",
            {
                "content": [
                    {"text": {"text": "a"}},
                    {"image": {"data": PNG, "mimeType": "image/png"}},
                ]
            },
            [{"type": "text", "text": "a"}, IMAGE],
        ),
        ("mcpToolCall", {"content": [{"image": {"data": PNG}}]}, [IMAGE]),
        ("readToolCall", {"data": PNG, "path": "a.png"}, [IMAGE]),
        (
            "mcpToolCall",
            {"content": [{"resource": {"uri": "file:///b", "text": "inner"}}]},
            [{"type": "text", "text": "[Resource from unknown at file:///b] inner"}],
        ),
        (
            "mcpToolCall",
            {"content": [{"resourceLink": {"uri": "file:///b", "name": "b"}}]},
            [{"type": "text", "text": "[Resource link: b] file:///b"}],
        ),
    ],
)
def test_cursor_tool_result_content_is_converted_to_claude_blocks(kind, result, content):
    lines = cursor(cursor_call("started", kind=kind), cursor_call("completed", result, kind=kind))
    assert results(lines) == [("c1", content, False)]


# -- pi --------------------------------------------------------------------------------------------


def pi_reply(*content, reason):
    usage = {"input": 1, "output": 1, "cacheRead": 0, "cacheWrite": 0, "cost": {"total": 0}}
    message = {
        "role": "assistant",
        "model": "m",
        "content": list(content),
        "stopReason": reason,
        "usage": usage,
    }
    started = {
        "type": "message_start",
        "message": {"role": "assistant", "model": "m", "content": []},
    }
    calls = [block for block in content if block["type"] == "toolCall"]
    updates = [
        {
            "type": "message_update",
            "assistantMessageEvent": {"type": "toolcall_end", "toolCall": call},
        }
        for call in calls
    ]
    return [started, *updates, {"type": "message_end", "message": message}]


def pi_run(call, call_id, args, text, failed):
    start = {
        "type": "tool_execution_start",
        "toolCallId": call_id,
        "toolName": call["name"],
        "args": args,
    }
    result = {"content": [{"type": "text", "text": text}]}
    end = {
        "type": "tool_execution_end",
        "toolCallId": call_id,
        "toolName": call["name"],
        "result": result,
    }
    return [start, end | {"isError": failed}]


@pytest.mark.parametrize("partial", [False, True])
def test_malformed_pi_arguments_are_reported_as_raw_input(partial):
    sent = '{"command": "ls'
    reason = f"Unterminated string\n\nReceived arguments:\n{sent}"
    bad = {
        "type": "toolCall",
        "id": "c1",
        "name": "bash",
        "arguments": {},
        "argumentsError": reason,
    }
    good = {"type": "toolCall", "id": "c1", "name": "bash", "arguments": {"command": "ls"}}
    events = [
        {"type": "session", "id": "s", "cwd": "/w"},
        *pi_reply(bad, reason="toolUse"),
        *pi_run(bad, "c1", {}, 'Invalid arguments for tool "bash"', True),
        *pi_reply(good, reason="toolUse"),
        *pi_run(good, "c1", {"command": "ls"}, "a", False),
        *pi_reply({"type": "text", "text": "Done."}, reason="stop"),
        {"type": "agent_end", "messages": []},
    ]
    lines = translate_events(vendor("pi"), *events, partial=partial)
    calls = [block["input"] for _, block in blocks(lines, "tool_use")]
    assert calls == [{"raw": sent}, {"command": "ls"}]
    assert [(content, failed) for _, content, failed in results(lines)] == [
        ('Invalid arguments for tool "bash"', True),
        ("a", False),
    ]
