"""What a passed line must have, because clients end without it: completed, cut or left out, and
counted.

A real claude's line is passed as it came. One that lacks a member that the SDKs insist on would end
the frontend's turn with an exception (contract S3 to S9, hostile-input section 2), and so would one
that is longer than its buffer.
"""

from collections.abc import Callable, Iterator
from typing import Any

from shim.core.claude.usage import NO_USAGE
from shim.core.reading.account import Diagnostics
from shim.core.reading.limits import StoreText, fit_value, shorten_value, split_text

Event = dict[str, Any]

# What the members of a block must be; a thinking block's signature is made up, since clients only
# carry it.
REQUIRED_BLOCK_MEMBERS: dict[str, dict[str, tuple[type, ...]]] = {
    "text": {"text": (str,)},
    "thinking": {"thinking": (str,)},
    "tool_use": {"id": (str,), "name": (str,), "input": (dict,)},
    "tool_result": {"tool_use_id": (str,)},
}
SYSTEM_DEFAULTS: dict[str, Event] = {
    "task_started": {"task_id": "", "description": ""},
    "task_progress": {"task_id": "", "description": "", "usage": {}},
    "task_notification": {"task_id": "", "status": "completed", "output_file": "", "summary": ""},
    "compact_boundary": {"compact_metadata": {"trigger": "auto", "pre_tokens": 0}},
}
RESULT_DEFAULTS: Event = {
    "duration_ms": 0,
    "duration_api_ms": 0,
    "num_turns": 1,
    "total_cost_usd": 0,
    "usage": NO_USAGE,
    "modelUsage": {},
    "permission_denials": [],
}
DELTA_TEXT_KEYS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "input_json_delta": "partial_json",
}


class LineNormalizer:
    """Makes lines safe to pass; `mint` gives a fresh uuid, `keep` stores what is cut."""

    def __init__(
        self, account: Diagnostics, mint: Callable[[], str], room: int, keep: StoreText | None
    ) -> None:
        self._diagnostics = account
        self._create_uuid = mint
        self._max_bytes = room
        self._store_text = keep
        self._normalizers: dict[object, Callable[[Event], Event | None]] = {
            "stream_event": self._normalize_stream_event,
            "assistant": self._normalize_message,
            "user": self._normalize_message,
            "system": self._normalize_system,
            "result": self._normalize_result,
            "rate_limit_event": self._normalize_rate_limit,
        }

    def normalize(self, event: Event, session: str, model: str) -> Event | None:
        """`event` itself where it has what it needs, a completed copy, or None when it says nothing
        at all.
        """
        kind = event["type"]
        check = self._normalizers.get(kind)
        if check is None:
            return event
        found = check(event)
        if found is None:
            self._diagnostics.record("malformed_event", event)
            return None
        if kind == "assistant":
            if not isinstance(found["message"].get("model"), str):
                found = found | {"message": found["message"] | {"model": model}}
        elif kind != "user" and (kind != "system" or found["subtype"] in SYSTEM_DEFAULTS):
            if not isinstance(found.get("session_id"), str):
                found = found | {"session_id": session}
            if not isinstance(found.get("uuid"), str):
                found = found | {"uuid": self._create_uuid()}
        if found is not event:
            self._diagnostics.record("completed_event", event)
        return found

    def split_long_line(self, event: Event) -> Iterator[Event]:
        """A line that is too long: its text in several of the same kind, anything else cut."""
        kind = event["type"]
        if kind == "assistant" and len(event["message"]["content"]) == 1:
            (block,) = event["message"]["content"]
            name = block["type"]
            if name in ("text", "thinking"):
                for text in split_text(block[name], self._max_bytes // 2):
                    message = event["message"] | {"content": [block | {name: text}]}
                    yield event | {"message": message, "uuid": self._create_uuid()}
                return
        elif kind == "stream_event":
            delta = event["event"].get("delta")
            text_of = (
                DELTA_TEXT_KEYS.get(delta.get("type", "")) if isinstance(delta, dict) else None
            )
            if text_of and isinstance(delta.get(text_of), str):
                for text in split_text(delta[text_of], self._max_bytes // 2):
                    inner = event["event"] | {"delta": delta | {text_of: text}}
                    yield event | {"event": inner, "uuid": self._create_uuid()}
                return
        self._diagnostics.record("line_cut", kind)
        fitted = fit_value(event, self._max_bytes, self._store_text)
        yield fitted if isinstance(fitted, dict) else shorten_value(event, self._max_bytes)

    def _normalize_stream_event(self, event: Event) -> Event | None:
        inner = event.get("event")
        if not isinstance(inner, dict) or not isinstance(inner.get("type"), str):
            return None
        return event

    def _normalize_message(self, event: Event) -> Event | None:
        message = event.get("message")
        if not isinstance(message, dict):
            return None
        content = message.get("content")
        if isinstance(content, str) and event["type"] == "user":
            return event
        if not isinstance(content, list):
            return None
        kept = [_normalize_block(block) for block in content]
        if all(one is block for one, block in zip(kept, content, strict=True)):
            return event
        sound = [block for block in kept if block is not None]
        return event | {"message": message | {"content": sound}} if sound else None

    def _normalize_system(self, event: Event) -> Event | None:
        subtype = event.get("subtype")
        if not isinstance(subtype, str):
            return None
        needed = SYSTEM_DEFAULTS.get(subtype)
        return event if needed is None or event.keys() >= needed.keys() else needed | event

    def _normalize_result(self, event: Event) -> Event | None:
        error = event.get("is_error")
        needed = {**RESULT_DEFAULTS, "is_error": bool(error)}
        needed["subtype"] = "error_during_execution" if error else "success"
        if error and event.get("subtype") != "success":
            needed["errors"] = []
        return (
            event
            if event.keys() >= _REQUIRED_RESULT_KEYS | ({"errors"} & needed.keys())
            else needed | event
        )

    def _normalize_rate_limit(self, event: Event) -> Event | None:
        limit = event.get("rate_limit_info")
        return event if isinstance(limit, dict) and isinstance(limit.get("status"), str) else None


_REQUIRED_RESULT_KEYS = {"subtype", "is_error", "duration_ms", "duration_api_ms", "num_turns"}


def _normalize_block(block: object) -> object:
    """A content block that clients can read, completed if need be; None for anything else."""
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        return None
    needed = REQUIRED_BLOCK_MEMBERS.get(block["type"])
    if needed is None:
        return block
    if not all(isinstance(block.get(name), kinds) for name, kinds in needed.items()):
        return None
    if block["type"] == "thinking" and "signature" not in block:
        return block | {"signature": ""}
    return block
