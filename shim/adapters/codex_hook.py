"""Converts events of codex's hook `PreToolUse` to Claude's tool calls. Measured with 0.169.0.

    {"hook_event_name":"PreToolUse","cwd":FOLDER,"tool_name":"Bash","tool_input":{"command":…},…}

`cwd` is the folder in which the call runs; the model may choose another folder for each command. A
patch is the input of `apply_patch`, or a command that codex treats as a patch, such as `apply_patch
<<'EOF'`.
"""

import posixpath
import re
from collections.abc import Mapping
from typing import Any

from shim.core.policy.policy import Workspace

ClaudeCall = tuple[str, dict[str, Any]]

# A command that only applies a patch. The heredoc's delimiter is quoted, so the shell expands
# nothing in the patch.
PATCH_COMMAND = re.compile(r"\s*apply_patch\s*<<\s*(['\"])(\w+)\1[ \t]*\n(.*\n)?\2\s*", re.DOTALL)
MOVE_MARKER = "*** Move to:"
# Start of a line that names a changed file → Claude's tool. codex ignores spaces around such a
# line.
CHANGE_MARKERS = {
    "*** Add File:": "Write",
    "*** Update File:": "Edit",
    MOVE_MARKER: "Write",
    "*** Delete File:": "Delete",
}
# The prefix of most subagent tools. No separator follows the prefix.
SUBAGENT_PREFIX = r"^multi_agent_v\d+"
# Tools that only send messages, plan or wait → Claude's names.
HARMLESS_TOOLS = {
    **dict.fromkeys(
        ("spawn_agent", "send_input", "wait_agent", "close_agent", "resume_agent"), "Task"
    ),
    **dict.fromkeys(("followup_task", "interrupt_agent", "list_agents", "send_message"), "Task"),
    **dict.fromkeys(
        ("update_plan", "get_goal", "create_goal", "update_goal", "request_user_input"), "TodoWrite"
    ),
    **dict.fromkeys(("list_mcp_resources", "list_mcp_resource_templates"), "ListMcpResourcesTool"),
    # The hook is also called for each tool call that a script makes.
    **dict.fromkeys(("exec", "wait", "sleep", "write_stdin"), "TaskOutput"),
    "tool_search": "ToolSearch",
    "read_mcp_resource": "ReadMcpResourceTool",
    "web_search": "WebSearch",
}


def list_hook_calls(hook_event: Mapping[str, Any], workspace: Workspace) -> list[ClaudeCall]:
    """Return the tool calls in a hook event. The event is denied unless all its calls are allowed.

    Raise ValueError for an event with an unknown form.
    """
    name, tool_input, folder = (
        hook_event.get("tool_name"),
        hook_event.get("tool_input"),
        hook_event.get("cwd"),
    )
    if not (isinstance(name, str) and isinstance(folder, str) and posixpath.isabs(folder)):
        raise ValueError("the event lacks a tool name or a folder")
    if isinstance(tool_input, dict):
        arguments = tool_input
    else:
        arguments = {"input": tool_input}
    if name == "Bash":
        return _build_command_call(require_text(arguments.get("command")), folder, workspace)
    if name == "apply_patch":
        return parse_patch_as_tool_calls(require_text(arguments.get("command")), folder)
    if name == "view_image":
        return [
            ("Read", {"file_path": posixpath.join(folder, require_text(arguments.get("path")))})
        ]
    return [(HARMLESS_TOOLS.get(re.sub(SUBAGENT_PREFIX, "", name), name), arguments)]


def format_hook_output(reason: str, event: object) -> str:
    """Return "", because codex reads only the hook's exit code and stderr."""
    return ""


def find_patch_in_command(command: str) -> str | None:
    """Return the patch that a command applies, or None if the command applies no patch."""
    match = PATCH_COMMAND.fullmatch(command)
    body = ""
    if match is not None:
        body = match[3]
        if not body:
            body = ""
    if match is None or match[2] in body.split("\n"):
        return None
    return body


def _build_command_call(command: str, folder: str, workspace: Workspace) -> list[ClaudeCall]:
    patch = find_patch_in_command(command)
    if patch is not None:
        return parse_patch_as_tool_calls(patch, folder)
    directory_argument = {}
    if folder not in workspace.list_equivalent_paths(workspace.cwd):
        directory_argument = {"directory": folder}
    return [("Bash", {"command": command, **directory_argument})]


def parse_patch_as_tool_calls(patch: str, folder: str) -> list[ClaudeCall]:
    """Return a tool call for each changed file in a patch, and for each part of an edit. Raise
    ValueError if the patch names no file.

    If a line is mistaken for a file name, more calls are denied, never fewer.
    """
    calls: list[ClaudeCall] = []
    for line in patch.split("\n"):
        stripped = line.strip()
        change_marker = next(
            (
                (marker, name)
                for marker, name in CHANGE_MARKERS.items()
                if stripped.startswith(marker)
            ),
            None,
        )
        if change_marker is not None:
            path = posixpath.join(folder, stripped[len(change_marker[0]) :].strip())
            # The lines after a `Move to` line still belong to the edit, which must stay the last call.
            index = len(calls)
            if calls and change_marker[0] == MOVE_MARKER:
                index -= 1
            calls.insert(index, (change_marker[1], {"file_path": path}))
        elif calls:
            _add_patch_line(calls, line)
    if not calls:
        raise ValueError("the patch names no file")
    return calls


def _add_patch_line(calls: list[ClaudeCall], line: str) -> None:
    """Add a line of a patch to the tool call that the line belongs to."""
    name, arguments = calls[-1]
    prefix = line[:1]
    text = line[1:] + "\n"
    if name == "Write" and prefix == "+":
        arguments["content"] = arguments.get("content", "") + text
    elif name == "Edit" and prefix == "@" and "old_string" in arguments:
        calls.append((name, {"file_path": arguments["file_path"]}))
    elif name == "Edit" and prefix in (" ", "-", "+"):
        arguments["old_string"] = arguments.get("old_string", "") + (text if prefix != "+" else "")
        arguments["new_string"] = arguments.get("new_string", "") + (text if prefix != "-" else "")


def require_text(value: object) -> str:
    """Return `value`. Raise ValueError if it is not a string."""
    if not isinstance(value, str):
        raise ValueError("the call does not state what it does")
    return value
