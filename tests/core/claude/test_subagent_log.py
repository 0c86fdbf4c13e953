"""The messages of subagents that are collected for their transcripts."""

import pytest

from shim.core.claude.subagent_log import MAX_AGENTS, SubagentLog

PREFIX = "99999999-0000-4000-8000-"
INPUT = {"subagent_type": "greeter", "prompt": "say hi", "description": "greet"}
PROMPT = {"role": "user", "content": [{"type": "text", "text": "say hi"}]}


def build_reply(*blocks):
    return {"role": "assistant", "content": list(blocks)}


TEXT = build_reply({"type": "text", "text": "Hi."})


def summarize(log):
    """Return the new changes: the agent's number with the text of a message or the metadata."""
    rows = []
    for change in log.take_changes():
        number = int(change.agent_id[-4:], 16)
        if change.metadata is not None:
            rows.append((number, "finished" if "finished" in change.metadata else "metadata"))
            continue
        content = change.entry.message["content"]
        rows.append(
            (number, change.entry.role, content if isinstance(content, str) else content[0]["text"])
        )
    return rows


def test_reported_messages_follow_the_metadata():
    log = SubagentLog(PREFIX)
    log.start_agent("call", INPUT)
    log.add_message("call", "user", PROMPT, "u1")
    log.add_message("call", "assistant", TEXT, "u2")
    log.end_agent("call", "Hi.", is_error=False)
    assert summarize(log) == [
        (1, "metadata"), (1, "user", "say hi"), (1, "assistant", "Hi."), (1, "finished"),
    ]  # fmt: skip
    assert summarize(log) == []


def test_result_names_the_transcript_and_counts_the_calls():
    log = SubagentLog(PREFIX)
    log.start_agent("call", INPUT)
    read = {"type": "tool_use", "id": "t", "name": "Read", "input": {}}
    log.add_message("call", "assistant", build_reply(read), "u1")
    assert log.end_agent("call", "Hi.", is_error=False) == {
        "status": "completed",
        "prompt": "say hi",
        "agentId": "a9999999900000001",
        "agentType": "greeter",
        "content": [{"type": "text", "text": "Hi."}],
        "totalToolUseCount": 1,
    }


def test_failed_agent_without_messages_has_no_result():
    log = SubagentLog(PREFIX)
    log.start_agent("call", INPUT)
    assert log.end_agent("call", "not started", is_error=True) is None
    assert log.end_agent("unknown", "Hi.", is_error=False) is None


def test_metadata_names_the_call_and_the_agent():
    log = SubagentLog(PREFIX)
    log.start_agent("call", INPUT)
    log.add_message("call", "assistant", TEXT, "u")
    change = log.take_changes()[0]
    assert change.agent_id == "a9999999900000001"
    assert change.metadata == {
        "agentType": "greeter",
        "description": "greet",
        "toolUseId": "call",
        "spawnDepth": 1,
    }


def test_missing_prompt_is_taken_from_the_call():
    log = SubagentLog(PREFIX)
    log.start_agent("call", INPUT)
    log.add_message("call", "assistant", TEXT, "u")
    assert summarize(log) == [(1, "metadata"), (1, "user", "say hi"), (1, "assistant", "Hi.")]


@pytest.mark.parametrize("content", ["Hi.", [{"type": "text", "text": "Hi."}]])
def test_agent_without_messages_has_its_prompt_and_its_result(content):
    log = SubagentLog(PREFIX)
    log.start_agent("call", INPUT)
    log.end_agent("call", content, is_error=False)
    assert summarize(log) == [
        (1, "metadata"), (1, "user", "say hi"), (1, "assistant", "Hi."), (1, "finished"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("tool_input", "content", "is_error"),
    [
        (INPUT, "Permission was denied.", True),
        (INPUT, "", False),
        ({"description": "wait_agent"}, "done", False),  # the call starts no agent
    ],
)
def test_call_that_runs_no_agent_has_no_transcript(tool_input, content, is_error):
    log = SubagentLog(PREFIX)
    log.start_agent("call", tool_input)
    log.end_agent("call", content, is_error=is_error)
    assert summarize(log) == []


def test_nested_agent_names_its_parent():
    log = SubagentLog(PREFIX)
    log.start_agent("call", INPUT)
    nested = {"type": "tool_use", "id": "nested", "name": "Task", "input": INPUT}
    log.add_message("call", "assistant", build_reply(nested), "u1")
    log.take_changes()
    log.add_message("nested", "assistant", TEXT, "u2")
    metadata = log.take_changes()[0].metadata
    assert metadata["spawnDepth"] == 2 and metadata["parentAgentId"] == "a9999999900000001"
    result = {"type": "tool_result", "tool_use_id": "nested", "content": "Hi.", "is_error": False}
    log.add_message("call", "user", {"role": "user", "content": [result]}, "u3")
    assert [
        change.metadata.get("finished") for change in log.take_changes() if change.metadata
    ] == [True]


def test_message_after_the_end_belongs_to_the_same_agent():
    log = SubagentLog(PREFIX)
    log.start_agent("call", INPUT)
    log.end_agent("call", "Hi.", is_error=False)
    log.take_changes()
    log.add_message("call", "assistant", TEXT, "u")
    assert summarize(log) == [(1, "assistant", "Hi.")]


def test_discarded_turn_leaves_no_messages():
    log = SubagentLog(PREFIX)
    log.start_agent("call", INPUT)
    log.add_message("call", "assistant", TEXT, "u")
    log.discard_changes()
    log.start_agent("call", INPUT)
    log.end_agent("call", "Hi.", is_error=False)
    assert summarize(log)[:2] == [(2, "metadata"), (2, "user", "say hi")]


def test_number_of_agents_is_limited():
    log = SubagentLog(PREFIX)
    for number in range(MAX_AGENTS + 5):
        log.add_message(f"call_{number}", "assistant", TEXT, "u")
    assert len({change.agent_id for change in log.take_changes()}) == MAX_AGENTS
