"""Handlers for the frontend's requests about MCP servers.

A vendor receives its servers when its process starts. A change takes effect with the next message,
for which the vendor is started again and resumes its session.
"""

from shim.core.claude.session_state import SessionState
from shim.core.reading.typed import Any
from shim.core.reading.values import as_dict

SDK_TYPE = "sdk"


def explain_unsupported_servers(state: SessionState) -> str:
    """Return why the vendor cannot use MCP servers, or "" if it can."""
    if state.vendor.accepts_mcp_servers:
        return ""
    return f"{state.vendor.display_name} does not support MCP servers"


def set_mcp_servers(state: SessionState, servers: object) -> dict[str, Any]:
    """Replace the servers of earlier calls, and the servers in the frontend's process. Return the
    body of the response.
    """
    configs = as_dict(servers)
    if configs and (reason := explain_unsupported_servers(state)):
        return {"added": [], "removed": [], "errors": dict.fromkeys(configs, reason)}
    errors = {
        name: "the server has no configuration" for name, config in configs.items() if not config
    }
    usable = {
        name: config
        for name, config in configs.items()
        if isinstance(config, dict) and name not in errors
    }
    sdk_names = [name for name, config in usable.items() if config.get("type") == SDK_TYPE]
    external = {name: config for name, config in usable.items() if name not in sdk_names}
    old_sdk_names = state.sdk_servers.names
    removed = [name for name in old_sdk_names if name not in sdk_names]
    state.sdk_servers.unregister_servers(removed)
    if sdk_names:
        state.add_sdk_mcp_servers(sdk_names)
    state.sdk_servers.initialize_servers()
    added, removed_external = state.replace_dynamic_servers(external)
    new_sdk_names = [name for name in sdk_names if name not in old_sdk_names]
    return {
        "added": [*added, *new_sdk_names],
        "removed": [*removed_external, *removed],
        "errors": errors,
    }


def toggle_mcp_server(state: SessionState, name: object, *, enabled: bool) -> str:
    """Enable or disable a server. Return an error message, or "" if this succeeded."""
    if isinstance(name, str) and name in state.sdk_servers.names:
        return f"Cannot enable or disable {name}: the server runs in this program"
    if not isinstance(name, str) or not state.toggle_configured_server(name, enabled=enabled):
        return f"Server not found: {name}"
    return ""


def reconnect_mcp_server(state: SessionState, name: object) -> str:
    """Let the vendor connect to a server again. Return an error message, or "" if this succeeded."""
    if isinstance(name, str) and name in state.sdk_servers.names:
        return ""  # the frontend is connected to the server itself
    if name in state.disabled_servers:
        return f"Server is disabled: {name}"
    if name not in state.configured_servers:
        return f"Server not found: {name}"
    if reason := explain_unsupported_servers(state):
        return reason
    state.request_server_restart()
    return ""
