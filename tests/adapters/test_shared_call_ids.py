"""Every adapter distinguishes calls that share an id or have none. Each call is announced and has
its result.
"""

import json
from typing import Any

import acp_agent
import codex_agent
import pi_agent
import pytest
from policy_builder import build_evaluator
from shared_ids import (
    LS_A,
    LS_B,
    SESSION,
    STREAMS,
    Event,
    build_openai_message,
    build_qwen_calls,
    build_rfc_calls,
)
from stream_lines import parse_lines
from sweeps import loop_over_rows
from turn_stage import build_turn_config

from shim.adapters import get_adapter
from shim.conversation.drivers.open_translation import STABLE_ID_PREFIX
from shim.core.adapter.child_stream import ChildStream
from shim.core.adapter.commands import AskPermissionCommand
from shim.core.claude.writer import TERMINATORS, StreamJsonWriter
from shim.core.turn.outcome import ChildExit

IDS = pytest.mark.parametrize("call_id", ["same", "", None], ids=["same", "empty", "null"])


def run(vendor: str, *events: Event, **config_fields: Any) -> list[Event]:
    writer = StreamJsonWriter(STABLE_ID_PREFIX, terminator=TERMINATORS["message_stop"])
    translation = ChildStream(
        get_adapter(vendor).translator_class, build_turn_config(vendor, **config_fields), writer
    )
    output = b"".join(translation.feed(json.dumps(event).encode() + b"\n")[0] for event in events)
    return parse_lines(output + translation.close(ChildExit(code=0), "")[0])


def pairs(lines: list[Event]) -> list[tuple[Any, Any]]:
    """Return the arguments of each call with its result."""
    contents = [
        line["message"]["content"] for line in lines if line["type"] in ("assistant", "user")
    ]
    blocks = [block for content in contents for block in content]
    calls = [
        (block["id"], block["input"].get("command"))
        for block in blocks
        if block["type"] == "tool_use"
    ]
    assert len(dict(calls)) == len(calls), "every id is unique"
    results = [block for block in blocks if block["type"] == "tool_result"]
    return [(dict(calls)[block["tool_use_id"]], block["content"]) for block in results]


@IDS
@pytest.mark.parametrize("vendor", STREAMS)
def test_parallel_calls_with_a_shared_id_get_separate_results(vendor, call_id):
    calls, results = STREAMS[vendor](call_id)
    assert pairs(run(vendor, *calls, *results)) == [(LS_A, "A"), (LS_B, "B")]


@IDS
@pytest.mark.parametrize("vendor", STREAMS)
def test_id_of_a_finished_call_can_be_reused(vendor, call_id):
    calls, results = STREAMS[vendor](call_id)
    twice = [*calls, *results, *calls, *results]
    assert pairs(run(vendor, *twice)) == [(LS_A, "A"), (LS_B, "B")] * 2


@IDS
@pytest.mark.parametrize("vendor", STREAMS)
def test_denied_second_call_with_a_shared_id_stops_the_turn(vendor, call_id):
    """`late_denials`: the vendor does not ask, and runs what the model calls."""
    calls, results = STREAMS[vendor](call_id)
    forbidden = json.loads(json.dumps([calls, results]).replace(LS_B, "rm b"))
    lines = run(
        vendor, *forbidden[0], *forbidden[1], evaluator=build_evaluator(deny=["Bash(rm:*)"])
    )
    (result,) = (line for line in lines if line["type"] == "result")
    assert result["shim"]["cause"] == "denied"
    (denial,) = result["permission_denials"]
    calls_by_id = {
        block["id"]: block["input"]
        for line in lines
        if line["type"] == "assistant"
        for block in line["message"]["content"]
    }
    assert calls_by_id[denial["tool_use_id"]] == denial["tool_input"] == {"command": "rm b"}


# -- drivers with permission prompts ---------------------------------------------------------------


def acp_call(call_id: Any, command: str, **fields: Any) -> Event:
    call = {
        "title": "bash",
        "kind": "execute",
        "status": "pending",
        "rawInput": {"command": command},
    }
    return acp_agent.build_update("tool_call", toolCallId=call_id, **call | fields)


def acp_done(call_id: Any, text: str) -> Event:
    content = [{"type": "content", "content": {"type": "text", "text": text}}]
    return acp_agent.build_update(
        "tool_call_update", toolCallId=call_id, status="completed", content=content
    )


