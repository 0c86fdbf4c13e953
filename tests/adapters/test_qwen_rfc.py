"""The dialect of the Qwen RFC: every row of its page has a fixture, and every request to the child
has its shape.

No program speaks the dialect. The fixtures are handmade from the documents, and a row is proved by
the shim's output for them.
"""

import json

import pytest
from box import format_ndjson
from fixture_cases import find_case, list_fixture_cases, split_bytes, translate_case
from stream_lines import parse_lines, summarize_lines
from sweeps import loop_over_cases, loop_over_rows

from shim.adapters.qwen_rfc import build_control_response
from shim.conversation.drivers.open_translation import create_standalone_child_stream
from shim.core.adapter.commands import AskPermissionCommand, SendToChildCommand
from shim.core.turn.outcome import ChildExit
from shim.profiles.run.partial_calls import MAX_ARGUMENT_CHARS, MAX_PARTIAL_CALLS

CASES = list_fixture_cases("qwen-rfc")

BROKEN = "end:error_during_execution!"

# Row of the page's section 4 → the fixtures for it, each with a word of the shim's output
# (`support.brief`).
ROWS = {
    1: {
        "text": "init",
        "heartbeat": "init",
        "first-line-error": "init",
        "session-of-an-event": "init",
        "handshake-in-fingerprint": "init",
    },
    2: {"text": "text:Analyzing...", "content-in-parts": "text:One text."},
    3: {"tool": "call:tool-1 Edit", "arguments-not-json": "call:tool-2 Bash"},
    4: {
        "tool-message-result": "result:call_tool-2 alpha",
        "display-without-text": "result:tool-1 a.txt\nb.txt",
    },
    5: {"chunk-text": "+ning", "chunk-without-usage": "+Hi."},
    6: {
        "chunk-tool-split": "call:tool-2 Bash",
        "chunk-tool-ids-only": "call:tool-2 Read",
        "chunk-tool-no-index": "call:tool-2 Bash",
        "chunk-tool-cut-by-length": "call:tool-1 Bash",
        "chunk-tool-shown-early": "result:tool-1 a.txt",
    },
    7: {
        "chunk-text": "done:end_turn",
        "chunk-tool-split": "done:tool_use",
        "session-max-tokens": "end:success Truncated answ",
        "content-filter": "text:I can",
        "finish-error-string": f"{BROKEN} unsupported_protocol",
    },
    8: {"chunk-usage-on-finish": "text:Hi.", "chunk-usage-in-metadata": "text:Hi."},
    9: {
        "thought": "~**Next step** Answer the user.",
        "reasoning-content": "think:Two and two.",
        "chunk-reasoning-content": "~and two.",
    },
    10: {"tool-display": "call:t1 Edit", "display-unannounced": "call_d4>call:n1 Read"},
    11: {
        "tool-display": "failed:t2 ls: cannot access 'x'",
        "display-unannounced": "failed:call_d5 stopped by hand",
        "display-without-text-failed": "failed:tool-2",
    },
    12: {"tool-display": "call:t1 Edit"},
    13: {
        "terminal": "text:Fix completed; all greenConfiguration missing",
        "terminal-exit-code": f"{BROKEN} qwen reported the exit code 3: the tool registry is gone",
        "terminal-last-words": "init",
    },
    14: {"session-max-tokens": "system:informational"},
    15: {"session-compressed": "system:compact_boundary"},
    16: {
        "session-user-cancelled": "user:[Request interrupted by user]",
        "cancel-then-session-event": "user:[Request interrupted by user for tool use]",
    },
    17: {"session-max-turns": "end:error_max_turns! Reached maximum number of turns"},
    18: {
        "session-token-limit": f"{BROKEN} Session token limit exceeded: 40000 tokens > 32000 limit.",
        "session-loop": f"{BROKEN} A loop of tool calls was detected.",
        "session-error": "end:success! API Error: Request rejected (429) · Too Many Requests: slow down",
    },
    19: {"session-compressed": "end:success Continuing.", "session-finished": "end:success Done."},
    20: {
        "fatal-error": f"{BROKEN} QWEN_INVALID_TOOL_ARGS: invalid tool input",
        "first-line-error": f"{BROKEN} QWEN_BAD_MODEL: no such model: qwen-huge",
        "error-is-a-string": f"{BROKEN} the session file is locked",
    },
    21: {
        "unsupported-protocol": f"{BROKEN} unsupported_protocol: protocol_version=3 is not supported",
        "finish-error-string": f"{BROKEN} unsupported_protocol",
    },
    22: {
        "recoverable-error": "text:The command failed: exit code 3",
        "recoverable-error-silent": "system:informational",
    },
    23: {"control-errors": "system:informational"},
    24: {
        "can-use-tool": "call:tool-1 Edit",
        "can-use-tool-denied": "failed:tool-1 Denied by the user.",
        "can-use-tool-first": "call:req-2 Edit",
    },
    25: {"confirm-shell": "call:req-1 Bash", "confirmations": "call:req-2 Bash"},
    26: {"confirm-shell": "text:ok"},
    27: {
        "command": f"{BROKEN} Unknown command: /nosuch",
        "command-then-model": "text:It sells milk.",
    },
    28: {
        "command-hint": "init",
        "heartbeat": "text:hi",
        "chunk-heartbeat-before-usage": "done:end_turn",
    },
    29: {
        "session-user-cancelled": f"{BROKEN} [Request interrupted by user]",
        "cancel-noop": f"{BROKEN} qwen-rfc exited with code 0 before it finished",
    },
    30: {"session-user-cancelled": "text:I was about to"},
    31: {
        "truncated": f"{BROKEN} qwen-rfc was ended before it finished",
        "cut-behind-a-call": "failed:tool-1 No result was reported for this call.",
    },
}
# Variant of section 3 (and of 2) → the fixtures that have it. The debugging form of a request has a
# builder instead.
VARIANTS = {
    "spans and ansi in both spellings": ("terminal", "annotations-in-message"),
    "a status in lower case, and capitalised": ("tool", "tool-display"),
    "events inside messages and deltas": ("annotations-in-message", "thought", "terminal"),
    "the prefix of an id on one side only": ("tool", "tool-message-result"),
    "arguments that are no JSON": ("arguments-not-json",),
    "fragments without an index, without an id": ("chunk-tool-ids-only", "chunk-tool-no-index"),
    "more choices": ("chunk-text", "extra-choices"),
    "usage behind, on, and beside the last chunk": (
        "chunk-text",
        "chunk-usage-on-finish",
        "chunk-usage-in-metadata",
    ),
    "an empty role chunk": ("chunk-usage-on-finish",),
    "times in seconds and in milliseconds": ("tool", "annotations-in-message"),
    "questions flat and nested": ("can-use-tool", "can-use-tool-denied"),
    "an error that is a string": ("finish-error-string", "error-is-a-string"),
    "the handshake in system_fingerprint": ("handshake-in-fingerprint",),
    "a version that nobody knows": ("later-protocol",),
    "a call whose result is never told": ("tool-without-result",),
    "what no document knows": ("session-unknown",),
}


