"""Reads the fields of the Qwen RFC's lines: metadata, message texts, usages, tool calls, displays
and errors.
"""

from typing import Any

import orjson

from shim.adapters.qwen_rfc import TOOLS
from shim.core.adapter.tools import Arguments, list_claude_names, translate_tool_call
from shim.core.adapter.translator import Event
from shim.core.claude.usage import Usage, create_usage
from shim.core.reading.diagnostics import Diagnostics
from shim.core.reading.json_repair import parse_json_text
from shim.core.reading.json_text import dump_json
from shim.core.reading.values import as_dict, as_str

# For displays whose call was not announced: kind of display → Claude's tool and, for each argument,
# the display's keys.
DISPLAY_TOOLS: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "file_diff": (
        "Edit",
        {"file_path": ("file_name",), "old_string": ("original",), "new_string": ("modified",)},
    ),
    "todo_list": ("TodoWrite", {"todos": ("todos",)}),
    "plan_summary": ("ExitPlanMode", {"plan": ("plan_markdown", "message")}),
    "task_execution": (
        "Task",
        {
            "description": ("taskDescription",),
            "prompt": ("taskPrompt",),
            "subagent_type": ("subagentName",),
        },
    ),
}
# Kind of display → its keys that may contain the call's result. The first non-empty text is used.
DISPLAY_TEXT_KEYS = {
    "file_diff": ("diff", "file_name"),
    "plan_summary": ("plan_markdown", "message"),
    "task_execution": ("result", "terminateReason", "status"),
}


def read_event_metadata(event: Event) -> dict[str, Any]:
    """Return a line's metadata: `metadata`, and `system_fingerprint` if it is an object or a string
    that contains one.
    """
    fingerprint = event.get("system_fingerprint")
    if isinstance(fingerprint, str) and fingerprint.startswith("{"):
        try:
            fingerprint = orjson.loads(fingerprint)
        except orjson.JSONDecodeError:
            fingerprint = None
    return {**as_dict(fingerprint), **as_dict(event.get("metadata"))}


def read_session_fields(event: Event, metadata: dict[str, Any]) -> dict[str, Any]:
    tools = metadata.get("tools")
    tool_names = None
    if isinstance(tools, list):
        tool_names = list_claude_names(TOOLS, tools)
    return {"model": event.get("model"), "cwd": metadata.get("cwd"), "tools": tool_names}


def join_message_text(content: Any) -> str:
    """Return a message's text: its string, or the joined text parts of its list. Raise TypeError
    for other content.
    """
    if isinstance(content, list):
        return "".join(as_str(as_dict(part).get("text")) for part in content)
    if content is not None and not isinstance(content, str):
        raise TypeError("the content of a message is not text")
    return content or ""


def read_usage(event: Event, metadata: dict[str, Any]) -> Usage | None:
    """Return Claude's usage from a line, or None if there are no token counts. The RFC's prompt
    tokens include cached tokens.
    """
    counts = as_dict(event.get("usage") or metadata.get("usage"))
    usage = create_usage(
        counts.get("prompt_tokens"),
        as_dict(counts.get("prompt_tokens_details")).get("cached_tokens"),
        0,
        counts.get("completion_tokens"),
        input_includes_cached=True,
    )
    if any(usage.values()):
        return usage
    return None


def translate_chat_tool_call(
    name: object, arguments: object, diagnostics: Diagnostics
) -> tuple[str, Arguments]:
    """Return Claude's tool name and arguments for a tool call. Arguments that are not an object are
    stored as `_raw`.
    """
    parsed_arguments = parse_call_arguments(arguments, diagnostics)
    claude_call = translate_tool_call(TOOLS, str(name), parsed_arguments)
    if parsed_arguments is None:
        return claude_call[0], {"_raw": arguments}
    return claude_call


def parse_call_arguments(arguments: object, diagnostics: Diagnostics) -> Arguments | None:
    """Parse a tool call's arguments, which are usually JSON in a string. Return None if they are
    not an object.
    """
    value = arguments or {}
    if isinstance(arguments, str) and arguments.strip():
        value = parse_json_text(arguments, diagnostics)
    if isinstance(value, dict):
        return value
    return None


def is_complete_json(text: str) -> bool:
    """Return whether a text is empty or valid JSON."""
    if not text:
        return True
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def infer_displayed_call(event: Event, diagnostics: Diagnostics) -> tuple[str, Arguments]:
    """Return the tool call for a display whose call was not announced. The call is inferred from
    the display's name, or else from its fields.

    Return ("", {}) if the display does not have these fields yet.
    """
    display = event.get("result_display")
    name = event.get("tool_name") or event.get("name")
    if isinstance(name, str) and name:
        arguments = event.get("arguments") or event.get("args")
        return translate_chat_tool_call(name, arguments, diagnostics)
    if isinstance(display, str):
        return "unknown", {}
    if not isinstance(display, dict):
        return "", {}
    claude_name, keys_by_argument = DISPLAY_TOOLS.get(str(display.get("kind")), ("unknown", {}))
    arguments = {}
    for argument, keys in keys_by_argument.items():
        value = next((display[key] for key in keys if key in display), None)
        if value is not None:
            arguments[argument] = value
    if claude_name == "TodoWrite":
        return translate_tool_call(TOOLS, "todo_write", arguments)
    return claude_name, arguments


def read_display_text(event: Event) -> str:
    """Return the content of a finished display as the text of a tool result."""
    display = event.get("result_display")
    if isinstance(display, str):
        return display
    if not isinstance(display, dict):
        return format_vendor_error(event.get("error") or event.get("message") or "")
    kind = str(display.get("kind"))
    if kind == "todo_list":
        todos = display.get("todos")
        if isinstance(todos, list):
            return "\n".join(map(_format_todo, todos))
        return dump_json(todos).decode()
    if kind in DISPLAY_TEXT_KEYS:
        return _find_first_text(display, DISPLAY_TEXT_KEYS[kind])
    return _find_first_text(display, ("text", "content", "value")) or dump_json(display).decode()


def format_vendor_error(error: object) -> str:
    """Format an error as a sentence. An error is a text, or an object with a message and an
    optional code.
    """
    if not isinstance(error, dict):
        return str(error)
    code = error.get("code") or error.get("type")
    message = error.get("message")
    return ": ".join(str(part) for part in (code, message) if part) or dump_json(error).decode()


def _find_first_text(display: dict[str, Any], keys: tuple[str, ...]) -> str:
    return next(filter(None, (as_str(display.get(key)) for key in keys)), "")


def _format_todo(item: object) -> str:
    if not isinstance(item, dict):
        return str(item)
    return f"[{item.get('status', 'pending')}] {item.get('content', '')}"
