"""What codex's hook is told of a call where codex asks about its calls: by its app-server. Measured
with 0.169.0.

codex asks about each command but those that a `.rules` file of the person's allows, so the hook
puts a command that does nothing in front of each: no rule is about that one, and the line as a
whole is a question again. It asks about each patch, and about each tool of the MCP servers that
were told to ask, whose names the hook is given. So what the policy asks about goes on to that
question, and what it denies is refused here already: a hook that codex did not list might answer
the question. It asks about nothing else (`view_image`, other servers), so that is refused where it
would be asked.
"""

import json
from collections.abc import Mapping
from typing import Any

from shim.adapters import codex_hook
from shim.core.policy.policy import PROMPTLESS_MODES, Workspace, normalize_tool_name

NOOP_PREFIX = ": claude-shim;"  # in front of a command; its words mean nothing to the shell


def list_hook_calls(
    event: Mapping[str, Any], workspace: Workspace, *servers: str
) -> list[codex_hook.ClaudeCall]:
    """The calls of an event; none of them may be denied. ValueError as in `codex_hook`."""
    return codex_hook.list_hook_calls(event, workspace)


def can_ask(event: Mapping[str, Any], mode: str, *servers: str) -> bool:
    """Return whether codex asks about the calls of an event, and the request can be allowed in this
    mode.

    `servers` are the MCP servers that are configured to ask, as they are spelled in the names of
    their tools.
    """
    name = str(event.get("tool_name"))
    asking_prefixes = tuple(f"mcp__{server}__" for server in servers)
    is_prompted = name in ("Bash", "apply_patch") or normalize_tool_name(name).startswith(
        asking_prefixes
    )
    return mode not in PROMPTLESS_MODES and is_prompted


def format_hook_output(denial_reason: str, event: Mapping[str, Any]) -> str:
    """The command with what makes codex ask; nothing for a patch, or for a call that is refused."""
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