def translate_fixture(name, partial=None):
    fixture = find_case(f"qwen-rfc/handmade-{name}")
    return parse_lines(translate_case(fixture, partial)[0])


def results(lines):
    return [line for line in lines if line["type"] == "result"]


def blocks(lines, kind):
    all_blocks = [
        block
        for line in lines
        if line["type"] == "assistant"
        for block in line["message"]["content"]
    ]
    return [block for block in all_blocks if block["type"] == kind]


@loop_over_rows(
    ("name", "summary"),
    [(name, summary) for summaries in ROWS.values() for name, summary in summaries.items()],
)
def test_fixture_produces_the_output_of_its_rfc_row(name, summary):
    assert summary in summarize_lines(translate_fixture(name))


def test_every_rfc_row_and_every_fixture_is_covered():
    assert sorted(ROWS) == list(range(1, 32))
    fixture_names = {name for row in ROWS.values() for name in row} | {
        name for names in VARIANTS.values() for name in names
    }
    assert {fixture.folder.name for fixture in CASES} == {
        f"handmade-{name}" for name in fixture_names
    }


@loop_over_cases(CASES)
def test_fixture_metadata_declares_a_handmade_source(case):
    assert case.metadata["source"] == "handmade from documentation"
    assert case.metadata["read"] and case.metadata["pins"]


# -- more about a row than its lines ---------------------------------------------------------------


