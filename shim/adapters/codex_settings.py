"""The settings of a codex thread by which it asks about each call, whatever a person's own say.
Measured with 0.169.0.

They are tables: codex takes dotted keys and tables beside each other in an order of its own, and
the last one counts. A person's hooks cannot be replaced, for codex joins the lists of all its
settings, but each one that it lists can be switched off. Those that decide about a call would
answer our question (`PermissionRequest`), or take away the word that makes codex ask it
(`PreToolUse`). Those that nobody has reviewed run only because ours has to.
"""

from collections.abc import Iterable, Mapping

from shim.core.reading.typed import Any
from shim.core.reading.values import as_dict

# it asks about each tool of such a server
PROMPT_APPROVAL = {"default_tools_approval_mode": "prompt"}
DECIDING_EVENTS = ("preToolUse", "permissionRequest")
UNKNOWN_HOOKS_MESSAGE = (
    "codex did not say which hooks it runs, and one of them might answer for you; "
    "choose another version of codex"
)
MANAGED_HOOK_MESSAGE = (
    "a hook of your administrator's ({}) answers for you in codex; "
    "ask for bypassPermissions without rules"
)


def build_mcp_server_tables(
    added_servers: Mapping[str, Any],
    configured_servers: Mapping[str, Any],
    server_names: Iterable[str],
) -> dict[str, dict[str, Any]]:
    """The servers of MCP, `added_servers` with all of theirs, so that each asks about each tool,
    also about those that only read.

    `configured_servers` are the tables of codex's settings, `server_names` the servers to tell
    this.
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
    """A server of MCP as codex has it."""
    if isinstance(config.get("url"), str):
        return {
            "url": config["url"],
            "http_headers": dict(as_dict(config.get("headers"))),
        }
    arguments = config.get("args")
    return {
        "command": str(config.get("command") or ""),
        "args": [str(arg) for arg in arguments] if isinstance(arguments, list) else [],
        "env": {str(key): str(value) for key, value in as_dict(config.get("env")).items()},
    }


def build_disabled_hook_states(
    hook_list: Mapping[str, Any], *, has_shim_hook: bool
) -> dict[str, dict[str, bool]]:
    """The table `hooks.state` that leaves no hook which decides, and none that nobody has reviewed.

    `hook_list` is codex's answer to `hooks/list`. An administrator's hook cannot be switched off.
    ValueError where one decides and our hook is to judge calls (`has_shim_hook`), and for a list
    that cannot be read.
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
            key, is_deciding = hook.get("key"), hook.get("eventName") in DECIDING_EVENTS
            if not isinstance(key, str):
                raise ValueError(UNKNOWN_HOOKS_MESSAGE)
            if is_deciding and has_shim_hook and hook.get("isManaged"):
                raise ValueError(MANAGED_HOOK_MESSAGE.format(hook.get("sourcePath") or key))
            if is_deciding or hook.get("trustStatus") not in ("trusted", "managed"):
                hook_states[key] = {"enabled": False}
    return hook_states
