"""Builds events by hand, and reads the story of recordings and events."""

from collections.abc import Iterable
from typing import Any

from cast_builder import read_cast

from shim.story.model import SessionStep, SessionStepChange, SessionStepTracker
from shim.story.reader import RecordedSessionStepReader

Event = dict[str, Any]
INIT: Event = {"type": "system", "subtype": "init", "session_id": "s", "model": "m", "cwd": "/repo"}


def read_story(data: bytes) -> tuple[SessionStepTracker, list[SessionStepChange]]:
    """Return the story of a recording, and all changes of its steps."""
    reader, records = read_cast(data)
    assert reader.header is not None
    teller = RecordedSessionStepReader(reader.header)
    changes = [change for record in records for change in teller.feed(record)]
    return teller.story, changes + teller.close()


def build_story(
    *events: Event, sent: Iterable[tuple[float, Event]] = ()
) -> tuple[SessionStepTracker, list[SessionStep]]:
    """Return the story of events that follow each other every second, starting at 1. `sent` are
    lines of the frontend with their times.
    """
    story, steps, waiting = (
        SessionStepTracker(),
        list[SessionStep](),
        sorted(sent, key=lambda line: line[0]),
    )
    changes: list[SessionStepChange] = []
    for at, event in enumerate(events, 1):
        while waiting and waiting[0][0] < at:
            changes += story.add_frontend_message(*waiting.pop(0))
        changes += story.add_claude_event(at, event)
    changes += [change for line in waiting for change in story.add_frontend_message(*line)]
    changes += story.end_open_steps(len(events) + 1)
    for change in changes:
        if change.phase == "begin":
            steps.append(change.step)
    assert sorted(change.step.number for change in changes if change.phase == "end") == [
        step.number for step in steps
    ]
    return story, steps


def build_assistant_line(
    *blocks: Event, message_id: str = "r", parent: str | None = None, **fields: Any
) -> Event:
    """Build a complete line of a reply."""
    message = {"id": message_id, "model": "m", "content": list(blocks)}
    return {"type": "assistant", "message": message, "parent_tool_use_id": parent, **fields}


def build_text_block(text: str) -> Event:
    return {"type": "text", "text": text}


def build_tool_use(call_id: str, name: str = "Bash", **tool_input: Any) -> Event:
    return {"type": "tool_use", "id": call_id, "name": name, "input": tool_input}


def build_tool_result_line(
    call_id: str, content: Any = "out", *, failed: bool = False, extra: Any = None, **fields: Any
) -> Event:
    """Build a user line with one result."""
    block = {"type": "tool_result", "tool_use_id": call_id, "content": content, "is_error": failed}
    return {"type": "user", "message": {"content": [block]}, "tool_use_result": extra, **fields}


def build_stream_event(kind: str, parent: str | None = None, **fields: Any) -> Event:
    """Build a partial message."""
    return {"type": "stream_event", "event": {"type": kind, **fields}, "parent_tool_use_id": parent}


def build_message_start(message_id: str = "r") -> Event:
    return build_stream_event("message_start", message={"id": message_id})


def build_delta(text: str, kind: str = "text", parent: str | None = None) -> Event:
    return build_stream_event(
        "content_block_delta", parent, delta={"type": f"{kind}_delta", kind: text}
    )


STOP = build_stream_event("content_block_stop")


def build_permission_request(
    request: str, call_id: str, name: str = "Bash", **tool_input: Any
) -> Event:
    fields = {
        "subtype": "can_use_tool",
        "tool_name": name,
        "tool_use_id": call_id,
        "input": tool_input,
    }
    return {"type": "control_request", "request_id": request, "request": fields}


def build_permission_answer(request: str, behavior: str) -> Event:
    response = {"subtype": "success", "request_id": request, "response": {"behavior": behavior}}
    return {"type": "control_response", "response": response}


def build_user_line(text: str) -> Event:
    return {"type": "user", "message": {"role": "user", "content": text}}


def build_result_line(cost: float = 0.0, **fields: Any) -> Event:
    usage = {"input_tokens": 10, "output_tokens": 5}
    return {
        "type": "result",
        "session_id": "s",
        "is_error": False,
        "total_cost_usd": cost,
        "usage": usage,
        **fields,
    }