def test_handshake_is_read_from_either_location():
    assert translate_fixture("text")[0]["tools"] == ["Read", "Edit", "Bash"]
    (init, *_) = translate_fixture("handshake-in-fingerprint")
    assert (init["tools"], init["cwd"], init["model"]) == (
        ["Read", "Bash"],
        "/workspace/shop",
        "qwen-coder",
    )


def test_tool_arguments_are_mapped_and_non_objects_are_preserved():
    inputs = [
        block["input"] for block in blocks(translate_fixture("arguments-not-json"), "tool_use")
    ]
    assert inputs == [{"_raw": "..."}, {"_raw": "[1]"}, {}]
    (edit,) = blocks(translate_fixture("can-use-tool-first"), "tool_use")
    assert edit["input"] == {"old_string": "", "new_string": "+b", "file_path": "main.py"}
    reads = [
        block["input"] for block in blocks(translate_fixture("chunk-tool-ids-only"), "tool_use")
    ]
    assert reads == [{"command": "ls"}, {"file_path": "/workspace/shop/a.txt"}]
    joined = [
        block["input"] for block in blocks(translate_fixture("chunk-tool-no-index"), "tool_use")
    ]
    assert joined == [{"command": "ls"}, {"command": "wc"}]


def test_call_from_a_tool_display_has_the_displayed_arguments():
    inputs = {
        block["id"]: block["input"]
        for block in blocks(translate_fixture("display-unannounced"), "tool_use")
    }
    assert inputs["call_d1"] == {"file_path": "a.py", "old_string": "1\n", "new_string": "2\n"}
    assert inputs["call_d2"]["todos"][0] == {
        "content": "buy milk",
        "status": "in_progress",
        "activeForm": "buy milk",
    }
    assert inputs["call_d3"] == {"plan": "1. buy\n2. pay"}
    assert inputs["call_d4"] == {
        "description": "read",
        "prompt": "Read all of it",
        "subagent_type": "reader",
    }
    assert (inputs["n1"], inputs["n2"]) == (
        {"file_path": "/workspace/shop/a.txt"},
        {"command": "wc"},
    )
    assert (inputs["call_d5"], inputs["call_d6"]) == ({"command": "sleep 9"}, {})


@pytest.mark.parametrize(
    ("name", "fresh", "cached", "output"),
    [
        ("text", 1600, 0, 200),
        ("chunk-usage-on-finish", 40, 60, 7),
        ("chunk-heartbeat-before-usage", 30, 0, 3),
    ],
)
def test_result_has_the_last_usage_and_counts_cached_tokens_once(name, fresh, cached, output):
    (result,) = results(translate_fixture(name))
    usage = result["usage"]
    token_counts = usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]
    assert token_counts == (fresh, cached, output)
    (model,) = result["modelUsage"].values()
    assert (model["inputTokens"], model["outputTokens"]) == (fresh, output)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("session-max-tokens", "max_tokens"),
        ("content-filter", "refusal"),
        ("text", "end_turn"),
        ("tool", "end_turn"),
    ],
)
def test_result_reports_the_stop_reason_of_the_last_reply(name, reason):
    assert results(translate_fixture(name))[0]["stop_reason"] == reason


def test_compact_boundary_reports_the_tokens_before_compaction():
    (line,) = [
        line
        for line in translate_fixture("session-compressed")
        if line.get("subtype") == "compact_boundary"
    ]
    assert line["compact_metadata"] == {"trigger": "auto", "pre_tokens": 12000}


def test_out_of_band_events_become_informational_messages():
    notes = [
        [
            line["content"]
            for line in translate_fixture(name)
            if line.get("subtype") == "informational"
        ]
        for name in ("control-errors", "session-max-tokens", "recoverable-error-silent", "command")
    ]
    assert notes[:3] == [
        ["control error: hook callback failed"],
        ["Response truncated due to token limits."],
        ["run_shell_command timed out"],
    ]
    assert notes[3][0] == "/theme: dialog, which the shim cannot show"


def test_command_without_a_model_reply_counts_no_turn():
    assert [result["num_turns"] for result in results(translate_fixture("command"))] == [0, 0, 1, 0]
    assert [
        result["num_turns"] for result in results(translate_fixture("command-then-model"))[:3]
    ] == [
        1,
        2,
        0,
    ]


