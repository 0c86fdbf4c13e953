"""Reads the lines of Claude's stream-json format.

Every function accepts any JSON object. If a part is missing or malformed, the functions return an
empty value.
"""

from collections.abc import Mapping

from shim.core.reading.typed import Any
from shim.core.reading.values import as_dict, as_list, as_str, get_text, list_dicts

FRAGMENT_KEYS = ("text", "thinking", "partial_json")

Line = Mapping[str, Any]
JsonObject = dict[str, Any]


def is_init_line(line: Line) -> bool:
    """Return whether a line is the init line, which starts a turn."""
    return line.get("type") == "system" and line.get("subtype") == "init"


def is_permission_request(request: object) -> bool:
    """Return whether a control request asks for permission to run a tool."""
    return as_dict(request).get("subtype") == "can_use_tool"


def get_parent_call_id(line: Line) -> str:
    """Return the id of the tool call that runs the subagent which wrote a line. Return "" for a
    line of the main conversation.
    """
    return get_text(line, "parent_tool_use_id")


def list_content_blocks(line: Line) -> list[JsonObject]:
    """Return the content blocks in an assistant or user line. Content that is a plain string has no
    blocks.
    """
    return list_dicts(as_dict(line.get("message")).get("content"))


def find_first_text(content: object) -> str:
    """Return the first text in a message's content that is not blank, or ""."""
    if isinstance(content, str):
        return content
    texts = (as_str(block.get("text")) for block in list_dicts(content))
    return next(filter(str.strip, texts), "")


def list_tool_calls(line: Line) -> list[JsonObject]:
    """Return the tool calls in an assistant line."""
    if line.get("type") != "assistant":
        return []
    return [block for block in list_content_blocks(line) if block.get("type") == "tool_use"]


def list_tool_results(line: Line) -> list[JsonObject]:
    """Return the tool results in a user line."""
    if line.get("type") != "user":
        return []
    return [block for block in list_content_blocks(line) if block.get("type") == "tool_result"]


def get_stream_event(line: Line) -> JsonObject:
    """Return the API event inside a stream_event line."""
    return as_dict(line.get("event"))


def get_delta(line: Line) -> JsonObject:
    """Return the content block delta inside a stream_event line."""
    event = get_stream_event(line)
    if event.get("type") == "content_block_delta":
        return as_dict(event.get("delta"))
    return {}


def get_fragment(delta: Line) -> tuple[str, str]:
    """Return the key and the text of a delta's fragment. A signature delta has no fragment."""
    for key in FRAGMENT_KEYS:
        if isinstance(text := delta.get(key), str):
            return key, text
    return "", ""


def get_result_text(result: Line) -> str:
    """Return a result's answer, or its first error if the result has no answer."""
    first_error = next(iter(as_list(result.get("errors"))), "")
    return get_text(result, "result", str(first_error))