@IDS
@pytest.mark.parametrize("vendor", ["opencode", "gemini", "copilot"])
@pytest.mark.parametrize("announced", [True, False], ids=["announced", "asked"])
def test_acp_agent_prompts_for_both_calls_with_a_shared_id(vendor, call_id, announced):
    talk = acp_agent.AcpConversation(vendor).feed_messages(*acp_agent.ANSWERS)
    if announced:
        talk.feed_messages(acp_call(call_id, LS_A), acp_call(call_id, LS_B))
    for number, command in ((7, LS_B), (8, LS_A)):
        talk.feed_messages(
            acp_agent.build_permission_request(number, call_id, rawInput={"command": command})
        )
    assert [request.tool_input.get("command") for request in talk.pending_permissions] == [
        LS_B,
        LS_A,
    ]
    assert not any(request.refusal for request in talk.pending_permissions)
    assert len({request.call_id for request in talk.pending_permissions}) == 2
    requested_commands = {
        request.call_id: request.tool_input.get("command") for request in talk.pending_permissions
    }
    talk.answer_permission(True)
    talk.answer_permission(True)
    talk.feed_messages(
        acp_done(call_id, "1"), acp_done(call_id, "2"), acp_agent.DONE
    ).close_stream()
    results = pairs(parse_lines(talk.lines))
    assert {command for command, _ in results} == {LS_A, LS_B} and [
        text for _, text in results
    ] == [
        "1",
        "2",
    ]
    calls = [
        block
        for line in parse_lines(talk.lines)
        if line["type"] == "assistant"
        for block in line["message"]["content"]
    ]
    assert {block["id"]: block["input"]["command"] for block in calls} == requested_commands


@IDS
def test_acp_calls_with_a_shared_id_get_separate_results_without_prompts(call_id):
    talk = acp_agent.AcpConversation().feed_messages(
        *acp_agent.ANSWERS, acp_call(call_id, LS_A), acp_call(call_id, LS_B)
    )
    talk.feed_messages(
        acp_done(call_id, "A"),
        acp_done(call_id, "B"),
        acp_call(call_id, LS_A),
        acp_done(call_id, "C"),
    )
    talk.feed_messages(acp_agent.DONE).close_stream()
    assert pairs(parse_lines(talk.lines)) == [(LS_A, "A"), (LS_B, "B"), (LS_A, "C")]


def test_acp_call_update_does_not_open_another_call():
    talk = acp_agent.AcpConversation().feed_messages(
        *acp_agent.ANSWERS, acp_call("c1", "ls", rawInput={})
    )
    for command in ("l", "ls", "ls -l"):
        fields = {"toolCallId": "c1", "status": "in_progress", "rawInput": {"command": command}}
        talk.feed_messages(acp_agent.build_update("tool_call_update", **fields))
    talk.feed_messages(acp_done("c1", "A"), acp_agent.DONE).close_stream()
    assert [text for _, text in pairs(parse_lines(talk.lines))] == ["A"]


def test_permission_request_without_input_is_cancelled_if_two_calls_match():
    talk = acp_agent.AcpConversation().feed_messages(
        *acp_agent.ANSWERS, acp_call("c1", LS_A), acp_call("c1", LS_B)
    )
    request = acp_agent.build_permission_request(7, "c1")
    del request["params"]["toolCall"]["rawInput"]
    assert talk.feed_messages(request).get_last_message()["result"] == {
        "outcome": {"outcome": "cancelled"}
    }
    assert not talk.pending_permissions


@IDS
def test_codex_prompts_for_both_commands_with_a_shared_id(call_id):
    items = [codex_agent.COMMAND | {"id": call_id, "command": command} for command in (LS_A, LS_B)]
    talk = (
        codex_agent.CodexConversation()
        .start_turn()
        .feed_messages(*map(codex_agent.build_item_started, items))
    )
    for number, command in ((7, LS_B), (8, LS_A)):
        talk.feed_messages(
            codex_agent.build_approval_request(number, itemId=call_id, command=command)
        )
    assert [(request.tool_input, request.refusal) for request in talk.pending_permissions] == [
        ({"command": LS_B}, ""),
        ({"command": LS_A}, ""),
    ]
    assert len({request.call_id for request in talk.pending_permissions}) == 2
    talk.answer_permission(True).answer_permission(True)
    for item, text in zip(reversed(items), "BA", strict=True):
        talk.feed_messages(
            codex_agent.build_item_completed(item, aggregatedOutput=text, exitCode=0)
        )
    talk.feed_messages(codex_agent.build_turn_completed()).close_stream()
    assert pairs(parse_lines(talk.lines)) == [(LS_B, "B"), (LS_A, "A")]


