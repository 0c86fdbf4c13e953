"""Builds the settings for a codex thread that make codex ask about each tool call, regardless of
the user's settings. Measured with 0.169.0.

The settings are tables, because codex applies dotted keys and tables in an order of its own, and
the last value wins. codex merges the hook lists from all settings, so the user's hooks cannot be
replaced. But each hook that codex lists can be disabled. Two kinds of hooks are disabled:

- A hook that decides about calls. It would answer the permission request (`PermissionRequest`), or
  remove the prefix that makes codex ask (`PreToolUse`).
- A hook that has not been reviewed. It would only run because the shim makes codex run unreviewed
  hooks.
"""

from collections.abc import Iterable, Mapping

from shim.core.reading.typed import Any
from shim.core.reading.values import as_dict, as_list, get_text

# this value makes codex ask about each tool of a server
PROMPT_APPROVAL = {"default_tools_approval_mode": "prompt"}
DECIDING_EVENTS = ("preToolUse", "permissionRequest")
UNKNOWN_HOOKS_MESSAGE = (
    "codex did not report which hooks it runs, and one of them might answer permission "
    "prompts; choose another version of codex"
)
MANAGED_HOOK_MESSAGE = (
    "a managed hook ({}) answers permission prompts in codex; use bypassPermissions without rules"
)


def build_mcp_server_tables(
    added_servers: Mapping[str, Any],
    configured_servers: Mapping[str, Any],
    server_names: Iterable[str],
) -> dict[str, dict[str, Any]]:
    """Return the settings tables for the MCP servers. Each server asks about each of its tools,
    even about read-only tools.

    `added_servers` are complete tables, `configured_servers` are the tables from codex's settings,
    and `server_names` are the names of the configured servers that must ask.
    """
    tables: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys((*added_servers, *server_names)):
        tools = as_dict(as_dict(configured_servers.get(name)).get("tools"))
        prompted_tools = {
            tool: {"approval_mode": "prompt"}
            for tool, tool_settings in tools.items()
            if "approval_mode" in as_dict(tool_settings)
        }
        tables[name] = {
            **added_servers.get(name, {}),
            **PROMPT_APPROVAL,
            **({"tools": prompted_tools} if prompted_tools else {}),
        }
    return tables


def convert_mcp_server_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of an MCP server in codex's form."""
    if isinstance(config.get("url"), str):
        return {
            "url": config["url"],
            "http_headers": dict(as_dict(config.get("headers"))),
        }
    return {
        "command": get_text(config, "command"),
        "args": [str(arg) for arg in as_list(config.get("args"))],
        "env": {str(key): str(value) for key, value in as_dict(config.get("env")).items()},
    }


def build_disabled_hook_states(
    hook_list: Mapping[str, Any], *, has_shim_hook: bool
) -> dict[str, dict[str, bool]]:
    """Return the table `hooks.state`, which disables each hook that decides about tool calls and
    each hook that has not been reviewed.

    `hook_list` is codex's response to `hooks/list`. An administrator's hook cannot be disabled.
    Raise ValueError if such a hook decides about calls and the shim's hook is needed
    (`has_shim_hook`), or if the list cannot be read.
    """
    hook_states: dict[str, dict[str, bool]] = {}
    folders = hook_list.get("data")
    if not isinstance(folders, list) or not folders:
        raise ValueError(UNKNOWN_HOOKS_MESSAGE)
    for folder in folders:
        hooks = as_dict(folder).get("hooks")
        if not isinstance(hooks, list):
            raise ValueError(UNKNOWN_HOOKS_MESSAGE)
        for hook in map(as_dict, hooks):
            key = hook.get("key")
            is_deciding = hook.get("eventName") in DECIDING_EVENTS
            if not isinstance(key, str):
                raise ValueError(UNKNOWN_HOOKS_MESSAGE)
            if is_deciding and has_shim_hook and hook.get("isManaged"):
                raise ValueError(MANAGED_HOOK_MESSAGE.format(get_text(hook, "sourcePath", key)))
            if is_deciding or hook.get("trustStatus") not in ("trusted", "managed"):
                hook_states[key] = {"enabled": False}
    return hook_states
