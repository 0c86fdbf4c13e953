"""Two calls and their results in the format of each vendor, with ids that the test chooses."""

import json
from typing import Any

Event = dict[str, Any]
ONE, OTHER = "ls a", "ls b"
SESSION = "44444444-4444-4444-8444-444444444444"


def build_openai_message(identity: Any, *commands: str, name: str = "Shell") -> Event:
    calls = [
        {
            "type": "function",
            "id": identity,
            "function": {"name": name, "arguments": json.dumps({"command": command})},
        }
        for command in commands
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def build_kimi_calls(identity: Any) -> tuple[list[Event], list[Event]]:
    results = [{"role": "tool", "content": text, "tool_call_id": identity} for text in ("A", "B")]
    return [build_openai_message(identity, ONE, OTHER)], results


def build_claude_calls(identity: Any, name: str = "Bash") -> tuple[list[Event], list[Event]]:
    calls = [
        {"type": "tool_use", "id": identity, "name": name, "input": {"command": one}}
        for one in (ONE, OTHER)
    ]
    message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": calls}
    results = [
        {"type": "tool_result", "tool_use_id": identity, "content": text, "is_error": False}
        for text in "AB"
    ]
    common = {"session_id": SESSION, "parent_tool_use_id": None}
    return (
        [{"type": "assistant", "message": message, **common}],
        [
            {"type": "user", "message": {"role": "user", "content": [block]}, **common}
            for block in results
        ],
    )


def build_qwen_calls(identity: Any) -> tuple[list[Event], list[Event]]:
    return build_claude_calls(identity, "run_shell_command")


def build_gemini_calls(identity: Any) -> tuple[list[Event], list[Event]]:
    calls = [
        {
            "type": "tool_use",
            "tool_id": identity,
            "tool_name": "run_shell_command",
            "parameters": {"command": command},
        }
        for command in (ONE, OTHER)
    ]
    return calls, [
        {"type": "tool_result", "tool_id": identity, "status": "success", "output": text}
        for text in "AB"
    ]


def build_opencode_calls(identity: Any) -> tuple[list[Event], list[Event]]:
    def event(command: str, text: str) -> Event:
        state = {
            "status": "completed",
            "input": {"command": command},
            "output": text,
            "metadata": {"exit": 0},
        }
        part = {"type": "tool", "callID": identity, "tool": "bash", "state": state}
        return {"type": "tool_use", "sessionID": "ses_1", "part": part}

    return [event(ONE, "A")], [event(OTHER, "B")]


def build_copilot_calls(identity: Any) -> tuple[list[Event], list[Event]]:
    given = [
        {"toolCallId": identity, "name": "bash", "arguments": {"command": one}}
        for one in (ONE, OTHER)
    ]
    said = {
        "type": "assistant.message",
        "data": {"messageId": "m", "content": "", "toolRequests": given},
    }
    starts = [
        {
            "type": "tool.execution_start",
            "data": {"toolCallId": identity, "toolName": "bash", "arguments": one["arguments"]},
        }
        for one in given
    ]
    ends = [
        {
            "type": "tool.execution_complete",
            "data": {"toolCallId": identity, "success": True, "result": {"content": text}},
        }
        for text in "AB"
    ]
    return [said, *starts], ends


def build_cake_calls(identity: Any) -> tuple[list[Event], list[Event]]:
    calls = [
        {
            "type": "function_call",
            "call_id": identity,
            "name": "Bash",
            "arguments": json.dumps({"command": command}),
        }
        for command in (ONE, OTHER)
    ]
    return calls, [
        {"type": "function_call_output", "call_id": identity, "output": text} for text in "AB"
    ]


def build_cursor_calls(identity: Any) -> tuple[list[Event], list[Event]]:
    def event(subtype: str, command: str, **more: Any) -> Event:
        body = {"args": {"command": command}, **more}
        return {
            "type": "tool_call",
            "subtype": subtype,
            "call_id": identity,
            "tool_call": {"shellToolCall": body},
        }

    done = [{"success": {"stdout": text, "exitCode": 0}} for text in "AB"]
    ends = [
        event("completed", one, result=result)
        for one, result in zip((ONE, OTHER), done, strict=True)
    ]
    return [event("started", ONE), event("started", OTHER)], ends


def build_pi_calls(identity: Any) -> tuple[list[Event], list[Event]]:
    calls = [
        {"type": "toolCall", "id": identity, "name": "bash", "arguments": {"command": one}}
        for one in (ONE, OTHER)
    ]
    said = {
        "type": "message_end",
        "message": {"role": "assistant", "content": calls, "stopReason": "toolUse"},
    }
    started: list[Event] = []
    ended: list[Event] = []
    for call, text in zip(calls, "AB", strict=True):
        own = {"toolCallId": identity, "toolName": "bash"}
        result = {"content": [{"type": "text", "text": text}]}
        started.append({"type": "tool_execution_start", **own, "args": call["arguments"]})
        ended.append({"type": "tool_execution_end", **own, "result": result, "isError": False})
        ended.append(
            {
                "type": "message_end",
                "message": {"role": "toolResult", **own, **result, "isError": False},
            }
        )
    return [said, *started], ended


def build_codex_calls(identity: Any) -> tuple[list[Event], list[Event]]:
    items = [{"id": identity, "type": "command_execution", "command": one} for one in (ONE, OTHER)]
    ends = [
        {
            "type": "item.completed",
            "item": {**item, "aggregated_output": text, "exit_code": 0, "status": "completed"},
        }
        for item, text in zip(items, "AB", strict=True)
    ]
    return [
        {"type": "item.started", "item": {**item, "status": "in_progress"}} for item in items
    ], ends


def build_rfc_calls(identity: Any) -> tuple[list[Event], list[Event]]:
    calls = build_openai_message(identity, ONE, OTHER, name="run_shell_command")
    choice = {"index": 0, "message": calls, "finish_reason": "tool_calls"}
    said = {
        "object": "chat.completion",
        "id": "c",
        "model": "m",
        "session_id": SESSION,
        "choices": [choice],
    }
    results = [
        {
            "object": "chat.completion",
            "choices": [
                {"index": 0, "message": {"role": "tool", "tool_call_id": identity, "content": text}}
            ],
        }
        for text in "AB"
    ]
    return [said], results


STREAMS = {
    **{
        "kimi": build_kimi_calls,
        "qwen": build_qwen_calls,
        "gemini": build_gemini_calls,
        "opencode": build_opencode_calls,
        "copilot": build_copilot_calls,
        "cake": build_cake_calls,
    },
    **{
        "cursor": build_cursor_calls,
        "pi": build_pi_calls,
        "codex": build_codex_calls,
        "qwen-rfc": build_rfc_calls,
        "amp": build_claude_calls,
    },
}
