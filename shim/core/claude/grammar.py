"""Reads lines of Claude's stream-json.

Every function accepts any JSON object. A missing or malformed part is returned as an empty value.
"""

from collections.abc import Mapping

from shim.core.reading.typed import Any
from shim.core.reading.values import as_dict, as_list, as_str, list_dicts

FRAGMENT_KEYS = ("text", "thinking", "partial_json")

Line = Mapping[str, Any]
JsonObject = dict[str, Any]


def is_init_line(line: Line) -> bool:
    """Return whether a line starts a turn."""
    return line.get("type") == "system" and line.get("subtype") == "init"


def is_permission_request(request: object) -> bool:
    """Return whether the request of a control_request asks for permission to run a tool."""
    return as_dict(request).get("subtype") == "can_use_tool"


def get_parent_call_id(line: Line) -> str:
    """Return the id of the call whose subagent wrote a line, or "" for the main conversation."""
    return str(line.get("parent_tool_use_id") or "")


def list_content_blocks(line: Line) -> list[JsonObject]:
    """Return the content blocks of an assistant or user line. A plain text has no blocks."""
    return list_dicts(as_dict(line.get("message")).get("content"))


def find_first_text(content: object) -> str:
    """Return the first text of a message's content that is not blank, or ""."""
    if isinstance(content, str):
        return content
    texts = (as_str(block.get("text")) for block in list_dicts(content))
    return next(filter(str.strip, texts), "")


def list_tool_calls(line: Line) -> list[JsonObject]:
    """Return the tool calls of an assistant line."""
    if line.get("type") != "assistant":
        return []
    return [block for block in list_content_blocks(line) if block.get("type") == "tool_use"]


def list_tool_results(line: Line) -> list[JsonObject]:
    """Return the tool results of a user line."""
    if line.get("type") != "user":
        return []
    return [block for block in list_content_blocks(line) if block.get("type") == "tool_result"]


def get_stream_event(line: Line) -> JsonObject:
    """Return the API event in a stream_event line."""
    return as_dict(line.get("event"))


def get_delta(line: Line) -> JsonObject:
    """Return the delta of a stream_event line that extends a content block."""
    event = get_stream_event(line)
    if event.get("type") == "content_block_delta":
        return as_dict(event.get("delta"))
    return {}


def get_fragment(delta: Line) -> tuple[str, str]:
    """Return the key and the text of the fragment in a delta. A signature has no fragment."""
    for key in FRAGMENT_KEYS:
        if isinstance(text := delta.get(key), str):
            return key, text
    return "", ""


def get_result_text(result: Line) -> str:
    """Return the answer in a result, or its first error if it has no answer."""
    return str(result.get("result") or next(iter(as_list(result.get("errors"))), ""))
