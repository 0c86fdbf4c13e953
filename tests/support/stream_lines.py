"""Lines of Claude's stream: parsed, summarized for a comparison, and the result of a turn."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

Line = dict[str, Any]

TERMINATOR: Line = {"type": "message_stop"}


def parse_lines(data: bytes) -> list[Line]:
    """Parse the lines of a stream."""
    return [json.loads(line) for line in data.decode("utf-8").split("\n") if line]


def summarize_lines(lines: Iterable[Line]) -> list[str]:
    """Return a stream as short texts, one for each line, which a person can read and compare.

    init, system:<subtype>, start, open:<kind>, +<text delta>, ~<thinking delta>, {input}, stop,
    done:<stop reason>, text:…, think:…, call:<id> <name>, result:<id> …, failed:<id> …, user:…,
    error:…, end:<subtype> <text>, and . for the terminator. A line of a subagent starts with the id
    of its parent and >.
    """
    return [summary for line in lines if (summary := _summarize_line(line))]


def _summarize_line(line: Line) -> str:
    kind = line["type"]
    if kind == "message_stop":
        return "."
    if kind == "system":
        return "init" if line["subtype"] == "init" else f"system:{line['subtype']}"
    if kind == "result":
        text = line["result"] if "result" in line else line["errors"][0]
        return f"end:{line['subtype']}{'!' if line['is_error'] else ''} {text}".rstrip()
    if kind == "stream_event":
        return _summarize_stream_event(line["event"])
    if kind not in ("assistant", "user"):
        return kind
    parent = line.get("parent_tool_use_id")
    content = line["message"]["content"]
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    return (f"{parent}>" if parent else "") + " + ".join(
        _summarize_block(line, block) for block in blocks
    )


def _summarize_block(line: Line, block: Line) -> str:
    if block["type"] == "tool_use":
        return f"call:{block['id']} {block['name']}"
    if block["type"] == "tool_result":
        return f"{'failed' if block.get('is_error') else 'result'}:{block['tool_use_id']} {block['content']}".rstrip()
    if block["type"] == "thinking":
        return f"think:{block['thinking']}"
    who = (
        "user"
        if line["type"] == "user"
        else "error"
        if line["message"]["model"] == "<synthetic>"
        else "text"
    )
    return f"{who}:{block['text']}"


def _summarize_stream_event(event: Line) -> str:
    kind = event["type"]
    if kind == "content_block_start":
        return f"open:{event['content_block']['type']}"
    if kind == "content_block_delta":
        delta = event["delta"]
        if delta["type"] == "text_delta":
            return f"+{delta['text']}"
        return (
            f"~{delta['thinking']}"
            if delta["type"] == "thinking_delta"
            else delta.get("partial_json", "")
        )
    if kind == "message_delta":
        return f"done:{event['delta']['stop_reason']}"
    return {"message_start": "start", "content_block_stop": "stop", "message_stop": ""}[kind]


def find_result(turn: Sequence[Line]) -> Line:
    """Return the only result of a turn."""
    (result,) = (line for line in turn if line["type"] == "result")
    return result
