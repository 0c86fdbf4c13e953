"""Claude's stream-json as the input of a translator."""

import json

import pytest
from turn_stage import Stage

from shim.adapters.claude_flat_stream import FlatClaudeTranslator
from shim.adapters.claude_protocol_stream import MAX_PENDING_REQUESTS
from shim.adapters.qwen_stream import QwenTranslator

TASK = {"type": "tool_use", "id": "t1", "name": "Task", "input": {"prompt": "look"}}
NESTED_BLOCKS = [
    {"type": "thinking", "thinking": "Which file?"},
    {"type": "text", "text": "This one."},
    {"type": "tool_use", "id": "n1", "name": "Bash", "input": {"command": "ls"}},
]
TRANSLATORS = (FlatClaudeTranslator, QwenTranslator)


@pytest.mark.parametrize("translator_class", TRANSLATORS)
def test_all_blocks_of_a_subagent_are_written(translator_class):
    stage = Stage()
    translator = translator_class(stage.turn)
    translator.on_assistant({"message": {"model": "m", "content": [TASK]}})
    translator.on_assistant(
        {"parent_tool_use_id": "t1", "message": {"model": "m", "content": NESTED_BLOCKS}}
    )
    nested = [line for line in stage.take_lines() if line.get("parent_tool_use_id") == "t1"]
    kinds = [
        block["type"]
        for line in nested
        if line["type"] == "assistant"
        for block in line["message"]["content"]
    ]
    assert kinds == ["thinking", "text", "tool_use"]


@pytest.mark.parametrize("translator_class", TRANSLATORS)
def test_unsupported_control_requests_are_refused_up_to_a_limit(translator_class):
    translator = translator_class(Stage().turn)
    for number in range(MAX_PENDING_REQUESTS + 1):
        request = {"subtype": "mcp_message"}
        translator.on_control_request({"request_id": f"r{number}", "request": request})
    assert len(translator.outbox) == MAX_PENDING_REQUESTS
    response = json.loads(translator.outbox[0])["response"]
    assert (response["request_id"], response["subtype"]) == ("r0", "error")
