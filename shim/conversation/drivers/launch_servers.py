"""Selects the MCP servers for a child process: the configured servers, and relays to the servers in
the frontend's process.
"""

from collections.abc import Mapping, Sequence

from shim.conversation.drivers.context import McpRelayProvider
from shim.core.adapter.adapter import Adapter, McpServers
from shim.core.claude.session_state import SessionState
from shim.core.policy.policy import AGENT_SERVER, SUBAGENT_TOOL, Policy
from shim.core.reading.typed import Any
from shim.io.stderr import warn


def build_mcp_servers(
    state: SessionState,
    policy: Policy,
    adapter: Adapter,
    relay_provider: McpRelayProvider | None,
    command_prefix: Sequence[str],
) -> McpServers:
    """Return the MCP servers for a vendor.

    Servers from an `initialize` request are passed separately. The frontend sent them through stdin
    because they may contain secrets.
    """
    flag_servers = {}
    private_servers = {}
    for name, config in state.configured_servers.items():
        if name in state.initialize_server_names:
            private_servers[name] = config
        else:
            flag_servers[name] = config
    relays = _build_relays(state, policy, adapter, relay_provider, command_prefix)
    return McpServers(flag_servers, {**private_servers, **relays}, tuple(relays))


def _build_relays(
    state: SessionState,
    policy: Policy,
    adapter: Adapter,
    relay_provider: McpRelayProvider | None,
    command_prefix: Sequence[str],
) -> Mapping[str, Mapping[str, Any]]:
    """Return relay servers that connect the vendor to the MCP servers in the frontend's process.
    Return an empty dict if the vendor cannot use relays.
    """
    names = state.sdk_servers.names
    agent_server = _list_agent_server(state, policy)
    if not (names or agent_server) or relay_provider is None:
        return {}
    if not adapter.abilities.accepts_mcp_servers:
        return {}
    try:
        if not adapter.abilities.accepts_command_servers:
            raise OSError(
                f"{adapter.name} does not support MCP servers that run as a command (stdio)"
            )
        if command_prefix:
            raise OSError(
                f"{adapter.name} is started by {command_prefix[0]}, possibly on another machine"
            )
        relays = relay_provider.build_server_configs((*names, *agent_server))
        state.sdk_servers_error = ""
    except OSError as error:
        relays = {}
        state.sdk_servers_error = str(error)
        if names:
            joined_names = ", ".join(names)
            warn(f"these MCP servers of type sdk have no effect: {joined_names}: {error}\n")
        if agent_server:
            state.vendor = state.vendor._replace(agents_error=str(error))
            warn(f"agents have no effect: {error}\n")
    return relays


def _list_agent_server(state: SessionState, policy: Policy) -> tuple[str, ...]:
    """Return the name of the shim's own MCP server in a tuple. The tuple is empty if the session
    has no subagents, or if a rule forbids subagents.
    """
    if not state.usable_agents:
        return ()
    if not policy.list_visible_tools((SUBAGENT_TOOL,)):
        return ()
    return (AGENT_SERVER,)
