"""Builds the arguments with which copilot applies a conversation's rules before it runs a tool
call. Measured with 1.0.102.

The bundled plugin `copilot_plugin` contains a hook (`preToolUse`). copilot starts the hook before
each call of a command, a file tool, an MCP tool or a subagent, and before a subagent's own calls. A
call that the hook denies does not run, even if another hook, a flag or a file allows it. If the
hook fails, the call is denied. A call that the hook allows needs no other permission, but copilot
itself still asks about paths outside the turn's folders. The setting `disableAllHooks` does not
disable the plugin's hook.

In a conversation copilot asks before it changes anything, so the hook only applies the rules that
forbid a call.

In a conversation the module also passes the MCP servers that are commands
(`--additional-mcp-config`). Such a server replaces a server with the same name from copilot's own
files and plugins. copilot's prompt about a call of a server names neither the server nor its tool,
so no rule could be applied to it. The calls of the shim's relays need no such prompt: the relay
itself decides about each call, with the exact name and input. `--allow-tool=NAME` turns the prompts
of a relay off. It compares the complete name of the server, and matches no other server.
"""

from collections.abc import Mapping

from shim.core.adapter.adapter import LaunchRequest
from shim.core.adapter.policy_hook import build_hook_command, needs_policy_hook
from shim.core.policy.policy import MCP_PREFIX, PermissionRule, normalize_mcp_name
from shim.core.reading.json_text import dump_json
from shim.core.reading.typed import Any
from shim.profiles.load.argv_parts import BUNDLED_FOLDER

__all__ = (
    "EMITS_CALL_BEFORE_HOOK",
    "build_arguments",
    "build_environment",
    "can_hook_apply_allow_rule",
)

PLUGIN_FOLDER = f"{BUNDLED_FOLDER}/copilot_plugin"
HOOK_MODULE = "shim.adapters.copilot_hook"  # reads the hook's events
# The plugin's hook runs the command in this variable. Without the variable the hook fails.
HOOK_VARIABLE = "PERMISSION_RULES_HOOK"
# The tools about which copilot always asks in a conversation.
PROMPTED_TOOLS = ("Bash", "Edit", "MultiEdit", "Write")
# copilot's own servers (`copilot --help`). It has not been tested whether a relay with the name of
# such a server replaces the server.
BUILT_IN_SERVERS = frozenset(("github-mcp-server", "githubiq"))
SERVERS_FLAG = "--additional-mcp-config"  # takes JSON, or @ and the path of a file
EMITS_CALL_BEFORE_HOOK = True  # copilot prints a reply together with its calls
# copilot's names for kinds of permissions. `--allow-tool=shell` allows every command, not the server
# `shell`. A relay with such a name keeps copilot's prompts.
PERMISSION_KINDS = frozenset(
    (
        *("commands", "custom-tool", "extension-env-access", "extension-management"),
        *("extension-permission-access", "hook", "mcp", "mcp-sampling", "memory", "path", "read"),
        *("shell", "url", "workflow", "write"),
    )
)


def build_arguments(request: LaunchRequest) -> list[str]:
    """Return the arguments with which copilot applies a request's rules, and those for its MCP
    servers in a conversation.
    """
    arguments = []
    if _needs_hook(request):
        arguments = ["--plugin-dir", PLUGIN_FOLDER]
    if request.persistent:
        arguments += _build_server_arguments(request)
    return arguments


def _build_server_arguments(request: LaunchRequest) -> list[str]:
    """Return the arguments for the MCP servers that are commands. If another server has the name of
    a relay, copilot keeps its prompts.
    """
    servers = request.mcp_servers
    private_servers = _select_commands(servers.private_servers)
    public_servers = {
        name: config
        for name, config in _select_commands(servers.flag_servers).items()
        if name not in private_servers
    }
    arguments = []
    if public_servers:
        text = dump_json({"mcpServers": public_servers}).decode()
        path = request.store_oversized_argument(text)
        arguments.append(f"{SERVERS_FLAG}={f'@{path}' if path else text}")
    for path in request.write_mcp_config_files(private_servers):
        other_names = servers.all_servers.keys() - {*servers.relay_names}
        prompted_names = PERMISSION_KINDS | BUILT_IN_SERVERS | other_names
        allowed_names = [name for name in _list_relay_names(request) if name not in prompted_names]
        arguments += [f"{SERVERS_FLAG}=@{path}"]
        arguments += [f"--allow-tool={name}" for name in allowed_names]
    return arguments


def _select_commands(servers: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the servers that are commands. Each server has the name that it has in Claude's tool
    names, because copilot's flags do not accept every character.
    """
    return {
        normalize_mcp_name(name): config for name, config in servers.items() if "command" in config
    }


def _list_relay_names(request: LaunchRequest) -> tuple[str, ...]:
    """Return the names that copilot has for the shim's relays."""
    return tuple(normalize_mcp_name(name) for name in request.mcp_servers.relay_names)


def build_environment(request: LaunchRequest) -> dict[str, str]:
    """Return the environment variables for the hook."""
    if not _needs_hook(request):
        return {}
    prompted_tools: tuple[str, ...] = ()
    if request.persistent:
        relays = (f"{MCP_PREFIX}{name}" for name in _list_relay_names(request))
        prompted_tools = (*PROMPTED_TOOLS, *relays)
    return {HOOK_VARIABLE: build_hook_command(request, "copilot", HOOK_MODULE, prompted_tools)}


def _needs_hook(request: LaunchRequest) -> bool:
    policy = request.policy
    if policy is None:
        return False
    if request.persistent:
        return policy.has_restrictions
    return needs_policy_hook(request)


def can_hook_apply_allow_rule(rule: PermissionRule) -> bool:
    """Return True, because copilot runs every call that the hook allows."""
    return True
