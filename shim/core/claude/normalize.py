"""Makes lines from a real claude safe for clients: incomplete lines are completed, long lines are
shortened, and empty lines are omitted. Every change is counted.

A valid line is passed on unchanged. If a line lacks a member that the SDKs require, or is longer
than the frontend's buffer, the frontend's turn would end with an exception (contract S3 to S9,
hostile-input section 2).
"""

from collections.abc import Callable, Iterator
from typing import Any

from shim.core.claude.grammar import get_delta, get_fragment
from shim.core.claude.usage import NO_USAGE
from shim.core.reading.diagnostics import Diagnostics
from shim.core.reading.limits import StoreText, drop_excess_members, shorten_strings, split_text

Event = dict[str, Any]

# The required members of each content block, with their types. If a thinking block has no
# signature, the signature is set to "", because clients do not check it.
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


class ClaudeEventNormalizer:
    """Makes Claude's events safe to pass on to clients. `create_uuid` returns a new UUID.
    `store_text` stores the full text before it is shortened.
    """

    def __init__(
        self,
        diagnostics: Diagnostics,
        create_uuid: Callable[[], str],
        max_bytes: int,
        store_text: StoreText | None,
    ) -> None:
        self._diagnostics = diagnostics
        self._create_uuid = create_uuid
        self._max_bytes = max_bytes
        self._store_text = store_text
        self._normalizers: dict[object, Callable[[Event], Event | None]] = {
            "stream_event": self._normalize_stream_event,
            "assistant": self._normalize_message,
            "user": self._normalize_message,
            "system": self._normalize_system,
            "result": self._normalize_result,
            "rate_limit_event": self._normalize_rate_limit,
        }

    def normalize_event(self, event: Event, session_id: str, model: str) -> Event | None:
        """Return `event` unchanged if it is complete, a completed copy if members are missing, or
        None if the event has no content.
        """
        kind = event["type"]
        normalize_kind = self._normalizers.get(kind)
        if normalize_kind is None:
            return event
        result = normalize_kind(event)
        if result is None:
            self._diagnostics.record("malformed_event", event)
            return None
        if kind == "assistant":
            if not isinstance(result["message"].get("model"), str):
                result = result | {"message": result["message"] | {"model": model}}
        elif kind != "user" and (kind != "system" or result["subtype"] in SYSTEM_DEFAULTS):
            if not isinstance(result.get("session_id"), str):
                result = result | {"session_id": session_id}
            if not isinstance(result.get("uuid"), str):
                result = result | {"uuid": self._create_uuid()}
        if result is not event:
            self._diagnostics.record("completed_event", event)
        return result

    def split_long_event(self, event: Event) -> Iterator[Event]:
        """Split the text in a long line into several lines of the same kind. A line whose text
        cannot be split is shortened.
        """
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
            delta = get_delta(event)
            key, fragment = get_fragment(delta)
            if key:
                for text in split_text(fragment, self._max_bytes // 2):
                    inner_event = event["event"] | {"delta": delta | {key: text}}
                    yield event | {"event": inner_event, "uuid": self._create_uuid()}
                return
        self._diagnostics.record("line_cut", kind)
        fitted = shorten_strings(event, self._max_bytes, self._store_text)
        yield fitted if isinstance(fitted, dict) else drop_excess_members(event, self._max_bytes)

    def _normalize_stream_event(self, event: Event) -> Event | None:
        inner_event = event.get("event")
        if not isinstance(inner_event, dict) or not isinstance(inner_event.get("type"), str):
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
        normalized_blocks = [_normalize_block(block) for block in content]
        if all(
            normalized_block is block
            for normalized_block, block in zip(normalized_blocks, content, strict=True)
        ):
            return event
        valid_blocks = [block for block in normalized_blocks if block is not None]
        if valid_blocks:
            return event | {"message": message | {"content": valid_blocks}}
        return None

    def _normalize_system(self, event: Event) -> Event | None:
        subtype = event.get("subtype")
        if not isinstance(subtype, str):
            return None
        defaults = SYSTEM_DEFAULTS.get(subtype)
        if defaults is None or event.keys() >= defaults.keys():
            return event
        return defaults | event

    def _normalize_result(self, event: Event) -> Event | None:
        is_error = event.get("is_error")
        defaults = {**RESULT_DEFAULTS, "is_error": bool(is_error)}
        if is_error:
            defaults["subtype"] = "error_during_execution"
        else:
            defaults["subtype"] = "success"
        if is_error and event.get("subtype") != "success":
            defaults["errors"] = []
        if event.keys() >= _REQUIRED_RESULT_KEYS | ({"errors"} & defaults.keys()):
            return event
        return defaults | event

    def _normalize_rate_limit(self, event: Event) -> Event | None:
        limit = event.get("rate_limit_info")
        if isinstance(limit, dict) and isinstance(limit.get("status"), str):
            return event
        return None


_REQUIRED_RESULT_KEYS = {"subtype", "is_error", "duration_ms", "duration_api_ms", "num_turns"}


def _normalize_block(value: object) -> object:
    """Return a content block that clients can read. Missing members are added. Return None if the
    value is not a content block.
    """
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        return None
    required_members = REQUIRED_BLOCK_MEMBERS.get(value["type"])
    if required_members is None:
        return value
    if not all(isinstance(value.get(name), kinds) for name, kinds in required_members.items()):
        return None
    if value["type"] == "thinking" and "signature" not in value:
        return value | {"signature": ""}
    return value
