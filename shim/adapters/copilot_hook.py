"""Converts events of copilot's hook `preToolUse` to Claude's tool calls. Measured with 1.0.102.

    {"sessionId":…,"cwd":FOLDER,"toolName":"bash","toolArgs":{"command":…},…}

For a patch, `toolArgs` is the patch's text. An MCP tool is called `SERVER-TOOL`. Both names may
contain dashes, so an event for an MCP tool is converted to one call for each possible split.
"""

import posixpath
from collections.abc import Mapping
from typing import Any

from shim.adapters.codex_hook import parse_patch_as_tool_calls, require_text
from shim.core.policy.policy import Workspace

ClaudeCall = tuple[str, dict[str, Any]]

FILE_TOOLS = {"view": "Read", "create": "Write", "edit": "Edit", "str_replace_editor": "Edit"}
# copilot's names for arguments that hooks in the settings may inspect → Claude's names
TEXT_ARGUMENTS = {"file_text": "content", "old_str": "old_string", "new_str": "new_string"}
SEARCH_TOOLS = {"grep": "Grep", "rg": "Grep", "glob": "Glob"}
# Tools that only send messages, plan, wait or fetch → Claude's names.
HARMLESS_TOOLS = {
    **dict.fromkeys(("task", "read_agent", "list_agents", "write_agent"), "Task"),
    **dict.fromkeys(("read_bash", "stop_bash", "list_bash"), "TaskOutput"),
    **dict.fromkeys(("report_intent", "update_todo", "task_complete"), "TodoWrite"),
    "skill": "Skill",
    "web_fetch": "WebFetch",
    "web_search": "WebSearch",
}


def list_hook_calls(event: Mapping[str, Any], workspace: Workspace) -> list[ClaudeCall]:
    """Return the tool calls in a hook event. The event is denied unless all its calls are allowed.

    Raise ValueError for an event with an unknown form.
    """
    name = event.get("toolName")
    tool_input = event.get("toolArgs")
    folder = event.get("cwd")
    if not (isinstance(name, str) and isinstance(folder, str) and posixpath.isabs(folder)):
        raise ValueError("the event lacks a tool name or a folder")
    if name == "apply_patch":
        return _list_patch_calls(tool_input, folder)
    if isinstance(tool_input, dict):
        arguments = tool_input
    else:
        arguments = {"input": tool_input}
    if name == "bash":
        return [_build_command_call(arguments, folder, workspace)]
    if name in FILE_TOOLS:
        return [_build_file_call(FILE_TOOLS[name], arguments, folder)]
    if name in SEARCH_TOOLS:
        return _list_search_calls(SEARCH_TOOLS[name], arguments, folder)
    if name in HARMLESS_TOOLS:
        return [(HARMLESS_TOOLS[name], arguments)]
    if "-" in name:
        return _list_mcp_calls(name, arguments)
    return [(name, arguments)]


def _list_patch_calls(tool_input: object, folder: str) -> list[ClaudeCall]:
    """Return one call for each file of a patch."""
    patch = tool_input
    if isinstance(tool_input, dict):
        patch = tool_input.get("input")
    return parse_patch_as_tool_calls(require_text(patch), folder)


def _build_command_call(
    arguments: Mapping[str, Any], folder: str, workspace: Workspace
) -> ClaudeCall:
    """Return a call of Bash. It has the folder only if the folder is not the workspace's."""
    command = {"command": require_text(arguments.get("command"))}
    if folder not in workspace.list_equivalent_paths(workspace.cwd):
        command["directory"] = folder
    return "Bash", command


def _build_file_call(claude_name: str, arguments: Mapping[str, Any], folder: str) -> ClaudeCall:
    """Return a call that reads or changes one file."""
    texts = {
        claude_key: arguments[vendor_key]
        for vendor_key, claude_key in TEXT_ARGUMENTS.items()
        if vendor_key in arguments
    }
    path = posixpath.join(folder, require_text(arguments.get("path")))
    return claude_name, {"file_path": path, **texts}


def _list_search_calls(
    claude_name: str, arguments: Mapping[str, Any], folder: str
) -> list[ClaudeCall]:
    """Return one call for each path in which a search tool searches."""
    paths = arguments.get("paths") or arguments.get("path") or folder
    if not isinstance(paths, list):
        paths = [paths]
    return [
        (
            claude_name,
            {
                "pattern": require_text(arguments.get("pattern")),
                "path": posixpath.join(folder, require_text(path)),
            },
        )
        for path in paths
    ]


def _list_mcp_calls(name: str, arguments: dict[str, Any]) -> list[ClaudeCall]:
    """Return one call for each way to split a name into a server and a tool."""
    return [
        (f"mcp__{name[:position]}__{name[position + 1 :]}", arguments)
        for position, letter in enumerate(name)
        if letter == "-"
    ]


def format_hook_output(reason: str, event: object) -> str:
    """Return copilot's JSON for a denial with `reason`. If `reason` is empty, return the JSON for
    an allowed call.
    """
    import json

    decision = {"permissionDecision": "deny", "permissionDecisionReason": reason}
    return json.dumps(decision if reason else {"permissionDecision": "allow"})
