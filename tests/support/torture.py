"""Lines as pi and claude print them, and the definition of a torture case (`torture_cases.py` has
the cases).

A stand-in (`fake_child.py`) prints a case, and every vendor with the same format reads it: lines of
Claude's format are read by the pass-through and by qwen, whose stream is similar.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stream_lines import Line

SESSION = "11111111-1111-4111-8111-111111111111"
VENDORS = {"pi": ("pi",), "claude": ("claude", "qwen")}

Steps = Sequence[Sequence[Any]]
BYTES = "@bytes"  # in a step, this stands for the file with a case's bytes


@dataclass(frozen=True)
class Torture:
    """One case. `text` is the text of the model, or a compiled pattern for it. A mapping has one
    value per vendor.

    `streamed` is the text of the fragments, or None if it is the same. `error` is part of the error
    that ends the turn, or "" for a success. `calls` and `results` must be among those in the
    output.
    """

    name: str
    shape: str
    data: bytes
    text: Any
    streamed: Any = None
    error: Any = ""
    calls: tuple[tuple[str, str, Line], ...] = ()
    results: tuple[tuple[str, str], ...] = ()
    steps: Steps = (("serve",), ("cat", BYTES))
    prompt: str = "hi"

    @property
    def vendors(self) -> tuple[str, ...]:
        return VENDORS[self.shape]

    def select_expected(self, what: str, vendor: str) -> Any:
        """Return the value of a field for one vendor."""
        value = getattr(self, what)
        return value[vendor] if isinstance(value, Mapping) else value

    def build_plan(self, folder: Path) -> Steps:
        """Return the steps of the stand-in that prints the case. The bytes are written to a file in
        the folder.
        """
        path = folder / f"{self.name}.bytes"
        path.write_bytes(self.data)
        return [[str(path) if value == BYTES else value for value in step] for step in self.steps]


# -- lines of a vendor -----------------------------------------------------------------------------


def encode_line(event: object) -> bytes:
    """Encode an event as a program prints it."""
    return (
        json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode(
            "utf-8", "surrogatepass"
        )
        + b"\n"
    )


PI_HEAD = encode_line(
    {
        "type": "session",
        "version": 3,
        "id": SESSION,
        "timestamp": "2026-01-01T00:00:00Z",
        "cwd": "/w",
    }
)
PI_HEAD += encode_line({"type": "agent_start"}) + encode_line({"type": "turn_start"})
PI_TAIL = encode_line({"type": "agent_end", "messages": []})
PI_USAGE = {
    "input": 1,
    "output": 1,
    "cacheRead": 0,
    "cacheWrite": 0,
    "totalTokens": 2,
    "cost": {"total": 0},
}


def build_pi_delta(text: str, index: int = 0) -> bytes:
    """Build a fragment of pi's reply."""
    message = {"role": "assistant", "content": []}
    delta = {"type": "text_delta", "contentIndex": index, "delta": text}
    return encode_line(
        {"type": "message_update", "message": message, "assistantMessageEvent": delta}
    )


def build_pi_message_end(*content: Line | str, reason: str = "stop") -> bytes:
    """Build the complete reply of pi."""
    blocks = [
        {"type": "text", "text": block} if isinstance(block, str) else block for block in content
    ]
    message = {"role": "assistant", "content": blocks, "stopReason": reason, "usage": PI_USAGE}
    return encode_line({"type": "message_end", "message": message})


def build_pi_call(call_id: str, name: str, tool_input: object) -> Line:
    """Build a call in pi's reply."""
    return {"type": "toolCall", "id": call_id, "name": name, "arguments": tool_input}


def build_pi_result(call_id: str, name: str, content: object) -> bytes:
    """Build the result of a call of pi."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    event = {
        "type": "tool_execution_end",
        "toolCallId": call_id,
        "toolName": name,
        "isError": False,
    }
    return encode_line(event | {"result": {"content": blocks}})


def build_pi_turn(*lines: bytes) -> bytes:
    """Build a complete turn of pi."""
    return PI_HEAD + b"".join(lines) + PI_TAIL


def build_pi_text(text: str) -> bytes:
    """Build a reply as one fragment and as a complete message."""
    return build_pi_delta(text) + build_pi_message_end(text)


INIT = {
    "type": "system",
    "subtype": "init",
    "session_id": SESSION,
    "cwd": "/w",
    "tools": ["Read", "Bash"],
    "model": "m",
}
MESSAGE_FIELDS = {"parent_tool_use_id": None, "session_id": SESSION}
DONE = {
    "type": "result",
    "subtype": "success",
    "is_error": False,
    "result": "done",
    "session_id": SESSION,
    "uuid": "00000000-0000-4000-8000-000000000003",
    "num_turns": 1,
    "duration_ms": 1,
    "duration_api_ms": 1,
    "usage": {"input_tokens": 1, "output_tokens": 1},
}
_numbers = iter(range(1, 1 << 30))


def create_uuid() -> str:
    """Create an id that no other line has."""
    return f"00000000-0000-4000-8000-{next(_numbers):012x}"


def build_assistant_line(*content: Line | str, **fields: object) -> Line:
    """Build a reply of claude."""
    blocks = [
        {"type": "text", "text": block} if isinstance(block, str) else block for block in content
    ]
    message = {
        "id": create_uuid(),
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": blocks,
    }
    return {
        "type": "assistant",
        "message": message,
        **MESSAGE_FIELDS,
        "uuid": create_uuid(),
        **fields,
    }


def build_tool_use(call_id: str, name: str, tool_input: object) -> Line:
    """Build a call in claude's reply."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": tool_input}


def build_tool_result(call: str, content: object) -> Line:
    """Build the result of a call of claude."""
    block = {"type": "tool_result", "tool_use_id": call, "content": content, "is_error": False}
    return {
        "type": "user",
        "message": {"role": "user", "content": [block]},
        **MESSAGE_FIELDS,
        "uuid": create_uuid(),
    }


def build_claude_turn(*events: Line | bytes, end: Line | None = DONE) -> bytes:
    """Build a complete turn of claude. Bytes are used unchanged."""
    turn_events = [INIT, *events, *([end] if end else [])]
    return b"".join(
        event if isinstance(event, bytes) else encode_line(event) for event in turn_events
    )