def list_permission_requests(commands):
    """Return the permission requests among the commands of a stream."""
    return [each.permission for each in commands if isinstance(each, AskPermissionCommand)]


def test_unsupported_control_request_gets_an_error_response():
    fixture = find_case("qwen-rfc/handmade-confirm-shell")
    translation = create_standalone_child_stream("qwen-rfc", stable_ids=True)
    _, commands = translation.feed(fixture.data)
    (request,) = list_permission_requests(commands)
    assert (request.request_id, request.tool, request.tool_input) == (
        "req-1",
        "Bash",
        {"command": "rm -rf build"},
    )
    refusals = [
        parse_lines(command.line)[0]
        for command in commands
        if isinstance(command, SendToChildCommand)
    ]
    assert refusals == [
        build_control_response(
            request_id,
            "error",
            error={"message": f"Unsupported control request: {subtype}", "retryable": False},
        )
        for request_id, subtype in (("req-2", "mcp_message"), ("req-3", "hook_callback"))
    ]


@pytest.mark.parametrize("name", ["can-use-tool", "can-use-tool-denied"])
def test_permission_request_refers_to_the_announced_call(name):
    translation = create_standalone_child_stream("qwen-rfc", stable_ids=True)
    _, commands = translation.feed(find_case(f"qwen-rfc/handmade-{name}").data)
    (request,) = list_permission_requests(commands)
    assert (request.call_id, request.refusal) == ("tool-1", "")


def test_parallel_permission_requests_without_call_ids_match_different_calls():
    translation = create_standalone_child_stream("qwen-rfc", stable_ids=True)
    function = {"name": "run_shell_command", "arguments": '{"command":"ls"}'}
    calls = [{"id": f"t{number}", "type": "function", "function": function} for number in (1, 2)]
    message = {"role": "assistant", "tool_calls": calls}
    completion = {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
    }
    tool = {"name": "run_shell_command", "arguments": {"command": "ls"}}
    asks = [
        {"type": "control_request", "request_id": f"r{n}", "subtype": "can_use_tool", "tool": tool}
        for n in (1, 2)
    ]
    _, commands = translation.feed(format_ndjson(completion, *asks).encode())
    requests = list_permission_requests(commands)
    assert [(request.request_id, request.call_id) for request in requests] == [
        ("r1", "t1"),
        ("r2", "t2"),
    ]


# -- calls in chunks -------------------------------------------------------------------------------


def build_call_chunk(index, input_json, **delta_fields):
    function = {"arguments": input_json, "name": "run_shell_command"}
    delta = {"tool_calls": [{"index": index, "function": function} | delta_fields]}
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]}


END_OF_CALLS = {
    "object": "chat.completion.chunk",
    "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}],
}


def translate_call_chunks(*chunks):
    """Return the calls of a chunked reply, and the counted repairs."""
    stream = create_standalone_child_stream("qwen-rfc", stable_ids=True)
    data = format_ndjson(*chunks, END_OF_CALLS).encode()
    lines = parse_lines(stream.feed(data)[0] + stream.close(ChildExit(code=0))[0])
    return blocks(lines, "tool_use"), results(lines)[0]["shim"]["repairs"]


def test_partial_calls_beyond_the_limit_are_dropped():
    chunks = [
        build_call_chunk(number, "{}", id=f"c{number}") for number in range(MAX_PARTIAL_CALLS + 2)
    ]
    calls, repairs = translate_call_chunks(*chunks)
    assert (len(calls), repairs["call_left_out"]) == (MAX_PARTIAL_CALLS, 2)