def test_codex_prompts_for_each_patch_with_a_shared_id():
    patches = [
        {
            "type": "fileChange",
            "id": "p1",
            "changes": [{"path": path, "kind": {"type": "add"}, "diff": "x\n"}],
        }
        for path in ("/w/a", "/w/b")
    ]
    asking = codex_agent.build_approval_request(
        method="item/fileChange/requestApproval", itemId="p1"
    )
    talk = (
        codex_agent.CodexConversation()
        .start_turn()
        .feed_messages(*map(codex_agent.build_item_started, patches), asking, asking | {"id": 8})
    )
    assert [request.tool_input["file_path"] for request in talk.pending_permissions] == [
        "/w/a",
        "/w/b",
    ]
    assert len({request.call_id for request in talk.pending_permissions}) == 2


@IDS
def test_pi_prompts_for_both_calls_with_a_shared_id(call_id):
    calls = [pi_agent.build_tool_call(call_id, command=command) for command in (LS_A, LS_B)]
    talk = (
        pi_agent.PiConversation()
        .start_run()
        .feed_messages(pi_agent.START, pi_agent.build_message_end(*calls, stop="toolUse"))
    )
    for name, command in (("q1", LS_A), ("q2", LS_B)):
        call_fields = {"toolCallId": call_id, "toolName": "bash"}
        talk.feed_messages(
            {"type": "tool_execution_start", **call_fields, "args": {"command": command}}
        )
        talk.feed_messages(pi_agent.build_permission_dialog(name, call_id, command=command))
    assert [(request.tool_input, request.refusal) for request in talk.pending_permissions] == [
        ({"command": LS_A}, ""),
        ({"command": LS_B}, ""),
    ]
    talk.answer_permission()
    talk.answer_permission()
    for text in "AB":
        result = {"content": [{"type": "text", "text": text}]}
        talk.feed_messages(
            {"type": "tool_execution_end", **call_fields, "result": result, "isError": False}
        )
    assert pairs(parse_lines(talk.lines)) == [(LS_A, "A"), (LS_B, "B")]


@loop_over_rows("call_id", ["same", "", 7])
@loop_over_rows("announced", [True, False])
def test_qwen_prompts_for_both_calls_with_a_shared_id(call_id, announced):
    child_stream = ChildStream(
        get_adapter("qwen").translator_class,
        build_turn_config("qwen"),
        StreamJsonWriter(STABLE_ID_PREFIX),
    )
    calls, results = build_qwen_calls(call_id)
    asks = []
    for number, command in enumerate((LS_B, LS_A)):
        request = {
            "subtype": "can_use_tool",
            "tool_name": "run_shell_command",
            "tool_use_id": call_id,
        }
        asks.append(
            {
                "type": "control_request",
                "request_id": f"r{number}",
                "request": request | {"input": {"command": command}},
            }
        )
    init = {
        "type": "system",
        "subtype": "init",
        "session_id": SESSION,
        "tools": [],
        "cwd": "/w",
        "model": "m",
    }
    output, permissions = b"", []
    for event in (
        init,
        *(calls if announced else ()),
        *asks,
        *(() if announced or not call_id else calls),
        *results,
    ):
        lines, commands = child_stream.feed(json.dumps(event).encode() + b"\n")
        output += lines
        permissions += [
            command.permission for command in commands if isinstance(command, AskPermissionCommand)
        ]
    assert [(each.tool_input, each.refusal) for each in permissions] == [
        ({"command": LS_B}, ""),
        ({"command": LS_A}, ""),
    ]
    assert len({each.call_id for each in permissions}) == 2
    call_results = pairs(parse_lines(output))
    assert sorted(command for command, _ in call_results) == [LS_A, LS_B] and [
        text for _, text in call_results
    ] == ["A", "B"]


