"""Two calls and their results in the format of each vendor, with ids that the test chooses."""

import json
from typing import Any

Event = dict[str, Any]
LS_A, LS_B = "ls a", "ls b"
SESSION = "44444444-4444-4444-8444-444444444444"


def build_openai_message(call_id: Any, *commands: str, name: str = "Shell") -> Event:
    calls = [
        {
            "type": "function",
            "id": call_id,
            "function": {"name": name, "arguments": json.dumps({"command": command})},
        }
        for command in commands
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def build_kimi_calls(call_id: Any) -> tuple[list[Event], list[Event]]:
    results = [{"role": "tool", "content": text, "tool_call_id": call_id} for text in ("A", "B")]
    return [build_openai_message(call_id, LS_A, LS_B)], results


def build_claude_calls(call_id: Any, name: str = "Bash") -> tuple[list[Event], list[Event]]:
    calls = [
        {"type": "tool_use", "id": call_id, "name": name, "input": {"command": command}}
        for command in (LS_A, LS_B)
    ]
    message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": calls}
    results = [
        {"type": "tool_result", "tool_use_id": call_id, "content": text, "is_error": False}
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


def build_qwen_calls(call_id: Any) -> tuple[list[Event], list[Event]]:
    return build_claude_calls(call_id, "run_shell_command")


def build_gemini_calls(call_id: Any) -> tuple[list[Event], list[Event]]:
    calls = [
        {
            "type": "tool_use",
            "tool_id": call_id,
            "tool_name": "run_shell_command",
            "parameters": {"command": command},
        }
        for command in (LS_A, LS_B)
    ]
    return calls, [
        {"type": "tool_result", "tool_id": call_id, "status": "success", "output": text}
        for text in "AB"
    ]


def build_opencode_calls(call_id: Any) -> tuple[list[Event], list[Event]]:
    def build_event(command: str, text: str) -> Event:
        state = {
            "status": "completed",
            "input": {"command": command},
            "output": text,
            "metadata": {"exit": 0},
        }
        part = {"type": "tool", "callID": call_id, "tool": "bash", "state": state}
        return {"type": "tool_use", "sessionID": "ses_1", "part": part}

    return [build_event(LS_A, "A")], [build_event(LS_B, "B")]


def build_copilot_calls(call_id: Any) -> tuple[list[Event], list[Event]]:
    requests = [
        {"toolCallId": call_id, "name": "bash", "arguments": {"command": item}}
        for item in (LS_A, LS_B)
    ]
    message = {
        "type": "assistant.message",
        "data": {"messageId": "m", "content": "", "toolRequests": requests},
    }
    starts = [
        {
            "type": "tool.execution_start",
            "data": {"toolCallId": call_id, "toolName": "bash", "arguments": item["arguments"]},
        }
        for item in requests
    ]
    ends = [
        {
            "type": "tool.execution_complete",
            "data": {"toolCallId": call_id, "success": True, "result": {"content": text}},
        }
        for text in "AB"
    ]
    return [message, *starts], ends


def build_cake_calls(call_id: Any) -> tuple[list[Event], list[Event]]:
    calls = [
        {
            "type": "function_call",
            "call_id": call_id,
            "name": "Bash",
            "arguments": json.dumps({"command": command}),
        }
        for command in (LS_A, LS_B)
    ]
    return calls, [
        {"type": "function_call_output", "call_id": call_id, "output": text} for text in "AB"
    ]


def build_cursor_calls(call_id: Any) -> tuple[list[Event], list[Event]]:
    def build_event(subtype: str, command: str, **more: Any) -> Event:
        body = {"args": {"command": command}, **more}
        return {
            "type": "tool_call",
            "subtype": subtype,
            "call_id": call_id,
            "tool_call": {"shellToolCall": body},
        }

    done = [{"success": {"stdout": text, "exitCode": 0}} for text in "AB"]
    ends = [
        build_event("completed", command, result=result)
        for command, result in zip((LS_A, LS_B), done, strict=True)
    ]
    return [build_event("started", LS_A), build_event("started", LS_B)], ends


def build_pi_calls(call_id: Any) -> tuple[list[Event], list[Event]]:
    calls = [
        {"type": "toolCall", "id": call_id, "name": "bash", "arguments": {"command": command}}
        for command in (LS_A, LS_B)
    ]
    message = {
        "type": "message_end",
        "message": {"role": "assistant", "content": calls, "stopReason": "toolUse"},
    }
    started: list[Event] = []
    ended: list[Event] = []
    for call, text in zip(calls, "AB", strict=True):
        call_fields = {"toolCallId": call_id, "toolName": "bash"}
        result = {"content": [{"type": "text", "text": text}]}
        started.append({"type": "tool_execution_start", **call_fields, "args": call["arguments"]})
        ended.append(
            {"type": "tool_execution_end", **call_fields, "result": result, "isError": False}
        )
        ended.append(
            {
                "type": "message_end",
                "message": {"role": "toolResult", **call_fields, **result, "isError": False},
            }
        )
    return [message, *started], ended


def build_codex_calls(call_id: Any) -> tuple[list[Event], list[Event]]:
    items = [
        {"id": call_id, "type": "command_execution", "command": command} for command in (LS_A, LS_B)
    ]
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


def build_rfc_calls(call_id: Any) -> tuple[list[Event], list[Event]]:
    calls = build_openai_message(call_id, LS_A, LS_B, name="run_shell_command")
    choice = {"index": 0, "message": calls, "finish_reason": "tool_calls"}
    completion = {
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
                {"index": 0, "message": {"role": "tool", "tool_call_id": call_id, "content": text}}
            ],
        }
        for text in "AB"
    ]
    return [completion], results


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
