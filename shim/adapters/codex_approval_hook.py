"""The hook that makes codex's app-server ask about tool calls. Measured with 0.169.0.

codex asks about each command, unless a `.rules` file of the user allows the command. The hook
therefore adds a command that does nothing before each command: no rule matches the result, and
codex asks about the complete line. codex also asks about each patch, and about each tool of the MCP
servers that are configured to ask. The hook receives the names of these servers.

If the policy asks about a call, codex's own approval request follows. If the policy denies a call,
the hook refuses the call immediately, because a hook that codex did not list might answer the
request. codex does not ask about any other call (`view_image`, other servers), so the hook refuses
such a call if the policy would ask.
"""

import json
from collections.abc import Mapping
from typing import Any

from shim.adapters import codex_hook
from shim.core.policy.policy import PROMPTLESS_MODES, Workspace, normalize_tool_name

NOOP_PREFIX = ": claude-shim;"  # the shell's `:` ignores its arguments


def list_hook_calls(
    event: Mapping[str, Any], workspace: Workspace, *servers: str
) -> list[codex_hook.ClaudeCall]:
    """Return the tool calls in a hook event. Raise ValueError for an event with an unknown form."""
    return codex_hook.list_hook_calls(event, workspace)


def can_ask(event: Mapping[str, Any], mode: str, *servers: str) -> bool:
    """Return True if codex asks about the calls in a hook event, and its request can be allowed in
    this permission mode.

    `servers` are the MCP servers that are configured to ask, as they are spelled in their tools'
    names.
    """
    if mode in PROMPTLESS_MODES:
        return False
    name = str(event.get("tool_name"))
    if name in ("Bash", "apply_patch"):
        return True
    asking_prefixes = tuple(f"mcp__{server}__" for server in servers)
    return normalize_tool_name(name).startswith(asking_prefixes)


def format_hook_output(denial_reason: str, event: Mapping[str, Any]) -> str:
    """Return the output that adds the prefix to the command, so that codex asks. Return "" for a
    patch or a denial.
    """
    tool_input = event.get("tool_input")
    if denial_reason or event.get("tool_name") != "Bash" or not isinstance(tool_input, dict):
        return ""
    command = str(tool_input.get("command"))
    if codex_hook.find_patch_in_command(command) is not None:
        return ""
    output = {
        "permissionDecision": "allow",
        "updatedInput": {**tool_input, "command": NOOP_PREFIX + command},
    }
    return json.dumps({"hookSpecificOutput": {"hookEventName": "PreToolUse", **output}})