def test_replaced_pi_tool_prompts_with_mcp_name_and_announced_call_id():
    """The question has another name (`mcp__pi__…`), so that no rule for Claude's tool allows it."""
    talk = (
        pi_agent.PiConversation()
        .start_run()
        .feed_messages(
            pi_agent.START,
            pi_agent.build_message_end(pi_agent.build_tool_call(command=LS_A), stop="toolUse"),
        )
    )
    request = pi_agent.build_permission_dialog(command=LS_A)
    talk.feed_messages(
        request
        | {"placeholder": json.dumps(json.loads(request["placeholder"]) | {"replaced": True})}
    )
    assert [(each.tool, each.call_id) for each in talk.pending_permissions] == [
        ("mcp__pi__bash", "c1")
    ]
    call_fields = {"toolCallId": "c1", "toolName": "bash"}
    talk.feed_messages(
        {"type": "tool_execution_end", **call_fields, "result": {"content": "A"}, "isError": False}
    )
    assert pairs(parse_lines(talk.lines)) == [(LS_A, "A")]


# -- reported behaviour of servers and agents ------------------------------------------------------


def chunk(*deltas: Event, finish: str | None = None) -> Event:
    choice = {
        "index": 0,
        "delta": {"tool_calls": list(deltas)} if deltas else {},
        "finish_reason": finish,
    }
    return {
        "object": "chat.completion.chunk",
        "id": "c",
        "model": "m",
        "session_id": SESSION,
        "choices": [choice],
    }


def piece(
    call_id: Any, input_json: str, name: str | None = "run_shell_command", index: int | None = 0
) -> Event:
    function = {"arguments": input_json} | ({} if name is None else {"name": name})
    return {"index": index, "id": call_id, "type": "function", "function": function}


def encode_input(command: str) -> str:
    return json.dumps({"command": command})


FINISH = chunk(finish="tool_calls")
CHUNKS = {
    # ollama/ollama#15457, BerriAI/litellm#33678: every call has the index 0.
    "index": [chunk(piece("a", encode_input(LS_A))), chunk(piece("b", encode_input(LS_B))), FINISH],
    "index in one line": [
        chunk(piece("a", encode_input(LS_A)), piece("b", encode_input(LS_B))),
        FINISH,
    ],
    # The same with one id: skye-harris/hass_local_openai_llm#92, where the end also comes twice.
    "index and id": [
        chunk(piece("a", encode_input(LS_A))),
        chunk(piece("a", encode_input(LS_B))),
        FINISH,
        FINISH,
    ],
    "in fragments": [
        chunk(piece("a", "")),
        *(chunk(piece(None, text, None)) for text in ('{"comm', 'and": "ls a"}')),
        chunk(piece("b", "")),
        *(chunk(piece(None, text, None)) for text in ('{"comm', 'and": "ls b"}')),
        FINISH,
    ],
    "one id in fragments": [
        *(
            chunk(piece("a", "") if text is None else piece(None, text, None))
            for text in (None, '{"comm', 'and": "ls a"}', None, '{"comm', 'and": "ls b"}')
        ),
        FINISH,
    ],
    # sgl-project/sglang#7048: only the first call has an id.
    "no later id": [
        chunk(piece("a", encode_input(LS_A))),
        chunk(piece(None, encode_input(LS_B), index=1)),
        FINISH,
    ],
    # vllm-project/vllm#18412: no id and no index (ollama/ollama#7881).
    "no id": [
        chunk(piece(None, encode_input(LS_A))),
        chunk(piece(None, encode_input(LS_B), index=1)),
        FINISH,
    ],
    "no index": [
        chunk(piece("a", encode_input(LS_A), index=None)),
        chunk(piece("b", encode_input(LS_B), index=None)),
        FINISH,
    ],
}


@loop_over_rows("events", CHUNKS.values())
def test_streamed_call_fragments_are_not_merged(events):
    results = build_rfc_calls("a")[1]
    call_results = pairs(run("qwen-rfc", *events, *results))
    assert [command for command, _ in call_results] == [LS_A, LS_B]
    assert call_results[0] == (LS_A, "A")


@loop_over_rows("vendor", STREAMS)
def test_call_id_can_repeat_in_every_reply(vendor):
    """NousResearch/hermes-agent#70724 (llama.cpp): one id for all replies."""
    events = []
    for _ in range(3):
        calls, results = STREAMS[vendor]("ZsSt4SkIFMRz0HtqT7MTlimNvzlKM896")
        events += [*calls, *results]
    assert pairs(run(vendor, *events)) == [(LS_A, "A"), (LS_B, "B")] * 3


