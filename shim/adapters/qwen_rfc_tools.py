"""The Qwen RFC's tools in Claude's words: calls, and what its displays show of them (qwen-rfc page,
section 4, 10, 11).

A display says which call it is about, its status, and a `result_display` of one of five kinds.
"""

from typing import Any

import orjson

from shim.adapters import qwen
from shim.core.adapter.tools import Arguments, ToolMapping, translate_tool_call
from shim.core.reading.diagnostics import Diagnostics
from shim.core.reading.json_repair import parse_json_text
from shim.core.reading.json_text import dump_json

CALL_ID_PREFIX = "call_"  # what the id of a call may have more in a display than in the call itself
FAILED_STATUSES = frozenset(("error", "canceled", "cancelled"))
FINAL_STATUSES = FAILED_STATUSES | {"success"}


def _reshape_edit(arguments: Arguments) -> tuple[str, Arguments]:
    """The patch is the new text; the RFC's example has no old text."""
    if "patch" in arguments and "old_string" not in arguments:
        arguments = {"old_string": "", "new_string": arguments["patch"], **arguments}
        del arguments["patch"]
    return "Edit", arguments


TOOLS = {
    **qwen.TOOLS,
    "edit_file": ToolMapping("Edit", {"path": "file_path"}, reshape=_reshape_edit),
}

# The call that a display is of, where nothing said so before: kind → Claude's name, and argument →
# key of the display.
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


def translate_chat_tool_call(
    name: object, arguments: object, diagnostics: Diagnostics
) -> tuple[str, Arguments]:
    """A call in Claude's words. Its arguments are JSON in a string; other than an object they stay
    as they came.
    """
    parsed_arguments = parse_call_arguments(arguments, diagnostics)
    if parsed_arguments is None:
        return translate_tool_call(TOOLS, str(name), None)[0], {"_raw": arguments}
    return translate_tool_call(TOOLS, str(name), parsed_arguments)


def parse_call_arguments(arguments: object, diagnostics: Diagnostics) -> Arguments | None:
    """The arguments of a call as the vendor means them; None if they are not an object, as the
    RFC's own `"..."`.
    """
    parsed_arguments = (
        parse_json_text(arguments, diagnostics)
        if isinstance(arguments, str) and arguments.strip()
        else arguments or {}
    )
    return parsed_arguments if isinstance(parsed_arguments, dict) else None


def is_complete_arguments_json(arguments: str) -> bool:
    """Whether the arguments of a call are complete: a call that was cut is ignored."""
    try:
        orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError:
        return False
    return True


def infer_tool_call_from_display_event(
    display_event: dict[str, Any], diagnostics: Diagnostics
) -> tuple[str, Arguments]:
    """The call of a display that no call came before: by its name if it has one, else by what it
    shows.

    ("", {}) while the display shows nothing.
    """
    display = display_event.get("result_display")
    name = display_event.get("tool_name") or display_event.get("name")
    if isinstance(name, str) and name:
        return translate_chat_tool_call(
            name, display_event.get("arguments") or display_event.get("args"), diagnostics
        )
    if isinstance(display, str):
        return "unknown", {}
    if not isinstance(display, dict):
        return "", {}
    claude_name, keys = DISPLAY_TOOLS.get(str(display.get("kind")), ("unknown", {}))
    values = {
        argument: next((display[key] for key in display_keys if key in display), None)
        for argument, display_keys in keys.items()
    }
    arguments = {argument: value for argument, value in values.items() if value is not None}
    if claude_name == "TodoWrite":
        return translate_tool_call(TOOLS, "todo_write", arguments)
    return claude_name, arguments


def read_tool_result_display_text(event: dict[str, Any]) -> str:
    """What a finished display shows, as the text of a tool's result; "" where it shows nothing."""
    display = event.get("result_display")
    if not isinstance(display, dict):
        return display if isinstance(display, str) else _read_error_text(event)
    kind = display.get("kind")
    if kind == "file_diff":
        return _read_first_text(display, "diff", "file_name")
    if kind == "todo_list":
        todos = display.get("todos")
        return (
            "\n".join(map(_format_todo, todos))
            if isinstance(todos, list)
            else dump_json(todos).decode()
        )
    if kind == "plan_summary":
        return _read_first_text(display, "plan_markdown", "message")
    if kind == "task_execution":
        return _read_first_text(display, "result", "terminateReason", "status")
    return _read_first_text(display, "text", "content", "value") or dump_json(display).decode()


def _read_error_text(event: dict[str, Any]) -> str:
    error = event.get("error") or event.get("message") or ""
    return error if isinstance(error, str) else format_vendor_error(error)


def _read_first_text(display: dict[str, Any], *keys: str) -> str:
    return next(
        (display[key] for key in keys if isinstance(display.get(key), str) and display[key]), ""
    )


def _format_todo(item: object) -> str:
    if not isinstance(item, dict):
        return str(item)
    return f"[{item.get('status', 'pending')}] {item.get('content', '')}"


def format_vendor_error(error: object) -> str:
    """An error of the RFC's as a sentence: a string is one, an object has a message and perhaps a
    code.
    """
    if not isinstance(error, dict):
        return str(error)
    code, message = error.get("code") or error.get("type"), error.get("message")
    return ": ".join(str(part) for part in (code, message) if part) or dump_json(error).decode()
