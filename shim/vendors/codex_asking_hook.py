"""What codex's hook is told of a call where codex asks about its calls: by its app-server. Measured with 0.169.0.

codex asks about each command but those that a `.rules` file of the person's allows, so the hook puts a command that
does nothing in front of each: no rule is about that one, and the line as a whole is a question again. It asks about
each patch, and about each tool of the MCP servers that were told to ask, whose names the hook is given. It asks
about nothing else (`view_image`, other servers), so that is judged here as ever, and refused where it would be asked.
"""

import json
from collections.abc import Mapping
from typing import Any

from shim.core.policy.place import Place
from shim.vendors import codex_hook

MARK = ": claude-shim;"  # in front of a command; its words mean nothing to the shell


def calls(event: Mapping[str, Any], place: Place, *servers: str) -> list[codex_hook.Call]:
    """The calls of an event that codex does not ask about; each has to be allowed. ValueError as in `codex_hook`.

    `servers` of MCP were told to ask.
    """
    name, found = event.get("tool_name"), codex_hook.calls(event, place)
    asked = tuple(f"mcp__{server}__" for server in servers)
    return [] if name in ("Bash", "apply_patch") or str(name).startswith(asked) else found


def answer(reason: str, event: Mapping[str, Any]) -> str:
    """The command with what makes codex ask; nothing for a patch, or for a call that is refused."""
    given = event.get("tool_input")
    if reason or event.get("tool_name") != "Bash" or not isinstance(given, dict):
        return ""
    command = str(given.get("command"))
    if codex_hook.patch_of(command) is not None:
        return ""
    said = {"permissionDecision": "allow", "updatedInput": {**given, "command": MARK + command}}
    return json.dumps({"hookSpecificOutput": {"hookEventName": "PreToolUse", **said}})