def test_pi_calls_without_id_and_name_get_separate_results():
    """earendil-works/pi#4854: a hosted gateway sends only arguments, and pi answers that there is
    no such tool.
    """
    calls = [
        {"type": "toolCall", "id": "", "name": "", "arguments": {"command": command}}
        for command in (LS_A, LS_B)
    ]
    message = {
        "type": "message_end",
        "message": {"role": "assistant", "content": calls, "stopReason": "toolUse"},
    }
    events = [message]
    for _ in calls:
        result = {"content": [{"type": "text", "text": "Tool  not found"}], "isError": True}
        call_fields = {"toolCallId": "", "toolName": ""}
        events.append(
            {"type": "tool_execution_end", **call_fields, "result": result, "isError": True}
        )
        events.append(
            {"type": "message_end", "message": {"role": "toolResult", **call_fields, **result}}
        )
    assert pairs(run("pi", *events)) == [(LS_A, "Tool  not found"), (LS_B, "Tool  not found")]


@loop_over_rows("vendor", STREAMS)
def test_equal_calls_with_distinct_ids_are_all_written(vendor):
    """lmstudio-ai/lmstudio-bug-tracker#1756: nine equal calls in one reply."""
    calls, results = [], []
    for number in range(9):
        made = STREAMS[vendor](f"call_{number}")
        calls += json.loads(json.dumps(made[0]).replace(LS_B, LS_A))
        results.append(json.loads(json.dumps(made[1]).replace(LS_B, LS_A)))
    call_results = pairs(run(vendor, *calls, *(event for group in results for event in group)))
    assert len(call_results) >= 9 and {command for command, _ in call_results} == {LS_A}


def test_kimi_call_ids_can_repeat_within_and_across_replies():
    """HKUDS/nanobot#4473: `grep:3` names several open calls."""
    calls = build_openai_message("grep:3", "grep a", "grep b", "grep c")
    results = [{"role": "tool", "content": text, "tool_call_id": "grep:3"} for text in "ABC"]
    assert [text for _, text in pairs(run("kimi", calls, *results, calls, *results))] == [
        *"ABC"
    ] * 2


def test_denials_with_a_shared_call_id_are_listed_with_unique_ids():
    calls, _ = build_qwen_calls("same")
    denials = [
        {
            "tool_name": "run_shell_command",
            "tool_use_id": "same",
            "tool_input": {"command": command},
        }
        for command in (LS_A, LS_B)
    ]
    done = {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "result": "",
        "permission_denials": denials,
    }
    lines = run("qwen", *calls, done | {"session_id": SESSION})
    (result,) = (line for line in lines if line["type"] == "result")
    denied_calls = [
        (each["tool_use_id"], each["tool_input"]["command"])
        for each in result["permission_denials"]
    ]
    assert denied_calls == [("same", LS_A), ("same~2", LS_B)]


def test_kimi_acp_prompt_is_cancelled_if_two_open_calls_share_an_id():
    """kimi's question does not show which of the calls it is about, so it is refused."""

    def says(command: str, kind: str = "tool_call") -> Event:
        content = [
            {
                "type": "content",
                "content": {"type": "text", "text": json.dumps({"command": command})},
            }
        ]
        fields = {
            "toolCallId": "c1",
            "title": "Shell",
            "kind": "execute",
            "status": "in_progress",
            "content": content,
        }
        return acp_agent.build_update(kind, **fields)

    talk = acp_agent.AcpConversation("kimi").feed_messages(
        *acp_agent.ANSWERS, says(LS_A), says(LS_A, "tool_call_update"), says(LS_B)
    )
    request = acp_agent.build_permission_request(7, "c1", title="")
    del request["params"]["toolCall"]["rawInput"]
    assert talk.feed_messages(request).get_last_message()["result"] == {
        "outcome": {"outcome": "cancelled"}
    }
    talk.feed_messages(acp_done("c1", "A"), acp_done("c1", "B"), acp_agent.DONE).close_stream()
    assert [text for _, text in pairs(parse_lines(talk.lines))] == ["A", "B"]