def test_oversized_arguments_of_a_partial_call_are_cut():
    half = "x" * (MAX_ARGUMENT_CHARS // 2)
    long_call = [build_call_chunk(1, text, id="long") for text in (f'{{"a":"{half}', half, '"}')]
    calls, repairs = translate_call_chunks(build_call_chunk(0, "{}", id="short"), *long_call)
    assert [call["id"] for call in calls] == ["short", "long"]
    assert "input_cut" in repairs and "a" not in calls[1]["input"]


def test_partial_call_without_a_name_is_dropped():
    nameless = build_call_chunk(0, "{}", id="c1", function={"arguments": "{}"})
    calls, repairs = translate_call_chunks(nameless, build_call_chunk(1, "{}", id="c2"))
    assert [call["id"] for call in calls] == ["c2"]
    assert repairs == {"call_given_up": 1}


@pytest.mark.parametrize(
    ("index", "delta_fields", "first_input", "second_input"),
    [
        (0, {}, {"command": "ls"}, {"_raw": '{"command":'}),
        (None, {"id": "c1"}, {"command": "ls"}, {"_raw": '{"command":'}),
        (None, {}, {"_raw": '{"command":'}, {"command": "ls"}),
    ],
)
def test_fragments_belong_to_the_call_of_their_index_or_id_or_to_the_last_call(
    index, delta_fields, first_input, second_input
):
    chunks = [
        build_call_chunk(0, '{"command":', id="c1"),
        build_call_chunk(1, '{"command":', id="c2"),
        build_call_chunk(index, '"ls"}', **delta_fields),
    ]
    calls, _ = translate_call_chunks(*chunks)
    assert [call["input"] for call in calls] == [first_input, second_input]


def test_fragment_with_a_repeated_id_belongs_to_the_last_call_with_this_id():
    texts = ('{"command":"ls"}', '{"command":', '"wc"}')
    calls, _ = translate_call_chunks(*(build_call_chunk(None, text, id="c1") for text in texts))
    assert [call["input"] for call in calls] == [{"command": "ls"}, {"command": "wc"}]


# -- readers of the stream -------------------------------------------------------------------------


def by_qwen(data, child_exit, stderr, partial, chunks=None):
    translation = create_standalone_child_stream(
        "qwen", include_partial_messages=partial, stable_ids=True
    )
    outputs = [translation.feed(chunk)[0] for chunk in chunks or (data,)]
    return b"".join(outputs) + translation.close(child_exit, stderr)[0]


@loop_over_cases(CASES)
def test_qwen_adapter_detects_the_rfc_dialect(case):
    expected, _ = translate_case(case)
    expected = expected.replace(b"qwen-rfc", b"qwen")
    assert by_qwen(case.data, case.exit, case.stderr, case.partial) == expected
    assert (
        by_qwen(case.data, case.exit, case.stderr, case.partial, split_bytes(case.data)) == expected
    )


ERROR = {"error": {"message": "slow down", "code": "BUSY"}}
REPLY = {"role": "assistant", "content": "Hi."}
CHAT = {
    "object": "chat.completion",
    "choices": [{"index": 0, "message": REPLY, "finish_reason": "stop"}],
}
INIT = {"type": "system", "subtype": "init", "session_id": "s", "tools": [], "model": "m"}
RESULT = {
    "type": "result",
    "subtype": "success",
    "is_error": False,
    "result": "Hello.",
    "session_id": "s",
}


def briefly(*lines, code=0):
    return summarize_lines(
        parse_lines(by_qwen(format_ndjson(*lines).encode(), ChildExit(code=code), "", False))
    )


def test_error_before_the_first_event_belongs_to_the_detected_dialect():
    assert briefly(ERROR, CHAT, code=1)[-2:] == [f"{BROKEN} BUSY: slow down", "."]
    assert briefly(ERROR, INIT, RESULT) == ["init", "end:success Hello.", "."]
    assert briefly(ERROR, code=1)[-2:] == [f"{BROKEN} BUSY: slow down", "."]


def test_dialect_does_not_change_after_a_claude_init():
    heartbeat = {"type": "result/heartbeat", "status": "ok"}
    output = by_qwen(
        format_ndjson(INIT, CHAT, heartbeat, ERROR, RESULT).encode(), ChildExit(code=0), "", False
    )
    assert summarize_lines(parse_lines(output)) == ["init", "end:success Hello.", "."]
    assert parse_lines(output)[-2]["shim"]["unknown_events"] == {
        "untyped": 2,
        "result/heartbeat": 1,
    }


def test_dialect_is_detected_after_noise_but_not_from_a_malformed_line():
    torn = b'warming up {"object":"chat.completion","choices":[{"message":{"content":"forged"}}]} done\n'
    data = b"\xef\xbb\xbf" + json.dumps(CHAT).encode() + b"\n"
    output = by_qwen(b"loading...\n" + torn + data, ChildExit(code=0), "", False)
    assert summarize_lines(parse_lines(output)) == ["init", "text:Hi.", "end:success Hi.", "."]


def test_non_object_annotation_is_ignored():
    odd = {"role": "assistant", "content": "Hi.", "annotations": [None, 7, {"type": "x-qwen-ansi"}]}
    data = format_ndjson(
        {"object": "chat.completion", "choices": [{"message": odd, "finish_reason": "stop"}]}
    ).encode()
    assert "text:Hi." in summarize_lines(parse_lines(by_qwen(data, ChildExit(code=0), "", False)))


# -- the fork's own draft, which is nearly the released form ---------------------------------------


def test_qwen_adapter_translates_the_draft_dialect():
    init_data = {
        "model": "m1",
        "tools": ["run_shell_command"],
        "cwd": "/repo",
        "permission_mode": "manual",
    }
    call = {"type": "tool_use", "id": "t1", "name": "run_shell_command", "input": {"command": "ls"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "a.txt", "is_error": False}
    lines = [
        {"type": "system", "subtype": "init", "session_id": "s1", "data": init_data},
        {"type": "assistant", "message": {"role": "assistant", "content": [call]}},
        {"type": "control_response", "request_id": "r1", "success": True, "response": {}},
        {
            "type": "user",
            "parent_tool_use_id": "t1",
            "message": {"role": "user", "content": [result]},
        },
        {
            "type": "assistant",
            "message": {"role": "assistant", "content": [{"type": "text", "text": "One file."}]},
        },
    ]
    summary = {
        "type": "result",
        "subtype": "session_summary",
        "is_error": False,
        "num_turns": 1,
        "summary": "ok",
    }
    broken = {
        "type": "result",
        "subtype": "error",
        "is_error": True,
        "error": "the session is locked",
    }
    expected = ["init", "call:t1 Bash", "result:t1 a.txt", "text:One file."]
    assert briefly(*lines, summary) == [*expected, "end:success One file.", "."]
    assert briefly(*lines, broken) == [*expected, f"{BROKEN} the session is locked", "."]
    init = parse_lines(
        by_qwen(format_ndjson(*lines, summary).encode(), ChildExit(code=0), "", False)
    )[0]
    assert (init["model"], init["cwd"], init["tools"]) == ("m1", "/repo", ["Bash"])


def test_unknown_finish_reason_is_counted_and_ends_the_turn():
    translation = create_standalone_child_stream("qwen-rfc", stable_ids=True)
    output = translation.feed(
        format_ndjson({**CHAT, "choices": [{"message": REPLY, "finish_reason": "eos"}]}).encode()
    )[0]
    output += translation.close(ChildExit(code=0))[0]
    assert summarize_lines(parse_lines(output)) == ["init", "text:Hi.", "end:success Hi.", "."]
    assert translation.diagnostics.unknown_events == {"finish_reason/eos": 1}


def translate_rfc_lines(*events):
    stream = create_standalone_child_stream("qwen-rfc", stable_ids=True)
    data = format_ndjson(*events).encode()
    return parse_lines(stream.feed(data)[0] + stream.close(ChildExit(code=0))[0])


def build_reply(reason, **message):
    reply = {"role": "assistant", "content": "Hi."} | message
    return {**CHAT, "choices": [{"index": 0, "message": reply, "finish_reason": reason}]}


def test_message_that_repeats_a_displayed_result_is_not_the_result_of_another_call():
    calls = [
        {
            "id": "t",
            "function": {"name": "run_shell_command", "arguments": {"command": command}},
        }
        for command in ("ls", "wc")
    ]
    display = {"type": "x-qwen-tool-display", "tool_call_id": "t", "status": "success"}
    lines = translate_rfc_lines(
        build_reply("tool_calls", tool_calls=calls),
        display | {"result_display": "a.txt"},
        build_reply("stop", role="tool", tool_call_id="t", content="a.txt"),
    )
    user_messages = [line["message"] for line in lines if line["type"] == "user"]
    contents = [message["content"][0]["content"] for message in user_messages]
    assert contents.count("a.txt") == 1


def test_reply_that_asks_for_tools_does_not_end_the_turn():
    (result,) = results(translate_rfc_lines(build_reply("tool_calls")))
    assert result["is_error"]
    (result,) = results(translate_rfc_lines(build_reply("stop")))
    assert not result["is_error"]
